//! Where the time of a run goes: a table against the machine's peaks, and a trace for a viewer.

use std::fmt::{self, Write as _};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use thalweg_core::View;
use thalweg_tensor::Tensor;

use crate::error::RunError;
use crate::executor::Executor;
use crate::plan::StepInfo;

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

/// What the machine reaches, measured.
#[derive(Debug, Clone, Copy)]
pub struct Peak {
    /// Billions of f32 operations per second in a large matrix product.
    pub gflops: f64,
    /// Billions of bytes per second read and written in a long copy.
    pub gbytes: f64,
}

impl Peak {
    /// Measures both with the pool's present number of threads; takes a few tenths of a second.
    pub fn measure() -> Self {
        let best = |mut f: Box<dyn FnMut() -> Tensor>| {
            let time = |f: &mut dyn FnMut() -> Tensor| {
                let start = Instant::now();
                std::hint::black_box(f());
                start.elapsed().as_secs_f64()
            };
            (0..5).map(|_| time(&mut *f)).fold(f64::INFINITY, f64::min)
        };
        let n = 1024;
        let a = Tensor::full([n, n], 0.5, thalweg_core::DType::F32);
        let product = best(Box::new(move || a.matmul(&a)));
        let x = Tensor::full([1 << 24], 0.5, thalweg_core::DType::F32);
        let len = x.numel();
        let copy = best(Box::new(move || -&x));
        Self { gflops: 2e-9 * (n * n * n) as f64 / product, gbytes: 8e-9 * len as f64 / copy }
    }
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
            let views: Vec<View<'_>> = inputs.iter().map(Tensor::view).collect();
            executor.begin(&views)?;
            let result: Result<(), RunError> = (0..n).try_for_each(|i| {
                let start = Instant::now();
                executor.step(i)?;
                times[i].push(start.elapsed());
                Ok(())
            });
            executor.end();
            result?;
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
    executor.begin(&views)?;
    let seen = Mutex::new(Vec::with_capacity(executor.plan().n_steps()));
    let began = Instant::now();
    let result = executor.timed(&|step, start, end| {
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.push((step, start - began, end - start, std::thread::current().id()));
    });
    executor.end();
    result?;
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
        match self.peak {
            Some(p) => writeln!(f, "; peak {:.0} GFLOP/s, {:.1} GB/s", p.gflops, p.gbytes)?,
            None => writeln!(f)?,
        }
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
            if let Some(p) = self.peak {
                write!(f, " [{:.0}% of peak]", 100.0 * (gflops / p.gflops).max(gbytes / p.gbytes))?;
            }
            let results = info.results.iter().map(|m| m.to_string()).collect::<Vec<_>>().join(", ");
            writeln!(f, "  {results}  {}", info.source_lines().join(" "))?;
        }
        Ok(())
    }
}
