//! Reads the settings of a machine for the doctor. Only [`Readings::of`] does I/O; `checks` judges the readings.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use threadbare_config::PortSpan;
use threadbare_process::usage;

/// The settings of a machine that the checks need. `None` and empty lists mean unknown, which is common in containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Readings {
    /// Maximum receive buffer of a socket, bytes.
    pub(super) rmem_max: Option<u64>,
    /// Maximum send buffer of a socket, bytes.
    pub(super) wmem_max: Option<u64>,
    /// Maximum number of connections that wait to be accepted.
    pub(super) somaxconn: Option<u64>,
    /// The soft and the hard limit of open files.
    pub(super) descriptors: Option<(u64, u64)>,
    /// CPU governor of each processor.
    pub(super) governors: Vec<String>,
    pub(super) clock_source: Option<String>,
    pub(super) clock_sources: Vec<String>,
    /// Whether the kernel's clock is synchronised.
    pub(super) is_synchronized: Option<bool>,
    /// Ports that the kernel assigns to programs that ask for any port.
    pub(super) handed_out: Option<PortSpan>,
    /// Ports that the kernel never assigns automatically.
    pub(super) reserved: Vec<PortSpan>,
    /// Addresses of the bound UDP sockets in this network namespace.
    pub(super) bound: Vec<SocketAddr>,
}

impl Readings {
    /// Reads the machine's files below `root`, which is `/` except in tests. Limits are those of this process.
    pub(super) fn of(root: &Path) -> Readings {
        let text = |path: &str| {
            let text = fs::read_to_string(root.join(path)).ok()?;
            Some(text.trim().to_owned())
        };
        let number = |path: &str| text(path)?.parse().ok();
        let sockets = ["proc/net/udp", "proc/net/udp6"].map(|path| text(path).unwrap_or_default());
        let clock = |name: &str| {
            text(&format!(
                "sys/devices/system/clocksource/clocksource0/{name}"
            ))
        };
        Readings {
            rmem_max: number("proc/sys/net/core/rmem_max"),
            wmem_max: number("proc/sys/net/core/wmem_max"),
            somaxconn: number("proc/sys/net/core/somaxconn"),
            descriptors: usage::descriptor_limits(),
            governors: governors(&root.join("sys/devices/system/cpu")),
            clock_source: clock("current_clocksource"),
            clock_sources: words(clock("available_clocksource")),
            is_synchronized: threadbare_runtime::wall_clock_is_synchronized(),
            handed_out: text("proc/sys/net/ipv4/ip_local_port_range").and_then(|text| {
                spans(&text.split_whitespace().collect::<Vec<_>>().join("-")).pop()
            }),
            reserved: spans(&text("proc/sys/net/ipv4/ip_local_reserved_ports").unwrap_or_default()),
            bound: sockets.iter().flat_map(|table| bound(table)).collect(),
        }
    }
}

fn words(text: Option<String>) -> Vec<String> {
    let text = text.unwrap_or_default();
    text.split_whitespace().map(str::to_owned).collect()
}

fn governors(processors: &Path) -> Vec<String> {
    let entries = fs::read_dir(processors).into_iter().flatten().flatten();
    let governors = entries.filter_map(|entry| {
        let text = fs::read_to_string(entry.path().join("cpufreq/scaling_governor")).ok()?;
        Some(text.trim().to_owned())
    });
    governors.collect()
}

/// Parses a list of ports in the kernel's format: `1-2,3`.
fn spans(text: &str) -> Vec<PortSpan> {
    let spans = text.split(',').filter_map(|one| {
        let (first, last) = one.split_once('-').unwrap_or((one, one));
        let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        Some(PortSpan { first, last })
    });
    spans.collect()
}

/// Parses the addresses in /proc/net/udp or udp6 (proc(5)). The second column contains the address as 32-bit words in this machine's byte
/// order, and the port. Both are hexadecimal.
fn bound(table: &str) -> Vec<SocketAddr> {
    let columns = table.lines().skip(1);
    let addresses = columns.filter_map(|line| address(line.split_whitespace().nth(1)?));
    addresses.collect()
}

fn address(column: &str) -> Option<SocketAddr> {
    let (address, port) = column.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let mut bytes = Vec::new();
    for at in (0..address.len()).step_by(8) {
        let word = u32::from_str_radix(address.get(at..at + 8)?, 16).ok()?;
        bytes.extend(word.to_ne_bytes());
    }
    let ip = match bytes.len() {
        4 => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        _ => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)),
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_lists_of_ports_are_read() {
        let read = |text: &str| {
            let spans = spans(text).into_iter();
            spans
                .map(|span| (span.first, span.last))
                .collect::<Vec<_>>()
        };
        assert_eq!(read(""), []);
        assert_eq!(read("8080"), [(8080, 8080)]);
        assert_eq!(read("8080,30000-40000"), [(8080, 8080), (30_000, 40_000)]);
        assert_eq!(read("x,70000,1-2"), [(1, 2)]);
    }

    /// A socket of this process is found at its address, for IPv4 and IPv6.
    #[test]
    fn bound_sockets_are_found_at_their_addresses() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let socket = std::net::UdpSocket::bind(address).expect("a port");
            let address = socket.local_addr().expect("bound");
            let found = Readings::of(Path::new("/")).bound;
            assert!(found.contains(&address), "{address} in {found:?}");
        }
    }

    #[test]
    fn settings_are_read_from_the_machines_files() {
        let root = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("below")).expect("made");
            fs::write(path, text).expect("written");
        };
        assert_eq!(Readings::of(root.path()).rmem_max, None);
        write("proc/sys/net/core/rmem_max", "212992\n");
        write("proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n");
        write("proc/sys/net/ipv4/ip_local_reserved_ports", "30000-40000\n");
        write(
            "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
            "powersave\n",
        );
        write("sys/devices/system/cpu/online", "0\n");
        let clock = "sys/devices/system/clocksource/clocksource0";
        write(&format!("{clock}/current_clocksource"), "hpet\n");
        write(
            &format!("{clock}/available_clocksource"),
            "tsc hpet acpi_pm\n",
        );
        let readings = Readings::of(root.path());
        let span = |first, last| PortSpan { first, last };
        assert_eq!(readings.rmem_max, Some(212_992));
        assert_eq!(readings.handed_out, Some(span(32_768, 60_999)));
        assert_eq!(readings.reserved, [span(30_000, 40_000)]);
        assert_eq!(readings.governors, ["powersave"]);
        assert_eq!(readings.clock_source.as_deref(), Some("hpet"));
        assert_eq!(readings.clock_sources, ["tsc", "hpet", "acpi_pm"]);
        assert_eq!(readings.bound, []);
    }
}
