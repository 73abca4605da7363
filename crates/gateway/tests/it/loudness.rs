//! `threadbare loudness`, compared with other meters.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::common::threadbare;
use serde_json::Value;

fn loudness(arguments: &[&dyn AsRef<std::ffi::OsStr>]) -> Output {
    let mut command = threadbare();
    command.arg("loudness").stdin(Stdio::null());
    arguments.iter().for_each(|argument| {
        command.arg(argument.as_ref());
    });
    command.output().expect("runs")
}

/// Returns the report of a run that must succeed.
fn json(arguments: &[&dyn AsRef<std::ffi::OsStr>]) -> Value {
    let mut all: Vec<&dyn AsRef<std::ffi::OsStr>> = vec![&"--json"];
    all.extend(arguments);
    let output = loudness(&all);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn ffmpeg(arguments: &[&str], path: &Path) {
    let mut command = Command::new("ffmpeg");
    command.args(["-v", "error", "-y", "-nostdin"]);
    let status = command.args(arguments).arg(path).status();
    assert!(status.expect("ffmpeg").success(), "{arguments:?}");
}

/// Returns a programme with soft and loud parts, different in each channel, and a little noise.
fn programme(directory: &Path, name: &str, channels: usize, rate: u32, seconds: u32) -> PathBuf {
    let layout = ["mono", "stereo", "", "", "", "5.1(side)"][channels - 1];
    let channel = |c: usize| {
        format!(
            "(0.03+0.01*{c})*(1+4*gt(mod(t+2*{c}\\,11)\\,5))*sin(2*PI*{}*t)+0.002*(random({c})-0.5)",
            331 * (c + 1)
        )
    };
    let channels: Vec<String> = (0..channels).map(channel).collect();
    let source = format!(
        "aevalsrc={}:c={layout}:d={seconds}:s={rate}",
        channels.join("|")
    );
    let path = directory.join(name);
    ffmpeg(&["-f", "lavfi", "-i", &source], &path);
    path
}

/// Returns ffmpeg's measurements of these inputs one after the other: integrated, threshold, range, sample peak, true peak.
fn by_ffmpeg(files: &[&Path]) -> [f64; 5] {
    let mut command = Command::new("ffmpeg");
    command.args(["-hide_banner", "-nostats", "-nostdin"]);
    for file in files {
        command.arg("-i").arg(file);
    }
    let filter = format!(
        "concat=n={}:v=0:a=1,ebur128=peak=true+sample:framelog=verbose",
        files.len()
    );
    let output = command
        .args(["-filter_complex", &filter, "-f", "null", "-"])
        .output()
        .expect("ffmpeg");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let (_, summary) = said.rsplit_once("Summary:").expect(&said);
    let numbers: Vec<f64> = ["I:", "Threshold:", "LRA:", "Peak:"]
        .into_iter()
        .flat_map(|key| {
            let values = summary
                .lines()
                .filter_map(move |line| line.trim().strip_prefix(key));
            values.map(|value| {
                let number = value.split_whitespace().next().expect("a number");
                number.parse().expect("a number")
            })
        })
        .collect();
    // ffmpeg prints two thresholds. The second belongs to the range.
    let [integrated, threshold, _, range, sample_peak, true_peak] = numbers[..] else {
        panic!("{summary}");
    };
    [integrated, threshold, range, sample_peak, true_peak]
}

fn number(report: &Value, key: &str) -> f64 {
    report[key]
        .as_f64()
        .unwrap_or_else(|| panic!("{key} in {report}"))
}

#[track_caller]
fn assert_near(what: &str, ours: f64, theirs: f64, tolerance: f64) {
    assert!(
        (ours - theirs).abs() <= tolerance,
        "{what}: {ours}, theirs {theirs}"
    );
}

#[test]
fn measurements_equal_ffmpegs() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut files = Vec::new();
    for (name, channels, rate) in [
        ("mono.wav", 1, 44_100),
        ("stereo.flac", 2, 44_100),
        ("stereo.wav", 2, 48_000),
        ("surround.flac", 6, 48_000),
        ("surround.wav", 6, 96_000),
        ("mono.flac", 1, 96_000),
    ] {
        let file = programme(directory.path(), name, channels, rate, 30);
        let report = json(&[&file]);
        let ours = &report["files"][0];
        let [integrated, threshold, range, sample_peak, true_peak] = by_ffmpeg(&[&file]);
        for (key, theirs, tolerance) in [
            ("integrated_lufs", integrated, 0.06),
            ("relative_threshold_lufs", threshold, 0.06),
            // ffmpeg's first windows of 3 s begin before the file.
            ("range_lu", range, 1.0),
            ("sample_peak_dbfs", sample_peak, 0.06),
            ("true_peak_dbtp", true_peak, 0.2),
            ("duration_seconds", 30.0, 0.001),
            ("rate_hz", rate.into(), 0.0),
            ("channels", channels as f64, 0.0),
        ] {
            assert_near(
                &format!("{name}, {key}"),
                number(ours, key),
                theirs,
                tolerance,
            );
        }
        assert!(number(ours, "momentary_max_lufs") >= number(ours, "short_term_max_lufs"));
        assert!(number(ours, "short_term_max_lufs") >= integrated);
        files.push(file);
    }
    // Both files are also measured together, as one programme.
    let album = [&files[1], &files[2]];
    let report = json(&[album[0], album[1], &"--target", &"-16", &"--jobs", &"2"]);
    let [integrated, _, _, sample_peak, _] = by_ffmpeg(&album.map(PathBuf::as_path));
    let total = &report["total"];
    assert_near("total", number(total, "integrated_lufs"), integrated, 0.1);
    assert_near(
        "total peak",
        number(total, "sample_peak_dbfs"),
        sample_peak,
        0.06,
    );
    assert_near("total time", number(total, "duration_seconds"), 60.0, 0.001);
    let to_target = -16.0 - number(total, "integrated_lufs");
    assert_near("to target", number(total, "to_target_lu"), to_target, 0.002);
}

