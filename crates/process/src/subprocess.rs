//! Runs this program in another process, and exchanges messages with it.
//!
//! Measurements need a separate process, because resource usage is known only for a whole process. Messages are JSON, one per
//! line, over the child's standard input and output. When its standard input is closed, the child must stop: the parent has asked
//! for this, or has ended.

use std::io::{BufRead, BufReader, Error, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use miette::{Context, IntoDiagnostic, miette};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A child that sends messages of type `M`. Dropping this value ends the child.
#[derive(Debug)]
pub struct Subprocess<M> {
    child: Child,
    stdin: Option<ChildStdin>,
    messages: Receiver<M>,
}

impl<M: DeserializeOwned + Send + 'static> Subprocess<M> {
    /// Starts this program with other arguments.
    pub fn start(arguments: &[&str]) -> miette::Result<Subprocess<M>> {
        let program = std::env::current_exe().into_diagnostic();
        let program = program.wrap_err("cannot find the path of this program")?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // The child gets its own process group, so that Ctrl-C reaches only the parent, which then stops the child.
            .process_group(0)
            .spawn()
            .into_diagnostic()
            .wrap_err("cannot start the subprocess")?;
        let stdin = child.stdin.take();
        let stdout = child
            .stdout
            .take()
            .ok_or_else(|| miette!("the subprocess has no pipe for its standard output"))?;
        let messages = messages(stdout);
        Ok(Subprocess {
            child,
            stdin,
            messages,
        })
    }

    /// Sends a message to the child.
    pub fn tell(&mut self, message: &impl Serialize) -> miette::Result<()> {
        let stdin = self
            .stdin
            .as_mut()
            .ok_or_else(|| miette!("the subprocess was already asked to stop"))?;
        write(stdin, message)
            .into_diagnostic()
            .wrap_err("the subprocess has ended")
    }

    /// Waits for the child's next message.
    pub fn wait(&self) -> miette::Result<M> {
        self.messages
            .recv()
            .map_err(|_| miette!("the subprocess ended unexpectedly"))
    }

    /// Returns the child's next message, if one has arrived.
    pub fn poll(&self) -> miette::Result<Option<M>> {
        match self.messages.try_recv() {
            Ok(message) => Ok(Some(message)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(miette!("the subprocess ended unexpectedly")),
        }
    }

    /// Closes the child's standard input.
    pub fn hang_up(&mut self) {
        self.stdin = None;
    }
}

impl<M> Drop for Subprocess<M> {
    fn drop(&mut self) {
        self.stdin = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In the child: returns a receiver of the parent's messages. The channel closes when the parent hangs up.
pub fn orders<M: DeserializeOwned + Send + 'static>() -> Receiver<M> {
    messages(std::io::stdin())
}

/// In the child: sends a message to the parent.
pub fn tell_parent(message: &impl Serialize) -> Result<(), Error> {
    write(std::io::stdout(), message)
}

fn messages<M: DeserializeOwned + Send + 'static>(from: impl Read + Send + 'static) -> Receiver<M> {
    let (sender, messages) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines() {
            let message = line.and_then(|line| serde_json::from_str(&line).map_err(Error::from));
            match message {
                Ok(message) => {
                    if sender.send(message).is_err() {
                        return;
                    }
                }
                Err(error) => {
                    tracing::error!(%error, "cannot read a message from the subprocess");
                    return;
                }
            }
        }
    });
    messages
}

fn write(mut to: impl Write, message: &impl Serialize) -> Result<(), Error> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()
}
