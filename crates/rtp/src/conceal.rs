//! Packet-loss concealment.
