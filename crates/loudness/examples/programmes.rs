//! Programmes for comparing normalisers, and statistics of their output: used by `tests/loudnorm.sh`.
//!
//! ```text
//! programmes make FOLDER             writes the programmes; prints the name of each, and from which time (s) its level is constant
//! programmes compare IN OUT TARGET FROM
//!                                    prints the largest change of the gain from 100 ms to the next (dB), and how long after
//!                                    FROM the momentary loudness came to within 1 LU of the target for good (s; - if never)
//! ```
//!
//! Loudness and peaks are measured with another meter.

use std::error::Error;
use std::f64::consts::TAU;
use std::path::Path;

use threadbare_loudness::Meter;

/// Interleaved samples.
struct Audio {
    rate_hz: u32,
    channels: usize,
    samples: Vec<f32>,
}

/// Returns one value of each channel at a time in seconds.
type Frame<'a> = &'a mut dyn FnMut(f64) -> Vec<f64>;

fn render(rate_hz: u32, seconds: f64, frame: Frame<'_>) -> Audio {
    let frames = (f64::from(rate_hz) * seconds) as u32;
    let rows: Vec<Vec<f64>> = (0..frames)
        .map(|n| frame(f64::from(n) / f64::from(rate_hz)))
        .collect();
    Audio {
        rate_hz,
        channels: rows[0].len(),
        samples: rows.iter().flatten().map(|value| *value as f32).collect(),
    }
}

fn factor(db: f64) -> f64 {
    10f64.powf(db / 20.0)
}

fn tone(level_db: f64, t: f64) -> Vec<f64> {
    vec![factor(level_db) * (TAU * 997.0 * t).sin(); 2]
}

/// Deterministic noise.
struct Noise(u32);

impl Noise {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f64::from(self.0 >> 8) / f64::from(1 << 23) - 1.0
    }
}

/// Low-passed noise in syllables, words and sentences, with faint noise in the pauses.
fn speech(level_db: f64) -> impl FnMut(f64) -> Vec<f64> {
    let (mut noise, mut low) = (Noise(7), 0.0);
    move |t| {
        low += 0.25 * (noise.next() - low);
        let syllable = 0.5 - 0.5 * (TAU * 3.9 * t).cos();
        let word = 0.7 + 0.3 * (TAU * 0.43 * t).sin();
        let is_pause = t % 5.0 > 3.9 || t % 17.0 > 15.0;
        let gain = if is_pause { 0.002 } else { syllable * word };
        vec![low * gain * factor(level_db); 2]
    }
}