#[test]
fn measurements_equal_loudgains() {
    let directory = tempfile::tempdir().expect("a directory");
    for channels in [1, 2] {
        let file = programme(
            directory.path(),
            &format!("{channels}.flac"),
            channels,
            44_100,
            60,
        );
        let output = Command::new("loudgain")
            .args(["-q", "-O"])
            .arg(&file)
            .output();
        let said = String::from_utf8(output.expect("loudgain").stdout).expect("text");
        let line = said.lines().nth(1).expect(&said);
        let cells: Vec<f64> = line
            .split('\t')
            .map(|cell| {
                cell.split(' ')
                    .next()
                    .and_then(|n| n.parse().ok())
                    .unwrap_or(f64::NAN)
            })
            .collect();
        let report = json(&[&file]);
        let ours = &report["files"][0];
        assert_near("loudness", number(ours, "integrated_lufs"), cells[1], 0.02);
        // loudgain measures the range from a block every second, and this program from one every 100 ms.
        assert_near("range", number(ours, "range_lu"), cells[2], 1.5);
        assert_near("true peak", number(ours, "true_peak_dbtp"), cells[4], 0.02);
    }
}

#[test]
fn the_json_report_has_the_documented_keys_in_order() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = programme(directory.path(), "a.wav", 1, 8_000, 4);
    let output = loudness(&[&"--json", &"--target", &"-23", &file]);
    let text = String::from_utf8(output.stdout).expect("text");
    let keys = "target_lufs, files, file, momentary_max_lufs, short_term_max_lufs, integrated_lufs, range_lu, \
                relative_threshold_lufs, sample_peak_dbfs, true_peak_dbtp, duration_seconds, to_target_lu, rate_hz, \
                channels, total, momentary_max_lufs, short_term_max_lufs, integrated_lufs, range_lu, sample_peak_dbfs, \
                true_peak_dbtp, duration_seconds, to_target_lu";
    let found: Vec<&str> = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix('"')?.split_once("\":"))
        .map(|(key, _)| key)
        .collect();
    assert_eq!(found.join(", "), keys);
    // Silence has no loudness, and JSON has no infinity.
    let silence = directory.path().join("silence.wav");
    ffmpeg(
        &["-f", "lavfi", "-i", "anullsrc=d=1:r=48000:cl=mono"],
        &silence,
    );
    let report = json(&[&silence]);
    assert!(report["files"][0]["integrated_lufs"].is_null(), "{report}");
    assert!(report["files"][0]["true_peak_dbtp"].is_null(), "{report}");
}

