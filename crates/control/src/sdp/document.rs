//! A session description as lines. Reading and writing keep all bytes, and an edit changes only its own line.

use std::fmt;

/// Maximum length of a description, bytes. This is more than a UDP datagram carries.
pub const SDP_BYTES_MAX: usize = 65_536;
/// Maximum number of lines of a description. SIP clients send about 40, and WebRTC clients with video about 300.
pub const LINES_MAX: usize = 2048;
/// Maximum number of media of a description. Conferences send about 20.
pub const MEDIA_MAX: usize = 64;

/// The reason why a description or one of its lines cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SdpError {
    /// The description is too long, or has too many of something.
    #[error("SDP: {found} {what}: expected at most {allowed}")]
    TooLarge {
        /// What was counted.
        what: &'static str,
        /// The number that was found.
        found: usize,
        /// The maximum.
        allowed: usize,
    },
    /// The version is not 0. "The "v=" line gives the version of SDP. This memo defines version 0" (RFC 8866, section 5.1).
    #[error("SDP: the first line is {0}: expected \"v=0\"")]
    Version(String),
    /// A line of a known kind has unexpected content.
    #[error("SDP: {line}: expected {expected}")]
    Line {
        /// The line, quoted and shortened.
        line: String,
        /// The expected content, in words.
        expected: &'static str,
    },
}

impl SdpError {
    pub(crate) fn line(text: &[u8], expected: &'static str) -> SdpError {
        let line = crate::text::shown(text);
        SdpError::Line { line, expected }
    }
}

/// The end of a line. "CRLF is used to end a record, although parsers SHOULD be tolerant and also accept records terminated with a single
/// newline character" (RFC 8866, section 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    CrLf,
    Lf,
    /// No ending. Only the last line can lack it.
    Missing,
}

impl Ending {
    fn bytes(self) -> &'static [u8] {
        match self {
            Ending::CrLf => b"\r\n",
            Ending::Lf => b"\n",
            Ending::Missing => b"",
        }
    }
}

/// A line of a description.
#[derive(Clone, PartialEq, Eq)]
pub struct Line {
    text: Vec<u8>,
    ending: Ending,
}

impl Line {
    /// Returns the line without its ending.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// Returns the text after `KIND=`. `None`: the line is of another kind.
    #[must_use]
    pub fn value_of(&self, kind: u8) -> Option<&[u8]> {
        match self.text.as_slice() {
            [first, b'=', value @ ..] if *first == kind => Some(value),
            _ => None,
        }
    }

    /// Returns the value as [`value_of`](Self::value_of) does, but as text. It is empty if it is not UTF-8.
    pub(crate) fn text_of(&self, kind: u8) -> Option<&str> {
        let value = self.value_of(kind)?;
        Some(std::str::from_utf8(value).unwrap_or_default())
    }

    /// Replaces the field `number`, counted from 0, in a line whose fields are separated by white space. The other bytes stay.
    ///
    /// Returns `false` if the line has no such field.
    pub(crate) fn set_field(&mut self, number: usize, field: &str) -> bool {
        let start = 2.min(self.text.len());
        let found = fields(&self.text[start..]).nth(number);
        if let Some(range) = &found {
            let range = start + range.start..start + range.end;
            self.text.splice(range, one_line(field));
        }
        found.is_some()
    }

    /// Replaces the whole line.
    pub(crate) fn set_text(&mut self, text: &str) {
        self.text = one_line(text).collect();
    }

    /// Replaces all fields from `number` onwards.
    pub(crate) fn set_fields_from(&mut self, number: usize, rest: &str) {
        let start = 2.min(self.text.len());
        let found = fields(&self.text[start..]).nth(number);
        if let Some(range) = found {
            self.text.truncate(start + range.start);
            self.text.extend(one_line(rest));
        }
    }
}

impl fmt::Debug for Line {
    /// Hides the content of the line, because lines may contain encryption keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self
            .value_of(b'a')
            .map(|value| value.starts_with(b"crypto:"))
        {
            Some(true) => f.write_str("\"a=crypto:...\""),
            _ => write!(f, "{:?}", String::from_utf8_lossy(&self.text)),
        }
    }
}

/// Returns the bytes of a text without its line breaks, which would begin another line.
fn one_line(text: &str) -> impl Iterator<Item = u8> + '_ {
    text.bytes()
        .filter(|byte| !matches!(byte, b'\r' | b'\n' | 0))
}

/// Returns the positions of a line's fields.
fn fields(text: &[u8]) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        let is_space = |byte: &u8| matches!(byte, b' ' | b'\t');
        at += text[at..].iter().take_while(|byte| is_space(byte)).count();
        let len = text[at..].iter().take_while(|byte| !is_space(byte)).count();
        at += len;
        (len > 0).then(|| at - len..at)
    })
}

/// The lines of the session, or those of a medium, which begin with its `m=` line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    lines: Vec<Line>,
    /// The ending that new lines get.
    ending: Ending,
}

