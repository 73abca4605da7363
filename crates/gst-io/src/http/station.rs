//! Stations that answer `ICY 200 OK` (SHOUTcast's first protocol, which has no standard). This is not HTTP, so the HTTP client
//! refuses the answer. The request is therefore sent with HTTP/1.0 on a separate connection. The stream ends when that connection
//! ends.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::Frame;
use reqwest::header::{HOST, HeaderMap};
use reqwest::{Body, Response, Url, Version};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;

use super::core::Problem;

/// Whether the client failed because the reply was not HTTP. The library reports that only as text.
pub(super) fn is_no_http(causes: &str) -> bool {
    causes.contains("invalid HTTP version")
}

/// Requests `url`, which has the scheme `http`. Replies of ordinary HTTP servers are read, too.
pub(super) async fn ask(url: &Url, headers: &HeaderMap) -> Result<Response, Problem> {
    let unreachable = |error: io::Error| Problem::Connect(error.to_string());
    let broken = |error: io::Error| Problem::Broken(error.to_string());
    let host = url.host_str().unwrap_or_default();
    let place = host.trim_start_matches('[').trim_end_matches(']');
    let port = url.port_or_known_default().unwrap_or(80);
    let mut stream = TcpStream::connect((place, port))
        .await
        .map_err(unreachable)?;
    let asked = request(url, headers);
    stream.write_all(&asked).await.map_err(broken)?;
    let mut room = vec![0; READ_BYTES];
    let mut head = Vec::new();
    let end = loop {
        let count = stream.read(&mut room).await.map_err(broken)?;
        if count == 0 {
            return Err(refused("the answer ends within its headers"));
        }
        // The end of the head may be split across two reads.
        let from = head.len().saturating_sub(3);
        head.extend_from_slice(&room[..count]);
        if let Some(end) = end_of(&head[from..]) {
            break from + end;
        }
        if head.len() > HEAD_BYTES_MAX {
            return Err(refused("the headers of the answer are too long"));
        }
    };
    let first = Bytes::copy_from_slice(&head[end..]);
    head.truncate(end);
    let body = Body::wrap(Rest {
        first,
        stream,
        room,
    });
    response(&head, body)
}

fn request(url: &Url, headers: &HeaderMap) -> Vec<u8> {
    let query = url
        .query()
        .map_or(String::new(), |query| format!("?{query}"));
    let host = url.host_str().unwrap_or_default();
    let port = url.port().map_or(String::new(), |port| format!(":{port}"));
    let mut request = format!("GET {}{query} HTTP/1.0\r\n", url.path()).into_bytes();
    let own = format!("{host}{port}");
    let others = headers.iter().filter(|(name, _)| *name != HOST);
    let others = others.map(|(name, value)| (name.as_str(), value.as_bytes()));
    let host = headers
        .get(HOST)
        .map_or(own.as_bytes(), |host| host.as_bytes());
    for (name, value) in [("host", host), ("accept", b"*/*")]
        .into_iter()
        .chain(others)
    {
        request.extend_from_slice(name.as_bytes());
        request.extend_from_slice(b": ");
        request.extend_from_slice(value);
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"\r\n");
    request
}

/// Returns the position after the empty line.
fn end_of(head: &[u8]) -> Option<usize> {
    let ends = [&b"\r\n\r\n"[..], b"\n\n"];
    let found = ends.iter().filter_map(|end| {
        let at = head.windows(end.len()).position(|bytes| bytes == *end)?;
        Some(at + end.len())
    });
    found.min()
}

