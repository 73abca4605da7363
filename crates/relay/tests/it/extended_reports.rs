//! Extended reports (RFC 3611), read by another program (tshark).

use std::process::Command;

use crate::common::media::{Bed, MS, call, party, speech};
use threadbare_relay::{AudioSession, PortId};
use threadbare_rtp::call::Side;

/// Returns a packet as a capture file, from and to the port that is read as RTCP. Real capturing would need privileges. The format is
/// described in <https://www.ietf.org/archive/id/draft-gharris-opsawg-pcap-01.html>, and link type 101 is raw IP.
fn pcap_of(packet: &[u8], port: u16) -> Vec<u8> {
    let mut file = Vec::new();
    let length = 28 + packet.len() as u32;
    for word in [
        0xa1b2_c3d4,
        0x0004_0002,
        0,
        0,
        65_535,
        101,
        0,
        0,
        length,
        length,
    ] {
        file.extend(word.to_le_bytes());
    }
    // The packet has an IPv4 header without checksum, from and to 127.0.0.1, and a UDP header without checksum.
    file.extend([0x45, 0]);
    file.extend((length as u16).to_be_bytes());
    file.extend([0, 0, 0, 0, 64, 17, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1]);
    for word in [port, port, length as u16 - 20, 0] {
        file.extend(word.to_be_bytes());
    }
    file.extend(packet);
    file
}

const PORT: u16 = 5005;

#[test]
fn tshark_reads_statistics_and_metrics() {
    let mut call = call(0, false);
    call.leg_mut(Side::A).send_extended_reports(true);
    let mut bed = Bed::new(0, AudioSession::new(call, std::time::Duration::ZERO));
    for number in 0..1000 {
        if number % 20 != 7 {
            bed.hand_in(PortId::rtp(0), party(Side::A), &speech(0, 0x50, number));
        }
        bed.wait_ms(20);
    }
    let reports = bed.take(PortId::rtcp(0));
    // An extended report has packet type 207, and is part of a compound (RFC 3611, section 2).
    let has_extended = |bytes: &[u8]| bytes.chunks(4).any(|word| word.get(1) == Some(&207));
    let last = reports.iter().rfind(|staged| has_extended(&staged.bytes));
    let last = last.expect("an extended report");
    let path = std::env::temp_dir().join(format!("extended-{}.pcap", std::process::id()));
    std::fs::write(&path, pcap_of(&last.bytes, PORT)).expect("written");
    let fields = [
        "rtcp.xr.bt",
        "rtcp.xr.stats.lost",
        "rtcp.xr.stats.dups",
        "rtcp.xr.voipmetrics.gmin",
        "rtcp.xr.voipmetrics.rfactor",
        "rtcp.xr.voipmetrics.moslq",
        "rtcp.length_check",
        "_ws.malformed",
    ];
    let mut tshark = Command::new("tshark");
    tshark
        .arg("-r")
        .arg(&path)
        .args(["-d", &format!("udp.port=={PORT},rtcp")]);
    tshark.args(["-T", "fields", "-E", "separator=;"]);
    for field in fields {
        tshark.args(["-e", field]);
    }
    let output = tshark
        .output()
        .expect("this test needs tshark: sudo apt install tshark");
    std::fs::remove_file(&path).expect("removed");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let fields: Vec<&str> = said.trim_end().split(';').collect();
    let [
        blocks,
        lost,
        duplicates,
        gmin,
        rating,
        mos,
        check,
        malformed,
    ] = fields[..]
    else {
        panic!("{said}{errors}");
    };
    assert_eq!(
        (blocks, duplicates, gmin, malformed),
        ("6,7", "0", "16", ""),
        "{said}"
    );
    assert!(["1", "True"].contains(&check), "{said}");
    // A report covers some seconds with 50 packets each, of which one in twenty was lost.
    assert!(
        (3..=25).contains(&lost.parse::<u32>().expect("a number")),
        "{said}"
    );
    let stats = bed.call.stats().session.legs[0]
        .quality
        .expect("a record")
        .mos
        .expect("samples");
    let rating: f64 = rating.parse().expect("a number");
    assert!((70.0..93.0).contains(&rating), "{said}");
    assert!(!mos.is_empty() && stats.lowest.value < 4.4, "{said}");
    assert!(bed.now_ns >= 20_000 * MS);
}
