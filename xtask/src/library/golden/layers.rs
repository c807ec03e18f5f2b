//! Layers with given weights: outputs, all gradients, and buffers afterwards.
//!
//! The weights are set by name, so the names are checked as well. The format is documented at the head of
//! `golden/generate_layers.py`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use thalweg_nn::{
    Activation, AdaptiveAvgPool, AdaptiveMaxPool, AttentionConfig, AttentionMask, AvgPool, BatchNorm, Conv,
    ConvTranspose, Dropout, Embedding, Flatten, GroupNorm, Gru, InstanceNorm, Layer, LayerNorm,
    LearnedPositions, Linear, Lstm, MaxPool, Module, MultiHeadAttention, NormOrder, PRelu, RecurrentOptions,
    Residual, RmsNorm, Rnn, RnnActivation, Rotary, Sequential, TransformerBlock, TransformerConfig,
    set_weights,
};
use thalweg_tensor::{ConvOptions, ConvTransposeOptions, Leaf, Padding, PerAxis, Rng, Tensor};

use super::{Attrs, Mode, Outcome, compare, in_mode, list, number, text};

type Data = BTreeMap<String, Tensor>;

/// A layer and how it is called.
struct Built {
    module: Arc<dyn Module>,
    run: Box<Forward>,
}

type Forward = dyn Fn(&[Tensor]) -> Vec<Tensor>;

impl Built {
    /// One tensor in, one out.
    fn plain(layer: impl Layer + 'static) -> Self {
        Self::with(layer, |layer, x| vec![layer.forward(&x[0])])
    }

    fn with<L: Module + 'static>(layer: L, run: impl Fn(&L, &[Tensor]) -> Vec<Tensor> + 'static) -> Self {
        let layer = Arc::new(layer);
        let module: Arc<dyn Module> = layer.clone();
        Self { module, run: Box::new(move |x| run(&layer, x)) }
    }
}

pub fn check(case: &Value, data: &Data, mode: &Mode) -> Outcome {
    let built = build(text(case, "layer"), &Attrs::new(&case["config"]))?;
    Some(compare_all(case, data, &built, mode))
}

fn compare_all(case: &Value, data: &Data, built: &Built, mode: &Mode) -> Result<(), String> {
    let id = text(case, "id");
    let (rtol, atol) = (number(case, "rtol"), number(case, "atol"));
    let names = |key: &str| list(case, key).iter().filter_map(Value::as_str).collect::<Vec<_>>();
    let stored = |kind: &str, name: &str| &data[&format!("{id}:{kind}:{name}")];
    let numbered =
        |kind: &str, n: usize| (0..n).map(|i| stored(kind, &i.to_string()).clone()).collect::<Vec<_>>();
    let close = |what: String, got: &Tensor, want: &Tensor| {
        compare::close(got, want, rtol, atol, &[]).map_err(|e| format!("{what}: {e}"))
    };
    let params = names("params").into_iter().map(|n| (n.to_owned(), stored("param", n).clone()));
    let buffers = names("buffers").into_iter().map(|n| (n.to_owned(), stored("buffer", n).clone()));
    set_weights(&*built.module, &params.chain(buffers).collect()).map_err(|e| e.to_string())?;
    built.module.train(case["training"].as_bool().unwrap_or(true));

    let inputs = numbered("in", number(case, "inputs") as usize);
    let (expected, cotangents) = {
        let n = number(case, "outputs") as usize;
        (numbered("out", n), numbered("ct", n))
    };
    let floats: Vec<usize> = (0..inputs.len()).filter(|&i| inputs[i].dtype().is_float()).collect();
    let weights = built.module.params();
    // Outputs, then gradients of inputs, then of weights.
    let results = in_mode(mode, &inputs, &|inputs| {
        let leaf = |x: &Tensor| if x.dtype().is_float() { x.requires_grad() } else { x.clone() };
        let inputs: Vec<Tensor> = inputs.iter().map(leaf).collect();
        let outputs = (built.run)(&inputs);
        assert_eq!(outputs.len(), cotangents.len(), "number of outputs");
        let parts = outputs.iter().zip(&cotangents).map(|(y, ct)| (y * ct).sum(()));
        let loss = parts.reduce(|a, b| a + b).expect("a layer has an output");
        let leaves = floats.iter().map(|&i| &inputs[i] as &dyn Leaf);
        let leaves = leaves.chain(weights.iter().map(|p| p as &dyn Leaf));
        let gradients = loss.grad(&leaves.collect::<Vec<_>>());
        outputs.into_iter().chain(gradients).collect()
    });
    let (outputs, gradients) = results.split_at(expected.len());
    for (i, (got, want)) in outputs.iter().zip(&expected).enumerate() {
        close(format!("output {i}"), got, want)?;
    }
    let (of_inputs, of_weights) = gradients.split_at(floats.len());
    for (i, g) in floats.iter().zip(of_inputs) {
        close(format!("gradient of input {i}"), g, stored("din", &i.to_string()))?;
    }
    for (p, g) in weights.iter().zip(of_weights) {
        close(format!("gradient of {}", p.name), g, stored("grad", &p.name))?;
    }
    for buffer in built.module.buffers() {
        close(format!("{} afterwards", buffer.name), &buffer.param.get(), stored("after", &buffer.name))?;
    }
    Ok(())
}

