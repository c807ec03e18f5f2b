//! A wrong call panics at the user's own line, with the op, both shapes and a hint.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use thalweg_core::DType::{Bool, F32, I64};
use thalweg_tensor::{Meta, OpError, Param, Tensor, apply, ops, trace};

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

/// Checks that what `f` does is refused at line `used`, in words that name it, the line `made` and the fix.
#[track_caller]
fn refused(op: &str, made: u32, used: u32, fix: &str, f: impl FnOnce()) {
    let (message, file, line) = panic_of(f);
    assert!(file.ends_with("errors.rs") && line == used, "blames {file}:{line}, not line {used}: {message}");
    let lines = [format!("tests/errors.rs:{made}:"), format!("tests/errors.rs:{used}:")];
    for part in [&lines[0], &lines[1], fix] {
        assert!(message.contains(part), "{message:?} lacks {part}");
    }
    assert!(message.starts_with(&format!("{op}: ")), "{message:?} does not begin with {op}");
}

/// Traces a function of one vector.
#[track_caller]
fn traced(f: impl FnOnce(&Tensor)) {
    trace::record(&[Meta::new(F32, [3])], |x| {
        f(&x[0]);
        vec![x[0].clone()]
    });
}

#[test]
fn reading_a_traced_value_names_the_lines_that_made_and_read_it() {
    let read = |used: u32, read: fn(&Tensor)| {
        let made = line!() + 1;
        refused("read", made, used, "`cond`", || traced(|x| read(&x.exp())));
    };
    read(line!(), |y| drop(y.to_vec::<f32>()));
    read(line!(), |y| assert!(y.to_array::<[f32; 3]>()[0] > 0.0));
    read(line!(), |y| assert!(y.view().shape().rank() == 1));
    read(line!(), |y| assert!(y.as_slice::<f32>().is_some()));
    let made = line!() + 1;
    refused("read", made, made, "`cond`", || traced(|x| if x.sum(()).item::<f32>() > 0.0 {}));
}

#[test]
fn a_param_that_is_read_while_traced_has_the_line_of_the_reading() {
    let w = Param::new("w", Tensor::ones([3], F32));
    let made = line!() + 1;
    refused("read", made, made, "`cond`", || traced(|_| drop(w.get().to_vec::<f32>())));
    let made = line!() + 1;
    let recording = trace::record(&[], |_| vec![w.get().exp()]);
    assert_eq!(recording.values[0].at.line(), made);
}

#[test]
fn shapes_that_depend_on_traced_values_are_refused_with_both_lines() {
    let shape = |op: &str, used: u32, f: fn(&Tensor, &Tensor)| {
        let made = line!() + 1;
        refused(op, made, used, "outside and pass", || traced(|x| f(x, &x.gt(0.0))));
    };
    shape("nonzero", line!(), |_, mask| drop(mask.nonzero()));
    shape("masked_select", line!(), |x, mask| drop(x.masked_select(mask)));
    shape("index", line!(), |x, mask| drop(x.i(mask)));
    shape("index", line!(), |x, mask| drop(x.index_put(mask, 1.0)));
    shape("unique", line!(), |_, mask| drop(mask.unique()));
    let whole = |op: &str, used: u32, f: fn(&Tensor)| {
        let made = line!() + 1;
        refused(op, made, used, "outside and pass", || traced(|x| f(&x.to_dtype(I64))));
    };
    whole("bincount", line!(), |n| drop(n.bincount(0)));
    whole("repeat_interleave_counts", line!(), |n| drop(n.repeat_interleave_counts(n, 0)));
}

#[test]
fn a_value_of_a_finished_trace_is_refused_wherever_it_goes() {
    let w = Param::new("w", Tensor::zeros([3], F32));
    let mut kept = None;
    let made = line!() + 1;
    traced(|x| kept = Some(x.exp()));
    let kept = kept.unwrap();
    let fix = "return it from the function";
    refused("read", made, line!(), fix, || drop(kept.to_vec::<f32>()));
    refused("log", made, line!(), fix, || drop(kept.log()));
    refused("add", made, line!(), fix, || drop(&Tensor::ones([3], F32) + &kept));
    refused("set", made, line!(), fix, || w.set(kept.clone()));
    refused("nonzero", made, line!(), fix, || drop(kept.nonzero()));
    refused("mul", made, line!(), fix, || traced(|x| drop(x * &kept)));
    refused("set", made, line!(), fix, || traced(|_| w.set(kept.clone())));
    refused("record", made, line!(), fix, || drop(trace::record(&[], |_| vec![kept.clone()])));
    assert_eq!(w.get().to_vec::<f32>(), [0.0; 3]);
}

#[test]
fn a_value_of_a_trace_that_panicked_is_refused() {
    let mut kept = None;
    let made = line!() + 3;
    panic_of(|| {
        traced(|x| {
            kept = Some(x.exp());
            panic!("in the middle")
        });
    });
    refused("neg", made, line!(), "return it", || drop(-kept.unwrap()));
}

#[test]
fn values_of_two_running_traces_do_not_mix() {
    let (outer, inner) = (line!() + 3, line!() + 6);
    let (message, file, line) = panic_of(|| {
        traced(|x| {
            let x = x.exp();
            let other = std::thread::scope(|threads| {
                let other = threads.spawn(|| {
                    traced(|y| drop(y.sin() + &x));
                });
                other.join()
            });
            other.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
    });
    assert!(file.ends_with("errors.rs") && line == inner, "{file}:{line}: {message}");
    for part in [&format!("errors.rs:{outer}:"), &format!("errors.rs:{inner}:"), "add: ", "as an argument"] {
        assert!(message.contains(part), "{message:?} lacks {part}");
    }
}
