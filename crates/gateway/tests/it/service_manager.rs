//! Messages of `threadbare run` to the service manager. In the protocol of sd_notify(3), they are datagrams with lines NAME=VALUE to the
//! socket in NOTIFY_SOCKET. WATCHDOG_USEC contains the watchdog's period.

use std::os::unix::net::UnixDatagram;
use std::path::Path;

use crate::common::{LIMIT, Running, free_port, threadbare};
use nix::sys::signal::Signal;
use threadbare_runtime::clock_now_ns;

struct Service {
    running: Running,
    notified: UnixDatagram,
    folder: tempfile::TempDir,
}

impl Service {
    fn start(config: &str, watchdog_us: Option<u32>) -> Service {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("notify");
        let notified = UnixDatagram::bind(&socket).expect("bound");
        notified.set_read_timeout(Some(LIMIT)).expect("set");
        std::fs::write(file(folder.path()), config).expect("written");
        let mut command = threadbare();
        command.arg("run").arg(file(folder.path()));
        command.env("NOTIFY_SOCKET", &socket);
        command.env_remove("WATCHDOG_PID");
        match watchdog_us {
            Some(time) => command.env("WATCHDOG_USEC", time.to_string()),
            None => command.env_remove("WATCHDOG_USEC"),
        };
        Service {
            running: Running::spawn(command),
            notified,
            folder,
        }
    }

    /// Waits for the next message, and returns its lines.
    fn told(&self) -> Vec<String> {
        let mut room = [0; 4096];
        let len = self.notified.recv(&mut room).expect("a message in time");
        let text = std::str::from_utf8(&room[..len]).expect("UTF-8");
        text.lines().map(str::to_owned).collect()
    }

    /// Waits for the next message that has this line, and returns its lines.
    fn told_with(&self, line: &str) -> Vec<String> {
        loop {
            let told = self.told();
            if told.iter().any(|one| one == line) {
                return told;
            }
        }
    }

    fn reload(&self, config: &str) {
        std::fs::write(file(self.folder.path()), config).expect("written");
        self.running.signal(Signal::SIGHUP);
    }
}

fn file(folder: &Path) -> std::path::PathBuf {
    folder.join("threadbare.toml")
}

fn stream(name: &str) -> String {
    let port = free_port();
    format!(
        "[[stream]]\nname = \"{name}\"\nlisten = \"127.0.0.1:{port}\"\ndestination = \"127.0.0.1:9\"\n"
    )
}

fn status(told: &[String]) -> &str {
    let status = told.iter().find_map(|line| line.strip_prefix("STATUS="));
    status.expect("a status")
}

/// The process sends READY after the start. For a reload, it sends RELOADING with the monotonic time, and then READY, even if
/// the file is refused. It sends STOPPING before the end. Without a watchdog, it sends nothing else.
#[test]
fn start_reload_and_stop_are_reported() {
    let one = stream("one");
    let mut service = Service::start(&one, None);
    let told = service.told();
    assert_eq!(told[0], "READY=1");
    assert_eq!(status(&told), "1 of 1 streams run");

    let before_us = clock_now_ns() / 1000;
    service.reload(&format!("{one}{}", stream("two")));
    let told = service.told();
    assert_eq!(told[0], "RELOADING=1");
    let at_us = told[1].strip_prefix("MONOTONIC_USEC=").expect("a time");
    let at_us = at_us.parse::<u64>().expect("a number");
    assert!((before_us..=clock_now_ns() / 1000).contains(&at_us));
    let told = service.told();
    assert_eq!(told[0], "READY=1");
    assert_eq!(status(&told), "2 of 2 streams run");

    service.reload("[[stream]]\nname = 7\n");
    assert_eq!(service.told()[0], "RELOADING=1");
    let told = service.told();
    assert_eq!(told[0], "READY=1");
    let says =
        "2 of 2 streams run; the configuration file was refused: the file has mistakes: line ";
    assert!(status(&told).starts_with(says), "{told:?}");

    service.running.signal(Signal::SIGTERM);
    let told = service.told();
    assert_eq!(told[0], "STOPPING=1");
    assert_eq!(status(&told), "the process ends, after SIGTERM");
    assert!(service.running.child.wait().expect("ends").success());
}

/// The watchdog gets keep-alives as long as the main thread works and the control thread answers.
#[test]
fn the_watchdog_gets_keep_alives() {
    let config = format!(
        "{}[ng]\nlisten = \"127.0.0.1:0\"\n[interfaces.default]\naddress = \"127.0.0.1\"\n",
        stream("one")
    );
    let service = Service::start(&config, Some(300_000));
    let told = service.told();
    assert_eq!(told[0], "READY=1");
    assert_eq!(status(&told), "1 of 1 streams run, new calls are accepted");
    // The first keep-alive comes without an answer from the control thread, and all later ones need it.
    service.told_with("WATCHDOG=1");
    for _ in 0..3 {
        let told = service.told_with("WATCHDOG=1");
        assert_eq!(status(&told), "1 of 1 streams run, 0 calls");
    }
}
