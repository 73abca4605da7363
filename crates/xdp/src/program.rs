//! The program that the kernel runs for each frame of a device. Frames of enrolled ports go to a ring, all others to the kernel.
//!
//! ```text
//! longer than a ring's frame, fragment, option, not UDP ----------------> kernel
//! (address, port) not in the table of ports ----------------------------> kernel
//! more than its share of this window ------------------------------------> kernel: the port's socket has its own queue
//! else: time and key before the frame, then into the ring of (queue, lane)
//! ```

use std::net::{IpAddr, SocketAddr};

/// Maximum number of lanes. The table of rings has this many entries for each queue.
pub(crate) const LANES_MAX: u32 = 32;
/// Maximum length of a frame for a ring. It is smaller than a chunk minus the kernel's headroom.
pub(crate) const FRAME_BYTES_MAX: i32 = 1600;
/// Size of the program's note before a frame: arrival time (ns of CLOCK_MONOTONIC), and the key of the port.
pub(crate) const NOTE_BYTES: usize = 16;
/// A time window lasts 2^24 ns, which is 16.8 ms.
const WINDOW_BITS: i32 = 24;
/// Maximum number of datagrams that a port may put into the ring in a window: 7600 a second. Further datagrams go to the
/// port's own socket, so that a flood to one port does not push the datagrams of others out of the ring.
const SHARE: i32 = 128;

/// Length of a key in the table of ports: the address as IPv6, and the port in network order.
pub(crate) const KEY_BYTES: usize = 20;
/// Length of a value in the table of ports: the port's key, its current window, the datagrams in that window, and its lane.
pub(crate) const VALUE_BYTES: usize = 24;

/// Returns the key of a port in the table of ports.
pub(crate) fn port_key(local: SocketAddr) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    let ip = match local.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    key[..16].copy_from_slice(&ip.octets());
    key[16..18].copy_from_slice(&local.port().to_be_bytes());
    key
}

/// Returns the value of a port in the table of ports.
pub(crate) fn port_value(key: u64, lane: u32) -> [u8; VALUE_BYTES] {
    let mut value = [0; VALUE_BYTES];
    value[..8].copy_from_slice(&key.to_ne_bytes());
    value[16..20].copy_from_slice(&lane.to_ne_bytes());
    value
}

/// Returns the index of a ring in the table of rings.
pub(crate) fn ring_place(queue: u32, lane: u32) -> u32 {
    queue * LANES_MAX + lane
}

/// Assembles the program for tables with these descriptors and a device with this Ethernet address. If the device's address
/// changes, the program passes all frames to the kernel.
pub(crate) fn program(ports: i32, rings: i32, device: [u8; 6]) -> Vec<u64> {
    let mut a = Assembler::default();
    a.is_udp(device);
    a.find_port(ports);
    a.count();
    a.note();
    a.redirect(rings);
    a.label(Label::Pass);
    a.set(R0, XDP_PASS);
    a.exit();
    a.finish()
}

impl Assembler {
    /// Writes a key with the frame's destination address to the stack, and loads the destination port into R4. A frame that is
    /// for another machine, or that does not contain exactly one whole UDP datagram, passes to the kernel.
    fn is_udp(&mut self, device: [u8; 6]) {
        self.copy(R6, R1);
        self.load(W, R2, R6, MD_DATA);
        self.load(W, R3, R6, MD_DATA_END);
        self.copy(R4, R2);
        self.add(R4, FRAME_BYTES_MAX + 1);
        self.jump(JLE, R4, R3, Label::Pass);
        self.copy(R4, R2);
        self.add(R4, 14 + 20 + 8);
        self.jump(JGT, R4, R3, Label::Pass);
        for (at, pair) in device.as_chunks::<2>().0.iter().enumerate() {
            self.load(H, R4, R2, 2 * at as i16);
            let pair = i32::from(u16::from_ne_bytes(*pair));
            self.jump_if(JNE, R4, pair, Label::Pass);
        }
        self.load(H, R4, R2, 12);
        self.jump_if(JEQ, R4, network(0x0800), Label::V4);
        self.jump_if(JNE, R4, network(0x86dd), Label::Pass);
        self.copy(R4, R2);
        self.add(R4, 14 + 40 + 8);
        self.jump(JGT, R4, R3, Label::Pass);
        self.load(B, R4, R2, 14 + 6);
        self.jump_if(JNE, R4, UDP, Label::Pass);
        for word in 0..4 {
            self.load(W, R4, R2, 14 + 24 + 4 * word);
            self.store(W, R10, KEY_AT + 4 * word, R4);
        }
        self.load(H, R4, R2, 14 + 40 + 2);
        self.always(Label::Lookup);

        self.label(Label::V4);
        self.load(B, R4, R2, 14);
        self.jump_if(JNE, R4, 0x45, Label::Pass);
        self.load(H, R4, R2, 14 + 6);
        self.and(R4, network(0x3fff));
        self.jump_if(JNE, R4, 0, Label::Pass);
        self.load(B, R4, R2, 14 + 9);
        self.jump_if(JNE, R4, UDP, Label::Pass);
        self.set(R4, 0);
        self.store(DW, R10, KEY_AT, R4);
        self.set(R4, i32::from_ne_bytes([0, 0, 0xff, 0xff]));
        self.store(W, R10, KEY_AT + 8, R4);
        self.load(W, R4, R2, 14 + 16);
        self.store(W, R10, KEY_AT + 12, R4);
        self.load(H, R4, R2, 14 + 20 + 2);
    }

