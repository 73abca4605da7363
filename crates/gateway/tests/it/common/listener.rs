//! A program that listens over HTTP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::LIMIT;

/// A listener, which reads HTTP in chunks (RFC 9112, section 7.1).
pub struct Listener {
    reader: BufReader<TcpStream>,
    /// Bytes of the received chunks.
    bytes: Vec<u8>,
    pub rate_hz: u32,
    pub channels: u16,
}

impl Listener {
    /// Starts to listen, and reads only the header of the WAV file.
    pub fn open(http: SocketAddr, path: &str) -> Listener {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        let socket = socket.expect("a socket");
        // Use a small buffer, so that the kernel queues little for a listener that does not read.
        socket.set_recv_buffer_size(4096).expect("valid");
        socket.connect(&http.into()).expect("it listens");
        let mut stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(LIMIT)).expect("valid");
        let head = format!("GET {path} HTTP/1.1\r\nHost: {http}\r\n\r\n");
        stream.write_all(head.as_bytes()).expect("sent");
        let mut listener = Listener {
            reader: BufReader::with_capacity(512, stream),
            bytes: Vec::new(),
            rate_hz: 0,
            channels: 0,
        };
        let mut lines = Vec::new();
        while lines.last().is_none_or(|line| line != "\r\n") {
            let mut line = String::new();
            listener.reader.read_line(&mut line).expect("a header");
            lines.push(line.to_ascii_lowercase());
        }
        assert_eq!(lines[0], "http/1.1 200 ok\r\n");
        assert!(lines.contains(&"content-type: audio/wav\r\n".to_owned()));
        let head = listener.take(44).expect("a head");
        // The header is that of PCM with 16 bits (Multimedia Programming Interface and Data Specifications 1.0).
        assert_eq!(head[..20], *b"RIFF\xff\xff\xff\xffWAVEfmt \x10\0\0\0");
        assert_eq!((&head[20..22], &head[34..36]), (&[1, 0][..], &[16, 0][..]));
        assert_eq!(head[36..], *b"data\xff\xff\xff\xff");
        listener.channels = u16::from_le_bytes([head[22], head[23]]);
        listener.rate_hz = u32::from_le_bytes([head[24], head[25], head[26], head[27]]);
        listener
    }

    /// Returns the next `count` bytes. `None`: the audio ended before that, without an error.
    pub fn take(&mut self, count: usize) -> Option<Vec<u8>> {
        while self.bytes.len() < count {
            let mut line = String::new();
            self.reader.read_line(&mut line).expect("a chunk");
            let length = usize::from_str_radix(line.trim(), 16).expect("a length");
            let mut chunk = vec![0; length + 2];
            self.reader.read_exact(&mut chunk).expect("a whole chunk");
            assert_eq!(chunk[length..], *b"\r\n");
            if length == 0 {
                return None;
            }
            self.bytes.extend(&chunk[..length]);
        }
        Some(self.bytes.drain(..count).collect())
    }

    pub fn samples(&mut self, count: usize) -> Option<Vec<i16>> {
        let bytes = self.take(2 * count)?;
        let pairs = bytes.chunks_exact(2);
        Some(
            pairs
                .map(|two| i16::from_le_bytes([two[0], two[1]]))
                .collect(),
        )
    }
}
