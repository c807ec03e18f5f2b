//! Shards of a training in files: named tensors, as a process alone writes them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use thalweg_core::Shape;
use thalweg_nn::Module;
use thalweg_tensor::Tensor;
use thalweg_train::{Loaded, Place, Run, ShardParts, TrainError, load_latest, load_step, save_shard};

use crate::cluster::Cluster;
use crate::error::ClusterError;
use crate::ids::{Clock, TableId};
use crate::layout::{Layout, TableSpec};
use crate::local::Averaging;
use crate::optimise::Moved;
use crate::rule::{Registry, UpdateRule};
use crate::state::{Parts, Snapshot, Tables};
use crate::storage::{Read, Storage};
use crate::sync::Sync;
use crate::table::{Contents, Table};
use crate::values::Values;

/// What a table of a training is.
#[derive(Clone)]
enum Kind {
    /// Moved by the servers, whose rule keeps the optimiser's state.
    Trained(Arc<Moved>),
    /// Moved by workers. Without a table of states nothing is kept of their optimisers.
    Averaged(Arc<Moved>, Keeps),
    /// The mean of the states of their optimisers.
    States(Arc<Moved>),
    Buffer(String, Shape),
    Loss,
}

/// Whether the servers keep the states of optimisers that workers run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keeps {
    States,
    Nothing,
}

/// Where the shards of a training lie, saved every so many clocks.
pub(super) fn storage(
    (folder, checkpoints): (&Path, &Place),
    every: Clock,
    resume: bool,
    (moved, sync): (&[Arc<Moved>], Sync),
    net: &impl Module,
    specs: &[TableSpec],
    cluster: &Cluster,
) -> Result<Storage, ClusterError> {
    let kind = |moved: Arc<Moved>| match sync.averaging() {
        None => Kind::Trained(moved),
        Some(Averaging::Local) => Kind::Averaged(moved, Keeps::States),
        Some(Averaging::Elastic(_)) => Kind::Averaged(moved, Keeps::Nothing),
    };
    let trained = moved.iter().cloned().map(kind);
    let buffers = net.buffers().into_iter().map(|n| Kind::Buffer(n.name, n.param.meta().shape));
    let has_states = sync.averaging() == Some(Averaging::Local);
    let states = moved.iter().filter(|_| has_states).cloned().map(Kind::States);
    let kinds: Arc<Vec<Kind>> = Arc::new(trained.chain(buffers).chain(states).chain([Kind::Loss]).collect());
    let there = cluster.checkpoints_elsewhere() || Run::exists(folder);
    let loaded = if resume && there { load_latest(checkpoints)? } else { None };
    let per_clock = sync.steps_per_clock();
    if let Some(loaded) = &loaded {
        check(loaded, folder, &kinds)?;
        if !loaded.step.is_multiple_of(per_clock) {
            let reason = format!("with {sync} a run goes on after a multiple of {per_clock} steps only");
            let (path, step) = (folder.to_owned(), loaded.step);
            return Err(TrainError::Checkpoint { path, step, reason }.into());
        }
    }
    let restored = loaded.as_ref().map(|l| l.step / per_clock);
    let read = Read::new(restored.zip(loaded));
    let (layout, registry) = (Layout::of(specs, cluster.n_shards(specs)), cluster.registry().clone());
    let divided = layout.parts(specs);
    let (saved, checkpoints) = (kinds.clone(), checkpoints.clone());
    let (folder, place) = (folder.to_owned(), checkpoints.clone());
    Ok(Storage {
        every: every.max(1),
        restored,
        load: Arc::new(move |shard, clock| {
            let loaded = read.at(clock, || {
                let loaded = load_step(&place, clock * per_clock)?;
                check(&loaded, &folder, &kinds).map(|()| loaded)
            });
            let parts = &divided[shard.0 as usize];
            Some(Snapshot { clock, tables: restore(&loaded, &kinds, parts, &registry) })
        }),
        save: Arc::new(move |shard, snapshot| {
            let steps = snapshot.clock * per_clock;
            let parts = parts(snapshot, steps, &saved);
            save_shard(&checkpoints, steps, shard.0, parts).map_err(|e| e.to_string())
        }),
    })
}

