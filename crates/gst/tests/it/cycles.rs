//! Creates, plays, feeds, stops and destroys elements three hundred times each: nothing may leak or grow. This test is alone in
//! its process, because it counts descriptors, threads and objects.

use crate::common::*;
use gst::prelude::*;

fn count(folder: &str) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

/// Resident memory of this process, KiB, without the pages of files, which the kernel drops and reads again on a busy machine.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:"));
    let kib = line.unwrap().split_whitespace().nth(1).unwrap();
    kib.parse().unwrap()
}

/// Maximum growth over 200 rounds. A leak of ten KiB per round, which is less than one buffer pool, would be seen.
const GROWN_KIB_MAX: u64 = 4096;

fn round(receiver: &std::net::UdpSocket, i: u32) {
    let name = format!("cycle{}", i % 3);
    let wait = [0, 5][i as usize % 2];
    let pipe = Pipe::parse(&format!(
        "ts-udpsrc name=src address=127.0.0.1 port=0 caps=application/x-test context={name} context-wait={wait} ! ts-queue context={name}-q ! tee name=t t. ! ts-queue ! ts-udpsink clients={},[::1]:9 t. ! ts-queue ! fakesink async=false",
        receiver.local_addr().unwrap()
    ));
    pipe.play();
    socket()
        .send_to(&packet(i), target(&pipe.get("src")))
        .unwrap();
    // The RTCP of an earlier round's session goes to the port after that session's port, which may be this one.
    while received(receiver) != packet(i) {}
    // Some rounds stop the elements in the middle of their work.
    if i.is_multiple_of(4) {
        pipe.0.send_event(gst::event::Eos::new());
    }
    if i.is_multiple_of(5) {
        let sender = socket();
        for _ in 0..20 {
            sender
                .send_to(&packet(0), target(&pipe.get("src")))
                .unwrap();
        }
        pipe.to(gst::State::Null);
        receiver.set_nonblocking(true).unwrap();
        while receiver.recv_from(&mut [0; 10]).is_ok() {}
        receiver.set_nonblocking(false).unwrap();
    }
}

/// Returns a packet of G.711.
fn rtp(ssrc: u32, number: u16) -> Vec<u8> {
    let mut packet = vec![0x80, 0];
    packet.extend(number.to_be_bytes());
    packet.extend((u32::from(number) * 160).to_be_bytes());
    packet.extend(ssrc.to_be_bytes());
    packet.extend([0xff; 160]);
    packet
}

/// A session on its own ports, and one on a shared port, which answer.
fn rtp_round(i: u32) {
    let name = format!("cycle{}", i % 3);
    let filter = ["", "ssrc=7", "from"][i as usize % 3];
    let peer = socket();
    let filter = match filter {
        "from" => format!("from={}", peer.local_addr().unwrap()),
        filter => filter.into(),
    };
    let mux = i.is_multiple_of(2);
    let pipe = Pipe::parse(&format!(
        "ts-rtpsrc name=src address=127.0.0.1 port=0 latency=0 rtcp-mux={mux} {filter} context={name} session=s{i} \
         ! ts-rtpg711 encoding-name=PCMA ptime={} ! ts-rtpsink session=s{i}",
        [0, 30][i as usize % 2]
    ));
    pipe.play();
    let port = pipe.get("src").property::<i32>("used-port") as u16;
    for number in [0, 1, 2, 4, 5, 6] {
        peer.send_to(&rtp(7, number), ("127.0.0.1", port)).unwrap();
    }
    assert_eq!(received(&peer)[1] & 0x7f, 8);
    if i.is_multiple_of(4) {
        pipe.to(gst::State::Paused);
        pipe.play();
    }
}

