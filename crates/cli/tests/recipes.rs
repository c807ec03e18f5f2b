//! Recipes under `thalweg launch`: the same command alone and on a cluster, with the same mathematics.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(120);

struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("thalweg-recipes-{}-{test}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const THALWEG: &str = env!("CARGO_BIN_EXE_thalweg");

fn thalweg(folder: &Folder, args: &[&str]) -> Command {
    let mut command = Command::new(THALWEG);
    command.args(args).current_dir(&folder.0).env_remove("CARGO");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// One process with four slots: the reference for rounds.
fn alone(folder: &Folder, args: &[&str]) -> Value {
    result(&thalweg(folder, &[args, &["--slots", "4"]].concat()).output().unwrap())
}

fn launch(folder: &Folder, options: &[&str], args: &[&str]) -> Child {
    thalweg(folder, &[&["launch"], options, &["--", THALWEG], args].concat()).spawn().unwrap()
}

fn launched(folder: &Folder, options: &[&str], args: &[&str]) -> Value {
    result(&launch(folder, options, args).wait_with_output().unwrap())
}

/// The only JSON that a command has printed.
fn result(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let found: Vec<&str> = text.lines().filter(|l| l.starts_with('{')).collect();
    assert_eq!(found.len(), 1, "one process tells the result: {text}");
    serde_json::from_str(found[0]).unwrap()
}

/// Without a bound a slot may have said its last word before others have said much, so its sums are of older values; with
/// the few steps of a small problem that shows by so many times more than rounding.
const SLACK: f64 = 500.0;

/// Trains alone, in rounds, with stale values and without any bound. All must reach the number, rounds with the bits of
/// one process. `reached` is told the number and how many times more it may be off.
fn check(folder: &Folder, train: &[&str], metric: &str, reached: impl Fn(f64, f64) -> bool) {
    let with = |out: &str| {
        [&["train"], train, &["--json", "--out", out]].concat().iter().map(|a| (*a).to_owned()).collect()
    };
    let mut hashes = Vec::new();
    for sync in ["alone", "bsp", "ssp:3", "async"] {
        let args: Vec<String> = with(sync);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let found = match sync {
            "alone" => alone(folder, &args),
            _ => launched(folder, &["--workers", "4", "--servers", "2", "--sync", sync], &args),
        };
        println!("{} {sync}: {found}", train[0]);
        let slack = if sync == "async" { SLACK } else { 1.0 };
        assert!(reached(found[metric].as_f64().unwrap(), slack), "{sync}: {found}");
        hashes.push(found["weights_sha256"].clone());
    }
    assert_eq!(hashes[0], hashes[1], "rounds are bit-identical to one process");
    let measured = result(&thalweg(folder, &["eval", "ssp:3", "--json"]).output().unwrap());
    assert!(reached(measured[metric].as_f64().unwrap(), 1.0), "{measured}");
    let shown = thalweg(folder, &["predict", "bsp"]).output().unwrap();
    assert!(shown.status.success() && !shown.stdout.is_empty(), "{shown:?}");
    for file in ["config.json", "metrics.jsonl", "summary.json", "model.safetensors", "checkpoints"] {
        assert!(folder.0.join("async").join(file).exists(), "{file}");
    }
}

// The three numbers below were made with a plain loop in Python, in double precision, from the same first centres.

#[test]
fn kmeans_finds_the_flowers() {
    check(&Folder::new("kmeans"), &["kmeans"], "inertia", |v, slack| (v - 78.8514).abs() < 1e-3 * slack);
}

#[test]
fn a_mixture_explains_the_flowers() {
    check(&Folder::new("mixture"), &["mixture"], "log_likelihood", |v, slack| {
        (v + 2.04785).abs() < 1e-4 * slack
    });
}

#[test]
fn lasso_reaches_the_minimum() {
    check(&Folder::new("lasso"), &["lasso"], "objective", |v, _| (v - 1533.7687).abs() < 0.05);
}

#[test]
fn factors_explain_ratings_that_are_products() {
    let folder = Folder::new("factorise");
    let mut text = String::new();
    for user in 0..40u32 {
        for item in (0..30).filter(|item| (user * 7 + item * 3) % 4 != 0) {
            // Half of the users like what the others do not.
            let rating = if (user % 2 == 0) == (item % 3 == 0) { 9 } else { 3 };
            text += &format!("{user}::film{item}::{rating}::0\n");
        }
    }
    folder.file("ratings.dat", &text);
    let train = "factorise --data . --components 3 --penalty 0.05 --batch 120 --epochs 40";
    let train: Vec<&str> = train.split(' ').collect();
    // Ratings are 3 or 9: their mean alone is off by 3.04.
    check(&folder, &train, "rmse", |v, _| v < 1.2);
}

#[test]
fn topics_are_told_apart() {
    let folder = Folder::new("topics");
    let mut text = String::new();
    for document in 0..60u32 {
        for i in 0..12 {
            text +=
                &format!("{document}\t{}\t{}\n", document % 3 * 20 + (document * 7 + i * 5) % 20, 1 + i % 3);
        }
    }
    folder.file("doc_word_count.tsv", &text);
    // A document uses 12 of 20 words of one kind, some more often than others; without kinds there would be 60.
    check(&folder, &["topics", "--data", ".", "--components", "3", "--steps", "40"], "perplexity", |v, _| {
        v < 30.0
    });
}

#[test]
fn sparse_rows_reach_the_minimum_of_their_objective() {
    let folder = Folder::new("a9a");
    // Feature 1 speaks for, feature 2 against; feature 3 is everywhere and says nothing.
    let rows: String = (0..400).map(|i| if i % 2 == 0 { "+1 1:1 3:1\n" } else { "-1 2:1 3:1\n" }).collect();
    ["a9a", "a9a.t"].iter().for_each(|name| folder.file(name, &rows));
    let train = ["a9a", "--data", ".", "--steps", "300", "--penalty", "0.01"];
    // w = (t, -t, 0) minimises log(1 + exp(-t)) + 0.01 t^2 at t = 2.818, where it is 0.13742.
    check(&folder, &train, "objective", |v, slack| (0.1374..0.1375 + 1e-5 * slack).contains(&v));
}

#[test]
fn a_net_of_the_recipes_learns_on_a_cluster() {
    check(&Folder::new("net"), &["logistic", "--epochs", "20"], "accuracy", |v, _| v > 0.93);
}

/// Steps of a worker's own: the mean of all is bit-identical to one process, and goes on from a checkpoint.
#[test]
fn a_net_of_the_recipes_learns_by_local_steps_and_by_elastic_averaging() {
    let folder = Folder::new("own");
    let train = |out| ["train", "logistic", "--epochs", "20", "--json", "--out", out];
    let mut hashes = Vec::new();
    for (sync, out) in [("local:4", "local"), ("easgd:0.1", "easgd"), ("easgd:0.2:4", "rarely")] {
        let cluster = ["--workers", "4", "--servers", "2", "--sync", sync];
        let found = launched(&folder, &cluster, &train(out));
        println!("{sync}: {found}");
        assert!(found["accuracy"].as_f64().unwrap() > 0.93, "{sync}: {found}");
        hashes.push(found["weights_sha256"].clone());
    }
    let mut one = thalweg(&folder, &[&train("alone")[..], &["--slots", "4"]].concat());
    let alone = result(&one.env("THALWEG_SYNC", "local:4").output().unwrap());
    assert_eq!(alone["weights_sha256"], hashes[0], "the mean of all is bit-identical to one process");
    // Programs that are no nets, and modes that are none, are told what there is.
    for (sync, recipe) in [("local:4", "kmeans"), ("coded:2", "logistic")] {
        let output = launch(&folder, &["--sync", sync], &["train", recipe, "--json", "--out", recipe]);
        let output = output.wait_with_output().unwrap();
        let e = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && e.contains("ssp:STALENESS"), "{sync}: {e}");
    }
}

/// Local steps leave nothing with a worker that others could not go on from.
#[test]
fn a_worker_that_is_killed_between_local_steps_changes_no_bit() {
    let folder = Folder::new("local-killed");
    let train = |out| ["train", "logistic", "--epochs", "150", "--json", "--out", out];
    let mut one = thalweg(&folder, &[&train("local-alone")[..], &["--slots", "4"]].concat());
    let want = result(&one.env("THALWEG_SYNC", "local:2").output().unwrap());
    let options = ["--workers", "3", "--servers", "1", "--slots", "4", "--sync", "local:2"];
    let child = launch(&folder, &options, &train("local-killed"));
    let (end, checkpoints) = (Instant::now() + PATIENCE, folder.0.join("local-killed/checkpoints"));
    while !std::fs::read_dir(&checkpoints).is_ok_and(|mut files| files.next().is_some()) {
        assert!(Instant::now() < end, "no checkpoint");
        std::thread::sleep(Duration::from_millis(2));
    }
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let mut workers = processes.filter(|p| {
        let has = |file: &str, word: &str| {
            let text = std::fs::read(p.path().join(file)).unwrap_or_default();
            text.split(|b| *b == 0).any(|w| w == word.as_bytes())
        };
        let launcher = format!("THALWEG_PARENT={}", child.id());
        has("environ", "THALWEG_NAME=worker-1") && has("environ", &launcher)
    });
    let pid = workers.next().expect("it runs").file_name().into_string().unwrap();
    assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("worker-1 was killed"), "it was killed too late: {told}");
    assert_eq!(result(&output)["weights_sha256"], want["weights_sha256"]);
}

