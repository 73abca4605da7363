//! The policy for destinations, which the threads of an engine share.
//!
//! The media worker judges the destination of a datagram when a call stages it (`Turn` in `worker/outbox.rs`). No other way leads to a
//! socket. So it does not matter where the address comes from: a description, a learned sender, or a saved state. A port usually sends to
//! the same address. The media worker therefore compares an address with the last allowed one, which is a word next to the port's place,
//! and asks the policy only if they differ. IPv6 addresses do not fit that word, and are judged each time.
//!
//! | field | threads |
//! |---|---|
//! | `Shared::policy` | set by any thread; read by a media worker when the version has changed; under its lock |
//! | `Shared::version` | incremented after each change; read by the media workers once per run |

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use threadbare_rtp::policy::MediaPolicy;

use crate::id::CALL_PORTS_MAX;
use crate::sync::lock;

/// The policy for the destinations of an engine's calls. It can be changed while they run. Clones share it.
#[derive(Debug, Clone)]
pub struct Destinations(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    policy: Mutex<Arc<MediaPolicy>>,
    version: AtomicU64,
}

impl Destinations {
    /// Creates the handle with this policy.
    #[must_use]
    pub fn new(policy: Arc<MediaPolicy>) -> Destinations {
        Destinations(Arc::new(Shared {
            policy: Mutex::new(policy),
            version: AtomicU64::new(0),
        }))
    }

    /// Replaces the policy. The new one applies from the next batch of packets on.
    pub fn set(&self, policy: Arc<MediaPolicy>) {
        *lock(&self.0.policy) = policy;
        self.0.version.fetch_add(1, Ordering::Release);
    }
}

/// A media worker's copy of the policy.
#[derive(Debug)]
pub(crate) struct View {
    shared: Destinations,
    version: u64,
    policy: Arc<MediaPolicy>,
}

impl View {
    pub(crate) fn new(shared: Destinations) -> View {
        let mut view = View {
            version: u64::MAX,
            policy: Arc::default(),
            shared,
        };
        view.refresh();
        view
    }

    /// Checks whether the policy has changed. It is called once per run.
    #[inline]
    pub(crate) fn refresh(&mut self) {
        let version = self.shared.0.version.load(Ordering::Acquire);
        if version != self.version {
            self.version = version;
            self.policy = lock(&self.shared.0.policy).clone();
        }
    }

    /// Whether a port of a call may send to `to`. `passed` is the port's last allowed address. `ports` returns the address of the
    /// port's leg, and those of all ports of the call.
    #[inline]
    pub(crate) fn allows(
        &self,
        passed: &mut Passed,
        to: SocketAddr,
        ports: impl FnOnce() -> (IpAddr, [SocketAddr; CALL_PORTS_MAX]),
    ) -> bool {
        let key = self.key(to);
        if key.is_some() && key == passed.0 {
            return true;
        }
        let (leg, ports) = ports();
        let is_allowed = self.policy.judge(leg, &ports, to).is_ok();
        if is_allowed {
            passed.0 = key;
        }
        is_allowed
    }

    fn key(&self, to: SocketAddr) -> Option<NonZeroU64> {
        let SocketAddr::V4(to) = to else {
            return None;
        };
        let address = u64::from(u32::from(*to.ip())) << 16 | u64::from(to.port());
        // A wrap-around of the version to the same value would take years of reloads.
        NonZeroU64::new(self.version << 48 | address)
    }
}

/// The last allowed IPv4 address, with the version of the policy. `None`: there is none yet.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Passed(Option<NonZeroU64>);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn denies(network: &str) -> Arc<MediaPolicy> {
        Arc::new(MediaPolicy {
            deny: vec![network.parse().unwrap()],
            ..MediaPolicy::default()
        })
    }

    #[test]
    fn an_address_that_passed_is_judged_again_when_the_policy_changes() {
        let destinations = Destinations::new(denies("192.0.2.0/24"));
        let mut view = View::new(destinations.clone());
        let mut passed = Passed::default();
        let mut asked = 0;
        let mut allows = |view: &View, to: &str| {
            let ports = || {
                asked += 1;
                let none = SocketAddr::from(([0; 4], 0));
                (IpAddr::from([10, 0, 0, 1]), [none; CALL_PORTS_MAX])
            };
            (view.allows(&mut passed, to.parse().unwrap(), ports), asked)
        };
        assert_eq!(allows(&view, "192.0.2.9:4000"), (false, 1));
        assert_eq!(allows(&view, "192.0.2.9:4000"), (false, 2));
        assert_eq!(allows(&view, "198.51.100.1:4000"), (true, 3));
        assert_eq!(
            allows(&view, "198.51.100.1:4000"),
            (true, 3),
            "the note is used"
        );
        assert_eq!(allows(&view, "198.51.100.1:4002"), (true, 4));
        assert_eq!(allows(&view, "198.51.100.1:4000"), (true, 5));
        destinations.set(denies("198.51.100.0/24"));
        view.refresh();
        assert_eq!(allows(&view, "198.51.100.1:4000"), (false, 6));
        assert_eq!(allows(&view, "192.0.2.9:4000"), (true, 7));
        // IPv6 addresses are not stored as the last allowed one.
        assert_eq!(allows(&view, "[2001:db8::1]:4000"), (true, 8));
        assert_eq!(allows(&view, "[2001:db8::1]:4000"), (true, 9));
    }
}
