//! Tile programs: a fused group of elementwise ops as instructions over tiles of f32.
//!
//! A tile is a few hundred elements, small enough for all registers of a program to stay in the
//! nearest cache. Dense operands are read where they lie, results are written where they belong, the
//! rest lives in registers. Instructions are the ops' own block functions, so a fused group gives the
//! same bits as its ops one by one.
#![allow(unsafe_code, reason = "tiles of operands and results are cut from raw memory; see `Program::run`")]

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;

use smallvec::{SmallVec, smallvec};
use thalweg_core::{DType, Layout};
use thalweg_graph::{Graph, Kind, NodeId};
use thalweg_kernels::gemm::Pieces;
use thalweg_kernels::stream::{PastCaches, arithmetic};
use thalweg_kernels::threads::parallel;
use thalweg_tensor::Meta;
use thalweg_tensor::ops::{Op, Tile};

/// Elements per parallel task.
const GRAIN: usize = 32 << 10;
/// Bytes that all registers of a program may take: most of the nearest cache.
const REGISTER_BYTES: usize = 24 << 10;
/// Groups above this many elements are cut at `GRAIN`; smaller ones are one task.
const MAX_TILE: usize = 1024;
const MIN_TILE: usize = 64;
/// Elements above which results are not expected to stay in a cache until they are read.
const HUGE: usize = 1 << 22;

/// Where an instruction reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Register(u16),
    /// A dense f32 operand, read in place.
    Operand(u16),
    /// A result that was written by an earlier instruction, read in place.
    Result(u16),
}

/// Where an instruction writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Register(u16),
    Result(u16),
}

#[derive(Clone, Copy)]
struct Instruction {
    tile: Tile,
    sources: [Source; 3],
    target: Target,
}

/// How an operand reaches the instructions.
#[derive(Debug, Clone)]
pub(crate) enum Access {
    /// f32 in row-major order: read in place, unless a result overwrites it.
    Dense { offset: usize },
    /// Anything else: gathered into a register first.
    Strided(Walk),
}

/// A layout with its axes merged, to be read from any position.
#[derive(Debug, Clone)]
pub(crate) struct Walk {
    offset: isize,
    /// (size, stride), outermost first.
    axes: SmallVec<[(usize, isize); 4]>,
}

/// An operand of a program.
#[derive(Debug, Clone)]
pub(crate) struct Operand {
    /// The node that it is the value of.
    pub node: NodeId,
    pub access: Access,
    pub dtype: DType,
    /// The register it is gathered or copied into, if it cannot be read in place.
    register: Option<u16>,
}

/// A result of a program.
#[derive(Debug, Clone)]
pub(crate) struct Outcome {
    pub node: NodeId,
    pub dtype: DType,
    /// The register it is converted from; `None` when instructions write it in place.
    register: Option<u16>,
}

/// A fused group.
#[derive(Clone)]
pub(crate) struct Program {
    numel: usize,
    tile: usize,
    instructions: Vec<Instruction>,
    /// Numbers that fill registers before the first tile.
    constants: Vec<(u16, f32)>,
    pub operands: Vec<Operand>,
    pub results: Vec<Outcome>,
    n_registers: usize,
}

/// Memory of one operand or result at run time.
#[derive(Clone, Copy)]
pub(crate) struct Memory(pub *mut u8);

// SAFETY: a `Memory` is an address; `Program::run` says who may use it and how.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Walk {
    fn new(layout: &Layout) -> Self {
        let mut axes: SmallVec<[(usize, isize); 4]> = SmallVec::new();
        for (&size, &stride) in layout.shape().iter().zip(layout.strides()) {
            match axes.last_mut() {
                _ if size == 1 => {}
                Some((outer, outer_stride)) if *outer_stride == stride * size as isize => {
                    *outer *= size;
                    *outer_stride = stride;
                }
                _ => axes.push((size, stride)),
            }
        }
        Self { offset: layout.offset() as isize, axes }
    }

    /// Calls `f(position, stride, range of the tile)` for the straight runs of elements
    /// `start..start + len`.
    fn runs(&self, start: usize, len: usize, mut f: impl FnMut(isize, isize, Range<usize>)) {
        let Some(&(inner, stride)) = self.axes.last() else { return f(self.offset, 0, 0..len) };
        let mut done = 0;
        while done < len {
            let at = start + done;
            let (mut outer, within) = (at / inner, at % inner);
            let mut position = self.offset + within as isize * stride;
            for &(size, stride) in self.axes[..self.axes.len() - 1].iter().rev() {
                position += (outer % size) as isize * stride;
                outer /= size;
            }
            let n = (inner - within).min(len - done);
            f(position, stride, done..done + n);
            done += n;
        }
    }
}

