//! Formats the fields of a line in the text log. Names of streams and calls come from other hosts. These names can neither end a
//! line nor begin another one, and cannot control the terminal.

use std::fmt::{self, Debug, Write};

use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::prelude::*;

/// Writes `message name=value name=value`, with control characters escaped as in Rust text: `\n`, `\u{1b}`.
#[derive(Debug, Clone, Copy)]
pub(super) struct OneLine;

impl<'w> FormatFields<'w> for OneLine {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'w>, fields: R) -> fmt::Result {
        let field = |writer: &mut Writer<'_>, field: &tracing::field::Field, value: &dyn Debug| {
            match field.name() {
                "message" => {}
                name if writer.has_ansi_escapes() => write!(writer, "\x1b[3m{name}\x1b[0m=")?,
                name => write!(writer, "{name}=")?,
            }
            write!(Escape(writer), "{value:?}")
        };
        debug_fn(field).delimited(" ").format_fields(writer, fields)
    }
}

/// A writer that escapes control characters, line ends, and Unicode's direction characters.
struct Escape<W>(W);

impl<W: Write> Write for Escape<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some(at) = rest.find(is_control) {
            let (plain, from) = rest.split_at(at);
            self.0.write_str(plain)?;
            let mut chars = from.chars();
            for odd in chars.by_ref().take(1) {
                write!(self.0, "{}", odd.escape_default())?;
            }
            rest = chars.as_str();
        }
        self.0.write_str(rest)
    }
}

fn is_control(one: char) -> bool {
    one.is_control()
        || matches!(one, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no panic").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(event: impl FnOnce()) -> String {
        let log = Log::default();
        let made = log.clone();
        let layer = super::super::text_layer()
            .with_ansi(false)
            .without_time()
            .with_writer(move || made.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), event);
        let bytes = std::mem::take(&mut *log.0.lock().expect("no panic"));
        String::from_utf8(bytes).expect("UTF-8")
    }

    #[test]
    fn names_from_the_network_forge_no_line() {
        let odd = "a\n2026 ERROR all is lost\x1b[2J\r\u{9b}\u{202e}\u{2028}é";
        let plain = "a\\n2026 ERROR all is lost\\u{1b}[2J\\r\\u{9b}\\u{202e}\\u{2028}é";
        // Log it as Display, as a message, as Debug, and as text.
        let line = logged(|| tracing::info!(call = %odd, "ends"));
        assert_eq!(line, format!(" INFO ends call={plain}\n"));
        let line = logged(|| tracing::info!("{odd} ends"));
        assert_eq!(line, format!(" INFO {plain} ends\n"));
        let line = logged(|| tracing::info!(call = odd, "ends"));
        assert_eq!(line.lines().count(), 1);
        assert!(!line.trim_end().contains(is_control), "{line:?}");
        let error = io::Error::other(odd);
        let line = logged(|| tracing::warn!(%error, n = 3, "fails"));
        assert_eq!(line, format!(" WARN fails error={plain} n=3\n"));
    }
}
