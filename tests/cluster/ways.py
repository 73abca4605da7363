"""Sends an ng request on a connection, and prints the reply: ways.py tcp|post|websocket HOST PORT MESSAGE."""

import base64
import os
import socket
import struct
import sys
import urllib.request

SECONDS_MAX = 10


def by_tcp(place, message):
    with socket.create_connection(place, SECONDS_MAX) as stream:
        stream.sendall(message)
        stream.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: stream.recv(65536), b""))


def by_post(place, message):
    request = urllib.request.Request("http://%s:%d/ng" % place, data=message, headers={"Content-Type": "application/x-rtpengine-ng"})
    return urllib.request.urlopen(request, timeout=SECONDS_MAX).read()


def by_websocket(place, message):
    """RFC 6455, sections 4.1 and 5.2: one message in one frame, masked, and the reply's frame."""
    with socket.create_connection(place, SECONDS_MAX) as stream:
        key = base64.b64encode(os.urandom(16)).decode()
        lines = ["GET /ng HTTP/1.1", "Host: %s:%d" % place, "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"]
        lines += [f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Protocol: ng.rtpengine.com", "", ""]
        stream.sendall("\r\n".join(lines).encode())
        file = stream.makefile("rb")
        while file.readline().strip():
            pass
        mask = os.urandom(4)
        frame = struct.pack("!BBH", 0x81, 0x80 | 126, len(message)) + mask
        stream.sendall(frame + bytes(byte ^ mask[at % 4] for at, byte in enumerate(message)))
        _, length = file.read(2)
        if length == 126:
            length, = struct.unpack("!H", file.read(2))
        return file.read(length)


if __name__ == "__main__":
    way, host, port, message = sys.argv[1:]
    ask = {"tcp": by_tcp, "post": by_post, "websocket": by_websocket}[way]
    sys.stdout.buffer.write(ask((host, int(port)), message.encode()))
