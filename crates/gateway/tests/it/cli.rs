//! Tests of the program on the command line.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

use crate::common::{Running, free_port, knock, receive, rtp, socket, threadbare, wait_until};
use nix::sys::signal::Signal;
use threadbare_rtp::g711;

/// Arguments that select Threadbare's own elements, or GStreamer's.
const ELEMENTS: &[&[&str]] = &[&[], &["--stock"]];

#[test]
fn the_example_configuration_has_no_mistakes() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/gateway.toml");
    let output = threadbare()
        .arg("run")
        .arg(example)
        .arg("--check")
        .output()
        .expect("runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(said.contains("508 streams on 1 contexts"), "{said}");
}

#[test]
fn invalid_configuration_is_reported_with_its_line() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("bad.toml");
    std::fs::write(&path, "[contexts]\nwait = 5000\n[[stream]]\nname = \"a\"\nlisten = \"x\"\ndestination = \"y:1\"\n")
        .expect("written");
    let output = threadbare()
        .arg("run")
        .arg(&path)
        .arg("--check")
        .output()
        .expect("runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for words in [
        "`wait` cannot be 5000",
        "0 to 1000",
        "wait = 5000",
        "`listen` cannot be \"x\"",
        "bad.toml:2",
    ] {
        assert!(said.contains(words), "no {words:?} in\n{said}");
    }
}

#[test]
fn a_missing_file_is_named() {
    let output = threadbare()
        .args(["run", "no-such-file.toml"])
        .output()
        .expect("runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no-such-file.toml"));
}

#[test]
fn help_shows_examples() {
    let output = threadbare().arg("--help").output().expect("runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.contains("threadbare demo --streams 10 --json"),
        "{said}"
    );
    assert!(!said.contains("demo-peer"), "{said}");
}

#[test]
fn demo_receives_all_packets_and_reports_exactly_these_keys() {
    for elements in ELEMENTS {
        check_demo_receives_all_packets_and_reports_exactly_these_keys(elements);
    }
}

fn check_demo_receives_all_packets_and_reports_exactly_these_keys(elements: &[&str]) {
    let output = threadbare()
        .args(["demo", "--streams", "5", "--seconds", "2", "--json"])
        .args(elements)
        .stdin(Stdio::null())
        .output()
        .expect("runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let line = said.lines().last().expect("one line");
    let report: serde_json::Value = serde_json::from_str(line).expect("JSON");
    let keys = "streams, seconds, packets_sent, packets_received, lost, reordered, payload_errors, threads, \
                contexts, cpu_percent, cpu_us_per_packet, latency_ms_p50, latency_ms_p99, latency_ms_max, \
                rss_kib_per_stream, setup_seconds, rtcp_reports_received, byes, rtcp_errors, concealed_ms, starved_percent";
    let mut rest = line;
    for key in keys.split(", ") {
        assert!(report[key].is_number(), "{key} in {line}");
        // The keys must appear in this order.
        rest = rest
            .split_once(&format!("\"{key}\":"))
            .unwrap_or_else(|| panic!("{key} late in {line}"))
            .1;
    }
    assert_eq!(
        report.as_object().map(|all| all.len()),
        Some(keys.split(", ").count()),
        "{line}"
    );
    for (key, value) in [
        ("streams", 5),
        ("packets_sent", 500),
        ("packets_received", 500),
        ("lost", 0),
        // In these calls, GStreamer's own elements have no RTCP.
        ("byes", if elements.is_empty() { 5 } else { 0 }),
    ] {
        assert_eq!(report[key], value, "{key} in {line}");
    }
    assert_eq!(
        (&report["reordered"], &report["payload_errors"]),
        (&0.into(), &0.into()),
        "{line}"
    );
    assert_eq!(
        (&report["rtcp_errors"], &report["concealed_ms"]),
        (&0.into(), &0.into()),
        "{line}"
    );
}

#[test]
fn demo_prints_a_summary_without_json() {
    for elements in ELEMENTS {
        check_demo_prints_a_summary_without_json(elements);
    }
}

fn check_demo_prints_a_summary_without_json(elements: &[&str]) {
    let output = threadbare()
        .args(["demo", "--streams", "3", "--seconds", "1"])
        .args(elements)
        .output()
        .expect("runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.contains(
            "Every packet arrived, in order, with the right content, sequence number and timestamp."
        ),
        "{said}"
    );
    assert!(
        said.contains("150  packets sent by the parties, and 150 received by the other parties"),
        "{said}"
    );
}

