//! The gateway's meters: ffmpeg sends a tone of known loudness, which the statistics must show.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use crate::common::{Running, free_port, socket};
use nix::sys::signal::Signal;
use serde_json::Value;
use threadbare_loudness::{Meter, Mode};
use threadbare_rtp::g711::ALAW_TO_LINEAR;

/// A stream's codecs, and the codec in which ffmpeg sends.
struct Case {
    name: &'static str,
    keys: &'static str,
    ffmpeg: &'static [&'static str],
}

const MULAW: &[&str] = &["-c:a", "pcm_mulaw", "-ar", "8000", "-ac", "1"];

/// Sends `source` to all streams in real time. Returns the statistics of each stream, and the output of the last one.
fn measured(source: &str, cases: &[Case]) -> (BTreeMap<String, Value>, Vec<u8>) {
    let (answer, last) = (socket(), socket());
    let mut config = "[contexts]\nwait = 20\n".to_owned();
    let mut ffmpeg = Command::new("ffmpeg");
    ffmpeg.args([
        "-v", "error", "-nostdin", "-re", "-f", "lavfi", "-i", source,
    ]);
    let mut taken = Vec::new();
    for Case {
        name,
        keys,
        ffmpeg: codec,
    } in cases
    {
        let port = loop {
            let port = free_port();
            if !taken.contains(&port) {
                break port;
            }
        };
        taken.push(port);
        let is_last = taken.len() == cases.len();
        let answer = if is_last { &last } else { &answer };
        let destination = if *name == WATCHED {
            String::new()
        } else {
            format!(
                "destination = \"{}\"\n",
                answer.local_addr().expect("bound")
            )
        };
        config += &format!(
            "[[stream]]\nname = \"{name}\"\nlisten = \"127.0.0.1:{port}\"\n{destination}rtcp = false\n{keys}\n"
        );
        let packet_bytes = if codec.contains(&"libopus") {
            1400
        } else {
            172
        };
        let to = format!("rtp://127.0.0.1:{port}?pkt_size={packet_bytes}");
        ffmpeg.args(*codec).args(["-f", "rtp", &to]);
    }
    let (mut running, _directory) = Running::start(&config, &[]);
    running.wait_for("running");
    // Read packets as they come, because the kernel's buffer cannot hold all of them.
    let heard = std::thread::spawn(move || {
        let mut sound = Vec::new();
        let mut room = [0; 2048];
        let mut limit = crate::common::LIMIT;
        loop {
            last.set_read_timeout(Some(limit))
                .expect("a valid time-out");
            let Ok(length) = last.recv(&mut room) else {
                return sound;
            };
            limit = QUIET;
            sound.extend_from_slice(&room[12..length]);
        }
    });
    let sent = ffmpeg.output().expect("ffmpeg");
    let said = String::from_utf8_lossy(&sent.stderr).into_owned();
    assert!(sent.status.success(), "{said}");
    // By then, the last packets have left the jitter buffers.
    let sound = heard.join().expect("it has ended");
    running.signal(Signal::SIGUSR1);
    let statistics = cases.iter().map(|_| running.wait_for("statistics"));
    let named = |stats: Value| (stats["stream"].as_str().expect("a name").to_owned(), stats);
    (statistics.map(named).collect(), sound)
}

/// A stream without a destination.
const WATCHED: &str = "watched";
/// After this much time without packets, no more will come.
const QUIET: Duration = Duration::from_millis(500);

#[track_caller]
fn assert_near(stats: &Value, key: &str, expected: f64, tolerance: f64) {
    let value = stats[key]
        .as_f64()
        .unwrap_or_else(|| panic!("{key} in {stats}"));
    assert!(
        (value - expected).abs() <= tolerance,
        "{key}: {value}, not {expected}, in {stats}"
    );
}

