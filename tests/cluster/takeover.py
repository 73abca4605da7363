"""Calls that move to another node: scene `takeover` of check.py, whose parts are listed in `main`."""

import bisect
import json
import selectors
import signal
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time

import network
from network import address
from proxy import PORT, Party, Proxy, place

# Calls of each node whose parties send all the time, in addition to calls without media.
TALKING, QUIET = 8, 25
# A Linux constant that Python does not name.
SO_TIMESTAMPNS = 35
# Limit of a node, which has more calls after it takes over those of another.
SESSIONS_MAX = 60


def service(name):
    """The address of a node's calls."""
    return f"10.77.0.{30 + int(name[1:])}"


def service_6(name):
    return f"fd77::{30 + int(name[1:])}"


def write_config(main, name):
    endpoints = ", ".join(f'"http://{address(one)}:2379"' for one in main.STORES)
    with open(f"{main.folder}/{name}.toml", "w") as file:
        file.write(f"""
[cluster]
endpoints = [{endpoints}]
node = "{name}"
listen = "{address(name)}:2400"
key-file = "{main.folder}/cluster.key"
service-addresses = ["{service(name)}/24@eth0", "{service_6(name)}/64@eth0"]
[http]
listen = "127.0.0.1:8080"
[ng]
listen = "{address(name)}:{PORT}"
allow = ["{network.BRIDGE}"]
[limits]
max-sessions = {SESSIONS_MAX}
[interfaces.only]
address = "{service(name)}"
[interfaces.other]
address = "{service_6(name)}"
""")


def ulaw(code):
    """The value of a G.711 code, of 32768 (ITU-T G.711, table 2)."""
    code = ~code & 0xFF
    level = (((code & 0x0F) << 3) + 0x84 << (code >> 4 & 7)) - 0x84
    return -level if code & 0x80 else level


def alaw(code):
    """The same for A-law (table 1)."""
    code ^= 0x55
    level, segment = (code & 0x0F) << 4, code >> 4 & 7
    level = level + 8 if segment == 0 else level + 0x108 << segment - 1
    return level if code & 0x80 else -level


# A packet has one level throughout, and the next packet has the next level.
WORDS = [0x80 + 4 * n for n in range(24)]
LEVELS = [ulaw(word) for word in WORDS]


def word_in(sound, payload_type):
    """The level of a packet; `None`: none of them, because the packet replaces a lost one."""
    if len(set(sound)) != 1:
        return None
    level = ulaw(sound[0]) if payload_type == 0 else alaw(sound[0])
    near = min(range(len(LEVELS)), key=lambda n: abs(LEVELS[n] - level))
    return near if abs(LEVELS[near] - level) <= LEVELS[near] / 30 + 8 else None


AS_ALAW = {word: min(range(256), key=lambda code: abs(alaw(code) - ulaw(word))) for word in WORDS}

class Talk(threading.Thread):
    """Lets parties send 50 packets a second, and notes what they receive: time, SSRC, number, timestamp, level."""

    def __init__(self):
        super().__init__(daemon=True)
        # The levels that each party received, and the send time of each of its packets.
        self.parties, self.heard, self.said = [], [], []
        self.selector = selectors.DefaultSelector()
        self.ends = False
        self.lock = threading.Lock()

    def add(self, party, to):
        party.socket.setblocking(False)
        # The kernel's time, because this thread may be busy when a packet arrives.
        party.socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        with self.lock:
            self.selector.register(party.socket, selectors.EVENT_READ, len(self.parties))
            self.parties.append((party, to))
            self.heard.append([])
            self.said.append([0] * party.number)
        return len(self.parties) - 1

    def run(self):
        due = time.monotonic()
        while not self.ends:
            with self.lock:
                for (party, to), said in zip(self.parties, self.said):
                    word = WORDS[party.number % len(WORDS)]
                    said.append(time.time_ns())
                    # From a party with A-law, the level is almost the same.
                    party.say(to, bytes([word if party.payload_type == 0 else AS_ALAW[word]]) * 160)
            due += 0.02
            while (left := due - time.monotonic()) > 0:
                for key, _ in self.selector.select(left):
                    self.take(key)

    def take(self, key):
        try:
            data, [(_, _, when)], *_ = key.fileobj.recvmsg(2048, 64)
        except BlockingIOError:
            return
        seconds, nanoseconds = struct.unpack("qq", when)
        at = seconds * 10**9 + nanoseconds
        # Only payload types in use; RTCP has others.
        if len(data) >= 12 and data[1] & 0x7F in (0, 8):
            seq, stamp, ssrc = struct.unpack("!HII", data[2:12])
            word = word_in(data[12:], data[1] & 0x7F)
            self.heard[key.data].append((at, ssrc, seq, stamp, word))

    def delays(self, party, other):
        """When a party received the other one's packet, and how long after it was sent, ns."""
        said, delays = self.said[other], []
        for at, _, _, _, word in self.heard[party]:
            if word is None:
                continue
            # The latest packet with this level within half a second.
            last = bisect.bisect_right(said, at) - 1
            number = last - (last - word) % len(WORDS)
            if number >= 0:
                delays.append((at, at - said[number]))
        return delays

    def since(self, party, begin):
        """The packets, with the last one before."""
        packets = self.heard[party]
        first = max((i for i, one in enumerate(packets) if one[0] < begin), default=0)
        return packets[first:]


