//! Layers and optimisers inside `jit`: the same numbers as without.

use thalweg_core::DType;
use thalweg_nn::{
    Accumulator, Activation, Adadelta, Adafactor, Adagrad, Adam, AdamW, Adamax, Asgd, AttentionConfig,
    AttentionMask, Average, BatchNorm, Conv2d, Dropout, Embedding, Flatten, Gru, Layer, LayerNorm, Linear,
    Lion, Lstm, MaxPool2d, Module, MultiHeadAttention, Muon, NAdam, Optimizer, RAdam, RmsProp, Rprop, Rule,
    Sequential, Sgd, TransformerBlock, TransformerConfig, autocast,
};
use thalweg_runtime::jit;
use thalweg_tensor::{Reduction, Rng, Tensor};

fn close(what: &str, eager: &[Tensor], compiled: &[Tensor]) {
    for (i, (a, b)) in eager.iter().zip(compiled).enumerate() {
        assert_eq!(a.meta(), b.meta(), "{what}, tensor {i}");
        let (a, b) = (a.to_dtype(DType::F64).to_vec::<f64>(), b.to_dtype(DType::F64).to_vec::<f64>());
        for (a, b) in a.iter().zip(b) {
            assert!((a - b).abs() <= 2e-5 + 2e-5 * a.abs(), "{what}, tensor {i}: {a} eager, {b} compiled");
        }
    }
}

fn state(net: &dyn Module) -> Vec<Tensor> {
    net.state().iter().map(|p| p.param.get()).collect()
}

/// Five steps each way, the learning rate halved on the way.
fn same_steps<R: Rule>(what: &str, make: impl Fn() -> Optimizer<R>) {
    let new_net = || {
        let rng = &mut Rng::seed(1);
        vec![Linear::new(4, 6, rng), Linear::new(6, 3, rng)]
    };
    let rng = &mut Rng::seed(5);
    let (x, y) = (rng.normal([8, 4], 0.0, 1.0), rng.randint([8], 0, 3));
    let run = |compiled: bool| {
        let (net, mut opt) = (new_net(), make());
        let lr = opt.lr();
        let rate = opt.state().remove(0).param;
        let mut losses = Vec::new();
        let step = |(x, y): (Tensor, Tensor)| {
            let loss = net[1].forward(&net[0].forward(&x).tanh()).cross_entropy(&y);
            opt.step(&net, &loss);
            loss
        };
        let halve = |i: usize| {
            if i == 3 {
                rate.set(Tensor::full((), lr / 2.0, DType::F64));
            }
        };
        if compiled {
            let mut step = jit(step);
            (0..5).for_each(|i| {
                halve(i);
                losses.push(step.call((x.clone(), y.clone())).unwrap());
            });
        } else {
            let mut step = step;
            (0..5).for_each(|i| {
                halve(i);
                losses.push(step((x.clone(), y.clone())));
            });
        }
        let slots = opt.state().iter().map(|p| p.param.get()).collect::<Vec<_>>();
        [losses, state(&net), slots].concat()
    };
    close(what, &run(false), &run(true));
}

#[test]
fn every_rule_steps_the_same_compiled() {
    same_steps("sgd", || Sgd::new(0.1));
    same_steps("momentum", || Sgd::new(0.1).momentum(0.9).weight_decay(0.01));
    same_steps("dampened", || Optimizer::new(Sgd { momentum: 0.9, dampening: 0.5, nesterov: false }, 0.1));
    same_steps("nesterov", || Sgd::new(0.1).nesterov(0.9).clip_norm(0.1));
    same_steps("adagrad", || Adagrad::new(0.1));
    same_steps("adadelta", || Adadelta::new(1.0));
    same_steps("rmsprop", || Optimizer::new(RmsProp { momentum: 0.5, ..Default::default() }, 0.01));
    same_steps("adam", || Adam::new(0.01).clip_value(0.1));
    same_steps("amsgrad", || Optimizer::new(Adam { amsgrad: true, ..Default::default() }, 0.01));
    same_steps("adamw", || AdamW::new(0.01));
    same_steps("adamax", || Adamax::new(0.01));
    same_steps("nadam", || NAdam::new(0.01));
    same_steps("radam", || RAdam::new(0.01));
    same_steps("asgd", || Asgd::new(0.01));
    same_steps("rprop", || Rprop::new(0.01));
    same_steps("lion", || Lion::new(0.01));
    same_steps("adafactor", || Adafactor::new(0.01));
    same_steps("muon", || Muon::new(0.01));
}

/// Three training steps of a net each way, then its state and noise.
fn same_training<N: Module>(
    what: &str,
    make: impl Fn(&mut Rng) -> N,
    forward: impl Fn(&N, &Tensor) -> Tensor,
    x: &Tensor,
) {
    let run = |compiled: bool| {
        let net = make(&mut Rng::seed(2));
        let mut opt = Sgd::new(0.05);
        let mut step = |x: Tensor| {
            let loss = forward(&net, &x).square().mean(());
            opt.step(&net, &loss);
            loss
        };
        let losses: Vec<Tensor> = if compiled {
            let mut step = jit(step);
            (0..3).map(|_| step.call(x.clone()).unwrap()).collect()
        } else {
            (0..3).map(|_| step(x.clone())).collect()
        };
        let noise = net.noise().iter().map(|p| p.param.get()).collect();
        [losses, state(&net), noise].concat()
    };
    close(what, &run(false), &run(true));
}

