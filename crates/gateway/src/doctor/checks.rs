//! Judges the readings of a machine. The functions are pure: they get readings, return findings, and use no file, clock or socket.

use std::net::IpAddr;

use super::finding::{Finding, bad, good, note};
use super::needs::Needs;
use super::readings::Readings;
use threadbare_config::PortSpan;

/// Returns the findings, one for each check, in the order of output.
pub(super) fn findings(readings: &Readings, needs: &Needs) -> Vec<Finding> {
    vec![
        descriptors(readings.descriptors, needs.descriptors),
        buffers("net.core.rmem_max", "receive", readings.rmem_max),
        buffers("net.core.wmem_max", "send", readings.wmem_max),
        backlog(readings.somaxconn),
        handed_out(readings, &needs.ports),
        in_use(readings, &needs.ports),
        governor(&readings.governors),
        clock_source(readings),
        time(readings.is_synchronized),
    ]
}

fn descriptors(limits: Option<(u64, u64)>, needed: Option<u64>) -> Finding {
    const CHECK: &str = "open files";
    let Some((soft, hard)) = limits else {
        let what = "cannot read the limit of open files".to_owned();
        return note(CHECK, what, "ulimit -n".to_owned());
    };
    let what = format!("open files: {soft}, which Threadbare raises to {hard}");
    let wanted = needed.unwrap_or(DESCRIPTORS_GOOD);
    let mend = format!(
        "LimitNOFILE={0} in the unit, or: echo '* - nofile {0}' | sudo tee /etc/security/limits.d/threadbare.conf, and log in again",
        wanted
            .next_power_of_two()
            .max(DESCRIPTORS_GOOD.next_power_of_two())
    );
    match needed {
        _ if hard >= wanted => good(CHECK, what),
        Some(needed) => bad(
            CHECK,
            format!("{what}; this configuration may need {needed}"),
            mend,
        ),
        None => note(
            CHECK,
            format!("{what}: enough for about {} streams", hard / 3),
            mend,
        ),
    }
}

fn buffers(setting: &'static str, direction: &str, bytes: Option<u64>) -> Finding {
    let Some(bytes) = bytes else {
        return unknown(setting);
    };
    let what = format!(
        "socket {direction} buffers: up to {} KiB ({setting})",
        bytes / 1024
    );
    if bytes >= BUFFER_BYTES_GOOD {
        good(setting, what)
    } else {
        note(
            setting,
            format!("{what}; a burst on many streams may overflow them"),
            format!("sudo sysctl -w {setting}={BUFFER_BYTES_GOOD}"),
        )
    }
}

fn backlog(connections: Option<u64>) -> Finding {
    const CHECK: &str = "net.core.somaxconn";
    let Some(connections) = connections else {
        return unknown(CHECK);
    };
    let what = format!("connections that can wait for acceptance: {connections} ({CHECK})");
    if connections >= BACKLOG_GOOD {
        good(CHECK, what)
    } else {
        note(
            CHECK,
            format!(
                "{what}; a burst of connections (HTTP, the ng protocol over TCP) may be refused"
            ),
            format!("sudo sysctl -w {CHECK}={BACKLOG_GOOD}"),
        )
    }
}

fn unknown(setting: &'static str) -> Finding {
    let mend = format!("containers often hide this setting, so run on the host: sysctl {setting}");
    note(setting, format!("cannot read the setting {setting}"), mend)
}

/// Checks that the kernel does not assign media ports to programs that ask for any port. If another program holds a media port,
/// a call that draws this port fails.
fn handed_out(readings: &Readings, ports: &[(IpAddr, PortSpan)]) -> Finding {
    const CHECK: &str = "net.ipv4.ip_local_port_range";
    let Some(handed_out) = readings.handed_out else {
        return unknown(CHECK);
    };
    let is_kept = |span: &PortSpan| {
        let mut both = span.first.max(handed_out.first)..=span.last.min(handed_out.last);
        both.all(|port| {
            let mut reserved = readings.reserved.iter();
            reserved.any(|one| one.first <= port && port <= one.last)
        })
    };
    let mut open: Vec<PortSpan> = ports.iter().map(|(_, span)| *span).collect();
    open.retain(|span| !is_kept(span));
    open.sort_by_key(|span| (span.first, span.last));
    open.dedup();
    if open.is_empty() {
        return good(
            CHECK,
            format!("media ports: the kernel gives none of them to other programs ({CHECK})"),
        );
    }
    let what = format!(
        "the kernel gives ports {handed_out} to any program, including media ports: {}",
        list(&open)
    );
    let all = [&readings.reserved[..], &open].concat();
    let mend = format!(
        "sudo sysctl -w net.ipv4.ip_local_reserved_ports={}",
        list(&all).replace(", ", ",")
    );
    note(CHECK, what, mend)
}

