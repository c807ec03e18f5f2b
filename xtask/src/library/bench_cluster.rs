//! `cargo xtask bench cluster`: the parameter server against raw sockets and TensorFlow's, in one sitting.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use thalweg_train::plot::{Plot, Series};

use crate::bench::target_dir;
use crate::root;

const DENSE_BYTES: usize = 100_000_000;
const DENSE_ROUNDS: usize = 5;
/// How often each side has its turn.
const ROUNDS: usize = 3;
/// How often TensorFlow's script may fail.
const TRIES: usize = 3;
const STALENESS: [&str; 6] = ["bsp", "ssp:1", "ssp:4", "ssp:8", "ssp:16", "async"];
/// Delays are drawn anew for each of so many rounds.
const DELAY_ROUNDS: usize = 9;
const MODELS: [&str; 3] = ["exponential", "fixed", "pareto"];

pub fn run(parts: &[&str]) -> Result<()> {
    let wants = |part: &str| parts.is_empty() || parts.contains(&part);
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--release", "--workspace", "--bin", "thalweg"]);
    build
        .args(["--example", "throughput", "--example", "delays", "--example", "hogwild"])
        .current_dir(root());
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
    if wants("hogwild") {
        hogwild()?;
    }
    Ok(())
}

fn example(name: &str) -> PathBuf {
    target_dir().join("release/examples").join(name)
}

/// The lines that a program prints under `thalweg launch`.
fn launch(options: &[&str], program: &str, args: &[&str]) -> Result<String> {
    launch_with(&[], options, program, args)
}

fn launch_with(variables: &[(&str, &str)], options: &[&str], program: &str, args: &[&str]) -> Result<String> {
    let mut command = Command::new(target_dir().join("release/thalweg"));
    command.envs(variables.iter().copied());
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

fn median(mut times: Vec<f64>) -> Option<f64> {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied()
}

fn cell(ms: Option<f64>) -> String {
    ms.map_or("–".to_owned(), |ms| format!("{ms:.3}"))
}

fn null_steps() -> Result<()> {
    println!("null step: pull a scalar, push, be acknowledged; one server, nobody waits for anybody; ms");
    println!("median of {ROUNDS} rounds in turns");
    println!(
        "| workers | ours | ours p99 | TensorFlow session loop | theirs / ours |\n|---|---|---|---|---|"
    );
    let tensorflow = Tensorflow::find();
    for workers in ["1", "2", "4", "8"] {
        let (mut ours, mut tail, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let options = ["--workers", workers, "--servers", "1", "--sync", "async"];
            let text = launch(&options, "throughput", &["1", "3000"])?;
            ours.push(number(&text, "median")?);
            tail.push(number(&text, "p99")?);
            if let Some(tensorflow) = &tensorflow {
                theirs.push(tensorflow.median("null_step", workers, "0")?);
            }
        }
        let (ours, tail, theirs) = (median(ours), median(tail), median(theirs));
        let ratio = theirs.zip(ours).map_or("–".to_owned(), |(t, o)| format!("{:.1}", t / o));
        println!("| {workers} | {} | {} | {} | {ratio} |", cell(ours), cell(tail), cell(theirs));
    }
    Ok(())
}

/// TensorFlow's parameter server at its best: a session loop per worker.
struct Tensorflow(String);

impl Tensorflow {
    fn find() -> Option<Self> {
        let python = std::env::var("THALWEG_PYTHON").unwrap_or_else(|_| "python3".to_owned());
        let has = Command::new(&python).args(["-c", "import tensorflow"]).output();
        let has = has.is_ok_and(|o| o.status.success());
        if !has {
            println!("skipped: `{python}` cannot import tensorflow (set THALWEG_PYTHON to one that can)");
        }
        has.then_some(Self(python))
    }

    /// The median in ms of one of the script's measurements; `dense` is how often the dense ones are repeated.
    fn median(&self, what: &str, workers: &str, dense: &str) -> Result<f64> {
        let mut command = Command::new(&self.0);
        command.arg(root().join("benches/peers/dist/rival_tf_ps.py"));
        command.args(["--modes", "session", "--workers", workers, "--iters", dense]);
        // It looks for free ports before its processes take them, and now and then somebody is quicker.
        for _ in 0..TRIES {
            let output = command.output()?;
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success(), "{command:?} failed:\n{said}");
            let text = String::from_utf8(output.stdout)?;
            let mut lines = text.lines().map(|l| l.split(',').collect::<Vec<_>>());
            let fields = lines.find(|f| f.get(1) == Some(&what));
            if let Some(median) = fields.and_then(|f| f.get(4)?.parse().ok()) {
                return Ok(median);
            }
        }
        bail!("{command:?} told no {what}, {TRIES} times")
    }
}

