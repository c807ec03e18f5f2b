//! Plans as pictures.

use thalweg_core::DType;
use thalweg_runtime::{Plan, cond, jit};
use thalweg_tensor::{Param, Rng, Tensor};

/// The plan of a training step of a small network.
fn network() -> String {
    let mut rng = Rng::seed(1);
    let sizes = [20, 64, 64, 32, 10];
    let layers: Vec<[Param; 2]> = sizes
        .windows(2)
        .enumerate()
        .map(|(i, s)| {
            let w = rng.normal([s[1], s[0]], 0.0, 0.2);
            [
                Param::new(format!("layer{i}.weight"), w),
                Param::new(format!("layer{i}.bias"), Tensor::zeros([s[1]], DType::F32)),
            ]
        })
        .collect();
    let (x, y) = (rng.normal([32, 20], 0.0, 1.0), rng.normal([32, 10], 0.0, 1.0));
    let mut step = jit(|(x, y): (Tensor, Tensor)| {
        let last = layers.len() - 1;
        let out = layers.iter().enumerate().fold(x, |x, (i, [w, b])| {
            let x = x.linear(&w.get(), Some(&b.get()));
            if i < last { x.relu() } else { x }
        });
        let loss = (out - y).square().mean(());
        let params: Vec<&Param> = layers.iter().flatten().collect();
        for (p, g) in params.iter().zip(loss.grad(&params)) {
            p.set(p.get() - g * 0.1);
        }
        loss
    });
    step.call((x, y)).unwrap();
    shown(step.plan(), "a four-layer network, one step of training")
}

/// The plan of a block of a transformer with its gradients.
fn transformer() -> String {
    let mut rng = Rng::seed(2);
    let (width, heads) = (32, 4);
    let mut param = |name: &str, shape: [usize; 2]| Param::new(name, rng.normal(shape, 0.0, 0.2));
    let [q, k, v, o] = ["query", "key", "value", "out"].map(|name| param(name, [width, width]));
    let (up, down) = (param("up", [4 * width, width]), param("down", [width, 4 * width]));
    let x = Rng::seed(3).normal([2, 16, width], 0.0, 1.0);
    let mut f = jit(|x: Tensor| {
        let n = x.layer_norm(width, None, None, 1e-5);
        let split =
            |w: &Param| n.linear(&w.get(), None).reshape([2, 16, heads, width / heads]).transpose(1, 2);
        let attended = split(&q).scaled_dot_product_attention(&split(&k), &split(&v), &Default::default());
        let x = &x + attended.transpose(1, 2).reshape([2, 16, width]).linear(&o.get(), None);
        let n = x.layer_norm(width, None, None, 1e-5);
        let y = &x + n.linear(&up.get(), None).gelu_tanh().linear(&down.get(), None);
        let loss = y.square().mean(());
        let grads = loss.grad(&[&q, &k, &v, &o, &up, &down]);
        (loss, grads)
    });
    f.call(x).unwrap();
    shown(f.plan(), "a block of a transformer, forward and backward")
}

/// Where `THALWEG_PICTURES` names a folder, the page is also written there, to be looked at.
fn shown(plan: &Plan, title: &str) -> String {
    let page = plan.to_html(title);
    if let Some(folder) = std::env::var_os("THALWEG_PICTURES") {
        let name = title.split(' ').nth(1).unwrap_or_default();
        std::fs::write(std::path::Path::new(&folder).join(format!("{name}.html")), &page).unwrap();
    }
    page
}

#[test]
fn a_page_shows_every_step_parameter_operand_and_result() {
    for (page, names) in [
        (network(), &["layer0.weight ←", "layer3.bias ←", ">x0<", ">x1<", "→ y0", "f32[32, 64]"][..]),
        (transformer(), &[">query<", ">key<", ">value<", ">down<", ">x0<", "→ y0", "→ y6"][..]),
    ] {
        for name in names {
            assert!(page.contains(name), "{name} is missing");
        }
        assert!(page.contains("picture.rs:"), "source lines are missing");
        for (open, close) in [("<g ", "</g>"), ("<svg ", "</svg>"), ("<text ", "</text>")] {
            assert_eq!(page.matches(open).count(), page.matches(close).count(), "{open}");
        }
        assert!(!page.contains("NaN") && !page.contains("inf\""), "a place is not a number");
        let is_own = !page.contains("http://") && !page.contains("https://");
        assert!(is_own, "the page needs nothing from elsewhere");
    }
}

#[test]
fn a_box_of_a_decision_shows_what_its_branches_run() {
    let mut f = jit(|x: Tensor| cond(&x.sum(()).gt(0.0), || x.cumsum(0).exp(), || -&x));
    f.call(Tensor::ones([4], DType::F32)).unwrap();
    let page = shown(f.plan(), "a decision");
    for line in [">then:<", ">\u{a0}\u{a0}cumsum<", ">otherwise:<", ">\u{a0}\u{a0}neg<"] {
        assert!(page.contains(line), "{line} is missing");
    }
    assert!(page.contains("  cumsum   "), "the pointer shows whole lines");
}
