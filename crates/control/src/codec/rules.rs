//! A request's rules for codecs.

use crate::ng::{Refusal, Request, Value};
use crate::sdp::Codec;

use super::spec::Spec;

/// A keyword that stands for all codecs. "As a special keyword, `all` can be used to remove all codecs, except the ones that should
/// explicitly offered."
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Everything {
    /// Removes all codecs except those that are also targets of transcoding.
    All,
    /// Removes all codecs. Those that are also targets of transcoding are added again.
    Full,
}

/// Codecs that are selected by name, or all codecs.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Selection {
    /// Selects all codecs, with exceptions.
    #[serde(rename = "all")]
    pub everything: Option<Everything>,
    /// Named codecs, without exceptions.
    pub named: Vec<Spec>,
}

impl Selection {
    /// Whether `codec` is one of the named codecs.
    #[must_use]
    pub fn names(&self, codec: &Codec) -> bool {
        is_listed(&self.named, codec)
    }

    /// Whether `codec` is named, or all codecs are selected.
    #[must_use]
    pub fn has(&self, codec: &Codec) -> bool {
        self.everything.is_some() || self.names(codec)
    }
}

pub(crate) fn is_listed(specs: &[Spec], codec: &Codec) -> bool {
    specs.iter().any(|spec| spec.matches(codec))
}

/// The rules of an offer.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Rules {
    /// Codecs to remove as if they had never been offered.
    pub strip: Selection,
    /// Codecs that are not offered. One of them is accepted and transcoded if a codec was added and the other side accepts no other codec
    /// of the offerer.
    pub mask: Selection,
    /// Codecs that are not offered, but accepted and transcoded.
    pub consume: Selection,
    /// Codecs that are offered, and accepted even if the other side refuses them.
    pub accept: Selection,
    /// Codecs that stay in spite of `all` and `full`.
    #[serde(rename = "exceptions")]
    pub except: Vec<Spec>,
    /// Codecs that stay as those in `except` do, and precede all others in this order.
    pub offer: Vec<Spec>,
    /// Codecs that are offered even if the offerer does not have them.
    pub transcode: Vec<Spec>,
    /// Encoder options for offered codecs.
    pub set: Vec<Spec>,
    /// Packet time of packets to the receiver of the offer, ms.
    pub ptime_ms: Option<u32>,
    /// Packet time of packets to the offerer, ms.
    pub ptime_reverse_ms: Option<u32>,
    /// Whether codecs that both sides accept are transcoded too.
    pub force_transcoding: bool,
    /// Whether the rules are for a subscription, whose source does not negotiate.
    pub is_copy: bool,
}

/// Allowed packet times, ms. "a receiver SHOULD accept packets representing between 0 and 200 ms of audio data" (RFC 3551, section 4.2).
const PTIMES_MS: std::ops::RangeInclusive<i64> = 1..=200;

