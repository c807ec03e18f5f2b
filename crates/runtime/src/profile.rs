//! Where the time of a run goes: a table against the machine's peaks, and a trace for a viewer.

use std::fmt::{self, Write as _};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use thalweg_core::{DType, View};
use thalweg_graph::Graph;
use thalweg_tensor::ops::Cost;
use thalweg_tensor::{Meta, Tensor};

use crate::error::RunError;
use crate::executor::Executor;
use crate::plan::{Plan, StepInfo};

/// The time of each step.
#[derive(Debug, Clone)]
pub struct Profile {
    /// Each step with its median time.
    pub steps: Vec<(StepInfo, Duration)>,
    /// One run as it was, steps of a batch at the same time.
    run: Vec<Event>,
    /// How many runs were timed.
    pub n_runs: usize,
    peak: Option<Peak>,
}

/// A step of one run.
#[derive(Debug, Clone)]
struct Event {
    step: usize,
    /// Counted from the beginning of the run.
    start: Duration,
    time: Duration,
    /// The thread, counted in the order in which they came.
    lane: usize,
}

/// What the machine reaches.
#[derive(Debug, Clone)]
pub struct Peak {
    /// Billions of f32 operations per second in a large matrix product.
    pub gflops: f64,
    /// The same of bf16, which some machines have units for.
    pub bf16_gflops: f64,
    /// Billions of bytes per second that come from and go to memory.
    pub gbytes: f64,
    /// The same for fewer bytes, which stay in a cache: from so many on, in rising order.
    pub cached: Vec<(u64, f64)>,
}

/// Elements of the vectors that bandwidths are measured with; the last is larger than caches are.
const LENGTHS: [usize; 7] = [1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24];

impl Peak {
    /// The same for all dtypes and sizes.
    pub fn new(gflops: f64, gbytes: f64) -> Self {
        Self { gflops, bf16_gflops: gflops, gbytes, cached: Vec::new() }
    }

    /// Measures with the pool's present number of threads; takes a few tenths of a second.
    pub fn measure() -> Self {
        let n = 1024;
        let gflops = |dtype: DType| {
            let name = dtype.to_string();
            let text = format!("a = input : {name}[{n}, {n}]; y = matmul a a; return y");
            2e-9 * (n * n * n) as f64 / quickest(&text, Tensor::full([n, n], 0.5, dtype), 5)
        };
        let gbytes = |len: usize| {
            let time = |op: &str| {
                let text = format!("x = input : f32[{len}]; y = {op} x; return y");
                quickest(&text, Tensor::full([len], 0.5, DType::F32), if len < 1 << 20 { 50 } else { 5 })
            };
            // A sum only reads, which may be quicker.
            let bytes = 4e-9 * len as f64;
            (2.0 * bytes / time("neg")).max(bytes / time("sum(axes:[0])"))
        };
        let mut cached: Vec<(u64, f64)> = LENGTHS.iter().map(|&len| (4 * len as u64, gbytes(len))).collect();
        let (_, gbytes) = cached.pop().expect("there are lengths");
        Self { gflops: gflops(DType::F32), bf16_gflops: gflops(DType::BF16), gbytes, cached }
    }

    /// What share of the peaks a step reaches that takes so many seconds.
    fn share(&self, info: &StepInfo, seconds: f64) -> f64 {
        let is_half = |m: &Meta| matches!(m.dtype, DType::BF16 | DType::F16);
        let gflops = if info.results.iter().any(is_half) { self.bf16_gflops } else { self.gflops };
        let Cost { flops, bytes } = info.cost;
        (flops as f64 / (seconds * 1e9 * gflops)).max(bytes as f64 / (seconds * 1e9 * self.bandwidth(bytes)))
    }

    /// What so many bytes may reach: at least what was seen of more.
    fn bandwidth(&self, bytes: u64) -> f64 {
        let first = self.cached.iter().rposition(|(from, _)| *from <= bytes).unwrap_or(0);
        // More than the largest that was measured in a cache, with those at its end, are in memory.
        let is_long = self.cached.last().is_none_or(|(from, _)| bytes >= 4 * from);
        let near = self.cached.iter().skip(if is_long { self.cached.len() } else { first });
        near.map(|(_, g)| *g).fold(self.gbytes, f64::max)
    }
}

