//! Graphs in files.

use std::path::PathBuf;

use thalweg::graph::{Graph, Traced};
use thalweg::prelude::*;
use thalweg::{Session, cond, load_graph, parse_graph, save, save_graph};

fn path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("thalweg-{name}-{}.safetensors", std::process::id()))
}

#[test]
fn a_traced_network_comes_back_with_its_weights_and_what_it_captured() {
    let mut rng = Rng::seed(4);
    let net = Linear::new(3, 2, &mut rng);
    let scale = rng.normal([2], 0.0, 1.0);
    let x = rng.normal([5, 3], 0.0, 1.0);
    let traced = Traced::record(&[x.meta().clone()], |x| vec![(net.forward(&x[0]) * &scale).softmax(-1)]);
    let mut session = Session::of(traced).unwrap();
    let want = session.run(&[("x0", &x)], &["y0"]).unwrap();
    let path = path("network");
    save_graph(&path, &session).unwrap();
    let mut back = load_graph(&path).unwrap();
    assert_eq!(back.graph().to_string(), session.graph().to_string());
    let got = back.run(&[("x0", &x)], &["y0"]).unwrap();
    assert_eq!(got[0].to_vec::<f32>(), want[0].to_vec::<f32>());
    // It goes on being a graph: it can be differentiated.
    let graph = back.graph().differentiate("v0", &["x0"]);
    assert!(graph.unwrap_err().to_string().contains("not a scalar"));
    std::fs::remove_file(path).unwrap();
}

/// Every layer calls its parameters `weight` and `bias`.
#[test]
fn layers_of_one_kind_keep_their_own_weights() {
    let mut rng = Rng::seed(8);
    let net = (Linear::new(3, 3, &mut rng), Linear::new(3, 3, &mut rng));
    let x = rng.normal([5, 3], 0.0, 1.0);
    let f = |x: &Tensor| net.1.forward(&net.0.forward(x).tanh()).square().sum(());
    let record = || Traced::record(&[x.meta().clone()], |x| vec![f(&x[0])]);
    let named = net.state();
    let by_path = record().with_param_names(named.iter().map(|p| (&p.name, &p.param)));
    let names = [["weight", "bias", "weight.1", "bias.1"], ["0.weight", "0.bias", "1.weight", "1.bias"]];
    let path = path("layers");
    for (traced, names) in [record(), by_path].into_iter().zip(names) {
        assert_eq!(traced.graph.params, names);
        save_graph(&path, &Session::of(traced).unwrap()).unwrap();
        let back = load_graph(&path).unwrap();
        for (name, param) in names.iter().zip(&named) {
            let got = back.param(name).unwrap().get().to_vec::<f32>();
            assert_eq!(got, param.param.get().to_vec::<f32>(), "{name}");
        }
        let (params, text) = (back.params().to_vec(), back.graph().to_string());
        assert_eq!(parse_graph(&text).unwrap().params, names);
        let graph = back.graph().differentiate("y0", &names).unwrap();
        let mut session = Session::bound(graph, params, back.captured().to_vec()).unwrap();
        let wrt: Vec<String> = names.iter().map(|name| format!("dy0/d{name}")).collect();
        let fetches: Vec<&str> = std::iter::once("y0").chain(wrt.iter().map(String::as_str)).collect();
        let got = session.run(&[("x0", &x)], &fetches).unwrap();
        let loss = f(&x);
        let leaves: Vec<&Param> = named.iter().map(|p| &p.param).collect();
        let want = std::iter::once(loss.clone()).chain(loss.grad(&leaves));
        for (got, want) in got.iter().zip(want) {
            assert_eq!(got.to_vec::<f32>(), want.to_vec::<f32>());
        }
    }
    // Weights saved by their paths are those of the net.
    let file = thalweg::load(&path).unwrap();
    assert_eq!(file["1.weight"].to_vec::<f32>(), net.1.weight.get().to_vec::<f32>());
    std::fs::remove_file(path).unwrap();
}

#[test]
fn files_that_are_no_graphs_say_what_is_wrong() {
    let path = path("wrong");
    let error = || load_graph(&path).err().unwrap().to_string();
    save(&path, [("w", Tensor::from([1.0f32]))]).unwrap();
    assert!(error().contains("there is no `thalweg.graph` in its metadata"));
    let graph: Graph = "w = param \"w\" : f32[1]; y = exp w; return y=y".parse().unwrap();
    let session = Session::new(graph, [("w", Tensor::from([1.0f32]))]).unwrap();
    save_graph(&path, &session).unwrap();
    assert_eq!(load_graph(&path).unwrap().param("w").unwrap().get().to_vec::<f32>(), [1.0]);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_graph_with_a_decision_comes_back_with_its_branches() {
    let path = path("decision");
    let x = Tensor::from([1.0f32, -3.0]);
    let traced = Traced::record(&[x.meta().clone()], |x| {
        vec![cond(&x[0].sum(()).gt(0.0), || x[0].exp(), || x[0].neg())]
    });
    save_graph(&path, &Session::of(traced).unwrap()).unwrap();
    let mut session = load_graph(&path).unwrap();
    let (input, output) = (session.graph().inputs[0].clone(), session.graph().outputs[0].0.clone());
    let y = session.run(&[(&input, &x)], &[&output]).unwrap();
    assert_eq!(y[0].to_vec::<f32>(), [-1.0, 3.0]);
    std::fs::remove_file(path).unwrap();
}

/// An op that is code.
struct Same;

impl CustomOp for Same {
    fn name(&self) -> &str {
        "same"
    }
    fn infer(&self, inputs: &[&Meta]) -> std::result::Result<Meta, OpError> {
        Ok(inputs[0].clone())
    }
    fn eval(&self, x: &[&View<'_>], y: &mut ViewMut<'_>) {
        y.map_f32(x[0], |v| v);
    }
}

#[test]
fn an_op_of_ones_own_is_refused_by_its_name() {
    let x = Tensor::from([1.0f32]);
    let traced = Traced::record(&[x.meta().clone()], |x| vec![custom(Same, &[&x[0]])]);
    let text = traced.graph.to_string();
    let error = save_graph(path("own"), &Session::of(traced).unwrap()).unwrap_err().to_string();
    assert!(error.contains("`same` cannot be saved: "), "{error}");
    let error = parse_graph(&text).unwrap_err().to_string();
    assert!(error.contains("no decision and no loop"), "{error}\n{text}");
}
