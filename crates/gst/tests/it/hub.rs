//! Proxy and inter pairs: data, events and queries from one pipeline to another, in any order of start and stop.

use std::sync::mpsc::{Receiver, channel};

use crate::common::*;
use gst::prelude::*;

/// A sink element and a pad that pushes into it.
struct Inlet {
    element: gst::Element,
    pad: gst::Pad,
    bus: gst::Bus,
    /// Events and queries received from downstream.
    upstream: Receiver<gst::EventType>,
}

impl Inlet {
    fn new(factory: &str, property: &str, name: &str) -> Inlet {
        let element = make(factory);
        element.set_property(property, name);
        let bus = gst::Bus::new();
        element.set_bus(Some(&bus));
        let (send, upstream) = channel();
        let pad = gst::Pad::builder(gst::PadDirection::Src)
            .event_function(move |_, _, event| {
                let _ = send.send(event.type_());
                true
            })
            .query_function(|_, _, query| match query.view_mut() {
                gst::QueryViewMut::Latency(latency) => {
                    latency.set(true, gst::ClockTime::from_mseconds(7), None);
                    true
                }
                gst::QueryViewMut::Duration(duration) => {
                    duration.set(gst::ClockTime::from_seconds(3));
                    true
                }
                _ => false,
            })
            .build();
        pad.link(&element.static_pad("sink").unwrap()).unwrap();
        pad.set_active(true).unwrap();
        Inlet {
            element,
            pad,
            bus,
            upstream,
        }
    }

    fn playing(factory: &str, property: &str, name: &str) -> Inlet {
        let inlet = Inlet::new(factory, property, name);
        set_state(&inlet.element, gst::State::Playing);
        inlet.open_stream();
        inlet
    }

    fn proxy(name: &str) -> Inlet {
        Inlet::playing("ts-proxysink", "proxy-context", name)
    }

    fn inter(name: &str) -> Inlet {
        Inlet::playing("ts-intersink", "inter-context", name)
    }

    fn open_stream(&self) {
        self.pad.push_event(gst::event::StreamStart::new("stream"));
        let caps = gst::Caps::new_empty_simple("application/x-test");
        self.pad.push_event(gst::event::Caps::new(&caps));
        let segment = gst::FormattedSegment::<gst::ClockTime>::new();
        self.pad.push_event(gst::event::Segment::new(&segment));
    }

    fn push(&self, number: u32) -> Result<gst::FlowSuccess, gst::FlowError> {
        let (pad, buffer) = (self.pad.clone(), numbered(number));
        within("a push", move || pad.push(buffer))
    }
}

impl Drop for Inlet {
    fn drop(&mut self) {
        let _ = self.element.set_state(gst::State::Null);
        self.element.set_bus(None);
    }
}

/// A source element in a pipeline, and its output.
struct Outlet {
    pipe: Pipe,
    seen: Receiver<Seen>,
}

impl Outlet {
    fn new(source: &str) -> Outlet {
        let pipe = Pipe::parse(&format!(
            "{source} name=src context={} context-wait=1 ! fakesink name=sink async=false sync=false",
            context()
        ));
        let seen = watch(&pipe.pad("sink", "sink"));
        Outlet { pipe, seen }
    }

    fn playing(source: &str) -> Outlet {
        let outlet = Outlet::new(source);
        outlet.pipe.to(gst::State::Playing);
        outlet
    }

    fn proxy(name: &str) -> Outlet {
        Outlet::playing(&format!("ts-proxysrc proxy-context={name}"))
    }

    fn inter(name: &str) -> Outlet {
        Outlet::playing(&format!("ts-intersrc inter-context={name}"))
    }

    fn expect(&self, numbers: impl IntoIterator<Item = u32>) {
        for expected in numbers {
            assert_eq!(number(&next_buffer(&self.seen)), expected);
        }
    }
}

