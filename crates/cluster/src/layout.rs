//! Which parameter lies in which shard: a pure function of the tables' sizes.
//!
//! Dense tables are laid end to end and cut into parts of equal bytes, so that every shard carries the
//! same load whatever the sizes of the tables. Tables that must stay whole go one by one to the shard that
//! has least. Rows go to shards by a hash of their number.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::ids::{ShardId, TableId};
use crate::rule::Rule;
use crate::state::Parts;
use crate::table::{Form, Init, PartSpec, mix};
use crate::values::Values;

/// Cuts lie at multiples of this many values, so that a part's memory suits SIMD loads.
const GRAIN: usize = 16;

/// A shard of fewer values is not worth its messages: 1 MiB, one chunk.
const WORTH_DIVIDING: usize = 1 << 18;
/// At most so many. Many times more servers than at the start find something to do, and a shard of some MiB is still in the cache
/// when its push is applied, and again when its new values leave: 100 MB in 4, 8, 16, 32 and 64 shards took 101, 91, 82, 79 and
/// 76 ms there and back.
const SHARDS_PER_SERVER: usize = 32;

/// A whole table, before it is divided.
#[derive(Debug, Clone, PartialEq)]
pub enum TableSpec {
    /// Values that are all present from the start.
    Dense {
        /// The first values.
        values: Values,
        /// What a push does.
        rule: Rule,
    },
    /// The same, but never cut: its rule has to see all of it.
    Whole {
        /// The first values.
        values: Values,
        /// What a push does.
        rule: Rule,
    },
    /// Rows by number.
    Rows {
        /// Values per row.
        width: usize,
        /// What a row holds before its first push.
        init: Init,
        /// What a push does.
        rule: Rule,
    },
}

impl TableSpec {
    fn dense_len(&self) -> usize {
        match self {
            TableSpec::Dense { values, .. } => values.len(),
            TableSpec::Whole { .. } | TableSpec::Rows { .. } => 0,
        }
    }
}

/// Into how many shards these tables are divided when nobody says: enough that servers that come later have something to
/// take over, as long as there is enough to divide. Every step costs a message per shard, so small tables stay in as many
/// shards as there are servers at the start.
pub fn n_shards(tables: &[TableSpec], n_servers: usize) -> usize {
    let (mut cut, mut whole, mut n_whole) = (0, 0, 0);
    for table in tables {
        match table {
            TableSpec::Dense { values, .. } => cut += values.len(),
            TableSpec::Whole { values, .. } => (whole, n_whole) = (whole + values.len(), n_whole + 1),
            TableSpec::Rows { .. } => {} // nobody knows how many there will be
        }
    }
    let worth = if cut >= WORTH_DIVIDING { usize::MAX } else { n_whole };
    let worth = worth.min((cut + whole) / WORTH_DIVIDING);
    worth.clamp(n_servers, SHARDS_PER_SERVER * n_servers)
}

/// How many tables there are and how many numbers they begin with, and a checksum of forms and rules: enough for two
/// programs to see whether theirs are the same.
pub(crate) fn in_words(tables: &[TableSpec]) -> String {
    let mut checksum = crc32fast::Hasher::new();
    let mut n_values = 0;
    for table in tables {
        let form = match table {
            TableSpec::Dense { values, rule } => {
                n_values += values.len();
                format!("dense {} {rule:?};", values.len())
            }
            TableSpec::Whole { values, rule } => {
                n_values += values.len();
                format!("whole {} {rule:?};", values.len())
            }
            TableSpec::Rows { width, init, rule } => format!("rows {width} {init:?} {rule:?};"),
        };
        checksum.update(form.as_bytes());
    }
    format!("{} of {n_values} values ({:08x})", tables.len(), checksum.finalize())
}

/// How a run's tables are divided into shards.
///
/// ```
/// use thalweg_cluster::{Layout, ShardId, TableId};
/// let layout = Layout::new(&[100, 28], 4);
/// assert_eq!(layout.range(TableId(0), ShardId(3)), 96..100);
/// assert_eq!(layout.range(TableId(1), ShardId(3)), 0..28);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    starts: Vec<usize>, // where each table begins when all lie end to end, and their end
    cuts: Vec<usize>,   // where each shard begins, and the end
    whole: BTreeMap<TableId, (ShardId, usize)>, // where those lie that are not cut, and their lengths
}

