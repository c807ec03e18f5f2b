//! `pow`: y = aᵇ. On integers it wraps, and a negative exponent is refused.

use crate::operand::{Operand, with_operand};
use crate::ops::elementwise::{Binary, Domain, binary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::scalar::Scalar;
use crate::tensor::Tensor;

binary_op! {
    /// aᵇ.
    Pow
}

impl Binary for Pow {
    const NAME: &'static str = "pow";
    const DOMAIN: Domain = Domain::Number;
    const F32: Option<fn(&[f32], &[f32], &mut [f32])> = Some(thalweg_kernels::math::pow);
    const RANGES: [(f64, f64); 2] = [(0.2, 2.5), (0.3, 2.0)];
    const KEEP: Keep = Keep::input(0).and(Keep::input(1)).and(Keep::OUTPUT);
    const REFUSAL: &'static str =
        "a negative power of an integer is no integer; convert with `.to_dtype(..)`";

    fn float(a: f64, b: f64) -> f64 {
        a.powf(b)
    }

    fn int(a: i64, b: i64) -> Option<i64> {
        let (mut base, mut left) = (a, u64::try_from(b).ok()?);
        let mut power = 1i64;
        while left > 0 {
            if left & 1 == 1 {
                power = power.wrapping_mul(base);
            }
            base = base.wrapping_mul(base);
            left >>= 1;
        }
        Some(power)
    }

    /// da = dy · b aᵇ⁻¹, 0 where b is; db = dy · y log a, 0 where a is and b ≥ 0.
    fn grad(g: &Vjp<'_>) -> Grad {
        let (dy, a, b) = (g.dy(), g.x(0), g.x(1));
        let da = || b.eq(0.0).where_(0.0, &(dy * (b * a.pow(&(b - 1.0)))));
        let db = || a.eq(0.0).logical_and(&b.ge(0.0)).where_(0.0, &(dy * (g.y() * a.log())));
        g.pair(da, db)
    }
}

impl Tensor {
    /// Every element to a power: a number, or a tensor of exponents.
    #[track_caller]
    pub fn pow<'a>(&self, exponent: impl Into<Operand<'a>>) -> Tensor {
        match exponent.into() {
            Operand::Number(Scalar::Float(e)) => self.powf(e),
            Operand::Number(e) if self.dtype().is_float() => self.powf(e.to_f64()),
            exponent => with_operand(Pow, self, exponent),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Tensor, grad};

    #[test]
    fn edges_of_the_gradient_are_those_of_the_function() {
        let a = Tensor::from([0.0f32, 0.0, 2.0, 0.0]);
        let b = Tensor::from([0.0f32, 2.0, 0.0, 1.0]);
        assert_eq!(grad(|a| a.pow(&b).sum(()))(&a).to_vec::<f32>(), [0.0, 0.0, 0.0, 1.0]);
        assert_eq!(grad(|b| a.pow(b).sum(()))(&b).to_vec::<f32>(), [0.0, 0.0, 2f32.ln(), 0.0]);
    }

    #[test]
    fn integer_powers_wrap_like_repeated_products() {
        let x = Tensor::from([3i64, -2, 0, 7]);
        assert_eq!(x.pow(&Tensor::from([4i64, 3, 0, 40])).to_vec::<i64>()[..3], [81, -8, 1]);
        assert_eq!(x.pow(2).to_vec::<i64>(), [9, 4, 0, 49]);
    }

    #[test]
    #[should_panic(expected = "pow: a negative power of an integer")]
    fn negative_integer_powers_are_refused() {
        let _ = Tensor::from([2i64]).pow(-1);
    }
}
