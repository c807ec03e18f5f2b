//! The part of one table that lies in one shard: a dense range or sparse rows.
//!
//! Values are never changed in place: an update writes a new version and lets go of the old one. So a
//! pull, a snapshot or the version before the last is a shared reference, not a copy, and a reply can
//! leave straight from parameter memory while the next update is made.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::Hasher;
use std::ops::Range;
use std::sync::Arc;

use thalweg_kernels::stream::split::par_chunks_mut;

use crate::codec::Encoded;
use crate::error::Refusal;
use crate::ids::TableId;
use crate::rule::{Registry, Rule, UpdateRule};
use crate::values::Values;

/// Values that one thread adds up before the next piece: they stay in its cache.
const PIECE: usize = 1 << 14;

/// What a table's part looks like and how it is updated.
#[derive(Debug, Clone, PartialEq)]
pub struct PartSpec {
    /// Dense or rows.
    pub form: Form,
    /// What a push does.
    pub rule: Rule,
}

/// Dense or rows.
#[derive(Debug, Clone, PartialEq)]
pub enum Form {
    /// So many values, all of them present.
    Dense {
        /// Number of values in this shard.
        len: usize,
    },
    /// Rows by number, present once they are pushed.
    Rows {
        /// Values per row.
        width: usize,
        /// What a row holds before its first push.
        init: Init,
    },
}

/// What a row holds before its first push: a function of its number, so that it need not be stored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Init {
    /// All zero.
    Zero,
    /// Uniform in `[-scale, scale)`.
    Uniform {
        /// Chooses the numbers.
        seed: u64,
        /// Half the width of the interval.
        scale: f32,
    },
}

impl Init {
    pub(crate) fn row(self, row: u64, width: usize) -> Vec<f32> {
        match self {
            Init::Zero => vec![0.0; width],
            Init::Uniform { seed, scale } => (0..width as u64)
                .map(|col| {
                    let bits = mix(seed ^ mix(row.wrapping_mul(width as u64).wrapping_add(col)));
                    // 24 bits: every value is exact in f32, so every server draws the same.
                    scale * ((bits >> 40) as f32 / (1u64 << 23) as f32 - 1.0)
                })
                .collect(),
        }
    }
}

/// A bijection of 64 bits that scatters (the finaliser of SplitMix64).
pub(crate) fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The gradient that a push carries for one table.
#[derive(Debug, Clone, PartialEq)]
pub enum Delta {
    /// For the whole dense range.
    Dense(Values),
    /// For some rows: numbers that rise strictly, and the rows one after another.
    Rows(Arc<Vec<u64>>, Values),
    /// For the whole dense range, made smaller. A shard unpacks it before anything else.
    Packed(Arc<Encoded>),
    /// For some rows, their values made smaller. Unpacked as well.
    PackedRows(Arc<Vec<u64>>, Arc<Encoded>),
    /// For the whole dense range: a part of an array that is sent from where it lies. It arrives as `Dense`.
    Cut(Values, Range<usize>),
}

impl Delta {
    /// How many values it has, a row's number counting as two.
    pub fn n_values(&self) -> usize {
        match self {
            Delta::Dense(values) => values.len(),
            Delta::Rows(rows, values) => 2 * rows.len() + values.len(),
            Delta::Packed(encoded) => encoded.len(),
            Delta::PackedRows(rows, encoded) => 2 * rows.len() + encoded.len(),
            Delta::Cut(_, range) => range.len(),
        }
    }

    /// The same without packing.
    pub fn unpacked(&self) -> Delta {
        match self {
            Delta::Packed(encoded) => Delta::Dense(encoded.decode()),
            Delta::PackedRows(rows, encoded) => Delta::Rows(rows.clone(), encoded.decode()),
            Delta::Cut(values, range) => Delta::Dense(values[range.clone()].into()),
            other => other.clone(),
        }
    }
}

/// What a pull asks of one table.
#[derive(Debug, Clone, PartialEq)]
pub enum Want {
    /// The whole dense range.
    Dense,
    /// Some rows, in this order; the numbers rise strictly.
    Rows(Arc<Vec<u64>>),
    /// What a registered function makes of a table's values here and these arguments. Asked for under a number of its
    /// own, which no table has, or under that of the table if nothing else is wanted of it.
    Compute(TableId, String, Values),
}

