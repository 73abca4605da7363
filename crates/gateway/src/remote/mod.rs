//! Commands that use the HTTP API of a running gateway: `threadbare calls`, `threadbare cluster`, `threadbare top` and
//! `threadbare events`.

mod client;
mod cluster;
mod feed;
mod table;
mod top;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use miette::IntoDiagnostic;
use serde_json::Value;

use self::client::Client;
pub(crate) use self::cluster::RemoteCluster;
pub(crate) use self::top::TopArgs;

/// Shows and ends the calls of a running relay.
#[derive(Debug, Subcommand)]
pub(crate) enum RemoteCalls {
    /// List the current calls
    List(ListArgs),
    /// Show a call with its media
    Show(CallArgs),
    /// End a call
    End(CallArgs),
}

/// The address of the gateway.
#[derive(Debug, clap::Args)]
struct RelayArgs {
    /// Address of the gateway's HTTP server, from `[http]` or `serve --http`
    #[arg(long, default_value = "http://127.0.0.1:8080", value_name = "URL")]
    http: String,
    /// File with the relay's token
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl RelayArgs {
    fn client(&self) -> miette::Result<Client> {
        Client::new(&self.http, self.token_file.as_deref())
    }
}

/// Arguments of `calls list`.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    relay: RelayArgs,
    /// List the calls of all nodes of the gateway's cluster
    #[arg(long)]
    cluster: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of commands about one call.
#[derive(Debug, clap::Args)]
pub(crate) struct CallArgs {
    /// The Call-ID
    id: String,
    #[command(flatten)]
    relay: RelayArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Prints the events of a running gateway.
#[derive(Debug, clap::Args)]
pub(crate) struct EventsArgs {
    #[command(flatten)]
    relay: RelayArgs,
    /// Print the events of all nodes of the gateway's cluster
    #[arg(long)]
    cluster: bool,
}

impl EventsArgs {
    /// Prints events until the gateway ends, or the reader closes the output.
    ///
    /// # Errors
    /// Fails if the gateway cannot be reached, or refuses the request.
    pub(crate) fn execute(&self) -> miette::Result<ExitCode> {
        let mut out = std::io::stdout().lock();
        let path = if self.cluster {
            "/v1/events?cluster=1"
        } else {
            "/v1/events"
        };
        for event in self.relay.client()?.events(path)? {
            let (name, mut data) = event.into_diagnostic()?;
            if let Value::Object(members) = &mut data {
                members.insert("event".to_owned(), name.into());
            }
            // The reader has closed the pipe, so the command ends.
            if writeln!(out, "{data}").and_then(|()| out.flush()).is_err() {
                break;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl RemoteCalls {
    /// Runs the command.
    ///
    /// # Errors
    /// Fails if the relay cannot be reached, or refuses the request.
    pub(crate) fn execute(&self) -> miette::Result<ExitCode> {
        match self {
            RemoteCalls::List(args) => list(args),
            RemoteCalls::Show(args) => show(args),
            RemoteCalls::End(args) => end(args),
        }
    }
}

fn list(args: &ListArgs) -> miette::Result<ExitCode> {
    let client = args.relay.client()?;
    let first = if args.cluster {
        "/v1/calls?limit=200&cluster=1"
    } else {
        "/v1/calls?limit=200"
    };
    let mut next = Some(first.to_owned());
    let mut all = Vec::new();
    while let Some(path) = next {
        let mut page = client.get(&path)?;
        next = page["next"].as_str().map(str::to_owned);
        if let Value::Array(calls) = page["calls"].take() {
            all.extend(calls);
        }
    }
    if args.json {
        show_json(&Value::Array(all))?
    } else {
        print!("{}", table::calls(&all))
    }
    Ok(ExitCode::SUCCESS)
}

fn show(args: &CallArgs) -> miette::Result<ExitCode> {
    let client = args.relay.client()?;
    let call = client.get(&path(&args.id))?;
    if args.json {
        show_json(&call)?
    } else {
        print!("{}", table::call(&call))
    }
    Ok(ExitCode::SUCCESS)
}

fn end(args: &CallArgs) -> miette::Result<ExitCode> {
    let client = args.relay.client()?;
    client.delete(&path(&args.id))?;
    if args.json {
        show_json(&serde_json::json!({"ended": args.id}))?
    } else {
        println!("{} has ended", table::plain(&args.id))
    }
    Ok(ExitCode::SUCCESS)
}

fn show_json(value: &Value) -> miette::Result<()> {
    println!("{}", serde_json::to_string_pretty(value).into_diagnostic()?);
    Ok(())
}

fn path(id: &str) -> String {
    let id = percent_encoding::utf8_percent_encode(id, percent_encoding::NON_ALPHANUMERIC);
    format!("/v1/calls/{id}")
}