/// What is left out of a push comes later: fewer bytes, and the same net in the end.
#[test]
fn smaller_pushes_teach_a_net_of_the_recipes_with_fewer_bytes() {
    let folder = Folder::new("codecs");
    let train = |out| ["train", "mlp", "--samples", "2000", "--epochs", "2", "--json", "--out", out];
    let mut plain = None;
    // How many times less a worker sends; top-k tells position and value of one in a hundred.
    for (codec, less) in [("f32", 1.0), ("bf16", 1.9), ("int8", 3.5), ("topk:0.01", 20.0)] {
        let found = launched(
            &folder,
            &["--workers", "1", "--servers", "1", "--slots", "2", "--codec", codec],
            &train(codec),
        );
        println!("{codec}: {found}");
        let (sent, accuracy) = (found["sent_bytes"].as_f64().unwrap(), found["accuracy"].as_f64().unwrap());
        let (bytes, reached) = *plain.get_or_insert((sent, accuracy));
        assert!(sent * less <= bytes, "{codec}: {sent} bytes instead of {bytes}");
        assert!(accuracy > reached - 0.1 && accuracy > 0.6, "{codec}: {accuracy} instead of {reached}");
    }
    let output = launch(&folder, &["--codec", "zip"], &train("zip")).wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("topk:ONE_IN"), "{output:?}");
}

