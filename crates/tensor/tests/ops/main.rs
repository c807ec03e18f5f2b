//! Every op of the list goes through the same table of generated tests; the list decides what is
//! tested, not this file. Draws are seeded, and a failure names op, attributes and seed.

mod draw;
mod table;

use thalweg_tensor::ops;

/// One call per op and kind of check, so that all failures of a run are reported together.
fn for_each_sample(check: impl Fn(&ops::sample::Sample, u64) -> Result<(), String>) {
    let only = std::env::var("THALWEG_OP").ok();
    let mut failures = Vec::new();
    let mut n = 0;
    for (name, samples) in ops::samples() {
        if only.as_deref().is_some_and(|o| o != name) {
            continue;
        }
        assert!(!samples.is_empty(), "{name} has no samples: nothing about it would be tested");
        for (i, sample) in samples.iter().enumerate() {
            let seed = 1000 + i as u64;
            n += 1;
            let run = std::panic::AssertUnwindSafe(|| check(sample, seed));
            let outcome = std::panic::catch_unwind(run).unwrap_or_else(|p| Err(panic_message(&*p)));
            if let Err(why) = outcome {
                failures.push(format!("{name} {:?}, sample {i}, seed {seed}: {why}", sample.op));
            }
        }
    }
    assert!(n > 0);
    assert!(failures.is_empty(), "{} of {n} calls failed:\n{}", failures.len(), failures.join("\n"));
}

fn panic_message(p: &(dyn std::any::Any + Send)) -> String {
    p.downcast_ref::<String>()
        .cloned()
        .or_else(|| p.downcast_ref::<&str>().map(|s| (*s).to_owned()))
        .unwrap_or_default()
}

#[test]
fn results_have_the_inferred_dtype_and_shape() {
    for_each_sample(table::inferred);
}

#[test]
fn fast_kernels_agree_with_the_reference() {
    for_each_sample(table::fast_against_reference);
}

#[test]
fn kernels_that_report_pieces_report_each_element_once() {
    for_each_sample(table::ready_once);
}

#[test]
fn kernels_that_pass_planes_pass_each_whole_and_once() {
    for_each_sample(table::planes_once);
}

#[test]
fn ops_on_planes_do_each_plane_by_itself() {
    for_each_sample(table::plane_by_plane);
}

#[test]
fn ops_on_rows_do_each_row_by_itself() {
    for_each_sample(table::row_by_row);
}

#[test]
fn layouts_do_not_change_results() {
    for_each_sample(table::layouts);
}

#[test]
fn half_precision_agrees_with_single() {
    for_each_sample(table::half_precision);
}

#[test]
fn gradients_agree_with_finite_differences() {
    for_each_sample(table::gradient);
}

#[test]
fn gradients_flow_through_broadcast_operands() {
    for_each_sample(table::broadcast_operand);
}

#[test]
fn gradients_of_an_operand_used_twice_add_up() {
    for_each_sample(table::duplicates);
}

#[test]
fn second_derivatives_agree_with_finite_differences() {
    for_each_sample(table::second_order);
}

#[test]
fn composites_agree_with_their_bodies() {
    for_each_sample(table::body);
}
