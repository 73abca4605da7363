//! Properties, events and states of `ts-rtpdtmfsrc`.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard};

use gst::glib::{self, Properties};
use gst::prelude::*;
use gst::subclass::prelude::*;
use threadbare_rtp::dtmf::{Key, Request};
use threadbare_rtp::id::{RtpTime, SeqNum};

use super::keyer::{Keyer, Last, Stream};
use crate::kit::context::ContextSettings;
use crate::kit::lock;
use crate::kit::source::{self, Driver, SourceElement};
use crate::kit::stats::StatsProperty;

#[derive(Debug, Clone)]
struct Settings {
    timestamp_offset: i64,
    seqnum_offset: i32,
    clock_rate: u32,
    ssrc: i64,
    payload_type: u32,
    copies: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            timestamp_offset: -1,
            seqnum_offset: -1,
            clock_rate: CLOCK_RATE_DEFAULT,
            ssrc: -1,
            payload_type: PAYLOAD_TYPE_DEFAULT,
            copies: 1,
        }
    }
}

const CLOCK_RATE_DEFAULT: u32 = 8000;
const PAYLOAD_TYPE_DEFAULT: u32 = 96;
/// Maximum payload type. It is that of the stock element, although the last valid type is 127.
const PAYLOAD_TYPE_MAX: u32 = 0x80;
const COPIES_MAX: u32 = 5;
/// The quietest volume, as in the stock element.
const VOLUME_MAX: i32 = 36;
const UNSIGNED_MAX: i64 = u32::MAX as i64;

impl Settings {
    fn stream(&self) -> Stream {
        Stream {
            clock_rate: self.clock_rate,
            payload_type: self.payload_type.min(0x7f) as u8,
            ssrc: u32::try_from(self.ssrc).unwrap_or_else(|_| glib::random_int()),
            copies: self.copies as u8,
            seq: SeqNum(
                u16::try_from(self.seqnum_offset).unwrap_or_else(|_| glib::random_int() as u16),
            ),
            base: RtpTime(
                u32::try_from(self.timestamp_offset).unwrap_or_else(|_| glib::random_int()),
            ),
        }
    }
}

#[derive(Properties)]
#[properties(wrapper_type = super::RtpDtmfSrc)]
pub struct RtpDtmfSrc {
    #[property(name = "timestamp", nick = "Timestamp", blurb = "RTP timestamp of the last packet", type = u32, get = |s: &Self| s.last.timestamp.load(Relaxed))]
    #[property(name = "seqnum", nick = "Sequence number", blurb = "Sequence number of the last packet", type = u32, get = |s: &Self| s.last.seq.load(Relaxed))]
    #[property(name = "timestamp-offset", nick = "Timestamp offset", blurb = "RTP timestamp at running time 0; -1: random", type = i64, get = |s: &Self| s.settings().timestamp_offset, set = |s: &Self, v| s.settings().timestamp_offset = v, minimum = -1, maximum = UNSIGNED_MAX, default = -1)]
    #[property(name = "seqnum-offset", nick = "Sequence number offset", blurb = "Number that is 1 below the sequence number of the first packet; -1: a random number", type = i32, get = |s: &Self| s.settings().seqnum_offset, set = |s: &Self, v| s.settings().seqnum_offset = v, minimum = -1, maximum = 65_535, default = -1)]
    #[property(name = "clock-rate", nick = "Clock rate", blurb = "Clock rate of the timestamps, Hz, unless downstream asks for another", type = u32, get = |s: &Self| s.settings().clock_rate, set = |s: &Self, v| s.settings().clock_rate = v, default = CLOCK_RATE_DEFAULT)]
    #[property(name = "ssrc", nick = "SSRC", blurb = "SSRC of the packets; -1: a random one", type = i64, get = |s: &Self| s.settings().ssrc, set = |s: &Self, v| s.settings().ssrc = v, minimum = -1, maximum = UNSIGNED_MAX, default = -1)]
    #[property(name = "pt", nick = "Payload type", blurb = "Payload type of the packets, unless downstream asks for another", type = u32, get = |s: &Self| s.settings().payload_type, set = |s: &Self, v| s.settings().payload_type = v, maximum = PAYLOAD_TYPE_MAX, default = PAYLOAD_TYPE_DEFAULT)]
    #[property(name = "packet-redundancy", nick = "Packet redundancy", blurb = "Number of times the first and the last packet of an event are sent; RFC 4733 recommends 3", type = u32, get = |s: &Self| s.settings().copies, set = Self::set_copies, minimum = 1, maximum = COPIES_MAX, default = 1)]
    settings: Mutex<Settings>,
    context: Mutex<ContextSettings>,
    stats: Mutex<StatsProperty>,
    last: Arc<Last>,
    src_pad: gst::Pad,
    driver: Driver<Keyer>,
}