/// A program with dense values, and one with rows and the state of a rule.
#[test]
fn a_model_is_killed_with_all_its_processes_and_goes_on_elsewhere_to_the_same_bits() {
    let folder = Folder::new("killed");
    let line = |i: u32| format!("{}::{}::{}::0\n", i % 37, i % 23, 1 + i * 7 % 9);
    folder.file("ratings.dat", &(0..800).map(line).collect::<String>());
    for (name, train) in [
        ("lasso", &["lasso", "--steps", "4000"][..]),
        ("factorise", &["factorise", "--data", "ratings.dat", "--batch", "100", "--steps", "4000"]),
    ] {
        let train = |out| [&["train"], train, &["--json", "--out", out]].concat();
        let (whole, run) = (format!("{name}-whole"), format!("{name}-killed"));
        let want = alone(&folder, &train(&whole));
        let mut child = launch(&folder, &["--workers", "4", "--servers", "2"], &train(&run));
        let (end, checkpoints) = (Instant::now() + PATIENCE, folder.0.join(&run).join("checkpoints"));
        while !checkpoints.join("step-0000000400.json").exists() {
            assert!(Instant::now() < end, "no checkpoint: {:?}", child.try_wait());
            std::thread::sleep(Duration::from_millis(2));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!folder.0.join(&run).join("summary.json").exists(), "{name}: it was killed too late");
        // The others end when they see that the launcher is gone; until then one of them may hold the books.
        while !is_free(&folder.0.join(&run)) {
            assert!(Instant::now() < end, "processes are left");
            std::thread::sleep(Duration::from_millis(50));
        }
        let options = ["--workers", "2", "--servers", "3", "--slots", "4"];
        let again = launched(&folder, &options, &["resume", &run, "--json"]);
        assert_eq!(again["weights_sha256"], want["weights_sha256"], "{name}");
    }
}

/// Whether no process works in a run any more.
fn is_free(run: &Path) -> bool {
    let name = run.file_name().unwrap().to_str().unwrap();
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    !processes
        .filter_map(|p| std::fs::read(p.path().join("cmdline")).ok())
        .any(|line| line.split(|b| *b == 0).any(|word| word == name.as_bytes()) && !line.starts_with(b"kill"))
}

