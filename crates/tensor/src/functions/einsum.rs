//! `einsum`: sums of products, by an equation of axis labels.
//!
//! Repeated labels become diagonals, labels that nobody else needs are summed at once, and what remains is
//! contracted two at a time, each by one `matmul`, in the order that costs least.

use thalweg_core::Shape;

use crate::error::{OpError, fail};
use crate::tensor::Tensor;

/// Up to here every order of contraction is tried; beyond it the cheapest next step is taken.
const EXHAUSTIVE: usize = 8;

impl Tensor {
    /// Sums of products in Einstein's notation: each operand's axes have a letter, letters that are missing
    /// after `->` are summed over, and `...` stands for axes that broadcast. Without `->` the result has
    /// the letters that occur once, in alphabetical order.
    ///
    /// ```
    /// use thalweg_tensor::Tensor;
    /// let a = Tensor::from([[1.0f32, 2.0], [3.0, 4.0]]);
    /// assert_eq!(Tensor::einsum("ij,kj->ik", &[&a, &a]).to_vec::<f32>(), a.matmul(&a.t()).to_vec::<f32>());
    /// assert_eq!(Tensor::einsum("ii->", &[&a]).item::<f32>(), 5.0);
    /// ```
    #[track_caller]
    pub fn einsum(equation: &str, operands: &[&Tensor]) -> Tensor {
        let (terms, output) = match parse(equation, operands) {
            Ok(parsed) => parsed,
            Err((shape, need)) => {
                let value = format!("{equation:?}");
                fail(OpError::Argument { op: "einsum", name: "equation", value, shape, need })
            }
        };
        let dtype =
            operands.iter().map(|x| x.dtype()).reduce(|a, b| a.promote(b)).expect("one operand at least");
        let mut terms: Vec<Labelled> = operands
            .iter()
            .zip(terms)
            .map(|(x, labels)| Labelled { tensor: x.to_dtype(dtype), labels }.without_repeats())
            .collect();
        while terms.len() > 1 {
            let (i, j) = next_pair(&terms, &output);
            let (b, a) = (terms.remove(i.max(j)), terms.remove(i.min(j)));
            let keep: Vec<usize> = terms.iter().flat_map(|t| &t.labels).chain(&output).copied().collect();
            terms.push(contract(a, b, &keep));
        }
        terms.remove(0).arranged(&output)
    }
}

/// A tensor with a label for each axis.
#[derive(Clone)]
pub(crate) struct Labelled {
    pub tensor: Tensor,
    pub labels: Vec<usize>,
}

impl Labelled {
    /// The sizes of the axes with some labels.
    fn sizes(&self, labels: &[usize]) -> Shape {
        labels.iter().map(|l| self.tensor.shape()[self.position(*l)]).collect()
    }

    fn position(&self, label: usize) -> usize {
        self.labels.iter().position(|&l| l == label).expect("callers ask for labels that are there")
    }

    /// Axes with one label become their diagonal.
    #[track_caller]
    fn without_repeats(mut self) -> Self {
        while let Some((first, second)) = repeat(&self.labels) {
            self.tensor = self.tensor.diagonal(0, first as isize, second as isize);
            let label = self.labels.remove(second);
            self.labels.remove(first);
            self.labels.push(label);
        }
        self
    }

    /// Summed over all labels that are not in `keep`.
    #[track_caller]
    fn summed_to(self, keep: &[usize]) -> Self {
        let gone: Vec<usize> = (0..self.labels.len()).filter(|&i| !keep.contains(&self.labels[i])).collect();
        if gone.is_empty() {
            return self;
        }
        let labels = self.labels.iter().copied().filter(|l| keep.contains(l)).collect();
        Self { tensor: self.tensor.sum(&gone[..]), labels }
    }

    /// The tensor with its axes in the order of `labels`, summed over all others.
    #[track_caller]
    pub fn arranged(self, labels: &[usize]) -> Tensor {
        let summed = self.summed_to(labels);
        let order: Vec<usize> = labels.iter().map(|&l| summed.position(l)).collect();
        summed.tensor.permute(&order[..])
    }
}

/// The first two positions that hold one label.
fn repeat(labels: &[usize]) -> Option<(usize, usize)> {
    let second = (1..labels.len()).find(|&i| labels[..i].contains(&labels[i]))?;
    Some((labels.iter().position(|&l| l == labels[second])?, second))
}