#[test]
fn an_interrupted_demo_still_prints_its_report() {
    let child = threadbare()
        .args(["demo", "--streams", "2", "--seconds", "3600", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("runs");
    let pid = nix::unistd::Pid::from_raw(child.id().try_into().expect("a pid"));
    // The context sleeps until packets come. After this many wake-ups, the calls have started.
    wait_until(|| {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task"))
            .into_iter()
            .flatten()
            .flatten();
        let statuses =
            tasks.filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok());
        let mut contexts = statuses.filter(|status| status.contains("ts:demo"));
        contexts.any(|status| {
            let switches = status
                .lines()
                .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            switches.and_then(|count| count.trim().parse().ok()) > Some(50_u32)
        })
    });
    nix::sys::signal::kill(pid, Signal::SIGINT).expect("it runs");
    let output = child.wait_with_output().expect("ends");
    let said = String::from_utf8_lossy(&output.stdout);
    let report: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let packets = |key: &str| report[key].as_u64().expect(key);
    assert!(packets("packets_sent") > 0, "{said}");
    assert_eq!(
        packets("packets_received"),
        packets("packets_sent"),
        "{said}"
    );
    assert_eq!(packets("payload_errors"), 0, "{said}");
    // Without the interruption, each call would have lasted an hour.
    assert!(packets("packets_sent") < 2 * 3600 * 50, "{said}");
    assert!(output.status.success(), "{said}");
}

#[test]
fn bench_measures_elements_side_by_side() {
    let output = threadbare()
        .args([
            "bench",
            "receive",
            "--streams",
            "3",
            "--streams",
            "5",
            "--seconds",
            "1",
            "--contexts",
            "2",
        ])
        .output()
        .expect("runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let lines = said.lines().collect::<Vec<_>>();
    assert!(lines[0].contains("µs/packet"), "{said}");
    let rows: Vec<threadbare_demo::bench::Row> = serde_json::from_str(lines[5]).expect("JSON");
    let brief = rows
        .iter()
        .map(|row| (row.element.as_str(), row.streams, row.contexts, row.lost))
        .collect::<Vec<_>>();
    let expected = [
        ("udpsrc", 3, 0, 0),
        ("ts-udpsrc", 3, 2, 0),
        ("udpsrc", 5, 0, 0),
        ("ts-udpsrc", 5, 2, 0),
    ];
    assert_eq!(brief, expected);
    assert!(
        rows[1].threads < rows[0].threads + 3 && rows[3].threads == rows[1].threads,
        "{said}"
    );
}

#[test]
fn bench_names_a_missing_element() {
    let output = threadbare()
        .args([
            "bench",
            "receive",
            "--streams",
            "1",
            "--element",
            "no-such-source",
        ])
        .output()
        .expect("runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no-such-source"));
}

#[test]
fn sigterm_drains_and_stops() {
    for elements in ELEMENTS {
        println!("with {elements:?}");
        check_sigterm_drains_and_stops(elements);
    }
}

fn check_sigterm_drains_and_stops(elements: &[&str]) {
    let (answer, from) = (socket(), socket());
    let to = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let config = format!(
        "[[stream]]\nname = \"a\"\nlisten = \"{to}\"\ndestination = \"{}\"\ncodec = \"PCMU\"\ncodec-out = \"PCMA\"\n",
        answer.local_addr().expect("bound")
    );
    let (mut running, _directory) = Running::start(&config, elements);
    running.wait_for("running");
    let next = knock(&from, to, &answer, 0, 0, &[0xff; 160]);
    for number in next..next + 20 {
        from.send_to(&rtp(0, number, &[0xff; 160]), to)
            .expect("sent");
    }
    running.signal(Signal::SIGTERM);
    assert_eq!(running.wait_for("draining")["cause"], "SIGTERM");
    running.wait_for("stopped");
    assert!(running.child.wait().expect("ends").success());
    for _ in 0..20 {
        assert_eq!(receive(&answer).payload, [0xd5; 160]);
    }
}

/// Streams without input have nothing to send at the end, so the log has no warning.
#[test]
fn idle_streams_stop_without_a_warning() {
    for elements in ELEMENTS {
        let ports = [free_port(), free_port()];
        let codecs = ["codec = \"auto\"", "codec = \"PCMU\""];
        let stream = |(port, codec)| {
            format!(
                "[[stream]]\nname = \"{port}\"\nlisten = \"127.0.0.1:{port}\"\ndestination = \"127.0.0.1:9\"\n\
                 {codec}\ncodec-out = \"PCMA\"\n"
            )
        };
        let config: String = ports.into_iter().zip(codecs).map(stream).collect();
        let (mut running, _directory) = Running::start(&config, elements);
        running.wait_for("running");
        running.signal(Signal::SIGTERM);
        let (_, log) = running.wait_past("stopped");
        assert!(!log.contains("WARN"), "{elements:?}: {log}");
    }
}

/// Warnings of elements contain the stream's name, and many warnings of one stream do not displace those of others.
#[test]
fn warnings_of_elements_name_their_stream_and_do_not_fill_the_log() {
    let streams = ["flooded", "other"].map(|name| {
        let to = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let keys = format!(
            "[[stream]]\nname = \"{name}\"\nlisten = \"{to}\"\ndestination = \"127.0.0.1:9\"\n\
             codec = \"PCMU\"\ncodec-out = \"PCMA\"\nlatency = 0\n"
        );
        (to, keys)
    });
    let config = streams.each_ref().map(|(_, keys)| keys.as_str()).concat();
    let (mut running, _directory) = Running::start(&config, &["--stock"]);
    running.wait_for("running");
    let from = socket();
    for _ in 0..300 {
        from.send_to(b"not RTP", streams[0].0).expect("sent");
    }
    let mut warnings = vec![running.wait_for("an element of the stream posted a warning")];
    from.send_to(b"not RTP", streams[1].0).expect("sent");
    while warnings.last().is_none_or(|last| last["stream"] != "other") {
        let (warning, between) = running.wait_past("an element of the stream posted a warning");
        assert!(!between.contains("WARN"), "{between}");
        warnings.push(warning);
    }
    assert!(warnings.len() < 100, "{warnings:?}");
    let named = |warning: &&serde_json::Value| {
        let text = warning["warning"].as_str();
        warning["stream"] == "flooded" && text.is_some_and(|text| text.contains("rtppcmudepay"))
    };
    assert_eq!(warnings.iter().filter(named).count(), warnings.len() - 1);
}

#[test]
fn sigint_stops_the_gateway_like_sigterm() {
    for elements in ELEMENTS {
        check_sigint_stops_the_gateway_like_sigterm(elements);
    }
}

fn check_sigint_stops_the_gateway_like_sigterm(elements: &[&str]) {
    let config = format!(
        "[[stream]]\nname = \"a\"\nlisten = \"127.0.0.1:{}\"\ndestination = \"127.0.0.1:9\"\n",
        free_port()
    );
    let (mut running, _directory) = Running::start(&config, elements);
    running.wait_for("running");
    running.signal(Signal::SIGINT);
    assert_eq!(running.wait_for("draining")["cause"], "SIGINT");
    assert!(running.child.wait().expect("ends").success());
}

/// A stream whose port is in use fails. It waits longer after each attempt, and starts once the port is free. The other stream runs all the
/// time.
#[test]
fn a_failing_stream_is_restarted_without_affecting_others() {
    for elements in ELEMENTS {
        check_a_failing_stream_is_restarted_without_affecting_others(elements);
    }
}

fn check_a_failing_stream_is_restarted_without_affecting_others(elements: &[&str]) {
    let (answer, from, taken) = (socket(), socket(), socket());
    let bad = taken.local_addr().expect("bound");
    let good = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let destination = answer.local_addr().expect("bound");
    let config = format!(
        "[restart]\nfirst = 10\nmax = 40\n\
         [[stream]]\nname = \"bad\"\nlisten = \"{bad}\"\ndestination = \"{destination}\"\n\
         [[stream]]\nname = \"good\"\nlisten = \"{good}\"\ndestination = \"{destination}\"\n"
    );
    let (mut running, _directory) = Running::start(&config, elements);
    let mut waits = Vec::new();
    for _ in 0..4 {
        let failure = running.wait_for("the stream failed");
        assert_eq!(failure["stream"], "bad");
        waits.push(failure["retry_ms"].as_u64());
    }
    assert_eq!(waits, [Some(10), Some(20), Some(40), Some(40)]);
    knock(&from, good, &answer, 0, 1, &[1; 160]);
    drop(taken);
    knock(&from, bad, &answer, 0, 2, &[2; 160]);
    running.signal(Signal::SIGTERM);
    running.wait_for("stopped");
}

/// Whatever packets unknown senders send, no stream stops, and the log does not grow much.
#[test]
fn garbage_stops_no_stream_and_fills_no_log() {
    for elements in ELEMENTS {
        check_garbage_stops_no_stream_and_fills_no_log(elements);
    }
}

fn check_garbage_stops_no_stream_and_fills_no_log(elements: &[&str]) {
    let (answer, from) = (socket(), socket());
    let destination = answer.local_addr().expect("bound");
    let codecs = ["PCMU", "PCMA", "L16/8000/1", "Opus", "auto"];
    let ports = codecs.map(|_| SocketAddr::from(([127, 0, 0, 1], free_port())));
    let mut config = "[contexts]\nwait = 1\n".to_owned();
    if !elements.is_empty() {
        // After so many invalid packets, GStreamer's jitter buffer does not recover a stream, so it is switched off.
        config += "[defaults]\nlatency = 0\n";
    }
    for (codec, listen) in codecs.iter().zip(ports) {
        config += &format!(
            "[[stream]]\nname = \"{codec}\"\nlisten = \"{listen}\"\ndestination = \"{destination}\"\n\
             codec = \"{codec}\"\ncodec-out = \"PCMU\"\nptime = 10\n"
        );
    }
    let (mut running, _directory) = Running::start(&config, elements);
    running.wait_for("running");
    for to in ports {
        for number in 0..200 {
            // The packets have lengths, versions, CSRC counts, extensions and paddings of all kinds, some of them wrong.
            let garbage = (0..number)
                .map(|n| (n * 7 + number * 31) as u8)
                .collect::<Vec<_>>();
            from.send_to(&garbage, to).expect("sent");
            from.send_to(&rtp(0, number, &garbage), to).expect("sent");
            let mut lies = rtp(0, number, &garbage);
            lies[0] = 0x80 | (number % 0x40) as u8;
            from.send_to(&lies, to).expect("sent");
        }
    }
    // The payload is audible in all codecs except Opus, where it is one frame of silence. Each stream gets the payload type of its codec.
    for (to, payload_type) in ports.into_iter().zip([0, 8, 96, 96, 0]) {
        let payload = if to == ports[3] {
            vec![0xf8, 0xff, 0xfe]
        } else {
            vec![0x11; 160]
        };
        knock(&from, to, &answer, payload_type, 1000, &payload);
    }
    running.signal(Signal::SIGTERM);
    let (_, log) = running.wait_past("stopped");
    assert!(!log.contains("the stream failed"), "{log}");
    assert!(log.lines().count() < 300, "{log}");
}

/// Every command that prints ends without an error if nothing reads its output, as `... | head` expects.
#[test]
fn output_into_a_closed_pipe_ends_quietly() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("gateway.toml");
    std::fs::write(
        &config,
        "[[stream]]\nname = \"a\"\nlisten = \"127.0.0.1:5004\"\ndestination = \"127.0.0.1:9\"\n",
    )
    .expect("written");
    let tone = directory.path().join("tone.wav");
    let made = std::process::Command::new("ffmpeg")
        .args(["-v", "error", "-nostdin", "-f", "lavfi", "-i", "sine=d=1"])
        .arg(&tone)
        .status();
    assert!(made.expect("ffmpeg").success());
    let (config, tone) = (config.display().to_string(), tone.display().to_string());
    let commands: &[&[&str]] = &[
        &["run", &config, "--check"],
        &["run", &config, "--check", "--print"],
        &["loudness", &tone],
        &["loudness", &tone, "--json"],
        &["doctor"],
        &["demo", "--streams", "1", "--seconds", "1"],
        &["demo", "--streams", "1", "--seconds", "1", "--json"],
        &["--help"],
    ];
    for arguments in commands {
        for is_stderr_closed in [false, true] {
            let (reader, writer) = std::io::pipe().expect("a pipe");
            drop(reader);
            let mut command = threadbare();
            if is_stderr_closed {
                command.stderr(writer.try_clone().expect("a descriptor"));
            }
            let output = command
                .args(*arguments)
                .stdout(writer)
                .output()
                .expect("runs");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(!said.contains("panicked"), "{arguments:?}: {said}");
            assert_ne!(output.status.code(), Some(101), "{arguments:?}: {said}");
            assert!(
                output.status.success() || arguments[0] == "doctor",
                "{arguments:?}: {said}"
            );
        }
    }
}

