//! The one thread pool of the process: fork-join over numbered tasks.
//!
//! Needs nothing but `std`. Keeps its workers for the life of the process: a worker spins for some tens of
//! microseconds after a job, since a training step forks again at once, and then parks. Long spins
//! were tried and lost: on a busy machine they starve the thread that has the work.
//!
//! One job runs at a time. A call made while the pool is taken, be it from inside a task or from
//! another thread, runs its tasks in the caller; it never waits for the other job.
//!
//! The protocol is one word, `Pool::state`: `epoch << 32 | OPEN | WAITING | workers inside`. A worker
//! enters by adding one while `OPEN` is set, so a worker that wakes too late cannot touch a job that
//! has ended, and the caller waits only for workers that did enter.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::thread::{self, Thread};

/// Threads beyond this many are never started.
const MAX_THREADS: usize = 256;

/// Pause instructions before parking: 20 to 60 µs on current x86 cores. A worker that parks while another
/// finishes its last task costs the next job a wake-up, so it waits for about the length of a small task.
const SPINS: u32 = 1500;

const OPEN: u64 = 1 << 31;
const WAITING: u64 = 1 << 30;
const INSIDE: u64 = WAITING - 1;

/// How many threads a kernel may use, the caller included: `THALWEG_THREADS` or the number of cores,
/// until [`set_threads`] says otherwise.
pub fn threads() -> usize {
    match THREADS.load(Relaxed) {
        0 => init_threads(),
        n => n,
    }
}

/// Sets [`threads`] for the jobs that start from now on; 0 counts as 1. Results of kernels do not
/// depend on it.
pub fn set_threads(n: usize) {
    THREADS.store(n.clamp(1, MAX_THREADS), Relaxed);
}

/// Runs `task(0)`, …, `task(n_tasks - 1)`, each exactly once, and returns when all are done.
///
/// Tasks are claimed in order, by the caller and by the workers. If a task panics, tasks not yet
/// claimed are dropped and the panic goes on in the caller once the running ones have ended.
pub fn parallel(n_tasks: usize, task: &(dyn Fn(usize) + Sync)) {
    if n_tasks <= 1 || threads() == 1 || POOL.busy.swap(true, Acquire) {
        (0..n_tasks).for_each(task);
        return;
    }
    let job = Job { task, n_tasks, next: AtomicUsize::new(0), panic: Mutex::new(None) };
    POOL.run(&job, (threads() - 1).min(n_tasks - 1));
    POOL.busy.store(false, Release);
    if let Some(panic) = job.panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
        resume_unwind(panic);
    }
}

/// Cuts `0..len` into pieces of `grain` (the last may be shorter): how many pieces there are. The cut
/// depends on `len` alone, so a sum made piece by piece is the same for any number of threads.
pub fn split(len: usize, grain: usize) -> usize {
    len.div_ceil(grain.max(1))
}

/// The range of piece `piece` of the cut that [`split`] counts.
pub fn piece(len: usize, grain: usize, piece: usize) -> std::ops::Range<usize> {
    let grain = grain.max(1);
    (piece * grain).min(len)..((piece + 1) * grain).min(len)
}

/// 0: not yet asked for.
static THREADS: AtomicUsize = AtomicUsize::new(0);

static POOL: Pool = Pool {
    busy: AtomicBool::new(false),
    state: AtomicU64::new(0),
    job: AtomicPtr::new(ptr::null_mut()),
    n_workers: AtomicUsize::new(0),
    workers: [const { Worker { thread: OnceLock::new(), parked: AtomicBool::new(false) } }; MAX_THREADS - 1],
    done_lock: Mutex::new(()),
    done: Condvar::new(),
};

struct Pool {
    /// Taken by the one caller whose job is running.
    busy: AtomicBool,
    state: AtomicU64,
    /// Valid while `OPEN` is set or a worker is inside.
    job: AtomicPtr<Job<'static>>,
    n_workers: AtomicUsize,
    workers: [Worker; MAX_THREADS - 1],
    done_lock: Mutex<()>,
    done: Condvar,
}

struct Worker {
    thread: OnceLock<Thread>,
    parked: AtomicBool,
}

struct Job<'a> {
    task: &'a (dyn Fn(usize) + Sync),
    n_tasks: usize,
    next: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Job<'_> {
    /// Claims and runs tasks until none is left. Does not unwind.
    fn work(&self) {
        let result = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let task_idx = self.next.fetch_add(1, Relaxed);
                if task_idx >= self.n_tasks {
                    return;
                }
                (self.task)(task_idx);
            }
        }));
        if let Err(panic) = result {
            self.next.store(self.n_tasks, Relaxed);
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
        }
    }
}

impl Pool {
    /// Runs `job` with up to `n_helpers` workers. The caller holds `busy`. Does not unwind between
    /// opening and closing the job, so `job` outlives every access by a worker.
    fn run(&'static self, job: &Job<'_>, n_helpers: usize) {
        self.start_workers(n_helpers);
        self.job.store(ptr::from_ref(job).cast_mut().cast(), Relaxed);
        // Nobody is inside and nobody enters a closed job, so this thread alone writes the state now.
        let epoch = (self.state.load(Relaxed) >> 32).wrapping_add(1) << 32;
        self.state.store(epoch | OPEN, SeqCst);
        for worker in &self.workers[..n_helpers.min(self.n_workers.load(Relaxed))] {
            // SeqCst on both sides: either the worker sees the new state or we see it parked.
            if worker.parked.load(SeqCst)
                && worker.parked.swap(false, SeqCst)
                && let Some(thread) = worker.thread.get()
            {
                thread.unpark();
            }
        }
        job.work();
        if self.state.fetch_and(!OPEN, Acquire) & INSIDE != 0 {
            self.wait_until_empty();
        }
    }

