//! CDRs: one line of JSON for each ended call.

use std::path::Path;

use crate::common::phones::{Party, Relay, hear_each_other};
use crate::common::{rtp, wait_until};
use serde_json::{Value, json};

const PCMU: &str = "m=audio PORT RTP/AVP 0";

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let whole = text
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'));
    whole
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

fn unix_ms() -> u64 {
    let now = std::time::SystemTime::now();
    let since = now
        .duration_since(std::time::UNIX_EPOCH)
        .expect("after 1970");
    since.as_millis() as u64
}

#[test]
fn ended_call_leaves_a_cdr() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("calls.jsonl");
    let begin_ms = unix_ms();
    let mut relay = Relay::start(&["--records", path.to_str().expect("a text")]);
    let (mut a, mut b) = (Party::new(0, 437.0), Party::new(8, 1013.0));
    let flags = json!({"flags": ["codec-transcode-PCMA"]});
    let to_b = relay.pass("offer", "1", &flags, &a.sdp(PCMU));
    let to_a = relay.pass("answer", "1", &json!({}), &b.sdp("m=audio PORT RTP/AVP 8"));
    a.call(&to_a);
    b.call(&to_b);
    hear_each_other(&mut a, &mut b);
    // An unknown sender sends, but is not heard.
    let stranger = crate::common::socket();
    for number in 0..5 {
        stranger
            .send_to(&rtp(0, number, &[0xff; 160]), a.to.expect("called"))
            .expect("sent");
    }
    hear_each_other(&mut a, &mut b);
    let reply = relay.ask(json!({"command": "delete", "call-id": "1", "from-tag": "a"}));
    let counted = &reply["totals"]["RTP"]["packets"];
    wait_until(|| !lines(&path).is_empty());
    // A second call is never answered.
    relay.pass("offer", "\"2\"\n", &json!({}), &a.sdp(PCMU));
    relay.ask(json!({"command": "delete", "call-id": "\"2\"\n", "from-tag": "a"}));
    wait_until(|| lines(&path).len() == 2);
    let [first, second] = &lines(&path)[..] else {
        panic!("two lines");
    };
    assert_eq!([&first["id"], &first["end_reason"]], ["1", "deleted"]);
    let time = |key: &str| first[key].as_u64().expect(key);
    let times = [
        begin_ms,
        time("created_unix_ms"),
        time("answered_unix_ms"),
        time("ended_unix_ms"),
        unix_ms(),
    ];
    // Times may differ slightly, because the two clocks (wall and monotonic) are read one after the other.
    assert!(
        times.windows(2).all(|pair| pair[0] <= pair[1] + 1),
        "{times:?}"
    );
    assert!(time("duration_ms") >= 2000);
    let stream = &first["streams"][0];
    assert_eq!(stream["media"], "audio");
    let [side_a, side_b] = [&stream["sides"][0], &stream["sides"][1]];
    assert_eq!([&side_a["tag"], &side_b["tag"]], ["a", "b"]);
    assert_eq!(
        [&side_a["codec"], &side_b["codec"]],
        ["PCMU/8000", "PCMA/8000"]
    );
    let own = a.socket.local_addr().expect("bound").to_string();
    assert_eq!(
        [
            &side_a["signalled_address"],
            &side_a["media"]["remote_address"]
        ],
        [&json!(own); 2]
    );
    let received = |side: &Value| side["media"]["packets_received"].as_u64().expect("packets");
    assert_eq!(json!(received(side_a) + received(side_b)), *counted);
    assert_eq!(side_a["media"]["datagrams_refused"], 5);
    assert_eq!(side_a["media"]["packets_lost"], 0);
    assert_eq!(side_a["media"]["ssrc"], 437);
    assert_eq!(
        [&second["id"], &second["end_reason"]],
        ["\"2\"\n", "deleted"]
    );
    assert!(second.get("answered_unix_ms").is_none(), "{second}");
}

/// Calls that end with the process have CDRs too, with the last statistics of their streams.
#[test]
fn calls_that_end_with_the_process_leave_cdrs() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("calls.jsonl");
    let mut relay = Relay::start(&["--records", path.to_str().expect("a text")]);
    let (mut a, mut b) = (Party::new(0, 437.0), Party::new(0, 1013.0));
    a.call(&relay.pass("offer", "1", &json!({}), &b.sdp(PCMU)));
    b.call(&relay.pass("answer", "1", &json!({}), &a.sdp(PCMU)));
    hear_each_other(&mut a, &mut b);
    relay.stop(nix::sys::signal::Signal::SIGTERM);
    let lines = lines(&path);
    assert_eq!(lines.len(), 1);
    assert_eq!(lines[0]["end_reason"], "operator");
    let media = &lines[0]["streams"][0]["sides"][0]["media"];
    assert!(
        media["packets_received"]
            .as_u64()
            .is_some_and(|packets| packets >= 50),
        "{media}"
    );
}

/// The test moves the file away and sends a signal to the process, as logrotate does.
#[test]
fn moved_cdr_file_is_created_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let [path, moved, config] =
        ["calls.jsonl", "calls.jsonl.1", "calls.toml"].map(|name| folder.path().join(name));
    let text = format!(
        "[ng]\nlisten = \"127.0.0.1:0\"\n[interfaces.default]\naddress = \"127.0.0.1\"\nports = \"20000-59999\"\n\
         [timeouts]\ndelete-delay = 0\n[calls]\nrecords = {path:?}\n"
    );
    std::fs::write(&config, text).expect("written");
    let mut command = crate::common::threadbare();
    command.arg("serve").arg(&config);
    let mut running = crate::common::Running::spawn(command);
    let ng = running.wait_for("serving")["ng"]
        .as_str()
        .expect("an address")
        .to_owned();
    let proxy = crate::common::socket();
    let mut asked = 0;
    let mut call = |name: &str| {
        let party = Party::new(0, 437.0);
        let sdp = party.sdp(PCMU);
        for command in ["offer", "delete"] {
            asked += 1;
            let request = json!({"command": command, "call-id": name, "from-tag": "a", "sdp": sdp});
            proxy
                .send_to(format!("{asked} {request}").as_bytes(), &ng)
                .expect("sent");
            proxy.recv(&mut [0; 4096]).expect("a reply");
        }
    };
    call("before");
    wait_until(|| lines(&path).len() == 1);
    std::fs::rename(&path, &moved).expect("moved");
    running.signal(nix::sys::signal::Signal::SIGHUP);
    running.wait_for("reloaded");
    wait_until(|| path.exists());
    call("after");
    wait_until(|| lines(&path).len() == 1);
    assert_eq!(lines(&moved).len(), 1);
    assert_eq!(lines(&path)[0]["id"], "after");
}
