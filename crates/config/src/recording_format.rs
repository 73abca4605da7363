//! Formats of recordings.

/// Format of a recording.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    clap::ValueEnum,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum RecordingFormat {
    /// WAV with audio of 16 bits, and a channel for each party
    #[default]
    Wav,
    /// WAV with G.711 codes if the audio has 8000 Hz, else with audio of 16 bits
    WavG711,
    /// Matroska with audio of 16 bits, and a track for each party
    Mka,
    /// Matroska with G.711 codes if the audio has 8000 Hz, else with audio of 16 bits
    MkaG711,
    /// Packets as they were received from the parties
    Pcap,
}

impl RecordingFormat {
    /// All formats. If several formats have the same extension, the extension selects the first of them.
    pub const ALL: [RecordingFormat; 5] = [
        RecordingFormat::Wav,
        RecordingFormat::WavG711,
        RecordingFormat::Mka,
        RecordingFormat::MkaG711,
        RecordingFormat::Pcap,
    ];

    /// Returns the name of the format in the configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            RecordingFormat::Wav => "wav",
            RecordingFormat::WavG711 => "wav-g711",
            RecordingFormat::Mka => "mka",
            RecordingFormat::MkaG711 => "mka-g711",
            RecordingFormat::Pcap => "pcap",
        }
    }

    /// Returns the file extension of the format.
    #[must_use]
    pub fn ending(self) -> &'static str {
        match self {
            RecordingFormat::Wav | RecordingFormat::WavG711 => "wav",
            RecordingFormat::Mka | RecordingFormat::MkaG711 => "mka",
            RecordingFormat::Pcap => "pcap",
        }
    }
}
