//! The loss of a step as a table of one number: slots push their shares, and whoever keeps the books reads it.

use crate::layout::TableSpec;
use crate::rule::{Rule, UpdateRule};
use crate::sync::Sync;

/// The name of its rule.
pub(crate) const RECENT: &str = "recent loss";

/// The table.
pub(crate) fn loss_table() -> TableSpec {
    TableSpec::Whole { values: vec![0.0].into(), rule: Rule::Named(RECENT.into()) }
}

/// The loss of the last round; where there are no rounds, a mean over about so many pushes.
pub(crate) struct Recent(f32);

impl Recent {
    /// For so many shares per clock.
    pub fn of(sync: Sync, n_slots: usize) -> Self {
        Self(if sync.gathers() { 1.0 } else { n_slots as f32 })
    }
}

impl UpdateRule for Recent {
    fn update(&self, _step: u64, value: &[f32], pushed: &[f32], _state: &mut [f32], out: &mut [f32]) {
        for ((o, v), p) in out.iter_mut().zip(value).zip(pushed) {
            // In rounds exactly what was pushed, whatever was there before.
            *o = p + (v - v / self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loss_of_a_round_does_not_depend_on_the_one_before() {
        let recent = |sync, value: f32, pushed: f32| {
            let mut out = [0.0];
            Recent::of(sync, 4).update(1, &[value], &[pushed], &mut [], &mut out);
            out[0]
        };
        for before in [0.0, 0.1, 7.3, 1e9] {
            assert_eq!(recent(Sync::Bsp, before, 0.123_456_7), 0.123_456_7);
        }
        assert_eq!(recent(Sync::Async, 8.0, 1.5), 7.5);
    }
}
