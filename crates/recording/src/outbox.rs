//! Uploads complete files to an object store, and then removes them. Pending uploads are recorded on the disk, so that the next
//! process continues them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use threadbare_s3::{
    Credentials, Endpoint, Error, FileEvent, FileSender, Object, SenderSettings, Store,
    StoreSettings, Timeouts,
};

use super::destination::metadata_path;
use super::index::Entry;
use super::place::StoredObject;
use threadbare_config::Bucket;

/// Function that is called with a folder and the name of a file that was uploaded.
pub(super) type Stored = Box<dyn Fn(Arc<Path>, PathBuf) + Send + Sync>;

/// The uploads of a folder.
#[derive(Debug)]
pub(super) struct Outbox {
    sender: FileSender,
    store: Store,
    bucket: Bucket,
}

impl Outbox {
    /// Opens a folder and continues the uploads of the previous process. This call may block for some seconds, because it checks whether
    /// the store accepts files.
    ///
    /// # Errors
    /// Fails if the store refuses files, or if the folder cannot be used. An unreachable store is not an error.
    pub(super) fn open(root: &Arc<Path>, bucket: &Bucket, stored: Stored) -> Result<Outbox, Error> {
        let spec = &bucket.store;
        let (region, name) = (&bucket.region, &bucket.name);
        let store = Store::shared(StoreSettings {
            endpoint: Endpoint::new(spec.endpoint.as_deref(), region, name, spec.path_style)?,
            credentials: Credentials::Usual,
            ca_file: spec.ca.clone(),
        })?;
        match ask(&store) {
            Err(error) if !error.is_transient() => return Err(error),
            Err(error) => {
                tracing::warn!(region, bucket = name, %error, "the store is unreachable: recordings stay in the spool until it answers");
            }
            Ok(()) => {}
        }
        let mut settings = SenderSettings::new(root.join(NOTES));
        let folder = root.clone();
        settings.on_event = Some(Arc::new(move |event| tell(event, &folder, &stored)));
        let sender = FileSender::start(&store, settings)?;
        let bucket = bucket.clone();
        Ok(Outbox {
            sender,
            store,
            bucket,
        })
    }

    /// Uploads a file, unless its upload is already in progress.
    pub(super) fn send(&self, root: &Path, entry: &Entry) {
        let path = root.join(&entry.path);
        if self.sender.is_sending(&path) {
            return;
        }
        self.send_file(&path, &entry.path, entry.content_type());
        let beside = metadata_path(&path);
        if beside.is_file() {
            self.send_file(&beside, &metadata_path(&entry.path), "text/plain");
        }
    }

    fn send_file(&self, path: &Path, key: &Path, content_type: &str) {
        let mut object = Object::new(key.to_string_lossy());
        object.content_type = Some(content_type.to_owned());
        if let Err(error) = self.sender.send(path, object) {
            let path = path.display();
            tracing::error!(%path, %error, "cannot send a recording to the store: it stays in the spool");
        }
    }

    /// Whether the upload of a file or of its metadata is in progress.
    pub(super) fn is_sending(&self, path: &Path) -> bool {
        self.sender.is_sending(path) || self.sender.is_sending(&metadata_path(path))
    }

    /// Returns the objects in the store for a file and its metadata.
    pub(super) fn objects(&self, entry: &Entry) -> [StoredObject; 2] {
        [entry.path.clone(), metadata_path(&entry.path)].map(|key| StoredObject {
            store: self.store.clone(),
            key: key.to_string_lossy().into_owned(),
        })
    }

    /// Returns the URI of a file in the store.
    pub(super) fn uri(&self, entry: &Entry) -> String {
        let Bucket { region, name, .. } = &self.bucket;
        format!("s3://{region}/{name}/{}", entry.path.display())
    }
}

fn ask(store: &Store) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| Error::File(error.to_string()))?;
    runtime.block_on(async {
        let asked = store.check(CHECKED, Timeouts::default());
        let asked = tokio::time::timeout(ASK_TIME_MAX, asked).await;
        asked.unwrap_or(Err(Error::TimedOut(ASK_TIME_MAX.as_millis() as u64)))
    })
}

/// Handles an event of an upload. It runs on a thread of the S3 client.
fn tell(event: &FileEvent, root: &Arc<Path>, stored: &Stored) {
    match event {
        FileEvent::Progress { .. } => {}
        FileEvent::Stored { path, .. } => {
            if let Ok(below) = path.strip_prefix(root) {
                stored(root.clone(), below.to_owned());
            }
        }
        FileEvent::Failed { path, error, .. } => {
            let path = path.display();
            tracing::error!(%path, %error, "the store refused a recording: the next process sends it again");
        }
    }
}

/// Name of the folder with the records of pending uploads, inside the folder of the files.
const NOTES: &str = ".sending";
/// Key of an object with which the store is only checked. The object is never written.
const CHECKED: &str = ".threadbare-check";
const ASK_TIME_MAX: Duration = Duration::from_secs(10);
