mod refused;

use std::net::IpAddr;

use self::refused::{REFUSED, REFUSED_STREAMS, Refused};
use super::*;

const GOOD_STREAM: &str = "\n[[stream]]\nname = \"good\"\nlisten = \"127.0.0.1:5004\"\ndestination = \"127.0.0.1:6004\"\n";

fn assert_refused(text: &str, refused: &Refused) {
    let error = Config::from_toml("gateway.toml", text).expect_err(text);
    let problem = &error.problems[0];
    let shown = format!(
        "{}\n{}",
        problem.message,
        problem.help.as_deref().unwrap_or_default()
    );
    for words in refused.says {
        assert!(
            shown.contains(words),
            "{words:?} is not in {shown:?} of\n{text}"
        );
    }
    assert_eq!(problem.lines(), refused.lines, "{shown} of\n{text}");
    // The rendered message contains the line itself.
    let mut rendered = String::new();
    miette::GraphicalReportHandler::new_themed(miette::GraphicalTheme::none())
        .with_width(200)
        .render_report(&mut rendered, &error)
        .expect("renders");
    for line in refused.lines {
        let line = text.lines().nth(line - 1).expect("a line of the file");
        assert!(
            rendered.contains(line.trim_end()),
            "{line:?} is not in\n{rendered}"
        );
    }
}

#[test]
fn bad_tables_are_refused_with_their_line() {
    for refused in REFUSED {
        assert_refused(&format!("{}{GOOD_STREAM}", refused.text), refused);
    }
}

#[test]
fn bad_streams_are_refused_with_their_line() {
    for refused in REFUSED_STREAMS {
        assert_refused(&format!("[[stream]]\n{}\n", refused.text), refused);
    }
}

#[test]
fn a_file_without_streams_is_refused() {
    let error = Config::from_toml("empty.toml", "[contexts]\nwait = 10\n").expect_err("no streams");
    assert!(error.problems[0].message.contains("neither [[stream]]"));
}

#[test]
fn all_problems_are_found_at_once() {
    let text = format!("[contexts]\nwait = -1\ncount = -1\n[defaults]\ncodec = \"x\"{GOOD_STREAM}");
    let error = Config::from_toml("gateway.toml", &text).expect_err("three mistakes");
    assert_eq!(error.problems.len(), 3);
}

/// If a file has mistakes of all kinds, there is a message about each of them.
#[test]
fn an_unknown_key_does_not_hide_other_mistakes() {
    let text = "[contexts]\nwiat = 20\nwait = \"soon\"\n[restrat]\n\
                [[stream]]\nlisten = 5004\ndestination = \"nowhere\"\ncodec-uot = \"PCMA\"\nloudness-target = -23\n\
                [[stream]]\nname = \"b\"\nlisten = \"x\"\ndestination = \"a:1\"\nlatency = -1\n";
    let error = Config::from_toml("gateway.toml", text).expect_err("many mistakes");
    let mut messages: Vec<_> = error.problems.iter().map(|p| p.message.as_str()).collect();
    messages.sort_unstable();
    // There is no message about `loudness-target`, because the setting would be right if `codec-out` were spelt correctly.
    let expected = [
        "`codec-uot` is not a key of [[stream]]",
        "`destination` cannot be \"nowhere\"",
        "`latency` cannot be -1",
        "`listen` cannot be \"x\"",
        "`listen` cannot be 5004",
        "`restrat` is not a key of this file",
        "`wait` cannot be \"soon\"",
        "`wiat` is not a key of [contexts]",
        "a stream without `name`",
    ];
    assert_eq!(messages, expected);
}

#[test]
fn invalid_toml_does_not_hide_other_mistakes() {
    let text = format!(
        "[contexts]\nwait = = 20\ncount = -1\n[restart]\nfirst = 20 ms\n{GOOD_STREAM}latency = -1\n"
    );
    let error = Config::from_toml("gateway.toml", &text).expect_err("four mistakes");
    let mut lines: Vec<_> = error.problems.iter().flat_map(Problem::lines).collect();
    lines.sort_unstable();
    assert_eq!(lines, [2, 3, 5, 11], "{error:?}");
}

