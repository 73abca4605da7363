//! Checks that each crate imports only packages that the layer table allows.
//!
//! Dev-dependencies are not restricted.

/// Where a crate may use `unsafe`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnsafePolicy {
    /// Nowhere. The crate's root has `#![forbid(unsafe_code)]`.
    Forbid,
    /// Only in files whose path inside the crate starts with one of these prefixes.
    OnlyBelow(&'static [&'static str]),
    /// Anywhere, because the crate is a C interface.
    Anywhere,
}

/// The packages from outside the workspace that a crate may import.
#[derive(Clone, Copy, Debug)]
pub enum External {
    /// Only these packages.
    Only(&'static [&'static str]),
    /// All packages except these.
    AllBut(&'static [&'static str]),
}

/// One row of the layer table.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The package's name.
    pub package: &'static str,
    /// The packages of this workspace that the package may import.
    pub internal: &'static [&'static str],
    /// The packages from outside the workspace that it may import.
    pub external: External,
    /// Where it may use `unsafe`.
    pub unsafe_policy: UnsafePolicy,
}

/// Packages for applications. A plugin or library that other applications load must not use them.
const APPLICATION_ONLY: &[&str] = &[
    "anyhow",
    "clap",
    "miette",
    "tokio",
    "toml",
    "tracing-subscriber",
];

