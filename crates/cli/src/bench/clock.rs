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

/// Seconds of CPU time of this process, all its threads together.
#[cfg(target_os = "linux")]
fn cpu_time() -> f64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
}

/// Other systems are not asked.
#[cfg(not(target_os = "linux"))]
fn cpu_time() -> f64 {
    0.0
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #[test]
    fn cpu_time_is_finer_than_a_tick() {
        let start = super::cpu_time();
        let mut now = start;
        while now <= start {
            now = super::cpu_time();
        }
        assert!(now - start < 5e-3, "{} s", now - start);
    }
}
