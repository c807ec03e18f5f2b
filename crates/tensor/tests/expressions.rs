//! Random expression trees against a slow oracle that knows nothing of tensors: nested loops over
//! f64 with NumPy's broadcasting written out. Values and gradients; seeds are printed on failure.

use thalweg_core::DType::F64;
use thalweg_tensor::{Tensor, vjp};

/// SplitMix64.
struct Source(u64);

impl Source {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % n as u64) as usize
    }

    fn unit(&mut self) -> f64 {
        self.below(1 << 30) as f64 / (1u64 << 30) as f64
    }
}

/// A dense array and nothing more.
#[derive(Clone, Debug)]
struct Array {
    shape: Vec<usize>,
    data: Vec<f64>,
}

impl Array {
    /// The element at an index, where missing leading axes and axes of size 1 repeat.
    fn at(&self, index: &[usize]) -> f64 {
        let own = &index[index.len() - self.shape.len()..];
        let flat =
            own.iter().zip(&self.shape).fold(0, |flat, (&i, &d)| flat * d + if d == 1 { 0 } else { i });
        self.data[flat]
    }

    fn make(shape: Vec<usize>, f: impl Fn(&[usize]) -> f64) -> Array {
        let n: usize = shape.iter().product();
        let index = |mut flat: usize| {
            let mut index = vec![0; shape.len()];
            for (i, &d) in index.iter_mut().zip(&shape).rev() {
                *i = flat % d;
                flat /= d;
            }
            index
        };
        Array { data: (0..n).map(|flat| f(&index(flat))).collect(), shape }
    }
}

