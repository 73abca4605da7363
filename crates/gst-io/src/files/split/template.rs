//! Names of files from a template. It has no clock: the time is a parameter.
//!
//! | in the template | in the name |
//! |---|---|
//! | `%d`, `%05d` | the file's number, padded with zeros to that width |
//! | `{time}`, `{time:%Y-%m-%d}` | the file's start time (UTC), as `20260531T235959Z` or in a strftime(3) format |
//! | `{name}` | the element's name |
//! | `%%`, `{{`, `}}` | `%`, `{`, `}` |
//!
//! A name never leads to another directory than that of the template. No part of it is `..`, and the element's name is at most
//! one part of a path.

use std::path::{Component, Path, PathBuf};

use jiff::Timestamp;
use jiff::fmt::strtime;
use jiff::tz::TimeZone;

const TIME_DEFAULT: &str = "%Y%m%dT%H%M%SZ";
/// Maximum width of the file's number. No number has more digits.
const WIDTH_MAX: usize = 20;

/// An error in a template, or in a value that it uses. Each message starts with the property and its value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TemplateError {
    #[error("{0}: expected a path such as /rec/{{name}}-%05d.ts")]
    Empty(String),
    #[error(
        "{0}: the placeholder {1} is not known; expected %d, %05d, %%, {{time}}, {{time:%H%M}}, {{name}}, {{{{ or }}}}"
    )]
    Unknown(String, String),
    #[error("{0}: {1} is not a valid time format: {2}")]
    Time(String, String, String),
    #[error("{0}: .. leads out of the directory; name the target directory directly")]
    Outside(String),
    #[error(
        "{0}: {{name}} is '{1}', but a file name must not be empty, . or .., and must not contain /"
    )]
    Name(String, String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Number(usize),
    Time(String),
    Name,
}

/// A parsed template.
#[derive(Debug, Clone)]
pub(crate) struct Template {
    /// The property and its value, for messages.
    text: String,
    parts: Vec<Part>,
}

impl Template {
    /// Parses the value of a property.
    pub(crate) fn parse(property: &str, text: &str) -> Result<Self, TemplateError> {
        let shown = format!("{property}={text}");
        if text.is_empty() || text.ends_with('/') {
            return Err(TemplateError::Empty(shown));
        }
        if leads_outside(Path::new(text)) {
            return Err(TemplateError::Outside(shown));
        }
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(place) = rest.find(['%', '{', '}']) {
            literal.push_str(&rest[..place]);
            rest = &rest[place..];
            let (part, length) = special(&shown, rest)?;
            rest = &rest[length..];
            match part {
                Part::Text(text) => literal.push_str(&text),
                part => {
                    if !literal.is_empty() {
                        parts.push(Part::Text(std::mem::take(&mut literal)));
                    }
                    parts.push(part);
                }
            }
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            parts.push(Part::Text(literal));
        }
        Ok(Template { text: shown, parts })
    }

    /// Whether all files have different names.
    pub(crate) fn is_numbered(&self) -> bool {
        let differs = |part: &Part| matches!(part, Part::Number(_) | Part::Time(_));
        self.parts.iter().any(differs)
    }

    /// Returns the path of a file.
    pub(crate) fn path(
        &self,
        number: u32,
        name: &str,
        time: Timestamp,
    ) -> Result<PathBuf, TemplateError> {
        let mut path = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => path.push_str(text),
                Part::Number(width) => path.push_str(&format!("{number:0width$}")),
                Part::Time(format) => {
                    let time = time.to_zoned_datetime(TimeZone::UTC);
                    let said = strtime::format(format, &time).map_err(|error| {
                        let (text, format) = (self.text.clone(), format.clone());
                        TemplateError::Time(text, format, error.to_string())
                    })?;
                    path.push_str(&said);
                }
                Part::Name => {
                    let is_plain = !matches!(name, "" | "." | "..") && !name.contains(['/', '\0']);
                    if !is_plain {
                        return Err(TemplateError::Name(self.text.clone(), name.into()));
                    }
                    path.push_str(name);
                }
            }
        }
        // Parts that are harmless by themselves may be harmful together, such as .{name} with the name `.`.
        if leads_outside(Path::new(&path)) {
            return Err(TemplateError::Outside(self.text.clone()));
        }
        Ok(path.into())
    }
}

fn leads_outside(path: &Path) -> bool {
    path.components().any(|part| part == Component::ParentDir)
}

