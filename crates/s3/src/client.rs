//! Requests to a store, on two threads for the whole process.
//!
//! A [`Store`] is a bucket with its credentials and timeouts. Stores with the same connection settings share connections. Equal
//! stores also share the credentials found in the usual places.

use std::collections::HashMap;
use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, Weak};
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{
    CONTENT_LENGTH, CONTENT_TYPE, ETAG, HeaderMap, HeaderName, HeaderValue, RANGE, RETRY_AFTER,
};
use reqwest::{Body, Certificate, Client, Method, Request, Response};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use crate::body::Data;
use crate::credentials::{Credentials, Signs};
use crate::error::{Error, causes};
use crate::lock;
use crate::object::Object;
use crate::place::Endpoint;
use crate::xml::{self, OpenUpload, StoredPart};

/// Number of threads. Copying from files to sockets takes less than one thread. The second thread is for TLS.
const THREADS: usize = 2;
/// Maximum number of blocking threads. A look-up of a name or of a file of credentials blocks one.
const BLOCKING_MAX: usize = 8;
/// Maximum number of concurrent requests of all uploads. Each takes some hundred KiB.
const TRANSFERS_MAX: usize = 32;
/// Maximum number of idle connections for each host.
const IDLE_MAX: usize = TRANSFERS_MAX;
/// Interval of TCP keepalives, which detect connections whose other end has vanished.
const KEEPALIVE: Duration = Duration::from_secs(60);
/// Maximum size of a response document. 1000 parts or uploads, S3's maximum, take half of it.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Maximum number of pages of a list. Only a faulty server sends more, and would never end the list.
const PAGES_MAX: usize = 100;
/// Time for which a successful check of a store is valid for other uploads.
const CHECK_LASTS: Duration = Duration::from_secs(60);
/// Id of an upload that does not exist. No store assigns this id.
const NO_UPLOAD: &str = "none";
/// Body size to which the timeout applies. Larger bodies may take proportionally longer.
const TIMEOUT_BYTES: u64 = 5 << 20;

/// Timeouts of responses in ms; `None` for no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// For small requests.
    pub request_ms: Option<u64>,
    /// For a part, or for a whole small object, per 5 MiB.
    pub part_ms: Option<u64>,
    /// For the request that completes an upload.
    pub complete_ms: Option<u64>,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            request_ms: Some(15_000),
            part_ms: Some(15_000),
            complete_ms: Some(15_000),
        }
    }
}

/// Settings that identify a store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StoreSettings {
    /// Location of the bucket.
    pub endpoint: Endpoint,
    /// Credentials that authorise the requests.
    pub credentials: Credentials,
    /// A file of certificates (PEM) to trust, instead of those of the system.
    pub ca_file: Option<PathBuf>,
}

/// A bucket. Clones refer to the same store.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    settings: StoreSettings,
    client: Client,
    signs: Signs,
    /// Allows one check at a time. Other callers wait for its result.
    checking: Semaphore,
    checked: Mutex<Option<Instant>>,
    has_signed: AtomicBool,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Store")
            .field(&self.0.settings.endpoint.shown())
            .finish()
    }
}

/// Returns the runtime, started at first use.
pub(crate) fn runtime() -> Result<&'static Runtime, Error> {
    static RUNTIME: OnceLock<Result<Runtime, String>> = OnceLock::new();
    let made = RUNTIME.get_or_init(|| {
        let built = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .max_blocking_threads(BLOCKING_MAX)
            .thread_name("ts-s3")
            .enable_all()
            .build();
        built.map_err(|error| error.to_string())
    });
    made.as_ref()
        .map_err(|reason| Error::Setting(format!("cannot start the threads for S3: {reason}")))
}

/// Calls wakers on a thread of the client, because the caller may hold a lock that a waker needs.
pub(crate) fn wake(wakers: Vec<Waker>) {
    if wakers.is_empty() {
        return;
    }
    let all = move || wakers.into_iter().for_each(Waker::wake);
    match runtime() {
        Ok(runtime) => drop(runtime.spawn(async move { all() })),
        Err(_) => all(),
    }
}

/// Permits for transfers.
pub(crate) static TRANSFERS: Semaphore = Semaphore::const_new(TRANSFERS_MAX);

