//! Partners: two switches, such as those for the audio and the video of the same sources. They leave a source and return to it
//! together.
//! Each switch has a weak reference to the other one. Inputs with the same number in their names are partners. Partners in a
//! stopped switch do not count.

use std::sync::Mutex;

use gst::subclass::prelude::*;

use super::FallbackSwitch;
use crate::kit::lock;

/// Guards all pairs. The lock also puts the reports of health in order: each report replaces an older one. The last reference
/// to an element is never dropped under this lock.
static PAIRS: Mutex<()> = Mutex::new(());

pub(super) fn of(element: &FallbackSwitch) -> Option<FallbackSwitch> {
    lock(&element.imp().partner).upgrade()
}

/// Makes the two switches partners, and ends their earlier partnerships. Returns the earlier partners, or `None` if the two
/// switches are already partners.
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

/// Reports the health of this element's inputs to the partner, and returns it. The caller must then carry out the partner's
/// actions.
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
