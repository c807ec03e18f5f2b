//! Losses that ask for a margin: hinges, and pairs that should be near or far.

use crate::functions::losses::Reduction;
use crate::tensor::Tensor;

impl Tensor {
    /// max(0, 1 − t x), for targets 1 and −1: the loss of support vector machines. Squared, its slope is
    /// continuous.
    ///
    /// ```
    /// use thalweg_tensor::{Reduction, Tensor};
    /// let (x, t) = (Tensor::from([2.0f32, 0.5, 0.5]), Tensor::from([1.0f32, 1.0, -1.0]));
    /// assert_eq!(x.hinge_loss(&t, Reduction::None).to_vec::<f32>(), [0.0, 0.5, 1.5]);
    /// ```
    #[track_caller]
    pub fn hinge_loss(&self, target: &Tensor, reduction: Reduction) -> Tensor {
        reduction.of(&(1.0 - (self * target).as_float()).relu())
    }

    /// d² where y = 1, max(0, margin − d)² where y = 0, for the distances d of pairs of rows (Hadsell,
    /// Chopra and LeCun, 2006, without its factor ½).
    #[track_caller]
    pub fn contrastive_loss(&self, other: &Tensor, y: &Tensor, margin: f64, reduction: Reduction) -> Tensor {
        let d = self.pairwise_distance(other, 2.0, 1e-6);
        reduction.of(&y.ne(0.0).where_(&d.square(), &(margin - &d).relu().square()))
    }

    /// The contrastive loss of a batch (InfoNCE): row i of self belongs to row i of `other` and to no
    /// other row. Cosine similarities over `temperature` are scores of classes.
    #[track_caller]
    pub fn info_nce_loss(&self, other: &Tensor, temperature: f64) -> Tensor {
        let (a, b) = (self.normalize(2.0, -1, 1e-12), other.normalize(2.0, -1, 1e-12));
        (a.matmul(&b.t()) / temperature).cross_entropy(&Tensor::arange(self.size(0)))
    }
}

#[cfg(test)]
mod tests {
    use crate::{Reduction, Tensor};

    #[test]
    fn like_pairs_are_drawn_together_and_unlike_ones_pushed_to_the_margin() {
        let a = Tensor::from([[0.0f32, 0.0], [0.0, 0.0], [0.0, 0.0]]);
        let b = Tensor::from([[3.0f32, 4.0], [3.0, 4.0], [0.6, 0.8]]);
        let y = Tensor::from([1i64, 0, 0]);
        let loss = a.contrastive_loss(&b, &y, 2.0, Reduction::None).to_vec::<f32>();
        for (got, want) in loss.iter().zip([25.0, 0.0, 1.0]) {
            assert!((got - want).abs() < 1e-4, "{loss:?}");
        }
    }

    #[test]
    fn a_batch_that_fits_itself_has_less_loss_than_a_shuffled_one() {
        let a = Tensor::from([[1.0f32, 0.0], [0.0, 1.0]]);
        let own = a.info_nce_loss(&a, 0.5).item::<f32>();
        assert!((own - (1.0 + (-2.0f32).exp()).ln()).abs() < 1e-6, "{own}");
        assert!(a.info_nce_loss(&a.flip(0), 0.5).item::<f32>() > own);
    }
}