/// A thread that waits in a push of buffer 2 into a proxy with room for one: 0 is held at `held_at`, 1 fills the queue.
struct Full {
    inlet: Inlet,
    outlet: Outlet,
    gate: Gate,
    pusher: std::thread::JoinHandle<Result<gst::FlowSuccess, gst::FlowError>>,
}

fn full_proxy(held_at: (&str, &str)) -> Full {
    let name = context();
    let inlet = Inlet::proxy(&name);
    let outlet = Outlet::new(&format!(
        "ts-proxysrc max-size-buffers=1 proxy-context={name}"
    ));
    let gate = gate(&outlet.pipe.pad(held_at.0, held_at.1));
    outlet.pipe.to(gst::State::Playing);
    inlet.push(0).unwrap();
    gate.wait_held();
    inlet.push(1).unwrap();
    let pad = inlet.pad.clone();
    let pusher = until_it_waits(move || pad.push(numbered(2)));
    Full {
        inlet,
        outlet,
        gate,
        pusher,
    }
}

#[test]
fn a_stream_passes_whether_the_sink_or_the_source_starts_first() {
    for sink_first in [true, false] {
        let name = context();
        let early = (!sink_first).then(|| Outlet::proxy(&name));
        let inlet = Inlet::proxy(&name);
        let outlet = early.unwrap_or_else(|| Outlet::proxy(&name));
        for i in 0..5 {
            inlet.push(i).unwrap();
        }
        let caps = next_event(&outlet.seen, gst::EventType::Caps);
        assert!(caps.structure().unwrap().to_string().contains("x-test"));
        outlet.expect(0..5);
        assert!(inlet.pad.push_event(gst::event::Eos::new()));
        next_event(&outlet.seen, gst::EventType::Eos);
        outlet.pipe.expect(gst::MessageType::Eos);
        let eos = inlet
            .bus
            .timed_pop_filtered(DEADLINE_GST, &[gst::MessageType::Eos]);
        assert!(eos.is_some(), "the sink's pipeline has ended, too");
    }
}

#[test]
fn a_foreign_thread_waits_for_the_source_and_for_room() {
    let name = context();
    let inlet = Inlet::proxy(&name);
    let pad = inlet.pad.clone();
    let (progress, pushed) = channel();
    let pusher = std::thread::spawn(move || {
        for i in 0..10 {
            pad.push(numbered(i)).unwrap();
            progress.send(i).unwrap();
        }
    });
    let outlet = Outlet::new(&format!(
        "ts-proxysrc max-size-buffers=2 proxy-context={name}"
    ));
    let gate = gate(&outlet.pipe.pad("sink", "sink"));
    assert!(pushed.try_recv().is_err(), "there was no receiver");
    outlet.pipe.to(gst::State::Playing);
    gate.wait_held();
    let src = outlet.pipe.get("src");
    eventually("the queue is full", || {
        src.property::<u32>("current-level-buffers") == 2
    });
    gate.open();
    outlet.expect(0..10);
    within("the pusher", move || pusher.join().unwrap());
}

#[test]
fn a_context_thread_does_not_block_while_its_source_waits_for_room() {
    let name = context();
    // Both ends are on one context, so a blocking wait would never end.
    let shared = context();
    let feeder = Pipe::parse(&format!(
        "ts-udpsrc name=in address=127.0.0.1 port=0 context={shared} ! ts-proxysink name=out proxy-context={name}"
    ));
    feeder.to(gst::State::Playing);
    let sender = socket();
    for i in 0..20 {
        sender
            .send_to(&packet(i), target(&feeder.get("in")))
            .unwrap();
    }
    let outlet = Outlet::new(&format!(
        "ts-proxysrc max-size-buffers=3 proxy-context={name}"
    ));
    outlet.pipe.get("src").set_property("context", &shared);
    outlet.pipe.to(gst::State::Playing);
    outlet.expect(0..20);
}

