//! Target `srtp`: byte 0 selects the suite and the length of the key's identifier. The following bytes are steps, each with a
//! kind, a length and its own bytes.

use crate::{
    Crypto, MASTER_KEY_BYTES_MAX, MKI_BYTES_MAX, MasterKey, Mki, ProtectError,
    RTCP_TRAILER_BYTES_MAX, Receiver, Sender, Suite, UnprotectError,
};

/// Checks that a refused packet changes nothing, that a protected packet is restored unchanged and only once, and that packets of
/// another key are refused. Keys from SDP are parsed from their text.
pub fn srtp(data: &[u8]) {
    let Some((&suite, mut data)) = data.split_first() else {
        return;
    };
    let (mki_bytes, suite) = (
        usize::from(suite) / Suite::ALL.len(),
        usize::from(suite) % Suite::ALL.len(),
    );
    let mut mki = vec![0; mki_bytes % (MKI_BYTES_MAX + 1)];
    mki.iter_mut().rev().take(4).for_each(|byte| *byte = 0xa5);
    let mki = Mki::new(&mki).expect("a small number");
    let key =
        MasterKey::from_random(Suite::ALL[suite], &[0x5a; MASTER_KEY_BYTES_MAX]).with_mki(mki);
    let mut sides = (Sender::new(&key), Receiver::new(&key));
    while let [kind, length, rest @ ..] = data {
        let (bytes, after) = rest.split_at(rest.len().min(usize::from(*length)));
        data = after;
        match kind % 5 {
            0 => received(&mut sides.1, bytes, Receiver::unprotect_rtp),
            1 => received(&mut sides.1, bytes, Receiver::unprotect_rtcp),
            2 => carried(
                &mut sides,
                bytes,
                Sender::protect_rtp,
                Receiver::unprotect_rtp,
            ),
            3 => carried(
                &mut sides,
                bytes,
                Sender::protect_rtcp,
                Receiver::unprotect_rtcp,
            ),
            _ => attribute(bytes),
        }
    }
}

type Protect = fn(&mut Sender, &mut [u8], usize) -> Result<usize, ProtectError>;
type Unprotect = fn(&mut Receiver, &mut [u8]) -> Result<usize, UnprotectError>;

/// Treats the bytes as a received datagram.
fn received(receiver: &mut Receiver, bytes: &[u8], unprotect: Unprotect) {
    let before: Vec<_> = receiver.sources().collect();
    let mut packet = bytes.to_vec();
    match unprotect(receiver, &mut packet) {
        Ok(length) => assert!(length < bytes.len()),
        Err(_) => {
            assert_eq!(packet, bytes);
            assert!(receiver.sources().eq(before));
        }
    }
}

/// Protects the bytes if they are a valid packet. The packet must then arrive.
fn carried(
    (sender, receiver): &mut (Sender, Receiver),
    bytes: &[u8],
    protect: Protect,
    unprotect: Unprotect,
) {
    let before: Vec<_> = sender.sources().collect();
    let mut packet = bytes.to_vec();
    packet.resize(bytes.len() + RTCP_TRAILER_BYTES_MAX, 0);
    let Ok(length) = protect(sender, &mut packet, bytes.len()) else {
        assert!(packet.starts_with(bytes));
        assert!(sender.sources().eq(before));
        return;
    };
    packet.truncate(length);
    let mut forged = packet.clone();
    forged[length - 1] ^= 1;
    assert!(unprotect(receiver, &mut forged).is_err());
    assert_eq!(unprotect(receiver, &mut packet), Ok(bytes.len()));
    assert_eq!(&packet[..bytes.len()], bytes);
    assert!(unprotect(receiver, &mut packet).is_err());
    assert!(sender.sources().eq(receiver.sources()));
}

/// Treats the bytes as the value of an attribute.
fn attribute(bytes: &[u8]) {
    let Ok(value) = str::from_utf8(bytes) else {
        return;
    };
    if let Ok(crypto) = Crypto::parse(value) {
        assert_eq!(Crypto::parse(&crypto.to_value()), Ok(crypto));
    }
}
