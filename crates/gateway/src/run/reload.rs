//! A configuration that is read again while it runs: what has changed is applied, and nothing else is touched.

use super::{Job, read_config_for};
use crate::config::{Config, HttpSpec, Serving, ThisMachine};
use crate::gateway::Gateway;
use crate::pipeline::Elements;
use crate::serve::Server;

impl Job {
    /// Reads the file again. One that has mistakes, or changes what cannot be changed in a running process, changes nothing.
    pub(super) fn reload(&mut self, gateway: &mut Gateway, server: Option<&Server>) {
        let Some(path) = &self.file else {
            return;
        };
        let file = path.display();
        let config = match read_config_for(path, &ThisMachine) {
            Ok(config) => config,
            Err(report) => {
                let report = format!("{report:?}");
                return tracing::error!(%file, report, "nothing is changed: the file has mistakes");
            }
        };
        let mut fixed = fixed(&self.config, &config);
        if matches!(self.elements, Elements::Stock) && self.config.streams != config.streams {
            fixed.push("[[stream]]: streams of --stock stay as they began".to_owned());
        }
        if !fixed.is_empty() {
            let keys = fixed.join("; ");
            return tracing::error!(%file, keys, "nothing is changed: these need a restart");
        }
        if let Some(server) = server {
            server.reopen_records();
        }
        if let (Some(server), Some(serving)) = (server, &config.serving)
            && self.config.serving.as_ref() != Some(serving)
        {
            match server.reload(serving) {
                Ok(()) => tracing::info!(%file, "the calls' settings are applied"),
                Err(error) => return tracing::error!(%file, %error, "nothing is changed"),
            }
        }
        match gateway.reload(config.streams.clone(), config.restart) {
            Ok(changed) => tracing::info!(
                %file,
                added = changed.added,
                removed = changed.removed,
                restarted = changed.restarted,
                "read again"
            ),
            Err(error) => tracing::error!(%file, %error, "streams cannot be started"),
        }
        self.config = config;
    }
}

/// What differs, and cannot be changed in a running process: each with both values.
fn fixed(before: &Config, after: &Config) -> Vec<String> {
    let mut fixed = Vec::new();
    let mut differs = |key: &str, before: &dyn ToString, after: &dyn ToString| {
        let (before, after) = (before.to_string(), after.to_string());
        if before != after {
            fixed.push(format!("{key}: {before} runs, {after} is written"));
        }
    };
    let (old, new) = (&before.contexts, &after.contexts);
    differs("[contexts] prefix", &old.prefix, &new.prefix);
    differs("[contexts] count", &old.count, &new.count);
    differs("[contexts] wait", &old.wait_ms, &new.wait_ms);
    match (&before.serving, &after.serving) {
        (Some(old), Some(new)) => {
            let dir = |serving: &Serving| {
                let dir = serving.recording_dir.as_ref();
                dir.map_or("none".to_owned(), |dir| dir.display().to_string())
            };
            differs("[ng] listen", &old.ng, &new.ng);
            let http = |serving: &Serving| match &serving.http {
                None => "none".to_owned(),
                Some(HttpSpec { listen, token_file }) => {
                    let token = token_file.as_ref().map(|file| file.display().to_string());
                    format!("{listen} {}", token.unwrap_or_default())
                }
            };
            differs("[http]", &http(old), &http(new));
            differs("[calls] threads", &old.threads, &new.threads);
            differs("[calls] recording-dir", &dir(old), &dir(new));
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
