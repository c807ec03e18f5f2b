//! A net on a cluster with its checkpoints in S3: killed with all its processes, it goes on elsewhere to the same bits.

#[path = "../../cluster/tests/support/moto.rs"]
mod moto;
mod support;

use std::process::Command;
use std::time::{Duration, Instant};

use moto::Moto;
use support::{Launched, PATIENCE, trains};
use thalweg_cluster::place_with;

#[test]
fn a_run_goes_on_from_s3_on_a_host_that_never_saw_it() {
    let Some(moto) = Moto::start() else { return };
    let folder = |name: &str| std::env::temp_dir().join(format!("thalweg-s3-{name}-{}", std::process::id()));
    let (whole, here, there) = (folder("whole"), folder("here"), folder("there"));
    let output = Command::new(trains()).arg("--run").arg(&whole).env("THALWEG_SLOTS", "2").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let want: Vec<&str> = text.lines().filter(|l| l.starts_with("weights ")).collect();

    let mut variables = moto.variables();
    variables.push(("THALWEG_CHECKPOINTS".into(), "s3://bucket/run".into()));
    let checkpoints = place_with("s3://bucket/run", moto.variables()).unwrap();
    let program = |folder: &std::path::Path| ["--run".to_owned(), folder.to_str().unwrap().to_owned()];
    let options = ["--workers", "2", "--servers", "2"];
    let mut run = Launched::with(&variables, trains(), &options, &program(&here));
    let end = Instant::now() + PATIENCE;
    while thalweg::train::load_latest(&checkpoints).unwrap().is_none() {
        assert!(Instant::now() < end, "no checkpoint: {:?}", run.seen);
        std::thread::sleep(Duration::from_millis(20));
    }
    run.child.kill().unwrap();
    run.child.wait().unwrap();
    while !run.pids("").is_empty() {
        assert!(Instant::now() < end, "{:?} are left", run.pids(""));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!here.join("checkpoints").exists(), "nothing of a checkpoint lies in the folder");
    let options = ["--workers", "1", "--servers", "3", "--slots", "2"];
    let again = Launched::with(&variables, trains(), &options, &program(&there));
    assert_eq!(again.last("weights "), want);
    // The last one is what a process alone would have written into a folder.
    let (alone, cluster) =
        (thalweg::train::load_latest(whole.join("checkpoints")), thalweg::train::load_latest(&checkpoints));
    let (alone, cluster) = (alone.unwrap().unwrap(), cluster.unwrap().unwrap());
    assert_eq!(alone.step, cluster.step);
    let names = |l: &thalweg::train::Loaded| l.parts["model"].keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&alone), names(&cluster));
    for (name, tensor) in &alone.parts["model"] {
        assert_eq!(tensor.to_vec::<f32>(), cluster.parts["model"][name].to_vec::<f32>(), "{name}");
    }
    [whole, here, there].iter().for_each(|f| drop(std::fs::remove_dir_all(f)));
}

#[test]
fn a_wrong_bucket_ends_the_run_at_its_start_with_its_name() {
    let Some(moto) = Moto::start() else { return };
    let folder = std::env::temp_dir().join(format!("thalweg-s3-wrong-{}", std::process::id()));
    let mut command = Command::new(trains());
    command.arg("--run").arg(&folder).envs(moto.variables()).env("THALWEG_CHECKPOINTS", "s3://nowhere/run");
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && error.contains("nowhere") && error.contains("NoSuchBucket"),
        "{error}"
    );
    let _ = std::fs::remove_dir_all(folder);
}
