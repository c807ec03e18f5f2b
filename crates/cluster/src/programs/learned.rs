//! What a model learns, as tables of a parameter server and as tensors of a file.

use std::sync::Arc;

use thalweg_nn::{Module, Visitor};
use thalweg_tensor::{Param, Tensor};

use crate::cluster::{Cluster, Gradients, Pulled};
use crate::ids::{Slot, TableId};
use crate::layout::TableSpec;
use crate::rule::{Rule, UpdateRule};
use crate::table::{Delta, Init, Want};
use crate::values::Values;

/// Makes a row's values of the sum of what all slots say of it. The values before come in, zero at first.
pub type Make = fn(sum: &[f32], values: &mut [f32]);

/// One table of a model.
#[derive(Debug, Clone)]
pub enum Learned {
    /// A push changes the table by its rule.
    Table {
        /// Its name.
        name: &'static str,
        /// Its rows.
        rows: usize,
        /// Its values and its rule.
        spec: TableSpec,
    },
    /// A push says what a slot's samples say now: sums that replace what the slot said before. The servers keep the
    /// latest of every slot, so that stale or missing slots are late but never counted twice or left out (incremental
    /// EM; Neal and Hinton 1998), and in rounds the result is that of all samples at once.
    Statistics {
        /// Its name.
        name: &'static str,
        /// Its rows.
        rows: usize,
        /// Values per row.
        width: usize,
        /// Sums per row of a push.
        sums: usize,
        /// What the sums make of a row.
        make: Make,
    },
}

impl Learned {
    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Table { name, .. } | Self::Statistics { name, .. } => name,
        }
    }

    /// Whether what is pushed takes the place of what was there, so that a rounding would stay.
    pub(super) fn replaces(&self) -> bool {
        matches!(self, Self::Statistics { .. })
    }

    pub(super) fn rows(&self) -> usize {
        match self {
            Self::Table { rows, .. } | Self::Statistics { rows, .. } => *rows,
        }
    }

    /// Values per row.
    pub(super) fn width(&self) -> usize {
        match self {
            Self::Statistics { width, .. } => *width,
            Self::Table { rows, spec, .. } => match spec {
                TableSpec::Rows { width, .. } => *width,
                TableSpec::Dense { values, .. } | TableSpec::Whole { values, .. } => values.len() / rows,
            },
        }
    }

    pub(super) fn spec(&self, n_slots: usize) -> TableSpec {
        match self {
            Self::Table { spec, .. } => spec.clone(),
            Self::Statistics { name, width, sums, .. } => {
                let width = width + n_slots * (1 + sums);
                TableSpec::Rows { width, init: Init::Zero, rule: Rule::Named((*name).into()) }
            }
        }
    }

    /// A row of a checkpoint, of which so many values are the table's own, for so many slots. When another number of slots
    /// left it, what they said is forgotten: they spoke of other samples than the slots of now, which begin from the values
    /// as a new run does from its first ones. In rounds all of them speak before anything is made of it.
    pub(super) fn adapted(&self, row: &[f32], own: Option<usize>, n_slots: usize) -> Vec<f32> {
        let mut row = row.to_vec();
        if let Self::Statistics { width, sums, .. } = self
            && own == Some(*width)
            && row.len() >= *width
            && row.len() != width + n_slots * (1 + sums)
        {
            row.truncate(*width);
            row.resize(width + n_slots * (1 + sums), 0.0);
        }
        row
    }

    /// Makes its rule known.
    pub(super) fn register(&self, cluster: Cluster) -> Cluster {
        match *self {
            Self::Table { .. } => cluster,
            Self::Statistics { name, width, sums, make, .. } => {
                cluster.with_rule(name, Latest { width, sums, make })
            }
        }
    }

    /// All of it.
    pub(super) fn all(&self) -> Want {
        match self {
            Self::Table { spec: TableSpec::Dense { .. } | TableSpec::Whole { .. }, .. } => Want::Dense,
            _ => Want::Rows(Arc::new((0..self.rows() as u64).collect())),
        }
    }
}

/// The rule of statistics. A row is its values, then per slot a mark and the sums that it last said. In a push only the
/// blocks of slots that say something have a mark.
struct Latest {
    width: usize,
    sums: usize,
    make: Make,
}

