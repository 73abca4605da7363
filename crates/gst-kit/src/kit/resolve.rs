//! Resolves host names to addresses. A lookup may take as long as the network's slowest answer. So it runs on a separate thread,
//! not on a context's thread or in a property's setter.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Condvar, LazyLock, Mutex};
use std::thread;
use std::time::Duration;

use super::lock;
use super::socket::SocketError;

/// Returns the address of a host that is an address literal.
pub fn numeric(host: &str, port: u16) -> Option<SocketAddr> {
    Some(SocketAddr::new(bare(host).parse::<IpAddr>().ok()?, port))
}

/// Returns the first address of a host name or literal. It waits for the network, so use it only in a state change, whose caller
/// expects the result.
pub fn resolve(host: &str, port: u16) -> Result<SocketAddr, SocketError> {
    if let Some(address) = numeric(host, port) {
        return Ok(address);
    }
    let mut found =
        (bare(host), port)
            .to_socket_addrs()
            .map_err(|source| SocketError::Resolve {
                host: host.to_owned(),
                source,
            })?;
    found.next().ok_or_else(|| SocketError::NoAddress {
        host: host.to_owned(),
    })
}

/// Calls `done` with the first address of a host name or literal: at once for a literal, otherwise later on another thread. If
/// several names are looked up, the results arrive in any order.
pub fn resolve_later(host: &str, port: u16, done: impl FnOnce(Answer) + Send + 'static) {
    static RESOLVER: LazyLock<Arc<Resolver>> = LazyLock::new(|| Resolver::new(resolve));
    match numeric(host, port) {
        Some(address) => done(Ok(address)),
        None => RESOLVER.look_up(host, port, Box::new(done)),
    }
}

fn bare(host: &str) -> &str {
    host.strip_prefix('[')
        .and_then(|h| h.strip_suffix(']'))
        .unwrap_or(host)
}

type Answer = Result<SocketAddr, SocketError>;
type LookUp = Box<dyn Fn(&str, u16) -> Answer + Send + Sync>;

struct Question {
    host: String,
    port: u16,
    done: Box<dyn FnOnce(Answer) + Send>,
}

/// A few threads that look up names; they exist only while names are queued.
struct Resolver {
    look_up: LookUp,
    questions: Mutex<Questions>,
    asked: Condvar,
}

#[derive(Default)]
struct Questions {
    waiting: VecDeque<Question>,
    threads: usize,
    idle: usize,
}

impl Resolver {
    fn new(look_up: impl Fn(&str, u16) -> Answer + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Resolver {
            look_up: Box::new(look_up),
            questions: Mutex::default(),
            asked: Condvar::new(),
        })
    }

    fn look_up(self: &Arc<Self>, host: &str, port: u16, done: Box<dyn FnOnce(Answer) + Send>) {
        let mut questions = lock(&self.questions);
        let refused = if questions.waiting.len() >= WAITING_MAX {
            Some(std::io::ErrorKind::QuotaExceeded.into())
        } else if questions.waiting.len() >= questions.idle && questions.threads < THREADS_MAX {
            self.start_thread(&mut questions).err()
        } else {
            None
        };
        if let Some(source) = refused {
            drop(questions);
            let host = host.to_owned();
            return done(Err(SocketError::Resolve { host, source }));
        }
        questions.waiting.push_back(Question {
            host: host.to_owned(),
            port,
            done,
        });
        drop(questions);
        self.asked.notify_one();
    }

    /// Starts a thread. Fails only if no other thread can answer.
    fn start_thread(self: &Arc<Self>, questions: &mut Questions) -> std::io::Result<()> {
        let resolver = self.clone();
        let thread = thread::Builder::new().name("ts:resolve".into());
        match thread.spawn(move || resolver.answer()) {
            Ok(_) => questions.threads += 1,
            Err(error) if questions.threads == 0 => return Err(error),
            Err(_) => {}
        }
        Ok(())
    }

    fn answer(&self) {
        let mut questions = lock(&self.questions);
        loop {
            if let Some(question) = questions.waiting.pop_front() {
                drop(questions);
                let answer = (self.look_up)(&question.host, question.port);
                (question.done)(answer);
                questions = lock(&self.questions);
                continue;
            }
            questions.idle += 1;
            let (woken, timeout) = match self.asked.wait_timeout(questions, IDLE) {
                Ok(woken) => woken,
                Err(poisoned) => poisoned.into_inner(),
            };
            questions = woken;
            questions.idle -= 1;
            if timeout.timed_out() && questions.waiting.is_empty() {
                questions.threads -= 1;
                return;
            }
        }
    }
}

