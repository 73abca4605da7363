//! Alarms of calls, in each place where they are shown.

use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};

use crate::common::LIMIT;
use crate::common::fallback::{EventReader, Phone, call, run, start};
use crate::common::http::{Relay, next_post};
use crate::common::plain::{act, done};
use serde_json::{Value, json};

const EVENTS: [&str; 2] = ["alarm", "alarm-ended"];

/// A relay with quick alarms, and one call.
struct Bed {
    relay: Relay,
    events: EventReader,
    posts: Receiver<Value>,
    made: Value,
    phones: [Phone; 2],
}

impl Bed {
    fn start(folder: &std::path::Path) -> Bed {
        let hook = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let url = format!("http://{}/", hook.local_addr().expect("bound"));
        let (tell, posts) = channel();
        std::thread::spawn(move || while tell.send(next_post(&hook)).is_ok() {});
        let relay = start(
            folder,
            &format!(
                "meter = true\n[alarms]\nwebhook = \"{url}\"\n[alarms.no-packets]\nhold = 1\nclear = 1\n\
                 [alarms.silence]\nhold = 2\nclear = 1\n[alarms.loss]\nenabled = false\n"
            ),
        );
        let events = EventReader::start(relay.http);
        let (made, phones) = call(&relay, ["PCMU/8000", "PCMA/8000"]);
        Bed {
            relay,
            events,
            posts,
            made,
            phones,
        }
    }

    fn path(&self) -> &str {
        self.made["path"].as_str().expect("a path")
    }

    /// Lets the parties talk until an event about an alarm comes. Asserts that it is this one, of this party, and that the webhook gets it.
    fn expect(&mut self, event: &str, alarm: &str, side: usize) {
        let mut told = None;
        run(&mut self.phones, |_| {
            told = told
                .take()
                .or_else(|| self.events.take(&EVENTS).into_iter().next());
            told.is_some()
        });
        let (name, data) = told.expect("an event");
        assert_eq!(
            (name.as_str(), &data["alarm"]),
            (event, &json!(alarm)),
            "{data}"
        );
        assert_eq!(
            (&data["id"], &data["path"]),
            (&self.made["id"], &self.made["path"]),
            "{data}"
        );
        assert_eq!(
            (&data["side"], &data["tag"]),
            (&json!(side), &self.made["sides"][side]["tag"])
        );
        let post = self.posts.recv_timeout(LIMIT).expect("a message");
        let state = if event == "alarm" {
            "raised"
        } else {
            "cleared"
        };
        assert_eq!(
            (&post["call"], &post["side"], &post["alarm"], &post["state"]),
            (&self.made["id"], &json!(side), &json!(alarm), &json!(state)),
            "{post}"
        );
    }

    /// Asserts that the HTTP replies show exactly these alarms of each party, of which there is at most one.
    fn assert_shown(&self, alarms: [&[&str]; 2], is_acknowledged: bool) {
        let names: Vec<&str> = alarms.concat();
        let list = self.relay.get_json("/v1/calls");
        assert_eq!(list["calls"][0]["alarms"], json!(names), "{list}");
        let detail = self.relay.get_json(self.path());
        for (side, expected) in alarms.iter().enumerate() {
            let shown = detail["streams"][0]["sides"][side]["alarms"].clone();
            let shown = shown.as_array().expect("a list");
            let shown: Vec<_> = shown
                .iter()
                .map(|one| (&one["alarm"], &one["is_acknowledged"]))
                .collect();
            let expected: Vec<_> = expected
                .iter()
                .map(|name| (json!(name), json!(is_acknowledged)))
                .collect();
            let expected: Vec<_> = expected.iter().map(|(name, known)| (name, known)).collect();
            assert_eq!(shown, expected, "{detail}");
        }
        let raised = self.relay.get_json("/v1/alarms");
        let raised = raised["alarms"].as_array().expect("a list");
        let raised: Vec<_> = raised
            .iter()
            .map(|one| (&one["call"], one["alarm"].as_str()))
            .collect();
        let expected: Vec<_> = names
            .iter()
            .map(|name| (&self.made["id"], Some(*name)))
            .collect();
        assert_eq!(raised, expected);
        let metrics = self.relay.get("/metrics");
        for kind in ["no-packets", "silence", "loss"] {
            let count = names.iter().filter(|name| **name == kind).count();
            let line = format!("threadbare_call_alarms{{alarm=\"{kind}\"}} {count}\n");
            assert!(metrics.text().contains(&line), "{line} is missing");
        }
    }

    fn acknowledge(&self, alarm: &str) -> crate::common::http::Answer {
        let path = format!("{}/alarms/{alarm}/acknowledge", self.path());
        self.relay.request("POST", &path, "", b"")
    }
}

#[test]
fn alarms_of_a_party_are_shown_acknowledged_and_ended() {
    let folder = tempfile::tempdir().expect("a directory");
    let mut bed = Bed::start(folder.path());
    run(&mut bed.phones, |phones| {
        phones.iter().all(|phone| phone.heard_ms() > 1000)
    });
    bed.assert_shown([&[], &[]], false);
    // No packets come from A.
    bed.phones[0].talks = false;
    bed.expect("alarm", "no-packets", 0);
    bed.assert_shown([&["no-packets"], &[]], false);
    bed.acknowledge("silence").problem(404);
    bed.acknowledge("noise").problem(404);
    done(&bed.acknowledge("no-packets"));
    bed.assert_shown([&["no-packets"], &[]], true);
    bed.phones[0].talks = true;
    bed.expect("alarm-ended", "no-packets", 0);
    bed.assert_shown([&[], &[]], false);
    // The packets of B contain silence.
    bed.phones[1].amplitude = 0.0;
    bed.expect("alarm", "silence", 1);
    bed.assert_shown([&[], &["silence"]], false);
    bed.phones[1].amplitude = 1.0;
    bed.expect("alarm-ended", "silence", 1);
    // A is on hold and sends nothing, and neither does B. Only B has an alarm.
    let tag = json!({"tag": bed.made["sides"][0]["tag"]});
    done(&act(&bed.relay, &bed.made, "hold", &tag));
    bed.phones.iter_mut().for_each(|phone| phone.talks = false);
    bed.expect("alarm", "no-packets", 1);
    bed.assert_shown([&[], &["no-packets"]], false);
    // With the call, its alarm ends.
    let path = bed.path().to_owned();
    assert_eq!(bed.relay.request("DELETE", &path, "", b"").status, 204);
    let post = bed.posts.recv_timeout(LIMIT).expect("a message");
    assert_eq!(
        (&post["call"], &post["state"]),
        (&bed.made["id"], &json!("cleared"))
    );
    let raised = bed.relay.get_json("/v1/alarms");
    assert_eq!(raised, json!({"alarms": []}));
}
