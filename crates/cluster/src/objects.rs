//! Checkpoints in an object store: S3 and what speaks its language, a folder, or this process's memory.
//!
//! The same files as in a folder. An object appears whole or not at all, so the manifest makes the checkpoint here too.
//! Transient failures are tried again for a while by the store's client; what is wrong with a bucket or with
//! credentials is said at once.

use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, ObjectStoreExt, RetryConfig, WriteMultipart};
use thalweg_train::{Files, Hold, Place, TrainError};
use tokio::runtime::Runtime;
use tokio_stream::StreamExt;

use crate::error::{ClusterError, in_full};

/// Larger objects are sent in parts of this size.
const PART: usize = 16 << 20;
/// For how long a request that failed is tried again.
const RETRY: Duration = Duration::from_secs(30);

/// The place that a URL names: `s3://bucket/path` (with the `AWS_*` variables of the environment), `file:///path` or
/// `memory:///name`.
pub fn place(url: &str) -> Result<Place, ClusterError> {
    // Names and values that are no text are not ours.
    place_with(
        url,
        std::env::vars_os().filter_map(|(n, v)| Some((n.into_string().ok()?, v.into_string().ok()?))),
    )
}

/// The same with variables from elsewhere.
pub fn place_with(
    url: &str,
    variables: impl IntoIterator<Item = (String, String)>,
) -> Result<Place, ClusterError> {
    let wrong = |problem: String| ClusterError::Place { url: url.to_owned(), problem };
    let form = || wrong("use s3://BUCKET/PATH, file:///PATH or memory:///NAME".into());
    let (scheme, rest) = url.split_once("://").ok_or_else(form)?;
    let (store, path): (Arc<dyn ObjectStore>, &str) = match scheme {
        "s3" => {
            let (bucket, path) = rest.split_once('/').unwrap_or((rest, ""));
            if bucket.is_empty() {
                return Err(form());
            }
            // Without a provider of its own the client would want one that needs more than a C compiler.
            let _ = rustls::crypto::ring::default_provider().install_default();
            let backoff = BackoffConfig { max_backoff: Duration::from_secs(3), ..BackoffConfig::default() };
            // The time is the limit: ten tries at a closed port are over in two seconds.
            let retry = RetryConfig { backoff, max_retries: 1000, retry_timeout: RETRY };
            let options =
                ClientOptions::new().with_timeout(RETRY).with_connect_timeout(Duration::from_secs(5));
            let mut builder = AmazonS3Builder::new().with_client_options(options).with_retry(retry);
            for (name, value) in variables.into_iter().filter(|(name, _)| name.starts_with("AWS_")) {
                // An emulator on this host speaks plain HTTP; anybody else is asked over TLS, or AWS_ALLOW_HTTP is set.
                if name.starts_with("AWS_ENDPOINT") && value.starts_with("http://127.0.0.1") {
                    builder = builder.with_allow_http(true);
                }
                if let Ok(key) = name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>() {
                    builder = builder.with_config(key, value);
                }
            }
            let store = builder.with_bucket_name(bucket).build().map_err(|e| wrong(e.to_string()))?;
            (Arc::new(store), path)
        }
        "file" if rest.starts_with('/') => (Arc::new(LocalFileSystem::new()), rest),
        "memory" => {
            static MEMORY: OnceLock<Arc<InMemory>> = OnceLock::new();
            (MEMORY.get_or_init(Arc::default).clone(), rest)
        }
        _ => return Err(form()),
    };
    let prefix = Path::parse(path.trim_matches('/')).map_err(|e| wrong(e.to_string()))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.map_err(|e| wrong(e.to_string()))?;
    Ok(Place::new(Objects {
        store,
        prefix,
        url: url.trim_end_matches('/').to_owned(),
        runtime: Some(runtime),
    }))
}

struct Objects {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    url: String,
    runtime: Option<Runtime>, // taken when it is dropped
}

impl Objects {
    /// Waits for what runs on the store's own thread, so that the caller may be in a runtime or not.
    fn wait<T: Send + 'static>(
        &self,
        action: &'static str,
        name: &str,
        work: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> Result<T, TrainError> {
        let (send, done) = channel();
        let runtime = self.runtime.as_ref().expect("it is there until the end");
        runtime.spawn(async move { send.send(work.await) });
        let place = if name.is_empty() { self.url.clone() } else { format!("{}/{name}", self.url) };
        let failed = |reason: String| TrainError::Place { action, place, reason };
        match done.recv() {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(e)) => Err(failed(in_full(&e))),
            Err(_) => Err(failed("the thread of the object store has failed".into())),
        }
    }
}

impl Files for Objects {
    fn names(&self) -> Result<Vec<String>, TrainError> {
        let (store, prefix) = (self.store.clone(), self.prefix.clone());
        self.wait("list", "", async move {
            let mut names = Vec::new();
            let mut listed = store.list(Some(&prefix));
            while let Some(object) = listed.next().await {
                let object = object?;
                let mut below = object.location.prefix_match(&prefix).into_iter().flatten();
                let name = below.next().map(|part| part.as_ref().to_owned());
                names.extend(name.filter(|_| below.next().is_none()));
            }
            Ok(names)
        })
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, TrainError> {
        let (store, path) = (self.store.clone(), self.prefix.clone().join(name));
        self.wait("read", name, async move { Ok(store.get(&path).await?.bytes().await?.to_vec()) })
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> Result<(), TrainError> {
        let (store, path, bytes) = (self.store.clone(), self.prefix.clone().join(name), bytes.to_vec());
        self.wait("write", name, async move {
            if bytes.len() <= PART {
                return store.put(&path, bytes.into()).await.map(drop);
            }
            let mut upload = WriteMultipart::new_with_chunk_size(store.put_multipart(&path).await?, PART);
            for part in bytes.chunks(PART) {
                upload.wait_for_capacity(4).await?;
                upload.write(part);
            }
            upload.finish().await.map(drop)
        })
    }

    fn remove(&self, name: &str) -> Result<(), TrainError> {
        let (store, path) = (self.store.clone(), self.prefix.clone().join(name));
        self.wait("remove", name, async move {
            match store.delete(&path).await {
                Err(object_store::Error::NotFound { .. }) => Ok(()),
                done => done,
            }
        })
    }

    /// A lock that outlives its process would be worse than none.
    fn hold(&self, _: &str) -> Result<Hold, TrainError> {
        Ok(Hold::Open)
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(&self.url)
    }
}

impl Drop for Objects {
    /// A runtime must not be waited for inside another one.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
