//! `threadbare top`: streams and threads of a running gateway, in a terminal.

mod model;
mod view;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use miette::{IntoDiagnostic, miette};
use ratatui::crossterm::event::{self, Event as Input, KeyCode, KeyEventKind, KeyModifiers};
use serde_json::Value;

use self::model::{Key, Model};
use super::RelayArgs;
use super::client::Client;

/// Shows streams and threads of a running gateway, in the terminal.
#[derive(Debug, clap::Args)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    relay: RelayArgs,
}

/// An event from another thread.
enum News {
    Key(KeyCode, KeyModifiers),
    Resized,
    Event(String, Value),
    /// A stream's name, its current values, and its history.
    Stream(String, Value, Value),
    Problem(String),
}

impl TopArgs {
    /// Runs until `q`.
    ///
    /// # Errors
    /// Fails if the gateway refuses the first request, or if the output is not a terminal.
    pub(crate) fn execute(&self) -> miette::Result<ExitCode> {
        if !std::io::stdout().is_terminal() {
            return Err(miette!(
                help = "programs can get the same values as JSON: GET /v1/streams",
                "`threadbare top` needs a terminal"
            ));
        }
        let client = self.relay.client()?;
        // The command fails here, before it changes the terminal, if the gateway cannot be reached or refuses.
        client.get("/v1/alarms")?;
        let (tell, told) = channel();
        listen(client.clone(), tell.clone());
        read_keys(tell.clone());
        let mut terminal = ratatui::try_init().into_diagnostic()?;
        let ended = run(&mut terminal, &client, &tell, &told);
        ratatui::restore();
        ended.map(|()| ExitCode::SUCCESS)
    }
}

fn run(
    terminal: &mut ratatui::DefaultTerminal,
    client: &Client,
    tell: &Sender<News>,
    told: &Receiver<News>,
) -> miette::Result<()> {
    let mut model = Model::default();
    let mut asked: Option<(String, Instant)> = None;
    loop {
        let drawn = terminal.draw(|frame| view::draw(frame, &model, client.base()));
        drawn.into_diagnostic()?;
        let next = Instant::now() + REDRAW;
        let mut waited = Duration::from_secs(1);
        // Handle all events that have arrived, and draw only then.
        loop {
            match told.recv_timeout(waited) {
                Ok(News::Key(KeyCode::Char('q'), _)) => return Ok(()),
                Ok(News::Key(KeyCode::Char('c'), with)) if with.contains(KeyModifiers::CONTROL) => {
                    return Ok(());
                }
                Ok(news) => take(&mut model, news),
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            waited = next.saturating_duration_since(Instant::now());
        }
        let opened = model.opened.as_ref().map(|one| one.name.clone());
        let is_due = |at: &(String, Instant)| at.1.elapsed() >= Duration::from_secs(1);
        match opened {
            Some(name) if asked.as_ref().is_none_or(|at| at.0 != name || is_due(at)) => {
                asked = Some((name.clone(), Instant::now()));
                ask(client.clone(), name, tell.clone());
            }
            Some(_) => {}
            None => asked = None,
        }
    }
}

fn take(model: &mut Model, news: News) {
    match news {
        News::Key(code, _) => {
            if let Some(key) = meaning(code) {
                model.key(key);
            }
        }
        News::Resized => {}
        News::Event(name, data) => model.handle(&name, &data),
        News::Stream(name, now, history) => {
            if let Some(opened) = model.opened.as_mut().filter(|one| one.name == name) {
                (opened.now, opened.history) = (now, history);
            }
        }
        News::Problem(problem) => model.problem = Some(problem),
    }
}

fn meaning(code: KeyCode) -> Option<Key> {
    Some(match code {
        KeyCode::Up | KeyCode::Char('k') => Key::Move(-1),
        KeyCode::Down | KeyCode::Char('j') => Key::Move(1),
        KeyCode::PageUp => Key::Move(-PAGE),
        KeyCode::PageDown => Key::Move(PAGE),
        KeyCode::Home => Key::Move(isize::MIN),
        KeyCode::End => Key::Move(isize::MAX),
        KeyCode::Enter => Key::Open,
        KeyCode::Esc | KeyCode::Backspace => Key::Close,
        KeyCode::Char('s') => Key::Sort,
        _ => return None,
    })
}

/// Reads the events of the wall. If the connection ends, connects again.
fn listen(client: Client, tell: Sender<News>) {
    std::thread::spawn(move || {
        loop {
            let problem = match client.events("/v1/wall") {
                Ok(events) => {
                    for event in events.map_while(Result::ok) {
                        if tell.send(News::Event(event.0, event.1)).is_err() {
                            return;
                        }
                    }
                    "the gateway has closed the connection; trying again".to_owned()
                }
                Err(error) => error.to_string(),
            };
            if tell.send(News::Problem(problem)).is_err() {
                return;
            }
            std::thread::sleep(RETRY);
        }
    });
}

fn read_keys(tell: Sender<News>) {
    std::thread::spawn(move || {
        while let Ok(input) = event::read() {
            let news = match input {
                Input::Key(key) if key.kind != KeyEventKind::Release => {
                    News::Key(key.code, key.modifiers)
                }
                Input::Resize(..) => News::Resized,
                _ => continue,
            };
            if tell.send(news).is_err() {
                return;
            }
        }
    });
}

fn ask(client: Client, name: String, tell: Sender<News>) {
    std::thread::spawn(move || {
        let id = percent_encoding::utf8_percent_encode(&name, percent_encoding::NON_ALPHANUMERIC);
        let path = format!("/v1/streams/{id}");
        let both = client
            .get(&path)
            .and_then(|now| Ok((now, client.get(&format!("{path}/history"))?)));
        let _ = tell.send(match both {
            Ok((now, history)) => News::Stream(name, now, history),
            Err(error) => News::Problem(error.to_string()),
        });
    });
}

/// Interval between redraws. It is the interval of the gateway's events.
const REDRAW: Duration = Duration::from_millis(100);
const RETRY: Duration = Duration::from_secs(1);
const PAGE: isize = 20;
