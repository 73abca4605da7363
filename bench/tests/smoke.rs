//! Tests that the measuring programs work. They measure a few streams for a fraction of a second, and account for all packets.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use threadbare_bench::ports;
use threadbare_bench::session::{Done, Finished, Report};

const STREAMS: u16 = 5;
const SENDER_SECONDS: &str = "0.6";
/// Number of packets of each stream: 0.6 s at 50 packets a second.
const PACKETS_EACH: u64 = 30;

/// Only one test at a time may look for free ports, because they can be taken until they are bound.
static FINDING_PORTS: Mutex<()> = Mutex::new(());

/// Runs a measured program and the sender, with the protocol of `session`.
fn measure(program: &str, arguments: &[&str]) -> (Finished, Done) {
    let finding = FINDING_PORTS.lock().unwrap();
    let streams = STREAMS.to_string();
    let port = ports::free_range(STREAMS).unwrap().to_string();
    let mut measured = Command::new(program)
        .args([
            "--streams",
            &streams,
            "--port",
            &port,
            "--warmup",
            "0.1",
            "--seconds",
            "0.2",
        ])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(measured.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str(&lines.next().expect("a line").unwrap()).unwrap();
    assert!(matches!(next(), Report::Ready(_)));
    drop(finding);

    let sender = Command::new(env!("CARGO_BIN_EXE_sender"))
        .args([
            "--streams",
            &streams,
            "--port",
            &port,
            "--seconds",
            SENDER_SECONDS,
        ])
        .output()
        .unwrap();
    let finished: Finished = serde_json::from_slice(&sender.stdout).unwrap();
    let mut input = measured.stdin.take().unwrap();
    writeln!(input, "{}", serde_json::to_string(&finished).unwrap()).unwrap();

    let Report::Done(done) = next() else {
        panic!("no figures")
    };
    assert!(measured.wait().unwrap().success());
    (finished, done)
}

fn assert_all_arrived((finished, done): &(Finished, Done)) {
    assert_eq!(finished.sent, u64::from(STREAMS) * PACKETS_EACH);
    assert_eq!((done.arrived, done.lost), (finished.sent, Some(0)));
    assert!(done.window.buffers > 0);
    assert_eq!(
        done.window.allocations_per_buffer, None,
        "allocations are counted only with a preloaded library"
    );
}

#[test]
fn the_hand_written_loop_loses_nothing_on_one_thread() {
    let run = measure(env!("CARGO_BIN_EXE_floor"), &[]);
    assert_all_arrived(&run);
    assert_eq!(run.1.threads, 2, "the main and the loop thread");
}

#[test]
fn stock_pipelines_have_a_thread_each() {
    let description = "udpsrc address=127.0.0.1 port={port} ! fakesink sync=false async=false";
    let run = measure(
        env!("CARGO_BIN_EXE_streams"),
        &["--description", description],
    );
    assert_all_arrived(&run);
    assert_eq!(run.1.threads, 1 + usize::from(STREAMS));
}

/// The measured window must not include start and warm-up, as docs/benchmarks.md promises.
#[test]
fn only_hops_in_the_window_are_timed() {
    let mut measured = Command::new(env!("CARGO_BIN_EXE_streams"))
        .args(["--streams", "1", "--port", "9"])
        .args(["--warmup", "0.5", "--seconds", "0.2"])
        .args(["--no-sender", "--time-hops", "--description"])
        .arg(
            "audiotestsrc is-live=true samplesperbuffer=441 ! queue name=hop ! fakesink async=false",
        )
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(measured.stdout.take().unwrap()).lines();
    let reports = lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap());
    let done = reports.filter_map(|report| match report {
        Report::Done(done) => Some(done),
        _ => None,
    });
    let done = done.last().expect("figures");
    assert!(measured.wait().unwrap().success());
    let hops = done.hops.expect("a hop was marked").hops;
    // There are a hundred buffers a second. The warm-up alone is longer than twice the window.
    assert!(
        hops > 0 && hops < done.arrived / 2,
        "{hops} of {}",
        done.arrived
    );
}

/// Measures each kind that needs no plugin, in one run.
#[test]
fn the_program_media_measures_the_media_plane() {
    let output = Command::new(env!("CARGO_BIN_EXE_media"))
        .args(["--percent", "1", "--rounds", "1", "--warmup", "0.2"])
        .args(["--seconds", "0.2"])
        .env("GST_PLUGIN_PATH", "")
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", output.status);
    let text = String::from_utf8(output.stdout).unwrap();
    let rows = text.lines().skip(1);
    let rows: Vec<threadbare_bench::media::Row> = rows
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(rows.len() >= 10, "{text}");
    for row in rows {
        assert!(row.figures.sent > 0 && row.figures.lost == 0, "{row:?}");
    }
}

#[test]
fn the_program_radio_receives_streams() {
    let output = Command::new(env!("CARGO_BIN_EXE_radio"))
        .args([
            "--kind",
            "stock",
            "--streams",
            "5",
            "--warmup",
            "0.5",
            "--seconds",
            "0.5",
        ])
        .output()
        .unwrap();
    let row: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(row["received_ratio"].as_f64().unwrap() > 0.5, "{row}");
}
