//! Formats of recordings.

/// How calls are recorded.
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
    /// Audio of 16 bits: a channel for each party
    #[default]
    Wav,
    /// The same in the codes of G.711, where the audio has 8000 Hz
    WavG711,
    /// Matroska with audio of 16 bits: a track for each party
    Mka,
    /// The same in the codes of G.711, where the audio has 8000 Hz
    MkaG711,
    /// Packets, as they came from the parties
    Pcap,
}

impl RecordingFormat {
    /// All formats; of those with the same extension, the first is the one that the extension selects.
    pub const ALL: [RecordingFormat; 5] = [
        RecordingFormat::Wav,
        RecordingFormat::WavG711,
        RecordingFormat::Mka,
        RecordingFormat::MkaG711,
        RecordingFormat::Pcap,
    ];

    /// Its name in the configuration.
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

    /// Its file extension.
    #[must_use]
    pub fn ending(self) -> &'static str {
        match self {
            RecordingFormat::Wav | RecordingFormat::WavG711 => "wav",
            RecordingFormat::Mka | RecordingFormat::MkaG711 => "mka",
            RecordingFormat::Pcap => "pcap",
        }
    }
}
