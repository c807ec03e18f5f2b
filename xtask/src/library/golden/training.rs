//! Short training runs, written with layers: the loss of every step, and the weights at the end.

use std::collections::BTreeMap;

use serde_json::Value;
use thalweg_core::DType;
use thalweg_nn::{
    Activation, Adam, AttentionConfig, BatchNorm, Conv2d, Decay, Embedding, Layer, LayerNorm,
    LearnedPositions, Linear, Lstm, MaxPool2d, Module, Optimizer, RecurrentOptions, RmsProp, Rule, Sgd,
    TransformerBlock, TransformerConfig,
};
use thalweg_tensor::{Param, Rng, Tensor};

use super::{Mode, Outcome, compare, list, number, repeated, text};

/// A summand in front of a batch norm changes nothing: its gradient is rounding, which Adam blows up to
/// full steps, so where it ends depends on the precision. (Losses do not, and are compared.)
const WITHOUT_EFFECT: (&str, &str) = ("cnn_adam", "kb");

/// A case with its data.
struct Run<'a> {
    case: &'a Value,
    data: &'a BTreeMap<String, Tensor>,
    mode: &'a Mode,
}

pub fn check(case: &Value, data: &BTreeMap<String, Tensor>, mode: &Mode) -> Outcome {
    let run = Run { case, data, mode };
    let lr = number(&case["optimizer"], "lr");
    Some(match text(case, "id") {
        "mlp_sgd" => mlp(&run, Sgd::new(lr).momentum(number(&case["optimizer"], "momentum"))),
        "cnn_adam" => cnn(&run, Adam::new(lr)),
        "gpt_adamw" => {
            let beta = |i: usize| case["optimizer"]["betas"][i].as_f64().unwrap_or_default();
            let rule = Adam { betas: (beta(0), beta(1)), ..Default::default() };
            let decay = Decay::Decoupled(number(&case["optimizer"], "weight_decay"));
            gpt(&run, Optimizer::new(rule, lr).decay(decay))
        }
        "lstm_rmsprop" => lstm(&run, RmsProp::new(lr)),
        "logreg_lbfgs_free" => logistic_regression(&run, Sgd::new(lr)),
        _ => return None,
    })
}

impl Run<'_> {
    fn stored(&self, kind: &str, name: &str) -> Tensor {
        self.data[&format!("{}:{kind}:{name}", text(self.case, "id"))].clone()
    }

    /// Trains `net`, whose parameters are called there as `names` says: ours, theirs.
    fn train<R: Rule>(
        &self,
        mut opt: Optimizer<R>,
        net: &impl Module,
        names: &[(&str, &str)],
        loss: impl Fn() -> Tensor,
    ) -> Result<(), String> {
        let params = net.params();
        let theirs = |ours: &str| names.iter().find(|(o, _)| *o == ours).map(|(_, t)| *t);
        for p in &params {
            let name = theirs(&p.name).ok_or_else(|| format!("`{}` has no stored value", p.name))?;
            p.param.set(self.stored("init", name));
        }
        let close = |what: String, got: &Tensor, want: &Tensor| {
            let (rtol, atol) = (number(self.case, "rtol"), number(self.case, "atol"));
            compare::close(got, want, rtol, atol, &[]).map_err(|e| format!("{what}: {e}"))
        };
        let mut train = repeated(self.mode, |()| {
            let loss = loss();
            opt.step(net, &loss);
            loss
        });
        for (step, want) in list(self.case, "losses").iter().filter_map(Value::as_f64).enumerate() {
            close(format!("loss of step {step}"), &train(()), &Tensor::full((), want, DType::F32))?;
        }
        for p in &params {
            let name = theirs(&p.name).expect("found above");
            if (text(self.case, "id"), name) == WITHOUT_EFFECT {
                continue;
            }
            close(p.name.clone(), &p.param.get(), &self.stored("final", name))?;
        }
        Ok(())
    }
}

fn mlp<R: Rule>(run: &Run<'_>, opt: Optimizer<R>) -> Result<(), String> {
    let rng = &mut Rng::seed(0);
    let net = (Linear::new(20, 16, rng), Linear::new(16, 5, rng));
    let (x, y) = (run.stored("data", "x"), run.stored("data", "y"));
    let names = [("0.weight", "w1"), ("0.bias", "b1"), ("1.weight", "w2"), ("1.bias", "b2")];
    run.train(opt, &net, &names, || net.1.forward(&net.0.forward(&x).tanh()).cross_entropy(&y))
}