/// RTP through each of the elements that split it; its last packet leaves both streams.
fn parts_round(i: u32) {
    let name = format!("rtp{}", i % 3);
    let pipe = Pipe::parse(&format!(
        "ts-udpsrc name=src address=127.0.0.1 port=0 caps=application/x-rtp,clock-rate=8000 context={name} \
         ! ts-rtpdemux name=demux probation=1 contexts={name},{name}-o idle-timeout=60000 \
         ts-rtcpmanager name=rtcp context={name} \
         demux.src_1 ! ts-rtpjitterbuffer latency=0 ! rtcp.recv_rtp_sink_0 \
         rtcp.recv_rtp_src_0 ! fakesink name=one async=false sync=false \
         rtcp.send_rtcp_src_0 ! fakesink async=false sync=false \
         demux.src_2 ! ts-rtpjitterbuffer latency=0 context={name} ! fakesink name=two async=false sync=false"
    ));
    let ends = ["one", "two"].map(|sink| watch(&pipe.pad(sink, "sink")));
    pipe.play();
    // Send everything from one address, because the session would treat a source at another address as a stranger.
    let sender = socket();
    for seq in 0..4u8 {
        for ssrc in [1, 2] {
            let packet = [0x80, 0, 0, seq, 0, 0, seq, 0, 0, 0, 0, ssrc, 0x55];
            sender.send_to(&packet, target(&pipe.get("src"))).unwrap();
        }
    }
    for seen in &ends {
        while bytes(&next_buffer(seen))[3] != 3 {}
    }
    if i.is_multiple_of(4) {
        pipe.0.send_event(gst::event::Eos::new());
    }
}

/// Tones, telephone events, and the elements in between.
fn tones_round(i: u32) {
    let name = format!("tones{}", i % 3);
    let pipe = Pipe::parse(&format!(
        "ts-input-selector name=s sync-streams={} ! ts-clocksync ! ts-blocking-adapter ! fakesink name=out async=false sync=false \
         ts-tonesrc freq=440 samples-per-buffer=8 context={name} ! s.sink_0 \
         ts-audiotestsrc samples-per-buffer=8 context={name}-o ! audio/x-raw,rate=8000 ! s.sink_1 \
         ts-rtpdtmfsrc name=keys context={name} ! ts-blocking-adapter ! fakesink name=events async=false sync=false",
        i.is_multiple_of(2)
    ));
    let heard = watch(&pipe.pad("out", "sink"));
    let events = watch(&pipe.pad("events", "sink"));
    pipe.play();
    let key = gst::Structure::builder("dtmf-event")
        .field("type", 1i32)
        .field("number", 1i32)
        .field("volume", 10i32)
        .field("start", true);
    let key = gst::event::CustomUpstream::new(key.build());
    assert!(pipe.get("keys").send_event(key));
    next_buffer(&heard);
    let selector = pipe.get("s");
    selector.set_property("active-pad", selector.static_pad("sink_1").unwrap());
    next_buffer(&heard);
    next_buffer(&events);
}

