//! What stops or replaces a gradient does so inside bodies and graphs as it does in eager code.

use thalweg_core::DType;
use thalweg_graph::{Graph, Traced};
use thalweg_runtime::{Session, cond, jit, parse_graph, scan, while_loop};
use thalweg_tensor::{Meta, Param, Tensor, custom_vjp, grad, hvp, no_grad, value_and_grad};

/// Something that a body may do to what it is given; the shape stays.
type Marked = fn(&Tensor) -> Tensor;

fn clipped(x: &Tensor) -> Tensor {
    custom_vjp(|x| vec![x[0].sin()], |x, _, dy| vec![Some(dy[0].clamp(-0.3, 0.3) * &x[0])], &[x]).remove(0)
}

/// A rule that reads the result, so that its second derivative goes through the result.
fn raised(x: &Tensor) -> Tensor {
    custom_vjp(|x| vec![x[0].exp()], |_, y, dy| vec![Some(&dy[0] * &y[0] * 0.5)], &[x]).remove(0)
}

/// A rule that reads something from around it.
fn scaled(x: &Tensor) -> Tensor {
    let scale = x.mean(()).stop_gradient() + 2.0;
    custom_vjp(|x| vec![x[0].clone()], move |_, _, dy| vec![Some(&dy[0] * &scale)], &[x]).remove(0)
}

/// A rule of two operands and three results, one of them no float, that is not linear in the gradients.
fn several(x: &Tensor) -> Tensor {
    let doubled = x * 2.0;
    let forward = |x: &[Tensor]| vec![&x[0] * &x[1], x[0].gt(0.0), x[1].sum(())];
    let backward = |x: &[Tensor], y: &[Tensor], dy: &[Tensor]| {
        vec![Some(&dy[0] * &dy[2] * &x[1]), Some(dy[0].tanh() + &dy[2] + &y[0] * 0.1)]
    };
    let y = custom_vjp(forward, backward, &[x, &doubled]);
    y[1].where_(&y[0], &(&y[0] * 0.5)) + y[2].tanh()
}

/// A rule inside the forward of a rule counts for nothing; one inside a backward counts for second derivatives.
fn inside(x: &Tensor) -> Tensor {
    custom_vjp(|x| vec![clipped(&x[0])], |x, _, dy| vec![Some(&dy[0] * clipped(&x[0]))], &[x]).remove(0)
}

const MARKED: [(&str, Marked); 13] = [
    ("stop_gradient", |x| x.tanh().stop_gradient() * x),
    ("no_grad", |x| no_grad(|| x.tanh() * 2.0) * x + no_grad(|| x.exp())),
    ("stopped result", |x| x.sin().stop_gradient()),
    ("view in no_grad", |x| no_grad(|| x.reshape([3, 1])).reshape([3]) * x),
    ("library", |x| x.hardtanh(-0.4, 0.4) + x.logsumexp(0)),
    ("variable", |x| {
        let v = (x * 2.0).requires_grad();
        v.square().sum(()).grad(&[&v]).remove(0) * x
    }),
    ("derivative", |x| grad(|v| (v * v * v).sum(()))(x) * x + value_and_grad(|v| (v * v).sum(()))(x).0),
    ("derivative in no_grad", |x| no_grad(|| grad(|v| (v * v * v).sum(()))(x)) * x),
    ("clipped", clipped),
    ("raised", raised),
    ("scaled", scaled),
    ("several", several),
    ("inside", inside),
];

/// Their rules are not linear in the gradient that they are given. A second derivative runs the forward of a loop's turn again, so
/// that what eager code hands to such a rule as one gradient comes in two parts.
const NOT_LINEAR: [&str; 3] = ["clipped", "several", "inside"];

/// A body around it.
type Around = fn(&dyn Fn(&Tensor) -> Tensor, &Tensor) -> Tensor;

fn times(n: i64, x: Tensor, body: impl Fn(Tensor) -> Tensor) -> Tensor {
    while_loop((x, Tensor::scalar(0i64)), |(_, i)| i.lt(n), |(x, i)| (body(x), i + 1i64)).0
}

const AROUND: [(&str, Around); 6] = [
    ("nothing", |f, x| f(x)),
    ("cond", |f, x| cond(&x.sum(()).gt(0.0), || f(&(x * 0.7)), || f(x) * 2.0)),
    ("scan", |f, x| {
        let rows = Tensor::stack(&[x.clone(), x * 0.5], 0);
        let (last, each) = scan(x.clone(), rows, |s: Tensor, row: Tensor| (f(&(&s * &row)), f(&row) + &s));
        last + each.sum(0)
    }),
    ("while", |f, x| times(2, x.clone(), |s| f(&(s * 0.9)))),
    ("cond in scan", |f, x| {
        let turn = |s: Tensor, row: Tensor| {
            let s = cond(&row.gt(0.0), || f(&(&s * &row)), || f(&s) + &row);
            (s.clone(), s.tanh())
        };
        let (last, each) = scan(x.clone(), x.clone(), turn);
        last + each.sum(0)
    }),
    ("while in cond", |f, x| cond(&x.sum(()).gt(0.0), || times(2, x.clone(), |s| f(&s)), || x.clone())),
];

