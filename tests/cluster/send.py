"""Sends the streams: a packet of 20 ms for each, to separate ports of the group. send.py STREAMS"""

import socket
import struct
import sys
import time

from network import BRIDGE, GROUP

streams = int(sys.argv[1])
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(BRIDGE))
sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
to = [(GROUP, 20000 + 2 * stream) for stream in range(streams)]
begin = time.monotonic()
number = 0
while True:
    payload = bytes([number % 256]) * 160
    for stream in range(streams):
        header = struct.pack(">BBHII", 0x80, 0, (number + stream) % 65536, (number * 160 + stream) % 2**32, 1000 + stream)
        sock.sendto(header + payload, to[stream])
    number += 1
    wait = begin + number * 0.02 - time.monotonic()
    if wait > 0:
        time.sleep(wait)
