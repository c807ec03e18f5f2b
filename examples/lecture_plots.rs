//! What lectures on optimisation draw, on one page: least squares with 20 unknowns and 2,000 noisy equations.
//!
//! `lecture_plots FILE.html` says where the page goes; otherwise it is `lecture-plots.html` in the folder for temporary files.
//!
//! Prints:
//! ```text
//! error against step: every optimiser is at least ten times closer than at the start
//! variance of the gradient: sixteen times the batch, about a sixteenth of the variance
//! error floor: it falls with the learning rate, 0.1 > 0.03 > 0.01 > 0.003
//! ```
use thalweg::prelude::*;
use thalweg::train::plot::{Plot, Series};

struct Problem {
    x: Tensor,
    y: Tensor,
    /// Where the loss is least.
    solution: Tensor,
}

impl Problem {
    fn new(rng: &mut Rng) -> Self {
        let (x, truth) = (rng.normal([2000, 20], 0.0, 1.0), rng.normal([20], 0.0, 1.0));
        let y = x.matmul(&truth) + rng.normal([2000], 0.0, 0.5);
        let solution = x.t().matmul(&x).solve(&x.t().matmul(&y).unsqueeze(-1)).squeeze(-1);
        Self { x, y, solution }
    }

    /// Rows drawn at random.
    fn batch(&self, size: usize, rng: &mut Rng) -> (Tensor, Tensor) {
        let rows = rng.randint([size], 0, 2000);
        (self.x.index_select(0, &rows), self.y.index_select(0, &rows))
    }

    /// ‖w − w*‖² after each step; `size` samples per step, or all.
    fn descend<R: Rule>(&self, mut opt: Optimizer<R>, size: Option<usize>, steps: usize) -> Vec<(f64, f64)> {
        let (w, mut rng) = (Param::new("w", Tensor::zeros([20], F32)), Rng::seed(1));
        let mut step = jit(|(x, y): (Tensor, Tensor)| {
            let loss = (x.matmul(&w.get()) - y).square().mean(()) * 0.5;
            opt.step(&w, &loss);
            (w.get() - &self.solution).square().sum(())
        });
        let mut point = |i: usize| {
            let batch = size.map_or_else(|| (self.x.clone(), self.y.clone()), |n| self.batch(n, &mut rng));
            (i as f64, f64::from(step.call(batch).expect("shapes do not change").item::<f32>()).max(1e-12))
        };
        (1..=steps).map(&mut point).collect()
    }

    /// How far the gradients of batches at w = 0 are from their mean, squared.
    fn variance(&self, size: usize) -> f64 {
        let mut rng = Rng::seed(2);
        let gradient = |(x, y): (Tensor, Tensor)| -(x.t().matmul(&y)) / size as f64;
        let all: Vec<Tensor> = (0..400).map(|_| gradient(self.batch(size, &mut rng))).collect();
        let all = Tensor::stack(&all.iter().collect::<Vec<_>>(), 0);
        f64::from((&all - all.mean_keepdim(0)).square().sum(1).mean(()).item::<f32>())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let problem = Problem::new(&mut Rng::seed(0));
    let run = |name: &str, points: Vec<(f64, f64)>| Series { name: name.to_owned(), points };
    let start = f64::from(problem.solution.square().sum(()).item::<f32>());
    let optimisers = vec![
        run("SGD", problem.descend(Sgd::new(0.05), None, 200)),
        run("momentum", problem.descend(Sgd::new(0.05).momentum(0.9), None, 200)),
        run("Nesterov", problem.descend(Sgd::new(0.05).nesterov(0.9), None, 200)),
        run("AdaGrad", problem.descend(Adagrad::new(0.5), None, 200)),
        run("RMSprop", problem.descend(RmsProp::new(0.02), None, 200)),
        run("Adam", problem.descend(Adam::new(0.1), None, 200)),
    ];
    assert!(optimisers.iter().all(|s| s.points[199].1 < start / 10.0));
    println!("error against step: every optimiser is at least ten times closer than at the start");

    let variances: Vec<(f64, f64)> = (0..=8).map(|k| (f64::from(k), problem.variance(1 << k))).collect();
    let ratio = variances[0].1 / variances[4].1;
    assert!((11.0..23.0).contains(&ratio), "{ratio}");
    println!("variance of the gradient: sixteen times the batch, about a sixteenth of the variance");

    let rates = [0.1, 0.03, 0.01, 0.003];
    let curves = rates.map(|lr| run(&format!("lr {lr}"), problem.descend(Sgd::new(lr), Some(4), 4000)));
    let floor = |s: &Series| s.points[3000..].iter().map(|p| p.1).sum::<f64>() / 1000.0;
    assert!(curves.windows(2).all(|w| floor(&w[0]) > floor(&w[1])));
    println!("error floor: it falls with the learning rate, {}", rates.map(|r| r.to_string()).join(" > "));

    let plot = |title: &str, x_name: &str, series: Vec<Series>| {
        Plot { title: title.to_owned(), x_name: x_name.to_owned(), series, log_y: true, ..Plot::default() }
            .svg()
    };
    let page = [
        "<!doctype html><meta charset=\"utf-8\"><title>Descent, as lectures draw it</title>".to_owned(),
        plot("squared error against step, all samples", "step", optimisers),
        plot("variance of the gradient", "log2 of the batch size", vec![run("variance", variances)]),
        plot("squared error against step, batches of 4", "step", curves.into()),
    ];
    let path =
        std::env::args().nth(1).map_or_else(|| std::env::temp_dir().join("lecture-plots.html"), Into::into);
    Ok(std::fs::write(path, page.join("\n"))?)
}
