//! `threadbare loudness --tag`, compared with loudgain, and read by ffprobe.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::common::threadbare;
use serde_json::Value;

fn run(command: &mut Command) -> Output {
    let output = command.stdin(Stdio::null()).output().expect("runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    output
}

fn tag(arguments: &[&str], files: &[&Path]) -> Output {
    let mut command = threadbare();
    command.arg("loudness").args(arguments).args(files);
    command.stdin(Stdio::null()).output().expect("runs")
}

fn said(output: &Output) -> String {
    // Lines are wrapped at the terminal's width.
    let said = String::from_utf8_lossy(&output.stderr).replace('\u{2502}', " ");
    said.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Writes some seconds of stereo audio with other tags, in the format that the name's extension means. Returns the path.
fn song(directory: &Path, name: &str, level: f64) -> PathBuf {
    let path = directory.join(name);
    let codec: &[&str] = match name.rsplit_once('.').expect("an end").1 {
        "ogg" => &["-c:a", "libvorbis"],
        "opus" => &["-c:a", "libopus"],
        _ => &[],
    };
    // GStreamer's MP3 decoder outputs the encoder's delay of about 25 ms, which loudgain's decoder omits. So the measured blocks differ
    // between the programs, and none of them may be close to the gate. The parts of the song therefore differ by only 4 dB here, and by 14
    // dB in the other formats.
    let shape = if name.ends_with("mp3") {
        "(0.8+0.2*sin(t))"
    } else {
        "(0.2+0.8*lt(mod(t\\,4)\\,3))"
    };
    let tone = |hz: u32| format!("{level}*{shape}*sin(2*PI*{hz}*t)");
    let source = format!("aevalsrc={}|{}:d=12:s=48000:c=stereo", tone(440), tone(650));
    let mut command = Command::new("ffmpeg");
    command.args(["-v", "error", "-y", "-f", "lavfi", "-i", &source]);
    for tag in [
        "title=Für & \"Elise\"",
        "artist=Ŧhreadbare",
        "OWN_TAG=kept",
        "date=1810",
    ] {
        command.args(["-metadata", tag]);
    }
    run(command.args(codec).arg(&path));
    path
}

/// Returns all tags, with names in upper case.
fn tags(path: &Path) -> BTreeMap<String, String> {
    let mut command = Command::new("ffprobe");
    command.args([
        "-v",
        "error",
        "-of",
        "json",
        "-show_format",
        "-show_streams",
    ]);
    let output = run(command.arg(path));
    let probe: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    // Ogg stores the tags in its stream, and the other formats store them in the file.
    let places = [&probe["format"]["tags"], &probe["streams"][0]["tags"]];
    let all = places
        .iter()
        .filter_map(|place| place.as_object())
        .flatten();
    all.map(|(name, value)| {
        (
            name.to_uppercase(),
            value.as_str().unwrap_or_default().to_owned(),
        )
    })
    .collect()
}

fn is_gain(name: &str) -> bool {
    name.starts_with("REPLAYGAIN_") || name.starts_with("R128_")
}

fn others(path: &Path) -> BTreeMap<String, String> {
    let all = tags(path).into_iter();
    all.filter(|(name, _)| !is_gain(name)).collect()
}

/// Returns a hash of all samples that ffmpeg decodes, and a hash of the packets in the file.
fn audio(path: &Path) -> [Vec<u8>; 2] {
    [&["-f", "hash"][..], &["-c", "copy", "-f", "streamhash"]].map(|how| {
        let mut command = Command::new("ffmpeg");
        command.args(["-v", "error", "-i"]).arg(path);
        run(command.args(["-map", "0:a"]).args(how).arg("-")).stdout
    })
}

fn decibels(value: &str) -> f64 {
    let number = value.split(' ').next().expect("a number");
    number.parse().expect("a number")
}

/// Writes tags with both programs, each to separate files.
fn beside_loudgain(name_end: &str, scheme: &str, gains: [&str; 2], unit_db: f64) {
    let directory = tempfile::tempdir().expect("a directory");
    let ours = [("a", 0.2), ("b", 0.6)]
        .map(|(name, level)| song(directory.path(), &format!("{name}.{name_end}"), level));
    let theirs = ours.clone().map(|path| {
        path.with_file_name(format!(
            "loudgain-{}",
            path.file_name().expect("a name").to_string_lossy()
        ))
    });
    for (from, to) in ours.iter().zip(&theirs) {
        std::fs::copy(from, to).expect("copied");
    }
    let before = ours.clone().map(|path| (audio(&path), others(&path)));
    let output = tag(
        &["--tag", scheme, "--album", "--json"],
        &[&ours[0], &ours[1]],
    );
    assert!(output.status.success(), "{}", said(&output));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    run(Command::new("loudgain")
        .args(["-q", "-a", "-s", "i"])
        .args(&theirs));
    for (index, (our, their)) in ours.iter().zip(&theirs).enumerate() {
        let (written, expected) = (tags(our), tags(their));
        for name in gains {
            let difference = decibels(&written[name]) - decibels(&expected[name]);
            assert!(
                (difference * unit_db).abs() <= 0.02,
                "{name}: {written:?}, loudgain {expected:?}"
            );
            assert_eq!(
                report["files"][index]["tags"][name],
                written[name].as_str(),
                "{report}"
            );
        }
        for name in ["REPLAYGAIN_TRACK_PEAK", "REPLAYGAIN_ALBUM_PEAK"] {
            let peak = |tags: &BTreeMap<String, String>| tags.get(name).map(|peak| decibels(peak));
            match (peak(&written), peak(&expected)) {
                (Some(ours), Some(theirs)) => {
                    assert!((ours - theirs).abs() < 0.003, "{name}: {ours}, {theirs}")
                }
                (ours, _) => assert_eq!((ours, scheme), (None, "r128")),
            }
        }
        let (audio_before, others_before) = &before[index];
        assert_eq!(&audio(our), audio_before, "{}", our.display());
        assert_eq!(&others(our), others_before, "{}", our.display());
        assert_eq!(others_before["OWN_TAG"], "kept");
    }
    // If a track is tagged alone, its tags change, none is duplicated, and those of the album stay.
    let first = tags(&ours[0]);
    assert!(tag(&["--tag", scheme], &[&ours[0]]).status.success());
    assert_eq!(tags(&ours[0]), first);
    let left = std::fs::read_dir(directory.path()).expect("listed").count();
    assert_eq!(left, 4, "no temporary file stays");
}

const REPLAYGAIN: [&str; 2] = ["REPLAYGAIN_TRACK_GAIN", "REPLAYGAIN_ALBUM_GAIN"];

#[test]
fn flac_tags_get_the_gains_that_loudgain_writes_and_nothing_else_changes() {
    beside_loudgain("flac", "replaygain", REPLAYGAIN, 1.0);
}

#[test]
fn vorbis_tags_get_the_gains_that_loudgain_writes_and_nothing_else_changes() {
    beside_loudgain("ogg", "replaygain", REPLAYGAIN, 1.0);
}

#[test]
fn mp3_tags_get_the_gains_that_loudgain_writes_and_nothing_else_changes() {
    beside_loudgain("mp3", "replaygain", REPLAYGAIN, 1.0);
}

/// The gains of Opus are in 1/256 dB (RFC 7845, section 5.2.1).
#[test]
fn opus_tags_get_the_gains_that_loudgain_writes_and_nothing_else_changes() {
    let gains = ["R128_TRACK_GAIN", "R128_ALBUM_GAIN"];
    beside_loudgain("opus", "r128", gains, 1.0 / 256.0);
}

#[test]
fn formats_without_the_requested_tags_are_refused_before_any_write() {
    let directory = tempfile::tempdir().expect("a directory");
    let flac = song(directory.path(), "a.flac", 0.2);
    let whole = std::fs::read(&flac).expect("read");
    for (name, scheme, reason) in [
        ("b.wav", "replaygain", "FLAC, Ogg Vorbis, MP3"),
        ("b.opus", "replaygain", "--tag r128"),
        ("a.flac", "r128", "--tag replaygain"),
    ] {
        let other = match name {
            "a.flac" => flac.clone(),
            name => song(directory.path(), name, 0.2),
        };
        let output = tag(&["--tag", scheme], &[&flac, &other]);
        assert_eq!(output.status.code(), Some(1));
        assert!(output.stdout.is_empty(), "nothing is measured");
        let said = said(&output);
        assert!(
            said.contains(name) && said.contains(reason),
            "{reason:?} is not in {said}"
        );
        assert_eq!(std::fs::read(&flac).expect("read"), whole, "{name}");
    }
}

/// Most files contain bits that look like the start of an MP3 frame. A tag before the first byte would destroy some of them.
#[test]
fn file_that_is_not_mp3_is_left_unchanged() {
    let directory = tempfile::tempdir().expect("a directory");
    let source = song(directory.path(), "source.wav", 0.2);
    for (name, codec) in [
        ("a.oga", "flac"),
        ("a.tta", "tta"),
        ("a.au", "pcm_s16be"),
        ("a.w64", "pcm_s16le"),
        ("a.ts", "mp2"),
        ("a.mpg", "mp2"),
        ("a.avi", "libmp3lame"),
        ("a.flv", "libmp3lame"),
        ("a.mka", "libmp3lame"),
        ("a.mp4", "libmp3lame"),
        ("mp3.wav", "libmp3lame"),
        ("a.mp2", "mp2"),
        ("a.aac", "aac"),
        ("a.ac3", "ac3"),
        ("a.aiff", "pcm_s16be"),
    ] {
        let path = directory.path().join(name);
        run(Command::new("ffmpeg")
            .args(["-v", "error", "-i"])
            .arg(&source)
            .args(["-c:a", codec])
            .arg(&path));
        let whole = std::fs::read(&path).expect("read");
        let output = tag(&["--tag", "replaygain"], &[&path]);
        assert_eq!(output.status.code(), Some(1), "{name}");
        assert!(said(&output).contains("FLAC, Ogg Vorbis, MP3"), "{name}");
        assert!(std::fs::read(&path).expect("read") == whole, "{name}");
    }
}

/// A limit of the file size takes the place of a full disk. The tagged copy is longer than the limit.
#[test]
fn a_file_that_cannot_be_written_stays_intact_and_others_are_tagged() {
    let directory = tempfile::tempdir().expect("a directory");
    let long = song(directory.path(), "long.flac", 0.2);
    let short = directory.path().join("short.mp3");
    run(Command::new("ffmpeg")
        .args([
            "-v", "error", "-f", "lavfi", "-i", "sine=d=2", "-b:a", "32k",
        ])
        .arg(&short));
    let size = |path: &Path| std::fs::metadata(path).expect("there").len();
    assert!(
        size(&short) < 16_000 && size(&long) > 200_000,
        "{} {}",
        size(&short),
        size(&long)
    );
    let whole = std::fs::read(&long).expect("read");
    // The limit is in blocks of 1024 bytes. If the signal is ignored, writing fails. Otherwise, the program is killed while
    // writing.
    for (signal, code) in [("trap '' XFSZ;", Some(1)), ("", None)] {
        let script = format!("{signal} ulimit -f 128; exec \"$@\"");
        let mut command = Command::new("bash");
        command.args(["-c", &script, "bash"]);
        command.arg(env!("CARGO_BIN_EXE_threadbare"));
        command.args(["loudness", "--jobs", "1", "--tag", "replaygain"]);
        // GStreamer's list of plugins would exceed the limit, so it is not written. The files of 64 KB for its converters' machine code are
        // shorter than the limit.
        command.env("GST_REGISTRY_UPDATE", "no");
        let output = command.args([&long, &short]).stdin(Stdio::null()).output();
        let output = output.expect("runs");
        assert_eq!(output.status.code(), code, "{}", said(&output));
        assert_eq!(std::fs::read(&long).expect("read"), whole);
        let entries = std::fs::read_dir(directory.path()).expect("listed");
        let copies = entries.filter(|entry| {
            let name = entry.as_ref().expect("read").file_name();
            name.to_string_lossy().starts_with(".threadbare-tag-")
        });
        // If the program was killed, this happened while it was writing.
        assert_eq!(copies.count(), usize::from(code.is_none()));
        if code.is_some() {
            let said = said(&output);
            assert!(
                said.contains("long.flac") && said.contains("too large"),
                "{said}"
            );
            assert!(tags(&short).contains_key("REPLAYGAIN_TRACK_GAIN"));
        }
    }
}

#[test]
fn an_album_is_tagged_only_if_all_of_several_files_were_measured() {
    let directory = tempfile::tempdir().expect("a directory");
    let one = song(directory.path(), "one.flac", 0.2);
    let whole = std::fs::read(&one).expect("read");
    let alone = tag(&["--tag", "replaygain", "--album"], &[&one]);
    assert_eq!(alone.status.code(), Some(2), "{}", said(&alone));
    assert!(said(&alone).contains("at least 2 files"));
    let untagged = tag(&["--album"], &[&one, &one]);
    assert_eq!(untagged.status.code(), Some(2), "{}", said(&untagged));
    let missing = directory.path().join("missing.flac");
    let output = tag(&["--tag", "replaygain", "--album"], &[&one, &missing]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("the album is incomplete"),
        "{}",
        said(&output)
    );
    assert_eq!(std::fs::read(&one).expect("read"), whole);
    // Without --album, the existing file is tagged.
    let output = tag(&["--tag", "replaygain"], &[&one, &missing]);
    assert_eq!(output.status.code(), Some(1));
    assert!(tags(&one).contains_key("REPLAYGAIN_TRACK_GAIN"));
    assert!(!tags(&one).contains_key("REPLAYGAIN_ALBUM_GAIN"));
}

/// The files have pictures, an ID3 tag of version 2.3 and one of version 1, and tag names in lower case.
#[test]
fn other_tags_of_a_file_are_kept() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    let source = song(directory.path(), "source.wav", 0.2);
    run(Command::new("ffmpeg")
        .args([
            "-v",
            "error",
            "-f",
            "lavfi",
            "-i",
            "testsrc=s=64x64",
            "-frames:v",
            "1",
        ])
        .arg(path("cover.png")));
    for name in ["cover.flac", "cover.mp3"] {
        let mut command = Command::new("ffmpeg");
        command
            .args(["-v", "error", "-i"])
            .arg(&source)
            .arg("-i")
            .arg(path("cover.png"));
        command.args([
            "-map",
            "0",
            "-map",
            "1",
            "-c:v",
            "copy",
            "-disposition:v",
            "attached_pic",
        ]);
        command.args([
            "-metadata",
            "replaygain_track_gain=99 dB",
            "-metadata",
            "title=T",
        ]);
        if name.ends_with("mp3") {
            command.args(["-id3v2_version", "3", "-write_id3v1", "1"]);
        }
        run(command.arg(path(name)));
        let picture = |path: &Path| {
            let mut command = Command::new("ffmpeg");
            command.args(["-v", "error", "-i"]).arg(path);
            run(command.args(["-map", "0:v", "-c", "copy", "-f", "hash", "-"])).stdout
        };
        let before = (
            audio(&path(name)),
            others(&path(name)),
            picture(&path(name)),
        );
        let bytes = std::fs::read(path(name)).expect("read");
        let output = tag(&["--tag", "replaygain"], &[&path(name)]);
        assert!(output.status.success(), "{}", said(&output));
        let after = (
            audio(&path(name)),
            others(&path(name)),
            picture(&path(name)),
        );
        assert_eq!(after, before, "{name}");
        assert!(decibels(&tags(&path(name))["REPLAYGAIN_TRACK_GAIN"]).abs() < 50.0);
        let new = std::fs::read(path(name)).expect("read");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).to_lowercase();
        assert_eq!(
            text(&new).matches("replaygain_track_gain").count(),
            1,
            "{name}"
        );
        if name.ends_with("mp3") {
            assert_eq!(&new[..4], b"ID3\x03", "the version stays");
            assert_eq!(
                new[new.len() - 128..],
                bytes[bytes.len() - 128..],
                "ID3v1 stays"
            );
            assert!(new[new.len() - 128..].starts_with(b"TAG"));
        }
    }
}