/// The product of two tensors, summed over the labels that are not in `keep`. Axes of one label have one
/// size, or size 1.
#[track_caller]
pub(crate) fn contract(a: Labelled, b: Labelled, keep: &[usize]) -> Labelled {
    let needed_by = |other: &Labelled| -> Vec<usize> { keep.iter().chain(&other.labels).copied().collect() };
    let (for_a, for_b) = (needed_by(&b), needed_by(&a));
    let (a, b) = (a.summed_to(&for_a), b.summed_to(&for_b));
    let shared = |keep_it: bool| -> Vec<usize> {
        a.labels.iter().copied().filter(|l| b.labels.contains(l) && keep.contains(l) == keep_it).collect()
    };
    let (batch, inner) = (shared(true), shared(false));
    let own = |x: &Labelled, other: &Labelled| -> Vec<usize> {
        x.labels.iter().copied().filter(|l| !other.labels.contains(l)).collect()
    };
    let (rows, cols) = (own(&a, &b), own(&b, &a));
    let labels: Vec<usize> = [&batch[..], &rows, &cols].concat();

    // Axes of size 1 stretch to the other's size.
    let common = |labels: &[usize]| -> Shape {
        a.sizes(labels).broadcast(&b.sizes(labels)).expect("sizes were compared when the equation was read")
    };
    let (batch_sizes, inner_sizes) = (common(&batch), common(&inner));
    let (row_sizes, col_sizes) = (a.sizes(&rows), b.sizes(&cols));
    let whole: Shape = [&batch_sizes[..], &row_sizes, &col_sizes].concat().into();
    let arranged = |x: &Labelled, order: [&[usize]; 3], sizes: [&Shape; 3]| {
        let order: Vec<usize> = order.concat().iter().map(|&l| x.position(l)).collect();
        let full: Shape = sizes.iter().flat_map(|s| s.iter()).copied().collect();
        x.tensor.permute(&order[..]).broadcast_to(full).reshape(sizes.map(Shape::numel))
    };
    let left = arranged(&a, [&batch, &rows, &inner], [&batch_sizes, &row_sizes, &inner_sizes]);
    let right = arranged(&b, [&batch, &inner, &cols], [&batch_sizes, &inner_sizes, &col_sizes]);
    // Without a sum it is an outer product, which needs no multiply-adds.
    let product = if inner.is_empty() { left * right } else { left.matmul(&right) };
    Labelled { tensor: product.reshape(whole), labels }
}

/// Which two terms to contract next.
fn next_pair(terms: &[Labelled], output: &[usize]) -> (usize, usize) {
    if terms.len() == 2 {
        return (0, 1);
    }
    let size = |label: usize| {
        let of = |t: &Labelled| t.labels.contains(&label).then(|| t.sizes(&[label])[0]);
        terms.iter().filter_map(of).max().unwrap_or(1) as f64
    };
    let count = terms.iter().flat_map(|t| &t.labels).max().map_or(0, |l| l + 1);
    let sizes: Vec<f64> = (0..count).map(size).collect();
    let labels: Vec<Vec<bool>> =
        terms.iter().map(|t| (0..count).map(|l| t.labels.contains(&l)).collect()).collect();
    let order = Order { sizes, labels, output: (0..count).map(|l| output.contains(&l)).collect() };
    if terms.len() <= EXHAUSTIVE { order.first_of_cheapest() } else { order.cheapest_pair() }
}

/// What the cost of a contraction depends on. Sets of labels are lists of truth values, sets of terms are
/// bits.
struct Order {
    sizes: Vec<f64>,
    labels: Vec<Vec<bool>>,
    output: Vec<bool>,
}

impl Order {
    /// Whether the product of a set of terms still has a label: one of them has it, and the output or
    /// another term needs it.
    fn has(&self, set: usize, label: usize) -> bool {
        let inside = |i: usize| set >> i & 1 == 1;
        let any = |wanted: bool| (0..self.labels.len()).any(|i| inside(i) == wanted && self.labels[i][label]);
        any(true) && (self.output[label] || any(false))
    }

    /// Multiplications to contract the products of two sets.
    fn cost(&self, a: usize, b: usize) -> f64 {
        let involved = |&l: &usize| self.has(a, l) || self.has(b, l);
        (0..self.sizes.len()).filter(involved).map(|l| self.sizes[l]).product()
    }

