"""Holds UDP ports open and reads nothing, until its standard input ends: sipp sends RTP without a receiving socket, and a
relay would get the error "port unreachable". Arriving packets are counted in the capture.

    ports.py ADDRESS FIRST STEP COUNT
"""

import socket
import sys

address, first, step, count = sys.argv[1], *map(int, sys.argv[2:])
held = []
for number in range(count):
    for rtcp in 0, 1:
        one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        # Incoming packets are soon dropped there.
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        one.bind((address, first + number * step + rtcp))
        held.append(one)
print("ready", flush=True)
sys.stdin.read()
