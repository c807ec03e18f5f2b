//! What a compiled function is traced again for.

use std::cell::RefCell;

use thalweg_core::DType;
use thalweg_runtime::jit;
use thalweg_tensor::{Param, Switch, Tensor, ambient, no_grad, try_value_and_grads};

#[test]
fn numbers_in_arguments_are_compared_by_their_bits() {
    let mut f = jit(|(x, s): (Tensor, f64)| x * s);
    for s in [0.0f64, -0.0] {
        let y = f.call((Tensor::from([1.0f32]), s)).unwrap().item::<f32>();
        assert_eq!(y.to_bits(), (s as f32).to_bits());
    }
    for _ in 0..3 {
        f.call((Tensor::from([1.0f32]), f64::NAN)).unwrap();
    }
    assert!(f.explain().starts_with("compiled 3 times"), "{}", f.explain());
    let mut f = jit(|(x, s): (Tensor, f32)| x * f64::from(s));
    for s in [0.0f32, -0.0] {
        let y = f.call((Tensor::from([1.0f32]), s)).unwrap().item::<f32>();
        assert_eq!(y.to_bits(), s.to_bits());
    }
}

#[test]
fn code_that_asks_for_gradients_sees_no_grad() {
    let w = Param::new("w", Tensor::from([2.0f32]));
    let f = RefCell::new(jit(|x: Tensor| {
        let y = w.get() * &x;
        if y.is_tracked() { y * 2.0 } else { y }
    }));
    let call = || f.borrow_mut().call(Tensor::from([1.0f32])).unwrap().item::<f32>();
    assert_eq!((call(), no_grad(call), call()), (4.0, 2.0, 4.0));
    assert!(f.borrow().explain().contains("no_grad"), "{}", f.borrow().explain());
}

#[test]
fn a_gradient_through_a_compiled_call_is_an_error_with_its_line() {
    let three = Tensor::from([3.0f32]);
    let f = RefCell::new(jit(|x: Tensor| x.square().sum(())));
    // The eager path alone would give 1, where eager code gives 7.
    let mixed = |x: &[Tensor]| f.borrow_mut().call(x[0].clone()).unwrap() + x[0].sum(());
    let error = try_value_and_grads(mixed, std::slice::from_ref(&three)).unwrap_err().to_string();
    assert!(error.contains("differentiate inside") && error.contains("signature.rs"), "{error}");

    let w = Param::new("w", Tensor::from([2.0f32]));
    let c = Tensor::from([5.0f32]).requires_grad();
    let mut f = jit(|x: Tensor| (w.get() * &c * &x).sum(()));
    let y = f.call(three.clone()).unwrap();
    assert!((&y + w.get().sum(())).try_grad(&[&w]).is_err());
    assert!((&y + c.sum(())).try_grad(&[&c]).is_err());
    // What does not go through the call is as ever, and so is a call whose results are constants.
    let v = Param::new("v", Tensor::from([1.0f32]));
    assert_eq!((&y * v.get()).sum(()).grad(&[&v])[0].item::<f32>(), 30.0);
    let y = no_grad(|| f.call(three)).unwrap();
    assert_eq!((y * w.get()).sum(()).grad(&[&w])[0].item::<f32>(), 30.0);
}

#[test]
fn backward_inside_leaves_gradients_as_it_does_outside() {
    let run = |compiled: bool| {
        let w = Param::new("w", Tensor::from([2.0f32]));
        let f = |x: Tensor| {
            let loss = (w.get().square() * &x).sum(());
            loss.backward();
            w.grad().expect("left just now") + loss
        };
        let mut step = jit(f);
        let mut seen = Vec::new();
        for x in [3.0f32, 5.0] {
            let x = Tensor::from([x]);
            let y = if compiled { step.call(x).unwrap() } else { f(x) };
            seen.extend([y.item::<f32>(), w.grad().unwrap().item::<f32>()]);
            w.set(w.get() + 1.0);
        }
        step.call(Tensor::from([1.0f32])).unwrap();
        step.call(Tensor::from([1.0f32])).unwrap();
        seen.push(w.grad().unwrap().item::<f32>());
        seen
    };
    assert_eq!(run(true), [24.0, 12.0, 75.0, 30.0, 16.0]);
    assert_eq!(run(false), run(true));
}

struct Batch {
    x: Tensor,
    parts: Vec<Tensor>,
    mask: Option<Tensor>,
    named: std::collections::BTreeMap<String, f64>,
}
thalweg_runtime::tree!(Batch { x, parts, mask, named });

fn batch() -> Batch {
    let one = || Tensor::from([1.0f32, 2.0]);
    Batch { x: one(), parts: vec![one(), one()], mask: None, named: [("rate".to_owned(), 0.5)].into() }
}

#[test]
fn each_compilation_names_what_changed_since_the_most_similar_one() {
    let train = Switch::new("dropout", true);
    let mut f =
        jit(|(b, steps): (Batch, usize)| b.x.sum(()) * steps as f64 * f64::from(u8::from(train.is_on())));
    let mut why = |b: Batch, steps: usize| {
        f.call((b, steps)).unwrap();
        f.explain().lines().last().unwrap().trim().to_owned()
    };
    assert_eq!(why(batch(), 1), "1. first call: (f32[2], f32[2], f32[2])");
    assert_eq!(why(batch(), 1), "1. first call: (f32[2], f32[2], f32[2])");
    assert_eq!(why(batch(), 7), "2. unlike 1: argument.1 was 1, is 7");
    let three = Tensor::from([1.0f32, 2.0, 3.0]);
    let other = Batch { parts: vec![three.clone(), three.clone()], ..batch() };
    let text =
        "3. unlike 2: argument.0.parts[0] was f32[2], is f32[3], argument.0.parts[1] was f32[2], is f32[3]";
    assert_eq!(why(other, 7), text);
    let wide = Batch { x: Tensor::from([1.0f64, 2.0]), ..batch() };
    assert_eq!(why(wide, 1), "4. unlike 1: argument.0.x was f32[2], is f64[2]");
    let fewer = Batch { parts: vec![], mask: Some(three), ..batch() };
    assert_eq!(
        why(fewer, 1),
        "5. unlike 1: argument.0.parts had 2 entries, has 0, argument.0.mask was None, is there"
    );
    let named = Batch { named: [("rate".to_owned(), 0.25), ("decay".to_owned(), 0.1)].into(), ..batch() };
    let text = "6. unlike 1: argument.0.named[\"rate\"] was 0.5, is 0.25, argument.0.named[\"decay\"] is new";
    assert_eq!(why(named, 1), text);
    assert_eq!(
        no_grad(|| why(batch(), 1)),
        "7. unlike 1: gradients were recorded, are not recorded (`no_grad`)"
    );
    let narrow = ambient::computing_in(DType::BF16, || why(batch(), 1));
    assert_eq!(narrow, "8. unlike 1: `autocast` was off, is bf16");
    train.turn(false);
    assert_eq!(why(batch(), 7), "9. unlike 2: dropout was on, is off");
}
