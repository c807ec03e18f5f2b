//! A graph, its weights and its signature in one safetensors file.
//!
//! The weights are ordinary tensors under their names, so that any reader of safetensors can see
//! them; the graph's text form and its signature stand in the metadata. Tensors that the function
//! captured are stored as `captured.0`, `captured.1`, …

use std::collections::BTreeMap;
use std::path::Path;

use thalweg_formats::safetensors;
use thalweg_graph::Kind;
use thalweg_runtime::{Session, parse_graph};
use thalweg_tensor::ops::Op;
use thalweg_tensor::{Param, Tensor};

use crate::error::{Error, Result};
use crate::files::{dense, tensor};

const GRAPH: &str = "thalweg.graph";
const SIGNATURE: &str = "thalweg.signature";

/// Writes the graph of a session with its weights. An older file stays as it was unless all of the new
/// one is on disk. Decisions and loops are written with their bodies; ops of the user's own, which are code, cannot be written.
///
/// ```
/// use thalweg::{Session, Tensor, load_graph, save_graph};
/// let path = std::env::temp_dir().join(format!("thalweg-graph-{}.safetensors", std::process::id()));
/// let graph: thalweg::graph::Graph =
///     "x = input \"x\" : f32[2]; w = param \"w\" : f32[2]; y = mul x w; return y=y".parse()?;
/// save_graph(&path, &Session::new(graph, [("w", Tensor::from([2.0f32, 3.0]))])?)?;
///
/// let mut session = load_graph(&path)?;
/// assert_eq!(session.graph().signature(), "x: f32[2] -> y: f32[2]");
/// let y = session.run(&[("x", &Tensor::from([1.0f32, 1.0]))], &["y"])?;
/// assert_eq!(y[0].to_vec::<f32>(), [2.0, 3.0]);
/// # std::fs::remove_file(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn save_graph(path: impl AsRef<Path>, session: &Session) -> Result<()> {
    let path = path.as_ref();
    let graph = session.graph();
    let refused = |reason: String| Error::GraphFile { path: path.display().to_string(), reason };
    for node in graph.nodes() {
        if let Kind::Op(op @ Op::Custom(custom)) = &node.kind
            && custom.text().is_none()
        {
            return Err(refused(format!("`{}` cannot be saved: it has no text form", op.label())));
        }
    }
    let mut tensors: BTreeMap<String, Tensor> = BTreeMap::new();
    let params = session.params().iter().zip(&graph.params).map(|(p, name)| (name.clone(), p.get()));
    let captured = session.captured().iter().enumerate().map(|(i, t)| (format!("captured.{i}"), t.clone()));
    for (name, t) in params.chain(captured) {
        if tensors.insert(name.clone(), t.contiguous()).is_some() {
            return Err(refused(format!("two tensors are called `{name}`")));
        }
    }
    let metadata = BTreeMap::from([(GRAPH.into(), graph.to_string()), (SIGNATURE.into(), graph.signature())]);
    safetensors::write(path, tensors.iter().map(|(n, t)| (n.as_str(), dense(t))), &metadata)?;
    Ok(())
}

/// Reads what [`save_graph`] wrote.
pub fn load_graph(path: impl AsRef<Path>) -> Result<Session> {
    let path = path.as_ref();
    let refused = |reason: String| Error::GraphFile { path: path.display().to_string(), reason };
    let file = safetensors::open(path)?;
    let missing = || refused(format!("there is no `{GRAPH}` in its metadata: it holds weights only"));
    let text = file.metadata.get(GRAPH).ok_or_else(missing)?;
    let graph = parse_graph(text).map_err(|e| refused(format!("{e}")))?;
    let says = file.metadata.get(SIGNATURE).cloned().unwrap_or_default();
    if says != graph.signature() {
        return Err(refused(format!("the signature says {says}, the graph is {}", graph.signature())));
    }
    let mut tensors: BTreeMap<String, Tensor> =
        file.tensors.into_iter().map(|(name, t)| (name, tensor(t))).collect();
    let mut take = |name: &str| {
        tensors
            .remove(name)
            .ok_or_else(|| refused(format!("the graph needs a tensor `{name}`, which is missing")))
    };
    let mut params = Vec::new();
    for name in &graph.params {
        params.push(Param::new(name.clone(), take(name)?));
    }
    let captured =
        (0..graph.n_captured).map(|i| take(&format!("captured.{i}"))).collect::<Result<Vec<_>>>()?;
    if let Some(name) = tensors.keys().next() {
        return Err(refused(format!("the graph has no place for the tensor `{name}`")));
    }
    Ok(Session::bound(graph, params, captured)?)
}
