//! Tensors through files and back, and files that are not what they claim.

use std::path::PathBuf;

use thalweg::prelude::*;
use thalweg::{Error, load, load_npy, save, save_npy};

fn scratch(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("thalweg-files-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    dir.join(name)
}

#[test]
fn every_format_gives_back_what_it_was_given() {
    let a = Tensor::from([[1.5f32, -2.0], [0.0, f32::INFINITY]]);
    let view = a.t();
    for name in ["both.npz", "both.safetensors"] {
        let path = scratch(name);
        save(&path, [("a", &a), ("view", &view), ("empty", &Tensor::zeros([0, 3], F64))]).unwrap();
        let back = load(&path).unwrap();
        assert_eq!(back["a"].to_vec::<f32>(), a.to_vec::<f32>(), "{name}");
        assert_eq!(back["view"].to_vec::<f32>(), view.to_vec::<f32>(), "{name}");
        assert_eq!(**back["empty"].shape(), [0, 3], "{name}");
    }
    let path = scratch("one.npy");
    save_npy(&path, &view).unwrap();
    assert_eq!(load_npy(&path).unwrap().to_vec::<f32>(), view.to_vec::<f32>());
    assert_eq!(load(&path).unwrap()["one"].to_vec::<f32>(), view.to_vec::<f32>());
}

#[test]
fn tensors_read_from_a_mapped_file_are_never_written() {
    let path = scratch("mapped.safetensors");
    save(&path, [("w", Tensor::from([1.0f32, 2.0]))]).unwrap();
    let w = load(&path).unwrap().remove("w").unwrap();
    // An owned left operand would give its memory to the result; a file's memory is not ours to give.
    assert_eq!((w + 1.0).to_vec::<f32>(), [2.0, 3.0]);
    assert_eq!(load(&path).unwrap()["w"].to_vec::<f32>(), [1.0, 2.0]);
}

#[test]
fn bad_files_are_typed_errors() {
    let path = scratch("cut.safetensors");
    save(&path, [("w", Tensor::zeros([100], F32))]).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 10]).unwrap();
    assert!(matches!(load(&path), Err(Error::Format(_))));
    assert!(matches!(load(scratch("missing.npy")), Err(Error::Format(_))));
    assert!(matches!(load(scratch("model.bin")), Err(Error::Ending { .. })));
    let two = [("a", Tensor::scalar(1.0)), ("b", Tensor::scalar(2.0))];
    assert!(matches!(save(scratch("two.npy"), two), Err(Error::Count { got: 2, .. })));
}