impl Want {
    /// The table that is read for what was asked for under a number.
    pub fn table(&self, asked: TableId) -> TableId {
        if let Want::Compute(table, ..) = self { *table } else { asked }
    }
}

/// Which of the two versions at hand a pull reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// The latest.
    Current,
    /// The one before the last round.
    Previous,
}

/// One table's part: values, the rule's state, and the version before the last round.
#[derive(Clone)]
pub struct Table {
    spec: PartSpec,
    rule: Arc<dyn UpdateRule>,
    body: Body,
}

#[derive(Clone)]
enum Body {
    Dense { values: Values, state: Values, previous: Option<Values> },
    // A row is its values followed by the rule's state. `previous` holds what the last round replaced.
    Rows { rows: BTreeMap<u64, Values>, previous: BTreeMap<u64, Option<Values>> },
}

impl Table {
    /// A part with the given first values (none for rows).
    pub fn new(
        table: TableId,
        spec: PartSpec,
        values: &Values,
        registry: &Registry,
    ) -> Result<Self, Refusal> {
        let Some(rule) = registry.find(&spec.rule) else {
            let Rule::Named(rule) = spec.rule else { unreachable!("built-in rules are always found") };
            return Err(Refusal::UnknownRule { table, rule });
        };
        let body = match spec.form {
            Form::Dense { len } if len == values.len() => {
                let state = rule.first_state(len).into();
                Body::Dense { values: values.clone(), state, previous: None }
            }
            Form::Rows { .. } if values.is_empty() => {
                Body::Rows { rows: BTreeMap::new(), previous: BTreeMap::new() }
            }
            _ => return Err(form(table, &spec, format!("{} first values", values.len()))),
        };
        Ok(Self { spec, rule, body })
    }

    /// What it was created as.
    pub fn spec(&self) -> &PartSpec {
        &self.spec
    }

    /// Whether the delta fits, so that `update` cannot fail half-way.
    pub fn check(&self, table: TableId, delta: &Delta) -> Result<(), Refusal> {
        match (&self.spec.form, delta) {
            (Form::Dense { len }, Delta::Dense(grad)) if grad.len() == *len => Ok(()),
            (Form::Rows { width, .. }, Delta::Rows(keys, grad)) if grad.len() == keys.len() * width => {
                rising(table, keys)
            }
            (_, Delta::Dense(grad)) => Err(form(table, &self.spec, format!("{} values", grad.len()))),
            (_, Delta::Packed(_) | Delta::PackedRows(..) | Delta::Cut(..)) => {
                Err(form(table, &self.spec, "packed values".into()))
            }
            (_, Delta::Rows(keys, grad)) => {
                Err(form(table, &self.spec, format!("{} rows of {} values in all", keys.len(), grad.len())))
            }
        }
    }

    /// Applies a checked delta. With `keep`, the version before it stays readable.
    pub fn update(&mut self, step: u64, delta: &Delta, keep: bool) {
        let (rule, spec) = (&self.rule, &self.spec);
        match (&mut self.body, delta) {
            (Body::Dense { values, state, previous }, Delta::Dense(grad)) => {
                // An older version's memory comes back, when nobody reads it any more.
                *previous = None;
                let mut out = Values::scratch(values.len());
                rule.update(step, values, grad, state.make_mut(), out.make_mut());
                let old = std::mem::replace(values, out);
                *previous = keep.then_some(old);
            }
            (Body::Rows { rows, previous }, Delta::Rows(keys, grads)) => {
                let Form::Rows { width, init } = spec.form else { unreachable!("the body is of the form") };
                previous.clear();
                for (&key, grad) in keys.iter().zip(grads.chunks_exact(width.max(1))) {
                    let old = rows.get(&key).cloned();
                    let mut row = match &old {
                        Some(row) => row.to_vec(),
                        None => {
                            let mut row = init.row(key, width);
                            row.extend(rule.first_state(width));
                            row
                        }
                    };
                    let mut out = vec![0.0; width];
                    let (value, state) = row.split_at_mut(width);
                    rule.update(step, value, grad, state, &mut out);
                    value.copy_from_slice(&out);
                    rows.insert(key, row.into());
                    if keep {
                        previous.insert(key, old);
                    }
                }
            }
            _ => unreachable!("`check` came before"),
        }
    }