    /// Loads the address of the port's value into R7. A frame for a port that is not enrolled passes to the kernel.
    fn find_port(&mut self, ports: i32) {
        self.label(Label::Lookup);
        self.store(H, R10, KEY_AT + 16, R4);
        self.set(R4, 0);
        self.store(H, R10, KEY_AT + 18, R4);
        self.table(R1, ports);
        self.copy(R2, R10);
        self.add(R2, KEY_AT.into());
        self.call(MAP_LOOKUP_ELEM);
        self.jump_if(JEQ, R0, 0, Label::Pass);
        self.copy(R7, R0);
    }

    /// Loads the time into R8 and counts the datagram. A datagram that exceeds the port's share passes to the kernel. If two CPUs
    /// count at the same time, one of the two datagrams may not be counted.
    fn count(&mut self) {
        self.call(KTIME_GET_NS);
        self.copy(R8, R0);
        self.copy(R4, R0);
        self.shift_right(R4, WINDOW_BITS);
        self.load(W, R5, R7, 8);
        self.jump_same_word(R5, R4, Label::SameWindow);
        self.store(W, R7, 8, R4);
        self.set(R5, 1);
        self.store(W, R7, 12, R5);
        self.always(Label::Counted);
        self.label(Label::SameWindow);
        self.load(W, R5, R7, 12);
        self.jump_if(JGE, R5, SHARE, Label::Pass);
        self.add(R5, 1);
        self.store(W, R7, 12, R5);
        self.label(Label::Counted);
    }

    /// Writes time and key in front of the frame. If the driver has left no room there, the frame passes to the kernel.
    fn note(&mut self) {
        self.load(DW, R9, R7, 0);
        self.load(W, R7, R7, 16);
        self.copy(R1, R6);
        self.set(R2, -(NOTE_BYTES as i32));
        self.call(XDP_ADJUST_META);
        self.jump_if(JNE, R0, 0, Label::Pass);
        self.load(W, R1, R6, MD_DATA_META);
        self.load(W, R2, R6, MD_DATA);
        self.copy(R3, R1);
        self.add(R3, NOTE_BYTES as i32);
        self.jump(JGT, R3, R2, Label::Pass);
        self.store(DW, R1, 0, R8);
        self.store(DW, R1, 8, R9);
    }

    fn redirect(&mut self, rings: i32) {
        self.load(W, R2, R6, MD_QUEUE);
        self.multiply(R2, LANES_MAX as i32);
        self.add_register(R2, R7);
        self.table(R1, rings);
        // If the table has no such ring, the frame passes to the kernel.
        self.set(R3, XDP_PASS);
        self.call(REDIRECT_MAP);
        self.exit();
    }
}

/// Assembler of BPF instructions (RFC 9669). Fills in the targets of jumps at the end, when all labels are known.
#[derive(Default)]
struct Assembler {
    code: Vec<u64>,
    labels: Vec<(Label, usize)>,
    jumps: Vec<(usize, Label)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Label {
    V4,
    Lookup,
    SameWindow,
    Counted,
    Pass,
}

impl Assembler {
    fn emit(&mut self, op: u8, dst: u8, src: u8, offset: i16, value: i32) {
        let registers = if cfg!(target_endian = "big") {
            dst << 4 | src
        } else {
            src << 4 | dst
        };
        let [o0, o1] = offset.to_ne_bytes();
        let [v0, v1, v2, v3] = value.to_ne_bytes();
        self.code
            .push(u64::from_ne_bytes([op, registers, o0, o1, v0, v1, v2, v3]));
    }

    fn label(&mut self, label: Label) {
        self.labels.push((label, self.code.len()));
    }

    fn jump_to(&mut self, op: u8, dst: u8, src: u8, value: i32, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.emit(op, dst, src, 0, value);
    }

    /// Jumps if a comparison of two registers is true.
    fn jump(&mut self, op: u8, left: u8, right: u8, label: Label) {
        self.jump_to(JMP | REGISTER | op, left, right, 0, label);
    }

    /// Jumps if a comparison of a register with a number is true.
    fn jump_if(&mut self, op: u8, left: u8, right: i32, label: Label) {
        self.jump_to(JMP | op, left, 0, right, label);
    }

