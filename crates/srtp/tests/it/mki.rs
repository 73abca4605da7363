//! Key identifiers in packets (MKI): RFC 3711, sections 3.1 and 3.4, and RFC 7714, sections 8.2 and 9.2.

use threadbare_srtp::{Mki, UnprotectError};

use super::*;

/// Returns the number of bytes between the end of the packet itself and the identifier. They are E with the index, and for GCM
/// the tag.
fn place(suite: Suite, is_rtcp: bool) -> usize {
    let word = if is_rtcp { 4 } else { 0 };
    let is_gcm = matches!(suite, Suite::AeadAes128Gcm | Suite::AeadAes256Gcm);
    word + if is_gcm { suite.rtp_tag_bytes() } else { 0 }
}

#[test]
fn identifier_has_the_position_of_the_standards() {
    for suite in Suite::ALL {
        for identifier in [&[7][..], &[0, 0, 0, 1], &[9; 16], &[0; 128]] {
            let mki = Mki::new(identifier).expect("a short one");
            let with = key(suite, 1).with_mki(mki);
            let mut senders = [Sender::new(&key(suite, 1)), Sender::new(&with)];
            let mut receiver = Receiver::new(&with);
            for is_rtcp in [false, true] {
                let packet = if is_rtcp {
                    rtcp(Ssrc(1), 1)
                } else {
                    rtp(Ssrc(1), SeqNum(1), 1)
                };
                let protect = if is_rtcp { protect_rtcp } else { protect_rtp };
                let [plain, mut marked] = senders.each_mut().map(|sender| protect(sender, &packet));
                // The rest of the packet is equal, because no tag covers the identifier.
                let at = packet.len() + place(suite, is_rtcp);
                let mut expected = plain.clone();
                expected.splice(at..at, identifier.iter().copied());
                assert_eq!(marked, expected, "{suite}");
                let mut unprotect = |packet: &mut [u8]| {
                    if is_rtcp {
                        receiver.unprotect_rtcp(packet)
                    } else {
                        receiver.unprotect_rtp(packet)
                    }
                };
                // A packet with the identifier of another key, or without an identifier, changes nothing.
                let mut other = marked.clone();
                other[at] ^= 1;
                let before = other.clone();
                let refused = Err(UnprotectError::Forged { ssrc: Ssrc(1) });
                assert_eq!(unprotect(&mut other), refused);
                assert_eq!(other, before);
                assert!(unprotect(&mut plain.clone()).is_err());
                assert_eq!(unprotect(&mut marked), Ok(packet.len()), "{suite}");
                assert_eq!(marked[..packet.len()], packet);
            }
        }
    }
}
