//! README, docs and pictures say what the newest results file says, to the byte.

use std::path::Path;

use threadbare_bench::render;
use threadbare_bench::results::Results;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

#[test]
fn readme_docs_and_pictures_are_rendered_from_the_newest_results() {
    let results = Results::newest(&root().join("bench/results")).unwrap();
    let stale: Vec<String> = render::all(results.as_ref())
        .into_iter()
        .filter(|rendered| !rendered.is_current(root()).unwrap())
        .map(|rendered| format!("{} {:?}", rendered.path, rendered.place))
        .collect();
    assert!(
        stale.is_empty(),
        "not what the newest results file says; run make bench-render: {stale:#?}"
    );
}
