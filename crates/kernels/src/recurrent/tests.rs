use super::{Activation, Sequence, gru, gru_backward, lstm, lstm_backward, rnn, rnn_backward};
use crate::gemm::MatRef;
use crate::rows::testing::{close, same_on_threads, values};

const SIZES: [(usize, usize, usize); 5] = [(1, 1, 1), (3, 2, 5), (4, 61, 16), (2, 7, 33), (0, 2, 3)];

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Lstm,
    Gru,
    Rnn(Activation),
}

impl Kind {
    /// Parts of x and of the rows of u, of a row of the result, of a row of gradients.
    fn parts(self) -> [usize; 3] {
        match self {
            Kind::Lstm => [4, 6, 4],
            Kind::Gru => [3, 5, 4],
            Kind::Rnn(_) => [1, 1, 1],
        }
    }

    /// Which part of a row of gradients is that of part `part` of x.
    fn back(self, part: usize) -> usize {
        if self == Kind::Gru && part == 2 { 3 } else { part }
    }
}

fn small(n: usize, seed: u32) -> Vec<f32> {
    values(n, seed).iter().map(|x| x / 4.0).collect()
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(*x)).collect()
}

/// x, u, the bias of the state's products, h0, c0; the LSTM alone has the last, the GRU alone the third.
fn each_call(check: impl Fn(Kind, Sequence, [Vec<f32>; 5])) {
    for kind in [Kind::Lstm, Kind::Gru, Kind::Rnn(Activation::Tanh), Kind::Rnn(Activation::Relu)] {
        for ((steps, batch, hidden), reverse) in SIZES.iter().flat_map(|&s| [(s, false), (s, true)]) {
            let net = Sequence { steps, batch, hidden, reverse };
            let ([gates, ..], state) = (kind.parts(), batch * hidden);
            let x = [steps * gates * state, gates * hidden * hidden, gates * hidden, state, state];
            check(kind, net, [0, 1, 2, 3, 4].map(|i| small(x[i], i as u32 + 1)));
        }
    }
}

fn forward(kind: Kind, net: Sequence, [x, u, bias, h0, c0]: &[Vec<f64>; 5]) -> Vec<f64> {
    let Sequence { steps, batch, hidden: n, reverse } = net;
    let [gates, kept, _] = kind.parts();
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let mut y = vec![0.0; steps * batch * kept * n];
    let (mut h, mut c) = (h0.clone(), c0.clone());
    for place in 0..steps {
        let t = if reverse { steps - 1 - place } else { place };
        let before = h.clone();
        for (b, j) in (0..batch).flat_map(|b| (0..n).map(move |j| (b, j))) {
            let of_x = |k: usize| x[(t * batch + b) * gates * n + k * n + j];
            let of_h = |k: usize| {
                let u = &u[(k * n + j) * n..][..n];
                u.iter().zip(&before[b * n..]).map(|(u, h)| u * h).sum::<f64>()
            };
            let gate = |k: usize| of_x(k) + of_h(k);
            let state = &mut h[b * n + j];
            let row = match kind {
                Kind::Lstm => {
                    let (i, f) = (sigmoid(gate(0)), sigmoid(gate(1)));
                    let (g, o) = (gate(2).tanh(), sigmoid(gate(3)));
                    let c = &mut c[b * n + j];
                    *c = f * *c + i * g;
                    *state = o * c.tanh();
                    vec![i, f, g, o, *c, *state]
                }
                Kind::Gru => {
                    let (r, z) = (sigmoid(gate(0) + bias[j]), sigmoid(gate(1) + bias[n + j]));
                    let q = of_h(2) + bias[2 * n + j];
                    let candidate = (of_x(2) + r * q).tanh();
                    *state = candidate + z * (*state - candidate);
                    vec![r, z, candidate, q, *state]
                }
                Kind::Rnn(f) => {
                    *state = if f == Activation::Tanh { gate(0).tanh() } else { gate(0).max(0.0) };
                    vec![*state]
                }
            };
            for (k, value) in row.into_iter().enumerate() {
                y[(t * batch + b) * kept * n + k * n + j] = value;
            }
        }
    }
    y
}

