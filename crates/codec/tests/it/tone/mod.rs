//! Tones: generated as in ITU-T Q.23, detected as in Q.24.

mod heard;
mod made;
mod speech;

use threadbare_codec::dtmf::Key;
use threadbare_codec::tone::{DtmfDetector, KeyEvent};

/// All digits and their frequencies, from ITU-T Q.23's table.
const KEYS: [(char, u8, f64, f64); 16] = [
    ('1', 1, 697.0, 1209.0),
    ('2', 2, 697.0, 1336.0),
    ('3', 3, 697.0, 1477.0),
    ('A', 12, 697.0, 1633.0),
    ('4', 4, 770.0, 1209.0),
    ('5', 5, 770.0, 1336.0),
    ('6', 6, 770.0, 1477.0),
    ('B', 13, 770.0, 1633.0),
    ('7', 7, 852.0, 1209.0),
    ('8', 8, 852.0, 1336.0),
    ('9', 9, 852.0, 1477.0),
    ('C', 14, 852.0, 1633.0),
    ('*', 10, 941.0, 1209.0),
    ('0', 0, 941.0, 1336.0),
    ('#', 11, 941.0, 1477.0),
    ('D', 15, 941.0, 1633.0),
];

fn key(number: u8) -> Key {
    Key::new(number).expect("0 to 15")
}

/// Peak level of a sine wave: full scale has 3.14 dBm0 (ITU-T G.711, A-law).
#[allow(clippy::approx_constant, reason = "not pi")]
fn peak(dbm0: f64) -> f64 {
    10_f64.powf((dbm0 - 3.14) / 20.0)
}

/// Returns the events of a new detector for `audio`.
fn hear(rate_hz: u32, audio: &[f32]) -> Vec<KeyEvent> {
    let mut detector = DtmfDetector::new(rate_hz).expect("a supported rate");
    let mut events = Vec::new();
    for packet in audio.chunks(rate_hz as usize / 50) {
        detector.feed(packet, &mut events);
    }
    events
}

/// Returns the digits that were pressed. Each digit must be released before the next one.
fn presses(events: &[KeyEvent]) -> Vec<u8> {
    let mut pressed = None;
    let mut keys = Vec::new();
    for event in events {
        match *event {
            KeyEvent::Down { key, .. } => {
                assert_eq!(pressed.replace(key), None, "{events:?}");
                keys.push(key.number());
            }
            KeyEvent::Up { key, .. } => assert_eq!(pressed.take(), Some(key), "{events:?}"),
        }
    }
    keys
}