fn close(what: &str, got: &Tensor, want: &Tensor) {
    for (a, b) in got.to_vec::<f32>().iter().zip(want.to_vec::<f32>()) {
        let near = (a - b).abs() <= 1e-4 * b.abs().max(1.0) || (a.is_nan() && b.is_nan());
        assert!(near, "{what}: {got} instead of {want}");
    }
}

fn operand() -> Tensor {
    Tensor::from([0.3f32, -0.2, 0.6])
}

type Derivative<'a> = Box<dyn Fn(&Tensor) -> Tensor + 'a>;

/// The function, its gradient and the product of its second derivative with a vector. A gradient that nothing flows into is an
/// error of `grad`, so something always does.
fn derivatives(f: &dyn Fn(&Tensor) -> Tensor) -> [Derivative<'_>; 3] {
    let loss = move |x: &Tensor| (f(x) * Tensor::from([1.0f32, 2.0, -3.0]) + x * 0.1).sum(());
    [
        Box::new(f),
        Box::new(move |x| grad(loss)(x)),
        Box::new(move |x| hvp(loss, x, &Tensor::from([1.0f32, 0.5, -1.0]))),
    ]
}

#[test]
fn gradients_of_bodies_are_those_of_eager_code() {
    for (name, marked) in MARKED {
        for (around, body) in AROUND {
            let f = |x: &Tensor| body(&marked, x);
            let n_orders = if NOT_LINEAR.contains(&name) { 2 } else { 3 };
            for (order, f) in derivatives(&f).iter().enumerate().take(n_orders) {
                let compiled = jit(|x: Tensor| f(&x)).call(operand()).unwrap();
                close(&format!("{name} in {around}, derivative {order}"), &compiled, &f(&operand()));
            }
        }
    }
}

#[test]
fn graphs_that_were_traced_or_read_have_the_gradients_of_the_function() {
    let f32s = [Meta::new(DType::F32, [3])];
    for (name, marked) in MARKED {
        for (around, body) in AROUND {
            let loss = |x: &Tensor| (body(&marked, x) * Tensor::from([1.0f32, 2.0, -3.0]) + x * 0.1).sum(());
            let traced = Traced::record(&f32s, |x| vec![loss(&x[0])]);
            let want = grad(loss)(&operand());
            let read = parse_graph(&traced.graph.to_string()).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(read.to_string(), traced.graph.to_string(), "{name} in {around}");
            for graph in [&traced.graph, &read, &thalweg_graph::passes::optimise(&read, |_| true)] {
                let graph: Graph = graph.differentiate("y0", &["x0"]).unwrap();
                let mut session = Session::bound(graph, Vec::new(), traced.captured.clone()).unwrap();
                let got = session.run(&[("x0", &operand())], &["dy0/dx0"]).unwrap();
                close(&format!("{name} in {around} as a graph"), &got[0], &want);
            }
        }
    }
}

#[test]
fn what_is_read_after_it_was_set_is_a_variable_of_its_own() {
    for (around, body) in AROUND {
        for make in [|t| Param::new("w", t), |t| Param::state("w", t)] as [fn(Tensor) -> Param; 2] {
            let run = |compiled: bool| {
                let w = make(operand());
                let turn = |x: &Tensor| {
                    let before = w.get();
                    w.set(x * 2.0 + before.tanh());
                    w.get() * x + before
                };
                let f = |x: Tensor| grad(|x| (body(&turn, x) + x * 0.1).sum(()))(&x);
                let slope = if compiled { jit(f).call(operand()).unwrap() } else { f(operand()) };
                (slope, w.get().stop_gradient())
            };
            let ((got, kept), (want, state)) = (run(true), run(false));
            close(&format!("read after set in {around}"), &got, &want);
            close(&format!("what was set in {around}"), &kept, &state);
        }
    }
}

/// Eager code has a gradient of the value that was set inside; the compiled body does not hand it out, and says so.
#[test]
fn the_gradient_of_a_parameter_that_is_read_after_it_was_set_is_refused() {
    let w = Param::new("w", operand());
    let turn = |x: &Tensor| {
        w.set(w.get() * 2.0);
        w.get() * x
    };
    for (around, body) in &AROUND[1..4] {
        let mut backward = jit(|x: Tensor| {
            let loss = body(&turn, &x).sum(());
            loss.backward();
            loss
        });
        let run = std::panic::AssertUnwindSafe(|| backward.call(operand()));
        let said = *std::panic::catch_unwind(run).unwrap_err().downcast::<String>().unwrap();
        let name = if *around == "while" { "while_loop" } else { around };
        let want = format!("{name}: no gradient: its body sets a parameter and reads it again");
        assert!(said.starts_with(&want) && said.contains("tests/marks.rs:"), "{said}");
        // What does not ask for it has its gradients.
        let f = |x: Tensor| grad(|x| body(&turn, x).sum(()))(&x);
        w.set(operand());
        let compiled = jit(f).call(operand()).unwrap();
        w.set(operand());
        close(around, &compiled, &f(operand()));
    }
}
