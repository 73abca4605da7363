//! Two switches, such as of the audio and of the video of the same sources: they leave a source and come back to it together.
//!
//! Each holds the other weakly. Inputs with the same number in their names are partners. A switch that is stopped has no say.

use std::sync::Mutex;

use gst::subclass::prelude::*;

use super::FallbackSwitch;
use crate::kit::lock;

/// Of all pairs: who is whose partner, and the order in which healths are told, so that the last one told is the latest. No
/// last reference is dropped under it.
static PAIRS: Mutex<()> = Mutex::new(());

pub(super) fn of(element: &FallbackSwitch) -> Option<FallbackSwitch> {
    lock(&element.imp().partner).upgrade()
}

/// Makes the two partners of each other, and of no other one: of those that were. `None`: they are that already.
pub(super) fn pair(
    element: &FallbackSwitch,
    partner: Option<&FallbackSwitch>,
) -> Option<Vec<FallbackSwitch>> {
    let parted: Vec<FallbackSwitch>;
    let _pairs = lock(&PAIRS);
    let before = [of(element), partner.and_then(of)];
    parted = before.into_iter().flatten().collect();
    if partner.is_some_and(|partner| parted == [partner.clone(), element.clone()]) {
        return None;
    }
    for one in parted.iter().chain([element]) {
        lock(&one.imp().partner).set(None);
        one.imp().turns.note_partners(&[]);
    }
    if let Some(partner) = partner {
        lock(&element.imp().partner).set(Some(partner));
        lock(&partner.imp().partner).set(Some(element));
    }
    Some(parted)
}

/// Tells the partner of this element's inputs. To be followed by the partner's actions.
pub(super) fn tell(element: &FallbackSwitch) -> Option<FallbackSwitch> {
    let partner = of(element)?;
    let _pairs = lock(&PAIRS);
    if of(element).as_ref() != Some(&partner) {
        return None;
    }
    let healths = element.imp().turns.healths();
    partner.imp().turns.note_partners(&healths);
    Some(partner)
}
