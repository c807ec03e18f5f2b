//! Straight code: the arithmetic of several ops of a group, element by element, with nothing in between.
//!
//! What a loop of machine code is made of. Each line is one IEEE operation, or a few that choose between values, in the order
//! of the ops: the bits are those of the ops one by one.

use thalweg_tensor::ops::{Op, Relation};

/// What a line does to its arguments.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Arithmetic {
    Add,
    Sub,
    Mul,
    Div,
    Sqrt,
    Square,
    Neg,
    Abs,
    /// The larger of two, NaN where either is; of equals the second.
    Larger,
    /// The smaller of two, NaN where either is; of equals the second.
    Smaller,
    /// The larger of the argument and 0.
    Relu,
    /// The second argument, 0 where the first is at most 0.
    ReluGrad,
    /// 1 where it holds, else 0.
    Compare(Relation),
    /// The second argument where the first is not 0, else the third.
    Select,
    Copy,
}

impl Arithmetic {
    /// The op on f32, if it is arithmetic. Where this answers, the op has a block function with the same bits.
    pub(super) fn of(op: &Op) -> Option<Self> {
        Some(match op {
            Op::Add(_) => Self::Add,
            Op::Sub(_) => Self::Sub,
            Op::Mul(_) => Self::Mul,
            Op::Div(_) => Self::Div,
            Op::Sqrt(_) => Self::Sqrt,
            Op::Square(_) => Self::Square,
            Op::Neg(_) => Self::Neg,
            Op::Abs(_) => Self::Abs,
            Op::Maximum(_) => Self::Larger,
            Op::Minimum(_) => Self::Smaller,
            Op::Relu(_) => Self::Relu,
            Op::ReluGrad(_) => Self::ReluGrad,
            Op::Compare(compare) => Self::Compare(compare.relation),
            Op::Select(_) => Self::Select,
            Op::Convert(convert) if convert.dtype == thalweg_core::DType::F32 => Self::Copy,
            _ => return None,
        })
    }
}

/// What a line reads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Argument {
    /// The value of an earlier line.
    Line(usize),
    /// An element of an operand.
    Input(usize),
    Number(f32),
}

/// One operation. Arguments beyond those that it takes are ignored.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line {
    pub does: Arithmetic,
    pub reads: [Argument; 3],
}

impl Line {
    /// What it reads.
    pub(super) fn arguments(&self) -> &[Argument] {
        use Arithmetic::*;
        match self.does {
            Sqrt | Square | Neg | Abs | Relu | Copy => &self.reads[..1],
            Add | Sub | Mul | Div | Larger | Smaller | ReluGrad | Compare(_) => &self.reads[..2],
            Select => &self.reads,
        }
    }
}

/// Lines, and which of their values are written out.
#[derive(Debug, Clone)]
pub(super) struct Straight {
    pub lines: Vec<Line>,
    pub n_inputs: usize,
    pub outputs: Vec<usize>,
}

/// Where values live: inputs from their first use to their last, lines from their own to the last that reads them, or to the
/// end if they are written out.
pub(super) struct Registers {
    pub inputs: Vec<u8>,
    pub lines: Vec<u8>,
}

impl Straight {
    /// Gives each value one of `n` registers, or `None` if too many are alive at once.
    pub(super) fn registers(&self, n: u8) -> Option<Registers> {
        let mut last_of_input = vec![0; self.n_inputs];
        let mut last_of_line: Vec<usize> = (0..self.lines.len()).collect();
        for (i, line) in self.lines.iter().enumerate() {
            for argument in line.arguments() {
                match *argument {
                    Argument::Line(l) => last_of_line[l] = i,
                    Argument::Input(k) => last_of_input[k] = i,
                    Argument::Number(_) => {}
                }
            }
        }
        for &output in &self.outputs {
            last_of_line[output] = usize::MAX;
        }
        let mut free: Vec<u8> = (0..n).rev().collect();
        let (mut inputs, mut lines) = (vec![None; self.n_inputs], Vec::new());
        for (i, line) in self.lines.iter().enumerate() {
            for argument in line.arguments() {
                if let Argument::Input(k) = *argument
                    && inputs[k].is_none()
                {
                    inputs[k] = Some(free.pop()?);
                }
            }
            // Before the arguments are given up: some lines read them after they have begun to write.
            lines.push(free.pop()?);
            free.extend((0..self.n_inputs).filter(|&k| last_of_input[k] == i).filter_map(|k| inputs[k]));
            free.extend((0..=i).filter(|&l| last_of_line[l] == i).map(|l| lines[l]));
        }
        Some(Registers { inputs: inputs.into_iter().map(|r| r.unwrap_or(0)).collect(), lines })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(does: Arithmetic, reads: &[Argument]) -> Line {
        let mut all = [Argument::Number(0.0); 3];
        all[..reads.len()].copy_from_slice(reads);
        Line { does, reads: all }
    }

    #[test]
    fn values_that_are_alive_at_once_have_registers_of_their_own() {
        use Argument::{Input, Line};
        let straight = Straight {
            lines: vec![
                line(Arithmetic::Mul, &[Input(0), Input(1)]),
                line(Arithmetic::Add, &[Line(0), Input(0)]),
                line(Arithmetic::Sqrt, &[Line(1)]),
            ],
            n_inputs: 2,
            outputs: vec![0, 2],
        };
        assert!(straight.registers(2).is_none());
        let got = straight.registers(4).unwrap();
        let [a, b] = got.inputs[..] else { panic!() };
        let [product, sum, root] = got.lines[..] else { panic!() };
        assert!(a != b && product != a && product != b && sum != product && sum != a);
        assert!(root != product, "a value that is written out lives to the end");
    }
}