fn cnn<R: Rule>(run: &Run<'_>, opt: Optimizer<R>) -> Result<(), String> {
    let rng = &mut Rng::seed(0);
    let net = (Conv2d::new(1, 4, 3, rng).padding(1), BatchNorm::new(4), Linear::new(36, 3, rng));
    let (x, y) = (run.stored("data", "x"), run.stored("data", "y"));
    let names = [
        ("0.weight", "k"),
        ("0.bias", "kb"),
        ("1.weight", "g"),
        ("1.bias", "be"),
        ("2.weight", "w"),
        ("2.bias", "b"),
    ];
    run.train(opt, &net, &names, || {
        let h = MaxPool2d::new(2).forward(&net.1.forward(&net.0.forward(&x)).relu());
        net.2.forward(&h.reshape([x.size(0) as isize, -1])).cross_entropy(&y)
    })
}

fn gpt<R: Rule>(run: &Run<'_>, opt: Optimizer<R>) -> Result<(), String> {
    let rng = &mut Rng::seed(0);
    let (index, target) = (run.stored("data", "idx"), run.stored("data", "tgt"));
    let table = run.stored("init", "tok");
    let (rows, width) = (table.size(0), table.size(1));
    let config = || {
        let attention = AttentionConfig { bias: false, causal: true, ..AttentionConfig::new(width, 2) };
        TransformerConfig { attention, activation: Activation::Gelu, ..TransformerConfig::new(width, 2) }
    };
    let block = |rng: &mut Rng| {
        let mut block = TransformerBlock::new(config(), rng);
        // Here norms have a summand though the products have none.
        (block.norm1, block.norm2) = (LayerNorm::new(width), LayerNorm::new(width));
        block
    };
    let tables = (Embedding::new(rows, width, rng), LearnedPositions::new(index.size(1), width, rng));
    let net = (tables, vec![block(rng), block(rng)], LayerNorm::new(width));
    let mut names = vec![
        ("0.0.weight".to_owned(), "tok".to_owned()),
        ("0.1.weight".to_owned(), "pos".to_owned()),
        ("2.weight".to_owned(), "lnfw".to_owned()),
        ("2.bias".to_owned(), "lnfb".to_owned()),
    ];
    for i in 0..2 {
        for (ours, theirs) in [
            ("norm1.weight", "ln1w"),
            ("norm1.bias", "ln1b"),
            ("norm2.weight", "ln2w"),
            ("norm2.bias", "ln2b"),
            ("attention.qkv.weight", "qkv"),
            ("attention.out.weight", "proj"),
            ("mlp.up.weight", "fc"),
            ("mlp.down.weight", "out"),
        ] {
            names.push((format!("1.{i}.{ours}"), format!("{i}.{theirs}")));
        }
    }
    let names: Vec<(&str, &str)> = names.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
    run.train(opt, &net, &names, || {
        let ((tokens, positions), blocks, norm) = &net;
        let start = positions.forward(&tokens.forward(&index));
        let h = norm.forward(&blocks.iter().fold(start, |x, block| block.forward(&x)));
        let scores = h.linear(&tokens.weight.get(), None);
        scores.reshape([-1, rows as isize]).cross_entropy(&target.reshape(-1isize))
    })
}

fn lstm<R: Rule>(run: &Run<'_>, opt: Optimizer<R>) -> Result<(), String> {
    let rng = &mut Rng::seed(0);
    let (index, target) = (run.stored("data", "idx"), run.stored("data", "tgt"));
    let rows = run.stored("init", "emb").size(0);
    let options = RecurrentOptions { batch_first: true, ..Default::default() };
    let net = (Embedding::new(rows, 6, rng), Lstm::with(6, 8, options, rng), Linear::new(8, rows, rng));
    let names = [
        ("0.weight", "emb"),
        ("1.cells.0.weight_ih", "wi"),
        ("1.cells.0.weight_hh", "wh"),
        ("1.cells.0.bias_ih", "bi"),
        ("1.cells.0.bias_hh", "bh"),
        ("2.weight", "wo"),
        ("2.bias", "bo"),
    ];
    run.train(opt, &net, &names, || {
        let scores = net.2.forward(&net.1.forward(&net.0.forward(&index)));
        scores.reshape([-1, rows as isize]).cross_entropy(&target.reshape(-1isize))
    })
}

fn logistic_regression<R: Rule>(run: &Run<'_>, opt: Optimizer<R>) -> Result<(), String> {
    let (x, y) = (run.stored("data", "x"), run.stored("data", "y"));
    let net = (Param::new("w", run.stored("init", "w")), Param::new("b", run.stored("init", "b")));
    run.train(opt, &net, &[("0", "w"), ("1", "b")], || {
        let (w, b) = (net.0.get(), net.1.get());
        (x.matmul(&w) + b).bce_with_logits(&y) + w.square().sum(()) * 0.005
    })
}
