//! Sends endless HTTP replies to other nodes in pieces. Between nodes, each request has exactly one reply. So the other node requests one
//! piece after the other.
//!
//! ```text
//!  node with the client: GET /v1/events --Piece, reader 7--> this node: reads its own HTTP response up to now
//!                       <-- the data since the last piece, or nothing after a second --'   until no more requests come
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::BodyDataStream;
use axum::extract::Request;
use axum::http::header::CONTENT_TYPE;
use futures_util::{FutureExt, StreamExt};
use tokio::time::{Instant, sleep, timeout};
use tower::ServiceExt;

use threadbare_cluster::{Back, Piece};

/// The endless replies that other nodes are reading. Clones share them.
#[derive(Clone)]
pub(super) struct Feeds {
    /// The name of this node.
    node: Arc<str>,
    of: Arc<Mutex<HashMap<u64, Feed>>>,
    /// The time that a request waits for data, and the maximum time between the requests of a reader.
    times: [Duration; 2],
}

struct Feed {
    status: u16,
    content_type: Option<String>,
    body: BodyDataStream,
    read: Instant,
}

impl Feeds {
    /// Creates an empty list. `node` is the name of this node.
    pub(super) fn new(node: &str) -> Feeds {
        Feeds {
            node: node.into(),
            of: Arc::default(),
            times: [WAIT_MAX, READER_TIME_MAX],
        }
    }

    /// Returns the next piece for a reader. The first piece of a reader starts `request`.
    pub(super) async fn piece(&self, http: Router, reader: u64, request: Request) -> Back {
        // The feed can be taken out of the list meanwhile, because a reader requests one piece at a time.
        let known = self.lock().remove(&reader);
        let mut feed = match known {
            Some(feed) => feed,
            None if self.lock().len() >= FEEDS_MAX => {
                return Back::Unable(
                    "this node already has the maximum number of readers at other nodes".to_owned(),
                );
            }
            None => Feed::begin(http, request).await,
        };
        let (body, is_over) = feed.next(self.times[0]).await;
        let back = Back::Piece(Piece {
            node: self.node.to_string(),
            status: feed.status,
            content_type: feed.content_type.clone(),
            body,
            is_over,
        });
        if !is_over {
            feed.read = Instant::now();
            self.lock().insert(reader, feed);
            tokio::spawn(self.clone().forget(reader));
        }
        back
    }

    /// Waits until a reader requests no more pieces, and removes it. A reader sends no message when it goes.
    async fn forget(self, reader: u64) {
        sleep(self.times[1]).await;
        let mut feeds = self.lock();
        let is_old = |feed: &Feed| feed.read.elapsed() >= self.times[1];
        if feeds.get(&reader).is_some_and(is_old) {
            feeds.remove(&reader);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Feed>> {
        self.of.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Feed {
    async fn begin(http: Router, request: Request) -> Feed {
        let Ok(response) = http.oneshot(request).await;
        let (head, body) = response.into_parts();
        let content_type = head.headers.get(CONTENT_TYPE);
        Feed {
            status: head.status.as_u16(),
            content_type: content_type.and_then(|value| Some(value.to_str().ok()?.to_owned())),
            body: body.into_data_stream(),
            read: Instant::now(),
        }
    }

    /// Returns the new data, and whether the reply is complete. Waits up to `wait` for data.
    async fn next(&mut self, wait: Duration) -> (Vec<u8>, bool) {
        let mut bytes = Vec::new();
        let Ok(mut next) = timeout(wait, self.body.next()).await else {
            return (bytes, false);
        };
        loop {
            match next {
                Some(Ok(more)) => bytes.extend_from_slice(&more),
                Some(Err(_)) | None => return (bytes, true),
            }
            if bytes.len() >= PIECE_BYTES {
                return (bytes, false);
            }
            next = match self.body.next().now_or_never() {
                Some(next) => next,
                None => return (bytes, false),
            };
        }
    }
}

/// Maximum number of readers at other nodes. It is higher than the limits for listeners at this node.
const FEEDS_MAX: usize = 64;
const WAIT_MAX: Duration = Duration::from_secs(1);
const READER_TIME_MAX: Duration = Duration::from_secs(10);
/// Size from which a piece is sent without waiting for more data. A message between nodes must be smaller than 1 MiB, and a chunk of a
/// reply has some kilobytes.
const PIECE_BYTES: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use axum::body::{Body, Bytes};
    use axum::routing::get;
    use futures_util::stream::{iter, pending};
    use tokio::sync::Mutex as AsyncMutex;

    use super::*;

    fn request(path: &str) -> Request {
        Request::get(path).body(Body::empty()).expect("a request")
    }

    fn router(body: Body) -> Router {
        let body = Arc::new(AsyncMutex::new(Some(body)));
        let answer = move || {
            let body = body.clone();
            async move { body.lock().await.take().unwrap_or_default() }
        };
        Router::new().route("/", get(answer))
    }

    fn said(back: Back) -> (u16, Vec<u8>, bool) {
        match back {
            Back::Piece(piece) => (piece.status, piece.body, piece.is_over),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn body_arrives_in_pieces_until_its_end() {
        let feeds = Feeds::new("a");
        let chunk = |byte| Ok::<_, std::io::Error>(Bytes::from(vec![byte; PIECE_BYTES - 1]));
        let http = router(Body::from_stream(iter([chunk(1), chunk(2), chunk(3)])));
        let piece = |path| feeds.piece(http.clone(), 7, request(path));
        let (status, first, is_over) = said(piece("/").await);
        assert_eq!(
            (status, first.len(), is_over),
            (200, 2 * PIECE_BYTES - 2, false)
        );
        let (_, second, is_over) = said(piece("/").await);
        assert_eq!(
            (second[0], second.len(), is_over),
            (3, PIECE_BYTES - 1, true)
        );
        // This path does not exist.
        assert_eq!(said(piece("/none").await).0, 404);
    }

    #[tokio::test]
    async fn waiting_readers_are_answered_and_absent_ones_removed() {
        let feeds = Feeds {
            times: [Duration::from_millis(10), Duration::from_millis(100)],
            ..Feeds::new("a")
        };
        let first = iter([Ok::<_, std::io::Error>(Bytes::from_static(b"a"))]);
        let http = router(Body::from_stream(first.chain(pending())));
        let piece = || feeds.piece(http.clone(), 7, request("/"));
        assert_eq!(said(piece().await), (200, b"a".to_vec(), false));
        assert_eq!(said(piece().await), (200, Vec::new(), false));
        assert_eq!(feeds.lock().len(), 1);
        while !feeds.lock().is_empty() {
            tokio::task::yield_now().await;
        }
        let feeds = Feeds::new("a");
        let feeds = Feeds {
            times: [Duration::from_millis(1), READER_TIME_MAX],
            ..feeds
        };
        for reader in 0..FEEDS_MAX as u64 {
            let endless = router(Body::from_stream(pending::<Result<Bytes, std::io::Error>>()));
            said(feeds.piece(endless, reader, request("/")).await);
        }
        let refused = feeds.piece(http.clone(), 99, request("/")).await;
        assert!(matches!(refused, Back::Unable(_)), "{refused:?}");
    }
}