/// The layer table. A crate without a row fails the test, so that its author has to choose a layer.
pub const RULES: &[Rule] = &[
    // Layer 0: pure crates, without clock, randomness, sockets and GStreamer.
    Rule {
        package: "threadbare-base",
        internal: &[],
        external: External::Only(&["loom"]),
        unsafe_policy: UnsafePolicy::Forbid,
    },
    Rule {
        package: "threadbare-rtp-types",
        internal: &["threadbare-base"],
        // For keys, headers and errors.
        external: External::Only(&["base64", "rtp-types", "subtle", "thiserror", "zeroize"]),
        unsafe_policy: UnsafePolicy::Forbid,
    },
    Rule {
        package: "threadbare-codec",
        internal: &["threadbare-base", "threadbare-rtp-types"],
        // For pure functions of samples, and for errors.
        external: External::Only(&["opus2", "rubato", "thiserror"]),
        unsafe_policy: UnsafePolicy::Forbid,
    },
    Rule {
        package: "threadbare-jitter",
        internal: &["threadbare-base", "threadbare-rtp-types"],
        external: External::Only(&["thiserror"]),
        unsafe_policy: UnsafePolicy::Forbid,
    },
    Rule {
        package: "threadbare-srtp",
        internal: &["threadbare-rtp-types"],
        // For pure functions of bytes, and for errors.
        external: External::Only(&[
            "aes",
            "aes-gcm",
            "ctr",
            "hmac",
            "sha1",
            "subtle",
            "thiserror",
            "zeroize",
        ]),
        unsafe_policy: UnsafePolicy::Forbid,
    },
    Rule {
        package: "threadbare-rtp",
        internal: &[
            "threadbare-base",
            "threadbare-codec",
            "threadbare-jitter",
            "threadbare-rtp-types",
            "threadbare-srtp",
        ],
        external: External::Only(&["smallvec", "thiserror"]),
        unsafe_policy: UnsafePolicy::Forbid,
    },
    Rule {
        package: "threadbare-loudness",
        internal: &[],
        external: External::Only(&["thiserror"]),
        unsafe_policy: UnsafePolicy::OnlyBelow(&["src/simd"]),
    },
    Rule {
        package: "threadbare-demux",
        internal: &["threadbare-base"],
        external: External::Only(&["futures-core", "futures-sink", "loom"]),
        unsafe_policy: UnsafePolicy::Forbid,
    },
    Rule {
        package: "threadbare-control",
        internal: &["threadbare-base", "threadbare-rtp-types"],
        // For parsers, serialisers, errors and keys.
        external: External::Only(&[
            "ciborium",
            "postcard",
            "serde",
            "serde_json",
            "thiserror",
            "zeroize",
        ]),
        unsafe_policy: UnsafePolicy::Forbid,
    },
    Rule {
        package: "threadbare-member",
        internal: &[],
        // For the entries in the cluster's store, and for errors.
        external: External::Only(&["serde", "serde_json", "thiserror"]),
        unsafe_policy: UnsafePolicy::Forbid,
    },
    // Layer 1: the operating system, without GStreamer.
    Rule {
        package: "threadbare-runtime",
        internal: &["threadbare-base"],
        external: External::Only(&[
            "async-task",
            "futures-core",
            "libc",
            "loom",
            "rustix",
            // For the feature `inspect`.
            "serde_json",
            "slab",
            "thiserror",
            "tracing",
        ]),
        unsafe_policy: UnsafePolicy::OnlyBelow(&["src/sys", "src/task"]),
    },
    Rule {
        package: "threadbare-xdp",
        internal: &["threadbare-runtime"],
        external: External::Only(&["libc", "nix", "thiserror"]),
        unsafe_policy: UnsafePolicy::OnlyBelow(&["src/sys"]),
    },
    Rule {
        package: "threadbare-files",
        internal: &["threadbare-base"],
        external: External::Only(&["io-uring", "libc", "rustix", "slab", "thiserror"]),
        unsafe_policy: UnsafePolicy::OnlyBelow(&["src/ring"]),
    },
    Rule {
        package: "threadbare-s3",
        internal: &["threadbare-base", "threadbare-files"],
        external: External::Only(&[
            "bytes",
            "http",
            "http-body",
            "percent-encoding",
            "quick-xml",
            "reqsign-aws-v4",
            "reqsign-command-execute-tokio",
            "reqsign-core",
            "reqsign-file-read-tokio",
            "reqwest",
            "serde",
            "serde_json",
            "thiserror",
            // The client runs on tokio, in two dedicated threads.
            "tokio",
            "tracing",
            "url",
        ]),
        unsafe_policy: UnsafePolicy::Forbid,
    },
    // The C interface. It decodes arguments, calls safe code and catches panics.
    Rule {
        package: "threadbare-loudness-capi",
        internal: &["threadbare-loudness"],
        external: External::Only(&["libc"]),
        unsafe_policy: UnsafePolicy::Anywhere,
    },
    // Layer 2: crates that use GStreamer or GLib.
    Rule {
        package: "threadbare-gst-kit",
        internal: &["threadbare-base", "threadbare-runtime"],
        external: External::AllBut(APPLICATION_ONLY),
        unsafe_policy: UnsafePolicy::OnlyBelow(&["src/kit/"]),
    },
    Rule {
        package: "threadbare-gst-fallback",
        internal: &["threadbare-gst-kit", "threadbare-runtime"],
        external: External::AllBut(APPLICATION_ONLY),
        unsafe_policy: UnsafePolicy::Forbid,
    },
    Rule {
        package: "threadbare-gst-rtp",
        internal: &[
            "threadbare-gst-kit",
            "threadbare-loudness",
            "threadbare-rtp",
            "threadbare-runtime",
        ],
        external: External::AllBut(APPLICATION_ONLY),
        unsafe_policy: UnsafePolicy::Forbid,
    },
    Rule {
        package: "threadbare-gst-io",
        internal: &[
            "threadbare-base",
            "threadbare-files",
            "threadbare-gst-kit",
            "threadbare-runtime",
            "threadbare-s3",
        ],
        // tokio is allowed: the client of the HTTP sources runs on it, in dedicated threads.
        external: External::AllBut(&["anyhow", "clap", "miette", "toml", "tracing-subscriber"]),
        unsafe_policy: UnsafePolicy::Forbid,
    },
    Rule {
        package: "gst-plugin-threadbare",
        internal: &[
            "threadbare-base",
            "threadbare-gst-fallback",
            "threadbare-gst-io",
            "threadbare-gst-kit",
            "threadbare-gst-rtp",
            "threadbare-runtime",
        ],
        external: External::AllBut(APPLICATION_ONLY),
        unsafe_policy: UnsafePolicy::Forbid,
    },
    // Also layer 2: crates that use the operating system's sockets without GStreamer.
    Rule {
        package: "threadbare-relay",
        internal: &[
            "threadbare-base",
            "threadbare-loudness",
            "threadbare-rtp",
            "threadbare-runtime",
            "threadbare-xdp",
        ],
        external: External::Only(&[
            "flume",
            "nix",
            "rtrb",
            "slab",
            "socket2",
            "thiserror",
            "tracing",
        ]),
        unsafe_policy: UnsafePolicy::Forbid,
    },
    Rule {
        package: "threadbare-mainloop",
        internal: &["threadbare-base", "threadbare-runtime"],
        // tokio is allowed for the bridge to it, which is behind a feature.
        external: External::AllBut(&["anyhow", "clap", "miette", "toml", "tracing-subscriber"]),
        unsafe_policy: UnsafePolicy::Forbid,
    },
    // Layer 3: the application, one crate for each of its parts.
    Rule {
        package: "threadbare-process",
        internal: &["threadbare-runtime"],
        external: External::AllBut(&[]),
        unsafe_policy: UnsafePolicy::Forbid,
    },
    Rule {
        package: "threadbare-watch",
        internal: &[
            "threadbare-base",
            "threadbare-process",
            "threadbare-relay",
            "threadbare-runtime",
        ],
        external: External::AllBut(&[]),
        unsafe_policy: UnsafePolicy::Forbid,
    },
    Rule {
        package: "threadbare-audio-file",
        internal: &["threadbare-rtp"],
        external: External::AllBut(&[]),
        unsafe_policy: UnsafePolicy::Forbid,
    },
    Rule {
        package: "threadbare-config",
        internal: &[
            "threadbare-audio-file",
            "threadbare-member",
            "threadbare-process",
            "threadbare-relay",
            "threadbare-rtp",
            "threadbare-s3",
            "threadbare-watch",
            "threadbare-xdp",
        ],
        external: External::AllBut(&[]),
        unsafe_policy: UnsafePolicy::Forbid,
    },
    Rule {
        package: "threadbare-recording",
        internal: &[
            "threadbare-base",
            "threadbare-config",
            "threadbare-files",
            "threadbare-loudness",
            "threadbare-process",
            "threadbare-relay",
            "threadbare-rtp",
            "threadbare-runtime",
            "threadbare-s3",
        ],
        external: External::AllBut(&[]),
        unsafe_policy: UnsafePolicy::Forbid,
    },
    Rule {
        package: "threadbare-streams",
        internal: &[
            "gst-plugin-threadbare",
            "threadbare-audio-file",
            "threadbare-base",
            "threadbare-config",
            "threadbare-control",
            "threadbare-loudness",
            "threadbare-process",
            "threadbare-recording",
            "threadbare-relay",
            "threadbare-rtp",
            "threadbare-runtime",
            "threadbare-watch",
        ],
        external: External::AllBut(&[]),
        unsafe_policy: UnsafePolicy::Forbid,
    },
    Rule {
        package: "threadbare-cluster",
        internal: &[
            "threadbare-base",
            "threadbare-config",
            "threadbare-member",
            "threadbare-process",
            "threadbare-relay",
            "threadbare-rtp",
            "threadbare-runtime",
            "threadbare-streams",
        ],
        external: External::AllBut(&[]),
        unsafe_policy: UnsafePolicy::Forbid,
    },
    Rule {
        package: "threadbare-serve",
        internal: &[
            "threadbare-base",
            "threadbare-audio-file",
            "threadbare-cluster",
            "threadbare-config",
            "threadbare-control",
            "threadbare-member",
            "threadbare-process",
            "threadbare-recording",
            "threadbare-relay",
            "threadbare-rtp",
            "threadbare-runtime",
            "threadbare-s3",
            "threadbare-streams",
            "threadbare-watch",
            "threadbare-xdp",
        ],
        external: External::AllBut(&[]),
        unsafe_policy: UnsafePolicy::Forbid,
    },
    Rule {
        package: "threadbare-loudness-cli",
        internal: &[
            "gst-plugin-threadbare",
            "threadbare-audio-file",
            "threadbare-loudness",
            "threadbare-process",
        ],
        external: External::AllBut(&[]),
        unsafe_policy: UnsafePolicy::Forbid,
    },
    Rule {
        package: "threadbare-demo",
        internal: &[
            "threadbare-config",
            "threadbare-process",
            "threadbare-relay",
            "threadbare-rtp",
            "threadbare-runtime",
            "threadbare-streams",
        ],
        external: External::AllBut(&[]),
        unsafe_policy: UnsafePolicy::Forbid,
    },
    Rule {
        package: "threadbare",
        internal: &[
            "gst-plugin-threadbare",
            "threadbare-cluster",
            "threadbare-config",
            "threadbare-demo",
            "threadbare-loudness-cli",
            "threadbare-process",
            "threadbare-recording",
            "threadbare-rtp",
            "threadbare-runtime",
            "threadbare-serve",
            "threadbare-streams",
            "threadbare-watch",
            "threadbare-xdp",
        ],
        external: External::AllBut(&[]),
        unsafe_policy: UnsafePolicy::Forbid,
    },
    // Examples for other projects. They use only public APIs.
    Rule {
        package: "threadbare-example-elements",
        internal: &["gst-plugin-threadbare"],
        external: External::AllBut(APPLICATION_ONLY),
        unsafe_policy: UnsafePolicy::Forbid,
    },
    Rule {
        package: "threadbare-example-brokers",
        internal: &["threadbare-demux"],
        external: External::AllBut(&[]),
        unsafe_policy: UnsafePolicy::Forbid,
    },
    // Benchmarks and fuzz targets. No crate imports them.
    Rule {
        package: "threadbare-fuzz",
        internal: &[
            "threadbare-audio-file",
            "threadbare-control",
            "threadbare-loudness",
            "threadbare-relay",
            "threadbare-rtp",
            "threadbare-xdp",
        ],
        external: External::AllBut(&[]),
        unsafe_policy: UnsafePolicy::Forbid,
    },
    Rule {
        package: "threadbare-malloc-count",
        internal: &[],
        external: External::Only(&["libc"]),
        unsafe_policy: UnsafePolicy::Anywhere,
    },
    Rule {
        package: "threadbare-bench",
        internal: &[
            "threadbare-control",
            "threadbare-loudness",
            "threadbare-mainloop",
            "threadbare-relay",
            "threadbare-rtp",
            "threadbare-runtime",
        ],
        external: External::AllBut(&[]),
        unsafe_policy: UnsafePolicy::OnlyBelow(&["src/"]),
    },
    // This crate is outside the layers. No crate imports it, and it imports none of the crates that it checks.
    Rule {
        package: "threadbare-tidy",
        internal: &[],
        external: External::AllBut(&[]),
        unsafe_policy: UnsafePolicy::Forbid,
    },
];

