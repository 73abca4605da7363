//! Finds texts that are valid only on one machine, such as paths on its disk and hosts of private package registries.

/// The only registry that a lock file may name.
const PUBLIC_REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Folders that exist only on some machines. A match counts only at the start of a path.
const MACHINE_PLACES: &[&str] = &["/root/", "/home/", "/work/", "/Users/", "/mnt/"];

/// Hosts and schemes of private or mirrored registries.
const REGISTRY_MARKS: &[&str] = &[
    "sparse+http",
    "index.crates.io",
    "static.crates.io",
    "proxy.golang.org",
    "artifactory",
];

/// Returns complaints about one text file.
pub fn check_text(path: &str, text: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let mut complain = |what: &str| complaints.push(format!("{path}:{}: {what}", number + 1));
        if let Some(place) = MACHINE_PLACES
            .iter()
            .find(|place| starts_a_path(line, place))
        {
            complain(&format!("a path that exists only on one machine ({place})"));
        }
        if let Some(mark) = REGISTRY_MARKS.iter().find(|mark| line.contains(*mark)) {
            complain(&format!("the host of a package registry ({mark})"));
        }
        if path.ends_with("Cargo.lock")
            && line.starts_with("source = ")
            && !line.contains(PUBLIC_REGISTRY)
        {
            complain("a source other than the public registry");
        }
    }
    complaints
}

/// Whether `place` is the start of an absolute path in this line. For example, `/work/` starts a path in `"/work/x"`, `=/work/x`
/// and `(/work/x`, but not in `network/work/x`.
fn starts_a_path(line: &str, place: &str) -> bool {
    line.match_indices(place).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|c| !c.is_alphanumeric() && !"/_-.}".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_exist_only_on_one_machine_are_found() {
        for line in [
            "cd /work/x",
            "DIR=/root/x",
            "see `/home/me/notes`",
            "(\"/Users/me\", /Users/me/x)",
        ] {
            assert_eq!(check_text("a.md", line).len(), 1, "{line}");
        }
        for line in [
            "network/work/x",
            "$HOME/work/x",
            "../home/x",
            "https://example.org/root/x",
        ] {
            assert_eq!(check_text("a.md", line), Vec::<String>::new(), "{line}");
        }
        assert!(check_text("a.md", "one\n/work/x")[0].starts_with("a.md:2:"));
    }

    #[test]
    fn hosts_of_registries_are_found() {
        assert_eq!(
            check_text("a.toml", "index = \"sparse+https://example.org/\"").len(),
            1
        );
        let mirror = "source = \"registry+https://example.org/index\"";
        assert_eq!(check_text("Cargo.lock", mirror).len(), 1);
        assert_eq!(
            check_text("Cargo.lock", &format!("source = \"{PUBLIC_REGISTRY}\"")),
            Vec::<String>::new()
        );
    }
}