fn build(layer: &str, a: &Attrs) -> Option<Built> {
    let rng = &mut Rng::seed(0);
    let n = |name: &str| a.int(name).map(|i| i as usize);
    let yes = |name: &str, default: bool| a.bool(name).unwrap_or(default);
    let eps = a.f64("eps").unwrap_or(1e-5);
    Some(match layer {
        "linear" if !yes("bias", true) => {
            Built::plain(Linear::without_bias(n("inputs")?, n("outputs")?, rng))
        }
        "linear" => Built::plain(Linear::new(n("inputs")?, n("outputs")?, rng)),
        "conv1d" => conv::<1>(a, rng)?,
        "conv2d" => conv::<2>(a, rng)?,
        "conv3d" => conv::<3>(a, rng)?,
        "conv_transpose1d" => conv_transpose::<1>(a, rng)?,
        "conv_transpose2d" => conv_transpose::<2>(a, rng)?,
        "conv_transpose3d" => conv_transpose::<3>(a, rng)?,
        "batch_norm" => {
            let mut norm = BatchNorm::new(n("channels")?);
            (norm.eps, norm.momentum) = (eps, a.f64("momentum").unwrap_or(0.1));
            Built::plain(if yes("affine", true) { norm } else { norm.plain() })
        }
        "layer_norm" => {
            let mut norm = LayerNorm::new(sizes(a, "shape")?);
            norm.eps = eps;
            norm = if yes("bias", true) { norm } else { norm.without_bias() };
            Built::plain(if yes("affine", true) { norm } else { norm.plain() })
        }
        "rms_norm" => {
            let mut norm = RmsNorm::new(sizes(a, "shape")?);
            norm.eps = eps;
            Built::plain(norm)
        }
        "group_norm" => Built::plain(GroupNorm::new(n("groups")?, n("channels")?)),
        "instance_norm" => Built::plain(n("channels").map_or_else(InstanceNorm::new, InstanceNorm::affine)),
        "embedding" => {
            let (rows, width) = (n("rows")?, n("width")?);
            Built::plain(match n("padding") {
                Some(row) => Embedding::with_padding(rows, width, row, rng),
                None => Embedding::new(rows, width, rng),
            })
        }
        "learned_positions" => Built::plain(LearnedPositions::new(n("longest")?, n("width")?, rng)),
        "rnn" | "lstm" | "gru" => recurrent(layer, a, rng)?,
        "attention" => attention(a, rng)?,
        "transformer" => transformer(a, rng)?,
        "activation" => Built::plain(activation(a)?),
        "prelu" => Built::plain(PRelu::new(n("channels")?)),
        "dropout" => Built::plain(Dropout::new(a.f64("p")?, rng)),
        "resnet" => Built::plain(resnet(rng)),
        _ => return pool(layer, a),
    })
}

fn sizes(a: &Attrs, name: &str) -> Option<Vec<usize>> {
    Some(a.ints(name)?.iter().map(|&i| i as usize).collect())
}

fn per_axis(a: &Attrs, name: &str, default: usize) -> PerAxis {
    sizes(a, name).map_or(PerAxis::from(default), |s| PerAxis::from(&s[..]))
}

