//! The hand-written loop. It receives a packet, converts it, and sends it from the same socket. It does not reorder packets,
//! and has no RTCP. It prefetches the memory of the next streams, as the media plane does.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::Result;
use threadbare_bench::epoll::Epoll;
use threadbare_bench::media::Kind;
use threadbare_rtp::codec::{Encoder, EncoderSettings};
use threadbare_rtp::g711::{ULAW_TO_ALAW, ULAW_TO_LINEAR};

use crate::Carrier;

pub(super) struct Bare {
    ports: Vec<SocketAddr>,
}

/// One stream.
struct Stream {
    socket: UdpSocket,
    to: SocketAddr,
    packets: u64,
    encoder: Option<Encoder>,
}

impl Bare {
    pub(super) fn start(
        kind: Kind,
        streams: u32,
        slice: Duration,
        to: impl Fn(u32) -> SocketAddr,
    ) -> Result<Bare> {
        let epoll = Epoll::new()?;
        let mut all = Vec::new();
        for number in 0..streams {
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
            socket.set_nonblocking(true)?;
            epoll.add(&socket, number as usize)?;
            let encoder = match kind {
                Kind::BareOpus => {
                    let format = super::ours::opus()?;
                    // The media plane uses the same settings for telephone audio.
                    let settings = EncoderSettings {
                        bitrate_bps: Some(24_000),
                        ..EncoderSettings::default()
                    };
                    Some(Encoder::new(format, &settings)?)
                }
                _ => None,
            };
            // Each stream is allocated separately, like the calls of the media plane.
            all.push(Box::new(Stream {
                socket,
                to: to(number),
                packets: 0,
                encoder,
            }));
        }
        let ports = all.iter().map(|stream| stream.socket.local_addr());
        let ports = ports.collect::<std::io::Result<_>>()?;
        std::thread::Builder::new()
            .name("bare".into())
            .spawn(move || {
                let mut work = Work::default();
                epoll.run_ahead(slice, |place, next| {
                    if let Some(next) = next {
                        threadbare_runtime::prefetch(&raw const *all[next], 1);
                    }
                    all[place].turn(&mut work);
                });
            })?;
        Ok(Bare { ports })
    }
}

struct Work {
    packet: [u8; 2048],
    pcm: Vec<f32>,
    encoded: Vec<u8>,
}

impl Default for Work {
    fn default() -> Work {
        Work {
            packet: [0; 2048],
            pcm: Vec::new(),
            encoded: Vec::new(),
        }
    }
}

impl Stream {
    #[inline]
    fn turn(&mut self, work: &mut Work) {
        let Ok(len) = self.socket.recv(&mut work.packet) else {
            return;
        };
        let Some((header, payload)) = work.packet[..len].split_at_mut_checked(HEADER_BYTES) else {
            return;
        };
        if (192..=223).contains(&header[1]) {
            return;
        }
        let is_sent = match &mut self.encoder {
            None => {
                header[1] = PCMA;
                for code in payload {
                    *code = ULAW_TO_ALAW[usize::from(*code)];
                }
                self.socket.send_to(&work.packet[..len], self.to).is_ok()
            }
            Some(encoder) => {
                work.pcm.clear();
                let samples = payload
                    .iter()
                    .map(|code| ULAW_TO_LINEAR[usize::from(*code)]);
                work.pcm
                    .extend(samples.map(|sample| f32::from(sample) / 32_768.0));
                work.encoded.clear();
                work.encoded.extend_from_slice(header);
                let is_encoded = encoder.encode(&work.pcm, &mut work.encoded).is_ok();
                is_encoded && self.socket.send_to(&work.encoded, self.to).is_ok()
            }
        };
        self.packets += u64::from(is_sent);
    }
}

impl Carrier for Bare {
    fn threads(&self) -> &'static str {
        "bare"
    }

    fn ports(&self) -> Vec<SocketAddr> {
        self.ports.clone()
    }
}

const HEADER_BYTES: usize = 12;
const PCMA: u8 = 8;
