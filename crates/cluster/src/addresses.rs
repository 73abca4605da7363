//! Adds the addresses of a service to their devices, and removes them.
//!
//! The kernel removes an address by itself if this process has not renewed it for two seconds. So if this process is killed or
//! frozen, the address does not stay on this machine while another node has it. If an operator's program adds and removes the
//! addresses instead, that program must ensure the same.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use nix::net::if_::if_nametoindex;
use rtnetlink::Handle;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, CacheInfo};
use tokio::process::Command;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::announce::Announcer;
use threadbare_config::ServiceAddress;

/// Handle to the task that manages the addresses. The task carries out orders one after another.
#[derive(Debug, Clone)]
pub(super) struct Addresses(UnboundedSender<Order>);

#[derive(Debug)]
struct Order {
    addresses: Vec<ServiceAddress>,
    is_here: bool,
    /// Notified when the order was carried out.
    tell: oneshot::Sender<()>,
}

impl Addresses {
    /// Returns the handle, and the task to run. `program`: a program that moves the addresses instead of the task.
    pub(super) fn new(program: Option<PathBuf>) -> (Addresses, impl Future<Output = ()>) {
        let (orders, ordered) = unbounded_channel();
        (Addresses(orders), keep(ordered, program))
    }

    /// Adds addresses, and renews them until they are removed. Failures are logged.
    pub(super) fn add(&self, addresses: &[ServiceAddress]) -> oneshot::Receiver<()> {
        self.order(addresses, true)
    }

    /// Removes addresses.
    pub(super) fn remove(&self, addresses: &[ServiceAddress]) -> oneshot::Receiver<()> {
        self.order(addresses, false)
    }

    fn order(&self, addresses: &[ServiceAddress], is_here: bool) -> oneshot::Receiver<()> {
        let (tell, told) = oneshot::channel();
        let addresses = addresses.to_vec();
        // This fails only if the task has ended together with the runtime.
        let _ = self.0.send(Order {
            addresses,
            is_here,
            tell,
        });
        told
    }
}

/// The added addresses, each with the number of announcements so far.
type Here = BTreeMap<ServiceAddress, u32>;

async fn keep(mut ordered: UnboundedReceiver<Order>, program: Option<PathBuf>) {
    let mut here = Here::new();
    let mut kernel = None;
    let mut announcer = Announcer::default();
    let mut ticks = interval(RENEW);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            order = ordered.recv() => match order {
                Some(order) => {
                    let program = program.as_ref();
                    carry_out(&mut here, &mut kernel, &mut announcer, program, order).await;
                }
                None => break,
            },
            _ = ticks.tick(), if program.is_none() && !here.is_empty() => {
                for (address, announced) in &mut here {
                    told(address, "renewed", put(&mut kernel, address).await);
                    // Repeat the announcement, because some neighbours may have missed it, or may have received an old one
                    // later.
                    if *announced < ANNOUNCED {
                        *announced += 1;
                        let done = announcer.announce(address.address, &address.device);
                        told(address, "announced", done);
                    }
                }
            }
        }
    }
}

async fn carry_out(
    here: &mut Here,
    kernel: &mut Option<Handle>,
    announcer: &mut Announcer,
    program: Option<&PathBuf>,
    order: Order,
) {
    for address in order.addresses {
        let verb = if order.is_here { "added" } else { "removed" };
        let done = match (program, order.is_here) {
            (Some(program), is_here) => run(program, &address, is_here).await,
            (None, true) => put(kernel, &address).await,
            (None, false) => take_off(kernel, &address).await,
        };
        told(&address, verb, done);
        if order.is_here {
            if program.is_none() {
                let done = announcer.announce(address.address, &address.device);
                told(&address, "announced", done);
            }
            here.insert(address, 1);
        } else {
            here.remove(&address);
        }
    }
    // Sending fails if the receiver is gone.
    let _ = order.tell.send(());
}

fn told(address: &ServiceAddress, verb: &str, done: io::Result<()>) {
    if let Err(error) = done {
        tracing::error!(%address, %error, "a service address could not be {verb}");
    }
}

/// Runs `PROGRAM add|remove ADDRESS/PREFIX DEVICE`.
async fn run(program: &PathBuf, address: &ServiceAddress, is_here: bool) -> io::Result<()> {
    let mut command = Command::new(program);
    command
        .arg(if is_here { "add" } else { "remove" })
        .arg(format!("{}/{}", address.address, address.prefix))
        .arg(&address.device)
        .kill_on_drop(true);
    let ended = timeout(PROGRAM_TIME_MAX, command.status()).await;
    let status = ended.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other(format!("{}: {status}", program.display())))
    }
}

