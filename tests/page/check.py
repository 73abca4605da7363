"""Checks 1000 streams in a browser: each has a tile, values change and agree with /v1/streams and /metrics, and streams with
faults move to the top. Prints frame rates and CPU loads, but does not check them."""

import json
import math
import os
import re
import socket
import threading
import time

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

import calls
import nodes
import smooth
import zoom
from common import URL, answers, get, mu_law, picture, run, until

WHOLE = 1000
STREAMS = int(os.environ.get("STREAMS", WHOLE))
PORT = 20000
# The number of packets a second that Python can send.
PACKET_MS = 60 * STREAMS // WHOLE
SAMPLES = 8 * PACKET_MS
SILENT, LOSSY = 123, 777


def tone(peak):
    """Whole periods of 1000 Hz."""
    wave = [peak * math.sin(2 * math.pi * n / 8) for n in range(SAMPLES)]
    return bytes(mu_law(round(sample)) for sample in wave)


class Sender(threading.Thread):
    """Sends every stream, some louder than others."""

    def __init__(self):
        super().__init__(daemon=True)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.tones = [tone(2000 * (1 + n % 8)) for n in range(16)]
        self.silent, self.lossy = set(), set()

    def port(self):
        return self.socket.getsockname()[1]

    def run(self):
        seq, begun = 0, time.monotonic()
        while True:
            for n in range(STREAMS):
                if n in self.silent or n in self.lossy and seq % 5 == 0:
                    continue
                header = bytes([0x80, 0]) + (seq & 0xFFFF).to_bytes(2, "big") + (seq * SAMPLES & 0xFFFFFFFF).to_bytes(4, "big") + (n + 1).to_bytes(4, "big")
                self.socket.sendto(header + self.tones[n % 16], ("127.0.0.1", PORT + 2 * n))
            seq += 1
            time.sleep(max(0, begun + seq * PACKET_MS / 1000 - time.monotonic()))


def browser():
    options = webdriver.ChromeOptions()
    for option in ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--window-size=1600,1000", "--force-color-profile=srgb"]:
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options)


def main():
    until("the gateway", answers)
    sender = Sender()
    sender.start()
    page = browser()
    try:
        if STREAMS == WHOLE:
            check(page, sender)
        else:
            look(page)
    finally:
        page.quit()


def tile(page, n):
    """The wall's readings of a stream: state, momentary loudness, true peak, short-term loudness, loss."""
    return run(page, "const t = threadbare.wall.tiles; return t && ['state', 'momentary', 'peak', 'short', 'loss'].map((one) => t[one][arguments[0]])", n)


def first(page):
    return run(page, "return threadbare.wall.cells.find((cell) => cell.n !== undefined)?.n")


def differing(page):
    """Streams whose short-term loudness differs between the page, the API, the metrics, and the definition."""
    streams = {one["name"]: one for one in json.loads(get("/v1/streams"))["streams"]}
    assert len(streams) == STREAMS
    metrics = get("/metrics")
    differ = []
    for n in range(0, STREAMS, 97):
        name = run(page, "return threadbare.wall.streams[arguments[0]].name", n)
        metric = re.search(rf'^threadbare_stream_short_term_lufs{{stream="{name}"}} (\S+)', metrics, re.M)
        told = streams[name].get("loudness", {}).get("short_term_lufs")
        values = [tile(page, n)[3] / 10, told, metric and float(metric[1])]
        # ITU-R BS.1770-4, annex 1: 1 kHz of full scale in one channel has -3.01 LUFS.
        due = 20 * math.log10(2000 * (1 + n % 16 % 8) / 32768) - 3.01
        if any(value is None or abs(value - due) > 0.3 for value in values):
            differ.append((name, values, due))
    return differ


def listens(page, panel, body):
    """The key and the button; the sent tone is played."""
    button = panel.find_element(By.ID, "listen")
    is_on = lambda: run(page, "return threadbare.panel.player.isOn")
    time_played = lambda: run(page, "return threadbare.panel.player.context?.currentTime ?? 0")
    button.click()
    until("it plays", lambda: time_played() > 1 and button.text == "Listening")
    since = time_played()
    # Losses are concealed, but not louder.
    due = 2000 * (1 + LOSSY % 16 % 8) / 32768
    until("the level of the tone", lambda: abs(run(page, "return threadbare.panel.player.peak()") - due) < 0.1 * due)
    until("it goes on", lambda: time_played() > since + 1)
    assert run(page, "return threadbare.panel.player.context.sampleRate") == 8000
    button.click()
    assert not is_on() and button.text == "Listen"
    # With a key; it stops when the panel is closed.
    run(page, "document.activeElement.blur()")
    body.send_keys("l")
    until("it plays again", lambda: time_played() > 0.5)


def look(page):
    """How smooth the wall is with other numbers of streams. Machines differ in how many they can receive and show without a loss."""
    page.get(URL)
    until("tiles of all streams", lambda: run(page, "return threadbare.wall.tiles && threadbare.wall.streams.length") == STREAMS)
    until("most are heard", lambda: run(page, "return threadbare.wall.tiles.state.filter((one) => one === 2).length") > 0.9 * STREAMS)
    picture(page, "wall")
    smooth.measure(page)


