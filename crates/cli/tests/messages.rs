//! What commands say besides results: where a run goes on, what will be different, what is wrong with what was typed.

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use support::{Launched, ended, step};

const THALWEG: &str = env!("CARGO_BIN_EXE_thalweg");

struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("thalweg-messages-{}-{test}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn run(&self, args: &str) -> Output {
        let mut command = Command::new(THALWEG);
        command.args(args.split(' ')).current_dir(&self.0).env_remove("CARGO").output().unwrap()
    }

    /// `thalweg launch OPTIONS -- thalweg ARGS`.
    fn launch(&self, options: &str, args: &str) -> Output {
        self.run(&format!("launch {options} -- {THALWEG} {args}"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn out(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn error(output: &Output) -> String {
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn times(text: &str, part: &str) -> usize {
    text.matches(part).count()
}

/// What a run of the past looks like that was killed: nothing was told, and it has checkpoints up to some step before its end, or
/// none. The step of the last one, 0 without one.
fn unfinish(run: &Path, saved: bool) -> u64 {
    for file in ["summary.json", "model.safetensors"] {
        std::fs::remove_file(run.join(file)).unwrap();
    }
    let manifests = || {
        let files = std::fs::read_dir(run.join("checkpoints")).unwrap().map(|file| file.unwrap().path());
        let mut found: Vec<PathBuf> = files.filter(|f| f.extension().is_some_and(|e| e == "json")).collect();
        found.sort();
        found
    };
    let keep = if saved { manifests().len() - 1 } else { 0 };
    manifests()[keep..].iter().for_each(|file| std::fs::remove_file(file).unwrap());
    let newest = manifests().pop();
    let step =
        newest.map(|file| file.file_stem().unwrap().to_str().unwrap()["step-".len()..].parse().unwrap());
    step.unwrap_or(0)
}

/// A second one would write into the checkpoints of the first.
#[test]
fn a_run_that_is_being_trained_is_not_resumed() {
    let folder = Folder::new("live");
    let mut first = Command::new(THALWEG);
    first.args("launch --workers 2 --servers 2 --".split(' ')).arg(THALWEG);
    first.args("train logistic --steps 1000000 --out live".split(' ')).current_dir(&folder.0);
    first.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let mut first = first.spawn().unwrap();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let metrics = folder.0.join("live/metrics.jsonl");
    while std::fs::metadata(&metrics).map_or(0, |m| m.len()) == 0 {
        assert!(std::time::Instant::now() < end, "it never began");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let alone = error(&folder.run("resume live"));
    assert!(alone.contains("is being written by the cluster at 127.0.0.1:"), "{alone}");
    let launched = error(&folder.launch("--workers 2", "resume live"));
    assert!(launched.contains("is being written by the cluster at 127.0.0.1:"), "{launched}");
    assert!(Command::new("kill").args(["-INT", &first.id().to_string()]).status().unwrap().success());
    assert_eq!(first.wait().unwrap().code(), Some(130));
    // What the first has saved is whole.
    let inspected = out(&folder.run("inspect live"));
    assert!(!inspected.contains("cannot be used"), "{inspected}");
}

#[test]
fn two_that_are_trained_at_once_are_two_runs_and_one_that_fails_leaves_no_folder() {
    let folder = Folder::new("alone");
    let one = || folder.run("train logistic --steps 20 --json");
    let both = std::thread::scope(|scope| [(); 4].map(|()| scope.spawn(one)).map(|t| t.join().unwrap()));
    both.iter().for_each(|output| drop(out(output)));
    let runs = |folder: &Folder| {
        let found = std::fs::read_dir(folder.0.join("runs")).into_iter().flatten();
        let mut names: Vec<_> = found.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(runs(&folder), ["logistic", "logistic-2", "logistic-3", "logistic-4"]);
    let empty = Folder::new("empty");
    error(&empty.run("train char-gpt --data ."));
    assert_eq!(runs(&empty), [""; 0]);
    assert!(!empty.0.join("runs").exists());
}

/// As with slots: what is computed then is something else.
#[test]
fn a_run_that_goes_on_with_another_consistency_is_told_so() {
    let folder = Folder::new("sync");
    out(&folder.launch("--workers 2 --sync ssp:3", "train logistic --steps 200 --out a"));
    unfinish(&folder.0.join("a"), true);
    let said = folder.launch("--workers 2", "resume a");
    out(&said);
    let told = String::from_utf8(said.stderr).unwrap();
    assert_eq!(times(&told, "was begun with --sync ssp:3 and goes on with bsp"), 1, "{told}");
    unfinish(&folder.0.join("a"), true);
    let kept = folder.launch("--workers 2 --sync ssp:3", "resume a");
    out(&kept);
    assert!(!String::from_utf8(kept.stderr).unwrap().contains("was begun with"));
}

#[test]
fn two_that_are_launched_at_once_are_two_runs_and_print_nothing_but_their_results() {
    let folder = Folder::new("two");
    let args = "train logistic --steps 20 --json";
    let one = || folder.launch("--workers 2", args);
    let both = std::thread::scope(|scope| [(); 2].map(|()| scope.spawn(one)).map(|t| t.join().unwrap()));
    let runs = both.map(|output| {
        let told: serde_json::Value = serde_json::from_str(&out(&output)).unwrap();
        told["run"].as_str().unwrap().to_owned()
    });
    assert_ne!(runs[0], runs[1]);
}

/// Nothing has begun, so nothing was lost.
#[test]
fn a_launch_that_is_interrupted_at_once_ends_as_any_that_is() {
    let folder = Folder::new("early");
    let mut command = Command::new(THALWEG);
    command.args("launch --workers 2 --servers 2 --".split(' ')).arg(THALWEG);
    command.args("train logistic --steps 1000000".split(' ')).current_dir(&folder.0);
    let mut child = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let errors = support::Errors::of(child.stderr.take().unwrap());
    errors.until("coordinator 127.0.0.1:");
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130), "{}", errors.text());
}

#[test]
fn resume_says_once_where_a_run_goes_on() {
    let folder = Folder::new("resume");
    for (slots, how) in [("1", ""), ("2", ""), ("2", "--workers 2 --servers 2")] {
        let name = format!("run-{slots}-{}", how.len());
        out(&folder.run(&format!("train logistic --steps 40 --slots {slots} --out {name}")));
        let resume = |saved: bool| {
            let step = unfinish(&folder.0.join(&name), saved);
            let output = match how {
                "" => folder.run(&format!("resume {name}")),
                options => folder.launch(options, &format!("resume {name}")),
            };
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(!errors.contains("was begun with"), "{name}: {errors}");
            (step, out(&output))
        };
        let (step, said) = resume(true);
        assert!((20..40).contains(&step), "{step}");
        assert_eq!(times(&said, &format!("going on after step {step}\n")), 1, "{name}: {said}");
        let (step, said) = resume(false);
        assert_eq!(
            (step, times(&said, "nothing was saved yet: beginning again\n")),
            (0, 1),
            "{name}: {said}"
        );
        assert_eq!(times(&said, "going on"), 0, "{name}: {said}");
        assert!(said.contains("40 steps in"), "{name}: {said}");
        let said = out(&folder.run(&format!("resume {name}")));
        assert!(said.contains("is finished; there is nothing left to resume"), "{name}: {said}");
    }
}

#[test]
fn resume_with_other_slots_says_once_that_the_bits_will_be_others() {
    let folder = Folder::new("slots");
    for recipe in ["logistic", "kmeans"] {
        out(&folder.run(&format!("train {recipe} --steps 30 --slots 2 --out {recipe}")));
        unfinish(&folder.0.join(recipe), true);
        let output = folder.launch("--workers 3", &format!("resume {recipe}"));
        let errors = String::from_utf8_lossy(&output.stderr);
        let warning = "thalweg: the run was begun with 2 slots and goes on with 3, so its last bits will be others; \
                       `launch --slots 2` keeps them\n";
        assert_eq!(times(&errors, warning), 1, "{recipe}: {errors}");
        assert_eq!(times(&out(&output), "going on after step "), 1, "{recipe}: {output:?}");
    }
}

#[test]
fn where_a_run_is_is_said_once_and_not_of_one_that_is_refused() {
    let folder = Folder::new("where");
    for (recipe, options) in
        [("logistic", ""), ("kmeans", ""), ("logistic", "--workers 2"), ("kmeans", "--workers 2")]
    {
        let name = format!("{recipe}-{}", options.len());
        let train = format!("train {recipe} --steps 20 --out {name}");
        let train = || if options.is_empty() { folder.run(&train) } else { folder.launch(options, &train) };
        let said = out(&train());
        assert_eq!(times(&said, &format!("the run is in {name}\n")), 1, "{name}: {said}");
        let refused = train();
        assert_eq!(times(&error(&refused), "already holds a run"), 1, "{name}: {refused:?}");
        let said = String::from_utf8_lossy(&refused.stdout);
        assert_eq!(times(&said, "the run is in"), 0, "{name}: {said}");
    }
}

/// As many processes as there are say the same, since they were given the same.
#[test]
fn a_mistake_in_the_command_of_a_launch_is_told_once() {
    let folder = Folder::new("mistakes");
    for (args, words) in [
        ("train mnits", "invalid value 'mnits'"),
        ("train kmeans --lr 0.1", "thalweg: kmeans has no --lr"),
        ("train kmeans --components 151 --out run", "150 points cannot make 151 groups"),
        ("train kmeans --slots 3 --out run", "the cluster has 4 slots, not 3: say `launch --slots 3`"),
        ("resume nowhere", "is not a run directory"),
    ] {
        let e = error(&folder.launch("--workers 4 --servers 2", args));
        assert_eq!(times(&e, words), 1, "{args}: {e}");
        assert!(e.contains("ended with exit status"), "{args}: {e}");
    }
}

#[test]
fn launch_refuses_what_cannot_work_and_says_what_would() {
    let folder = Folder::new("launch");
    for (args, words) in [
        (
            "launch --workers 2 --sync backup:2 -- true",
            "leaves nobody of 2 slots: say fewer, or more --slots",
        ),
        ("launch --sync sometimes -- true", "sometimes"),
        ("launch -- true", "server-0 ended before the run did; is `true` a program that runs on a cluster?"),
        ("launch -- /nothing/here", "cannot start \"/nothing/here\" as server-0"),
        ("launch -- false", "-0 ended with exit status: 1"),
        ("status", "which cluster? Give the address that its coordinator printed"),
        ("status nowhere", "\"nowhere\" is no address of a coordinator; give host:port"),
        ("dashboard --cluster nowhere", "\"nowhere\" is no address of a coordinator; give host:port"),
    ] {
        let e = error(&folder.run(args));
        assert_eq!(times(&e, words), 1, "{args}: {e}");
    }
}

#[test]
fn launch_tells_who_has_nothing_to_do_who_was_killed_and_who_has_left() {
    let mut run = Launched::new(&["--workers", "3", "--slots", "2", "--no-restart"], &["60", "10"]);
    run.errors.until("thalweg: of 3 workers only 2 will have something to do: there are no more slots");
    run.until(step(1, 3));
    run.signal("worker-2", "-KILL");
    run.errors.until("thalweg: worker-2 was killed (signal: 9 (SIGKILL)); the others go on without it");
    assert_eq!(ended(&mut run.child).code(), Some(0), "{}", run.errors.text());

    // A third one, so that whoever is asked to leave is not the last.
    let mut run = Launched::new(&["--workers", "3"], &["100000", "10"]);
    run.until(step(1, 3));
    run.signal("worker-0", "-KILL");
    run.errors.until("thalweg: worker-0 was killed (signal: 9 (SIGKILL)); it starts again");
    run.signal("worker-1", "-TERM");
    run.errors.until("thalweg: worker-1 has left as it was asked to; the others go on without it");
    run.kill_everything();

    let mut run = Launched::new(&["--no-restart"], &["100000", "10"]);
    run.until(step(0, 3));
    run.signal("worker-0", "-KILL");
    run.errors.until("thalweg: every worker was killed or has left before the end");
    assert_eq!(ended(&mut run.child).code(), Some(1));
}

/// As with `| head`, when it has read enough.
#[test]
fn output_that_nobody_reads_ends_a_command_without_a_panic() {
    let folder = Folder::new("unread");
    out(&folder.run("train logistic --steps 3 --json --out runs/a"));
    for args in
        ["info", "completions bash", "bench", "runs", "inspect runs/a", "eval runs/a", "resume runs/a"]
    {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(THALWEG);
        let output = command.args(args.split(' ')).current_dir(&folder.0).stdout(writer).output().unwrap();
        let e = String::from_utf8_lossy(&output.stderr);
        assert!(
            e.is_empty() && matches!(output.status.code(), Some(0 | 141)),
            "{args}: {}: {e}",
            output.status
        );
    }
}
