//! `ts-proxysink`, `ts-proxysrc`, `ts-intersink`, `ts-intersrc`: the classes around the ends.

use gst::glib;
use gst::prelude::*;

/// A sink element: module, class name, kind, property, description.
macro_rules! sink_element {
    ($module:ident, $class:literal, $kind:ident, $property:literal, $long:literal, $description:literal, $stats:literal) => {
        mod $module {
            use std::sync::Mutex;

            use gst::glib::{self, Properties};
            use gst::prelude::*;
            use gst::subclass::prelude::*;

            use crate::hub::Kind;
            use crate::hub::sink::SinkEnd;
            use crate::kit::queue::Item;
            use crate::kit::stats::StatsProperty;
            use crate::kit::{lock, pad_function};

            glib::wrapper! {
                pub struct Element(ObjectSubclass<Imp>) @extends gst::Element, gst::Object;
            }

            #[derive(Properties)]
            #[properties(wrapper_type = Element)]
            pub struct Imp {
                #[property(name = $property, nick = "Name", blurb = "Name of the connection, as the source in the other pipeline has it", type = String, get = |s: &Self| s.end.name(), set = |s: &Self, v| s.end.set_name(v), default = "")]
                end: SinkEnd,
                stats: Mutex<StatsProperty>,
                sink_pad: gst::Pad,
            }

            #[glib::object_subclass]
            impl ObjectSubclass for Imp {
                const NAME: &'static str = $class;
                type Type = Element;
                type ParentType = gst::Element;

                fn with_class(klass: &Self::Class) -> Self {
                    let error = || Err(gst::FlowError::Error);
                    let no = || false;
                    let sink_pad = gst::Pad::builder_from_template(&crate::kit::template(klass, "sink"))
                        .chain_function(move |pad, parent, buffer| {
                            pad_function::<Imp, _>(parent, error, |imp| imp.end.chain(pad, Item::Buffer(buffer)))
                        })
                        .chain_list_function(move |pad, parent, list| {
                            pad_function::<Imp, _>(parent, error, |imp| imp.end.chain(pad, Item::List(list)))
                        })
                        .event_function(move |_, parent, event| {
                            pad_function::<Imp, _>(parent, no, |imp| imp.end.event(imp.obj().upcast_ref(), event))
                        })
                        .query_function(move |pad, parent, query| {
                            pad_function::<Imp, _>(parent, no, |imp| imp.end.query(imp.obj().upcast_ref(), pad, query))
                        })
                        .build();
                    Imp {
                        end: SinkEnd::new(Kind::$kind),
                        stats: Mutex::default(),
                        sink_pad,
                    }
                }
            }

            impl ObjectImpl for Imp {
                crate::kit::properties_with_groups!(stats);

                fn constructed(&self) {
                    self.parent_constructed();
                    let obj = self.obj();
                    crate::kit::add_pads(obj.upcast_ref(), &[&self.sink_pad]);
                    let element = obj.downgrade();
                    self.sink_pad.connect_unlinked(move |_, _| {
                        if let Some(element) = element.upgrade() {
                            element.imp().end.unlink();
                        }
                    });
                    *lock(&self.stats) = StatsProperty::of(&*obj, |obj| obj.imp().end.structure($stats));
                }
            }

            impl GstObjectImpl for Imp {}

            impl ElementImpl for Imp {
                crate::kit::element_class!($long, "Sink/Generic", $description; "sink": Sink Always gst::Caps::new_any());

                fn change_state(
                    &self,
                    transition: gst::StateChange,
                ) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
                    crate::kit::or_post(self, self.end.before(&self.sink_pad, transition))?;
                    let result = self.parent_change_state(transition);
                    self.end.after(transition);
                    result
                }

                fn send_event(&self, event: gst::Event) -> bool {
                    if event.is_upstream() {
                        return self.sink_pad.push_event(event);
                    }
                    self.parent_send_event(event)
                }
            }
        }
    };
}

