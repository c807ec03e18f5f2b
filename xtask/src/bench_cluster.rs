//! `cargo xtask bench cluster`: the parameter server against raw sockets and TensorFlow's, in one sitting.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use thalweg_train::plot::{Plot, Series};

use crate::bench::target_dir;
use crate::root;

const DENSE_BYTES: usize = 100_000_000;
const STALENESS: [&str; 6] = ["bsp", "ssp:1", "ssp:4", "ssp:8", "ssp:16", "async"];
const MODELS: [&str; 3] = ["exponential", "fixed", "pareto"];

pub fn run(parts: &[&str]) -> Result<()> {
    let wants = |part: &str| parts.is_empty() || parts.contains(&part);
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--release", "--workspace", "--bin", "thalweg"]);
    build.args(["--example", "throughput", "--example", "delays"]).current_dir(root());
    ensure!(build.status()?.success(), "the release build failed");
    if wants("null") {
        null_steps()?;
    }
    if wants("dense") {
        dense()?;
    }
    if wants("sparse") {
        sparse()?;
    }
    if wants("delays") {
        delays()?;
    }
    Ok(())
}

fn example(name: &str) -> PathBuf {
    target_dir().join("release/examples").join(name)
}

/// The lines that a program prints under `thalweg launch`.
fn launch(options: &[&str], program: &str, args: &[&str]) -> Result<String> {
    let mut command = Command::new(target_dir().join("release/thalweg"));
    command.arg("launch").args(options).arg("--").arg(example(program)).args(args);
    let output = command.output()?;
    ensure!(output.status.success(), "{command:?} failed:\n{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// The number after a word.
fn number(text: &str, word: &str) -> Result<f64> {
    let mut words = text.split_whitespace().skip_while(|w| *w != word);
    let found = words.nth(1).and_then(|w| w.parse().ok());
    found.with_context(|| format!("no number after {word:?} in {text:?}"))
}

fn null_steps() -> Result<()> {
    println!("null step: pull a scalar, push, be acknowledged; one server, nobody waits for anybody");
    println!("| workers | median ms | p99 ms |\n|---|---|---|");
    for workers in ["1", "2", "4", "8"] {
        let options = ["--workers", workers, "--servers", "1", "--sync", "async"];
        let text = launch(&options, "throughput", &["1", "3000"])?;
        println!("| {workers} | {} | {} |", number(&text, "median")?, number(&text, "p99")?);
    }
    rival("rival_tf_ps.py", "tensorflow")
}

/// A rival's lines, if its package is there.
fn rival(script: &str, package: &str) -> Result<()> {
    let python = std::env::var("THALWEG_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let has = Command::new(&python).args(["-c", &format!("import {package}")]).output();
    if !has.is_ok_and(|o| o.status.success()) {
        println!("skipped {script}: `{python}` cannot import {package} (set THALWEG_PYTHON to one that can)");
        return Ok(());
    }
    let status = Command::new(python).arg(root().join("benches/peers/dist").join(script)).status()?;
    ensure!(status.success(), "{script} failed");
    Ok(())
}

fn dense() -> Result<()> {
    let values = (DENSE_BYTES / 4).to_string();
    let mut shares = Vec::new();
    println!("dense push and pull of {} MB, one worker, one server", DENSE_BYTES / 1_000_000);
    println!("| round | ours ms | raw TCP ms | share of raw |\n|---|---|---|---|");
    for round in 1..=3 {
        let text = launch(&["--workers", "1", "--servers", "1"], "throughput", &[&values, "12"])?;
        let (ours, raw) = (number(&text, "median")?, raw_tcp()?);
        shares.push(raw / ours);
        println!("| {round} | {ours:.1} | {raw:.1} | {:.0} % |", 100.0 * raw / ours);
    }
    shares.sort_by(f64::total_cmp);
    println!("median share of raw TCP: {:.0} %", 100.0 * shares[1]);
    Ok(())
}

/// The median time in ms of sending so many bytes through a loopback socket and getting as many back.
fn raw_tcp() -> Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let other = std::thread::spawn(move || -> std::io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let mut bytes = vec![1u8; DENSE_BYTES];
        while stream.read_exact(&mut bytes).is_ok() {
            stream.write_all(&bytes)?;
        }
        Ok(())
    });
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let (sent, mut received) = (vec![1u8; DENSE_BYTES], vec![0u8; DENSE_BYTES]);
    let mut times = Vec::new();
    for _ in 0..11 {
        let begin = Instant::now();
        stream.write_all(&sent)?;
        stream.read_exact(&mut received)?;
        times.push(begin.elapsed().as_secs_f64() * 1e3);
    }
    drop(stream);
    other.join().expect("the echo does not panic")?;
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn sparse() -> Result<()> {
    println!(
        "push and pull of 32 rows of 16 values\n| rows of the table | median ms | p99 ms |\n|---|---|---|"
    );
    for rows in ["1000", "100000", "10000000"] {
        let text = launch(&["--workers", "1", "--servers", "1"], "throughput", &["rows", rows, "3000"])?;
        println!("| {rows} | {} | {} |", number(&text, "median")?, number(&text, "p99")?);
    }
    Ok(())
}

/// Idle share and time to a target under injected delays, and the curve over the staleness as a picture.
fn delays() -> Result<()> {
    println!("four workers under injected delays: idle share, and seconds to 1 % of the first loss");
    println!("| sync | {} |\n|---|---|---|---|", MODELS.join(" | "));
    let mut series: Vec<Series> =
        MODELS.iter().map(|m| Series { name: (*m).to_owned(), points: Vec::new() }).collect();
    for (x, sync) in STALENESS.iter().chain(&["backup:1"]).enumerate() {
        let mut cells = Vec::new();
        for (model, series) in MODELS.iter().zip(&mut series) {
            let options = ["--workers", "4", "--servers", "1", "--sync", sync];
            let text = launch(&options, "delays", &[model, "300"])?;
            let target = number(&text, "target").ok();
            let seconds = target.map_or("not reached".to_owned(), |t| format!("{t:.2} s"));
            cells.push(format!("{:.0} %, {seconds}", 100.0 * number(&text, "idle")?));
            if *sync != "backup:1" {
                series.points.push((x as f64, target.unwrap_or(f64::NAN)));
            }
        }
        println!("| {sync} | {} |", cells.join(" | "));
    }
    let plot = Plot {
        title: "seconds to the target".into(),
        x_name: format!("staleness: {}", STALENESS.join(", ")),
        series,
        log_y: false,
    };
    let path = root().join("docs/pictures/staleness.svg");
    std::fs::create_dir_all(path.parent().expect("a file lies in a folder"))?;
    std::fs::write(&path, plot.svg())?;
    println!("wrote docs/pictures/staleness.svg");
    Ok(())
}
