//! `cargo xtask golden [--dir PATH]`: expected values and gradients, made with PyTorch, against ours,
//! eager and compiled (with every pass, without each, without all).
//!
//! The format is documented at the head of `golden/generate_golden.py`. Each family of ops has a
//! file here that says how a case is called; an op that no file knows counts as unsupported.

mod attrs;
mod compare;
mod refusals;

mod attn;
mod binary;
mod conv;
mod higher;
mod index;
mod layers;
mod linalg;
mod loss;
mod matmul;
mod norm;
mod optim;
mod reduce;
mod schedule;
mod shape;
mod training;
mod unary;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use thalweg_formats::safetensors;
use thalweg_graph::passes;
use thalweg_runtime::{JitOptions, STAGES, Tree, jit_with};
use thalweg_tensor::{Tensor, vjp};

pub use attrs::Attrs;

/// One case as a family file sees it.
pub struct Call<'a> {
    /// The op.
    pub op: &'a str,
    /// The name of the case among those of its op.
    pub tag: &'a str,
    /// The operands in order, views applied.
    pub x: &'a [Tensor],
    /// Everything that is no tensor.
    pub attrs: &'a Attrs,
}

/// The results, or `None` for an op that the file does not know.
type Caller = fn(&Call<'_>) -> Option<Vec<Tensor>>;

const FAMILIES: &[(&str, Caller)] = &[
    ("unary", unary::call),
    ("binary", binary::call),
    ("reduce", reduce::call),
    ("matmul", matmul::call),
    ("linalg", linalg::call),
    ("conv", conv::call),
    ("norm", norm::call),
    ("index", index::call),
    ("shape", shape::call),
    ("loss", loss::call),
    ("attn", attn::call),
    ("higher", higher::call),
];

/// Right, wrong and why, or `None` for a case that nothing here knows.
type Outcome = Option<Result<(), String>>;

/// Lists of the index whose cases are more than one call: the list, the family, and its file here.
type Run = (&'static str, &'static str, fn(&Value, &BTreeMap<String, Tensor>, &Mode) -> Outcome);

const RUNS: &[Run] = &[
    ("optimizers", "optim", optim::check),
    ("schedules", "schedule", schedule::check),
    ("training", "training", training::check),
    ("layers", "layers", layers::check),
];

/// How the cases of one op went.
#[derive(Default)]
struct Tally {
    passed: usize,
    failed: Vec<String>,
    unsupported: usize,
}

/// How the functions of the cases are run; `None` is eager.
type Mode = Option<JitOptions>;

/// Cases whose results have shapes that depend on data: they are refused inside `jit`, with a message
/// that says so.
const EAGER_ONLY: &[&str] = &[
    "bincount/#f32-free",
    "masked_select/basic",
    "nonzero/#f32-free",
    "repeat_interleave/per",
    "unique/counts#f32-free",
];

/// Runs every case in every mode: the table for eager, a line for each other.
pub fn run_all(dir: &Path, only: Option<&str>) -> Result<()> {
    run(dir, only, None)?;
    let mut modes = vec![
        ("compiled".to_owned(), JitOptions::default()),
        ("compiled without any pass".to_owned(), JitOptions::plain()),
    ];
    for name in passes::PASSES.iter().map(|(name, _)| name).chain(STAGES) {
        modes.push((format!("compiled without {name}"), JitOptions::default().without(name)));
    }
    for (name, options) in modes {
        println!("golden, {name}:");
        run(dir, only, Some(options))?;
    }
    Ok(())
}

/// Runs every case of a folder and prints a line per op. Fails unless all pass. `only` limits the
/// run to one op or family.
pub fn run(dir: &Path, only: Option<&str>, mode: Mode) -> Result<()> {
    let index = std::fs::read_to_string(dir.join("index.json"))
        .with_context(|| format!("no index.json in {}", dir.display()))?;
    let mut index: Value = serde_json::from_str(&index).context("index.json is no JSON")?;
    // Layers came later and have an index of their own.
    let layers = std::fs::read_to_string(dir.join("layers.json")).context("no layers.json")?;
    index["layers"] = serde_json::from_str(&layers).context("layers.json is no JSON")?;
    let mut files: BTreeMap<String, BTreeMap<String, Tensor>> = BTreeMap::new();
    let mut ops: BTreeMap<String, Tally> = BTreeMap::new();
    std::panic::set_hook(Box::new(|_| {}));
    for case in index["cases"].as_array().context("index.json has no cases")? {
        let (op, family) = (text(case, "op"), text(case, "family"));
        if only.is_some_and(|o| o != op && o != family) {
            continue;
        }
        let file = text(case, "file");
        if !files.contains_key(file) {
            files.insert(file.to_owned(), load(&dir.join(file))?);
        }
        let tally = ops.entry(format!("{family}/{op}")).or_default();
        match run_case(case, family, &files[file], &mode) {
            Some(Ok(())) => tally.passed += 1,
            Some(Err(why)) => tally.failed.push(format!("{}: {why}", text(case, "id"))),
            None => tally.unsupported += 1,
        }
    }
    for case in index["errors"].as_array().into_iter().flatten().filter(|_| mode.is_none()) {
        let (op, id) = (text(case, "op"), text(case, "id"));
        if only.is_some_and(|o| o != op && o != "refused") {
            continue;
        }
        let tally = ops.entry(format!("refused/{op}")).or_default();
        match refusals::is_refused(id) {
            Some(Ok(_message)) => tally.passed += 1,
            Some(Err(why)) => tally.failed.push(format!("{id}: {why}")),
            None => tally.unsupported += 1,
        }
    }
    // What is no tensor code, or looks at values, runs eagerly only.
    let eager_only = |list: &str, op: &str| list == "schedules" || op == "LBFGS";
    for (list, family, check) in RUNS {
        for case in index[*list].as_array().into_iter().flatten() {
            // A layer or a schedule is no op: its name says which it is.
            let op = case["op"].as_str().or(case["layer"].as_str()).unwrap_or(text(case, "id"));
            if only.is_some_and(|o| o != op && o != *family) || (mode.is_some() && eager_only(list, op)) {
                continue;
            }
            let file = if *list == "layers" { "layers.safetensors" } else { text(case, "file") };
            if !file.is_empty() && !files.contains_key(file) {
                files.insert(file.to_owned(), load(&dir.join(file))?);
            }
            let none = BTreeMap::new();
            let data = files.get(file).unwrap_or(&none);
            let tally = ops.entry(format!("{family}/{op}")).or_default();
            match guarded(|| check(case, data, &mode)) {
                Some(Ok(())) => tally.passed += 1,
                Some(Err(why)) => tally.failed.push(format!("{}: {why}", text(case, "id"))),
                None => tally.unsupported += 1,
            }
        }
    }
    let _ = std::panic::take_hook();
    report(&ops, mode.is_none())
}

fn report(ops: &BTreeMap<String, Tally>, table: bool) -> Result<()> {
    if table {
        println!("{:<34} {:>6} {:>6} {:>11}", "op", "passed", "failed", "unsupported");
    }
    for (op, t) in ops.iter().filter(|_| table) {
        println!("{op:<34} {:>6} {:>6} {:>11}", t.passed, t.failed.len(), t.unsupported);
    }
    for why in ops.values().flat_map(|t| &t.failed) {
        println!("  {why}");
    }
    let sum = |f: fn(&Tally) -> usize| ops.values().map(f).sum::<usize>();
    let (passed, failed, unsupported) = (sum(|t| t.passed), sum(|t| t.failed.len()), sum(|t| t.unsupported));
    println!("golden: {} ops, {passed} passed, {failed} failed, {unsupported} unsupported", ops.len());
    ensure!(passed > 0 || !table, "no case matched");
    ensure!(failed + unsupported == 0, "{failed} golden cases failed, {unsupported} are unsupported");
    Ok(())
}

/// Every tensor of a safetensors file.
fn load(path: &Path) -> Result<BTreeMap<String, Tensor>> {
    let file = safetensors::open(path)?;
    Ok(file.tensors.into_iter().map(|(name, t)| (name, Tensor::from_buffer(t.buffer, t.shape))).collect())
}

fn run_case(case: &Value, family: &str, data: &BTreeMap<String, Tensor>, mode: &Mode) -> Outcome {
    let call = FAMILIES.iter().find(|(name, _)| *name == family)?.1;
    let outcome = guarded(|| check(case, call, data, mode));
    if mode.is_none() || !EAGER_ONLY.contains(&text(case, "id")) {
        return outcome;
    }
    match outcome {
        Some(Err(why)) if why.contains("the shape of the result depends on values") => Some(Ok(())),
        _ => Some(Err("compiled, though its shape depends on data".to_owned())),
    }
}

/// A panic is a failure of the case.
fn guarded(check: impl FnOnce() -> Outcome) -> Outcome {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)) {
        Ok(outcome) => outcome,
        Err(panic) => Some(Err(format!("panicked: {}", panic_message(&*panic)))),
    }
}

