//! Quality of a party's audio at the far end of a call.

use super::test_bed::{Bed, MS, address, format};
use super::*;
use crate::codec::Encoding;
use crate::leg::Verdict;

/// Returns a report of B on the packets of leg B. It states that `lost_in_256` of 256 were lost since the last report, and 20 ms of jitter.
fn report(lost_in_256: u8) -> Vec<u8> {
    let mut bytes = vec![0x81, 201, 0, 7];
    bytes.extend(0x0b_u32.to_be_bytes());
    bytes.extend(0xa001_u32.to_be_bytes());
    bytes.extend([lost_in_256, 0, 0, 0]);
    bytes.extend(1000_u32.to_be_bytes());
    bytes.extend(160_u32.to_be_bytes());
    bytes.extend([0; 8]);
    bytes
}

/// Runs a call in which A speaks for 30 s, and every `loss`th packet is lost. B reports every 5 s until `until_s`.
fn call(loss: Option<u64>, lost_in_256: u8, until_s: u64) -> SessionStats {
    let pcmu = format(Encoding::Pcmu, 8000, 1);
    let mut bed = Bed::between(pcmu, pcmu);
    for second in 0..30 {
        bed.tone(pcmu, 20, 1000, |number| {
            loss.is_some_and(|loss| number % loss == loss - 1)
        });
        if second % 5 == 4 && second < until_s {
            let now_ns = bed.now_ns;
            let (from, bytes) = (address(Side::B), report(lost_in_256));
            let verdict = bed.call.handle_datagram(
                now_ns,
                now_ns,
                Side::B as u8,
                Channel::Rtcp,
                from,
                &bytes,
            );
            assert_eq!(verdict, Verdict::Rtcp);
        }
    }
    assert!(bed.now_ns >= 30_000 * MS);
    bed.call.stats()
}

/// Returns the mean loss, jitter and MOS.
fn means(quality: Option<crate::quality::Quality>) -> [f64; 3] {
    let quality = quality.expect("a record");
    [quality.loss_percent, quality.jitter_ms, quality.mos]
        .map(|range| range.expect("samples").average)
}

#[test]
fn losses_that_the_far_party_reports_lower_the_score_end_to_end() {
    let stats = call(None, 26, 30);
    let [loss, _, at_relay] = means(stats.legs[0].quality);
    assert_eq!(loss, 0.0);
    let [loss, jitter_ms, score] = means(stats.legs[0].end_to_end);
    // The first samples are from before the first report.
    assert!((5.0..=10.2).contains(&loss), "{loss}");
    assert!((10.0..=20.0).contains(&jitter_ms), "{jitter_ms}");
    assert!(score < at_relay - 0.3, "{score} {at_relay}");
}

#[test]
fn losses_on_the_way_to_and_from_the_relay_add_up() {
    let stats = call(Some(10), 26, 30);
    let [near, _, at_relay] = means(stats.legs[0].quality);
    let [both, _, score] = means(stats.legs[0].end_to_end);
    assert!((8.0..=12.0).contains(&near), "{near}");
    assert!((both - near) > 4.0 && both < 20.5, "{both} {near}");
    assert!(score < at_relay, "{score} {at_relay}");
}

#[test]
fn without_reports_the_end_to_end_score_is_that_of_the_relay() {
    let stats = call(Some(10), 26, 0);
    assert_eq!(stats.legs[0].end_to_end, stats.legs[0].quality);
}

#[test]
fn an_old_report_no_longer_counts() {
    let [once, ..] = means(call(None, 255, 5).legs[0].end_to_end);
    let [always, ..] = means(call(None, 255, 30).legs[0].end_to_end);
    assert!(once > 10.0 && once < always - 10.0, "{once} {always}");
}