/// The error text contains the reason, but no source positions.
#[test]
fn failures_are_reported_without_source_locations() {
    let taken = socket();
    let bad = taken.local_addr().expect("bound");
    let config =
        format!("[[stream]]\nname = \"bad\"\nlisten = \"{bad}\"\ndestination = \"127.0.0.1:9\"\n");
    let (mut running, _directory) = Running::start(&config, &[]);
    let (failure, before) = running.wait_past("the stream failed");
    let reason = failure["reason"].as_str().expect("a text");
    assert!(reason.contains("Address already in use"), "{reason}");
    assert!(reason.contains(&bad.port().to_string()), "{reason}");
    for text in [reason, &before] {
        assert!(!text.contains(".rs") && !text.contains("crates/"), "{text}");
    }
}

#[test]
fn doctor_names_missing_packages() {
    let directory = tempfile::tempdir().expect("a directory");
    let output = threadbare()
        .arg("doctor")
        // This is a GStreamer without any plugin and with its own registry.
        .env("GST_PLUGIN_SYSTEM_PATH_1_0", directory.path())
        .env("GST_REGISTRY_1_0", directory.path().join("registry"))
        .env_remove("GST_PLUGIN_PATH")
        .env_remove("GST_PLUGIN_PATH_1_0")
        .output()
        .expect("runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for words in [
        "mulawdec",
        "sudo apt install gstreamer1.0-plugins-good",
        "sudo apt install gstreamer1.0-plugins-base",
    ] {
        assert!(said.contains(words), "no {words:?} in\n{said}");
    }
}

