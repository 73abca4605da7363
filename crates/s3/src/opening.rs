//! A place for uploads, made ready without blocking anybody: certificates are read, the spool is opened, what is left in it is gone on with, and
//! the store is asked whether it takes objects.

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

/// Of asking a store whether it takes objects. What does not answer three times is away.
const CHECKS_MAX: u32 = 3;
const CHECK_PAUSE: Duration = Duration::from_millis(300);

/// What a place is made of.
#[derive(Debug, Clone)]
pub struct PlaceSettings {
    /// The bucket.
    pub store: StoreSettings,
    /// Folder and bound of a spool, bytes.
    pub spool: Option<(PathBuf, u64)>,
    /// What is left in the spool goes on with these.
    pub upload: UploadSettings,
    /// Of an object that will be written: the store is asked with it. `None`: it is not asked.
    pub check: Option<String>,
}

/// Where uploads go.
#[derive(Debug, Clone)]
pub struct Place {
    /// The bucket.
    pub store: Store,
    /// Where parts wait.
    pub spool: Option<Spool>,
    /// Why the store does not answer now: with a spool, that is no failure.
    pub away: Option<Error>,
}

#[derive(Default)]
struct State {
    result: Option<Result<Place, Error>>,
    wakers: Vec<Waker>,
}

/// A place that is being made ready. Dropped, that goes on.
#[derive(Clone)]
pub struct Opening(Arc<Mutex<State>>);

impl Place {
    /// Begins to make a place ready.
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
    /// Ready when it is.
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

    /// Completes when it is ready.
    ///
    /// # Errors
    /// Why it cannot be used.
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
    // Both read files.
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
                "an upload that an earlier process has left goes on"
            );
            if let Err(error) = Upload::resume(left, store.settings(), &spool, &upload) {
                tracing::warn!(key, %error, "what is left of an upload is not usable");
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
