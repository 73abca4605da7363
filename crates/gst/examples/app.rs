//! Feeds an application's own data into shared threads and takes it out again: a starting point for applications.
//!
//! Each stream has its own pipelines, `ts-appsrc ! ts-queue ! ts-udpsink` and `ts-udpsrc ! ts-appsink`. A failing stream must not
//! take others with it, and one pipeline with thousands of elements starts slowly. All pipelines share one clock and one context,
//! which is one thread.
//!
//! ```sh
//! cargo run --release -p gst-plugin-threadbare --example app -- 1000 10   # streams, seconds
//! ```

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use gio::prelude::*;
use gst::prelude::*;

type Error = Box<dyn std::error::Error>;

/// Interval at which the application's only thread feeds the streams.
const INTERVAL: Duration = Duration::from_millis(20);
/// 20 ms of PCMU.
const PAYLOAD_BYTES: usize = 160;
/// Maximum time for the last packets.
const DRAIN_MAX: Duration = Duration::from_secs(60);

/// One stream: a pipeline that sends the application's data, and one that receives it.
struct Stream {
    sender: gst::Pipeline,
    receiver: gst::Pipeline,
    source: gst::Element,
    received: Arc<AtomicU64>,
}

/// A report of one stream.
enum News {
    Ended,
    Failed(String),
}

impl Stream {
    /// Creates the pipelines of a stream. `number` identifies it in its reports.
    fn new(number: usize, clock: &gst::Clock, news: &Sender<(usize, News)>) -> Result<Self, Error> {
        // The system picks the port, and the sender gets it.
        let receiver = pipeline(
            "ts-udpsrc name=in address=127.0.0.1 port=0 context=app context-wait=20 \
             caps=application/x-test ! ts-appsink name=out sync=false async=false emit-signals=true",
            clock,
        )?;
        receiver.set_state(gst::State::Paused)?;
        let port = port_of(&named(&receiver, "in")?)?;
        let sender = pipeline(
            &format!(
                "ts-appsrc name=in context=app context-wait=20 do-timestamp=true \
                 caps=application/x-test ! ts-queue ! ts-udpsink clients=127.0.0.1:{port} sync=false async=false"
            ),
            clock,
        )?;
        let received = Arc::new(AtomicU64::new(0));
        let count = received.clone();
        // Called on the context's thread, for all streams in turn: it must not block.
        named(&receiver, "out")?.connect("new-sample", false, move |values| {
            let sink = values[0].get::<gst::Element>().ok()?;
            let sample = sink.emit_by_name::<Option<gst::Sample>>("pull-sample", &[]);
            count.fetch_add(sample.map_or(0, |_| 1), Relaxed);
            Some(gst::FlowReturn::Ok.to_value())
        });
        for pipeline in [&sender, &receiver] {
            watch(pipeline, number, news)?;
        }
        Ok(Stream {
            source: named(&sender, "in")?,
            sender,
            receiver,
            received,
        })
    }

    fn play(&self) -> Result<(), Error> {
        self.receiver.set_state(gst::State::Playing)?;
        self.sender.set_state(gst::State::Playing)?;
        Ok(())
    }

    /// Pushes a payload. Returns `false` if the stream has enough for now, or has ended.
    fn push(&self, payload: &gst::Buffer) -> bool {
        self.source.emit_by_name("push-buffer", &[payload])
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        for pipeline in [&self.sender, &self.receiver] {
            let _ = pipeline.set_state(gst::State::Null);
        }
    }
}

fn pipeline(line: &str, clock: &gst::Clock) -> Result<gst::Pipeline, Error> {
    let pipeline = gst::parse::launch(line)?
        .downcast::<gst::Pipeline>()
        .map_err(|_| "not a pipeline")?;
    // Running time is the same in all pipelines, and none has to select a clock.
    pipeline.use_clock(Some(clock));
    Ok(pipeline)
}

fn named(pipeline: &gst::Pipeline, name: &str) -> Result<gst::Element, Error> {
    let element = pipeline.by_name(name);
    element.ok_or_else(|| format!("no element {name}").into())
}

fn port_of(source: &gst::Element) -> Result<u16, Error> {
    let socket = source.property::<Option<gio::Socket>>("used-socket");
    let address = socket.ok_or("no socket")?.local_address()?;
    let address = address.downcast::<gio::InetSocketAddress>();
    Ok(address.map_err(|_| "not an IP address")?.port())
}

/// Handles messages on the thread that posts them, which must not block: no thread waits at a thousand buses.
fn watch(
    pipeline: &gst::Pipeline,
    number: usize,
    news: &Sender<(usize, News)>,
) -> Result<(), Error> {
    let news = news.clone();
    let bus = pipeline.bus().ok_or("a pipeline without a bus")?;
    bus.set_sync_handler(move |_, message| {
        let told = match message.view() {
            gst::MessageView::Eos(_) => Some(News::Ended),
            gst::MessageView::Error(error) => Some(News::Failed(error.error().to_string())),
            _ => None,
        };
        if let Some(told) = told {
            let _ = news.send((number, told));
        }
        gst::BusSyncReply::Drop
    });
    Ok(())
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

/// Feeds all streams at the rate of a telephone; returns the number of accepted packets.
fn feed(streams: &[Stream], seconds: u64) -> u64 {
    let mut taken = 0;
    let begin = Instant::now();
    for slice in 1..=(seconds * 50) as u32 {
        let payload = gst::Buffer::from_slice([0xff; PAYLOAD_BYTES]);
        taken += streams
            .iter()
            .filter(|stream| stream.push(&payload))
            .count() as u64;
        std::thread::sleep((begin + INTERVAL * slice).saturating_duration_since(Instant::now()));
    }
    taken
}

fn run(stream_count: usize, seconds: u64) -> Result<bool, Error> {
    gst::init()?;
    gstthreadbare::plugin_register_static()?;
    let clock = gst::SystemClock::obtain();
    let (news, told) = channel();
    let streams: Vec<Stream> = (0..stream_count)
        .map(|number| Stream::new(number, &clock, &news))
        .collect::<Result<_, _>>()?;
    for stream in &streams {
        stream.play()?;
    }
    let begin = Instant::now();
    let sent = feed(&streams, seconds);
    let threads = threads();
    for stream in &streams {
        stream.source.emit_by_name::<bool>("end-of-stream", &[]);
    }
    let mut left = stream_count;
    while left > 0 {
        match told.recv_timeout(DRAIN_MAX)? {
            (_, News::Ended) => left -= 1,
            (number, News::Failed(error)) => return Err(format!("stream {number}: {error}").into()),
        }
    }
    let received = || {
        streams
            .iter()
            .map(|s| s.received.load(Relaxed))
            .sum::<u64>()
    };
    let end = Instant::now() + DRAIN_MAX;
    while received() < sent && Instant::now() < end {
        std::thread::sleep(INTERVAL);
    }
    let per_second = received() as f64 / begin.elapsed().as_secs_f64();
    println!(
        "{stream_count} streams: {sent} packets sent, {} received, {per_second:.0} a second, {threads} threads",
        received()
    );
    Ok(sent > 0 && received() == sent)
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default| arguments.next().map_or(Ok(default), |text| text.parse());
    let (Ok(streams), Ok(seconds)) = (number(100), number(5)) else {
        eprintln!("usage: app [streams] [seconds]");
        return ExitCode::from(2);
    };
    match run(streams as usize, seconds) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("not everything that was sent has arrived");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
