//! candle peers: peers_candle [workloads]. Prints framework,workload,median_ms,min_ms,q1,n
use candle_core::{D, DType, Device, Result, Tensor, Var, backprop::GradStore};
use candle_nn::{self as nn, Module, Optimizer, RNN, VarBuilder, VarMap};
use std::time::Instant;
fn cpu() -> f64 {
    // SAFETY: the system fills the time that it is given, and zeros are a time.
    unsafe {
        let mut t: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut t);
        t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
    }
}
fn bench(wl: &str, max: usize, mut f: impl FnMut() -> Result<f32>) -> Result<()> {
    for _ in 0..4 {
        f()?;
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
        f()?;
        w.push(s.elapsed().as_secs_f64() * 1e3);
        c.push((cpu() - p) * 1e3);
    }
    w.sort_by(f64::total_cmp);
    c.sort_by(f64::total_cmp);
    let h = w.len() / 2;
    println!("candle,{th},{wl},{:.4},{:.4},{:.4},{:.4},{}", w[h], w[0], c[h], c[0], w.len());
    Ok(())
}
enum Opt {
    Adagrad(f64, Vec<Tensor>),
    Sgdm(f64, f64, Vec<Tensor>),
    Adam(nn::AdamW),
}
struct O {
    vars: Vec<Var>,
    o: Opt,
}
impl O {
    fn step(&mut self, g: &GradStore) -> Result<()> {
        match &mut self.o {
            Opt::Adam(a) => a.step(g)?,
            Opt::Adagrad(lr, s) => {
                for (v, s) in self.vars.iter().zip(s) {
                    let g = g.get(v).unwrap();
                    *s = (&*s + g.sqr()?)?;
                    v.set(&(v.as_tensor() - ((g / (s.sqrt()? + 1e-10)?)? * *lr)?)?)?;
                }
            }
            Opt::Sgdm(lr, m, s) => {
                for (v, s) in self.vars.iter().zip(s) {
                    let g = g.get(v).unwrap();
                    *s = ((&*s * *m)? + g)?;
                    v.set(&(v.as_tensor() - (&*s * *lr)?)?)?;
                }
            }
        }
        Ok(())
    }
}
fn zeros(v: &[Var]) -> Vec<Tensor> {
    v.iter().map(|v| v.zeros_like().unwrap()).collect()
}
fn adam(vm: &VarMap, lr: f64, wd: f64) -> Result<O> {
    Ok(O {
        vars: vm.all_vars(),
        o: Opt::Adam(nn::AdamW::new(
            vm.all_vars(),
            nn::ParamsAdamW { lr, weight_decay: wd, ..Default::default() },
        )?),
    })
}
fn train(wl: &str, mut o: O, x: Tensor, y: Tensor, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<()> {
    bench(wl, 400, || {
        let l = nn::loss::cross_entropy(&f(&x)?, &y)?;
        let g = l.backward()?;
        o.step(&g)?;
        l.to_scalar::<f32>()
    })
}
fn vb() -> (VarMap, VarBuilder<'static>) {
    let m = VarMap::new();
    let b = VarBuilder::from_varmap(&m, DType::F32, &Device::Cpu);
    (m, b)
}
fn rn<S: Into<candle_core::Shape>>(s: S) -> Tensor {
    Tensor::randn(0f32, 1., s, &Device::Cpu).unwrap()
}
fn ri(n: usize, hi: u32) -> Tensor {
    Tensor::from_vec((0..n as u32).map(|i| i * 7919 % hi).collect::<Vec<_>>(), n, &Device::Cpu).unwrap()
}
struct Ln(Tensor, Tensor);
impl Ln {
    fn new(d: usize, vb: VarBuilder) -> Result<Self> {
        Ok(Ln(
            vb.get_with_hints(d, "w", nn::Init::Const(1.))?,
            vb.get_with_hints(d, "b", nn::Init::Const(0.))?,
        ))
    }
    fn f(&self, x: &Tensor) -> Result<Tensor> {
        nn::ops::layer_norm_slow(x, &self.0, &self.1, 1e-5)
    }
}
struct Blk {
    l1: Ln,
    l2: Ln,
    qkv: nn::Linear,
    o: nn::Linear,
    up: nn::Linear,
    dn: nn::Linear,
}
fn main() -> Result<()> {
    let wl = std::env::args().nth(1).unwrap_or("abcdefgh".into());
    let dev = Device::Cpu;
    if wl.contains('a') {
        let (m, v) = vb();
        let (a, b) = (nn::linear(784, 100, v.pp("a"))?, nn::linear(100, 10, v.pp("b"))?);
        let s = zeros(&m.all_vars());
        train("a", O { vars: m.all_vars(), o: Opt::Adagrad(0.01, s) }, rn((100, 784)), ri(100, 10), |x| {
            b.forward(&a.forward(x)?.relu()?)
        })?;
    }
    if wl.contains('b') {
        let (m, v) = vb();
        let (a, b, c) = (
            nn::linear(784, 1024, v.pp("a"))?,
            nn::linear(1024, 1024, v.pp("b"))?,
            nn::linear(1024, 10, v.pp("c"))?,
        );
        let s = zeros(&m.all_vars());
        train("b", O { vars: m.all_vars(), o: Opt::Sgdm(0.01, 0.9, s) }, rn((256, 784)), ri(256, 10), |x| {
            c.forward(&b.forward(&a.forward(x)?.relu()?)?.relu()?)
        })?;
    }
    let (m, v) = vb();
    let c1 = nn::conv2d(1, 32, 3, Default::default(), v.pp("1"))?;
    let c2 = nn::conv2d(32, 64, 3, Default::default(), v.pp("2"))?;
    let (d1, d2) = (nn::linear(9216, 128, v.pp("3"))?, nn::linear(128, 10, v.pp("4"))?);
    let cnn = |x: &Tensor| -> Result<Tensor> {
        let x = c2.forward(&c1.forward(x)?.relu()?)?.relu()?.max_pool2d(2)?.flatten_from(1)?;
        d2.forward(&d1.forward(&x)?.relu()?)
    };
    if wl.contains('c') {
        train("c", adam(&m, 1e-3, 0.)?, rn((64, 1, 28, 28)), ri(64, 10), cnn)?;
    }
    if wl.contains('f') {
        let x = rn((1, 1, 28, 28));
        bench("f", 3000, || {
            let o = cnn(&x)?;
            o.flatten_all()?.get(0)?.to_scalar()
        })?;
    }
    for (k, l, d, h, t, b) in [('d', 4, 128, 4, 64, 16), ('e', 6, 384, 6, 256, 4)] {
        if !wl.contains(k) {
            continue;
        }
        let (m, v) = vb();
        let te = nn::embedding(65, d, v.pp("te"))?;
        let pe = v.get_with_hints((t, d), "pe", nn::init::DEFAULT_KAIMING_NORMAL)?;
        let lf = Ln::new(d, v.pp("lf"))?;
        let hd = nn::linear_no_bias(d, 65, v.pp("hd"))?;
        let bl: Vec<Blk> = (0..l)
            .map(|i| {
                let v = v.pp(format!("b{i}"));
                Ok(Blk {
                    l1: Ln::new(d, v.pp("l1"))?,
                    l2: Ln::new(d, v.pp("l2"))?,
                    qkv: nn::linear(d, 3 * d, v.pp("q"))?,
                    o: nn::linear(d, d, v.pp("o"))?,
                    up: nn::linear(d, 4 * d, v.pp("u"))?,
                    dn: nn::linear(4 * d, d, v.pp("n"))?,
                })
            })
            .collect::<Result<_>>()?;
        let mask = Tensor::from_vec(
            (0..t * t).map(|i| if i % t > i / t { f32::NEG_INFINITY } else { 0. }).collect::<Vec<_>>(),
            (1, 1, t, t),
            &dev,
        )?;
        train(&k.to_string(), adam(&m, 3e-4, 0.01)?, ri(b * t, 65).reshape((b, t))?, ri(b * t, 65), |i| {
            let mut x = te.forward(i)?.broadcast_add(&pe)?;
            for q in &bl {
                let hh =
                    q.qkv.forward(&q.l1.f(&x)?)?.reshape((b, t, 3, h, d / h))?.permute((2, 0, 3, 1, 4))?;
                let (qq, kk, vv) =
                    (hh.get(0)?.contiguous()?, hh.get(1)?.contiguous()?, hh.get(2)?.contiguous()?);
                let a = (qq.matmul(&kk.t()?)? * ((d / h) as f64).powf(-0.5))?.broadcast_add(&mask)?;
                let a = nn::ops::softmax(&a, D::Minus1)?.matmul(&vv)?.transpose(1, 2)?.reshape((b, t, d))?;
                x = (x + q.o.forward(&a)?)?;
                let u = q.dn.forward(&q.up.forward(&q.l2.f(&x)?)?.gelu()?)?;
                x = (x + u)?;
            }
            hd.forward(&lf.f(&x)?)?.reshape((b * t, 65))
        })?;
    }
    if wl.contains('g') {
        let x = rn(16 << 20);
        bench("g", 40, || {
            let o = ((x.affine(1.5, 0.25)?.tanh()? * nn::ops::sigmoid(&x)?)? + &x)?;
            o.get(0)?.to_scalar()
        })?;
    }
    if wl.contains('h') {
        let (m, v) = vb();
        let l = nn::rnn::lstm(28, 128, Default::default(), v.pp("l"))?;
        let o = nn::linear(128, 10, v.pp("o"))?;
        train("h", adam(&m, 1e-3, 0.)?, rn((64, 28, 28)), ri(64, 10), |x| {
            o.forward(l.seq(x)?.last().unwrap().h())
        })?;
    }
    Ok(())
}