#[test]
fn meter_is_refused_for_streams_without_decoding() {
    let text = format!("[defaults]\nmeter = true{GOOD_STREAM}");
    let error = Config::from_toml("gateway.toml", &text).expect_err("nothing to measure");
    let message = &error.problems[0].message;
    assert!(
        message.starts_with("`meter = true` cannot be combined with these streams"),
        "{message}"
    );
    let other = "[[stream]]\nname = \"b\"\nlisten = \"127.0.0.1:5010\"\ndestination = \"a:1\"\ncodec-out = \"PCMA\"\n";
    Config::from_toml("gateway.toml", &format!("{text}{other}")).expect("one is measured");
}

#[test]
fn the_shortest_configuration_has_the_documented_defaults() {
    let config = Config::from_toml("gateway.toml", GOOD_STREAM).expect("good");
    assert_eq!(
        config.contexts,
        Contexts {
            prefix: "gateway".to_owned(),
            count: 1,
            wait_ms: 20,
            rebalance: true,
        }
    );
    assert_eq!(config.restart, Restart::default());
    let stream = &config.streams[0];
    assert_eq!(stream.codec_in, CodecIn::Auto);
    assert!(stream.is_passthrough());
    assert_eq!(stream.destination.to_string(), "127.0.0.1:6004");
}

/// If a file has one of the tables of calls, absent tables have their defaults. The defaults are those of `threadbare serve` without
/// arguments.
#[test]
fn one_table_is_enough_for_calls() {
    let serving = |text: &str| {
        let config = Config::from_toml("calls.toml", text).expect(text);
        assert_eq!(config.streams, []);
        config.serving.expect("calls")
    };
    assert_eq!(serving("[ng]\n"), Serving::default());
    // The comments in the example say that its values are the defaults.
    let example = include_str!("../../../examples/calls.toml");
    assert_eq!(serving(example), Serving::default());
    let text = "[interfaces.outside]\naddress = \"10.0.0.1\"\nadvertised = \"203.0.113.7\"\nports = \"20000-20100\"\n\
                [interfaces.inside]\naddress = \"10.1.0.1\"\naddress-v6 = \"2001:db8::1\"\n\
                [timeouts]\nfinal-timeout = 0\n";
    let serving = serving(text);
    let told = |at: usize| {
        let one: &InterfaceSpec = &serving.interfaces[at];
        format!(
            "{}/{}!{}:{}",
            one.name, one.address, one.advertised, one.ports
        )
    };
    // Interfaces have the order of the file, because the first interface is the default.
    assert_eq!(told(0), "outside/10.0.0.1!203.0.113.7:20000-20100");
    assert_eq!(told(1), "inside/10.1.0.1!10.1.0.1:30000-40000");
    assert_eq!(told(2), "inside/2001:db8::1!2001:db8::1:30000-40000");
    assert_eq!(serving.timeouts.final_s, 0);
    assert_eq!(serving.timeouts.media_s, 60);
}

/// Returns this machine. The configurations in these tests have no pipeline.
fn this_machine() -> ThisMachine {
    ThisMachine {
        check_pipeline: |text| Err(text.to_owned()),
    }
}

#[test]
fn calls_table_is_refused_for_missing_features() {
    let text =
        "[interfaces.a]\naddress = \"198.51.100.9\"\n[calls]\nrecording-dir = \"not-there\"\n";
    let error = Config::from_toml_for("calls.toml", text, &this_machine()).expect_err("elsewhere");
    let said: Vec<&str> = error
        .problems
        .iter()
        .map(|one| one.message.as_str())
        .collect();
    assert!(
        said[0].contains("\"198.51.100.9\": this machine does not have"),
        "{said:?}"
    );
    assert!(
        said[1].contains("\"not-there\": the folder does not exist"),
        "{said:?}"
    );
}

