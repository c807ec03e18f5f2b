//! A wrong call panics at the user's own line, with the op, both shapes and a hint.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use thalweg_core::DType::{Bool, F32, I64};
use thalweg_tensor::{OpError, Tensor, apply, ops};

/// Panic hooks are global to the process.
static HOOK: Mutex<()> = Mutex::new(());

/// The message and the place of the panic that `f` causes.
fn panic_of(f: impl FnOnce()) -> (String, String, u32) {
    let _one_at_a_time = HOOK.lock().unwrap_or_else(|e| e.into_inner());
    let seen = std::sync::Arc::new(Mutex::new(None));
    let (sink, before) = (seen.clone(), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |info| {
        let at = info.location().expect("panics have a location");
        *sink.lock().unwrap() =
            Some((info.payload_as_str().unwrap_or_default().to_owned(), at.file().to_owned(), at.line()));
    }));
    let outcome = catch_unwind(AssertUnwindSafe(f));
    std::panic::set_hook(before);
    assert!(outcome.is_err(), "the call was accepted");
    let found = seen.lock().unwrap().take();
    found.expect("the hook ran")
}

#[test]
fn panics_point_at_the_users_line() {
    let (a, b) = (Tensor::zeros([2, 3], F32), Tensor::zeros([2, 4], F32));
    let here = line!();
    let calls: Vec<Box<dyn Fn()>> = vec![
        Box::new(|| drop(&a + &b)),
        Box::new(|| drop(a.clone() - &b)),
        Box::new(|| drop(a.matmul(&b))),
        Box::new(|| drop(a.reshape([5]))),
        Box::new(|| drop(a.sum(2))),
        Box::new(|| drop(a.permute([0, 0]))),
        Box::new(|| drop(Tensor::concat(&[&a, &b], 0))),
        Box::new(|| drop(a.select(0, 9))),
        Box::new(|| drop(a.broadcast_to([4, 3]))),
        Box::new(|| assert!(a.item::<f32>() == 0.0)),
        Box::new(|| drop(a.to_vec::<i64>())),
        Box::new(|| drop(Tensor::from_vec(vec![1.0f32; 5], [2, 3]))),
        Box::new(|| drop(a.squeeze(7))),
    ];
    for (i, call) in calls.iter().enumerate() {
        let (message, file, line) = panic_of(call);
        assert!(file.ends_with("errors.rs"), "call {i} blames {file}:{line}: {message}");
        assert_eq!(line, here + 2 + i as u32, "call {i}: {message}");
        let op = message.split(':').next().unwrap_or_default();
        assert!(!op.is_empty() && !op.contains(' '), "call {i} does not begin with the op: {message}");
    }
}

#[test]
fn messages_name_both_shapes_and_say_what_to_do() {
    let (a, b) = (Tensor::zeros([2, 3], F32), Tensor::zeros([4, 5], F32));
    let (message, ..) = panic_of(|| drop(a.matmul(&b)));
    for part in ["matmul", "[2, 3]", "[4, 5]", "transpose"] {
        assert!(message.contains(part), "{message:?} lacks {part}");
    }
    let (message, ..) = panic_of(|| drop(Tensor::zeros([2], Bool).exp() + Tensor::zeros([3], I64)));
    assert!(message.contains("[2] and [3]"), "{message}");
}

#[test]
fn the_fallible_core_returns_the_same_as_a_value() {
    let (a, b) = (Tensor::zeros([2, 3], F32), Tensor::zeros([4, 5], F32));
    let error = apply(ops::Matmul, &[&a, &b]).unwrap_err();
    assert!(matches!(error, OpError::Shapes { op: "matmul", .. }), "{error}");
    let error = apply(ops::Add, &[&a]).unwrap_err();
    assert!(matches!(error, OpError::Arity { op: "add", want: 2, got: 1 }), "{error}");
    let error = apply(ops::Exp, &[&Tensor::arange(3)]).unwrap_err();
    assert!(matches!(error, OpError::DType { op: "exp", .. }), "{error}");
}

#[test]
fn absurd_shapes_are_refused_before_memory_is_asked_for() {
    let (message, ..) = panic_of(|| drop(Tensor::zeros([usize::MAX, 8], F32)));
    assert!(message.contains("more elements than memory can hold"), "{message}");
    let huge = Tensor::scalar(1.0).broadcast_to([1 << 40, 1 << 22]);
    assert!(apply(ops::Exp, &[&huge]).is_err(), "a broadcast view may be huge, its copy may not");
}