/// Adds an address to its device, or renews it.
async fn put(kernel: &mut Option<Handle>, address: &ServiceAddress) -> io::Result<()> {
    let handle = connected(kernel)?;
    let index = if_nametoindex(address.device.as_str())?;
    let mut request = handle
        .address()
        .add(index, address.address, address.prefix)
        .replace();
    let mut times = CacheInfo::default();
    // A deprecated address is not used as source of other traffic of this machine (RFC 4862, section 5.5.4).
    times.ifa_preferred = 0;
    times.ifa_valid = VALID.as_secs() as u32;
    let attributes = &mut request.message_mut().attributes;
    attributes.push(AddressAttribute::CacheInfo(times));
    if address.address.is_ipv6() {
        // Skip duplicate address detection, which takes too long.
        attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
    }
    request.execute().await.map_err(refused)
}

async fn take_off(kernel: &mut Option<Handle>, address: &ServiceAddress) -> io::Result<()> {
    let handle = connected(kernel)?;
    let index = if_nametoindex(address.device.as_str())?;
    let message = message_of(index, address);
    match handle.address().del(message).execute().await {
        Ok(()) => Ok(()),
        // This is not an error: the address is already removed.
        Err(rtnetlink::Error::NetlinkError(error))
            if error.raw_code() == -(nix::errno::Errno::EADDRNOTAVAIL as i32) =>
        {
            Ok(())
        }
        Err(error) => Err(refused(error)),
    }
}

fn message_of(index: u32, address: &ServiceAddress) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = match address.address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    };
    message.header.prefix_len = address.prefix;
    message.header.index = index;
    message.attributes = vec![
        AddressAttribute::Local(address.address),
        AddressAttribute::Address(address.address),
    ];
    message
}

fn connected(kernel: &mut Option<Handle>) -> io::Result<Handle> {
    if let Some(handle) = kernel {
        return Ok(handle.clone());
    }
    let (connection, handle, _) = rtnetlink::new_connection()?;
    tokio::spawn(connection);
    Ok(kernel.insert(handle).clone())
}

fn refused(error: rtnetlink::Error) -> io::Error {
    match error {
        rtnetlink::Error::NetlinkError(error) => error.to_io(),
        other => io::Error::other(other.to_string()),
    }
}

/// Time after which the kernel removes an address that is not renewed.
const VALID: Duration = Duration::from_secs(2);
const RENEW: Duration = Duration::from_millis(500);
/// Number of announcements of a new address, in the first seconds.
const ANNOUNCED: u32 = 4;
const PROGRAM_TIME_MAX: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::testing::run;
    use super::*;

    /// The program, for example one for BGP or for a cloud, is called for each order, one call after another. If it fails or is
    /// missing, the task continues.
    #[test]
    fn a_configured_program_moves_the_addresses_in_place_of_the_gateway() {
        let folder = tempfile::tempdir().expect("a folder");
        let (program, told) = (folder.path().join("move"), folder.path().join("told"));
        let script = format!("#!/bin/sh\necho \"$@\" >>{}\nexit 1\n", told.display());
        std::fs::write(&program, script).expect("written");
        let mode = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(&program, mode).expect("allowed");
        let texts = ["192.0.2.1/24@eth0", "2001:db8::1/64@eth1"];
        let both = texts.map(|text| text.parse::<ServiceAddress>().expect("an address"));
        run(async {
            let (addresses, keeping) = Addresses::new(Some(program));
            let keeping = tokio::spawn(keeping);
            for done in [addresses.add(&both), addresses.remove(&both[..1])] {
                done.await.expect("it is called");
            }
            let (others, keeping_others) = Addresses::new(Some(folder.path().join("none")));
            let keeping_others = tokio::spawn(keeping_others);
            others.add(&both).await.expect("it is tried");
            drop((addresses, others));
            for task in [keeping, keeping_others] {
                task.await.expect("it ends with the last order");
            }
        });
        let told = std::fs::read_to_string(told).expect("it was called");
        let due = "add 192.0.2.1/24 eth0\nadd 2001:db8::1/64 eth1\nremove 192.0.2.1/24 eth0\n";
        assert_eq!(told, due);
    }
}