impl Rules {
    /// Reads the dictionary `codec` and the related keys.
    ///
    /// # Errors
    /// Fails if a codec or packet time is invalid.
    pub fn of_request(request: &Request) -> Result<Rules, Refusal> {
        let specs = |list: &'static str| specs(request, list);
        let ptime = |key: &'static str| {
            let ms = request.integer(key, PTIMES_MS);
            ms.map(|ms| ms.and_then(|ms| u32::try_from(ms).ok()))
        };
        Ok(Rules {
            strip: selection(specs("strip")?),
            mask: selection(specs("mask")?),
            consume: selection(specs("consume")?),
            accept: selection(specs("accept")?),
            except: specs("except")?,
            offer: specs("offer")?,
            transcode: specs("transcode")?,
            set: specs("set")?,
            ptime_ms: ptime("ptime")?,
            ptime_reverse_ms: ptime("ptime-reverse")?,
            force_transcoding: request.has_flag("force-transcoding"),
            is_copy: false,
        })
    }

    /// Converts the rules to those of a subscription. Its source does not negotiate, so a removed codec still arrives and is converted.
    #[must_use]
    pub fn of_copy(mut self) -> Rules {
        let strip = std::mem::take(&mut self.strip);
        self.consume.named.extend(strip.named);
        self.consume.everything = self.consume.everything.or(strip.everything);
        // Codecs that the subscriber refuses still arrive, so they are converted for the subscriber.
        self.accept.everything.get_or_insert(Everything::All);
        self.is_copy = true;
        self
    }

    /// Returns the encoder options that `set` has for `codec`. "Codec options (bitrate) are only applied to codecs that match the given
    /// parameters".
    #[must_use]
    pub fn options_of(&self, codec: &Codec) -> Option<&Spec> {
        self.set.iter().find(|spec| spec.matches(codec))
    }

    /// Returns the specifications that set or added this codec, those of `set` first.
    pub(crate) fn specs_of<'a>(&'a self, codec: &'a Codec) -> impl Iterator<Item = &'a Spec> {
        let added = self.transcode.iter().filter(|spec| spec.matches(codec));
        self.options_of(codec).into_iter().chain(added)
    }
}

fn specs(request: &Request, list: &'static str) -> Result<Vec<Spec>, Refusal> {
    let texts = request.codecs(list)?;
    let spec = |text: &str| {
        text.parse().map_err(|_| {
            let allowed =
                "NAME or NAME/RATE/CHANNELS/BITRATE/PTIME/FMTP/OPTIONS, the numbers above 0";
            Refusal::value(list, &Value::text(text), allowed)
        })
    };
    texts.into_iter().map(spec).collect()
}

fn selection(specs: Vec<Spec>) -> Selection {
    let mut selection = Selection::default();
    for spec in specs {
        match (spec.name.as_str(), spec.clock_rate_hz) {
            ("all", None) => {
                // If both words are given, the one that removes more codecs counts.
                selection.everything.get_or_insert(Everything::All);
            }
            ("full", None) => selection.everything = Some(Everything::Full),
            _ => selection.named.push(spec),
        }
    }
    selection
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ng::json;

    fn rules(text: &str) -> Result<Rules, Refusal> {
        let request = Request::new(json::decode(text.as_bytes()).expect(text));
        Rules::of_request(&request.expect(text))
    }

    #[test]
    fn keys_and_flags_are_equivalent() {
        let by_key = rules(
            r#"{"command":"offer","codec":{"mask":["all"],"transcode":["PCMA","opus/48000/2/32000"],"accept":["all"]},"ptime":"30"}"#,
        );
        let by_flag = rules(
            r#"{"command":"offer","flags":["codec-mask-all","codec-transcode-PCMA","codec-transcode-opus/48000/2/32000","always transcode"],"ptime":30}"#,
        );
        let by_string = rules(
            r#"{"command":"offer","rtpp-flags":"codec=[mask=[all] transcode=[PCMA opus/48000/2/32000]] always-transcode ptime=30"}"#,
        );
        let found = by_key.expect("rules");
        assert_eq!(found.mask.everything, Some(Everything::All));
        assert_eq!(found.accept.everything, Some(Everything::All));
        assert_eq!((found.transcode.len(), found.ptime_ms), (2, Some(30)));
        assert_eq!(by_flag.as_ref(), Ok(&found));
        assert_eq!(by_string, Ok(found));
    }

    #[test]
    fn refusals_state_the_list_and_the_value() {
        for (text, words) in [
            (
                r#"{"command":"offer","codec":{"strip":["PCMU/fast"]}}"#,
                ["strip", "\"PCMU/fast\""],
            ),
            (
                r#"{"command":"offer","ptime":0}"#,
                ["ptime", "from 1 to 200"],
            ),
            (
                r#"{"command":"offer","codec":{"mask":[[1]]}}"#,
                ["mask", "a list"],
            ),
        ] {
            let error = rules(text).expect_err(text).to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
    }
}
