//! Chooses the codecs that are offered to the other side of a call, and evaluates its answer.
//!
//! Payload type numbers belong to the side that offered them. A relay between two sides forwards a codec that both accept, and replaces the
//! number. If the [`Rules`] of a request say so, the relay also offers additional codecs, accepts codecs that the other side refused, and
//! transcodes between them. The rules are those in the public documentation of the ng protocol, "Optionally included codec manipulations".
//!
//! ```
//! use threadbare_control::codec::{Rules, Then, answer, offer};
//! use threadbare_control::sdp::Sdp;
//!
//! let parse = |formats: &str| Sdp::parse(format!("v=0\nm=audio 4000 RTP/AVP {formats}\n").as_bytes());
//! let mut rules = Rules::default();
//! rules.transcode.push("PCMA".parse()?);
//!
//! let offered = offer(&parse("0")?.media[0].codecs(), &rules);
//! assert_eq!(offered.codecs().map(|codec| codec.payload_type.0).collect::<Vec<_>>(), [0, 8]);
//!
//! let answered = answer(&offered, &parse("8")?.media[0].codecs(), false)?;
//! assert_eq!(answered.to_offerer[0].name, "PCMU");
//! assert!(matches!(&answered.from_offerer[0].then, Then::Transcode(codec) if codec.name == "PCMA"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod answer;
mod offer;
mod rules;
mod spec;

pub use answer::{Answer, NoCommonCodec, Route, Then, answer};
pub use offer::{Offer, Offered, is_supported, offer};
pub use rules::{Everything, Rules, Selection};
pub use spec::{Spec, SpecError};
