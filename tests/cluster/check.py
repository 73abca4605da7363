"""Three etcd, three gateways, faults, and the effects on listeners. check.py PROGRAM FOLDER STREAMS [SCENE...]

It prints times, and checks only generous limits. It checks that no stream has two senders at a time, that all are carried in the
end, and that a hand-over loses nothing.
"""

import base64
import glob
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time

import network
import takeover
from capture import RECORD
from network import address, inside
from proxy import PORT, Party, Proxy, place

# Only ends a test that hangs.
SECONDS_MAX = 120
NODES = ["n1", "n2", "n3"]
STORES = ["e1", "e2", "e3"]

program, folder, streams = sys.argv[1], sys.argv[2], int(sys.argv[3])
scenes = sys.argv[4:]
here = os.path.dirname(os.path.abspath(__file__))
processes = {}


def say(text):
    print(f"cluster.sh: {text}", flush=True)


def start(name, command):
    log = open(f"{folder}/{name}.log", "ab")
    processes[name] = subprocess.Popen(command, stdout=log, stderr=log, cwd=here)


def start_store(name):
    peers = ",".join(f"{one}=http://{address(one)}:2380" for one in STORES)
    client = f"http://{address(name)}:2379"
    peer = f"http://{address(name)}:2380"
    # A new leader must be elected before the nodes' leases end.
    start(name, inside(
        name, "etcd", "--name", name, "--data-dir", f"{folder}/{name}", "--initial-cluster", peers,
        "--listen-client-urls", client, "--advertise-client-urls", client,
        "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
        "--heartbeat-interval", "50", "--election-timeout", "300", "--logger", "zap", "--log-level", "warn"))


def start_node(name):
    start(name, inside(name, program, "run", f"{folder}/{name}.toml"))


def write_config(name, plain=""):
    """`plain`: more streams of the kind of that name."""
    isolation = "take" if name == "n3" else "refuse"
    endpoints = ", ".join(f'"http://{address(one)}:2379"' for one in STORES)
    half = streams // 2
    with open(f"{folder}/{name}.toml", "w") as file:
        file.write(f"""
[cluster]
endpoints = [{endpoints}]
node = "{name}"
listen = "{address(name)}:2400"
key-file = "{folder}/cluster.key"
calls-on-isolation = "{isolation}"
[http]
listen = "127.0.0.1:8080"
[ng]
listen = "{address(name)}:{PORT}"
tcp = "{address(name)}:{PORT}"
allow = ["{network.BRIDGE}"]
[interfaces.only]
address = "{address(name)}"
[defaults]
codec = "pcmu"
# Forwarded unchanged.
[[stream]]
name = "plain"
{plain}
listen = "{network.GROUP}:20000"
count = {half}
destination = "{network.LISTENER}:30000"
# Converted.
[[stream]]
name = "other"
codec-out = "pcma"
listen = "{network.GROUP}:{20000 + 2 * half}"
count = {streams - half}
destination = "{network.LISTENER}:{30000 + 2 * half}"
""")


def name_of(stream):
    half = streams // 2
    return f"plain-{stream}" if stream < half else f"other-{stream - half}"


def wait_for(what, condition):
    end = time.monotonic() + SECONDS_MAX
    while not (found := condition()):
        for name, process in processes.items():
            if process.poll() is not None:
                fail(f"{name} has ended")
        if time.monotonic() > end:
            fail(f"waited {SECONDS_MAX} s for: {what}")
        time.sleep(0.05)
    return found


def fail(reason):
    for name in sorted(os.listdir(folder)):
        if name.endswith(".log"):
            with open(f"{folder}/{name}", errors="replace") as file:
                lines = file.readlines()
            lines = lines[:10] + lines[-15:] if len(lines) > 25 else lines
            print(f"--- {name}\n" + "".join(lines), file=sys.stderr)
    say(f"failed: {reason}")
    sys.exit(1)


def etcdctl(*words):
    alive = [f"http://{address(one)}:2379" for one in STORES if one in processes]
    command = inside("n1", "etcdctl", "--endpoints", ",".join(alive), *words)
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"ETCDCTL_API": "3"})


def keys(prefix):
    found = etcdctl("get", "--prefix", prefix, "-w", "json")
    if found.returncode != 0:
        return None
    kvs = json.loads(found.stdout).get("kvs", [])
    read = lambda text: base64.b64decode(text).decode()
    return {read(kv["key"])[len(prefix):]: json.loads(read(kv["value"])) for kv in kvs}


def owners():
    """The carrier of each stream; nothing while that is not settled."""
    claims, nodes = keys("/threadbare/claims/"), keys("/threadbare/nodes/")
    if not claims or not nodes or len(claims) != streams:
        return None
    for claim in claims.values():
        node = nodes.get(claim["node"])
        if "next" in claim or "deputy" in claim or node is None or node["incarnation"] != claim["incarnation"]:
            return None
    return {name: claim["node"] for name, claim in claims.items()}


