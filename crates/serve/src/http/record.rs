//! Recording settings of a call that is made by `POST /v1/calls`.

use serde::Deserialize;
use utoipa::ToSchema;

use axum::http::StatusCode;

use super::problem::Problem;
use crate::service::Service;
use threadbare_config::{RecordSpec, RecordWords, Template};

/// Recording settings of a call. Folder and file names are those of the configuration.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"format": "wav", "tracks": "mixed"}))]
pub(super) struct CallRecord {
    /// `wav`, `wav-g711`, `mka`, `mka-g711` or `pcap`.
    format: Option<String>,
    /// `sides` or `mixed`.
    tracks: Option<String>,
    /// When to start the next file, for example `1h` or `1h 500MB`.
    rotate: Option<String>,
    /// When to record: `always`, `call` or `loss`.
    on: Option<String>,
}

impl CallRecord {
    /// Parses the settings. The configuration supplies absent ones.
    pub(super) fn read(&self, service: &Service) -> Result<RecordSpec, Problem> {
        let Some((folder, format)) = service.media.on_demand() else {
            let detail = "this gateway does not record calls, because its configuration has neither `recording-dir` nor `record`";
            let problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail);
            return Err(problem.about("record", "omit this member"));
        };
        let policy = service.media.policy();
        let usual = || RecordSpec::on_demand(Template::usual(folder), format);
        let base = policy.map_or_else(usual, |spec| RecordSpec::clone(spec));
        let words = RecordWords {
            format: self.format.as_deref(),
            tracks: self.tracks.as_deref(),
            rotate: self.rotate.as_deref(),
            on: self.on.as_deref(),
        };
        base.with(words).map_err(|(key, value, allowed)| {
            Problem::value(&format!("record.{key}"), &value, allowed)
        })
    }
}
