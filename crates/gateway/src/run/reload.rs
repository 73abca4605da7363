//! Reloads a configuration in a running process. Only changed streams and calls are affected.

use std::collections::HashMap;
use std::path::Path;

use super::{Job, read_config_for, this_machine};
use threadbare_cluster::Cluster;
use threadbare_config::{Config, ConfigError, HttpSpec, Problem, Serving, StreamSpec};
use threadbare_serve::Server;
use threadbare_streams::gateway::{Changed, Gateway};
use threadbare_streams::pipeline::Elements;
use threadbare_streams::reload::{NotReloaded, Reloaded};
use threadbare_watch::View;

impl Job {
    /// Reads the file again, and applies the changes. If the file has mistakes, or a change needs a restart, nothing is
    /// applied.
    pub(super) fn reload(
        &mut self,
        gateway: &mut Gateway,
        server: Option<&Server>,
        cluster: Option<&Cluster>,
        view: &View,
    ) -> Result<Reloaded, NotReloaded> {
        let Some(path) = self.file.clone() else {
            return Err(NotReloaded::NoFile);
        };
        let file = path.display();
        let done = self.apply(&path, gateway, server, cluster, view);
        match &done {
            Ok(changed) => tracing::info!(
                %file,
                added = changed.streams_added,
                removed = changed.streams_removed,
                restarted = changed.streams_restarted,
                calls = changed.calls_changed,
                "reloaded"
            ),
            Err(refused) => {
                tracing::error!(%file, reason = %refused, "the configuration file is not applied, and nothing changes")
            }
        }
        done
    }

    fn apply(
        &mut self,
        path: &Path,
        gateway: &mut Gateway,
        server: Option<&Server>,
        cluster: Option<&Cluster>,
        view: &View,
    ) -> Result<Reloaded, NotReloaded> {
        let config = read_config_for(path, &this_machine()).map_err(mistakes)?;
        let mut fixed = fixed(&self.config, &config);
        if matches!(self.elements, Elements::Stock) && self.config.streams != config.streams {
            fixed.push("[[stream]]: with --stock, streams cannot be changed".to_owned());
        }
        if !fixed.is_empty() {
            return Err(NotReloaded::NeedsRestart(fixed));
        }
        let failed = |error: &dyn std::fmt::Display| NotReloaded::Failed(error.to_string());
        let calls_changed = self.config.serving != config.serving;
        // Steps that may fail come first, so that after a failure nothing has changed.
        gateway
            .prepare(&config.streams)
            .map_err(|error| failed(&error))?;
        let alarms = &config.alarms;
        view.set_alarms(alarms.rules, alarms.webhook.as_deref())
            .map_err(|error| failed(&error))?;
        let history = config.history_dir();
        view.set_history(history.as_deref())
            .map_err(|error| failed(&error))?;
        if let Some(server) = server {
            if let Some(serving) = config.serving.as_ref().filter(|_| calls_changed) {
                server.reload(serving).map_err(|error| failed(&error))?;
            }
            server.reopen_records();
        }
        // In a cluster, streams are only declared, and the cluster decides which of them run here.
        let changed = match cluster {
            None => gateway.reload(config.streams.clone(), config.restart),
            Some(cluster) => {
                cluster.declare(&config.streams);
                Ok(declared(&self.config.streams, &config.streams))
            }
        };
        let changed = changed.map_err(|error| failed(&error))?;
        self.config = config;
        Ok(Reloaded {
            streams_added: changed.added,
            streams_removed: changed.removed,
            streams_restarted: changed.restarted,
            calls_changed,
        })
    }
}