/// The tensors of a shard, by part.
fn parts(snapshot: &Snapshot, steps: u64, kinds: &[Kind]) -> ShardParts {
    let (mut model, mut optimizer) = (Vec::new(), BTreeMap::new());
    for (id, table) in &snapshot.tables {
        let Contents::Dense { values, state, .. } = table.stored() else { continue };
        match &kinds[id.0 as usize] {
            Kind::Trained(moved) if values.len() == moved.shape.numel() && !state.is_empty() => {
                model.push((moved.name.clone(), Tensor::from_slice(&values, moved.shape.clone())));
                optimizer.extend(moved.named_state(steps, &state));
            }
            Kind::Averaged(moved, keeps) if values.len() == moved.shape.numel() => {
                model.push((moved.name.clone(), Tensor::from_slice(&values, moved.shape.clone())));
                if *keeps == Keeps::Nothing {
                    optimizer.extend(moved.named_state(steps, &moved.first_state(values.len())));
                }
            }
            Kind::States(moved) if !values.is_empty() || moved.has_no_slots() => {
                optimizer.extend(moved.named_state(steps, &moved.state_from(steps, &values)));
            }
            Kind::Buffer(name, shape) if values.len() == shape.numel() => {
                model.push((name.clone(), Tensor::from_slice(&values, shape.clone())));
            }
            _ => {}
        }
    }
    let optimizer: Vec<(String, Tensor)> = optimizer.into_iter().collect();
    ShardParts::from([("model".to_owned(), model), ("optimizer".to_owned(), optimizer)])
}

fn find(loaded: &Loaded, part: &str, name: &str) -> Option<Tensor> {
    loaded.parts.get(part)?.get(name).cloned()
}

/// Whether a checkpoint is of this net and optimiser.
fn check(loaded: &Loaded, folder: &Path, kinds: &[Kind]) -> Result<(), TrainError> {
    let refuse = |what: String| TrainError::Checkpoint {
        path: folder.to_owned(),
        step: loaded.step,
        reason: format!("it has no {what} that fits"),
    };
    for kind in kinds {
        let (name, shape) = match kind {
            Kind::Trained(moved) | Kind::Averaged(moved, _) => (&moved.name, &moved.shape),
            Kind::Buffer(name, shape) => (name, shape),
            Kind::States(_) | Kind::Loss => continue,
        };
        find(loaded, "model", name)
            .filter(|t| t.shape() == shape)
            .ok_or_else(|| refuse(format!("{name:?}")))?;
        if let Kind::Trained(moved) | Kind::Averaged(moved, _) = kind {
            moved.state_of(|n| find(loaded, "optimizer", n)).map_err(|n| refuse(format!("slot {n:?}")))?;
        }
    }
    Ok(())
}

/// The tables of a shard, whatever shards wrote them.
fn restore(loaded: &Loaded, kinds: &[Kind], parts: &Parts, registry: &Registry) -> Tables {
    let mut tables = Tables::new();
    let state_of = |moved: &Moved| moved.state_of(|n| find(loaded, "optimizer", n)).expect("it was checked");
    for (id, kind) in (0..).map(TableId).zip(kinds) {
        let (spec, first) = parts[&id].clone();
        let here = !first.is_empty();
        let (name, state) = match kind {
            Kind::Trained(moved) => (Some(&moved.name), state_of(moved)),
            Kind::Averaged(moved, _) => (Some(&moved.name), Vec::new()),
            Kind::Buffer(name, _) => (Some(name), Vec::new()),
            Kind::States(_) | Kind::Loss => (None, Vec::new()),
        };
        let values = name.filter(|_| here).and_then(|name| find(loaded, "model", name));
        let values = match kind {
            Kind::States(moved) if here => moved.numbers(&state_of(moved)).into(),
            _ => values.map_or(first, |t| Values::of(&t)),
        };
        let state = if here { state.into() } else { Values::default() };
        let contents = Contents::Dense { values, state, previous: None };
        let table = Table::received(id, spec, contents, registry).expect("it was checked");
        tables.insert(id, table);
    }
    tables
}