#[test]
fn layers_train_the_same_compiled() {
    let rng = &mut Rng::seed(7);
    let conv_net = |rng: &mut Rng| {
        Sequential::new()
            .then(Conv2d::new(1, 4, 3, rng).padding(1))
            .then(BatchNorm::new(4))
            .then(Activation::Relu)
            .then(MaxPool2d::new(2))
            .then(Flatten::default())
            .then(Dropout::new(0.3, rng))
            .then(Linear::new(36, 3, rng))
    };
    let forward = |net: &Sequential, x: &Tensor| net.forward(x);
    same_training("convolution", conv_net, forward, &rng.normal([5, 1, 6, 6], 0.0, 1.0));

    let sequence = rng.normal([2, 5, 8], 0.0, 1.0);
    let block = |rng: &mut Rng| {
        let config = TransformerConfig { dropout: 0.2, ..TransformerConfig::causal(8, 2) };
        Sequential::new()
            .then(TransformerBlock::new(config, rng))
            .then(LayerNorm::new(8))
            .then(Linear::new(8, 2, rng))
    };
    same_training("transformer", block, forward, &sequence);

    let attention = |rng: &mut Rng| {
        let config = AttentionConfig { kv_heads: Some(1), dropout: 0.1, ..AttentionConfig::new(8, 2) };
        MultiHeadAttention::new(config, rng)
    };
    let padding = Tensor::from([[true, true, true, true, false], [true, true, false, false, false]]);
    let attend = |net: &MultiHeadAttention, x: &Tensor| {
        net.attend(x, x, AttentionMask { padding: Some(&padding), ..AttentionMask::causal() })
    };
    same_training("attention", attention, attend, &sequence);

    let recurrent = |rng: &mut Rng| (Embedding::new(9, 8, rng), Lstm::new(8, 6, rng), Gru::new(6, 4, rng));
    let read = |net: &(Embedding, Lstm, Gru), x: &Tensor| net.2.forward(&net.1.forward(&net.0.forward(x)));
    same_training("recurrent", recurrent, read, &rng.randint([4, 3], 0, 9));

    let narrow = |rng: &mut Rng| Sequential::new().then(Linear::new(8, 4, rng)).then(Activation::Gelu);
    let in_bf16 =
        |net: &Sequential, x: &Tensor| autocast(DType::BF16, || net.forward(x)).to_dtype(DType::F32);
    same_training("mixed precision", narrow, in_bf16, &sequence);
}

#[test]
fn accumulating_and_averaging_compile_too() {
    let x = Rng::seed(3).normal([6, 4], 0.0, 1.0);
    let run = |compiled: bool| {
        let net = Linear::new(4, 2, &mut Rng::seed(0));
        let (mut sums, mut opt) = (Accumulator::new(), Sgd::new(0.1));
        let mut average = Average::equal(&net);
        let mut step = |x: Tensor| {
            for part in x.split(3, 0) {
                sums.add(
                    &net,
                    &net.forward(&part).mse_loss(&Tensor::ones([3, 2], DType::F32), Reduction::Mean),
                );
            }
            let mean = sums.take_mean(&net);
            opt.step_with(&net, &mean);
            average.update(&net);
            net.forward(&x)
        };
        let outputs: Vec<Tensor> = if compiled {
            let mut step = jit(step);
            (0..4).map(|_| step.call(x.clone()).unwrap()).collect()
        } else {
            (0..4).map(|_| step(x.clone())).collect()
        };
        let averages = average.state().iter().map(|p| p.param.get()).collect();
        [outputs, state(&net), averages].concat()
    };
    close("accumulated", &run(false), &run(true));
}

#[test]
fn a_compiled_function_follows_modes_and_freezing() {
    let net = (Dropout::new(0.5, &mut Rng::seed(0)), Linear::new(16, 1, &mut Rng::seed(1)));
    let mut opt = Sgd::new(0.1);
    let mut run = jit(|x: Tensor| {
        let y = net.1.forward(&net.0.forward(&x));
        opt.step(&net, &y.sum(()));
        net.0.forward(&x)
    });
    let x = Tensor::ones([16], DType::F32);
    let mut call = || run.call(x.clone()).unwrap().to_vec::<f32>();
    let weights = || state(&net).iter().map(|t| t.to_vec::<f32>()).collect::<Vec<_>>();
    assert!(call().contains(&0.0));
    net.eval();
    assert_eq!(call(), [1.0; 16]);
    net.1.bias.as_ref().unwrap().freeze(true);
    let before = weights();
    assert_eq!(call(), [1.0; 16]);
    let after = weights();
    assert_ne!(before[0], after[0]);
    assert_eq!(before[1], after[1], "frozen");
    net.train(true);
    net.unfreeze();
    assert!(call().contains(&0.0));
    assert_ne!(after[1], weights()[1]);
    let why = run.explain();
    assert!(why.starts_with("compiled 3 times"), "{why}");
    assert!(why.contains("2. unlike 1: the training mode of a layer was on, is off"), "{why}");
    assert!(why.contains("3. unlike 2: `freeze` of param `bias` was off, is on"), "{why}");
}

#[test]
fn autocast_around_a_call_is_part_of_what_is_compiled() {
    let layer = Linear::new(2, 2, &mut Rng::seed(0));
    let mut f = jit(|x: Tensor| layer.forward(&x));
    let x = Tensor::from([[1.0f32, 2.0]]);
    let dtypes: Vec<DType> = [false, true, false, true]
        .into_iter()
        .map(|narrow| match narrow {
            true => autocast(DType::BF16, || f.call(x.clone())).unwrap().dtype(),
            false => f.call(x.clone()).unwrap().dtype(),
        })
        .collect();
    assert_eq!(dtypes, [DType::F32, DType::BF16, DType::F32, DType::BF16]);
    assert!(f.explain().starts_with("compiled 2 times"), "{}", f.explain());
}