    /// Jumps if the lower words of two registers are equal.
    fn jump_same_word(&mut self, left: u8, right: u8, label: Label) {
        self.jump_to(JMP32 | REGISTER | JEQ, left, right, 0, label);
    }

    fn always(&mut self, label: Label) {
        self.jump_to(JMP, 0, 0, 0, label);
    }

    fn load(&mut self, size: u8, dst: u8, src: u8, offset: i16) {
        self.emit(LDX | MEM | size, dst, src, offset, 0);
    }

    fn store(&mut self, size: u8, dst: u8, offset: i16, src: u8) {
        self.emit(STX | MEM | size, dst, src, offset, 0);
    }

    fn copy(&mut self, dst: u8, src: u8) {
        self.emit(ALU64 | REGISTER | MOV, dst, src, 0, 0);
    }

    fn set(&mut self, dst: u8, value: i32) {
        self.emit(ALU64 | MOV, dst, 0, 0, value);
    }

    fn add(&mut self, dst: u8, value: i32) {
        self.emit(ALU64 | ADD, dst, 0, 0, value);
    }

    fn add_register(&mut self, dst: u8, src: u8) {
        self.emit(ALU64 | REGISTER | ADD, dst, src, 0, 0);
    }

    fn multiply(&mut self, dst: u8, value: i32) {
        self.emit(ALU64 | MUL, dst, 0, 0, value);
    }

    fn and(&mut self, dst: u8, value: i32) {
        self.emit(ALU64 | AND, dst, 0, 0, value);
    }

    fn shift_right(&mut self, dst: u8, bits: i32) {
        self.emit(ALU64 | RSH, dst, 0, 0, bits);
    }

    /// Loads a table's address, given its descriptor. This takes two instructions.
    fn table(&mut self, dst: u8, descriptor: i32) {
        self.emit(LD_IMM64, dst, PSEUDO_MAP_FD, 0, descriptor);
        self.emit(0, 0, 0, 0, 0);
    }

    fn call(&mut self, helper: i32) {
        self.emit(JMP | CALL, 0, 0, 0, helper);
    }

    fn exit(&mut self) {
        self.emit(JMP | EXIT, 0, 0, 0, 0);
    }

    fn finish(mut self) -> Vec<u64> {
        for (at, label) in self.jumps {
            let to = self.labels.iter().find(|(known, _)| *known == label);
            let to = to.map_or(at, |(_, to)| *to);
            let mut bytes = self.code[at].to_ne_bytes();
            bytes[2..4].copy_from_slice(&((to - at) as i16 - 1).to_ne_bytes());
            self.code[at] = u64::from_ne_bytes(bytes);
        }
        self.code
    }
}

/// Returns the value of a 16-bit field in network byte order, as the program loads it.
const fn network(value: u16) -> i32 {
    value.to_be() as i32
}

const R0: u8 = 0;
const R1: u8 = 1;
const R2: u8 = 2;
const R3: u8 = 3;
const R4: u8 = 4;
const R5: u8 = 5;
const R6: u8 = 6;
const R7: u8 = 7;
const R8: u8 = 8;
const R9: u8 = 9;
const R10: u8 = 10;

const LDX: u8 = 0x01;
const STX: u8 = 0x03;
const JMP: u8 = 0x05;
const JMP32: u8 = 0x06;
const ALU64: u8 = 0x07;
const LD_IMM64: u8 = 0x18;
const MEM: u8 = 0x60;
const REGISTER: u8 = 0x08;

const W: u8 = 0x00;
const H: u8 = 0x08;
const B: u8 = 0x10;
const DW: u8 = 0x18;

const ADD: u8 = 0x00;
const MUL: u8 = 0x20;
const AND: u8 = 0x50;
const RSH: u8 = 0x70;
const MOV: u8 = 0xb0;

const JEQ: u8 = 0x10;
const JGT: u8 = 0x20;
const JGE: u8 = 0x30;
const JNE: u8 = 0x50;
const CALL: u8 = 0x80;
const EXIT: u8 = 0x90;
const JLE: u8 = 0xb0;

const PSEUDO_MAP_FD: u8 = 1;
/// Numbers of the kernel's helper functions (include/uapi/linux/bpf.h).
const MAP_LOOKUP_ELEM: i32 = 1;
const KTIME_GET_NS: i32 = 5;
const REDIRECT_MAP: i32 = 51;
const XDP_ADJUST_META: i32 = 54;
const XDP_PASS: i32 = 2;
/// Offsets in `struct xdp_md`.
const MD_DATA: i16 = 0;
const MD_DATA_END: i16 = 4;
const MD_DATA_META: i16 = 8;
const MD_QUEUE: i16 = 16;
/// Position of the key on the stack.
const KEY_AT: i16 = -24;
const UDP: i32 = 17;