def shared_by(*nodes):
    """All is settled, each of these nodes has some streams, and no other node has any."""
    def look():
        found = owners()
        if found and set(found.values()) == set(nodes) and all_heard_now():
            return found
        return None
    found = wait_for(f"streams are carried by {', '.join(nodes)}", look)
    # A node that has just claimed a stream has not sent anything of it yet.
    settled = time.time_ns()
    wait_for("all are heard", lambda: heard_since(settled))
    return found


class Heard:
    """The captured packets."""

    def __init__(self):
        self.file = open(f"{folder}/heard", "rb")
        self.rest = b""
        self.streams = [[] for _ in range(streams)]

    def read(self):
        data = self.rest + self.file.read()
        whole = len(data) // RECORD.size * RECORD.size
        self.rest = data[whole:]
        for at, node, stream, ssrc, seq, stamp in RECORD.iter_unpack(data[:whole]):
            self.streams[stream].append((at, node, ssrc, seq, stamp))

    def since(self, begin):
        self.read()
        return [[one for one in packets if one[0] >= begin] for packets in self.streams]


def all_heard_now():
    return heard_since(time.time_ns() - 10**9 // 2)


def heard_since(time_ns):
    heard.read()
    return all(packets and packets[-1][0] > time_ns for packets in heard.streams)


def heard_from(name):
    heard.read()
    stream = next(stream for stream in range(streams) if name_of(stream) == name)
    return f"10.77.0.{heard.streams[stream][-1][1]}"


def silences(begin):
    """The longest silence of each stream since then, ms, counted from the last packet before."""
    heard.read()
    found = []
    for packets in heard.streams:
        first = max((i for i, one in enumerate(packets) if one[0] < begin), default=0)
        times = [one[0] for one in packets[first:]]
        found.append(max((b - a for a, b in zip(times, times[1:])), default=0) / 1e6)
    return found


def told(scene, begin, names=None):
    found = silences(begin)
    if names is not None:
        found = [one for stream, one in enumerate(found) if name_of(stream) in names]
    say(f"{scene}: {len(found)} streams were silent for {statistics.median(found):.0f} ms (median), {max(found):.0f} ms (longest)")
    return max(found)


def of_node(found, *nodes):
    return {name for name, node in found.items() if node in nodes}


def check_senders():
    """Each owner has sent in one piece: there are at most as many pieces as owners."""
    heard.read()
    claims = wait_for("the claims", lambda: keys("/threadbare/claims/"))
    second = 0
    for stream, packets in enumerate(heard.streams):
        pieces = sum(1 for a, b in zip(packets, packets[1:]) if a[1] != b[1]) + 1
        epoch = claims[name_of(stream)]["epoch"]
        if pieces > epoch:
            second += 1
            say(f"{name_of(stream)}: {pieces} pieces of {epoch} owners")
    say(f"streams that had two senders at a time: {second}")
    if second:
        fail("two senders")


def lapses():
    """Number of times that a node could not reach etcd in time."""
    count = 0
    for node in NODES:
        with open(f"{folder}/{node}.log", errors="replace") as file:
            count += file.read().count("etcd did not confirm the lease in time")
    return count


def check_whole(begin, scene, lapses_before, faults=0):
    """Streams that change their nodes lose nothing, and send nothing twice."""
    lost = twice = moved = 0
    gaps = []
    for stream, packets in enumerate(heard.since(begin)):
        for a, b in zip(packets, packets[1:]):
            step = (b[3] - a[3]) % 65536
            is_odd = a[2] != b[2] or step > 32768 or step == 0 or (b[4] - a[4]) % 2**32 != 160 * step
            twice += is_odd
            lost += 0 if is_odd else step - 1
            if is_odd and twice <= 5:
                say(f"{name_of(stream)}: {(b[0] - a[0]) / 1e6:.0f} ms between (node, SSRC, number, timestamp) {a[1:]} and {b[1:]}")
            if a[1] != b[1]:
                moved += 1
                gaps.append((b[0] - a[0]) / 1e6)
    gap = f"{statistics.median(gaps):.0f} ms (median), {max(gaps):.0f} ms (longest)" if gaps else "none"
    say(f"{scene}: {moved} streams moved, {lost} packets lost, {twice} out of order; from the last packet of a node to the first of the next: {gap}")
    if lost or twice:
        # The machine had too much other work: a lease ended as it must, which is not a hand-over.
        if (lapsed := lapses()) > lapses_before + faults:
            say(f"{scene}: {lapsed - lapses_before} leases ended meanwhile: not judged")
        else:
            fail("a hand-over lost or repeated packets")
    return moved


def kill(name, how=signal.SIGKILL):
    process = processes.pop(name)
    process.send_signal(how)
    return process


def others(node):
    return [one for one in NODES if one != node]


def come_back(scene, before=None):
    """A node takes its share again, without a gap. `before`: leases that had ended before it was frozen."""
    begin, lapsed = time.time_ns(), lapses()
    shared_by(*NODES)
    check_whole(begin, f"{scene}: back", lapsed if before is None else before, 0 if before is None else 1)


def dies(scene, is_machine):
    before = shared_by(*NODES)
    begin = time.time_ns()
    if is_machine:
        network.unplug("n2")
    kill("n2").wait()
    after = shared_by(*others("n2"))
    told(scene, begin, of_node(before, "n2"))
    stayed = [name for name in before if before[name] != "n2" and before[name] != after[name]]
    if stayed:
        fail(f"{len(stayed)} streams of other nodes have moved")
    if is_machine:
        network.plug("n2")
    start_node("n2")
    come_back(scene)


def scene_kill():
    wait_for("links", lambda: all(one["linked"] for one in status("n1")["nodes"] if one["node"] != "n1"))
    dies("kill -9", is_machine=False)


def scene_machine():
    """The kernel dies too, so it cannot report the end of the process."""
    dies("machine dead", is_machine=True)


def scene_two():
    """One node is left, and carries everything."""
    before = shared_by(*NODES)
    begin = time.time_ns()
    for one in [kill("n1"), kill("n2")]:
        one.wait()
    shared_by("n3")
    told("two nodes dead at once", begin, of_node(before, "n1", "n2"))
    for node in ["n1", "n2"]:
        start_node(node)
    come_back("two nodes dead at once")
    check_senders()


def scene_freeze():
    before = shared_by(*NODES)
    begin, lapsed = time.time_ns(), lapses()
    processes["n1"].send_signal(signal.SIGSTOP)
    shared_by(*others("n1"))
    told("frozen", begin, of_node(before, "n1"))
    # Its sockets fill up meanwhile.
    time.sleep(max(0, 10 - (time.time_ns() - begin) / 1e9))
    processes["n1"].send_signal(signal.SIGCONT)
    come_back("frozen", lapsed)
    check_senders()


def scene_partition():
    for way, cuts in [
        ("requests", [("n3", one) for one in STORES]),
        ("answers", [(one, "n3") for one in STORES]),
    ]:
        before = shared_by(*NODES)
        begin = time.time_ns()
        for a, b in cuts:
            network.cut(a, b)
        shared_by(*others("n3"))
        told(f"cut off, {way} are lost", begin, of_node(before, "n3"))
        for a, b in cuts:
            network.mend(a, b)
        come_back("cut off")
        check_senders()


def scene_drain():
    shared_by(*NODES)
    begin, lapsed = time.time_ns(), lapses()
    process = kill("n1", signal.SIGTERM)
    if process.wait(SECONDS_MAX) != 0:
        fail(f"a node that is stopped ends with {process.returncode}")
    shared_by(*others("n1"))
    check_whole(begin, "SIGTERM", lapsed)
    start_node("n1")
    come_back("SIGTERM")


def operator(node, *words):
    command = inside(node, program, "cluster", *words)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        fail(f"cluster {' '.join(words)}: {done.stderr}")
    return done.stdout


def status(node):
    return json.loads(operator(node, "status", "--json"))


def metrics(node):
    get = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:8080/metrics').read().decode())"
    return subprocess.run(inside(node, sys.executable, "-c", get), capture_output=True, text=True).stdout


def scene_operator():
    before = shared_by(*NODES)
    begin, lapsed = time.time_ns(), lapses()
    operator("n2", "drain")
    shared_by(*others("n2"))
    check_whole(begin, "cluster drain", lapsed)
    begin, lapsed = time.time_ns(), lapses()
    operator("n2", "drain", "--undo")
    shared_by(*NODES)
    check_whole(begin, "cluster drain --undo", lapsed)
    stream = min(name for name, node in before.items() if node != "n3")
    begin, lapsed = time.time_ns(), lapses()
    operator("n1", "move", stream, "n3")
    wait_for(f"{stream} is heard from n3", lambda: heard_from(stream) == address("n3"))
    operator("n1", "move", stream)
    wait_for(f"{stream} is heard from another", lambda: heard_from(stream) != address("n3"))
    shared_by(*NODES)
    moved = check_whole(begin, "cluster move, and back", lapsed)
    if moved < 2:
        fail(f"{moved} streams moved, and none twice")
    refused = subprocess.run(inside("n1", program, "cluster", "move", stream, "n9"), capture_output=True, text=True)
    if refused.returncode == 0 or "no node \"n9\"" not in refused.stderr:
        fail(f"a node that does not exist: {refused.stderr}")
    shown = status("n3")
    if len(shown["streams"]) != streams or sum(one["streams"] for one in shown["nodes"]) != streams:
        fail(f"cluster status: {shown}")
    lines = operator("n3", "status").splitlines()
    if len(lines) < streams + 6 or "live" not in lines[0]:
        fail(f"cluster status: {lines[:8]}")
    told = metrics("n1")
    if "threadbare_cluster_live 1" not in told or "threadbare_cluster_nodes 3" not in told:
        fail("/metrics has nothing about the cluster")


def scene_store():
    members = json.loads(etcdctl("endpoint", "status", "-w", "json").stdout)
    leader = members[0]["Status"]["leader"]
    by_id = {one["Status"]["header"]["member_id"]: one["Endpoint"] for one in members}
    leader = next(name for name in STORES if address(name) in by_id[leader])
    follower = next(name for name in STORES if name != leader)
    before = shared_by(*NODES)
    for what, name in [("a follower", follower), ("the leader", leader)]:
        begin = time.time_ns()
        kill(name).wait()
        # The other members have each node's renewals too.
        wait_for("etcd goes on", lambda: keys("/threadbare/nodes/"))
        time.sleep(2)
        shared_by(*NODES)
        told(f"{what} of etcd is killed", begin)
        start_store(name)
        wait_for(f"{name} is well", lambda: etcdctl("endpoint", "health").returncode == 0)
    begin = time.time_ns()
    for name in STORES[:2]:
        kill(name).wait()
    time.sleep(3)
    for name in STORES[:2]:
        start_store(name)
    wait_for("etcd is well", lambda: etcdctl("endpoint", "health").returncode == 0)
    after = shared_by(*NODES)
    told("two of three etcd are dead for 3 s", begin)
    moved = sum(1 for name in before if before[name] != after[name])
    say(f"two of three etcd are dead: {moved} streams moved")


def declare_plain(isolation):
    for node in NODES:
        write_config(node, f'on-isolation = "{isolation}"')
        processes[node].send_signal(signal.SIGHUP)
    is_so = lambda one: one["on_isolation"] == isolation
    def look():
        declared = keys("/threadbare/streams/")
        return declared and all(is_so(one) for name, one in declared.items() if name.startswith("plain-"))
    wait_for(f"streams are declared to {isolation}", look)
    shared_by(*NODES)


def scene_isolation():
    """`on-isolation = "continue"`: without etcd, these streams stay where they are; with it again, they keep their owner."""
    shared_by(*NODES)
    declare_plain("continue")
    before, epochs = shared_by(*NODES), {name: one["epoch"] for name, one in keys("/threadbare/claims/").items()}
    begin, lapsed = time.time_ns(), lapses()
    for name in STORES[:2]:
        kill(name).wait()
    wait_for("nodes have seen it", lambda: not any(status(node)["is_live"] for node in NODES))
    alone = time.time_ns()
    plain = [stream for stream in range(streams) if name_of(stream).startswith("plain-")]
    def go_on():
        heard.read()
        return all(heard.streams[stream][-1][0] > alone + 3 * 10**9 for stream in plain)
    wait_for("streams go on for 3 s more", go_on)
    rest = [packets for stream, packets in enumerate(heard.since(alone)) if stream not in plain]
    if any(rest):
        fail(f"{sum(map(len, rest))} packets of streams that must stop")
    for name in STORES[:2]:
        start_store(name)
    after = shared_by(*NODES)
    now = {name: one["epoch"] for name, one in keys("/threadbare/claims/").items()}
    if after != before or now != epochs:
        fail("streams have other owners after etcd came back")
    odd = 0
    for stream, packets in enumerate(heard.since(begin)):
        if stream in plain:
            odd += sum(a[1:3] != b[1:3] or (b[3] - a[3]) % 65536 != 1 for a, b in zip(packets, packets[1:]))
    if odd:
        fail(f"streams that continue without etcd: {odd} packets do not follow the previous one of the same sender")
    told("without etcd, and with it again: continue", begin, {name_of(stream) for stream in plain})
    told("the others", begin, {name_of(stream) for stream in range(streams) if stream not in plain})
    check_senders()
    declare_plain("stop")
    if lapses() <= lapsed:
        fail("no lease has ended, so the test proves nothing")


def scene_compaction():
    begin = time.time_ns()
    revision = json.loads(etcdctl("endpoint", "status", "-w", "json").stdout)[0]["Status"]["header"]["revision"]
    if etcdctl("compact", str(revision)).returncode != 0:
        fail("etcd does not compact")
    shared_by(*NODES)
    told("compaction", begin)


def http(node, method, path, body=None, port=8080):
    """Status and body of a node's HTTP response."""
    ask = """
import sys, urllib.error, urllib.request
request = urllib.request.Request(sys.argv[2], method=sys.argv[1], data=sys.argv[3].encode() or None)
try:
    answer = urllib.request.urlopen(request)
except urllib.error.HTTPError as error:
    answer = error
print(answer.status, answer.read().decode())
"""
    url = f"http://127.0.0.1:{port}{path}"
    command = inside(node, sys.executable, "-c", ask, method, url, json.dumps(body) if body else "")
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        fail(f"{method} {path} at {node}: {done.stderr}")
    code, text = done.stdout.strip().split(" ", 1) if " " in done.stdout.strip() else (done.stdout.strip(), "")
    return int(code), json.loads(text) if text else None


class Calls:
    """Running calls: the node of each, and its parties."""

    def __init__(self):
        self.proxy = Proxy()
        self.up = {}

    def done(self, node, command, call, **more):
        reply, _ = self.proxy.ask(node, command, call, **more)
        if reply["result"] != "ok":
            fail(f"{command} {call} at {node}: {reply}")
        return reply

    def make(self, call, offered, answered):
        a, b = Party(), Party()
        offer = self.done(offered, "offer", call, from_tag="a", sdp=a.sdp())
        answer = self.done(answered, "answer", call, from_tag="a", to_tag="b", sdp=b.sdp())
        places = place(answer["sdp"]), place(offer["sdp"])
        node = next((node for node in NODES if address(node) == places[0][0]), None)
        if node is None or places[0][0] != places[1][0]:
            fail(f"{call} is at {places}")
        self.up[call] = node, a, b, places

    def talk(self, call):
        """Both parties hear each other."""
        _, a, b, (for_a, for_b) = self.up[call]
        for _ in range(10):
            a.say(for_a)
            b.say(for_b)
            time.sleep(0.002)
        for party in a, b:
            try:
                party.hear(3)
            except TimeoutError:
                fail(f"{call}: a party does not hear the other")

    def of(self, *nodes):
        return [call for call, (node, *_) in self.up.items() if node in nodes]


def call_keys():
    return keys("/threadbare-calls/") or {}


def latencies(calls):
    """Times of requests to the node that has the call, and to others, ms."""
    here, elsewhere = [], []
    for call, (owner, *_) in list(calls.up.items()) * 5:
        for node in NODES:
            reply, took = calls.proxy.ask(node, "query", call)
            if reply["result"] != "ok":
                fail(f"query {call} at {node}: {reply}")
            (here if node == owner else elsewhere).append(took)
    at = lambda times, part: sorted(times)[int(len(times) * part)]
    say(f"a request to the node that has the call, and to another one: {at(here, 0.5):.2f} and {at(elsewhere, 0.5):.2f} ms (median), "
        f"{at(here, 0.99):.2f} and {at(elsewhere, 0.99):.2f} ms (99 %)")


def scene_calls():
    shared_by(*NODES)
    # The next renewal publishes the room.
    wait_for("all nodes take calls", lambda: all(one.get("room", 0) > 0 for one in status("n1")["nodes"]))
    calls = Calls()
    for number in range(100):
        calls.make(f"call {number}@example", random.choice(NODES), random.choice(NODES))
    counts = [len(calls.of(node)) for node in NODES]
    say(f"100 calls, made and answered at any node, are at {counts}")
    if min(counts) == 0:
        fail("a node has no call")
    for call in calls.up:
        calls.talk(call)
    versions = etcdctl("get", "--prefix", "/threadbare-calls/", "-w", "json")
    writes = [kv["version"] for kv in json.loads(versions.stdout)["kvs"]]
    if writes != [1] * 100:
        fail(f"{len(writes)} keys of calls, written {max(writes)} times")
    latencies(calls)
    if "threadbare_cluster_calls " not in (told := metrics("n1")) or "threadbare_cluster_requests_passed_total 0" in told:
        fail("/metrics has nothing about the calls")
    scene_calls_twice(calls)
    scene_calls_http(calls)
    scene_calls_ways(calls)
    scene_calls_everywhere(calls)
    # A node dies: the other nodes' calls continue, and parties that call again are served.
    kill("n2").wait()
    lost, left = calls.of("n2"), calls.of("n1", "n3")
    for call in left[:10]:
        calls.talk(call)
    shared_by("n1", "n3")
    for call in left:
        calls.done(random.choice(["n1", "n3"]), "query", call)
    for call in lost[:5]:
        if "no such call" not in (reply := calls.proxy.ask("n1", "query", call)[0]).get("error-reason", ""):
            fail(f"a call that ended with its node: {reply}")
        calls.make(call, "n3", "n1")
        calls.talk(call)
    for call in lost[5:]:
        del calls.up[call]
    wait_for("keys of the dead are swept", lambda: set(call_keys()) == {quoted(call) for call in calls.up})
    start_node("n2")
    shared_by(*NODES)
    scene_calls_alone(calls)
    for call in list(calls.up):
        calls.done(random.choice(NODES), "delete", call, from_tag="a", delete_delay=0)
    wait_for("keys of ended calls are deleted", lambda: not call_keys())
    for node in NODES:
        if http(node, "GET", "/v1/calls") != (200, {"calls": []}):
            fail(f"calls remain at {node}")


def quoted(call):
    return call.replace(" ", "%20").replace("@", "%40")


def scene_calls_twice(calls):
    """A proxy that sends one request to two nodes, at once or one after the other, gets one reply."""
    for number in range(40):
        nodes = random.sample(NODES, 2)
        offer = calls.proxy.message("offer", f"twice {number}", from_tag="a", sdp=Party().sdp())
        first, second = calls.proxy.ask_all(nodes, offer)
        later = calls.proxy.ask_all(NODES, offer)
        if {second, *later} != {first} or b'"result":"ok"' not in first.replace(b" ", b""):
            fail(f"an offer to {nodes} at once, and again to all: {first} {second} {later}")
        calls.done(random.choice(NODES), "delete", f"twice {number}", from_tag="a", delete_delay=0)
    contested = 0
    for node in NODES:
        with open(f"{folder}/{node}.log", errors="replace") as file:
            contested += file.read().count("another node owns the call: this node ends its copy")
    say(f"40 offers to two nodes at once: one reply each; {contested} were made by both at first")
    if contested == 0:
        fail("no two nodes made a call at once, so the test proves nothing")


def scene_calls_http(calls):
    """The same by HTTP."""
    for call in list(calls.up)[:3]:
        shown = [http(node, "GET", f"/v1/calls/{quoted(call)}") for node in NODES]
        if any(code != 200 or found["id"] != call for code, found in shown):
            fail(f"{call} by HTTP: {shown}")
    sides = [{"address": "10.77.0.254:4000", "codec": "PCMU/8000"}, {"address": "10.77.0.254:4002", "codec": "PCMA/8000"}]
    code, made = http("n1", "POST", "/v1/calls", {"id": "by http", "sides": sides})
    again, _ = http("n2", "POST", "/v1/calls", {"id": "by http", "sides": sides})
    held, _ = http("n3", "POST", "/v1/calls/by%20http/hold", {"tag": "a"})
    ended, _ = http("n3", "DELETE", "/v1/calls/by%20http")
    gone = [http(node, "GET", "/v1/calls/by%20http")[0] for node in NODES]
    if (code, again, held, ended, gone) != (201, 409, 204, 204, [404] * 3):
        fail(f"a call by HTTP: {code} {made}, again {again}, held {held}, ended {ended}, gone {gone}")


def scene_calls_ways(calls):
    """The ng protocol by TCP, HTTP and WebSocket: each request to another node."""
    def ask(way, node, command, call, **more):
        message = calls.proxy.message(command, call, **more).decode()
        client = [sys.executable, os.path.join(os.path.dirname(__file__), "ways.py"), way]
        if way == "tcp":
            command_line = [*client, address(node), str(PORT), message]
        else:
            command_line = inside(node, *client, "127.0.0.1", "8080", message)
        done = subprocess.run(command_line, capture_output=True, text=True)
        cookie, _, reply = done.stdout.partition(" ")
        if done.returncode != 0 or cookie != message.split(" ")[0] or json.loads(reply)["result"] != "ok":
            fail(f"{command} by {way} at {node}: {done.stdout} {done.stderr}")
        return json.loads(reply)

    ways = ["tcp", "post", "websocket"]
    for turn in range(3):
        first, second, third = ways[turn:] + ways[:turn]
        call, a, b = f"by {first}", Party(), Party()
        ask(first, "n1", "offer", call, from_tag="a", sdp=a.sdp())
        ask(second, "n2", "answer", call, from_tag="a", to_tag="b", sdp=b.sdp())
        if set(ask(third, "n3", "query", call)["tags"]) != {"a", "b"}:
            fail(f"{call} has other parties")
        ask(first, "n2", "delete", call, from_tag="a", delete_delay=0)
        told = calls.proxy.ask(random.choice(NODES), "query", call)[0]
        if told["result"] != "error":
            fail(f"{call} is still there: {told}")
    say("offer, answer, query and delete by TCP, HTTP and WebSocket, each at another node")


def scene_calls_everywhere(calls):
    """Any node serves the lists, events and audio of all nodes."""
    for node in NODES:
        found, path = {}, "/v1/calls?limit=60&cluster=1"
        while path:
            code, page = http(node, "GET", path)
            if code != 200 or page["missing"] or len(page["calls"]) > 60:
                fail(f"{path} at {node}: {code} {page}")
            found |= {one["id"]: one["node"] for one in page["calls"]}
            path = page["next"]
        if found != {call: owner for call, (owner, *_) in calls.up.items()}:
            fail(f"calls of all nodes, at {node}: {found}")
    start("events", inside("n1", "curl", "-sN", "-o", f"{folder}/events", "http://127.0.0.1:8080/v1/events?cluster=1"))
    number, heard_of = 0, set()
    while heard_of != set(NODES):
        number += 1
        calls.make(f"event {number}", NODES[number % 3], NODES[number % 3])
        calls.done(NODES[number % 3], "delete", f"event {number}", from_tag="a", delete_delay=0)
        del calls.up[f"event {number}"]
        time.sleep(0.05)
        if os.path.exists(f"{folder}/events"):
            with open(f"{folder}/events") as file:
                lines = [line[5:] for line in file if line.startswith("data:") and line.endswith("}\n")]
            heard_of = {one["node"] for one in map(json.loads, lines) if one["id"].startswith("event ")}
        if number > 500:
            fail(f"only events of {heard_of}")
    kill("events").wait()
    call = calls.of("n2")[0]
    url = f"http://127.0.0.1:8080/v1/calls/{quoted(call)}/listen"
    command = inside("n1", "curl", "-sN", "--max-time", "2", "-D", "-", url)
    sound = subprocess.run(command, capture_output=True).stdout
    head, _, wav = sound.partition(b"\r\n\r\n")
    if b"200" not in head.split(b"\r\n")[0] or b"audio/wav" not in head or wav[:4] != b"RIFF" or len(wav) < 16000:
        fail(f"a call of another node: {head}, {len(wav)} bytes of audio")
    say("all nodes' calls and events, and the audio of a call of another one, at any node")
    scene_wall()


def wall(node):
    """Some seconds of the data about all nodes for the page of one node: by node, by kind."""
    command = inside(node, "curl", "-sN", "--max-time", "4", "http://127.0.0.1:8080/v1/wall?cluster=1")
    found, kind = {}, None
    for line in subprocess.run(command, capture_output=True, text=True).stdout.splitlines():
        if line.startswith("event:"):
            kind = line[6:].strip()
        elif line.startswith("data:") and line.endswith("}"):
            data = json.loads(line[5:])
            found.setdefault(data["node"], {}).setdefault(kind, []).append(data)
    return found


def scene_wall():
    """The page shows the streams of all nodes, and requests about a stream are answered by its node."""
    def shows_all(node):
        found = wall(node)
        names = {of: sorted(one["name"] for one in told.get("streams", [{"streams": []}])[-1]["streams"]) for of, told in found.items()}
        there = owners() or {}
        due = {of: sorted(name for name, owner in there.items() if owner == of) for of in NODES}
        moves = all("threads" in told and len(told.get("tiles", [])) > 4 for told in found.values())
        return names if names == due and moves else None

    for node in NODES:
        names = wait_for(f"the streams of all nodes move on the wall of {node}", lambda: shows_all(node))
    stream, owner = names["n2"][0], "n2"
    shown = [http(node, "GET", f"/v1/streams/{stream}?node={owner}") for node in NODES]
    if any(code != 200 or one["name"] != stream or one["packets"] == 0 for code, one in shown):
        fail(f"{stream} of {owner}, at each node: {shown}")
    history = [http(node, "GET", f"/v1/streams/{stream}/history?seconds=10&step=1&node={owner}")[0] for node in NODES]
    reset = http("n3", "POST", f"/v1/streams/{stream}/loudness/reset?node={owner}")[0]
    elsewhere = http("n1", "GET", f"/v1/streams/{stream}")[0]
    nobody = http("n1", "GET", f"/v1/streams/{stream}?node=n9")[0]
    if (history, elsewhere, nobody) != ([200] * 3, 404, 503) or reset not in (204, 409):
        fail(f"{stream} of {owner}: {history}, {reset}, at another node {elsewhere}, of an unknown node {nobody}")
    url = f"http://127.0.0.1:8080/v1/streams/{stream}/listen?node={owner}"
    def is_heard():
        sound = subprocess.run(inside("n1", "curl", "-sN", "--max-time", "2", url), capture_output=True).stdout
        return sound[:4] == b"RIFF" and len(sound) > 8000

    wait_for(f"{stream} of {owner} is heard at n1", is_heard)
    say("all nodes' streams on the wall of any node, and one of another node heard")


def scene_calls_alone(calls):
    """Without etcd, calls continue; new ones are accepted if the configuration allows it."""
    for name in STORES[:2]:
        kill(name).wait()
    wait_for("nodes have seen it", lambda: not any(status(node)["is_live"] for node in NODES))
    for node in NODES:
        for call in calls.of(node)[:3]:
            calls.done(node, "query", call)
            calls.talk(call)
    refused, took = calls.proxy.ask("n1", "offer", "alone 1", from_tag="a", sdp=Party().sdp())
    if "etcd does not answer" not in refused.get("error-reason", ""):
        fail(f"a call without etcd: {refused}")
    calls.make("alone 3", "n3", "n3")
    calls.talk("alone 3")
    for name in STORES[:2]:
        start_store(name)
    shared_by(*NODES)
    wait_for("its key is written", lambda: quoted("alone 3") in call_keys())
    calls.done("n1", "query", "alone 3")
    say(f"a new call without etcd is refused within {took:.0f} ms, and made where that is wanted")


def certify(name, *extensions):
    """A key and its certificate, signed by the test's own authority."""
    made = lambda *words: subprocess.run(["openssl", *words], check=True, cwd=folder, capture_output=True)
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}"]
    if not os.path.exists(f"{folder}/ca.pem"):
        made("req", "-x509", *curve, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2")
    made("req", *curve, "-keyout", f"{name}.key", "-out", f"{name}.csr")
    with open(f"{folder}/{name}.ext", "w") as file:
        file.write("\n".join(extensions))
    made("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
         "-extfile", f"{name}.ext", "-days", "2", "-out", f"{name}.pem")


def scene_login():
    """An etcd that requires certificates and a user."""
    url, peer = f"https://{address('e1')}:2479", f"http://{address('e1')}:2480"
    certify("server", f"subjectAltName=IP:{address('e1')}")
    certify("client", "extendedKeyUsage=clientAuth")
    start("guarded", inside(
        "e1", "etcd", "--name", "guarded", "--data-dir", f"{folder}/guarded", "--initial-cluster", f"guarded={peer}",
        "--listen-client-urls", url, "--advertise-client-urls", url, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
        "--cert-file", f"{folder}/server.pem", "--key-file", f"{folder}/server.key",
        "--trusted-ca-file", f"{folder}/ca.pem", "--client-cert-auth", "--logger", "zap", "--log-level", "error"))

    def etcd(*words):
        command = inside("e1", "etcdctl", "--endpoints", url, "--cacert", f"{folder}/ca.pem",
                         "--cert", f"{folder}/client.pem", "--key", f"{folder}/client.key", *words)
        return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"ETCDCTL_API": "3"})

    wait_for("the guarded etcd", lambda: etcd("endpoint", "health").returncode == 0)
    for words in [
        ("user", "add", "root:all"), ("user", "grant-role", "root", "root"),
        ("user", "add", "gateway:open"), ("role", "add", "keys"),
        ("role", "grant-permission", "keys", "--prefix=true", "readwrite", "/threadbare"),
        ("user", "grant-role", "gateway", "keys"), ("auth", "enable"),
    ]:
        if (done := etcd(*words)).returncode != 0:
            fail(f"etcdctl {' '.join(words)}: {done.stderr}")
    for name, password, ca in [("good", "open", "ca"), ("wrong", "shut", "ca"), ("stranger", "open", "client")]:
        with open(f"{folder}/{name}.password", "w") as file:
            file.write(password)
        port = 8081 + len(name)
        with open(f"{folder}/{name}.toml", "w") as file:
            file.write(f"""
[cluster]
endpoints = ["{url}"]
node = "{name}"
ca = "{folder}/{ca}.pem"
cert = "{folder}/client.pem"
key = "{folder}/client.key"
user = "gateway"
password-file = "{folder}/{name}.password"
[http]
listen = "127.0.0.1:{port}"
[ng]
listen = "127.0.0.1:{port}"
[interfaces.only]
address = "127.0.0.1"
""")
        start(name, inside("n1", program, "run", f"{folder}/{name}.toml"))
        wait_for(f"{name} serves", lambda: f"http=127.0.0.1:{port}" in open(f"{folder}/{name}.log").read())
        looks = lambda: http("n1", "GET", "/v1/cluster", port=port)[1]
        if name == "good":
            wait_for("a node with a user is in", lambda: looks()["is_live"])
        else:
            shown = wait_for(f"{name} is told why it is not in", lambda: looks() if "etcd_error" in looks() else None)
            if shown["is_live"] or "open" in shown["etcd_error"] or "shut" in shown["etcd_error"]:
                fail(f"{name}: {shown}")
            say(f"{name}: {shown['etcd_error']}")
    for name in ["good", "wrong", "stranger", "guarded"]:
        kill(name).wait()


