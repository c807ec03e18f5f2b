//! Structured arguments and results.

use std::collections::{BTreeMap, HashMap};

use thalweg_core::DType;
use thalweg_runtime::{Tree, jit, tree};
use thalweg_tensor::Tensor;

/// Tensors, a number and a name.
struct Example {
    x: Tensor,
    mask: Option<Tensor>,
    weight: f64,
    name: String,
}
tree!(Example { x, mask, weight, name });

/// Something of any kind, twice.
struct Pair<T>(T, T);
tree!(Pair<T> { 0, 1 });

/// Structs within maps within a struct with two type parameters.
struct Batch<K, V> {
    examples: BTreeMap<String, Pair<Example>>,
    extra: K,
    more: V,
}
tree!(Batch<K, V> { examples, extra, more });

fn example(value: f32, weight: f64) -> Example {
    let x = Tensor::full([2], value, DType::F32);
    Example { x, mask: None, weight, name: "example".to_owned() }
}

fn batch(keys: &[&str]) -> Batch<Vec<Tensor>, HashMap<u32, [Tensor; 2]>> {
    let pair = |i: usize| Pair(example(i as f32, 2.0), example(10.0 * i as f32, 3.0));
    let examples = keys.iter().enumerate().map(|(i, k)| ((*k).to_owned(), pair(i + 1))).collect();
    let more = (0..20u32).map(|k| (k, [k as f32, 100.0 + k as f32].map(Tensor::scalar)));
    Batch { examples, extra: vec![Tensor::scalar(7.0f32)], more: more.collect() }
}

/// What the function below gives for an example.
fn scaled(e: &Example) -> Tensor {
    let y = &e.x * e.weight;
    match &e.mask {
        Some(mask) => mask.where_(&y, 0.0),
        None => y,
    }
}

#[test]
fn maps_of_structs_of_structs_go_in_and_come_out() {
    let mut calls = 0;
    let mut f = jit(|batch: Batch<Vec<Tensor>, HashMap<u32, [Tensor; 2]>>| {
        calls += 1;
        let sums = batch.examples.into_iter().map(|(k, Pair(a, b))| {
            let Example { name, weight, mask, .. } = b;
            let y = scaled(&a);
            (k, Pair(Example { x: y + &b.x, mask, weight, name }, a))
        });
        let examples: BTreeMap<String, Pair<Example>> = sums.collect();
        let more: HashMap<u32, [Tensor; 2]> =
            batch.more.into_iter().map(|(k, [a, b])| (k + 1, [&b - &a, a])).collect();
        Batch { examples, extra: (), more: (more, batch.extra) }
    });
    for _ in 0..2 {
        let out = f.call(batch(&["a", "b"])).unwrap();
        let b = &out.examples["b"];
        assert_eq!(b.0.x.to_vec::<f32>(), [24.0, 24.0], "2 · 2 + 20");
        assert_eq!((b.0.weight, b.0.name.as_str(), b.1.x.to_vec::<f32>()), (3.0, "example", vec![2.0, 2.0]));
        assert_eq!(out.more.1[0].item::<f32>(), 7.0);
        // Hash maps have no order of their own: every value is still under its key.
        for k in 0..20u32 {
            assert_eq!(out.more.0[&(k + 1)].each_ref().map(|t| t.item::<f32>()), [100.0, k as f32]);
        }
    }
    let why = f.explain();
    drop(f);
    assert_eq!(calls, 1, "{why}");
}

#[test]
fn whatever_is_no_tensor_is_part_of_the_structure() {
    let mut f = jit(|e: Pair<Example>| scaled(&e.0) + scaled(&e.1));
    let call = |f: &mut dyn FnMut(Pair<Example>) -> Tensor, e: Pair<Example>| f(e).to_vec::<f32>();
    let mut run = |e: Pair<Example>| {
        let y = call(&mut |e| f.call(e).unwrap(), e);
        (y, f.explain().lines().next().unwrap_or_default().to_owned())
    };
    let pair = || Pair(example(1.0, 2.0), example(1.0, 3.0));
    assert_eq!(run(pair()), (vec![5.0, 5.0], "compiled 1 times".to_owned()));
    assert_eq!(run(pair()).1, "compiled 1 times");
    let heavier = Pair(example(1.0, 4.0), example(1.0, 3.0));
    assert_eq!(run(heavier), (vec![7.0, 7.0], "compiled 2 times".to_owned()));
    let mut masked = pair();
    masked.0.mask = Some(Tensor::from([true, false]));
    assert_eq!(run(masked), (vec![5.0, 3.0], "compiled 3 times".to_owned()));
    let mut renamed = pair();
    renamed.1.name = "other".to_owned();
    assert_eq!(run(renamed).1, "compiled 4 times");
    assert_eq!(run(pair()).1, "compiled 4 times");
}

#[test]
fn keys_decide_whether_structures_fit() {
    let two = batch(&["a", "b"]);
    assert!(two.fits(&batch(&["a", "b"])) && !two.fits(&batch(&["a", "c"])) && !two.fits(&batch(&["a"])));
    let mut n = 0;
    two.visit(&mut |_| n += 1);
    assert_eq!(n, 4 + 1 + 40);
    let (mut first, mut second) = (Vec::new(), Vec::new());
    two.visit(&mut |t| first.push(t.to_dtype(DType::F32).to_vec::<f32>()));
    two.map(&mut |t| {
        second.push(t.to_dtype(DType::F32).to_vec::<f32>());
        t.clone()
    });
    assert_eq!(first, second, "visiting and replacing go the same way");
}
