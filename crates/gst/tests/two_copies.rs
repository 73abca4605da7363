//! Two copies of this crate in one process: an application links one in and loads a plugin file of another version. They share
//! GLib's and GStreamer's names, but no memory whose layout is Rust's.

#[path = "it/common/mod.rs"]
mod common;

use std::path::PathBuf;
use std::sync::LazyLock;

use common::*;

/// Returns the plugin file of this build, built with the library that the test links.
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

/// Loads the file with other names for its types and elements, because these must be unique in a process. The elements are called
/// `tz-`. Everything else that both copies share under one name stays.
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

/// Whether the unchanged file was refused next to the linked-in copy. The renamed file is loaded afterwards, because GStreamer
/// loads only one file of a name.
static IS_REFUSED: LazyLock<bool> = LazyLock::new(|| {
    init();
    let is_refused = gst::Plugin::load_file(plugin_file()).is_err();
    load_renamed();
    is_refused
});

/// Pipelines have elements of both copies, so pools, prefetched memory and announcements of one copy reach the other.
#[test]
fn elements_of_two_copies_of_the_plugin_exchange_buffers() {
    LazyLock::force(&IS_REFUSED);
    for (source, queue, sink) in [
        ("ts-udpsrc", "tz-queue", "ts-udpsink"),
        ("tz-udpsrc", "ts-queue", "tz-udpsink"),
        ("tz-udpsrc", "identity", "ts-udpsink"),
        ("ts-udpsrc", "tz-queue ! ts-queue", "tz-udpsink"),
    ] {
        for _ in 0..2 {
            let receiver = socket();
            // Both copies use the same name.
            let pipe = Pipe::parse(&format!(
                "{source} name=src address=127.0.0.1 port=0 context=both ! {queue} ! {sink} sync=false async=false clients=127.0.0.1:{}",
                receiver.local_addr().unwrap().port()
            ));
            pipe.play();
            let (sender, to) = (socket(), target(&pipe.get("src")));
            // More buffers than a pool has, so they are reused.
            for n in 0..500 {
                sender.send_to(&packet(n), to).unwrap();
                assert_eq!(received(&receiver), packet(n), "{source} {queue} {sink}");
            }
            pipe.assert_no_error();
        }
    }
}

/// An application uses its linked-in copy: a plugin file with the same types is refused, and both continue.
#[test]
fn plugin_file_is_refused_next_to_a_linked_copy() {
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
