//! Location of objects: regions, buckets, keys, their URIs and URLs.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use reqwest::Url;

use crate::error::Error;

/// Maximum length of a key ("Amazon S3 User Guide", "Naming Amazon S3 objects").
pub const KEY_BYTES_MAX: usize = 1024;
/// Default region, the same as in the stock elements.
pub const REGION_DEFAULT: &str = "us-west-2";

/// Characters that are not escaped in the path of a signed URL: RFC 3986's unreserved characters.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');
/// Characters that are not escaped in a path of several parts.
const PLAIN_PATH: &AsciiSet = &PLAIN.remove(b'/');

/// An object given by a URI: `s3://region/bucket/key`, optionally with `?version=`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectUri {
    /// Region, such as `eu-west-1`.
    pub region: String,
    /// The bucket.
    pub bucket: String,
    /// The key, decoded.
    pub key: String,
    /// Version of the object; `None` for the latest.
    pub version: Option<String>,
}

impl ObjectUri {
    /// Parses `s3://region/bucket/key[?version=V]`.
    ///
    /// # Errors
    /// Fails with [`Error::Setting`], which has the URI and the expected form.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let wrong = |what: &str| {
            Error::Setting(format!(
                "uri={text}: {what}; expected s3://region/bucket/key or s3://region/bucket/key?version=V"
            ))
        };
        let (scheme, rest) = text
            .split_once("://")
            .ok_or_else(|| wrong("the scheme is missing"))?;
        if !scheme.eq_ignore_ascii_case("s3") {
            return Err(wrong(&format!("the scheme {scheme} is not allowed")));
        }
        let (path, query) = match rest.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (rest, None),
        };
        if path.contains('#') || query.is_some_and(|query| query.contains('#')) {
            return Err(wrong(
                "a fragment (#) is not allowed; write %23 for that character",
            ));
        }
        let mut parts = path.splitn(3, '/');
        let mut next = |what: &str| match parts.next() {
            Some(part) if !part.is_empty() => {
                decoded(part).ok_or_else(|| wrong("the text is not UTF-8"))
            }
            _ => Err(wrong(&format!("the {what} is missing"))),
        };
        let (region, bucket, key) = (next("region")?, next("bucket")?, next("key")?);
        let version = match query.map(|query| query.split_once('=')) {
            None => None,
            Some(Some(("version", version))) if !version.is_empty() && !version.contains('&') => {
                Some(decoded(version).ok_or_else(|| wrong("the text is not UTF-8"))?)
            }
            Some(_) => return Err(wrong("only version=V may follow the ?")),
        };
        check_region(&region)?;
        check_bucket(&bucket)?;
        check_key(&key)?;
        Ok(ObjectUri {
            region,
            bucket,
            key,
            version,
        })
    }
}

impl std::fmt::Display for ObjectUri {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let key = utf8_percent_encode(&self.key, PLAIN_PATH);
        write!(f, "s3://{}/{}/{key}", self.region, self.bucket)?;
        match &self.version {
            Some(version) => write!(f, "?version={}", utf8_percent_encode(version, PLAIN)),
            None => Ok(()),
        }
    }
}

fn decoded(text: &str) -> Option<String> {
    let text = percent_decode_str(text).decode_utf8().ok()?;
    Some(text.into_owned())
}

/// Checks a region, which becomes part of host names.
///
/// # Errors
/// Fails with [`Error::Setting`] if the region is invalid.
pub fn check_region(region: &str) -> Result<(), Error> {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if !region.is_empty() && region.len() <= 63 && region.chars().all(is_plain) {
        Ok(())
    } else {
        Err(Error::Setting(format!(
            "region={region}: expected a region such as eu-west-1, of lower-case letters, digits and -"
        )))
    }
}

/// Checks a bucket, which becomes part of host names and paths. Other stores allow more than Amazon does: upper case and `_`.
///
/// # Errors
/// Fails with [`Error::Setting`] if the bucket is invalid.
pub fn check_bucket(bucket: &str) -> Result<(), Error> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    let is_fine = (3..=255).contains(&bucket.len())
        && bucket.chars().all(is_plain)
        && !bucket.starts_with('.')
        && !bucket.contains("..");
    if is_fine {
        Ok(())
    } else {
        Err(Error::Setting(format!(
            "bucket={bucket}: expected the name of a bucket, 3 to 63 letters, digits, - and ."
        )))
    }
}

