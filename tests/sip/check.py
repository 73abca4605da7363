"""Checks a capture of all calls of tests/sip.sh: the media between the addresses in the captured SDPs.

    check.py CAPTURE RELAY

It uses no log or counter: a packet counts if it was captured between the ports in the SDPs. Prints a line for each kind of call;
ends with status 1 if anything is not as expected.
"""

import base64
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict, namedtuple
from pathlib import Path

import capture

PROXY = ("127.0.0.1", 5060)
RELAY_ADDRESS = "127.0.0.1"
CALLER_ADDRESSES = ("127.0.1.1", "192.0.2.1")
# Phones bind their ports to all addresses. On one machine, their packets to the relay come from the relay's own address, and the
# relay answers there. So the port identifies a phone.
PHONES = ("192.0.2.1", "192.0.2.2")

# The calls of tests/sip.sh, by the called user. `packets`: how many each side sends; None: until the call ends.
# `caller_hz`, `callee_hz`: the tone that the side sends.
Kind = namedtuple("Kind", "calls packets caller_hz callee_hz")
KINDS = {
    "plain": Kind(50, 150, 500, 1250),
    "alaw": Kind(50, 150, 500, 1250),
    "hold": Kind(5, 100, 500, 1250),
    "cancel": Kind(5, 0, None, None),
    "lost": Kind(5, 150, 500, 1250),
    "srtp": Kind(1, None, 500, 1250),
    "tone": Kind(1, None, 700, 1250),
    "restart": Kind(5, 150, 500, 1250),
}
# While the relay restarts, packets are lost: at most a second of them.
RESTART_LOST_MAX = 50
# A receiver takes a larger step for another stream (RFC 3550, A.1: MAX_DROPOUT).
RESTART_STEP_MAX = 3000
# In a call without a fixed length: at least two seconds, of which the last packets may be lost.
LASTING_PACKETS_MIN = 100
LASTING_LOST_MAX = 15
# A relay may soften a sender's sudden end.
TAIL_PACKETS_MAX = 10
# A tone is measured by its zero crossings.
TONE_ERROR_MAX = 0.02
CRYPTO_SUITE = "AES_CM_128_HMAC_SHA1_80"
LAWS = {0: "mulaw", 8: "alaw"}


class Sdp:
    """The relevant parts of a description with one m-line."""

    def __init__(self, text):
        self.address = find(r"^c=IN IP4 (\S+)", text)
        self.port = int(find(r"^m=audio (\d+)", text))
        self.protocol = find(r"^m=audio \d+ (\S+)", text)
        self.payload_types = [int(one) for one in find(r"^m=audio \d+ \S+ (.*?)\s*$", text).split()]
        self.direction = find(r"^a=(sendrecv|sendonly|recvonly|inactive)\s*$", text) or "sendrecv"
        self.crypto = re.findall(r"^a=crypto:\d+ (\S+) inline:([^\s|]+)", text, re.M)

    @property
    def endpoint(self):
        return self.address, self.port


class Call:
    """The descriptions of a call, by author and reader, in order, without repetitions."""

    def __init__(self, user):
        self.user = user
        self.sdps = defaultdict(list)
        self.replies = []

    def note(self, packet, first, sdp):
        reply = first.startswith("SIP/2.0")
        if reply:
            self.replies.append(int(first.split()[1]))
        if sdp is None:
            return
        caller = packet.source[0] in CALLER_ADDRESSES or packet.target[0] in CALLER_ADDRESSES
        author = "relay" if packet.source == PROXY else "own"
        known = self.sdps["caller" if caller else "callee", author]
        if not known or vars(known[-1]) != vars(sdp):
            known.append(sdp)

    def own_sdps(self):
        return self.sdps["caller", "own"] + self.sdps["callee", "own"]

    def last(self, side, author):
        return self.sdps[side, author][-1]


def find(pattern, text):
    found = re.search(pattern, text, re.M)
    return found.group(1) if found else None


def sip_calls(packets):
    """Calls by Call-ID, from all datagrams from and to the proxy."""
    calls = {}
    for packet in packets:
        if PROXY not in (packet.source, packet.target):
            continue
        head, _, body = packet.data.decode(errors="replace").partition("\r\n\r\n")
        first = head.split("\r\n")[0]
        identity = find(r"^Call-ID:\s*(\S+)", head)
        if identity is None:
            continue
        if identity not in calls and first.startswith("INVITE"):
            calls[identity] = Call(find(r"^INVITE sip:([^@]+)@", first))
        if identity in calls:
            calls[identity].note(packet, first, Sdp(body) if body.startswith("v=0") else None)
    return list(calls.values())


