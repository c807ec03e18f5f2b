//! Pictures on disk, one folder per class.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use thalweg_tensor::Tensor;

use crate::dataset::Dataset;
use crate::draw::Draw;
use crate::error::{BadRecord, DataError, Place};
use crate::images::{Channels, decode};
use crate::records::{OnError, Skipped};

/// The pictures `root/<class>/<name>.png` (or `.jpg`, `.jpeg`), decoded when they are fetched.
///
/// Classes and pictures are in the order of their names, so a sample has the same index on every machine.
/// A batch is `(x, y)` with images `(N, C, H, W)` in `0..=1` and classes as i64. A broken picture is an error
/// or, with [`OnError::Skip`], missing from its batch; [`ImageFolder::skipped`] says which were.
///
/// ```no_run
/// use thalweg_data::{Channels, Dataset, ImageFolder, OnError};
/// let pets = ImageFolder::open("pets", Channels::Rgb, 64, 64, OnError::Skip)?;
/// for batch in pets.batches(32).shuffled(0).workers(2) {
///     let (x, y) = batch?;
///     assert_eq!(x.shape()[1..], [3, 64, 64]);
/// }
/// println!("{}", pets.skipped());
/// # Ok::<(), thalweg_data::DataError>(())
/// ```
#[derive(Debug, Clone)]
pub struct ImageFolder(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    files: Vec<(PathBuf, i64)>,
    classes: Vec<String>,
    channels: Channels,
    height: usize,
    width: usize,
    on_error: OnError,
    skipped: Mutex<Skipped>,
}

impl ImageFolder {
    /// Lists the pictures; they will be given this many channels and resized to this height and width.
    pub fn open(
        root: impl AsRef<Path>,
        channels: Channels,
        height: usize,
        width: usize,
        on_error: OnError,
    ) -> Result<Self, DataError> {
        let root = root.as_ref();
        if height == 0 || width == 0 {
            let need = "height and width of pictures must be positive".to_owned();
            return Err(DataError::Range { what: "size", got: 0, need });
        }
        let mut files = Vec::new();
        let mut classes = Vec::new();
        for folder in sorted(root)?.into_iter().filter(|p| p.is_dir()) {
            let pictures: Vec<PathBuf> = sorted(&folder)?.into_iter().filter(|p| is_picture(p)).collect();
            files.extend(pictures.into_iter().map(|p| (p, classes.len() as i64)));
            classes.push(folder.file_name().unwrap_or_default().to_string_lossy().into_owned());
        }
        if files.is_empty() {
            return Err(DataError::Empty {
                path: root.to_owned(),
                what: "folders with .png or .jpg pictures",
            });
        }
        let skipped = Mutex::default();
        Ok(Self(Arc::new(Inner { files, classes, channels, height, width, on_error, skipped })))
    }

    /// The names of the classes.
    pub fn classes(&self) -> &[String] {
        &self.0.classes
    }

    /// The file of a sample, which must exist.
    pub fn path(&self, index: usize) -> &Path {
        &self.0.files[index].0
    }

    /// The pictures that were left out so far; one that is met in each epoch counts each time.
    pub fn skipped(&self) -> Skipped {
        self.0.skipped.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn planes(&self, path: &Path) -> Result<Vec<f32>, BadRecord> {
        let bad = |reason| BadRecord { path: path.to_owned(), place: Place::Whole, reason };
        let bytes = std::fs::read(path).map_err(|e| bad(crate::error::Reason::Unreadable(e.to_string())))?;
        Ok(decode(&bytes, self.0.channels).map_err(bad)?.planes(self.0.height, self.0.width))
    }
}

impl Dataset for ImageFolder {
    type Batch = Result<(Tensor, Tensor), DataError>;

    fn len(&self) -> usize {
        self.0.files.len()
    }

    fn batch(&self, draws: &[Draw]) -> Self::Batch {
        let inner = &*self.0;
        let (mut x, mut y, mut last) = (Vec::new(), Vec::new(), None);
        for draw in draws {
            let (path, class) = &inner.files[draw.index];
            match self.planes(path) {
                Ok(planes) => {
                    x.extend(planes);
                    y.push(*class);
                }
                Err(bad) => {
                    let mut skipped = inner.skipped.lock().unwrap_or_else(PoisonError::into_inner);
                    skipped.decide(inner.on_error, bad.clone())?;
                    last = Some(bad);
                }
            }
        }
        if let Some(last) = last.filter(|_| y.is_empty()) {
            return Err(DataError::BrokenBatch { count: draws.len(), last });
        }
        let shape = [y.len(), inner.channels.count(), inner.height, inner.width];
        Ok((Tensor::from_vec(x, shape), Tensor::from(y)))
    }
}

fn sorted(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let entries = std::fs::read_dir(folder).map_err(DataError::io("list", folder))?;
    let mut paths = Vec::new();
    for entry in entries {
        paths.push(entry.map_err(DataError::io("list", folder))?.path());
    }
    paths.sort();
    Ok(paths)
}

fn is_picture(path: &Path) -> bool {
    let ending = path.extension().and_then(|e| e.to_str()).map(str::to_ascii_lowercase);
    matches!(ending.as_deref(), Some("png" | "jpg" | "jpeg"))
}
