//! The measured cases. Cases that are compared do the same work with the same settings.

/// The measured program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// The stock elements.
    Stock,
    /// Our plugin.
    Ours,
    /// The published crate gst-plugin-threadshare, linked into a program.
    Peer,
    /// The hand-written loop that receives.
    Floor,
    /// The hand-written loop that receives and sends, without GStreamer.
    RelayFloor,
    /// A hand-written loop that receives and sends, with GStreamer buffers and two pads in between.
    RelayPads,
    /// A hand-written loop that receives and sends, with the stock elements of a codec in between. The case's description
    /// contains only these elements.
    RelayCodec,
}

/// How often a case is measured, and which figures it gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// In each round, next to the cases with which this case is compared.
    EachRound,
    /// Once, because the figure does not vary.
    Once,
    /// Once, and all heap allocations are counted.
    CountAllocations,
    /// Once, without a sender.
    Idle,
}

/// Source of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// RTP from the sender.
    Rtp,
    /// RTP from the sender. In addition, the first stream gets this many packets a second, which are not counted.
    Flood(u32),
    /// RTP from the sender. In addition, the sender sends this many packets a second to a socket of another process, so that the machine
    /// has the same load as with [`Load::Flood`]. The first stream gets no packets.
    FloodElsewhere(u32),
    /// The streams generate the data, or the measured process pushes the data into them.
    Within,
    /// The streams generate the data, or the measured process pushes the data into them. In addition, the time of each buffer between two
    /// elements is measured.
    Timed,
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) program: Program,
    pub(crate) mode: Mode,
    pub(crate) streams: u16,
    /// Description of one stream, written as for gst-launch. It is empty for hand-written loops without elements.
    pub(crate) description: &'static str,
    pub(crate) load: Load,
    /// Whether the plugin's tracer measures the lateness of slices. The tracer itself needs some CPU time.
    pub(crate) traced: bool,
}

impl Case {
    const fn loaded(mut self, load: Load) -> Case {
        self.load = load;
        self
    }

    const fn traced(mut self) -> Case {
        self.traced = true;
        self
    }

    /// Whether received data are forwarded.
    pub(crate) fn sends_on(&self) -> bool {
        self.description.contains("{out}")
            || matches!(
                self.program,
                Program::RelayFloor | Program::RelayPads | Program::RelayCodec
            )
    }
}

/// A `ts-udpsrc` with slices of 20 ms. Like the hand-written loop, it does not ask for the addresses of senders.
macro_rules! ts_udpsrc {
    ($more:literal) => {
        concat!(
            "ts-udpsrc context=bench-{ctx} context-wait=20 address=127.0.0.1 port={port} ",
            "retrieve-sender-address=false ",
            $more
        )
    };
}

macro_rules! ts_udpsink {
    () => {
        " ! ts-udpsink context=bench-{ctx} context-wait=20 sync=false clients=127.0.0.1:{out}"
    };
}

macro_rules! fakesink {
    () => {
        " ! fakesink sync=false async=false enable-last-sample=false"
    };
}

const RECEIVE: &str = concat!(ts_udpsrc!(""), fakesink!());
const RECEIVE_NO_WAIT: &str = concat!(
    "ts-udpsrc context=bench-{ctx} context-wait=0 address=127.0.0.1 port={port}",
    fakesink!()
);
const RECEIVE_STOCK: &str = concat!(
    "udpsrc address=127.0.0.1 port={port} retrieve-sender-address=false",
    fakesink!()
);
const FORWARD: &str = concat!(ts_udpsrc!(""), ts_udpsink!());
const TRANSCODE: &str = concat!(
    ts_udpsrc!(
        "caps=application/x-rtp,media=audio,clock-rate=8000,encoding-name=PCMU,payload=0 \
         ! rtppcmudepay ! mulawdec ! alawenc ! rtppcmapay"
    ),
    ts_udpsink!()
);

/// A full session with a jitter buffer, RTCP in both directions, and one socket.
const SESSION: &str = concat!(
    "ts-rtpsrc context=bench-{ctx} context-wait=20 address=127.0.0.1 port={port} rtcp-mux=true reuse=false session=s{i} ",
    "! ts-rtpg711 encoding-name=PCMA ",
    "! ts-rtpsink session=s{i} context=bench-{ctx} context-wait=20 host=127.0.0.1 port={out} rtcp-mux=true"
);

