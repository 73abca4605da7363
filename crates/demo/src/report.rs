//! The demo's result, either as one line of JSON or as a short summary.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ledger::Counters;
use super::network::Harm;
use super::rounded;
use super::rtcp::RtcpCounters;

/// The result. Its fields, in this order, are the keys of `--json`. Scripts rely on them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// Number of streams that run at the same time.
    pub streams: usize,
    /// Duration of each stream.
    pub seconds: u32,
    /// Packets sent by all parties.
    pub packets_sent: u64,
    /// Packets received by the other parties.
    pub packets_received: u64,
    /// Packets that were sent but not received.
    pub lost: u64,
    /// Packets that arrived after a later packet of the same stream.
    pub reordered: u64,
    /// Packets received with wrong content, twice, or unexpectedly.
    pub payload_errors: u64,
    /// Threads of the gateway's process while all streams were running.
    pub threads: usize,
    /// Number of contexts, whose threads are among those. It is 0 if each stream has its own thread.
    pub contexts: u32,
    /// User and system time of the gateway's process, where 100 is one core.
    pub cpu_percent: f64,
    /// CPU time per packet that was received and sent on, in microseconds.
    pub cpu_us_per_packet: f64,
    /// Median delay from a party's send call to the arrival at the other party.
    pub latency_ms_p50: f64,
    /// The 99th percentile of the delay.
    pub latency_ms_p99: f64,
    /// The longest delay.
    pub latency_ms_max: f64,
    /// Resident memory per stream of the gateway's process.
    pub rss_kib_per_stream: f64,
    /// Time to build and start all streams.
    pub setup_seconds: f64,
    /// The gateway's RTCP reports, counted by the parties.
    pub rtcp_reports_received: u64,
    /// Streams that the gateway ended with BYE.
    pub byes: u64,
    /// RTCP packets that either side could not parse, wrong reports, and streams that ended without a BYE.
    pub rtcp_errors: u64,
    /// Audio that the gateway concealed because packets were lost or late, for all streams together.
    pub concealed_ms: u64,
    /// Share of the time in which a thread was ready but had no CPU. It is the share of the thread with the largest one, among the threads
    /// of the gateway and of the parties.
    pub starved_percent: f64,
    /// Figures that are only in the summary.
    #[serde(skip)]
    pub details: Details,
}

/// Figures of the summary beyond the report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Details {
    /// The simulated network.
    pub harm: Harm,
    /// Latency of the gateway's jitter buffers. It is 0 if there were none.
    pub latency_ms: u32,
    /// Parties that have received a report from the gateway.
    pub rtcp_calls: u64,
    /// Reports sent by the parties.
    pub rtcp_sent: u64,
    /// Packets lost by the network.
    pub network_lost: u64,
    /// Packets that the gateway replaced because they came too late.
    pub too_late: u64,
    /// RTCP packets that one side could not parse. `rtcp_errors` includes them.
    pub rtcp_unreadable: u64,
}

impl Report {
    /// Adds the parties' counts.
    pub fn count(&mut self, counters: &Counters, rtcp: &RtcpCounters) {
        self.packets_sent = counters.packets_sent;
        self.packets_received = counters.packets_received;
        self.lost = counters.lost();
        self.reordered = counters.reordered;
        self.payload_errors = counters.wrong();
        self.latency_ms_p50 = counters.latency_ms_p50;
        self.latency_ms_p99 = counters.latency_ms_p99;
        self.latency_ms_max = counters.latency_ms_max;
        self.rtcp_reports_received = rtcp.reports;
        self.byes = rtcp.byes;
        self.rtcp_errors = rtcp.errors();
        self.concealed_ms = counters.concealed * PACKET_MS;
        self.details.rtcp_calls = rtcp.calls;
        self.details.rtcp_sent = rtcp.sent;
        self.details.network_lost = counters.network_lost;
        self.details.too_late = counters.too_late;
        self.details.rtcp_unreadable = rtcp.malformed;
    }

    /// Whether every packet arrived in order and with the right content, and every report was right. For a packet that the network lost on
    /// purpose, the replacement must have arrived.
    pub fn is_clean(&self) -> bool {
        self.packets_received > 0
            && self.lost == 0
            && self.reordered == 0
            && self.payload_errors == 0
            && self.rtcp_errors == 0
    }

    /// Adds the share of time without a CPU, from the times of the gateway and of the parties.
    pub fn count_starvation(&mut self, elapsed: Duration, gateway: Duration, parties: Duration) {
        let longest = gateway.max(parties).as_secs_f64();
        self.starved_percent = rounded(100.0 * longest / elapsed.as_secs_f64().max(0.001));
    }

