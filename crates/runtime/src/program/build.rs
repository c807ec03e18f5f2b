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
use super::{Access, HUGE, Instruction, Level, Operand, Outcome, Program, Source, Target, Walk};

/// Elements from which machine code is made: a vector.
const MIN_CODE: usize = 8;

/// What a member of a group does, and the values it reads.
struct Piece {
    id: NodeId,
    does: Does,
    /// What it does to each element, if it may be part of machine code.
    arithmetic: Option<Arithmetic>,
    reads: SmallVec<[NodeId; 3]>,
}

enum Does {
    Tile(Tile),
    Rows(Op),
    Spread,
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
    numel: usize,
    cols: usize,
    operands: Vec<Operand>,
    operand_of: HashMap<(NodeId, Level), Source>,
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
        let (numel, cols) = rows(graph, members);
        let mut builder = Self {
            graph,
            members,
            numel,
            cols,
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
                let level = builder.level_of_read(id, input);
                let known = members.contains(&input) || builder.operand_of.contains_key(&(input, level));
                if !known && builder.number(input).is_none() {
                    let source = builder.outside(input, level, layout);
                    builder.operand_of.insert((input, level), source);
                }
            }
        }
        for &id in members.iter().filter(|&&id| needed(id)) {
            let (dtype, level) = (graph.node(id).meta.dtype, builder.level(id));
            builder.result_of.insert(id, builder.results.len() as u16);
            builder.results.push(Outcome { node: id, dtype, level, register: None });
        }
        builder
    }

    /// How many elements a value of the group has.
    fn level(&self, id: NodeId) -> Level {
        if self.graph.node(id).meta.numel() == self.numel { Level::Element } else { Level::Row }
    }

    /// How many elements of an operand a member reads: those in the same place, unless it is for all rows the same.
    fn level_of_read(&self, reader: NodeId, input: NodeId) -> Level {
        let node = self.graph.node(reader);
        let first = &self.graph.node(node.inputs[0]).meta;
        let shared = self.graph.node(input).meta.shape != first.shape && is_on_rows(self.graph, reader);
        if shared { Level::Shared } else { self.level(input) }
    }

    /// The member or operand whose elements these are: a reshape has those of what it reads.
    fn behind(&self, mut id: NodeId) -> NodeId {
        while self.members.contains(&id) && self.is_reshape(id) {
            id = self.graph.node(id).inputs[0];
        }
        id
    }

    fn is_reshape(&self, id: NodeId) -> bool {
        let node = self.graph.node(id);
        let same_number = || node.meta.numel() == self.graph.node(node.inputs[0]).meta.numel();
        matches!(&node.kind, Kind::Op(Op::Reshape(_) | Op::Broadcast(_))) && same_number()
    }

    fn register(&mut self) -> u16 {
        self.free.pop().unwrap_or_else(|| {
            self.n_registers += 1;
            self.n_registers - 1
        })
    }

    /// The dtype to which a member's values are rounded, if it has fewer bits than a tile.
    fn rounded(&self, id: NodeId) -> Option<DType> {
        Some(self.graph.node(id).meta.dtype).filter(|dtype| matches!(dtype, DType::F16 | DType::BF16))
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
    fn outside(&mut self, id: NodeId, level: Level, layout: &dyn Fn(NodeId) -> Layout) -> Source {
        let node = self.graph.node(id);
        let (layout, dtype) = (layout(id), node.meta.dtype);
        let in_place = layout.is_contiguous() && dtype == DType::F32;
        let access = match in_place {
            true => Access::Dense { offset: layout.offset() },
            false => Access::Strided(Walk::new(&layout)),
        };
        let register = (!in_place).then(|| self.register());
        self.operands.push(Operand { node: id, access, dtype, level, register });
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
            let is_product = matches!(self.graph.op(id), Some(Op::Mul(_))) && self.rounded(id).is_none();
            join && is_product && self.members.contains(&id) && alone(id)
        };
        let mut taken = HashSet::new();
        let mut pieces: Vec<Piece> = Vec::with_capacity(self.members.len());
        for &id in self.members {
            let node = self.graph.node(id);
            let Kind::Op(op) = &node.kind else { unreachable!("groups are made of ops") };
            let reads: SmallVec<[NodeId; 3]> = node.inputs.iter().map(|&x| self.behind(x)).collect();
            if self.is_reshape(id) {
                continue;
            }
            if let Op::Broadcast(_) = op {
                pieces.push(Piece { id, does: Does::Spread, arithmetic: None, reads });
                continue;
            }
            let with = |product: NodeId, other: NodeId, tile: Tile| {
                let factors = &self.graph.node(product).inputs;
                let reads = [factors[0], factors[1], other].map(|x| self.behind(x)).into();
                (Piece { id, does: Does::Tile(tile), arithmetic: None, reads }, product)
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
            let Some(tile) = op.tile(&metas, &node.meta) else {
                let (_, op) =
                    op.on_rows(&metas, &node.meta).expect("groups are made of tiles, rows and views");
                pieces.push(Piece { id, does: Does::Rows(op), arithmetic: None, reads });
                continue;
            };
            let arithmetic = if join || self.rounded(id).is_some() { None } else { Arithmetic::of(op) };
            pieces.push(Piece { id, does: Does::Tile(tile), arithmetic, reads });
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
            // What there is for each row and what there is for each element meet in blocks only.
            let (per_row, run) = run.into_iter().partition(|piece| self.level(piece.id) == Level::Row);
            self.cut(per_row, &uses, &mut units);
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
        let machine_code = machine::available() && self.numel >= MIN_CODE;
        let pieces = self.pieces(!machine_code);
        let units = match machine_code {
            true => self.units(pieces),
            false => pieces.into_iter().map(Unit::block).collect(),
        };
        let mut last_use: HashMap<NodeId, usize> = HashMap::new();
        for (i, unit) in units.iter().enumerate() {
            last_use.extend(unit.pieces.iter().flat_map(|piece| &piece.reads).map(|&x| (x, i)));
        }
        let mut at: HashMap<NodeId, Source> = HashMap::new();
        let mut instructions = Vec::new();
        for (i, Unit { pieces, code }) in units.into_iter().enumerate() {
            // Targets are chosen while the sources are still held: a block function whose target is its source
            // would be compiled to scalar code.
            instructions.push(if let Some(Loop { code, inputs, outputs }) = code {
                let level = self.level(pieces[0].id);
                let sources = inputs.iter().map(|&x| self.source(x, level, &at)).collect();
                let targets = outputs.iter().map(|&id| self.target(id, &last_use, &mut at)).collect();
                Instruction::Code { code: Arc::new(code), level, sources, targets }
            } else {
                let [piece] = &pieces[..] else { unreachable!("several pieces are a loop") };
                self.instruction(piece, &last_use, &mut at)
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
            numel: self.numel,
            cols: self.cols,
            tile: 0,
            register: 0,
            instructions,
            constants: self.constants,
            operands: self.operands,
            results: self.results,
            n_registers: self.n_registers as usize,
            results_near: false,
        };
        program.set_tile();
        program
    }

    /// A piece that is not part of a loop.
    fn instruction(
        &mut self,
        piece: &Piece,
        last_use: &HashMap<NodeId, usize>,
        at: &mut HashMap<NodeId, Source>,
    ) -> Instruction {
        let inputs = self.graph.node(piece.id).inputs.clone();
        let levels: SmallVec<[Level; 3]> = match piece.does {
            Does::Tile(_) => smallvec![self.level(piece.id); piece.reads.len()],
            Does::Rows(_) => inputs.iter().map(|&x| self.level_of_read(piece.id, x)).collect(),
            Does::Spread => smallvec![Level::Row],
        };
        let sources: SmallVec<[Source; 3]> =
            piece.reads.iter().zip(&levels).map(|(&x, &level)| self.source(x, level, at)).collect();
        let target = self.target(piece.id, last_use, at);
        match &piece.does {
            Does::Tile(tile) => {
                let mut three = [Source::Register(0); 3];
                three[..sources.len()].copy_from_slice(&sources);
                let (level, rounded) = (self.level(piece.id), self.rounded(piece.id));
                Instruction::Block { tile: *tile, level, sources: three, target, rounded }
            }
            Does::Rows(op) => {
                Instruction::Rows { op: op.clone(), levels, sources, to: self.level(piece.id), target }
            }
            Does::Spread => Instruction::Spread { source: sources[0], target },
        }
    }

    /// From where a value is read.
    fn source(&mut self, id: NodeId, level: Level, at: &HashMap<NodeId, Source>) -> Source {
        match (at.get(&id), self.number(id)) {
            (Some(&source), _) => source,
            (None, Some(number)) => self.register_of(number),
            (None, None) => self.operand_of[&(id, level)],
        }
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

/// The number of elements that a group computes, and of each of its rows: 1 if it has no ops on rows.
fn rows(graph: &Graph, members: &[NodeId]) -> (usize, usize) {
    let of = |id: &NodeId| {
        let first = graph.node(*id).inputs.first()?;
        Some((graph.node(*first).meta.numel(), cols_of(graph, *id)?))
    };
    members.iter().find_map(of).unwrap_or_else(|| (graph.node(members[0]).meta.numel(), 1))
}

fn cols_of(graph: &Graph, id: NodeId) -> Option<usize> {
    let node = graph.node(id);
    let metas: SmallVec<[&Meta; 3]> = node.inputs.iter().map(|&x| &graph.node(x).meta).collect();
    Some(graph.op(id)?.on_rows(&metas, &node.meta)?.0)
}

fn is_on_rows(graph: &Graph, id: NodeId) -> bool {
    cols_of(graph, id).is_some()
}
