//! The sink's other properties as plain values.

use std::path::PathBuf;

use gst::glib;
use gst::prelude::*;
use jiff::Timestamp;
use threadbare_s3::{
    Error, METADATA_BYTES_MAX, Object, OnError, PART_BYTES_DEFAULT, PART_BYTES_MAX, PART_BYTES_MIN,
    POOL_BYTES_DEFAULT, PlaceSettings, Pool, Retries, Sizes, Timeouts, UploadSettings,
};

use super::access::{Access, REQUEST_TIMEOUT_MS, RETRY_DURATION_MS, ms, ns, set};
use crate::files::settings::SlowPolicy;
use crate::files::split::rotation::Limits;
use crate::files::split::template::Template;
use crate::kit::PropertyGroup;

/// Action for an upload that fails, or that is stopped before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, glib::Enum)]
#[enum_type(name = "ThreadbareS3OnError")]
#[allow(unreachable_pub, reason = "the type of a public property")]
pub enum S3OnError {
    /// The parts of the upload are removed from the store.
    #[enum_value(name = "Abort the upload", nick = "abort")]
    Abort,
    /// The parts of the upload become an object.
    #[enum_value(name = "Complete the upload with the data so far", nick = "complete")]
    Complete,
    /// The parts of the upload stay at the store.
    #[default]
    #[enum_value(name = "Do nothing", nick = "do-nothing")]
    DoNothing,
}

pub(super) const UP_TO_READY: glib::ParamFlags =
    glib::ParamFlags::READWRITE.union(gst::PARAM_FLAG_MUTABLE_READY);
/// Default size of the spool: room for a day of 1000 telephone calls.
pub(super) const SPOOL_BYTES_MAX: u64 = 64 << 30;
/// Minimum, maximum and default of the part size.
pub(super) const PART_BYTES: (u64, u64, u64) = (PART_BYTES_MIN, PART_BYTES_MAX, PART_BYTES_DEFAULT);
pub(super) const BUFFER_BYTES_MAX: u64 = POOL_BYTES_DEFAULT;

/// Values of the properties. It must not be printed, because it contains secrets.
#[derive(Clone)]
pub(super) struct Values {
    pub(super) access: Access,
    pub(super) part_bytes: u64,
    pub(super) on_error: S3OnError,
    pub(super) part_timeout_ms: i64,
    pub(super) complete_timeout_ms: i64,
    pub(super) part_duration_ms: i64,
    pub(super) complete_duration_ms: i64,
    pub(super) content_type: Option<String>,
    pub(super) content_disposition: Option<String>,
    pub(super) content_encoding: Option<String>,
    pub(super) content_language: Option<String>,
    pub(super) cache_control: Option<String>,
    pub(super) acl: Option<String>,
    pub(super) buffer_bytes_max: u64,
    pub(super) slow: SlowPolicy,
    pub(super) spool: Option<String>,
    pub(super) spool_bytes_max: u64,
    pub(super) check: bool,
}

impl Default for Values {
    fn default() -> Self {
        Values {
            access: Access::default(),
            part_bytes: PART_BYTES_DEFAULT,
            on_error: S3OnError::default(),
            part_timeout_ms: REQUEST_TIMEOUT_MS,
            complete_timeout_ms: REQUEST_TIMEOUT_MS,
            part_duration_ms: RETRY_DURATION_MS,
            complete_duration_ms: RETRY_DURATION_MS,
            content_type: None,
            content_disposition: None,
            content_encoding: None,
            content_language: None,
            cache_control: None,
            acl: None,
            buffer_bytes_max: BUFFER_BYTES_MAX,
            slow: SlowPolicy::default(),
            spool: None,
            spool_bytes_max: SPOOL_BYTES_MAX,
            check: true,
        }
    }
}

/// The property `metadata`.
#[derive(Clone, Default)]
pub(super) struct Metadata(Option<gst::Structure>);

