//! Tensors in files. The ending chooses the format.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::path::Path;

use thalweg_formats::npz::Compression;
use thalweg_formats::{Dense, Stored, npy, npz, safetensors};
use thalweg_nn::Module;
use thalweg_tensor::Tensor;

use crate::error::{Error, Result};

/// Every tensor of a `.safetensors`, `.npz` or `.npy` file, by name; the one of a `.npy` file is
/// called by the file's stem. Safetensors are mapped, not copied: the file must not change while
/// any of its tensors lives.
///
/// ```
/// use thalweg::{Tensor, load, save};
/// let path = std::env::temp_dir().join(format!("thalweg-doc-{}.npz", std::process::id()));
/// save(&path, [("w", Tensor::from([1.0f32, 2.0])), ("n", Tensor::arange(3))])?;
/// assert_eq!(load(&path)?["w"].to_vec::<f32>(), [1.0, 2.0]);
/// # std::fs::remove_file(path).unwrap();
/// # Ok::<(), thalweg::Error>(())
/// ```
pub fn load(path: impl AsRef<Path>) -> Result<BTreeMap<String, Tensor>> {
    let path = path.as_ref();
    match Ending::of(path)? {
        Ending::Safetensors => {
            Ok(safetensors::open(path)?.tensors.into_iter().map(|(k, v)| (k, tensor(v))).collect())
        }
        Ending::Npz => Ok(npz::read(path)?.into_iter().map(|(k, v)| (k, tensor(v))).collect()),
        Ending::Npy => {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            Ok(BTreeMap::from([(name, load_npy(path)?)]))
        }
    }
}

/// Writes named tensors to a `.safetensors` or `.npz` file, or one tensor to a `.npy` file. An
/// older file stays as it was unless all of the new one is on disk.
pub fn save<N, T>(path: impl AsRef<Path>, tensors: impl IntoIterator<Item = (N, T)>) -> Result<()>
where
    N: AsRef<str>,
    T: Borrow<Tensor>,
{
    let path = path.as_ref();
    let ending = Ending::of(path)?;
    let tensors: Vec<(String, Tensor)> =
        tensors.into_iter().map(|(n, t)| (n.as_ref().to_owned(), t.borrow().contiguous())).collect();
    let named = tensors.iter().map(|(n, t)| (n.as_str(), dense(t)));
    match ending {
        Ending::Safetensors => safetensors::write(path, named, &BTreeMap::new())?,
        Ending::Npz => npz::write(path, named, Compression::Stored)?,
        Ending::Npy => match &tensors[..] {
            [(_, one)] => save_npy(path, one)?,
            _ => return Err(Error::Count { path: path.display().to_string(), got: tensors.len() }),
        },
    }
    Ok(())
}

/// Weights in safetensors files, for every [`Module`].
///
/// ```
/// use thalweg::prelude::*;
/// let path = std::env::temp_dir().join(format!("thalweg-doc-{}.safetensors", std::process::id()));
/// let net = Linear::new(2, 1, &mut Rng::seed(0));
/// net.save(&path)?;
/// net.load(&path)?;
/// let wider = Linear::new(3, 1, &mut Rng::seed(0));
/// assert!(wider.load(&path).unwrap_err().to_string().contains("misshapen: weight"));
/// # std::fs::remove_file(path).unwrap();
/// # Ok::<(), thalweg::Error>(())
/// ```
pub trait Weights: Module {
    /// Writes all parameters and buffers under their names. An older file stays as it was unless all of
    /// the new one is on disk.
    fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        Ok(thalweg_nn::save_weights(self, path)?)
    }

    /// Reads all parameters and buffers. If any is missing, unexpected or of another shape, the error
    /// lists all of them and nothing is changed.
    fn load(&self, path: impl AsRef<Path>) -> Result<()> {
        Ok(thalweg_nn::load_weights(self, path)?)
    }
}

impl<M: Module + ?Sized> Weights for M {}

/// The tensor of a `.npy` file.
pub fn load_npy(path: impl AsRef<Path>) -> Result<Tensor> {
    Ok(tensor(npy::read(path)?))
}

/// Writes one tensor to a `.npy` file.
pub fn save_npy(path: impl AsRef<Path>, tensor: &Tensor) -> Result<()> {
    Ok(npy::write(path, dense(&tensor.contiguous()))?)
}

enum Ending {
    Npy,
    Npz,
    Safetensors,
}

impl Ending {
    fn of(path: &Path) -> Result<Self> {
        match path.extension().and_then(|e| e.to_str()) {
            Some("npy") => Ok(Ending::Npy),
            Some("npz") => Ok(Ending::Npz),
            Some("safetensors") => Ok(Ending::Safetensors),
            _ => Err(Error::Ending { path: path.display().to_string() }),
        }
    }
}

pub(crate) fn tensor(stored: Stored) -> Tensor {
    Tensor::from_buffer(stored.buffer, stored.shape)
}

pub(crate) fn dense(t: &Tensor) -> Dense<'_> {
    Dense {
        dtype: t.dtype(),
        shape: t.shape(),
        bytes: t.view().dense_bytes().expect("made contiguous by the caller"),
    }
}