fn response(head: &[u8], body: Body) -> Result<Response, Problem> {
    let bytes = match head.strip_prefix(b"ICY ") {
        Some(rest) => [b"HTTP/1.0 ", rest].concat(),
        None => head.to_vec(),
    };
    let mut room = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Response::new(&mut room);
    httparse::ParserConfig::default()
        .allow_obsolete_multiline_headers_in_responses(true)
        .allow_spaces_after_header_name_in_responses(true)
        .parse_response(&mut parsed, &bytes)
        .map_err(|error| refused(&error.to_string()))?;
    let mut response = http::Response::builder()
        .version(Version::HTTP_10)
        .status(parsed.code.unwrap_or_default());
    for header in parsed.headers.iter() {
        let unfolded: Vec<u8> = header.value.iter().map(unfold).collect();
        response = response.header(header.name, unfolded);
    }
    let response = response.body(body);
    let response = response.map_err(|error| refused(&error.to_string()))?;
    Ok(Response::from(response))
}

/// Replaces the line breaks of a folded value by spaces (RFC 9112, section 5.2).
fn unfold(byte: &u8) -> u8 {
    match byte {
        b'\r' | b'\n' => b' ',
        byte => *byte,
    }
}

fn refused(why: &str) -> Problem {
    Problem::Broken(format!(
        "the server's answer is neither HTTP nor ICY: {why}"
    ))
}

/// The remaining data of a connection.
struct Rest {
    /// Data that arrived with the headers.
    first: Bytes,
    stream: TcpStream,
    room: Vec<u8>,
}

impl http_body::Body for Rest {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = &mut *self;
        if !this.first.is_empty() {
            let first = std::mem::take(&mut this.first);
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        let mut room = ReadBuf::new(&mut this.room);
        let read = ready!(Pin::new(&mut this.stream).poll_read(cx, &mut room));
        Poll::Ready(match (read, room.filled()) {
            (Err(error), _) => Some(Err(error)),
            (Ok(()), []) => None,
            // Copy the data exactly, because a slice would keep the whole buffer in memory.
            (Ok(()), bytes) => Some(Ok(Frame::data(Bytes::copy_from_slice(bytes)))),
        })
    }
}

/// Size of a read: half a second of 128 kbit/s.
const READ_BYTES: usize = 8 << 10;
const HEAD_BYTES_MAX: usize = 64 << 10;
const HEADERS_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_head_ends_at_an_empty_line() {
        assert_eq!(end_of(b"ICY 200 OK\r\na: b\r\n\r\nrest"), Some(20));
        assert_eq!(end_of(b"ICY 200 OK\n\nrest\r\n\r\n"), Some(12));
        assert_eq!(end_of(b"ICY 200 OK\r\na: b\r\n"), None);
    }

    #[test]
    fn icy_and_http_responses_are_parsed_and_others_refused() {
        for line in ["ICY 200 OK", "HTTP/1.0 200 OK", "HTTP/1.1 200 OK"] {
            let head = format!("{line}\r\nicy-name:A station\r\n\r\n");
            let response = response(head.as_bytes(), Body::default()).expect("an answer");
            assert_eq!(response.status(), 200);
            assert_eq!(response.headers()["icy-name"], "A station");
        }
        for head in [
            "RTSP/1.0 200 OK\r\n\r\n",
            "ICY 1 OK\r\n\r\n",
            "ICY 200 OK\r\na b\r\n\r\n",
            "\r\n\r\n",
        ] {
            assert!(
                response(head.as_bytes(), Body::default()).is_err(),
                "{head:?}"
            );
        }
        let many = format!("ICY 200 OK\r\n{}\r\n", "a: b\r\n".repeat(HEADERS_MAX + 1));
        assert!(response(many.as_bytes(), Body::default()).is_err());
    }

    #[test]
    fn a_request_has_path_query_host_and_headers() {
        let url = Url::parse("http://[::1]:8000/a/b?c=d").expect("a URL");
        let mut headers = HeaderMap::new();
        headers.insert("icy-metadata", "1".parse().expect("a value"));
        let due =
            "GET /a/b?c=d HTTP/1.0\r\nhost: [::1]:8000\r\naccept: */*\r\nicy-metadata: 1\r\n\r\n";
        assert_eq!(request(&url, &headers), due.as_bytes());
    }
}