impl PropertyGroup for Metadata {
    fn specs() -> Vec<glib::ParamSpec> {
        vec![
            glib::ParamSpecBoxed::builder::<gst::Structure>("metadata")
                .nick("Metadata")
                .blurb("Metadata to store with the object; each field is a string or can be converted to one")
                .mutable_ready()
                .build(),
        ]
    }

    fn set(&mut self, name: &str, value: &glib::Value) -> bool {
        let is_ours = name == "metadata";
        if is_ours {
            self.0 = value.get().ok().flatten();
        }
        is_ours
    }

    fn get(&self, name: &str) -> Option<glib::Value> {
        (name == "metadata").then(|| self.0.to_value())
    }
}

impl Metadata {
    fn fields(&self) -> Result<Vec<(String, String)>, Error> {
        let fields = self.0.iter().flat_map(|structure| structure.iter());
        fields
            .map(|(name, value)| {
                let text = value.transform::<Option<String>>().ok();
                let text = text.and_then(|text| text.get::<Option<String>>().ok().flatten());
                let wrong = || {
                    Error::Setting(format!(
                        "metadata: '{name}' is a {}; expected strings of {METADATA_BYTES_MAX} bytes in total",
                        value.type_()
                    ))
                };
                Ok((name.to_string(), text.ok_or_else(wrong)?))
            })
            .collect()
    }
}

/// The properties `max-size-time`, `max-size-bytes` and `start-index`.
#[derive(Clone, Default)]
pub(super) struct Cut {
    limits: Limits,
    start_index: i32,
}

impl PropertyGroup for Cut {
    fn specs() -> Vec<glib::ParamSpec> {
        vec![
            glib::ParamSpecUInt64::builder("max-size-time")
                .nick("Longest object")
                .blurb("Maximum duration of an object, ns; a keyframe that would exceed it starts a new object; 0: no limit")
                .mutable_ready()
                .build(),
            glib::ParamSpecUInt64::builder("max-size-bytes")
                .nick("Largest object")
                .blurb("Maximum size of an object, bytes; a keyframe that would exceed it starts a new object; 0: no limit")
                .mutable_ready()
                .build(),
            glib::ParamSpecInt::builder("start-index")
                .nick("First number")
                .blurb("Number of the first object")
                .minimum(0)
                .mutable_ready()
                .build(),
        ]
    }

    fn set(&mut self, name: &str, value: &glib::Value) -> bool {
        match name {
            "max-size-time" => self.limits.time_ns = value.get().unwrap_or(0),
            "max-size-bytes" => self.limits.bytes = value.get().unwrap_or(0),
            "start-index" => self.start_index = value.get().unwrap_or(0),
            _ => return false,
        }
        true
    }

    fn get(&self, name: &str) -> Option<glib::Value> {
        Some(match name {
            "max-size-time" => self.limits.time_ns.to_value(),
            "max-size-bytes" => self.limits.bytes.to_value(),
            "start-index" => self.start_index.to_value(),
            _ => return None,
        })
    }
}

/// Keys of objects.
#[derive(Clone)]
pub(super) enum Keys {
    /// This key.
    One(String),
    /// Key from a template.
    Template(Template, String),
}

impl Keys {
    /// Returns the key of the object of this number.
    pub(super) fn key(&self, number: u32) -> Result<String, Error> {
        match self {
            Keys::One(key) => Ok(key.clone()),
            Keys::Template(template, name) => {
                let path = template.path(number, name, Timestamp::now());
                let path = path.map_err(|error| Error::Setting(error.to_string()))?;
                Ok(path.to_string_lossy().into_owned())
            }
        }
    }
}

/// Parameters of the sink.
#[derive(Clone)]
pub(super) struct Plan {
    pub(super) place: PlaceSettings,
    pub(super) upload: UploadSettings,
    /// All settings of an object except its key.
    pub(super) object: Object,
    pub(super) keys: Keys,
    pub(super) limits: Limits,
    pub(super) first_number: u32,
    pub(super) on_error: OnError,
    /// The bucket, for messages.
    pub(super) bucket: String,
    pub(super) region: String,
}

