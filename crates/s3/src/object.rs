//! Key and headers of an object.

use reqwest::header::{
    CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_TYPE,
    HeaderMap, HeaderName, HeaderValue,
};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::place::check_key;

/// Maximum size of metadata, names and values together ("Amazon S3 User Guide", "Working with object metadata").
pub const METADATA_BYTES_MAX: usize = 2048;

/// A key, and the headers stored with it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// Key: the name in the bucket.
    pub key: String,
    /// Content type, such as `audio/wav`.
    pub content_type: Option<String>,
    /// Content disposition, such as `attachment; filename="a.wav"`.
    pub content_disposition: Option<String>,
    /// Content encoding, such as `gzip`.
    pub content_encoding: Option<String>,
    /// Content language, such as `en`.
    pub content_language: Option<String>,
    /// Cache control, such as `max-age=60`.
    pub cache_control: Option<String>,
    /// A canned ACL, such as `public-read`.
    pub acl: Option<String>,
    /// Names and values of user metadata.
    pub metadata: Vec<(String, String)>,
}

impl Object {
    /// Creates an object with only a key.
    pub fn new(key: impl Into<String>) -> Self {
        Object {
            key: key.into(),
            ..Object::default()
        }
    }

    /// Checks the key, and all values that are sent in headers.
    ///
    /// # Errors
    /// Fails with [`Error::Setting`], which has the name of the setting, its value, and the allowed values.
    pub fn check(&self) -> Result<(), Error> {
        check_key(&self.key)?;
        self.headers().map(|_| ())
    }

    pub(crate) fn headers(&self) -> Result<HeaderMap, Error> {
        let mut headers = HeaderMap::new();
        for (property, name, value) in [
            ("content-type", CONTENT_TYPE, &self.content_type),
            (
                "content-disposition",
                CONTENT_DISPOSITION,
                &self.content_disposition,
            ),
            ("content-encoding", CONTENT_ENCODING, &self.content_encoding),
            ("content-language", CONTENT_LANGUAGE, &self.content_language),
            ("cache-control", CACHE_CONTROL, &self.cache_control),
            ("acl", HeaderName::from_static("x-amz-acl"), &self.acl),
        ] {
            let Some(text) = value.as_deref().filter(|text| !text.is_empty()) else {
                continue;
            };
            headers.insert(name, value_of(property, text)?);
        }
        let bytes: usize = self
            .metadata
            .iter()
            .map(|(name, value)| name.len() + value.len())
            .sum();
        if bytes > METADATA_BYTES_MAX {
            return Err(Error::Setting(format!(
                "metadata has {bytes} bytes; at most {METADATA_BYTES_MAX} are allowed"
            )));
        }
        for (name, value) in &self.metadata {
            let header = format!("x-amz-meta-{}", name.to_ascii_lowercase());
            let header = HeaderName::from_bytes(header.as_bytes()).map_err(|_| {
                Error::Setting(format!(
                    "metadata: the name {name:?} is not usable; expected letters, digits, - and _"
                ))
            })?;
            headers.append(header, value_of(&format!("metadata {name}"), value)?);
        }
        Ok(headers)
    }
}

fn value_of(property: &str, text: &str) -> Result<HeaderValue, Error> {
    let is_plain = text.is_ascii() && text.trim() == text;
    let value = HeaderValue::from_str(text).ok().filter(|_| is_plain);
    value.ok_or_else(|| {
        Error::Setting(format!(
            "{property}={text:?}: expected one line of printable ASCII"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_properties_become_headers() {
        let object = Object {
            content_type: Some("audio/wav".into()),
            acl: Some("public-read".into()),
            metadata: vec![("Loudness".into(), "-23.0".into())],
            ..Object::new("a")
        };
        let headers = object.headers().unwrap();
        for (name, value) in [
            ("content-type", "audio/wav"),
            ("x-amz-acl", "public-read"),
            ("x-amz-meta-loudness", "-23.0"),
        ] {
            assert_eq!(headers[name], value);
        }
        assert_eq!(headers.len(), 3);
    }

    #[test]
    fn invalid_object_properties_are_refused() {
        let with = |name: &str, value: &str| Object {
            metadata: vec![(name.into(), value.into())],
            ..Object::new("a")
        };
        for (object, expected) in [
            (with("a b", "x"), "metadata: the name \"a b\""),
            (with("a", "x\ny"), "metadata a=\"x\\ny\""),
            (
                with("a", &"x".repeat(METADATA_BYTES_MAX)),
                "metadata has 2049 bytes",
            ),
            (
                Object {
                    content_type: Some("ü".into()),
                    ..Object::new("a")
                },
                "content-type=\"ü\"",
            ),
            (Object::new(""), "key=: expected"),
            (Object::new("x".repeat(1025)), "key has 1025 bytes"),
        ] {
            let said = object.check().unwrap_err().to_string();
            assert!(said.starts_with(expected), "{said}");
        }
    }
}
