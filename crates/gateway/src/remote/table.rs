//! Formats a relay's replies as tables.

use std::fmt::Write;

use serde_json::Value;

/// Formats calls as a table, with a line for each call.
pub(super) fn calls(calls: &[Value]) -> String {
    // If the calls are those of a cluster, each has a node.
    let has_nodes = calls.iter().any(|call| !call["node"].is_null());
    let node = |name: String| if has_nodes { name } else { String::new() };
    let mut rows = vec![["CALL", "STATE", "SECONDS", "STREAMS", ""].map(str::to_owned)];
    rows[0][4] = node("NODE".to_owned());
    for call in calls {
        let state = if call["answered_unix_ms"].is_null() {
            "rings"
        } else {
            "up"
        };
        rows.push([
            text(&call["id"]),
            state.to_owned(),
            seconds(&call["duration_ms"]),
            text(&call["streams"]),
            node(text(&call["node"])),
        ]);
    }
    aligned(&rows)
}

/// Formats a call, with a line for each party of each stream.
pub(super) fn call(call: &Value) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(out, "call      {}", text(&call["id"]));
    let state = if call["answered_unix_ms"].is_null() {
        "rings"
    } else {
        "up"
    };
    let _ = writeln!(
        out,
        "state     {state} for {} s",
        seconds(&call["duration_ms"])
    );
    let mut rows = vec![
        [
            "MEDIA",
            "TAG",
            "CODEC",
            "REMOTE",
            "LOCAL",
            "RECEIVED",
            "LOST",
            "JITTER MS",
            "MOS",
        ]
        .map(str::to_owned),
    ];
    for stream in call["streams"].as_array().into_iter().flatten() {
        for side in stream["sides"].as_array().into_iter().flatten() {
            let media = &side["media"];
            let remote = if media["remote_address"].is_null() {
                &side["signalled_address"]
            } else {
                &media["remote_address"]
            };
            rows.push([
                text(&stream["media"]),
                text(&side["tag"]),
                text(&side["codec"]),
                text(remote),
                text(&side["local_address"]),
                text(&media["packets_received"]),
                text(&media["packets_lost"]),
                tenths(&media["jitter_ms"]),
                tenths(&media["mos"]),
            ]);
        }
    }
    out.push('\n');
    out.push_str(&aligned(&rows));
    out
}

/// Removes control characters, because text from the network must not send them to a terminal.
pub(super) fn plain(text: &str) -> String {
    let odd = |letter: char| {
        if letter.is_control() {
            '\u{fffd}'
        } else {
            letter
        }
    };
    text.chars().map(odd).collect()
}

/// Formats a cluster: a line for each node, then one for each stream.
pub(super) fn cluster(status: &Value) -> String {
    let flag = |value: &Value, yes: &str, no: &str| match value.as_bool() {
        Some(true) => yes.to_owned(),
        _ => no.to_owned(),
    };
    let mut out = String::new();
    let live = flag(
        &status["is_live"],
        "live",
        "NOT LIVE: this node carries nothing",
    );
    // Writing to a String cannot fail.
    let _ = writeln!(out, "node      {}, {live}", text(&status["node"]));
    if !status["etcd_error"].is_null() {
        let _ = writeln!(out, "etcd      {}", text(&status["etcd_error"]));
    }
    let mut rows = vec![
        [
            "NODE", "STATE", "LINK", "WEIGHT", "STREAMS", "ROOM %", "LABELS",
        ]
        .map(str::to_owned),
    ];
    for node in status["nodes"].as_array().into_iter().flatten() {
        let labels = node["labels"].as_array().into_iter().flatten();
        let labels: Vec<String> = labels.map(text).collect();
        rows.push([
            text(&node["node"]),
            flag(&node["draining"], "draining", "up"),
            flag(&node["linked"], "linked", "-"),
            text(&node["weight"]),
            text(&node["streams"]),
            text(&node["room"]),
            labels.join(" "),
        ]);
    }
    let _ = write!(out, "\n{}", aligned(&rows));
    let mut rows = vec![["STREAM", "NODE", "NEXT", "EPOCH"].map(str::to_owned)];
    for stream in status["streams"].as_array().into_iter().flatten() {
        rows.push([
            text(&stream["stream"]),
            text(&stream["node"]),
            text(&stream["next"]),
            text(&stream["epoch"]),
        ]);
    }
    let _ = write!(out, "\n{}", aligned(&rows));
    out
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => plain(text),
        other => other.to_string(),
    }
}

fn seconds(ms: &Value) -> String {
    ms.as_u64()
        .map_or("-".to_owned(), |ms| (ms / 1000).to_string())
}

fn tenths(value: &Value) -> String {
    value
        .as_f64()
        .map_or("-".to_owned(), |value| format!("{value:.1}"))
}

/// Formats rows, with each column as wide as its longest text.
fn aligned<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; N] = std::array::from_fn(|column| width(column).unwrap_or(0));
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            let _ = write!(line, "{cell:width$}  ");
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn columns_are_aligned_and_control_characters_removed() {
        let rows = [
            json!({"id": "a\u{1b}[2J", "duration_ms": 61_999, "streams": 1, "answered_unix_ms": 5}),
            json!({"id": "a-longer-id", "duration_ms": 0, "streams": 12}),
        ];
        let expected = "CALL         STATE  SECONDS  STREAMS\n\
                        a\u{fffd}[2J        up     61       1\n\
                        a-longer-id  rings  0        12\n";
        assert_eq!(calls(&rows), expected);
    }
}