impl Layout {
    /// For dense tables of these lengths (zero for tables of rows).
    pub fn new(dense: &[usize], n_shards: usize) -> Self {
        let mut starts = vec![0];
        starts.extend(dense.iter().scan(0, |sum, len| {
            *sum += len;
            Some(*sum)
        }));
        let total = *starts.last().expect("it begins with zero");
        let cut = |i: usize| (total * i / n_shards.max(1)).next_multiple_of(GRAIN).min(total);
        let cuts = (0..n_shards).map(cut).chain([total]).collect();
        Self { starts, cuts, whole: BTreeMap::new() }
    }

    /// For these tables.
    pub fn of(tables: &[TableSpec], n_shards: usize) -> Self {
        let mut layout = Self::new(&tables.iter().map(TableSpec::dense_len).collect::<Vec<_>>(), n_shards);
        let ids = (0..).map(TableId).zip(tables);
        let mut whole: Vec<(TableId, usize)> =
            ids.filter_map(|(id, t)| {
                if let TableSpec::Whole { values, .. } = t { Some((id, values.len())) } else { None }
            })
            .collect();
        // The largest first, each to the shard that has least: never more than 4/3 of the best (Graham 1969).
        whole.sort_by_key(|(id, len)| (std::cmp::Reverse(*len), *id));
        let mut load: Vec<usize> = layout.cuts.windows(2).map(|w| w[1] - w[0]).collect();
        for (id, len) in whole {
            let least = (0..load.len()).min_by_key(|i| (load[*i], *i)).unwrap_or(0);
            load[least] += len;
            layout.whole.insert(id, (ShardId(least as u32), len));
        }
        layout
    }

    /// The bytes of each shard's dense values. Rows are left out: nobody knows how many there will be, and by their hash
    /// every shard gets as many.
    pub fn bytes(&self) -> Vec<u64> {
        let tables = || (0..self.n_tables() as u32).map(TableId);
        let values = |shard| tables().map(|table| self.range(table, shard).len()).sum::<usize>();
        (0..self.n_shards() as u32).map(|shard| 4 * values(ShardId(shard)) as u64).collect()
    }

    /// How many tables there are, of whatever form.
    pub(crate) fn n_tables(&self) -> usize {
        self.starts.len() - 1
    }

    /// How many shards there are.
    pub fn n_shards(&self) -> usize {
        self.cuts.len() - 1
    }

    /// The part of a dense table that lies in a shard, as positions in the table.
    pub fn range(&self, table: TableId, shard: ShardId) -> Range<usize> {
        if let Some((home, len)) = self.whole.get(&table) {
            return if *home == shard { 0..*len } else { 0..0 };
        }
        let (start, end) = (self.starts[table.0 as usize], self.starts[table.0 as usize + 1]);
        // Where a cut lies in the table: on a cache line, as long as the table begins on one.
        let place = |cut: usize| (cut.clamp(start, end) - start).next_multiple_of(GRAIN).min(end - start);
        place(self.cuts[shard.0 as usize])..place(self.cuts[shard.0 as usize + 1])
    }

    /// The shard of a row.
    pub fn shard_of_row(&self, row: u64) -> ShardId {
        // The high bits of a product divide evenly without a remainder's bias.
        let n = self.n_shards() as u128;
        ShardId(((u128::from(mix(row)) * n) >> 64) as u32)
    }