#[test]
fn a_name_is_for_one_pair_and_free_again_afterwards() {
    let name = context();
    for (factory, property) in [
        ("ts-proxysink", "proxy-context"),
        ("ts-intersink", "inter-context"),
        ("ts-proxysrc", "proxy-context"),
    ] {
        let first = make(factory);
        first.set_property(property, &name);
        set_state(&first, gst::State::Ready);
        let second = make(factory);
        second.set_property(property, &name);
        let bus = gst::Bus::new();
        second.set_bus(Some(&bus));
        assert!(second.set_state(gst::State::Ready).is_err());
        let said = text(&bus.pop_filtered(&[gst::MessageType::Error]).unwrap());
        assert!(said.contains(&name) && said.contains(property), "{said}");
        let _ = second.set_state(gst::State::Null);
        set_state(&first, gst::State::Null);
        set_state(&second, gst::State::Ready);
        set_state(&second, gst::State::Null);
        second.set_bus(None);
    }
    // A proxy and an inter pair of the same name are independent.
    let (proxy, inter) = (Inlet::proxy(&name), Inlet::inter(&name));
    drop((proxy, inter));
}

#[test]
fn each_end_survives_the_others_restart() {
    let name = context();
    let inlet = Inlet::proxy(&name);
    let outlet = Outlet::proxy(&name);
    inlet.push(0).unwrap();
    outlet.expect([0]);
    // The source is stopped and restarted.
    outlet.pipe.to(gst::State::Null);
    let pad = inlet.pad.clone();
    let pusher = until_it_waits(move || pad.push(numbered(1)));
    outlet.pipe.to(gst::State::Playing);
    next_event(&outlet.seen, gst::EventType::StreamStart);
    next_event(&outlet.seen, gst::EventType::Caps);
    outlet.expect([1]);
    within("the pusher", move || pusher.join().unwrap()).unwrap();
    // The sink is stopped and restarted.
    set_state(&inlet.element, gst::State::Null);
    assert_eq!(inlet.push(2), Err(gst::FlowError::Flushing));
    set_state(&inlet.element, gst::State::Playing);
    inlet.open_stream();
    inlet.push(3).unwrap();
    outlet.expect([3]);
    // Both ends are stopped after the end of the stream.
    inlet.pad.push_event(gst::event::Eos::new());
    next_event(&outlet.seen, gst::EventType::Eos);
    outlet.pipe.to(gst::State::Ready);
    set_state(&inlet.element, gst::State::Ready);
    set_state(&inlet.element, gst::State::Playing);
    outlet.pipe.to(gst::State::Playing);
    inlet.open_stream();
    inlet.push(4).unwrap();
    outlet.expect([4]);
    outlet.pipe.assert_no_error();
}

#[test]
fn stopped_sink_releases_the_pusher_and_keeps_its_data() {
    let Full {
        inlet,
        outlet,
        gate,
        pusher,
    } = full_proxy(("sink", "sink"));
    set_state(&inlet.element, gst::State::Null);
    let refused = within("the pusher", move || pusher.join().unwrap());
    assert_eq!(refused, Err(gst::FlowError::Flushing));
    gate.open();
    outlet.expect([0, 1]);
}

#[test]
fn removed_source_is_not_an_error_for_a_waiting_pusher() {
    // The running push returns as flushing. If it is blocked within a stock sink, it returns as the end of the stream.
    for held_at in [("src", "src"), ("sink", "sink")] {
        let Full {
            inlet: _inlet,
            outlet,
            gate,
            pusher,
        } = full_proxy(held_at);
        let sink = outlet.pipe.pad("sink", "sink");
        let pipe = outlet.pipe;
        let stopper = std::thread::spawn(move || pipe.to(gst::State::Null));
        eventually("the far end stops", || {
            sink.pad_flags().contains(gst::PadFlags::FLUSHING)
        });
        gate.open();
        let taken = within("the pusher", move || pusher.join().unwrap());
        assert_eq!(taken, Ok(gst::FlowSuccess::Ok), "{held_at:?}");
        within("the stop", move || stopper.join().unwrap());
    }
}

