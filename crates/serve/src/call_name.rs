//! Call-IDs as text in paths, queries and the cluster's keys. A Call-ID may contain any bytes, so it is percent-encoded (RFC
//! 3986, section 2.1).

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use threadbare_control::calls::CallId;
use threadbare_member::CallName;

/// Decodes a Call-ID.
pub(super) fn decode(name: &str) -> CallId {
    let bytes: Vec<u8> = percent_decode_str(name).collect();
    CallId::new(&bytes)
}

/// Encodes a Call-ID.
pub(super) fn encode(id: &CallId) -> String {
    percent_encode(&id.0, RESERVED).to_string()
}

/// Characters that are encoded: all but the unreserved ones (RFC 3986, section 2.3).
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Returns the name of a call in the cluster.
///
/// # Errors
/// Fails if the name is too long for a key.
pub(super) fn name_of(id: &CallId) -> Result<CallName, String> {
    let name = encode(id);
    if name.len() <= NAME_BYTES_MAX {
        Ok(CallName(name.into()))
    } else {
        Err(format!(
            "call-id: the percent-encoded id has {} bytes; expected at most {NAME_BYTES_MAX} in a cluster",
            name.len()
        ))
    }
}

/// Maximum length of a name. Call-IDs usually have some 60 bytes. Longer names would make the keys in etcd large.
const NAME_BYTES_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoding_of_any_bytes_round_trips() {
        for name in [
            &b"a84b4c76e66710@pc33.atlanta.com"[..],
            b"a/b?c#d%20 e",
            b"\xff\x00",
            "é".as_bytes(),
        ] {
            let id = CallId::new(name);
            let text = encode(&id);
            assert!(
                text.bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-._~%".contains(&byte)),
                "{text}"
            );
            assert_eq!(decode(&text), id);
        }
    }
}
