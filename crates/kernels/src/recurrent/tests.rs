use super::{Lstm, lstm, lstm_backward};
use crate::gemm::MatRef;
use crate::rows::testing::{close, same_on_threads, values};

const SIZES: [(usize, usize, usize); 5] = [(1, 1, 1), (3, 2, 5), (4, 61, 16), (2, 7, 33), (0, 2, 3)];

fn small(n: usize, seed: u32) -> Vec<f32> {
    values(n, seed).iter().map(|x| x / 4.0).collect()
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(*x)).collect()
}

fn each_call(check: impl Fn(Lstm, [Vec<f32>; 4])) {
    for ((steps, batch, hidden), reverse) in SIZES.iter().flat_map(|&s| [(s, false), (s, true)]) {
        let net = Lstm { steps, batch, hidden, reverse };
        let state = batch * hidden;
        let x = [steps * 4 * state, 4 * hidden * hidden, state, state];
        check(net, [0, 1, 2, 3].map(|i| small(x[i], i as u32 + 1)));
    }
}

/// Steps in the order of time.
fn walk(net: Lstm) -> Vec<usize> {
    let steps = 0..net.steps;
    if net.reverse { steps.rev().collect() } else { steps.collect() }
}

fn forward(net: Lstm, [x, u, h0, c0]: &[Vec<f64>; 4]) -> Vec<f64> {
    let Lstm { steps, batch, hidden: n, .. } = net;
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let mut y = vec![0.0; steps * batch * 6 * n];
    let (mut h, mut c) = (h0.clone(), c0.clone());
    for t in walk(net) {
        let before = h.clone();
        for (b, j) in (0..batch).flat_map(|b| (0..n).map(move |j| (b, j))) {
            let gate = |k: usize| {
                let u = &u[(k * n + j) * n..][..n];
                let sum: f64 = u.iter().zip(&before[b * n..]).map(|(u, h)| u * h).sum();
                x[(t * batch + b) * 4 * n + k * n + j] + sum
            };
            let (i, f, g, o) = (sigmoid(gate(0)), sigmoid(gate(1)), gate(2).tanh(), sigmoid(gate(3)));
            c[b * n + j] = f * c[b * n + j] + i * g;
            h[b * n + j] = o * c[b * n + j].tanh();
            for (k, value) in [i, f, g, o, c[b * n + j], h[b * n + j]].into_iter().enumerate() {
                y[(t * batch + b) * 6 * n + k * n + j] = value;
            }
        }
    }
    y
}

#[test]
fn forward_agrees_with_f64() {
    each_call(|net, x| {
        let Lstm { steps, batch, hidden, .. } = net;
        let got = same_on_threads(|| {
            let mut y = vec![f32::NAN; steps * batch * 6 * hidden];
            let u = MatRef::row_major(&x[1], 4 * hidden, hidden);
            lstm(net, &x[0], u, [&x[2], &x[3]], &mut y);
            y
        });
        close(&got, &forward(net, &[0, 1, 2, 3].map(|i| wide(&x[i]))), 2e-6);
    });
}

#[test]
fn backward_agrees_with_differences_of_the_f64_forward() {
    each_call(|net, x| {
        let Lstm { steps, batch, hidden, .. } = net;
        let wide_x = [0, 1, 2, 3].map(|i| wide(&x[i]));
        let y: Vec<f32> = forward(net, &wide_x).iter().map(|y| *y as f32).collect();
        let dy = small(y.len(), 9);
        let lens = [steps * batch * 4 * hidden, batch * hidden, batch * hidden];
        let got = same_on_threads(|| {
            let mut all = vec![f32::NAN; lens.iter().sum()];
            let (dx, rest) = all.split_at_mut(lens[0]);
            let (dh0, dc0) = rest.split_at_mut(lens[1]);
            let u = MatRef::row_major(&x[1], 4 * hidden, hidden);
            lstm_backward(net, &y, u, &x[3], &dy, [dx, dh0, dc0]);
            all
        });
        // A few positions of each gradient; differences of all would take minutes.
        let mut from = 0;
        for (operand, len) in [0, 2, 3].into_iter().zip(lens) {
            for k in (0..len).step_by(len.div_ceil(12).max(1)) {
                let loss = |by: f64| {
                    let mut x = wide_x.clone();
                    x[operand][k] += by;
                    forward(net, &x).iter().zip(&dy).map(|(y, dy)| y * f64::from(*dy)).sum::<f64>()
                };
                let want = (loss(1e-5) - loss(-1e-5)) / 2e-5;
                close(&got[from + k..=from + k], &[want], 2e-5);
            }
            from += len;
        }
    });
}
