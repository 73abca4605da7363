//! After the first packet of a source, SRTP allocates nothing per packet.

#[path = "../../../tests/counting.rs"]
mod counting;

use counting::allocations;
use threadbare_srtp::{
    MASTER_KEY_BYTES_MAX, MasterKey, RTCP_TRAILER_BYTES_MAX, Receiver, Sender, Suite,
};

#[test]
fn packets_of_known_sources_allocate_nothing() {
    for suite in Suite::ALL {
        let key = MasterKey::from_random(suite, &[7; MASTER_KEY_BYTES_MAX]);
        let (mut sender, mut receiver) = (Sender::new(&key), Receiver::new(&key));
        let mut buffer = [0; 172 + RTCP_TRAILER_BYTES_MAX];
        let mut before = 0;
        for number in 0..200_u16 {
            buffer[..4].copy_from_slice(&[
                0x80,
                0,
                number.to_be_bytes()[0],
                number.to_be_bytes()[1],
            ]);
            let length = sender
                .protect_rtp(&mut buffer, 172)
                .expect("it is protected");
            receiver
                .unprotect_rtp(&mut buffer[..length])
                .expect("it arrives");
            receiver
                .unprotect_rtp(&mut buffer[..length])
                .expect_err("it was there before");
            let length = sender
                .protect_rtcp(&mut buffer, 60)
                .expect("it is protected");
            receiver
                .unprotect_rtcp(&mut buffer[..length])
                .expect("it arrives");
            if number == 20 {
                before = allocations();
            }
        }
        assert!(before > 0, "allocations are counted");
        assert_eq!(allocations() - before, 0, "{suite}");
    }
}
