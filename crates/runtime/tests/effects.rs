//! Ops that do something besides computing: as often and in the order in which they stand, compiled or not.

use std::process::Command;
use std::sync::{Arc, Mutex};

use thalweg_core::{DType, View, ViewMut};
use thalweg_graph::Traced;
use thalweg_runtime::{JitOptions, Session, cond, jit, jit_with, probe, scan};
use thalweg_tensor::ops::CustomOp;
use thalweg_tensor::{Meta, OpError, Param, Tensor, custom};

/// Writes its name into a list.
struct Say(&'static str, Arc<Mutex<Vec<&'static str>>>);

impl CustomOp for Say {
    fn name(&self) -> &str {
        self.0
    }
    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        Ok(x[0].clone())
    }
    fn has_effect(&self) -> bool {
        true
    }
    fn eval(&self, x: &[&View<'_>], y: &mut ViewMut<'_>) {
        self.1.lock().unwrap().push(self.0);
        y.map_f32(x[0], |v| v);
    }
}

/// What `f` says of a call, eagerly, compiled, and compiled without any pass.
fn said(f: impl Fn(Tensor, &dyn Fn(&'static str, &Tensor)) -> Tensor, x: &Tensor) -> [Vec<&'static str>; 3] {
    let list = Arc::<Mutex<Vec<&'static str>>>::default();
    let say = |name: &'static str, x: &Tensor| {
        custom(Say(name, list.clone()), &[x]);
    };
    let take = || std::mem::take(&mut *list.lock().unwrap());
    f(x.clone(), &say);
    let eager = take();
    let compiled = [JitOptions::default(), JitOptions::plain()].map(|options| {
        let mut compiled = jit_with(options, |x: Tensor| f(x, &say));
        compiled.call(x.clone()).unwrap();
        let first = take();
        compiled.call(x.clone()).unwrap();
        assert_eq!(first, take(), "every call says the same");
        first
    });
    let [default, plain] = compiled;
    [eager, default, plain]
}

#[test]
fn what_nobody_reads_is_done_and_in_order() {
    // The group that `late` reads needs what is behind `early`: one of them alone could come first.
    let f = |x: Tensor, say: &dyn Fn(&'static str, &Tensor)| {
        let e = x.exp();
        say("late", &(&e * 2.0));
        say("early", &x);
        let y = (&e + x.cumsum(0)).tanh();
        say("end", &y);
        y
    };
    let said = said(f, &Tensor::from([1.0f32, 2.0]));
    for list in &said {
        assert_eq!(list[..], said[0], "{said:?}");
    }
    assert!(said[0].len() >= 3 && said[0].ends_with(&["end"]));
}

#[test]
fn an_order_that_fusion_would_turn_around_is_kept() {
    let list = Arc::<Mutex<Vec<&'static str>>>::default();
    let hand_on = |name: &'static str, x: &Tensor| custom(Say(name, list.clone()), &[x]);
    // `b` feeds what would be one group with the operand of `a`.
    let mut f = jit(|x: Tensor| {
        let e = x.exp();
        let _ = hand_on("a", &e);
        let x = hand_on("b", &x);
        (e + x).tanh()
    });
    f.call(Tensor::from([1.0f32, 2.0])).unwrap();
    assert_eq!(*list.lock().unwrap(), ["a", "b"]);
}

#[test]
fn neither_a_branch_nor_a_budget_changes_how_often() {
    let branches = |x: Tensor, say: &dyn Fn(&'static str, &Tensor)| {
        let sum = x.sum(());
        let then = || {
            say("then", &x);
            x.exp()
        };
        cond(&sum.gt(0.0), then, || {
            say("otherwise", &x);
            -&x
        });
        x + 1.0
    };
    let said = said(branches, &Tensor::from([1.0f32, 2.0]));
    assert_eq!(said, [["then"], ["then"], ["then"]]);
    let list = Arc::<Mutex<Vec<&'static str>>>::default();
    let w = Param::new("w", Tensor::ones([256], DType::F32));
    let mut f = jit_with(JitOptions::default().memory_budget(1), |x: Tensor| {
        let mut h = x * w.get();
        for _ in 0..12 {
            h = h.sin().cumsum(0);
        }
        let h = custom(Say("middle", list.clone()), &[&h.stop_gradient()]) + h;
        let mut h = h.sin();
        for _ in 0..12 {
            h = h.sin().cumsum(0);
        }
        h.sum(()).grad(&[&w]).remove(0)
    });
    f.call(Tensor::ones([256], DType::F32)).unwrap();
    assert_eq!(*list.lock().unwrap(), ["middle"]);
}

#[test]
fn a_session_does_what_its_values_are_there_for() {
    let list = Arc::<Mutex<Vec<&'static str>>>::default();
    let metas = [Meta::new(DType::F32, [2]), Meta::new(DType::F32, [2])];
    let traced = Traced::record(&metas, |x| {
        let (a, b) = (x[0].exp(), x[1].exp());
        custom(Say("a", list.clone()), &[&a]);
        custom(Say("b", list.clone()), &[&b]);
        vec![a, b]
    });
    let mut session = Session::of(traced).unwrap();
    let x = Tensor::from([1.0f32, 2.0]);
    session.run(&[("x0", &x)], &["y0"]).unwrap();
    assert_eq!(*list.lock().unwrap(), ["a"]);
}

/// Prints; run by the test below in a process of its own, whose output can be looked at.
#[test]
fn printing() {
    let w = Param::new("w", Tensor::from([2.0f32]));
    let step = |x: Tensor| {
        probe("dropped", &(&x * 2.0));
        let y = cond(&x.sum(()).gt(0.0), || probe("then", &(w.get() * &x)).exp(), || x.clone());
        let turn = |s: Tensor, x: Tensor| (probe("turn", &(s * &x)).sin(), x);
        let (s, _) = scan(y, Tensor::from([1.0f32, 2.0]), turn);
        s.sum(()).grad(&[&w]).remove(0)
    };
    println!("eager");
    step(Tensor::from([1.0f32]));
    println!("compiled");
    let mut f = jit(step);
    f.call(Tensor::from([1.0f32])).unwrap();
    println!("end");
    assert!(f.verify(Tensor::from([1.0f32]), 1e-5).unwrap().is_none());
}

#[test]
fn probes_print_the_same_lines_compiled_and_nothing_for_gradients_or_comparisons() {
    let this = std::env::current_exe().unwrap();
    let out = Command::new(this).args(["--exact", "printing", "--nocapture"]).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let (_, rest) = text.split_once("eager\n").unwrap_or_else(|| panic!("{text}"));
    let (eager, rest) = rest.split_once("compiled\n").unwrap();
    let (compiled, after) = rest.split_once("end\n").unwrap();
    assert_eq!(eager, compiled);
    let names: Vec<&str> = eager.lines().filter_map(|l| l.split(':').next()).collect();
    assert_eq!(names, ["dropped", "then", "turn", "turn"]);
    assert!(!after.contains("turn") && out.status.success(), "{text}");
}
