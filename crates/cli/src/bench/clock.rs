//! Timing a closure as the rivals' scripts do: warm up, then as many runs as a time budget allows.

use std::time::{Duration, Instant};

/// Milliseconds per call.
pub struct Timing {
    pub wall_median: f64,
    pub wall_min: f64,
    pub cpu_median: f64,
    pub cpu_min: f64,
    pub n: usize,
}

const BUDGET: Duration = Duration::from_secs(1);
const MIN_RUNS: usize = 11;
const MAX_RUNS: usize = 300;

/// Times `f`. `inner` calls are made between two readings of the clock, for work far below a
/// microsecond, and the time is divided by it.
pub fn time<R>(inner: usize, mut f: impl FnMut() -> R) -> Timing {
    for _ in 0..5 * inner {
        std::hint::black_box(f());
    }
    let (mut wall, mut cpu) = (Vec::new(), Vec::new());
    let start = Instant::now();
    while wall.len() < MAX_RUNS && (start.elapsed() < BUDGET || wall.len() < MIN_RUNS) {
        let (c, t) = (cpu_time(), Instant::now());
        for _ in 0..inner {
            std::hint::black_box(f());
        }
        wall.push(t.elapsed().as_secs_f64() * 1e3 / inner as f64);
        cpu.push((cpu_time() - c) * 1e3 / inner as f64);
    }
    wall.sort_by(f64::total_cmp);
    cpu.sort_by(f64::total_cmp);
    let n = wall.len();
    Timing { wall_median: wall[n / 2], wall_min: wall[0], cpu_median: cpu[n / 2], cpu_min: cpu[0], n }
}

/// How many times as long `slow` takes as `quick`, by medians. They are called in turns, so that both meet the same noise.
pub fn ratio<A, B>(mut slow: impl FnMut() -> A, mut quick: impl FnMut() -> B) -> f64 {
    let mut round = || {
        let start = Instant::now();
        std::hint::black_box(slow());
        let middle = Instant::now();
        std::hint::black_box(quick());
        [middle - start, middle.elapsed()]
    };
    for _ in 0..5 {
        round();
    }
    let (mut times, start) = ([Vec::new(), Vec::new()], Instant::now());
    while times[0].len() < MAX_RUNS && (start.elapsed() < 2 * BUDGET || times[0].len() < MIN_RUNS) {
        times.iter_mut().zip(round()).for_each(|(all, time)| all.push(time.as_secs_f64()));
    }
    let [slow, quick] = times.map(|mut all| {
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    });
    slow / quick
}

/// Seconds of CPU time of this process; 0 where the system does not tell.
fn cpu_time() -> f64 {
    // Fields 14 and 15 of /proc/self/stat, in ticks of 10 ms on every Linux that matters here.
    let ticks = || {
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        let after_name = stat.rsplit_once(')')?.1;
        let fields: Vec<&str> = after_name.split_whitespace().collect();
        Some(fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?)
    };
    ticks().map_or(0.0, |t| t / 100.0)
}
