//! `threadbare top` in a terminal, and `threadbare events`: the operator's view of a running gateway.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::common::http::Relay;
use crate::common::{LIMIT, Running, free_port};
use nix::pty::{Winsize, openpty};
use nix::sys::signal::Signal;
use serde_json::Value;

/// Starts a gateway with two streams without senders.
fn gateway() -> (Relay, tempfile::TempDir) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("gateway.toml");
    let mut text = "[http]\nlisten = \"127.0.0.1:0\"\n[ng]\nlisten = \"127.0.0.1:0\"\n[alarms.no-packets]\nhold = 1\n".to_owned();
    for name in ["news", "sport"] {
        let port = free_port();
        text += &format!(
            "[[stream]]\nname = \"{name}\"\nlisten = \"127.0.0.1:{port}\"\ncodec = \"PCMU\"\nrtcp = false\n"
        );
    }
    std::fs::write(&path, text).expect("written");
    let mut command = crate::common::threadbare();
    command.arg("run").arg(&path);
    (Relay::of(Running::spawn(command)), directory)
}

/// A program in a terminal of 120 x 40 characters.
struct Terminal {
    child: Child,
    keys: std::fs::File,
    output: Receiver<Vec<u8>>,
    screen: vt100::Parser,
}

const SIZE: Winsize = Winsize {
    ws_row: 40,
    ws_col: 120,
    ws_xpixel: 0,
    ws_ypixel: 0,
};

impl Terminal {
    fn start(mut command: Command) -> Terminal {
        let pty = openpty(&SIZE, None).expect("a terminal");
        let end = || -> OwnedFd { pty.slave.try_clone().expect("a descriptor") };
        command.stdin(end()).stdout(end()).stderr(end());
        command.env("TERM", "xterm-256color");
        let child = command.spawn().expect("started");
        // Close this process's copies of the terminal, so that only the child has it open.
        drop(command);
        drop(pty.slave);
        let mut reader = std::fs::File::from(pty.master.try_clone().expect("a descriptor"));
        let (tell, output) = channel();
        std::thread::spawn(move || {
            let mut room = [0; 4096];
            // An error means that the terminal is closed.
            while let Ok(count @ 1..) = reader.read(&mut room) {
                if tell.send(room[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Terminal {
            child,
            keys: pty.master.into(),
            output,
            screen: vt100::Parser::new(SIZE.ws_row, SIZE.ws_col, 0),
        }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("taken");
    }

    /// Reads until the screen has all of these texts.
    fn wait_for(&mut self, texts: &[&str]) -> String {
        let end = Instant::now() + LIMIT;
        loop {
            let screen = self.screen.screen().contents();
            if texts.iter().all(|text| screen.contains(text)) {
                return screen;
            }
            let left = end.saturating_duration_since(Instant::now());
            let more = self.output.recv_timeout(left);
            let Ok(more) = more else {
                panic!("no {texts:?} in\n{screen}");
            };
            self.screen.process(&more);
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn top_shows_streams_threads_and_one_stream_in_a_terminal() {
    let (relay, _directory) = gateway();
    let mut command = crate::common::threadbare();
    command.args(["top", "--http", &format!("http://{}", relay.http)]);
    let mut terminal = Terminal::start(command);
    let screen = terminal.wait_for(&[
        "2 waiting",
        "2 alarms",
        "news",
        "sport",
        "gateway-0",
        "late",
        "no-packets",
    ]);
    // Streams whose states are equally good keep the order of the file.
    assert!(screen.find("news") < screen.find("sport"), "{screen}");
    terminal.press("\x1b[B\r");
    terminal.wait_for(&["sport: short-term loudness", "packets_lost", "Esc back"]);
    terminal.press("\x1b");
    terminal.wait_for(&["Streams, worst first"]);
    terminal.press("s");
    terminal.wait_for(&["Streams, as in the file"]);
    // After an alarm is acknowledged, the screen must change.
    let path = "/v1/streams/news/alarms/no-packets/acknowledge";
    assert_eq!(relay.request("POST", path, "", b"").status, 204);
    terminal.wait_for(&["1 alarm ", "(known)"]);
    terminal.press("q");
    let status = terminal.child.wait().expect("an end");
    assert!(status.success(), "{status}");
}

#[test]
fn top_reports_a_missing_terminal_or_gateway() {
    let port = free_port();
    let said = |mut command: Command| {
        let output = command.output().expect("an end");
        assert!(!output.status.success());
        String::from_utf8(output.stderr).expect("UTF-8")
    };
    let mut command = crate::common::threadbare();
    command.args(["top", "--http", &format!("http://127.0.0.1:{port}")]);
    assert!(said(command).contains("needs a terminal"));
    let mut command = crate::common::threadbare();
    command.args(["top", "--http", &format!("http://127.0.0.1:{port}")]);
    let mut terminal = Terminal::start(command);
    terminal.wait_for(&["does not answer"]);
}

#[test]
fn events_follows_alarms_as_lines_of_json() {
    let (mut relay, directory) = gateway();
    let mut command = crate::common::threadbare();
    command.args(["events", "--http", &format!("http://{}", relay.http)]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("started");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let (tell, told) = channel();
    std::thread::spawn(move || {
        lines
            .map_while(Result::ok)
            .try_for_each(|line| tell.send(line))
    });
    // The program may miss alarms that were raised before it was connected. Removing and adding the rule raises them again.
    let path = directory.path().join("gateway.toml");
    let text = std::fs::read_to_string(&path).expect("written");
    let mut seen = std::collections::BTreeSet::new();
    let end = Instant::now() + LIMIT;
    for is_on in [false, true].into_iter().cycle() {
        assert!(Instant::now() < end, "only {seen:?}");
        let rule = format!("hold = 1\nenabled = {is_on}\n");
        std::fs::write(&path, text.replace("hold = 1\n", &rule)).expect("written");
        relay.running.signal(Signal::SIGHUP);
        relay.running.wait_for("reloaded");
        while let Ok(line) = told.recv_timeout(Duration::from_secs(2)) {
            let event: Value = serde_json::from_str(&line).expect("JSON");
            assert_eq!(
                (&event["alarm"], event["unix_ms"].is_u64()),
                (&"no-packets".into(), true)
            );
            let text = |name: &str| event[name].as_str().expect("a text").to_owned();
            seen.insert((text("event"), text("stream")));
        }
        if seen.len() == 4 {
            break;
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    let due = ["alarm", "alarm-ended"]
        .map(|event| ["news", "sport"].map(|stream| (event.to_owned(), stream.to_owned())));
    assert!(due.iter().flatten().eq(seen.iter()), "{seen:?}");
}