impl Section {
    /// Returns all lines in order.
    #[must_use]
    pub fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// Returns the value of the first line of a kind.
    #[must_use]
    pub fn value_of(&self, kind: u8) -> Option<&[u8]> {
        self.lines.iter().find_map(|line| line.value_of(kind))
    }

    pub(crate) fn text_of(&self, kind: u8) -> Option<&str> {
        self.lines.iter().find_map(|line| line.text_of(kind))
    }

    /// Returns the first line of a kind, so that it can be changed.
    pub(crate) fn line_mut(&mut self, kind: u8) -> Option<&mut Line> {
        let mut lines = self.lines.iter_mut();
        lines.find(|line| line.value_of(kind).is_some())
    }

    /// Returns the names and values of all attributes in order. An attribute is `a=NAME:VALUE`, or `a=NAME` with an empty value. Attributes
    /// that are not UTF-8 are skipped.
    pub fn attributes(&self) -> impl Iterator<Item = (&str, &str)> {
        let texts = self.lines.iter().filter_map(|line| line.text_of(b'a'));
        texts.map(|text| text.split_once(':').unwrap_or((text, "")))
    }

    /// Returns the value of the first attribute `name`.
    #[must_use]
    pub fn attribute(&self, name: &str) -> Option<&str> {
        let mut attributes = self.attributes();
        attributes.find_map(|(found, value)| (found == name).then_some(value))
    }

    /// Adds an attribute at the end.
    pub fn add_attribute(&mut self, name: &str, value: &str) {
        self.insert(self.end(), &attribute_line(name, value));
    }

    /// Returns the position at which a new last line is inserted. It is before a blank line, because many parsers stop there (RFC 8866 has
    /// no blank lines).
    fn end(&self) -> usize {
        let is_blank = |line: &Line| line.text.trim_ascii().is_empty();
        let blank = self.lines.iter().position(is_blank);
        blank.unwrap_or(self.lines.len())
    }

    /// Replaces the value of the first attribute `name`, and removes further attributes of this name. If there is none, adds one at the
    /// end.
    pub fn set_attribute(&mut self, name: &str, value: &str) {
        let text = attribute_line(name, value);
        let is_it = |line: &Line| is_attribute(line, |found, _| found == name);
        match self.lines.iter().position(is_it) {
            Some(first) => {
                self.lines[first].set_text(&text);
                let mut at = 0;
                self.lines.retain(|line| {
                    at += 1;
                    at - 1 <= first || !is_it(line)
                });
            }
            None => self.insert(self.end(), &text),
        }
    }

    /// Removes the attributes for which `is_meant(name, value)` is true.
    pub fn remove_attributes(&mut self, is_meant: impl Fn(&str, &str) -> bool) {
        self.lines.retain(|line| !is_attribute(line, &is_meant));
    }

    /// Passes each line to `edit`. An edit cannot insert a line break.
    pub(crate) fn edit_lines(&mut self, edit: impl FnMut(&mut Line)) {
        self.lines.iter_mut().for_each(edit);
    }

    /// Returns the position after the last line for which `is_before` is true.
    pub(crate) fn place_behind(&self, is_before: impl Fn(&Line) -> bool) -> usize {
        self.lines
            .iter()
            .rposition(is_before)
            .map_or(0, |at| at + 1)
    }

    /// Inserts a line.
    pub(crate) fn insert(&mut self, at: usize, text: &str) {
        let mut ending = self.ending;
        if at == self.lines.len()
            && let Some(last) = self.lines.last_mut()
            && last.ending == Ending::Missing
        {
            std::mem::swap(&mut last.ending, &mut ending);
        }
        let text = one_line(text).collect();
        self.lines.insert(at, Line { text, ending });
    }
}

fn attribute_line(name: &str, value: &str) -> String {
    match value {
        "" => format!("a={name}"),
        value => format!("a={name}:{value}"),
    }
}

fn is_attribute(line: &Line, is_meant: impl Fn(&str, &str) -> bool) -> bool {
    line.text_of(b'a').is_some_and(|text| {
        let (name, value) = text.split_once(':').unwrap_or((text, ""));
        is_meant(name, value)
    })
}

/// A session description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sdp {
    /// The lines up to the first `m=`.
    pub session: Section,
    /// The media, each beginning with its `m=` line. An offer and its answer have the same number of media in the same order.
    pub media: Vec<Section>,
}