impl UpdateRule for Latest {
    fn update(&self, _step: u64, row: &[f32], pushed: &[f32], _state: &mut [f32], out: &mut [f32]) {
        out.copy_from_slice(row);
        let (values, blocks) = out.split_at_mut(self.width);
        let mut total = vec![0.0; self.sums];
        for (old, new) in blocks.chunks_mut(1 + self.sums).zip(pushed[self.width..].chunks(1 + self.sums)) {
            if new[0] != 0.0 {
                old.copy_from_slice(new);
            }
            total.iter_mut().zip(&old[1..]).for_each(|(t, s)| *t += s);
        }
        (self.make)(&total, values);
    }
}

/// What was pulled, without what only servers need.
pub(super) fn values(learned: &[Learned], n_slots: usize, pulled: &Pulled) -> Pulled {
    let own = |(id, table): (TableId, &Learned)| {
        let pulled = pulled.get(&id)?;
        let Learned::Statistics { width, sums, .. } = table else { return Some((id, pulled.clone())) };
        let rows = pulled.chunks_exact(width + n_slots * (1 + sums));
        Some((id, rows.flat_map(|row| &row[..*width]).copied().collect()))
    };
    // Behind the tables and the loss lies what servers computed.
    let computed = pulled.range(TableId(learned.len() as u32 + 1)..).map(|(id, v)| (*id, v.clone()));
    (0..).map(TableId).zip(learned).filter_map(own).chain(computed).collect()
}

/// What a slot says, in the form that servers take.
pub(super) fn pushed(learned: &[Learned], slot: Slot, n_slots: usize, said: Gradients) -> Gradients {
    let widened = |(id, delta): (TableId, Delta)| match (&learned[id.0 as usize], &delta) {
        (Learned::Statistics { width, sums, .. }, Delta::Rows(keys, values)) => {
            let whole = width + n_slots * (1 + sums);
            let mut rows = vec![0.0; keys.len() * whole];
            for (row, said) in rows.chunks_exact_mut(whole).zip(values.chunks_exact(*sums)) {
                let block = &mut row[width + slot.0 as usize * (1 + sums)..][..1 + sums];
                block[0] = 1.0;
                block[1..].copy_from_slice(said);
            }
            (id, Delta::Rows(keys.clone(), rows.into()))
        }
        _ => (id, delta),
    };
    said.into_iter().map(widened).collect()
}

/// The learned values as named tensors (rows, values per row), to be saved and loaded like the weights of a net.
#[derive(Debug, Clone)]
pub struct LearnedValues(Vec<Param>);

impl LearnedValues {
    /// Zeros, in the shape of what a model learns.
    pub fn of(model: &(impl super::Model + ?Sized)) -> Self {
        let zeros = |table: &Learned| {
            let (rows, width) = (table.rows(), table.width());
            Param::new(table.name(), Tensor::from_vec(vec![0f32; rows * width], [rows, width]))
        };
        Self(model.learned().iter().map(zeros).collect())
    }

    /// Takes these.
    pub(super) fn set(&self, pulled: &Pulled) {
        for (param, values) in self.0.iter().zip(pulled.values()) {
            param.set(values.to_tensor(param.meta().shape));
        }
    }

    /// By table.
    pub fn by_table(&self) -> Pulled {
        (0..).map(TableId).zip(self.0.iter().map(|p| Values::of(&p.get()))).collect()
    }
}

impl Module for LearnedValues {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.0.iter().for_each(|param| visitor.part(param.name(), param));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two slots, a sum of one number per row; the value is the sum.
    #[test]
    fn a_slot_that_speaks_again_replaces_what_it_said_and_no_other() {
        let make: Make = |sum, values| values.copy_from_slice(sum);
        let table = [Learned::Statistics { name: "sum", rows: 1, width: 1, sums: 1, make }];
        let rule = Latest { width: 1, sums: 1, make };
        let mut row = vec![0.0; 5];
        let mut say = |slot: u32, what: f32| {
            let said = vec![(TableId(0), Delta::Rows(Arc::new(vec![0]), vec![what].into()))];
            let Delta::Rows(_, push) = pushed(&table, Slot(slot), 2, said).remove(0).1 else {
                unreachable!()
            };
            let before = row.clone();
            rule.update(1, &before, &push, &mut [], &mut row);
            values(&table, 2, &Pulled::from([(TableId(0), row.clone().into())]))[&TableId(0)].to_vec()
        };
        assert_eq!(say(0, 3.0), [3.0]);
        assert_eq!(say(1, 4.0), [7.0]);
        assert_eq!(say(0, 0.0), [4.0], "nothing is something said");
    }
}
