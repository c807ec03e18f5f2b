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
fn damaged_weights_are_never_used_in_silence() {
    let folder = Folder::new("damaged");
    let all = ["train", "logistic", "--json", "--epochs", "3", "--out", "run"];
    let trained = json(&folder.0, &all);
    let flip = |path: &Path| {
        let mut bytes = std::fs::read(path).unwrap();
        let last = bytes.len() - 2;
        bytes[last] ^= 0x55;
        std::fs::write(path, bytes).unwrap();
    };
    flip(&folder.0.join("run/model.safetensors"));
    for use_it in ["eval", "predict"] {
        let output = run(&folder.0, &[use_it, "run"]);
        assert!(!output.status.success() && text(&output.stderr).contains("is damaged"), "{output:?}");
    }
    // As it says: without the model, the last checkpoint serves.
    std::fs::remove_file(folder.0.join("run/model.safetensors")).unwrap();
    assert_eq!(json(&folder.0, &["eval", "run", "--json"])["accuracy"], trained["accuracy"]);
    let newest = |files: std::fs::ReadDir| {
        let step = |p: &PathBuf| {
            let name = p.file_name().unwrap().to_str().unwrap();
            name.trim_start_matches("step-").split('.').next().unwrap().parse::<u64>().unwrap_or(0)
        };
        let models = files.map(|f| f.unwrap().path()).filter(|p| p.to_str().unwrap().contains(".model"));
        models.max_by_key(step).unwrap()
    };
    flip(&newest(std::fs::read_dir(folder.0.join("run/checkpoints")).unwrap()));
    let output = run(&folder.0, &["eval", "run"]);
    let told = text(&output.stderr);
    assert!(output.status.success() && told.contains("using the checkpoint after step"), "{output:?}");
}

#[test]
fn a_reader_that_goes_away_does_not_end_a_training() {
    let folder = Folder::new("reader");
    let mut child =
        thalweg(&folder.0, &["train", "logistic", "--epochs", "2", "--out", "run"]).spawn().unwrap();
    drop(child.stdout.take());
    let status = child.wait().unwrap();
    assert!(status.success() && folder.0.join("run/model.safetensors").exists(), "{status}");
}

