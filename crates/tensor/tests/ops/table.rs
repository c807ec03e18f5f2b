//! The checks. Each takes one sample call and says what is wrong with it, if anything.

use std::sync::atomic::{AtomicU32, Ordering};

use thalweg_core::{Buffer, DType, ViewMut};
use thalweg_kernels::gemm::Pieces;
use thalweg_tensor::ops::sample::{Draw, Sample};
use thalweg_tensor::{Meta, OpError, Tensor, apply, vjp};

use crate::draw::{Source, operands, operands_as, relaid};

type Outcome = Result<(), String>;

fn run(sample: &Sample, x: &[Tensor]) -> Result<Tensor, String> {
    apply(sample.op.clone(), &x.iter().collect::<Vec<_>>()).map_err(|e| e.to_string())
}

fn metas(x: &[Tensor]) -> Vec<&Meta> {
    x.iter().map(Tensor::meta).collect()
}

/// Equal within tolerances that scale with the larger magnitude; NaN equals NaN.
fn close(what: &str, got: &Tensor, want: &Tensor, rtol: f64, atol: f64) -> Outcome {
    if got.shape() != want.shape() {
        return Err(format!("{what}: shape {} instead of {}", got.shape(), want.shape()));
    }
    let (g, w) = (got.to_dtype(DType::F64).to_vec::<f64>(), want.to_dtype(DType::F64).to_vec::<f64>());
    for (i, (&g, &w)) in g.iter().zip(&w).enumerate() {
        let same =
            g == w || (g.is_nan() && w.is_nan()) || (g - w).abs() <= atol + rtol * w.abs().max(g.abs());
        if !same {
            return Err(format!("{what}: element {i} is {g:e} instead of {w:e}"));
        }
    }
    Ok(())
}

pub fn inferred(sample: &Sample, seed: u64) -> Outcome {
    let x = operands(sample, seed);
    let want = sample.op.infer(&metas(&x)).map_err(|e| e.to_string())?;
    let y = run(sample, &x)?;
    if *y.meta() != want {
        return Err(format!("result is {}, inferred was {want}", y.meta()));
    }
    let _ = sample.op.cost(&metas(&x), &want);
    Ok(())
}

pub fn fast_against_reference(sample: &Sample, seed: u64) -> Outcome {
    for (dtype, tol) in [(DType::F32, 2e-6), (DType::F64, 1e-13), (DType::F16, 2e-3), (DType::BF16, 2e-2)] {
        for how in 0..4 {
            let x: Vec<Tensor> = operands_as(sample, seed, dtype).iter().map(|x| relaid(x, how)).collect();
            let Ok(meta) = sample.op.infer(&metas(&x)) else { continue };
            let views: Vec<_> = x.iter().map(Tensor::view).collect();
            let mut fast = Buffer::scratch(meta.dtype, meta.numel());
            if !sample.op.fast(&views, &mut ViewMut::new(&mut fast, &meta.shape)) {
                continue;
            }
            let mut slow = Buffer::scratch(meta.dtype, meta.numel());
            sample.op.eval(&views, &mut ViewMut::new(&mut slow, &meta.shape)).map_err(|e| e.to_string())?;
            let (fast, slow) =
                (Tensor::from_buffer(fast, &meta.shape), Tensor::from_buffer(slow, &meta.shape));
            close(&format!("fast kernel in {dtype}, layout {how}"), &fast, &slow, tol, tol)?;
        }
    }
    Ok(())
}