#[test]
fn the_table_has_a_line_for_each_file_and_one_for_all() {
    let directory = tempfile::tempdir().expect("a directory");
    let one = programme(directory.path(), "one & <two>.wav", 2, 44_100, 4);
    let two = programme(directory.path(), "zwei \u{fc}.flac", 1, 48_000, 5);
    let output = loudness(&[&one, &two, &"--target", &"-23"]);
    let said = String::from_utf8(output.stdout).expect("text");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 5, "{said}");
    for (line, ends) in [
        (0, "true peak  duration  to -23  file"),
        (2, "one & <two>.wav"),
        (3, "zwei \u{fc}.flac"),
        (4, "all together"),
    ] {
        assert!(lines[line].ends_with(ends), "{ends} in {said}");
    }
    assert!(lines[4].contains("0:09.0"), "{said}");
    assert!(output.stderr.is_empty(), "no bar without a terminal");
}

/// Measures a bad and a good file in one run, and returns the message about the bad one.
fn complaint(good: &Path, bad: &Path) -> String {
    let output = loudness(&[&"--json", &bad, &good]);
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(report["files"][0]["error"].is_string(), "{report}");
    assert!(
        report["files"][1]["integrated_lufs"].is_number(),
        "{report}"
    );
    assert!(report["total"]["integrated_lufs"].is_number(), "{report}");
    // Lines are wrapped at the width of the terminal.
    let said = String::from_utf8_lossy(&output.stderr).replace('\u{2502}', " ");
    said.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn unmeasurable_file_is_named_and_the_rest_is_measured() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    let good = programme(directory.path(), "good.wav", 1, 48_000, 1);
    std::fs::write(path("text.txt"), "This is not audio.\n".repeat(100)).expect("written");
    std::fs::write(path("empty.wav"), "").expect("written");
    ffmpeg(&["-f", "lavfi", "-i", "testsrc=d=1"], &path("video.avi"));
    let made = Command::new("mkfifo").arg(path("pipe")).status();
    assert!(made.expect("mkfifo").success());
    for (name, reason) in [
        ("nothing.wav", "no such file"),
        ("text.txt", "no audio"),
        ("empty.wav", "no audio"),
        ("video.avi", "no audio"),
        ("", "is a directory"),
        ("pipe", "not a regular file"),
    ] {
        let said = complaint(&good, &path(name));
        assert!(said.contains(reason), "{reason:?} is not in {said}");
        // If the path was shortened, its last part is complete.
        assert!(said.contains(name), "{name} is not in {said}");
    }
    let flac = programme(directory.path(), "whole.flac", 1, 48_000, 20);
    let bytes = std::fs::read(&flac).expect("read");
    let mut damaged = bytes[..bytes.len() / 3].to_vec();
    damaged.extend(std::iter::repeat_n(0, 10_000));
    std::fs::write(path("damaged.flac"), damaged).expect("written");
    // The file is damaged after its first third. The intact part is measured, and the program does not hang.
    let report = json(&[&path("damaged.flac")]);
    let seconds = report["files"][0]["duration_seconds"].as_f64();
    assert!(
        seconds.is_some_and(|s| (2.0..15.0).contains(&s)),
        "{report}"
    );
}