    /// What each shard has to create.
    pub fn parts(&self, tables: &[TableSpec]) -> Vec<Arc<Parts>> {
        let part = |shard, id: TableId, table: &TableSpec| match table {
            TableSpec::Dense { values, rule } | TableSpec::Whole { values, rule } => {
                let values = Values::from(&values[self.range(id, shard)]);
                (PartSpec { form: Form::Dense { len: values.len() }, rule: rule.clone() }, values)
            }
            TableSpec::Rows { width, init, rule } => {
                let form = Form::Rows { width: *width, init: *init };
                (PartSpec { form, rule: rule.clone() }, Values::default())
            }
        };
        let shards = (0..self.n_shards() as u32).map(ShardId);
        shards
            .map(|shard| {
                let ids = (0..).map(TableId);
                Arc::new(ids.zip(tables).map(|(id, table)| (id, part(shard, id, table))).collect())
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_in_exactly_one_shard_for_any_sizes() {
        for seed in 0..500u64 {
            let draw = |i: u64, n: u64| mix(seed ^ mix(i)) % n;
            let lens: Vec<usize> = (0..draw(0, 6)).map(|i| draw(i + 1, 200) as usize).collect();
            let n_shards = 1 + draw(99, 9) as usize;
            let layout = Layout::new(&lens, n_shards);
            for (table, len) in (0..).map(TableId).zip(&lens) {
                let mut covered = vec![0; *len];
                for shard in (0..n_shards as u32).map(ShardId) {
                    let range = layout.range(table, shard);
                    assert!(range.is_empty() || range.start.is_multiple_of(GRAIN), "seed {seed}: {range:?}");
                    covered[range].iter_mut().for_each(|c| *c += 1);
                }
                assert!(covered.iter().all(|c| *c == 1), "seed {seed}: {lens:?} over {n_shards} shards");
            }
        }
    }

    #[test]
    fn a_whole_table_lies_in_one_shard_and_loads_stay_even() {
        let table = |n: usize| TableSpec::Whole { values: vec![0.0; n].into(), rule: Rule::Add };
        let tables: Vec<TableSpec> = [50, 10, 30, 20, 10].map(table).into();
        let layout = Layout::of(&tables, 2);
        let load = |shard| (0..5).map(|t| layout.range(TableId(t), ShardId(shard)).len()).sum::<usize>();
        assert_eq!((load(0), load(1)), (60, 60));
        assert_eq!(layout.bytes(), [240, 240]);
        for (i, n) in [50, 10, 30, 20, 10].into_iter().enumerate() {
            let parts: Vec<usize> =
                (0..2).map(|s| layout.range(TableId(i as u32), ShardId(s)).len()).collect();
            assert!(parts == [n, 0] || parts == [0, n], "{parts:?}");
        }
    }

    #[test]
    fn large_tables_leave_something_for_servers_to_come_and_small_ones_cost_no_more_messages() {
        let dense = |n: usize| TableSpec::Dense { values: vec![0.0; n].into(), rule: Rule::Add };
        let whole = |n: usize| TableSpec::Whole { values: vec![0.0; n].into(), rule: Rule::Add };
        let rows = TableSpec::Rows { width: 3, init: Init::Zero, rule: Rule::Add };
        for (tables, want) in [
            (vec![dense(1)], [1, 2]),
            (vec![dense(1000), rows], [1, 2]),
            (vec![dense(3 * WORTH_DIVIDING)], [3, 3]),
            (vec![dense(100 * WORTH_DIVIDING)], [32, 64]),
            (vec![whole(100 * WORTH_DIVIDING), dense(1)], [1, 2]),
            (vec![whole(WORTH_DIVIDING); 3], [3, 3]),
            (vec![], [1, 2]),
        ] {
            assert_eq!([1, 2].map(|servers| n_shards(&tables, servers)), want);
        }
    }

    #[test]
    fn shards_carry_equal_loads() {
        let layout = Layout::new(&[1000, 24_000, 0, 7], 4);
        for shard in (0..4).map(ShardId) {
            let load: usize = (0..4).map(|t| layout.range(TableId(t), shard).len()).sum();
            assert!((6200..=6300).contains(&load), "{load}");
        }
        let mut rows = [0; 4];
        (0..10_000).for_each(|row| rows[layout.shard_of_row(row).0 as usize] += 1);
        assert!(rows.iter().all(|n| (2300..2700).contains(n)), "{rows:?}");
    }
}