pub fn ready_once(sample: &Sample, seed: u64) -> Outcome {
    let x = operands_as(sample, seed, DType::F32);
    let Ok(meta) = sample.op.infer(&metas(&x)) else { return Ok(()) };
    let views: Vec<_> = x.iter().map(Tensor::view).collect();
    let [mut fast, mut then] = [(); 2].map(|()| Buffer::zeros(meta.dtype, meta.numel()));
    let calls: Vec<AtomicU32> = (0..meta.numel()).map(|_| AtomicU32::new(0)).collect();
    let ready = |pieces: Pieces, _: *mut u8| {
        pieces.iter().flat_map(|piece| &calls[piece]).for_each(|n| {
            n.fetch_add(1, Ordering::Relaxed);
        });
    };
    if !sample.op.fast_then(&views, &mut ViewMut::new(&mut then, &meta.shape), &ready) {
        return match calls.iter().all(|n| n.load(Ordering::Relaxed) == 0) {
            true => Ok(()),
            false => Err("called `ready` for a call that it does not cover".into()),
        };
    }
    if !calls.iter().all(|n| n.load(Ordering::Relaxed) == 1) {
        return Err("an element was not ready exactly once".into());
    }
    sample.op.fast(&views, &mut ViewMut::new(&mut fast, &meta.shape));
    let [fast, then] = [fast, then].map(|b| Tensor::from_buffer(b, &meta.shape));
    close("fast_then against fast", &then, &fast, 0.0, 0.0)
}

/// Planes of a result that is kept nowhere come whole and once; that they have its bits is tested with the kernels.
pub fn planes_once(sample: &Sample, seed: u64) -> Outcome {
    let x = operands_as(sample, seed, DType::F32);
    let Ok(meta) = sample.op.infer(&metas(&x)) else { return Ok(()) };
    let views: Vec<_> = x.iter().map(Tensor::view).collect();
    let plane = meta.shape.iter().skip(2).product::<usize>().max(1);
    let calls: Vec<AtomicU32> = (0..meta.numel().div_ceil(plane)).map(|_| AtomicU32::new(0)).collect();
    let ready = |pieces: Pieces, _: *mut u8| {
        for piece in pieces.iter() {
            assert!(
                piece.start.is_multiple_of(plane) && piece.end.is_multiple_of(plane),
                "{piece:?}: {plane}"
            );
            calls[piece.start / plane..piece.end / plane].iter().for_each(|n| {
                n.fetch_add(1, Ordering::Relaxed);
            });
        }
    };
    let is_covered = sample.op.fast_planes(&views, &meta, &ready);
    if is_covered != sample.op.passes_planes(&metas(&x), &meta) {
        return Err("`passes_planes` and `fast_planes` disagree".into());
    }
    match calls.iter().all(|n| n.load(Ordering::Relaxed) == u32::from(is_covered)) {
        true => Ok(()),
        false => Err("a plane did not come once, or came of a call that is not covered".into()),
    }
}

/// Each plane by itself has the bits that it has among the others.
pub fn plane_by_plane(sample: &Sample, seed: u64) -> Outcome {
    let Some(rank) = sample.op.plane_rank() else { return Ok(()) };
    let x = operands_as(sample, seed, DType::F32);
    let [x] = &x[..] else { return Err("an op on planes has one operand".into()) };
    let want = run(sample, std::slice::from_ref(x))?;
    if want.numel() == 0 {
        return Ok(());
    }
    let plane = |t: &Tensor| -> Vec<usize> { t.shape()[t.rank() - rank..].to_vec() };
    let planes = x.reshape([vec![x.numel() / plane(x).iter().product::<usize>()], plane(x)].concat());
    let results: Result<Vec<Tensor>, _> =
        (0..planes.size(0)).map(|i| run(sample, &[planes.narrow(0, i, 1)])).collect();
    let all = Tensor::concat(&results?.iter().collect::<Vec<_>>(), 0);
    close("plane by plane", &all.reshape(want.shape()), &want, 0.0, 0.0)
}

