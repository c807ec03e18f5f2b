//! Makes a tile program of a fused group: chooses its instructions, their order, and their registers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};
use thalweg_core::{DType, Layout};
use thalweg_graph::{Graph, Kind, NodeId};
use thalweg_kernels::stream::arithmetic;
use thalweg_tensor::Meta;
use thalweg_tensor::ops::{Op, Tile};

use super::machine::{self, Code};
use super::straight::{Argument, Arithmetic, Line, Straight};
use super::{Access, HUGE, Instruction, MAX_TILE, Operand, Outcome, Program, Source, Target, Walk};

/// Elements from which machine code is made: a vector.
const MIN_CODE: usize = 8;

/// What a member of a group does, and the values it reads.
struct Piece {
    id: NodeId,
    tile: Tile,
    /// What it does to each element, if it may be part of machine code.
    arithmetic: Option<Arithmetic>,
    reads: SmallVec<[NodeId; 3]>,
}

/// Pieces that become one instruction: a single one, or the arithmetic of several in a loop.
struct Unit {
    pieces: Vec<Piece>,
    code: Option<Loop>,
}

/// Machine code, the values that it reads from elsewhere, and those that others read.
struct Loop {
    code: Code,
    inputs: Vec<NodeId>,
    outputs: Vec<NodeId>,
}

impl Unit {
    fn block(piece: Piece) -> Self {
        Self { pieces: vec![piece], code: None }
    }
}

/// Assigns registers: a value holds one from its instruction to its last use.
pub(super) struct Builder<'a> {
    graph: &'a Graph,
    members: &'a [NodeId],
    operands: Vec<Operand>,
    operand_of: HashMap<NodeId, Source>,
    constants: Vec<(u16, f32)>,
    constant_of: HashMap<u32, u16>,
    results: Vec<Outcome>,
    result_of: HashMap<NodeId, u16>,
    free: Vec<u16>,
    n_registers: u16,
}

impl<'a> Builder<'a> {
    pub(super) fn new(
        graph: &'a Graph,
        members: &'a [NodeId],
        layout: &dyn Fn(NodeId) -> Layout,
        needed: &dyn Fn(NodeId) -> bool,
    ) -> Self {
        let mut builder = Self {
            graph,
            members,
            operands: Vec::new(),
            operand_of: HashMap::new(),
            constants: Vec::new(),
            constant_of: HashMap::new(),
            results: Vec::new(),
            result_of: HashMap::new(),
            free: Vec::new(),
            n_registers: 0,
        };
        for &id in members {
            for &input in &graph.node(id).inputs {
                let known = members.contains(&input) || builder.operand_of.contains_key(&input);
                if !known && builder.number(input).is_none() {
                    let source = builder.outside(input, layout);
                    builder.operand_of.insert(input, source);
                }
            }
        }
        for &id in members.iter().filter(|&&id| needed(id)) {
            let dtype = graph.node(id).meta.dtype;
            builder.result_of.insert(id, builder.results.len() as u16);
            builder.results.push(Outcome { node: id, dtype, register: None });
        }
        builder
    }

    fn register(&mut self) -> u16 {
        self.free.pop().unwrap_or_else(|| {
            self.n_registers += 1;
            self.n_registers - 1
        })
    }

    /// The number that a value from outside is everywhere, if it is one.
    fn number(&self, id: NodeId) -> Option<f32> {
        match &self.graph.node(id).kind {
            Kind::Literal(literal) => literal.uniform().map(|number| number as f32),
            _ => None,
        }
    }

    /// A register that holds a number everywhere.
    fn register_of(&mut self, number: f32) -> Source {
        if let Some(&r) = self.constant_of.get(&number.to_bits()) {
            return Source::Register(r);
        }
        // One that no value had before: it is filled once, before the first instruction.
        let r = self.n_registers;
        self.n_registers += 1;
        self.constant_of.insert(number.to_bits(), r);
        self.constants.push((r, number));
        Source::Register(r)
    }

    /// A value from outside: a dense operand, or one that needs a register of its own.
    fn outside(&mut self, id: NodeId, layout: &dyn Fn(NodeId) -> Layout) -> Source {
        let node = self.graph.node(id);
        let (layout, dtype) = (layout(id), node.meta.dtype);
        let in_place = layout.is_contiguous() && dtype == DType::F32;
        let access = match in_place {
            true => Access::Dense { offset: layout.offset() },
            false => Access::Strided(Walk::new(&layout)),
        };
        let register = (!in_place).then(|| self.register());
        self.operands.push(Operand { node: id, access, dtype, register });
        match register {
            Some(r) => Source::Register(r),
            None => Source::Operand(self.operands.len() as u16 - 1),
        }
    }