impl Program {
    /// The program of a group. `layout` gives the layout of a value from outside, `needed` says which
    /// members others read, `overwritten` which operands lie where a result will.
    pub(crate) fn new(
        graph: &Graph,
        members: &[NodeId],
        layout: &dyn Fn(NodeId) -> Layout,
        needed: &dyn Fn(NodeId) -> bool,
    ) -> Self {
        Builder::new(graph, members, layout, needed).build()
    }

    /// Copies these operands into registers before any result is written: a result lies in their
    /// memory.
    pub(crate) fn protect(&mut self, operand: usize) {
        if self.operands[operand].register.is_some() {
            return;
        }
        let register = self.n_registers as u16;
        self.n_registers += 1;
        self.operands[operand].register = Some(register);
        let from = Source::Operand(operand as u16);
        for source in self.instructions.iter_mut().flat_map(|i| &mut i.sources) {
            if *source == from {
                *source = Source::Register(register);
            }
        }
        self.set_tile();
    }

    fn set_tile(&mut self) {
        let fits = REGISTER_BYTES / 4 / self.n_registers.max(1);
        self.tile = (fits / MIN_TILE * MIN_TILE).clamp(MIN_TILE, MAX_TILE);
    }

    /// How many elements it computes.
    pub(crate) fn numel(&self) -> usize {
        self.numel
    }

    /// How many pieces it is cut into.
    fn n_tasks(&self) -> usize {
        self.numel.div_ceil(GRAIN)
    }

    /// Runs one task.
    ///
    /// # Safety
    /// As for [`run`].
    unsafe fn run_task(&self, task: usize, operands: &[Memory], results: &[Memory]) {
        let range = task * GRAIN..((task + 1) * GRAIN).min(self.numel);
        // SAFETY: handed on; tasks have ranges of their own.
        unsafe { self.run_pieces(&Pieces::one(range), operands, results) };
    }

    /// Runs it for some of the elements.
    ///
    /// # Safety
    /// As for [`run`], for these elements alone.
    pub(crate) unsafe fn run_pieces(&self, pieces: &Pieces, operands: &[Memory], results: &[Memory]) {
        with_registers(self.n_registers * self.tile, |registers| {
            for &(register, value) in &self.constants {
                let at = register as usize * self.tile;
                registers[at..at + self.tile.min(pieces.first.len())].fill(value);
            }
            let mut past_caches = PastCaches::default();
            for piece in pieces.iter() {
                for start in piece.clone().step_by(self.tile) {
                    let tile = start..piece.end.min(start + self.tile);
                    // SAFETY: the caller's promise; tasks, pieces and tiles have ranges of their own.
                    unsafe {
                        self.run_tile(registers.as_mut_ptr(), operands, results, tile, &mut past_caches);
                    }
                }
            }
        });
    }

