//! The dependency policy: permitted licences and sources, and banned crates.

use spdx::{Expression, LicenseReq, ParseMode};

/// Only permissive licences, because the plugin and the libraries are linked into other people's products. GStreamer
/// itself is LGPL; it is linked dynamically, and is not a crate.
const LICENCES: &[&str] = &[
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    // A dedication to the public domain, of a macro's hash function that runs at build time.
    "CC0-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Zlib",
];

/// The only registry.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Crates that are never used, with the reason.
const BANNED: &[(&str, &str)] = &[
    // Threads belong to media workers. A second runtime would bring its own threads, and their number would no longer be fixed.
    // (tokio, the basis of client libraries, is for applications and tests: layers.rs.)
    ("async-std", "contexts are the runtime"),
    ("smol", "contexts are the runtime"),
    // Only bench/ compares with it, behind its feature `peer`.
    ("gst-plugin-threadshare", "a peer to measure against"),
    ("openssl-sys", "nothing here speaks TLS"),
];

/// A crate that the workspace uses directly or indirectly.
#[derive(Clone, Copy, Debug)]
pub struct Dependency<'a> {
    /// The package's name.
    pub name: &'a str,
    /// The licence in its manifest, an SPDX expression.
    pub licence: Option<&'a str>,
    /// The source from `cargo metadata`; `None` for a folder.
    pub source: Option<&'a str>,
}

/// Complaints about one crate.
pub fn check(dependency: Dependency<'_>) -> Vec<String> {
    let Dependency {
        name,
        licence,
        source,
    } = dependency;
    let mut complaints = Vec::new();
    if let Some((_, reason)) = BANNED.iter().find(|(banned, _)| *banned == name) {
        complaints.push(format!("{name} is banned: {reason}"));
    }
    if let Some(source) = source.filter(|source| *source != REGISTRY) {
        complaints.push(format!("{name} comes from {source}, not from crates.io"));
    }
    match licence {
        None => complaints.push(format!("{name} has no licence in its manifest")),
        Some(licence) if !is_permitted(licence) => {
            complaints.push(format!("{name}: the licence {licence} is not permitted"));
        }
        Some(_) => {}
    }
    complaints
}

fn is_permitted(licence: &str) -> bool {
    // Old manifests write "MIT/Apache-2.0".
    let Ok(expression) = Expression::parse_mode(licence, ParseMode::LAX) else {
        return false;
    };
    expression.evaluate(|required: &LicenseReq| {
        let required = required.to_string();
        LICENCES.contains(&required.as_str())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FINE: Dependency<'_> = Dependency {
        name: "a",
        licence: Some("MIT OR Apache-2.0"),
        source: Some(REGISTRY),
    };

    #[test]
    fn permissive_crates_of_the_registry_pass() {
        for licence in [
            "MIT",
            "MIT/Apache-2.0",
            "GPL-3.0-only OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR GPL-2.0",
        ] {
            let licence = Some(licence);
            let found = check(Dependency { licence, ..FINE });
            assert!(found.is_empty(), "{found:?}");
        }
    }

    #[test]
    fn anything_else_is_named() {
        let licence = |licence| Dependency { licence, ..FINE };
        let git = Some("git+https://example.org/a");
        for (bad, word) in [
            (licence(None), "no licence"),
            (licence(Some("GPL-3.0-only")), "GPL-3.0-only"),
            (licence(Some("MIT AND MPL-2.0")), "MPL-2.0"),
            (licence(Some("as you like")), "as you like"),
            (
                Dependency {
                    source: git,
                    ..FINE
                },
                "example.org",
            ),
            (
                Dependency {
                    name: "async-std",
                    ..FINE
                },
                "banned",
            ),
        ] {
            let found = check(bad);
            assert!(found.len() == 1 && found[0].contains(word), "{found:?}");
        }
    }
}
