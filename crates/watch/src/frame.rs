//! Frames: the data of all streams that a page gets ten times a second.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::gather::{Gatherer, TileState, Track};
use super::second::Level;

/// The tiles of all streams at one time.
#[derive(Debug, Clone, Default)]
pub struct Frame {
    /// Time, s since 1970.
    pub unix_s: u64,
    /// Generation of the list of streams to which the columns belong.
    pub generation: u64,
    /// The tiles, encoded with [`Tiles::encode`].
    pub columns: Arc<str>,
}

impl Frame {
    /// Creates a frame from the gathered data.
    #[must_use]
    pub fn new(unix_s: u64, gatherer: &Gatherer) -> Frame {
        let tiles = Tiles(gatherer.tracks().map(TileValues::of).collect());
        Frame {
            unix_s,
            generation: gatherer.generation(),
            columns: tiles.encode().into(),
        }
    }
}

/// The displayed values of all streams, in the order of the list.
#[derive(Debug, Clone, PartialEq)]
pub struct Tiles(pub Vec<TileValues>);

/// The displayed values of a stream.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TileValues {
    /// The state of the stream.
    pub state: TileState,
    /// The alarms, as in [`Alarms::bits`](super::Alarms::bits).
    pub alarms: u8,
    /// Momentary loudness (400 ms), LUFS.
    pub momentary_lufs: Level,
    /// Maximum true peak since the previous frame, dBTP.
    pub true_peak_dbtp: Level,
    /// Short-term loudness (3 s), LUFS.
    pub short_term_lufs: Level,
    /// Packets lost or late in the last 10 s, in thousandths of the expected ones.
    pub lost_permille: u16,
}

impl TileValues {
    fn of(track: &Track) -> TileValues {
        let tile = &track.tile;
        TileValues {
            state: tile.state,
            alarms: track.alarms.bits(),
            momentary_lufs: tile.momentary_lufs,
            true_peak_dbtp: tile.true_peak_dbtp,
            short_term_lufs: tile.short_term_lufs,
            lost_permille: tile.lost_permille,
        }
    }
}

impl Tiles {
    /// Encodes the tiles as columns in base64, little-endian. Each column has a value for each stream. The columns are: state
    /// (u8); alarms (u8); momentary loudness, true peak, short-term loudness (i16, in tenths of a decibel; -32768: no value);
    /// losses (u16, in thousandths).
    #[must_use]
    pub fn encode(&self) -> String {
        let tiles = &self.0;
        let mut bytes = Vec::with_capacity(tiles.len() * TILE_BYTES);
        bytes.extend(tiles.iter().map(|tile| tile.state as u8));
        bytes.extend(tiles.iter().map(|tile| tile.alarms));
        let levels: [fn(&TileValues) -> Level; 3] = [
            |tile| tile.momentary_lufs,
            |tile| tile.true_peak_dbtp,
            |tile| tile.short_term_lufs,
        ];
        for level in levels {
            let tenths = tiles.iter().map(|tile| level(tile).tenths());
            bytes.extend(tenths.flat_map(i16::to_le_bytes));
        }
        let losses = tiles.iter().map(|tile| tile.lost_permille);
        bytes.extend(losses.flat_map(u16::to_le_bytes));
        STANDARD.encode(bytes)
    }

    /// Decodes columns with this number of streams. `None`: they are invalid.
    #[must_use]
    pub fn decode(columns: &str, streams: usize) -> Option<Tiles> {
        let bytes = STANDARD.decode(columns).ok()?;
        if bytes.len() != streams * TILE_BYTES {
            return None;
        }
        let word = |column: usize, n: usize| {
            let at = 2 * (streams + column * streams + n);
            [bytes[at], bytes[at + 1]]
        };
        let level = |column, n| Level::of_tenths(i16::from_le_bytes(word(column, n)));
        let tile = |n: usize| {
            Some(TileValues {
                state: TileState::of(bytes[n])?,
                alarms: bytes[streams + n],
                momentary_lufs: level(0, n),
                true_peak_dbtp: level(1, n),
                short_term_lufs: level(2, n),
                lost_permille: u16::from_le_bytes(word(3, n)),
            })
        };
        (0..streams).map(tile).collect::<Option<_>>().map(Tiles)
    }
}

const TILE_BYTES: usize = 10;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tile() -> impl Strategy<Value = TileValues> {
        let levels = any::<[i16; 3]>();
        (0_u8..4, any::<u8>(), levels, any::<u16>()).prop_map(|(state, alarms, levels, lost)| {
            TileValues {
                state: TileState::of(state).unwrap_or_default(),
                alarms,
                momentary_lufs: Level::of_tenths(levels[0]),
                true_peak_dbtp: Level::of_tenths(levels[1]),
                short_term_lufs: Level::of_tenths(levels[2]),
                lost_permille: lost,
            }
        })
    }

    proptest! {
        #[test]
        fn tiles_round_trip(tiles in prop::collection::vec(tile(), 0..40)) {
            let tiles = Tiles(tiles);
            let columns = tiles.encode();
            prop_assert_eq!(Tiles::decode(&columns, tiles.0.len()), Some(tiles.clone()));
            prop_assert_eq!(Tiles::decode(&columns, tiles.0.len() + 1), None);
        }

        #[test]
        fn decoding_any_text_does_not_panic(text in ".*", streams in 0_usize..4) {
            let _ = Tiles::decode(&text, streams);
        }
    }
}
