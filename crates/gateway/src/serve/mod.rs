//! A media relay for SIP proxies. Calls are made, changed and ended by the ng protocol.

mod audio_file;
mod clips;
mod interfaces;
mod media;
mod names;
mod plays;
mod recorder;
mod service;
mod spec;
mod tracks;

use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::Duration;

use miette::{Context, IntoDiagnostic};
use threadbare_control::calls::{Calls, Settings, Timeouts};
use threadbare_rtp::id::NtpTime;
use threadbare_runtime::clock_now_ns;

use self::interfaces::Interfaces;
use self::media::MediaPlane;
use self::plays::Plays;
use self::service::Service;
use self::spec::Common;
use crate::config::Serving;
use crate::event::Event;
use crate::system::{random_number, unix_at_zero_ns};

/// The control thread. Dropped, it ends all calls.
#[derive(Debug)]
pub struct Server {
    stop: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Opens the sockets and starts the threads. A failure later is told by [`Event::Stop`].
    ///
    /// # Errors
    /// A socket cannot be opened, or threads run out.
    pub fn start(serving: &Serving, events: Sender<Event>) -> miette::Result<Server> {
        let common = Common {
            cname: format!("{:016x}", random_number()).into(),
            ntp_at_zero: NtpTime::at_unix_ns(unix_at_zero_ns()),
            latency_ns: u64::from(serving.latency_ms) * 1_000_000,
        };
        // A call may have several streams.
        let streams_max = u64::from(serving.limits.max_sessions) * 4;
        let mut media = MediaPlane::new(serving.threads, streams_max, common).into_diagnostic()?;
        if let Some(folder) = &serving.recording_dir {
            media.record_to(folder.clone()).into_diagnostic()?;
        }
        let interfaces = Interfaces::new(&serving.interfaces).into_diagnostic()?;
        let socket = UdpSocket::bind(serving.ng)
            .into_diagnostic()
            .wrap_err_with(|| format!("requests of SIP proxies at {}", serving.ng))?;
        let ng = socket.local_addr().into_diagnostic()?;
        let calls = Calls::new(settings(serving));
        let plays = Plays::new().into_diagnostic()?;
        let mut service = Service::new(calls, media, plays, interfaces, socket);
        service.allow_only(serving.allow.clone());
        service.set_lateness_max(Duration::from_millis(serving.limits.lateness_ms.into()));
        let threads = service.media.threads();
        let (stop, told) = UnixStream::pair().into_diagnostic()?;
        let thread = std::thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || {
                if let Err(error) = service.run(&told) {
                    tracing::error!(%error, "requests cannot be received any more");
                    let cause = "a failed socket";
                    let _ = events.send(Event::Stop { cause });
                }
                let calls = service.calls.len();
                tracing::info!(calls, "stopping");
                service.end_all();
            });
        tracing::info!(%ng, threads, "serving");
        Ok(Server {
            stop,
            thread: Some(thread.into_diagnostic()?),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It ends when the other end is closed.
        let _ = self.stop.shutdown(std::net::Shutdown::Both);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the control thread has failed");
        }
    }
}

fn settings(serving: &Serving) -> Settings {
    let times = &serving.timeouts;
    let seconds = |seconds: u32| (seconds > 0).then_some(u64::from(seconds) * NS_PER_S);
    Settings {
        timeouts: Timeouts {
            offer_ns: seconds(times.offer_s),
            media_ns: seconds(times.media_s),
            silent_ns: seconds(times.silent_s),
            final_ns: seconds(times.final_s),
            delete_delay_ns: u64::from(times.delete_delay_s) * NS_PER_S,
        },
        sessions_max: serving.limits.max_sessions as usize,
        unix_at_zero_ns: unix_at_zero_ns(),
        started_ns: clock_now_ns(),
        instance: format!("{:016x}", random_number()),
    }
}

const NS_PER_S: u64 = 1_000_000_000;
