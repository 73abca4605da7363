//! The RFCs' test vectors.

use zeroize::Zeroizing;

use crate::derive::{Protocol, SessionKeys, generate};
use crate::header::{RtpHeader, rtcp_ssrc};
use crate::keystream::AesKey;
use crate::transform::{RtcpWord, Transform};
use crate::{Forged, Mki, PacketIndex, Suite};

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex
        .chars()
        .filter_map(|c| c.to_digit(16))
        .map(|digit| digit as u8)
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

/// The counter block at the start of all keystreams of the RFCs: session salt, SSRC 0, index 0.
const IV: &str = "F0F1F2F3F4F5F6F7F8F9FAFBFCFD0000";

fn check_keystream(key: &str, blocks: &[(usize, &str)]) {
    let mut stream = vec![0; 0xff02 * 16];
    let iv = bytes(IV).try_into().expect("a block");
    AesKey::new(&bytes(key)).apply_keystream(&iv, &mut stream);
    for (number, block) in blocks {
        assert_eq!(stream[number * 16..][..16], bytes(block), "{number:#x}");
    }
}

#[test]
fn the_aes_128_keystream_equals_that_of_rfc_3711_b_2() {
    check_keystream(
        "2B7E151628AED2A6ABF7158809CF4F3C",
        &[
            (0, "E03EAD0935C95E80E166B16DD92B4EB4"),
            (1, "D23513162B02D0F72A43A2FE4A5F97AB"),
            (2, "41E95B3BB0A2E8DD477901E4FCA894C0"),
            (0xfeff, "EC8CDF7398607CB0F2D21675EA9EA1E4"),
            (0xff00, "362B7C3C6773516318A077D7FC5073AE"),
            (0xff01, "6A2CC3787889374FBEB4C81B17BA6C44"),
        ],
    );
}

#[test]
fn the_aes_256_keystream_equals_that_of_rfc_6188_7_1() {
    check_keystream(
        "57f82fe3613fd170a85ec93c40b1f0922ec4cb0dc025b58272147cc438944a98",
        &[
            (0, "92bdd28a93c3f52511c677d08b5515a4"),
            (1, "9da71b2378a854f67050756ded165bac"),
            (2, "63c4868b7096d88421b563b8c94c9a31"),
            (0xfeff, "cea518c90fd91ced9cbb18c078a54711"),
            (0xff00, "3dbc4814f4da5f00a08772b63c6a046d"),
            (0xff01, "6eb246913062a16891433e97dd01a57f"),
        ],
    );
}

fn check_derivation(key: &str, salt: &str, expected: [&str; 3]) {
    let (prf, salt) = (AesKey::new(&bytes(key)), bytes(salt));
    for (label, expected) in [0, 1, 2].into_iter().zip(expected.map(bytes)) {
        let mut derived = vec![0xee; expected.len()];
        generate(&prf, &salt, label, &mut derived);
        assert_eq!(derived, expected, "label {label}");
    }
}

#[test]
fn keys_derived_with_aes_128_equal_those_of_rfc_3711_b_3() {
    check_derivation(
        "E1F97A0D3E018BE0D64FA32C06DE4139",
        "0EC675AD498AFEEBB6960B3AABE6",
        [
            "C61E7A93744F39EE10734AFE3FF7A087",
            "CEBE321F6FF7716B6FD4AB49AF256A156D38BAA48F0A0ACF3C34E2359E6CDBCE
             E049646C43D9327AD175578EF72270986371C10C9A369AC2F94A8C5FBCDDDC25
             6D6E919A48B610EF17C2041E474035766B68642C59BBFC2F34DB60DBDFB2",
            "30CBBC08863D8C85D49DB34A9AE1",
        ],
    );
}

#[test]
fn keys_derived_with_aes_256_equal_those_of_rfc_6188_7_2() {
    check_derivation(
        "f0f04914b513f2763a1b1fa130f10e2998f6f6e43e4309d1e622a0e332b9f1b6",
        "3b04803de51ee7c96423ab5b78d2",
        [
            "5ba1064e30ec51613cad926c5a28ef731ec7fb397f70a960653caf06554cd8c4",
            "fd9c32d39ed5fbb5a9dc96b30818454d1313dc05",
            "fa31791685ca444a9e07c6c64e93",
        ],
    );
}

/// Returns the session keys of RFC 7714, sections 16 and 17.
fn gcm(suite: Suite, protocol: Protocol) -> Transform {
    let mut keys = SessionKeys {
        suite,
        cipher: Zeroizing::new(std::array::from_fn(|at| at as u8)),
        salt: Zeroizing::default(),
        auth: Zeroizing::default(),
    };
    keys.salt[..12].copy_from_slice(b"Quid pro quo");
    Transform::from_session_keys(&keys, protocol, Mki::default())
}

