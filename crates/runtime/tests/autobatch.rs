//! Instances of different structure give in batches what they give one by one.

use thalweg_core::DType;
use thalweg_runtime::{autobatch, jit};
use thalweg_tensor::{Param, Rng, Tensor};

const WORDS: usize = 12;
const WIDTH: usize = 6;
const CLASSES: usize = 3;

enum Tree {
    Word(i64),
    Pair(Box<Tree>, Box<Tree>),
}

impl Tree {
    fn random(draw: &mut dyn FnMut(usize) -> usize, depth: usize) -> Tree {
        match depth == 0 || draw(4) == 0 {
            true => Tree::Word(draw(WORDS) as i64),
            false => {
                Tree::Pair(Box::new(Self::random(draw, depth - 1)), Box::new(Self::random(draw, depth - 1)))
            }
        }
    }
}

/// A binary tree-LSTM that labels every node.
struct TreeLstm {
    words: Param,
    from_word: [Param; 2],
    left: Param,
    right: [Param; 2],
    label: [Param; 2],
}

impl TreeLstm {
    fn new() -> Self {
        let mut rng = Rng::seed(8);
        let mut param = |name: &str, shape: &[usize]| Param::new(name, rng.normal(shape, 0.0, 0.4));
        Self {
            words: param("words", &[WORDS, WIDTH]),
            from_word: [param("word.w", &[3 * WIDTH, WIDTH]), param("word.b", &[3 * WIDTH])],
            left: param("left", &[5 * WIDTH, WIDTH]),
            right: [param("right.w", &[5 * WIDTH, WIDTH]), param("right.b", &[5 * WIDTH])],
            label: [param("label.w", &[CLASSES, WIDTH]), param("label.b", &[CLASSES])],
        }
    }

    fn params(&self) -> Vec<&Param> {
        let pairs = [&self.from_word, &self.right, &self.label];
        [&self.words, &self.left].into_iter().chain(pairs.into_iter().flatten()).collect()
    }

    /// Hidden and cell state of a tree, and the loss of all its nodes.
    fn run(&self, tree: &Tree) -> (Tensor, Tensor, Tensor) {
        let gate = |g: &Tensor, i: usize| g.narrow(-1, i * WIDTH, WIDTH);
        let (h, c, loss) = match tree {
            Tree::Word(word) => {
                let x = self.words.get().index_select(0, &Tensor::from([*word]));
                let g = x.linear(&self.from_word[0].get(), Some(&self.from_word[1].get()));
                let c = gate(&g, 0).sigmoid() * gate(&g, 1).tanh();
                (gate(&g, 2).sigmoid() * c.tanh(), c, None)
            }
            Tree::Pair(a, b) => {
                let ((ha, ca, la), (hb, cb, lb)) = (self.run(a), self.run(b));
                let g = ha.matmul(&self.left.get().t())
                    + hb.linear(&self.right[0].get(), Some(&self.right[1].get()));
                let c = gate(&g, 0).sigmoid() * gate(&g, 1).tanh()
                    + gate(&g, 2).sigmoid() * ca
                    + gate(&g, 3).sigmoid() * cb;
                (gate(&g, 4).sigmoid() * c.tanh(), c, Some(la + lb))
            }
        };
        let logits = h.linear(&self.label[0].get(), Some(&self.label[1].get()));
        let own = logits.cross_entropy(&Tensor::from([1i64]));
        (h, c, loss.map_or(own.clone(), |l| l + own))
    }

    fn total(&self, trees: &[Tree]) -> Tensor {
        trees.iter().map(|t| self.run(t).2).reduce(|a, b| a + b).unwrap()
    }

    /// The gradients of a loss, and itself.
    fn with_gradients(&self, loss: Tensor) -> Vec<Tensor> {
        let mut results = loss.grad(&self.params());
        results.push(loss);
        results
    }

    fn loss(&self, trees: &[Tree]) -> Vec<Tensor> {
        self.with_gradients(self.total(trees))
    }
}

fn trees(seed: u64, n: usize) -> Vec<Tree> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut draw = move |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % n as u64) as usize
    };
    (0..n).map(|_| Tree::random(&mut draw, 5)).collect()
}

fn assert_close(want: &[Tensor], got: &[Tensor], what: &str) {
    for (i, (w, g)) in want.iter().zip(got).enumerate() {
        assert_eq!(w.meta(), g.meta());
        let scale = w.abs().amax(()).item::<f32>().max(1.0);
        let error = (w - g).abs().amax(()).item::<f32>();
        assert!(error <= 1e-4 * scale, "{what}: value {i} is off by {error} of {scale}");
    }
}

#[test]
fn a_tree_lstm_has_the_same_loss_and_gradients_in_batches() {
    let model = TreeLstm::new();
    for seed in 1..=5 {
        let trees = trees(seed, 1 + seed as usize * 2);
        let want = model.loss(&trees);
        let got = autobatch(|| model.loss(&trees)).unwrap();
        assert_close(&want, &got, &format!("seed {seed}"));
        let after = model.with_gradients(autobatch(|| model.total(&trees)).unwrap());
        assert_close(&want, &after, &format!("seed {seed}, gradients of the result"));
    }
}

#[test]
fn parameters_can_be_updated_in_the_scope() {
    let (one, other) = (TreeLstm::new(), TreeLstm::new());
    let trees = trees(3, 6);
    let step = |model: &TreeLstm| {
        let grads = model.loss(&trees);
        model.params().iter().zip(&grads).for_each(|(p, g)| p.set(p.get() - g * 0.1));
        grads[grads.len() - 1].clone()
    };
    for _ in 0..3 {
        let want = step(&one);
        let got = autobatch(|| step(&other)).unwrap();
        assert_close(&[want], &[got], "loss");
    }
    let values = |m: &TreeLstm| m.params().iter().map(|p| p.get()).collect::<Vec<_>>();
    assert_close(&values(&one), &values(&other), "parameters");
}

#[test]
fn results_that_depend_on_no_parameter_and_scopes_in_jit_are_left_alone() {
    let x = Tensor::from([1.0f32, 2.0]);
    let y = autobatch(|| (&x * 2.0, x.clone())).unwrap();
    assert_eq!((y.0.to_vec::<f32>(), y.1.to_vec::<f32>()), (vec![2.0, 4.0], vec![1.0, 2.0]));
    let mut f = jit(|x: Tensor| autobatch(|| x.exp() + Tensor::ones([2], DType::F32)).unwrap());
    assert_eq!(f.call(Tensor::zeros([2], DType::F32)).unwrap().to_vec::<f32>(), [2.0, 2.0]);
}