fn dense() -> Result<()> {
    let values = (DENSE_BYTES / 4).to_string();
    let tensorflow = Tensorflow::find();
    let iperf = Iperf::find();
    let (mut shares, mut over_copy, mut over_iperf) = (Vec::new(), Vec::new(), Vec::new());
    println!("dense push and pull of {} MB, one worker, one server; ms, in turns", DENSE_BYTES / 1_000_000);
    println!(
        "| round | raw TCP | iperf3 | ours by TCP | share of raw | of iperf3 | plain copy | ours by shared memory | TensorFlow |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for round in 1..=DENSE_ROUNDS {
        let ours = |memory| {
            let variables = [("THALWEG_SHARED_MEMORY", memory)];
            let options = ["--workers", "1", "--servers", "1"];
            number(&launch_with(&variables, &options, "throughput", &[&values, "15"])?, "median")
        };
        let iperf = iperf.as_ref().map(Iperf::there_and_back).transpose()?;
        let (raw, tcp, copy, shared) = (raw_tcp()?, ours("off")?, plain_copy(), ours("on")?);
        let theirs = tensorflow.as_ref().filter(|_| round <= ROUNDS);
        let theirs = theirs.map(|t| t.median("dense_step", "1", "15")).transpose()?;
        shares.push(raw / tcp);
        over_copy.push(shared / copy);
        over_iperf.extend(iperf.map(|iperf| iperf / tcp));
        let share = 100.0 * raw / tcp;
        let of_iperf = iperf.map_or("–".to_owned(), |iperf| format!("{:.0} %", 100.0 * iperf / tcp));
        let [iperf, theirs] = [iperf, theirs].map(|ms| ms.map_or("–".to_owned(), |ms| format!("{ms:.1}")));
        println!(
            "| {round} | {raw:.1} | {iperf} | {tcp:.1} | {share:.0} % | {of_iperf} | {copy:.1} | {shared:.1} | {theirs} |"
        );
    }
    if let Some(share) = median(over_iperf) {
        println!("median: by TCP {:.0} % of iperf3", 100.0 * share);
    }
    let (share, over_copy) = (median(shares).unwrap_or(0.0), median(over_copy).unwrap_or(0.0));
    println!(
        "medians: by TCP {:.0} % of raw TCP; by shared memory {over_copy:.1} plain copies",
        100.0 * share
    );
    Ok(())
}

/// iperf3, where it is installed.
struct Iperf;

impl Iperf {
    fn find() -> Option<Self> {
        let has = Command::new("iperf3").arg("--version").output().is_ok_and(|o| o.status.success());
        if !has {
            println!("skipped: iperf3 is not installed");
        }
        has.then_some(Self)
    }