/// Seconds of the quickest of some runs of the one step of a graph.
fn quickest(text: &str, x: Tensor, n_runs: usize) -> f64 {
    let graph: Graph = text.parse().expect("written above");
    let mut executor = Executor::new(Plan::new(&graph, &[]), Vec::new(), Vec::new());
    let inputs = [x];
    let times = (0..n_runs).filter_map(|_| steps_of_run(&mut executor, &inputs).ok());
    times.map(|steps| steps.iter().sum::<Duration>().as_secs_f64()).fold(f64::INFINITY, f64::min).max(1e-9)
}

/// The time of each step of one run, one after the other.
fn steps_of_run(executor: &mut Executor, inputs: &[Tensor]) -> Result<Vec<Duration>, RunError> {
    let views: Vec<View<'_>> = inputs.iter().map(Tensor::view).collect();
    let run = executor.hold(&views)?;
    let timed = |i: usize| {
        let start = Instant::now();
        run.step(i)?;
        Ok(start.elapsed())
    };
    (0..run.plan().n_steps()).map(timed).collect()
}

impl Profile {
    pub(crate) fn measure(
        executor: &mut Executor,
        inputs: &[Tensor],
        n_runs: usize,
    ) -> Result<Profile, RunError> {
        let n = executor.plan().n_steps();
        let mut times: Vec<Vec<Duration>> = vec![Vec::new(); n];
        for _ in 0..n_runs.max(1) {
            let run = steps_of_run(executor, inputs)?;
            times.iter_mut().zip(run).for_each(|(list, time)| list.push(time));
        }
        let median = |mut list: Vec<Duration>| {
            list.sort_unstable();
            list[list.len() / 2]
        };
        let steps = times.into_iter().enumerate();
        let steps = steps.map(|(i, list)| (executor.plan().step_info(i), median(list))).collect();
        Ok(Profile { steps, run: one_run(executor, inputs)?, n_runs: n_runs.max(1), peak: None })
    }

    /// With the machine's peaks, so that the table shows what share of them each step reaches.
    pub fn against(mut self, peak: Peak) -> Self {
        self.peak = Some(peak);
        self
    }

    /// The sum of the medians.
    pub fn total(&self) -> Duration {
        self.steps.iter().map(|(_, t)| *t).sum()
    }

    /// One run as JSON that Chrome's and Perfetto's trace viewers open: when each step began, how long it took, and a
    /// lane for each thread that a step began on.
    pub fn chrome_trace(&self) -> String {
        let events = self.run.iter().map(|event| {
            let info = &self.steps[event.step].0;
            format!(
                "{{\"name\":{},\"ph\":\"X\",\"pid\":1,\"tid\":{},\"ts\":{:.3},\"dur\":{:.3},\
                 \"args\":{{\"step\":{},\"flops\":{},\"bytes\":{},\"lines\":{}}}}}",
                json(&info.name()),
                event.lane + 1,
                event.start.as_secs_f64() * 1e6,
                event.time.as_secs_f64() * 1e6,
                event.step,
                info.cost.flops,
                info.cost.bytes,
                json(&info.source_lines().join(" ")),
            )
        });
        format!("{{\"traceEvents\":[{}]}}", events.collect::<Vec<_>>().join(",\n"))
    }
}

/// One run with its times, in the order in which steps began.
fn one_run(executor: &mut Executor, inputs: &[Tensor]) -> Result<Vec<Event>, RunError> {
    let views: Vec<View<'_>> = inputs.iter().map(Tensor::view).collect();
    let run = executor.hold(&views)?;
    let seen = Mutex::new(Vec::with_capacity(run.plan().n_steps()));
    let began = Instant::now();
    run.timed(&|step, start, end| {
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.push((step, start - began, end - start, std::thread::current().id()));
    })?;
    drop(run);
    let mut seen = seen.into_inner().unwrap_or_else(PoisonError::into_inner);
    seen.sort_by_key(|&(step, start, ..)| (start, step));
    let mut threads = Vec::new();
    let events = seen.into_iter().map(|(step, start, time, thread)| {
        let lane = threads.iter().position(|t| *t == thread).unwrap_or_else(|| {
            threads.push(thread);
            threads.len() - 1
        });
        Event { step, start, time, lane }
    });
    Ok(events.collect())
}