/// Returns a WAV file of floats with a sine of 997 Hz and -20 dBFS in its last channel, with or without a channel mask.
fn last_channel(channels: u16, mask: Option<u32>) -> Vec<u8> {
    let block = channels * 4;
    let tag = if mask.is_some() { 0xfffe_u16 } else { 3 };
    let mut format = [
        &tag.to_le_bytes()[..],
        &channels.to_le_bytes(),
        &48_000_u32.to_le_bytes(),
        &(48_000 * u32::from(block)).to_le_bytes(),
        &block.to_le_bytes(),
        &32_u16.to_le_bytes(),
    ]
    .concat();
    if let Some(mask) = mask {
        format.extend([22, 0, 32, 0]);
        format.extend(mask.to_le_bytes());
        format.extend(*b"\x03\0\0\0\0\0\x10\0\x80\0\0\xaa\0\x38\x9b\x71");
    }
    let mut data = Vec::new();
    for frame in 0..48_000 {
        let angle = f64::from(frame) * 997.0 * std::f64::consts::TAU / 48_000.0;
        data.extend(vec![0; usize::from(block) - 4]);
        data.extend((0.1 * angle.sin() as f32).to_le_bytes());
    }
    let mut file = b"RIFF\xff\xff\xff\xffWAVE".to_vec();
    for (id, body) in [(b"fmt ", format), (b"data", data)] {
        file.extend(id);
        file.extend((body.len() as u32).to_le_bytes());
        file.extend(body);
    }
    file
}

/// According to BS.1770, such a sine in one channel is -23.01 LUFS with the weight 1, and 1.49 LU louder in a side channel.
/// Channels without a bit in the mask have no position and the weight 1. This happens in multitrack files, which have more
/// channels than loudspeakers.
#[test]
fn channels_are_weighted_by_their_position() {
    let directory = tempfile::tempdir().expect("a directory");
    let (plain, side) = (-23.01, -21.52);
    for (channels, mask, expected) in [
        (1, None, plain),
        (2, Some(3), plain),
        (6, None, side),
        (6, Some(0), side),
        (6, Some(0x60f), side),
        (6, Some(3), plain),
        (8, None, side),
        (9, None, plain),
        (16, Some(0), plain),
        (24, Some(0x3_ffff), plain),
        (64, Some(0), plain),
    ] {
        let path = directory.path().join(format!("{channels}-{mask:?}.wav"));
        std::fs::write(&path, last_channel(channels, mask)).expect("written");
        let report = json(&[&path]);
        let ours = number(&report["files"][0], "integrated_lufs");
        assert_near(&format!("{channels} {mask:?}"), ours, expected, 0.02);
    }
    // A file with too many channels is refused without an effect on the others.
    let good = directory.path().join("9-None.wav");
    let many = directory.path().join("65.wav");
    std::fs::write(&many, last_channel(65, Some(0))).expect("written");
    let said = complaint(&good, &many);
    assert!(
        said.contains("65 channels") && said.contains("1 to 64"),
        "{said}"
    );
}

/// ffmpeg makes the files, and also measures them.
#[test]
fn wav_files_of_other_programs_are_measured() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    let plain = programme(directory.path(), "plain.wav", 1, 48_000, 3);
    let expected = by_ffmpeg(&[&plain])[0];
    let bytes = std::fs::read(&plain).expect("read");
    let at = bytes
        .windows(4)
        .position(|four| four == b"data")
        .expect("a chunk");
    let (head, data) = bytes.split_at(at);
    let odd = [&bytes[..], b"id3 \x03\0\0\0abc"].concat();
    let empty_first = [head, b"data\0\0\0\0", data].concat();
    let piped = [head, b"data\xff\xff\xff\xff", &data[8..]].concat();
    let bw64 = [
        b"BW64\xff\xff\xff\xffWAVEds64\x1c\0\0\0\0\0\0\0\0\0\0\0",
        &((data.len() - 8) as u64).to_le_bytes()[..],
        &[0; 12],
        &head[12..],
        b"data\xff\xff\xff\xff",
        &data[8..],
    ];
    for (name, bytes) in [
        ("some bytes behind", [&bytes[..], &[0; 5]].concat()),
        ("a chunk that is not padded behind", odd),
        ("an empty chunk first", empty_first),
        ("through a pipe", piped),
        ("BW64", bw64.concat()),
    ] {
        let file = path("odd.wav");
        std::fs::write(&file, bytes).expect("written");
        let report = json(&[&file]);
        assert_near(
            name,
            number(&report["files"][0], "integrated_lufs"),
            expected,
            0.06,
        );
    }
    let rf64 = path("rf64.wav");
    ffmpeg(
        &["-i", plain.to_str().expect("UTF-8"), "-rf64", "always"],
        &rf64,
    );
    let report = json(&[&rf64]);
    assert_near(
        "RF64",
        number(&report["files"][0], "integrated_lufs"),
        expected,
        0.06,
    );
}

