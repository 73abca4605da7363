//! Arguments of both programs.

use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use threadbare_demux::{Policy, RateLimit, Service};

/// The arguments of the WebSocket side. Each program has its own arguments for the broker's side.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Where WebSocket clients connect; with port 0, the program prints the port it got
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,

    /// Messages that each client may get: 50/s, 100/min or 3600/h; more are dropped and counted as limited [default: no limit]
    #[arg(long, value_name = "NUMBER/UNIT")]
    pub rate: Option<Rate>,

    /// Messages that a client may get at once after a silence [default: the number in --rate]
    #[arg(long, value_name = "MESSAGES", requires = "rate", value_parser = clap::value_parser!(u32).range(1..))]
    pub burst: Option<u32>,

    /// Messages that can wait for a slow client in this program; its connection holds some more
    #[arg(long, value_name = "MESSAGES", default_value_t = 256)]
    pub buffer: usize,

    /// When a client's buffer is full: drop-oldest, drop-newest, disconnect:N (after N dropped in a row), or block (all clients wait for this one)
    #[arg(long, default_value = "drop-oldest", value_parser = parse_policy)]
    pub policy: Policy,

    /// How long a client may leave a ping unanswered, or not read, before it is disconnected
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = parse_seconds)]
    pub timeout: Duration,

    /// Time for clients to take their pending messages at the end of the program
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = parse_seconds)]
    pub deadline: Duration,

    /// Connections at the same time; more are refused with status 503
    #[arg(long, value_name = "NUMBER", default_value_t = 10_000)]
    pub clients: usize,

    /// Kernel memory for data that one client has not read yet (SO_SNDBUF, which Linux doubles)
    #[arg(long, value_name = "BYTES", default_value_t = 65_536)]
    pub socket_buffer: usize,
}

impl Options {
    /// Returns how the demultiplexer serves each client.
    pub(crate) fn service(&self) -> Service {
        Service {
            policy: self.policy,
            buffer: self.buffer,
            limit: self.rate.map(|rate| rate.limit(self.burst)),
        }
    }
}

/// Number of messages per unit of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    messages: u32,
    unit: Duration,
}

impl Rate {
    fn limit(self, burst: Option<u32>) -> RateLimit {
        RateLimit::new(self.unit / self.messages, burst.unwrap_or(self.messages))
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("{text} is not a rate: expected a number from 1 and /s, /min or /h, as in 50/s")
        };
        let (number, unit) = text.split_once('/').ok_or_else(wrong)?;
        let seconds = match unit {
            "s" => 1,
            "min" => 60,
            "h" => 3600,
            _ => return Err(wrong()),
        };
        let messages = number.parse().ok().filter(|number| *number > 0);
        Ok(Rate {
            messages: messages.ok_or_else(wrong)?,
            unit: Duration::from_secs(seconds),
        })
    }
}

fn parse_policy(text: &str) -> Result<Policy, String> {
    let most = |number: &str| number.parse().ok().filter(|most| *most > 0);
    match (text, text.strip_prefix("disconnect:").and_then(most)) {
        ("block", _) => Ok(Policy::Block),
        ("drop-newest", _) => Ok(Policy::DropNewest),
        ("drop-oldest", _) => Ok(Policy::DropOldest),
        (_, Some(most)) => Ok(Policy::DisconnectAfter(most)),
        _ => Err(format!(
            "{text} is not a policy: expected block, drop-newest, drop-oldest or disconnect:N with N from 1"
        )),
    }
}

/// The longest accepted time, which is a day. A longer time is probably a mistake in the unit.
const SECONDS_MAX: u64 = 86_400;

fn parse_seconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds) if (1..=SECONDS_MAX).contains(&seconds) => Ok(Duration::from_secs(seconds)),
        _ => Err(format!(
            "{text} is not a number of seconds: must be 1 to {SECONDS_MAX}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_a_number_and_a_unit() {
        let period = |text: &str| {
            let rate: Rate = text.parse().ok()?;
            Some(rate.unit / rate.messages)
        };
        assert_eq!(period("50/s"), Some(Duration::from_millis(20)));
        assert_eq!(period("30/min"), Some(Duration::from_secs(2)));
        assert_eq!(period("1/h"), Some(Duration::from_secs(3600)));
        for wrong in ["50", "0/s", "-1/s", "5/day", "/s", "5/"] {
            assert!(wrong.parse::<Rate>().unwrap_err().contains(wrong));
        }
    }

    #[test]
    fn policies_are_named_as_in_the_help() {
        assert_eq!(parse_policy("block"), Ok(Policy::Block));
        assert_eq!(parse_policy("drop-newest"), Ok(Policy::DropNewest));
        assert_eq!(parse_policy("drop-oldest"), Ok(Policy::DropOldest));
        let disconnect = Policy::DisconnectAfter(7);
        assert_eq!(parse_policy("disconnect:7"), Ok(disconnect));
        for wrong in ["disconnect", "disconnect:0", "drop"] {
            assert!(parse_policy(wrong).unwrap_err().contains(wrong));
        }
    }

    #[test]
    fn times_are_at_least_a_second_and_at_most_a_day() {
        assert_eq!(parse_seconds("86400"), Ok(Duration::from_secs(86_400)));
        for wrong in ["0", "86401", "1s"] {
            assert!(parse_seconds(wrong).unwrap_err().contains(wrong));
        }
    }
}