/// Returns the part of the template that starts with `%`, `{` or `}`, and its length.
fn special(text: &str, rest: &str) -> Result<(Part, usize), TemplateError> {
    let unknown = |what: &str| TemplateError::Unknown(text.into(), what.into());
    for (written, meant) in [("%%", "%"), ("{{", "{"), ("}}", "}")] {
        if rest.starts_with(written) {
            return Ok((Part::Text(meant.into()), written.len()));
        }
    }
    if let Some(number) = rest.strip_prefix('%') {
        let digits = number.len()
            - number
                .trim_start_matches(|c: char| c.is_ascii_digit())
                .len();
        let (width, after) = number.split_at(digits);
        let is_width = width.is_empty() || width.starts_with('0');
        let width = match width {
            "" => Some(0),
            width => width.parse().ok().filter(|width| *width <= WIDTH_MAX),
        };
        return match width {
            Some(width) if is_width && after.starts_with(['d', 'i', 'u']) => {
                Ok((Part::Number(width), digits + 2))
            }
            _ => Err(unknown(&format!(
                "%{}",
                number.chars().take(digits + 1).collect::<String>()
            ))),
        };
    }
    let Some(end) = rest.find('}').filter(|_| rest.starts_with('{')) else {
        return Err(unknown(&rest.chars().take(1).collect::<String>()));
    };
    let word = &rest[1..end];
    let part = match word.split_once(':') {
        None if word == "name" => Part::Name,
        None if word == "time" => Part::Time(TIME_DEFAULT.into()),
        Some(("time", format)) if !format.is_empty() => Part::Time(format.into()),
        _ => return Err(unknown(&rest[..=end])),
    };
    if let Part::Time(format) = &part {
        let epoch = Timestamp::UNIX_EPOCH.to_zoned_datetime(TimeZone::UTC);
        strtime::format(format, &epoch)
            .map_err(|error| TemplateError::Time(text.into(), format.clone(), error.to_string()))?;
    }
    Ok((part, end + 1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn path(template: &str, name: &str) -> Result<String, String> {
        let time: Timestamp = "2026-05-31T23:59:59Z".parse().unwrap();
        let path = Template::parse("location", template).and_then(|it| it.path(7, name, time));
        path.map(|path| path.to_str().unwrap().to_owned())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn templates_are_expanded_to_file_names() {
        for (template, expected) in [
            ("/rec/%05d.ts", "/rec/00007.ts"),
            ("rec%d", "rec7"),
            ("{name}-{time}.wav", "cam1-20260531T235959Z.wav"),
            (
                "/rec/{name}/{time:%Y/%m/%d}/%03i.ts",
                "/rec/cam1/2026/05/31/007.ts",
            ),
            ("100%% {{x}} %u", "100% {x} 7"),
        ] {
            assert_eq!(
                path(template, "cam1").as_deref(),
                Ok(expected),
                "{template}"
            );
        }
    }

    #[test]
    fn invalid_template_is_refused_with_the_allowed_form() {
        for (template, name, expected) in [
            ("", "a", "expected a path such as"),
            ("/rec/", "a", "expected a path such as"),
            ("/rec/%5d", "a", "%5d is not known; expected %d, %05d"),
            ("/rec/%s", "a", "%s is not known"),
            ("/rec/%099d", "a", "is not known"),
            ("/rec/%", "a", "is not known"),
            ("/rec/{what}", "a", "{what} is not known"),
            ("/rec/{name", "a", "{ is not known"),
            ("/rec/}", "a", "} is not known"),
            ("/rec/{time:%!}", "a", "is not a valid time format"),
            ("/rec/../%d", "a", ".. leads out"),
            ("/rec/{name}/../%d", "a", ".. leads out"),
            ("/rec/{name}/%d", "..", "{name} is '..'"),
            ("/rec/{name}/%d", "/etc", "{name} is '/etc'"),
            ("/rec/{name}/%d", "a/../..", "{name} is 'a/../..'"),
            ("/rec/{name}/%d", "", "{name} is ''"),
            ("/rec/{time:..}/%d", "a", ".. leads out"),
        ] {
            let said = path(template, name).unwrap_err();
            assert!(said.contains(expected), "{template}: {said}");
            assert!(said.starts_with(&format!("location={template}")), "{said}");
        }
    }

    proptest! {
        /// With any template and name, a path is below the template's fixed start.
        #[test]
        fn no_file_name_leads_out_of_its_folder(
            template in "/rec/[a-z.%/0d{}]{0,12}(\\{name\\}|\\{time\\}|%05d)[a-z./{}%d]{0,12}",
            name in "[a-z./]{0,8}",
        ) {
            if let Ok(path) = path(&template, &name) {
                let path = Path::new(&path);
                prop_assert!(path.starts_with("/rec"));
                prop_assert!(!leads_outside(path));
            }
        }
    }
}