#[test]
fn infinite_peak_is_not_silence() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("infinite.wav");
    let mut bytes = last_channel(1, None);
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::INFINITY.to_le_bytes());
    std::fs::write(&path, bytes).expect("written");
    let report = json(&[&path]);
    assert_eq!(report["files"][0]["sample_peak_dbfs"], "inf", "{report}");
    assert_eq!(report["files"][0]["true_peak_dbtp"], "inf", "{report}");
}

/// ID3v1 allows a year of any four characters.
#[test]
fn audio_with_a_refused_tag_is_measured() {
    let directory = tempfile::tempdir().expect("a directory");
    let plain = programme(directory.path(), "plain.mp3", 2, 44_100, 3);
    let expected = by_ffmpeg(&[&plain])[0];
    let mut bytes = std::fs::read(&plain).expect("read");
    let mut tag = [0; 128];
    tag[..8].copy_from_slice(b"TAGTitle");
    tag[93..97].copy_from_slice(b"19th");
    bytes.extend(tag);
    let path = directory.path().join("tagged.mp3");
    std::fs::write(&path, bytes).expect("written");
    let report = json(&[&"--tag", &"replaygain", &path]);
    assert_near(
        "loudness",
        number(&report["files"][0], "integrated_lufs"),
        expected,
        0.1,
    );
    let after = std::fs::read(&path).expect("read");
    assert!(after.ends_with(&tag), "ID3v1 stays");
}

#[test]
fn a_missing_decoder_is_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = programme(directory.path(), "a.flac", 1, 48_000, 1);
    let output = threadbare()
        .args(["loudness", "--json"])
        .arg(&file)
        .env("GST_PLUGIN_FEATURE_RANK", "flacdec:NONE,avdec_flac:NONE")
        .output()
        .expect("runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    for words in [
        "needs a decoder that is not installed",
        "FLAC",
        "gstreamer1.0-plugins-good",
    ] {
        assert!(said.contains(words), "{words:?} is not in {said}");
    }
}

