//! What checkpoints promise, on a real disk and with processes that are really killed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::json;
use thalweg_core::DType;
use thalweg_tensor::Tensor;
use thalweg_train::{Best, Checkpoints, Keep, Snapshot, TrainError, load_best, load_latest};

/// An empty folder of this test's own.
fn folder(test: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("thalweg-checkpoints-{}-{test}", std::process::id()));
    let _ = fs::remove_dir_all(&path);
    path
}

/// A checkpoint in which everything says the step.
fn snapshot(step: u64) -> Snapshot {
    let tensor = |n: usize| Tensor::full([n], step as i64, DType::I64);
    Snapshot::new(step, json!({"step": step, "lr": 0.1 * step as f64}))
        .part("model", [("a", tensor(5000)), ("b.c", tensor(3))])
        .part("optimiser", [("a.m", tensor(5000))])
}

fn save(dir: &Path, keep: Keep, steps: &[u64]) {
    let mut checkpoints = Checkpoints::open(dir, keep).unwrap();
    steps.iter().for_each(|&s| checkpoints.save(snapshot(s)).unwrap());
    checkpoints.flush().unwrap();
}

/// The step of the newest checkpoint, after making sure that all of it is of that step.
fn latest(dir: &Path) -> u64 {
    let loaded = load_latest(dir).unwrap().expect("a checkpoint");
    assert_eq!(loaded.state["step"], json!(loaded.step));
    assert_eq!(loaded.state["lr"].as_f64().unwrap(), 0.1 * loaded.step as f64, "to the last bit");
    assert_eq!(loaded.parts.keys().collect::<Vec<_>>(), ["model", "optimiser"]);
    for tensor in loaded.parts.values().flat_map(BTreeMap::values) {
        assert!(tensor.to_vec::<i64>().iter().all(|&v| v == loaded.step as i64));
    }
    loaded.step
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|n| n != ".lock");
    names.sort();
    names
}

