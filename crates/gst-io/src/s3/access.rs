//! Location and credentials of objects: properties common to sinks and sources.

use std::path::PathBuf;

use threadbare_s3::{
    Credentials, Endpoint, Error, ObjectUri, REGION_DEFAULT, StoreSettings, Timeouts,
};

/// Default of `request-timeout`, ms, the same as in the stock elements.
pub(super) const REQUEST_TIMEOUT_MS: i64 = 15_000;
/// Default of `retry-duration`, ms, the same as in the stock elements.
pub(super) const RETRY_DURATION_MS: i64 = 75_000;
/// Default number of attempts of a request, the same as in the stock elements.
pub(super) const ATTEMPTS: u32 = 5;

/// Replacement for a secret, because properties are printed, and appear in dumps of pipelines.
const HIDDEN: &str = "***";

/// Values of the properties. It must not be printed, because it contains secrets.
#[derive(Clone)]
pub(super) struct Access {
    pub(super) region: Option<String>,
    pub(super) bucket: Option<String>,
    pub(super) key: Option<String>,
    pub(super) version: Option<String>,
    /// Error of an invalid `uri`. It makes the start fail.
    uri_error: Option<Error>,
    pub(super) endpoint: Option<String>,
    pub(super) path_style: bool,
    access_key: Option<String>,
    secret: Option<String>,
    token: Option<String>,
    pub(super) ca_file: Option<String>,
    pub(super) attempts: u32,
    pub(super) request_timeout_ms: i64,
    pub(super) retry_duration_ms: i64,
}

impl Default for Access {
    fn default() -> Self {
        Access {
            region: Some(REGION_DEFAULT.into()),
            bucket: None,
            key: None,
            version: None,
            uri_error: None,
            endpoint: None,
            path_style: false,
            access_key: None,
            secret: None,
            token: None,
            ca_file: None,
            attempts: ATTEMPTS,
            request_timeout_ms: REQUEST_TIMEOUT_MS,
            retry_duration_ms: RETRY_DURATION_MS,
        }
    }
}

/// Returns a text that is set and not empty.
pub(super) fn set(text: Option<&String>) -> Option<&str> {
    text.map(String::as_str).filter(|text| !text.is_empty())
}

fn shown(secret: Option<&String>) -> Option<String> {
    set(secret).map(|_| HIDDEN.to_owned())
}

/// Returns the new secret after a property was set. If the new value is the replacement text, the known secret stays.
fn taken(secret: Option<String>, known: Option<String>) -> Option<String> {
    match secret.as_deref() {
        Some(HIDDEN) => known,
        _ => secret,
    }
}

impl Access {
    pub(super) fn uri(&self) -> Option<String> {
        let uri = ObjectUri {
            region: set(self.region.as_ref())?.into(),
            bucket: set(self.bucket.as_ref())?.into(),
            key: set(self.key.as_ref())?.into(),
            version: self.version.clone(),
        };
        Some(uri.to_string())
    }

    /// Sets the object's URI. An invalid URI fails at start; here only `set_uri` can return the error.
    pub(super) fn set_uri(&mut self, text: Option<&str>) -> Result<(), Error> {
        let parsed = match text.filter(|text| !text.is_empty()) {
            None => Ok(None),
            Some(text) => ObjectUri::parse(text).map(Some),
        };
        self.uri_error = parsed.as_ref().err().cloned();
        let uri = parsed?;
        self.version = uri.as_ref().and_then(|uri| uri.version.clone());
        match uri {
            Some(uri) => {
                (self.region, self.bucket, self.key) =
                    (Some(uri.region), Some(uri.bucket), Some(uri.key));
            }
            None => (self.bucket, self.key) = (None, None),
        }
        Ok(())
    }

    pub(super) fn shown_secret(&self) -> Option<String> {
        shown(self.secret.as_ref())
    }

    pub(super) fn set_secret(&mut self, text: Option<String>) {
        self.secret = taken(text, self.secret.take());
    }

    pub(super) fn shown_token(&self) -> Option<String> {
        shown(self.token.as_ref())
    }

    pub(super) fn set_token(&mut self, text: Option<String>) {
        self.token = taken(text, self.token.take());
    }

    pub(super) fn shown_access_key(&self) -> Option<String> {
        shown(self.access_key.as_ref())
    }

    pub(super) fn set_access_key(&mut self, text: Option<String>) {
        self.access_key = taken(text, self.access_key.take());
    }

    /// Returns the settings of the bucket. Fails if a needed property is not set.
    pub(super) fn store(&self) -> Result<StoreSettings, Error> {
        if let Some(error) = &self.uri_error {
            return Err(error.clone());
        }
        let missing = |what: &str| {
            Error::Setting(format!(
                "{what} is not set; expected uri=s3://region/bucket/key, or region, bucket and key"
            ))
        };
        let bucket = set(self.bucket.as_ref()).ok_or_else(|| missing("bucket"))?;
        let region = set(self.region.as_ref()).ok_or_else(|| missing("region"))?;
        Ok(StoreSettings {
            endpoint: Endpoint::new(set(self.endpoint.as_ref()), region, bucket, self.path_style)?,
            credentials: Credentials::given(
                set(self.access_key.as_ref()),
                set(self.secret.as_ref()),
                set(self.token.as_ref()),
            )?,
            ca_file: set(self.ca_file.as_ref()).map(PathBuf::from),
        })
    }

    /// Returns the key, or its template.
    pub(super) fn key(&self) -> Result<&str, Error> {
        let missing =
            "key is not set; expected uri=s3://region/bucket/key, or region, bucket and key";
        set(self.key.as_ref()).ok_or_else(|| Error::Setting(missing.into()))
    }
}

/// Converts a property in ms; -1 means none.
pub(super) fn ms(value: i64) -> Option<u64> {
    u64::try_from(value).ok()
}

/// Converts a property in ms to ns.
pub(super) fn ns(value: i64) -> Option<u64> {
    ms(value).map(|ms| ms.saturating_mul(1_000_000))
}

/// Returns timeouts of the same length for all steps.
pub(super) fn timeouts(request_ms: i64) -> Timeouts {
    Timeouts {
        request_ms: ms(request_ms),
        part_ms: ms(request_ms),
        complete_ms: ms(request_ms),
    }
}

/// Returns the error message for the application.
pub(super) fn error_of(error: &Error, place: &str) -> gst::ErrorMessage {
    let kind = match error {
        Error::Setting(_) => gst::ResourceError::Settings,
        Error::Credentials(_)
        | Error::Refused {
            status: 401 | 403, ..
        } => gst::ResourceError::NotAuthorized,
        Error::Refused { status: 404, .. } => gst::ResourceError::NotFound,
        Error::Connect(_) => gst::ResourceError::OpenWrite,
        _ => gst::ResourceError::Write,
    };
    gst::error_msg!(kind, ["{place}: {error}"])
}
