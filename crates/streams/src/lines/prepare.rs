//! Resolves host names and reads files on a separate thread, so that a name server that does not answer delays no other stream.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};

use crate::event::{Event, Prepared, RunId, StreamKeys};
use threadbare_audio_file::clip::Clips;
use threadbare_config::{Destination, InputSpec, KeySource, SrtpSpec, StreamSpec};

/// Handle to the thread that resolves names and reads files. The thread answers with [`Event::Prepared`].
#[derive(Debug)]
pub struct Preparer {
    questions: Option<Sender<Question>>,
    events: Sender<Event>,
}

struct Question {
    run: RunId,
    to: Option<(String, u16)>,
    local: IpAddr,
    files: Vec<PathBuf>,
    srtp: KeySources,
}

/// Where the SRTP keys of a stream are.
#[derive(Debug, Default)]
struct KeySources {
    own: SrtpSpec,
    /// Where the keys of the fallbacks that are senders are.
    fallbacks: Vec<Option<KeySource>>,
}

impl KeySources {
    fn of(spec: &StreamSpec) -> KeySources {
        let inputs = spec.fallbacks.iter().map(|fallback| &fallback.input);
        KeySources {
            own: spec.srtp.clone(),
            fallbacks: inputs
                .filter_map(|input| match input {
                    InputSpec::Rtp { srtp, .. } => Some(srtp.clone()),
                    InputSpec::Tone(_) | InputSpec::Silence | InputSpec::File(_) => None,
                })
                .collect(),
        }
    }

    fn are_none(&self) -> bool {
        self.own == SrtpSpec::default() && self.fallbacks.iter().all(Option::is_none)
    }

    fn read(&self) -> Result<StreamKeys, String> {
        let read = |source: &Option<KeySource>| source.as_ref().map(KeySource::read).transpose();
        Ok(StreamKeys {
            input: read(&self.own.input)?,
            output: read(&self.own.output)?,
            fallbacks: self.fallbacks.iter().map(read).collect::<Result<_, _>>()?,
        })
    }
}

impl Preparer {
    /// Creates the handle. The thread starts with the first request.
    #[must_use]
    pub fn new(events: Sender<Event>) -> Preparer {
        Preparer {
            questions: None,
            events,
        }
    }

    /// Returns the resources of a stream if no host name must be resolved, and no file or key must be read. `None`: the thread will
    /// send them.
    ///
    /// # Errors
    /// Fails if the thread cannot be started.
    pub fn prepare(&mut self, spec: &StreamSpec, run: RunId) -> std::io::Result<Option<Prepared>> {
        let files = spec
            .fallbacks
            .iter()
            .filter_map(|fallback| match &fallback.input {
                InputSpec::File(path) => Some(path.clone()),
                _ => None,
            });
        let files: Vec<PathBuf> = files.collect();
        let named = match &spec.destination {
            Destination::Fixed { host, port } => Some((host.clone(), *port)),
            Destination::Latched | Destination::Nobody => None,
        };
        let address =
            |(host, port): &(String, u16)| Some(SocketAddr::new(host.parse().ok()?, *port));
        let to = named.as_ref().and_then(address);
        let srtp = KeySources::of(spec);
        if files.is_empty() && srtp.are_none() && to.is_some() == named.is_some() {
            return Ok(Some(Prepared {
                to,
                ..Prepared::default()
            }));
        }
        let question = Question {
            run,
            to: named,
            local: spec.listen.ip(),
            files,
            srtp,
        };
        if self.questions.is_none() {
            self.questions = Some(self.start()?);
        }
        if let Some(questions) = &self.questions {
            // This cannot fail, because the thread ends only together with the gateway.
            let _ = questions.send(question);
        }
        Ok(None)
    }

    fn start(&self) -> std::io::Result<Sender<Question>> {
        let (sender, questions) = channel::<Question>();
        let events = self.events.clone();
        std::thread::Builder::new()
            .name("preparer".to_owned())
            .spawn(move || {
                let mut clips = Clips::default();
                for question in questions {
                    let answer = question.answer(&mut clips);
                    let prepared = Event::Prepared {
                        run: question.run,
                        answer,
                    };
                    if events.send(prepared).is_err() {
                        return;
                    }
                }
            })?;
        Ok(sender)
    }
}

impl Question {
    fn answer(&self, clips: &mut Clips) -> Result<Prepared, String> {
        let to = self.to.as_ref();
        let read = |path: &PathBuf| {
            let clip = clips.get(path);
            clip.map_err(|error| format!("cannot read the file of a fallback: {error}"))
        };
        Ok(Prepared {
            to: to
                .map(|(host, port)| self.look_up(host, *port))
                .transpose()?,
            clips: self.files.iter().map(read).collect::<Result<_, _>>()?,
            keys: self.srtp.read()?,
        })
    }

    /// Returns the first address that the stream's socket can reach. If it can reach none of them, returns the first address.
    fn look_up(&self, host: &str, port: u16) -> Result<SocketAddr, String> {
        let addresses = (host, port).to_socket_addrs();
        let addresses: Vec<SocketAddr> = addresses
            .map_err(|error| format!("destination {host}: {error}"))?
            .collect();
        let has_both = self.local.is_ipv6() && self.local.is_unspecified();
        let reached = |address: &&SocketAddr| has_both || address.is_ipv4() == self.local.is_ipv4();
        let found = addresses.iter().find(reached).or(addresses.first());
        found
            .copied()
            .ok_or_else(|| format!("destination {host}: the name has no address"))
    }
}