/// Checks for media ports in use. The grade is never worse than a note, because the user may be a running Threadbare.
fn in_use(readings: &Readings, ports: &[(IpAddr, PortSpan)]) -> Finding {
    const CHECK: &str = "ports in use";
    let is_taken = |(ip, span): &(IpAddr, PortSpan)| {
        let ports = span.first..=span.last;
        let same = |other: IpAddr| other == *ip || other.is_unspecified() || ip.is_unspecified();
        let bound = readings
            .bound
            .iter()
            .filter(move |one| ports.contains(&one.port()));
        bound
            .filter(|one| same(one.ip()))
            .map(|one| one.port())
            .collect::<Vec<_>>()
    };
    let mut taken: Vec<u16> = ports.iter().flat_map(is_taken).collect();
    taken.sort_unstable();
    taken.dedup();
    let (Some(first), Some(last)) = (taken.first(), taken.last()) else {
        return good(CHECK, "media ports: all are free".to_owned());
    };
    let shown: Vec<_> = taken.iter().take(PORTS_SHOWN).map(u16::to_string).collect();
    let more = match taken.len() - shown.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    note(
        CHECK,
        format!(
            "media ports that another program uses: {}{more}",
            shown.join(", ")
        ),
        format!(
            "to see the program (it may be a running Threadbare): sudo ss -ulnp 'sport >= {first} and sport <= {last}'"
        ),
    )
}

fn governor(governors: &[String]) -> Finding {
    const CHECK: &str = "CPU governor";
    let slow: Vec<_> = governors
        .iter()
        .filter(|one| *one != "performance")
        .collect();
    let Some(first) = slow.first() else {
        let what = if governors.is_empty() {
            "CPU frequency: the system has no setting for it"
        } else {
            "CPU frequency: performance"
        };
        return good(CHECK, what.to_owned());
    };
    note(
        CHECK,
        format!(
            "CPU frequency: {first} on {} of {} processors; they are slow at the start of each slice",
            slow.len(),
            governors.len()
        ),
        "echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"
            .to_owned(),
    )
}

/// Checks the clock source, because the time is read for each packet. Fast sources are read in the kernel's vDSO, without a
/// system call.
fn clock_source(readings: &Readings) -> Finding {
    const CHECK: &str = "clock source";
    const FILE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let is_fast = |name: &String| CLOCKS_FAST.contains(&name.as_str());
    match &readings.clock_source {
        None => {
            let mend = format!("run on the host: cat {FILE}");
            note(CHECK, "cannot read the clock source".to_owned(), mend)
        }
        Some(source) if is_fast(source) => good(CHECK, format!("clock source: {source}")),
        Some(source) => {
            let mend = match readings.clock_sources.iter().find(|name| is_fast(name)) {
                Some(better) => format!("echo {better} | sudo tee {FILE}"),
                None => "boot with tsc=reliable if the processors' counters agree (dmesg | grep -i tsc), or ask the virtual machine's operator".to_owned(),
            };
            note(
                CHECK,
                format!(
                    "clock source: {source}, which needs a system call or a slow register for each reading"
                ),
                mend,
            )
        }
    }
}

fn time(is_synchronized: Option<bool>) -> Finding {
    const CHECK: &str = "time";
    match is_synchronized {
        Some(true) => good(CHECK, "time: synchronised".to_owned()),
        Some(false) => note(
            CHECK,
            "time: the clock is not synchronised, so the times in sender reports (RTCP), CDRs and logs may be wrong".to_owned(),
            "sudo apt install chrony".to_owned(),
        ),
        None => note(
            CHECK,
            "time: the kernel does not say whether it is synchronised".to_owned(),
            "timedatectl".to_owned(),
        ),
    }
}