#[test]
fn a_sink_that_stops_in_the_middle_of_a_push_does_not_end_the_stream() {
    let name = context();
    let inlet = Inlet::proxy(&name);
    let outlet = Outlet::new(&format!("ts-proxysrc proxy-context={name}"));
    let (source, sink) = (outlet.pipe.get("src"), outlet.pipe.get("sink"));
    let pad = sink.static_pad("sink").unwrap();
    let gate = gate(&pad);
    outlet.pipe.to(gst::State::Playing);
    inlet.push(0).unwrap();
    gate.wait_held();
    // As in a pipeline, all elements pause first, and then the sink stops before the others.
    let _ = source.set_state(gst::State::Paused);
    let stopping = sink.clone();
    let stopper = std::thread::spawn(move || stopping.set_state(gst::State::Ready));
    eventually("the sink stops", || {
        pad.pad_flags().contains(gst::PadFlags::FLUSHING)
    });
    gate.open();
    within("the stop", move || stopper.join().unwrap()).unwrap();
    let context = source.property::<String>("context");
    let contexts = threadbare_runtime::contexts();
    let info = contexts.iter().find(|info| info.name == context).unwrap();
    info.threads[0].call(|_| ()).unwrap();
    inlet.push(1).unwrap();
    // The source still plays, so the stream has really ended, and the pusher gets the result.
    source.set_state(gst::State::Playing).unwrap();
    info.threads[0].call(|_| ()).unwrap();
    assert!(inlet.push(2).is_err());
    outlet.pipe.to(gst::State::Null);
}

#[test]
fn flush_releases_a_waiting_pusher() {
    let Full {
        inlet,
        outlet,
        gate,
        pusher,
    } = full_proxy(("src", "src"));
    inlet.pad.push_event(gst::event::FlushStart::new());
    let refused = within("the pusher", move || pusher.join().unwrap());
    assert_eq!(refused, Err(gst::FlowError::Flushing));
    gate.open();
    inlet.pad.push_event(gst::event::FlushStop::new(true));
    inlet.open_stream();
    inlet.push(3).unwrap();
    outlet.expect([3]);
}

#[test]
fn events_go_upstream_and_queries_both_ways() {
    for (inlet, outlet) in [
        {
            let name = context();
            (Inlet::proxy(&name), Outlet::proxy(&name))
        },
        {
            let name = context();
            (Inlet::inter(&name), Outlet::inter(&name))
        },
    ] {
        let sink = outlet.pipe.pad("sink", "sink");
        assert!(sink.push_event(gst::event::Reconfigure::new()));
        let came = inlet.upstream.recv_timeout(DEADLINE).unwrap();
        assert_eq!(came, gst::EventType::Reconfigure);
        let mut duration = gst::query::Duration::new(gst::Format::Time);
        assert!(sink.peer_query(&mut duration));
        assert_eq!(duration.result().value(), 3_000_000_000);
        let mut latency = gst::query::Latency::new();
        assert!(sink.peer_query(&mut latency));
        // The expected latency is upstream's 7 ms, plus one slice of the source's context.
        let expected = (true, gst::ClockTime::from_mseconds(8), None);
        assert_eq!(latency.result(), expected);
        // A caps query downstream returns the caps of the far end.
        let far = outlet.pipe.get("sink").static_pad("sink").unwrap();
        let wanted = gst::Caps::new_empty_simple("application/x-only");
        let only = wanted.clone();
        far.add_probe(
            gst::PadProbeType::QUERY_DOWNSTREAM | gst::PadProbeType::PULL,
            move |_, info| {
                if let Some(gst::QueryViewMut::Caps(caps)) = info.query_mut().map(|q| q.view_mut())
                {
                    caps.set_result(&only);
                    return gst::PadProbeReturn::Handled;
                }
                gst::PadProbeReturn::Ok
            },
        );
        assert_eq!(inlet.pad.peer_query_caps(None), wanted);
    }
}

