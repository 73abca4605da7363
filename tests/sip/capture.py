"""UDP packets in pcap files, for the other programs of this folder."""

import socket
import struct
from collections import namedtuple

# Time in seconds, (address, port) of both ends, the datagram.
Packet = namedtuple("Packet", "time source target data")
Rtp = namedtuple("Rtp", "payload_type sequence timestamp ssrc payload")

ETHERNET = 1
FILE_HEADER = struct.Struct("<IHHiIII")
RECORD_HEADER = struct.Struct("<IIII")
MAGIC = 0xA1B2C3D4


def read(path):
    """All UDP datagrams over IPv4 in a file of dumpcap or this module: little endian, microseconds, Ethernet."""
    with open(path, "rb") as file:
        data = file.read()
    magic, _, _, _, _, _, link = FILE_HEADER.unpack_from(data)
    if magic != MAGIC or link != ETHERNET:
        raise ValueError(f"{path}: magic {magic:#x}, link type {link}; expected {MAGIC:#x} and {ETHERNET}")
    at = FILE_HEADER.size
    # A file that is still being written may end within a record.
    while at + RECORD_HEADER.size <= len(data):
        seconds, micros, length, _ = RECORD_HEADER.unpack_from(data, at)
        at += RECORD_HEADER.size
        frame = data[at : at + length]
        at += length
        is_udp = frame[12:14] == b"\x08\x00" and frame[14] >> 4 == 4 and frame[23] == socket.IPPROTO_UDP
        if len(frame) == length and is_udp:
            yield udp_packet(seconds + micros / 1e6, frame[14:])


def udp_packet(time, ip):
    """The datagram of an IPv4 packet (RFC 791, 3.1; RFC 768)."""
    header = (ip[0] & 15) * 4
    source, target, length = struct.unpack_from("!HHH", ip, header)
    data = ip[header + 8 : header + length]
    return Packet(time, (socket.inet_ntoa(ip[12:16]), source), (socket.inet_ntoa(ip[16:20]), target), data)


def write(path, datagrams):
    """Writes a file of (seconds, datagram), for a player that sets its own addresses."""
    with open(path, "wb") as file:
        file.write(FILE_HEADER.pack(MAGIC, 2, 4, 0, 0, 65535, ETHERNET))
        for time, data in datagrams:
            udp = struct.pack("!HHHH", 9, 9, 8 + len(data), 0) + data
            ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, socket.IPPROTO_UDP, 0, bytes(4), bytes(4))
            frame = bytes(12) + b"\x08\x00" + ip + udp
            file.write(RECORD_HEADER.pack(int(time), round(time % 1 * 1e6), len(frame), len(frame)) + frame)


def rtp(data):
    """An RTP packet without extension and padding (RFC 3550, 5.1), or None."""
    if len(data) < 12 or data[0] != 0x80 or 64 <= data[1] & 0x7F < 96:
        return None
    _, kind, sequence, timestamp, ssrc = struct.unpack_from("!BBHII", data)
    return Rtp(kind & 0x7F, sequence, timestamp, ssrc, data[12:])
