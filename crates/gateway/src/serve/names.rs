//! Names of recordings. What a request asks for stays in the operator's folder.

use crate::config::RecordingFormat;

/// A name that is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "recording-file {0:?}; allowed are names of WAV, Matroska (.mka) or pcap files of up to {NAME_BYTES_MAX} bytes, without folders, which do not begin with a dot"
)]
pub(super) struct NameError(String);

/// The name of a file, and its format: as it was asked for, or one of the call and a random number.
///
/// # Errors
/// What was asked for is no plain name, or that of another format.
pub(super) fn file_name(
    asked: Option<&str>,
    call: &str,
    random: u64,
    usual: RecordingFormat,
) -> Result<(String, RecordingFormat), NameError> {
    let ending = usual.ending();
    let Some(asked) = asked else {
        let plain = |letter: char| match letter {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' | '@' => letter,
            _ => '_',
        };
        let call: String = call.chars().take(CALL_CHARS_MAX).map(plain).collect();
        return Ok((format!("{call}-{random:016x}.{ending}"), usual));
    };
    let is_odd = |letter: char| letter == '/' || letter == '\\' || letter.is_control();
    let is_plain = !asked.is_empty()
        && asked.len() <= NAME_BYTES_MAX
        && !asked.starts_with('.')
        && !asked.contains(is_odd);
    let lower = asked.to_ascii_lowercase();
    match (is_plain, lower.rsplit_once('.')) {
        (true, Some((_, known))) if known == ending => Ok((asked.to_owned(), usual)),
        (true, Some((_, "wav"))) => Ok((asked.to_owned(), RecordingFormat::Wav)),
        (true, Some((_, "mka"))) => Ok((asked.to_owned(), RecordingFormat::Mka)),
        (true, Some((_, "pcap"))) => Ok((asked.to_owned(), RecordingFormat::Pcap)),
        (true, Some((_, "mp3" | "txt"))) | (false, _) => Err(NameError(asked.to_owned())),
        (true, _) => Ok((format!("{asked}.{ending}"), usual)),
    }
}

/// Systems take 255 with what is added.
const NAME_BYTES_MAX: usize = 200;
/// Of the call's own name in a file's.
const CALL_CHARS_MAX: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_their_folder() {
        use RecordingFormat::{Pcap, Wav};
        let asked = |name: &str| {
            let found = file_name(Some(name), "call", 1, Wav).ok();
            found.map(|(name, format)| format!("{name} {format:?}"))
        };
        assert_eq!(asked("a.wav").as_deref(), Some("a.wav Wav"));
        assert_eq!(asked("a b.WAV").as_deref(), Some("a b.WAV Wav"));
        assert_eq!(asked("a.Pcap").as_deref(), Some("a.Pcap Pcap"));
        assert_eq!(asked("a.b").as_deref(), Some("a.b.wav Wav"));
        let long = "a".repeat(NAME_BYTES_MAX + 1);
        for name in [
            "", ".", "..", "../a.wav", "/a.wav", "a/b.wav", "a\\b.wav", "a\0.wav", ".a.wav",
            "a.mp3", "a.txt", &long,
        ] {
            assert_eq!(asked(name), None, "{name}");
        }
        let made = file_name(None, "../a/b@c.d", 0xab, Pcap).expect("a name");
        assert_eq!(made, ("___a_b@c_d-00000000000000ab.pcap".to_owned(), Pcap));
        let made = file_name(None, &"é".repeat(5000), 0, Wav).expect("a name");
        assert!(made.0.len() < 255);
    }
}
