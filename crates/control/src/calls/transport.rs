//! The profiles of RTP: with or without encryption, with or without feedback.

/// A profile, as in the protocol field of an `m=` line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Transport {
    /// Whether packets are encrypted: SRTP (RFC 3711).
    pub(super) is_secure: bool,
    /// Whether the profile has RTCP feedback (RFC 4585).
    pub(super) has_feedback: bool,
    /// Whether the keys come from DTLS (RFC 5764).
    pub(super) has_dtls: bool,
}

impl Transport {
    /// Returns the profile of a protocol field. `None`: the protocol is not RTP.
    pub(super) fn of(protocol: &str) -> Option<Transport> {
        // Some phones write lower-case letters.
        let protocol = protocol.to_ascii_uppercase();
        let (prefix, profile) = protocol.rsplit_once("RTP/")?;
        let has_dtls = match prefix {
            "" => false,
            "UDP/TLS/" => true,
            _ => return None,
        };
        let (is_secure, has_feedback) = match profile {
            "AVP" => (false, false),
            "AVPF" => (false, true),
            "SAVP" => (true, false),
            "SAVPF" => (true, true),
            _ => return None,
        };
        Some(Transport {
            is_secure,
            has_feedback,
            has_dtls,
        })
    }

    /// Whether a protocol other than RTP consists of plain datagrams, without TLS or DTLS: `udptl`, `UDP/BFCP` and similar ones.
    pub(super) fn is_datagrams(protocol: &str) -> bool {
        let mut parts = protocol.split('/');
        let is = |part: &str, name: &str| part.eq_ignore_ascii_case(name);
        let is_udp = parts
            .next()
            .is_some_and(|first| is(first, "UDP") || is(first, "UDPTL"));
        is_udp && !parts.any(|part| is(part, "TLS") || is(part, "DTLS"))
    }

    /// Whether a protocol is a connection between the parties (RFC 4145): `TCP/MSRP`, `TCP/TLS/BFCP` and similar ones.
    pub(super) fn is_connection(protocol: &str) -> bool {
        let first = protocol.split('/').next();
        first.is_some_and(|first| first.eq_ignore_ascii_case("TCP"))
    }

    /// Returns the protocol field of this profile. It never names DTLS.
    pub(super) fn name(self) -> &'static str {
        match (self.is_secure, self.has_feedback) {
            (false, false) => "RTP/AVP",
            (false, true) => "RTP/AVPF",
            (true, false) => "RTP/SAVP",
            (true, true) => "RTP/SAVPF",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transport_profiles_round_trip_through_their_names() {
        for name in ["RTP/AVP", "RTP/AVPF", "RTP/SAVP", "RTP/SAVPF"] {
            let transport = Transport::of(name).unwrap();
            assert_eq!(transport.name(), name);
            assert!(!transport.has_dtls);
        }
        assert!(Transport::of("UDP/TLS/RTP/SAVPF").unwrap().has_dtls);
        assert_eq!(Transport::of("rtp/avp"), Transport::of("RTP/AVP"));
        for datagrams in ["udp", "UDPTL", "udptl", "UDP/BFCP"] {
            assert!(Transport::is_datagrams(datagrams), "{datagrams}");
        }
        for other in [
            "UDP/TLS/UDPTL",
            "UDP/DTLS/SCTP",
            "TCP/BFCP",
            "DTLS/SCTP",
            "",
        ] {
            assert!(!Transport::is_datagrams(other), "{other}");
            assert_eq!(Transport::is_connection(other), other == "TCP/BFCP");
        }
        for other in ["udptl", "RTP/XYZ", "TCP/RTP/AVP", "TCP/MSRP", ""] {
            assert_eq!(Transport::of(other), None, "{other}");
        }
    }
}