#[test]
fn doctor_states_why_a_plugin_does_not_load() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("libgstthreadbare.so"), "no plugin").expect("written");
    let output = threadbare()
        .arg("doctor")
        .env("GST_PLUGIN_PATH", directory.path())
        .env("GST_REGISTRY_1_0", directory.path().join("registry"))
        .output()
        .expect("runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("libgstthreadbare.so cannot be loaded"),
        "{said}"
    );
}

/// The JSON has the same findings as the text, each with its check and grade. The exit status shows whether all checks passed.
#[test]
fn doctor_prints_json_and_checks_a_configuration() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("gateway.toml");
    let taken = socket();
    let port = taken.local_addr().expect("bound").port();
    let text = format!(
        "[[stream]]\nname = \"a\"\nlisten = \"127.0.0.1:{port}\"\ndestination = \"127.0.0.1:9\"\nrtcp = \"mux\"\n"
    );
    std::fs::write(&config, text).expect("written");
    let output = threadbare()
        .args(["doctor", "--json", "--config"])
        .arg(&config)
        .output()
        .expect("runs");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["works"], output.status.success(), "{report}");
    let findings = report["findings"].as_array().expect("a list");
    let of = |check: &str| {
        let mut of = findings.iter().filter(|one| one["check"] == check);
        of.next().unwrap_or_else(|| panic!("{check} in {report}"))
    };
    for check in [
        "net.core.rmem_max",
        "net.core.wmem_max",
        "net.core.somaxconn",
        "net.ipv4.ip_local_port_range",
        "open files",
        "CPU governor",
        "clock source",
        "time",
    ] {
        let found = of(check);
        assert_eq!(
            found["mend"].is_string(),
            found["grade"] != "good",
            "{found}"
        );
    }
    let ports = of("ports in use");
    assert_eq!(ports["grade"], "note", "{ports}");
    let what = ports["what"].as_str().expect("a text");
    assert!(what.ends_with(&format!("program uses: {port}")), "{what}");
}