/// Returns the changes to be declared to a cluster.
fn declared(before: &[StreamSpec], after: &[StreamSpec]) -> Changed {
    fn by_name(streams: &[StreamSpec]) -> HashMap<&str, &StreamSpec> {
        streams.iter().map(|spec| (&*spec.name, spec)).collect()
    }
    let (old, new) = (by_name(before), by_name(after));
    let is_new = |spec: &&StreamSpec| !old.contains_key(&*spec.name);
    let is_gone = |spec: &&StreamSpec| !new.contains_key(&*spec.name);
    let is_other = |spec: &&StreamSpec| old.get(&*spec.name).is_some_and(|old| old != spec);
    Changed {
        added: after.iter().filter(is_new).count(),
        removed: before.iter().filter(is_gone).count(),
        restarted: after.iter().filter(is_other).count(),
    }
}

/// Lists the mistakes of a file, each with its line, or the reason why the file cannot be read.
fn mistakes(report: miette::Report) -> NotReloaded {
    let Some(error) = report.downcast_ref::<ConfigError>() else {
        return NotReloaded::Mistakes(vec![format!("{report:#}")]);
    };
    let problem = |one: &Problem| {
        let line = one.lines().first().copied().unwrap_or(1);
        let help = one.help.iter().map(|help| format!(" ({help})"));
        format!("line {line}: {}{}", one.message, help.collect::<String>())
    };
    NotReloaded::Mistakes(error.problems.iter().map(problem).collect())
}

/// Lists the changes that need a restart, each with both values.
fn fixed(before: &Config, after: &Config) -> Vec<String> {
    let mut fixed = Vec::new();
    let mut differs = |key: &str, before: &dyn ToString, after: &dyn ToString| {
        let (before, after) = (before.to_string(), after.to_string());
        if before != after {
            fixed.push(format!(
                "{key}: the gateway runs with {before}, but the file has {after}"
            ));
        }
    };
    let (old, new) = (&before.contexts, &after.contexts);
    differs("[contexts] prefix", &old.prefix, &new.prefix);
    differs("[contexts] count", &old.count, &new.count);
    differs("[contexts] wait", &old.wait_ms, &new.wait_ms);
    let positions = |config: &Config| format!("{:?}", config.positions);
    differs("[restart] state", &positions(before), &positions(after));
    differs("[contexts] rebalance", &old.rebalance, &new.rebalance);
    let cluster = |config: &Config| format!("{:?}", config.cluster);
    differs("[cluster]", &cluster(before), &cluster(after));
    match (&before.serving, &after.serving) {
        (Some(old), Some(new)) => {
            let dir = |serving: &Serving| {
                let dir = serving.recording_dir.as_ref();
                dir.map_or("none".to_owned(), |dir| dir.display().to_string())
            };
            differs("[ng] listen", &old.ng, &new.ng);
            let tcp = |serving: &Serving| {
                let tcp = serving.ng_tcp.as_ref();
                tcp.map_or("none".to_owned(), ToString::to_string)
            };
            differs("[ng] tcp", &tcp(old), &tcp(new));
            let http = |serving: &Serving| match &serving.http {
                None => "none".to_owned(),
                Some(HttpSpec { listen, token_file }) => {
                    let token = token_file.as_ref().map(|file| file.display().to_string());
                    format!("{listen} {}", token.unwrap_or_default())
                }
            };
            differs("[http]", &http(old), &http(new));
            differs("[calls] threads", &old.threads, &new.threads);
            let xdp = |serving: &Serving| format!("{:?}", serving.xdp);
            differs("[calls] xdp", &xdp(old), &xdp(new));
            differs("[calls] recording-dir", &dir(old), &dir(new));
            let format = |serving: &Serving| serving.recording_format.name();
            differs("[calls] recording-format", &format(old), &format(new));
            let state = |serving: &Serving| format!("{:?}", serving.state);
            differs("[calls] state", &state(old), &state(new));
            let records = |serving: &Serving| format!("{:?}", serving.records);
            differs("[calls] records", &records(old), &records(new));
        }
        (old, new) => {
            let calls = |serving: &Option<Serving>| {
                if serving.is_some() {
                    "calls"
                } else {
                    "no calls"
                }
            };
            differs("[ng]", &calls(old), &calls(new));
        }
    }
    fixed
}