/// Checks that a URL can contain the key: no part of the key is `.` or `..`, which clients and proxies remove.
///
/// # Errors
/// Fails with [`Error::Setting`] if the key is invalid.
pub fn check_key(key: &str) -> Result<(), Error> {
    let wrong = |what: &str| Err(Error::Setting(format!("key={key}: {what}")));
    match key {
        "" => wrong("expected the object's name, 1 to 1024 bytes"),
        _ if key.len() > KEY_BYTES_MAX => Err(Error::Setting(format!(
            "key has {} bytes; at most {KEY_BYTES_MAX} are allowed",
            key.len()
        ))),
        _ if key.contains(char::is_control) => wrong("control characters are not allowed"),
        _ if key.split('/').any(|part| matches!(part, "." | "..")) => {
            wrong("a part of the key must not be . or ..")
        }
        _ => Ok(()),
    }
}

/// Destination of the requests for a bucket.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Scheme, host and port, and the path before the key. It ends with a slash.
    base: Url,
    region: String,
    bucket: String,
}

impl Endpoint {
    /// Creates the endpoint of a bucket at `uri`, or at Amazon. With `path_style`, the bucket is in the path instead of the host
    /// name.
    ///
    /// # Errors
    /// Fails with [`Error::Setting`], which names the invalid setting.
    pub fn new(
        uri: Option<&str>,
        region: &str,
        bucket: &str,
        path_style: bool,
    ) -> Result<Self, Error> {
        check_region(region)?;
        check_bucket(bucket)?;
        let amazon = if region.starts_with("cn-") {
            format!("https://s3.{region}.amazonaws.com.cn")
        } else {
            format!("https://s3.{region}.amazonaws.com")
        };
        let text = uri.unwrap_or(&amazon);
        let wrong = |what: &str| {
            // The text may contain a password, which must not be in a message.
            let shown = if text.contains('@') {
                "(not shown)"
            } else {
                text
            };
            Error::Setting(format!(
                "endpoint-uri={shown}: {what}; expected http://host:port or https://host:port"
            ))
        };
        let mut base = Url::parse(text).map_err(|error| wrong(&error.to_string()))?;
        if !["http", "https"].contains(&base.scheme()) {
            return Err(wrong(&format!(
                "the scheme {} is not allowed",
                base.scheme()
            )));
        }
        if !base.username().is_empty() || base.password().is_some() {
            return Err(wrong("user and password are not allowed"));
        }
        if base.query().is_some() || base.fragment().is_some() {
            return Err(wrong("the characters ? and # are not allowed"));
        }
        let host = base.host_str().unwrap_or_default().to_owned();
        // An IP address has no subdomains. A certificate for *.host covers only one level of subdomains, so a bucket with dots
        // must be in the path.
        let is_name = matches!(base.host(), Some(url::Host::Domain(_)));
        let is_below = !path_style && is_name && !bucket.contains(['.', '_']) && bucket.len() <= 63;
        let mut path = base.path().trim_end_matches('/').to_owned();
        if is_below {
            base.set_host(Some(&format!("{bucket}.{host}")))
                .map_err(|error| wrong(&error.to_string()))?;
        } else {
            path.push('/');
            path.push_str(bucket);
        }
        path.push('/');
        base.set_path(&path);
        Ok(Endpoint {
            base,
            region: region.into(),
            bucket: bucket.into(),
        })
    }

    /// Creates the endpoint from the value of [`Endpoint::base`] in a journal.
    pub(crate) fn of_base(base: &str, region: &str, bucket: &str) -> Result<Self, Error> {
        check_region(region)?;
        check_bucket(bucket)?;
        let wrong = |what: &str| Error::Setting(format!("{what} is not the URL of a bucket"));
        let base = Url::parse(base).map_err(|_| wrong(base))?;
        if ["http", "https"].contains(&base.scheme())
            && base.has_host()
            && base.path().ends_with('/')
        {
            Ok(Endpoint {
                base,
                region: region.into(),
                bucket: bucket.into(),
            })
        } else {
            Err(wrong(base.as_str()))
        }
    }

    pub(crate) fn base(&self) -> &str {
        self.base.as_str()
    }

    /// Returns the region, such as `eu-west-1`.
    pub fn region(&self) -> &str {
        &self.region
    }

    /// Returns the bucket.
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// Returns the URL of an object, or of the bucket itself for an empty key. `query` has names and values.
    pub fn url(&self, key: &str, query: &[(&str, &str)]) -> Url {
        let mut url = self.base.clone();
        let path = format!("{}{}", url.path(), utf8_percent_encode(key, PLAIN_PATH));
        url.set_path(&path);
        if !query.is_empty() {
            let encode = |text| utf8_percent_encode(text, PLAIN);
            let query: Vec<String> = query
                .iter()
                .map(|(name, value)| {
                    if value.is_empty() {
                        encode(name).to_string()
                    } else {
                        format!("{}={}", encode(name), encode(value))
                    }
                })
                .collect();
            url.set_query(Some(&query.join("&")));
        }
        url
    }

