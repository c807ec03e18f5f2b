//! The promises hold under everything the simulator does, and its checks notice when a mechanism is
//! missing. `cargo xtask simulate` plays more.

use thalweg_cluster::Mechanisms;
use thalweg_cluster::simulate::{Schedule, minimise, run};

#[test]
fn no_promise_is_broken_in_a_thousand_schedules() {
    let mut total = [0; 3];
    for seed in 0..1000 {
        let schedule = Schedule::new(seed);
        let outcome = run(&schedule, Mechanisms::default()).unwrap_or_else(|violation| {
            panic!("seed {seed}: {violation}\n{}", minimise(&schedule, Mechanisms::default()))
        });
        total.iter_mut().zip(outcome.failovers).for_each(|(t, n)| *t += n);
    }
    assert!(total.iter().all(|n| *n > 0), "heads, restores, ways back to a snapshot: {total:?}");
}

#[test]
fn the_same_schedule_gives_the_same_run() {
    for seed in [3, 14, 159] {
        let [a, b] = [(); 2].map(|()| run(&Schedule::new(seed), Mechanisms::default()).unwrap());
        assert_eq!((a.events, a.tested), (b.events, b.tested), "seed {seed}");
    }
}

/// Plays schedules without a mechanism until a check notices, and says which.
fn noticed(missing: &str, mechanisms: Mechanisms, invariants: &[u32]) {
    noticed_beside(missing, mechanisms, invariants, &[]);
}

/// The same, where these are broken too but say nothing of what is looked for.
fn noticed_beside(missing: &str, mechanisms: Mechanisms, invariants: &[u32], others: &[u32]) {
    const SEEDS: u64 = 20_000;
    for seed in 0..SEEDS {
        let schedule = Schedule::new(seed);
        let Err(violation) = run(&schedule, mechanisms) else { continue };
        if others.contains(&violation.invariant) {
            continue;
        }
        let small = minimise(&schedule, mechanisms);
        let violation_of_small = run(&small, mechanisms).expect_err("the smallest one fails too");
        println!("without {missing}: seed {seed}: {violation}\nsmallest: {violation_of_small}\n{small}");
        assert!(small.faults.len() <= schedule.faults.len());
        assert!(invariants.contains(&violation.invariant), "{violation}");
        return;
    }
    panic!("nothing noticed in {SEEDS} schedules that {missing} was missing");
}

#[test]
fn missing_dedup_is_noticed() {
    noticed("dedup", Mechanisms { dedup: false, ..Default::default() }, &[1]);
}

#[test]
fn missing_fencing_is_noticed() {
    noticed("fencing", Mechanisms { fencing: false, ..Default::default() }, &[2, 3, 5, 8, 13, 17]);
}

#[test]
fn a_missing_lease_is_noticed() {
    noticed("leases", Mechanisms { lease: false, ..Default::default() }, &[2, 17]);
}

#[test]
fn a_missing_staleness_bound_is_noticed() {
    noticed("the staleness bound", Mechanisms { staleness_bound: false, ..Default::default() }, &[4, 8]);
}

#[test]
fn missing_replication_is_noticed() {
    // The log for a replica that nobody waits for also grows too long; and a shard that changes hands waits without end for a
    // record to leave the log that counts as acknowledged and never was.
    let missing = Mechanisms { replication: false, ..Default::default() };
    noticed_beside("replication", missing, &[2, 6, 8], &[5, 16]);
}

#[test]
fn a_replica_that_is_promoted_too_early_is_noticed() {
    noticed("full sync", Mechanisms { full_sync: false, ..Default::default() }, &[1, 2, 5, 6, 8]);
}

#[test]
fn a_sum_in_order_of_arrival_is_noticed() {
    noticed("the order of slots", Mechanisms { slot_order: false, ..Default::default() }, &[8]);
}

#[test]
fn a_deposed_coordinator_that_stores_all_the_same_is_noticed() {
    // Servers that have adopted the later of two views with other members wait for a next one that never comes.
    let missing = Mechanisms { store_fencing: false, ..Default::default() };
    noticed_beside("fencing in the store", missing, &[3], &[5]);
}

#[test]
fn a_push_too_late_for_its_round_that_counts_in_another_is_noticed() {
    noticed("dedup in rounds", Mechanisms { round_dedup: false, ..Default::default() }, &[1, 2, 7, 8]);
}

/// What a newcomer was once sent anew every time that it took longer than a retry: it never caught up while training went
/// on, and whole states piled up on the way to it.
#[test]
fn a_state_that_is_given_up_for_a_newer_one_while_it_is_on_its_way_is_noticed() {
    noticed("patience with a state on its way", Mechanisms { patience: false, ..Default::default() }, &[16]);
}

#[test]
fn a_parked_pull_that_is_forgotten_is_noticed() {
    noticed("waking of parked pulls", Mechanisms { waking: false, ..Default::default() }, &[5]);
}

#[test]
fn a_head_that_is_followed_before_all_have_what_it_has_is_noticed() {
    noticed("draining", Mechanisms { draining: false, ..Default::default() }, &[1, 2, 5, 6, 8]);
}

#[test]
fn what_is_printed_can_be_played_again() {
    let mechanisms = Mechanisms { dedup: false, ..Default::default() };
    let failing = (0..).map(Schedule::new).find(|s| run(s, mechanisms).is_err()).unwrap();
    let small = minimise(&failing, mechanisms);
    let again: Schedule = small.to_string().parse().unwrap();
    assert_eq!(run(&again, mechanisms).unwrap_err(), run(&small, mechanisms).unwrap_err());
}