impl Sdp {
    /// Splits a description into lines. Only the line with the version is checked.
    ///
    /// # Errors
    /// Fails if the version is not 0, or if the description is too large.
    pub fn parse(bytes: &[u8]) -> Result<Sdp, SdpError> {
        let bounded = |what, found, allowed| {
            if found <= allowed {
                Ok(())
            } else {
                Err(SdpError::TooLarge {
                    what,
                    found,
                    allowed,
                })
            }
        };
        bounded("bytes", bytes.len(), SDP_BYTES_MAX)?;
        let lines: Vec<Line> = bytes
            .split_inclusive(|&byte| byte == b'\n')
            .map(line)
            .collect();
        bounded("lines", lines.len(), LINES_MAX)?;
        let first = lines.first();
        if first.and_then(|line| line.value_of(b'v')) != Some(b"0") {
            let text = first.map_or(&b""[..], |line| &line.text);
            return Err(SdpError::Version(crate::text::shown(text)));
        }
        let ending = first.map_or(Ending::CrLf, |line| line.ending);
        let empty = || Section {
            lines: Vec::new(),
            ending,
        };
        let mut sdp = Sdp {
            session: empty(),
            media: Vec::new(),
        };
        for line in lines {
            if line.value_of(b'm').is_some() {
                sdp.media.push(empty());
            }
            let section = sdp.media.last_mut().unwrap_or(&mut sdp.session);
            section.lines.push(line);
        }
        bounded("m= lines", sdp.media.len(), MEDIA_MAX)?;
        Ok(sdp)
    }

    /// Adds a medium with this `m=` line after the other media.
    pub(crate) fn add_media(&mut self, line: &str) {
        let ending = self.session.ending;
        let last = self.media.last_mut().unwrap_or(&mut self.session);
        // Blank lines stay at the end of the whole description.
        let blank = last.lines.split_off(last.end());
        if let Some(line) = last.lines.last_mut()
            && line.ending == Ending::Missing
        {
            line.ending = ending;
        }
        let mut lines = vec![Line {
            text: one_line(line).collect(),
            ending,
        }];
        lines.extend(blank);
        self.media.push(Section { lines, ending });
    }

    /// Returns the description's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let sections = std::iter::once(&self.session).chain(&self.media);
        let mut out = Vec::new();
        for line in sections.flat_map(|section| &section.lines) {
            out.extend(&line.text);
            out.extend(line.ending.bytes());
        }
        out
    }
}

fn line(bytes: &[u8]) -> Line {
    let (text, ending) = match bytes {
        [text @ .., b'\r', b'\n'] => (text, Ending::CrLf),
        [text @ .., b'\n'] => (text, Ending::Lf),
        text => (text, Ending::Missing),
    };
    Line {
        text: text.to_vec(),
        ending,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Sdp {
        Sdp::parse(text.as_bytes()).expect(text)
    }

    fn written(sdp: &Sdp) -> String {
        String::from_utf8(sdp.to_bytes()).expect("a text")
    }

    #[test]
    fn each_line_belongs_to_the_session_or_to_a_medium() {
        let sdp = parse("v=0\r\ns=-\r\nwhat\r\na=x:1\r\nm=a\r\na=x:2\r\nm=b\r\nm=c");
        assert_eq!(sdp.session.lines().len(), 4);
        assert_eq!(sdp.session.attribute("x"), Some("1"));
        assert_eq!(sdp.media.len(), 3);
        assert_eq!(sdp.media[0].attribute("x"), Some("2"));
        assert_eq!(sdp.media[1].attribute("x"), None);
    }

    #[test]
    fn an_edit_changes_only_its_own_lines() {
        let mut sdp = parse("v=0\na=x:1\na=y\na=x:2\nm=a  b\tc\r\na=z");
        sdp.session.set_attribute("x", "3");
        sdp.session.set_attribute("w", "");
        sdp.session.remove_attributes(|name, _| name == "y");
        sdp.media[0].lines[0].set_field(1, "B");
        sdp.media[0].add_attribute("q", "1");
        assert_eq!(written(&sdp), "v=0\na=x:3\na=w\nm=a  B\tc\r\na=z\na=q:1");
        sdp.media[0].lines[0].set_fields_from(1, "d e");
        sdp.media[0].remove_attributes(|name, value| (name, value) == ("q", "1"));
        assert_eq!(written(&sdp), "v=0\na=x:3\na=w\nm=a  d e\r\na=z\n");
    }

    #[test]
    fn other_versions_and_oversized_descriptions_are_refused() {
        for text in ["", "v=1\r\n", "\r\nv=0\r\n", "o=x", "v=0 \r\n"] {
            let error = Sdp::parse(text.as_bytes());
            assert!(matches!(error, Err(SdpError::Version(_))), "{text}");
        }
        for (piece, count) in [
            ("m=x\n", MEDIA_MAX + 1),
            ("\n", LINES_MAX),
            ("x", SDP_BYTES_MAX),
        ] {
            let text = format!("v=0\n{}", piece.repeat(count));
            let error = Sdp::parse(text.as_bytes());
            assert!(matches!(error, Err(SdpError::TooLarge { .. })), "{piece}");
        }
    }

    #[test]
    fn debug_output_has_no_keys() {
        let sdp = parse("v=0\na=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:c2VjcmV0\n");
        assert!(!format!("{sdp:?}").contains("c2VjcmV0"));
    }
}
