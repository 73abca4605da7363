//! Runs N streams from one gst-launch description, each in a separate pipeline.
//!
//! The pipelines are separate because the time to start a bin grows with the square of its number of elements. All pipelines share one
//! clock and one bus handler.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use gst::glib;
use gst::glib::translate::ToGlibPtr;
use gst::prelude::*;

use crate::session::{self, Origin, Ready};
use crate::{counter, feed, hop, measure};

/// Runs streams and measures this process.
#[derive(Debug, Parser)]
pub struct Options {
    /// Description of one stream, as for gst-launch. {port} {base} {out} {ctx} {ssrc} {i} are filled in.
    #[arg(long)]
    description: String,
    /// Number of streams.
    #[arg(long)]
    streams: u16,
    /// Number of contexts. {ctx} is from 0 to one less than this number.
    #[arg(long, default_value_t = 1)]
    contexts: u16,
    /// {port} of the first stream. The other streams use the ports after it.
    #[arg(long)]
    port: u16,
    /// {out} of the first stream.
    #[arg(long, default_value_t = 9)]
    out: u16,
    /// Number of ports for {out}, which the streams use in turn.
    #[arg(long, default_value_t = 1)]
    out_ports: u16,
    /// Seconds from the first packet to the measured window.
    #[arg(long, default_value_t = 3.0)]
    warmup: f64,
    /// Length of the measured window in seconds.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Counts wake-ups of threads. There is no sender.
    #[arg(long)]
    idle: bool,
    /// Starts without a sender, because the streams generate their data. Elements with a `push-buffer` action get a buffer every 20
    /// ms.
    #[arg(long, conflicts_with = "idle")]
    no_sender: bool,
    /// Measures the time of each buffer from the element named `hop` to the sink.
    #[arg(long)]
    time_hops: bool,
    /// Number of streams, from the first on, whose buffers are not counted.
    #[arg(long, default_value_t = 0)]
    uncounted: u16,
}

/// Runs the `main` function of both programs. `register` registers elements that are linked into the program.
pub fn main(register: impl FnOnce() -> Result<(), glib::BoolError>) -> Result<()> {
    let options = Options::parse();
    measure::raise_descriptor_limit();
    gst::init()?;
    register()?;
    let clock = gst::SystemClock::obtain();

    let started = Instant::now();
    // The pipelines are kept until the end, because a pipeline stops when it is dropped.
    let mut pipelines = vec![start(&options, 0, &clock)?];
    let resident_kib_first = measure::resident_kib()?;
    for stream in 1..options.streams {
        pipelines.push(start(&options, stream, &clock)?);
    }
    let sources: Vec<gst::Element> = pipelines.iter().flat_map(fed).collect();
    let _feeder = (!sources.is_empty())
        .then(|| feed::start(sources))
        .transpose()?;
    let senders: Vec<gst::Element> = pipelines.iter().flat_map(own_counters).collect();
    counter::count_by(move || senders.iter().map(packets_sent).sum());
    let ready = Ready {
        setup_seconds: started.elapsed().as_secs_f64(),
        resident_kib_first,
    };

    let warmup = Duration::from_secs_f64(options.warmup);
    let window = Duration::from_secs_f64(options.seconds);
    if options.idle {
        session::run_idle(ready, warmup, window)?;
    } else {
        let origin = if options.no_sender {
            Origin::Within
        } else {
            Origin::Sender
        };
        session::run(ready, warmup, window, origin)?;
    }
    // Thousands of pipelines are not stopped, because that takes time and is not measured.
    std::process::exit(0)
}

fn start(options: &Options, stream: u16, clock: &gst::Clock) -> Result<gst::Pipeline> {
    let description = fill_in(options, stream);
    let contents = gst::parse::bin_from_description(&description, false)
        .with_context(|| format!("in: {description}"))?;
    let pipeline = gst::Pipeline::new();
    pipeline.use_clock(Some(clock));
    let bus = pipeline.bus().context("the pipeline has no bus")?;
    bus.set_sync_handler(|_, message| {
        if let gst::MessageView::Error(error) = message.view() {
            eprintln!("{:?}: {} ({:?})", error.src(), error.error(), error.debug());
            std::process::exit(2);
        }
        gst::BusSyncReply::Drop
    });
    for sink in contents.iterate_sinks() {
        let sink = sink.context("the bin changed during the iteration")?;
        if counts_itself(&sink) || stream < options.uncounted {
            continue;
        }
        // If a stream has a sink named `hop`, this sink passes its buffers to another branch of the same stream, which counts them.
        let is_hop = sink.name() == HOP;
        if is_hop {
            continue;
        }
        let sink_pad = sink_pad_of(&sink)?;
        if options.time_hops {
            let hop = contents.by_name(HOP).context("no element is named hop")?;
            hop::time(&sink_pad_of(&hop)?, &sink_pad);
        }
        count_at(&sink_pad);
    }
    pipeline.add(&contents)?;
    pipeline.set_state(gst::State::Playing)?;
    Ok(pipeline)
}

/// Name of the element at which the measured time starts.
const HOP: &str = "hop";

fn sink_pad_of(element: &gst::Element) -> Result<gst::Pad> {
    element
        .static_pad("sink")
        .with_context(|| format!("{} has no sink pad", element.name()))
}

/// Returns the sources that need buffers from the application.
fn fed(pipeline: &gst::Pipeline) -> impl Iterator<Item = gst::Element> + use<> {
    let elements = pipeline.iterate_recurse().into_iter().flatten();
    elements.filter(feed::takes_buffers)
}

/// Whether a sink counts its sent packets itself.
fn counts_itself(sink: &gst::Element) -> bool {
    sink.factory()
        .is_some_and(|factory| factory.name() == "ts-rtpsink")
}

fn own_counters(pipeline: &gst::Pipeline) -> impl Iterator<Item = gst::Element> + use<> {
    let elements = pipeline.iterate_recurse().into_iter().flatten();
    elements.filter(counts_itself)
}

fn packets_sent(sink: &gst::Element) -> u64 {
    let stats = sink.property::<gst::Structure>("stats");
    stats.get("packets-sent").unwrap_or(0)
}

#[allow(unsafe_code)]
fn count_at(pad: &gst::Pad) {
    // SAFETY: the reference keeps the pad alive for the call.
    unsafe { counter::count_at(pad.to_glib_none().0) }
}

fn fill_in(options: &Options, stream: u16) -> String {
    options
        .description
        .replace("{port}", &(options.port + stream).to_string())
        .replace(
            "{out}",
            &(options.out + stream % options.out_ports).to_string(),
        )
        .replace("{ctx}", &(stream % options.contexts).to_string())
        .replace("{base}", &options.port.to_string())
        // The sender gives this SSRC to the stream.
        .replace("{ssrc}", &(stream + 1).to_string())
        .replace("{i}", &stream.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_filled_in() {
        let options = Options::parse_from([
            "streams",
            "--description=a port={port} ! b name=s{i} context=c{ctx} port={out}",
            "--streams=10",
            "--contexts=2",
            "--port=1000",
            "--out=2000",
            "--out-ports=4",
        ]);
        assert_eq!(
            fill_in(&options, 7),
            "a port=1007 ! b name=s7 context=c1 port=2003"
        );
    }
}