#[test]
fn arguments_that_make_no_sense_are_refused() {
    for (arguments, says) in [
        (&["--target", "-80", "a"][..], "-70 to 0 LUFS"),
        (
            &["--target", "-23", "--tolerance", "-1", "a"],
            "'-1' for '--tolerance <LU>': expected 0 to 30 LU",
        ),
        (
            &["--target", "-23", "--tolerance", "loud", "a"],
            "0 to 30 LU",
        ),
        (&["--tolerance", "1", "a"], "--target <LUFS>"),
        (&["--jobs", "0", "a"], "--jobs"),
        (&[], "FILE"),
    ] {
        let output = threadbare()
            .arg("loudness")
            .args(arguments)
            .output()
            .expect("runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(says), "{says:?} is not in {said}");
    }
    let help = threadbare()
        .args(["loudness", "--help"])
        .output()
        .expect("runs");
    assert!(String::from_utf8_lossy(&help.stdout).contains("threadbare loudness --target -23"));
}

/// Writes a stereo sine of 1 kHz. At -23 dBFS it has -23.0 LUFS (EBU Tech 3341, test 1), and another level shifts this by the same amount.
fn tone(directory: &Path, name: &str, dbfs: f64) -> PathBuf {
    let path = directory.join(name);
    let amplitude = 10_f64.powf(dbfs / 20.0);
    let sine = format!("{amplitude}*sin(2*PI*1000*t)");
    let source = format!("aevalsrc={sine}|{sine}:d=5:s=48000:c=stereo");
    ffmpeg(&["-f", "lavfi", "-i", &source, "-c:a", "pcm_s24le"], &path);
    path
}

#[test]
fn the_exit_status_says_whether_all_files_are_within_the_tolerance() {
    let directory = tempfile::tempdir().expect("a directory");
    let right = tone(directory.path(), "right.wav", -23.0);
    let near = tone(directory.path(), "near.wav", -23.4);
    let far = tone(directory.path(), "far.wav", -23.7);
    let missing = directory.path().join("missing.wav");
    let silence = directory.path().join("silence.wav");
    ffmpeg(&["-f", "lavfi", "-i", "anullsrc=d=1"], &silence);
    let status = |files: &[&PathBuf], tolerance: &str| {
        let mut arguments: Vec<&dyn AsRef<std::ffi::OsStr>> =
            vec![&"--target", &"-23", &"--tolerance"];
        arguments.push(&tolerance);
        files.iter().for_each(|file| arguments.push(*file));
        loudness(&arguments)
    };
    for (files, tolerance, code) in [
        (&[&right, &near][..], "0.5", 0),
        (&[&right, &near, &far], "0.5", 3),
        (&[&right, &near, &far], "1", 0),
        (&[&silence], "30", 3),
        // If one file could not be measured and another misses the target, the exit status is that of the first problem.
        (&[&far, &missing], "0.5", 1),
    ] {
        let output = status(files, tolerance);
        assert_eq!(output.status.code(), Some(code), "{files:?}, {tolerance}");
    }
    let output = status(&[&right, &far, &missing], "0.5");
    let table = String::from_utf8(output.stdout).expect("text");
    for (line, words) in [
        (0, "to -23  within 0.5  file"),
        (2, "yes  "),
        (3, "no  "),
        (4, "no such file  "),
    ] {
        let line = table.lines().nth(line).unwrap_or_default();
        assert!(
            line.contains(words),
            "{words:?} is not in {line:?} of {table}"
        );
    }
    let output = loudness(&[
        &"--json",
        &"--target",
        &"-23",
        &"--tolerance",
        &"0.5",
        &right,
        &far,
    ]);
    assert_eq!(output.status.code(), Some(3));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["tolerance_lu"], 0.5);
    assert_eq!(report["files"][0]["is_within_tolerance"], true);
    assert_eq!(report["files"][1]["is_within_tolerance"], false);
    assert!(
        report["total"].get("is_within_tolerance").is_none(),
        "{report}"
    );
}

