"""Records each RTP packet to the listener in a file. capture.py FILE

A record: time (ns), last byte of the sender's address, stream, SSRC, number, timestamp.
"""

import socket
import struct
import sys

from network import LISTENER

SO_TIMESTAMPNS = 35
SO_RCVBUFFORCE = 33
RECORD = struct.Struct("<QBHIHI")

if __name__ == "__main__":
    listener = socket.inet_aton(LISTENER)
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))
    sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
    sock.bind(("br0", 0))
    rtp = struct.Struct(">HII")
    when = struct.Struct("qq")
    with open(sys.argv[1], "wb", buffering=0) as file:
        print("ready", flush=True)
        records = []
        while True:
            packet, ancillary, _, _ = sock.recvmsg(256, 64)
            # UDP without options, to the listener, and not RTCP.
            if packet[16:20] != listener or packet[9] != 17:
                continue
            port = packet[22] << 8 | packet[23]
            if port % 2 or len(packet) < 40 or 64 <= packet[29] & 0x7F < 96:
                continue
            seconds, ns = when.unpack(ancillary[0][2])
            seq, time, ssrc = rtp.unpack(packet[30:40])
            file.write(RECORD.pack(seconds * 10**9 + ns, packet[15], (port - 30000) // 2, ssrc, seq, time))