fn client(ca_file: Option<&Path>) -> Result<Client, Error> {
    static ALL: LazyLock<Mutex<HashMap<Option<PathBuf>, Client>>> = LazyLock::new(Mutex::default);
    let wanted = ca_file.map(Path::to_path_buf);
    if let Some(client) = lock(&ALL).get(&wanted) {
        return Ok(client.clone());
    }
    // S3 supports only HTTP/1.1. With HTTP/1.1, a slow connection does not delay other requests, either.
    let mut builder = Client::builder()
        .http1_only()
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .no_gzip()
        .pool_max_idle_per_host(IDLE_MAX)
        .tcp_keepalive(KEEPALIVE)
        .user_agent(concat!("threadbare/", env!("CARGO_PKG_VERSION")));
    if let Some(path) = ca_file {
        let refused = |reason: &str| {
            Error::Setting(format!(
                "ssl-ca-file={}: {reason}; expected a file of certificates (PEM)",
                path.display()
            ))
        };
        let text = std::fs::read(path).map_err(|error| refused(&error.to_string()))?;
        let bundle = Certificate::from_pem_bundle(&text)
            .map_err(|_| refused("the file has no certificates"))?;
        if bundle.is_empty() {
            return Err(refused("the file has no certificates"));
        }
        builder = builder.tls_built_in_root_certs(false);
        for certificate in bundle {
            builder = builder.add_root_certificate(certificate);
        }
    }
    let built = builder
        .build()
        .map_err(|error| Error::Setting(format!("no HTTP client: {}", causes(&error))))?;
    Ok(lock(&ALL).entry(wanted).or_insert(built).clone())
}

/// Metadata of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Size in bytes, if the store reports it.
    pub bytes: Option<u64>,
    /// ETag of the content.
    pub etag: Option<String>,
}

/// A response whose body is read on demand.
#[derive(Debug)]
pub struct Download {
    response: Response,
    patience: Option<Duration>,
    /// Size of the body in bytes, if the store reports it.
    pub bytes: Option<u64>,
    /// ETag of the content.
    pub etag: Option<String>,
    /// Content type as stored with the object.
    pub content_type: Option<String>,
}

impl Download {
    /// Returns the next bytes; `None` at the end.
    ///
    /// # Errors
    /// Fails if the connection broke, or if nothing arrived within the timeout of a request.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Error> {
        let chunk = within(self.patience, async {
            self.response.chunk().await.map_err(problem)
        });
        chunk.await
    }
}

impl Store {
    /// Returns the process's store with these settings. It reads certificate files, so do not call it on a thread that must not
    /// block.
    ///
    /// # Errors
    /// Fails with [`Error::Setting`] if a setting is invalid.
    pub fn shared(settings: StoreSettings) -> Result<Store, Error> {
        static ALL: LazyLock<Mutex<HashMap<StoreSettings, Weak<Inner>>>> =
            LazyLock::new(Mutex::default);
        if let Some(known) = lock(&ALL).get(&settings).and_then(Weak::upgrade) {
            return Ok(Store(known));
        }
        let client = client(settings.ca_file.as_deref())?;
        let signs = Signs::new(&settings.credentials, settings.endpoint.region(), &client);
        let made = Arc::new(Inner {
            settings: settings.clone(),
            client,
            signs,
            checking: Semaphore::new(1),
            checked: Mutex::new(None),
            has_signed: AtomicBool::new(false),
        });
        let mut all = lock(&ALL);
        if let Some(known) = all.get(&settings).and_then(Weak::upgrade) {
            return Ok(Store(known));
        }
        all.retain(|_, known| known.strong_count() > 0);
        all.insert(settings, Arc::downgrade(&made));
        Ok(Store(made))
    }

    /// Endpoint of the store.
    pub fn endpoint(&self) -> &Endpoint {
        &self.0.settings.endpoint
    }

    /// Returns the settings of the store.
    pub fn settings(&self) -> &StoreSettings {
        &self.0.settings
    }