impl Values {
    /// Checks the values and makes the plan. `name` is the element's name, for templates. `None` means that the key is not a
    /// template.
    pub(super) fn plan(
        &self,
        metadata: &Metadata,
        cut: &Cut,
        name: Option<&str>,
    ) -> Result<Plan, Error> {
        let store = self.access.store()?;
        let key = self.access.key()?;
        if self.access.version.is_some() {
            return Err(Error::Setting(
                "uri: a version of an object cannot be written; remove ?version=".into(),
            ));
        }
        let keys = match name {
            None => Keys::One(key.into()),
            Some(name) => {
                let template = Template::parse("key", key)
                    .map_err(|error| Error::Setting(error.to_string()))?;
                if cut.limits != Limits::default() && !template.is_numbered() {
                    return Err(Error::Setting(format!(
                        "key={key}: all objects would have the same key; expected %05d or {{time}} in the key"
                    )));
                }
                Keys::Template(template, name.into())
            }
        };
        let object = Object {
            content_type: self.content_type.clone(),
            content_disposition: self.content_disposition.clone(),
            content_encoding: self.content_encoding.clone(),
            content_language: self.content_language.clone(),
            cache_control: self.cache_control.clone(),
            acl: self.acl.clone(),
            metadata: metadata.fields()?,
            ..Object::new("")
        };
        let first_number = u32::try_from(cut.start_index).unwrap_or(0);
        // This finds mistakes in a key before anything is written.
        let first = Object {
            key: keys.key(first_number)?,
            ..object.clone()
        };
        first.check()?;
        Sizes::new(self.part_bytes, PART_BYTES_MAX)?;
        let upload = self.upload();
        let spool =
            set(self.spool.as_ref()).map(|path| (PathBuf::from(path), self.spool_bytes_max));
        Ok(Plan {
            bucket: store.endpoint.bucket().into(),
            region: store.endpoint.region().into(),
            place: PlaceSettings {
                store,
                spool,
                upload: upload.clone(),
                check: self.check.then_some(first.key),
            },
            on_error: upload.on_error,
            upload,
            object,
            keys,
            limits: cut.limits,
            first_number,
        })
    }

    fn upload(&self) -> UploadSettings {
        let access = &self.access;
        UploadSettings {
            part_bytes: self.part_bytes,
            retries: Retries {
                attempts: Some(access.attempts),
                request_ns: ns(access.retry_duration_ms),
                part_ns: ns(self.part_duration_ms),
                complete_ns: ns(self.complete_duration_ms),
                ..Retries::default()
            },
            timeouts: Timeouts {
                request_ms: ms(access.request_timeout_ms),
                part_ms: ms(self.part_timeout_ms),
                complete_ms: ms(self.complete_timeout_ms),
            },
            on_error: match self.on_error {
                S3OnError::Abort => OnError::Abort,
                S3OnError::Complete => OnError::Complete,
                S3OnError::DoNothing => OnError::DoNothing,
            },
            slow: match self.slow {
                SlowPolicy::HoldUp => threadbare_s3::SlowPolicy::HoldUp,
                SlowPolicy::DropOldest => threadbare_s3::SlowPolicy::DropOldest,
                SlowPolicy::Fail => threadbare_s3::SlowPolicy::Fail,
            },
            pool: self.pool(),
            spool: None,
        }
    }

    /// Returns the process's pool. If several sinks set its size, the last value other than the default applies.
    fn pool(&self) -> Pool {
        let pool = Pool::of_process();
        if self.buffer_bytes_max != BUFFER_BYTES_MAX {
            pool.set_max(self.buffer_bytes_max);
        }
        pool
    }
}