    /// The time in ms in which it would send so many bytes and get as many back, by its own rate over 20 times as many.
    fn there_and_back(&self) -> Result<f64> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
        let mut server = Command::new("iperf3");
        server.args(["-s", "-1", "-B", "127.0.0.1", "-p", &port]).stdout(Stdio::null());
        let mut server = server.spawn()?;
        let bytes = (20 * DENSE_BYTES).to_string();
        let mut client = Command::new("iperf3");
        client.args(["-c", "127.0.0.1", "-p", &port, "-n", &bytes, "-J"]);
        // The server needs a moment until it listens; asked for JSON, the client says so in it and calls that a success.
        let rate = |text: &str| {
            let told: serde_json::Value = serde_json::from_str(text).ok()?;
            told["end"]["sum_received"]["bits_per_second"].as_f64()
        };
        let until = Instant::now() + Duration::from_secs(5);
        let (text, rate) = loop {
            let text = String::from_utf8_lossy(&client.output()?.stdout).into_owned();
            let rate = rate(&text);
            if rate.is_some() || Instant::now() > until {
                break (text, rate);
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        let _ = server.kill();
        server.wait()?;
        let rate = rate.with_context(|| format!("iperf3 tells no rate: {text}"))?;
        Ok(2.0 * 8.0 * DENSE_BYTES as f64 / rate * 1e3)
    }
}

/// The median time in ms of copying so many bytes there and back in one process.
fn plain_copy() -> f64 {
    let (mut here, mut there) = (vec![1u8; DENSE_BYTES], vec![2u8; DENSE_BYTES]);
    let times = (0..11).map(|_| {
        let begin = Instant::now();
        there.copy_from_slice(&here);
        here.copy_from_slice(std::hint::black_box(&there));
        std::hint::black_box(&here);
        begin.elapsed().as_secs_f64() * 1e3
    });
    median(times.collect()).expect("there are eleven")
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
    median(times).context("nothing was measured")
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

/// Threads on the same weights beside one thread with plain numbers, on the rows of a file such as a9a.
fn hogwild() -> Result<()> {
    let Ok(file) = std::env::var("THALWEG_A9A") else {
        println!("skipped: set THALWEG_A9A to the file a9a, from the LIBSVM data page, for Hogwild");
        return Ok(());
    };
    println!(
        "Hogwild on {file}: two threads on the same weights, one, and plain numbers; 20 epochs, in turns"
    );
    for round in 1..=DENSE_ROUNDS {
        let output = Command::new(example("hogwild")).args([&file, "2", "20"]).output()?;
        let told = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "hogwild failed:\n{told}");
        println!("round {round}: {}", told.lines().collect::<Vec<_>>().join("; "));
    }
    Ok(())
}

/// What the delays example told.
#[derive(Default, Clone)]
struct Delayed {
    idle: Vec<f64>,    // percent
    seconds: Vec<f64>, // to the target
    clocks: Vec<f64>,  // to the target
}

/// Idle share, clocks and time to a target under injected delays, and the curves over the staleness as pictures.
fn delays() -> Result<()> {
    println!("eight workers under injected delays: idle share, clocks and seconds to 1 % of the first loss");
    println!("medians of {DELAY_ROUNDS} rounds in turns, each with delays and samples of its own");
    let syncs: Vec<&str> = STALENESS.into_iter().chain(["backup:1"]).collect();
    let mut found = vec![vec![Delayed::default(); MODELS.len()]; syncs.len()]; // by consistency and model
    for seed in 1..=DELAY_ROUNDS {
        for (sync, row) in syncs.iter().zip(&mut found) {
            for (model, told) in MODELS.iter().zip(row) {
                let options = ["--workers", "8", "--servers", "1", "--sync", sync];
                let text = launch(&options, "delays", &[model, "300", "0.5", &seed.to_string()])?;
                told.idle.push(100.0 * number(&text, "idle")?);
                // A target that was not reached counts as the largest number.
                told.seconds.push(number(&text, "target").unwrap_or(f64::INFINITY));
                told.clocks.push(number(&text, "clocks").unwrap_or(f64::INFINITY));
            }
        }
    }
    let middle = |values: &[f64]| median(values.to_vec()).expect("there were rounds");
    println!("| sync | {} |\n|---|---|---|---|", MODELS.join(" | "));
    for (sync, row) in syncs.iter().zip(&found) {
        let cell = |told: &Delayed| match (middle(&told.seconds), middle(&told.clocks)) {
            (seconds, clocks) if seconds.is_finite() => {
                format!("{:.0} %, {clocks:.0}, {seconds:.2} s", middle(&told.idle))
            }
            _ => format!("{:.0} %, not reached", middle(&told.idle)),
        };
        println!("| {sync} | {} |", row.iter().map(cell).collect::<Vec<_>>().join(" | "));
    }
    let bounds = &found[..STALENESS.len()];
    let curve = |model: usize, of: &dyn Fn(&Delayed) -> f64| {
        bounds.iter().enumerate().map(|(x, row)| (x as f64, of(&row[model]))).collect::<Vec<_>>()
    };
    let seconds = |(i, model): (usize, &&str)| Series {
        name: (*model).to_owned(),
        points: curve(i, &|told| middle(&told.seconds)),
    };
    picture("staleness", "seconds to the target", MODELS.iter().enumerate().map(seconds).collect())?;
    // Seconds are clocks times seconds per clock: the one rises with the staleness, the other falls.
    let pareto = MODELS.len() - 1;
    let first = &bounds[0][pareto];
    let (all, clocks) = (middle(&first.seconds), middle(&first.clocks));
    let per_clock = |told: &Delayed| middle(&told.seconds) / middle(&told.clocks);
    let parts: [(&str, Vec<(f64, f64)>); 3] = [
        ("clocks to the target", curve(pareto, &|told| middle(&told.clocks) / clocks)),
        ("seconds per clock", curve(pareto, &|told| per_clock(told) / per_clock(first))),
        ("seconds to the target, their product", curve(pareto, &|told| middle(&told.seconds) / all)),
    ];
    let series = parts.map(|(name, points)| Series { name: name.to_owned(), points });
    picture("staleness-parts", "Pareto delays, as shares of what bsp takes", series.into())
}

fn picture(name: &str, title: &str, series: Vec<Series>) -> Result<()> {
    let x_labels = STALENESS.map(str::to_owned).into();
    let plot = Plot { title: title.into(), x_labels, series, ..Plot::default() };
    let path = root().join("docs/pictures").join(name).with_extension("svg");
    std::fs::create_dir_all(path.parent().expect("a file lies in a folder"))?;
    std::fs::write(&path, plot.svg())?;
    println!("wrote docs/pictures/{name}.svg");
    Ok(())
}
