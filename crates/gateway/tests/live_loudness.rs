//! The gateway's meters: ffmpeg sends a tone of known loudness, and the statistics say it.

mod common;

use std::collections::BTreeMap;
use std::process::Command;

use common::{Running, free_port, socket};
use nix::sys::signal::Signal;
use serde_json::Value;

/// What a stream takes and makes of it, and as what ffmpeg sends it.
struct Case {
    name: &'static str,
    keys: &'static str,
    ffmpeg: &'static [&'static str],
}

const MULAW: &[&str] = &["-c:a", "pcm_mulaw", "-ar", "8000", "-ac", "1"];

/// Sends `source` to all streams in real time, and gives each one's statistics.
fn measured(source: &str, cases: &[Case]) -> BTreeMap<String, Value> {
    let answer = socket();
    let destination = answer.local_addr().expect("bound");
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
        config += &format!(
            "[[stream]]\nname = \"{name}\"\nlisten = \"127.0.0.1:{port}\"\ndestination = \"{destination}\"\nrtcp = false\n{keys}\n"
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
    let sent = ffmpeg.output().expect("ffmpeg");
    let said = String::from_utf8_lossy(&sent.stderr).into_owned();
    assert!(sent.status.success(), "{said}");
    // The last packets are in the jitter buffers.
    std::thread::sleep(std::time::Duration::from_millis(200));
    running.signal(Signal::SIGUSR1);
    let statistics = cases.iter().map(|_| running.wait_for("statistics"));
    statistics
        .map(|stats| (stats["stream"].as_str().expect("a name").to_owned(), stats))
        .collect()
}

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
fn a_tone_measures_what_it_is() {
    // A sine of 1 kHz with its peaks at -20 dBFS, in one channel: 3.01 dB less in loudness.
    let tone = "aevalsrc=0.1*sin(2*PI*1000*t):s=48000:d=5";
    let stats = measured(
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
    for name in ["one hop", "to Opus", "from L16", "from Opus"] {
        let stats = &stats[name];
        // An Opus encoder does not keep the level to the tenth.
        let tolerance = if name == "from Opus" { 1.0 } else { 0.2 };
        for key in ["momentary_lufs", "short_term_lufs", "integrated_lufs"] {
            assert_near(stats, key, -23.0, tolerance);
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
