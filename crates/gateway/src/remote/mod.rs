//! `threadbare calls`: the calls of a running `threadbare serve --http`, from a shell.

mod client;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use miette::IntoDiagnostic;
use serde_json::Value;

use self::client::Client;

/// Looks at the calls of a running relay, and ends them.
#[derive(Debug, Subcommand)]
pub enum RemoteCalls {
    /// List the calls that are up
    List(ListArgs),
    /// Show a call with its media
    Show(CallArgs),
    /// End a call
    End(CallArgs),
}

/// Where the relay is.
#[derive(Debug, clap::Args)]
struct RelayArgs {
    /// What `threadbare serve --http` listens on
    #[arg(long, default_value = "http://127.0.0.1:8080", value_name = "URL")]
    http: String,
    /// File with the relay's token
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `calls list`.
#[derive(Debug, clap::Args)]
pub struct ListArgs {
    #[command(flatten)]
    relay: RelayArgs,
}

/// Arguments of commands about one call.
#[derive(Debug, clap::Args)]
pub struct CallArgs {
    /// The Call-ID
    id: String,
    #[command(flatten)]
    relay: RelayArgs,
}

impl RemoteCalls {
    /// Runs the command.
    ///
    /// # Errors
    /// The relay cannot be reached, or refuses.
    pub fn execute(&self) -> miette::Result<ExitCode> {
        match self {
            RemoteCalls::List(args) => list(&args.relay),
            RemoteCalls::Show(args) => show(args),
            RemoteCalls::End(args) => end(args),
        }
    }
}

fn list(relay: &RelayArgs) -> miette::Result<ExitCode> {
    let client = Client::new(&relay.http, relay.token_file.as_deref())?;
    let mut next = Some("/v1/calls?limit=200".to_owned());
    let mut all = Vec::new();
    while let Some(path) = next {
        let mut page = client.get(&path)?;
        next = page["next"].as_str().map(str::to_owned);
        if let Value::Array(calls) = page["calls"].take() {
            all.extend(calls);
        }
    }
    match relay.json {
        true => show_json(&Value::Array(all))?,
        false => print!("{}", table::calls(&all)),
    }
    Ok(ExitCode::SUCCESS)
}

fn show(args: &CallArgs) -> miette::Result<ExitCode> {
    let client = Client::new(&args.relay.http, args.relay.token_file.as_deref())?;
    let call = client.get(&path(&args.id))?;
    match args.relay.json {
        true => show_json(&call)?,
        false => print!("{}", table::call(&call)),
    }
    Ok(ExitCode::SUCCESS)
}

fn end(args: &CallArgs) -> miette::Result<ExitCode> {
    let client = Client::new(&args.relay.http, args.relay.token_file.as_deref())?;
    client.delete(&path(&args.id))?;
    match args.relay.json {
        true => show_json(&serde_json::json!({"ended": args.id}))?,
        false => println!("{} has ended", table::plain(&args.id)),
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