/// Each row by itself has the bits that it has among the others.
pub fn row_by_row(sample: &Sample, seed: u64) -> Outcome {
    let x = operands_as(sample, seed, DType::F32);
    let Ok(meta) = sample.op.infer(&metas(&x)) else { return Ok(()) };
    let Some((cols, on_rows)) = sample.op.on_rows(&metas(&x), &meta) else { return Ok(()) };
    if cols == 0 || meta.numel() == 0 {
        return Ok(());
    }
    let (n, want) = (x[0].numel() / cols, run(sample, &x)?);
    let full = |t: &Tensor| t.shape() == x[0].shape();
    let result_of_row: Vec<usize> = if want.shape() == x[0].shape() { vec![1, cols] } else { vec![1] };
    let mut rows = Vec::new();
    for i in 0..n {
        let row = |t: &Tensor| if full(t) { t.reshape([n, cols]).narrow(0, i, 1) } else { t.clone() };
        let x: Vec<Tensor> = x.iter().map(row).collect();
        let views: Vec<_> = x.iter().map(Tensor::view).collect();
        let shape = result_of_row.clone().into();
        let mut y = Buffer::scratch(meta.dtype, result_of_row.iter().product());
        if !on_rows.fast(&views, &mut ViewMut::new(&mut y, &shape)) {
            return Err(format!("`{}` has no kernel for rows of {cols}", on_rows.name()));
        }
        rows.push(Tensor::from_buffer(y, &shape));
    }
    let all = Tensor::concat(&rows.iter().collect::<Vec<_>>(), 0);
    close("row by row", &all.reshape(want.shape()), &want, 0.0, 0.0)
}

pub fn layouts(sample: &Sample, seed: u64) -> Outcome {
    let x = operands(sample, seed);
    let want = run(sample, &x)?;
    for how in 0..3 {
        let relaid: Vec<Tensor> = x.iter().map(|x| relaid(x, how)).collect();
        for (a, b) in x.iter().zip(&relaid) {
            close("the relaid operand", b, a, 0.0, 0.0)?;
        }
        close(&format!("layout {how}"), &run(sample, &relaid)?, &want, 1e-12, 1e-12)?;
    }
    Ok(())
}

pub fn half_precision(sample: &Sample, seed: u64) -> Outcome {
    for (dtype, eps) in [(DType::F16, 1.0 / 1024.0), (DType::BF16, 1.0 / 128.0)] {
        let half = operands_as(sample, seed, dtype);
        if half.iter().all(|x| x.dtype() != dtype) || sample.op.infer(&metas(&half)).is_err() {
            continue;
        }
        // The same rounded values in both precisions, so that only the op's own rounding differs.
        let single: Vec<Tensor> = half
            .iter()
            .map(|x| if x.dtype() == dtype { x.to_dtype(DType::F32) } else { x.clone() })
            .collect();
        let (got, want) = (run(sample, &half)?, run(sample, &single)?);
        close(&format!("{dtype} against f32"), &got, &want, 2.0 * eps, 2.0 * eps)?;
    }
    Ok(())
}

/// The gradient of `Σ y·w` with respect to every float operand, or why there is none.
fn gradients(sample: &Sample, x: &[Tensor], w: &Tensor) -> Result<Vec<Option<Tensor>>, OpError> {
    let (_, pull) =
        vjp(|x| vec![apply(sample.op.clone(), &x.iter().collect::<Vec<_>>()).expect("ran before")], x);
    pull.call(std::slice::from_ref(w))
}

/// Differentiates `f` numerically with respect to operand `i` by central differences.
fn numeric(f: impl Fn(&[Tensor]) -> Result<f64, String>, x: &[Tensor], i: usize) -> Result<Tensor, String> {
    let step = 1e-5;
    let at = |k: usize, by: f64| {
        let mut data = x[i].to_vec::<f64>();
        data[k] += by;
        let mut moved = x.to_vec();
        moved[i] = Tensor::from_vec(data, x[i].shape());
        f(&moved)
    };
    let slope = |k: usize| Ok((at(k, step)? - at(k, -step)?) / (2.0 * step));
    Ok(Tensor::from_vec((0..x[i].numel()).map(slope).collect::<Result<Vec<f64>, String>>()?, x[i].shape()))
}

fn weighted(y: &Tensor, w: &Tensor) -> f64 {
    y.to_vec::<f64>().iter().zip(w.to_vec::<f64>()).map(|(y, w)| y * w).sum()
}

