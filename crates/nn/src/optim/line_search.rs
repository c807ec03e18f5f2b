//! A line search for the strong Wolfe conditions (Nocedal and Wright, Numerical Optimization, 3.5 and 3.6).

use thalweg_tensor::{OpError, Tensor};

/// How much of the first slope a step must gain.
const ENOUGH: f64 = 1e-4;
/// How much of the first slope may be left.
const FLAT: f64 = 0.9;

/// A place on the line.
#[derive(Clone)]
pub(super) struct Point {
    /// How far along the direction.
    pub t: f64,
    /// The loss there.
    pub value: f64,
    /// The gradient there.
    pub gradient: Tensor,
    /// The slope of the loss along the direction.
    pub slope: f64,
}

/// Searches from `origin`, first at `t`; `size` is the largest element of the direction. Returns the
/// best point found and how many were looked at.
pub(super) fn strong_wolfe(
    at: impl Fn(f64) -> Result<Point, OpError>,
    origin: &Point,
    t: f64,
    size: f64,
    tolerance: f64,
    most: usize,
) -> Result<(Point, usize), OpError> {
    let too_high = |p: &Point| p.value > origin.value + ENOUGH * p.t * origin.slope;
    let flat = |p: &Point| p.slope.abs() <= -FLAT * origin.slope;
    let mut new = at(t)?;
    let mut looked = 1;
    let mut previous = origin.clone();
    // Go on until a minimum lies between the last two points.
    let mut iteration = 0;
    let mut bracket = loop {
        if iteration >= most {
            break [origin.clone(), new];
        }
        if too_high(&new) || (iteration > 1 && new.value >= previous.value) {
            break [previous, new];
        }
        if flat(&new) {
            return Ok((new, looked));
        }
        if new.slope >= 0.0 {
            break [previous, new];
        }
        let (least, furthest) = (new.t + 0.01 * (new.t - previous.t), new.t * 10.0);
        let next = cubic_minimum(&previous, &new, least, furthest);
        previous = new;
        new = at(next)?;
        (looked, iteration) = (looked + 1, iteration + 1);
    };
    // Make the bracket smaller.
    let (mut low, mut high) = by_value(&bracket);
    let mut stuck = false;
    while iteration < most {
        let (from, to) = (bracket[0].t.min(bracket[1].t), bracket[0].t.max(bracket[1].t));
        if (to - from) * size < tolerance {
            break;
        }
        let mut t = cubic_minimum(&bracket[0], &bracket[1], from, to);
        // Twice in a row near an end, or on it: step inside by a tenth.
        let margin = 0.1 * (to - from);
        if (to - t).min(t - from) < margin {
            if stuck || t >= to || t <= from {
                t = if (t - to).abs() < (t - from).abs() { to - margin } else { from + margin };
                stuck = false;
            } else {
                stuck = true;
            }
        } else {
            stuck = false;
        }
        let new = at(t)?;
        (looked, iteration) = (looked + 1, iteration + 1);
        if too_high(&new) || new.value >= bracket[low].value {
            bracket[high] = new;
            (low, high) = by_value(&bracket);
        } else {
            let done = flat(&new);
            if !done && new.slope * (bracket[high].t - bracket[low].t) >= 0.0 {
                bracket[high] = bracket[low].clone();
            }
            bracket[low] = new;
            if done {
                break;
            }
        }
    }
    let [a, b] = bracket;
    Ok((if low == 0 { a } else { b }, looked))
}

/// The positions of the lower and of the higher point.
fn by_value(bracket: &[Point; 2]) -> (usize, usize) {
    if bracket[0].value <= bracket[1].value { (0, 1) } else { (1, 0) }
}

/// The minimum of the cubic through two points with their slopes, kept in bounds.
fn cubic_minimum(a: &Point, b: &Point, least: f64, most: f64) -> f64 {
    let (a, b) = if a.t <= b.t { (a, b) } else { (b, a) };
    let d1 = a.slope + b.slope - 3.0 * (a.value - b.value) / (a.t - b.t);
    let square = d1 * d1 - a.slope * b.slope;
    if square < 0.0 || square.is_nan() {
        return (least + most) / 2.0;
    }
    let d2 = square.sqrt();
    let t = b.t - (b.t - a.t) * ((b.slope + d2 - d1) / (b.slope - a.slope + 2.0 * d2));
    t.max(least).min(most)
}