/// A picture with the extension of another format is refused before anything is measured.
#[test]
fn picture_that_is_not_svg_is_refused() {
    let output = loudness(&[&"no-such.wav", &"--plot", &"loud.png"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    for words in ["loud.png", "--plot", ".svg"] {
        assert!(said.contains(words), "no {words:?} in {said}");
    }
}

#[test]
fn picture_without_a_curve_has_the_reason() {
    let directory = tempfile::tempdir().expect("a directory");
    for (source, reason) in [
        ("anullsrc=d=4", "silence: "),
        ("sine=d=0.05", "too short: "),
    ] {
        let file = directory.path().join("silent.wav");
        ffmpeg(&["-f", "lavfi", "-i", source], &file);
        let plot = directory.path().join("loud.svg");
        loudness(&[&file, &"--plot", &plot]);
        let picture = std::fs::read_to_string(&plot).expect("written");
        assert!(picture.contains(reason), "{source}: {picture}");
        assert!(
            !picture.contains("<path") && !picture.contains("NaN"),
            "{source}: {picture}"
        );
    }
}

#[test]
fn pictures_are_well_formed_and_complete() {
    let directory = tempfile::tempdir().expect("a directory");
    let one = programme(directory.path(), "one & <two>.wav", 2, 44_100, 8);
    let two = programme(directory.path(), "two.flac", 1, 8_000, 1);
    let plot = directory.path().join("loud.svg");
    let output = loudness(&[&one, &two, &"--plot", &plot, &"--target", &"-23"]);
    assert!(output.status.success());
    assert!(!plot.exists(), "of several files, each has its own");
    for (name, title) in [
        ("loud-1.svg", "one &amp; &lt;two&gt;.wav"),
        ("loud-2.svg", "two.flac"),
    ] {
        let path = directory.path().join(name);
        let picture = std::fs::read_to_string(&path).expect("written");
        for part in [
            title,
            "momentary",
            "short-term",
            "integrated",
            "target -23 LUFS",
            "loudness (LUFS)",
            "time (minutes:seconds)",
            "<path d=\"M",
        ] {
            assert!(picture.contains(part), "{part} is not in {name}");
        }
        let parsed = Command::new("python3")
            .args([
                "-c",
                "import sys, xml.dom.minidom as dom; dom.parse(sys.argv[1])",
            ])
            .arg(&path)
            .status();
        assert!(parsed.expect("python3").success(), "{name} is not XML");
    }
    let output = loudness(&[&two, &"--plot", &directory.path().join("no/such.svg")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("such.svg"));
}

/// Returns the horizontal extents of the areas or bars with this id in the picture, in seconds of a file of this length.
fn stretches(picture: &str, id: &str, seconds: f64) -> Vec<(f64, f64)> {
    let script = "
import sys, re, xml.etree.ElementTree as tree
root = tree.fromstring(sys.stdin.read())
assert not re.search(r'href|url|@import', tree.tostring(root, 'unicode')), 'needs another file'
for part in root.iter():
    if part.get('id') == sys.argv[1]:
        for area in [part, *part]:
            if area.get('x'):
                print(area.get('x'), float(area.get('x')) + float(area.get('width')))
        for left, right in re.findall(r'M([0-9.]+) [0-9.]+V[-0-9.]+H([0-9.]+)V', part.get('d') or ''):
            print(left, right)
";
    let mut python = Command::new("python3")
        .args(["-c", script, id])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3");
    let mut input = python.stdin.take().expect("piped");
    std::io::Write::write_all(&mut input, picture.as_bytes()).expect("written");
    drop(input);
    let output = python.wait_with_output().expect("ends");
    assert!(output.status.success());
    // The plot leaves 70 units at the left and 30 at the right of 1200.
    let time = |x: &str| (x.parse::<f64>().expect("a number") - 70.0) / 1100.0 * seconds;
    let text = String::from_utf8(output.stdout).expect("text");
    let pairs = text.lines().filter_map(|line| line.split_once(' '));
    pairs.map(|(from, to)| (time(from), time(to))).collect()
}

/// The file has 4 s at -13 LUFS, 4 s at -48 LUFS, 4 s of silence, and 4 s with peaks above -1 dBTP. The last part is the loudest by far.
/// The relative threshold is 10 LU below its loudness, at about -18 LUFS.
#[test]
fn pictures_show_gating_peaks_and_tolerance() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("parts.wav");
    let level = "(lt(t\\,4)*0.3+between(t\\,4\\,8)*0.0056+gte(t\\,12)*0.95)";
    let source = format!("aevalsrc={level}*sin(2*PI*1000*t):d=16:s=48000");
    ffmpeg(&["-f", "lavfi", "-i", &source], &file);
    let plot = directory.path().join("loud.svg");
    loudness(&[
        &file,
        &"--plot",
        &plot,
        &"--target",
        &"-10",
        &"--tolerance",
        &"2",
    ]);
    let picture = std::fs::read_to_string(&plot).expect("written");
    let gated = stretches(&picture, "gated", 16.0);
    // A block of 400 ms counts if a part of it is loud.
    assert!(!gated.is_empty(), "{picture}");
    for (from, to) in &gated {
        assert!(*from >= 4.0 && *to <= 12.3, "{gated:?}");
    }
    for second in [5.0, 7.0, 9.0, 11.0] {
        let is_grey = gated
            .iter()
            .any(|(from, to)| (*from..*to).contains(&second));
        assert!(is_grey, "{second} s is not grey: {gated:?}");
    }
    let over = stretches(&picture, "peaks-over", 16.0);
    assert!(over.len() >= 39, "{over:?}");
    assert!(over.iter().all(|(from, _)| *from >= 11.85), "{over:?}");
    let within = stretches(&picture, "peaks", 16.0);
    assert!(within.iter().all(|(from, _)| *from < 4.1), "{within:?}");
    assert_eq!(stretches(&picture, "tolerance", 16.0).len(), 1);
    assert!(picture.contains("target -10 LUFS \u{b1} 2 LU"), "{picture}");
}
