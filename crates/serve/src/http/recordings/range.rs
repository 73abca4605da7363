//! `Range` of a request (RFC 9110, section 14).

/// A range of bytes in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) first: u64,
    /// The position after the last byte.
    pub(super) end: u64,
}

/// The part of a file that a request selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    All,
    Part(Range),
    /// Nothing, because the range lies outside of the file.
    None,
}

impl Range {
    pub(super) fn all(length: u64) -> Range {
        Range {
            first: 0,
            end: length,
        }
    }

    pub(super) fn length(self) -> u64 {
        self.end - self.first
    }
}

/// Parses the header for a file of `length` bytes. A header that is malformed, or has several ranges, is ignored, which a server may do
/// (section 14.2).
pub(super) fn wanted(header: Option<&str>, length: u64) -> Wanted {
    let Some((first, last)) = header
        .and_then(|text| text.strip_prefix("bytes="))
        .and_then(|text| text.split_once('-'))
    else {
        return Wanted::All;
    };
    let range = match (first.trim().parse::<u64>(), last.trim()) {
        // `-LENGTH` selects the last bytes of the file.
        (Err(_), last) if first.trim().is_empty() => match last.parse::<u64>() {
            Ok(count) => Range {
                first: length.saturating_sub(count),
                end: length,
            },
            Err(_) => return Wanted::All,
        },
        (Ok(first), "") => Range { first, end: length },
        (Ok(first), last) => match last.parse::<u64>() {
            Ok(last) if last >= first => Range {
                first,
                end: length.min(last.saturating_add(1)),
            },
            _ => return Wanted::All,
        },
        (Err(_), _) => return Wanted::All,
    };
    if range.first < range.end {
        Wanted::Part(range)
    } else {
        Wanted::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples are those of RFC 9110, section 14.1.2, for a file of 10,000 bytes.
    #[test]
    fn the_standards_examples_are_parsed() {
        let part = |first, end| Wanted::Part(Range { first, end });
        for (header, due) in [
            ("bytes=0-499", part(0, 500)),
            ("bytes=500-999", part(500, 1000)),
            ("bytes=-500", part(9500, 10_000)),
            ("bytes=9500-", part(9500, 10_000)),
            ("bytes=0-0", part(0, 1)),
            ("bytes=9999-99999", part(9999, 10_000)),
            ("bytes=-20000", part(0, 10_000)),
            ("bytes=10000-", Wanted::None),
            ("bytes=-0", Wanted::None),
            ("bytes=0-0,-1", Wanted::All),
            ("bytes=5-4", Wanted::All),
            ("bytes=a-b", Wanted::All),
            ("bytes=-", Wanted::All),
            ("lines=1-2", Wanted::All),
            ("", Wanted::All),
        ] {
            assert_eq!(wanted(Some(header), 10_000), due, "{header}");
        }
        assert_eq!(wanted(None, 10_000), Wanted::All);
        assert_eq!(wanted(Some("bytes=0-"), 0), Wanted::None);
    }
}