    /// Adds the headers that authorise a request, for separate HTTP clients.
    ///
    /// # Errors
    /// Fails with [`Error::Credentials`] if there are no credentials.
    pub async fn sign(&self, request: &mut Request) -> Result<(), Error> {
        match self.0.signs.sign(request).await {
            Ok(()) => {
                self.0.has_signed.store(true, Relaxed);
                Ok(())
            }
            // Credentials were found before. So now only the service that gives them is unavailable.
            Err(Error::Credentials(text)) if self.0.has_signed.load(Relaxed) => Err(Error::Broken(
                format!("the credentials are unavailable at the moment: {text}"),
            )),
            Err(error) => Err(error),
        }
    }

    fn request(&self, method: Method, key: &str, query: &[(&str, &str)]) -> Request {
        Request::new(method, self.endpoint().url(key, query))
    }

    /// Sends a request, and reads the response document.
    async fn ask(
        &self,
        request: Request,
        timeout_ms: Option<u64>,
    ) -> Result<(HeaderMap, String), Error> {
        let ask = async {
            let response = self.send(request).await?;
            let headers = response.headers().clone();
            Ok((headers, text_of(response).await?))
        };
        within(timeout_ms.map(Duration::from_millis), ask).await
    }

    async fn send(&self, mut request: Request) -> Result<Response, Error> {
        self.sign(&mut request).await?;
        let response = self.0.client.execute(request).await.map_err(problem)?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(refusal_of(response).await)
    }

    /// Checks that objects can be written: that credentials, bucket and region are right, and that the store answers. It leaves
    /// nothing behind.
    ///
    /// It aborts an upload that does not exist. This needs correct credentials, bucket and region, and a permission that every
    /// user who uploads needs.
    ///
    /// # Errors
    /// Fails with the reason why objects cannot be written.
    pub async fn check(&self, key: &str, timeouts: Timeouts) -> Result<(), Error> {
        let _one = self.0.checking.acquire().await;
        let known = *lock(&self.0.checked);
        if known.is_some_and(|at| at.elapsed() < CHECK_LASTS) {
            return Ok(());
        }
        match self.abort(key, NO_UPLOAD, timeouts).await {
            Ok(()) => {}
            // Perhaps only the permission to abort is missing.
            Err(Error::Refused {
                status: 403, code, ..
            }) if matches!(code.as_str(), "AccessDenied" | "") => {
                let upload = self.create(&Object::new(key), timeouts).await?;
                // If this fails, an upload without parts remains, which costs nothing.
                let _ = self.abort(key, &upload, timeouts).await;
            }
            Err(error) => return Err(error),
        }
        *lock(&self.0.checked) = Some(Instant::now());
        Ok(())
    }

    /// Begins an upload in parts. Returns its id.
    ///
    /// # Errors
    /// Fails if the store did not create it.
    pub async fn create(&self, object: &Object, timeouts: Timeouts) -> Result<String, Error> {
        let mut request = self.request(Method::POST, &object.key, &[("uploads", "")]);
        *request.headers_mut() = object.headers()?;
        request
            .headers_mut()
            .insert(CONTENT_LENGTH, HeaderValue::from(0));
        let (_, text) = self.ask(request, timeouts.request_ms).await?;
        xml::created(&text)
    }

    /// Sends a part. Returns its ETag.
    pub(crate) async fn part(
        &self,
        key: &str,
        upload: &str,
        number: u16,
        data: Data,
        timeouts: Timeouts,
    ) -> Result<String, Error> {
        let number = number.to_string();
        let request = self.request(
            Method::PUT,
            key,
            &[("partNumber", &number), ("uploadId", upload)],
        );
        self.put(request, data, timeouts).await
    }

    /// Sends a whole object. Returns its ETag.
    pub(crate) async fn put_object(
        &self,
        object: &Object,
        data: Data,
        timeouts: Timeouts,
    ) -> Result<String, Error> {
        let mut request = self.request(Method::PUT, &object.key, &[]);
        *request.headers_mut() = object.headers()?;
        self.put(request, data, timeouts).await
    }

    /// Sends a small object from memory. Returns its ETag.
    ///
    /// # Errors
    /// Fails if the store did not store it.
    pub async fn put_bytes(
        &self,
        object: &Object,
        bytes: impl Into<Bytes>,
        timeouts: Timeouts,
    ) -> Result<String, Error> {
        self.put_object(object, Data::Memory(vec![bytes.into()]), timeouts)
            .await
    }

