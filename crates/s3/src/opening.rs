//! Prepares a destination of uploads without blocking the caller. It reads certificates, opens the spool, resumes the uploads
//! left in the spool, and checks that the store accepts objects.

use std::future::poll_fn;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::client::{Store, StoreSettings, runtime};
use crate::error::Error;
use crate::lock;
use crate::spool::Spool;
use crate::upload::{Upload, UploadSettings};

/// Number of checks of a store. After so many checks without an answer, the store counts as unavailable.
const CHECKS_MAX: u32 = 3;
const CHECK_PAUSE: Duration = Duration::from_millis(300);

/// Settings of a place.
#[derive(Debug, Clone)]
pub struct PlaceSettings {
    /// The bucket.
    pub store: StoreSettings,
    /// Folder and maximum size of a spool, in bytes.
    pub spool: Option<(PathBuf, u64)>,
    /// Settings for resuming the uploads in the spool.
    pub upload: UploadSettings,
    /// Key of an object that will be written. The check of the store uses it. `None` for no check.
    pub check: Option<String>,
}

/// Destination of uploads.
#[derive(Debug, Clone)]
pub struct Place {
    /// The bucket.
    pub store: Store,
    /// Spool for waiting parts.
    pub spool: Option<Spool>,
    /// Why the store does not answer now; `None` if it does. With a spool, a store that does not answer is not a failure.
    pub away: Option<Error>,
}

#[derive(Default)]
struct State {
    result: Option<Result<Place, Error>>,
    wakers: Vec<Waker>,
}

/// A place that is being prepared. Dropping this value does not stop the preparation.
#[derive(Clone)]
pub struct Opening(Arc<Mutex<State>>);

impl Place {
    /// Begins to prepare a place.
    pub fn open(settings: PlaceSettings) -> Opening {
        let state = Arc::<Mutex<State>>::default();
        let opening = Opening(state.clone());
        match runtime() {
            Ok(runtime) => {
                drop(runtime.spawn(async move { complete(&state, ready(settings).await) }))
            }
            Err(error) => complete(&state, Err(error)),
        }
        opening
    }
}

impl Opening {
    /// Returns `Ready` when the preparation has ended.
    pub fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<Result<Place, Error>> {
        let mut state = lock(&self.0);
        if let Some(result) = &state.result {
            return Poll::Ready(result.clone());
        }
        if !state.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            state.wakers.push(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Completes when the preparation has ended.
    ///
    /// # Errors
    /// Fails if the place cannot be used.
    pub async fn ready(&self) -> Result<Place, Error> {
        poll_fn(|cx| self.poll_ready(cx)).await
    }
}

fn complete(state: &Mutex<State>, result: Result<Place, Error>) {
    let wakers = {
        let mut state = lock(state);
        state.result = Some(result);
        std::mem::take(&mut state.wakers)
    };
    wakers.into_iter().for_each(Waker::wake);
}

async fn ready(settings: PlaceSettings) -> Result<Place, Error> {
    let PlaceSettings {
        store,
        spool,
        upload,
        check,
    } = settings;
    // These steps read files, so they run on a thread that may block.
    let opened = tokio::task::spawn_blocking(move || {
        let opened = spool
            .map(|(path, bytes_max)| Spool::open(&path, bytes_max))
            .transpose()?;
        Ok((Store::shared(store)?, opened))
    });
    let opened: Result<_, Error> = opened
        .await
        .map_err(|error| Error::Setting(error.to_string()))?;
    let (store, opened) = opened?;
    let away = match check {
        Some(key) => checked(&store, &key, &upload).await,
        None => Ok(()),
    };
    let spool = opened.map(|(spool, left)| {
        for left in left {
            let key = left.key().to_owned();
            tracing::info!(
                key,
                bytes = left.bytes(),
                "resuming an upload of an earlier process"
            );
            if let Err(error) = Upload::resume(left, store.settings(), &spool, &upload) {
                tracing::warn!(key, %error, "cannot resume an upload from its journal");
            }
        }
        spool
    });
    match away {
        Ok(()) => Ok(Place {
            store,
            spool,
            away: None,
        }),
        Err(error) if error.is_transient() && spool.is_some() => Ok(Place {
            store,
            spool,
            away: Some(error),
        }),
        Err(error) => Err(error),
    }
}

async fn checked(store: &Store, key: &str, upload: &UploadSettings) -> Result<(), Error> {
    let mut last = Ok(());
    for number in 0..CHECKS_MAX {
        if number > 0 {
            tokio::time::sleep(CHECK_PAUSE).await;
        }
        last = store.check(key, upload.timeouts).await;
        match &last {
            Err(error) if error.is_transient() => {}
            _ => break,
        }
    }
    last
}