/// Operands, results and a cotangent; `None` where the op has no float result to differentiate.
fn differentiable(sample: &Sample, seed: u64) -> Result<Option<(Vec<Tensor>, Tensor)>, String> {
    let x = operands(sample, seed);
    let y = run(sample, &x)?;
    // Its gradient is not its derivative.
    if sample.op.name() == "stop_gradient" {
        return Ok(None);
    }
    if y.dtype() != DType::F64 || x.iter().all(|x| !x.dtype().is_float()) {
        return Ok(None);
    }
    let w = Source::new(seed + 7).uniform(y.shape(), -1.0, 1.0);
    Ok(Some((x, w)))
}

fn check_against_numeric(sample: &Sample, x: &[Tensor], w: &Tensor) -> Outcome {
    let grads = match gradients(sample, x, w) {
        Ok(grads) => grads,
        Err(OpError::NotDifferentiable { .. }) => return Ok(()),
        Err(e) => return Err(e.to_string()),
    };
    for (i, g) in grads.into_iter().enumerate().filter(|(i, _)| x[*i].dtype().is_float()) {
        let want = numeric(|x| Ok(weighted(&run(sample, x)?, w)), x, i)?;
        let g = g.unwrap_or_else(|| x[i].zeros_like());
        if g.dtype() != x[i].dtype() {
            return Err(format!("gradient of operand {i} is {}, the operand is {}", g.meta(), x[i].meta()));
        }
        close(&format!("gradient of operand {i}"), &g, &want, 1e-6, 1e-6)?;
    }
    Ok(())
}

pub fn gradient(sample: &Sample, seed: u64) -> Outcome {
    let Some((x, w)) = differentiable(sample, seed)? else { return Ok(()) };
    check_against_numeric(sample, &x, &w)?;
    for how in 0..3 {
        let moved: Vec<Tensor> = x.iter().map(|x| relaid(x, how)).collect();
        check_against_numeric(sample, &moved, &w)?;
    }
    Ok(())
}

pub fn broadcast_operand(sample: &Sample, seed: u64) -> Outcome {
    let Some((x, w)) = differentiable(sample, seed)? else { return Ok(()) };
    for (i, drawn) in sample.inputs.iter().enumerate() {
        // Repeating values makes ties where an op needs distinct ones.
        let Draw::Float { shape, .. } = drawn else { continue };
        let Some(axis) = shape.iter().position(|&d| d > 1) else { continue };
        let base = x[i].narrow(axis as isize, 0, 1);
        let spread = |base: &Tensor| {
            let mut x = x.clone();
            x[i] = base.broadcast_to(shape);
            x
        };
        let (_, pull) = vjp(
            |b| vec![run(sample, &spread(&b[0])).expect("shapes are as before")],
            std::slice::from_ref(&base),
        );
        let g = match pull.call(std::slice::from_ref(&w)) {
            Ok(g) => g[0].clone().unwrap_or_else(|| base.zeros_like()),
            Err(OpError::NotDifferentiable { .. }) => continue,
            Err(e) => return Err(e.to_string()),
        };
        let want = numeric(|b| Ok(weighted(&run(sample, &spread(&b[0]))?, &w)), &[base], 0)?;
        close(&format!("gradient of broadcast operand {i}"), &g, &want, 1e-6, 1e-6)?;
    }
    Ok(())
}

pub fn duplicates(sample: &Sample, seed: u64) -> Outcome {
    let Some((x, w)) = differentiable(sample, seed)? else { return Ok(()) };
    let [a, b] = &x[..] else { return Ok(()) };
    let both_float = matches!(sample.inputs[..], [Draw::Float { .. }, Draw::Float { .. }]);
    if a.meta() != b.meta() || !both_float {
        return Ok(());
    }
    // The second operand's range is the narrower one where they differ.
    let twice = |b: &[Tensor]| run(sample, &[b[0].clone(), b[0].clone()]);
    let (_, pull) = vjp(|b| vec![twice(b).expect("shapes are as before")], std::slice::from_ref(b));
    let g = match pull.call(std::slice::from_ref(&w)) {
        Ok(g) => g[0].clone().unwrap_or_else(|| b.zeros_like()),
        Err(OpError::NotDifferentiable { .. }) => return Ok(()),
        Err(e) => return Err(e.to_string()),
    };
    let want = numeric(|b| Ok(weighted(&twice(b)?, &w)), std::slice::from_ref(b), 0)?;
    // An op with a kink where its operands are equal has no derivative there.
    if ["maximum", "minimum", "atan2", "fmod", "remainder", "floor_divide"].contains(&sample.op.name()) {
        return Ok(());
    }
    close("gradient of an operand used twice", &g, &want, 1e-6, 1e-6)
}