impl RtpDtmfSrc {
    fn settings(&self) -> MutexGuard<'_, Settings> {
        lock(&self.settings)
    }

    fn set_copies(&self, copies: u32) {
        self.settings().copies = copies;
        self.driver
            .with_producer(move |keyer, _| keyer.set_copies(copies as u8));
    }
}

/// Returns the request in a `dtmf-event`, if it is an RTP event of a DTMF digit.
fn request_in(structure: &gst::StructureRef) -> Option<Request> {
    let is_key = structure.get::<i32>("type") == Ok(1);
    let is_rtp = structure.get_optional::<i32>("method").ok()?.unwrap_or(1) == 1;
    if !is_key || !is_rtp {
        return None;
    }
    if !structure.get::<bool>("start").ok()? {
        return Some(Request::Stop);
    }
    let number = u8::try_from(structure.get::<i32>("number").ok()?).ok()?;
    let volume = structure.get::<i32>("volume").ok()?.clamp(0, VOLUME_MAX);
    Some(Request::Start {
        key: Key::new(number)?,
        volume: volume as u8,
    })
}

fn caps() -> gst::Caps {
    gst::Caps::builder("application/x-rtp")
        .field("media", "audio")
        .field("payload", gst::IntRange::new(96, 127))
        .field("clock-rate", gst::IntRange::new(0, i32::MAX))
        .field("encoding-name", "TELEPHONE-EVENT")
        .build()
}

#[glib::object_subclass]
impl ObjectSubclass for RtpDtmfSrc {
    const NAME: &'static str = "ThreadbareRtpDtmfSrc";
    type Type = super::RtpDtmfSrc;
    type ParentType = gst::Element;

    fn with_class(klass: &Self::Class) -> Self {
        let src_pad = source::source_pad::<RtpDtmfSrc>(&crate::kit::template(klass, "src"));
        let last = Arc::<Last>::default();
        let read = last.clone();
        let stats = StatsProperty::new(move || {
            gst::Structure::builder("application/x-ts-rtpdtmfsrc-stats")
                .field("packets", read.packets.get())
                .field("requests", read.requests.get())
                .build()
        });
        RtpDtmfSrc {
            settings: Mutex::default(),
            context: Mutex::default(),
            stats: Mutex::new(stats),
            last,
            src_pad,
            driver: Driver::default(),
        }
    }
}

impl ObjectImpl for RtpDtmfSrc {
    crate::kit::properties_with_groups!(context, stats);

    fn constructed(&self) {
        self.parent_constructed();
        crate::kit::add_timed_pad(&*self.obj(), &self.src_pad);
    }
}

impl GstObjectImpl for RtpDtmfSrc {}

impl ElementImpl for RtpDtmfSrc {
    crate::kit::element_class!(
        "Thread-sharing telephone event source",
        "Source/Network/RTP",
        "Sends a telephone event (RFC 4733) for each dtmf-event, on the thread of a shared context";
        "src": Src Always caps()
    );

    crate::source_life!();
}

impl SourceElement for RtpDtmfSrc {
    type Producer = Keyer;

    fn driver(&self) -> &Driver<Keyer> {
        &self.driver
    }

    fn src_pad(&self) -> &gst::Pad {
        &self.src_pad
    }

    fn handle_upstream_event(&self, event: gst::Event) -> Result<bool, gst::Event> {
        let request = event.structure().filter(|s| s.name() == "dtmf-event");
        let Some(structure) = request else {
            return Err(event);
        };
        let Some(request) = request_in(structure) else {
            return Ok(false);
        };
        let is_there = self.driver.place().is_some();
        (self.driver).with_producer(move |keyer, cx| keyer.request(cx, request));
        Ok(is_there)
    }

    fn answer_query(&self, pad: &gst::Pad, query: &mut gst::QueryRef) -> bool {
        let latency = (true, self.driver.wait(&self.context), None);
        source::answer_query(pad, &*self.obj(), query, latency, || {
            Some(pad.pad_template_caps())
        })
    }

    fn open(&self) -> Result<(), gst::ErrorMessage> {
        let rate = self.settings().clock_rate;
        if i32::try_from(rate).is_ok_and(|rate| rate > 0) {
            return Ok(());
        }
        Err(gst::error_msg!(
            gst::ResourceError::Settings,
            ["clock-rate={rate}: it must be from 1 to {}", i32::MAX]
        ))
    }

    fn activate(&self, element: &gst::Element) -> Result<(), gst::ErrorMessage> {
        let place = lock(&self.context).place(element)?;
        let stream = self.settings().stream();
        let keyer = Keyer::new(element, &self.src_pad, stream, self.last.clone());
        self.driver.add(element, &self.src_pad, place, keyer)
    }
}