    /// What each member does and reads. Without machine code a product that only a sum or a difference reads is part of
    /// it: one pass over a tile instead of two.
    fn pieces(&self, join: bool) -> Vec<Piece> {
        let uses = uses(self.members.iter().map(|&id| &self.graph.node(id).inputs[..]));
        let alone = |id: NodeId| uses[&id] == 1 && !self.result_of.contains_key(&id);
        let product = |id: NodeId| {
            join && matches!(self.graph.op(id), Some(Op::Mul(_))) && self.members.contains(&id) && alone(id)
        };
        let mut taken = HashSet::new();
        let mut pieces: Vec<Piece> = Vec::with_capacity(self.members.len());
        for &id in self.members {
            let node = self.graph.node(id);
            let Kind::Op(op) = &node.kind else { unreachable!("groups are made of ops") };
            let with = |product: NodeId, other: NodeId, tile: Tile| {
                let factors = &self.graph.node(product).inputs;
                (
                    Piece { id, tile, arithmetic: None, reads: smallvec![factors[0], factors[1], other] },
                    product,
                )
            };
            let joined = match (op, &node.inputs[..]) {
                (Op::Add(_), &[a, b]) if product(a) => Some(with(a, b, Tile::Zip3(arithmetic::mul_add))),
                (Op::Add(_), &[a, b]) if product(b) => Some(with(b, a, Tile::Zip3(arithmetic::mul_add))),
                (Op::Sub(_), &[a, b]) if product(a) => Some(with(a, b, Tile::Zip3(arithmetic::mul_sub))),
                (Op::Sub(_), &[a, b]) if product(b) => Some(with(b, a, Tile::Zip3(arithmetic::sub_mul))),
                _ => None,
            };
            if let Some((piece, product)) = joined {
                taken.insert(product);
                pieces.push(piece);
                continue;
            }
            let metas: SmallVec<[&Meta; 3]> = node.inputs.iter().map(|&x| &self.graph.node(x).meta).collect();
            let tile = op.tile(&metas, &node.meta).expect("groups are made of ops with tiles");
            let arithmetic = if join { None } else { Arithmetic::of(op) };
            pieces.push(Piece { id, tile, arithmetic, reads: node.inputs.iter().copied().collect() });
        }
        pieces.retain(|piece| !taken.contains(&piece.id));
        pieces
    }

    /// The pieces in an order with long runs of arithmetic, and those runs as units.
    ///
    /// Stages are counted from the end. In each the block functions come first and then a run; arithmetic that a block function
    /// reads is one stage before it, all else as late as it can be, where its values need not be kept for long.
    fn units(&self, pieces: Vec<Piece>) -> Vec<Unit> {
        let mut stage_of: HashMap<NodeId, usize> = HashMap::new();
        for piece in pieces.iter().rev() {
            let own = *stage_of.entry(piece.id).or_default();
            for &x in &piece.reads {
                let before = usize::from(piece.arithmetic.is_none() && self.is_arithmetic(&pieces, x));
                let stage = stage_of.entry(x).or_default();
                *stage = (*stage).max(own + before);
            }
        }
        let uses = uses(pieces.iter().map(|piece| &piece.reads[..]));
        let mut stages: BTreeMap<Reverse<usize>, (Vec<Piece>, Vec<Piece>)> = BTreeMap::new();
        for piece in pieces {
            let (blocks, run) = stages.entry(Reverse(stage_of[&piece.id])).or_default();
            if piece.arithmetic.is_some() { run.push(piece) } else { blocks.push(piece) }
        }
        let mut units = Vec::new();
        for (blocks, run) in stages.into_values() {
            units.extend(blocks.into_iter().map(Unit::block));
            self.cut(run, &uses, &mut units);
        }
        units
    }

    fn is_arithmetic(&self, pieces: &[Piece], id: NodeId) -> bool {
        self.members.contains(&id) && pieces.iter().any(|p| p.id == id && p.arithmetic.is_some())
    }

    /// A run as one loop, in halves if its values do not fit into the registers of the machine, or as blocks if it is too
    /// short for a loop or the system gives no memory for one.
    fn cut(&self, mut run: Vec<Piece>, uses: &HashMap<NodeId, usize>, units: &mut Vec<Unit>) {
        if run.len() < 2 {
            return units.extend(run.into_iter().map(Unit::block));
        }
        let (straight, inputs, outputs) = self.straight(&run, uses);
        if !machine::fits(&straight) {
            let rest = run.split_off(run.len() / 2);
            self.cut(run, uses, units);
            return self.cut(rest, uses, units);
        }
        match Code::new(&straight) {
            Some(code) => units.push(Unit { pieces: run, code: Some(Loop { code, inputs, outputs }) }),
            None => units.extend(run.into_iter().map(Unit::block)),
        }
    }

