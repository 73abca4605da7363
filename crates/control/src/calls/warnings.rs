//! Unusable `m=` lines, and the warnings of a reply.
//!
//! By RFC 3264, section 6, each stream is accepted or rejected separately. So the result of reading an `m=` line is either how the line is
//! handled, or why it is rejected. A request fails only if no line is left.

use std::fmt;

use super::failure::Failure;
use crate::codec::NoCommonCodec;
use crate::ng::Dictionary;
use crate::sdp::SdpError;

/// The reason why an `m=` line is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unusable {
    /// The line or its address is malformed.
    #[error(transparent)]
    Sdp(#[from] SdpError),
    #[error(
        "the relay does not support the protocol {0}: expected RTP/AVP, RTP/AVPF, RTP/SAVP, RTP/SAVPF, udptl, or UDP without TLS and DTLS"
    )]
    Protocol(String),
    #[error(
        "media other than audio keep their encryption, so transport-protocol must be {protocol} or absent"
    )]
    Encryption { protocol: String },
    #[error(
        "DTLS is not supported ({protocol}): expected RTP/AVP, RTP/AVPF, or a=crypto with RTP/SAVP or RTP/SAVPF"
    )]
    Dtls { protocol: String },
    #[error(
        "{0}: expected an a=crypto line with one of AES_CM_128_HMAC_SHA1_80, AES_CM_128_HMAC_SHA1_32, AES_256_CM_HMAC_SHA1_80, AEAD_AES_128_GCM, AEAD_AES_256_GCM"
    )]
    NoKey(String),
    #[error(
        "the SDES flags exclude all crypto suites that transport-protocol {0} could offer: expected at least one suite"
    )]
    NoSuite(&'static str),
    #[error(
        "the line has no RTP codec with a name: expected at least one audio codec with a=rtpmap, or a static payload type"
    )]
    NoAudio,
    #[error("the codec rules of the request leave no audio codec (allow-no-codec-media)")]
    NoCodecLeft,
    #[error("the key sdp-media-remove of the request removes this kind of media")]
    Removed,
    #[error(transparent)]
    Codec(#[from] NoCommonCodec),
    #[error("the dialog already has {allowed} m= lines, which is the limit")]
    TooMany { allowed: usize },
}

/// Warnings of a reply, in the order of the `m=` lines.
#[derive(Debug, Default)]
pub(super) struct Warnings {
    texts: Vec<String>,
    /// Reasons of rejections that the request asked for.
    asked: Vec<String>,
    rejections: usize,
}

/// Limit of a reply's warnings, because the reply has to fit a datagram.
const WARNINGS_MAX: usize = 16;

impl Warnings {
    /// Adds a warning about the line with this index, unless the same warning is there already.
    pub(super) fn add(&mut self, index: usize, what: impl fmt::Display) {
        let text = format!("m= line {}: {what}", index + 1);
        if self.texts.len() < WARNINGS_MAX && !self.texts.contains(&text) {
            self.texts.push(text);
        }
    }

    /// Rejects the line with this index. Adds a warning, unless the request asked for the rejection.
    pub(super) fn reject(&mut self, index: usize, why: &Unusable) {
        self.rejections += 1;
        let is_asked = matches!(why, Unusable::Removed | Unusable::NoCodecLeft);
        if is_asked {
            self.asked.push(format!("m= line {}: {why}", index + 1));
        } else {
            self.add(index, why);
        }
    }

    /// Refuses the request if all its lines were rejected.
    ///
    /// # Errors
    /// Fails if at least one line was rejected and none is left. The error contains all reasons.
    pub(super) fn check(&self, is_any_carried: bool) -> Result<(), Failure> {
        if is_any_carried || self.rejections == 0 {
            return Ok(());
        }
        let all: Vec<&str> = self
            .texts
            .iter()
            .chain(&self.asked)
            .map(|one| &**one)
            .collect();
        Err(Failure::NoLine(all.join("; ")))
    }

    /// Adds the warnings of another description of the same request.
    pub(super) fn join(&mut self, more: Warnings) {
        let new = more.texts.into_iter();
        let new = new
            .filter(|text| !self.texts.contains(text))
            .collect::<Vec<_>>();
        self.texts.extend(new);
    }

    /// Adds the key `warning` to a reply, if there are warnings.
    pub(super) fn tell(self, keys: &mut Dictionary) {
        if !self.texts.is_empty() {
            keys.push("warning", self.texts.join("; "));
        }
    }
}
