"""Checks the queries of the dashboard and the alert rules in Prometheus, while 1000 streams wait for senders."""

import json
import re
import sys
import time
import urllib.parse
import urllib.request

PROMETHEUS = "http://127.0.0.1:9090/api/v1/"
GATEWAY = "http://127.0.0.1:8080"
STREAMS = 1000
# Only ends a test that hangs.
LIMIT_S = 90


def ask(path, **query):
    url = PROMETHEUS + path + "?" + urllib.parse.urlencode(query)
    with urllib.request.urlopen(url, timeout=10) as answer:
        said = json.load(answer)
    assert said["status"] == "success", said
    return said["data"]


def until(what, condition):
    end = time.monotonic() + LIMIT_S
    while True:
        try:
            found = condition()
        except OSError:
            found = None
        if found:
            return found
        assert time.monotonic() < end, f"waited {LIMIT_S} s for: {what}"
        time.sleep(0.2)


def value(expression):
    result = ask("query", query=expression)["result"]
    return float(result[0]["value"][1]) if result else None


def ask_for_calls():
    """Gives values to the counters of requests."""
    request = urllib.request.Request(GATEWAY + "/ng", data=b'1 {"command": "list"}', headers={"Content-Type": "application/x-rtpengine-ng"})
    urllib.request.urlopen(request, timeout=10).close()


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        dashboard = json.load(file)
    until("Prometheus has read the gateway", lambda: value('up{job="threadbare"}') == 1)
    ask_for_calls()
    until("Prometheus has read it since", lambda: value("sum(threadbare_ng_requests_total)"))
    until("all streams", lambda: value("count(threadbare_stream_up)") == STREAMS)
    until("alarms: nobody sends", lambda: value('sum(threadbare_stream_alarm{alarm="no-packets"})') == STREAMS)
    down = until("the alert", lambda: [one for one in ask("alerts")["alerts"] if one["labels"]["alertname"] == "ThreadbareStreamDown"])
    assert len(down) == STREAMS, len(down)
    other = {one["labels"]["alertname"] for one in ask("alerts")["alerts"]} - {"ThreadbareStreamDown", "ThreadbareThreadLate"}
    assert not other, other

    # Each expression is valid and uses existing metrics; some have values only after certain events.
    known = {entry for entry in ask("label/__name__/values")}
    described = set(ask("metadata"))
    asked = 0
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            expression = target["expr"].replace("$instance", ".*").replace("$stream", ".*")
            ask("query", query=expression)
            for name in re.findall(r"threadbare_\w+", expression):
                plain = re.sub(r"_(total|bucket|sum|count)$", "", name)
                assert name in known or {name, plain} & described, f"{panel['title']}: no metric {name}"
                asked += 1
    print(f"prometheus: {STREAMS} streams, {asked} metrics of {len(dashboard['panels'])} panels")


main()
