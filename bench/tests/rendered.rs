//! Tests that README, docs and pictures agree exactly with the newest results files, and that examples in docs are copies of
//! examples that doc tests compile.

use std::path::Path;

use threadbare_bench::calls::Calls;
use threadbare_bench::libraries::Libraries;
use threadbare_bench::media::Media;
use threadbare_bench::render;
use threadbare_bench::results::Results;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

#[test]
fn readme_docs_and_pictures_are_rendered_from_the_newest_results() {
    let folder = root().join("bench/results");
    let results = Results::newest(&folder).unwrap();
    let libraries = Libraries::read(&folder).unwrap();
    let media = Media::read(&folder).unwrap();
    let calls = Calls::read(&folder).unwrap();
    let recordings = Calls::read_recordings(&folder).unwrap();
    let stale: Vec<String> = render::all(
        results.as_ref(),
        libraries.as_ref(),
        media.as_ref(),
        calls.as_ref(),
        recordings.as_ref(),
    )
    .into_iter()
    .filter(|rendered| !rendered.is_current(root()).unwrap())
    .map(|rendered| format!("{} {:?}", rendered.path, rendered.place))
    .collect();
    assert!(
        stale.is_empty(),
        "not rendered from the newest results files; run make bench-render: {stale:#?}"
    );
}

#[test]
fn examples_of_the_main_loop_are_copies_of_tested_ones() {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).unwrap();
    let page = read("docs/main-loop.md");
    let sources = ["channel/mod", "executor", "interval", "bridge"]
        .map(|name| read(&format!("crates/mainloop/src/{name}.rs")));
    let documented: String = sources
        .iter()
        .flat_map(|source| source.lines())
        .filter_map(|line| line.trim_start().strip_prefix("///"))
        .map(|line| line.strip_prefix(' ').unwrap_or(line))
        // rustdoc hides lines that begin with `# `.
        .filter(|line| !line.starts_with("# "))
        .map(|line| format!("{line}\n"))
        .collect();
    let examples: Vec<&str> = page
        .split("```rust\n")
        .skip(1)
        .map(|rest| rest.split_once("```").expect("an end").0)
        .collect();
    assert_eq!(examples.len(), sources.len());
    for example in examples {
        assert!(
            documented.contains(example),
            "not in the crate's documentation: {example}"
        );
    }
}