#[cfg(unix)]
#[test]
fn ctrl_c_leaves_a_model_that_goes_on_to_the_same_bits() {
    let folder = Folder::new("ctrl-c");
    let train = ["train", "lasso", "--steps", "20000", "--out"];
    let straight =
        result(&thalweg(&folder, &[&train[..], &["straight", "--json"]].concat()).output().unwrap());
    let child = thalweg(&folder, &[&train[..], &["run"]].concat()).spawn().unwrap();
    let end = Instant::now() + PATIENCE;
    while !folder.0.join("run/checkpoints/step-0000002000.json").exists() {
        assert!(Instant::now() < end, "no checkpoint");
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let stopped = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&stopped.stdout);
    assert_eq!(stopped.status.code(), Some(130), "{text}");
    assert!(text.contains("thalweg resume run"), "{text}");
    let resumed = result(&thalweg(&folder, &["resume", "run", "--json"]).output().unwrap());
    assert_eq!(resumed["weights_sha256"], straight["weights_sha256"]);
}

/// The steps of the checkpoints that a run has left: of all that it has written, the last ones.
fn saved(run: &Path) -> Vec<u64> {
    let files = std::fs::read_dir(run.join("checkpoints")).unwrap().map(|f| f.unwrap().file_name());
    let names = files.filter_map(|name| name.into_string().ok());
    let step = |name: String| name.strip_prefix("step-")?.strip_suffix(".json")?.parse().ok();
    let mut steps: Vec<u64> = names.filter_map(step).collect();
    steps.sort();
    steps
}

#[test]
fn a_run_saves_about_ten_times_whatever_it_trains_and_for_however_long() {
    let folder = Folder::new("saves");
    let line = |i: u32| format!("{}::{}::{}::0\n", i % 37, i % 23, 1 + i * 7 % 9);
    folder.file("ratings.dat", &(0..800).map(line).collect::<String>());
    for (i, train) in [
        "logistic",
        "logistic --slots 2",
        "logistic --epochs 1",
        "logistic --epochs 1 --slots 2",
        "logistic --steps 3",
        "kmeans",
        "mixture",
        "kmeans --steps 1",
        "factorise --data ratings.dat --batch 20",
        "factorise --data ratings.dat --batch 20 --epochs 1",
    ]
    .into_iter()
    .enumerate()
    {
        let run = format!("run-{i}");
        let args: Vec<&str> =
            format!("train {train} --json --out").leak().split(' ').chain([&run[..]]).collect();
        let steps = result(&thalweg(&folder, &args).output().unwrap())["steps"].as_u64().unwrap();
        let left = saved(&folder.0.join(&run));
        // The last step may be saved too, sooner after the one before.
        let gaps = left.windows(2).rev().take(2).map(|pair| pair[1] - pair[0]);
        let every = gaps.max().unwrap_or(left[0]);
        println!("{train}: {steps} steps, every {every}: {left:?}");
        let times = steps / every;
        assert!((steps.min(7)..=14).contains(&times), "{train}: {times} times in {steps} steps: {left:?}");
    }
}

#[test]
fn samples_that_cannot_be_learned_from_are_refused_with_the_reason() {
    let folder = Folder::new("refused");
    folder.file("ragged.csv", "a,b\n1,2\n3\n");
    folder.file("words.csv", "a,b\n1,two\n");
    folder.file("empty.csv", "a,b\n");
    folder.file("target.csv", "y\n1\n2\n");
    folder.file("ratings.dat", "1::2::3::4\n");
    folder.file("counts.tsv", "0 0 0\n");
    folder.file("a9a", "3 1:1\n");
    folder.file("a9a.t", "1 1:1\n");
    for (args, words) in [
        (&["kmeans", "--components", "151"][..], "150 points cannot make 151 groups"),
        (&["kmeans", "--lr", "0.1"], "kmeans has no --lr"),
        (&["mnist", "--components", "3"], "mnist has no --components"),
        (&["kmeans", "--data", "ragged.csv"], "ragged.csv:3: 1 fields instead of 2"),
        (&["mixture", "--data", "words.csv"], "\"b\""),
        (&["mixture", "--data", "empty.csv"], "empty.csv has no rows"),
        (&["lasso", "--data", "target.csv"], "features and then a target"),
        (&["lasso", "--penalty", "-1"], "above 0"),
        (&["factorise"], "--data"),
        (&["factorise", "--data", "ratings.dat"], "1 ratings are too few"),
        (&["topics", "--data", "counts.tsv"], "0 words cannot have 20 topics"),
        (&["a9a", "--data", "."], "a label is 3"),
    ] {
        let output = thalweg(&folder, &[&["train"], args].concat()).output().unwrap();
        let e = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && e.contains(words), "{args:?}: {e}");
    }
    let nowhere = thalweg(&folder, &["train", "kmeans"])
        .envs([("THALWEG_ROLE", "worker"), ("THALWEG_COORDINATOR", "127.0.0.1:1")])
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&nowhere.stderr).contains("--out"), "{nowhere:?}");
}
