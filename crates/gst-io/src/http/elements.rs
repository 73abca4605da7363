//! The classes of `ts-httpsrc` and `reqwesthttpsrc`.

use gst::glib;
use gst::prelude::*;

/// The class of an element around a [`HttpSource`](super::source::HttpSource): module, class name, thread, texts.
macro_rules! http_source {
    ($module:ident, $class:literal, $alone:expr, $long:literal, $description:literal) => {
        mod $module {
            use gst::glib::{self, Properties};
            use gst::prelude::*;
            use gst::subclass::prelude::*;

            use crate::http::reader::HttpReader;
            use crate::http::settings::{
                BYTES_MAX_DEFAULT, RATE_WINDOW_NS_DEFAULT, RETRIES_DEFAULT, RETRY_DELAY_NS_DEFAULT,
                RETRY_DELAY_NS_MAX_DEFAULT, TIMEOUT_S_DEFAULT, UP_TO_READY, USER_AGENT_DEFAULT, proxy_url,
            };
            use crate::http::source::{Alone, HttpSource};
            use crate::kit::source::{Driver, SourceElement, source_pad};

            glib::wrapper! {
                /// The element.
                pub struct Element(ObjectSubclass<Imp>)
                    @extends gst::Element, gst::Object,
                    @implements gst::URIHandler;
            }

            #[derive(Properties)]
            #[properties(wrapper_type = Element)]
            pub struct Imp {
                #[property(name = "location", nick = "Location", blurb = "URL to fetch, http or https", type = Option<String>, get = |s: &Self| s.http.values().location.clone(), set = |s: &Self, v| s.http.values().location = v, flags = UP_TO_READY)]
                #[property(name = "user-agent", nick = "User agent", blurb = "Value of the header User-Agent; empty: no such header", type = Option<String>, get = |s: &Self| s.http.values().user_agent.clone(), set = |s: &Self, v| s.http.values().user_agent = v, default = Some(USER_AGENT_DEFAULT), flags = UP_TO_READY)]
                #[property(name = "is-live", nick = "Is live", blurb = "Push only in PLAYING; after a broken connection, a stream of unknown length continues with the server's current data", type = bool, get = |s: &Self| s.http.values().is_live, set = |s: &Self, v| s.http.values().is_live = v, default = false, flags = UP_TO_READY)]
                #[property(name = "user-id", nick = "User", blurb = "User name for the server (Basic); NULL: the user name in the location", type = Option<String>, get = |s: &Self| s.http.values().user_id.clone(), set = |s: &Self, v| s.http.values().user_id = v, flags = UP_TO_READY)]
                #[property(name = "user-pw", nick = "Password", blurb = "Password of user-id", type = Option<String>, get = |s: &Self| s.http.values().user_pw.clone(), set = |s: &Self, v| s.http.values().user_pw = v, flags = UP_TO_READY)]
                #[property(name = "timeout", nick = "Timeout", blurb = "Time without an answer or data after which a connection has failed, seconds; 0: never", type = u32, get = |s: &Self| s.http.values().timeout_s, set = |s: &Self, v| s.http.values().timeout_s = v, maximum = 3600, default = TIMEOUT_S_DEFAULT, flags = UP_TO_READY)]
                #[property(name = "compress", nick = "Compress", blurb = "Accept a compressed body (gzip); positions refer to the decompressed body, and seeking is not possible", type = bool, get = |s: &Self| s.http.values().connecting.compress, set = |s: &Self, v| s.http.values().connecting.compress = v, default = false, flags = UP_TO_READY)]
                #[property(name = "cookies", nick = "Cookies", blurb = "Cookies to send, each name=value", type = Vec<String>, get = |s: &Self| s.http.values().cookies.clone(), set = |s: &Self, v| s.http.values().cookies = v, flags = UP_TO_READY)]
                #[property(name = "iradio-mode", nick = "Internet radio", blurb = "Ask for metadata within the stream (application/x-icy)", type = bool, get = |s: &Self| s.http.values().iradio_mode, set = |s: &Self, v| s.http.values().iradio_mode = v, default = true, flags = UP_TO_READY)]
                #[property(name = "keep-alive", nick = "Keep alive", blurb = "Keep connections open for later requests, including those of other elements", type = bool, get = |s: &Self| s.http.values().connecting.keep_alive, set = |s: &Self, v| s.http.values().connecting.keep_alive = v, default = true, flags = UP_TO_READY)]
                #[property(name = "proxy", nick = "Proxy", blurb = "URL of the proxy; empty: the proxy that the environment sets (http_proxy, https_proxy, no_proxy), if any", type = Option<String>, get = |s: &Self| Some(s.http.values().connecting.proxy.clone()), set = |s: &Self, v: Option<String>| s.http.values().connecting.proxy = proxy_url(v.as_deref().unwrap_or_default()), flags = UP_TO_READY)]
                #[property(name = "proxy-id", nick = "Proxy's user", blurb = "User name for the proxy (Basic)", type = Option<String>, get = |s: &Self| s.http.values().connecting.proxy_id.clone(), set = |s: &Self, v| s.http.values().connecting.proxy_id = v, flags = UP_TO_READY)]
                #[property(name = "proxy-pw", nick = "Proxy's password", blurb = "Password of proxy-id", type = Option<String>, get = |s: &Self| s.http.values().connecting.proxy_pw.clone(), set = |s: &Self, v| s.http.values().connecting.proxy_pw = v, flags = UP_TO_READY)]
                #[property(name = "ssl-strict", nick = "Strict TLS", blurb = "Refuse servers whose certificate is not trusted", type = bool, get = |s: &Self| s.http.values().connecting.strict, set = |s: &Self, v| s.http.values().connecting.strict = v, default = true, flags = UP_TO_READY)]
                #[property(name = "ssl-ca-file", nick = "CA file", blurb = "File with the certificates (PEM) that are trusted instead of those of the system", type = Option<String>, get = |s: &Self| s.http.values().connecting.ca_file.clone(), set = |s: &Self, v| s.http.values().connecting.ca_file = v, flags = UP_TO_READY)]
                #[property(name = "retries", nick = "Retries", blurb = "Number of retries without a byte of progress before the element fails; -1: no limit", type = i32, get = |s: &Self| s.http.values().retries, set = |s: &Self, v| s.http.values().retries = v, minimum = -1, default = RETRIES_DEFAULT, flags = UP_TO_READY)]
                #[property(name = "retry-delay", nick = "Retry delay", blurb = "Maximum delay before the first retry, ns. It doubles with each retry; the actual delay is random, between half of this maximum and the maximum", type = u64, get = |s: &Self| s.http.values().retry_delay_ns, set = |s: &Self, v| s.http.values().retry_delay_ns = v, minimum = 1_000_000, maximum = 3_600_000_000_000, default = RETRY_DELAY_NS_DEFAULT, flags = UP_TO_READY)]
                #[property(name = "retry-delay-max", nick = "Greatest retry delay", blurb = "Maximum delay before any retry, ns", type = u64, get = |s: &Self| s.http.values().retry_delay_ns_max, set = |s: &Self, v| s.http.values().retry_delay_ns_max = v, minimum = 1_000_000, maximum = 3_600_000_000_000, default = RETRY_DELAY_NS_MAX_DEFAULT, flags = UP_TO_READY)]
                #[property(name = "minimum-rate", nick = "Minimum rate", blurb = "Average rate below which a connection has failed, bytes per second. It is measured over minimum-rate-time, only while the element waits for the server; 0: no limit", type = u32, get = |s: &Self| s.http.values().rate_min, set = |s: &Self, v| s.http.values().rate_min = v, default = 0, flags = UP_TO_READY)]
                #[property(name = "minimum-rate-time", nick = "Minimum rate's time", blurb = "Time over which minimum-rate is measured, ns", type = u64, get = |s: &Self| s.http.values().rate_window_ns, set = |s: &Self, v| s.http.values().rate_window_ns = v, minimum = 100_000_000, maximum = 3_600_000_000_000, default = RATE_WINDOW_NS_DEFAULT, flags = UP_TO_READY)]
                #[property(name = "max-bytes", nick = "Maximum bytes", blurb = "Maximum number of buffered bytes; while the buffer is full, the element does not read from the server", type = u32, get = |s: &Self| s.http.values().bytes_max, set = |s: &Self, v| s.http.values().bytes_max = v, minimum = 1, default = BYTES_MAX_DEFAULT, flags = UP_TO_READY)]
                #[property(name = "blocksize", nick = "Block size", blurb = "Maximum size of a buffer, bytes; 0: as received from the network", type = u32, get = |s: &Self| s.http.values().block_bytes, set = |s: &Self, v| s.http.values().block_bytes = v, default = 0, flags = UP_TO_READY)]
                #[property(name = "num-buffers", nick = "Number of buffers", blurb = "Number of buffers after which the stream ends; -1: no limit", type = i32, get = |s: &Self| s.http.values().buffers_max, set = |s: &Self, v| s.http.values().buffers_max = v, minimum = -1, default = -1, flags = UP_TO_READY)]
                #[property(name = "do-timestamp", nick = "Do timestamp", blurb = "Set the timestamp of each buffer to the running time of its arrival", type = bool, get = |s: &Self| s.http.values().do_timestamp, set = |s: &Self, v| s.http.values().do_timestamp = v, default = false, flags = UP_TO_READY)]
                http: HttpSource,
            }

            #[glib::object_subclass]
            impl ObjectSubclass for Imp {
                const NAME: &'static str = $class;
                type Type = Element;
                type ParentType = gst::Element;
                type Interfaces = (gst::URIHandler,);

                fn with_class(klass: &Self::Class) -> Self {
                    let src_pad = source_pad::<Imp>(&crate::kit::template(klass, "src"));
                    Imp {
                        http: HttpSource::new($alone, src_pad),
                    }
                }
            }

            impl ObjectImpl for Imp {
                crate::kit::properties_with_groups!(http.context, http.extra_headers, http.stats);

                fn constructed(&self) {
                    self.parent_constructed();
                    crate::kit::add_pads(self.obj().upcast_ref(), &[&self.http.src_pad]);
                }
            }

            impl GstObjectImpl for Imp {}

            impl ElementImpl for Imp {
                crate::kit::element_class!(
                    $long, "Source/Network", $description;
                    "src": Src Always gst::Caps::new_any()
                );

                crate::source_life!();

                fn set_context(&self, context: &gst::Context) {
                    self.http.set_context(context);
                    self.parent_set_context(context);
                }
            }

            impl SourceElement for Imp {
                type Producer = HttpReader;

                fn driver(&self) -> &Driver<HttpReader> {
                    &self.http.driver
                }

                fn src_pad(&self) -> &gst::Pad {
                    &self.http.src_pad
                }

                fn takes_early_seeks(&self) -> bool {
                    true
                }

                fn handle_upstream_event(&self, event: gst::Event) -> Result<bool, gst::Event> {
                    match event.view() {
                        gst::EventView::Seek(seek) => Ok(self.http.seek(seek)),
                        _ => Err(event),
                    }
                }

                fn answer_query(&self, pad: &gst::Pad, query: &mut gst::QueryRef) -> bool {
                    self.http.answer_query(self.obj().upcast_ref(), pad, query)
                }

                fn activate(&self, element: &gst::Element) -> Result<(), gst::ErrorMessage> {
                    self.http.activate(element)
                }

                fn deactivate(&self) {
                    self.http.deactivate();
                }

                fn is_live(&self) -> bool {
                    self.http.values().is_live
                }
            }

            impl URIHandlerImpl for Imp {
                const URI_TYPE: gst::URIType = gst::URIType::Src;

                fn protocols() -> &'static [&'static str] {
                    &["http", "https"]
                }

                fn uri(&self) -> Option<String> {
                    self.http.values().location.clone()
                }

                fn set_uri(&self, uri: &str) -> Result<(), glib::Error> {
                    self.http.set_uri(uri)
                }
            }
        }
    };
}

http_source!(
    shared,
    "ThreadbareHttpSrc",
    Alone::Shared,
    "Thread-sharing HTTP source",
    "Reads a resource over HTTP on the thread of a shared context"
);
http_source!(
    own,
    "ThreadbareReqwestHttpSrc",
    Alone::Own,
    "HTTP source",
    "Reads a resource over HTTP, on its own thread or on the thread of a shared context"
);

/// Registers the elements. `reqwesthttpsrc` has its usual rank, which is below that of the stock source. So applications get the
/// stock source if it is installed. `ts-httpsrc` must be selected by name.
pub(crate) fn register(plugin: Option<&gst::Plugin>) -> Result<(), glib::BoolError> {
    for (name, rank, kind) in [
        (
            "ts-httpsrc",
            gst::Rank::NONE,
            shared::Element::static_type(),
        ),
        (
            "reqwesthttpsrc",
            gst::Rank::MARGINAL,
            own::Element::static_type(),
        ),
    ] {
        gst::Element::register(plugin, name, rank, kind)?;
    }
    Ok(())
}
