//! Building blocks for RTP audio that never read a clock, draw a random number or touch a socket.
//!
//! The crate is for programs that handle RTP audio with their own sockets and threads. Such a program passes in packets and the time, and
//! takes out the output that is due.
//!
//! This example receives PCMU. Datagrams arrive out of order, and one is lost:
//!
//! ```
//! use threadbare_rtp::g711::ULAW_TO_LINEAR;
//! use threadbare_rtp::jitter::{Arrival, Config, JitterBuffer, Output, Release};
//! use threadbare_rtp::packet::Packet;
//!
//! /// 20 ms of silence in a packet of this number.
//! fn datagram(number: u16) -> Vec<u8> {
//!     let time = u32::from(number) * 160;
//!     let mut bytes = vec![0x80, 0];
//!     bytes.extend(number.to_be_bytes());
//!     bytes.extend(time.to_be_bytes());
//!     bytes.extend(7_u32.to_be_bytes());
//!     bytes.extend([0xff; 160]);
//!     bytes
//! }
//!
//! const MS: u64 = 1_000_000;
//! let latency_ns = 60 * MS;
//! let mut buffer = JitterBuffer::new(Config { release: Release::InOrder, ..Config::new(8_000, latency_ns) })?;
//! let mut heard: Vec<i16> = Vec::new();
//! let mut lost = 0;
//! let mut play = |output: Output<Vec<u8>>| match output {
//!     Output::Packet { packet: codes, .. } => {
//!         heard.extend(codes.iter().map(|code| ULAW_TO_LINEAR[usize::from(*code)]));
//!     }
//!     // The decoders in `codec` can fill this gap with what it could have been.
//!     Output::Lost { packets, .. } => lost += packets,
//!     _ => {}
//! };
//! for (now_ms, number) in [(0, 0), (45, 2), (46, 1), (80, 4)] {
//!     let now_ns = now_ms * MS;
//!     let datagram = datagram(number);
//!     let packet = Packet::parse(&datagram)?;
//!     buffer.handle_packet(now_ns, Arrival {
//!         ssrc: packet.ssrc(),
//!         seq: packet.seq(),
//!         time: packet.time(),
//!         marker: packet.marker(),
//!         arrival_ns: None,
//!         packet: packet.payload().to_vec(),
//!     });
//!     std::iter::from_fn(|| buffer.poll_output(now_ns)).for_each(&mut play);
//! }
//! // The program sleeps until this time, or until a packet comes.
//! let due_ns = buffer.next_timeout().ok_or("packet 3 is waited for")?;
//! std::iter::from_fn(|| buffer.poll_output(due_ns)).for_each(&mut play);
//! assert_eq!((heard.len(), lost), (4 * 160, 1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Further reading: [`leg`] does all this for one party of a call, with its RTCP. [`call`] connects two parties.
//!
//! - [`id`]: sequence numbers, timestamps and their arithmetic.
//! - [`packet`]: the header of a received packet.
//! - [`tone`]: DTMF digits and call progress tones in audio.
//! - [`payload`]: the static payload types.
//! - [`jitter`]: the jitter buffer.
//! - [`call`]: calls and streams, which connect legs.
//! - [`codec`]: PCMU, PCMA, G.722, L16, L24 and Opus, with concealment.
//! - [`comfort`]: comfort noise.
//! - [`conceal`]: packet-loss concealment.
//! - [`convert`]: sample rates and channels.
//! - [`quality`]: sound quality of a call by the E-model.
//! - [`reception`]: loss, jitter and validity of one source.
//! - [`session`]: RTCP in both directions.
//! - [`srtp`]: encrypted and authenticated packets, keys from SDP.
//! - [`missing`]: which packets to request again, and when.
//! - [`demux`]: finds the stream of a packet on a shared port.
//! - [`dtmf`]: telephone events, from digits to packets.
//! - [`fallback`]: chooses one of several inputs.
//! - [`policy`]: allowed destinations of media.
//! - [`leg`]: one party, with accepted senders, order and delay, payload types, and reports.
//! - [`g711`]: conversions between PCMU, PCMA and 16-bit linear audio.
//! - [`l16`]: conversions from and to L16, linear audio in network byte order.
#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used)]

pub mod call;
pub mod demux;
pub mod fallback;
#[doc(hidden)]
pub mod fuzzing;
pub mod leg;
pub mod missing;
pub mod quality;
pub mod reception;
pub mod session;

#[doc(inline)]
pub use threadbare_codec::{codec, comfort, conceal, convert, dtmf, g711, l16, opus, tone};
#[doc(inline)]
pub use threadbare_jitter as jitter;
use threadbare_rtp_types::rng;
#[doc(inline)]
pub use threadbare_rtp_types::{id, packet, payload, policy};
#[cfg(feature = "srtp")]
#[doc(inline)]
pub use threadbare_srtp as srtp;
