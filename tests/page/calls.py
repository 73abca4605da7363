"""Checks the display and the audio of calls in a browser."""

import json
import math
import re
import socket
import threading
import time
import urllib.request

from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from common import URL, get, mu_law, picture, run, until

CALLS = 4
PACKET_MS = 20
SAMPLES = 8 * PACKET_MS
PEAK = 8000


class Talk(threading.Thread):
    """In each call, A sends a tone and B sends nothing."""

    def __init__(self):
        super().__init__(daemon=True)
        wave = [PEAK * math.sin(2 * math.pi * n / 8) for n in range(SAMPLES)]
        self.tone = bytes(mu_law(round(sample)) for sample in wave)
        self.sockets = [[socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in "AB"] for _ in range(CALLS)]
        for pair in self.sockets:
            for one in pair:
                one.bind(("127.0.0.1", 0))
        self.calls = [make(f"call-{n}@sip.example", pair) for n, pair in enumerate(self.sockets)]
        # In this call, every fifth packet of A is lost.
        self.lossy = 2

    def run(self):
        seq, begun = 0, time.monotonic()
        while True:
            for n, (pair, call) in enumerate(zip(self.sockets, self.calls)):
                for place, (one, side) in enumerate(zip(pair, call["sides"])):
                    if n == self.lossy and place == 0 and seq % 5 == 0:
                        continue
                    payload = self.tone if place == 0 else b"\xff" * SAMPLES
                    header = bytes([0x80, 0]) + (seq & 0xFFFF).to_bytes(2, "big") + (seq * SAMPLES & 0xFFFFFFFF).to_bytes(4, "big") + (100 * n + place + 1).to_bytes(4, "big")
                    host, port = side["local_address"].rsplit(":", 1)
                    one.sendto(header + payload, (host, int(port)))
            seq += 1
            time.sleep(max(0, begun + seq * PACKET_MS / 1000 - time.monotonic()))


def address(one):
    return f"127.0.0.1:{one.getsockname()[1]}"


def make(name, pair):
    sides = [{"address": address(one), "codec": "PCMU/8000"} for one in pair]
    body = json.dumps({"id": name, "sides": sides}).encode()
    request = urllib.request.Request(URL + "/v1/calls", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def rows(page):
    return run(page, "return [...document.querySelectorAll('#calls-rows tr')].map((row) => [...row.cells].map((cell) => cell.innerText).join(' '))")


def check(page):
    talk = Talk()
    talk.start()
    body = page.find_element(By.TAG_NAME, "body")
    body.send_keys("c")
    until("all calls are listed", lambda: len(rows(page)) == CALLS)
    assert page.find_element(By.ID, "calls-count").text == f"{CALLS} calls"
    bad = talk.calls[talk.lossy]["id"]
    until("the one that loses packets at the top, with its loss", lambda: re.search(rf"^{bad} .* (1\d|2\d)\.\d %", rows(page)[0]))
    picture(page, "calls")

    # The filter, which also finds parties; then the first call, by keys alone.
    filter_ = page.find_element(By.ID, "filter")
    filter_.send_keys(address(talk.sockets[1][1]))
    until("the call of this party alone", lambda: [row.split()[0] for row in rows(page)] == [talk.calls[1]["id"]])
    filter_.clear()
    filter_.send_keys(Keys.SPACE, Keys.BACKSPACE, Keys.ESCAPE)
    until("all again", lambda: len(rows(page)) == CALLS)
    body.send_keys(Keys.ARROW_DOWN, Keys.ENTER)
    panel = page.find_element(By.ID, "call")
    until("its panel", lambda: panel.is_displayed() and page.find_element(By.ID, "call-name").text == bad)
    assert run(page, "return document.querySelector('#calls-rows tr[aria-selected=true] td').textContent") == bad
    sides = page.find_element(By.ID, "call-sides")
    own = [address(one) for one in talk.sockets[talk.lossy]]
    until("addresses, codecs and SSRCs of both", lambda: all(text in sides.text for text in [*own, "PCMU/8000", "0x000000c9", "0x000000ca"]))
    until("our report on A's losses", lambda: re.search(r"gateway's report on the party [1-9]\d* lost", sides.text))
    assert "up" in page.find_element(By.ID, "call-state").text
    until("how A was heard, over time", lambda: any((value or 0) > 10 for value in run(page, "return threadbare.callPanel.history?.streams[0].sides[0].loss_percent ?? []")))
    listens(page)
    picture(page, "call")

    # Another client puts the call on hold; the page starts the recording.
    until("A talks", lambda: re.search(r"^state talks talks$", sides.text, re.M))
    act(talk.calls[talk.lossy], "hold")
    until("both are on hold", lambda: re.search(r"^state on hold on hold$", sides.text, re.M))
    act(talk.calls[talk.lossy], "resume")
    button = page.find_element(By.ID, "call-record")
    state = page.find_element(By.ID, "call-state")
    button.click()
    until("it is recorded", lambda: "recorded" in state.text and button.text == "End recording")
    until("the log tells so", lambda: "info recording" in page.find_element(By.ID, "call-log").text)
    button.click()
    until("it is not recorded any more", lambda: "recorded" not in state.text and button.text == "Record")

    # The first press asks, and the second one ends it.
    button = page.find_element(By.ID, "call-end")
    button.click()
    assert button.text == "Press again to end" and len(json.loads(get("/v1/calls"))["calls"]) == CALLS
    button.click()
    until("it has ended", lambda: state.text == "has ended" and len(rows(page)) == CALLS - 1)
    until("an event tells so", lambda: re.search(r"event has ended", page.find_element(By.ID, "call-log").text))
    run(page, "document.activeElement.blur()")
    body.send_keys(Keys.ESCAPE)
    assert not panel.is_displayed()
    return talk


def act(call, action):
    request = urllib.request.Request(f"{URL}{call['path']}/{action}", b"{}", {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=10).close()


def listens(page):
    """The button; A's tone is played to one ear, which is half of it in the middle."""
    button = page.find_element(By.ID, "call-listen")
    time_played = lambda: run(page, "return threadbare.callPanel.player.context?.currentTime ?? 0")
    button.click()
    until("it plays", lambda: time_played() > 1 and button.text == "Listening")
    due = PEAK / 32768 / 2
    until("the level of the tone", lambda: abs(run(page, "return threadbare.callPanel.player.peak()") - due) < 0.1 * due)
    button.click()
    assert not run(page, "return threadbare.callPanel.player.isOn") and button.text == "Listen"
    run(page, "document.activeElement.blur()")
    page.find_element(By.TAG_NAME, "body").send_keys("l")
    until("it plays again", lambda: time_played() > 0.2)