    /// A run as straight code, the values that it reads from elsewhere, and those that others read.
    fn straight(&self, run: &[Piece], uses: &HashMap<NodeId, usize>) -> (Straight, Vec<NodeId>, Vec<NodeId>) {
        let line_of: HashMap<NodeId, usize> =
            run.iter().enumerate().map(|(i, piece)| (piece.id, i)).collect();
        let mut inputs: Vec<NodeId> = Vec::new();
        let mut lines = Vec::new();
        for piece in run {
            let mut reads = [Argument::Number(0.0); 3];
            for (argument, &x) in reads.iter_mut().zip(&piece.reads) {
                *argument = match (line_of.get(&x), self.number(x)) {
                    (Some(&line), _) => Argument::Line(line),
                    (None, Some(number)) => Argument::Number(number),
                    (None, None) => {
                        Argument::Input(inputs.iter().position(|&i| i == x).unwrap_or_else(|| {
                            inputs.push(x);
                            inputs.len() - 1
                        }))
                    }
                };
            }
            lines.push(Line { does: piece.arithmetic.expect("a run is arithmetic"), reads });
        }
        let own = self::uses(run.iter().map(|piece| &piece.reads[..]));
        let leaves = |id: &NodeId| {
            self.result_of.contains_key(id)
                || uses.get(id).copied().unwrap_or(0) > own.get(id).copied().unwrap_or(0)
        };
        let outputs: Vec<NodeId> = run.iter().map(|piece| piece.id).filter(leaves).collect();
        let straight = Straight {
            lines,
            n_inputs: inputs.len(),
            outputs: outputs.iter().map(|id| line_of[id]).collect(),
        };
        (straight, inputs, outputs)
    }

    pub(super) fn build(mut self) -> Program {
        let numel = self.graph.node(self.members[0]).meta.numel();
        let machine_code = machine::available() && numel >= MIN_CODE;
        let pieces = self.pieces(!machine_code);
        let units = match machine_code {
            true => self.units(pieces),
            false => pieces.into_iter().map(Unit::block).collect(),
        };
        let mut last_use: HashMap<NodeId, usize> = HashMap::new();
        for (i, unit) in units.iter().enumerate() {
            last_use.extend(unit.pieces.iter().flat_map(|piece| &piece.reads).map(|&x| (x, i)));
        }
        let mut at: HashMap<NodeId, Source> = self.operand_of.clone();
        let mut instructions = Vec::new();
        for (i, Unit { pieces, code }) in units.into_iter().enumerate() {
            // Targets are chosen while the sources are still held: a block function whose target is its source
            // would be compiled to scalar code.
            instructions.push(if let Some(Loop { code, inputs, outputs }) = code {
                let sources = inputs.iter().map(|x| at[x]).collect();
                let targets = outputs.iter().map(|&id| self.target(id, &last_use, &mut at)).collect();
                Instruction::Code { code: Arc::new(code), sources, targets }
            } else {
                let [piece] = &pieces[..] else { unreachable!("several pieces are a loop") };
                let mut sources = [Source::Register(0); 3];
                for (source, &x) in sources.iter_mut().zip(&piece.reads) {
                    *source = match self.number(x) {
                        Some(number) => self.register_of(number),
                        None => at[&x],
                    };
                }
                let target = self.target(piece.id, &last_use, &mut at);
                Instruction::Block { tile: piece.tile, sources, target }
            });
            // Registers of members that are not read again; a converted result is held to the end.
            let mut reads: SmallVec<[NodeId; 8]> =
                pieces.iter().flat_map(|p| p.reads.iter().copied()).collect();
            reads.sort_unstable();
            reads.dedup();
            for x in reads {
                let converted = self.result_of.contains_key(&x);
                if let (Some(&Source::Register(r)), true) =
                    (at.get(&x), self.members.contains(&x) && !converted && last_use[&x] == i)
                {
                    self.free.push(r);
                }
            }
        }
        let mut program = Program {
            numel,
            tile: MAX_TILE,
            instructions,
            constants: self.constants,
            operands: self.operands,
            results: self.results,
            n_registers: self.n_registers as usize,
        };
        program.set_tile();
        program
    }

    /// Where a member is written, from where others read it.
    fn target(
        &mut self,
        id: NodeId,
        last_use: &HashMap<NodeId, usize>,
        at: &mut HashMap<NodeId, Source>,
    ) -> Target {
        let meta = &self.graph.node(id).meta;
        let result = self.result_of.get(&id).copied();
        let huge = meta.numel() >= HUGE && !last_use.contains_key(&id);
        let target = match result {
            Some(r) if meta.dtype == DType::F32 && !huge => Target::Result(r),
            _ => Target::Register(self.register()),
        };
        if let (Some(r), Target::Register(register)) = (result, target) {
            self.results[r as usize].register = Some(register);
        }
        let source = match target {
            Target::Register(r) => Source::Register(r),
            Target::Result(r) => Source::Result(r),
        };
        at.insert(id, source);
        target
    }
}

/// How often each value is read.
fn uses<'a>(reads: impl Iterator<Item = &'a [NodeId]>) -> HashMap<NodeId, usize> {
    let mut uses = HashMap::new();
    reads.flatten().for_each(|&x| *uses.entry(x).or_default() += 1);
    uses
}
