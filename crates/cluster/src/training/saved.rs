//! Shards of a training in files: named tensors, as a process alone writes them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use thalweg_core::Shape;
use thalweg_nn::Module;
use thalweg_tensor::Tensor;
use thalweg_train::{Loaded, Place, Run, ShardParts, TrainError, load_latest, save_shard};

use crate::cluster::Cluster;
use crate::error::ClusterError;
use crate::ids::{Clock, TableId};
use crate::layout::{Layout, TableSpec};
use crate::optimise::Moved;
use crate::rule::Registry;
use crate::state::{Parts, Snapshot, Tables};
use crate::storage::{Storage, unseen};
use crate::table::{Contents, Table};

/// What a table of a training is.
#[derive(Clone)]
enum Kind {
    Trained(Arc<Moved>),
    Buffer(String, Shape),
    Loss,
}

/// Where the shards of a training lie.
pub(super) fn storage(
    (folder, checkpoints): (&Path, &Place),
    every: Clock,
    resume: bool,
    moved: &[Arc<Moved>],
    net: &impl Module,
    specs: &[TableSpec],
    cluster: &Cluster,
) -> Result<Storage, ClusterError> {
    let trained = moved.iter().cloned().map(Kind::Trained);
    let buffers = net.buffers().into_iter().map(|n| Kind::Buffer(n.name, n.param.meta().shape));
    let kinds: Arc<Vec<Kind>> = Arc::new(trained.chain(buffers).chain([Kind::Loss]).collect());
    let there = cluster.checkpoints_elsewhere() || Run::exists(folder);
    let loaded = if resume && there { load_latest(checkpoints)? } else { None };
    if let Some(loaded) = &loaded {
        check(loaded, folder, &kinds)?;
    }
    let (restored, loaded) = (loaded.as_ref().map(|l| l.step), Arc::new(loaded));
    let (layout, registry) = (Layout::of(specs, cluster.n_shards(specs)), cluster.registry().clone());
    let divided = layout.parts(specs);
    let (saved, checkpoints) = (kinds.clone(), checkpoints.clone());
    Ok(Storage {
        every: every.max(1),
        restored,
        load: Arc::new(move |shard, clock| {
            let loaded = Option::as_ref(&loaded).filter(|l| l.step == clock);
            let loaded = loaded.unwrap_or_else(|| unseen(clock));
            let parts = &divided[shard.0 as usize];
            Some(Snapshot { clock, tables: restore(loaded, &kinds, parts, &registry) })
        }),
        save: Arc::new(move |shard, snapshot| {
            let parts = parts(snapshot, &saved);
            save_shard(&checkpoints, snapshot.clock, shard.0, parts).map_err(|e| e.to_string())
        }),
    })
}

/// The tensors of a shard, by part.
fn parts(snapshot: &Snapshot, kinds: &[Kind]) -> ShardParts {
    let (mut model, mut optimizer) = (Vec::new(), BTreeMap::new());
    for (id, table) in &snapshot.tables {
        let Contents::Dense { values, state, .. } = table.stored() else { continue };
        match &kinds[id.0 as usize] {
            Kind::Trained(moved) if values.len() == moved.shape.numel() && !state.is_empty() => {
                model.push((moved.name.clone(), Tensor::from_slice(&values, moved.shape.clone())));
                optimizer.extend(moved.named_state(snapshot.clock, &state));
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
            Kind::Trained(moved) => (&moved.name, &moved.shape),
            Kind::Buffer(name, shape) => (name, shape),
            Kind::Loss => continue,
        };
        find(loaded, "model", name)
            .filter(|t| t.shape() == shape)
            .ok_or_else(|| refuse(format!("{name:?}")))?;
        if let Kind::Trained(moved) = kind {
            moved.state_of(|n| find(loaded, "optimizer", n)).map_err(|n| refuse(format!("slot {n:?}")))?;
        }
    }
    Ok(())
}

/// The tables of a shard, whatever shards wrote them.
fn restore(loaded: &Loaded, kinds: &[Kind], parts: &Parts, registry: &Registry) -> Tables {
    let mut tables = Tables::new();
    for (id, kind) in (0..).map(TableId).zip(kinds) {
        let (spec, first) = parts[&id].clone();
        let here = !first.is_empty();
        let (name, state) = match kind {
            Kind::Trained(moved) => {
                let state = moved.state_of(|n| find(loaded, "optimizer", n)).expect("it was checked");
                (Some(&moved.name), state)
            }
            Kind::Buffer(name, _) => (Some(name), Vec::new()),
            Kind::Loss => (None, Vec::new()),
        };
        let values = name.filter(|_| here).and_then(|name| find(loaded, "model", name));
        let values = values.map_or(first, |t| Arc::new(t.to_vec::<f32>()));
        let state = Arc::new(if here { state } else { Vec::new() });
        let contents = Contents::Dense { values, state, previous: None };
        let table = Table::received(id, spec, contents, registry).expect("it was checked");
        tables.insert(id, table);
    }
    tables
}
