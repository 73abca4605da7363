//! The state that `threadbare top` shows. Events and key presses change it. It uses no terminal and no clock.

use std::collections::BTreeMap;

use serde_json::Value;

use threadbare_watch::{AlarmKind, TileState, Tiles};

/// What the screen shows.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) streams: Vec<Stream>,
    pub(super) tiles: Option<Tiles>,
    /// The threads by name.
    pub(super) threads: BTreeMap<String, Thread>,
    pub(super) alarms: usize,
    /// Indices of the streams, in the order shown.
    pub(super) order: Vec<usize>,
    pub(super) sort: Sort,
    /// Position of the selected stream in `order`.
    pub(super) selected: usize,
    /// The stream that is shown alone, with its values.
    pub(super) opened: Option<Opened>,
    /// The reason why updates are missing. `None`: they come.
    pub(super) problem: Option<String>,
    generation: u64,
}

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) name: String,
    pub(super) target_lufs: Option<f64>,
}

#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct Thread {
    pub(super) busy_percent: f64,
    pub(super) lateness_ms: f64,
    pub(super) packets: u64,
    pub(super) blocked: Option<String>,
}

#[derive(Debug)]
pub(super) struct Opened {
    pub(super) name: String,
    /// Current values, as in `/v1/streams/{name}`.
    pub(super) now: Value,
    /// The stream's history.
    pub(super) history: Value,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sort {
    #[default]
    Worst,
    File,
    Name,
}

impl Sort {
    pub(super) fn name(self) -> &'static str {
        match self {
            Sort::Worst => "worst first",
            Sort::File => "as in the file",
            Sort::Name => "by name",
        }
    }

    fn next(self) -> Sort {
        match self {
            Sort::Worst => Sort::File,
            Sort::File => Sort::Name,
            Sort::Name => Sort::Worst,
        }
    }
}

/// A key press.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Move(isize),
    Open,
    Close,
    Sort,
}

impl Model {
    /// Handles an event of `/v1/wall`.
    pub(super) fn handle(&mut self, name: &str, data: &Value) {
        self.problem = None;
        match name {
            "streams" => self.take_streams(data),
            "tiles" if data["generation"].as_u64() == Some(self.generation) => {
                let columns = data["columns"].as_str().unwrap_or_default();
                self.tiles = Tiles::decode(columns, self.streams.len());
                self.arrange();
            }
            "threads" => {
                let threads = data["threads"].as_array().into_iter().flatten();
                self.threads = threads.filter_map(thread).collect();
            }
            "alarms" => {
                let alarms = data["alarms"].as_array().into_iter().flatten();
                let is_new = |one: &&Value| one["is_acknowledged"] == false;
                self.alarms = alarms.filter(is_new).count();
            }
            _ => {}
        }
    }

    pub(super) fn key(&mut self, key: Key) {
        match key {
            Key::Move(by) => {
                let last = self.order.len().saturating_sub(1);
                self.selected = self.selected.saturating_add_signed(by).min(last);
            }
            Key::Open => {
                let stream = self.order.get(self.selected).map(|n| &self.streams[*n]);
                self.opened = stream.map(|stream| Opened {
                    name: stream.name.clone(),
                    now: Value::Null,
                    history: Value::Null,
                });
            }
            Key::Close => self.opened = None,
            Key::Sort => {
                self.sort = self.sort.next();
                self.arrange();
            }
        }
    }

    /// Returns the number of streams in each state.
    pub(super) fn counts(&self) -> [(TileState, usize); 4] {
        let states = [
            TileState::Heard,
            TileState::Fallback,
            TileState::Waiting,
            TileState::Stopped,
        ];
        let count = |state| {
            let tiles = self.tiles.iter().flat_map(|tiles| &tiles.0);
            tiles.filter(|tile| tile.state == state).count()
        };
        states.map(|state| (state, count(state)))
    }

    fn take_streams(&mut self, data: &Value) {
        self.generation = data["generation"].as_u64().unwrap_or_default();
        self.tiles = None;
        self.order.clear();
        let streams = data["streams"].as_array().into_iter().flatten();
        let stream = |one: &Value| Stream {
            name: one["name"].as_str().unwrap_or_default().to_owned(),
            target_lufs: one["target_lufs"].as_f64(),
        };
        self.streams = streams.map(stream).collect();
    }

