//! Two copies of this crate in one process, as with an application that links one in and a plugin file of another version:
//! they share GLib's and GStreamer's names, and no memory whose layout is Rust's.

mod common;

use std::path::PathBuf;
use std::sync::LazyLock;

use common::*;

/// The plugin file of this build, made with the library that the test is linked with.
fn plugin_file() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.with_file_name("libgstthreadbare.so")
}

/// Replaces all occurrences by a string of the same length, except before `PoolMeta`.
fn rename(code: &mut [u8], from: &[u8], to: &[u8]) {
    assert_eq!(from.len(), to.len());
    let mut at = 0;
    while let Some(found) = code[at..].windows(from.len()).position(|part| part == from) {
        let end = at + found + from.len();
        if !code[end..].starts_with(b"PoolMeta") {
            code[end - to.len()..end].copy_from_slice(to);
        }
        at = end;
    }
}

/// Loads the file as it is, except for the names of types and elements, of which a process has one each: the elements are
/// called `tz-`. What the two copies have in common under one name stays.
fn load_renamed() {
    let mut code = std::fs::read(plugin_file()).unwrap();
    rename(&mut code, b"Threadbare", b"Threadbarz");
    for factory in ["ts-udpsrc", "ts-queue", "ts-udpsink", "ts-appsink"] {
        let other = factory.replace("ts-", "tz-");
        rename(&mut code, factory.as_bytes(), other.as_bytes());
    }
    let folder = std::env::temp_dir().join(format!("two-copies-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    // GStreamer finds the plugin's description by the name of the file.
    let file = folder.join("libgstthreadbare.so");
    std::fs::write(&file, code).unwrap();
    let loaded = gst::Plugin::load_file(&file);
    std::fs::remove_dir_all(folder).unwrap();
    loaded.unwrap();
}

/// Whether the file as it is was refused, beside the linked-in copy. Then the renamed one is loaded, in this order:
/// GStreamer loads one file of a name.
static IS_REFUSED: LazyLock<bool> = LazyLock::new(|| {
    init();
    let is_refused = gst::Plugin::load_file(plugin_file()).is_err();
    load_renamed();
    is_refused
});

/// Elements of both copies in one pipeline: pools, prefetched memory and announcements of one copy meet the other.
#[test]
fn elements_of_two_copies_hand_each_other_their_buffers() {
    LazyLock::force(&IS_REFUSED);
    for (source, queue, sink) in [
        ("ts-udpsrc", "tz-queue", "ts-udpsink"),
        ("tz-udpsrc", "ts-queue", "tz-udpsink"),
        ("tz-udpsrc", "identity", "ts-udpsink"),
        ("ts-udpsrc", "tz-queue ! ts-queue", "tz-udpsink"),
    ] {
        for _ in 0..2 {
            let receiver = socket();
            // Of one name in both copies.
            let pipe = Pipe::parse(&format!(
                "{source} name=src address=127.0.0.1 port=0 context=both ! {queue} ! {sink} sync=false async=false clients=127.0.0.1:{}",
                receiver.local_addr().unwrap().port()
            ));
            pipe.play();
            let (sender, to) = (socket(), target(&pipe.get("src")));
            // More than a pool keeps: buffers are used again.
            for n in 0..500 {
                sender.send_to(&packet(n), to).unwrap();
                assert_eq!(received(&receiver), packet(n), "{source} {queue} {sink}");
            }
            pipe.assert_no_error();
        }
    }
}

/// An application keeps what it has linked in: a plugin file with the same types is refused, and both go on.
#[test]
fn a_plugin_file_beside_the_linked_in_copy_is_refused() {
    assert!(*IS_REFUSED);
    let receiver = socket();
    let pipe = Pipe::parse(&format!(
        "ts-udpsrc name=src address=127.0.0.1 port=0 ! ts-udpsink sync=false async=false clients=127.0.0.1:{}",
        receiver.local_addr().unwrap().port()
    ));
    pipe.play();
    socket()
        .send_to(&packet(1), target(&pipe.get("src")))
        .unwrap();
    assert_eq!(received(&receiver), packet(1));
}
