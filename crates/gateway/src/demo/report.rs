//! What the demo found: one line of JSON, or a few lines that a newcomer understands.

use serde::{Deserialize, Serialize};

use super::ledger::Counters;

/// The result. Its fields, in this order, are the keys of `--json`; scripts rely on them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// Streams carried at once.
    pub streams: usize,
    /// How long each sent.
    pub seconds: u32,
    /// By the callers, all together.
    pub packets_sent: u64,
    /// By the listeners.
    pub packets_received: u64,
    /// The difference.
    pub lost: u64,
    /// Came after a later one of the same stream.
    pub reordered: u64,
    /// Came with the wrong content, twice, or unasked.
    pub payload_errors: u64,
    /// Of the gateway's process, while all streams ran.
    pub threads: usize,
    /// Of these, the ones that carry streams; 0: each stream has its own.
    pub contexts: u32,
    /// User and system time of the gateway's process; 100 is one core.
    pub cpu_percent: f64,
    /// The same, per packet received by the listeners, in microseconds.
    pub cpu_us_per_packet: f64,
    /// From the caller's send call to the arrival at the listener.
    pub latency_ms_p50: f64,
    /// 99th percentile.
    pub latency_ms_p99: f64,
    /// Maximum.
    pub latency_ms_max: f64,
    /// What a stream adds to the resident memory of the gateway's process.
    pub rss_kib_per_stream: f64,
    /// To build and start all streams.
    pub setup_seconds: f64,
}

impl Report {
    /// Takes over what the listeners counted.
    pub fn count(&mut self, counters: &Counters) {
        self.packets_sent = counters.packets_sent;
        self.packets_received = counters.packets_received;
        self.lost = counters.lost();
        self.reordered = counters.reordered;
        self.payload_errors = counters.wrong();
        self.latency_ms_p50 = counters.latency_ms_p50;
        self.latency_ms_p99 = counters.latency_ms_p99;
        self.latency_ms_max = counters.latency_ms_max;
    }

    /// Whether every packet arrived, in order and with the right content.
    pub fn is_clean(&self) -> bool {
        self.packets_received > 0
            && self.lost == 0
            && self.reordered == 0
            && self.payload_errors == 0
    }

    /// The result in words.
    pub fn summary(&self) -> String {
        let verdict = if self.is_clean() {
            "Every packet arrived, in order and with the right content.".to_owned()
        } else {
            format!(
                "NOT CLEAN: {} packets lost, {} out of order, {} with the wrong content.",
                grouped(self.lost),
                grouped(self.reordered),
                grouped(self.payload_errors),
            )
        };
        let per_core = match self.cpu_us_per_packet > 0.0 {
            true => format!(
                ", which is {} streams per core",
                grouped((20_000.0 / self.cpu_us_per_packet) as u64)
            ),
            false => String::new(),
        };
        format!(
            "{verdict}\n\n\
             {:>10}  phone calls at once, each 50 packets a second of PCMU, sent on as PCMA for {} s\n\
             {:>10}  packets sent by the callers, {} came back to the listeners\n\
             {:>10}  threads in the gateway, {} the streams\n\
             {:>9}%  of one CPU core: {:.1} µs per packet received, converted and sent{per_core}\n\
             {:>7.1} ms  typical way through the gateway (99 % within {:.1} ms, the longest {:.1} ms)\n\
             {:>6.0} KiB  of memory per stream, and {:.2} s to start them all",
            grouped(self.streams as u64),
            self.seconds,
            grouped(self.packets_sent),
            grouped(self.packets_received),
            self.threads,
            match self.contexts {
                0 => "one for each of".to_owned(),
                1 => "one of them carries all".to_owned(),
                n => format!("{n} of them carry"),
            },
            format!("{:.1}", self.cpu_percent),
            self.cpu_us_per_packet,
            self.latency_ms_p50,
            self.latency_ms_p99,
            self.latency_ms_max,
            self.rss_kib_per_stream,
            self.setup_seconds,
        )
    }
}

/// 1234567 as "1,234,567".
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
    fn numbers_are_grouped() {
        assert_eq!(
            [0, 999, 1000, 1_234_567].map(grouped),
            ["0", "999", "1,000", "1,234,567"]
        );
    }
}