#[derive(Debug, Clone)]
enum Expr {
    Leaf(usize),
    Unary(&'static str, Box<Expr>),
    Binary(&'static str, Box<Expr>, Box<Expr>),
    Sum(usize, Box<Expr>),
    Flip(usize, Box<Expr>),
    Swap(Box<Expr>),
    Half(Box<Expr>),
    Product(Box<Expr>, Box<Expr>),
}

const UNARY: &[&str] = &["neg", "exp", "tanh", "sigmoid", "square", "sin", "relu", "sqrt1"];
const BINARY: &[&str] = &["add", "sub", "mul", "div1", "max", "min"];

fn unary(name: &str, x: f64) -> f64 {
    match name {
        "neg" => -x,
        "exp" => x.min(2.0).exp(),
        "tanh" => x.tanh(),
        "sigmoid" => 1.0 / (1.0 + (-x).exp()),
        "square" => x * x,
        "sin" => x.sin(),
        "relu" => x.max(0.0),
        "sqrt1" => (x * x + 1.0).sqrt(),
        _ => unreachable!(),
    }
}

fn binary(name: &str, a: f64, b: f64) -> f64 {
    match name {
        "add" => a + b,
        "sub" => a - b,
        "mul" => a * b,
        "div1" => a / (b * b + 1.0),
        "max" => a.max(b),
        "min" => a.min(b),
        _ => unreachable!(),
    }
}

/// The oracle; `None` when shapes do not fit.
fn slow(e: &Expr, leaves: &[Array]) -> Option<Array> {
    Some(match e {
        Expr::Leaf(i) => leaves[*i].clone(),
        Expr::Unary(name, x) => {
            let x = slow(x, leaves)?;
            Array { data: x.data.iter().map(|&v| unary(name, v)).collect(), shape: x.shape }
        }
        Expr::Binary(name, a, b) => {
            let (a, b) = (slow(a, leaves)?, slow(b, leaves)?);
            let rank = a.shape.len().max(b.shape.len());
            let size = |s: &[usize], i: usize| if i + s.len() >= rank { s[i + s.len() - rank] } else { 1 };
            let mut shape = Vec::new();
            for i in 0..rank {
                let (x, y) = (size(&a.shape, i), size(&b.shape, i));
                if x != y && x != 1 && y != 1 {
                    return None;
                }
                shape.push(if x == 1 { y } else { x });
            }
            Array::make(shape, |i| binary(name, a.at(i), b.at(i)))
        }
        Expr::Sum(axis, x) => {
            let x = slow(x, leaves)?;
            let n = *x.shape.get(*axis)?;
            let mut shape = x.shape.clone();
            shape.remove(*axis);
            Array::make(shape, |i| {
                let at = |k: usize| [&i[..*axis], &[k], &i[*axis..]].concat();
                (0..n).map(|k| x.at(&at(k))).sum()
            })
        }
        Expr::Flip(axis, x) => {
            let x = slow(x, leaves)?;
            let n = *x.shape.get(*axis)?;
            Array::make(x.shape.clone(), |i| {
                let mut i = i.to_vec();
                i[*axis] = n - 1 - i[*axis];
                x.at(&i)
            })
        }
        Expr::Swap(x) => {
            let x = slow(x, leaves)?;
            let n = x.shape.len();
            if n < 2 {
                return None;
            }
            let mut shape = x.shape.clone();
            shape.swap(n - 1, n - 2);
            Array::make(shape, |i| {
                let mut i = i.to_vec();
                i.swap(n - 1, n - 2);
                x.at(&i)
            })
        }
        Expr::Half(x) => {
            let x = slow(x, leaves)?;
            let n = x.shape.len();
            let mut shape = x.shape.clone();
            let last = shape.last_mut()?;
            *last = last.div_ceil(2);
            Array::make(shape, |i| {
                let mut i = i.to_vec();
                i[n - 1] *= 2;
                x.at(&i)
            })
        }
        Expr::Product(a, b) => {
            let (a, b) = (slow(a, leaves)?, slow(b, leaves)?);
            let (&[m, k], &[k2, n]) = (&a.shape[..], &b.shape[..]) else { return None };
            if k != k2 {
                return None;
            }
            Array::make(vec![m, n], |i| (0..k).map(|l| a.at(&[i[0], l]) * b.at(&[l, i[1]])).sum())
        }
    })
}

fn fast(e: &Expr, leaves: &[Tensor]) -> Tensor {
    match e {
        Expr::Leaf(i) => leaves[*i].clone(),
        Expr::Unary(name, x) => {
            let x = fast(x, leaves);
            match *name {
                "neg" => -x,
                "exp" => x.minimum(2.0).exp(),
                "tanh" => x.tanh(),
                "sigmoid" => x.sigmoid(),
                "square" => x.square(),
                "sin" => x.sin(),
                "relu" => x.relu(),
                _ => (x.square() + 1.0).sqrt(),
            }
        }
        Expr::Binary(name, a, b) => {
            let (a, b) = (fast(a, leaves), fast(b, leaves));
            match *name {
                "add" => a + b,
                "sub" => a - b,
                "mul" => a * b,
                "div1" => a / (b.square() + 1.0),
                "max" => a.maximum(&b),
                _ => a.minimum(&b),
            }
        }
        Expr::Sum(axis, x) => fast(x, leaves).sum(*axis),
        Expr::Flip(axis, x) => fast(x, leaves).flip(*axis),
        Expr::Swap(x) => fast(x, leaves).t(),
        Expr::Half(x) => fast(x, leaves).slice(-1, None, None, 2),
        Expr::Product(a, b) => fast(a, leaves).matmul(&fast(b, leaves)),
    }
}

fn random(source: &mut Source, depth: usize) -> Expr {
    if depth == 0 {
        return Expr::Leaf(source.below(4));
    }
    let sub = |s: &mut Source| Box::new(random(s, depth - 1));
    match source.below(10) {
        0..3 => Expr::Unary(UNARY[source.below(UNARY.len())], sub(source)),
        3..6 => Expr::Binary(BINARY[source.below(BINARY.len())], sub(source), sub(source)),
        6 => Expr::Sum(source.below(2), sub(source)),
        7 => Expr::Flip(source.below(2), sub(source)),
        8 => {
            if source.below(2) == 0 {
                Expr::Swap(sub(source))
            } else {
                Expr::Half(sub(source))
            }
        }
        _ => Expr::Product(sub(source), sub(source)),
    }
}

fn leaves(source: &mut Source) -> Vec<Array> {
    let n = [1, 2, 3, 5][source.below(4)];
    [vec![n, n], vec![n], vec![n, 1], vec![]]
        .into_iter()
        .map(|shape| {
            let count = shape.iter().product();
            Array { data: (0..count).map(|_| source.unit() * 3.0 - 1.5).collect(), shape }
        })
        .collect()
}

#[test]
fn random_expressions_agree_with_the_oracle() {
    let mut checked = 0;
    for seed in 0..6000u64 {
        let mut source = Source(seed);
        let depth = 1 + source.below(5);
        let e = random(&mut source, depth);
        let arrays = leaves(&mut source);
        let Some(want) = slow(&e, &arrays) else { continue };
        let tensors: Vec<Tensor> =
            arrays.iter().map(|a| Tensor::from_vec(a.data.clone(), &a.shape)).collect();
        let got = fast(&e, &tensors);
        assert_eq!(**got.shape(), want.shape[..], "seed {seed}: {e:?}");
        for (g, w) in got.to_vec::<f64>().iter().zip(&want.data) {
            assert!((g - w).abs() <= 1e-9 * (1.0 + w.abs()), "seed {seed}: {g} instead of {w} in {e:?}");
        }
        // Owned operands that hand their memory on must not have changed the leaves.
        for (t, a) in tensors.iter().zip(&arrays) {
            assert_eq!(t.to_vec::<f64>(), a.data, "seed {seed}: a leaf changed under {e:?}");
        }
        checked += 1;
        if seed % 8 == 0 {
            check_gradient(seed, &e, &arrays, &tensors);
        }
    }
    assert!(checked > 2000, "only {checked} expressions had fitting shapes");
}

/// Central differences of the oracle, skipped where a kink lies within the step.
fn check_gradient(seed: u64, e: &Expr, arrays: &[Array], tensors: &[Tensor]) {
    let total = |arrays: &[Array]| slow(e, arrays).map_or(0.0, |y| y.data.iter().sum::<f64>());
    let (_, pull) = vjp(|x| vec![fast(e, x).sum(())], tensors);
    let grads = pull.call(&[Tensor::ones((), F64)]).unwrap();
    for (i, g) in grads.iter().enumerate() {
        let got = g.as_ref().map_or_else(|| vec![0.0; arrays[i].data.len()], |g| g.to_vec::<f64>());
        for (k, g) in got.iter().enumerate() {
            let slope = |h: f64| {
                let moved = |by: f64| {
                    let mut arrays = arrays.to_vec();
                    arrays[i].data[k] += by;
                    total(&arrays)
                };
                (moved(h) - moved(-h)) / (2.0 * h)
            };
            let (fine, coarse) = (slope(1e-6), slope(1e-5));
            let smooth = (fine - coarse).abs() <= 1e-4 * (1.0 + fine.abs());
            let close = (g - fine).abs() <= 1e-4 * (1.0 + fine.abs());
            assert!(close || !smooth, "seed {seed}: leaf {i}, element {k}: {g} instead of {fine} in {e:?}");
        }
    }
}
