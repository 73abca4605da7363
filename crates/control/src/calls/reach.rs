//! Addresses in descriptions to which no media may be sent. They are checked when a description is read, so that the reply can contain a
//! warning. The relay checks each destination address again, wherever the address comes from.

use std::net::SocketAddr;

use threadbare_rtp_types::policy::{Forbidden, MediaPolicy};
use threadbare_rtp_types::side::Side;

use super::answer::Prepared;
use super::dialog::{Dialog, Local, Slot};
use super::id::StreamId;
use super::warnings::Warnings;
use super::{CallId, Calls};

/// Completes the specifications of a dialog's streams. Removes forbidden addresses, so that nothing is sent there, and adds a warning for
/// each.
pub(super) fn finish_specs<P>(calls: &Calls<P>, id: &CallId, at: usize, prepared: &mut Prepared) {
    let Some(dialog) = calls.calls.get(id).and_then(|call| call.dialogs.get(at)) else {
        return;
    };
    for (index, spec) in prepared.specs.iter_mut().enumerate() {
        let (Some(spec), Some(slot)) = (spec, dialog.slot_to_be(index)) else {
            continue;
        };
        dialog.finish_spec(index, spec);
        for side in Side::BOTH {
            let local = &slot.local[side as usize];
            let party = &mut spec.sides[side as usize];
            let judged = judge_pair(calls, dialog, slot.stream, local, [party.rtp, party.rtcp]);
            [party.rtp, party.rtcp] = judged.addresses;
            judged.warn(index, &mut prepared.warnings);
        }
    }
}

/// Warns about forbidden addresses in the last offer of a dialog.
pub(super) fn warn_of_offer<P>(calls: &Calls<P>, id: &CallId, at: usize, warnings: &mut Warnings) {
    let Some(dialog) = calls.calls.get(id).and_then(|call| call.dialogs.get(at)) else {
        return;
    };
    let Some(offer) = &dialog.offer else {
        return;
    };
    for (index, offered) in offer.media.iter().enumerate() {
        let slot = dialog.slot_to_be(index);
        let Some(slot) = slot.filter(|_| offered.is_carried()) else {
            continue;
        };
        let addresses = [offered.remote.rtp, offered.remote.rtcp];
        let local = &slot.local[offer.author as usize];
        let judged = judge_pair(calls, dialog, slot.stream, local, addresses);
        judged.warn(index, warnings);
    }
}

/// Checks a party's addresses for RTP and RTCP. If the address for RTP is forbidden, the address for RTCP is removed too.
fn judge_pair<P>(
    calls: &Calls<P>,
    dialog: &Dialog<P>,
    stream: StreamId,
    local: &Local,
    mut addresses: [Option<SocketAddr>; 2],
) -> Judged {
    let mut forbidden = None;
    for place in 0..addresses.len() {
        if let Some(to) = addresses[place]
            && let Err(why) = judge(calls, dialog, stream, local, to)
        {
            addresses[place..].fill(None);
            forbidden = Some((["RTP", "RTCP"][place], to, why));
        }
    }
    Judged {
        addresses,
        forbidden,
    }
}

fn judge<P>(
    calls: &Calls<P>,
    dialog: &Dialog<P>,
    stream: StreamId,
    local: &Local,
    to: SocketAddr,
) -> Result<(), Forbidden> {
    let Some(policy) = &calls.media_policy else {
        return Ok(());
    };
    let ports = dialog.local_addresses().map(|local| policy.local(local));
    let leg = policy.local(local.rtp).ip();
    policy.judge(leg, &ports.collect::<Vec<_>>(), to)?;
    if leads_back(calls, policy, stream, to) {
        Err(Forbidden::SameCall)
    } else {
        Ok(())
    }
}

/// Whether packets that a stream sends to `to` come back to the same stream through other calls of this relay. If a proxy routes a call
/// through this relay again, two calls send to each other. This is no circle, because the last of them sends to a party.
fn leads_back<P>(calls: &Calls<P>, policy: &MediaPolicy, stream: StreamId, to: SocketAddr) -> bool {
    let mut to = policy.local(to);
    for _ in 0..HOPS_MAX {
        let Some((slot, side)) = slot_at(calls, policy, to) else {
            return false;
        };
        if slot.stream == stream {
            return true;
        }
        let other = slot
            .running
            .as_deref()
            .map(|spec| &spec.sides[side.other() as usize]);
        let Some(next) = other.and_then(|other| other.rtp) else {
            return false;
        };
        to = policy.local(next);
    }
    true
}

/// Returns the slot and the side that have a port at this local address.
fn slot_at<'a, P>(
    calls: &'a Calls<P>,
    policy: &MediaPolicy,
    at: SocketAddr,
) -> Option<(&'a Slot<P>, Side)> {
    if !policy.has_media_port(at) {
        return None;
    }
    let dialogs = calls.calls.values().flat_map(|call| &call.dialogs);
    let slots = dialogs.flat_map(Dialog::all_slots);
    let mut sides = slots.flat_map(|slot| Side::BOTH.map(|side| (slot, side)));
    sides.find(|(slot, side)| {
        let local = &slot.local[*side as usize];
        policy.local(local.rtp) == at || local.rtcp.map(|rtcp| policy.local(rtcp)) == Some(at)
    })
}

/// The allowed addresses of a party, and the first forbidden one.
struct Judged {
    addresses: [Option<SocketAddr>; 2],
    forbidden: Option<(&'static str, SocketAddr, Forbidden)>,
}

impl Judged {
    /// Adds a warning about the forbidden address. `index` is that of the `m=` line.
    fn warn(&self, index: usize, warnings: &mut Warnings) {
        if let Some((what, to, why)) = &self.forbidden {
            warnings.add(index, format_args!("{what} is not sent to {to}: {why}"));
        }
    }
}

/// Maximum number of times that a call passes through this relay. SIP's `Max-Forwards` is 70, but each pass adds delay.
const HOPS_MAX: usize = 8;