class Asker(threading.Thread):
    """Sends requests about moving calls to nodes all the time. The node that has the call must answer each."""

    def __init__(self, nodes, calls):
        super().__init__(daemon=True)
        self.proxy = Proxy()
        self.nodes, self.calls = nodes, calls
        self.asked, self.wrong, self.ends = 0, [], False

    def run(self):
        while not self.ends:
            node, call = self.nodes[self.asked % len(self.nodes)], self.calls[self.asked % len(self.calls)]
            self.asked += 1
            try:
                reply, _ = self.proxy.ask(node, "query", call)
            except TimeoutError as error:
                reply = {"result": str(error)}
            if reply["result"] != "ok":
                self.wrong.append((node, call, reply))

    def end(self, main):
        self.ends = True
        self.join()
        if self.asked < len(self.calls):
            main.fail(f"{self.asked} requests for {len(self.calls)} moving calls, so the test proves nothing")
        if self.wrong:
            main.fail(f"of {self.asked} requests for moving calls, {len(self.wrong)} got a wrong reply: {self.wrong[:3]}")


class Sniffer(threading.Thread):
    """Counts packets that a node sends from an address."""

    def __init__(self, node, source):
        super().__init__(daemon=True)
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
        self.socket.bind((f"to-{node}", 0x0800))
        self.socket.settimeout(0.1)
        self.source = socket.inet_aton(source)
        self.count, self.ends = 0, False

    def run(self):
        while not self.ends:
            try:
                frame, (_, _, kind, *_) = self.socket.recvfrom(2048)
            except TimeoutError:
                continue
            # From the node, not to it: the bridge forwards it outwards.
            if kind != socket.PACKET_OUTGOING and frame[23] == 17 and frame[26:30] == self.source:
                self.count += 1

    def end(self):
        self.ends = True
        self.join()
        return self.count


class Advertisements(threading.Thread):
    """Notes unsolicited announcements of an address to all nodes (RFC 4861, section 7.2.6)."""

    def __init__(self, target):
        super().__init__(daemon=True)
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x86DD))
        self.socket.bind(("br0", 0x86DD))
        self.socket.settimeout(0.1)
        self.target = socket.inet_pton(socket.AF_INET6, target)
        self.all_nodes = socket.inet_pton(socket.AF_INET6, "ff02::1")
        self.said, self.ends = [], False

    def run(self):
        while not self.ends:
            try:
                frame = self.socket.recv(2048)
            except TimeoutError:
                continue
            # ICMPv6 to all nodes: an advertisement of the target with the override flag, followed by the link-layer address.
            is_one = len(frame) >= 86 and frame[20] == 58 and frame[38:54] == self.all_nodes and frame[54] == 136
            if is_one and frame[62:78] == self.target and frame[58] & 0x20 and frame[78:80] == b"\x02\x01":
                self.said.append(frame[80:86].hex(":"))

    def end(self):
        self.ends = True
        self.join()


