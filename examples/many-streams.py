#!/usr/bin/python3
"""Hundreds of live streams in one Python process, on one thread.

Each stream is a pair of pipelines: ts-appsrc ! ts-queue ! ts-udpsink, which sends this program's packets, and
ts-udpsrc ! ts-queue ! fakesink, which receives them. All of them run on the context "many". At the end it prints
the number of packets and threads. It fails if a packet is missing or a stream has its own thread.

    many-streams.py [--streams 500] [--seconds 5]

If the plugin is not installed: GST_PLUGIN_PATH=target/release.
"""

import argparse
import os
import sys
import time

import gi

gi.require_version("Gst", "1.0")
# Without this import, the sockets have no methods.
from gi.repository import Gio, Gst  # noqa: E402, F401

INTERVAL_SECONDS = 0.02
PAYLOAD = bytes([0xFF]) * 160
DRAIN_SECONDS_MAX = 60

SENDER = (
    "ts-appsrc name=in context=many context-wait=20 do-timestamp=true caps=application/x-test"
    " ! ts-queue ! ts-udpsink clients=127.0.0.1:{port} sync=false async=false"
)
RECEIVER = (
    "ts-udpsrc name=in address=127.0.0.1 port=0 context=many context-wait=20 caps=application/x-test"
    " ! ts-queue name=queue ! fakesink sync=false async=false"
)


class Stream:
    """A sending and a receiving pipeline."""

    def __init__(self, clock):
        # In PAUSED the source has a socket, whose port the system has chosen.
        self.receiver = self.launch(RECEIVER, clock, Gst.State.PAUSED)
        source = self.receiver.get_by_name("in")
        port = source.get_property("used-socket").get_local_address().get_port()
        self.sender = self.launch(SENDER.format(port=port), clock, Gst.State.PAUSED)
        self.source = self.sender.get_by_name("in")
        self.queue = self.receiver.get_by_name("queue")

    @staticmethod
    def launch(line, clock, state):
        pipeline = Gst.parse_launch(line)
        pipeline.use_clock(clock)
        if pipeline.set_state(state) == Gst.StateChangeReturn.FAILURE:
            raise RuntimeError(f"does not start: {line}")
        return pipeline

    def play(self):
        for pipeline in (self.receiver, self.sender):
            pipeline.set_state(Gst.State.PLAYING)

    def push(self, buffer):
        """Sends a packet. Returns False while the stream's queue is full."""
        return self.source.emit("push-buffer", buffer)

    def received(self):
        return self.queue.get_property("stats").get_value("buffers-passed")

    def error(self):
        """The error of the pipelines, if there is one."""
        for pipeline in (self.receiver, self.sender):
            message = pipeline.get_bus().pop_filtered(Gst.MessageType.ERROR)
            if message:
                return message.parse_error()[0].message
        return None

    def stop(self):
        for pipeline in (self.sender, self.receiver):
            pipeline.set_state(Gst.State.NULL)


def thread_count():
    return len(os.listdir("/proc/self/task"))


def feed(streams, seconds):
    """Sends a packet to every stream every 20 ms. Returns how many packets the streams accepted."""
    sent = 0
    begin = time.monotonic()
    for slice_number in range(1, max(1, round(seconds / INTERVAL_SECONDS)) + 1):
        buffer = Gst.Buffer.new_wrapped(PAYLOAD)
        sent += sum(stream.push(buffer) for stream in streams)
        time.sleep(max(0, begin + slice_number * INTERVAL_SECONDS - time.monotonic()))
    return sent


def total(streams):
    return sum(stream.received() for stream in streams)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=5)
    options = parser.parse_args()

    Gst.init(None)
    clock = Gst.SystemClock.obtain()
    first = Stream(clock)
    first.play()
    threads_of_one = thread_count()
    streams = [first] + [Stream(clock) for _ in range(options.streams - 1)]
    for stream in streams:
        stream.play()

    begin = time.monotonic()
    sent = feed(streams, options.seconds)
    threads = thread_count()
    end = time.monotonic() + DRAIN_SECONDS_MAX
    while total(streams) < sent and time.monotonic() < end:
        time.sleep(INTERVAL_SECONDS)
    received = total(streams)
    rate = received / (time.monotonic() - begin)
    errors = [error for error in (stream.error() for stream in streams) if error]
    for stream in streams:
        stream.stop()

    print(f"{len(streams)} streams: {sent} packets sent, {received} received, {rate:.0f} a second")
    print(f"{threads} threads; with one stream there were {threads_of_one}")
    for error in errors:
        print(f"error: {error}", file=sys.stderr)
    if errors or sent == 0 or received != sent or threads != threads_of_one:
        sys.exit("failed: expected all packets, no errors and no extra threads")


if __name__ == "__main__":
    main()
