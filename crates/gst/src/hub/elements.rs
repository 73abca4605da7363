//! `ts-proxysink`, `ts-proxysrc`, `ts-intersink`, `ts-intersrc`: the element classes around the ends of a hub.

use gst::glib;
use gst::prelude::*;

/// The class of a sink element: module, class name, kind, property, texts, name of the statistics.
macro_rules! sink_element {
    ($module:ident, $class:literal, $kind:ident, $property:literal, $long:literal, $description:literal, $stats:literal) => {
        mod $module {
            use gst::glib::{self, Properties};
            use gst::prelude::*;
            use gst::subclass::prelude::*;

            use crate::hub::Kind;
            use crate::hub::sink::{HubSink, SinkEnd, change_state};

            crate::element! {
                Element(Imp) $class, [end.sink_pad];
                object { crate::kit::properties_with_groups!(end.stats); }
                element {
                    fn change_state(
                        &self,
                        transition: gst::StateChange,
                    ) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
                        change_state(self, transition, || self.parent_change_state(transition))
                    }

                    fn send_event(&self, event: gst::Event) -> bool {
                        if event.is_upstream() {
                            return self.end.sink_pad.push_event(event);
                        }
                        self.parent_send_event(event)
                    }
                }
                $long, "Sink/Generic", $description;
                "sink": Sink Always gst::Caps::new_any()
            }

            #[derive(Properties)]
            #[properties(wrapper_type = Element)]
            pub struct Imp {
                #[property(name = $property, nick = "Name", blurb = "Name of the connection; the source in the other pipeline has the same name", type = String, get = |s: &Self| s.end.name(), set = |s: &Self, v| s.end.set_name(v), default = "")]
                end: SinkEnd,
            }

            impl Imp {
                fn new(template: impl Fn(&str) -> gst::PadTemplate) -> Self {
                    Imp {
                        end: SinkEnd::new::<Imp>(Kind::$kind, &template("sink"), $stats),
                    }
                }
            }

            impl HubSink for Imp {
                fn end(&self) -> &SinkEnd {
                    &self.end
                }
            }
        }
    };
}

/// The class of a source element, with the same arguments.
macro_rules! source_element {
    ($module:ident, $class:literal, $kind:ident, $property:literal, $long:literal, $description:literal) => {
        mod $module {
            use gst::glib::{self, Properties};
            use gst::prelude::*;
            use gst::subclass::prelude::*;

            use crate::hub::Kind;
            use crate::hub::source::{SourceEnd, StoppingReader};
            use crate::kit::source::{Driver, SourceElement, source_pad};

            crate::element! {
                Element(Imp) $class, [src_pad];
                object { crate::kit::properties_with_groups!(end.context, end.queue); }
                element { crate::source_life!(); }
                $long, "Source/Generic", $description;
                "src": Src Always gst::Caps::new_any()
            }

            #[derive(Properties)]
            #[properties(wrapper_type = Element)]
            pub struct Imp {
                #[property(name = $property, nick = "Name", blurb = "Name of the connection; the sink in the other pipeline has the same name", type = String, get = |s: &Self| s.end.name(), set = |s: &Self, v| s.end.set_name(v), default = "")]
                end: SourceEnd,
                src_pad: gst::Pad,
            }

            impl Imp {
                fn new(template: impl Fn(&str) -> gst::PadTemplate) -> Self {
                    let src_pad = source_pad::<Imp>(&template("src"));
                    Imp {
                        end: SourceEnd::new(Kind::$kind, src_pad.clone()),
                        src_pad,
                    }
                }
            }

            impl SourceElement for Imp {
                type Producer = StoppingReader;

                fn driver(&self) -> &Driver<StoppingReader> {
                    self.end.driver()
                }

                fn src_pad(&self) -> &gst::Pad {
                    &self.src_pad
                }

                // Events from downstream are for the elements upstream of the sink.
                fn handle_upstream_event(&self, event: gst::Event) -> Result<bool, gst::Event> {
                    Ok(self.end.event(event))
                }

                fn answer_query(&self, pad: &gst::Pad, query: &mut gst::QueryRef) -> bool {
                    self.end.query(self.obj().upcast_ref(), pad, query)
                }

                fn open(&self) -> Result<(), gst::ErrorMessage> {
                    self.end.join()
                }

                fn activate(&self, element: &gst::Element) -> Result<(), gst::ErrorMessage> {
                    self.end.activate(element)
                }

                fn deactivate(&self) {
                    self.end.deactivate();
                }

                fn close(&self) {
                    self.end.leave();
                }
            }
        }
    };
}

sink_element!(
    proxy_sink,
    "ThreadbareProxySink",
    Proxy,
    "proxy-context",
    "Thread-sharing proxy sink",
    "Hands data to the ts-proxysrc with the same proxy-context in another pipeline, with back-pressure",
    "application/x-ts-proxysink-stats"
);
source_element!(
    proxy_source,
    "ThreadbareProxySrc",
    Proxy,
    "proxy-context",
    "Thread-sharing proxy source",
    "Receives data from the ts-proxysink with the same proxy-context, and pushes it on a context's thread"
);
sink_element!(
    inter_sink,
    "ThreadbareInterSink",
    Inter,
    "inter-context",
    "Thread-sharing inter-pipeline sink",
    "Hands data to each ts-intersrc with the same inter-context in other pipelines",
    "application/x-ts-intersink-stats"
);
source_element!(
    inter_source,
    "ThreadbareInterSrc",
    Inter,
    "inter-context",
    "Thread-sharing inter-pipeline source",
    "Receives data from the ts-intersink with the same inter-context, and pushes it on a context's thread"
);

pub(crate) fn register(plugin: Option<&gst::Plugin>) -> Result<(), glib::BoolError> {
    for (name, kind) in [
        ("ts-proxysink", proxy_sink::Element::static_type()),
        ("ts-proxysrc", proxy_source::Element::static_type()),
        ("ts-intersink", inter_sink::Element::static_type()),
        ("ts-intersrc", inter_source::Element::static_type()),
    ] {
        gst::Element::register(plugin, name, gst::Rank::NONE, kind)?;
    }
    Ok(())
}