pub fn second_order(sample: &Sample, seed: u64) -> Outcome {
    let Some((x, w)) = differentiable(sample, seed)? else { return Ok(()) };
    let floats: Vec<usize> = (0..x.len()).filter(|&i| x[i].dtype().is_float()).collect();
    let directions: Vec<Tensor> =
        floats.iter().map(|&i| Source::new(seed + 31 + i as u64).uniform(x[i].shape(), -1.0, 1.0)).collect();
    // h(x) = Σᵢ ⟨∂ᵢ⟨y, w⟩, vᵢ⟩; its gradient needs the gradient of every rule.
    let slope = |x: &[Tensor]| -> Result<Option<Tensor>, OpError> {
        let grads = gradients(sample, x, &w)?;
        let terms =
            floats.iter().zip(&directions).filter_map(|(&i, v)| Some((grads[i].as_ref()? * v).sum(())));
        Ok(terms.reduce(|a, b| a + b))
    };
    let exact = {
        let mut failed = None;
        let (_, pull) = vjp(
            |x| match slope(x) {
                Ok(Some(h)) => vec![h],
                Ok(None) => vec![],
                Err(e) => {
                    failed = Some(e);
                    vec![]
                }
            },
            &x,
        );
        match failed {
            Some(OpError::NotDifferentiable { .. }) => return Ok(()),
            Some(e) => return Err(e.to_string()),
            None => match pull.call(&[Tensor::ones((), DType::F64)]) {
                Ok(g) => g,
                // No gradient flows at all: nothing to differentiate again.
                Err(OpError::Arity { .. }) => return Ok(()),
                Err(OpError::NotDifferentiable { .. }) => return Ok(()),
                Err(e) => return Err(e.to_string()),
            },
        }
    };
    let value = |x: &[Tensor]| Ok(slope(x).map_err(|e| e.to_string())?.map_or(0.0, |h| h.item::<f64>()));
    for &i in &floats {
        let want = numeric(value, &x, i)?;
        let got = exact[i].clone().unwrap_or_else(|| x[i].zeros_like());
        close(&format!("second derivative, operand {i}"), &got, &want, 1e-5, 1e-5)?;
    }
    Ok(())
}

pub fn body(sample: &Sample, seed: u64) -> Outcome {
    let x = operands(sample, seed);
    let Some(want) = sample.op.body(&x) else { return Ok(()) };
    close("value", &run(sample, &x)?, &want, 1e-10, 1e-10)?;
    let Some((x, w)) = differentiable(sample, seed)? else { return Ok(()) };
    let grads = gradients(sample, &x, &w).map_err(|e| e.to_string())?;
    let (_, pull) = vjp(|x| vec![sample.op.body(x).expect("has a body")], &x);
    for (i, (g, want)) in grads.iter().zip(pull.call(&[w]).map_err(|e| e.to_string())?).enumerate() {
        match (g, want) {
            (Some(g), Some(want)) => close(&format!("gradient of operand {i}"), g, &want, 1e-9, 1e-9)?,
            (None, None) => {}
            (g, want) => {
                let zero = x[i].zeros_like();
                close(
                    &format!("gradient of operand {i}"),
                    g.as_ref().unwrap_or(&zero),
                    &want.unwrap_or_else(|| zero.clone()),
                    1e-9,
                    1e-9,
                )?;
            }
        }
    }
    Ok(())
}