/// The network loses, delays and reorders packets. The gateway sends a packet in place of each lost one, and its reports are correct.
#[test]
fn demo_conceals_network_losses() {
    let output = threadbare()
        .args(["demo", "--streams", "10", "--seconds", "8", "--json"])
        .args([
            "--loss",
            "3",
            "--jitter",
            "15",
            "--reorder",
            "1",
            "--seed",
            "5",
        ])
        .output()
        .expect("runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    let report: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let count = |key: &str| report[key].as_u64().expect("a count");
    assert_eq!(count("packets_received"), 4000, "{said}");
    assert_eq!(count("lost") + count("rtcp_errors"), 0, "{said}");
    // About 120 packets of 20 ms are lost.
    assert!(count("concealed_ms") >= 1000, "{said}");
    // The first report comes after at most 3.1 s (RFC 3550, section 6.3.1).
    assert!(count("rtcp_reports_received") >= 10, "{said}");
}

/// Streams need no threads of their own, even with jitter buffer and RTCP.
#[test]
fn threads_do_not_grow_with_streams() {
    let threads_of = |streams: u16| {
        let answer = socket();
        let destination = answer.local_addr().expect("bound");
        let ports = (0..streams).map(|_| free_port()).collect::<Vec<_>>();
        let mut config = "[defaults]\nlatency = 40\nrtcp = true\n".to_owned();
        for port in &ports {
            config += &format!(
                "[[stream]]\nname = \"{port}\"\nlisten = \"127.0.0.1:{port}\"\ndestination = \"{destination}\"\n\
                 codec = \"PCMU\"\ncodec-out = \"PCMA\"\n"
            );
        }
        let (mut running, _directory) = Running::start(&config, &[]);
        running.wait_for("running");
        for port in ports {
            let to = SocketAddr::from(([127, 0, 0, 1], port));
            knock(&socket(), to, &answer, 0, 0, &[0xff; 160]);
        }
        let tasks = std::fs::read_dir(format!("/proc/{}/task", running.child.id()));
        tasks.expect("it runs").count()
    };
    assert_eq!(threads_of(1), threads_of(20));
}

#[test]
fn sigusr1_and_the_end_report_the_counters() {
    let (answer, from) = (socket(), socket());
    let to = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let config = format!(
        "[[stream]]\nname = \"a\"\nlisten = \"{to}\"\ndestination = \"{}\"\ncodec = \"PCMU\"\ncodec-out = \"PCMA\"\n",
        answer.local_addr().expect("bound")
    );
    let (mut running, _directory) = Running::start(&config, &[]);
    running.wait_for("running");
    let next = knock(&from, to, &answer, 0, 0, &[0xff; 160]);
    // Two packets are missing. The gateway notices this when a later packet arrives.
    for number in [next, next + 3] {
        from.send_to(&rtp(0, number, &[0xff; 160]), to)
            .expect("sent");
    }
    for _ in 0..4 {
        receive(&answer);
    }
    running.signal(Signal::SIGUSR1);
    for _ in 0..2 {
        let stats = running.wait_for("statistics");
        assert_eq!(stats["stream"], "a");
        let figures = ["lost", "concealed_ms", "late", "rtcp_errors"].map(|key| &stats[key]);
        assert_eq!(figures, [2, 40, 0, 0], "{stats}");
        running.signal(Signal::SIGTERM);
    }
    running.wait_for("stopped");
}

#[test]
fn a_running_gateway_can_be_inspected() {
    let folder = tempfile::tempdir().expect("a folder");
    let to = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let config = format!(
        "[contexts]\nwait = 5\n[[stream]]\nname = \"a\"\nlisten = \"{to}\"\ndestination = \"127.0.0.1:9\"\ncodec = \"PCMU\"\ncodec-out = \"PCMA\"\n"
    );
    let inspect = |arguments: &[&str]| {
        threadbare()
            .args(["inspect", "contexts"])
            .args(arguments)
            .env("XDG_RUNTIME_DIR", folder.path())
            .output()
            .expect("it runs")
    };
    let nobody = inspect(&[]);
    assert!(!nobody.status.success());
    assert!(String::from_utf8_lossy(&nobody.stderr).contains("GST_TRACERS=ts-contexts"));

    let environment = [("XDG_RUNTIME_DIR", folder.path())];
    let (mut running, _directory) = Running::start_with(&config, &[], &environment);
    running.wait_for("running");
    let told = inspect(&["--json"]);
    let told: serde_json::Value = serde_json::from_slice(&told.stdout).expect("JSON");
    assert_eq!(told[0]["wait_ms"], 5, "{told}");
    assert_eq!(told[0]["threads"][0]["blocked"], serde_json::json!([]));
    // The context has a single element, which carries all its streams.
    let elements = &told[0]["threads"][0]["elements"];
    assert_eq!(
        *elements,
        serde_json::json!(["calls of gateway-0"]),
        "{told}"
    );
    let shown = inspect(&["--pid", &running.child.id().to_string(), "--elements"]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(
        shown.contains("slices of 5 ms") && shown.contains("% busy"),
        "{shown}"
    );
    let unknown = inspect(&["--pid", "1"]);
    assert!(!unknown.status.success());
    running.signal(Signal::SIGTERM);
    running.wait_for("stopped");
}

/// Rejected packets are counted by reason, and the statistics state when the last ones came.
#[test]
fn statistics_separate_garbage_and_strangers() {
    let answer = socket();
    let listen = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let destination = answer.local_addr().expect("bound");
    let (mut running, _directory) = Running::start(
        &format!(
            "[[stream]]\nname = \"a\"\nlisten = \"{listen}\"\ndestination = \"{destination}\"\ncodec = \"PCMU\"\n\
             codec-out = \"PCMA\"\nrtcp = false\nlatency = 0\n\
             [[stream]]\nname = \"idle\"\nlisten = \"127.0.0.1:{}\"\ndestination = \"{destination}\"\nrtcp = false\n",
            free_port()
        ),
        &[],
    );
    running.wait_for("running");
    let (peer, stranger) = (socket(), socket());
    for number in 0..4 {
        peer.send_to(&rtp(0, number, &[0x11; 160]), listen)
            .expect("sent");
    }
    receive(&answer);
    for garbage in [&[0x80][..], &[0x40; 100], &[0x80; 3000]] {
        peer.send_to(garbage, listen).expect("sent");
    }
    peer.send_to(&rtp(3, 4, &[0x11; 33]), listen).expect("sent");
    stranger
        .send_to(&rtp(0, 5, &[0x22; 160]), listen)
        .expect("sent");
    // When this packet has passed, the gateway has read all earlier ones.
    peer.send_to(&rtp(0, 5, &[0x33; 160]), listen)
        .expect("sent");
    while receive(&answer).payload != [g711::ULAW_TO_ALAW[0x33]; 160] {}
    running.signal(Signal::SIGUSR1);
    let stats = running.wait_for("statistics");
    let counted = [
        "received",
        "malformed",
        "truncated",
        "strangers",
        "other_payload_types",
        "sent",
        "send_errors",
    ]
    .map(|key| stats[key].as_u64().expect(key));
    assert_eq!(counted, [6, 2, 1, 1, 1, 5, 0], "{stats}");
    assert!(stats["since_packet_ms"].as_u64().is_some(), "{stats}");
    let idle = running.wait_for("statistics");
    assert_eq!(
        (&idle["received"], idle.get("since_packet_ms")),
        (&0.into(), None),
        "{idle}"
    );
}

#[test]
fn failed_start_is_not_reported_as_running() {
    let taken = [socket(), socket()];
    let ports = taken
        .each_ref()
        .map(|socket| socket.local_addr().expect("bound"));
    let stream = |name: &str, listen: SocketAddr| {
        format!(
            "[[stream]]\nname = \"{name}\"\nlisten = \"{listen}\"\ndestination = \"127.0.0.1:9\"\nrtcp = false\n"
        )
    };
    let both = ports.map(|port| stream(&port.to_string(), port)).concat();
    let (mut running, _directory) = Running::start(&both, &[]);
    let said = running.wait_for("no stream could be started; retrying");
    assert_eq!(said["streams"], 2);
    let free = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let one = stream("taken", ports[0]) + &stream("free", free);
    let (mut running, _directory) = Running::start(&one, &[]);
    let said = running.wait_for("running");
    assert_eq!(
        (&said["streams"], &said["failed"]),
        (&1.into(), &1.into()),
        "{said}"
    );
    running.signal(Signal::SIGUSR1);
    assert_eq!(
        running.wait_for("the stream is not running; it waits for its restart")["stream"],
        "taken"
    );
}

/// The statistics list all streams, even if there are many. Streams send from the sockets that they listen on, so that no
/// stream takes another one's port.
#[test]
fn statistics_cover_all_streams() {
    const STREAMS: usize = 210;
    // No other test uses this address, so the gateway finds its ports free.
    let reserved = (0..STREAMS)
        .map(|_| std::net::UdpSocket::bind("127.21.0.1:0").expect("a free port"))
        .collect::<Vec<_>>();
    let streams = reserved.iter().map(|socket| {
        let listen = socket.local_addr().expect("bound");
        format!(
            "[[stream]]\nname = \"{listen}\"\nlisten = \"{listen}\"\ndestination = \"127.0.0.1:9\"\nrtcp = false\n\
             codec = \"PCMU\"\ncodec-out = \"PCMA\"\n"
        )
    });
    let config = streams.collect::<String>();
    drop(reserved);
    let (mut running, _directory) = Running::start(&config, &[]);
    running.wait_for("running");
    running.signal(Signal::SIGUSR1);
    let mut names = std::collections::BTreeSet::new();
    while names.len() < STREAMS {
        let stats = running.wait_for("statistics");
        names.insert(stats["stream"].as_str().expect("a name").to_owned());
    }
}
