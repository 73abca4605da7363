//! Signals, property changes, descriptors and time as streams and futures.
#![allow(missing_docs)] // Of the GObject type below.

use std::cell::Cell;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use gio::prelude::*;
use glib::{IOCondition, MainContext, SignalHandlerId, Type};
use threadbare_mainloop::{
    MissedTicks, Overflow, SignalError, SignalStreamBuilder, interval_stream, interval_stream_with,
    notify_stream, readable, readiness, signal_stream, writable,
};

mod imp {
    use std::sync::OnceLock;

    use glib::subclass::Signal;
    use glib::subclass::prelude::*;

    use super::*;

    #[derive(Default, glib::Properties)]
    #[properties(wrapper_type = super::Dial)]
    pub struct Dial {
        #[property(get, set, minimum = -100, maximum = 100)]
        level: AtomicI32,
        #[property(set)]
        secret: Mutex<String>,
    }

    #[glib::object_subclass]
    impl ObjectSubclass for Dial {
        const NAME: &'static str = "TestDial";
        type Type = super::Dial;
    }

    #[glib::derived_properties]
    impl ObjectImpl for Dial {
        fn signals() -> &'static [Signal] {
            static SIGNALS: OnceLock<Vec<Signal>> = OnceLock::new();
            SIGNALS.get_or_init(|| {
                vec![
                    Signal::builder("turned")
                        .param_types([i32::static_type()])
                        .build(),
                    Signal::builder("asked").return_type::<bool>().build(),
                    Signal::builder("detailed").detailed().build(),
                ]
            })
        }
    }
}

glib::wrapper! {
    pub struct Dial(ObjectSubclass<imp::Dial>);
}

fn dial() -> Dial {
    glib::Object::new()
}

fn turn(dial: &Dial, by: i32) {
    dial.emit_by_name::<()>("turned", &[&by]);
}

fn number(values: &[glib::Value]) -> i32 {
    values[1].get().expect("an i32")
}

#[test]
fn emissions_arrive_in_order_and_the_end_of_the_object_ends_the_stream() {
    let dial = dial();
    let stream = signal_stream(&dial, "turned", number).unwrap();
    (1..=3).for_each(|by| turn(&dial, by));
    drop(dial);
    let got: Vec<i32> = MainContext::new().block_on(stream.collect());
    assert_eq!(got, [1, 2, 3]);
}

#[test]
fn emissions_of_another_thread_wake_the_reader() {
    // A handler is called in the thread that emits the signal; the stream of an object that is Send is read on any thread.
    let cancellable = gio::Cancellable::new();
    let mut stream = signal_stream(&cancellable, "cancelled", |_| thread::current().id()).unwrap();
    let reader = thread::spawn(move || {
        threadbare_runtime::block_on(async move { (stream.next().await, stream.next().await) })
    });
    cancellable.cancel();
    drop(cancellable);
    assert_eq!(reader.join().unwrap(), (Some(thread::current().id()), None));
}

#[test]
fn a_full_stream_drops_by_its_policy_and_counts() {
    for (overflow, expected) in [
        (Overflow::DropOldest, vec![4, 5]),
        (Overflow::DropNewest, vec![1, 2]),
    ] {
        let dial = dial();
        let builder = SignalStreamBuilder::default()
            .capacity(2)
            .overflow(overflow);
        let stream = builder.build(&dial, "turned", number).unwrap();
        (1..=5).for_each(|by| turn(&dial, by));
        assert_eq!(stream.dropped(), 3);
        drop(dial);
        let got: Vec<i32> = MainContext::new().block_on(stream.collect());
        assert_eq!(got, expected, "{overflow:?}");
    }
}

#[test]
fn a_dropped_stream_disconnects_its_handler() {
    let dial = dial();
    let calls = std::sync::Arc::new(AtomicI32::new(0));
    let counted = calls.clone();
    let stream = signal_stream(&dial, "turned", move |_| {
        counted.fetch_add(1, Ordering::Relaxed)
    });
    turn(&dial, 1);
    drop(stream);
    turn(&dial, 2);
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    // A stream may exist longer than its object, and then does nothing.
    let stream = signal_stream(&dial, "turned", number).unwrap();
    drop(dial);
    drop(stream);
}

#[test]
fn signal_handlers_return_the_given_answer() {
    let dial = dial();
    let refused = signal_stream(&dial, "asked", |_| ());
    assert_eq!(
        refused.unwrap_err(),
        SignalError::Returns {
            signal: "asked".to_owned(),
            wanted: bool::static_type(),
        }
    );
    let wrong = SignalStreamBuilder::default()
        .returning(3)
        .build(&dial, "asked", |_| ());
    assert!(matches!(wrong, Err(SignalError::Returns { .. })));
    let nothing = SignalStreamBuilder::default()
        .returning(3)
        .build(&dial, "turned", |_| ());
    assert!(matches!(nothing, Err(SignalError::ReturnsNothing { .. })));
    let _stream = SignalStreamBuilder::default()
        .returning(true)
        .after()
        .build(&dial, "asked", |_| ())
        .unwrap();
    assert!(dial.emit_by_name::<bool>("asked", &[]));
}