    /// A round that brought nothing for this table: the previous version is the current one.
    pub fn skip(&mut self) {
        match &mut self.body {
            Body::Dense { previous, .. } => *previous = None,
            Body::Rows { previous, .. } => previous.clear(),
        }
    }

    /// The values that a pull asks for.
    pub fn read(
        &self,
        table: TableId,
        version: Version,
        want: &Want,
        registry: &Registry,
    ) -> Result<Values, Refusal> {
        match (&self.body, want) {
            (Body::Dense { .. }, Want::Dense) => Ok(self.dense(version).clone()),
            (_, Want::Compute(_, name, args)) => {
                let function = registry
                    .find_function(name)
                    .ok_or_else(|| Refusal::UnknownFunction { function: name.clone() })?;
                let (values, shape) = self.all(version);
                // What lies elsewhere has nothing to say here.
                Ok(if values.is_empty() { Values::default() } else { function(&values, &shape, args).into() })
            }
            (Body::Rows { rows, previous }, Want::Rows(keys)) => {
                rising(table, keys)?;
                let Form::Rows { width, init } = self.spec.form else {
                    unreachable!("the body is of the form")
                };
                let mut out = Vec::with_capacity(keys.len() * width);
                for key in keys.iter() {
                    let old = previous.get(key).filter(|_| version == Version::Previous);
                    match old.map_or_else(|| rows.get(key), Option::as_ref) {
                        Some(row) => out.extend_from_slice(&row[..width]),
                        None => out.extend(init.row(*key, width)),
                    }
                }
                Ok(out.into())
            }
            (_, Want::Rows(keys)) => Err(form(table, &self.spec, format!("{} row numbers", keys.len()))),
            (_, Want::Dense) => Err(form(table, &self.spec, "a pull of all values".into())),
        }
    }

    /// All values that are here, and their shape.
    fn all(&self, version: Version) -> (Values, Vec<usize>) {
        let (Body::Rows { rows, previous }, Form::Rows { width, .. }) = (&self.body, &self.spec.form) else {
            let values = self.dense(version).clone();
            let shape = vec![values.len()];
            return (values, shape);
        };
        let before = |key: &u64| previous.get(key).filter(|_| version == Version::Previous);
        // A row that the last round brought was not there before it.
        let there = rows.iter().filter_map(|(key, row)| before(key).map_or(Some(row), Option::as_ref));
        let values: Vec<f32> = there.flat_map(|row| &row[..*width]).copied().collect();
        let n = values.len().checked_div(*width).unwrap_or(0);
        (values.into(), vec![n, *width])
    }

    fn dense(&self, version: Version) -> &Values {
        match &self.body {
            Body::Dense { previous: Some(values), .. } if version == Version::Previous => values,
            Body::Dense { values, .. } => values,
            Body::Rows { .. } => unreachable!("asked of dense tables only"),
        }
    }

    /// Everything it holds.
    pub fn stored(&self) -> Contents {
        match self.body.clone() {
            Body::Dense { values, state, previous } => Contents::Dense { values, state, previous },
            Body::Rows { rows, previous } => Contents::Rows { rows, previous },
        }
    }

    /// A table with these contents.
    pub fn received(
        table: TableId,
        spec: PartSpec,
        contents: Contents,
        registry: &Registry,
    ) -> Result<Self, Refusal> {
        let len = if let Form::Dense { len } = spec.form { len } else { 0 };
        let Contents::Dense { values: first, .. } = &contents else {
            return Self::new(table, spec, &Values::default(), registry)?.with_rows(table, contents);
        };
        let mut new = Self::new(table, spec, first, registry)?;
        let state_len = new.rule.first_state(len).len();
        match contents {
            Contents::Dense { values, state, previous }
                if state.len() == state_len && previous.as_ref().is_none_or(|p| p.len() == len) =>
            {
                new.body = Body::Dense { values, state, previous };
                Ok(new)
            }
            _ => Err(form(table, &new.spec, "state of another size".into())),
        }
    }

