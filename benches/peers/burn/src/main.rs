//! burn peers (flex backend, CPU): peers_burn [workloads]
#![recursion_limit = "256"]
use burn::module::{Module, Param};
use burn::nn::{
    self,
    conv::{Conv2d, Conv2dConfig},
    loss::CrossEntropyLossConfig,
    pool::{MaxPool2d, MaxPool2dConfig},
    *,
};
use burn::optim::{momentum::MomentumConfig, *};
use burn::tensor::{activation::*, *};
use std::time::Instant;
fn cpu() -> f64 {
    // SAFETY: the system fills the time that it is given, and zeros are a time.
    unsafe {
        let mut t: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut t);
        t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
    }
}
fn bench(wl: &str, max: usize, mut f: impl FnMut() -> f32) {
    for _ in 0..4 {
        f();
    }
    let (mut w, mut c) = (vec![], vec![]);
    let t0 = Instant::now();
    let th = std::env::var("RAYON_NUM_THREADS").unwrap_or("2".into());
    while w.len() < max {
        let e = t0.elapsed().as_secs_f64();
        if (e > 2. && w.len() >= 11) || e > 8. {
            break;
        }
        let p = cpu();
        let s = Instant::now();
        f();
        w.push(s.elapsed().as_secs_f64() * 1e3);
        c.push((cpu() - p) * 1e3);
    }
    w.sort_by(f64::total_cmp);
    c.sort_by(f64::total_cmp);
    let h = w.len() / 2;
    println!("burn-flex,{th},{wl},{:.4},{:.4},{:.4},{:.4},{}", w[h], w[0], c[h], c[0], w.len())
}
fn train<M: Module>(
    wl: &str,
    m: M,
    mut o: ModuleOptimizer,
    lr: f64,
    y: Tensor<1, Int>,
    f: impl Fn(&M) -> Tensor<2>,
) {
    let ce = CrossEntropyLossConfig::new().init(&y.device());
    let mut m = Some(m);
    bench(wl, 400, || {
        let mm = m.take().unwrap();
        let l = ce.forward(f(&mm), y.clone());
        let g = GradientsParams::from_grads(l.backward(), &mm);
        m = Some(o.step(lr, mm, g));
        l.into_scalar::<f32>()
    });
}
#[derive(Module, Debug)]
struct Mlp {
    l: Vec<Linear>,
}
impl Mlp {
    fn new(d: &[usize], dev: &Device) -> Self {
        Mlp { l: d.windows(2).map(|w| LinearConfig::new(w[0], w[1]).init(dev)).collect() }
    }
    fn f(&self, mut x: Tensor<2>) -> Tensor<2> {
        let n = self.l.len();
        for (i, l) in self.l.iter().enumerate() {
            x = l.forward(x);
            if i + 1 < n {
                x = relu(x);
            }
        }
        x
    }
}
#[derive(Module, Debug)]
struct Cnn {
    a: Conv2d,
    b: Conv2d,
    p: MaxPool2d,
    c: Linear,
    d: Linear,
}
impl Cnn {
    fn new(dev: &Device) -> Self {
        Cnn {
            a: Conv2dConfig::new([1, 32], [3, 3]).init(dev),
            b: Conv2dConfig::new([32, 64], [3, 3]).init(dev),
            p: MaxPool2dConfig::new([2, 2]).init(),
            c: LinearConfig::new(9216, 128).init(dev),
            d: LinearConfig::new(128, 10).init(dev),
        }
    }
    fn f(&self, x: Tensor<4>) -> Tensor<2> {
        let x = self.p.forward(relu(self.b.forward(relu(self.a.forward(x)))));
        let x: Tensor<2> = x.flatten(1, 3);
        self.d.forward(relu(self.c.forward(x)))
    }
}
#[derive(Module, Debug)]
struct Blk {
    l1: LayerNorm,
    l2: LayerNorm,
    qkv: Linear,
    o: Linear,
    up: Linear,
    dn: Linear,
}
#[derive(Module, Debug)]
struct Gpt {
    te: Embedding,
    pe: Param<Tensor<2>>,
    bl: Vec<Blk>,
    lf: LayerNorm,
    hd: Linear,
}
impl Gpt {
    fn new(l: usize, d: usize, t: usize, dev: &Device) -> Self {
        let lin = |a, b| LinearConfig::new(a, b).init(dev);
        let ln = || LayerNormConfig::new(d).init(dev);
        Gpt {
            te: EmbeddingConfig::new(65, d).init(dev),
            pe: nn::Initializer::Normal { mean: 0., std: 0.02 }.init([t, d], dev),
            lf: ln(),
            hd: LinearConfig::new(d, 65).with_bias(false).init(dev),
            bl: (0..l)
                .map(|_| Blk {
                    l1: ln(),
                    l2: ln(),
                    qkv: lin(d, 3 * d),
                    o: lin(d, d),
                    up: lin(d, 4 * d),
                    dn: lin(4 * d, d),
                })
                .collect(),
        }
    }
    fn f(&self, i: Tensor<2, Int>, h: usize, mask: &Tensor<4, Bool>) -> Tensor<2> {
        let [b, t] = i.dims();
        let mut x = self.te.forward(i) + self.pe.val().unsqueeze::<3>();
        let d = x.dims()[2];
        for q in &self.bl {
            let z =
                q.qkv.forward(q.l1.forward(x.clone())).reshape([b, t, 3, h, d / h]).permute([2, 0, 3, 1, 4]);
            let g = |k: usize| z.clone().narrow(0, k, 1).reshape([b, h, t, d / h]);
            let a = g(0).matmul(g(1).swap_dims(2, 3)) * ((d / h) as f32).powf(-0.5);
            let a = softmax(a.mask_fill(mask.clone().expand([b, h, t, t]), f32::NEG_INFINITY), 3)
                .matmul(g(2))
                .swap_dims(1, 2)
                .reshape([b, t, d]);
            x = x + q.o.forward(a);
            let u = q.dn.forward(gelu_approximate(q.up.forward(q.l2.forward(x.clone()))));
            x = x + u;
        }
        self.hd.forward(self.lf.forward(x)).reshape([b * t, 65])
    }
}
#[derive(Module, Debug)]
struct Rnn {
    l: Lstm,
    o: Linear,
}
fn main() {
    let wl = std::env::args().nth(1).unwrap_or("abcdefgh".into());
    let inf = Device::flex();
    let dev = Device::flex().autodiff();
    fn rn<const D: usize>(s: [usize; D], d: &Device) -> Tensor<D> {
        Tensor::random(s, Distribution::Normal(0., 1.), d)
    }
    let ri = |n: usize, hi: i64| -> Tensor<1, Int> {
        Tensor::from_data(
            TensorData::new((0..n as i64).map(|i| i * 7919 % hi).collect::<Vec<_>>(), [n]),
            &dev,
        )
    };
    if wl.contains('a') {
        let x = rn([100, 784], &dev);
        train("a", Mlp::new(&[784, 100, 10], &dev), AdaGradConfig::new().init(), 0.01, ri(100, 10), |m| {
            m.f(x.clone())
        });
    }
    if wl.contains('b') {
        let x = rn([256, 784], &dev);
        train(
            "b",
            Mlp::new(&[784, 1024, 1024, 10], &dev),
            SgdConfig::new().with_momentum(Some(MomentumConfig::new().with_dampening(0.))).init(),
            0.01,
            ri(256, 10),
            |m| m.f(x.clone()),
        );
    }
    if wl.contains('c') {
        let x = rn([64, 1, 28, 28], &dev);
        train("c", Cnn::new(&dev), AdamConfig::new().init(), 1e-3, ri(64, 10), |m| m.f(x.clone()));
    }
    for (k, l, d, h, t, b) in [('d', 4, 128, 4, 64, 16), ('e', 6, 384, 6, 256, 4)] {
        if wl.contains(k) {
            let mask: Tensor<2, Bool> = Tensor::tril_mask([t, t], 0, &dev);
            let mask = mask.unsqueeze::<4>();
            let x = ri(b * t, 65).reshape([b, t]);
            train(
                &k.to_string(),
                Gpt::new(l, d, t, &dev),
                AdamWConfig::new().init(),
                3e-4,
                ri(b * t, 65),
                |m| m.f(x.clone(), h, &mask),
            );
        }
    }
    if wl.contains('f') {
        let m = Cnn::new(&inf);
        let x = rn([1, 1, 28, 28], &inf);
        bench("f", 3000, || m.f(x.clone()).sum().into_scalar::<f32>());
    }
    if wl.contains('g') {
        let x = rn([16 << 20], &inf);
        bench("g", 40, || {
            let y = (x.clone() * 1.5 + 0.25).tanh() * sigmoid(x.clone()) + x.clone();
            y.narrow(0, 0, 1).into_scalar::<f32>()
        });
    }
    if wl.contains('h') {
        let x = rn([64, 28, 28], &dev);
        train(
            "h",
            Rnn { l: LstmConfig::new(28, 128, true).init(&dev), o: LinearConfig::new(128, 10).init(&dev) },
            AdamConfig::new().init(),
            1e-3,
            ri(64, 10),
            |m| m.o.forward(m.l.forward(x.clone(), None).1.hidden),
        );
    }
}
