//! Shards of any tables in files.
//!
//! Of a dense table a shard writes `NAME/SHARD/values` and `NAME/SHARD/state`, where it begins as the single number
//! `NAME/SHARD/start`; of rows `NAME/SHARD/keys`, `NAME/SHARD/values` (rows, values and state) and how many of a row's values
//! do not depend on the number of slots, `NAME/SHARD/own`. Any number of shards can be read into any other, and what
//! any number of slots wrote by any other.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use thalweg_tensor::Tensor;
use thalweg_train::{Loaded, Place, Run, ShardParts, TrainError, load_latest, load_step, save_shard};

use super::learned::Learned;
use crate::cluster::Cluster;
use crate::error::ClusterError;
use crate::ids::{Clock, ShardId, TableId};
use crate::layout::{Layout, TableSpec};
use crate::rule::Registry;
use crate::state::{Parts, Snapshot, Tables};
use crate::storage::{Read, Storage};
use crate::table::{Contents, PartSpec, Table};

const PART: &str = "tables";
/// The table behind those that are learned.
const LOSS: &str = "loss";

/// Where the shards of a run lie.
pub(super) fn storage(
    (folder, checkpoints): (&Path, &Place),
    every: Clock,
    resume: bool,
    learned: &[Learned],
    specs: &[TableSpec],
    cluster: &Cluster,
) -> Result<Storage, ClusterError> {
    let there = cluster.checkpoints_elsewhere() || Run::exists(folder);
    let loaded = if resume && there { load_latest(checkpoints)? } else { None };
    let layout = Layout::of(specs, cluster.n_shards(specs));
    let (learned, n_slots) = (learned.to_vec(), cluster.n_slots());
    let (folder, specs, registry) = (folder.to_owned(), specs.to_vec(), cluster.registry().clone());
    let tables = {
        let (learned, layout) = (learned.clone(), layout.clone());
        move |loaded: &Loaded| restore(loaded, &folder, (&learned, n_slots), &specs, &layout, &registry)
    };
    let first = loaded.as_ref().map(|l| Ok::<_, TrainError>((l.step, tables(l)?))).transpose()?;
    let (checkpoints, place) = (checkpoints.clone(), checkpoints.clone());
    let restored = loaded.map(|l| l.step);
    let read = Read::new(first);
    Ok(Storage {
        every,
        restored,
        load: Arc::new(move |shard, clock| {
            let shards = read.at(clock, || tables(&load_step(&place, clock)?));
            Some(Snapshot { clock, tables: shards[shard.0 as usize].clone() })
        }),
        save: Arc::new(move |shard, snapshot| {
            let tensors = snapshot.tables.iter().flat_map(|(id, table)| {
                let (start, table_of) = (layout.range(*id, shard).start, learned.get(id.0 as usize));
                tensors(table_of, shard, start, &table.stored())
            });
            let parts = ShardParts::from([(PART.to_owned(), tensors.collect())]);
            save_shard(&checkpoints, snapshot.clock, shard.0, parts).map_err(|e| e.to_string())
        }),
    })
}

/// The tables of each shard, whatever shards wrote them.
fn restore(
    loaded: &Loaded,
    folder: &Path,
    (learned, n_slots): (&[Learned], usize),
    specs: &[TableSpec],
    layout: &Layout,
    registry: &Registry,
) -> Result<Vec<Tables>, TrainError> {
    let table = |shard: ShardId, id: TableId, spec: PartSpec| {
        let own = learned.get(id.0 as usize);
        let name = own.map_or(LOSS, Learned::name);
        let contents = match &specs[id.0 as usize] {
            TableSpec::Rows { .. } => own.and_then(|own| {
                let adapted = |row: &[f32], width| own.adapted(row, width, n_slots);
                rows(loaded, name, adapted, |row| layout.shard_of_row(row) == shard)
            }),
            TableSpec::Dense { values, .. } | TableSpec::Whole { values, .. } => {
                dense(loaded, name, values.len()).map(|whole| whole.cut(layout.range(id, shard)))
            }
        };
        let table = contents.and_then(|c| Table::received(id, spec, c, registry).ok());
        table.map(|table| (id, table)).ok_or_else(|| TrainError::Checkpoint {
            path: folder.to_owned(),
            step: loaded.step,
            reason: format!("it has no {name:?} that fits; go on with the same data and settings"),
        })
    };
    let shard = |(shard, parts): (ShardId, Arc<Parts>)| {
        parts.iter().map(|(id, (spec, _))| table(shard, *id, spec.clone())).collect()
    };
    (0..).map(ShardId).zip(layout.parts(specs)).map(shard).collect()
}