/// Full sessions that all use one port.
const SHARED_PORT: &str = concat!(
    "ts-rtpsrc context=bench-{ctx} context-wait=20 address=127.0.0.1 port={base} ssrc={ssrc} rtcp-mux=true reuse=false ",
    "buffer-size=8000000 session=s{i} ",
    "! ts-rtpg711 encoding-name=PCMA ",
    "! ts-rtpsink session=s{i} context=bench-{ctx} context-wait=20 host=127.0.0.1 port={out} rtcp-mux=true"
);

/// Stock elements that do the work of [`SESSION`]: an rtpbin for the receiving session, and one for the sending session.
const STOCK_SESSION: &str = concat!(
    "rtpbin name=r latency=40 rtpbin name=s ",
    "udpsrc address=127.0.0.1 port={port} ",
    "caps=application/x-rtp,media=audio,clock-rate=8000,encoding-name=PCMU,payload=0 ! r.recv_rtp_sink_0 ",
    "r. ! rtppcmudepay ! mulawdec ! alawenc ! rtppcmapay ! s.send_rtp_sink_0 ",
    "s.send_rtp_src_0 ! udpsink name=out host=127.0.0.1 port={out} sync=false async=false ",
    "udpsrc port=0 ! r.recv_rtcp_sink_0 r.send_rtcp_src_0 ! udpsink host=127.0.0.1 port=9 sync=false async=false ",
    "udpsrc port=0 ! s.recv_rtcp_sink_0 s.send_rtcp_src_0 ! udpsink host=127.0.0.1 port=9 sync=false async=false"
);
macro_rules! to_opus {
    ($complexity:literal) => {
        concat!(
            "ts-rtpsrc context=bench-{ctx} context-wait=20 address=127.0.0.1 port={port} rtcp-mux=true ",
            "reuse=false session=s{i} ! rtppcmudepay ! mulawdec ! opusenc complexity=",
            $complexity,
            " ! rtpopuspay ! ts-rtpsink session=s{i} context=bench-{ctx} context-wait=20 host=127.0.0.1 ",
            "port={out} rtcp-mux=true"
        )
    };
}

macro_rules! tones {
    () => {
        "ts-tonesrc context=bench-0 context-wait=20 samples-per-buffer=160 freq=425 volume=-13 \
         ! audio/x-raw,rate=8000,channels=1"
    };
}

const TONES: &str = concat!(tones!(), fakesink!());
const TONES_STOCK: &str = concat!(
    "audiotestsrc is-live=true freq=425 samplesperbuffer=160 ! audio/x-raw,rate=8000,channels=1",
    fakesink!()
);
const QUEUE_HOP: &str = concat!(
    tones!(),
    " ! ts-queue name=hop context=bench-1 context-wait=20",
    fakesink!()
);
const PROXY_HOP: &str = concat!(
    tones!(),
    " ! ts-proxysink name=hop proxy-context=p{i} ",
    "ts-proxysrc proxy-context=p{i} context=bench-1 context-wait=20",
    fakesink!()
);
macro_rules! audio_from_udpsrc {
    () => {
        ts_udpsrc!("caps=audio/x-raw,format=S16LE,rate=8000,channels=1,layout=interleaved")
    };
}

/// A `fallbackswitch` with two inputs. No sender sends to the socket of the second input.
const SWITCH: &str = concat!(
    audio_from_udpsrc!(),
    " ! s.sink_0 fallbackswitch name=s context=bench-{ctx} context-wait=20 seamless=true switch-on-eos=true sync=false",
    fakesink!(),
    " ts-udpsrc context=bench-{ctx} context-wait=20 address=127.0.0.1 port=0 ! s.sink_1"
);
const SWITCH_QUEUE: &str = concat!(
    audio_from_udpsrc!(),
    " ! ts-queue context=bench-{ctx} context-wait=20",
    fakesink!()
);
const APP: &str = concat!(
    "ts-appsrc context=bench-0 context-wait=20 ! ts-queue context=bench-0 context-wait=20",
    fakesink!()
);

