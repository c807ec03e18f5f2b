//! Connectionist temporal classification: the loss of a sequence of labels whose times are unknown.

use thalweg_core::DType;

use crate::error::{OpError, fail};
use crate::functions::losses::Reduction;
use crate::tensor::Tensor;

/// The options of [`Tensor::ctc_loss`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CtcOptions {
    /// The class that stands for no label.
    pub blank: i64,
    /// Whether the infinite loss of a sequence that does not fit into its time counts as 0.
    pub zero_infinity: bool,
    /// How losses become one result. A mean first divides each loss by the length of its target.
    pub reduction: Reduction,
}

impl Default for CtcOptions {
    fn default() -> Self {
        Self { blank: 0, zero_infinity: false, reduction: Reduction::Mean }
    }
}

/// Stands for log 0: far below any sum of logarithms, and unlike −∞ it can be subtracted from itself.
const NEVER: f64 = -1e30;

impl Tensor {
    /// The negative log-likelihood of label sequences over all their alignments. self: logarithms of
    /// probabilities (time, batch, classes); targets: labels (batch, longest), padded at the end.
    ///
    /// The sum over alignments is the forward recursion of Graves et al. (2006) over the labels with
    /// blanks between them, in logarithms; its gradient is that of the recursion.
    #[track_caller]
    pub fn ctc_loss(
        &self,
        targets: &Tensor,
        input_lengths: &[usize],
        target_lengths: &[usize],
        options: &CtcOptions,
    ) -> Tensor {
        let (time, batch, longest) = check(self, targets, input_lengths, target_lengths, options.blank);
        let x = self.as_float();
        let states = 2 * longest + 1;
        // (batch, states): blank, label, blank, label, …, blank.
        let blanks = Tensor::full([batch, longest], options.blank, DType::I64);
        let pairs =
            Tensor::stack(&[&blanks, &targets.to_dtype(DType::I64)], -1).reshape([batch, 2 * longest]);
        let labels = Tensor::concat(&[pairs, Tensor::full([batch, 1], options.blank, DType::I64)], 1);
        // (time, batch, states): the log-probability of each state's label at each time.
        let emitted = x.gather(2, &labels.unsqueeze(0).broadcast_to([time, batch, states]));
        let never = |n: usize| Tensor::full([batch, n.min(states)], NEVER, x.dtype());
        // A label may follow another directly, unless it is the same.
        let may_skip = (states > 2).then(|| {
            let (now, before) = (labels.narrow(1, 2, states - 2), labels.narrow(1, 0, states - 2));
            now.ne(&before).logical_and(&now.ne(options.blank))
        });
        let start = 2.min(states);
        let first = emitted.select(0, 0);
        let mut alpha = Tensor::concat(&[first.narrow(1, 0, start), never(states - start)], 1);
        let lengths = Tensor::from(input_lengths.iter().map(|&n| n as i64).collect::<Vec<_>>()).unsqueeze(1);
        for t in 1..time {
            let mut from = vec![alpha.clone()];
            if states > 1 {
                from.push(Tensor::concat(&[never(1), alpha.narrow(1, 0, states - 1)], 1));
            }
            if let Some(may_skip) = &may_skip {
                let skipped = may_skip.where_(&alpha.narrow(1, 0, states - 2), NEVER);
                from.push(Tensor::concat(&[never(2), skipped], 1));
            }
            let next = Tensor::stack(&from, 0).logsumexp(0) + emitted.select(0, t as isize);
            alpha = lengths.gt(t as i64).where_(&next, &alpha);
        }
        // The last label or the blank after it; an empty target has only the first blank.
        let last: Vec<i64> =
            target_lengths.iter().flat_map(|&n| [2 * n as i64, (2 * n as i64 - 1).max(0)]).collect();
        let ends = alpha.gather(1, &Tensor::from_vec(last, [batch, 2]));
        let empty: Vec<bool> = target_lengths.iter().flat_map(|&n| [false, n == 0]).collect();
        let ends = Tensor::from_vec(empty, [batch, 2]).where_(NEVER, &ends);
        let losses = -ends.logsumexp(1);
        let impossible = losses.ge(-0.5 * NEVER);
        let instead = if options.zero_infinity { 0.0 } else { f64::INFINITY };
        let losses = impossible.where_(instead, &losses);
        match options.reduction {
            Reduction::Mean => {
                let n: Vec<f64> = target_lengths.iter().map(|&n| n.max(1) as f64).collect();
                (losses / Tensor::from(n).to_dtype(x.dtype())).mean(())
            }
            other => other.of(&losses),
        }
    }
}

#[track_caller]
fn check(
    x: &Tensor,
    targets: &Tensor,
    input_lengths: &[usize],
    target_lengths: &[usize],
    blank: i64,
) -> (usize, usize, usize) {
    let op = "ctc_loss";
    let (&[time, batch, classes], &[n, longest]) = (&x.shape()[..], &targets.shape()[..]) else {
        let hint = "scores are (time, batch, classes) and targets (batch, longest)";
        fail(OpError::Shapes { op, left: x.shape().clone(), right: targets.shape().clone(), hint });
    };
    let fits = |lengths: &[usize], most: usize, least: usize| {
        lengths.len() == batch && lengths.iter().all(|l| (least..=most).contains(l))
    };
    if n != batch || !fits(input_lengths, time, 1) || !fits(target_lengths, longest, 0) {
        let value = format!("{input_lengths:?} and {target_lengths:?}");
        let need = "one length per sequence, at least 1 for inputs, and none beyond its axis";
        fail(OpError::Argument { op, name: "lengths", value, shape: x.shape().clone(), need });
    }
    if !(0..classes as i64).contains(&blank) {
        fail(OpError::Index { op, index: blank, size: classes });
    }
    (time, batch, longest)
}

#[cfg(test)]
mod tests {
    use thalweg_core::DType;

    use super::CtcOptions;
    use crate::{Reduction, Tensor};

    fn losses(zero_infinity: bool) -> Vec<f32> {
        // Two steps: "1 1" needs three (a blank between), "2" has three alignments, "" has one.
        let x = Tensor::zeros([2, 3, 3], DType::F32).log_softmax(2);
        let targets = Tensor::from([[1i64, 1], [2, 0], [0, 0]]);
        let options = CtcOptions { zero_infinity, reduction: Reduction::None, ..Default::default() };
        x.ctc_loss(&targets, &[2, 2, 2], &[2, 1, 0], &options).to_vec()
    }

    #[test]
    fn alignments_are_counted_and_impossible_targets_are_infinite() {
        let got = losses(false);
        assert_eq!(got[0], f32::INFINITY);
        assert!(
            (got[1] - (9.0f32 / 3.0).ln()).abs() < 1e-6 && (got[2] - 9.0f32.ln()).abs() < 1e-6,
            "{got:?}"
        );
        assert_eq!(losses(true)[0], 0.0);
    }
}