def law_table(law):
    """The values of a law's 256 codes, decoded by ffmpeg."""
    command = ["ffmpeg", "-v", "error", "-f", law, "-ar", "8000", "-ac", "1", "-i", "-", "-f", "s16le", "-"]
    samples = subprocess.run(command, input=bytes(range(256)), stdout=subprocess.PIPE, check=True).stdout
    return [int.from_bytes(samples[at : at + 2], "little", signed=True) for at in range(0, 512, 2)]


TABLES = {payload_type: law_table(law) for payload_type, law in LAWS.items()}


def frequency_hz(audio, payload_type):
    """The frequency of a tone in G.711 at 8 kHz, by its changes of sign."""
    table = TABLES[payload_type]
    positive = [table[code] > 0 for code in audio]
    crossings = sum(one != other for one, other in zip(positive, positive[1:]))
    return crossings / 2 / (len(audio) / 8000) if audio else 0.0


class Judge:
    """Collects faults."""

    def __init__(self, path):
        self.path = path
        packets = list(capture.read(path))
        self.calls = sip_calls(packets)
        phones = {sdp.port: sdp.endpoint for call in self.calls for sdp in call.own_sdps() if sdp.address in PHONES}
        self.flows = defaultdict(list)
        for packet in packets:
            source, target = (phones.get(end[1], end) for end in (packet.source, packet.target))
            self.flows[source, target].append(packet.data)
        self.complaints = Counter()
        self.counts = Counter()

    def complain(self, call, sentence):
        self.complaints[f"{call.user}: {sentence}"] += 1

    def flow(self, source, target):
        found = (capture.rtp(data) for data in self.flows[source.endpoint, target.endpoint])
        return [packet for packet in found if packet]

    def judge(self, call):
        kind = KINDS[call.user]
        if kind.packets == 0:
            self.judge_cancelled(call)
            return
        sides = ("caller", "callee")
        if any(not call.sdps[side, author] for side in sides for author in ("own", "relay")):
            self.complain(call, "no offer and answer on both sides")
            return
        for side in sides:
            self.judge_relay_sdps(call, side)
        self.judge_way(call, "caller", "callee", kind.caller_hz)
        self.judge_way(call, "callee", "caller", kind.callee_hz)
        if call.user == "hold":
            self.judge_hold(call)

    def judge_cancelled(self, call):
        if 487 not in call.replies or 200 not in call.replies:
            self.complain(call, f"replies {sorted(set(call.replies))}, expected 200 for CANCEL and 487 for INVITE")

    def judge_relay_sdps(self, call, side):
        """Media go through the relay, on one port during the whole call, even on hold."""
        endpoints = {sdp.endpoint for sdp in call.sdps[side, "relay"]}
        if len(endpoints) != 1:
            self.complain(call, f"the {side} was told {len(endpoints)} endpoints, expected one")
        if {address for address, _ in endpoints} != {RELAY_ADDRESS}:
            self.complain(call, f"the {side} was told {endpoints}, expected address {RELAY_ADDRESS}")

    def judge_hold(self, call):
        # RFC 3264, 8.4: sendonly is answered with recvonly; the proxy forwards both unchanged.
        for side, expected in (("callee", "sendonly"), ("caller", "recvonly")):
            heard = [sdp.direction for sdp in call.sdps[side, "relay"]]
            if heard != ["sendrecv", expected, "sendrecv"]:
                self.complain(call, f"the {side} was told {heard}, expected sendrecv, {expected}, sendrecv")

    def judge_way(self, call, source, target, tone_hz):
        way = f"{source} to {target}"
        sent = self.flow(call.last(source, "own"), call.last(source, "relay"))
        got = self.flow(call.last(target, "relay"), call.last(target, "own"))
        self.counts[call.user, way, "sent"] += len(sent)
        self.counts[call.user, way, "got"] += len(got)
        self.judge_count(call, way, len(sent), len(got))
        self.judge_numbers(call, f"{way}, as sent", sent)
        self.judge_numbers(call, way, got)
        payload_type = call.last(target, "own").payload_types[0]
        types = {packet.payload_type for packet in got}
        if types != {payload_type}:
            self.complain(call, f"{way}: payload types {types}, the SDP has {payload_type}")
            return
        audio = b"".join(packet.payload for packet in sent)
        heard = b"".join(packet.payload for packet in got)
        if call.last(source, "own").protocol == "RTP/SAVP":
            audio = self.decrypted(call, way, source, "own", "relay")
        if call.last(target, "own").protocol == "RTP/SAVP":
            heard = self.decrypted(call, way, target, "relay", "own")
        # With the same codec on both sides, the codes must not change.
        same_codec = call.last(source, "own").payload_types[0] == payload_type
        if same_codec and call.user not in ("tone", "restart") and not heard.startswith(audio[: len(heard)]):
            self.complain(call, f"{way}: other audio than was sent")
        hz = frequency_hz(heard, payload_type)
        if abs(hz - tone_hz) > tone_hz * TONE_ERROR_MAX:
            self.complain(call, f"{way}: a tone of {hz:.0f} Hz, {tone_hz} was sent")

    def judge_count(self, call, way, sent, got):
        packets = KINDS[call.user].packets
        if packets is None:
            enough = sent >= LASTING_PACKETS_MIN and got >= sent - LASTING_LOST_MAX
        elif call.user == "restart":
            enough = sent == packets and sent - RESTART_LOST_MAX <= got <= sent + TAIL_PACKETS_MAX
        else:
            enough = sent == packets and sent <= got <= sent + TAIL_PACKETS_MAX
        if not enough:
            self.complain(call, f"{way}: {got} packets of {sent} arrived")

    def judge_numbers(self, call, way, got):
        """One source, without gaps or repetitions in its numbers (RFC 3550, 5.1)."""
        if len({packet.ssrc for packet in got}) > 1:
            self.complain(call, f"{way}: more than one SSRC")
        steps = {(b.sequence - a.sequence) % 65536 for a, b in zip(got, got[1:])}
        if call.user == "restart" and max(steps) < RESTART_STEP_MAX and min(steps) > 0:
            return
        if steps - {1}:
            self.complain(call, f"{way}: sequence numbers in steps of {steps}")

    def decrypted(self, call, way, side, author, reader):
        """The audio of an SRTP flow, decrypted by GStreamer's libsrtp with the key in the sender's SDP (RFC 4568, 6.1)."""
        keys = dict(call.last(side, author).crypto)
        source, target = call.last(side, author), call.last(side, reader)
        packets = self.flow(source, target)
        if CRYPTO_SUITE not in keys or not packets:
            self.complain(call, f"{way}: crypto {sorted(keys)}, {len(packets)} packets")
            return b""
        key = base64.b64decode(keys[CRYPTO_SUITE] + "==").hex()
        cipher = "cipher=aes-128-icm", "auth=hmac-sha1-80"
        caps = f"application/x-srtp,media=audio,clock-rate=8000,encoding-name=PCMU,payload=0,ssrc=(uint){packets[0].ssrc}"
        caps += f",srtp-key=(buffer){key}" + "".join(f",{part}-{one}" for part in ("srtp", "srtcp") for one in cipher)
        with tempfile.TemporaryDirectory() as folder:
            # A file for each packet, because multifilesrc makes a buffer from each file.
            datagrams = [data for data in self.flows[source.endpoint, target.endpoint] if capture.rtp(data)]
            for number, datagram in enumerate(datagrams):
                Path(folder, f"{number:05}").write_bytes(datagram)
            command = ["gst-launch-1.0", "-q", "multifilesrc", f"location={folder}/%05d", f"caps={caps}", "!"]
            command += ["srtpdec", "!", "multifilesink", f"location={folder}/plain-%05d"]
            subprocess.run(command, check=True, timeout=60, stdin=subprocess.DEVNULL)
            plain = [capture.rtp(path.read_bytes()) for path in sorted(Path(folder).glob("plain-*"))]
        if len(plain) != len(datagrams):
            self.complain(call, f"{way}: {len(plain)} packets of {len(datagrams)} could be decrypted")
        return b"".join(packet.payload for packet in plain)


def main(path, relay):
    judge = Judge(path)
    if relay != "threadbare":
        # It must not be killed.
        del KINDS["restart"]
    found = Counter(call.user for call in judge.calls)
    for call in judge.calls:
        if call.user in KINDS:
            judge.judge(call)
    for user, kind in KINDS.items():
        if found[user] != kind.calls:
            judge.complaints[f"{user}: {found[user]} calls on the wire, {kind.calls} were made"] += 1
        counts = (
            f"{way} {judge.counts[user, way, 'got']} of {judge.counts[user, way, 'sent']}"
            for way in ("caller to callee", "callee to caller")
        )
        print(f"{user}: {found[user]} calls, packets {', '.join(counts)}")
    for complaint, times in judge.complaints.items():
        print(f"check.py: {complaint} ({times} times)", file=sys.stderr)
    sys.exit(1 if judge.complaints else 0)


main(*sys.argv[1:])