#[test]
fn the_first_command_works_on_a_few_samples_and_says_what_to_type_next() {
    let folder = Folder::new("mnist");
    let short = ["train", "mnist", "--samples", "256", "--epochs", "1"];
    let output = run(&folder.0, &short);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{err}");
    assert!(err.is_empty(), "no bar where there is no terminal: {err}");
    assert!(
        out.contains("61706 parameters") && out.contains("% correct") && out.contains("2 steps in"),
        "{out}"
    );
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
fn every_recipe_on_digits_and_tumours_takes_a_step_and_can_be_used() {
    let folder = Folder::new("others");
    let short = |name: &str, out: &str| {
        json(&folder.0, &["train", name, "--samples", "128", "--epochs", "1", "--json", "--out", out])
    };
    for name in ["mlp", "resnet", "lstm", "perceptron"] {
        let accuracy = short(name, name)["accuracy"].as_f64().unwrap();
        assert!((0.0..=1.0).contains(&accuracy), "{name}: {accuracy}");
    }
    for name in ["lstm", "perceptron"] {
        let used = run(&folder.0, &["predict", name]);
        assert_eq!(text(&used.stdout).lines().count(), 10, "{name}: {}", text(&used.stderr));
    }
    for name in ["vae", "gan"] {
        assert!(short(name, name)["loss"].as_f64().unwrap() > 0.0);
        let used = run(&folder.0, &["predict", name]);
        assert!(text(&used.stdout).contains("64 samples"), "{name}: {}", text(&used.stderr));
        let picture = std::fs::read(folder.0.join(name).join("samples.png")).unwrap();
        let picture = thalweg::data::decode(&picture, thalweg::data::Channels::Grey).unwrap();
        assert_eq!((picture.width, picture.height), (224, 224));
    }
}

#[test]
fn completions_know_the_recipes_and_runs_are_compared() {
    let folder = Folder::new("companions");
    // Fish gets no values of positional arguments from clap.
    for (shell, word) in [("bash", "char-gpt"), ("zsh", "char-gpt"), ("fish", "dashboard")] {
        let script = text(&run(&folder.0, &["completions", shell]).stdout);
        assert!(script.contains(word), "{shell}: {script}");
    }
    for (out, lr) in [("a", "0.05"), ("b", "0.01")] {
        json(&folder.0, &["train", "logistic", "--epochs", "2", "--lr", lr, "--json", "--out", out]);
    }
    let inside = text(&run(&folder.0, &["inspect", "a"]).stdout);
    for words in [
        "recipe logistic",
        "0.weight",
        "62 elements",
        "checkpoint of step 30: epoch 2, sample 0;",
        "% correct",
    ] {
        assert!(inside.contains(words), "{words} is missing in\n{inside}");
    }
    let table = text(&run(&folder.0, &["runs", "--compare", "a", "b"]).stdout);
    let row = |name: &str| table.lines().find(|l| l.trim().starts_with(name)).map(str::to_owned);
    assert_eq!(row("lr").unwrap().split_whitespace().collect::<Vec<_>>(), ["lr", "0.05", "0.01"], "{table}");
    assert!(row("best accuracy").is_some() && row("recipe").is_none(), "{table}");
}

/// Sentences that a grammar makes, in which a few letters decide what comes next.
fn small_text(path: &Path) {
    let words = ["the king", "a queen", "my lord", "the fool", "a ghost"];
    let verbs = [" sees ", " hears ", " loves ", " fears "];
    let line = |i: usize| format!("{}{}{}.\n", words[i % 5], verbs[i % 4], words[(i * 7 + 3) % 5]);
    std::fs::write(path, (0..200).map(line).collect::<String>()).unwrap();
}

#[test]
fn a_gpt_learns_a_text_and_writes_on() {
    let folder = Folder::new("gpt");
    small_text(&folder.0.join("text.txt"));
    let short = ["train", "char-gpt", "--data", "text.txt", "--steps", "12", "--batch", "4", "--out", "run"];
    let output = run(&folder.0, &short);
    let out = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(out.contains("validation loss") && out.contains("12 steps in"), "{out}");
    let losses: Vec<f64> = std::fs::read_to_string(folder.0.join("run/metrics.jsonl"))
        .unwrap()
        .lines()
        .filter_map(|l| serde_json::from_str::<Value>(l).unwrap()["loss/validation"].as_f64())
        .collect();
    assert!(losses.len() == 4 && losses[3] < losses[0] && losses[3] < 3.0, "{losses:?}");

    let said = json(&folder.0, &["predict", "run", "the king", "--json"]);
    assert!(said["text"].as_str().unwrap().starts_with("the king"), "{said}");
    assert_eq!(said["text"].as_str().unwrap().chars().count(), 408);
    let refused = run(&folder.0, &["predict", "run", "QUARTZ"]);
    assert!(text(&refused.stderr).contains("'Q'"), "{}", text(&refused.stderr));
    let measured = json(&folder.0, &["eval", "run", "--json"]);
    assert!((measured["loss_validation"].as_f64().unwrap() - losses[3]).abs() < 1e-4, "{measured}");
}

#[test]
fn data_that_are_not_inside_are_asked_for() {
    let folder = Folder::new("a9a");
    let missing = run(&folder.0, &["train", "a9a"]);
    assert!(text(&missing.stderr).contains("--data"), "{}", text(&missing.stderr));
    std::fs::create_dir(folder.0.join("empty")).unwrap();
    let empty = run(&folder.0, &["train", "a9a", "--data", "empty"]);
    assert!(text(&empty.stderr).contains("has no file a9a"), "{}", text(&empty.stderr));
}

#[test]
fn a_tree_lstm_learns_from_trees_of_any_shape() {
    let folder = Folder::new("trees");
    let kinds = [
        "(4 (2 it) (4 (2 is) (4 lovely)))",
        "(0 (2 it) (0 (2 is) (0 dull)))",
        "(3 (3 (4 lovely) (2 film)) (2 .))",
        "(1 (1 (1 dull) (2 film)) (2 .))",
        "(4 lovely)",
        "(2 (2 it) (2 is))",
    ];
    let lines: String = (0..60).map(|i| kinds[i % 6].to_owned() + "\n").collect();
    for name in ["train.txt", "test.txt"] {
        std::fs::write(folder.0.join(name), &lines).unwrap();
    }
    let arguments =
        ["train", "tree-lstm", "--data", ".", "--json", "--out", "run", "--batch", "10", "--epochs", "4"];
    let trained = json(&folder.0, &arguments);
    assert_eq!(trained["accuracy"], 1.0, "{trained}");
    let judged = json(&folder.0, &["predict", "run", "(0 (2 lovely) (2 film))", "--json"]);
    assert!(judged["praise"].as_f64().unwrap() > 0.5, "{judged}");
}

#[test]
fn a_policy_keeps_the_pole_up_longer_than_chance() {
    let folder = Folder::new("cart-pole");
    let arguments = ["train", "cart-pole", "--json", "--out", "run", "--samples", "48", "--epochs", "6"];
    let trained = json(&folder.0, &arguments);
    // Pushing at random holds it for 22 steps; this seed is at several times that after 18 updates.
    assert!(trained["return"].as_f64().unwrap() > 60.0, "{trained}");
    let shown = run(&folder.0, &["predict", "run"]);
    assert!(text(&shown.stdout).contains("it stood for"), "{}", text(&shown.stderr));
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
    assert!(
        ["mnist", "mlp", "logistic", "a9a", "char-gpt", "tree-lstm", "cart-pole"]
            .iter()
            .all(|name| e.contains(name)),
        "{e}"
    );
    assert!(e.contains("similar value exists: 'mnist'"), "{e}");
    assert!(complaint(&["train", "mnist", "--epoch", "3"]).contains("'--epochs'"));
    assert!(complaint(&["train", "mnist", "--lr", "-1"]).contains("above 0"));
    assert!(complaint(&["resume", "nothing"]).contains("is not a run directory"));
    json(&folder.0, &["train", "logistic", "--epochs", "1", "--json", "--out", "run"]);
    let e = complaint(&["train", "logistic", "--epochs", "1", "--out", "run"]);
    assert!(e.contains("already holds a run"), "{e}");
    let e = complaint(&["predict", "run", "digit.png"]);
    assert!(e.contains("digit.png"), "{e}");
    let e = complaint(&["train", "char-gpt", "--data", "nothing.txt"]);
    assert!(e.contains("nothing.txt") && e.contains("o such file"), "{e}");
}

/// A limit on the size of files stands for a full disk.
#[cfg(target_os = "linux")]
#[test]
fn a_disk_without_room_is_told_with_the_way_on() {
    let folder = Folder::new("full");
    let train =
        format!("trap '' XFSZ; ulimit -f 8; exec {} train logistic --out run", env!("CARGO_BIN_EXE_thalweg"));
    let output = Command::new("sh").args(["-c", &train]).current_dir(&folder.0).output().unwrap();
    let e = text(&output.stderr);
    assert!(!output.status.success() && e.contains("File too large") && e.contains("resume run"), "{e}");
    let resumed = json(&folder.0, &["resume", "run", "--json"]);
    assert!(resumed["accuracy"].as_f64().unwrap() > 0.93, "{resumed}");
}

/// The limit is between the sizes of the net and of what its optimiser keeps, so that the first part of every checkpoint can be
/// written and the second cannot.
#[cfg(target_os = "linux")]
#[test]
fn of_a_checkpoint_for_which_there_is_no_room_nothing_stays() {
    let folder = Folder::new("half");
    for (slots, goes_on) in [("1", false), ("2", true)] {
        let train = format!(
            "trap '' XFSZ; exec prlimit --fsize=300000 {} train mnist --samples 640 --epochs 1 --slots {slots} --out run-{slots}",
            env!("CARGO_BIN_EXE_thalweg")
        );
        let output = Command::new("sh").args(["-c", &train]).current_dir(&folder.0).output().unwrap();
        let e = text(&output.stderr);
        assert_eq!(output.status.success(), goes_on, "{e}");
        assert!(e.contains("File too large"), "{e}");
        assert!(!goes_on || e.contains("is not whole"), "{e}");
        let files = std::fs::read_dir(folder.0.join(format!("run-{slots}/checkpoints"))).unwrap();
        let left: Vec<_> =
            files.map(|file| file.unwrap().file_name()).filter(|name| name != ".lock").collect();
        assert!(left.is_empty(), "{slots} slots: {left:?}");
    }
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
