//! Functions of mathematics that Dirichlet variables need.

/// The derivative of `ln_gamma`, by recurrence to large arguments, where Stirling's series is exact enough.
pub(super) fn digamma(x: f64) -> f64 {
    if x < 6.0 {
        return digamma(x + 1.0) - 1.0 / x;
    }
    let r = 1.0 / (x * x);
    x.ln() - 0.5 / x - r * (1.0 / 12.0 - r * (1.0 / 120.0 - r * (1.0 / 252.0 - r / 240.0)))
}

/// ln Γ(x) for positive x, in the same way.
pub(super) fn ln_gamma(x: f64) -> f64 {
    if x < 6.0 {
        return ln_gamma(x + 1.0) - x.ln();
    }
    let r = 1.0 / (x * x);
    (x - 0.5) * x.ln() - x
        + 0.5 * std::f64::consts::TAU.ln()
        + (1.0 / 12.0 - r * (1.0 / 360.0 - r * (1.0 / 1260.0 - r / 1680.0))) / x
}

/// E[ln x] of a Dirichlet variable with these parameters.
pub(super) fn mean_of_log(parameters: &[f64]) -> Vec<f64> {
    let total = digamma(parameters.iter().sum());
    parameters.iter().map(|g| digamma(*g) - total).collect()
}

/// E[ln p(x)] - E[ln q(x)] of a Dirichlet variable: a flat prior against the parameters, with E[ln x].
pub(super) fn divergence<'a>(prior: f64, both: impl ExactSizeIterator<Item = (&'a f64, &'a f64)>) -> f64 {
    let (mut sum, mut total) = (ln_gamma(prior * both.len() as f64), 0.0);
    for (parameter, log) in both {
        sum += (prior - parameter) * log + ln_gamma(*parameter) - ln_gamma(prior);
        total += parameter;
    }
    sum - ln_gamma(total)
}

/// The sum of products.
pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made with Python: `math.lgamma(x)`, and its central differences with a step of 1e-5.
    #[test]
    fn known_values_are_met() {
        for (x, ln, slope) in [
            (0.05, 2.968_879_201_051_731, -20.497_845_258),
            (1.0, 0.0, -0.577_215_664_971),
            (7.5, 7.534_364_236_758_734, 1.946_757_484_017),
        ] {
            assert!((ln_gamma(x) - ln).abs() < 1e-7, "{x}: {}", ln_gamma(x));
            assert!((digamma(x) - slope).abs() < 1e-6, "{x}: {}", digamma(x));
        }
    }
}
