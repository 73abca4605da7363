"""Writes a file of G.711 bytes as RTP to a pcap file, which sipp plays.

    speech.py G711 PAYLOAD_TYPE SSRC PCAP [FIRST_PACKET [PACKETS]]
"""

import struct
import sys

import capture

# G.711 has 8 bits at 8 kHz; packets of 20 ms are the default (RFC 3551, 4.2).
PACKET_BYTES = 160
PACKET_SECONDS = 0.02


def main(audio, payload_type, ssrc, path, first=0, packets=None):
    with open(audio, "rb") as file:
        data = file.read()
    first = int(first)
    end = first + int(packets) if packets else len(data) // PACKET_BYTES
    datagrams = []
    for number in range(first, end):
        header = struct.pack("!BBHII", 0x80, int(payload_type), number, number * PACKET_BYTES, int(ssrc))
        payload = data[number * PACKET_BYTES : (number + 1) * PACKET_BYTES]
        datagrams.append(((number - first) * PACKET_SECONDS, header + payload))
    capture.write(path, datagrams)


main(*sys.argv[1:])
