//! Chooses the best node for a stream by weighted rendezvous hashing.
//!
//! Each node has a score for each stream. The score depends only on both names and the node's weight. The node with the highest
//! score wins. When a node comes or goes, only its own streams move. All nodes compute the same scores.

use std::sync::Arc;

use crate::keys::{Declaration, Kind, NodeName, NodeRecord};

/// The hash of a name. It is the same on all nodes and in all versions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Point(u64);

impl Point {
    /// Hashes a name (FNV-1a).
    pub(crate) fn of(name: &str) -> Point {
        Point(name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        }))
    }
}

/// How well a node fits a stream. Greater is better.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub(crate) struct Fit {
    /// The rank of the node, which is compared before the score: see [`tier`].
    tier: i8,
    score: f64,
}

impl Fit {
    pub(crate) fn of(
        stream: Point,
        declaration: &Declaration,
        (name, node): (&NodeName, Point),
        record: &NodeRecord,
    ) -> Fit {
        Fit {
            tier: tier(declaration, name, record),
            score: score(stream, node, record.weight),
        }
    }

    /// Whether a stream moves from `self` to `other`. It does not move for a small difference, which the next change could
    /// reverse.
    pub(crate) fn is_worth_leaving_for(self, other: Fit) -> bool {
        other.tier > self.tier
            || other.tier == self.tier && other.score > self.score * OWNER_PREFERENCE
    }
}

/// Returns the rank of a node. The ranks, from worst to best: a node that takes no calls (only for a service); a draining node;
/// an avoided node; a neutral node; a preferred node; the operator's choice.
fn tier(declaration: &Declaration, name: &NodeName, record: &NodeRecord) -> i8 {
    let has = |wanted: &[Arc<str>]| wanted.iter().any(|label| record.labels.contains(label));
    let is_wanted = declaration.at.as_ref() == Some(name);
    if declaration.kind == Kind::Service && record.room.is_none() {
        // The wanted node is still ranked above the others, because all nodes may have just started.
        return if is_wanted { -3 } else { -4 };
    }
    if record.draining {
        return -2;
    }
    if is_wanted {
        return 2;
    }
    if has(&declaration.avoid) {
        return -1;
    }
    i8::from(has(&declaration.prefer))
}

/// Returns the score -w / ln(u). The number u depends on stream and node, and is uniform in (0, 1). Each node has the highest
/// score with a probability equal to its share of the weight (C. Schindelhauer, G. Schomaker, "Weighted distributed hash
/// tables", SPAA 2005, the logarithmic method).
fn score(stream: Point, node: Point, weight: f64) -> f64 {
    let bits = mix(stream.0 ^ mix(node.0));
    // A number of 53 bits, which is never exactly 0 or 1.
    let u = ((bits >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    -weight / u.ln()
}

/// Mixes the bits of a number, so that each input bit affects half of the output bits (the finaliser of SplitMix64).
pub(crate) fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// A new node takes a stream only if its score is better by this factor.
const OWNER_PREFERENCE: f64 = 1.02;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Incarnation;

    fn node(weight: f64, labels: &[&str], draining: bool) -> NodeRecord {
        NodeRecord {
            incarnation: Incarnation(1),
            beat: 0,
            weight,
            labels: labels.iter().map(|&label| label.into()).collect(),
            draining,
            link: None,
            room: None,
        }
    }

    /// A node's share of the streams is its share of the weight, by the definition of weighted rendezvous hashing.
    #[test]
    fn streams_are_spread_by_weight() {
        let nodes = [("a", 1.0), ("b", 2.0), ("c", 1.0)];
        let mut counts = [0_u32; 3];
        for n in 0..20_000 {
            let stream = Point::of(&format!("stream-{n}"));
            let fits = nodes.map(|(name, weight)| {
                let record = node(weight, &[], false);
                Fit::of(
                    stream,
                    &Declaration::default(),
                    (&name.into(), Point::of(name)),
                    &record,
                )
            });
            let best = (0..3).max_by(|&a, &b| fits[a].partial_cmp(&fits[b]).expect("numbers"));
            counts[best.expect("three")] += 1;
        }
        // Allow six standard deviations of a binomial count.
        for (count, due) in counts.into_iter().zip([5000.0, 10_000.0, 5000.0]) {
            assert!((f64::from(count) - due).abs() < 450.0, "{counts:?}");
        }
    }

    /// A node that takes no calls cannot carry a service.
    #[test]
    fn service_prefers_its_home_node_that_takes_calls() {
        let service = Declaration {
            kind: Kind::Service,
            at: Some("home".into()),
            ..Declaration::default()
        };
        for n in 0..100 {
            let name = Point::of(&format!("service-{n}"));
            let fit = |node_name: &str, room, draining| {
                let record = NodeRecord {
                    room,
                    ..node(1.0, &[], draining)
                };
                let of = (&node_name.into(), Point::of(node_name));
                Fit::of(name, &service, of, &record)
            };
            let in_order = [
                fit("other", None, false),
                fit("home", None, false),
                fit("other", Some(0), true),
                fit("other", Some(0), false),
                fit("home", Some(0), false),
            ];
            assert!(in_order.is_sorted(), "{in_order:?}");
        }
    }

    #[test]
    fn labels_have_precedence_over_the_hash() {
        let stream = Declaration {
            prefer: vec!["near".into()],
            avoid: vec!["far".into()],
            ..Declaration::default()
        };
        for n in 0..100 {
            let name = Point::of(&format!("stream-{n}"));
            let fit = |record| Fit::of(name, &stream, (&"a".into(), Point::of("a")), &record);
            let in_order = [
                fit(node(1000.0, &["near"], true)),
                fit(node(1000.0, &["near", "far"], false)),
                fit(node(1000.0, &[], false)),
                fit(node(0.001, &["near"], false)),
            ];
            assert!(in_order.is_sorted(), "{in_order:?}");
        }
    }
}
