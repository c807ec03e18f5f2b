//! The networks of `benches/peers`: the same shapes, optimisers and random data, trained by a
//! compiled step.

use std::path::Path;

use anyhow::Result;
use thalweg::prelude::*;
use thalweg::{
    AttentionOptions, CellWeights, ConvOptions, Jit, MaxPoolOptions, Optimizer, Plan, Rule, autocast,
};

use super::clock::{Timing, time};
use super::workloads::Workload;

/// A name and how to build what it names.
type Named = (&'static str, fn() -> Training);

/// The networks that are trained.
pub const TRAININGS: [Named; 7] = [
    ("a", || {
        let mut rng = Rng::seed(0);
        let net = Mlp::new(&[784, 100, 10], &mut rng);
        let (x, y) = (rng.normal([100, 784], 0.0, 1.0), rng.randint([100], 0, 10));
        Training::new(net, Adagrad::new(0.01), (x, y), |net, x, y| net.forward(x).cross_entropy(y))
    }),
    ("b", || {
        let mut rng = Rng::seed(0);
        let net = Mlp::new(&[784, 1024, 1024, 10], &mut rng);
        let (x, y) = (rng.normal([256, 784], 0.0, 1.0), rng.randint([256], 0, 10));
        let sgd = Sgd::new(0.01).momentum(0.9);
        Training::new(net, sgd, (x, y), |net, x, y| net.forward(x).cross_entropy(y))
    }),
    ("c", || {
        let mut rng = Rng::seed(0);
        let net = Cnn::new(&mut rng);
        let (x, y) = (rng.normal([64, 1, 28, 28], 0.0, 1.0), rng.randint([64], 0, 10));
        Training::new(net, Adam::new(1e-3), (x, y), |net, x, y| net.forward(x).cross_entropy(y))
    }),
    ("d", || gpt(SMALL, None)),
    ("e", || gpt(LARGE, None)),
    ("e-bf16", || gpt(LARGE, Some(BF16))),
    ("h", || {
        let mut rng = Rng::seed(0);
        let net = LstmNet::new(&mut rng);
        let (x, y) = (rng.normal([64, 28, 28], 0.0, 1.0), rng.randint([64], 0, 10));
        Training::new(net, Adam::new(1e-3), (x, y), |net, x, y| net.forward(x).cross_entropy(y))
    }),
];

pub fn all() -> Vec<Workload> {
    let w = |name, run: Box<dyn Fn() -> Timing>| Workload { group: "networks", name, run };
    let mut all: Vec<Workload> = TRAININGS
        .iter()
        .map(|&(name, build)| {
            let run = move || {
                let mut training = build();
                time(1, || training.step.run())
            };
            w(name, Box::new(run))
        })
        .collect();
    all.push(w(
        "f",
        Box::new(|| {
            let (net, x) = one_picture();
            let mut forward = jit(|x: Tensor| net.forward(&x));
            time(1, move || forward.call(x.clone()).expect("shapes do not change"))
        }),
    ));
    all.push(w(
        "g",
        Box::new(|| {
            let x = Rng::seed(0).normal([16 << 20], 0.0, 1.0);
            let mut f = jit(|x: Tensor| gated(&x));
            time(1, move || f.call(x.clone()).expect("shapes do not change"))
        }),
    ));
    all.sort_by_key(|w| w.name);
    all
}

/// Writes the data, weights and first results of those that are chosen to files in a folder, for others to compare with.
pub fn export(folder: &Path, is_chosen: impl Fn(&str) -> bool) -> Result<()> {
    let path = |name: &str| folder.join(format!("{name}.safetensors"));
    for &(name, build) in TRAININGS.iter().filter(|(name, _)| is_chosen(name)) {
        build().export(&path(name))?;
    }
    if is_chosen("f") {
        let (net, x) = one_picture();
        let y = jit(|x: Tensor| net.forward(&x)).call(x.clone())?;
        let state = net.state().iter().map(|n| (n.name.clone(), n.param.clone())).collect::<Vec<_>>();
        thalweg::save(path("f"), named(&state, [("x", x), ("result", y)]))?;
    }
    if is_chosen("g") {
        let x = Rng::seed(0).normal([1 << 20], 0.0, 1.0);
        let y = jit(|x: Tensor| gated(&x)).call(x.clone())?;
        thalweg::save(path("g"), named(&[], [("x", x), ("result", y)]))?;
    }
    Ok(())
}

/// Tensors and, by number so that their order is kept, copies of weights: a step writes over the latter.
fn named<const N: usize>(state: &[(String, Param)], tensors: [(&str, Tensor); N]) -> Vec<(String, Tensor)> {
    let weights = state.iter().enumerate().map(|(i, (name, p))| (format!("{i:03}.{name}"), p.get() + 0.0));
    tensors.into_iter().map(|(name, t)| (name.to_owned(), t)).chain(weights).collect()
}

fn one_picture() -> (Cnn, Tensor) {
    let mut rng = Rng::seed(0);
    (Cnn::new(&mut rng), rng.normal([1, 1, 28, 28], 0.0, 1.0))
}

fn gated(x: &Tensor) -> Tensor {
    (x * 1.5 + 0.25).tanh() * x.sigmoid() + x
}

/// Three pairs of convolutions with a pool after each, for pictures of 32 by 32.
fn deep_cnn(rng: &mut Rng) -> Sequential {
    let mut net = Sequential::new();
    for (inputs, outputs) in [(3, 32), (32, 64), (64, 128)] {
        for inputs in [inputs, outputs] {
            net = net.then(Conv2d::new(inputs, outputs, 3, rng).padding(1)).then(Activation::Relu);
        }
        net = net.then(MaxPool2d::new(2));
    }
    net.then(Flatten::default()).then(Linear::new(128 * 4 * 4, 10, rng))
}

/// The networks for inference, compiled: a deep MLP, CNNs and the transformer.
pub fn inference_plans() -> Vec<(&'static str, Plan)> {
    let mut rng = Rng::seed(0);
    let mlp = Mlp::new(&[784, 1024, 1024, 1024, 1024, 1024, 10], &mut rng);
    let (cnn, deep, gpt) = (Cnn::new(&mut rng), deep_cnn(&mut rng), Gpt::new(SMALL, &mut rng));
    let plan = |x: Tensor, f: &dyn Fn(&Tensor) -> Tensor| {
        let mut f = jit(|x: Tensor| f(&x));
        f.call(x).expect("the network is sound");
        f.plan().clone()
    };
    vec![
        ("a deep MLP", plan(rng.normal([256, 784], 0.0, 1.0), &|x| mlp.forward(x))),
        ("c", plan(rng.normal([64, 1, 28, 28], 0.0, 1.0), &|x| cnn.forward(x))),
        ("a CNN of six convolutions", plan(rng.normal([64, 3, 32, 32], 0.0, 1.0), &|x| deep.forward(x))),
        ("d", plan(rng.randint([SMALL.batch, SMALL.context], 0, VOCABULARY as i64), &|x| gpt.forward(x))),
    ]
}

/// A network with its data and a compiled step.
pub struct Training {
    /// Weights in the order of the network.
    pub state: Vec<(String, Param)>,
    pub x: Tensor,
    pub y: Tensor,
    pub step: Box<dyn Step>,
}

/// A compiled step on the same data each time.
pub trait Step {
    /// Runs it; the loss is read after each.
    fn run(&mut self) -> f32;
    /// Where its time goes.
    fn profile(&mut self) -> String;
    /// What was compiled.
    fn plan(&self) -> &Plan;
}

impl Training {
    fn new<M: Module + 'static, R: Rule + 'static>(
        net: M,
        mut opt: Optimizer<R>,
        (x, y): (Tensor, Tensor),
        loss: impl Fn(&M, &Tensor, &Tensor) -> Tensor + 'static,
    ) -> Self {
        let state = net.state().iter().map(|n| (n.name.clone(), n.param.clone())).collect();
        let step = jit(move |(x, y): (Tensor, Tensor)| {
            let loss = loss(&net, &x, &y);
            opt.step(&net, &loss);
            loss
        });
        let step = Box::new(OnData { step, data: (x.clone(), y.clone()) });
        Self { state, x, y, step }
    }

    /// Writes data, weights and the losses of three steps from them.
    fn export(mut self, path: &Path) -> Result<()> {
        let mut tensors = named(&self.state, [("x", self.x.clone()), ("y", self.y.clone())]);
        let losses: Vec<f32> = (0..3).map(|_| self.step.run()).collect();
        tensors.push(("losses".to_owned(), Tensor::from_vec(losses, [3])));
        thalweg::save(path, tensors)?;
        Ok(())
    }
}

struct OnData<F> {
    step: Jit<(Tensor, Tensor), Tensor, F>,
    data: (Tensor, Tensor),
}

impl<F: FnMut((Tensor, Tensor)) -> Tensor> Step for OnData<F> {
    fn run(&mut self) -> f32 {
        self.step.call(self.data.clone()).expect("shapes do not change").item()
    }

    fn profile(&mut self) -> String {
        let profile = self.step.profile(self.data.clone(), 10).expect("shapes do not change");
        profile.against(thalweg::Peak::measure()).to_string()
    }

    fn plan(&self) -> &Plan {
        self.step.plan()
    }
}

#[derive(Module)]
struct Mlp {
    layers: Vec<Linear>,
}

impl Mlp {
    fn new(sizes: &[usize], rng: &mut Rng) -> Self {
        Self { layers: sizes.windows(2).map(|w| Linear::new(w[0], w[1], rng)).collect() }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        let (last, hidden) = self.layers.split_last().expect("a network has layers");
        last.forward(&hidden.iter().fold(x.clone(), |x, layer| layer.forward(&x).relu()))
    }
}

#[derive(Module)]
struct Cnn {
    w1: Param,
    b1: Param,
    w2: Param,
    b2: Param,
    hidden: Linear,
    output: Linear,
}

impl Cnn {
    fn new(rng: &mut Rng) -> Self {
        Self {
            w1: Param::new("w1", rng.uniform([32, 1, 3, 3], -0.3, 0.3)),
            b1: Param::new("b1", Tensor::zeros([32], F32)),
            w2: Param::new("w2", rng.uniform([64, 32, 3, 3], -0.06, 0.06)),
            b2: Param::new("b2", Tensor::zeros([64], F32)),
            hidden: Linear::new(64 * 12 * 12, 128, rng),
            output: Linear::new(128, 10, rng),
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        let conv = ConvOptions::default();
        let x = x.conv2d(&self.w1.get(), Some(&self.b1.get()), &conv).relu();
        let x = x.conv2d(&self.w2.get(), Some(&self.b2.get()), &conv).relu();
        let x = x.max_pool2d(2, &MaxPoolOptions::default()).flatten(1, -1);
        self.output.forward(&self.hidden.forward(&x).relu())
    }
}

#[derive(Clone, Copy)]
struct Sizes {
    layers: usize,
    width: usize,
    heads: usize,
    context: usize,
    batch: usize,
}

const VOCABULARY: usize = 65;
const SMALL: Sizes = Sizes { layers: 4, width: 128, heads: 4, context: 64, batch: 16 };
const LARGE: Sizes = Sizes { layers: 6, width: 384, heads: 6, context: 256, batch: 4 };

fn gpt(sizes: Sizes, narrow: Option<DType>) -> Training {
    let mut rng = Rng::seed(0);
    let net = Gpt::new(sizes, &mut rng);
    let shape = [sizes.batch, sizes.context];
    let (x, y) = (rng.randint(shape, 0, VOCABULARY as i64), rng.randint(shape, 0, VOCABULARY as i64));
    Training::new(net, AdamW::new(3e-4), (x, y), move |net, x, y| {
        let scores = match narrow {
            Some(dtype) => autocast(dtype, || net.forward(x)).to_dtype(F32),
            None => net.forward(x),
        };
        scores.reshape([y.numel(), VOCABULARY]).cross_entropy(&y.reshape(y.numel()))
    })
}

#[derive(Module)]
struct Norm {
    weight: Param,
    bias: Param,
}

impl Norm {
    fn new(width: usize) -> Self {
        let param = |name, value: f64| Param::new(name, Tensor::full([width], value, F32));
        Self { weight: param("weight", 1.0), bias: param("bias", 0.0) }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        x.layer_norm(x.size(-1), Some(&self.weight.get()), Some(&self.bias.get()), 1e-5)
    }
}

#[derive(Module)]
struct Block {
    #[module(skip)]
    heads: usize,
    norm1: Norm,
    norm2: Norm,
    qkv: Linear,
    out: Linear,
    up: Linear,
    down: Linear,
}

impl Block {
    fn new(d: usize, heads: usize, rng: &mut Rng) -> Self {
        Self {
            heads,
            norm1: Norm::new(d),
            norm2: Norm::new(d),
            qkv: Linear::new(d, 3 * d, rng),
            out: Linear::new(d, d, rng),
            up: Linear::new(d, 4 * d, rng),
            down: Linear::new(4 * d, d, rng),
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        let (b, t, d) = (x.size(0), x.size(1), x.size(2));
        let qkv = self.qkv.forward(&self.norm1.forward(x)).reshape([b, t, 3, self.heads, d / self.heads]);
        let qkv = qkv.permute([2, 0, 3, 1, 4]).unbind(0);
        let causal = AttentionOptions { is_causal: true, ..Default::default() };
        let a = qkv[0].scaled_dot_product_attention(&qkv[1], &qkv[2], &causal);
        let x = x + self.out.forward(&a.transpose(1, 2).reshape([b, t, d]));
        let up = self.up.forward(&self.norm2.forward(&x)).gelu_tanh();
        x + self.down.forward(&up)
    }
}

#[derive(Module)]
struct Gpt {
    tokens: Param,
    positions: Param,
    blocks: Vec<Block>,
    norm: Norm,
    head: Linear,
}

impl Gpt {
    fn new(s: Sizes, rng: &mut Rng) -> Self {
        Self {
            tokens: Param::new("tokens", rng.normal([VOCABULARY, s.width], 0.0, 1.0)),
            positions: Param::new("positions", rng.normal([s.context, s.width], 0.0, 1.0)),
            blocks: (0..s.layers).map(|_| Block::new(s.width, s.heads, rng)).collect(),
            norm: Norm::new(s.width),
            head: Linear::without_bias(s.width, VOCABULARY, rng),
        }
    }

    fn forward(&self, i: &Tensor) -> Tensor {
        let x = self.tokens.get().embedding(i, None) + self.positions.get().narrow(0, 0, i.size(1));
        self.head.forward(&self.norm.forward(&self.blocks.iter().fold(x, |x, block| block.forward(&x))))
    }
}

#[derive(Module)]
struct LstmNet {
    input: Param,
    hidden: Param,
    input_bias: Param,
    hidden_bias: Param,
    output: Linear,
}

impl LstmNet {
    fn new(rng: &mut Rng) -> Self {
        let bound = 1.0 / 128f64.sqrt();
        Self {
            input: Param::new("input", rng.uniform([512, 28], -bound, bound)),
            hidden: Param::new("hidden", rng.uniform([512, 128], -bound, bound)),
            input_bias: Param::new("input_bias", rng.uniform([512], -bound, bound)),
            hidden_bias: Param::new("hidden_bias", rng.uniform([512], -bound, bound)),
            output: Linear::new(128, 10, rng),
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        let zero = Tensor::zeros([1, x.size(0), 128], F32);
        let [input, hidden, input_bias, hidden_bias] =
            [&self.input, &self.hidden, &self.input_bias, &self.hidden_bias].map(Param::get);
        let weights = CellWeights {
            input: &input,
            hidden: &hidden,
            input_bias: Some(&input_bias),
            hidden_bias: Some(&hidden_bias),
        };
        let (y, _, _) = x.transpose(0, 1).lstm(&zero, &zero, &[weights], false);
        self.output.forward(&y.select(0, -1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(plan: &Plan) -> f64 {
        plan.arena_bytes() as f64 / plan.unplanned_bytes() as f64
    }

    #[test]
    fn training_takes_at_most_half_of_what_its_values_take() {
        for (name, build) in TRAININGS.iter().filter(|(name, _)| ["b", "c", "d"].contains(name)) {
            let mut training = build();
            training.step.run();
            let share = share(training.step.plan());
            assert!(share <= 0.5, "{name}: {share:.2}");
        }
    }

    #[test]
    fn inference_takes_at_most_a_quarter_of_what_its_values_take() {
        for (name, plan) in inference_plans() {
            let share = share(&plan);
            assert!(share <= 0.25, "{name}: {share:.2}");
        }
    }
}