    async fn put(
        &self,
        mut request: Request,
        data: Data,
        timeouts: Timeouts,
    ) -> Result<String, Error> {
        let bytes = data.bytes();
        // S3 does not accept a body of unknown length ("Transfer-Encoding: chunked").
        request
            .headers_mut()
            .insert(CONTENT_LENGTH, HeaderValue::from(bytes));
        *request.body_mut() = Some(match bytes {
            0 => Body::from(Bytes::new()),
            _ => data.body(),
        });
        let share = bytes.div_ceil(TIMEOUT_BYTES).max(1);
        let patience_ms = timeouts.part_ms.map(|ms| ms.saturating_mul(share));
        let (headers, _) = self.ask(request, patience_ms).await?;
        let etag = headers.get(ETAG).and_then(|etag| etag.to_str().ok());
        etag.map(str::to_owned)
            .ok_or_else(|| Error::Answer("the answer to an upload has no ETag".into()))
    }

    /// Completes an object from its parts. Returns its ETag.
    pub(crate) async fn complete<'a>(
        &self,
        key: &str,
        upload: &str,
        parts: impl Iterator<Item = (u16, &'a str)>,
        timeouts: Timeouts,
    ) -> Result<String, Error> {
        let mut request = self.request(Method::POST, key, &[("uploadId", upload)]);
        request
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
        *request.body_mut() = Some(xml::complete(parts).into());
        let (_, text) = self.ask(request, timeouts.complete_ms).await?;
        xml::completed(&text)
    }

    /// Removes an upload and its parts. An upload that does not exist is not an error.
    ///
    /// # Errors
    /// Fails if the store does not confirm it. The upload may then still exist.
    pub async fn abort(&self, key: &str, upload: &str, timeouts: Timeouts) -> Result<(), Error> {
        let request = self.request(Method::DELETE, key, &[("uploadId", upload)]);
        match self.ask(request, timeouts.request_ms).await {
            Err(error) if error.code() == Some("NoSuchUpload") => Ok(()),
            other => other.map(|_| ()),
        }
    }

    /// Lists uploads of keys with this prefix that are neither complete nor aborted.
    ///
    /// # Errors
    /// Fails if the store returns no list.
    pub async fn uploads(
        &self,
        prefix: &str,
        timeouts: Timeouts,
    ) -> Result<Vec<OpenUpload>, Error> {
        let mut all = Vec::new();
        let mut marker: Option<(String, String)> = None;
        for _ in 0..PAGES_MAX {
            let mut query = vec![("uploads", ""), ("prefix", prefix)];
            if let Some((key, upload)) = &marker {
                query.extend([
                    ("key-marker", key.as_str()),
                    ("upload-id-marker", upload.as_str()),
                ]);
            }
            let (_, text) = self
                .ask(self.request(Method::GET, "", &query), timeouts.request_ms)
                .await?;
            let page = xml::uploads(&text)?;
            all.extend(page.uploads);
            match (page.is_truncated, page.next_key_marker) {
                (true, Some(key)) => {
                    marker = Some((key, page.next_upload_id_marker.unwrap_or_default()))
                }
                _ => break,
            }
        }
        Ok(all)
    }

    /// Lists the parts of an upload that the store has.
    ///
    /// # Errors
    /// Fails if the store returns no list; `NoSuchUpload` means that the upload is complete or aborted.
    pub async fn parts(
        &self,
        key: &str,
        upload: &str,
        timeouts: Timeouts,
    ) -> Result<Vec<StoredPart>, Error> {
        let mut all = Vec::new();
        let mut marker: Option<String> = None;
        for _ in 0..PAGES_MAX {
            let mut query = vec![("uploadId", upload)];
            if let Some(marker) = &marker {
                query.push(("part-number-marker", marker));
            }
            let (_, text) = self
                .ask(self.request(Method::GET, key, &query), timeouts.request_ms)
                .await?;
            let page = xml::parts(&text)?;
            all.extend(page.parts);
            match (page.is_truncated, page.next_part_number_marker) {
                (true, Some(next)) => marker = Some(next.to_string()),
                _ => break,
            }
        }
        Ok(all)
    }

