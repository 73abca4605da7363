"""The wall of a cluster: data from another node's /v1/wall, put into a page with one node."""

import base64
import struct

from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select

from common import picture, run, until

NODE = "relay-2"


def tell(page, name, **data):
    run(page, "threadbare.take({ name: arguments[0], data: arguments[1] })", name, {"node": NODE, **data})


def columns(*streams):
    """The format in /openapi.json: state, alarms, then momentary, peak, short-term, loss."""
    states, alarms, *levels = zip(*streams)
    packed = bytes(states) + bytes(alarms) + b"".join(struct.pack(f"<{len(streams)}h", *level) for level in levels)
    return base64.b64encode(packed).decode()


def check(page, own):
    option = page.find_element(By.ID, "group-node")
    assert run(page, "return arguments[0].hidden", option), "one node is no group"
    tell(page, "streams", generation=7, streams=[{"name": "far 1"}, {"name": "far 2", "target_lufs": -23}])
    assert run(page, "return threadbare.wall.streams.length") == own + 2
    assert not run(page, "return arguments[0].hidden", option)
    # Values of another generation belong to other streams.
    tell(page, "tiles", generation=6, columns=columns((0, 0, 0, 0, 0, 0), (0, 0, 0, 0, 0, 0)))
    assert run(page, "return threadbare.wall.tiles.state[arguments[0]]", own) == 1
    tell(page, "tiles", generation=7, columns=columns((2, 0, -180, -60, -200, 0), (2, 0x10, -300, -90, -310, 50)))
    shown = run(page, "const { tiles } = threadbare.wall; return Object.values(tiles).map((column) => [column[arguments[0]], column[arguments[0] + 1]])", own)
    assert shown == [[2, 2], [0, 0x10], [-180, -300], [-60, -90], [-200, -310], [0, 50]], shown
    tell(page, "threads", unix_s=0, threads=[{"name": "calls-0", "busy_percent": [5.0], "lateness_ms": [0.1], "packets": [9]}])
    assert run(page, "return threadbare.machine.threads.has(arguments[0])", f"{NODE} calls-0")
    Select(page.find_element(By.ID, "group")).select_by_value("node")
    heads = lambda: run(page, "return threadbare.wall.cells.filter((cell) => cell.head !== undefined).map((cell) => cell.head)")
    until("a group of the other node", lambda: any(head.startswith(f"{NODE}  2") for head in heads()))
    picture(page, "nodes")
    tell(page, "left")
    assert run(page, "return threadbare.wall.streams.length") == own
    assert not run(page, "return threadbare.machine.threads.has(arguments[0])", f"{NODE} calls-0")
    Select(page.find_element(By.ID, "group")).select_by_value("none")