#[test]
fn tone_is_measured_at_its_level() {
    // The tone is a sine of 1 kHz in one channel, with peaks at -20 dBFS. Its loudness is 3.01 dB less.
    let tone = "aevalsrc=0.1*sin(2*PI*1000*t):s=48000:d=5";
    let (stats, _) = measured(
        tone,
        &[
            Case {
                name: "one hop",
                keys: "codec = \"PCMU\"\ncodec-out = \"PCMA\"",
                ffmpeg: MULAW,
            },
            Case {
                name: "to Opus",
                keys: "codec = \"PCMU\"\ncodec-out = \"Opus\"",
                ffmpeg: MULAW,
            },
            Case {
                name: "from L16",
                keys: "codec = \"L16/16000/1\"\ncodec-out = \"PCMU\"",
                ffmpeg: &["-c:a", "pcm_s16be", "-ar", "16000", "-ac", "1"],
            },
            Case {
                name: "from Opus",
                keys: "codec = \"Opus\"\ncodec-out = \"PCMA\"",
                ffmpeg: &["-c:a", "libopus", "-b:a", "64k", "-ar", "48000", "-ac", "1"],
            },
            Case {
                name: WATCHED,
                keys: "codec = \"PCMU\"",
                ffmpeg: MULAW,
            },
            Case {
                name: "off",
                keys: "codec = \"PCMU\"\ncodec-out = \"PCMA\"\nmeter = false",
                ffmpeg: MULAW,
            },
            Case {
                name: "as it comes",
                keys: "codec = \"PCMU\"",
                ffmpeg: MULAW,
            },
        ],
    );
    assert_eq!(stats[WATCHED]["sent"], 0, "{}", stats[WATCHED]);
    for name in ["one hop", "to Opus", "from L16", "from Opus", WATCHED] {
        let stats = &stats[name];
        // An Opus encoder changes the level by more than a tenth.
        let tolerance = if name == "from Opus" { 1.0 } else { 0.2 };
        assert_near(stats, "integrated_lufs", -23.0, tolerance);
        // On a busy machine, the tone may have gaps near its end. If nine tenths of a window are silent, it measures 10 dB
        // less.
        for key in ["momentary_lufs", "short_term_lufs"] {
            let lufs = stats[key].as_f64().expect(key);
            assert!((-33.0..-21.9).contains(&lufs), "{key}: {stats}");
        }
        assert_near(stats, "true_peak_dbtp", -20.0, tolerance + 0.5);
        assert_near(stats, "range_lu", 0.0, 1.0);
    }
    for name in ["off", "as it comes"] {
        let stats = &stats[name];
        assert!(stats["sent"].as_u64() > Some(200), "{stats}");
        assert!(stats.get("integrated_lufs").is_none(), "{stats}");
    }
}

#[test]
fn a_stream_is_brought_to_its_loudness() {
    // This tone has -35 LUFS.
    let tone = "aevalsrc=0.0251*sin(2*PI*1000*t):s=48000:d=14";
    let (stats, sound) = measured(
        tone,
        &[
            Case {
                name: "to Opus",
                keys: "codec = \"PCMU\"\ncodec-out = \"Opus\"\nloudness-target = -23",
                ffmpeg: MULAW,
            },
            Case {
                name: "left alone",
                keys: "codec = \"PCMU\"\ncodec-out = \"PCMA\"\nloudness-target = false",
                ffmpeg: MULAW,
            },
            Case {
                name: "through the chain",
                keys: "codec = \"PCMU\"\ncodec-out = \"PCMA\"\nloudness-target = -20.5",
                ffmpeg: MULAW,
            },
        ],
    );
    for (name, lufs, tolerance) in [
        ("to Opus", -23.0, 0.5),
        ("left alone", -35.0, 0.3),
        ("through the chain", -20.5, 0.5),
    ] {
        assert_near(&stats[name], "integrated_lufs", lufs, tolerance);
    }
    // A separate meter measures the audio that was sent.
    let samples: Vec<i16> = sound
        .iter()
        .map(|code| ALAW_TO_LINEAR[usize::from(*code)])
        .collect();
    assert!(samples.len() > 8 * 8_000, "{} samples", samples.len());
    let mut meter = Meter::builder(8_000, 1)
        .mode(Mode::INTEGRATED)
        .build()
        .expect("a meter");
    meter.add_interleaved(&samples).expect("mono");
    let sent = meter.integrated().expect("measured");
    assert!((sent + 20.5).abs() < 0.5, "{sent} LUFS");
}