    /// Whether all faults are of a kind that a lack of CPU time causes. These are datagrams that overflow a socket, and reports whose times
    /// the parties cannot check. Wrong content, wrong order and unreadable reports are faults of the gateway, whatever the load.
    pub fn is_excused(&self) -> bool {
        self.packets_received > 0
            && self.starved_percent >= STARVED_PERCENT
            && self.reordered == 0
            && self.payload_errors == 0
            && self.details.rtcp_unreadable == 0
    }

    /// Returns the result as text.
    pub fn summary(&self) -> String {
        let verdict = match (self.is_clean(), self.details.harm.is_none()) {
            (false, _) if self.is_excused() => format!(
                "THE MACHINE WAS TOO BUSY: for {:.0} % of the time, a thread was ready to run and got no CPU. The {} lost packets\n\
                 and {} wrong or missing reports (RTCP) therefore prove nothing. Every packet that arrived was in order and had the\n\
                 right content, sequence number and timestamp. Run the demo again without other work.",
                self.starved_percent,
                grouped(self.lost),
                grouped(self.rtcp_errors),
            ),
            (true, true) => "Every packet arrived, in order, with the right content, sequence number and timestamp.".to_owned(),
            (true, false) => {
                "Every packet that reached the gateway in time was sent on in order, with the right content,\n\
                 sequence number and timestamp; for each of the others, the gateway sent something in its place."
                    .to_owned()
            }
            (false, _) => format!(
                "NOT CLEAN: {} packets lost, {} out of order, {} with the wrong content or header, {} wrong or missing in RTCP.",
                grouped(self.lost),
                grouped(self.reordered),
                grouped(self.payload_errors),
                grouped(self.rtcp_errors),
            ),
        };
        let per_core = self.per_core();
        format!(
            "{verdict}\n\n\
             {:>10}  phone calls at once: {} streams of 50 packets a second, from PCMU to PCMA and back, for {} s\n\
             {:>10}  packets sent by the parties, and {} received by the other parties{}\n\
             {:>10}  threads in the gateway; {} the streams\n\
             {:>9}%  of one CPU core: {:.1} µs per packet received, converted and sent{per_core}\n\
             {}\
             {:>7.1} ms  median delay in the gateway (99 % within {:.1} ms, the longest {:.1} ms){}\n\
             {:>6.0} KiB  of memory per stream, and {:.2} s to start them all",
            grouped(self.streams.div_ceil(2) as u64),
            grouped(self.streams as u64),
            self.seconds,
            grouped(self.packets_sent),
            grouped(self.packets_received),
            match self.contexts {
                0 => "",
                _ => ", from the right ports",
            },
            self.threads,
            match self.contexts {
                0 => "one for each of".to_owned(),
                1 => "one of them carries all".to_owned(),
                n => format!("{n} of them carry"),
            },
            format!("{:.1}", self.cpu_percent),
            self.cpu_us_per_packet,
            self.more(),
            self.latency_ms_p50,
            self.latency_ms_p99,
            self.latency_ms_max,
            match self.details.latency_ms {
                0 => String::new(),
                // Packets may stay in the buffer for less time than this, because the buffer counts from the packet with the least delay.
                ms => format!(";\n{:>12}the jitter buffer is set to {ms} ms", ""),
            },
            self.rss_kib_per_stream,
            self.setup_seconds,
        )
    }
}

impl Report {
    fn per_core(&self) -> String {
        if self.cpu_us_per_packet > 0.0 {
            let streams = (20_000.0 / self.cpu_us_per_packet) as u64;
            format!(", which is {} streams per core", grouped(streams))
        } else {
            String::new()
        }
    }

    /// Returns lines about RTCP and about the faults of the network, if there are any.
    fn more(&self) -> String {
        let details = &self.details;
        let mut lines = String::new();
        if details.rtcp_sent > 0 || self.rtcp_reports_received > 0 {
            let checked = match (self.rtcp_reports_received, self.rtcp_errors) {
                (1.., 0) => format!(
                    ";\n{:>12}packet counts, losses, jitter, LSR and DLSR are right in all of them",
                    ""
                ),
                _ => String::new(),
            };
            lines += &format!(
                "{:>10}  reports (RTCP) from the gateway, to {} of the parties{checked}\n\
                 {:>10}  reports from the parties\n",
                grouped(self.rtcp_reports_received),
                grouped(details.rtcp_calls),
                grouped(details.rtcp_sent),
            );
        }
        if !details.harm.is_none() || self.concealed_ms > 0 {
            lines += &format!(
                "{:>10}  packets lost on the way to the gateway, on purpose; {} came too late\n\
                 {:>7} ms  of audio that the gateway inserted in their place (concealed)\n",
                grouped(details.network_lost),
                grouped(details.too_late),
                grouped(self.concealed_ms),
            );
        }
        lines
    }
}

