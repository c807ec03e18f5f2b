//! The fuzz targets as ordinary functions: they compile, and what fuzzers once found stays found. libFuzzer itself needs
//! a nightly compiler and a C++ one (`cargo xtask fuzz`), so here the macro of its crate is one of ours.

#![allow(
    unused_attributes,
    unused_imports,
    reason = "the targets have no `main` and import a macro, as programs"
)]

// The targets take the macro from the crate of this name.
extern crate self as libfuzzer_sys;

/// What a target does with the bytes or the text that it is given.
#[macro_export]
macro_rules! fuzz_target {
    (|$input:ident: &[u8]| $body:expr) => {
        pub fn run($input: &[u8]) {
            $body
        }
    };
    (|$input:ident: &str| $body:expr) => {
        pub fn run(bytes: &[u8]) {
            let Ok($input) = std::str::from_utf8(bytes) else { return };
            $body
        }
    };
}

macro_rules! targets {
    ($($name:ident $path:literal),*) => {
        $(#[path = $path] mod $name;)*
        const TARGETS: &[(&str, fn(&[u8]))] = &[$((stringify!($name), $name::run)),*];
    };
}

targets!(
    control "../../../fuzz/fuzz_targets/control.rs",
    csv "../../../fuzz/fuzz_targets/csv.rs",
    graph "../../../fuzz/fuzz_targets/graph.rs",
    idx "../../../fuzz/fuzz_targets/idx.rs",
    libsvm "../../../fuzz/fuzz_targets/libsvm.rs",
    npy "../../../fuzz/fuzz_targets/npy.rs",
    npz "../../../fuzz/fuzz_targets/npz.rs",
    safetensors "../../../fuzz/fuzz_targets/safetensors.rs",
    trees "../../../fuzz/fuzz_targets/trees.rs",
    wire "../../../fuzz/fuzz_targets/wire.rs"
);

#[test]
fn every_target_takes_its_corpus() {
    let fuzz = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let files = |folder: &str| std::fs::read_dir(fuzz.join(folder)).unwrap().map(|file| file.unwrap().path());
    assert_eq!(files("fuzz_targets").count(), TARGETS.len(), "a target is not in the list above");
    for (name, run) in TARGETS {
        let corpus: Vec<_> = files(&format!("corpus/{name}")).collect();
        assert!(!corpus.is_empty(), "{name} has no corpus");
        for file in corpus {
            println!("{name}: {}", file.display());
            run(&std::fs::read(&file).unwrap());
        }
    }
}