/// Two streams start and stop together, from separate threads or from one context. Files are written, split and read, with both
/// backends of the disk service, and stopped in the middle.
fn files_round(i: u32) {
    let folder = std::env::temp_dir().join(format!("threadbare-cycles-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mode = ["auto", "threads"][i as usize % 2];
    let (name, path) = (format!("files{}", i % 3), folder.join("a"));
    std::fs::write(&path, [1; 10_000]).unwrap();
    let source = format!(
        "ts-audiotestsrc is-live=false samples-per-buffer=800 context={name} ! audio/x-raw,rate=8000,channels=1"
    );
    let folder = folder.display();
    let pipes = [
        format!("{source} ! ts-filesink name=x async=false io-mode={mode} location={folder}/b"),
        format!(
            "{source} ! ts-splitfilesink name=x async=false io-mode={mode} max-size-bytes=100000 max-files=2 location={folder}/c%d"
        ),
        format!(
            "ts-filesrc blocksize=100 location={folder}/a io-mode={mode} context={name} ! fakesink name=x async=false"
        ),
    ]
    .map(|line| Pipe::parse(&line));
    for pipe in &pipes {
        pipe.play();
        eventually("it is at work", || stat(&pipe.get("x"), "rendered") > 5);
    }
}

fn record_round(i: u32) {
    let source = match i % 2 {
        0 => format!(
            "ts-audiotestsrc samples-per-buffer=8 context=record{}",
            i % 3
        ),
        _ => "audiotestsrc is-live=true samplesperbuffer=8".to_owned(),
    };
    let source = format!("{source} ! audio/x-raw,rate=8000,channels=1");
    let pipe = Pipe::parse(&format!(
        "togglerecord name=r {source} ! r.sink {source} ! r.sink_0 \
         r.src ! fakesink name=main async=false sync=false r.src_0 ! fakesink name=other async=false sync=false"
    ));
    let streams = ["main", "other"].map(|name| watch(&pipe.pad(name, "sink")));
    pipe.play();
    let element = pipe.get("r");
    element.set_property("record", true);
    streams.iter().for_each(|seen| drop(next_buffer(seen)));
    // Some rounds stop while the streams wait for each other.
    if i.is_multiple_of(3) {
        element.set_property("record", false);
        let other = pipe.pad("r", "sink_0");
        element.release_request_pad(&other);
    }
}

/// Switches to a fallback and back, with separate threads or with sources on one context.
fn fallback_round(i: u32) {
    let name = format!("fallback{}", i % 3);
    let source = [
        "ts-audiotestsrc samples-per-buffer=8",
        "audiotestsrc is-live=true samplesperbuffer=8",
    ];
    let source = match i % 2 {
        0 => format!("{} context={name}", source[0]),
        _ => source[1].to_owned(),
    };
    let pipe = Pipe::parse(&format!(
        "fallbackswitch name=s context={name} ! fakesink name=out async=false sync=false \
         {source} ! audio/x-raw,rate=8000,channels=1 ! s.sink_0 {source} ! audio/x-raw,rate=8000,channels=1 ! s.sink_1 \
         audiotestsrc is-live=true ! audio/x-raw,rate=8000,channels=1 ! s.sink_2"
    ));
    let heard = watch(&pipe.pad("out", "sink"));
    pipe.play();
    next_buffer(&heard);
    let switch = pipe.get("s");
    let main = pipe.pad("s", "sink_0");
    main.peer().unwrap().unlink(&main).unwrap();
    if i.is_multiple_of(3) {
        switch.release_request_pad(&main);
    }
    eventually("another input passes", || {
        switch.property::<Option<gst::Pad>>("active-pad") != Some(main.clone())
    });
    while heard.try_recv().is_ok() {}
    next_buffer(&heard);
}

/// A source that fails and is replaced by silence, on a context or on separate threads.
fn fallback_source_round(i: u32) {
    let context = match i % 3 {
        0 => String::new(),
        one_of_two => format!("context=source{one_of_two}"),
    };
    let pipe = Pipe::parse(&format!(
        "fallbacksrc name=s uri=file:///no-such-file {context} enable-video=false retry-delay=10000000 \
         ! queue ! fakesink name=out async=false sync=false"
    ));
    let heard = watch(&pipe.pad("out", "sink"));
    pipe.0.set_state(gst::State::Playing).unwrap();
    next_buffer(&heard);
}

/// From a program through a proxy and TCP to two listeners and back into the program.
fn hub_round(i: u32) {
    let name = format!("hub{}", i % 3);
    let server = Pipe::parse(&format!(
        "ts-appsrc name=in context={name} ! ts-proxysink proxy-context=p{i} \
         ts-proxysrc proxy-context=p{i} context={name}-o ! ts-tcpserversink name=server port=0 context={name}"
    ));
    server.play();
    let port: i32 = server.get("server").property("current-port");
    let client = Pipe::parse(&format!(
        "ts-tcpclientsrc port={port} context={name} ! ts-intersink inter-context=i{i} \
         ts-intersrc inter-context=i{i} context={name} ! ts-appsink name=one async=false sync=false \
         ts-intersrc inter-context=i{i} context={name}-o ! ts-appsink name=two async=false sync=false"
    ));
    client.play();
    eventually("the client has called", || {
        stat(&server.get("server"), "clients") == 1
    });
    let source = server.get("in");
    assert!(source.emit_by_name::<bool>("push-buffer", &[&numbered(i)]));
    for sink in ["one", "two"] {
        let sink = client.get(sink);
        let sample = within("a sample", move || {
            sink.emit_by_name::<Option<gst::Sample>>("pull-sample", &[])
        });
        assert_eq!(number(sample.unwrap().buffer().unwrap()), i);
    }
    match i % 3 {
        0 => assert!(source.emit_by_name::<bool>("end-of-stream", &[])),
        // Either end stops first.
        1 => server.to(gst::State::Null),
        _ => {}
    }
}

/// Audio that is measured on a context's thread, in both layouts, with and without messages. A source that is not live is stopped
/// by its end: data produced without a consumer would count as a leak.
fn loudness_round(i: u32) {
    let name = format!("loud{}", i % 3);
    let layout = ["interleaved", "non-interleaved"][i as usize % 2];
    let pipe = Pipe::parse(&format!(
        "ts-audiotestsrc is-live=false num-buffers=60 samples-per-buffer=800 context={name} ! audio/x-raw,rate=8000,channels=2 \
         ! audioconvert ! audio/x-raw,layout={layout} \
         ! ebur128level name=level interval=10000000 post-messages={} ! audioloudnorm name=norm post-messages={} interval=10000000 \
         ! fakesink name=out async=false sync=false",
        i.is_multiple_of(3),
        i.is_multiple_of(2)
    ));
    let heard = watch(&pipe.pad("out", "sink"));
    pipe.play();
    next_buffer(&heard);
    pipe.get("level").emit_by_name::<()>("reset", &[]);
    pipe.get("level").set_property_from_str("mode", "true-peak");
    next_buffer(&heard);
}

fn rounds(receiver: &std::net::UdpSocket, i: u32) {
    round(receiver, i);
    rtp_round(i);
    parts_round(i);
    tones_round(i);
    fallback_round(i);
    record_round(i);
    if i.is_multiple_of(4) {
        files_round(i / 4);
    }
    fallback_source_round(i);
    hub_round(i);
    loudness_round(i);
}

/// `THREADBARE_CYCLES` sets the number of rounds; the default is 300.
#[test]
fn three_hundred_pipelines_leave_no_resources() {
    // With several arenas, glibc keeps some MiB more or less, as threads start and end.
    if std::env::var_os("MALLOC_ARENA_MAX").is_none() {
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        let again = again.args(std::env::args_os().skip(1));
        let status = again.env("MALLOC_ARENA_MAX", "1").status().unwrap();
        assert!(status.success(), "{status}");
        return;
    }
    let cycles = std::env::var("THREADBARE_CYCLES");
    let cycles: u32 = cycles.map_or(300, |text| text.parse().expect("a number of cycles"));
    init();
    // The method of GST_TRACERS=leaks, for this process alone.
    let factory = gst::TracerFactory::factories()
        .into_iter()
        .find(|f| f.name() == "leaks");
    let factory = factory.expect("the leaks tracer of GStreamer's core elements");
    let factory = factory
        .load()
        .unwrap()
        .downcast::<gst::TracerFactory>()
        .unwrap();
    let receiver = socket();
    // The first rounds create pools, caches and worker threads of GLib.
    for i in 0..10 {
        rounds(&receiver, i);
    }
    let tracer = gst::glib::Object::with_type(factory.tracer_type())
        .downcast::<gst::Tracer>()
        .unwrap();
    let (fds, threads) = (count("/proc/self/fd"), count("/proc/self/task"));
    let mut resident_kib = 0;
    for i in 10..10 + cycles {
        rounds(&receiver, i);
        // The allocator has created its arenas by now.
        if i == 110 {
            resident_kib = resident();
        }
    }
    let grown_kib = resident().saturating_sub(resident_kib);
    assert!(grown_kib < GROWN_KIB_MAX, "{grown_kib} KiB more");
    eventually("descriptors and threads are given back", || {
        count("/proc/self/fd") <= fds && count("/proc/self/task") <= threads
    });
    let folder = format!("threadbare-cycles-{}", std::process::id());
    std::fs::remove_dir_all(std::env::temp_dir().join(folder)).unwrap();
    assert!(threadbare_runtime::contexts().is_empty());
    let live = tracer.emit_by_name::<gst::Structure>("get-live-objects", &[]);
    let list = live.get::<gst::List>("live-objects-list").unwrap();
    let left: Vec<String> = list.iter().map(|object| format!("{object:?}")).collect();
    assert!(
        left.is_empty(),
        "{} objects are left: {:#?}",
        left.len(),
        &left[..left.len().min(10)]
    );
}