/// Values first, then gradients with respect to the stored tensors, through their views.
fn check(case: &Value, call: Caller, data: &BTreeMap<String, Tensor>, mode: &Mode) -> Outcome {
    let inputs = list(case, "inputs");
    let outputs = list(case, "outputs");
    let names: Vec<String> = inputs.iter().map(|i| text(i, "name").to_owned()).collect();
    let stored: Vec<Tensor> = inputs.iter().map(|i| data[text(i, "key")].clone()).collect();
    let attrs = Attrs::new(&case["attrs"]);
    let op = text(case, "op");
    let tag = text(case, "id").split_once('/').map_or("", |(_, tag)| tag);
    let evaluate = |stored: &[Tensor]| {
        let x: Vec<Tensor> = stored.iter().zip(inputs).map(|(t, i)| apply_view(t, &i["view"])).collect();
        call(&Call { op, tag, x: &x, attrs: &attrs })
    };
    let known = std::cell::Cell::new(true);
    let values = in_mode(mode, &stored, &|x| {
        evaluate(x).unwrap_or_else(|| {
            known.set(false);
            Vec::new()
        })
    });
    if !known.get() {
        return None;
    }
    Some((|| {
        if values.len() != outputs.len() {
            return Err(format!("{} results instead of {}", values.len(), outputs.len()));
        }
        let (rtol, atol) = (number(case, "rtol"), number(case, "atol"));
        let either: Vec<usize> =
            list(case, "torch_f32_differs_at").iter().filter_map(Value::as_u64).map(|i| i as usize).collect();
        for (i, (got, out)) in values.iter().zip(outputs).enumerate() {
            compare::close(got, &data[text(out, "key")], rtol, atol, &either)
                .map_err(|e| format!("result {i}: {e}"))?;
        }
        let wanted: Vec<usize> = (0..inputs.len()).filter(|&i| inputs[i]["grad_key"].is_string()).collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let with_ct: Vec<usize> = (0..outputs.len()).filter(|&i| outputs[i]["ct_key"].is_string()).collect();
        let cotangents = with_ct.iter().map(|&i| data[text(&outputs[i], "ct_key")].clone());
        let operands: Vec<Tensor> = stored.iter().cloned().chain(cotangents).collect();
        let grads = in_mode(mode, &operands, &|operands| {
            let (stored, cotangents) = operands.split_at(inputs.len());
            let variables: Vec<Tensor> = wanted.iter().map(|&i| stored[i].clone()).collect();
            let (_, pull) = vjp(
                |v| {
                    let mut x = stored.to_vec();
                    wanted.iter().zip(v).for_each(|(&i, v)| x[i] = v.clone());
                    let y = evaluate(&x).expect("known: it was just called");
                    with_ct.iter().map(|&i| y[i].clone()).collect()
                },
                &variables,
            );
            let grads = pull.call(cotangents).unwrap_or_else(|e| panic!("{e}"));
            grads.into_iter().zip(&variables).map(|(g, v)| g.unwrap_or_else(|| v.zeros_like())).collect()
        });
        for (&i, g) in wanted.iter().zip(grads) {
            compare::close(&g, &data[text(&inputs[i], "grad_key")], rtol, atol, &[])
                .map_err(|e| format!("gradient of {}: {e}", names[i]))?;
        }
        Ok(())
    })())
}

