//! Checkpoints in object stores: the same files as in a folder, and errors that say what is wrong.

#[path = "support/moto.rs"]
mod moto;

use std::net::TcpListener;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use moto::Moto;
use serde_json::json;
use thalweg_cluster::{ClusterError, place, place_with};
use thalweg_core::DType;
use thalweg_tensor::Tensor;
use thalweg_train::{Checkpoints, Keep, Place, ShardParts, TrainError, load_latest, save_shard};

fn folder(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("thalweg-objects-{name}-{}", std::process::id()))
}

fn shard(name: &str, n: usize, value: f32) -> ShardParts {
    ShardParts::from([("model".to_owned(), vec![(name.to_owned(), Tensor::full([n], value, DType::F32))])])
}

fn noise() -> (&'static str, Vec<(String, Tensor)>) {
    ("noise", vec![("n".to_owned(), Tensor::from([7.0f32]))])
}

/// Two shards and their manifests, of which the oldest goes; as the servers and the keeper of a run write them.
fn check(place: &Place) {
    assert!(load_latest(place).unwrap().is_none());
    let mut checkpoints =
        Checkpoints::open_shared(place, Keep { last: 2, ..Keep::default() }, "a test").unwrap();
    let steps = || thalweg_train::inspect(place).unwrap().iter().map(|c| c.step).collect::<Vec<u64>>();
    for step in [5, 10, 20, 30] {
        if step == 30 {
            assert_eq!(steps(), [20, 10, 5], "nobody has said to which the run may be taken back");
            checkpoints.keep_from(10);
        }
        save_shard(place, step, 0, shard("a", 5, step as f32)).unwrap();
        assert!(!checkpoints.complete(step, json!({}), 2, noise()).unwrap(), "shard 1 is missing");
        save_shard(place, step, 1, shard("b", 3, -1.0)).unwrap();
        assert!(checkpoints.complete(step, json!({ "at": step }), 2, noise()).unwrap());
    }
    let loaded = load_latest(place).unwrap().unwrap();
    assert_eq!((loaded.step, &loaded.state["at"]), (30, &json!(30)));
    assert_eq!(loaded.parts["model"]["a"].to_vec::<f32>(), [30.0; 5]);
    assert_eq!(loaded.parts["model"]["b"].to_vec::<f32>(), [-1.0; 3]);
    assert_eq!(steps(), [30, 20, 10]);
    checkpoints.keep_from(30);
    // A keeper that was overtaken finishes what it had begun, and takes nothing away from its successor.
    save_shard(place, 15, 0, shard("a", 5, 15.0)).unwrap();
    save_shard(place, 15, 1, shard("b", 3, 15.0)).unwrap();
    assert!(checkpoints.complete(15, json!({}), 2, noise()).unwrap());
    assert_eq!(load_latest(place).unwrap().unwrap().step, 30);
}

#[test]
fn memory_holds_checkpoints() {
    check(&place("memory:///one/run").unwrap());
    // The same name is the same place, another is another.
    assert_eq!(load_latest(place("memory:///one/run").unwrap()).unwrap().unwrap().step, 30);
    assert!(load_latest(place("memory:///one").unwrap()).unwrap().is_none());
}

#[test]
fn a_folder_by_its_url_is_the_folder_by_its_path() {
    let path = folder("files");
    check(&place(&format!("file://{}", path.display())).unwrap());
    assert_eq!(load_latest(&path).unwrap().unwrap().step, 30);
    std::fs::remove_dir_all(path).unwrap();
}

#[test]
fn s3_holds_checkpoints_of_the_same_bytes_and_large_ones_too() {
    let Some(moto) = Moto::start() else { return };
    let bucket = place_with("s3://bucket/runs/one", moto.variables()).unwrap();
    check(&bucket);
    // Over the size of a part: ten million numbers are 40 MB.
    save_shard(&bucket, 40, 0, shard("a", 10_000_000, 0.5)).unwrap();
    let mut checkpoints = Checkpoints::open_shared(&bucket, Keep::default(), "a test").unwrap();
    assert!(checkpoints.complete(40, json!({}), 1, noise()).unwrap());
    let loaded = load_latest(&bucket).unwrap().unwrap();
    assert_eq!((loaded.step, loaded.parts["model"]["a"].numel()), (40, 10_000_000));
    assert!(loaded.parts["model"]["a"].to_vec::<f32>().iter().all(|v| *v == 0.5));
}

#[test]
fn what_is_wrong_with_a_bucket_or_its_credentials_is_said_at_once() {
    let Some(moto) = Moto::start() else { return };
    let refused = |place: &Place| {
        let began = Instant::now();
        let e = save_shard(place, 1, 0, shard("a", 1, 1.0)).unwrap_err();
        assert!(matches!(e, TrainError::Place { action: "write", .. }), "{e:?}");
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        e.to_string()
    };
    let nowhere = place_with("s3://nowhere/run", moto.variables()).unwrap();
    let said = refused(&nowhere);
    assert!(said.contains("s3://nowhere/run") && said.contains("NoSuchBucket"), "{said}");
    assert!(load_latest(&nowhere).is_err());
    let strict = Moto::strict().unwrap();
    let said = refused(&place_with("s3://bucket/run", strict.variables()).unwrap());
    assert!(said.contains("InvalidAccessKeyId"), "{said}");
}

#[test]
fn a_store_that_is_away_for_a_moment_is_waited_for() {
    let Some(moto) = Moto::start() else { return };
    // The store keeps what it has; only the way to it is closed for a while, and whoever knocks is refused.
    let door = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let bucket = place_with("s3://bucket/run", moto::variables(door.port())).unwrap();
    let saving = std::thread::spawn({
        let bucket = bucket.clone();
        move || save_shard(&bucket, 1, 0, shard("a", 4, 1.0))
    });
    std::thread::sleep(Duration::from_millis(700));
    assert!(!saving.is_finished(), "{:?}", saving.join());
    moto.open(TcpListener::bind(door).unwrap());
    saving.join().unwrap().unwrap();
}

#[test]
fn a_place_that_is_none_is_an_error_with_its_form() {
    for url in ["bucket/run", "ftp://x/y", "file://relative", "s3:///run"] {
        let e = place(url).unwrap_err();
        assert!(matches!(e, ClusterError::Place { .. }) && e.to_string().contains("s3://BUCKET/PATH"), "{e}");
    }
}
