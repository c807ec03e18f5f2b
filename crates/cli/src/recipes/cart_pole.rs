//! A policy learns to balance a pole on a cart (REINFORCE; Williams, 1992), under the rules of CartPole-v1.
//!
//! A sample is an episode that the present policy plays, so the data are a function of the net. Solved: a mean return of at
//! least 475 over 100 episodes.

use std::io::Write;
use std::sync::Arc;

use anyhow::Result;
use thalweg::data::{Dataset, Draw, DrawRng};
use thalweg::schedule::Polynomial;
use thalweg::train::{Best, Trainer};
use thalweg::{Activation, Adam, Layer, Linear, Sequential, Tensor, no_grad};

use super::cart::{Cart, LONGEST, advantages};
use super::{Defaults, Length, Recipe};
use crate::job::Job;

pub static RECIPE: Recipe = Recipe {
    name: "cart-pole",
    alias: None,
    about: "policy gradient balances a pole on a cart",
    defaults: Defaults::net(Length::Epochs(10), 16, 1e-2),
    shows: false,
    run,
};

/// Episodes that are called an epoch.
const EPISODES: usize = 320;

type Policy = Arc<Sequential>;
/// Observations (N · LONGEST, 4), actions (N · LONGEST), weights (N · LONGEST), returns (N).
type Experience = (Tensor, Tensor, Tensor, Tensor);

fn run(job: &Job) -> Result<()> {
    let rng = &mut job.rng();
    let policy: Policy = Arc::new(
        Sequential::new().then(Linear::new(4, 64, rng)).then(Activation::Tanh).then(Linear::new(64, 2, rng)),
    );
    let train = Episodes { policy: policy.clone(), count: job.limit(EPISODES), plays: Plays::AtRandom };
    let test = Episodes { policy: policy.clone(), count: job.limit(100), plays: Plays::Best };
    let steps = job.steps(&train);
    let trainer = Trainer::new(policy, Adam::new(job.lr()), |policy: &Policy, (x, a, w, _): Experience| {
        let log_p = policy.forward(&x).log_softmax(-1).gather(-1, &a.unsqueeze(-1)).squeeze(-1);
        -(log_p * w).sum(())
    })
    .metric("return", |_, (_, _, _, returns): Experience| returns.mean(()))
    .validate(test.batches(test.len()).seed(job.settings.seed + 1))
    .watch("return", Best::Highest)
    .schedule(Polynomial { steps, power: 1.0 });
    job.work(trainer, train.batches(job.batch()), show)
}

#[derive(Clone, Copy, PartialEq)]
enum Plays {
    AtRandom,
    Best,
}

/// Episodes of a policy, played side by side when a batch is asked for.
#[derive(Clone)]
struct Episodes {
    policy: Policy,
    count: usize,
    plays: Plays,
}

impl Dataset for Episodes {
    type Batch = Experience;

    fn len(&self) -> usize {
        self.count
    }

    /// Episodes that end early are filled up with steps of weight 0, so that one compiled step fits all.
    fn batch(&self, draws: &[Draw]) -> Experience {
        let n = draws.len();
        let mut rngs: Vec<DrawRng> = draws.iter().map(|d| d.rng(0)).collect();
        let mut carts: Vec<Cart> = rngs.iter_mut().map(Cart::new).collect();
        let mut lengths = vec![0usize; n];
        let (mut x, mut actions) = (vec![0f32; n * LONGEST * 4], vec![0i64; n * LONGEST]);
        for t in 0..LONGEST {
            if carts.iter().all(|c| c.fell()) {
                break;
            }
            let seen: Vec<f32> = carts.iter().flat_map(|c| c.0).collect();
            let scores =
                no_grad(|| self.policy.forward(&Tensor::from_vec(seen, [n, 4]))).softmax(-1).to_vec::<f32>();
            for (i, cart) in carts.iter_mut().enumerate().filter(|(_, c)| !c.fell()) {
                let right = match self.plays {
                    Plays::AtRandom => rngs[i].coin(scores[2 * i + 1]),
                    Plays::Best => scores[2 * i + 1] > 0.5,
                };
                let at = i * LONGEST + t;
                x[at * 4..at * 4 + 4].copy_from_slice(&cart.0);
                actions[at] = i64::from(right);
                cart.push(right);
                lengths[i] = t + 1;
            }
        }
        let (rows, weights) = (n * LONGEST, advantages(&lengths));
        let returns: Vec<f32> = lengths.iter().map(|&l| l as f32).collect();
        (
            Tensor::from_vec(x, [rows, 4]),
            Tensor::from_vec(actions, [rows]),
            Tensor::from_vec(weights, [rows]),
            Tensor::from(returns),
        )
    }

    /// Played when they are asked for, by the policy of that moment.
    fn default_workers(&self) -> usize {
        0
    }
}

/// A few moments of one episode.
fn show(policy: &Policy) -> Result<()> {
    let mut out = std::io::stdout();
    let mut cart = Cart::new(&mut Draw::new(0, 0, 0).rng(0));
    let mut steps = 0;
    while !cart.fell() && steps < LONGEST {
        if steps % 50 == 0 {
            let [x, _, angle, _] = cart.0;
            let angle = angle.to_degrees();
            writeln!(out, "step {steps:>3}: cart at {x:+.2} m, pole at {angle:+.1} degrees")?;
        }
        let scores = no_grad(|| policy.forward(&Tensor::from_slice(&cart.0, [1, 4])));
        cart.push(scores.argmax(-1).item::<i64>() == 1);
        steps += 1;
    }
    writeln!(out, "it stood for {steps} steps")?;
    Ok(())
}