const GCM_SUITES: [Suite; 2] = [Suite::AeadAes128Gcm, Suite::AeadAes256Gcm];

/// RFC 7714, section 16: rollover counter 0.
const RTP: &str = "8040f17b 8041f8d3 5501a0b2 47616c6c 69612065 7374206f 6d6e6973 20646976
    69736120 696e2070 61727465 73207472 6573";

/// Sections 16.1.1 and 16.2.1: the bytes after the header.
const RTP_SEALED: [&str; 2] = [
    "f24de3a3 fb34de6c acba861c 9d7e4bca be633bd5 0d294e6f 42a5f47a 51c7d19b 36de3adf 8833
     899d7f27 beb16a91 52cf765e e4390cce",
    "32b1de78 a822fe12 ef9f78fa 332e33aa b1801238 9a58e2f3 b50b2a02 76ffae0f 1ba63799 b87b
     7aa3db36 dfffd6b0 f9bb7878 d7a76c13",
];

#[test]
fn srtp_packets_equal_those_of_rfc_7714_section_16() {
    let plain = bytes(RTP);
    for (suite, sealed) in GCM_SUITES.into_iter().zip(RTP_SEALED) {
        let transform = gcm(suite, Protocol::Rtp);
        let header = RtpHeader::parse(&plain, 0).unwrap();
        let index = PacketIndex::new(0, header.seq);
        let mut buffer = plain.clone();
        buffer.resize(plain.len() + transform.rtp_trailer(), 0);
        transform.seal_rtp(&mut buffer, header, index);
        assert_eq!(buffer, [&plain[..12], &bytes(sealed)].concat(), "{suite}");
        transform.open_rtp(&mut buffer, header, index).unwrap();
        assert_eq!(buffer[..plain.len()], plain, "{suite}");
    }
}

/// RFC 7714, sections 17.1 to 17.4.
const RTCP: &str = "81c8000d 4d617273 4e545031 4e545032 52545020 0000042a 0000e930 4c756e61
    deadbeef deadbeef deadbeef deadbeef deadbeef";

const RTCP_INDEX: u32 = 0x5d4;

/// Section 17.1 (encrypted, AES-128), 17.2 (encrypted, AES-256), 17.3 and 17.4 (tags only): the bytes after the first 8, or after
/// the packet.
const RTCP_SEALED: [(Suite, bool, &str); 4] = [
    (
        Suite::AeadAes128Gcm,
        true,
        "63e94885 dcdab67c a727d766 2f6b7e99 7ff5c0f7 6c06f32d c676a5f1 730d6fda 4ce09b46
         86303ded 0bb9275b c84aa458 96cf4d2f c5abf872 45d9eade 800005d4",
    ),
    (
        Suite::AeadAes256Gcm,
        true,
        "d50ae4d1 f5ce5d30 4ba297e4 7d470c28 2c3ece5d bffe0a50 a2eaa5c1 110555be 8415f658
         c61de047 6f1b6fad 1d1eb30c 4446839f 57ff6f6c b26ac3be 800005d4",
    ),
    (
        Suite::AeadAes128Gcm,
        false,
        "841dd968 3dd78ec9 2ae58790 125f62b3 000005d4",
    ),
    (
        Suite::AeadAes256Gcm,
        false,
        "91db4afb feee5a97 8fab4393 ed2615fe 000005d4",
    ),
];

#[test]
fn srtcp_packets_equal_those_of_rfc_7714_section_17() {
    let plain = bytes(RTCP);
    for (suite, encrypted, sealed) in RTCP_SEALED {
        let transform = gcm(suite, Protocol::Rtcp);
        let ssrc = rtcp_ssrc(&plain, 0).unwrap();
        let mut buffer = plain.clone();
        buffer.resize(plain.len() + transform.rtcp_trailer(), 0);
        transform.seal_rtcp(&mut buffer, ssrc, RtcpWord::new(RTCP_INDEX, encrypted));
        let clear_bytes = if encrypted { 8 } else { plain.len() };
        assert_eq!(
            buffer,
            [&plain[..clear_bytes], &bytes(sealed)].concat(),
            "{suite}"
        );
        let word = transform.rtcp_word(&buffer);
        assert_eq!(word, RtcpWord::new(RTCP_INDEX, encrypted));
        for at in 0..buffer.len() {
            let mut forged = buffer.clone();
            forged[at] ^= 1;
            let before = forged.clone();
            let word = transform.rtcp_word(&forged);
            let ssrc = rtcp_ssrc(&forged, 0).unwrap();
            assert_eq!(
                transform.open_rtcp(&mut forged, ssrc, word),
                Err(Forged),
                "{suite}, byte {at}"
            );
            assert_eq!(forged, before);
        }
        transform.open_rtcp(&mut buffer, ssrc, word).unwrap();
        assert_eq!(buffer[..plain.len()], plain, "{suite}");
    }
}
