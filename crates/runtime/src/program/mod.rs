//! Tile programs: a fused group as instructions over tiles of f32.
//!
//! A tile is a few hundred elements, small enough for all registers of a program to stay in the
//! nearest cache. Dense operands are read where they lie, results are written where they belong, the
//! rest lives in registers. Instructions are the ops' own block functions and, where the machine has them,
//! loops of machine code made of the arithmetic between those, so a fused group gives the same bits as its
//! ops one by one.
//!
//! In a group with ops on rows a tile is some whole rows. Such an op is an instruction by its own fast kernel; a value that has
//! one element for each row takes as many elements of its register as the tile has rows.
#![allow(unsafe_code, reason = "tiles of operands and results are cut from raw memory; see `Program::run`")]

#[cfg(target_arch = "x86_64")]
mod assembler;
mod build;
#[cfg(target_arch = "x86_64")]
mod machine;
#[cfg(not(target_arch = "x86_64"))]
#[path = "no_machine.rs"]
mod machine;
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "tested everywhere, used where machine code is made")
)]
mod straight;
mod values;

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use machine::{Code, MAX_POINTERS};
use smallvec::SmallVec;
use thalweg_core::{DType, Layout, Shape, View, ViewMut};
use thalweg_graph::{Graph, NodeId};
use thalweg_kernels::gemm::Pieces;
use thalweg_kernels::stream::PastCaches;
use thalweg_kernels::threads::parallel;
use thalweg_tensor::ops::{Op, Tile};
use values::{Access, Operand, Outcome, Walk, load, round_to, store};

/// Elements per parallel task.
const GRAIN: usize = 32 << 10;
/// Bytes that all registers of a program may take: most of the nearest cache.
const REGISTER_BYTES: usize = 24 << 10;
/// Groups above this many elements are cut at `GRAIN`; smaller ones are one task.
const MAX_TILE: usize = 1024;
const MIN_TILE: usize = 64;
/// Elements of a line of the cache.
const LINE: usize = 16;
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

/// How many elements a value has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Level {
    /// One for each element of the tile.
    Element,
    /// One for each row of the tile.
    Row,
    /// Those of one row, the same for all.
    Shared,
}

#[derive(Clone)]
enum Instruction {
    /// The block function of an op; the result is rounded to what a dtype of fewer bits holds.
    Block { tile: Tile, level: Level, sources: [Source; 3], target: Target, rounded: Option<DType> },
    /// The arithmetic of several ops in one loop.
    Code { code: Arc<Code>, level: Level, sources: Vec<Source>, targets: Vec<Target> },
    /// An op on rows: the levels of what it reads, and of what it writes.
    Rows { op: Op, levels: SmallVec<[Level; 3]>, sources: SmallVec<[Source; 3]>, to: Level, target: Target },
    /// One element for each row, for all elements of the row.
    Spread { source: Source, target: Target },
}

impl Instruction {
    fn sources(&self) -> &[Source] {
        match self {
            Self::Block { sources, .. } => sources,
            Self::Code { sources, .. } => sources,
            Self::Rows { sources, .. } => sources,
            Self::Spread { source, .. } => std::slice::from_ref(source),
        }
    }

    fn sources_mut(&mut self) -> &mut [Source] {
        match self {
            Self::Block { sources, .. } => sources,
            Self::Code { sources, .. } => sources,
            Self::Rows { sources, .. } => sources,
            Self::Spread { source, .. } => std::slice::from_mut(source),
        }
    }

    fn targets(&self) -> &[Target] {
        match self {
            Self::Block { target, .. } | Self::Rows { target, .. } | Self::Spread { target, .. } => {
                std::slice::from_ref(target)
            }
            Self::Code { targets, .. } => targets,
        }
    }
}

/// A fused group.
#[derive(Clone)]
pub(crate) struct Program {
    numel: usize,
    /// Elements of a row, if there are ops on rows; else 1.
    cols: usize,
    /// Elements of a tile, and of a register; the latter keeps registers on lines of the cache.
    tile: usize,
    register: usize,
    instructions: Vec<Instruction>,
    /// Numbers that fill registers before the first tile.
    constants: Vec<(u16, f32)>,
    pub operands: Vec<Operand>,
    pub results: Vec<Outcome>,
    n_registers: usize,
    /// Whether results are read before they leave the nearest cache, however many elements there are.
    results_near: bool,
}

/// Memory of one operand or result at run time.
#[derive(Clone, Copy)]
pub(crate) struct Memory(pub *mut u8);

