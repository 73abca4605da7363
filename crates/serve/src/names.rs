//! File names of recordings. A requested name cannot lead outside of the operator's folder.

use threadbare_config::RecordingFormat;

/// The error if a requested file name is not allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "recording-file {0:?} is not allowed; expected the name of a WAV, Matroska (.mka) or pcap file of up to {NAME_BYTES_MAX} bytes, without folders and without a leading dot"
)]
pub(super) struct NameError(String);

/// Returns the file name and format of a recording. They are the requested ones, or a name made from the Call-ID and a random number.
///
/// # Errors
/// Fails if the requested name contains a folder, starts with a dot, is too long, or has the extension of another format.
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

/// Maximum length of a requested name. File systems allow 255 bytes for the name with the suffixes that the recorder adds.
const NAME_BYTES_MAX: usize = 200;
/// Maximum number of characters of the Call-ID in a file name.
const CALL_CHARS_MAX: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_recordings_cannot_leave_their_folder() {
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