#[test]
fn serialized_query_follows_earlier_data() {
    let name = context();
    let inlet = Inlet::proxy(&name);
    let outlet = Outlet::proxy(&name);
    let (order, came) = channel();
    outlet.pipe.pad("sink", "sink").add_probe(
        gst::PadProbeType::BUFFER | gst::PadProbeType::QUERY_DOWNSTREAM,
        move |_, info| {
            let what = match &info.data {
                Some(gst::PadProbeData::Buffer(buffer)) => Some(number(buffer)),
                Some(gst::PadProbeData::Query(query))
                    if query.type_() == gst::QueryType::Allocation =>
                {
                    Some(u32::MAX)
                }
                _ => None,
            };
            let _ = what.map(|what| order.send(what));
            gst::PadProbeReturn::Ok
        },
    );
    for i in 0..50 {
        inlet.push(i).unwrap();
    }
    let pad = inlet.pad.clone();
    within("a query", move || {
        let caps = gst::Caps::new_empty_simple("application/x-test");
        let mut query = gst::query::Allocation::new(Some(&caps), false);
        let _ = pad.peer_query(&mut query);
    });
    let seen: Vec<u32> = came.try_iter().collect();
    assert_eq!(seen, (0..50).chain([u32::MAX]).collect::<Vec<_>>());
}

#[test]
fn flush_passes_and_drops_queued_data() {
    let name = context();
    let inlet = Inlet::proxy(&name);
    let outlet = Outlet::new(&format!("ts-proxysrc proxy-context={name}"));
    let gate = gate(&outlet.pipe.pad("sink", "sink"));
    outlet.pipe.to(gst::State::Playing);
    for i in 0..3 {
        inlet.push(i).unwrap();
    }
    gate.wait_held();
    let pad = inlet.pad.clone();
    let flusher = std::thread::spawn(move || {
        pad.push_event(gst::event::FlushStart::new());
        pad.push_event(gst::event::FlushStop::new(true))
    });
    gate.open();
    assert!(within("the flush", move || flusher.join().unwrap()));
    let segment = gst::FormattedSegment::<gst::ClockTime>::new();
    inlet.pad.push_event(gst::event::Segment::new(&segment));
    inlet.push(9).unwrap();
    next_event(&outlet.seen, gst::EventType::FlushStop);
    outlet.expect([9]);
}

#[test]
fn an_error_downstream_reaches_the_proxys_pusher() {
    let name = context();
    let inlet = Inlet::proxy(&name);
    let outlet = Outlet::proxy(&name);
    outlet
        .pipe
        .pad("sink", "sink")
        .add_probe(gst::PadProbeType::BUFFER, |_, info| {
            info.flow_res = Err(gst::FlowError::NotSupported);
            gst::PadProbeReturn::Handled
        });
    let mut result = Ok(gst::FlowSuccess::Ok);
    eventually("the error is seen", || {
        result = inlet.pad.push(numbered(0));
        result.is_err()
    });
    assert_eq!(result, Err(gst::FlowError::NotSupported));
}

