//! `threadbare cluster`: the cluster of a running gateway.

use std::process::ExitCode;

use clap::Subcommand;
use serde_json::json;

use super::{RelayArgs, show_json, table};

/// Looks at the cluster of a running gateway, drains its node, and moves streams.
#[derive(Debug, Subcommand)]
pub enum RemoteCluster {
    /// Show the nodes, and who carries which stream
    Status(StatusArgs),
    /// Have other nodes carry all streams of this node, without a gap
    Drain(DrainArgs),
    /// Have a stream carried by a node
    Move(MoveArgs),
}

/// Arguments of `cluster status`.
#[derive(Debug, clap::Args)]
pub struct StatusArgs {
    #[command(flatten)]
    relay: RelayArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `cluster drain`.
#[derive(Debug, clap::Args)]
pub struct DrainArgs {
    #[command(flatten)]
    relay: RelayArgs,
    /// Take streams again
    #[arg(long)]
    undo: bool,
}

/// Arguments of `cluster move`.
#[derive(Debug, clap::Args)]
pub struct MoveArgs {
    /// The stream
    stream: String,
    /// The node; without it, the one that the cluster takes by itself
    node: Option<String>,
    #[command(flatten)]
    relay: RelayArgs,
}

impl RemoteCluster {
    /// Runs the command.
    ///
    /// # Errors
    /// The gateway cannot be reached, or refuses.
    pub fn execute(&self) -> miette::Result<ExitCode> {
        match self {
            RemoteCluster::Status(args) => {
                let status = args.relay.client()?.get("/v1/cluster")?;
                match args.json {
                    true => show_json(&status)?,
                    false => print!("{}", table::cluster(&status)),
                }
            }
            RemoteCluster::Drain(args) => {
                let client = args.relay.client()?;
                let path = "/v1/cluster/drain";
                match args.undo {
                    true => client.delete(path)?,
                    false => drop(client.post(path, &json!({}))?),
                }
            }
            RemoteCluster::Move(MoveArgs {
                stream,
                node,
                relay,
            }) => {
                let wanted = json!({"stream": stream, "node": node});
                relay.client()?.post("/v1/cluster/move", &wanted)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