#[test]
fn forward_agrees_with_f64() {
    each_call(|kind, net, x| {
        let [gates, kept, _] = kind.parts();
        let got = same_on_threads(|| {
            let mut y = vec![f32::NAN; net.steps * net.batch * kept * net.hidden];
            let u = MatRef::row_major(&x[1], gates * net.hidden, net.hidden);
            match kind {
                Kind::Lstm => lstm(net, &x[0], u, [&x[3], &x[4]], &mut y),
                Kind::Gru => gru(net, &x[0], u, &x[2], &x[3], &mut y),
                Kind::Rnn(f) => rnn(net, f, &x[0], u, &x[3], &mut y),
            }
            y
        });
        // States that nothing bounds are sums of larger terms that cancel.
        let error = if kind == Kind::Rnn(Activation::Relu) { 2e-5 } else { 2e-6 };
        close(&got, &forward(kind, net, &[0, 1, 2, 3, 4].map(|i| wide(&x[i]))), error);
    });
}

#[test]
fn backward_agrees_with_differences_of_the_f64_forward() {
    each_call(|kind, net, x| {
        let Sequence { steps, batch, hidden: n, .. } = net;
        let ([gates, _, back], state) = (kind.parts(), batch * n);
        let wide_x = [0, 1, 2, 3, 4].map(|i| wide(&x[i]));
        let y: Vec<f32> = forward(kind, net, &wide_x).iter().map(|y| *y as f32).collect();
        let dy = small(y.len(), 9);
        let got = same_on_threads(|| {
            let mut all = vec![f32::NAN; steps * back * state + 2 * state];
            let (d, rest) = all.split_at_mut(steps * back * state);
            let (dh0, dc0) = rest.split_at_mut(state);
            let u = MatRef::row_major(&x[1], gates * n, n);
            match kind {
                Kind::Lstm => lstm_backward(net, &y, u, &x[4], &dy, [d, dh0, dc0]),
                Kind::Gru => gru_backward(net, &y, u, &x[3], &dy, [d, dh0]),
                Kind::Rnn(f) => rnn_backward(net, f, &y, u, &dy, [d, dh0]),
            }
            if kind != Kind::Lstm {
                dc0.fill(0.0);
            }
            all
        });
        let of_x = |k: usize| {
            let (row, part, j) = (k / (gates * n), k / n % gates, k % n);
            f64::from(got[row * back * n + kind.back(part) * n + j])
        };
        // The bias of the state's products is in the first three parts of all rows.
        let of_bias =
            |k: usize| (0..steps * batch).map(|row| f64::from(got[row * back * n + k])).sum::<f64>();
        let of_state = |k: usize| f64::from(got[steps * back * state + k]);
        let check = |operand: usize, len: usize, gradient: &dyn Fn(usize) -> f64| {
            // A few positions of each gradient; differences of all would take minutes.
            for k in (0..len).step_by(len.div_ceil(12).max(1)) {
                let loss = |by: f64| {
                    let mut x = wide_x.clone();
                    x[operand][k] += by;
                    forward(kind, net, &x).iter().zip(&dy).map(|(y, dy)| y * f64::from(*dy)).sum::<f64>()
                };
                let want = (loss(1e-5) - loss(-1e-5)) / 2e-5;
                close(&[gradient(k) as f32], &[want], 5e-5);
            }
        };
        check(0, x[0].len(), &of_x);
        check(3, state, &of_state);
        match kind {
            Kind::Gru => check(2, 3 * n, &of_bias),
            Kind::Lstm => check(4, state, &|k| of_state(state + k)),
            Kind::Rnn(_) => {}
        }
    });
}
