//! `cargo xtask simulate`: the cluster under everything that can go wrong.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use thalweg_cluster::simulate::{Outcome, Schedule, minimise, run};

use crate::root;

/// Plays the schedules of the seeds from `first` on: so many of them, or without end.
pub fn seeds(first: u64, n: Option<u64>) -> Result<()> {
    let start = Instant::now();
    let next = AtomicU64::new(first);
    let end = n.map_or(u64::MAX, |n| first.saturating_add(n));
    let worker = || -> Result<Outcome, u64> {
        let mut total = Outcome::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                return Ok(total);
            }
            let played = run(&Schedule::new(seed), Default::default()).map_err(|_| {
                next.store(end, Ordering::Relaxed);
                seed
            })?;
            add(&mut total, played);
            if n.is_none() && seed.is_multiple_of(10_000) && seed > first {
                println!("{} schedules, {:.0} s", seed - first, start.elapsed().as_secs_f64());
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let results: Vec<_> = std::thread::scope(|scope| {
        let started: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        started.into_iter().map(|t| t.join().expect("a simulation panicked; see above")).collect()
    });
    let mut total = Outcome::default();
    for result in results {
        match result {
            Ok(outcome) => add(&mut total, outcome),
            Err(seed) => return one(seed),
        }
    }
    let tested: Vec<_> = total.tested.iter().map(|(i, n)| format!("{i}: {n}")).collect();
    let [failovers, restores, back] = total.failovers;
    println!(
        "{} schedules, {} events, {failovers} changes of a head, {restores} restores, {back} ways back to a snapshot, {:.0} s",
        end - first,
        total.events,
        start.elapsed().as_secs_f64()
    );
    println!("checks by invariant: {}", tested.join(", "));
    Ok(())
}

fn add(total: &mut Outcome, played: Outcome) {
    total.events += played.events;
    total.failovers.iter_mut().zip(played.failovers).for_each(|(t, n)| *t += n);
    played.tested.into_iter().for_each(|(i, n)| *total.tested.entry(i).or_default() += n);
}

/// Plays one schedule; when it breaks a promise, finds and prints the smallest that does.
pub fn one(seed: u64) -> Result<()> {
    let schedule = Schedule::new(seed);
    match run(&schedule, Default::default()) {
        Ok(outcome) => {
            println!("ok after {} events\n{schedule}", outcome.events);
            Ok(())
        }
        Err(violation) => {
            let small = minimise(&schedule, Default::default());
            let what = run(&small, Default::default()).expect_err("the smallest that fails");
            let folder = root().join("target/simulate");
            std::fs::create_dir_all(&folder)?;
            let file = folder.join(format!("seed-{seed}.txt"));
            std::fs::write(&file, small.to_string())?;
            bail!(
                "{violation}\n{schedule}\nsmallest: {what}\n{small}\nagain: cargo xtask simulate --seed {seed}\n\
                 the smallest again: cargo xtask simulate --replay {}",
                file.display()
            )
        }
    }
}

/// Plays a schedule that was printed.
pub fn replay(file: &str) -> Result<()> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
    let schedule: Schedule = text.parse()?;
    match run(&schedule, Default::default()) {
        Ok(outcome) => println!("ok after {} events\n{schedule}", outcome.events),
        Err(violation) => bail!("{violation}\n{schedule}"),
    }
    Ok(())
}
