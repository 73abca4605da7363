//! SRTP keys in offers and answers (RFC 4568). Each side has its own keys: the relay decrypts the media of one side, and encrypts them
//! again for the other side.

use threadbare_rtp_types::srtp::{Crypto, MASTER_KEY_BYTES_MAX, MasterKey, Mki, Suite};

use super::Random;
use super::options::SdesOptions;
use super::spec::SrtpKeys;
use crate::sdp::Section;

/// An accepted `a=crypto` line of an offer, with our key for it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Accepted {
    pub(super) tag: u32,
    #[serde(with = "crate::mirror")]
    pub(super) keys: SrtpKeys,
}

impl Accepted {
    /// Returns the value of the answer's line. It has "The tag and crypto-suite from the accepted crypto attribute in the offer" (RFC 4568,
    /// section 5.1.2).
    pub(super) fn to_value(&self, options: &SdesOptions) -> String {
        value(self.tag, &self.keys.send, options)
    }
}

/// An `a=crypto` line that we offer.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Own {
    pub(super) tag: u32,
    #[serde(with = "crate::mirror")]
    pub(super) key: MasterKey,
}

impl SdesOptions {
    /// Whether the request allows this suite. `nonew` overrides `no-` and `only-`, and `only-` overrides `no-`.
    fn means(&self, suite: Suite) -> bool {
        self.adds_none
            || match &self.only {
                None => !self.without.contains(&suite),
                Some(only) => only.contains(&suite),
            }
    }
}

impl Own {
    pub(super) fn to_value(&self, options: &SdesOptions) -> String {
        value(self.tag, &self.key, options)
    }
}

fn value(tag: u32, key: &MasterKey, options: &SdesOptions) -> String {
    let crypto = Crypto {
        tag,
        key: key.clone(),
        lifetime_packets: options.has_lifetime.then_some(LIFETIME_PACKETS),
    };
    let padded = crypto.to_value();
    if options.pads {
        return padded.to_string();
    }
    // The lifetime may follow the key, so the padding need not be at the end.
    padded.replace('=', "")
}

/// Lifetime of a key, in packets. "Add the key lifetime parameter `2^31` to each crypto key."
const LIFETIME_PACKETS: u64 = 1 << 31;

/// Returns the usable `a=crypto` lines of a description, and the reason why the first unusable one is refused.
pub(super) fn read(section: &Section) -> (Vec<Crypto>, Option<String>) {
    let mut usable = Vec::new();
    let mut refused = None;
    let values = section.attributes().filter(|(name, _)| *name == "crypto");
    for (_, value) in values.take(CRYPTOS_MAX) {
        match Crypto::parse(value) {
            Ok(crypto) => usable.push(crypto),
            // An answerer picks a line that it supports (section 5.1.2), so the others do not matter.
            Err(error) => refused = refused.or(Some(error.to_string())),
        }
    }
    (usable, refused)
}

/// Chooses a line of an offer: one that the request prefers, or else the first one, because the lines are ordered by preference (section
/// 5.1.1). `before` contains the keys in use with this side. Our key stays the same as long as the suite does.
pub(super) fn accept(
    offered: &[Crypto],
    options: &SdesOptions,
    before: Option<&SrtpKeys>,
    random: Random<'_>,
) -> Option<Accepted> {
    let of_suite = |suite: &Suite| offered.iter().find(|one| one.key.suite() == *suite);
    let stays = before.filter(|_| options.is_static);
    let is_meant = |one: &&Crypto| options.means(one.key.suite());
    let taken = stays
        .and_then(|keys| of_suite(&keys.receive.suite()))
        .or_else(|| options.preferred.iter().find_map(of_suite))
        .or_else(|| offered.iter().find(is_meant))
        // The documentation requires this: if the request excludes all suites, the offerer still gets its first one.
        .or_else(|| offered.first())?;
    let send = own_key(taken.key.suite(), taken.key.mki(), before, random);
    Some(Accepted {
        tag: taken.tag,
        keys: SrtpKeys {
            receive: taken.key.clone(),
            send,
        },
    })
}

/// Returns the lines to offer: first the suites of the other side's offer, then all others. `before` contains the keys in use with this
/// side.
pub(super) fn offer(
    of_author: &[Crypto],
    options: &SdesOptions,
    before: Option<&SrtpKeys>,
    random: Random<'_>,
) -> Vec<Own> {
    let mut suites: Vec<Suite> = Vec::new();
    // A suite in use is offered first, so that nothing changes.
    let used = before.map(|keys| keys.send.suite());
    let received = of_author.iter().map(|one| one.key.suite());
    let new = Suite::ALL
        .into_iter()
        .filter(|_| !options.adds_none || of_author.is_empty());
    for suite in used.into_iter().chain(received).chain(new) {
        if !suites.contains(&suite) && options.means(suite) {
            suites.push(suite);
        }
    }
    let rank = |suite: &Suite| options.order.iter().position(|one| one == suite);
    suites.sort_by_key(|suite| rank(suite).unwrap_or(options.order.len()));
    let own = |(place, suite): (usize, Suite)| Own {
        tag: place as u32 + 1,
        key: own_key(suite, Mki::default(), before, &mut *random),
    };
    suites.into_iter().enumerate().map(own).collect()
}

/// Returns our key for this suite and identifier: the key in use if both match, or else a new one.
fn own_key(suite: Suite, mki: Mki, before: Option<&SrtpKeys>, random: Random<'_>) -> MasterKey {
    // Peers treat a key with another identifier as another key, so packet indices start again from zero. The same bytes must therefore not
    // be used with another identifier.
    let is_same = |keys: &&SrtpKeys| (keys.send.suite(), keys.send.mki()) == (suite, mki);
    if let Some(keys) = before.filter(is_same) {
        return keys.send.clone();
    }
    let mut bytes = [0; MASTER_KEY_BYTES_MAX];
    random(&mut bytes);
    MasterKey::from_random(suite, &bytes).with_mki(mki)
}

/// The keys after an answer.
#[derive(Debug)]
pub(super) struct Agreed {
    pub(super) keys: SrtpKeys,
    /// Whether the answer's line has another tag than the line that was offered with its suite.
    pub(super) has_own_tag: bool,
}

/// Returns the keys after an answer: the answerer's key, and ours of the accepted line. An answer repeats the tag of that line (RFC 4568,
/// section 5.1.2). Some phones write another tag. Then the suite identifies the line.
pub(super) fn answered(own: &[Own], answer: &[Crypto]) -> Option<Agreed> {
    let of_suite = |theirs: &Crypto, has_tag: bool| {
        let suite = theirs.key.suite();
        let is_it = |one: &&Own| one.key.suite() == suite && (!has_tag || one.tag == theirs.tag);
        let ours = own.iter().find(is_it)?;
        Some(Agreed {
            keys: SrtpKeys {
                receive: theirs.key.clone(),
                send: ours.key.clone(),
            },
            has_own_tag: !has_tag,
        })
    };
    let find = |has_tag: bool| answer.iter().find_map(|theirs| of_suite(theirs, has_tag));
    find(true).or_else(|| find(false))
}

/// Limit of `a=crypto` lines in a medium. About 20 suites exist.
const CRYPTOS_MAX: usize = 64;
