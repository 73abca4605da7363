//! The classes of `awss3sink`, `ts-s3sink`, `awss3src` and `ts-s3src`.

use gst::glib;
use gst::prelude::*;

/// The class of a sink: module, class name, kind of keys, texts, and further groups of properties.
macro_rules! s3_sink {
    ($module:ident, $class:literal, $kind:expr, $key:tt, $long:literal, $description:literal, [$($more:tt)*]) => {
        mod $module {
            use gst::glib::{self, Properties};
            use gst::prelude::*;
            use gst::subclass::prelude::*;
            use threadbare_s3::REGION_DEFAULT;

            use crate::files::outbox::bell;
            use crate::files::settings::SlowPolicy;
            use crate::kit::lock;
            use crate::kit::sink::{Sink, SinkElement, sink_pad};
            use crate::kit::stats::StatsProperty;
            use crate::s3::access::{ATTEMPTS, REQUEST_TIMEOUT_MS, RETRY_DURATION_MS};
            use crate::s3::settings::{
                BUFFER_BYTES_MAX, PART_BYTES, S3OnError, SPOOL_BYTES_MAX, UP_TO_READY,
            };
            use crate::s3::sink::{KeyKind, S3Sink, later};
            use crate::s3::writer::Writer;

            glib::wrapper! {
                /// The element.
                pub struct Element(ObjectSubclass<Imp>)
                    @extends gst::Element, gst::Object,
                    @implements gst::URIHandler;
            }

            #[derive(Properties)]
            #[properties(wrapper_type = Element)]
            pub struct Imp {
                #[property(name = "bucket", nick = "Bucket", blurb = "Bucket to write to", type = Option<String>, get = |s: &Self| s.s3.values().access.bucket.clone(), set = |s: &Self, v| s.s3.values().access.bucket = v, mutable_ready)]
                #[property(name = "key", nick = "Key", blurb = $key, type = Option<String>, get = |s: &Self| s.s3.values().access.key.clone(), set = |s: &Self, v| s.s3.values().access.key = v, mutable_ready)]
                #[property(name = "region", nick = "Region", blurb = "Region of the bucket, such as eu-west-2", type = Option<String>, get = |s: &Self| s.s3.values().access.region.clone(), set = |s: &Self, v| s.s3.values().access.region = v, default = Some(REGION_DEFAULT), mutable_ready)]
                #[property(name = "uri", nick = "URI", blurb = "Region, bucket and key as s3://region/bucket/key", type = Option<String>, get = |s: &Self| s.s3.values().access.uri(), set = |s: &Self, v: Option<String>| later(s.s3.values().access.set_uri(v.as_deref())), mutable_ready)]
                #[property(name = "endpoint-uri", nick = "Endpoint", blurb = "URL of the store, such as http://127.0.0.1:9000; NULL: Amazon S3", type = Option<String>, get = |s: &Self| s.s3.values().access.endpoint.clone(), set = |s: &Self, v| s.s3.values().access.endpoint = v, mutable_ready)]
                #[property(name = "force-path-style", nick = "Path style", blurb = "Put the bucket into the path of URLs, not into the host name", type = bool, get = |s: &Self| s.s3.values().access.path_style, set = |s: &Self, v| s.s3.values().access.path_style = v, default = false, mutable_ready)]
                #[property(name = "access-key", nick = "Access key", blurb = "Access key. NULL: the credentials come from the environment, from ~/.aws, or from another source that the tools of AWS use. Once set, it reads as ***", type = Option<String>, get = |s: &Self| s.s3.values().access.shown_access_key(), set = |s: &Self, v| s.s3.values().access.set_access_key(v), mutable_ready)]
                #[property(name = "secret-access-key", nick = "Secret access key", blurb = "Secret of access-key. Once set, it reads as ***", type = Option<String>, get = |s: &Self| s.s3.values().access.shown_secret(), set = |s: &Self, v| s.s3.values().access.set_secret(v), mutable_ready)]
                #[property(name = "session-token", nick = "Session token", blurb = "Session token of a temporary access-key. Once set, it reads as ***", type = Option<String>, get = |s: &Self| s.s3.values().access.shown_token(), set = |s: &Self, v| s.s3.values().access.set_token(v), mutable_ready)]
                #[property(name = "ssl-ca-file", nick = "CA file", blurb = "File with the certificates (PEM) that are trusted instead of those of the system", type = Option<String>, get = |s: &Self| s.s3.values().access.ca_file.clone(), set = |s: &Self, v| s.s3.values().access.ca_file = v, mutable_ready)]
                #[property(name = "part-size", nick = "Part size", blurb = "Size of the parts of an upload, bytes; it doubles after every thousand parts", type = u64, get = |s: &Self| s.s3.values().part_bytes, set = |s: &Self, v| s.s3.values().part_bytes = v, minimum = PART_BYTES.0, maximum = PART_BYTES.1, default = PART_BYTES.2, mutable_ready)]
                #[property(name = "on-error", nick = "On error", blurb = "Action for an upload that fails or is stopped without EOS", type = S3OnError, get = |s: &Self| s.s3.values().on_error, set = |s: &Self, v| s.s3.values().on_error = v, flags = UP_TO_READY, builder(S3OnError::DoNothing))]
                #[property(name = "retry-attempts", nick = "Attempts", blurb = "Number of attempts before a request has failed", type = u32, get = |s: &Self| s.s3.values().access.attempts, set = |s: &Self, v| s.s3.values().access.attempts = v, minimum = 1, maximum = 10, default = ATTEMPTS, mutable_ready)]
                #[property(name = "request-timeout", nick = "Request's timeout", blurb = "Time without an answer after which a request has failed, ms; -1: no limit. It does not apply to uploads of parts and to the completion of an upload", type = i64, get = |s: &Self| s.s3.values().access.request_timeout_ms, set = |s: &Self, v| s.s3.values().access.request_timeout_ms = v, minimum = -1, default = REQUEST_TIMEOUT_MS, mutable_ready)]
                #[property(name = "upload-part-request-timeout", nick = "Part's timeout", blurb = "Time without an answer after which the upload of a part or small object has failed, ms for each 5 MiB; -1: no limit", type = i64, get = |s: &Self| s.s3.values().part_timeout_ms, set = |s: &Self, v| s.s3.values().part_timeout_ms = v, minimum = -1, default = REQUEST_TIMEOUT_MS, mutable_ready)]
                #[property(name = "complete-upload-request-timeout", nick = "Completion's timeout", blurb = "Time without an answer after which the request that completes an upload has failed, ms; -1: no limit", type = i64, get = |s: &Self| s.s3.values().complete_timeout_ms, set = |s: &Self, v| s.s3.values().complete_timeout_ms = v, minimum = -1, default = REQUEST_TIMEOUT_MS, mutable_ready)]
                #[property(name = "retry-duration", nick = "Retry duration", blurb = "Time since the first attempt after which a request is not repeated, ms; -1: no limit. It does not apply to uploads of parts and to the completion of an upload", type = i64, get = |s: &Self| s.s3.values().access.retry_duration_ms, set = |s: &Self, v| s.s3.values().access.retry_duration_ms = v, minimum = -1, default = RETRY_DURATION_MS, mutable_ready)]
                #[property(name = "upload-part-retry-duration", nick = "Part's retry duration", blurb = "Time since the first attempt after which the upload of a part or small object is not repeated, ms; -1: no limit", type = i64, get = |s: &Self| s.s3.values().part_duration_ms, set = |s: &Self, v| s.s3.values().part_duration_ms = v, minimum = -1, default = RETRY_DURATION_MS, mutable_ready)]
                #[property(name = "complete-upload-retry-duration", nick = "Completion's retry duration", blurb = "Time since the first attempt after which the request that completes an upload is not repeated, ms; -1: no limit", type = i64, get = |s: &Self| s.s3.values().complete_duration_ms, set = |s: &Self, v| s.s3.values().complete_duration_ms = v, minimum = -1, default = RETRY_DURATION_MS, mutable_ready)]
                #[property(name = "content-type", nick = "Content type", blurb = "Content-Type of the object", type = Option<String>, get = |s: &Self| s.s3.values().content_type.clone(), set = |s: &Self, v| s.s3.values().content_type = v, mutable_ready)]
                #[property(name = "content-disposition", nick = "Content disposition", blurb = "Content-Disposition of the object", type = Option<String>, get = |s: &Self| s.s3.values().content_disposition.clone(), set = |s: &Self, v| s.s3.values().content_disposition = v, mutable_ready)]
                #[property(name = "content-encoding", nick = "Content encoding", blurb = "Content-Encoding of the object", type = Option<String>, get = |s: &Self| s.s3.values().content_encoding.clone(), set = |s: &Self, v| s.s3.values().content_encoding = v, mutable_ready)]
                #[property(name = "content-language", nick = "Content language", blurb = "Content-Language of the object", type = Option<String>, get = |s: &Self| s.s3.values().content_language.clone(), set = |s: &Self, v| s.s3.values().content_language = v, mutable_ready)]
                #[property(name = "cache-control", nick = "Cache control", blurb = "Cache-Control of the object", type = Option<String>, get = |s: &Self| s.s3.values().cache_control.clone(), set = |s: &Self, v| s.s3.values().cache_control = v, mutable_ready)]
                #[property(name = "acl", nick = "ACL", blurb = "Canned access control list of the object, such as private or public-read; NULL: the default of the bucket", type = Option<String>, get = |s: &Self| s.s3.values().acl.clone(), set = |s: &Self, v| s.s3.values().acl = v, mutable_ready)]
                #[property(name = "buffer-max-bytes", nick = "Most bytes", blurb = "Maximum memory for all uploads of the process that have no spool, bytes. There is always memory for two parts of the largest size. If sinks set different values, the value of the sink that started last applies; a sink with the default value does not change the maximum", type = u64, get = |s: &Self| s.s3.values().buffer_bytes_max, set = |s: &Self, v| s.s3.values().buffer_bytes_max = v, default = BUFFER_BYTES_MAX, mutable_ready)]
                #[property(name = "slow-policy", nick = "Slow policy", blurb = "Action when the memory (buffer-max-bytes) or the spool (spool-max-bytes) is full", type = SlowPolicy, get = |s: &Self| s.s3.values().slow, set = |s: &Self, v| s.s3.values().slow = v, flags = UP_TO_READY, builder(SlowPolicy::HoldUp))]
                #[property(name = "spool", nick = "Spool", blurb = "Directory for data that is not uploaded yet. Uploads that an earlier process left there are continued. NULL: the data is held in memory", type = Option<String>, get = |s: &Self| s.s3.values().spool.clone(), set = |s: &Self, v| s.s3.values().spool = v, mutable_ready)]
                #[property(name = "spool-max-bytes", nick = "Spool's most bytes", blurb = "Maximum size of the spool, bytes. If elements of the process set different values for a spool, the value of the element that used the spool first applies", type = u64, get = |s: &Self| s.s3.values().spool_bytes_max, set = |s: &Self, v| s.s3.values().spool_bytes_max = v, default = SPOOL_BYTES_MAX, mutable_ready)]
                #[property(name = "check", nick = "Check", blurb = "Check before the first data that the store accepts objects; the check leaves nothing in the store", type = bool, get = |s: &Self| s.s3.values().check, set = |s: &Self, v| s.s3.values().check = v, default = true, mutable_ready)]
                s3: S3Sink,
                sink_pad: gst::Pad,
            }

            impl Imp {
                fn structure(&self) -> gst::Structure {
                    self.s3.structure(self.sink())
                }
            }

            #[glib::object_subclass]
            impl ObjectSubclass for Imp {
                const NAME: &'static str = $class;
                type Type = Element;
                type ParentType = gst::Element;
                type Interfaces = (gst::URIHandler,);

                fn with_class(klass: &Self::Class) -> Self {
                    let pad = sink_pad::<Imp>(&crate::kit::template(klass, "sink"));
                    Imp { s3: S3Sink::new($kind), sink_pad: pad }
                }
            }

            impl ObjectImpl for Imp {
                crate::kit::properties_with_groups!(s3.metadata, s3.sync, s3.stats $($more)*);

                fn constructed(&self) {
                    self.parent_constructed();
                    let obj = self.obj();
                    crate::kit::add_pads(obj.upcast_ref(), &[&self.sink_pad]);
                    *lock(&self.s3.stats) = StatsProperty::of(&*obj, |obj| obj.imp().structure());
                }
            }

            impl GstObjectImpl for Imp {}

            impl SinkElement for Imp {
                type Renderer = Writer;

                fn sink(&self) -> &Sink<Writer> {
                    self.s3.sink.get_or_init(|| {
                        let obj = self.obj();
                        let waker = bell(&*obj, |element: &Element| S3Sink::rung(element.imp().sink()));
                        let writer = Writer::new(obj.upcast_ref(), waker, self.s3.totals.clone());
                        Sink::new(obj.upcast_ref(), writer, lock(&self.s3.sync).clone().into())
                    })
                }

                fn activate(&self) -> Result<(), gst::ErrorMessage> {
                    self.s3.activate(self.obj().upcast_ref(), self.sink())
                }

                fn deactivate(&self) {
                    self.s3.deactivate(self.obj().upcast_ref(), self.sink());
                }

                fn notice_event(&self, event: &gst::Event) {
                    if event.type_() == gst::EventType::Caps {
                        self.sink().queue_event(event.clone());
                    }
                }

                fn answer_query(&self, query: &mut gst::QueryRef) -> bool {
                    self.s3.answer(query)
                }
            }

            impl ElementImpl for Imp {
                crate::kit::element_class!(
                    $long, "Sink/Network", $description;
                    "sink": Sink Always gst::Caps::new_any()
                );

                crate::sink_life!();
            }

            impl URIHandlerImpl for Imp {
                const URI_TYPE: gst::URIType = gst::URIType::Sink;

                fn protocols() -> &'static [&'static str] {
                    &["s3"]
                }

                fn uri(&self) -> Option<String> {
                    self.s3.values().access.uri()
                }

                fn set_uri(&self, uri: &str) -> Result<(), glib::Error> {
                    self.s3.set_uri(uri)
                }
            }
        }
    };
}