fn conv<const N: usize>(a: &Attrs, rng: &mut Rng) -> Option<Built> {
    let padding = match a.str("padding") {
        Some(_) => Padding::Same,
        None => Padding::Sides(per_axis(a, "padding", 0)),
    };
    let (stride, dilation) = (per_axis(a, "stride", 1), per_axis(a, "dilation", 1));
    let options = ConvOptions { stride, padding, dilation, groups: a.int("groups").unwrap_or(1) as usize };
    let (i, o) = (a.int("inputs")? as usize, a.int("outputs")? as usize);
    let layer = Conv::<N>::with(i, o, per_axis(a, "kernel", 1), options, rng);
    Some(Built::plain(if a.bool("bias").unwrap_or(true) { layer } else { layer.without_bias() }))
}

fn conv_transpose<const N: usize>(a: &Attrs, rng: &mut Rng) -> Option<Built> {
    let options = ConvTransposeOptions {
        stride: per_axis(a, "stride", 1),
        padding: per_axis(a, "padding", 0),
        output_padding: per_axis(a, "output_padding", 0),
        dilation: per_axis(a, "dilation", 1),
        groups: a.int("groups").unwrap_or(1) as usize,
    };
    let (i, o) = (a.int("inputs")? as usize, a.int("outputs")? as usize);
    let layer = ConvTranspose::<N>::with(i, o, per_axis(a, "kernel", 1), options, rng);
    Some(Built::plain(if a.bool("bias").unwrap_or(true) { layer } else { layer.without_bias() }))
}

fn pool(layer: &str, a: &Attrs) -> Option<Built> {
    fn of<const N: usize>(name: &str, a: &Attrs) -> Option<Built> {
        let (kernel, padding) = (per_axis(a, "kernel", 1), per_axis(a, "padding", 0));
        let stride = sizes(a, "stride").map_or(kernel.clone(), |s| PerAxis::from(&s[..]));
        let output = per_axis(a, "output", 1);
        Some(match name {
            "max_pool" => Built::plain(MaxPool::<N>::new(kernel).stride(stride).padding(padding)),
            "avg_pool" => Built::plain(AvgPool::<N>::new(kernel).stride(stride).padding(padding)),
            "adaptive_max_pool" => Built::plain(AdaptiveMaxPool::<N>::new(output)),
            "adaptive_avg_pool" => Built::plain(AdaptiveAvgPool::<N>::new(output)),
            _ => return None,
        })
    }
    let (name, axes) = layer.split_at_checked(layer.len().checked_sub(2)?)?;
    match axes {
        "1d" => of::<1>(name, a),
        "2d" => of::<2>(name, a),
        "3d" => of::<3>(name, a),
        _ => None,
    }
}

fn recurrent(layer: &str, a: &Attrs, rng: &mut Rng) -> Option<Built> {
    let options = RecurrentOptions {
        layers: a.int("layers").unwrap_or(1) as usize,
        bidirectional: a.bool("bidirectional").unwrap_or(false),
        batch_first: a.bool("batch_first").unwrap_or(false),
        bias: a.bool("bias").unwrap_or(true),
        dropout: 0.0,
    };
    let (input, hidden) = (a.int("input")? as usize, a.int("hidden")? as usize);
    Some(match layer {
        "lstm" => Built::with(Lstm::with(input, hidden, options, rng), |net, x| {
            let states = (x.len() > 1).then(|| (&x[1], &x[2]));
            let (y, (h, c)) = net.run(&x[0], states);
            vec![y, h, c]
        }),
        "gru" => Built::with(Gru::with(input, hidden, options, rng), |net, x| {
            let (y, h) = net.run(&x[0], x.get(1));
            vec![y, h]
        }),
        _ => {
            let activation =
                if a.str("activation") == Some("relu") { RnnActivation::Relu } else { RnnActivation::Tanh };
            Built::with(Rnn::with(input, hidden, options, rng).activation(activation), |net, x| {
                let (y, h) = net.run(&x[0], x.get(1));
                vec![y, h]
            })
        }
    })
}

fn attention_config(a: &Attrs) -> Option<AttentionConfig> {
    let mut config = AttentionConfig::new(a.int("width")? as usize, a.int("heads")? as usize);
    config.kv_heads = a.int("kv_heads").map(|n| n as usize);
    config.bias = a.bool("bias").unwrap_or(true);
    config.causal = a.bool("causal").unwrap_or(false);
    config.rotary = a.int("rotary").map(|n| Rotary::new(config.width / config.heads, n as usize));
    Some(config)
}