fn tensors(
    table: Option<&Learned>,
    shard: ShardId,
    start: usize,
    contents: &Contents,
) -> Vec<(String, Tensor)> {
    let (name, own) = (table.map_or(LOSS, Learned::name), table.map_or(0, Learned::width));
    let named = |what: &str, tensor| (format!("{name}/{}/{what}", shard.0), tensor);
    match contents {
        Contents::Dense { values, state, .. } => vec![
            named("start", Tensor::from([start as i64])),
            named("state", Tensor::from_slice(state, [state.len()])),
            named("values", Tensor::from_slice(values, [values.len()])),
        ],
        Contents::Rows { rows, .. } => {
            let keys: Vec<i64> = rows.keys().map(|k| *k as i64).collect();
            let values: Vec<f32> = rows.values().flat_map(|row| row.iter().copied()).collect();
            let width = rows.values().next().map_or(0, |row| row.len());
            vec![
                named("keys", Tensor::from_vec(keys, [rows.len()])),
                named("values", Tensor::from_vec(values, [rows.len(), width])),
                named("own", Tensor::from([own as i64])),
            ]
        }
    }
}

/// What each shard of a table has under a name.
fn pieces<'a>(
    loaded: &'a Loaded,
    table: &'a str,
    what: &'a str,
) -> impl Iterator<Item = (&'a str, &'a Tensor)> {
    let all = loaded.parts.get(PART).into_iter().flatten();
    all.filter_map(move |(name, tensor)| {
        let mut words = name.rsplitn(3, '/');
        let (last, shard) = (words.next()?, words.next()?);
        (last == what && words.next()? == table).then_some((shard, tensor))
    })
}

fn rows(
    loaded: &Loaded,
    name: &str,
    adapted: impl Fn(&[f32], Option<usize>) -> Vec<f32>,
    here: impl Fn(u64) -> bool,
) -> Option<Contents> {
    let values: BTreeMap<&str, &Tensor> = pieces(loaded, name, "values").collect();
    // Checkpoints of before do not say it, and are read by as many slots only.
    let own: BTreeMap<&str, &Tensor> = pieces(loaded, name, "own").collect();
    let mut rows = BTreeMap::new();
    let mut found = false;
    for (shard, keys) in pieces(loaded, name, "keys") {
        let (keys, values) = (keys.to_vec::<i64>(), values.get(shard)?.to_vec::<f32>());
        let width = values.len().checked_div(keys.len()).unwrap_or(0);
        let own = own.get(shard).and_then(|own| usize::try_from(*own.to_vec::<i64>().first()?).ok());
        let kept = keys.iter().zip(values.chunks_exact(width.max(1))).filter(|(key, _)| here(**key as u64));
        rows.extend(kept.map(|(key, row)| (*key as u64, adapted(row, own).into())));
        found = true;
    }
    found.then_some(Contents::Rows { rows, previous: BTreeMap::new() })
}

/// A dense table in one piece, and each array of its rule's state.
struct Whole {
    values: Vec<f32>,
    state: Vec<Vec<f32>>,
}

fn dense(loaded: &Loaded, name: &str, len: usize) -> Option<Whole> {
    let piece = |what| pieces(loaded, name, what).collect::<BTreeMap<&str, &Tensor>>();
    let (starts, states) = (piece("start"), piece("state"));
    let mut whole = Whole { values: vec![0.0; len], state: Vec::new() };
    let mut filled = 0;
    for (shard, values) in piece("values") {
        let (values, state) = (values.to_vec::<f32>(), states.get(shard)?.to_vec::<f32>());
        let start = usize::try_from(starts.get(shard)?.to_vec::<i64>()[0]).ok()?;
        if values.is_empty() {
            continue;
        }
        whole.values.get_mut(start..start + values.len())?.copy_from_slice(&values);
        for (i, part) in state.chunks_exact(values.len()).enumerate() {
            if whole.state.len() <= i {
                whole.state.push(vec![0.0; len]);
            }
            whole.state[i][start..start + values.len()].copy_from_slice(part);
        }
        filled += values.len();
    }
    (filled == len).then_some(whole)
}

impl Whole {
    fn cut(&self, range: std::ops::Range<usize>) -> Contents {
        let state = self.state.iter().flat_map(|array| &array[range.clone()]).copied().collect();
        Contents::Dense { values: self.values[range].into(), state, previous: None }
    }
}
