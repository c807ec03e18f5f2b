//! The one thread pool.

/// How many threads a kernel may use, the caller included.
pub fn threads() -> usize {
    1
}

/// Runs `task(0)`, …, `task(n_tasks - 1)`, each exactly once, and returns when all are done.
pub fn parallel(n_tasks: usize, task: &(dyn Fn(usize) + Sync)) {
    (0..n_tasks).for_each(task);
}