    fn with_rows(mut self, table: TableId, contents: Contents) -> Result<Self, Refusal> {
        let Form::Rows { width, .. } = self.spec.form else {
            return Err(form(table, &self.spec, "rows".into()));
        };
        let len = width + self.rule.first_state(width).len();
        match contents {
            Contents::Rows { rows, previous }
                if rows.values().chain(previous.values().flatten()).all(|row| row.len() == len) =>
            {
                self.body = Body::Rows { rows, previous };
                Ok(self)
            }
            _ => Err(form(table, &self.spec, "rows of another width".into())),
        }
    }

    pub(crate) fn hash(&self, h: &mut impl Hasher) {
        let mut floats = |values: &[f32]| values.iter().for_each(|v| h.write_u32(v.to_bits()));
        match &self.body {
            Body::Dense { values, state, previous } => {
                floats(values);
                floats(state);
                previous.iter().for_each(|p| floats(p));
            }
            Body::Rows { rows, previous } => {
                rows.values().for_each(|row| floats(row));
                previous.values().flatten().for_each(|row| floats(row));
                rows.keys().chain(previous.keys()).for_each(|k| h.write_u64(*k));
            }
        }
    }
}

/// Everything that one table's part holds.
#[derive(Debug, Clone, PartialEq)]
pub enum Contents {
    /// A dense range.
    Dense {
        /// The parameters.
        values: Values,
        /// What the rule keeps.
        state: Values,
        /// The parameters before the last round.
        previous: Option<Values>,
    },
    /// Rows by number, each followed by its rule's state.
    Rows {
        /// The rows.
        rows: BTreeMap<u64, Values>,
        /// What the last round replaced.
        previous: BTreeMap<u64, Option<Values>>,
    },
}

impl Contents {
    /// How many values it has, a row's number counting as two.
    pub fn n_values(&self) -> usize {
        match self {
            Contents::Dense { values, state, previous } => {
                values.len() + state.len() + previous.as_ref().map_or(0, |p| p.len())
            }
            Contents::Rows { rows, previous } => {
                let old = previous.values().map(|row| 2 + row.as_ref().map_or(0, |r| r.len()));
                rows.values().map(|row| 2 + row.len()).chain(old).sum()
            }
        }
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Table({:?})", self.spec)
    }
}

/// Adds up deltas in the order given. Rows that occur in several are added in that order too.
pub fn sum<'a>(deltas: impl IntoIterator<Item = &'a Delta>) -> Option<Delta> {
    let mut deltas = deltas.into_iter();
    let first = deltas.next()?;
    let mut rest = deltas.peekable();
    if rest.peek().is_none() {
        return Some(first.clone());
    }
    match first {
        Delta::Dense(first) => {
            let values = rest.map(|delta| {
                let Delta::Dense(values) = delta else { unreachable!("checked against one table") };
                &values[..]
            });
            let rest: Vec<&[f32]> = values.collect();
            let mut total = Values::scratch(first.len());
            par_chunks_mut(total.make_mut(), PIECE, |start, out| {
                out.copy_from_slice(&first[start..][..out.len()]);
                for values in &rest {
                    out.iter_mut().zip(&values[start..]).for_each(|(t, v)| *t += v);
                }
            });
            Some(Delta::Dense(total))
        }
        Delta::Packed(_) | Delta::PackedRows(..) | Delta::Cut(..) => unreachable!("unpacked when it came"),
        Delta::Rows(..) => {
            let mut rows: BTreeMap<u64, Vec<f32>> = BTreeMap::new();
            for delta in std::iter::once(first).chain(rest) {
                let Delta::Rows(keys, values) = delta else { unreachable!("checked against one table") };
                let width = values.len().checked_div(keys.len()).unwrap_or(0);
                for (row_idx, key) in keys.iter().enumerate() {
                    let values = &values[row_idx * width..][..width];
                    match rows.entry(*key) {
                        std::collections::btree_map::Entry::Vacant(e) => drop(e.insert(values.to_vec())),
                        std::collections::btree_map::Entry::Occupied(mut e) => {
                            e.get_mut().iter_mut().zip(values).for_each(|(t, v)| *t += v);
                        }
                    }
                }
            }
            let keys = rows.keys().copied().collect();
            Some(Delta::Rows(Arc::new(keys), rows.into_values().flatten().collect()))
        }
    }
}

