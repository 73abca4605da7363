//! Encodes the position at which a stream stopped, as bytes for the stream's claim.

use serde::{Deserialize, Serialize};
use threadbare_rtp::call::{Anchor, DirectionState, LegId, Passed, SessionState, TimeState};
use threadbare_rtp::id::{RtpTime, SeqNum, Ssrc};
use threadbare_rtp::leg::SentState;

/// Version of the format. Increment it if the format changes.
const VERSION: u8 = 1;

#[derive(Serialize, Deserialize)]
struct Saved {
    version: u8,
    ssrc: u32,
    next_seq: u16,
    packets_sent: u64,
    octets_sent: u64,
    /// RTP timestamp at the end of the audio, its play time, and units per second.
    time: Option<(u32, i64, u32)>,
    /// The sender's SSRC and the number of its last forwarded packet.
    passed: Option<(u32, u16)>,
    /// A timestamp of the sender, our timestamp for it, and units per second of both.
    anchor: Option<[u32; 4]>,
}

/// Encodes a position for [`decode`]. Returns no bytes if the position is unknown.
#[must_use]
pub(super) fn encode(state: Option<&SessionState>) -> Vec<u8> {
    let saved = state.and_then(SessionState::output);
    let saved = saved.map(|(sent, direction)| Saved {
        version: VERSION,
        ssrc: sent.ssrc.0,
        next_seq: sent.next_seq.0,
        packets_sent: sent.packets_sent,
        octets_sent: sent.octets_sent,
        time: direction
            .time
            .map(|time| (time.end.0, time.end_in_ns, time.clock_rate_hz)),
        passed: direction.passed.map(|passed| (passed.ssrc.0, passed.seq.0)),
        anchor: direction
            .passed
            .and_then(|passed| passed.anchor)
            .map(|anchor| [anchor.from.0, anchor.to.0, anchor.from_hz, anchor.to_hz]),
    });
    // Encoding plain numbers cannot fail.
    let bytes = saved.and_then(|saved| postcard::to_allocvec(&saved).ok());
    bytes.unwrap_or_default()
}

/// Decodes a position. `None`: it is unknown, or was encoded by a later version.
#[must_use]
pub(super) fn decode(bytes: &[u8]) -> Option<SessionState> {
    let saved: Saved = postcard::from_bytes(bytes).ok()?;
    let is_known = saved.version == VERSION;
    let time = saved.time.map(|(end, end_in_ns, clock_rate_hz)| TimeState {
        end: RtpTime(end),
        end_in_ns,
        clock_rate_hz,
    });
    let passed = saved.passed.map(|(ssrc, seq)| Passed {
        ssrc: Ssrc(ssrc),
        seq: SeqNum(seq),
        anchor: saved.anchor.map(|[from, to, from_hz, to_hz]| Anchor {
            from: RtpTime(from),
            to: RtpTime(to),
            from_hz,
            to_hz,
        }),
    });
    let sent = SentState {
        ssrc: Ssrc(saved.ssrc),
        next_seq: SeqNum(saved.next_seq),
        packets_sent: saved.packets_sent,
        octets_sent: saved.octets_sent,
    };
    is_known.then(|| position(sent, time, passed))
}

fn position(sent: SentState, time: Option<TimeState>, passed: Option<Passed>) -> SessionState {
    let direction = DirectionState {
        to: LegId::A,
        time,
        packet_ns: 0,
        passed,
    };
    SessionState::of_output(sent, direction)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoding_round_trips() {
        let anchor = Anchor {
            from: RtpTime(1),
            to: RtpTime(u32::MAX),
            from_hz: 8000,
            to_hz: 48_000,
        };
        let passed = |anchor| Passed {
            ssrc: Ssrc(9),
            seq: SeqNum(65_535),
            anchor,
        };
        let sent = SentState {
            ssrc: Ssrc(u32::MAX),
            next_seq: SeqNum(7),
            packets_sent: u64::MAX,
            octets_sent: 3,
        };
        let time = TimeState {
            end: RtpTime(5),
            end_in_ns: -40_000_000,
            clock_rate_hz: 90_000,
        };
        for (time, passed) in [
            (None, None),
            (Some(time), Some(passed(None))),
            (Some(time), Some(passed(Some(anchor)))),
        ] {
            let state = position(sent, time, passed);
            let bytes = encode(Some(&state));
            assert!(bytes.len() < 100, "{}", bytes.len());
            assert_eq!(decode(&bytes), Some(state));
            // A state of a later version, or a truncated one.
            let later = [&[VERSION + 1], &bytes[1..]].concat();
            assert_eq!(decode(&later), None);
            assert_eq!(decode(&bytes[..bytes.len() - 1]), None);
        }
        assert!(encode(None).is_empty());
        assert_eq!(decode(&[]), None);
    }
}
