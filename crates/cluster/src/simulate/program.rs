//! What simulated workers compute: gradients from which a reader can tell exactly what is in a value.
//!
//! Each slot has two numbers in every shard: a push at clock `c` adds `2^c` to the first and 1 to the
//! second. So a read shows the set of pushes it contains, and whether any is in it twice. In BSP a third
//! table takes gradients that depend on what was read and whose sum depends on the order.

use std::sync::Arc;

use crate::ids::{Clock, ShardId, Slot, TableId};
use crate::layout::Layout;
use crate::rule::Rule;
use crate::session::Request;
use crate::state::{Parts, Reads, Update, Wants};
use crate::sync::Sync;
use crate::table::{Delta, Form, Init, PartSpec, Want, mix};
use crate::values::Values;

const SETS: TableId = TableId(0);
const ROWS: TableId = TableId(1);
const ORDER: TableId = TableId(2);
/// Values of a dense table per shard: the least that the layout divides.
const WIDTH: usize = 16;
const MAX_SLOTS: usize = WIDTH / 2;
const RATE: f32 = 0.125;

/// The program of one run.
#[derive(Debug, Clone)]
pub struct Program {
    sync: Sync,
    n_slots: usize,
    layout: Layout,
}

/// The pushes of one slot that a value contains, as bits by clock.
pub type Set = u64;

impl Program {
    /// For so many slots and shards.
    pub fn new(sync: Sync, n_slots: usize, n_shards: usize) -> Self {
        assert!(n_slots <= MAX_SLOTS, "a shard has room for {MAX_SLOTS} slots");
        Self { sync, n_slots, layout: Layout::new(&[WIDTH * n_shards], n_shards) }
    }

    /// How the tables are divided.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// What each shard has to create: the same, so that every shard shows all pushes.
    pub fn parts(&self) -> Vec<Arc<Parts>> {
        let dense = |rule| (PartSpec { form: Form::Dense { len: WIDTH }, rule }, vec![0.0; WIDTH].into());
        let form = Form::Rows { width: 2, init: Init::Zero };
        let rows = (PartSpec { form, rule: Rule::Add }, Values::default());
        let parts =
            Parts::from([(SETS, dense(Rule::Add)), (ROWS, rows), (ORDER, dense(Rule::Sgd { lr: RATE }))]);
        let parts = Arc::new(parts);
        (0..self.layout.n_shards()).map(|_| parts.clone()).collect()
    }

    /// What to read, by shard.
    pub fn pull(&self) -> Vec<Request> {
        let shards = (0..self.layout.n_shards() as u32).map(ShardId);
        shards
            .map(|shard| Request { pull: Some(Arc::new(self.wants(shard))), ..Request::default() })
            .collect()
    }

    fn wants(&self, shard: ShardId) -> Wants {
        let mut wants = Wants::from([(SETS, Want::Dense), (ROWS, Want::Rows(self.rows(shard)))]);
        if self.sync == Sync::Bsp {
            wants.insert(ORDER, Want::Dense);
        }
        wants
    }

    /// The rows that lie in a shard: one per slot, scattered.
    fn rows(&self, shard: ShardId) -> Arc<Vec<u64>> {
        let all = (0..self.n_slots as u64).map(|slot| slot * 1000);
        Arc::new(all.filter(|row| self.layout.shard_of_row(*row) == shard).collect())
    }

    /// The gradients of a slot at a clock for what it read, and what to read next.
    pub fn push(&self, slot: Slot, clock: Clock, reads: &[Reads]) -> Vec<Request> {
        let mut requests = self.pull();
        for ((shard, request), reads) in (0..).map(ShardId).zip(&mut requests).zip(reads) {
            let k = slot.0 as usize;
            let mut sets = vec![0.0; WIDTH];
            (sets[k], sets[MAX_SLOTS + k]) = ((1u64 << clock) as f32, 1.0);
            let mut update = Update::from([(SETS, Delta::Dense(sets.into()))]);
            let row = k as u64 * 1000;
            if self.layout.shard_of_row(row) == shard {
                let values = vec![(1u64 << clock) as f32, 1.0].into();
                update.insert(ROWS, Delta::Rows(Arc::new(vec![row]), values));
            }
            if let Some(values) = reads.get(&ORDER) {
                update.insert(ORDER, Delta::Dense(gradient(shard, slot, clock, values).into()));
            }
            request.push = Some(Arc::new(update));
        }
        requests
    }

    /// The pushes that a read of one shard contains, by slot.
    pub fn sets(&self, shard: ShardId, reads: &Reads) -> Result<Vec<Set>, String> {
        let dense = &reads[&SETS];
        let mut sets = Vec::new();
        for k in 0..self.n_slots {
            sets.push(set(dense[k], dense[MAX_SLOTS + k]).map_err(|e| format!("{shard}, slot {k}: {e}"))?);
        }
        for (row, values) in self.rows(shard).iter().zip(reads[&ROWS].chunks_exact(2)) {
            let k = (row / 1000) as usize;
            let in_row = set(values[0], values[1]).map_err(|e| format!("{shard}, row {row}: {e}"))?;
            if in_row != sets[k] {
                return Err(format!(
                    "{shard}: row {row} has pushes {in_row:b}, the dense part {:b}",
                    sets[k]
                ));
            }
        }
        Ok(sets)
    }

    /// In BSP, the values that the third table must have at a clock, to the bit: a plain loop.
    pub fn expected(&self, shard: ShardId, clock: Clock) -> Vec<f32> {
        let mut values = vec![0.0; WIDTH];
        for clock in 0..clock {
            let mut total = gradient(shard, Slot(0), clock, &values);
            for slot in (1..self.n_slots as u32).map(Slot) {
                let more = gradient(shard, slot, clock, &values);
                total.iter_mut().zip(more).for_each(|(t, g)| *t += g);
            }
            values.iter_mut().zip(total).for_each(|(v, g)| *v -= RATE * g);
        }
        values
    }

    /// In BSP, whether a read is exactly the value of its clock.
    pub fn check_order(&self, shard: ShardId, clock: Clock, reads: &Reads) -> Result<(), String> {
        let Some(got) = reads.get(&ORDER) else { return Ok(()) };
        let want: Values = self.expected(shard, clock).into();
        let same = got.iter().zip(want.iter()).all(|(a, b)| a.to_bits() == b.to_bits());
        if same { Ok(()) } else { Err(format!("{shard} at clock {clock}: {got:?} instead of {want:?}")) }
    }
}

fn gradient(shard: ShardId, slot: Slot, clock: Clock, values: &[f32]) -> Vec<f32> {
    let noise = |i: u64| {
        let bits = mix(i ^ mix(u64::from(shard.0) << 48 ^ u64::from(slot.0) << 32 ^ clock));
        // Numbers of very different sizes, so that the order of a sum shows.
        f32::from_bits((bits as u32 & 0x807f_ffff) | ((118 + (bits >> 40) as u32 % 16) << 23))
    };
    values.iter().zip(0..).map(|(v, i)| noise(i) + 0.25 * v).collect()
}

fn set(bits: f32, count: f32) -> Result<Set, String> {
    let set = bits as Set;
    if set as f32 != bits || f32::from(u8::try_from(set.count_ones()).unwrap_or(u8::MAX)) != count {
        return Err(format!("{count} pushes were applied, and their sum {bits} is no set of so many clocks"));
    }
    Ok(set)
}
