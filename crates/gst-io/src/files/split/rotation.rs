//! Decides where a stream is cut into files. It uses no clock, file or buffer: times are running times in nanoseconds.
//!
//! A file ends before a keyframe if the keyframe would exceed one of the limits. With groups of pictures, a file may be longer by
//! one group, because the size of a group is not known in advance. If all buffers are keyframes, as in audio, a file exceeds a
//! limit only if a single buffer is larger than the limit.

/// Limits of a file; 0 for no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Limits {
    pub(crate) time_ns: u64,
    pub(crate) bytes: u64,
}

/// A buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) bytes: u64,
    /// Start of the buffer; unknown without timestamps.
    pub(crate) begin_ns: Option<u64>,
    /// End of the buffer. It equals the start if the duration is unknown.
    pub(crate) end_ns: Option<u64>,
    pub(crate) is_key: bool,
}

/// Contents of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Extent {
    pub(crate) bytes: u64,
    pub(crate) begin_ns: Option<u64>,
    pub(crate) end_ns: Option<u64>,
    /// Whether it has more than headers.
    has_data: bool,
}

/// The file that is being filled.
#[derive(Debug, Default)]
pub(crate) struct Rotation {
    limits: Limits,
    extent: Extent,
    /// Whether the file must end at the next keyframe, whatever its length.
    is_due: bool,
}

impl Rotation {
    pub(crate) fn new(limits: Limits) -> Self {
        Rotation {
            limits,
            ..Rotation::default()
        }
    }

    /// Whether the file ends before this piece.
    pub(crate) fn ends_before(&self, piece: &Piece) -> bool {
        if !piece.is_key || !self.extent.has_data {
            return false;
        }
        let Limits { time_ns, bytes } = self.limits;
        let is_large = bytes > 0 && self.extent.bytes.saturating_add(piece.bytes) > bytes;
        let span = |end_ns: Option<u64>| Some(end_ns?.saturating_sub(self.extent.begin_ns?));
        let is_long = time_ns > 0
            && (span(piece.end_ns).is_some_and(|ns| ns > time_ns)
                || span(piece.begin_ns).is_some_and(|ns| ns >= time_ns));
        self.is_due || is_large || is_long
    }

    /// Adds the piece to the file.
    pub(crate) fn add(&mut self, piece: &Piece) {
        let extent = &mut self.extent;
        extent.bytes += piece.bytes;
        extent.begin_ns = extent.begin_ns.or(piece.begin_ns);
        extent.end_ns = extent.end_ns.max(piece.end_ns);
        extent.has_data = true;
    }

    /// Adds a header to the file.
    pub(crate) fn add_header(&mut self, bytes: u64) {
        self.extent.bytes += bytes;
    }

    /// Whether the file has more than headers.
    pub(crate) fn has_data(&self) -> bool {
        self.extent.has_data
    }

    pub(crate) fn end_at_keyframe(&mut self) {
        self.is_due = true;
    }

    /// Ends the file, and returns its contents.
    pub(crate) fn finish(&mut self) -> Extent {
        self.is_due = false;
        std::mem::take(&mut self.extent)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn piece() -> impl Strategy<Value = (u64, u64, bool)> {
        (1..2000u64, 0..100u64, prop::bool::weighted(0.4))
    }

    /// Splits as the rotation does. This model keeps each file as a list, and sums up the whole list for each decision.
    fn split(limits: Limits, header: u64, pieces: &[Piece]) -> Vec<Vec<Piece>> {
        let mut files: Vec<Vec<Piece>> = Vec::new();
        for piece in pieces {
            let goes_on = files.last().is_some_and(|file| {
                let bytes: u64 = file.iter().map(|piece| piece.bytes).sum();
                let begin_ns = file.iter().find_map(|piece| piece.begin_ns);
                let fits = limits.bytes == 0 || header + bytes + piece.bytes <= limits.bytes;
                let is_in_time = limits.time_ns == 0
                    || match (begin_ns, piece.begin_ns, piece.end_ns) {
                        (Some(begin), Some(from), Some(to)) => {
                            to - begin <= limits.time_ns && from - begin < limits.time_ns
                        }
                        _ => true,
                    };
                !piece.is_key || fits && is_in_time
            });
            match files.last_mut() {
                Some(file) if goes_on => file.push(*piece),
                _ => files.push(vec![*piece]),
            }
        }
        files
    }

    proptest! {
        #[test]
        fn cuts_equal_a_naive_list(
            pieces in prop::collection::vec(piece(), 1..200),
            time_ns in prop_oneof![Just(0), 1..1000u64],
            bytes in prop_oneof![Just(0), 1..20_000u64],
            header in 0..100u64,
            has_times in any::<bool>(),
        ) {
            let limits = Limits { time_ns, bytes };
            let mut now_ns = 5;
            let pieces: Vec<Piece> = (pieces.into_iter())
                .map(|(bytes, ns, is_key)| {
                    let begin_ns = now_ns;
                    now_ns += ns;
                    let of = |ns: u64| has_times.then_some(ns);
                    Piece { bytes, begin_ns: of(begin_ns), end_ns: of(now_ns), is_key }
                })
                .collect();
            let mut rotation = Rotation::new(limits);
            let mut files: Vec<Vec<Piece>> = Vec::new();
            for piece in &pieces {
                if files.is_empty() || rotation.ends_before(piece) {
                    let extent = rotation.finish();
                    if let Some(file) = files.last() {
                        let bytes: u64 = file.iter().map(|piece| piece.bytes).sum();
                        prop_assert_eq!(extent.bytes, header + bytes);
                        prop_assert_eq!(extent.end_ns, file.last().unwrap().end_ns);
                    }
                    files.push(Vec::new());
                    rotation.add_header(header);
                }
                rotation.add(piece);
                files.last_mut().unwrap().push(*piece);
            }
            prop_assert_eq!(&files, &split(limits, header, &pieces));
            for (n, file) in files.iter().enumerate() {
                prop_assert!(n == 0 || file[0].is_key);
                // Without its last group, a file stays within the limit.
                let last_key = file.iter().rposition(|piece| piece.is_key).unwrap_or(0);
                let before: u64 = file[..=last_key].iter().map(|piece| piece.bytes).sum();
                prop_assert!(bytes == 0 || last_key == 0 || header + before <= bytes);
            }
        }
    }

    #[test]
    fn a_file_can_be_ended_at_the_next_keyframe() {
        let piece = |is_key| Piece {
            bytes: 1,
            begin_ns: None,
            end_ns: None,
            is_key,
        };
        let mut rotation = Rotation::default();
        rotation.add(&piece(true));
        rotation.end_at_keyframe();
        assert!(!rotation.ends_before(&piece(false)));
        assert!(rotation.ends_before(&piece(true)));
        rotation.finish();
        rotation.add(&piece(true));
        assert!(!rotation.ends_before(&piece(true)));
    }
}
