//! A flushing seek at each sink, on a test clock, compared with the stock element that does the same work.

use std::net::{TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use crate::common::*;
use gst::prelude::*;

/// Pairs of a stock sink and our sink, each for the end of the same pipeline. `UDP`, `TCP` and `FILE` stand for ports and a file
/// of the test.
const SINKS: [(&str, &str); 6] = [
    ("udpsink port=UDP", "ts-udpsink port=UDP"),
    ("appsink", "ts-appsink max-buffers=0"),
    (
        "filesink location=FILE sync=true",
        "ts-filesink location=FILE sync=true",
    ),
    (
        "tcpclientsink host=127.0.0.1 port=TCP",
        "ts-tcpclientsink host=127.0.0.1 port=TCP",
    ),
    (
        "tcpserversink host=127.0.0.1 port=0",
        "ts-tcpserversink host=127.0.0.1 port=0 sync=true async=true",
    ),
    (
        "udpsink port=UDP",
        "ts-rtpsink host=127.0.0.1 port=UDP sync=true async=true",
    ),
];

/// A pipeline with packets of ten milliseconds, and its far end.
struct Line {
    pipe: Pipe,
    arrived: Arc<AtomicUsize>,
    _udp: UdpSocket,
    _file: tempfile::NamedTempFile,
}

impl Line {
    fn new(sink: &str) -> Line {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (udp, tcp) = (socket(), TcpListener::bind("127.0.0.1:0").unwrap());
        let (udp_port, tcp_port) = (udp.local_addr().unwrap(), tcp.local_addr().unwrap());
        let sink = sink
            .replace("UDP", &udp_port.port().to_string())
            .replace("TCP", &tcp_port.port().to_string())
            .replace("FILE", file.path().to_str().unwrap());
        if sink.contains("tcpclient") {
            std::thread::spawn(move || {
                let (mut stream, _) = tcp.accept().unwrap();
                std::io::copy(&mut stream, &mut std::io::sink())
            });
        }
        let payloader = if sink.starts_with("ts-rtpsink") {
            "rtpL16pay"
        } else {
            "identity"
        };
        let pipe = Pipe::parse(&format!(
            "audiotestsrc samplesperbuffer=480 ! audioconvert ! audio/x-raw,format=S16BE,rate=48000,channels=1 \
             ! {payloader} ! {sink} name=sink"
        ));
        let arrived = Arc::<AtomicUsize>::default();
        let counted = arrived.clone();
        let kinds = gst::PadProbeType::BUFFER | gst::PadProbeType::BUFFER_LIST;
        pipe.pad("sink", "sink").add_probe(kinds, move |_, _| {
            counted.fetch_add(1, SeqCst);
            gst::PadProbeReturn::Ok
        });
        Line {
            pipe,
            arrived,
            _udp: udp,
            _file: file,
        }
    }

    fn seek(&self, target: gst::Element) {
        let sought = within("a seek", move || {
            target.seek_simple(gst::SeekFlags::FLUSH, 5 * gst::ClockTime::SECOND)
        });
        sought.unwrap();
    }

    fn position(&self) -> gst::ClockTime {
        self.pipe.0.query_position().expect("a position")
    }
}

/// Returns the packets that have arrived when the sink waits for a future time. On a test clock, the stock sinks wait for times
/// in the past, too.
fn at_rest(line: &Line, clock: &gst_check::TestClock) -> usize {
    loop {
        let waited = clock.clone();
        within("a wait for the clock", move || {
            waited.wait_for_next_pending_id()
        });
        if clock.next_entry_time() > Some(clock.time()) {
            return line.arrived.load(SeqCst);
        }
        clock.process_next_clock_id();
    }
}

/// A sink's behaviour at seeks in PLAYING.
#[derive(Debug, PartialEq)]
struct Course {
    /// Number of packets until the sink waits after a seek, and after 30 more waits.
    arrived: Vec<(usize, usize)>,
    /// Whether the seeks made the sink lose its state.
    loses_state: Vec<bool>,
    positions: Vec<gst::ClockTime>,
}

fn seek_in_playing(sink: &str) -> Course {
    let line = Line::new(sink);
    let clock = gst_check::TestClock::with_start_time(100 * gst::ClockTime::SECOND);
    line.pipe.0.use_clock(Some(&clock));
    line.pipe.to(gst::State::Playing);
    let steps = |count| {
        for _ in 0..count {
            at_rest(&line, &clock);
            assert!(clock.crank());
        }
    };
    steps(50);
    at_rest(&line, &clock);
    let mut course = Course {
        arrived: Vec::new(),
        loses_state: Vec::new(),
        positions: Vec::new(),
    };
    // Seek the sink, as players do, and then the pipeline.
    for target in [line.pipe.get("sink"), line.pipe.0.clone().upcast()] {
        let bus = line.pipe.bus();
        while bus.pop().is_some() {}
        line.arrived.store(0, SeqCst);
        line.seek(target);
        let loses_state = !sink.contains("async=false");
        if loses_state {
            line.pipe.expect(gst::MessageType::AsyncDone);
            line.pipe.to(gst::State::Playing);
        }
        let soon = at_rest(&line, &clock);
        steps(30);
        course.arrived.push((soon, at_rest(&line, &clock)));
        let mut changes = std::iter::from_fn(|| bus.pop());
        course
            .loses_state
            .push(loses_state || changes.any(|m| m.type_() == gst::MessageType::StateChanged));
        course.positions.push(line.position());
    }
    line.pipe.assert_no_error();
    course
}

/// After the seek, data is due from running time 0 again (GStreamer's design, "seeking").
#[test]
fn a_seek_in_playing_keeps_the_pace_of_the_stock_sink() {
    init();
    for (stock, sink) in SINKS {
        let (expected, course) = (seek_in_playing(stock), seek_in_playing(sink));
        // Half a second had passed before the seek. At full speed, much more would have arrived.
        for (soon, later) in &expected.arrived {
            assert!(*soon <= 2 && (30..=33).contains(later), "{expected:?}");
        }
        assert_eq!(course, expected, "{sink}");
    }
}

/// Without preroll, no state is lost and running time continues. Late data passes at once; then the clock paces the data.
#[test]
fn seek_without_preroll_continues_like_the_stock_sink() {
    init();
    for (stock, sink) in SINKS {
        let unprerolled = |sink: &str| format!("{} async=false", sink.replace("async=true", ""));
        let (stock, sink) = (unprerolled(stock), unprerolled(sink));
        let (expected, course) = (seek_in_playing(&stock), seek_in_playing(&sink));
        // These are the half second before the seek, at ten milliseconds a packet.
        assert!(expected.arrived[0].0 > 50, "{expected:?}");
        assert_eq!(course, expected, "{sink}");
    }
}

#[test]
fn seek_in_paused_prerolls_again() {
    init();
    for sink in SINKS.iter().flat_map(|(stock, ours)| [stock, ours]) {
        let line = Line::new(sink);
        line.pipe.to(gst::State::Paused);
        line.pipe.expect(gst::MessageType::AsyncDone);
        for _ in 0..3 {
            line.arrived.store(0, SeqCst);
            line.seek(line.pipe.0.clone().upcast());
            line.pipe.expect(gst::MessageType::AsyncDone);
            assert_eq!(line.arrived.load(SeqCst), 1, "{sink}");
        }
        line.pipe.to(gst::State::Playing);
        eventually("it plays on", || line.arrived.load(SeqCst) > 2);
        let position = line.position();
        assert!(position >= 5 * gst::ClockTime::SECOND, "{sink}: {position}");
        line.pipe.assert_no_error();
    }
}
