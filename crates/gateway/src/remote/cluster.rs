//! `threadbare cluster`: the cluster of a running gateway.

use std::process::ExitCode;

use clap::Subcommand;
use serde_json::json;

use super::{RelayArgs, show_json, table};

/// Shows the cluster of a running gateway, drains this gateway's node, and moves streams.
#[derive(Debug, Subcommand)]
pub(crate) enum RemoteCluster {
    /// Show the nodes, and the owner of each stream
    Status(StatusArgs),
    /// Hand over all streams of this node to other nodes, without a gap
    Drain(DrainArgs),
    /// Move a stream to a node
    Move(MoveArgs),
}

/// Arguments of `cluster status`.
#[derive(Debug, clap::Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    relay: RelayArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `cluster drain`.
#[derive(Debug, clap::Args)]
pub(crate) struct DrainArgs {
    #[command(flatten)]
    relay: RelayArgs,
    /// End the drain: accept streams again
    #[arg(long)]
    undo: bool,
}

/// Arguments of `cluster move`.
#[derive(Debug, clap::Args)]
pub(crate) struct MoveArgs {
    /// The stream
    stream: String,
    /// The node; default: the cluster chooses
    node: Option<String>,
    #[command(flatten)]
    relay: RelayArgs,
}

impl RemoteCluster {
    /// Runs the command.
    ///
    /// # Errors
    /// Fails if the gateway cannot be reached, or refuses the request.
    pub(crate) fn execute(&self) -> miette::Result<ExitCode> {
        match self {
            RemoteCluster::Status(args) => {
                let status = args.relay.client()?.get("/v1/cluster")?;
                if args.json {
                    show_json(&status)?
                } else {
                    print!("{}", table::cluster(&status))
                }
            }
            RemoteCluster::Drain(args) => {
                let client = args.relay.client()?;
                let path = "/v1/cluster/drain";
                if args.undo {
                    client.delete(path)?
                } else {
                    drop(client.post(path, &json!({}))?)
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