/// A source element, alike.
macro_rules! source_element {
    ($module:ident, $class:literal, $kind:ident, $property:literal, $long:literal, $description:literal) => {
        mod $module {
            use std::sync::Mutex;

            use gst::glib::{self, Properties};
            use gst::prelude::*;
            use gst::subclass::prelude::*;

            use crate::hub::Kind;
            use crate::hub::source::{StoppingReader, SourceEnd};
            use crate::kit::context::ContextSettings;
            use crate::kit::queue::{Queue, QueueProperties};
            use crate::kit::source::{Driver, SourceElement, source_pad};

            glib::wrapper! {
                pub struct Element(ObjectSubclass<Imp>) @extends gst::Element, gst::Object;
            }

            #[derive(Properties)]
            #[properties(wrapper_type = Element)]
            pub struct Imp {
                #[property(name = $property, nick = "Name", blurb = "Name of the connection, as the sink has it", type = String, get = |s: &Self| s.end.name(), set = |s: &Self, v| s.end.set_name(v), default = "")]
                end: SourceEnd,
                context: Mutex<ContextSettings>,
                queue: Mutex<QueueProperties>,
                src_pad: gst::Pad,
            }

            #[glib::object_subclass]
            impl ObjectSubclass for Imp {
                const NAME: &'static str = $class;
                type Type = Element;
                type ParentType = gst::Element;

                fn with_class(klass: &Self::Class) -> Self {
                    let src_pad = source_pad::<Imp>(&crate::kit::template(klass, "src"));
                    let items = Queue::new(|_| {});
                    Imp {
                        context: Mutex::default(),
                        queue: Mutex::new(QueueProperties(items.clone())),
                        end: SourceEnd::new(Kind::$kind, items, src_pad.clone()),
                        src_pad,
                    }
                }
            }

            impl ObjectImpl for Imp {
                crate::kit::properties_with_groups!(context, queue);

                fn constructed(&self) {
                    self.parent_constructed();
                    let obj = self.obj();
                    crate::kit::add_pads(obj.upcast_ref(), &[&self.src_pad]);
                }
            }

            impl GstObjectImpl for Imp {}

            impl ElementImpl for Imp {
                crate::kit::element_class!($long, "Source/Generic", $description; "src": Src Always gst::Caps::new_any());

                crate::source_life!();
            }

            impl SourceElement for Imp {
                type Producer = StoppingReader;

                fn driver(&self) -> &Driver<StoppingReader> {
                    self.end.driver()
                }

                fn src_pad(&self) -> &gst::Pad {
                    &self.src_pad
                }

                // What comes from downstream concerns what is upstream of the sink.
                fn handle_upstream_event(&self, event: gst::Event) -> Result<bool, gst::Event> {
                    Ok(self.end.event(event))
                }

                fn answer_query(&self, pad: &gst::Pad, query: &mut gst::QueryRef) -> bool {
                    self.end.query(self.obj().upcast_ref(), &self.context, pad, query)
                }

                fn open(&self) -> Result<(), gst::ErrorMessage> {
                    self.end.join()
                }

                fn activate(&self, element: &gst::Element) -> Result<(), gst::ErrorMessage> {
                    self.end.activate(element, &self.context)
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
    "Hands data to the ts-proxysrc of the same name in another pipeline, with back-pressure",
    "application/x-ts-proxysink-stats"
);
source_element!(
    proxy_source,
    "ThreadbareProxySrc",
    Proxy,
    "proxy-context",
    "Thread-sharing proxy source",
    "Pushes the data of the ts-proxysink of the same name on a context's thread"
);
sink_element!(
    inter_sink,
    "ThreadbareInterSink",
    Inter,
    "inter-context",
    "Thread-sharing inter-pipeline sink",
    "Hands data to every ts-intersrc of the same name in other pipelines",
    "application/x-ts-intersink-stats"
);
source_element!(
    inter_source,
    "ThreadbareInterSrc",
    Inter,
    "inter-context",
    "Thread-sharing inter-pipeline source",
    "Pushes the data of the ts-intersink of the same name on a context's thread"
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