/// The class of a source: module, class name, thread, texts.
macro_rules! s3_source {
    ($module:ident, $class:literal, $alone:expr, $long:literal, $description:literal) => {
        mod $module {
            use gst::glib::{self, Properties};
            use gst::prelude::*;
            use gst::subclass::prelude::*;
            use threadbare_s3::REGION_DEFAULT;

            use crate::http::{Alone, BYTES_MAX_DEFAULT, HttpReader};
            use crate::kit::source::{Driver, SourceElement, source_pad};
            use crate::s3::access::{ATTEMPTS, REQUEST_TIMEOUT_MS, RETRY_DURATION_MS};
            use crate::s3::sink::later;
            use crate::s3::source::S3Source;

            glib::wrapper! {
                /// The element.
                pub struct Element(ObjectSubclass<Imp>)
                    @extends gst::Element, gst::Object,
                    @implements gst::URIHandler;
            }

            #[derive(Properties)]
            #[properties(wrapper_type = Element)]
            pub struct Imp {
                #[property(name = "uri", nick = "URI", blurb = "Object to read: s3://region/bucket/key, or a version of it with ?version=V", type = Option<String>, get = |s: &Self| s.s3.values().access.uri(), set = |s: &Self, v: Option<String>| later(s.s3.values().access.set_uri(v.as_deref())), mutable_ready)]
                #[property(name = "bucket", nick = "Bucket", blurb = "Bucket to read from", type = Option<String>, get = |s: &Self| s.s3.values().access.bucket.clone(), set = |s: &Self, v| s.s3.values().access.bucket = v, mutable_ready)]
                #[property(name = "key", nick = "Key", blurb = "Key of the object", type = Option<String>, get = |s: &Self| s.s3.values().access.key.clone(), set = |s: &Self, v| s.s3.values().access.key = v, mutable_ready)]
                #[property(name = "region", nick = "Region", blurb = "Region of the bucket, such as eu-west-2", type = Option<String>, get = |s: &Self| s.s3.values().access.region.clone(), set = |s: &Self, v| s.s3.values().access.region = v, default = Some(REGION_DEFAULT), mutable_ready)]
                #[property(name = "endpoint-uri", nick = "Endpoint", blurb = "URL of the store, such as http://127.0.0.1:9000; NULL: Amazon S3", type = Option<String>, get = |s: &Self| s.s3.values().access.endpoint.clone(), set = |s: &Self, v| s.s3.values().access.endpoint = v, mutable_ready)]
                #[property(name = "force-path-style", nick = "Path style", blurb = "Put the bucket into the path of URLs, not into the host name", type = bool, get = |s: &Self| s.s3.values().access.path_style, set = |s: &Self, v| s.s3.values().access.path_style = v, default = false, mutable_ready)]
                #[property(name = "access-key", nick = "Access key", blurb = "Access key. NULL: the credentials come from the environment, from ~/.aws, or from another source that the tools of AWS use. Once set, it reads as ***", type = Option<String>, get = |s: &Self| s.s3.values().access.shown_access_key(), set = |s: &Self, v| s.s3.values().access.set_access_key(v), mutable_ready)]
                #[property(name = "secret-access-key", nick = "Secret access key", blurb = "Secret of access-key. Once set, it reads as ***", type = Option<String>, get = |s: &Self| s.s3.values().access.shown_secret(), set = |s: &Self, v| s.s3.values().access.set_secret(v), mutable_ready)]
                #[property(name = "session-token", nick = "Session token", blurb = "Session token of a temporary access-key. Once set, it reads as ***", type = Option<String>, get = |s: &Self| s.s3.values().access.shown_token(), set = |s: &Self, v| s.s3.values().access.set_token(v), mutable_ready)]
                #[property(name = "ssl-ca-file", nick = "CA file", blurb = "File with the certificates (PEM) that are trusted instead of those of the system", type = Option<String>, get = |s: &Self| s.s3.values().access.ca_file.clone(), set = |s: &Self, v| s.s3.values().access.ca_file = v, mutable_ready)]
                #[property(name = "retry-attempts", nick = "Attempts", blurb = "Number of attempts without a byte of progress before the element fails", type = u32, get = |s: &Self| s.s3.values().access.attempts, set = |s: &Self, v| s.s3.values().access.attempts = v, minimum = 1, maximum = 10, default = ATTEMPTS, mutable_ready)]
                #[property(name = "request-timeout", nick = "Request's timeout", blurb = "Time without an answer or data after which a connection has failed, ms, in steps of a second; -1: no limit", type = i64, get = |s: &Self| s.s3.values().access.request_timeout_ms, set = |s: &Self, v| s.s3.values().access.request_timeout_ms = v, minimum = -1, default = REQUEST_TIMEOUT_MS, mutable_ready)]
                #[property(name = "retry-duration", nick = "Retry duration", blurb = "Has no effect, and exists only so that existing pipelines work; set retry-attempts instead", type = i64, get = |s: &Self| s.s3.values().access.retry_duration_ms, set = |s: &Self, v| s.s3.values().access.retry_duration_ms = v, minimum = -1, default = RETRY_DURATION_MS, mutable_ready)]
                #[property(name = "max-bytes", nick = "Maximum bytes", blurb = "Maximum number of buffered bytes; while the buffer is full, the element does not read from the store", type = u32, get = |s: &Self| s.s3.values().bytes_max, set = |s: &Self, v| s.s3.values().bytes_max = v, minimum = 1, default = BYTES_MAX_DEFAULT, mutable_ready)]
                s3: S3Source,
            }

            #[glib::object_subclass]
            impl ObjectSubclass for Imp {
                const NAME: &'static str = $class;
                type Type = Element;
                type ParentType = gst::Element;
                type Interfaces = (gst::URIHandler,);

                fn with_class(klass: &Self::Class) -> Self {
                    let pad = source_pad::<Imp>(&crate::kit::template(klass, "src"));
                    Imp { s3: S3Source::new($alone, pad) }
                }
            }

            impl ObjectImpl for Imp {
                crate::kit::properties_with_groups!(s3.http.context, s3.http.stats);

                fn constructed(&self) {
                    self.parent_constructed();
                    crate::kit::add_pads(self.obj().upcast_ref(), &[&self.s3.http.src_pad]);
                }
            }

            impl GstObjectImpl for Imp {}

            impl ElementImpl for Imp {
                crate::kit::element_class!(
                    $long, "Source/Network", $description;
                    "src": Src Always gst::Caps::new_any()
                );

                crate::source_life!();
            }

            impl SourceElement for Imp {
                type Producer = HttpReader;

                fn driver(&self) -> &Driver<HttpReader> {
                    &self.s3.http.driver
                }

                fn src_pad(&self) -> &gst::Pad {
                    &self.s3.http.src_pad
                }

                fn takes_early_seeks(&self) -> bool {
                    true
                }

                fn handle_upstream_event(&self, event: gst::Event) -> Result<bool, gst::Event> {
                    match event.view() {
                        gst::EventView::Seek(seek) => Ok(self.s3.http.seek(seek)),
                        _ => Err(event),
                    }
                }

                fn answer_query(&self, pad: &gst::Pad, query: &mut gst::QueryRef) -> bool {
                    self.s3.answer_query(self.obj().upcast_ref(), pad, query)
                }

                fn activate(&self, element: &gst::Element) -> Result<(), gst::ErrorMessage> {
                    self.s3.activate(element)
                }

                fn deactivate(&self) {
                    self.s3.http.deactivate();
                }

                fn is_live(&self) -> bool {
                    false
                }
            }

            impl URIHandlerImpl for Imp {
                const URI_TYPE: gst::URIType = gst::URIType::Src;

                fn protocols() -> &'static [&'static str] {
                    &["s3"]
                }

                fn uri(&self) -> Option<String> {
                    self.s3.values().access.uri()
                }

                fn set_uri(&self, uri: &str) -> Result<(), glib::Error> {
                    self.s3.set_uri(uri)
                }
            }
        }
    };
}