/// A programme: its name, the time from which its level is constant, and the audio.
type Programme = (&'static str, f64, Audio);

fn programmes() -> Vec<Programme> {
    let mut all = levels();
    all.extend(peaks());
    all
}

fn levels() -> Vec<Programme> {
    vec![
        (
            "tone, quiet",
            0.0,
            render(48_000, 15.0, &mut |t| tone(-40.0, t)),
        ),
        (
            "tone, loud",
            0.0,
            render(48_000, 15.0, &mut |t| tone(-3.0, t)),
        ),
        (
            "speech, quiet",
            -1.0,
            render(48_000, 40.0, &mut speech(-20.0)),
        ),
        ("speech, loud", -1.0, render(44_100, 40.0, &mut speech(4.0))),
        (
            "6 s of silence, tone",
            6.0,
            render(48_000, 20.0, &mut |t| {
                tone(if t < 6.0 { -300.0 } else { -35.0 }, t)
            }),
        ),
        (
            "15 dB up",
            20.0,
            render(48_000, 45.0, &mut |t| {
                tone(if t < 20.0 { -38.0 } else { -23.0 }, t)
            }),
        ),
        (
            "15 dB down",
            20.0,
            render(48_000, 45.0, &mut |t| {
                tone(if t < 20.0 { -23.0 } else { -38.0 }, t)
            }),
        ),
        (
            "1 s of a tone",
            -1.0,
            render(48_000, 1.0, &mut |t| tone(-33.0, t)),
        ),
    ]
}

fn peaks() -> Vec<Programme> {
    let mut noise = Noise(3);
    let mut next = move || noise.next();
    let mut all = Vec::new();
    all.push((
        "bursts of noise",
        -1.0,
        render(44_100, 15.0, &mut |t| {
            let gain = if t % 0.7 < 0.005 { 0.9 } else { 0.002 };
            vec![gain * next(), gain * next()]
        }),
    ));
    all.push((
        "square wave",
        -1.0,
        render(44_100, 10.0, &mut |t| {
            vec![if t * 600.0 % 1.0 < 0.5 { 0.9 } else { -0.9 }; 2]
        }),
    ));
    let mut clipped = Noise(11);
    all.push((
        "dense noise, steps in level",
        -1.0,
        render(44_100, 20.0, &mut |t| {
            let level = [0.02, 0.6, 0.1, 1.0][t as usize / 2 % 4];
            let mut value = || (3.0 * clipped.next()).clamp(-1.0, 1.0) * level;
            vec![value(), value()]
        }),
    ));
    let mut n = 0;
    all.push((
        "clicks over a quiet tone",
        -1.0,
        render(48_000, 15.0, &mut |t| {
            n += 1;
            let click = if n % 33_601 == 0 { 1.0 } else { 0.0 };
            tone(-40.0, t).iter().map(|value| value + click).collect()
        }),
    ));
    let mut around = Noise(5);
    all.push((
        "5.1, most of it behind",
        -1.0,
        render(48_000, 15.0, &mut |_| {
            let levels = [-40.0, -40.0, -40.0, -20.0, -26.0, -26.0];
            levels.map(|level| factor(level) * around.next()).to_vec()
        }),
    ));
    all
}

fn write(path: &Path, audio: &Audio) -> std::io::Result<()> {
    let (channels, rate) = (audio.channels as u32, audio.rate_hz);
    let bytes = audio.samples.len() as u32 * 4;
    // More than two channels need WAVE_FORMAT_EXTENSIBLE. The sub-format is that of floating-point samples.
    let mask: u32 = if channels == 6 {
        0x3f
    } else {
        (1 << channels) - 1
    };
    let mut file = b"RIFF".to_vec();
    file.extend((60 + bytes).to_le_bytes());
    file.extend(b"WAVEfmt \x28\0\0\0\xfe\xff");
    file.extend((channels as u16).to_le_bytes());
    file.extend(rate.to_le_bytes());
    file.extend((rate * channels * 4).to_le_bytes());
    file.extend((channels as u16 * 4).to_le_bytes());
    file.extend(b"\x20\0\x16\0\x20\0");
    file.extend(mask.to_le_bytes());
    file.extend(b"\x03\0\0\0\0\0\x10\0\x80\0\0\xaa\0\x38\x9b\x71data");
    file.extend(bytes.to_le_bytes());
    file.extend(audio.samples.iter().flat_map(|sample| sample.to_le_bytes()));
    std::fs::write(path, file)
}

/// Reads a file of floating-point samples.
fn read(path: &str) -> Result<Audio, Box<dyn Error>> {
    let file = std::fs::read(path)?;
    let word = |at: usize| u32::from_le_bytes([file[at], file[at + 1], file[at + 2], file[at + 3]]);
    let (mut at, mut shape) = (12, None);
    while at + 8 <= file.len() {
        let length = word(at + 4) as usize;
        match (&file[at..at + 4], shape) {
            (b"fmt ", _) => shape = Some((word(at + 12), usize::from(file[at + 10]))),
            (b"data", Some((rate_hz, channels))) => {
                let end = file.len().min(at + 8 + length);
                let words = file[at + 8..end].as_chunks::<4>().0.iter();
                let samples = words.map(|word| f32::from_le_bytes(*word)).collect();
                return Ok(Audio {
                    rate_hz,
                    channels,
                    samples,
                });
            }
            _ => {}
        }
        at += 8 + length.next_multiple_of(2);
    }
    Err(format!("{path}: no audio").into())
}

fn rms_db(samples: &[f32]) -> f64 {
    let sum: f64 = samples.iter().map(|value| f64::from(value * value)).sum();
    10.0 * (sum / samples.len() as f64).log10()
}

/// Returns the largest change of the gain between adjacent 100 ms of audible sound.
fn largest_step(before: &Audio, after: &Audio) -> f64 {
    let part = before.rate_hz as usize / 10 * before.channels;
    let parts = before
        .samples
        .chunks_exact(part)
        .zip(after.samples.chunks_exact(part));
    let gains: Vec<Option<f64>> = parts
        .map(|(before, after)| {
            let level = rms_db(before);
            (level > -70.0).then(|| rms_db(after) - level)
        })
        .collect();
    let steps = gains
        .windows(2)
        .filter_map(|pair| Some((pair[1]? - pair[0]?).abs()));
    steps.fold(0.0, f64::max)
}

fn settled_after(audio: &Audio, target: f64, from: f64) -> Result<Option<f64>, Box<dyn Error>> {
    let mut meter = Meter::builder(audio.rate_hz, audio.channels).build()?;
    let mut settled = None;
    let part = audio.rate_hz as usize / 10 * audio.channels;
    for (n, samples) in audio.samples.chunks_exact(part).enumerate() {
        meter.add_interleaved(samples)?;
        let t = (n + 1) as f64 / 10.0;
        if (meter.momentary() - target).abs() > 1.0 {
            settled = None;
        } else if settled.is_none() {
            settled = Some((t - from).max(0.0));
        }
    }
    Ok(settled)
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["make", folder] => {
            for (number, (name, from, audio)) in programmes().into_iter().enumerate() {
                write(&Path::new(folder).join(format!("{number}.wav")), &audio)?;
                println!(
                    "{number}|{}|{}|{from}|{name}",
                    audio.rate_hz, audio.channels
                );
            }
        }
        ["compare", before, after, target, from] => {
            let (before, after) = (read(before)?, read(after)?);
            let (target, from) = (target.parse()?, from.parse::<f64>()?);
            print!("{:.2} ", largest_step(&before, &after));
            match settled_after(&after, target, from.max(0.0))? {
                Some(seconds) if from >= 0.0 => println!("{seconds:.1}"),
                _ => println!("-"),
            }
            if before.samples.len() != after.samples.len() {
                eprintln!(
                    "{} samples of {}",
                    after.samples.len(),
                    before.samples.len()
                );
            }
        }
        _ => return Err("programmes make FOLDER | programmes compare IN OUT TARGET FROM".into()),
    }
    Ok(())
}