fn attention(a: &Attrs, rng: &mut Rng) -> Option<Built> {
    let layer = MultiHeadAttention::new(attention_config(a)?, rng);
    let padding = a.raw("padding").map(|rows| {
        let rows: Vec<&Vec<Value>> =
            rows.as_array().into_iter().flatten().filter_map(Value::as_array).collect();
        let flags: Vec<bool> = rows.iter().flat_map(|r| r.iter().filter_map(Value::as_bool)).collect();
        let n = flags.len() / rows.len();
        Tensor::from_vec(flags, [rows.len(), n])
    });
    let causal = a.bool("causal").unwrap_or(false);
    Some(Built::with(layer, move |layer, x| {
        let mask = AttentionMask { causal, padding: padding.as_ref(), scores: None };
        vec![match (x.get(1), &padding) {
            (Some(context), _) => layer.attend(&x[0], context, mask),
            (None, Some(_)) => layer.attend(&x[0], &x[0], mask),
            (None, None) => layer.forward(&x[0]),
        }]
    }))
}

fn transformer(a: &Attrs, rng: &mut Rng) -> Option<Built> {
    let config = TransformerConfig {
        attention: attention_config(a)?,
        hidden: a.int("hidden").map(|n| n as usize),
        activation: if a.str("activation") == Some("relu") { Activation::Relu } else { Activation::Gelu },
        dropout: 0.0,
        order: if a.str("order") == Some("after") { NormOrder::After } else { NormOrder::Before },
        cross_attention: a.bool("cross").unwrap_or(false),
    };
    let causal = config.attention.causal;
    Some(Built::with(TransformerBlock::new(config, rng), move |block, x| {
        vec![match x.get(1) {
            Some(context) => {
                let mask = AttentionMask { causal, ..Default::default() };
                block.run(&x[0], mask, Some((context, AttentionMask::default())))
            }
            None => block.forward(&x[0]),
        }]
    }))
}

fn activation(a: &Attrs) -> Option<Activation> {
    let slope = a.f64("slope").unwrap_or_default();
    Some(match a.str("name")? {
        "relu" => Activation::Relu,
        "relu6" => Activation::Relu6,
        "leaky_relu" => Activation::LeakyRelu(slope),
        "elu" => Activation::Elu(slope),
        "celu" => Activation::Celu(slope),
        "selu" => Activation::Selu,
        "gelu" => Activation::Gelu,
        "gelu_tanh" => Activation::GeluTanh,
        "silu" => Activation::Silu,
        "mish" => Activation::Mish,
        "tanh" => Activation::Tanh,
        "sigmoid" => Activation::Sigmoid,
        "log_sigmoid" => Activation::LogSigmoid,
        "softplus" => Activation::Softplus,
        "softsign" => Activation::Softsign,
        "hardtanh" => Activation::Hardtanh,
        "hardsigmoid" => Activation::Hardsigmoid,
        "hardswish" => Activation::Hardswish,
        "tanhshrink" => Activation::Tanhshrink,
        "softmax" => Activation::Softmax,
        "log_softmax" => Activation::LogSoftmax,
        "glu" => Activation::Glu,
        "identity" => Activation::Identity,
        _ => return None,
    })
}

fn resnet(rng: &mut Rng) -> Sequential {
    let conv = |i, o, rng: &mut Rng| Conv::<2>::new(i, o, 3, rng).padding(1).without_bias();
    let inner = Sequential::new()
        .then(conv(4, 4, rng))
        .then(BatchNorm::new(4))
        .then(Activation::Relu)
        .then(conv(4, 4, rng))
        .then(BatchNorm::new(4));
    let narrowing = Sequential::new().then(conv(4, 6, rng).stride(2)).then(BatchNorm::new(6));
    let shortcut = Conv::<2>::new(4, 6, 1, rng).stride(2).without_bias();
    Sequential::new()
        .then(conv(1, 4, rng))
        .then(BatchNorm::new(4))
        .then(Activation::Relu)
        .then(Residual::new(inner))
        .then(Activation::Relu)
        .then(Residual::with_shortcut(narrowing, shortcut))
        .then(Activation::Relu)
        .then(AdaptiveAvgPool::<2>::new(1))
        .then(Flatten::default())
        .then(Linear::new(6, 3, rng))
}
