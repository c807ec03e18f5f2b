//! `thalweg train` and its companions, as a user types them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("thalweg-train-{}-{test}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn thalweg(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_thalweg"));
    command.args(args).current_dir(folder).env_remove("CARGO").stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(folder: &Path, args: &[&str]) -> Output {
    thalweg(folder, args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The last line of a command that must succeed, as JSON.
fn json(folder: &Path, args: &[&str]) -> Value {
    let output = run(folder, args);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    serde_json::from_str(text(&output.stdout).lines().last().unwrap()).unwrap()
}

#[test]
fn a_recipe_learns_and_its_run_can_be_used() {
    let folder = Folder::new("logistic");
    let trained = json(&folder.0, &["train", "logistic", "--json", "--out", "run"]);
    assert!(trained["accuracy"].as_f64().unwrap() > 0.93, "{trained}");
    assert!(
        trained["seconds"].as_f64().unwrap() > 0.0 && trained["steps_per_second"].as_f64().unwrap() > 0.0
    );
    assert_eq!(trained["weights_sha256"].as_str().unwrap().len(), 64);

    let measured = json(&folder.0, &["eval", "run", "--json"]);
    assert_eq!(measured["accuracy"], trained["accuracy"]);
    let output = run(&folder.0, &["predict", "run"]);
    assert_eq!(text(&output.stdout).lines().count(), 10, "{}", text(&output.stderr));

    let again = json(&folder.0, &["train", "logistic", "--json", "--out", "again", "--threads", "1"]);
    assert_eq!(again["weights_sha256"], trained["weights_sha256"], "equal seeds give equal bits");
    let other = json(&folder.0, &["train", "logistic", "--json", "--out", "other", "--seed", "1"]);
    assert_ne!(other["weights_sha256"], trained["weights_sha256"]);
}

#[test]
fn the_first_command_works_on_a_few_samples_and_says_what_to_type_next() {
    let folder = Folder::new("mnist");
    let short = ["train", "mnist", "--samples", "256", "--epochs", "1"];
    let output = run(&folder.0, &short);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{err}");
    assert!(err.is_empty(), "no bar where there is no terminal: {err}");
    assert!(out.contains("61706 parameters") && out.contains("% correct after 4 steps"), "{out}");
    assert!(out.contains("thalweg predict runs/mnist"), "{out}");
    for file in ["config.json", "metrics.jsonl", "summary.json", "model.safetensors", "checkpoints"] {
        assert!(folder.0.join("runs/mnist").join(file).exists(), "{file}");
    }
    let second = text(&run(&folder.0, &short).stdout);
    assert!(second.contains("runs/mnist-2"), "the second run gets a folder of its own: {second}");
    let finished = text(&run(&folder.0, &["resume", "runs/mnist"]).stdout);
    assert!(finished.contains("nothing left to resume"), "{finished}");
}

#[test]
fn mistakes_are_answered_with_what_would_be_right() {
    let folder = Folder::new("mistakes");
    let complaint = |args: &[&str]| {
        let output = run(&folder.0, args);
        assert!(!output.status.success(), "{args:?}");
        text(&output.stderr)
    };
    let e = complaint(&["train", "mnits"]);
    assert!(["mnist", "mlp", "logistic"].iter().all(|name| e.contains(name)), "{e}");
    assert!(e.contains("similar value exists: 'mnist'"), "{e}");
    assert!(complaint(&["train", "mnist", "--epoch", "3"]).contains("'--epochs'"));
    assert!(complaint(&["train", "mnist", "--lr", "-1"]).contains("above 0"));
    assert!(complaint(&["resume", "nothing"]).contains("is not a run directory"));
    json(&folder.0, &["train", "logistic", "--epochs", "1", "--json", "--out", "run"]);
    let e = complaint(&["train", "logistic", "--epochs", "1", "--out", "run"]);
    assert!(e.contains("already holds a run"), "{e}");
    let e = complaint(&["predict", "run", "digit.png"]);
    assert!(e.contains("digit.png"), "{e}");
}

#[cfg(unix)]
#[test]
fn ctrl_c_saves_and_resume_ends_with_the_bits_of_a_run_that_was_never_stopped() {
    let folder = Folder::new("ctrl-c");
    let epochs = ["--epochs", "300"];
    let straight =
        json(&folder.0, &[&["train", "logistic", "--json", "--out", "straight"][..], &epochs].concat());

    let child =
        thalweg(&folder.0, &[&["train", "logistic", "--out", "run"][..], &epochs].concat()).spawn().unwrap();
    let metrics = folder.0.join("run/metrics.jsonl");
    let began = Instant::now();
    while std::fs::metadata(&metrics).map_or(0, |m| m.len()) == 0 {
        assert!(began.elapsed() < Duration::from_secs(120), "nothing was measured");
        std::thread::sleep(Duration::from_millis(5));
    }
    let interrupt = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(interrupt.success());
    let stopped = child.wait_with_output().unwrap();
    let out = text(&stopped.stdout);
    assert_eq!(stopped.status.code(), Some(130), "{out}");
    assert!(out.contains("thalweg resume run"), "{out}");
    assert!(!folder.0.join("run/summary.json").exists());

    let resumed = json(&folder.0, &["resume", "run", "--json"]);
    assert_eq!(resumed["weights_sha256"], straight["weights_sha256"]);
    assert_eq!((&resumed["steps"], &resumed["accuracy"]), (&straight["steps"], &straight["accuracy"]));
}