/// Text as JSON writes it.
fn json(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c < ' ' => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

impl fmt::Display for Profile {
    /// The slowest steps first.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.total().as_secs_f64();
        write!(f, "{} steps, {:.3} ms, median of {} runs", self.steps.len(), total * 1e3, self.n_runs)?;
        if let Some(p) = &self.peak {
            write!(f, "; peak {:.0} GFLOP/s, {:.1} GB/s", p.gflops, p.gbytes)?;
            let cached = p.cached.iter().map(|(_, g)| *g).fold(p.gbytes, f64::max);
            write!(f, "; {:.0} GFLOP/s of bf16, {cached:.1} GB/s in cache", p.bf16_gflops)?;
        }
        writeln!(f)?;
        writeln!(f, "{:>4} {:>9} {:>6} {:>9} {:>8}  step", "", "ms", "share", "GFLOP/s", "GB/s")?;
        let mut order: Vec<usize> = (0..self.steps.len()).collect();
        order.sort_by_key(|&i| std::cmp::Reverse(self.steps[i].1));
        for i in order {
            let (info, time) = &self.steps[i];
            let seconds = time.as_secs_f64().max(1e-9);
            let (gflops, gbytes) =
                (info.cost.flops as f64 / seconds / 1e9, info.cost.bytes as f64 / seconds / 1e9);
            write!(
                f,
                "{i:>4} {:>9.4} {:>5.1}% {gflops:>9.1} {gbytes:>8.1}  {}",
                seconds * 1e3,
                100.0 * seconds / total.max(1e-12),
                info.name(),
            )?;
            if let Some(p) = &self.peak {
                write!(f, " [{:.0}% of peak]", 100.0 * p.share(info, seconds))?;
            }
            let results = info.results.iter().map(|m| m.to_string()).collect::<Vec<_>>().join(", ");
            writeln!(f, "  {results}  {}", info.source_lines().join(" "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(dtype: DType, flops: u64, bytes: u64) -> StepInfo {
        let results = vec![Meta::new(dtype, [1])];
        StepInfo {
            ops: Vec::new(),
            inside: Vec::new(),
            cost: Cost { flops, bytes },
            results,
            lines: Vec::new(),
        }
    }

    #[test]
    fn a_step_is_measured_against_the_peaks_of_its_size_and_dtype() {
        let peak = Peak {
            gflops: 100.0,
            bf16_gflops: 1000.0,
            gbytes: 10.0,
            cached: vec![(1 << 10, 400.0), (1 << 20, 50.0)],
        };
        let share = |dtype, flops, bytes, seconds: f64| {
            (100.0 * peak.share(&step(dtype, flops, bytes), seconds)).round()
        };
        assert_eq!(share(DType::F32, 100_000_000, 0, 1e-3), 100.0);
        assert_eq!(share(DType::BF16, 100_000_000, 0, 1e-3), 10.0);
        // 8 KiB within 82 ns are 100 GB/s: ten times what memory gives, a quarter of what the nearest cache does.
        assert_eq!(share(DType::F32, 0, 8192, 81.92e-9), 25.0);
        assert_eq!(share(DType::F32, 0, 10_000_000, 1e-3), 100.0);
        assert_eq!(share(DType::F32, 0, 2_000_000, 40e-6), 100.0);
    }

    #[test]
    fn every_peak_is_measured() {
        let peak = Peak::measure();
        let all = [peak.gflops, peak.bf16_gflops, peak.gbytes].into_iter();
        let all: Vec<f64> = all.chain(peak.cached.iter().map(|(_, g)| *g)).collect();
        assert!(
            all.len() == 3 + LENGTHS.len() - 1 && all.iter().all(|g| g.is_finite() && *g > 0.0),
            "{peak:?}"
        );
        assert!(peak.cached.is_sorted_by_key(|(bytes, _)| *bytes));
    }
}
