//! The plugin's elements, with a pipeline for each stream. The pipelines share a clock and a bus handler.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result};
use gst::prelude::*;
use threadbare_bench::ports;

use crate::Carrier;

pub(super) struct Elements {
    first_port: u16,
    /// The pipelines are kept here, because a pipeline stops when it is dropped.
    pipelines: Vec<gst::Pipeline>,
}

impl Elements {
    pub(super) fn start(
        streams: u32,
        wait_ms: u64,
        to: impl Fn(u32) -> SocketAddr,
    ) -> Result<Elements> {
        gst::init()?;
        let clock = gst::SystemClock::obtain();
        let mut elements = Elements {
            first_port: ports::free_range(streams as u16)?,
            pipelines: Vec::new(),
        };
        for stream in 0..streams {
            let context = format!("context=media context-wait={wait_ms} session=s{stream}");
            let description = format!(
                "ts-rtpsrc {context} address=127.0.0.1 port={} rtcp-mux=true reuse=false \
                 ! ts-rtpg711 encoding-name=PCMA \
                 ! ts-rtpsink {context} host=127.0.0.1 port={} rtcp-mux=true",
                elements.first_port + stream as u16,
                to(stream).port(),
            );
            let contents = gst::parse::bin_from_description(&description, false)
                .with_context(|| format!("in: {description}"))?;
            let pipeline = gst::Pipeline::new();
            pipeline.use_clock(Some(&clock));
            let bus = pipeline.bus().context("the pipeline has no bus")?;
            bus.set_sync_handler(|_, _| gst::BusSyncReply::Drop);
            pipeline.add(&contents)?;
            pipeline.set_state(gst::State::Playing)?;
            elements.pipelines.push(pipeline);
        }
        Ok(elements)
    }
}

impl Carrier for Elements {
    fn threads(&self) -> &'static str {
        "ts:media"
    }

    fn ports(&self) -> Vec<SocketAddr> {
        let ports = (0..self.pipelines.len() as u16).map(|stream| self.first_port + stream);
        ports
            .map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
            .collect()
    }
}
