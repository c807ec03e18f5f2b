//! Decisions and loops as text: what is read back computes the same, and what was damaged is refused or still sound.

use thalweg_core::DType;
use thalweg_graph::{Graph, Traced};
use thalweg_runtime::{Session, cond, parse_graph, scan, while_loop};
use thalweg_tensor::{Meta, Rng, Tensor, grad};

type Function = fn(&Tensor) -> Tensor;

fn choice(x: &Tensor) -> Tensor {
    cond(&x.sum(()).gt(0.0), || x.tanh(), || x * 2.0)
}

fn running_sum(x: &Tensor) -> Tensor {
    let scale = x.amax(0);
    let (last, all) = scan(Tensor::zeros([3], DType::F32), x.clone(), |sum: Tensor, row: Tensor| {
        let sum = &sum * 0.5 + &row * &scale;
        (sum.clone(), sum.sigmoid())
    });
    all.sum(0) + last
}

fn doubled(x: &Tensor) -> Tensor {
    let n = Tensor::from_slice(&[0i64], ());
    while_loop((x.clone(), n), |(x, _)| x.abs().sum(()).lt(50.0), |(x, n)| (x * 2.0 + 0.1, n + 1i64)).0
}

/// A loop in a branch in a loop: texts in texts in texts.
fn nested(x: &Tensor) -> Tensor {
    let (last, _) = scan(Tensor::zeros([3], DType::F32), x.clone(), |h: Tensor, row: Tensor| {
        let h = cond(&row.sum(()).gt(0.0), || doubled(&(&h + &row)), || &h - &row);
        (h.clone(), h)
    });
    last
}

const FUNCTIONS: [(&str, Function); 4] =
    [("cond", choice), ("scan", running_sum), ("while", doubled), ("nested", nested)];

fn traced(f: impl Fn(&Tensor) -> Tensor) -> Traced {
    Traced::record(&[Meta::new(DType::F32, [4, 3])], |x| vec![f(&x[0])])
}

fn run(graph: Graph, captured: &[Tensor], x: &Tensor) -> Vec<u32> {
    let mut session = Session::bound(graph, Vec::new(), captured.to_vec()).unwrap();
    let (input, output) = (session.graph().inputs[0].clone(), session.graph().outputs[0].0.clone());
    let y = session.run(&[(&input, x)], &[&output]).unwrap();
    y[0].to_vec::<f32>().into_iter().map(f32::to_bits).collect()
}

#[test]
fn what_is_read_back_is_the_same_and_computes_the_same() {
    let mut rng = Rng::seed(1);
    for (name, f) in FUNCTIONS {
        let slope = move |x: &Tensor| grad(|x: &Tensor| f(x).square().sum(()))(x);
        for Traced { graph, captured, .. } in [traced(f), traced(slope)] {
            let text = graph.to_string();
            let read = parse_graph(&text).unwrap_or_else(|e| panic!("{name}: {e}\n{text}"));
            assert_eq!(read.to_string(), text, "{name}");
            for _ in 0..2 {
                let x = rng.normal([4, 3], 0.0, 1.0);
                assert_eq!(run(read.clone(), &captured, &x), run(graph.clone(), &captured, &x), "{name}");
            }
        }
    }
}

#[test]
fn bodies_that_do_not_fit_their_op_are_refused() {
    let refused = |from: &str, to: &str, f: Function| {
        let text = traced(f).graph.to_string();
        assert!(text.contains(from), "{from} is not in\n{text}");
        match parse_graph(&text.replace(from, to)) {
            Ok(graph) => panic!("read:\n{graph}"),
            Err(e) => e.to_string(),
        }
    };
    let error = refused("n_state:1", "n_state:2", running_sum);
    assert!(error.contains("another number of operands"), "{error}");
    let error = refused("n_steps:4", "n_steps:5", running_sum);
    assert!(error.contains("is not what its bodies were traced with"), "{error}");
    let error = refused("n_steps:4", "n_steps:18446744073709551615", running_sum);
    assert!(error.contains("scan") || error.contains("elements"), "{error}");
    let error = refused("order:[0]", "order:[1]", choice);
    assert!(error.contains("have no order"), "{error}");
    let error = refused("Cond(", "Loop(", choice);
    assert!(error.contains("no decision and no loop"), "{error}");
}

/// Damaged texts are errors or graphs that plan; never a panic.
#[test]
fn damaged_texts_do_no_harm() {
    let mut state = 7u64;
    let mut next = |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    };
    let (mut n_read, mut n_refused) = (0, 0);
    for (name, f) in FUNCTIONS {
        let text = traced(f).graph.to_string();
        for _ in 0..150 {
            let mut bytes = text.clone().into_bytes();
            for _ in 0..1 + next(3) {
                let at = next(bytes.len());
                match next(3) {
                    0 => bytes[at] = b"0123456789:[](),\\\" nvx"[next(22)],
                    1 => drop(bytes.remove(at)),
                    _ => bytes.insert(at, b"0123456789:[](),\\\" nvx"[next(22)]),
                }
            }
            let Ok(damaged) = String::from_utf8(bytes) else { continue };
            match parse_graph(&damaged) {
                Ok(graph) => {
                    n_read += 1;
                    let read =
                        parse_graph(&graph.to_string()).unwrap_or_else(|e| panic!("{name}: {e}\n{damaged}"));
                    assert_eq!(read.to_string(), graph.to_string());
                }
                Err(_) => n_refused += 1,
            }
        }
    }
    println!("{n_read} read, {n_refused} refused");
    assert!(n_refused > 100);
}