#[test]
fn streams_of_a_range_have_consecutive_names_ports_and_ssrcs() {
    let text = "
        [contexts]
        prefix = \"t\"
        count = 2
        [defaults]
        codec = \"PCMU\"
        codec-out = \"Opus\"
        ptime = 40
        [[stream]]
        name = \"call\"
        listen = \"[::1]:5000\"
        destination = \"[::1]:7000\"
        count = 3
        step = 10
        destination-step = 0
        ssrc = 4294967295
        [[stream]]
        name = \"single\"
        listen = \"127.0.0.1:5000\"
        destination = \"media.example:7000\"
        codec-out = \"PCMU\"
        ptime = 20
        payload-type = 97
    ";
    let config = Config::from_toml("gateway.toml", text).expect("good");
    let brief = config
        .streams
        .iter()
        .map(|s| {
            format!(
                "{} {} {} {:?} {}",
                s.name,
                s.listen,
                s.destination,
                s.ssrc,
                s.ptime_ms.unwrap_or(0)
            )
        })
        .collect::<Vec<_>>();
    assert_eq!(
        brief,
        [
            "call-0 [::1]:5000 [::1]:7000 Some(4294967295) 40",
            "call-1 [::1]:5010 [::1]:7000 Some(0) 40",
            "call-2 [::1]:5020 [::1]:7000 Some(1) 40",
            "single 127.0.0.1:5000 media.example:7000 None 20",
        ]
    );
    assert_eq!(config.streams[3].payload_type, Some(97));
    assert!(!config.streams[3].is_passthrough());
    assert_eq!(
        [0, 1, 2].map(|n| config.contexts.name_for(n)),
        ["t-0", "t-1", "t-0"]
    );
}

#[test]
fn auto_means_one_context_per_core() {
    let config = Config::from_toml("g", &format!("[contexts]\ncount = \"auto\"{GOOD_STREAM}"))
        .expect("good");
    assert!(config.contexts.count >= 1);
}

