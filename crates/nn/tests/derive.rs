//! What `#[derive(Module)]` accepts, and what it calls things.

extern crate thalweg_nn as thalweg;

use thalweg_core::DType;
use thalweg_nn::{BatchNorm, Layer, Linear, Module, Residual, Sequential};
use thalweg_tensor::{Param, Rng, Tensor};

fn names(module: &dyn Module) -> Vec<String> {
    module.state().into_iter().map(|p| p.name).collect()
}

fn param() -> Param {
    Param::new("p", Tensor::zeros([1], DType::F32))
}

#[derive(Module)]
struct Pair(Param, Option<Param>);

#[derive(Module)]
struct Nothing;

#[derive(Module)]
struct Keyword {
    r#type: Param,
}

#[derive(Module)]
struct Wrapped<L, const N: usize>
where
    L: Layer,
{
    layers: [L; N],
    #[module(flatten)]
    pair: Pair,
    nothing: Nothing,
}

#[derive(Module)]
#[module(crate = thalweg_nn)]
struct Elsewhere<'a> {
    borrowed: &'a Param,
    boxed: Box<dyn Layer>,
    shared: std::sync::Arc<Linear>,
    label: &'static str,
    #[module(skip)]
    table: std::collections::HashMap<u8, u8>,
}

#[test]
fn fields_are_named_whatever_the_struct() {
    assert_eq!(names(&Pair(param(), Some(param()))), ["0", "1"]);
    assert_eq!(names(&Keyword { r#type: param() }), ["type"]);
    let rng = &mut Rng::seed(0);
    let layers = [Linear::without_bias(1, 1, rng), Linear::without_bias(1, 1, rng)];
    let wrapped = Wrapped { layers, pair: Pair(param(), None), nothing: Nothing };
    assert_eq!(names(&wrapped), ["layers.0.weight", "layers.1.weight", "0"]);
    assert!(wrapped.nothing.state().is_empty());
}

#[test]
fn pointers_and_boxes_are_looked_through() {
    let (rng, borrowed) = (&mut Rng::seed(0), param());
    let inner = Sequential::new().then(Linear::without_bias(2, 2, rng)).then(BatchNorm::new(2));
    let net = Elsewhere {
        borrowed: &borrowed,
        boxed: Box::new(Residual::new(inner)),
        shared: std::sync::Arc::new(Linear::without_bias(2, 2, rng)),
        label: "a",
        table: [(1, 2)].into(),
    };
    assert_eq!((net.label, net.table[&1]), ("a", 2));
    assert_eq!(
        names(&net),
        [
            "borrowed",
            "boxed.inner.0.weight",
            "boxed.inner.1.weight",
            "boxed.inner.1.bias",
            "boxed.inner.1.running_mean",
            "boxed.inner.1.running_var",
            "shared.weight",
        ]
    );
    assert_eq!((net.params().len(), net.buffers().len()), (5, 2));
    let summary = net.summary(|| net.boxed.forward(&Tensor::ones([3, 2], DType::F32)));
    let row = |name: &str| summary.rows.iter().find(|r| r.name == name).cloned().unwrap();
    assert_eq!(row("boxed").kind, "Residual");
    assert_eq!(row("boxed.inner.0").output.unwrap()[..], [3, 2]);
    assert_eq!(row("shared").output, None);
}
