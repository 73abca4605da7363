//! Parses server-sent events.

use std::io::{BufRead, BufReader};

use serde_json::Value;

/// Iterator over a gateway's events.
pub(super) struct Feed<R> {
    lines: std::io::Lines<BufReader<R>>,
}

/// An event: its name, and its data.
pub(super) type Event = (String, Value);

impl<R: std::io::Read> Feed<R> {
    pub(super) fn new(reader: R) -> Feed<R> {
        Feed {
            lines: BufReader::new(reader).lines(),
        }
    }
}

/// Iterates until the connection ends. Events whose data are not JSON are skipped.
impl<R: std::io::Read> Iterator for Feed<R> {
    type Item = std::io::Result<Event>;

    fn next(&mut self) -> Option<std::io::Result<Event>> {
        let mut name = String::new();
        loop {
            let line = match self.lines.next()? {
                Ok(line) => line,
                Err(error) => return Some(Err(error)),
            };
            if let Some(text) = line.strip_prefix("event:") {
                text.trim().clone_into(&mut name);
            } else if let Some(data) = line.strip_prefix("data:")
                && let Ok(data) = serde_json::from_str(data)
            {
                return Some(Ok((name, data)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_their_names_and_other_lines_are_skipped() {
        let text = ":\n\nevent: up\ndata: {\"id\":1}\n\nretry: 5\n: quiet\n\nevent:down\ndata:2\n\nevent: bad\ndata: {\n\n";
        let events: Vec<Event> = Feed::new(text.as_bytes())
            .map(|one| one.expect("read"))
            .collect();
        let due = [
            ("up".to_owned(), serde_json::json!({"id": 1})),
            ("down".to_owned(), 2.into()),
        ];
        assert_eq!(events, due);
    }
}
