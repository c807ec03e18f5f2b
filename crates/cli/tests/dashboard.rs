//! The dashboard, seen by a browser.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A dashboard that ends with the test.
struct Dashboard {
    child: Child,
    address: String,
    folder: PathBuf,
    errors: support::Errors,
}

impl Dashboard {
    fn new(test: &str) -> Self {
        Self::with(test, &[])
    }

    fn with(test: &str, options: &[&str]) -> Self {
        let folder = std::env::temp_dir().join(format!("thalweg-dashboard-{}-{test}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_thalweg"))
            .args(["dashboard", "--port", "0", "runs"])
            .args(options)
            .current_dir(&folder)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let errors = support::Errors::of(child.stderr.take().unwrap());
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address = line.strip_prefix("http://").unwrap().split(' ').next().unwrap().to_owned();
        Self { child, address, folder, errors }
    }

    /// Status and body of an answer.
    fn get(&self, path: &str, host: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    fn train(&self, name: &str, epochs: &str) {
        let run = format!("runs/{name}");
        let output = Command::new(env!("CARGO_BIN_EXE_thalweg"))
            .args(["train", "logistic", "--json", "--epochs", epochs, "--out", &run])
            .current_dir(&self.folder)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// What a browser makes of the page, a few seconds after it was opened.
    fn seen(&self, browser: &Path) -> String {
        let profile = self.folder.join("profile");
        let output = Command::new(browser)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=4000", "--dump-dom"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg(format!("http://{}/", self.address))
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Dashboard {
    /// The page as a picture, for people.
    fn picture(&self, browser: &Path, file: &Path) {
        let mut command = Command::new(browser);
        command.args(["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=4000"]);
        command.args(["--window-size=1400,700", &format!("--screenshot={}", file.display())]);
        command.arg(format!("http://{}/", self.address));
        assert!(command.output().unwrap().status.success());
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Chromium, if there is one; in CI there must be.
fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let found = std::env::split_paths(&path).flat_map(|p| names.map(|n| p.join(n))).find(|p| p.is_file());
    if found.is_none() {
        assert!(std::env::var_os("CI").is_none(), "CI needs chromium; .ci/run installs it");
        println!("skipped: there is no chromium on the PATH");
    }
    found
}

#[test]
fn a_browser_draws_the_curves_of_all_runs_and_follows_them() {
    let Some(browser) = browser() else { return };
    let dashboard = Dashboard::new("browser");
    let page = dashboard.seen(&browser);
    assert!(page.contains("No runs in runs yet"), "{page}");

    dashboard.train("first", "2");
    dashboard.train("second", "4");
    // One that cannot be read does not hide the others.
    let broken = dashboard.folder.join("runs/broken");
    std::fs::create_dir_all(&broken).unwrap();
    std::fs::write(broken.join("config.json"), "{").unwrap();
    let page = dashboard.seen(&browser);
    for text in ["first", "second", "broken", "accuracy", "loss/validation", "epochs", "of 1 cores", "GB"] {
        let cores =
            text.replace("1 cores", &format!("{} cores", std::thread::available_parallelism().unwrap()));
        assert!(page.contains(&cores), "{cores} is missing in {page}");
    }
    // Three metrics of two runs.
    assert_eq!(page.matches("<path").count(), 6, "{page}");
    assert_eq!(page.matches(">graph</button>").count(), 2, "{page}");

    let metrics = dashboard.folder.join("runs/first/metrics.jsonl");
    let mut file = std::fs::File::options().append(true).open(metrics).unwrap();
    writeln!(file, r#"{{"loss":0.5,"seconds":9.0,"step":4321}}"#).unwrap();
    let page = dashboard.seen(&browser);
    assert!(page.contains("4321"), "a live run is followed: {page}");
}

#[test]
fn a_browser_shows_what_every_process_of_a_cluster_does_and_when_it_is_gone() {
    let Some(browser) = browser() else { return };
    let mut run = support::Launched::new(&["--workers", "2", "--servers", "2"], &["100000", "20"]);
    run.until(support::step(0, 5));
    let address = run.address();
    let dashboard = Dashboard::with("cluster", &["--cluster", &address]);
    let begun = std::time::Instant::now();
    while !dashboard.get("/state", "localhost").1.contains("worker-1") {
        assert!(begun.elapsed() < support::PATIENCE, "the cluster is not heard of");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let page = dashboard.seen(&browser);
    for text in
        ["2 servers, 2 workers", "worker-0", "worker-1", "server-0", "0:head", "staleness", "waited", " MB"]
    {
        assert!(page.contains(text), "{text} is missing in {page}");
    }
    if let Some(file) = std::env::var_os("THALWEG_SCREENSHOT") {
        dashboard.picture(&browser, Path::new(&file));
    }
    Command::new("kill").args(["-INT", &run.child.id().to_string()]).status().unwrap();
    run.child.wait().unwrap();
    while !dashboard.get("/state", "localhost").1.contains("no coordinator") {
        assert!(begun.elapsed() < support::PATIENCE, "its end is not noticed");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(dashboard.seen(&browser).contains("no coordinator"));
}

/// One that is started later is shown then.
#[test]
fn a_cluster_that_is_not_reached_is_told_of_once_and_on_the_page() {
    let dashboard = Dashboard::with("unreached", &["--cluster", "127.0.0.1:1"]);
    dashboard.errors.until("127.0.0.1:1");
    dashboard.errors.until("; the page shows the cluster once it answers");
    let begun = std::time::Instant::now();
    while !dashboard.get("/state", "localhost").1.contains("no coordinator") {
        assert!(begun.elapsed() < support::PATIENCE, "the page does not say so");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(dashboard.errors.text().matches("once it answers").count(), 1);
}

#[test]
fn only_this_machine_is_answered_and_only_what_is_listed() {
    let dashboard = Dashboard::new("answers");
    dashboard.train("run", "1");
    let (status, state) = dashboard.get("/state", &dashboard.address);
    let state: serde_json::Value = serde_json::from_str(&state).unwrap();
    assert_eq!((status, &state["runs"][0]["name"]), (200, &serde_json::json!("run")));
    assert_eq!(dashboard.get("/state", "evil.example").0, 403);
    let (status, page) = dashboard.get("/graph/run", "localhost");
    assert!(status == 200 && page.contains("<svg"), "{status} {page}");
    for path in ["/graph/..", "/graph/../config.json", "/graph/other", "/elsewhere"] {
        assert_eq!(dashboard.get(path, "localhost").0, 404, "{path}");
    }
    let (_, page) = dashboard.get("/", "localhost");
    assert!(
        !page.contains("https://") && !page.contains("src=\"http"),
        "the page needs nothing from elsewhere"
    );
}