    /// The cheapest tree over all terms, by dynamic programming over their subsets; the first contraction
    /// in it.
    fn first_of_cheapest(&self) -> (usize, usize) {
        let full = (1usize << self.labels.len()) - 1;
        // (cost, one half) of the best tree over each set.
        let mut best = vec![(0.0f64, 0usize); full + 1];
        for set in (1..=full).filter(|s| s.count_ones() > 1) {
            best[set] = (f64::INFINITY, 0);
            let mut half = (set - 1) & set;
            while half > set & !half {
                let rest = set & !half;
                let cost = best[half].0 + best[rest].0 + self.cost(half, rest);
                if cost < best[set].0 || best[set].1 == 0 {
                    best[set] = (cost, half);
                }
                half = (half - 1) & set;
            }
        }
        // Walk down to a set of two single terms.
        let mut set = full;
        loop {
            let (half, rest) = (best[set].1, set & !best[set].1);
            if half.count_ones() == 1 && rest.count_ones() == 1 {
                return (half.trailing_zeros() as usize, rest.trailing_zeros() as usize);
            }
            set = if half.count_ones() > 1 { half } else { rest };
        }
    }

    /// The pair whose contraction costs least.
    fn cheapest_pair(&self) -> (usize, usize) {
        let n = self.labels.len();
        let pairs = (0..n).flat_map(|i| (i + 1..n).map(move |j| (i, j)));
        let cost = |&(i, j): &(usize, usize)| self.cost(1 << i, 1 << j);
        pairs.min_by(|a, b| cost(a).total_cmp(&cost(b))).expect("two terms at least")
    }
}

type Refusal = (Shape, &'static str);

/// The labels of each operand's axes and of the result's. Letters come first, then the axes under `...`,
/// counted from the last, so that they meet as in broadcasting.
fn parse(equation: &str, operands: &[&Tensor]) -> Result<(Vec<Vec<usize>>, Vec<usize>), Refusal> {
    let text: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
    let (left, right) = match text.split_once("->") {
        Some((left, right)) => (left, Some(right)),
        None => (&text[..], None),
    };
    let terms: Vec<&str> = left.split(',').collect();
    if terms.len() != operands.len() {
        return Err((Shape::scalar(), "one term per operand, separated by commas"));
    }
    let mut labels = Vec::new();
    let mut hidden = 0;
    for (term, x) in terms.iter().zip(operands) {
        let refuse = |need| (x.shape().clone(), need);
        let letters = term.replacen("...", "", 1).len();
        let dots = x.rank().checked_sub(letters).ok_or(refuse("a letter per axis"))?;
        if !term.contains("...") && dots > 0 {
            return Err(refuse("a letter per axis, or `...` for the others"));
        }
        hidden = hidden.max(if term.contains("...") { dots } else { 0 });
        labels.push(read(term, dots).map_err(refuse)?);
    }
    check_sizes(&labels, operands)?;
    let output = match right {
        Some(right) => {
            let refuse = |need| (Shape::scalar(), need);
            let output = read(right, if right.contains("...") { hidden } else { 0 }).map_err(refuse)?;
            if repeat(&output).is_some() || output.iter().any(|l| !labels.iter().flatten().any(|k| k == l)) {
                return Err(refuse("letters of the result must occur in an operand, and once in the result"));
            }
            output
        }
        None => {
            let all: Vec<usize> = labels.concat();
            let once = |l: &usize| all.iter().filter(|k| *k == l).count() == 1;
            (0..hidden).rev().map(|i| LETTERS + i).chain((0..LETTERS).filter(once)).collect()
        }
    };
    Ok((labels, output))
}

/// Labels below this are letters: `A` to `Z`, then `a` to `z`.
const LETTERS: usize = 52;

/// The labels of one term, with `dots` axes for its `...`.
fn read(term: &str, dots: usize) -> Result<Vec<usize>, &'static str> {
    let letters = |part: &str| -> Result<Vec<usize>, &'static str> {
        let label = |c: u8| match c {
            b'A'..=b'Z' => Ok(usize::from(c - b'A')),
            b'a'..=b'z' => Ok(26 + usize::from(c - b'a')),
            _ => Err("labels are the letters A-Z and a-z, and `...` at most once per term"),
        };
        part.bytes().map(label).collect()
    };
    match term.split_once("...") {
        Some((before, after)) => {
            Ok([letters(before)?, (0..dots).rev().map(|i| LETTERS + i).collect(), letters(after)?].concat())
        }
        None => letters(term),
    }
}