/// Maximum number of threads. A lookup that fails takes seconds; with a few threads, it does not block all others.
const THREADS_MAX: usize = 4;
/// Maximum number of queued names: more than any list of clients has.
const WAITING_MAX: usize = 1024;
/// Time after which an idle thread ends. Names come in groups when elements start, so the threads need not stay.
const IDLE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    const DEADLINE: Duration = Duration::from_secs(30);

    /// Returns a resolver whose lookups end when the test allows it, and the ports that the test uses for that.
    fn held() -> (Arc<Resolver>, Sender<()>, Receiver<String>) {
        let ((go, went), (tell, begun)) = (channel::<()>(), channel());
        let (went, tell) = (Mutex::new(went), Mutex::new(tell));
        let resolver = Resolver::new(move |host, port| {
            let _ = lock(&tell).send(host.to_owned());
            let _ = lock(&went).recv_timeout(DEADLINE);
            match host {
                "bad" => Err(SocketError::NoAddress { host: host.into() }),
                _ => Ok(SocketAddr::from(([127, 0, 0, 1], port))),
            }
        });
        (resolver, go, begun)
    }

    #[test]
    fn resolution_does_not_block_the_caller() {
        let (resolver, go, begun) = held();
        let (tell, told) = channel();
        for host in ["good", "bad"] {
            let tell = tell.clone();
            let done = move |answer: Answer| {
                let text = answer.map_err(|error| error.to_string());
                tell.send((host, text, thread::current().id())).unwrap();
            };
            resolver.look_up(host, 7, Box::new(done));
        }
        // Both lookups are under way, and this thread was not blocked.
        begun.recv_timeout(DEADLINE).unwrap();
        begun.recv_timeout(DEADLINE).unwrap();
        assert!(told.try_recv().is_err());
        drop(go);
        let mut answers = [told.recv_timeout(DEADLINE), told.recv_timeout(DEADLINE)]
            .map(|answer| answer.expect("it is answered"));
        answers.sort_by_key(|(host, ..)| *host == "bad");
        assert_eq!(answers[0].1, Ok("127.0.0.1:7".parse().unwrap()));
        assert_eq!(answers[1].1, Err("'bad' has no address".to_owned()));
        assert!(answers.iter().all(|(.., id)| *id != thread::current().id()));
    }

    #[test]
    fn queued_names_are_bounded_and_one_too_many_is_refused_by_name() {
        let (resolver, go, begun) = held();
        let (tell, told) = channel();
        let ask = |host: &str| {
            let tell = tell.clone();
            let done = move |answer: Answer| tell.send(answer.is_ok()).unwrap();
            resolver.look_up(host, 7, Box::new(done));
        };
        (0..THREADS_MAX).for_each(|_| ask("held"));
        for _ in 0..THREADS_MAX {
            begun.recv_timeout(DEADLINE).unwrap();
        }
        (0..WAITING_MAX).for_each(|_| ask("waits"));
        assert!(told.try_recv().is_err());
        let (tell_refused, refused) = channel();
        let done = move |answer: Answer| tell_refused.send(answer.unwrap_err()).unwrap();
        resolver.look_up("too-many", 7, Box::new(done));
        let refused = refused.try_recv().expect("at once").to_string();
        assert!(refused.contains("'too-many'"), "{refused}");
        drop(go);
        for _ in 0..THREADS_MAX + WAITING_MAX {
            assert_eq!(told.recv_timeout(DEADLINE), Ok(true));
        }
        assert!(lock(&resolver.questions).threads <= THREADS_MAX);
    }

    #[test]
    fn an_address_needs_no_lookup() {
        for (host, address) in [
            ("::1", "[::1]:7"),
            ("[::1]", "[::1]:7"),
            ("10.0.0.1", "10.0.0.1:7"),
        ] {
            assert_eq!(resolve(host, 7).unwrap(), address.parse().unwrap());
            let (tell, told) = channel();
            resolve_later(host, 7, move |answer| tell.send(answer.unwrap()).unwrap());
            assert_eq!(told.try_recv(), Ok(address.parse().unwrap()), "{host}");
        }
        assert_eq!(numeric("localhost", 7), None);
    }
}
