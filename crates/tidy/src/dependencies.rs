//! Checks dependencies against the policy: permitted licences and sources, and banned crates.

use spdx::{Expression, LicenseReq, ParseMode};

/// Permitted licences. They are all permissive, because the plugin and the libraries are linked into other people's products.
/// GStreamer itself has the LGPL, but it is not a crate, and is linked dynamically.
const LICENCES: &[&str] = &[
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    // A dedication to the public domain. It is the licence of a hash function in a macro, which runs at build time.
    "CC0-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Zlib",
];

/// The only permitted registry.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Crates that must not be used, each with the reason.
const BANNED: &[(&str, &str)] = &[
    // A second runtime would start its own threads, so that the number of threads would not be fixed any more. The table in
    // layers.rs restricts tokio, on which client libraries are based, to applications and tests.
    ("async-std", "contexts are the only runtime"),
    ("smol", "contexts are the only runtime"),
    // Only `bench/` may use this plugin, for comparisons, and only behind the feature `peer`.
    ("gst-plugin-threadshare", "only benchmarks compare with it"),
    ("openssl-sys", "TLS is done by rustls"),
];

/// A crate that the workspace uses directly or indirectly.
#[derive(Clone, Copy, Debug)]
pub struct Dependency<'a> {
    /// The package's name.
    pub name: &'a str,
    /// The licence in the package's manifest, an SPDX expression.
    pub licence: Option<&'a str>,
    /// The source according to `cargo metadata`, or `None` for a local folder.
    pub source: Option<&'a str>,
}

/// Returns complaints about one crate.
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
    // Old manifests contain "MIT/Apache-2.0", which the lax mode accepts.
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
    fn crates_with_permissive_licences_from_the_registry_pass() {
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
    fn other_licences_sources_and_crates_are_refused() {
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
