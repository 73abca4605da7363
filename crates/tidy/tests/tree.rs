//! Applies the rules to this source tree.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use cargo_metadata::{DependencyKind, MetadataCommand, Package};
use threadbare_tidy::{
    circles, dependencies, english, impls, layers, links, size, strays, tokens, unsafety,
};

/// Files and functions that may be longer than the limit: (path, function or "" for the file). Each entry has a comment with the
/// reason.
const OVERSIZE_PERMITTED: &[(&str, &str)] = &[];

/// Imports that are allowed although they close a circle: (package, from, to).
const CIRCLES_PERMITTED: &[circles::Permitted<'_>] = &[];

/// Files that may contain paths of one machine. The rule itself has to name them.
const STRAYS_EXEMPT: &[&str] = &["crates/tidy/src/strays.rs"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("the tree's root")
}

/// Returns the files that git tracks or would track, so that a fault is found before it is committed.
fn tracked_files() -> Vec<String> {
    let output = Command::new("git")
        .args(["-c", "safe.directory=*", "ls-files", "-z"])
        .args(["--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let names = String::from_utf8(output.stdout).expect("file names are UTF-8");
    let mut files: Vec<String> = names.split_terminator('\0').map(str::to_owned).collect();
    // A deleted file can still be in the index.
    files.retain(|path| root().join(path).is_file());
    assert!(!files.is_empty(), "git lists no files");
    files
}

fn read(path: &str) -> Option<String> {
    let bytes = std::fs::read(root().join(path)).expect("a listed file is readable");
    String::from_utf8(bytes).ok()
}

fn workspace_packages() -> Vec<Package> {
    let metadata = MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .no_deps()
        .exec()
        .expect("cargo metadata");
    metadata.packages
}

/// Returns a crate's folder relative to the root of the tree, such as `crates/gst`.
fn folder_of(package: &Package) -> String {
    let folder = package
        .manifest_path
        .parent()
        .expect("a manifest has a folder");
    let folder = folder.as_std_path().canonicalize().expect("it exists");
    folder
        .strip_prefix(root())
        .expect("below the root")
        .to_str()
        .expect("UTF-8")
        .to_owned()
}

fn assert_none(complaints: &[String]) {
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

#[test]
fn crates_import_only_lower_layers() {
    let packages = workspace_packages();
    let is_internal = |name: &str| packages.iter().any(|package| package.name == name);
    let mut complaints = Vec::new();
    for package in &packages {
        let imports = package
            .dependencies
            .iter()
            .filter(|import| import.kind != DependencyKind::Development)
            .map(|import| (import.name.as_str(), is_internal(&import.name)));
        complaints.extend(layers::check_imports(&package.name, imports));
    }
    assert_none(&complaints);
}

#[test]
fn dependencies_comply_with_the_policy() {
    let mut complaints = Vec::new();
    for target in ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"] {
        let metadata = MetadataCommand::new()
            .manifest_path(root().join("Cargo.toml"))
            .other_options([
                "--locked".to_owned(),
                "--filter-platform".to_owned(),
                target.to_owned(),
            ])
            .exec()
            .expect("cargo metadata");
        // The metadata must also contain the packages from outside the workspace, because otherwise these are not checked.
        assert!(metadata.packages.len() > 100, "{}", metadata.packages.len());
        for package in &metadata.packages {
            complaints.extend(dependencies::check(dependencies::Dependency {
                name: &package.name,
                licence: package.license.as_deref(),
                source: package.source.as_ref().map(|source| source.repr.as_str()),
            }));
        }
    }
    for package in workspace_packages() {
        let outside = package.dependencies.iter().filter(|one| one.path.is_none());
        let any = outside.filter(|one| one.req.comparators.is_empty());
        complaints.extend(any.map(|one| format!("{}: no version of {}", package.name, one.name)));
    }
    assert_none(&complaints);
}

/// Published crates have the fields that crates.io requires, and those that its visitors look for.
#[test]
fn published_crates_have_their_metadata() {
    let mut complaints = Vec::new();
    let versions: Vec<_> = workspace_packages()
        .into_iter()
        .filter(|package| package.publish.as_ref().is_none_or(|to| !to.is_empty()))
        .collect();
    assert!(versions.len() >= 9, "{}", versions.len());
    for package in &versions {
        let readme = package.readme();
        for (what, is_there) in [
            ("description", package.description.is_some()),
            ("license", package.license.is_some()),
            ("rust-version", package.rust_version.is_some()),
            // crates.io allows at most five keywords and five categories.
            ("keywords", (1..=5).contains(&package.keywords.len())),
            ("categories", (1..=5).contains(&package.categories.len())),
            ("readme", readme.is_some_and(|path| path.is_file())),
        ] {
            if !is_there {
                complaints.push(format!("{}: {what}", package.name));
            }
        }
        // A dependency with only a path cannot be resolved in the registry.
        let inside = package.dependencies.iter().filter(|one| one.path.is_some());
        let unversioned = inside.filter(|one| {
            one.kind != DependencyKind::Development && one.req.comparators.is_empty()
        });
        complaints.extend(unversioned.map(|one| {
            format!(
                "{}: no version of {} in addition to its path",
                package.name, one.name
            )
        }));
    }
    assert_none(&complaints);
}

#[test]
fn crates_that_are_published_can_be_packed() {
    let output = Command::new(env!("CARGO"))
        .args([
            "package",
            "--workspace",
            "--no-verify",
            "--offline",
            "--allow-dirty",
        ])
        .args(["--target-dir", env!("CARGO_TARGET_TMPDIR")])
        .args(
            unpublished()
                .iter()
                .flat_map(|name| ["--exclude", name.as_str()]),
        )
        .current_dir(root())
        .output()
        .expect("cargo runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

fn unpublished() -> Vec<String> {
    let packages = workspace_packages().into_iter();
    let kept = packages.filter(|package| package.publish.as_ref().is_some_and(Vec::is_empty));
    kept.map(|package| package.name.to_string()).collect()
}

#[test]
fn unsafe_code_is_only_in_the_permitted_files() {
    let files = tracked_files();
    let mut complaints = Vec::new();
    for package in workspace_packages() {
        let Some(rule) = layers::rule_of(&package.name) else {
            continue;
        };
        let folder = folder_of(&package);
        for root_file in ["src/lib.rs", "src/main.rs"] {
            let path = format!("{folder}/{root_file}");
            if let Some(source) = files.contains(&path).then(|| read(&path)).flatten() {
                complaints
                    .extend(unsafety::check_root(&path, &source, rule.unsafe_policy).unwrap());
            }
        }
        let sources = format!("{folder}/src/");
        for path in files
            .iter()
            .filter(|path| path.starts_with(&sources) && path.ends_with(".rs"))
        {
            let source = read(path).expect("Rust is UTF-8");
            let inside = &path[folder.len() + 1..];
            let found = unsafety::check_file(inside, &source, rule.unsafe_policy).unwrap();
            complaints.extend(
                found
                    .into_iter()
                    .map(|complaint| format!("{folder}/{complaint}")),
            );
        }
    }
    assert_none(&complaints);
}

#[test]
fn modules_import_each_other_in_one_direction() {
    let files = tracked_files();
    let mut complaints = Vec::new();
    for package in workspace_packages() {
        let sources = format!("{}/src/", folder_of(&package));
        let mut below: Vec<(&str, String)> = files
            .iter()
            .filter_map(|path| Some((path.strip_prefix(&sources)?, path)))
            .filter(|(_, path)| path.ends_with(".rs") && !is_test_file(path))
            .map(|(inside, path)| (inside, read(path).expect("Rust is UTF-8")))
            .collect();
        // If the package has a library, its program is a separate crate.
        if below.iter().any(|(inside, _)| *inside == "lib.rs") {
            below.retain(|(inside, _)| *inside != "main.rs");
        }
        let below: Vec<(&str, &str)> = below
            .iter()
            .map(|(inside, source)| (*inside, source.as_str()))
            .collect();
        complaints.extend(circles::check(&package.name, &below, CIRCLES_PERMITTED).unwrap());
    }
    assert_none(&complaints);
}

#[test]
fn functions_and_files_are_not_too_long() {
    let mut found = Vec::new();
    for path in tracked_files()
        .iter()
        .filter(|path| path.ends_with(".rs") && !is_test_file(path))
    {
        found.extend(size::check_size(path, &read(path).expect("Rust is UTF-8")).unwrap());
    }
    assert_none(&size::apply_exceptions(&found, OVERSIZE_PERMITTED));
}

#[test]
fn methods_of_a_type_are_in_few_files() {
    let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for path in tracked_files() {
        // Members of the workspace have their sources in FOLDER/src.
        if let Some((package, below)) = path.split_once("/src/")
            && below.ends_with(".rs")
            && !is_test_file(&path)
        {
            files.entry(package.to_owned()).or_default().push(path);
        }
    }
    let mut complaints = Vec::new();
    for paths in files.values() {
        let source = |path: &String| read(path).expect("Rust is UTF-8");
        let sources: Vec<(&str, String)> = paths
            .iter()
            .map(|path| (path.as_str(), source(path)))
            .collect();
        complaints.extend(impls::check(&sources).unwrap());
    }
    assert_none(&complaints);
}

fn is_test_file(path: &str) -> bool {
    path.contains("/tests/") || path.contains("/benches/") || path.ends_with("/tests.rs")
}

#[test]
fn state_transitions_of_atomics_have_names() {
    let mut complaints = Vec::new();
    for path in tracked_files()
        .iter()
        .filter(|path| path.ends_with(".rs") && !is_test_file(path))
    {
        let source = read(path).expect("Rust is UTF-8");
        complaints.extend(tokens::check_transitions(path, &source).unwrap());
    }
    assert_none(&complaints);
}

#[test]
fn tracked_files_name_no_path_or_registry_of_one_machine() {
    let mut complaints = Vec::new();
    for path in tracked_files()
        .iter()
        .filter(|path| !STRAYS_EXEMPT.contains(&path.as_str()))
    {
        if let Some(text) = read(path) {
            complaints.extend(strays::check_text(path, &text));
        }
    }
    assert_none(&complaints);
}

/// The README contains the parts that a newcomer needs, in the order in which they are read, and not much more.
#[test]
fn the_readme_is_short_and_in_order() {
    let readme = read("README.md").expect("UTF-8");
    assert!(
        readme.lines().count() <= README_LINES_MAX,
        "README.md is too long"
    );
    let mut rest = readme.as_str();
    for part in README_PARTS {
        let found = rest.split_once(part);
        rest = found
            .unwrap_or_else(|| panic!("README.md: `{part}` is missing or comes too early"))
            .1;
    }
    // A program writes the figures of a table between two markers.
    for (begin, end) in [
        ("headline: begin", "headline: end"),
        ("demo: begin", "demo: end"),
        ("bench-readme: begin", "bench-readme: end"),
    ] {
        assert_eq!(readme.matches(begin).count(), 1, "README.md: `{begin}`");
        assert!(readme.find(begin) < readme.find(end), "README.md: `{end}`");
    }
}

const README_LINES_MAX: usize = 120;
const README_PARTS: &[&str] = &[
    "# Threadbare",
    "docs/images/threads.svg",
    "<!-- headline: begin -->",
    "<!-- headline: end -->",
    "make demo",
    "make test",
    "<!-- demo: begin -->",
    "<!-- demo: end -->",
    "docs/start/sip.md",
    "docs/start/broadcast.md",
    "docs/start/applications.md",
    "docs/missing.md",
    "<!-- bench-readme: begin -->",
    "<!-- bench-readme: end -->",
    "docs/images/how-it-works.svg",
    "## More",
];

/// Links of the documentation lead to existing files and headings. The book lists each page.
#[test]
fn links_of_the_documentation_work() {
    let files = tracked_files();
    let markdown = files.iter().filter(|path| path.ends_with(".md"));
    let pages: BTreeMap<String, links::Page> = markdown
        .map(|path| (path.clone(), links::read(&read(path).expect("UTF-8"))))
        .collect();
    let exists = |path: &str| root().join(path).exists();
    let mut complaints = links::check_summary(&pages);
    for path in pages.keys() {
        complaints.extend(links::check(path, &pages, exists));
    }
    assert_none(&complaints);
}

/// Without its default features, the gateway uses no crate of GStreamer. `make lint` builds it like that.
#[test]
fn the_gateway_can_be_built_without_crates_of_gstreamer() {
    let crates_with = |features: &[&str]| {
        let output = Command::new(env!("CARGO"))
            .args([
                "tree",
                "--locked",
                "-p",
                "threadbare",
                "-e",
                "normal",
                "--prefix",
                "none",
            ])
            .args(features)
            .current_dir(root())
            .output()
            .expect("cargo runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        String::from_utf8(output.stdout).expect("names of crates")
    };
    let is_of_gstreamer = |line: &&str| {
        ["gst", "glib", "gobject", "gio"]
            .iter()
            .any(|prefix| line.starts_with(prefix))
    };
    let of = |tree: &str| {
        tree.lines()
            .filter(is_of_gstreamer)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert!(!of(&crates_with(&[])).is_empty());
    assert_eq!(
        of(&crates_with(&[
            "--no-default-features",
            "--features",
            "cluster"
        ])),
        Vec::<String>::new()
    );
}

/// File that is not checked. Its tests contain a sentence for each mark.
const ENGLISH_EXEMPT: &str = "crates/tidy/src/english.rs";

#[test]
fn texts_are_in_plain_english() {
    let mut complaints = Vec::new();
    for path in tracked_files()
        .iter()
        .filter(|path| *path != ENGLISH_EXEMPT)
    {
        let Some(text) = read(path) else { continue };
        let sentences = match path.rsplit_once('.').map(|(_, ending)| ending) {
            Some("md") => english::of_markdown(&text),
            Some("rs") => english::of_rust(&text).unwrap(),
            Some("html" | "js") => english::of_page(&text),
            _ => continue,
        };
        complaints.extend(english::check(path, &sentences));
    }
    assert_none(&complaints);
}

/// Checks the subjects of the last commits, because `git log --oneline` cuts off longer ones. Commits older than this rule do not
/// count.
#[test]
fn subjects_of_commits_are_short() {
    let log = |arguments: &[&str]| {
        let output = Command::new("git")
            .args(["-c", "safe.directory=*", "log", "-100", "--format=%h %s"])
            .args(arguments)
            .current_dir(root())
            .output()
            .expect("git runs");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let rule = log(&["--diff-filter=A", "--", "crates/tidy/src/english.rs"]);
    // An archive or a shallow clone lacks that commit.
    let begin = rule.split_whitespace().next().unwrap_or("HEAD");
    let said = log(&[&format!("{begin}..HEAD")]);
    let subject = |line: &&str| {
        line.split_once(' ')
            .map_or(0, |(_, one)| one.chars().count())
    };
    let long: Vec<String> = said
        .lines()
        .filter(|line| subject(line) > SUBJECT_CHARS_MAX)
        .map(str::to_owned)
        .collect();
    assert_none(&long);
}

const SUBJECT_CHARS_MAX: usize = 72;

/// `docs/security.md` names a test for each scene that it describes. These tests must exist.
#[test]
fn tests_that_the_security_page_names_exist() {
    let page = read("docs/security.md").expect("a text");
    let is_test = |word: &&str| {
        let is_part = |byte: u8| byte == b'_' || byte.is_ascii_lowercase() || byte.is_ascii_digit();
        word.matches('_').count() >= 2 && word.bytes().all(is_part)
    };
    let named: Vec<&str> = page.split('`').skip(1).step_by(2).filter(is_test).collect();
    assert!(named.len() > 20, "the page names its tests");
    let is_there = |name: &str, source: &str| source.contains(&format!("fn {name}("));
    assert_none(&missing_tests("docs/security.md", named, is_there));
}

/// The configuration of the test runner names tests that must run alone, or in another step. If such a name has no test, the
/// test was renamed, and would run beside others or not at all.
#[test]
fn tests_that_the_runner_names_exist() {
    for file in [".config/nextest.toml", "Makefile"] {
        let text = read(file).expect("a text");
        let parts = text.split("test(").skip(1);
        let named: Vec<&str> = parts
            .filter_map(|part| Some(part.split_once(')')?.0))
            .filter(|name| {
                !name.is_empty() && name.bytes().all(|b| b == b'_' || b.is_ascii_lowercase())
            })
            .collect();
        assert!(!named.is_empty(), "{file} names tests");
        let is_there = |name: &str, source: &str| {
            let mut lines = source.lines().map(str::trim_start);
            lines.any(|line| {
                (line.starts_with("fn ") || line.starts_with("mod ")) && line.contains(name)
            })
        };
        assert_none(&missing_tests(file, named, is_there));
    }
}

/// Returns complaints about names in `file` that no Rust source contains.
fn missing_tests(
    file: &str,
    mut named: Vec<&str>,
    is_there: impl Fn(&str, &str) -> bool,
) -> Vec<String> {
    for path in tracked_files().iter().filter(|path| path.ends_with(".rs")) {
        let source = read(path).unwrap_or_default();
        named.retain(|name| !is_there(name, &source));
    }
    let complain = |name| format!("{file}: no test {name}");
    named.into_iter().map(complain).collect()
}

/// The guides to the code name files, which may be moved.
#[test]
fn paths_in_the_guides_exist() {
    let mut complaints = Vec::new();
    for page in ["ARCHITECTURE.md", "CONTRIBUTING.md"] {
        let text = read(page).expect("a text");
        let words = text.split('`').skip(1).step_by(2);
        let paths: Vec<&str> = words
            .filter(|word| word.ends_with(".rs") || word.ends_with('/'))
            .filter(|word| word.contains('/') && !word.contains(['*', ' ']))
            .collect();
        assert!(paths.len() > 10, "{page} names files");
        for path in paths {
            let is_there = ["", "crates/"]
                .iter()
                .any(|folder| root().join(folder).join(path).exists());
            if !is_there {
                complaints.push(format!("{page}: no file {path}"));
            }
        }
    }
    assert_none(&complaints);
}