/// Share of the time without a CPU above which the machine was too busy. On an idle machine with two cores, the share is 1 to 3 %.
const STARVED_PERCENT: f64 = 10.0;
/// Duration of the demo's packets.
const PACKET_MS: u64 = 20;

/// Formats 1234567 as "1,234,567".
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report {
            streams: 1000,
            seconds: 10,
            packets_sent: 500_000,
            packets_received: 500_000,
            lost: 0,
            reordered: 0,
            payload_errors: 0,
            threads: 4,
            contexts: 1,
            cpu_percent: 50.0,
            cpu_us_per_packet: 10.0,
            latency_ms_p50: 10.0,
            latency_ms_p99: 20.0,
            latency_ms_max: 21.0,
            rss_kib_per_stream: 16.0,
            setup_seconds: 0.5,
            rtcp_reports_received: 2000,
            byes: 1000,
            rtcp_errors: 0,
            concealed_ms: 0,
            starved_percent: 2.0,
            details: Details::default(),
        }
    }

    #[test]
    fn anything_lost_late_or_wrong_is_not_clean() {
        assert!(report().is_clean());
        let not_clean = [
            Report {
                lost: 1,
                ..report()
            },
            Report {
                reordered: 1,
                ..report()
            },
            Report {
                payload_errors: 1,
                ..report()
            },
            Report {
                rtcp_errors: 1,
                ..report()
            },
            Report {
                packets_sent: 0,
                packets_received: 0,
                ..report()
            },
        ];
        for report in not_clean {
            assert!(!report.is_clean(), "{report:?}");
            assert!(
                report.summary().starts_with("NOT CLEAN"),
                "{}",
                report.summary()
            );
        }
        assert!(report().summary().contains("2,000 streams per core"));
    }

    #[test]
    fn a_busy_machine_excuses_only_lost_packets_and_missing_reports() {
        let busy = |starved_ms| {
            let mut report = Report {
                lost: 3,
                rtcp_errors: 49,
                ..report()
            };
            let (all, starved) = (Duration::from_secs(10), Duration::from_millis(starved_ms));
            report.count_starvation(all, Duration::from_millis(10), starved);
            report
        };
        assert!(!busy(300).is_excused());
        assert!(busy(300).summary().starts_with("NOT CLEAN"));
        assert!(busy(4000).is_excused() && !busy(4000).is_clean());
        let summary = busy(4000).summary();
        assert!(
            summary.starts_with("THE MACHINE WAS TOO BUSY: for 40 %"),
            "{summary}"
        );
        for wrong in [
            Report {
                reordered: 1,
                ..busy(4000)
            },
            Report {
                payload_errors: 1,
                ..busy(4000)
            },
            Report {
                packets_received: 0,
                ..busy(4000)
            },
            Report {
                details: Details {
                    rtcp_unreadable: 1,
                    ..Details::default()
                },
                ..busy(4000)
            },
        ] {
            assert!(!wrong.is_excused() && wrong.summary().starts_with("NOT CLEAN"));
        }
    }

    /// The delay may be lower than the setting of the jitter buffer. The summary must not make this look like a fault.
    #[test]
    fn a_delay_below_the_jitter_buffers_setting_is_explained() {
        let mut report = report();
        report.latency_ms_p50 = 30.9;
        report.details.latency_ms = 40;
        let summary = report.summary();
        assert!(summary.contains("30.9 ms  median delay"), "{summary}");
        assert!(
            summary.contains("the jitter buffer is set to 40 ms"),
            "{summary}"
        );
        assert!(!summary.contains("of which"), "{summary}");
    }

    #[test]
    fn the_summary_calls_reports_right_only_if_some_arrived_without_errors() {
        let claim = "LSR and DLSR are right in all of them";
        let summary = |reports, errors| {
            let mut report = report();
            report.details.rtcp_sent = 1;
            report.rtcp_reports_received = reports;
            report.rtcp_errors = errors;
            report.summary()
        };
        assert!(summary(5, 0).contains(claim));
        assert!(!summary(5, 1).contains(claim) && !summary(0, 0).contains(claim));
    }

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(
            [0, 999, 1000, 1_234_567].map(grouped),
            ["0", "999", "1,000", "1,234,567"]
        );
    }
}
