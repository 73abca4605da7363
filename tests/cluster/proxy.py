"""Uses the ng protocol of gateways, as SIP proxies do, and RTP, as their parties do."""

import json
import select
import socket
import struct
import time

from network import BRIDGE, address

PORT = 2223
SECONDS_MAX = 10
SOUND = b"\x55" * 160


class Proxy:
    def __init__(self):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((BRIDGE, 0))
        self.number = 0

    def message(self, command, call, **more):
        """Sends a request with a new cookie."""
        self.number += 1
        keys = {"command": command, "call-id": call} | {key.replace("_", "-"): value for key, value in more.items()}
        return f"{self.number} {json.dumps(keys)}".encode()

    def ask_all(self, nodes, message):
        """The raw replies to one message that is sent to several nodes at once."""
        for node in nodes:
            self.socket.sendto(message, (address(node), PORT))
        self.socket.settimeout(SECONDS_MAX)
        return [self.socket.recv(65536) for _ in nodes]

    def ask(self, node, command, call, **more):
        """The reply, and its time in ms."""
        message = self.message(command, call, **more)
        cookie = message.decode().split(" ", 1)[0]
        begin = time.perf_counter()
        for attempt in range(SECONDS_MAX):
            self.socket.sendto(message, (address(node), PORT))
            end = time.perf_counter() + 1
            while (left := end - time.perf_counter()) > 0 and select.select([self.socket], [], [], left)[0]:
                reply = self.socket.recv(65536).decode()
                said, rest = reply.split(" ", 1)
                if said == cookie:
                    return json.loads(rest), (time.perf_counter() - begin) * 1000
        raise TimeoutError(f"{node} does not answer {command}")


class Party:
    """A party with an SDP, which receives packets."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((BRIDGE, 0))
        self.socket.settimeout(SECONDS_MAX)
        self.number = 0
        self.payload_type = 0

    def sdp(self):
        port = self.socket.getsockname()[1]
        lines = ["v=0", f"o=- 1 1 IN IP4 {BRIDGE}", "s=-", f"c=IN IP4 {BRIDGE}", "t=0 0", f"m=audio {port} RTP/AVP 0", ""]
        return "\r\n".join(lines)

    def say(self, to, sound=SOUND):
        head = struct.pack("!BBHII", 0x80, self.payload_type, self.number % 65536, 160 * self.number, 77)
        self.socket.sendto(head + sound, to)
        self.number += 1

    def hear(self, count):
        """Waits for so much of the other party's audio. RTCP of a neighbour's port and replacements for late packets do not count."""
        while count > 0:
            if self.socket.recv(2048)[12:] == SOUND:
                count -= 1


def place(sdp):
    """The RTP address for a party."""
    host = port = None
    for line in sdp.splitlines():
        if line.startswith("c="):
            host = line.split()[-1]
        if line.startswith("m="):
            port = int(line.split()[1])
    return host, port