    fn wait_until_empty(&self) {
        for _ in 0..SPINS {
            if self.state.load(Acquire) & INSIDE == 0 {
                return;
            }
            std::hint::spin_loop();
        }
        let mut guard = self.done_lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.state.fetch_or(WAITING, SeqCst);
        while self.state.load(Acquire) & INSIDE != 0 {
            guard = self.done.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Starts workers until there are `n` of them, or as many as the system grants. The caller holds
    /// `busy`.
    fn start_workers(&'static self, n: usize) {
        for worker_idx in self.n_workers.load(Relaxed)..n {
            let run = move || self.serve(worker_idx);
            let Ok(handle) = thread::Builder::new().name(format!("thalweg-{worker_idx}")).spawn(run) else {
                return;
            };
            self.workers[worker_idx].thread.get_or_init(|| handle.thread().clone());
            self.n_workers.store(worker_idx + 1, Relaxed);
        }
    }

    /// The life of a worker.
    fn serve(&self, worker_idx: usize) {
        let mut seen_epoch = 0;
        loop {
            let state = self.wait_for_job(worker_idx, seen_epoch);
            seen_epoch = state >> 32;
            if !self.enter(seen_epoch) {
                continue;
            }
            // SAFETY: this thread is counted in `state`, so the caller, in `run`, does not return
            // before the `fetch_sub` below, and its job is alive. `enter` acquired the store of `job`.
            let job = unsafe { &*self.job.load(Relaxed) };
            job.work();
            if self.state.fetch_sub(1, SeqCst) & (INSIDE | WAITING) == WAITING | 1 {
                // The lock orders this notice after the caller's check and before its wait ends.
                drop(self.done_lock.lock().unwrap_or_else(PoisonError::into_inner));
                self.done.notify_all();
            }
        }
    }

    /// Counts this thread in, unless the job of `epoch` has closed.
    fn enter(&self, epoch: u64) -> bool {
        let is_open = |state: u64| state >> 32 == epoch && state & OPEN != 0;
        self.state.fetch_update(Acquire, Relaxed, |state| is_open(state).then(|| state + 1)).is_ok()
    }

    /// Returns a state that was open with an epoch other than `seen_epoch`.
    fn wait_for_job(&self, worker_idx: usize, seen_epoch: u64) -> u64 {
        let open_state = |order| {
            let state = self.state.load(order);
            (state & OPEN != 0 && state >> 32 != seen_epoch && worker_idx + 1 < threads()).then_some(state)
        };
        for _ in 0..SPINS {
            if let Some(state) = open_state(Relaxed) {
                return state;
            }
            std::hint::spin_loop();
        }
        let worker = &self.workers[worker_idx];
        loop {
            worker.parked.store(true, SeqCst);
            if let Some(state) = open_state(SeqCst) {
                worker.parked.store(false, Relaxed);
                return state;
            }
            thread::park();
        }
    }
}

#[cold]
fn init_threads() -> usize {
    let cores = || thread::available_parallelism().map_or(1, usize::from);
    let asked = std::env::var("THALWEG_THREADS").ok().and_then(|text| text.trim().parse().ok());
    let n = asked.unwrap_or_else(cores).clamp(1, MAX_THREADS);
    // A `set_threads` that came in between wins.
    THREADS.compare_exchange(0, n, Relaxed, Relaxed).map_or_else(|set| set, |_| n)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(n: usize) -> Vec<AtomicUsize> {
        (0..n).map(|_| AtomicUsize::new(0)).collect()
    }

    fn all_are(counts: &[AtomicUsize], want: usize) -> bool {
        counts.iter().all(|count| count.load(Relaxed) == want)
    }

    #[test]
    fn each_task_runs_once_for_any_number_of_threads() {
        for n_threads in [1, 2, 3, 8, 2] {
            set_threads(n_threads);
            for n_tasks in [0, 1, 2, 3, 17, 1000] {
                let ran = counts(n_tasks);
                for _ in 0..20 {
                    parallel(n_tasks, &|i| {
                        ran[i].fetch_add(1, Relaxed);
                    });
                }
                assert!(all_are(&ran, 20), "{n_threads} threads, {n_tasks} tasks");
            }
        }
    }

    #[test]
    fn nested_calls_run_every_task() {
        set_threads(2);
        let ran = counts(8 * 8);
        parallel(8, &|i| {
            parallel(8, &|j| {
                ran[i * 8 + j].fetch_add(1, Relaxed);
            });
        });
        assert!(all_are(&ran, 1));
    }

    #[test]
    fn concurrent_callers_do_not_disturb_each_other() {
        set_threads(3);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for n_tasks in 0..300 {
                        let ran = counts(n_tasks);
                        parallel(n_tasks, &|i| {
                            ran[i].fetch_add(1, Relaxed);
                        });
                        assert!(all_are(&ran, 1));
                    }
                });
            }
        });
    }

    #[test]
    fn panic_reaches_the_caller_and_the_pool_lives_on() {
        set_threads(2);
        for bad in [0, 5, 99] {
            let result = catch_unwind(|| parallel(100, &|i| assert_ne!(i, bad, "task {bad}")));
            assert!(result.is_err());
            let ran = counts(100);
            parallel(100, &|i| {
                ran[i].fetch_add(1, Relaxed);
            });
            assert!(all_are(&ran, 1));
        }
    }

    #[test]
    fn pieces_cover_the_range() {
        for (len, grain) in [(0, 4), (1, 4), (8, 4), (9, 4), (5, 0)] {
            let joined: Vec<usize> = (0..split(len, grain)).flat_map(|i| piece(len, grain, i)).collect();
            assert_eq!(joined, (0..len).collect::<Vec<_>>());
        }
    }
}
