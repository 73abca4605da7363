//! The key that the nodes of a cluster share.

use std::fmt;
use std::path::Path;

use miette::{Context, IntoDiagnostic, miette};

/// The key of a cluster. Anyone who has it can send requests for calls to any node.
#[derive(Clone)]
pub(super) struct ClusterKey(pub(super) [u8; KEY_BYTES]);

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterKey")
    }
}

impl ClusterKey {
    /// Reads the key from a file with a line of hexadecimal digits.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or contains no key.
    pub(super) fn read(path: &Path) -> miette::Result<ClusterKey> {
        let name = || format!("[cluster] key-file = {}", path.display());
        let text = std::fs::read_to_string(path)
            .into_diagnostic()
            .wrap_err_with(name)?;
        parse(text.trim()).map(ClusterKey).ok_or_else(|| {
            miette!(
                help = "create a file with openssl rand -hex 32 >cluster.key, and copy it to each node",
                "{}: expected {} hexadecimal digits",
                name(),
                2 * KEY_BYTES
            )
        })
    }
}

fn parse(text: &str) -> Option<[u8; KEY_BYTES]> {
    let mut key = [0; KEY_BYTES];
    let is_hex = text.len() == 2 * KEY_BYTES && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_hex {
        return None;
    }
    for (at, byte) in key.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(key)
}

pub(super) const KEY_BYTES: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_64_hexadecimal_digits_and_is_not_printed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("key");
        let text = "00Ff".repeat(16);
        std::fs::write(&path, format!("{text}\n")).expect("written");
        let key = ClusterKey::read(&path).expect("a key");
        assert_eq!(key.0, [0, 255].repeat(16)[..]);
        assert_eq!(format!("{key:?}"), "ClusterKey");
        for odd in ["", "00ff", &format!("{text}00"), &text.replace('f', "é")] {
            std::fs::write(&path, odd).expect("written");
            let said = ClusterKey::read(&path).expect_err(odd).to_string();
            assert!(
                said.contains("key-file") && said.contains("64 hexa"),
                "{said}"
            );
        }
        assert!(ClusterKey::read(&folder.path().join("none")).is_err());
    }
}
