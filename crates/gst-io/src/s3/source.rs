//! Common part of both sources: an HTTP source ([`HttpSource`]) with signed requests and S3's error responses.

use std::sync::{Mutex, MutexGuard};

use gst::glib;
use threadbare_s3::{Error, Store};

use super::access::{Access, error_of, timeouts};
use crate::http::{Alone, BYTES_MAX_DEFAULT, HttpSource, Signed};
use crate::kit::lock;

/// Values of the properties. It must not be printed, because it contains secrets.
#[derive(Clone)]
pub(super) struct Values {
    pub(super) access: Access,
    pub(super) bytes_max: u32,
}

pub(super) struct S3Source {
    values: Mutex<Values>,
    pub(super) http: HttpSource,
}

impl S3Source {
    pub(super) fn new(alone: Alone, src_pad: gst::Pad) -> Self {
        S3Source {
            values: Mutex::new(Values {
                access: Access::default(),
                bytes_max: BYTES_MAX_DEFAULT,
            }),
            http: HttpSource::new(alone, src_pad),
        }
    }

    pub(super) fn values(&self) -> MutexGuard<'_, Values> {
        lock(&self.values)
    }

    /// Sets the URI for the URI handler; refuses an invalid URI at once.
    pub(super) fn set_uri(&self, uri: &str) -> Result<(), glib::Error> {
        if self.http.driver.place().is_some() {
            return Err(glib::Error::new(
                gst::URIError::BadState,
                "the uri can be changed only in READY and NULL",
            ));
        }
        let set = self.values().access.set_uri(Some(uri));
        set.map_err(|error| glib::Error::new(gst::URIError::BadUri, &error.to_string()))
    }

    pub(super) fn answer_query(
        &self,
        element: &gst::Element,
        pad: &gst::Pad,
        query: &mut gst::QueryRef,
    ) -> bool {
        match query.view_mut() {
            gst::QueryViewMut::Uri(uri) => {
                let own = self.values().access.uri();
                uri.set_uri(own.as_deref());
                own.is_some()
            }
            _ => self.http.answer_query(element, pad, query),
        }
    }

    pub(super) fn activate(&self, element: &gst::Element) -> Result<(), gst::ErrorMessage> {
        let values = self.values().clone();
        let signed = signed(&values).map_err(|error| error_of(&error, "S3"))?;
        self.http.activate_signed(element, signed)
    }
}

/// Returns the object, with the credentials that sign its requests.
fn signed(values: &Values) -> Result<Signed, Error> {
    let access = &values.access;
    let (settings, key) = (access.store()?, access.key()?);
    threadbare_s3::check_key(key)?;
    let version = access.version.as_deref();
    let query: Vec<(&str, &str)> = version
        .iter()
        .map(|version| ("versionId", *version))
        .collect();
    let url = settings.endpoint.url(key, &query);
    let shown = access.uri().unwrap_or_default();
    let timeout_ms = timeouts(access.request_timeout_ms).request_ms;
    Ok(Signed {
        ca_file: access.ca_file.clone(),
        store: Store::shared(settings)?,
        url,
        shown,
        // Whole seconds, rounded up.
        timeout_s: timeout_ms.map_or(0, |ms| u32::try_from(ms.div_ceil(1000)).unwrap_or(u32::MAX)),
        retries: access.attempts.saturating_sub(1),
        bytes_max: values.bytes_max,
    })
}
