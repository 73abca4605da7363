"""Sends an ng request to a relay, and prints the reply as JSON.

    ng.py PORT COMMAND [KEY=TEXT]...
"""

import json
import os
import socket
import sys


def encode(value):
    """Bencode of a dictionary of texts."""
    if isinstance(value, dict):
        return b"d" + b"".join(encode(key) + encode(one) for key, one in value.items()) + b"e"
    data = value.encode()
    return b"%d:%s" % (len(data), data)


def decode(data, at=0):
    """One bencode value, and its end."""
    kind = data[at : at + 1]
    if kind == b"i":
        end = data.index(b"e", at)
        return int(data[at + 1 : end]), end + 1
    if kind in (b"l", b"d"):
        at, items = at + 1, []
        while data[at : at + 1] != b"e":
            item, at = decode(data, at)
            items.append(item)
        return (items if kind == b"l" else dict(zip(items[::2], items[1::2]))), at + 1
    colon = data.index(b":", at)
    end = colon + 1 + int(data[at:colon])
    return data[colon + 1 : end].decode(errors="replace"), end


def ask(port, command, *more):
    """The reply of the relay at a port of this machine."""
    link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    link.connect(("127.0.0.1", int(port)))
    link.settimeout(1)
    cookie = os.urandom(8).hex().encode()
    request = cookie + b" " + encode({"command": command} | dict(one.split("=", 1) for one in more))
    # As clients do: the same cookie again after a second without a reply.
    for _ in range(5):
        link.send(request)
        try:
            reply = link.recv(65536)
        except OSError:
            continue
        if reply.startswith(cookie + b" "):
            return decode(reply, len(cookie) + 1)[0]
    sys.exit(f"ng.py: no reply to {command} on port {port}")


if __name__ == "__main__":
    print(json.dumps(ask(*sys.argv[1:])))