fn rising(table: TableId, keys: &[u64]) -> Result<(), Refusal> {
    if keys.is_sorted_by(|a, b| a < b) { Ok(()) } else { Err(Refusal::Keys { table }) }
}

fn form(table: TableId, spec: &PartSpec, got: String) -> Refusal {
    let want = match spec.form {
        Form::Dense { len } => format!("{len} dense values"),
        Form::Rows { width, .. } => format!("rows of {width} values"),
    };
    Refusal::Form { table, want, got }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: TableId = TableId(0);

    fn rows(width: usize, rule: Rule) -> Table {
        let spec = PartSpec { form: Form::Rows { width, init: Init::Zero }, rule };
        Table::new(T, spec, &Values::default(), &Registry::default()).unwrap()
    }

    fn delta(keys: &[u64], values: &[f32]) -> Delta {
        Delta::Rows(Arc::new(keys.to_vec()), values.into())
    }

    fn read(table: &Table, version: Version, keys: &[u64]) -> Vec<f32> {
        let want = Want::Rows(Arc::new(keys.to_vec()));
        table.read(T, version, &want, &Registry::default()).unwrap().to_vec()
    }

    #[test]
    fn the_version_before_the_last_round_stays_readable() {
        let mut table = rows(1, Rule::Add);
        table.update(1, &delta(&[3, 9], &[1.0, 2.0]), true);
        table.update(2, &delta(&[3, 4], &[10.0, 20.0]), true);
        assert_eq!(read(&table, Version::Current, &[3, 4, 9]), [11.0, 20.0, 2.0]);
        assert_eq!(read(&table, Version::Previous, &[3, 4, 9]), [1.0, 0.0, 2.0]);
        table.skip();
        assert_eq!(read(&table, Version::Previous, &[3, 4, 9]), [11.0, 20.0, 2.0]);
    }

    #[test]
    fn a_row_keeps_its_own_rule_state() {
        let mut table = rows(2, Rule::Adagrad { lr: 1.0, eps: 0.0 });
        table.update(1, &delta(&[7], &[3.0, 0.5]), false);
        table.update(2, &delta(&[7], &[4.0, 0.0]), false);
        assert_eq!(read(&table, Version::Current, &[7]), [-1.8, -1.0]);
    }

    #[test]
    fn deltas_that_do_not_fit_are_refused_with_both_sizes() {
        let table = rows(2, Rule::Add);
        let wrong = table.check(T, &delta(&[1, 2], &[0.0; 3])).unwrap_err();
        assert_eq!(
            wrong.to_string(),
            "table 0 holds rows of 2 values, the request has 2 rows of 3 values in all"
        );
        assert_eq!(table.check(T, &delta(&[2, 1], &[0.0; 4])), Err(Refusal::Keys { table: T }));
        assert_eq!(table.check(T, &delta(&[1, 1], &[0.0; 4])), Err(Refusal::Keys { table: T }));
        assert!(table.check(T, &Delta::Dense(Values::default())).is_err());
    }

    #[test]
    fn sparse_sums_add_each_row_in_the_order_given() {
        let big = 2f32.powi(24);
        let deltas =
            [delta(&[1, 5], &[big, 1.0]), delta(&[5], &[2.0]), delta(&[1], &[1.0]), delta(&[1], &[-big])];
        assert_eq!(sum(&deltas), Some(delta(&[1, 5], &[(big + 1.0) - big, 3.0])));
        assert_eq!(sum(&[]), None);
    }

    #[test]
    fn rows_start_with_the_same_numbers_everywhere_and_within_the_scale() {
        let init = Init::Uniform { seed: 3, scale: 0.5 };
        let row = init.row(123_456_789, 64);
        assert_eq!(row, init.row(123_456_789, 64));
        assert_ne!(row, init.row(123_456_790, 64));
        assert!(row.iter().all(|v| (-0.5..0.5).contains(v)) && row.iter().any(|v| v.abs() > 0.3));
    }
}
