#!/usr/bin/python3
"""Receives RTP streams of PCMU, measures their levels, and sends each as PCMA, with jitter buffers and RTCP.

    rtp-levels.py --listen 127.0.0.1:20000 --to 127.0.0.1:30000 [--streams 4] [--seconds 10]

Stream N listens on the port 2 N above the first one, with RTCP on the port after it, and is sent to the port 2 N above the
destination's. With port 0 the system chooses the listening ports. The program prints the ports, then once a second the level of
each stream that has media; at the end (or with Ctrl-C) it prints the statistics of each stream.

All streams share one thread: the elements name the same context. A failure of a stream is reported, and does not affect the others.

If the plugin is not installed: GST_PLUGIN_PATH=target/release.
"""

import argparse
import sys

import gi

gi.require_version("Gst", "1.0")
from gi.repository import GLib, Gst  # noqa: E402

PIPELINE = (
    "ts-rtpsrc name=in address={host} port={port} reuse=false session={name} latency=40 context=levels context-wait=20"
    " caps=application/x-rtp,media=audio,payload=0,clock-rate=8000,encoding-name=PCMU"
    # The depayloader turns a lost packet into a gap.
    " ! rtppcmudepay ! mulawdec ! level interval=1000000000 ! alawenc ! rtppcmapay"
    " ! ts-rtpsink name=out session={name} host={to_host} port={to_port}"
)


def address(text):
    """HOST:PORT as a pair."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text}: expected HOST:PORT with a port from 0 to 65535")
    return host, int(port)


class Stream:
    """One stream in a separate pipeline, so that its errors do not affect the others."""

    def __init__(self, number, listen, to, clock):
        self.name = f"stream-{number}"
        self.pipeline = Gst.parse_launch(
            PIPELINE.format(
                name=self.name,
                host=listen[0],
                port=listen[1] and listen[1] + 2 * number,
                to_host=to[0],
                to_port=to[1] + 2 * number,
            )
        )
        self.pipeline.use_clock(clock)
        self.source = self.pipeline.get_by_name("in")
        bus = self.pipeline.get_bus()
        bus.add_signal_watch()
        bus.connect("message::element", self.on_element)
        bus.connect("message::error", self.on_error)

    def start(self):
        if self.pipeline.set_state(Gst.State.PAUSED) == Gst.StateChangeReturn.FAILURE:
            sys.exit(f"{self.name} does not start: is its port free?")
        print(f"{self.name} listens on port {self.source.get_property('used-port')}", flush=True)
        self.pipeline.set_state(Gst.State.PLAYING)

    def on_element(self, _bus, message):
        structure = message.get_structure()
        if structure.get_name() == "level":
            print(f"{self.name}: {structure.get_value('rms')[0]:.1f} dBFS", flush=True)

    def on_error(self, _bus, message):
        error, _detail = message.parse_error()
        print(f"{self.name} failed: {error.message}", file=sys.stderr)
        self.pipeline.set_state(Gst.State.NULL)

    def summary(self):
        stats = self.source.get_property("stats")
        rtcp = stats.get_value("rtcp")
        counts = ", ".join(f"{stats.get_value(f'num-{what}')} {what}" for what in ("pushed", "lost", "late"))
        return f"{self.name}: {counts}, {rtcp.get_value('rtcp-sent')} RTCP packets sent"

    def stop(self):
        self.pipeline.set_state(Gst.State.NULL)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--listen", type=address, required=True, metavar="HOST:PORT")
    parser.add_argument("--to", type=address, required=True, metavar="HOST:PORT")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=0, help="0: until Ctrl-C")
    options = parser.parse_args()

    Gst.init(None)
    clock = Gst.SystemClock.obtain()
    streams = [Stream(number, options.listen, options.to, clock) for number in range(options.streams)]
    for stream in streams:
        stream.start()
    loop = GLib.MainLoop()
    if options.seconds > 0:
        GLib.timeout_add(int(options.seconds * 1000), loop.quit)
    GLib.unix_signal_add(GLib.PRIORITY_DEFAULT, 2, loop.quit)
    loop.run()
    for stream in streams:
        print(stream.summary())
        stream.stop()


if __name__ == "__main__":
    main()