#[test]
fn missing_signal_or_property_is_refused_by_name() {
    let dial = dial();
    let error = signal_stream(&dial, "tuned", number).unwrap_err();
    assert_eq!(error.to_string(), "TestDial has no signal 'tuned'");
    let error = notify_stream::<_, i32>(&dial, "volume").unwrap_err();
    assert_eq!(
        error.to_string(),
        "TestDial has no readable property 'volume'"
    );
    let error = notify_stream::<_, String>(&dial, "secret").unwrap_err();
    assert_eq!(
        error.to_string(),
        "TestDial has no readable property 'secret'"
    );
    let error = notify_stream::<_, String>(&dial, "level").unwrap_err();
    assert_eq!(
        error,
        SignalError::PropertyType {
            type_: Dial::static_type(),
            property: "level".to_owned(),
            is: Type::I32,
            asked: Type::STRING,
        }
    );
}

#[test]
fn a_detail_selects_emissions() {
    let dial = dial();
    let stream = signal_stream(&dial, "detailed::left", |_| "left").unwrap();
    for detail in ["left", "right"] {
        let id = glib::subclass::SignalId::lookup("detailed", Dial::static_type()).unwrap();
        let quark = glib::Quark::from_str(detail);
        dial.emit_with_details::<()>(id, quark, &[]);
    }
    drop(dial);
    let got: Vec<&str> = MainContext::new().block_on(stream.collect());
    assert_eq!(got, ["left"]);
}

#[test]
fn a_property_gives_its_latest_value() {
    let dial = dial();
    let mut levels = notify_stream::<_, i32>(&dial, "level").unwrap();
    let context = MainContext::new();
    assert!(levels.next().now_or_never().is_none());
    dial.set_level(1);
    dial.set_level(2);
    assert_eq!(context.block_on(levels.next()), Some(2));
    dial.set_level(3);
    drop(dial);
    assert_eq!(context.block_on(levels.next()), Some(3));
    assert_eq!(context.block_on(levels.next()), None);
}

#[test]
fn an_emission_may_drop_the_stream_that_it_is_for() {
    let dial = dial();
    let stream = Rc::new(Cell::new(None));
    let of_handler = stream.clone();
    let _id: SignalHandlerId = dial.connect_local("turned", false, move |_| {
        drop(of_handler.take());
        None
    });
    stream.set(Some(signal_stream(&dial, "turned", number).unwrap()));
    turn(&dial, 1);
    turn(&dial, 2);
    assert!(stream.take().is_none());
}

#[test]
fn a_descriptor_becomes_readable_by_its_peer_or_its_peers_end() {
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    let context = MainContext::new();
    let writer = thread::spawn(move || {
        theirs.write_all(b"x").unwrap();
        theirs
    });
    let seen = context.block_on(readable(&ours));
    assert!(seen.contains(IOCondition::IN));
    assert_eq!(ours.read(&mut [0; 8]).unwrap(), 1);
    let theirs = writer.join().unwrap();
    assert!(context.block_on(writable(&ours)).contains(IOCondition::OUT));
    drop(theirs);
    assert!(
        context
            .block_on(readiness(&ours, IOCondition::PRI))
            .contains(IOCondition::HUP)
    );
}

#[test]
fn a_dropped_wait_for_a_descriptor_leaves_no_watch() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let context = MainContext::new();
    context.block_on(async {
        let mut waits = readable(&ours);
        assert!((&mut waits).now_or_never().is_none());
        drop(waits);
        theirs.write_all(b"x").unwrap();
    });
    // No source is ready. A watch that was left behind would be.
    assert!(!context.pending());
}

#[test]
fn many_descriptors_are_awaited_at_once() {
    let context = MainContext::new();
    let pairs: Vec<_> = (0..100).map(|_| UnixStream::pair().unwrap()).collect();
    let (ours, theirs): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    let writer = thread::spawn(move || {
        for mut their in theirs.into_iter().rev() {
            their.write_all(b"x").unwrap();
        }
    });
    let all = futures_util::future::join_all(ours.iter().map(readable));
    let seen = context.block_on(all);
    writer.join().unwrap();
    assert!(seen.into_iter().all(|seen| seen.contains(IOCondition::IN)));
}

#[test]
fn ticks_keep_their_grid_and_are_never_early() {
    let period = Duration::from_millis(2);
    MainContext::new().block_on(async {
        let mut ticks = interval_stream(period);
        let mut before = None;
        for _ in 0..5 {
            let tick = ticks.next().await.unwrap();
            assert!(threadbare_runtime::clock_now_ns() >= tick.at_ns);
            if let Some(before_ns) = before {
                assert_eq!((tick.at_ns - before_ns) % 2_000_000, 0);
                assert_eq!((tick.at_ns - before_ns) / 2_000_000, tick.missed + 1);
            }
            before = Some(tick.at_ns);
        }
    });
}

#[test]
fn missed_ticks_are_returned_at_once_or_skipped() {
    // The reader is certainly late, because it waits on the clock for ten periods.
    let period = Duration::from_millis(1);
    let late = || {
        let until_ns = threadbare_runtime::clock_now_ns() + 10_000_000;
        while threadbare_runtime::clock_now_ns() < until_ns {
            std::hint::spin_loop();
        }
    };
    MainContext::new().block_on(async {
        let mut burst = interval_stream_with(period, MissedTicks::Burst);
        assert!(burst.next().now_or_never().is_none());
        late();
        for _ in 0..10 {
            // A tick that is already due does not wait for the main context.
            let tick = burst.next().now_or_never().expect("due").unwrap();
            assert_eq!(tick.missed, 0);
        }
        let mut skip = interval_stream_with(period, MissedTicks::Skip);
        assert!(skip.next().now_or_never().is_none());
        late();
        assert!(skip.next().now_or_never().expect("due").unwrap().missed >= 9);
    });
}