/// Calls a function eagerly or compiled.
fn in_mode(mode: &Mode, x: &[Tensor], f: &dyn Fn(&[Tensor]) -> Vec<Tensor>) -> Vec<Tensor> {
    repeated(mode, |x: Vec<Tensor>| f(&x))(x.to_vec())
}

/// A function that is called again and again, eagerly or compiled.
fn repeated<'a, A: Tree + 'a, R: Tree + 'a>(
    mode: &Mode,
    f: impl FnMut(A) -> R + 'a,
) -> Box<dyn FnMut(A) -> R + 'a> {
    match mode {
        None => Box::new(f),
        Some(options) => {
            let mut compiled = jit_with(options.clone(), f);
            Box::new(move |args| compiled.call(args).unwrap_or_else(|e| panic!("{e}")))
        }
    }
}

/// Applies the recipe of a non-contiguous operand.
fn apply_view(t: &Tensor, steps: &Value) -> Tensor {
    let int = |v: &Value| v.as_i64().expect("an integer") as isize;
    let ints = |v: &Value| v.as_array().expect("a list").iter().map(int).collect::<Vec<isize>>();
    steps.as_array().into_iter().flatten().fold(t.clone(), |t, step| match step[0].as_str() {
        Some("permute") => t.permute(&ints(&step[1])[..]),
        Some("slice") => t.slice(int(&step[1]), Some(int(&step[2])), Some(int(&step[3])), int(&step[4])),
        Some("expand") => t.expand(&ints(&step[1])[..]),
        Some("select") => t.select(int(&step[1]), int(&step[2])),
        _ => panic!("unknown view step {step}"),
    })
}

fn text<'a>(v: &'a Value, key: &str) -> &'a str {
    v[key].as_str().unwrap_or_default()
}

fn number(v: &Value, key: &str) -> f64 {
    v[key].as_f64().unwrap_or_default()
}

fn list<'a>(v: &'a Value, key: &str) -> &'a [Value] {
    v[key].as_array().map_or(&[], Vec::as_slice)
}

fn panic_message(p: &(dyn std::any::Any + Send)) -> String {
    let text = p.downcast_ref::<String>().map(String::as_str).or_else(|| p.downcast_ref::<&str>().copied());
    text.unwrap_or("(no message)").to_owned()
}