fn list(spans: &[PortSpan]) -> String {
    let spans = spans.iter().map(|span| {
        if span.first == span.last {
            span.first.to_string()
        } else {
            span.to_string()
        }
    });
    spans.collect::<Vec<_>>().join(", ")
}

/// Number of open files that counts as good. It is enough for 3000 streams.
const DESCRIPTORS_GOOD: u64 = 10_000;
const BUFFER_BYTES_GOOD: u64 = 4 << 20;
/// Length of the accept queue that counts as good. It is the kernel's default since Linux 5.4.
const BACKLOG_GOOD: u64 = 4096;
/// Maximum number of ports listed in one line of output.
const PORTS_SHOWN: usize = 5;
const CLOCKS_FAST: [&str; 5] = [
    "tsc",
    "kvm-clock",
    "arch_sys_counter",
    "hyperv_clocksource_tsc_page",
    "timebase",
];

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use super::super::finding::Grade;
    use super::*;

    fn span(first: u16, last: u16) -> PortSpan {
        PortSpan { first, last }
    }

    /// Returns the readings of a machine without faults.
    fn tuned() -> Readings {
        Readings {
            rmem_max: Some(4 << 20),
            wmem_max: Some(4 << 20),
            somaxconn: Some(4096),
            descriptors: Some((1024, 524_288)),
            governors: vec!["performance".to_owned(); 2],
            clock_source: Some("tsc".to_owned()),
            clock_sources: vec!["tsc".to_owned(), "hpet".to_owned()],
            is_synchronized: Some(true),
            handed_out: Some(span(32_768, 60_999)),
            reserved: vec![span(30_000, 40_000)],
            bound: vec!["127.0.0.1:53".parse().expect("an address")],
        }
    }

    fn calls() -> Needs {
        Needs::default()
    }

    #[test]
    fn a_tuned_machine_has_no_faults() {
        for finding in findings(&tuned(), &calls()) {
            assert_eq!(
                (finding.grade, &finding.mend),
                (Grade::Good, &None),
                "{finding}"
            );
        }
    }

    /// Each wrong reading gives exactly one finding, with a text, and with a line that fixes the fault.
    #[test]
    fn each_fault_has_a_text_and_a_remedy() {
        type Change = fn(&mut Readings);
        let cases: [(&str, Change, &str, &str); 14] = [
            (
                "net.core.rmem_max",
                |r| r.rmem_max = Some(212_992),
                "up to 208 KiB",
                "sudo sysctl -w net.core.rmem_max=4194304",
            ),
            (
                "net.core.wmem_max",
                |r| r.wmem_max = Some(4_194_303),
                "send buffers",
                "sudo sysctl -w net.core.wmem_max=4194304",
            ),
            (
                "net.core.somaxconn",
                |r| r.somaxconn = Some(128),
                "can wait for acceptance: 128",
                "sudo sysctl -w net.core.somaxconn=4096",
            ),
            (
                "open files",
                |r| r.descriptors = Some((1024, 4096)),
                "about 1365 streams",
                "LimitNOFILE=16384 in the unit, or: echo '* - nofile 16384' | sudo tee /etc/security/limits.d/threadbare.conf, and log in again",
            ),
            (
                "net.ipv4.ip_local_port_range",
                |r| r.reserved.clear(),
                "ports 32768-60999 to any program",
                "sudo sysctl -w net.ipv4.ip_local_reserved_ports=30000-40000",
            ),
            // Ports that are already reserved stay reserved.
            (
                "net.ipv4.ip_local_port_range",
                |r| r.reserved = vec![span(8080, 8080), span(30_000, 39_999)],
                "including media ports: 30000-40000",
                "sudo sysctl -w net.ipv4.ip_local_reserved_ports=8080,30000-39999,30000-40000",
            ),
            (
                "ports in use",
                |r| r.bound.push("0.0.0.0:30010".parse().expect("an address")),
                "program uses: 30010",
                "to see the program (it may be a running Threadbare): sudo ss -ulnp 'sport >= 30010 and sport <= 30010'",
            ),
            (
                "CPU governor",
                |r| r.governors[1] = "powersave".to_owned(),
                "powersave on 1 of 2 processors",
                "echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
            ),
            (
                "clock source",
                |r| r.clock_source = Some("hpet".to_owned()),
                "clock source: hpet",
                "echo tsc | sudo tee /sys/devices/system/clocksource/clocksource0/current_clocksource",
            ),
            (
                "clock source",
                |r| {
                    r.clock_source = Some("xen".to_owned());
                    r.clock_sources = vec!["xen".to_owned()];
                },
                "clock source: xen",
                "boot with tsc=reliable if the processors' counters agree (dmesg | grep -i tsc), or ask the virtual machine's operator",
            ),
            (
                "time",
                |r| r.is_synchronized = Some(false),
                "not synchronised",
                "sudo apt install chrony",
            ),
            (
                "time",
                |r| r.is_synchronized = None,
                "does not say",
                "timedatectl",
            ),
            (
                "net.core.rmem_max",
                |r| r.rmem_max = None,
                "cannot read the setting",
                "containers often hide this setting, so run on the host: sysctl net.core.rmem_max",
            ),
            (
                "open files",
                |r| r.descriptors = None,
                "cannot read the limit of open files",
                "ulimit -n",
            ),
        ];
        for (check, change, words, mend) in cases {
            let mut readings = tuned();
            change(&mut readings);
            let findings = findings(&readings, &calls());
            let faults: Vec<_> = findings
                .iter()
                .filter(|one| one.grade != Grade::Good)
                .collect();
            let [fault] = faults[..] else {
                panic!("{check}: {faults:?}");
            };
            assert_eq!((fault.check, fault.grade), (check, Grade::Note));
            assert!(fault.what.contains(words), "{words:?} in {:?}", fault.what);
            assert_eq!(fault.mend.as_deref(), Some(mend));
        }
    }

    /// A configuration states its needs exactly, so a lower limit is bad, and not only worth a note.
    #[test]
    fn a_configuration_that_does_not_fit_is_bad() {
        let needs = Needs {
            descriptors: Some(70_000),
            ..calls()
        };
        let mut readings = tuned();
        assert_eq!(findings(&readings, &needs)[0].grade, Grade::Good);
        readings.descriptors = Some((1024, 65_536));
        let found = &findings(&readings, &needs)[0];
        assert_eq!(found.grade, Grade::Bad);
        assert!(found.what.contains("may need 70000"), "{found}");
        let mend = found.mend.as_deref().expect("a line");
        assert!(mend.starts_with("LimitNOFILE=131072 "), "{mend}");
    }

    /// Virtual machines have no CPU governor, which is no fault.
    #[test]
    fn a_machine_without_cpu_governors_has_no_fault() {
        let mut readings = tuned();
        readings.governors.clear();
        assert!(
            findings(&readings, &calls())
                .iter()
                .all(|one| one.grade == Grade::Good)
        );
    }

    /// Each address has its own ports. A port that is bound at the unspecified address is in use at all addresses.
    #[test]
    fn a_port_counts_as_used_only_at_its_address() {
        let at = |bound: &str, ip: Ipv4Addr| {
            let readings = Readings {
                bound: vec![bound.parse::<SocketAddr>().expect("an address")],
                ..tuned()
            };
            let ports = [(IpAddr::from(ip), span(30_000, 40_000))];
            in_use(&readings, &ports).grade
        };
        let own = Ipv4Addr::new(192, 0, 2, 1);
        assert_eq!(at("192.0.2.1:30000", own), Grade::Note);
        assert_eq!(at("192.0.2.1:40000", own), Grade::Note);
        assert_eq!(at("192.0.2.1:40001", own), Grade::Good);
        assert_eq!(at("192.0.2.2:30000", own), Grade::Good);
        assert_eq!(at("[::]:30000", own), Grade::Note);
        assert_eq!(at("192.0.2.2:30000", Ipv4Addr::UNSPECIFIED), Grade::Note);
    }

    #[test]
    fn many_ports_are_counted_and_not_listed() {
        let mut readings = tuned();
        for port in 30_000..30_009 {
            readings
                .bound
                .push(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        }
        let found = findings(&readings, &calls());
        let found = found
            .iter()
            .find(|one| one.check == "ports in use")
            .expect("checked");
        assert!(found.what.ends_with("30004 and 4 more"), "{found}");
    }
}