#[test]
fn the_last_and_the_best_stay() {
    let dir = folder("keep");
    let keep = Keep { last: 2, best: Some(Best::Lowest), ..Default::default() };
    let mut checkpoints = Checkpoints::open(&dir, keep).unwrap();
    for (step, score) in [(1, 0.9), (2, 0.2), (3, 0.7), (4, f64::NAN), (5, 0.6)] {
        checkpoints.save(snapshot(step).score(score)).unwrap();
    }
    checkpoints.flush().unwrap();
    let manifests: Vec<String> = names(&dir).into_iter().filter(|n| n.ends_with("json")).collect();
    assert_eq!(manifests, ["step-0000000002.json", "step-0000000004.json", "step-0000000005.json"]);
    assert_eq!(names(&dir).len(), 9, "no file of another checkpoint");
    assert_eq!(load_best(&dir, Best::Lowest).unwrap().unwrap().step, 2);
    assert_eq!(load_best(&dir, Best::Highest).unwrap().unwrap().step, 5);
    assert_eq!(latest(&dir), 5);
    drop(checkpoints);
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn the_saved_values_are_those_of_the_call() {
    let dir = folder("copy");
    let param = thalweg_tensor::Param::new("w", Tensor::zeros([100_000], DType::F32));
    let mut checkpoints = Checkpoints::open(&dir, Keep { last: 100, ..Default::default() }).unwrap();
    for step in 1..=20 {
        param.set(param.get() + 1.0);
        checkpoints.save(Snapshot::new(step, json!(null)).part("model", [("w", param.get())])).unwrap();
    }
    drop(checkpoints);
    let loaded = load_latest(&dir).unwrap().unwrap();
    assert!(loaded.parts["model"]["w"].to_vec::<f32>().iter().all(|&v| v == 20.0));
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn any_damage_is_noticed_and_the_one_before_is_used() {
    let dir = folder("damage");
    save(&dir, Keep::default(), &[1, 2]);
    for name in names(&dir).into_iter().filter(|n| n.starts_with("step-0000000002")) {
        let path = dir.join(&name);
        let whole = fs::read(&path).unwrap();
        let places: Vec<usize> = (0..whole.len()).step_by(whole.len() / 97 + 1).collect();
        for at in places {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            fs::write(&path, &bytes).unwrap();
            let loaded = load_latest(&dir).unwrap().unwrap();
            // White space between the fields of a manifest may change without harm.
            if loaded.step == 2 {
                assert!(
                    name.ends_with(".json") && loaded.state == json!({"step": 2, "lr": 0.2}),
                    "{name} byte {at}"
                );
                continue;
            }
            assert_eq!((loaded.step, loaded.passed_over.len()), (1, 1), "{name} byte {at}");
            assert!(loaded.passed_over[0].starts_with("checkpoint of step 2 cannot be used: "));
        }
        for end in [0, 1, whole.len() / 2, whole.len() - 2] {
            fs::write(&path, &whole[..end]).unwrap();
            assert_eq!(load_latest(&dir).unwrap().unwrap().step, 1, "{name} cut at {end}");
        }
        fs::remove_file(&path).unwrap();
        let step = load_latest(&dir).unwrap().unwrap().step;
        assert_eq!(step, 1, "{name} removed");
        fs::write(&path, &whole).unwrap();
        assert_eq!(latest(&dir), 2);
    }
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn when_all_are_damaged_it_is_an_error_that_names_each() {
    let dir = folder("all");
    assert!(load_latest(&dir).unwrap().is_none());
    save(&dir, Keep::default(), &[1, 2]);
    for name in names(&dir) {
        fs::write(dir.join(name), "x").unwrap();
    }
    assert!(thalweg_train::inspect(&dir).unwrap().iter().all(|c| c.contents.is_err()));
    match load_latest(&dir).unwrap_err() {
        TrainError::AllBroken { reasons, .. } => assert_eq!(reasons.len(), 2),
        other => panic!("{other}"),
    }
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_run_taken_back_replaces_the_damaged_future() {
    let dir = folder("future");
    let keep = || Keep { last: 1, ..Default::default() };
    save(&dir, Keep { last: 9, ..Default::default() }, &[1, 2, 3]);
    let newest = dir.join("step-0000000003.model.safetensors");
    fs::write(&newest, "damaged").unwrap();
    assert_eq!(latest(&dir), 2);
    // Trained anew from 2, with other intervals; only one checkpoint stays, and it must not be the broken one.
    let mut checkpoints = Checkpoints::open(&dir, keep()).unwrap();
    checkpoints.save(snapshot(2)).unwrap();
    checkpoints.flush().unwrap();
    assert_eq!(latest(&dir), 2);
    assert_eq!(names(&dir).len(), 3);
    drop(checkpoints);
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_part_with_an_interval_is_written_less_often_and_never_lost() {
    let dir = folder("parts");
    let keep =
        || Keep { last: 2, intervals: BTreeMap::from([("table".to_owned(), 10)]), ..Default::default() };
    let with_table = |step: u64| {
        let table = Tensor::full([10], step as i64, DType::I64);
        snapshot(step).part("table", [("t", table)])
    };
    let mut checkpoints = Checkpoints::open(&dir, keep()).unwrap();
    let mut seen = Vec::new();
    for step in (1..=24).step_by(3) {
        checkpoints.save(with_table(step)).unwrap();
        checkpoints.flush().unwrap();
        let loaded = load_latest(&dir).unwrap().unwrap();
        seen.push((loaded.step, loaded.parts["table"]["t"].to_vec::<i64>()[0]));
    }
    assert_eq!(seen, [(1, 1), (4, 1), (7, 1), (10, 1), (13, 13), (16, 13), (19, 13), (22, 13)]);

    // A new process goes on with the same file, unless it is damaged.
    drop(checkpoints);
    let tables = || names(&dir).into_iter().filter(|n| n.contains("table")).collect::<Vec<_>>();
    assert_eq!(tables(), ["step-0000000013.table.safetensors"]);
    fs::write(dir.join(&tables()[0]), "damaged").unwrap();
    let mut checkpoints = Checkpoints::open(&dir, keep()).unwrap();
    checkpoints.save(with_table(22)).unwrap();
    checkpoints.flush().unwrap();
    assert_eq!(load_latest(&dir).unwrap().unwrap().parts["table"]["t"].to_vec::<i64>()[0], 22);
    drop(checkpoints);
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn two_writers_are_refused_and_so_are_strange_names() {
    let dir = folder("lock");
    let mut first = Checkpoints::open(&dir, Keep::default()).unwrap();
    assert!(matches!(Checkpoints::open(&dir, Keep::default()), Err(TrainError::Locked { .. })));
    let strange = Snapshot::new(1, json!(null)).part("../evil", [("a", Tensor::arange(1))]);
    assert!(matches!(first.save(strange), Err(TrainError::PartName { .. })));
    drop(first);
    Checkpoints::open(&dir, Keep::default()).unwrap();
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn an_error_of_the_thread_is_told_and_the_next_save_works() {
    let dir = folder("error");
    let mut checkpoints = Checkpoints::open(&dir, Keep::default()).unwrap();
    // A folder where the file should be.
    let obstacle = dir.join("step-0000000001.model.safetensors");
    fs::create_dir(&obstacle).unwrap();
    checkpoints.save(snapshot(1)).unwrap();
    assert!(matches!(checkpoints.flush(), Err(TrainError::Format(_))));
    fs::remove_dir(&obstacle).unwrap();
    checkpoints.save(snapshot(2)).unwrap();
    checkpoints.flush().unwrap();
    assert_eq!(latest(&dir), 2);
    drop(checkpoints);
    fs::remove_dir_all(dir).unwrap();
}

const VICTIM: &str = "THALWEG_CHECKPOINT_VICTIM";

/// Not a test of its own: what the process that gets killed does.
#[test]
fn victim() {
    let Some(dir) = std::env::var_os(VICTIM) else { return };
    let dir = PathBuf::from(dir);
    let mut step = load_latest(&dir).unwrap().map_or(0, |l| l.step);
    let mut checkpoints = Checkpoints::open(&dir, Keep { last: 2, ..Default::default() }).unwrap();
    loop {
        step += 1;
        checkpoints.save(snapshot(step)).unwrap();
    }
}

/// Kills a writing process again and again at other moments; each time the newest checkpoint must load, be of one
/// piece, and not be older than one that was seen before.
#[test]
#[cfg(unix)]
fn kill_9_at_any_moment_leaves_a_loadable_checkpoint() {
    let dir = folder("kill");
    save(&dir, Keep::default(), &[0]);
    let (mut before, mut torn) = (0, 0);
    for round in 0..40u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "victim"])
            .env(VICTIM, &dir)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // The process must have begun to write; from then on the moment does not matter, so it may vary.
        while load_latest(&dir).unwrap().unwrap().step == before {
            assert!(child.try_wait().unwrap().is_none(), "the child ended by itself");
            std::thread::yield_now();
        }
        std::thread::sleep(std::time::Duration::from_micros(round * 377 % 9000));
        child.kill().unwrap(); // SIGKILL
        child.wait().unwrap();
        let step = latest(&dir);
        assert!(step > before, "round {round}: {step} after {before}");
        let manifests = names(&dir).iter().filter(|n| n.ends_with(".json")).count();
        torn += u64::from(names(&dir).len() != manifests * 3);
        before = step;
    }
    println!("{before} checkpoints, {torn} of 40 kills left unfinished files behind");
    // The next process clears away what the killed ones left.
    drop(Checkpoints::open(&dir, Keep::default()).unwrap());
    assert!(names(&dir).iter().all(|n| n.starts_with("step-")), "{:?}", names(&dir));
    fs::remove_dir_all(dir).unwrap();
}