    /// # Safety
    /// As for `run`; `registers` is valid for all registers of the program.
    unsafe fn run_tile(
        &self,
        registers: *mut f32,
        operands: &[Memory],
        results: &[Memory],
        tile: Range<usize>,
        past_caches: &mut PastCaches,
    ) {
        let (start, len) = (tile.start, tile.len());
        let register = |r: u16| {
            // SAFETY: `run` asked for `n_registers` tiles.
            unsafe { registers.add(r as usize * self.tile) }
        };
        for (operand, memory) in self.operands.iter().zip(operands) {
            if let Some(r) = operand.register {
                // SAFETY: registers are nobody else's; the operand is valid for its layout.
                unsafe { load(operand, memory.0, start, std::slice::from_raw_parts_mut(register(r), len)) };
            }
        }
        let read = |source: Source| -> &[f32] {
            // SAFETY: registers hold initialised floats; operands and results are valid at
            // `start..start + len`; an instruction never writes what it reads (`Builder::build`).
            unsafe {
                let at = match source {
                    Source::Register(r) => register(r).cast_const(),
                    Source::Operand(i) => match &self.operands[i as usize].access {
                        Access::Dense { offset } => operands[i as usize].0.cast::<f32>().add(offset + start),
                        Access::Strided(_) => unreachable!("strided operands have a register"),
                    },
                    Source::Result(i) => results[i as usize].0.cast::<f32>().add(start),
                };
                std::slice::from_raw_parts(at, len)
            }
        };
        for instruction in &self.instructions {
            let y = match instruction.target {
                Target::Register(r) => register(r),
                // SAFETY: the result has `numel` elements.
                Target::Result(i) => unsafe { results[i as usize].0.cast::<f32>().add(start) },
            };
            // SAFETY: as for `read`, and no source of this instruction lies here.
            let y = unsafe { std::slice::from_raw_parts_mut(y, len) };
            let [a, b, c] = instruction.sources;
            match instruction.tile {
                Tile::Map(f) => f(read(a), y),
                Tile::MapWith(f, number) => f(read(a), number, y),
                Tile::Zip(f) => f(read(a), read(b), y),
                Tile::Zip3(f) => f(read(a), read(b), read(c), y),
            }
        }
        for (result, memory) in self.results.iter().zip(results) {
            let Some(r) = result.register else { continue };
            // SAFETY: as for `read`; the result's memory is ours alone.
            unsafe {
                let x = std::slice::from_raw_parts(register(r), len);
                match result.dtype {
                    DType::Bool => {
                        // Bytes, since the memory may hold anything before.
                        let y = std::slice::from_raw_parts_mut(memory.0.add(start), len);
                        y.iter_mut().zip(x).for_each(|(y, x)| *y = u8::from(*x != 0.0));
                    }
                    // Only huge results come from a register.
                    _ => past_caches
                        .copy(x, std::slice::from_raw_parts_mut(memory.0.cast::<f32>().add(start), len)),
                }
            }
        }
    }
}

/// Runs programs whose operands and results stand one after the other.
///
/// # Safety
/// `operands[i]` points to the memory of operand i, valid for its dtype and layout, `results[i]` to memory
/// for all elements of result i. During the call nobody else writes what is read here or touches what is
/// written here. A result may lie in the memory of an operand of the same program only if that operand is
/// dense, of the same dtype size, begins there and is protected; programs touch none of what another
/// writes.
pub(crate) unsafe fn run(programs: &[Program], operands: &[Memory], results: &[Memory]) {
    let n_tasks = programs.iter().map(Program::n_tasks).sum();
    parallel(n_tasks, &|task| {
        let (mut task, mut operands, mut results) = (task, operands, results);
        for program in programs {
            let (own_operands, rest) = operands.split_at(program.operands.len());
            let (own_results, after) = results.split_at(program.results.len());
            if task < program.n_tasks() {
                // SAFETY: handed on.
                return unsafe { program.run_task(task, own_operands, own_results) };
            }
            (task, operands, results) = (task - program.n_tasks(), rest, after);
        }
    });
}

/// Fills a tile from an operand.
///
/// # Safety
/// `memory` is valid for the operand's dtype and layout.
unsafe fn load(operand: &Operand, memory: *mut u8, start: usize, tile: &mut [f32]) {
    // SAFETY: the positions are those of the operand's layout.
    unsafe {
        match (&operand.access, operand.dtype) {
            (Access::Dense { offset }, _) => {
                let x = memory.cast::<f32>().add(offset + start);
                tile.copy_from_slice(std::slice::from_raw_parts(x, tile.len()));
            }
            (Access::Strided(walk), DType::Bool) => walk.runs(start, tile.len(), |at, stride, range| {
                for (i, t) in tile[range].iter_mut().enumerate() {
                    *t = f32::from(*memory.offset(at + i as isize * stride));
                }
            }),
            (Access::Strided(walk), _) => walk.runs(start, tile.len(), |at, stride, range| {
                let x = memory.cast::<f32>().offset(at);
                match stride {
                    1 => tile[range.clone()].copy_from_slice(std::slice::from_raw_parts(x, range.len())),
                    0 => tile[range].fill(*x),
                    _ => tile[range]
                        .iter_mut()
                        .enumerate()
                        .for_each(|(i, t)| *t = *x.offset(i as isize * stride)),
                }
            }),
        }
    }
}

/// Lends this thread's registers, which grow to what is asked and stay.
fn with_registers(len: usize, f: impl FnOnce(&mut [f32])) {
    thread_local! {
        static REGISTERS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    }
    REGISTERS.with_borrow_mut(|registers| {
        if registers.len() < len {
            registers.resize(len, 0.0);
        }
        f(&mut registers[..len]);
    });
}