#[test]
fn an_inter_sink_reaches_all_sources_and_no_source_blocks_another() {
    let name = context();
    let inlet = Inlet::inter(&name);
    // Without a listener, the data is dropped and counted.
    inlet.push(0).unwrap();
    assert_eq!(stat(&inlet.element, "dropped"), 1);
    let outlets: Vec<Outlet> = (0..3).map(|_| Outlet::inter(&name)).collect();
    assert_eq!(stat(&inlet.element, "outlets"), 3);
    for i in 1..4 {
        inlet.push(i).unwrap();
    }
    for outlet in &outlets {
        // A late listener gets the stream's events.
        next_event(&outlet.seen, gst::EventType::Caps);
        outlet.expect(1..4);
    }
    // One listener fails and one stops. The third one is not affected.
    outlets[0]
        .pipe
        .pad("sink", "sink")
        .add_probe(gst::PadProbeType::BUFFER, |_, info| {
            info.flow_res = Err(gst::FlowError::Error);
            gst::PadProbeReturn::Handled
        });
    outlets[1].pipe.to(gst::State::Null);
    for i in 4..20 {
        inlet.push(i).unwrap();
    }
    outlets[2].expect(4..20);
    outlets[1].pipe.to(gst::State::Playing);
    eventually("it is back", || stat(&inlet.element, "outlets") == 3);
    inlet.push(20).unwrap();
    outlets[1].expect([20]);
    outlets[2].expect([20]);
}

#[test]
fn leaking_queue_does_not_wait_for_a_stalled_listener() {
    let name = context();
    let inlet = Inlet::inter(&name);
    let still = Outlet::new(&format!(
        "ts-intersrc inter-context={name} leaky=downstream max-size-buffers=4"
    ));
    let gate = gate(&still.pipe.pad("sink", "sink"));
    still.pipe.to(gst::State::Playing);
    let lively = Outlet::inter(&name);
    for i in 0..100 {
        inlet.push(i).unwrap();
    }
    lively.expect(0..100);
    gate.open();
}

#[test]
fn the_element_works_after_each_restart() {
    for (sink, source, property) in [
        ("ts-proxysink", "ts-proxysrc", "proxy-context"),
        ("ts-intersink", "ts-intersrc", "inter-context"),
    ] {
        let name = context();
        let inlet = Inlet::new(sink, property, &name);
        let outlet = Outlet::new(&format!("{source} {property}={name}"));
        for _ in 0..2 {
            for state in [gst::State::Ready, gst::State::Null, gst::State::Ready] {
                set_state(&inlet.element, state);
                outlet.pipe.to(state);
            }
            outlet.pipe.to(gst::State::Playing);
            set_state(&inlet.element, gst::State::Playing);
            inlet.open_stream();
            inlet.push(1).unwrap();
            outlet.expect([1]);
            set_state(&inlet.element, gst::State::Null);
            outlet.pipe.to(gst::State::Null);
        }
    }
}

/// A buffer that waits for a source is not dropped under a lock of the link.
#[test]
fn the_drop_of_a_buffer_that_waits_for_a_source_may_call_the_sink() {
    let stop: fn(&Pipe) = |pipe| set_state(&pipe.get("sink"), gst::State::Ready);
    let flush: fn(&Pipe) = |pipe| {
        let sink_pad = pipe.pad("sink", "sink");
        within("a flush", move || {
            sink_pad.send_event(gst::event::FlushStart::new())
        });
    };
    for then in [stop, flush] {
        let name = context();
        let pipe = Pipe::parse(&format!(
            "ts-appsrc name=src context={name} ! ts-proxysink name=sink proxy-context={name}"
        ));
        pipe.play();
        let (src, sink) = (pipe.get("src"), pipe.get("sink"));
        let (dropped, told) = channel();
        let buffer = gst::Buffer::from_slice(CallsBack {
            element: sink.downgrade(),
            dropped,
            data: vec![0],
        });
        assert!(src.emit_by_name::<bool>("push-buffer", &[&buffer]));
        drop(buffer);
        eventually("it is taken", || {
            src.property::<u64>("current-level-buffers") == 0
        });
        // A call returns after the pass in which the consumer pushes the item.
        let place = threadbare_runtime::Context::find(&name).unwrap();
        place.shards()[0].call(|_| ()).unwrap();
        drop(place);
        assert!(told.try_recv().is_err(), "it waits");
        sink.set_locked_state(true);
        then(&pipe);
        told.recv_timeout(DEADLINE).expect("it is dropped");
        sink.set_locked_state(false);
    }
}
