//! A program that was built without GStreamer reports this when GStreamer is needed. `make unit` runs the test with
//! `--no-default-features`.

use std::process::Command;

fn said(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_threadbare"))
        .args(arguments)
        .output()
        .expect("runs");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let words = said.split_whitespace().filter(|word| *word != "│");
    (output.status.code(), words.collect::<Vec<_>>().join(" "))
}

#[test]
fn gstreamer_streams_are_refused_and_others_run() {
    const NONE: &str = "this program was built without GStreamer (cargo feature `gstreamer`)";
    let directory = tempfile::tempdir().expect("a directory");
    let file = |name: &str, keys: &str| {
        let path = directory.path().join(name);
        let text = format!(
            "[[stream]]\nname = \"a\"\nlisten = \"127.0.0.1:5004\"\ndestination = \"127.0.0.1:9\"\ncodec = \"PCMU\"\n{keys}"
        );
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let plain = file("plain.toml", "");
    let elements = file("elements.toml", "pipeline = \"identity\"\n");
    for (arguments, says) in [
        (&["run", &elements][..], "`pipeline` cannot be \"identity\""),
        (
            &["run", &elements, "--check"],
            "`pipeline` cannot be \"identity\"",
        ),
        (&["run", &plain, "--stock"], "--stock needs GStreamer"),
        (
            &["demo", "--stock", "--streams", "1", "--seconds", "1"],
            "--stock needs GStreamer",
        ),
        (
            &["bench", "receive", "--streams", "1"],
            "this command needs GStreamer",
        ),
        (&["loudness", "x.wav"], "this command needs GStreamer"),
    ] {
        let (status, said) = said(arguments);
        assert_eq!(status, Some(1), "{said}");
        assert!(said.contains(says) && said.contains(NONE), "{said}");
    }
    let (_, said) = said(&["doctor"]);
    assert!(said.contains(NONE) && !said.contains("BAD"), "{said}");
}

#[test]
fn calls_are_relayed_without_gstreamer() {
    let (status, said) = said(&["demo", "--streams", "3", "--seconds", "1"]);
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("Every packet arrived"), "{said}");
}