def check(page, sender):
    page.get(URL)
    until("tiles of all streams", lambda: run(page, "return threadbare.wall.tiles && threadbare.wall.streams.length") == STREAMS)
    until("everybody is heard", lambda: page.find_element(By.ID, "counts").text == f"{STREAMS} heard")
    # After 3 s of the constant tones, all readings are equal.
    until("the same values everywhere", lambda: not differing(page))

    # Values move, and the page draws them.
    frames = run(page, "return threadbare.wall.frames")
    drawn = run(page, "return threadbare.wall.drawn")
    until("more frames", lambda: run(page, "return threadbare.wall.frames") > frames + 20)
    assert run(page, "return threadbare.wall.drawn") > drawn + 10
    picture(page, "wall")

    # Streams with faults move to the top.
    sender.lossy.add(LOSSY)
    until("the stream that loses packets at the top", lambda: first(page) == LOSSY)
    # Every fifth packet.
    until("its losses", lambda: 150 < tile(page, LOSSY)[4] < 250)
    sender.silent.add(SILENT)
    until("the stream that is silent at the top", lambda: first(page) == SILENT)
    assert tile(page, SILENT)[0] == 1
    # Both are alarms by default; the silent stream's alarm is acknowledged.
    until("both are counted", lambda: page.find_element(By.ID, "counts").text == f"⚠ 2 alarms · 1 waiting · {STREAMS - 1} heard")
    raised = {(one["stream"], one["alarm"]) for one in json.loads(get("/v1/alarms"))["alarms"]}
    names = [run(page, "return threadbare.wall.streams[arguments[0]].name", n) for n in (SILENT, LOSSY)]
    assert raised == {(names[0], "no-packets"), (names[1], "loss")}, raised
    assert f'threadbare_stream_alarm{{stream="{names[1]}",alarm="loss"}} 1' in get("/metrics")

    # Keys: opens the second tile.
    body = page.find_element(By.TAG_NAME, "body")
    body.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ENTER)
    panel = page.find_element(By.ID, "stream")
    name = run(page, "return threadbare.wall.streams[arguments[0]].name", LOSSY)
    until("its panel", lambda: panel.is_displayed() and page.find_element(By.ID, "stream-name").text == name)
    assert run(page, "return arguments[0].scrollTop", panel) == 0
    until("its numbers", lambda: "lost" in panel.text and "LUFS" in panel.text)
    until("its alarm", lambda: "loss since" in panel.text)
    until("its alarm in the log", lambda: re.search(r"warn alarm .*loss", page.find_element(By.ID, "stream-log").text))
    until("its addresses", lambda: all(text in panel.text for text in [f"127.0.0.1:{PORT + 2 * LOSSY}", f"127.0.0.1:{sender.port()}, SSRC 0x{LOSSY + 1:08x}", "PCMU"]))
    listens(page, panel, body)
    picture(page, "stream")
    run(page, "arguments[0].scrollTop = arguments[0].scrollHeight", panel)
    picture(page, "stream-log")
    panel.find_element(By.CSS_SELECTOR, "#stream-alarms button").click()
    until("the alarm is acknowledged", lambda: "acknowledged" in panel.text and "⚠ 1 alarm ·" in page.find_element(By.ID, "counts").text)
    body.send_keys(Keys.ESCAPE)
    assert not panel.is_displayed()
    assert not run(page, "return threadbare.panel.player.isOn"), "it is heard although the panel is closed"

    # A filter.
    page.find_element(By.ID, "filter").send_keys("programme-12")
    names = run(page, "return threadbare.wall.cells.map((cell) => threadbare.wall.streams[cell.n].name)")
    assert names and all("programme-12" in name for name in names) and len(names) < STREAMS, names
    page.find_element(By.ID, "filter").clear()
    page.find_element(By.ID, "filter").send_keys(Keys.SPACE, Keys.BACKSPACE, Keys.ESCAPE)

    calls.check(page)
    body.send_keys("w")
    nodes.check(page, STREAMS)
    zoom.check(page, LOSSY)

    # The machine.
    body.send_keys("m")
    until("threads that work", lambda: " %" in page.find_element(By.ID, "threads").text and "take" in page.find_element(By.ID, "room").text)
    page.find_element(By.ID, "theme").click()
    picture(page, "machine")
    body.send_keys("w")
    run(page, "threadbare.wall.section.scrollTop = 0")
    picture(page, "wall-other")

    smooth.measure(page)

    # The page loads nothing from elsewhere, and has no errors.
    for entry in page.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            url = message["params"]["request"]["url"]
            assert url.startswith((URL, "data:", "chrome:", "about:")), url
    # The call that ended while it was shown is gone.
    due = lambda text: "favicon" in text or "/v1/calls/" in text and "404" in text
    wrong = [entry for entry in page.get_log("browser") if entry["level"] == "SEVERE" and not due(entry["message"])]
    assert not wrong, wrong


main()
