//! Looks up names of hosts on a thread of its own: a name server that does not answer holds up nobody else.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{Sender, channel};

use crate::event::Event;

/// Answers with [`Event::Resolved`].
#[derive(Debug)]
pub struct Resolver {
    questions: Option<Sender<Question>>,
    events: Sender<Event>,
}

struct Question {
    index: usize,
    run: u64,
    host: String,
    port: u16,
    local: IpAddr,
}

impl Resolver {
    /// No thread until the first name.
    #[must_use]
    pub fn new(events: Sender<Event>) -> Resolver {
        Resolver {
            questions: None,
            events,
        }
    }

    /// Looks up where stream number `index` sends, from `local`.
    ///
    /// # Errors
    /// There is no thread for it.
    pub fn ask(
        &mut self,
        index: usize,
        run: u64,
        host: &str,
        port: u16,
        local: IpAddr,
    ) -> std::io::Result<()> {
        let question = Question {
            index,
            run,
            host: host.to_owned(),
            port,
            local,
        };
        if self.questions.is_none() {
            self.questions = Some(self.start()?);
        }
        if let Some(questions) = &self.questions {
            // The thread ends with the gateway only.
            let _ = questions.send(question);
        }
        Ok(())
    }

    fn start(&self) -> std::io::Result<Sender<Question>> {
        let (sender, questions) = channel::<Question>();
        let events = self.events.clone();
        std::thread::Builder::new()
            .name("resolver".to_owned())
            .spawn(move || {
                for question in questions {
                    let address = question.answer();
                    let Question { index, run, .. } = question;
                    let resolved = Event::Resolved {
                        index,
                        run,
                        address,
                    };
                    if events.send(resolved).is_err() {
                        return;
                    }
                }
            })?;
        Ok(sender)
    }
}

impl Question {
    /// The first address that the stream's socket reaches; of another family, if there is no such.
    fn answer(&self) -> Result<SocketAddr, String> {
        let Question {
            host, port, local, ..
        } = self;
        let addresses = (host.as_str(), *port).to_socket_addrs();
        let addresses: Vec<SocketAddr> = addresses
            .map_err(|error| format!("destination {host}: {error}"))?
            .collect();
        let has_both = local.is_ipv6() && local.is_unspecified();
        let reached = |address: &&SocketAddr| has_both || address.is_ipv4() == local.is_ipv4();
        let found = addresses.iter().find(reached).or(addresses.first());
        found
            .copied()
            .ok_or_else(|| format!("destination {host}: the name has no address"))
    }
}