    /// Returns the metadata of an object; `None` if it does not exist.
    ///
    /// # Errors
    /// Fails if the store does not answer.
    pub async fn head(&self, key: &str, timeouts: Timeouts) -> Result<Option<Head>, Error> {
        let request = self.request(Method::HEAD, key, &[]);
        let headers = match self.ask(request, timeouts.request_ms).await {
            Ok((headers, _)) => headers,
            Err(Error::Refused { status: 404, .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let text = |name: HeaderName| headers.get(name)?.to_str().ok();
        Ok(Some(Head {
            bytes: text(CONTENT_LENGTH).and_then(|text| text.parse().ok()),
            etag: text(ETAG).map(str::to_owned),
        }))
    }

    /// Returns the ETag of an object; `None` if it does not exist.
    ///
    /// # Errors
    /// Fails if the store does not answer.
    pub async fn etag(&self, key: &str, timeouts: Timeouts) -> Result<Option<String>, Error> {
        let head = self.head(key, timeouts).await?;
        Ok(head.and_then(|head| head.etag))
    }

    /// Reads an object, or a range of it in the form of the header `Range` (`bytes=0-99`).
    ///
    /// # Errors
    /// Fails if the object does not exist, or if the store refuses it.
    pub async fn get(
        &self,
        key: &str,
        range: Option<&str>,
        timeouts: Timeouts,
    ) -> Result<Download, Error> {
        let mut request = self.request(Method::GET, key, &[]);
        if let Some(range) = range {
            let value = HeaderValue::from_str(range);
            let value = value
                .map_err(|_| Error::Setting(format!("range={range}: expected bytes=FIRST-LAST")))?;
            request.headers_mut().insert(RANGE, value);
        }
        let patience = timeouts.request_ms.map(Duration::from_millis);
        let response = within(patience, self.send(request)).await?;
        let text = |name: HeaderName| {
            response
                .headers()
                .get(name)?
                .to_str()
                .ok()
                .map(str::to_owned)
        };
        let (etag, content_type) = (text(ETAG), text(CONTENT_TYPE));
        let bytes = response.content_length();
        Ok(Download {
            response,
            patience,
            bytes,
            etag,
            content_type,
        })
    }

    /// Removes an object. An object that does not exist is not an error.
    ///
    /// # Errors
    /// Fails if the store does not confirm it. The object may then still exist.
    pub async fn delete(&self, key: &str, timeouts: Timeouts) -> Result<(), Error> {
        let request = self.request(Method::DELETE, key, &[]);
        self.ask(request, timeouts.request_ms).await.map(|_| ())
    }
}

/// Converts an unsuccessful response to an error with the store's explanation. This is for separate HTTP clients.
pub async fn refusal_of(response: Response) -> Error {
    let status = response.status().as_u16();
    let seconds = response
        .headers()
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    // It is a refusal even if the explanation cannot be read.
    let (code, message) = xml::refusal(&text_of(response).await.unwrap_or_default());
    Error::Refused {
        status,
        code,
        message,
        retry_after_ms: seconds.map(|seconds| seconds.saturating_mul(1000)),
    }
}

/// Runs work with a timeout. It may be called from any executor, because connections and timers belong to the client's threads
/// and outlive the caller.
async fn within<T>(
    patience: Option<Duration>,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let runtime = runtime()?;
    let timed = async {
        let Some(patience) = patience else {
            return work.await;
        };
        let ms = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        let done = timeout(patience, work).await;
        done.unwrap_or(Err(Error::TimedOut(ms)))
    };
    let mut timed = pin!(timed);
    poll_fn(|cx| {
        let _here = runtime.enter();
        timed.as_mut().poll(cx)
    })
    .await
}

async fn text_of(mut response: Response) -> Result<String, Error> {
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(problem)? {
        bytes.extend_from_slice(&chunk);
        if bytes.len() > ANSWER_BYTES_MAX {
            return Err(Error::Answer(format!(
                "the answer has more than {ANSWER_BYTES_MAX} bytes"
            )));
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn problem(error: reqwest::Error) -> Error {
    let error = error.without_url();
    let text = causes(&error);
    if error.is_connect() {
        Error::Connect(text)
    } else {
        Error::Broken(text)
    }
}