const fn case(
    name: &'static str,
    program: Program,
    mode: Mode,
    streams: u16,
    description: &'static str,
) -> Case {
    Case {
        name,
        program,
        mode,
        streams,
        description,
        load: Load::Rtp,
        traced: false,
    }
}

/// Number of packets per second to one stream. A thousand streams without a flood get as many packets together.
const FLOOD: u32 = 50_000;

/// The cases in the order in which each round runs them. Cases that are compared are next to each other.
pub(crate) const CASES: &[Case] = &[
    case(
        "stock-receive-1000",
        Program::Stock,
        Mode::EachRound,
        1000,
        RECEIVE_STOCK,
    ),
    case(
        "receive-1000",
        Program::Ours,
        Mode::EachRound,
        1000,
        RECEIVE,
    ),
    case("floor-1000", Program::Floor, Mode::EachRound, 1000, ""),
    case(
        "peer-receive-1000",
        Program::Peer,
        Mode::EachRound,
        1000,
        RECEIVE,
    ),
    case(
        "receive-3000",
        Program::Ours,
        Mode::EachRound,
        3000,
        RECEIVE,
    ),
    case("floor-3000", Program::Floor, Mode::EachRound, 3000, ""),
    case(
        "forward-1000",
        Program::Ours,
        Mode::EachRound,
        1000,
        FORWARD,
    ),
    case(
        "peer-forward-1000",
        Program::Peer,
        Mode::EachRound,
        1000,
        FORWARD,
    ),
    case(
        "transcode-1000",
        Program::Ours,
        Mode::EachRound,
        1000,
        TRANSCODE,
    ),
    case(
        "peer-transcode-1000",
        Program::Peer,
        Mode::EachRound,
        1000,
        TRANSCODE,
    ),
    case(
        "session-1000",
        Program::Ours,
        Mode::EachRound,
        1000,
        SESSION,
    ),
    case(
        "session-2800",
        Program::Ours,
        Mode::EachRound,
        2800,
        SESSION,
    ),
    case("session-100", Program::Ours, Mode::EachRound, 100, SESSION),
    case(
        "stock-session-100",
        Program::Stock,
        Mode::EachRound,
        100,
        STOCK_SESSION,
    ),
    case(
        "opus-0-100",
        Program::Ours,
        Mode::EachRound,
        100,
        to_opus!("0"),
    ),
    case(
        "relay-opus-0-100",
        Program::RelayCodec,
        Mode::EachRound,
        100,
        "mulawdec ! opusenc complexity=0",
    ),
    case(
        "opus-5-100",
        Program::Ours,
        Mode::EachRound,
        100,
        to_opus!("5"),
    ),
    case(
        "relay-opus-5-100",
        Program::RelayCodec,
        Mode::EachRound,
        100,
        "mulawdec ! opusenc complexity=5",
    ),
    case(
        "opus-10-100",
        Program::Ours,
        Mode::EachRound,
        100,
        to_opus!("10"),
    ),
    case(
        "relay-opus-10-100",
        Program::RelayCodec,
        Mode::EachRound,
        100,
        "mulawdec ! opusenc complexity=10",
    ),
    case(
        "relay-floor-1000",
        Program::RelayFloor,
        Mode::EachRound,
        1000,
        "",
    ),
    case(
        "relay-pads-1000",
        Program::RelayPads,
        Mode::EachRound,
        1000,
        "",
    ),
    case("transcode-1", Program::Ours, Mode::Once, 1, TRANSCODE),
    case(
        "forward-100-allocations",
        Program::Ours,
        Mode::CountAllocations,
        100,
        FORWARD,
    ),
    case(
        "shared-port-3000",
        Program::Ours,
        Mode::EachRound,
        3000,
        SHARED_PORT,
    ),
    case(
        "session-100-allocations",
        Program::Ours,
        Mode::CountAllocations,
        100,
        SESSION,
    ),
    case("tones-1000", Program::Ours, Mode::EachRound, 1000, TONES).loaded(Load::Within),
    case(
        "stock-tones-1000",
        Program::Stock,
        Mode::EachRound,
        1000,
        TONES_STOCK,
    )
    .loaded(Load::Within),
    case(
        "queue-hop-1000",
        Program::Ours,
        Mode::EachRound,
        1000,
        QUEUE_HOP,
    )
    .loaded(Load::Within),
    case(
        "proxy-hop-1000",
        Program::Ours,
        Mode::EachRound,
        1000,
        PROXY_HOP,
    )
    .loaded(Load::Within),
    case(
        "queue-hop-1000-timed",
        Program::Ours,
        Mode::EachRound,
        1000,
        QUEUE_HOP,
    )
    .loaded(Load::Timed),
    case(
        "proxy-hop-1000-timed",
        Program::Ours,
        Mode::EachRound,
        1000,
        PROXY_HOP,
    )
    .loaded(Load::Timed),
    case("switch-200", Program::Ours, Mode::EachRound, 200, SWITCH),
    case(
        "switch-queue-200",
        Program::Ours,
        Mode::EachRound,
        200,
        SWITCH_QUEUE,
    ),
    case("switch-1", Program::Ours, Mode::Once, 1, SWITCH),
    case("app-1000", Program::Ours, Mode::EachRound, 1000, APP).loaded(Load::Within),
    case(
        "app-100-allocations",
        Program::Ours,
        Mode::CountAllocations,
        100,
        APP,
    )
    .loaded(Load::Within),
    case(
        "receive-1000-not-flooded",
        Program::Ours,
        Mode::EachRound,
        1000,
        RECEIVE,
    )
    .traced(),
    case(
        "receive-1000-flood-elsewhere",
        Program::Ours,
        Mode::EachRound,
        1000,
        RECEIVE,
    )
    .loaded(Load::FloodElsewhere(FLOOD))
    .traced(),
    case(
        "receive-1000-flooded",
        Program::Ours,
        Mode::EachRound,
        1000,
        RECEIVE,
    )
    .loaded(Load::Flood(FLOOD))
    .traced(),
    // The following cases are for the plots of CPU time against the number of streams.
    case("receive-100", Program::Ours, Mode::Once, 100, RECEIVE),
    case("receive-300", Program::Ours, Mode::Once, 300, RECEIVE),
    case("receive-2000", Program::Ours, Mode::Once, 2000, RECEIVE),
    case(
        "stock-receive-100",
        Program::Stock,
        Mode::Once,
        100,
        RECEIVE_STOCK,
    ),
    case(
        "stock-receive-300",
        Program::Stock,
        Mode::Once,
        300,
        RECEIVE_STOCK,
    ),
    case("peer-receive-100", Program::Peer, Mode::Once, 100, RECEIVE),
    case("peer-receive-300", Program::Peer, Mode::Once, 300, RECEIVE),
    case(
        "peer-receive-2000",
        Program::Peer,
        Mode::Once,
        2000,
        RECEIVE,
    ),
    case(
        "peer-receive-3000",
        Program::Peer,
        Mode::Once,
        3000,
        RECEIVE,
    ),
    case("floor-100", Program::Floor, Mode::Once, 100, ""),
    case("floor-300", Program::Floor, Mode::Once, 300, ""),
    case("floor-2000", Program::Floor, Mode::Once, 2000, ""),
    case("session-300", Program::Ours, Mode::Once, 300, SESSION),
    case("session-2000", Program::Ours, Mode::Once, 2000, SESSION),
    case(
        "stock-session-300",
        Program::Stock,
        Mode::Once,
        300,
        STOCK_SESSION,
    ),
    case("idle-wait-20", Program::Ours, Mode::Idle, 100, RECEIVE),
    case(
        "idle-wait-0",
        Program::Ours,
        Mode::Idle,
        100,
        RECEIVE_NO_WAIT,
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_cases_are_unique() {
        for (place, case) in CASES.iter().enumerate() {
            assert!(
                CASES[..place].iter().all(|other| other.name != case.name),
                "{}",
                case.name
            );
        }
    }

    #[test]
    fn streams_of_one_case_do_not_share_a_port() {
        let pipelines = |case: &&Case| {
            !case.description.is_empty()
                && case.program != Program::RelayCodec
                && !matches!(case.load, Load::Within | Load::Timed)
        };
        for case in CASES.iter().filter(pipelines) {
            let separate = case.description.contains("port={port}");
            let by_ssrc = case.description.contains("port={base} ssrc={ssrc}");
            assert!(separate || by_ssrc, "{}", case.name);
        }
    }
}