// SAFETY: a `Memory` is an address; `Program::run` says who may use it and how.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Program {
    /// The program of a group. `layout` gives the layout of a value from outside, `needed` says which
    /// members others read, `overwritten` which operands lie where a result will.
    pub(crate) fn new(
        graph: &Graph,
        members: &[NodeId],
        layout: &dyn Fn(NodeId) -> Layout,
        needed: &dyn Fn(NodeId) -> bool,
    ) -> Self {
        build::Builder::new(graph, members, layout, needed).build()
    }

    /// Lets a result lie in the memory of an operand: the operand is copied into a register before the result is written,
    /// unless nothing reads it afterwards.
    pub(crate) fn share_memory(&mut self, operand: usize, result: usize) {
        let from = Source::Operand(operand as u16);
        let reads = |i: &Instruction| i.sources().contains(&from);
        let last = self.instructions.iter().rposition(reads);
        let written = match self.results[result].register {
            // Converted when all instructions have run.
            Some(_) => self.instructions.len(),
            None => {
                let to = Target::Result(result as u16);
                let writes = |i: &Instruction| i.targets().contains(&to);
                self.instructions.iter().position(writes).expect("every result is written")
            }
        };
        // Machine code reads each vector before it writes it, if both are in step; block functions are promised that nothing
        // overlaps.
        let in_step = self.operands[operand].is_in_step();
        let overlaps = match last {
            Some(last) if last == written => {
                !in_step || !matches!(self.instructions[last], Instruction::Code { .. })
            }
            Some(last) => !in_step || last > written,
            None => false,
        };
        if overlaps {
            self.protect(operand);
        }
    }

    /// Copies an operand into a register before any result is written.
    fn protect(&mut self, operand: usize) {
        if self.operands[operand].register.is_some() {
            return;
        }
        let register = self.n_registers as u16;
        self.n_registers += 1;
        self.operands[operand].register = Some(register);
        let from = Source::Operand(operand as u16);
        for source in self.instructions.iter_mut().flat_map(Instruction::sources_mut) {
            if *source == from {
                *source = Source::Register(register);
            }
        }
        self.set_tile();
    }

    fn set_tile(&mut self) {
        let fits = REGISTER_BYTES / 4 / self.n_registers.max(1);
        self.tile = (fits / MIN_TILE * MIN_TILE).clamp(MIN_TILE, MAX_TILE);
        self.tile = (self.tile / self.cols).max(1) * self.cols;
        self.register = self.tile.next_multiple_of(LINE);
    }

    /// Says that each piece of the results is read as soon as it is written.
    pub(crate) fn keep_results_near(&mut self) {
        self.results_near = true;
    }

    /// Whether it can run for any elements of an operand with so many, without the others.
    pub(crate) fn runs_in_pieces(&self, numel: usize) -> bool {
        self.numel == numel && self.cols == 1
    }

    /// Elements of a task: whole rows.
    fn grain(&self) -> usize {
        (GRAIN / self.cols).max(1) * self.cols
    }

    /// How many pieces it is cut into.
    fn n_tasks(&self) -> usize {
        self.numel.div_ceil(self.grain())
    }

    /// Runs one task.
    ///
    /// # Safety
    /// As for [`run`].
    unsafe fn run_task(&self, task: usize, operands: &[Memory], results: &[Memory]) {
        let range = task * self.grain()..((task + 1) * self.grain()).min(self.numel);
        // SAFETY: handed on; tasks have ranges of their own.
        unsafe { self.run_pieces(&Pieces::one(range), operands, results) };
    }

    /// Runs it for some of the elements.
    ///
    /// # Safety
    /// As for [`run`], for these elements alone.
    pub(crate) unsafe fn run_pieces(&self, pieces: &Pieces, operands: &[Memory], results: &[Memory]) {
        with_registers(self.n_registers * self.register, |registers| {
            for &(register, value) in &self.constants {
                let at = register as usize * self.register;
                registers[at..at + self.tile.min(pieces.first.len())].fill(value);
            }
            let mut past_caches = (!self.results_near).then(PastCaches::default);
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
        past_caches: &mut Option<PastCaches>,
    ) {
        // Where the tile begins in a value of this level, and how many elements of it belong to the tile.
        let part = |level: Level| match level {
            Level::Element => (tile.start, tile.len()),
            Level::Row => (tile.start / self.cols, tile.len() / self.cols),
            Level::Shared => (0, self.cols),
        };
        let register = |r: u16| {
            // SAFETY: `run` asked for `n_registers` registers.
            unsafe { registers.add(r as usize * self.register) }
        };
        for (operand, memory) in self.operands.iter().zip(operands) {
            if let Some(r) = operand.register {
                let (start, len) = part(operand.level);
                // SAFETY: registers are nobody else's; the operand is valid for its layout.
                unsafe { load(operand, memory.0, start, std::slice::from_raw_parts_mut(register(r), len)) };
            }
        }
        // Of a value that passes only some elements are in memory, and its beginning is nowhere: hence no `add` from there.
        let source_at = |source: Source| match source {
            Source::Register(r) => register(r),
            Source::Operand(i) => match &self.operands[i as usize].access {
                Access::Dense { offset } => {
                    let (start, _) = part(self.operands[i as usize].level);
                    operands[i as usize].0.cast::<f32>().wrapping_add(offset + start)
                }
                Access::Strided(_) => unreachable!("strided operands have a register"),
            },
            Source::Result(i) => {
                results[i as usize].0.cast::<f32>().wrapping_add(part(self.results[i as usize].level).0)
            }
        };
        let target_at = |target: Target| match target {
            Target::Register(r) => register(r),
            Target::Result(i) => {
                results[i as usize].0.cast::<f32>().wrapping_add(part(self.results[i as usize].level).0)
            }
        };
        // SAFETY: registers hold initialised floats; an instruction never writes what it reads (`Builder::build`,
        // `share_memory`).
        let read = |source: Source, level: Level| unsafe {
            std::slice::from_raw_parts(source_at(source).cast_const(), part(level).1)
        };
        // SAFETY: as for `read`, and no source of the instruction lies here.
        let write = |target: Target, level: Level| unsafe {
            std::slice::from_raw_parts_mut(target_at(target), part(level).1)
        };
        for instruction in &self.instructions {
            match instruction {
                Instruction::Block { tile, level, sources: [a, b, c], target, rounded } => {
                    let (read, y) = (|source: &Source| read(*source, *level), write(*target, *level));
                    match tile {
                        Tile::Map(f) => f(read(a), &mut *y),
                        Tile::MapWith(f, number) => f(read(a), *number, &mut *y),
                        Tile::Zip(f) => f(read(a), read(b), &mut *y),
                        Tile::Zip3(f) => f(read(a), read(b), read(c), &mut *y),
                    }
                    if let Some(dtype) = rounded {
                        round_to(*dtype, y);
                    }
                }
                Instruction::Code { code, level, sources, targets } => {
                    let mut pointers = [std::ptr::null_mut(); MAX_POINTERS];
                    let at =
                        sources.iter().map(|&s| source_at(s)).chain(targets.iter().map(|&t| target_at(t)));
                    pointers.iter_mut().zip(at).for_each(|(pointer, at)| *pointer = at);
                    // SAFETY: as for blocks; a result may lie where an operand does that nothing reads afterwards.
                    unsafe { code.run(&pointers[..sources.len() + targets.len()], part(*level).1) };
                }
                Instruction::Rows { op, levels, sources, to, target } => {
                    let n_rows = part(Level::Row).1;
                    let shape = |level: Level| -> Shape {
                        match level {
                            Level::Element => [n_rows, self.cols].into(),
                            Level::Row => [n_rows].into(),
                            Level::Shared => [self.cols].into(),
                        }
                    };
                    let layouts: SmallVec<[Layout; 3]> =
                        levels.iter().map(|&level| Layout::contiguous(shape(level))).collect();
                    let of = |((&source, &level), layout)| View::over(read(source, level).into(), layout);
                    let x: SmallVec<[View<'_>; 3]> =
                        sources.iter().zip(levels).zip(&layouts).map(of).collect();
                    let shape = shape(*to);
                    let mut y = ViewMut::over(write(*target, *to).into(), &shape);
                    assert!(op.fast(&x, &mut y), "`{}` has no kernel for rows", op.name());
                }
                Instruction::Spread { source, target } => {
                    let (x, y) = (read(*source, Level::Row), write(*target, Level::Element));
                    y.chunks_exact_mut(self.cols).zip(x).for_each(|(row, &x)| row.fill(x));
                }
            }
        }
        for (result, memory) in self.results.iter().zip(results) {
            let Some(r) = result.register else { continue };
            let (start, len) = part(result.level);
            // SAFETY: as for `read`; the result's memory is ours alone, and has room for all elements of its level.
            unsafe {
                let x = std::slice::from_raw_parts(register(r), len);
                store(x, result.dtype, memory.0, start, past_caches);
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
/// dense, of the same dtype size, begins there and was named to [`Program::share_memory`]; programs touch none of what another
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