#[test]
fn a_stream_may_disable_the_default_loudness_target() {
    let text = "
        [defaults]
        codec = \"PCMU\"
        codec-out = \"PCMA\"
        loudness-target = -23
        meter = false
        [[stream]]
        name = \"a\"
        listen = \"127.0.0.1:5000\"
        destination = \"127.0.0.1:7000\"
        [[stream]]
        name = \"b\"
        listen = \"127.0.0.1:5002\"
        destination = \"127.0.0.1:7002\"
        loudness-target = -16.5
        meter = true
        loudness-reset = [\"00:00\", \"23:59\"]
        [[stream]]
        name = \"c\"
        listen = \"127.0.0.1:5004\"
        destination = \"127.0.0.1:7004\"
        codec-out = \"PCMU\"
        loudness-target = false
    ";
    let config = Config::from_toml("gateway.toml", text).expect("good");
    let loudness = |stream: &StreamSpec| (stream.loudness_target_lufs, stream.meter);
    let all: Vec<_> = config.streams.iter().map(loudness).collect();
    let resets = config.streams.iter().map(|one| one.loudness_resets.len());
    assert_eq!(resets.collect::<Vec<_>>(), [0, 2, 0]);
    assert_eq!(config.streams[1].loudness_resets, [0, 24 * 60 - 1]);
    let expected = [(Some(-23.0), false), (Some(-16.5), true), (None, false)];
    assert_eq!(all, expected);
    let config = Config::from_toml("gateway.toml", GOOD_STREAM).expect("good");
    assert_eq!(loudness(&config.streams[0]), (None, true));
}

const EXAMPLE: &str = include_str!("../../../examples/gateway.toml");

#[test]
fn a_configuration_survives_being_printed_and_read_again() {
    let more = "
        [contexts]
        count = 7
        prefix = \"a \\\"b\\\" \u{e9}\"
        [[stream]]
        name = \"x = 1\"
        listen = \"[::1]:1\"
        destination = \"[::1]:2\"
        codec = \"L16/16000/2\"
        ptime = 10
        payload-type = 127
        ssrc = 4294967295
        adaptive = true
        latency = 200
        drop-on-latency = true
        clock-skew = \"none\"
        rtcp-port = 7001
        destination-rtcp-port = 7003
        cname = \"a@b\"
        dtmf-payload-type = 99
        latch = false
        loudness-target = -24.5
        meter = false
        [[stream]]
        name = \"back\"
        listen = \"[::1]:9\"
        destination = \"latched\"
        rtcp = \"mux\"
        [[stream]]
        name = \"silent\"
        listen = \"[::1]:11\"
        destination = \"[::1]:12\"
        rtcp = false
        latency = 0
        clock-rate = 48000
    ";
    let calls = "
        [ng]
        listen = \"192.0.2.1:2223\"
        tcp = \"192.0.2.1:2224\"
        allow = [\"192.0.2.0/24\", \"2001:db8::1\"]
        [http]
        listen = \"192.0.2.1:80\"
        token-file = \"a b\"
        [interfaces.b]
        address = \"192.0.2.1\"
        advertised = \"203.0.113.7\"
        ports = \"1024-2048\"
        [interfaces.a]
        address-v6 = \"2001:db8::1\"
        [interfaces.d]
        address = \"192.0.2.2\"
        address-v6 = \"2001:db8::2\"
        [limits]
        max-sessions = 7
        lateness-limit = 8
        cpu-limit = 90
        [timeouts]
        timeout = 1
        silent-timeout = 2
        final-timeout = 0
        offer-timeout = 3
        delete-delay = 4
        [calls]
        threads = 5
        latency = 6
        recording-dir = \"/a b\"
        recording-format = \"pcap\"
        state = \"/c d\"
        records = \"/e\"
        fallback = { tone = \"440+480/2000,0/4000\", timeout = 250 }
        media = { deny = [\"10.0.0.0/8\"], allow = [\"10.1.0.0/16\", \"2001:db8::/32\"] }
        xdp = [\"eth0\", \"eth1\"]
        xdp-mode = \"generic\"
        xdp-frames = 4096
    ";
    let alarms = &format!(
        "{GOOD_STREAM}
        [alarms]
        webhook = \"http://127.0.0.1:1/a?b=c\"
        [alarms.loss]
        threshold = 2.5
        hold = 30
        [alarms.no-packets]
        clear = 300
        [alarms.drift]
        enabled = false
        hysteresis = 1
        [history]
        dir = \"/f g\"
    "
    );
    let cluster = "
        [cluster]
        endpoints = [\"https://a.example.net:2379\", \"https://[2001:db8::1]:2379\"]
        node = \"relay-3\"
        weight = 2
        labels = [\"rack-2\", \"site.a\"]
        listen = \"[2001:db8::3]:2400\"
        key-file = \"/cluster.key\"
        calls-on-isolation = \"take\"
        service-addresses = [\"192.0.2.10/24@eth0\", \"2001:db8::10/64@eth0\"]
        service-program = \"/bin/move it\"
        user = \"u\"
        password-file = \"/p w\"
        ca = \"/ca.pem\"
        cert = \"/cert.pem\"
        key = \"/key.pem\"
        on-isolation = \"continue\"
        [[stream]]
        name = \"a\"
        listen = \"239.0.0.1:5000\"
        prefer = [\"rack-2\"]
        avoid = [\"rack-3\"]
        on-isolation = \"stop\"
        [[stream]]
        name = \"b\"
        codec = \"PCMU\"
        record = { to = \"/r/{name}/{time}-x.mka\", tracks = \"mixed\", rotate = \"1h 5MB\", on = \"loss\", before = 9 }
        listen = \"239.0.0.1:5002\"
    ";
    // The `pipeline` in EXAMPLE needs GStreamer.
    let example = if threadbare_process::HAS_GSTREAMER {
        EXAMPLE
    } else {
        GOOD_STREAM
    };
    let example_of_calls = include_str!("../../../examples/calls.toml");
    let mut texts = vec![example, GOOD_STREAM, more, calls, alarms, example_of_calls];
    if cfg!(feature = "cluster") {
        texts.push(cluster);
    }
    for text in texts {
        let config = Config::from_toml("first", text).expect("good");
        let printed = config.to_toml();
        assert_eq!(
            Config::from_toml("second", &printed).expect(&printed),
            config
        );
    }
}

/// The declaration of a stream in etcd must be readable for any node.
#[test]
fn a_stream_that_another_node_declared_is_parsed() {
    for text in [EXAMPLE, GOOD_STREAM]
        .into_iter()
        .skip(usize::from(!threadbare_process::HAS_GSTREAMER))
    {
        let config = Config::from_toml("first", text).expect("good");
        for spec in config.streams {
            let written = spec.to_toml();
            assert_eq!(
                StreamSpec::from_toml(&spec.name, &written),
                Ok(spec.clone())
            );
            StreamSpec::from_toml("another", &written).expect_err("another stream");
        }
    }
    let several = "[[stream]]\nname = \"a\"\nlisten = \"239.0.0.1:5000\"\ncount = 2";
    for odd in [
        "",
        "[",
        several,
        "[ng]\n",
        "[[stream]]\nname = \"a\"\nlater = 1",
    ] {
        StreamSpec::from_toml("a", odd).expect_err(odd);
    }
}

proptest::proptest! {
    /// If parts of a file are cut, pasted and misspelt, the file is either accepted or refused with a message.
    #[test]
    fn any_refused_text_has_a_message(
        cut in 0..EXAMPLE.len(),
        length in 0..200_usize,
        paste in "[\\PC\\n\"=\\[\\]#]{0,20}",
    ) {
        let mut bytes = EXAMPLE.as_bytes().to_vec();
        let end = (cut + length).min(bytes.len());
        bytes.splice(cut..end, paste.bytes());
        let text = String::from_utf8_lossy(&bytes);
        if let Err(error) = Config::from_toml("gateway.toml", &text) {
            let mut rendered = String::new();
            let shown = miette::GraphicalReportHandler::new().render_report(&mut rendered, &error);
            proptest::prop_assert!(shown.is_ok() && rendered.contains("gateway.toml"), "{rendered}");
        }
    }
}

/// A machine that has the addresses 192.0.2.1 and 2001:db8::1, and can resolve two host names.
struct Elsewhere;

impl Machine for Elsewhere {
    fn has_address(&self, ip: IpAddr) -> bool {
        let own = ["192.0.2.1", "2001:db8::1", "0.0.0.0", "::"];
        own.contains(&ip.to_string().as_str())
    }

    fn resolve(&self, host: &str) -> Result<Vec<IpAddr>, String> {
        let ip = |text: &str| text.parse().expect("an address");
        match host {
            "four" => Ok(vec![ip("192.0.2.9")]),
            "six" => Ok(vec![ip("2001:db8::9")]),
            "here" => Ok(vec![ip("192.0.2.1")]),
            "both" => Ok(vec![ip("2001:db8::9"), ip("192.0.2.9")]),
            _ => Err("no such host".to_owned()),
        }
    }

    fn check_pipeline(&self, _text: &str) -> Result<(), String> {
        Ok(())
    }

    fn read_audio(&self, _path: &std::path::Path) -> Result<(), String> {
        Ok(())
    }

    fn read_key(&self, _source: &KeySource) -> Result<(), String> {
        Ok(())
    }

    fn may_write(&self, _: &std::path::Path) -> Result<(), String> {
        Ok(())
    }

    fn has_device(&self, _: &str) -> bool {
        false
    }

    fn has_folder(&self, _path: &std::path::Path) -> bool {
        true
    }
}

#[test]
fn the_check_looks_up_the_machines_addresses_and_host_names() {
    for (listen, destination, says) in [
        ("192.0.2.1:6000", "four:7000", None),
        ("[2001:db8::1]:6000", "six:7000", None),
        ("[::]:6000", "four:7000", None),
        ("239.1.2.3:6000", "four:7000", None),
        (
            "192.0.2.2:6000",
            "four:7000",
            Some("`listen` cannot be \"192.0.2.2:6000\""),
        ),
        ("0.0.0.0:6000", "six:7000", Some("family")),
        ("[2001:db8::1]:6000", "four:7000", Some("family")),
        (
            "0.0.0.0:6000",
            "nobody:7000",
            Some("resolving nobody failed: no such host"),
        ),
        ("192.0.2.1:6000", "here:6000", Some("the stream's own")),
        ("0.0.0.0:6000", "here:6000", Some("the stream's own")),
        ("0.0.0.0:6000", "192.0.2.1:6000", Some("the stream's own")),
        ("0.0.0.0:6000", "192.0.2.2:6000", None),
        // The stream sends to the first address that its socket reaches.
        ("0.0.0.0:6000", "both:7000", None),
        ("[2001:db8::1]:6000", "both:7000", None),
    ] {
        let text = format!(
            "[[stream]]\nname = \"a\"\nlisten = \"{listen}\"\ndestination = \"{destination}\"\n\
             codec = \"PCMU\"\ncodec-out = \"PCMA\"\n"
        );
        let checked = Config::from_toml_for("test", &text, &Elsewhere);
        match (checked, says) {
            (Ok(_), None) => {}
            (Err(error), Some(says)) => {
                let said = format!("{:?}", miette::Report::new(error));
                let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
                assert!(said.contains(says), "{listen} {destination}: {said}");
            }
            (result, _) => panic!("{listen} {destination}: {result:?}"),
        }
        // Without a machine, names are not resolved, because the configuration may run on another machine than this one.
        if says.is_some_and(|says| says.contains("no such host")) {
            assert!(Config::from_toml("test", &text).is_ok());
        }
    }
}

/// Packets that are forwarded unchanged leave from the receiving port, so the address family must match.
#[test]
fn another_address_family_is_refused_if_packets_are_unchanged() {
    let text = "[[stream]]\nname = \"a\"\nlisten = \"0.0.0.0:6000\"\ndestination = \"[2001:db8::7]:7000\"\n";
    for checked in [
        Config::from_toml("test", text),
        Config::from_toml_for("test", text, &Elsewhere),
    ] {
        let said = format!("{:?}", miette::Report::new(checked.expect_err("no way")));
        assert!(said.contains("family"), "{said}");
    }
}

/// A stream may send to another stream, but packets must not go round in a circle.
#[test]
fn a_circle_of_streams_is_refused() {
    let stream = |name: &str, listen: &str, destination: &str| {
        format!(
            "[[stream]]\nname = \"{name}\"\nlisten = \"{listen}\"\ndestination = \"{destination}\"\n"
        )
    };
    let a_to_b = stream("a", "0.0.0.0:6000", "127.0.0.1:6100");
    let chain = a_to_b.clone() + &stream("b", "127.0.0.1:6100", "192.0.2.7:6000");
    assert!(Config::from_toml("test", &chain).is_ok());
    // The machine has the address 192.0.2.1, and 0.0.0.0 means all of its addresses.
    for (back, needs_machine) in [("127.0.0.1:6000", false), ("192.0.2.1:6000", true)] {
        let back = if needs_machine { "here:6000" } else { back };
        let text = a_to_b.clone()
            + &stream("b", "0.0.0.0:6100", "127.0.0.1:6200")
            + &stream("c", "0.0.0.0:6200", back);
        assert_eq!(Config::from_toml("test", &text).is_ok(), needs_machine);
        let refused = Config::from_toml_for("test", &text, &Loopback).expect_err("a circle");
        let said = format!("{:?}", miette::Report::new(refused));
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        for words in ["`destination` cannot be", "circle", "\"a\", \"b\", \"c\""] {
            assert!(said.contains(words), "no {words} in {said}");
        }
    }
}

/// A machine that has every address, and resolves "here" to 192.0.2.1.
struct Loopback;

impl Machine for Loopback {
    fn has_address(&self, _ip: IpAddr) -> bool {
        true
    }

    fn resolve(&self, _host: &str) -> Result<Vec<IpAddr>, String> {
        Ok(vec!["192.0.2.1".parse().expect("an address")])
    }

    fn check_pipeline(&self, _text: &str) -> Result<(), String> {
        Ok(())
    }

    fn read_audio(&self, _path: &std::path::Path) -> Result<(), String> {
        Ok(())
    }

    fn read_key(&self, _source: &KeySource) -> Result<(), String> {
        Ok(())
    }

    fn may_write(&self, _: &std::path::Path) -> Result<(), String> {
        Ok(())
    }

    fn has_device(&self, _: &str) -> bool {
        false
    }

    fn has_folder(&self, _path: &std::path::Path) -> bool {
        true
    }
}