/// Axes of one label must have one size, or size 1; on one operand, exactly one size.
fn check_sizes(labels: &[Vec<usize>], operands: &[&Tensor]) -> Result<(), Refusal> {
    let mut known: Vec<Option<usize>> = Vec::new();
    for (labels, x) in labels.iter().zip(operands) {
        for (axis, &label) in labels.iter().enumerate() {
            let size = x.shape()[axis];
            if labels[..axis].iter().zip(x.shape().iter()).any(|(&l, &d)| l == label && d != size) {
                return Err((x.shape().clone(), "axes with one letter must have one size"));
            }
            if known.len() <= label {
                known.resize(label + 1, None);
            }
            match known[label] {
                Some(other) if other != size && other != 1 && size != 1 => {
                    return Err((x.shape().clone(), "axes with one letter must have one size"));
                }
                Some(other) if other != 1 => {}
                _ => known[label] = Some(size),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counting(shape: &[usize]) -> Tensor {
        let n: usize = shape.iter().product();
        Tensor::from_vec((0..n).map(|i| (i as f64 * 0.7).sin()).collect(), shape)
    }

    fn close(a: &Tensor, b: &Tensor) {
        assert_eq!(a.shape(), b.shape());
        let pairs = a.to_vec::<f64>().into_iter().zip(b.to_vec::<f64>());
        pairs.for_each(|(a, b)| assert!((a - b).abs() < 1e-12, "{a} is not {b}"));
    }

    #[test]
    fn equations_agree_with_the_ops_they_stand_for() {
        let (a, b, c) = (counting(&[2, 3]), counting(&[3, 4]), counting(&[4, 2]));
        close(&Tensor::einsum("ab,bc,cd->ad", &[&a, &b, &c]), &a.matmul(&b).matmul(&c));
        close(&Tensor::einsum("ij,jk", &[&a, &b]), &a.matmul(&b));
        close(&Tensor::einsum("ba", &[&a]), &a.t());
        close(&Tensor::einsum("ij->", &[&a]), &a.sum(()));
        close(&Tensor::einsum("ij,ij->ij", &[&a, &a]), &(&a * &a));
        close(&Tensor::einsum("ab,bc,ca->", &[&a, &b, &c]), &a.matmul(&b).matmul(&c).trace());
        let square = counting(&[3, 3]);
        close(
            &Tensor::einsum("ii,i->i", &[&square, &square.select(0, 0)]),
            &(square.diagonal(0, 0, 1) * square.select(0, 0)),
        );
        let cube = counting(&[3, 3, 3]);
        close(&Tensor::einsum("iii->", &[&cube]), &cube.diagonal(0, 0, 1).diagonal(0, 0, 1).sum(()));
    }

    #[test]
    fn ellipsis_and_axes_of_size_one_broadcast() {
        let (a, b) = (counting(&[5, 1, 2, 3]), counting(&[4, 3, 2]));
        close(&Tensor::einsum("...ij,...jk->...ik", &[&a, &b]), &a.matmul(&b));
        close(&Tensor::einsum("...ij,...jk", &[&a, &b]), &a.matmul(&b));
        let one = counting(&[1, 3]);
        close(&Tensor::einsum("ij,ij->j", &[&one, &counting(&[2, 3])]), &(one * counting(&[2, 3])).sum(0));
    }

    #[test]
    fn the_cheap_order_is_found() {
        // (1000, 2) (2, 1000) (1000, 2): the last two first.
        let terms: Vec<Labelled> =
            [(vec![0, 1], [1000, 2]), (vec![1, 2], [2, 1000]), (vec![2, 3], [1000, 2])]
                .map(|(labels, shape)| Labelled {
                    tensor: Tensor::zeros(shape, thalweg_core::DType::F32),
                    labels,
                })
                .into();
        let (i, j) = next_pair(&terms, &[0, 3]);
        assert_eq!((i.min(j), i.max(j)), (1, 2));
    }

    #[test]
    fn many_operands_are_contracted_greedily() {
        let a = counting(&[2, 2]);
        let terms = vec![&a; 10];
        let chain = Tensor::einsum("ab,bc,cd,de,ef,fg,gh,hi,ij,jk->ak", &terms);
        close(&chain, &a.matrix_power(10));
    }
}
