//! Weights in files, under the names of the module.

use std::collections::BTreeMap;
use std::path::Path;

use thalweg_core::{Buffer, with_dtype};
use thalweg_formats::{Dense, safetensors};
use thalweg_tensor::Tensor;

use crate::error::{Mismatch, NnError};
use crate::module::{Module, Named};

/// Writes all parameters and buffers to a safetensors file. An older file stays as it was unless all
/// of the new one is on disk.
///
/// ```
/// use thalweg_nn::{Linear, load_weights, save_weights};
/// use thalweg_tensor::Rng;
///
/// let path = std::env::temp_dir().join(format!("thalweg-doc-nn-{}.safetensors", std::process::id()));
/// let (one, other) = (Linear::new(3, 2, &mut Rng::seed(0)), Linear::new(3, 2, &mut Rng::seed(1)));
/// save_weights(&one, &path)?;
/// load_weights(&other, &path)?;
/// assert_eq!(one.weight.get().to_vec::<f32>(), other.weight.get().to_vec::<f32>());
///
/// let error = load_weights(&Linear::new(4, 2, &mut Rng::seed(0)), &path).unwrap_err();
/// assert!(error.to_string().contains("misshapen: weight is f32[2, 4] here and f32[2, 3] there"));
/// # std::fs::remove_file(path).unwrap();
/// # Ok::<(), thalweg_nn::NnError>(())
/// ```
pub fn save_weights(module: &(impl Module + ?Sized), path: impl AsRef<Path>) -> Result<(), NnError> {
    save_named(&module.state(), path)
}

/// Reads all parameters and buffers from a safetensors file. Floats of another width are converted.
/// If any tensor is missing, unexpected or of another shape, the error lists all of them and nothing
/// is changed.
pub fn load_weights(module: &(impl Module + ?Sized), path: impl AsRef<Path>) -> Result<(), NnError> {
    let path = path.as_ref();
    set_named(&module.state(), &read_tensors(path)?, &path.display().to_string())
}

/// Sets all parameters and buffers from tensors by name, or none of them; see [`load_weights`].
pub fn set_weights(
    module: &(impl Module + ?Sized),
    tensors: &BTreeMap<String, Tensor>,
) -> Result<(), NnError> {
    set_named(&module.state(), tensors, "weights")
}

pub(crate) fn save_named(state: &[Named], path: impl AsRef<Path>) -> Result<(), NnError> {
    let tensors: Vec<(&str, Tensor)> =
        state.iter().map(|p| (p.name.as_str(), p.param.get().contiguous())).collect();
    let dense = tensors.iter().map(|(name, t)| {
        let bytes = t.view().dense_bytes().expect("made contiguous above");
        (*name, Dense { dtype: t.dtype(), shape: t.shape(), bytes })
    });
    Ok(safetensors::write(path, dense, &BTreeMap::new())?)
}

/// Copies, so that nothing depends on the file afterwards.
pub(crate) fn read_tensors(path: &Path) -> Result<BTreeMap<String, Tensor>, NnError> {
    let copied = |lent: &Buffer| with_dtype!(lent.dtype(), T => Buffer::from_slice(lent.as_slice::<T>()));
    let contents = safetensors::open(path)?;
    let tensor = |(name, stored): (String, thalweg_formats::Stored)| {
        (name, Tensor::from_buffer(copied(&stored.buffer), stored.shape))
    };
    Ok(contents.tensors.into_iter().map(tensor).collect())
}

/// Compares everything, then sets everything.
pub(crate) fn set_named(
    state: &[Named],
    tensors: &BTreeMap<String, Tensor>,
    source_name: &str,
) -> Result<(), NnError> {
    let mut wrong = Mismatch { source_name: source_name.to_owned(), ..Default::default() };
    let mut found = Vec::new();
    for Named { name, param } in state {
        let Some(tensor) = tensors.get(name) else {
            wrong.missing.push(name.clone());
            continue;
        };
        let meta = param.meta();
        let converts = meta.dtype == tensor.dtype() || (meta.dtype.is_float() && tensor.dtype().is_float());
        if meta.shape != *tensor.shape() || !converts {
            wrong.misshapen.push((name.clone(), meta, tensor.meta().clone()));
            continue;
        }
        found.push((param, tensor.to_dtype(meta.dtype)));
    }
    wrong.unexpected =
        tensors.keys().filter(|name| !state.iter().any(|p| p.name == **name)).cloned().collect();
    if !wrong.is_empty() {
        return Err(Box::new(wrong).into());
    }
    found.into_iter().for_each(|(param, value)| param.set(value));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use thalweg_core::DType;
    use thalweg_tensor::{Rng, Tensor};

    use super::set_weights;
    use crate::{Linear, Module, NnError};

    #[test]
    fn a_mismatch_lists_everything_and_changes_nothing() {
        let net = vec![Linear::new(2, 3, &mut Rng::seed(0)), Linear::new(3, 1, &mut Rng::seed(1))];
        let before: Vec<Vec<f32>> = net.state().iter().map(|p| p.param.get().to_vec()).collect();
        let mut tensors: BTreeMap<String, Tensor> =
            net.state().into_iter().map(|p| (p.name, p.param.get().zeros_like())).collect();
        tensors.remove("0.bias");
        tensors.insert("1.weight".into(), Tensor::zeros([3, 1], DType::F32));
        tensors.insert("1.bias".into(), Tensor::zeros([1], DType::I64));
        tensors.insert("2.weight".into(), Tensor::zeros([1], DType::F32));
        let NnError::Mismatch(wrong) = set_weights(&net, &tensors).unwrap_err() else { panic!() };
        assert_eq!(wrong.missing, ["0.bias"]);
        assert_eq!(wrong.unexpected, ["2.weight"]);
        assert_eq!(wrong.misshapen.iter().map(|m| m.0.as_str()).collect::<Vec<_>>(), ["1.weight", "1.bias"]);
        assert_eq!(wrong.to_string().lines().count(), 5, "{wrong}");
        let after: Vec<Vec<f32>> = net.state().iter().map(|p| p.param.get().to_vec()).collect();
        assert_eq!(before, after);
    }

    #[test]
    fn narrower_floats_are_widened() {
        let net = Linear::without_bias(2, 1, &mut Rng::seed(0));
        let half = Tensor::from([[0.5f32, -2.0]]).to_dtype(DType::BF16);
        set_weights(&net, &BTreeMap::from([("weight".to_owned(), half)])).unwrap();
        assert_eq!(net.weight.get().to_vec::<f32>(), [0.5, -2.0]);
    }
}
