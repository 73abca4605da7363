//! Comparison with ffmpeg, an independent implementation of all these codecs. ITU-T G.722 and G.711 define every bit of the
//! decoders' output, so in these cases the comparison is exact.

use std::path::Path;
use std::process::Command;

use threadbare_codec::codec::Encoding;

use super::{decode, encode, format};
use crate::audio::{Spectrum, db, noise, sweep, tone};

/// Converts a file with ffmpeg.
fn ffmpeg(input: &[&str], data: &[u8], output: &[&str]) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("in"), data).expect("room on the disk");
    let file = |path: &Path| path.to_str().expect("a plain name").to_owned();
    let result = Command::new("ffmpeg")
        .args(["-nostdin", "-v", "error"])
        .args(input)
        .args(["-i", &file(&path("in"))])
        .args(output)
        .arg(file(&path("out")))
        .status()
        .expect("ffmpeg is installed (scripts/setup test)");
    assert!(result.success(), "ffmpeg: {result}");
    std::fs::read(path("out")).expect("ffmpeg's file")
}

fn bytes(pcm: &[f32]) -> Vec<u8> {
    let samples = pcm.iter().map(|x| (x * 32_768.0).round() as i16);
    samples.flat_map(i16::to_le_bytes).collect()
}

fn samples(bytes: &[u8]) -> Vec<f32> {
    let pairs = bytes.chunks_exact(2);
    pairs
        .map(|pair| f32::from(i16::from_le_bytes([pair[0], pair[1]])) / 32_768.0)
        .collect()
}

const PCM: &[&str] = &["-f", "s16le", "-ar", "16000", "-ac", "1"];
const RAW: &[&str] = &["-f", "s16le", "-c:a", "pcm_s16le"];

fn signals() -> Vec<(&'static str, Vec<f32>)> {
    let square = tone(16_000, 1, 400.0, 1.0, 16_000);
    vec![
        ("sweep", sweep(16_000, 0.9, 80_000)),
        ("noise", noise(1, 0.7, 80_000)),
        ("loudest noise", noise(2, 1.0, 32_000)),
        ("quiet noise", noise(3, 0.001, 32_000)),
        ("silence", vec![0.0; 8_000]),
        (
            "square",
            square.iter().map(|x| x.signum() * 0.999).collect(),
        ),
    ]
}

#[test]
fn g722_decodes_as_ffmpeg_does() {
    let g722 = format(Encoding::G722, 16_000, 1);
    for (name, pcm) in signals() {
        let coded = ffmpeg(PCM, &bytes(&pcm), &["-c:a", "g722", "-f", "g722"]);
        let theirs = samples(&ffmpeg(&["-f", "g722"], &coded, RAW));
        let ours = decode(
            g722,
            &coded.chunks(160).map(<[u8]>::to_vec).collect::<Vec<_>>(),
        );
        assert!(ours == theirs, "{name}");
    }
    // Any byte may arrive, not only those of an encoder.
    let coded: Vec<u8> = noise(4, 128.0, 160_000)
        .iter()
        .map(|x| *x as i8 as u8)
        .collect();
    let theirs = samples(&ffmpeg(&["-f", "g722"], &coded, RAW));
    let ours = decode(
        g722,
        &coded.chunks(160).map(<[u8]>::to_vec).collect::<Vec<_>>(),
    );
    assert!(ours == theirs, "any bytes");
}

#[test]
fn g722_encodes_as_ffmpeg_does() {
    let g722 = format(Encoding::G722, 16_000, 1);
    for (name, pcm) in signals() {
        let theirs = ffmpeg(PCM, &bytes(&pcm), &["-c:a", "g722", "-f", "g722"]);
        let ours = encode(g722, &pcm, 320).concat();
        let differing = ours.iter().zip(&theirs).filter(|(a, b)| a != b).count();
        assert_eq!((differing, ours.len()), (0, theirs.len()), "{name}");
    }
}

#[test]
fn g722_tones_are_exchanged_with_ffmpeg_in_both_directions() {
    let g722 = format(Encoding::G722, 16_000, 1);
    for hz in (100..=7_000).step_by(300) {
        let hz = f64::from(hz);
        let pcm = tone(16_000, 1, hz, 0.3, 16_000);
        let to_them = encode(g722, &pcm, 320).concat();
        let theirs = samples(&ffmpeg(&["-f", "g722"], &to_them, RAW));
        let to_us = ffmpeg(PCM, &bytes(&pcm), &["-c:a", "g722", "-f", "g722"]);
        let ours = decode(g722, &[to_us]);
        for audio in [theirs, ours] {
            let found = Spectrum::of(&audio[1_600..], 16_000, hz);
            // G.722 is for audio from 50 to 7000 Hz. Its response is flat, and 3 dB lower at the upper end. Its noise is that of
            // 6 bits below 4 kHz, and that of 2 bits above.
            let tolerance_db = if hz < 6_400.0 { 1.0 } else { 3.0 };
            assert!(
                db(found.level / 0.3).abs() < tolerance_db,
                "{hz} Hz: {found:?}"
            );
            let least_db = if hz < 3_800.0 { 25.0 } else { 8.0 };
            assert!(found.snr_db() > least_db, "{hz} Hz: {} dB", found.snr_db());
        }
    }
}

#[test]
fn linear_codecs_decode_as_ffmpeg_does() {
    let any: Vec<u8> = noise(5, 128.0, 24_000)
        .iter()
        .map(|x| *x as i8 as u8)
        .collect();
    let payload = [any.clone()];
    for (encoding, name) in [
        (Encoding::Pcmu, "mulaw"),
        (Encoding::Pcma, "alaw"),
        (Encoding::L16, "s16be"),
        (Encoding::L24, "s24be"),
    ] {
        let input = ["-f", name, "-ar", "48000", "-ac", "1"];
        let theirs = ffmpeg(&input, &any, &["-f", "f32le", "-c:a", "pcm_f32le"]);
        let theirs = theirs
            .chunks_exact(4)
            .map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]]));
        let ours = decode(format(encoding, 48_000, 1), &payload);
        assert!(ours.into_iter().eq(theirs), "{name}");
    }
}