def scene_takeover():
    """Nodes with service addresses, and no streams."""
    check_senders()
    takeover.run(sys.modules[__name__])


def cluster_cpu(node):
    """CPU time of the cluster's thread, s."""
    for task in glob.glob(f"/proc/{processes[node].pid}/task/*"):
        with open(f"{task}/comm") as comm, open(f"{task}/schedstat") as stat:
            if comm.read().strip() == "cluster":
                return int(stat.read().split()[0]) / 1e9
    return fail(f"{node} has no cluster thread")


def revision():
    return json.loads(etcdctl("endpoint", "status", "-w", "json").stdout)[0]["Status"]["header"]["revision"]


def measure_load():
    """The cluster's cost for etcd and for a node whose streams do not move. The streams get no packets."""
    for left in [NODES, NODES[:1]]:
        for node in NODES:
            if node not in left and node in processes:
                kill(node).wait()
        found = wait_for(f"{', '.join(left)} have all", lambda: (all_at := owners()) and set(all_at.values()) == set(left) and all_at)
        counts = [list(found.values()).count(node) for node in left]
        # The nodes have finished the work that this caused.
        time.sleep(5)
        begin, before, first = time.monotonic(), [cluster_cpu(node) for node in left], revision()
        time.sleep(20)
        took = time.monotonic() - begin
        cpu = [100 * (cluster_cpu(node) - before) / took for node, before in zip(left, before)]
        writes = (revision() - first) / took / len(left)
        say(f"{streams} streams, {counts} at a node: the cluster takes {', '.join(f'{one:.2f}' for one in cpu)} % of a core there, "
            f"and {writes:.1f} writes a second of each node")


