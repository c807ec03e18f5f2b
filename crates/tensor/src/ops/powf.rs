//! `powf`: y = xᵉ for one exponent e.

use thalweg_core::{DType, View, ViewMut};
use thalweg_kernels::math::pow_scalar;
use thalweg_kernels::stream::arithmetic::map;

use crate::apply::run;
use crate::error::OpError;
use crate::meta::{Meta, arity, require_float};
use crate::ops::elementwise::{blocks, through};
use crate::ops::primitive::{Grad, Keep, Number, Primitive, Tile, Vjp};
use crate::ops::sample::{Draw, Sample, elementwise_shapes};
use crate::tensor::Tensor;

/// xᵉ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Powf {
    /// e.
    pub exponent: Number,
}

impl Primitive for Powf {
    const NAME: &'static str = "powf";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x] = arity(Self::NAME, x)?;
        require_float(Self::NAME, x)?;
        Ok(x.clone())
    }

    fn keep(&self) -> Keep {
        Keep::input(0)
    }

    fn grad(&self, g: &Vjp<'_>) -> Grad {
        match self.exponent.0 {
            0.0 => Grad::zero(1),
            1.0 => Grad::one(g.dy().clone()),
            e => Grad::one(g.dy() * (g.x(0).powf(e - 1.0) * e)),
        }
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        through::<f64, f64, 1>([x[0]], y, |[x], y| map(x, y, |x: f64| x.powf(self.exponent.0)));
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        let e = self.exponent.0;
        match x[0].dtype() {
            DType::F32 => match self.tile() {
                Some(Tile::Map(f)) => blocks([x[0]], y.dense(), |[x], y| f(x, y)),
                Some(Tile::MapWith(f, e)) => blocks([x[0]], y.dense(), |[x], y| f(x, e, y)),
                _ => return false,
            },
            DType::F64 => blocks([x[0]], y.dense(), |[x], y| map(x, y, |x: f64| x.powf(e))),
            _ => return false,
        }
        true
    }

    fn is_elementwise(&self) -> bool {
        true
    }

    fn tile(&self) -> Option<Tile> {
        let e = self.exponent.0;
        let few = e.fract() == 0.0 && (3.0..=16.0).contains(&e.abs());
        Some(match e {
            // Products in f64 round like the power itself.
            3.0 => Tile::Map(|x, y| map(x, y, cube)),
            _ if few => {
                Tile::MapWith(|x, e, y| map(x, y, |x: f32| f64::from(x).powi(e as i32) as f32), e as f32)
            }
            0.5 => Tile::Map(|x, y| map(x, y, root)),
            -0.5 => Tile::Map(|x, y| map(x, y, |x| 1.0 / root(x))),
            _ => Tile::MapWith(pow_scalar, e as f32),
        })
    }

    fn samples() -> Vec<Sample> {
        let mut samples = Vec::new();
        for e in [2.0, 3.0, -1.0, 0.5, -0.5, 1.7, 0.0, 1.0] {
            let op = Powf { exponent: Number(e) };
            samples.extend(elementwise_shapes().map(|s| Sample::new(op, [Draw::float(s, 0.2, 2.5)])));
        }
        samples.push(Sample::new(Powf { exponent: Number(3.0) }, [Draw::any([5])]));
        samples
    }
}

fn cube(x: f32) -> f32 {
    let x = f64::from(x);
    (x * x * x) as f32
}

/// √x as IEEE's pow(x, ½) has it: +∞ at −∞, +0 at −0.
fn root(x: f32) -> f32 {
    if x == f32::NEG_INFINITY { f32::INFINITY } else { (x + 0.0).sqrt() }
}

impl Tensor {
    /// Every element to one power.
    #[track_caller]
    pub fn powf(&self, exponent: f64) -> Tensor {
        run(Powf { exponent: Number(exponent) }, &[&self.as_float()])
    }
}