/// What a member of a group does to a tile, and the values it reads.
struct Piece {
    id: NodeId,
    tile: Tile,
    reads: SmallVec<[NodeId; 3]>,
}

/// Assigns registers: a value holds one from its instruction to its last use.
struct Builder<'a> {
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
    fn new(
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
                if !members.contains(&input) && !builder.operand_of.contains_key(&input) {
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

    /// A value from outside: a number, a dense operand, or one that needs a register of its own.
    fn outside(&mut self, id: NodeId, layout: &dyn Fn(NodeId) -> Layout) -> Source {
        let node = self.graph.node(id);
        if let Kind::Literal(literal) = &node.kind
            && let Some(number) = literal.uniform()
        {
            let bits = (number as f32).to_bits();
            if let Some(&r) = self.constant_of.get(&bits) {
                return Source::Register(r);
            }
            let r = self.register();
            self.constant_of.insert(bits, r);
            self.constants.push((r, number as f32));
            return Source::Register(r);
        }
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

    /// What each member does and reads. A product that only a sum or a difference reads is part of it: one pass over
    /// a tile instead of two.
    fn pieces(&self) -> Vec<Piece> {
        let mut uses: HashMap<NodeId, usize> = HashMap::new();
        for &input in self.members.iter().flat_map(|&id| &self.graph.node(id).inputs) {
            *uses.entry(input).or_default() += 1;
        }
        let alone = |id: NodeId| uses[&id] == 1 && !self.result_of.contains_key(&id);
        let product = |id: NodeId| {
            matches!(self.graph.op(id), Some(Op::Mul(_))) && alone(id) && self.members.contains(&id)
        };
        let mut taken = std::collections::HashSet::new();
        let mut pieces: Vec<Piece> = Vec::with_capacity(self.members.len());
        for &id in self.members {
            let node = self.graph.node(id);
            let Kind::Op(op) = &node.kind else { unreachable!("groups are made of ops") };
            let with = |product: NodeId, other: NodeId, tile: Tile| {
                let factors = &self.graph.node(product).inputs;
                (Piece { id, tile, reads: smallvec![factors[0], factors[1], other] }, product)
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
            pieces.push(Piece { id, tile, reads: node.inputs.iter().copied().collect() });
        }
        pieces.retain(|piece| !taken.contains(&piece.id));
        pieces
    }

    fn build(mut self) -> Program {
        let pieces = self.pieces();
        let mut last_use: HashMap<NodeId, usize> = HashMap::new();
        for (i, piece) in pieces.iter().enumerate() {
            piece.reads.iter().for_each(|&input| {
                last_use.insert(input, i);
            });
        }
        let mut at: HashMap<NodeId, Source> = self.operand_of.clone();
        let mut instructions = Vec::new();
        for (i, &Piece { id, tile, ref reads }) in pieces.iter().enumerate() {
            let node = self.graph.node(id);
            let mut sources = [Source::Register(0); 3];
            for (source, x) in sources.iter_mut().zip(reads) {
                *source = at[x];
            }
            // The target is chosen while the sources are still held: a block function whose target
            // is its source would be compiled to scalar code.
            let result = self.result_of.get(&id).copied();
            let huge = node.meta.numel() >= HUGE && !last_use.contains_key(&id);
            let target = match result {
                Some(r) if node.meta.dtype == DType::F32 && !huge => Target::Result(r),
                _ => Target::Register(self.register()),
            };
            if let (Some(r), Target::Register(register)) = (result, target) {
                self.results[r as usize].register = Some(register);
            }
            at.insert(
                id,
                match target {
                    Target::Register(r) => Source::Register(r),
                    Target::Result(r) => Source::Result(r),
                },
            );
            instructions.push(Instruction { tile, sources, target });
            // Registers of members that are not read again; a converted result is held to the end.
            let mut inputs = reads.clone();
            inputs.sort_unstable();
            inputs.dedup();
            for x in inputs {
                let converted = self.result_of.contains_key(&x);
                if let (Source::Register(r), true) = (at[&x], self.members.contains(&x) && !converted)
                    && last_use[&x] == i
                {
                    self.free.push(r);
                }
            }
        }
        let first = self.members[0];
        let mut program = Program {
            numel: self.graph.node(first).meta.numel(),
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
}