    fn arrange(&mut self) {
        let Some(tiles) = &self.tiles else { return };
        // Keep the same stream selected when the order changes.
        let held = self.order.get(self.selected).copied();
        let mut order: Vec<usize> = (0..self.streams.len()).collect();
        match self.sort {
            Sort::File => {}
            Sort::Name => order.sort_by(|a, b| self.streams[*a].name.cmp(&self.streams[*b].name)),
            Sort::Worst => order.sort_by_key(|n| {
                std::cmp::Reverse(badness(&tiles.0[*n], self.streams[*n].target_lufs))
            }),
        }
        if self.selected > 0
            && let Some(place) = held.and_then(|n| order.iter().position(|one| *one == n))
        {
            self.selected = place;
        }
        self.order = order;
    }
}

fn thread(data: &Value) -> Option<(String, Thread)> {
    let last = |name: &str| data[name].as_array()?.last();
    let blocked = &data["blocked"];
    let blocked = blocked["by"].as_str().map(|by| {
        let ms = blocked["for_ms"].as_f64().unwrap_or_default();
        format!("{by} for {ms:.0} ms, {} s ago", blocked["ago_s"])
    });
    let thread = Thread {
        busy_percent: last("busy_percent")
            .and_then(Value::as_f64)
            .unwrap_or_default(),
        lateness_ms: last("lateness_ms")
            .and_then(Value::as_f64)
            .unwrap_or_default(),
        packets: last("packets").and_then(Value::as_u64).unwrap_or_default(),
        blocked,
    };
    Some((data["name"].as_str()?.to_owned(), thread))
}

/// Returns a key by which streams are sorted. A higher one means a worse stream. The order of importance is: unacknowledged alarms, whether
/// the stream runs, losses, and the distance from the loudness target.
fn badness(tile: &threadbare_watch::TileValues, target_lufs: Option<f64>) -> u32 {
    let alarms = AlarmKind::of_bits(tile.alarms).count() as u32;
    let is_known = alarms == 0 && AlarmKind::is_acknowledged(tile.alarms);
    if is_known {
        return 0;
    }
    let state = match tile.state {
        TileState::Stopped => 40_000,
        TileState::Waiting => 30_000,
        TileState::Fallback => 5_000,
        TileState::Heard => 0,
    };
    let off = tile.short_term_lufs.db().zip(target_lufs);
    let off = off.map_or(0.0, |(level, target)| (level - target).abs() * 20.0);
    alarms * 20_000 + state + u32::from(tile.lost_permille) * 10 + off as u32
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use threadbare_watch::{Level, TileValues};

    fn tile(state: TileState, alarms: u8, lost_permille: u16) -> TileValues {
        TileValues {
            state,
            alarms,
            momentary_lufs: Level::new(-20.0),
            true_peak_dbtp: Level::new(-3.0),
            short_term_lufs: Level::new(-23.0),
            lost_permille,
        }
    }

    #[test]
    fn the_worst_stream_is_first_and_the_selected_one_stays_selected() {
        let mut model = Model::default();
        let streams = ["well", "lossy", "silent", "known", "alarm"];
        let streams: Vec<Value> = streams.iter().map(|name| json!({"name": name})).collect();
        model.handle("streams", &json!({"generation": 7, "streams": streams}));
        let tiles = Tiles(vec![
            tile(TileState::Heard, 0, 0),
            tile(TileState::Heard, 0, 200),
            tile(TileState::Waiting, 0, 0),
            tile(TileState::Waiting, 0x80, 0),
            tile(TileState::Heard, 0b1_0000, 30),
        ]);
        // This event belongs to an outdated list of streams.
        model.handle(
            "tiles",
            &json!({"generation": 6, "columns": tiles.encode()}),
        );
        assert!(model.order.is_empty());
        model.handle(
            "tiles",
            &json!({"generation": 7, "columns": tiles.encode()}),
        );
        assert_eq!(model.order, [2, 4, 1, 0, 3]);
        model.key(Key::Move(2));
        model.key(Key::Open);
        assert_eq!(
            model.opened.as_ref().map(|one| one.name.as_str()),
            Some("lossy")
        );
        model.key(Key::Sort);
        assert_eq!((model.order[model.selected], model.sort), (1, Sort::File));
        model.key(Key::Move(-100));
        assert_eq!(model.selected, 0);
        model.key(Key::Move(100));
        assert_eq!(model.selected, 4);
        let counts = model.counts().map(|(_, count)| count);
        assert_eq!(counts, [3, 0, 2, 0]);
    }
}