class Scene:
    def __init__(self, main):
        # The parties' thread must not wait long for this one.
        sys.setswitchinterval(0.0005)
        self.main = main
        self.calls = main.Calls()
        self.talk = Talk()
        # For each call, the parties whose packets are checked.
        self.talking = {}
        # For each hand-over, the lost packets of each party.
        self.unheard = {}

    def carriers(self):
        claims, nodes = self.main.keys("/threadbare/claims/"), self.main.keys("/threadbare/nodes/")
        if not claims or not nodes:
            return None
        found = {}
        for name, claim in claims.items():
            node = nodes.get(claim["node"])
            if "next" in claim or "deputy" in claim or node is None or node["incarnation"] != claim["incarnation"]:
                return None
            found[name] = claim["node"]
        return found

    def carried(self, **wanted):
        """Each service is at its expected node, and its addresses are only there."""
        def look():
            found = self.carriers()
            if not found:
                return None
            for name, node in found.items():
                if node not in wanted.get(name.removeprefix("service:"), node):
                    return None
                name = name.removeprefix("service:")
                if not has_address(node, service(name)) or not has_address(node, service_6(name)):
                    return None
            return found
        return self.main.wait_for(f"services are at {wanted}", look)

    def make(self, number, codec):
        """A call at any node; with `codec`, its audio is converted."""
        call = f"takeover {number}"
        a, b = Party(), Party()
        nodes = self.main.NODES
        offered, answered = nodes[number % 3], nodes[number // 3 % 3]
        more = {"flags": [f"codec-transcode-{codec}", "codec-mask-PCMU"]} if codec else {}
        offer = self.calls.done(offered, "offer", call, from_tag="a", sdp=a.sdp(), **more)
        sdp = b.sdp()
        if codec:
            b.payload_type = 8
            sdp = sdp.replace("RTP/AVP 0", "RTP/AVP 8")
        answer = self.calls.done(answered, "answer", call, from_tag="a", to_tag="b", sdp=sdp)
        places = place(answer["sdp"]), place(offer["sdp"])
        node = next((node for node in nodes if service(node) == places[0][0]), None)
        if node is None or places[1][0] != places[0][0]:
            self.main.fail(f"{call} is at {places}")
        self.calls.up[call] = node, a, b, places
        return call

    def make_secure(self, number):
        """Two calls in a row with SRTP between them: audio arrives after them only if both continue with their keys and indices."""
        nodes = self.main.NODES
        first, second = f"takeover srtp {number} a", f"takeover srtp {number} b"
        a, b = Party(), Party()
        # Mostly on two nodes: media between them have moving addresses at both ends.
        at, then = nodes[number % 3], nodes[(number + 1) % 3]
        between = self.calls.done(at, "offer", first, from_tag="a", sdp=a.sdp(), transport_protocol="RTP/SAVP")
        if "a=crypto:" not in between["sdp"]:
            self.main.fail(f"no keys: {between}")
        offer = self.calls.done(then, "offer", second, from_tag="a", sdp=between["sdp"], transport_protocol="RTP/AVP")
        back = self.calls.done(then, "answer", second, from_tag="a", to_tag="b", sdp=b.sdp())
        answer = self.calls.done(at, "answer", first, from_tag="a", to_tag="b", sdp=back["sdp"])
        places = place(answer["sdp"]), place(offer["sdp"])
        owners = [next(node for node in nodes if service(node) == host) for host, _ in places]
        self.calls.up[first] = owners[0], a, b, places
        self.calls.up[second] = owners[1], b, a, places
        self.talking[first] = self.talk.add(a, places[0]), self.talk.add(b, places[1])

    def begin(self):
        main = self.main
        for name in main.NODES:
            main.kill(name, signal.SIGTERM).wait(main.SECONDS_MAX)
        main.etcdctl("del", "--prefix", "/threadbare")
        for name in main.NODES:
            write_config(main, name)
            main.start_node(name)
        self.carried(n1=["n1"], n2=["n2"], n3=["n3"])
        main.wait_for("all nodes take calls", lambda: all(one.get("room", 0) > 0 for one in main.status("n1")["nodes"]))
        for number in range(3 * (TALKING + QUIET)):
            self.make(number, "PCMA" if number % 4 == 3 else None)
        for node in main.NODES:
            for call in self.calls.of(node)[:TALKING]:
                _, a, b, (for_a, for_b) = self.calls.up[call]
                self.talking[call] = self.talk.add(a, for_a), self.talk.add(b, for_b)
        for number in range(9):
            self.make_secure(number)
        counts = [len(self.calls.of(node)) for node in main.NODES]
        main.say(f"{sum(counts)} calls are at {counts}")
        self.talk.start()
        self.all_heard()

    def all_heard(self):
        """All parties receive current audio, long enough for the other nodes to have copies of its position."""
        begin = time.time_ns()
        late = begin + 2500000000
        heard = self.talk.heard
        self.main.wait_for("all parties hear each other", lambda: all(one and one[-1][0] > late for one in heard))

    def ask(self, *nodes, of):
        asker = Asker(nodes, self.calls.of(of))
        asker.start()
        return asker

    def parties_of(self, *nodes):
        """The parties at these nodes, their peers, and whether another of the nodes is between them."""
        pairs = [(call, *self.talking[call]) for call in self.calls.of(*nodes) if call in self.talking]
        return [(*pair, "srtp" in call) for call, a, b in pairs for pair in [(a, b), (b, a)]]

    def told(self, what, begin, node):
        """Effects on the parties of a node's calls."""
        gaps, lost, others, back, unheard, most, later = [], 0, 0, 0, [], 0, []
        for party, other, is_between in self.parties_of(node):
            delays = self.talk.delays(party, other)
            # The jitter buffer of the second of two calls in a row may differ.
            if not is_between:
                before = max(delay for at, delay in delays if begin - 2 * 10**9 < at < begin)
                later.append(max((delay - before for at, delay in delays if at >= begin), default=0) / 1e6)
            packets = self.talk.since(party, begin)
            words = [one[4] for one in packets if one[4] is not None]
            steps = [(b - a) % len(WORDS) for a, b in zip(words, words[1:])]
            # While both nodes have the address, the first node's kernel drops packets that the next one sends to calls there.
            if not is_between:
                unheard.append(sum(step - 1 for step in steps if step > 0))
            gaps.append(max(((b[0] - a[0]) / 1e6 for a, b in zip(packets, packets[1:])), default=0))
            lost_before = lost
            for a, b in zip(packets, packets[1:]):
                step = (b[2] - a[2]) % 65536
                others += a[1] != b[1]
                if a[1] == b[1] and (step == 0 or step > 32768):
                    back += 1
                    numbers = [one[2] for one in packets if abs(one[0] - b[0]) < 200 * 10**6]
                    self.main.say(f"number {b[2]} comes twice or late in {numbers}")
                lost += step - 1 if a[1] == b[1] and 0 < step < 32768 else 0
            most = max(most, lost - lost_before)
        self.main.say(f"{what}: {len(gaps)} parties heard nothing for {statistics.median(gaps):.0f} ms (median), {max(gaps):.0f} ms (longest); "
                      f"packets came later than the latest of two seconds before by {max(statistics.median(later), 0):.0f} ms (median), {max(*later, 0):.0f} ms (longest); "
                      f"{lost} numbers left out, {others} new SSRCs, {back} numbers twice or back; "
                      f"of what was said, {sum(unheard)} packets were not heard ({max(unheard)} of one party at most)")
        return most, others, back, unheard

    def check_all(self):
        """Each node knows each call, and none was created again."""
        for number, call in enumerate(self.calls.up):
            self.calls.done(self.main.NODES[number % 3], "query", call)

    def dies(self):
        """kill -9: another node continues the calls from the copies of their streams."""
        main = self.main
        asker = self.ask("n1", "n3", of="n2")
        begin = time.time_ns()
        main.kill("n2").wait()
        found = self.carried(n2=["n1", "n3"])
        self.all_heard()
        asker.end(main)
        _, others, back, _ = self.told("kill -9", begin, "n2")
        if others or back:
            main.fail("streams of a node that died must continue with their SSRCs and unused numbers")
        main.say(f"kill -9: the calls of n2 are at {found['service:n2']}")
        main.wait_for("the kernel has taken the address off", lambda: not has_address("n2", service("n2")))
        for call in self.calls.up:
            self.calls.done("n1", "query", call)
        # In-dialog requests, and new calls.
        call = self.calls.of("n2")[0]
        _, a, *_ = self.calls.up[call]
        again = self.calls.done("n3", "offer", call, from_tag="a", to_tag="b", sdp=a.sdp())
        if place(again["sdp"])[0] != service("n2"):
            main.fail(f"a re-INVITE of a call that moved: {again}")
        self.is_over_its_limit(found["service:n2"])
        asker = self.ask("n1", "n3", of="n2")
        begin = time.time_ns()
        main.start_node("n2")
        self.carried(n2=["n2"])
        self.all_heard()
        asker.end(main)
        self.handed_over("n2 is back", begin, "n2")

    def is_over_its_limit(self, node):
        """All calls of a service continue, whatever `max-sessions` is: new ones are made at other nodes."""
        main = self.main
        room = lambda: next(one["room"] for one in main.status("n1")["nodes"] if one["node"] == node)
        main.wait_for("a node with more calls than it may have has no room", lambda: room() == 0)
        if len(self.calls.of(node, "n2")) <= SESSIONS_MAX:
            main.fail("no node exceeds its limit, so the test proves nothing")
        offer = self.calls.done(node, "offer", "one more", from_tag="a", sdp=Party().sdp())
        if place(offer["sdp"])[0] in (service(node), service("n2")):
            main.fail(f"a new call is at {node}, which exceeds its limit")
        self.calls.done(node, "delete", "one more", from_tag="a", delete_delay=0)

    def cannot_reach(self):
        """The next node cannot reach the first one, and reads the missing state from etcd. The addresses are still at one node only."""
        main = self.main
        for pair in [("n1", "n2"), ("n2", "n1")]:
            network.cut(*pair)
        begin = time.time_ns()
        main.operator("n3", "move", "service:n1", "n2")
        self.carried(n1=["n2"])
        main.wait_for("the first node has not its address any more", lambda: not has_address("n1", service("n1")))
        self.all_heard()
        self.told("handed over without a word", begin, "n1")
        for pair in [("n1", "n2"), ("n2", "n1")]:
            network.mend(*pair)
        # Meanwhile the nodes connect to each other again.
        self.all_heard()
        begin = time.time_ns()
        main.operator("n3", "move", "service:n1", "n1")
        self.carried(n1=["n1"])
        self.all_heard()
        self.handed_over("and back, with words", begin, "n1")

    def handed_over(self, what, begin, node):
        most, others, back, unheard = self.told(what, begin, node)
        if others or back:
            self.main.fail("calls that move must keep their SSRCs and numbers")
        # For two seconds under any load: the kernel drops packets from an address that it takes for its own.
        if most > 100:
            self.main.fail(f"a party missed {most} packets in one or two rows")
        self.unheard[what] = unheard

    def freezes(self):
        """SIGSTOP for 10 s: when it wakes, it sends nothing."""
        main = self.main
        begin = time.time_ns()
        main.processes["n1"].send_signal(signal.SIGSTOP)
        found = self.carried(n1=["n2", "n3"])
        self.all_heard()
        self.told("frozen", begin, "n1")
        # It must not come back yet.
        main.operator(found["service:n1"], "move", "service:n1", found["service:n1"])
        time.sleep(max(0, 10 - (time.time_ns() - begin) / 1e9))
        sniffer = Sniffer("n1", service("n1"))
        sniffer.start()
        main.processes["n1"].send_signal(signal.SIGCONT)
        main.wait_for("n1 is in again", lambda: main.status("n1")["is_live"])
        time.sleep(1)
        if sent := sniffer.end():
            main.fail(f"a node that was frozen has sent {sent} packets of calls that moved")
        if has_address("n1", service("n1")):
            main.fail("a node that was frozen has its address back")
        main.say("frozen: 0 packets when it went on")
        asker = self.ask(*main.NODES, of="n1")
        begin = time.time_ns()
        main.operator("n2", "move", "service:n1", "n1")
        self.carried(n1=["n1"])
        self.all_heard()
        asker.end(main)
        self.handed_over("cluster move", begin, "n1")

    def stops(self):
        # Its neighbours know the address.
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as neighbour:
            neighbour.sendto(b"x", (service_6("n3"), 9))
        self.main.wait_for("a neighbour knows where it is", lambda: neighbour_of("n3") == network.mac("n3"))
        advertised = Advertisements(service_6("n3"))
        advertised.start()
        begin = time.time_ns()
        process = self.main.kill("n3", signal.SIGTERM)
        if process.wait(self.main.SECONDS_MAX) != 0:
            self.main.fail(f"a node that is stopped ends with {process.returncode}")
        found = self.carried(n3=["n1", "n2"])
        now = network.mac(found["service:n3"])
        self.main.wait_for("the new place is advertised", lambda: now in advertised.said)
        self.main.wait_for("a neighbour has learned it", lambda: neighbour_of("n3") == now)
        advertised.end()
        if set(advertised.said) != {now}:
            self.main.fail(f"others have announced {service_6('n3')}: {advertised.said}")
        self.all_heard()
        self.handed_over("SIGTERM", begin, "n3")
        self.main.start_node("n3")
        self.carried(n3=["n3"])
        self.all_heard()

    def is_alone(self):
        """Without etcd, another node might have its address: the calls pause, and continue with etcd."""
        main = self.main
        begin = time.time_ns()
        for name in main.STORES[:2]:
            main.kill(name).wait()
        main.wait_for("nodes have seen it", lambda: not any(main.status(node)["is_live"] for node in main.NODES))
        main.wait_for("no node has its address", lambda: not any(has_address(node, service(node)) for node in main.NODES))
        sniffers = [Sniffer(node, service(node)) for node in main.NODES]
        for sniffer in sniffers:
            sniffer.start()
        said = self.talk.parties[0][0].number
        main.wait_for("parties talk for a second", lambda: self.talk.parties[0][0].number > said + 50)
        if sent := sum(sniffer.end() for sniffer in sniffers):
            main.fail(f"{sent} packets from addresses that others might have")
        for name in main.STORES[:2]:
            main.start_store(name)
        self.carried(n1=main.NODES, n2=main.NODES, n3=main.NODES)
        self.all_heard()
        self.told("two of three etcd are dead", begin, "n1")
        self.carried(n1=["n1"], n2=["n2"], n3=["n3"])

    def ends(self):
        main = self.main
        self.check_all()
        command = main.inside("n1", "etcdctl", "--endpoints", f"http://{address('e1')}:2379", "get", "--prefix", "/threadbare-states/")
        states = subprocess.run(command, capture_output=True, check=True).stdout
        if len(states) < 1000 or b"PCM" in states or b"takeover 1\0" in states:
            main.fail("states of calls can be read in etcd")
        for number, call in enumerate(list(self.calls.up)):
            self.calls.done(main.NODES[number % 3], "delete", call, from_tag="a", delete_delay=0)
        left = lambda: main.etcdctl("get", "--prefix", "--keys-only", "/threadbare-states/").stdout.strip()
        main.wait_for("keys of ended calls are deleted", lambda: not main.call_keys() and not left())
        self.talk.ends = True
        self.talk.join()
        main.kill("n3", signal.SIGTERM).wait(main.SECONDS_MAX)
        self.carried(n3=["n1", "n2"])
        self.takes_none()
        # A node that is gone for good: its service ends when it is no longer declared.
        main.kill("n3", signal.SIGTERM).wait(main.SECONDS_MAX)
        main.etcdctl("del", "/threadbare/streams/service:n3")
        main.wait_for("nobody has its address", lambda: not any(has_address(node, service("n3")) for node in main.NODES))

    def takes_none(self):
        """A node without a key for calls: no service moves to it, and its own stays."""
        main = self.main
        path = f"{main.folder}/n3.toml"
        with open(path) as file:
            lines = file.read().splitlines()
        with open(path, "w") as file:
            file.write("\n".join(line for line in lines if not line.startswith(("key-file", "service-addresses"))))
        main.start_node("n3")
        main.wait_for("n3 is in", lambda: any(one["node"] == "n3" for one in main.status("n1")["nodes"]))
        before = self.carried(n1=["n1"], n3=["n1", "n2"])
        refused = subprocess.run(main.inside("n1", main.program, "cluster", "move", "service:n1", "n3"), capture_output=True, text=True)
        if refused.returncode == 0 or 'node "n3" accepts no calls' not in refused.stderr:
            main.fail(f"a service is moved to a node that takes no calls: {refused}")
        if (now := self.carriers()) != before:
            main.fail(f"services were at {before}, and are at {now}")


def has_address(node, wanted):
    shown = subprocess.run(["ip", "-n", node, "-o", "address", "show", "dev", "eth0"], capture_output=True, text=True)
    return f" {wanted}/" in shown.stdout


def neighbour_of(name):
    """The device with a node's IPv6 address, as neighbours on the bridge see it."""
    shown = subprocess.run(["ip", "-6", "neigh", "show", service_6(name), "dev", "br0"], capture_output=True, text=True).stdout.split()
    return shown[shown.index("lladdr") + 1] if "lladdr" in shown else None


def written(main):
    """Number of writes of each call's keys."""
    found = {}
    for prefix in ["/threadbare-calls/", "/threadbare-states/"]:
        kvs = json.loads(main.etcdctl("get", "--prefix", prefix, "-w", "json").stdout).get("kvs", [])
        found[prefix] = sorted({kv["version"] for kv in kvs})
    return found


def run(main):
    scene = Scene(main)
    scene.begin()
    main.say(f"keys of calls were written {written(main)} times")
    scene.dies()
    scene.freezes()
    scene.stops()
    # No audio of that time is lost in at least one of the hand-overs; a busy machine may be too late for some.
    unheard = {what: sum(counts) for what, counts in scene.unheard.items()}
    if min(unheard.values()) > 0:
        main.fail(f"hand-overs have lost packets: {unheard}")
    scene.is_alone()
    scene.cannot_reach()
    scene.ends()