s3_sink!(
    stock_sink,
    "ThreadbareAwsS3Sink",
    KeyKind::Plain,
    "Key of the object to write",
    "S3 sink",
    "Writes a stream to an object in S3, without a separate thread",
    []
);
s3_sink!(
    shared_sink,
    "ThreadbareS3Sink",
    KeyKind::Template,
    "Template of the objects' keys: %05d is the object's number, {time} or {time:%H-%M} its start time (UTC), {name} the element's name",
    "Thread-sharing S3 sink",
    "Writes a stream to objects in S3, cut at its keyframes, without a separate thread",
    [, s3.cut]
);
s3_source!(
    stock_source,
    "ThreadbareAwsS3Src",
    Alone::Own,
    "S3 source",
    "Reads an object from S3, on its own thread or on the thread of a shared context"
);
s3_source!(
    shared_source,
    "ThreadbareS3Src",
    Alone::Shared,
    "Thread-sharing S3 source",
    "Reads an object from S3 on the thread of a shared context"
);

/// Registers the elements. The elements with names that applications know have a rank below that of the stock elements.
pub(crate) fn register(plugin: Option<&gst::Plugin>) -> Result<(), glib::BoolError> {
    for (name, rank, kind) in [
        (
            "awss3sink",
            gst::Rank::MARGINAL,
            stock_sink::Element::static_type(),
        ),
        (
            "ts-s3sink",
            gst::Rank::NONE,
            shared_sink::Element::static_type(),
        ),
        (
            "awss3src",
            gst::Rank::MARGINAL,
            stock_source::Element::static_type(),
        ),
        (
            "ts-s3src",
            gst::Rank::NONE,
            shared_source::Element::static_type(),
        ),
    ] {
        gst::Element::register(plugin, name, rank, kind)?;
    }
    Ok(())
}