/// Returns the row of a package.
pub fn rule_of(package: &str) -> Option<&'static Rule> {
    RULES.iter().find(|rule| rule.package == package)
}

/// Returns complaints about one package of the workspace.
///
/// `imports` are the package's dependencies without dev-dependencies: (package name, whether it is in this workspace).
pub fn check_imports<'a>(
    package: &str,
    imports: impl IntoIterator<Item = (&'a str, bool)>,
) -> Vec<String> {
    let Some(rule) = rule_of(package) else {
        return vec![format!(
            "{package} has no row in the layer table (crates/tidy/src/layers.rs)"
        )];
    };
    let mut complaints = Vec::new();
    for (name, is_internal) in imports {
        if is_internal && !rule.internal.contains(&name) {
            complaints.push(format!(
                "{package} must not import {name}, because the layer of {name} is not below"
            ));
        } else if !is_internal && !allows_external(rule.external, name) {
            complaints.push(format!(
                "{package} must not import {name}, which is not in its row of the layer table"
            ));
        }
    }
    complaints
}

fn allows_external(external: External, name: &str) -> bool {
    match external {
        External::Only(allowed) => allowed.contains(&name),
        External::AllBut(refused) => !refused.contains(&name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upward_and_sideways_imports_are_refused() {
        for (package, import) in [
            ("threadbare-rtp", "threadbare-runtime"),
            ("threadbare-runtime", "gst-plugin-threadbare"),
            ("threadbare-runtime", "threadbare-rtp"),
            ("gst-plugin-threadbare", "threadbare"),
            ("threadbare", "threadbare-tidy"),
        ] {
            assert_eq!(
                check_imports(package, [(import, true)]).len(),
                1,
                "{package} -> {import}"
            );
        }
    }

    #[test]
    fn downward_imports_are_allowed() {
        let below = [("threadbare-rtp", true), ("threadbare-runtime", true)];
        assert_eq!(
            check_imports("threadbare-gst-rtp", below),
            Vec::<String>::new()
        );
        assert_eq!(check_imports("threadbare", below), Vec::<String>::new());
    }

    #[test]
    fn pure_crates_must_not_import_clocks_sockets_or_randomness() {
        for import in ["gstreamer", "glib", "libc", "rand", "socket2", "tracing"] {
            assert_eq!(
                check_imports("threadbare-rtp", [(import, false)]).len(),
                1,
                "{import}"
            );
        }
        assert_eq!(
            check_imports("threadbare-runtime", [("gstreamer", false)]).len(),
            1
        );
        assert_eq!(
            check_imports("threadbare-runtime", [("libc", false)]).len(),
            0
        );
        assert_eq!(
            check_imports("gst-plugin-threadbare", [("clap", false)]).len(),
            1
        );
    }

    #[test]
    fn a_crate_without_a_row_is_refused() {
        assert_eq!(check_imports("threadbare-surprise", []).len(), 1);
    }

    #[test]
    fn each_row_imports_only_from_rows_above_it() {
        // The rows are in the order of the layers, so the row of an import must be above that of its user.
        for (place, rule) in RULES.iter().enumerate() {
            for import in rule.internal {
                let below = RULES.iter().position(|other| other.package == *import);
                assert!(
                    below.is_some_and(|below| below < place),
                    "{} -> {import}",
                    rule.package
                );
            }
        }
    }
}
