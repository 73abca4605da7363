//! The layer table: which crate may import which.
//!
//! Only what ends up in the product counts: dev-dependencies are free.

/// How far a crate may go with `unsafe`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnsafePolicy {
    /// The crate root carries `#![forbid(unsafe_code)]`.
    Forbid,
    /// Only in files whose path inside the crate starts with one of these.
    OnlyBelow(&'static [&'static str]),
    /// Anywhere: a C interface.
    Anywhere,
}

/// What a crate may import from outside the workspace.
#[derive(Clone, Copy, Debug)]
pub enum External {
    /// These and nothing else.
    Only(&'static [&'static str]),
    /// Everything but these.
    AllBut(&'static [&'static str]),
}

/// One row of the layer table.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The package's name.
    pub package: &'static str,
    /// The packages of this workspace that it may import.
    pub internal: &'static [&'static str],
    /// The packages from outside that it may import.
    pub external: External,
    /// Where it may use `unsafe`.
    pub unsafe_policy: UnsafePolicy,
}

/// Crates for applications, with no place in a plugin that other applications load.
const APPLICATION_ONLY: &[&str] = &[
    "anyhow",
    "clap",
    "miette",
    "tokio",
    "toml",
    "tracing-subscriber",
];

/// The table. A crate that is not in it fails the test: its place is to be decided, not drifted into.
pub const RULES: &[Rule] = &[
    // Layer 0: pure. No clock, no randomness, no sockets, no GStreamer.
    Rule {
        package: "threadbare-rtp",
        internal: &[],
        external: External::Only(&[
            // Pure functions of bytes.
            "aes",
            "aes-gcm",
            "base64",
            "ctr",
            "hmac",
            "sha1",
            "subtle",
            "zeroize",
            // Pure functions of samples.
            "opus2",
            "rubato",
            "rtcp-types",
            "rtp-types",
            "thiserror",
        ]),
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
        internal: &[],
        external: External::Only(&["futures-core", "futures-sink", "loom"]),
        unsafe_policy: UnsafePolicy::Forbid,
    },
    Rule {
        package: "threadbare-control",
        internal: &["threadbare-rtp"],
        // Parsers, writers and errors.
        external: External::Only(&["postcard", "serde", "serde_json", "thiserror"]),
        unsafe_policy: UnsafePolicy::Forbid,
    },
    // Layer 1: the operating system, still without GStreamer.
    Rule {
        package: "threadbare-runtime",
        internal: &[],
        external: External::Only(&[
            "async-task",
            "futures-core",
            "libc",
            "loom",
            "rustix",
            // Its feature `inspect`.
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
        internal: &[],
        external: External::Only(&["io-uring", "libc", "rustix", "slab", "thiserror"]),
        unsafe_policy: UnsafePolicy::OnlyBelow(&["src/ring"]),
    },
    Rule {
        package: "threadbare-s3",
        internal: &["threadbare-files"],
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
            // The client runs on it, in two threads of its own.
            "tokio",
            "tracing",
            "url",
        ]),
        unsafe_policy: UnsafePolicy::Forbid,
    },
    // The C edge: decode, call safe code, catch panics.
    Rule {
        package: "threadbare-loudness-capi",
        internal: &["threadbare-loudness"],
        external: External::Only(&["libc"]),
        unsafe_policy: UnsafePolicy::Anywhere,
    },
    // Layer 2: glue to GStreamer and GLib.
    Rule {
        package: "gst-plugin-threadbare",
        internal: &[
            "threadbare-files",
            "threadbare-loudness",
            "threadbare-rtp",
            "threadbare-runtime",
            "threadbare-s3",
        ],
        // tokio: the HTTP client of the HTTP sources runs on it, in threads of its own.
        external: External::AllBut(&["anyhow", "clap", "miette", "toml", "tracing-subscriber"]),
        unsafe_policy: UnsafePolicy::OnlyBelow(&["src/kit/"]),
    },
    // Layer 2 as well: the operating system's sockets, without GStreamer.
    Rule {
        package: "threadbare-relay",
        internal: &[
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
        internal: &["threadbare-runtime"],
        // tokio: its bridge, behind a feature.
        external: External::AllBut(&["anyhow", "clap", "miette", "toml", "tracing-subscriber"]),
        unsafe_policy: UnsafePolicy::Forbid,
    },
    // Layer 3: the application.
    Rule {
        package: "threadbare",
        internal: &[
            "threadbare-control",
            "threadbare-files",
            "gst-plugin-threadbare",
            "threadbare-demux",
            "threadbare-loudness",
            "threadbare-mainloop",
            "threadbare-relay",
            "threadbare-rtp",
            "threadbare-runtime",
            "threadbare-s3",
            "threadbare-xdp",
            "threadbare-s3",
        ],
        external: External::AllBut(&[]),
        unsafe_policy: UnsafePolicy::Forbid,
    },
    // What others start from, built on what is public.
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
    // Beside the house: nothing imports it, and it imports none of the crates it judges.
    Rule {
        package: "threadbare-tidy",
        internal: &[],
        external: External::AllBut(&[]),
        unsafe_policy: UnsafePolicy::Forbid,
    },
];

/// The row of `package`.
pub fn rule_of(package: &str) -> Option<&'static Rule> {
    RULES.iter().find(|rule| rule.package == package)
}

/// Complaints about one package of the workspace.
///
/// `imports` are its dependencies that are not for tests only, as (package name, is in this workspace).
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
                "{package} may not import {name}: its layer is not below"
            ));
        } else if !is_internal && !allows_external(rule.external, name) {
            complaints.push(format!(
                "{package} may not import {name}: not in its row of the table"
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
            check_imports("gst-plugin-threadbare", below),
            Vec::<String>::new()
        );
        assert_eq!(check_imports("threadbare", below), Vec::<String>::new());
    }

    #[test]
    fn pure_crates_import_nothing_that_reaches_outside() {
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
    fn an_unknown_crate_is_a_complaint() {
        assert_eq!(check_imports("threadbare-surprise", []).len(), 1);
    }

    #[test]
    fn the_table_has_no_way_up() {
        // Rows stand in the order of the layers, so every import must stand above its user.
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