    /// Returns the endpoint, for messages.
    pub fn shown(&self) -> String {
        format!(
            "{} (bucket {}, region {})",
            self.base, self.bucket, self.region
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn uris_are_those_of_the_stock_elements() {
        let uri = ObjectUri::parse(
            "s3://ap-south-1/my-bucket/my-object-key/which-can%20have/slashes?version=a%2Fb",
        )
        .unwrap();
        assert_eq!(
            uri,
            ObjectUri {
                region: "ap-south-1".into(),
                bucket: "my-bucket".into(),
                key: "my-object-key/which-can have/slashes".into(),
                version: Some("a/b".into()),
            }
        );
    }

    #[test]
    fn invalid_uri_is_refused_with_the_reason() {
        for (uri, expected) in [
            ("http://eu/bucket/key", "the scheme http is not allowed"),
            ("bucket/key", "the scheme is missing"),
            ("s3://", "the region is missing"),
            ("s3://eu-west-1/", "the bucket is missing"),
            ("s3://eu-west-1/bucket/", "the key is missing"),
            ("s3://eu-west-1/bucket", "the key is missing"),
            ("s3://eu-west-1/bucket/key?x=1", "only version=V"),
            ("s3://EU/bucket/key", "region=EU"),
            ("s3://eu/b/key", "bucket=b"),
            ("s3://eu/bucket/a/../b", "a part of the key must not be"),
            ("s3://eu/bucket/%2E%2E/b", "a part of the key must not be"),
            ("s3://eu/bucket/%ff", "not UTF-8"),
            ("s3://eu/bucket/a#b", "fragment"),
        ] {
            let said = ObjectUri::parse(uri).unwrap_err().to_string();
            assert!(said.contains(expected), "{uri}: {said}");
        }
    }

    #[test]
    fn urls_have_the_form_that_stores_expect() {
        let url = |uri, bucket, path_style| {
            let endpoint = Endpoint::new(uri, "eu-west-1", bucket, path_style).unwrap();
            endpoint
                .url("a b/ü+1", &[("uploads", ""), ("x", "1/2")])
                .to_string()
        };
        let rest = "a%20b/%C3%BC%2B1?uploads&x=1%2F2";
        assert_eq!(
            url(None, "rec", false),
            format!("https://rec.s3.eu-west-1.amazonaws.com/{rest}")
        );
        assert_eq!(
            url(None, "rec.x", false),
            format!("https://s3.eu-west-1.amazonaws.com/rec.x/{rest}")
        );
        assert_eq!(
            url(Some("http://127.0.0.1:9000"), "rec", false),
            format!("http://127.0.0.1:9000/rec/{rest}")
        );
        assert_eq!(
            url(Some("https://store:9000/s3/"), "rec", true),
            format!("https://store:9000/s3/rec/{rest}")
        );
    }

    #[test]
    fn invalid_endpoint_is_refused() {
        for (uri, region, bucket, expected) in [
            ("ftp://host", "eu", "rec", "the scheme ftp"),
            ("host:80", "eu", "rec", "endpoint-uri=host:80"),
            (
                "http://u:secret@host",
                "eu",
                "rec",
                "(not shown): user and password",
            ),
            ("http://host?x", "eu", "rec", "? and #"),
            ("http://host", "eu west", "rec", "region=eu west"),
            ("http://host", "eu", "a/b", "bucket=a/b"),
        ] {
            let said = Endpoint::new(Some(uri), region, bucket, true)
                .unwrap_err()
                .to_string();
            assert!(
                said.contains(expected) && !said.contains("secret"),
                "{uri}: {said}"
            );
        }
    }

    proptest! {
        #[test]
        fn uri_round_trips(key in "[a-zA-Z0-9 /%?#&=ü+~._-]{1,40}", version in proptest::option::of("[a-z%&=? ]{1,9}")) {
            prop_assume!(check_key(&key).is_ok() && !key.starts_with('/'));
            let uri = ObjectUri { region: "eu".into(), bucket: "rec".into(), key, version };
            prop_assert_eq!(ObjectUri::parse(&uri.to_string()), Ok(uri));
        }

        /// For any key, the URL stays below the bucket, and leads to that key.
        #[test]
        fn a_key_stays_below_its_bucket(key in "[a-z/.%ü?# ]{1,20}") {
            prop_assume!(check_key(&key).is_ok());
            let endpoint = Endpoint::new(Some("http://h:1/x"), "eu", "rec", true).unwrap();
            let url = endpoint.url(&key, &[]);
            let path = url.path().strip_prefix("/x/rec/").expect("below the bucket");
            prop_assert_eq!(percent_decode_str(path).decode_utf8().unwrap(), key);
        }
    }
}