SCENES = {
    "login": scene_login,
    "calls": scene_calls,
    "kill": scene_kill,
    "machine": scene_machine,
    "two": scene_two,
    "freeze": scene_freeze,
    "partition": scene_partition,
    "drain": scene_drain,
    "operator": scene_operator,
    "store": scene_store,
    "isolation": scene_isolation,
    "compaction": scene_compaction,
    # The last scene uses other nodes, without the streams.
    "takeover": scene_takeover,
}

with open(f"{folder}/cluster.key", "w") as key:
    key.write(os.urandom(32).hex())
network.build(STORES + NODES)
start("capture", [sys.executable, f"{here}/capture.py", f"{folder}/heard"])
if scenes != ["load"]:
    start("send", [sys.executable, f"{here}/send.py", str(streams)])
for store in STORES:
    start_store(store)
wait_for("etcd is well", lambda: etcdctl("endpoint", "health").returncode == 0)
wait_for("the capture", lambda: os.path.exists(f"{folder}/heard"))
heard = Heard()
for node in NODES:
    write_config(node)
    start_node(node)
if scenes == ["load"]:
    try:
        measure_load()
    finally:
        for process in processes.values():
            process.kill()
    say("fine")
    sys.exit()
found = shared_by(*NODES)
counts = [sum(1 for one in found.values() if one == node) for node in NODES]
say(f"{streams} streams on three nodes: {counts}")
try:
    for scene in scenes or SCENES:
        SCENES[scene]()
    if "takeover" not in (scenes or SCENES):
        check_senders()
finally:
    for process in processes.values():
        process.send_signal(signal.SIGCONT)
        process.kill()
say("fine")
