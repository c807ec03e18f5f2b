//! Straight code as machine code: one loop over vectors of eight floats, for x86-64 with AVX2.
//!
//! The function takes `pointers` in `rdi`, the addresses of inputs, then of outputs; `bytes` in `rsi`, how many of each;
//! `numbers` in `rdx`, a table with each number eight times, behind the mask for the last, partial vector; `rdx` is in the
//! middle of its first numbers, which a byte then reaches. `rcx` is how far the loop is. Values live in `ymm0`–`ymm13`; `ymm14` is free for each line, `ymm15` holds the mask. All loads of a vector
//! come before its stores, so an output may lie where an input does.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use memmap2::{Mmap, MmapMut};
use thalweg_kernels::simd::{Isa, isa};
use thalweg_tensor::ops::Relation;

use super::assembler::{Assembler, Base, Instruction, Place};
use super::straight::{Argument, Arithmetic, Line, Registers, Straight};

/// Registers for values.
const VALUES: u8 = 14;
const FREE: u8 = 14;
const MASK: u8 = 15;
/// Bytes of a number in its table, and of the table before what `rdx` points to.
const NUMBER: i32 = size_of::<[f32; 8]>() as i32;
const MIDDLE: i32 = 4 * NUMBER;
/// Most inputs and outputs together: their addresses are gathered on the stack for each tile.
pub(super) const MAX_POINTERS: usize = 24;

/// Most loops at a time: each has a page of its own, and Linux gives a process 65,530 pieces of memory for all purposes.
const MAX_LOOPS: usize = 16 << 10;
static LOOPS: AtomicUsize = AtomicUsize::new(0);

/// A loop of machine code.
pub(super) struct Code {
    memory: Mmap,
    n_pointers: usize,
    numbers: Vec<[f32; 8]>,
}

/// Whether this machine runs what is made here.
pub(super) fn available() -> bool {
    isa() >= Isa::Avx2
}

/// Whether the values of the code fit into registers, and its addresses where they are gathered.
pub(super) fn fits(straight: &Straight) -> bool {
    straight.registers(VALUES).is_some() && straight.n_inputs + straight.outputs.len() <= MAX_POINTERS
}

impl Code {
    /// Machine code for what [`fits`], or `None` if the system gives no memory for code or there is much of it already.
    pub(super) fn new(straight: &Straight) -> Option<Self> {
        Self::as_one_of(MAX_LOOPS, straight)
    }

    fn as_one_of(most: usize, straight: &Straight) -> Option<Self> {
        if LOOPS.load(Relaxed) >= most {
            return None;
        }
        let registers = straight.registers(VALUES).expect("it fits");
        let mut emitter = Emitter {
            code: Assembler::default(),
            straight,
            registers,
            numbers: vec![[f32::from_bits(u32::MAX); 8], [0.0; 8]],
        };
        emitter.loop_over_vectors();
        let Emitter { code, numbers, .. } = emitter;
        let mut memory = MmapMut::map_anon(code.bytes.len()).ok()?;
        memory.copy_from_slice(&code.bytes);
        let n_pointers = straight.n_inputs + straight.outputs.len();
        let memory = memory.make_exec().ok()?;
        LOOPS.fetch_add(1, Relaxed);
        Some(Self { memory, n_pointers, numbers })
    }

    /// Runs it over `len` elements.
    ///
    /// # Safety
    /// This machine code is [`available`] here. The pointers are those of the inputs, valid for reads of `len` f32, then
    /// those of the outputs, valid for writes. An output begins where an input does or lies apart from all of them, and outputs lie
    /// apart from each other.
    pub(super) unsafe fn run(&self, pointers: &[*mut f32], len: usize) {
        assert_eq!(pointers.len(), self.n_pointers);
        type Entry = unsafe extern "sysv64" fn(*const *mut f32, usize, *const [f32; 8]);
        // SAFETY: `loop_over_vectors` wrote a function of this type, and its memory lives as long as `self`. It reads its
        // tables, and reads and writes at the pointers as the caller promises.
        unsafe {
            let entry = std::mem::transmute::<*const u8, Entry>(self.memory.as_ptr());
            let middle = self.numbers.as_ptr().wrapping_byte_add(MIDDLE as usize);
            entry(pointers.as_ptr(), len * size_of::<f32>(), middle);
        }
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        LOOPS.fetch_sub(1, Relaxed);
    }
}

struct Emitter<'a> {
    code: Assembler,
    straight: &'a Straight,
    registers: Registers,
    /// Eight of all bits and eight of none: the mask begins as many lanes before the latter as there are elements left. Then
    /// the numbers.
    numbers: Vec<[f32; 8]>,
}

impl Emitter<'_> {
    fn loop_over_vectors(&mut self) {
        self.code.begin();
        for (pointer, base) in Base::KEPT.into_iter().enumerate().take(self.n_pointers()) {
            self.code.address(base, address(pointer));
        }
        let next = self.code.bytes.len();
        let no_vector = self.code.jump_if_no_vector();
        self.body(false);
        self.code.next_vector(next);
        self.code.land(no_vector);
        let no_element = self.code.jump_if_no_element();
        self.code.what_is_left();
        self.code.load(MASK, Place::Left((NUMBER - MIDDLE) as i8));
        self.body(true);
        self.code.land(no_element);
        self.code.end();
    }

    /// One vector: loads, lines and then stores; of the lanes of the mask alone if it is the last, partial one.
    fn body(&mut self, masked: bool) {
        let mut loaded = vec![false; self.straight.n_inputs];
        for (i, line) in self.straight.lines.iter().enumerate() {
            for argument in line.arguments() {
                if let Argument::Input(k) = *argument
                    && !std::mem::replace(&mut loaded[k], true)
                {
                    let (to, from) = (self.registers.inputs[k], self.base(k));
                    match masked {
                        false => self.code.load(to, Place::Element(from)),
                        true => self.code.load_masked(to, MASK, from),
                    }
                }
            }
            self.line(line, self.registers.lines[i]);
        }
        for (k, &output) in self.straight.outputs.iter().enumerate() {
            let (from, to) = (self.registers.lines[output], self.base(self.straight.n_inputs + k));
            match masked {
                false => self.code.store(from, to),
                true => self.code.store_masked(from, MASK, to),
            }
        }
    }

    fn n_pointers(&self) -> usize {
        self.straight.n_inputs + self.straight.outputs.len()
    }

    /// The register with an address of an input or output: one that keeps it, or one that it is brought to.
    fn base(&mut self, pointer: usize) -> Base {
        Base::KEPT.get(pointer).copied().unwrap_or_else(|| {
            self.code.address(Base::RAX, address(pointer));
            Base::RAX
        })
    }

    /// One line. `d` is none of the registers that it reads.
    fn line(&mut self, line: &Line, d: u8) {
        let [a, b, c] = line.reads;
        match line.does {
            Arithmetic::Add => self.binary(Instruction::ADD, d, a, b),
            Arithmetic::Sub => self.binary(Instruction::SUB, d, a, b),
            Arithmetic::Mul => self.binary(Instruction::MUL, d, a, b),
            Arithmetic::Div => self.binary(Instruction::DIV, d, a, b),
            Arithmetic::Square => self.binary(Instruction::MUL, d, a, a),
            Arithmetic::Neg => self.binary(Instruction::XOR, d, a, Argument::Number(-0.0)),
            Arithmetic::Abs => {
                let all_but_sign = Argument::Number(f32::from_bits(u32::MAX >> 1));
                self.binary(Instruction::AND, d, a, all_but_sign);
            }
            Arithmetic::Sqrt => {
                let a = self.place(a);
                self.code.vector(Instruction::SQRT, d, 0, a);
            }
            Arithmetic::Copy => {
                let a = self.place(a);
                self.code.load(d, a);
            }
            Arithmetic::Larger => self.extremum(Instruction::MAX, d, a, b),
            Arithmetic::Smaller => self.extremum(Instruction::MIN, d, a, b),
            Arithmetic::Relu => self.extremum(Instruction::MAX, d, a, Argument::Number(0.0)),
            Arithmetic::ReluGrad => {
                self.compare(Relation::Le, FREE, a, Argument::Number(0.0));
                let b = self.place(b);
                self.code.vector(Instruction::AND_NOT, d, FREE, b);
            }
            Arithmetic::Compare(relation) => {
                self.compare(relation, d, a, b);
                let one = self.number(1.0);
                self.code.vector(Instruction::AND, d, d, one);
            }
            Arithmetic::Select => {
                self.compare(Relation::Ne, FREE, a, Argument::Number(0.0));
                let (otherwise, b) = (self.register(c, d), self.place(b));
                self.code.blend(FREE, d, otherwise, b);
            }
        }
    }

    fn binary(&mut self, instruction: Instruction, d: u8, a: Argument, b: Argument) {
        let (a, b) = (self.register(a, d), self.place(b));
        self.code.vector(instruction, d, a, b);
    }

    /// The larger or the smaller. The instructions give the second where either is NaN: a NaN that comes first is put back.
    fn extremum(&mut self, instruction: Instruction, d: u8, a: Argument, b: Argument) {
        const UNORDERED: u8 = 3;
        match a {
            Argument::Number(number) if number.is_nan() => {
                self.register(a, d);
            }
            Argument::Number(_) => self.binary(instruction, d, a, b),
            Argument::Line(_) | Argument::Input(_) => {
                self.binary(instruction, d, a, b);
                let a = self.register(a, d);
                self.code.compare(UNORDERED, FREE, a, Place::Register(a));
                self.code.blend(FREE, d, d, Place::Register(a));
            }
        }
    }

    /// `d` = all bits where the relation holds.
    fn compare(&mut self, relation: Relation, d: u8, a: Argument, b: Argument) {
        // Quiet comparisons; all but ≠ are false where either is NaN.
        let predicate = match relation {
            Relation::Eq => 0x00,
            Relation::Ne => 0x04,
            Relation::Lt => 0x11,
            Relation::Le => 0x12,
            Relation::Ge => 0x1d,
            Relation::Gt => 0x1e,
        };
        let (a, b) = (self.register(a, d), self.place(b));
        self.code.compare(predicate, d, a, b);
    }

    fn place(&mut self, argument: Argument) -> Place {
        match argument {
            Argument::Line(l) => Place::Register(self.registers.lines[l]),
            Argument::Input(k) => Place::Register(self.registers.inputs[k]),
            Argument::Number(number) => self.number(number),
        }
    }

    /// The argument in a register: its own, or `free`, where a number is brought to.
    fn register(&mut self, argument: Argument, free: u8) -> u8 {
        match self.place(argument) {
            Place::Register(r) => r,
            table => {
                self.code.load(free, table);
                free
            }
        }
    }

    fn number(&mut self, number: f32) -> Place {
        let known = self.numbers[2..].iter().position(|n| n[0].to_bits() == number.to_bits());
        let i = known.map_or(self.numbers.len(), |i| i + 2);
        if known.is_none() {
            self.numbers.push([number; 8]);
        }
        Place::Table(i as i32 * NUMBER - MIDDLE)
    }
}

/// Where in the table of addresses one lies.
fn address(pointer: usize) -> i32 {
    (pointer * size_of::<usize>()) as i32
}

#[cfg(test)]
mod tests {
    use super::super::straight::{Argument, Arithmetic, Line, Straight};
    use super::{Code, available, fits};
    use thalweg_tensor::ops::Relation;

    /// What a line means, element by element.
    fn plain(does: Arithmetic, [a, b, c]: [f32; 3]) -> f32 {
        let number = |holds: bool| f32::from(u8::from(holds));
        match does {
            Arithmetic::Add => a + b,
            Arithmetic::Sub => a - b,
            Arithmetic::Mul => a * b,
            Arithmetic::Div => a / b,
            Arithmetic::Sqrt => a.sqrt(),
            Arithmetic::Square => a * a,
            Arithmetic::Neg => -a,
            Arithmetic::Abs => a.abs(),
            Arithmetic::Larger => {
                if a > b || a.is_nan() {
                    a
                } else {
                    b
                }
            }
            Arithmetic::Smaller => {
                if a < b || a.is_nan() {
                    a
                } else {
                    b
                }
            }
            Arithmetic::Relu => {
                if a > 0.0 || a.is_nan() {
                    a
                } else {
                    0.0
                }
            }
            Arithmetic::ReluGrad => {
                if a <= 0.0 {
                    0.0
                } else {
                    b
                }
            }
            Arithmetic::Compare(Relation::Eq) => number(a == b),
            Arithmetic::Compare(Relation::Ne) => number(a != b),
            Arithmetic::Compare(Relation::Lt) => number(a < b),
            Arithmetic::Compare(Relation::Le) => number(a <= b),
            Arithmetic::Compare(Relation::Gt) => number(a > b),
            Arithmetic::Compare(Relation::Ge) => number(a >= b),
            Arithmetic::Select => {
                if a != 0.0 {
                    b
                } else {
                    c
                }
            }
            Arithmetic::Copy => a,
        }
    }

    const ALL: [Arithmetic; 20] = [
        Arithmetic::Add,
        Arithmetic::Sub,
        Arithmetic::Mul,
        Arithmetic::Div,
        Arithmetic::Sqrt,
        Arithmetic::Square,
        Arithmetic::Neg,
        Arithmetic::Abs,
        Arithmetic::Larger,
        Arithmetic::Smaller,
        Arithmetic::Relu,
        Arithmetic::ReluGrad,
        Arithmetic::Compare(Relation::Eq),
        Arithmetic::Compare(Relation::Ne),
        Arithmetic::Compare(Relation::Lt),
        Arithmetic::Compare(Relation::Le),
        Arithmetic::Compare(Relation::Gt),
        Arithmetic::Compare(Relation::Ge),
        Arithmetic::Select,
        Arithmetic::Copy,
    ];

    struct Random(u64);

    impl Random {
        fn below(&mut self, n: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 11) as usize % n
        }

        fn number(&mut self) -> f32 {
            let special = [0.0, -0.0, 1.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-40, 3.5];
            match self.below(4) {
                0 => special[self.below(special.len())],
                _ => self.below(2000) as f32 / 100.0 - 10.0,
            }
        }
    }

    #[track_caller]
    fn same(got: f32, want: f32, what: &str) {
        assert!(
            got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(),
            "{what}: {got} is not {want}"
        );
    }

    /// Runs code, some outputs where inputs are, and compares each element, and what lies behind, with plain Rust.
    fn check(straight: &Straight, len: usize, random: &mut Random, what: &str) {
        let inputs: Vec<Vec<f32>> =
            (0..straight.n_inputs).map(|_| (0..len).map(|_| random.number()).collect()).collect();
        let code = Code::new(straight).expect("memory for code");
        let mut memory: Vec<Vec<f32>> = inputs.clone();
        let mut at: Vec<usize> = (0..inputs.len()).collect();
        let mut unused: Vec<usize> = at.clone();
        for _ in &straight.outputs {
            let in_place = random.below(2) == 0 && !unused.is_empty();
            at.push(if in_place { unused.swap_remove(random.below(unused.len())) } else { memory.len() });
            if !in_place {
                memory.push(vec![0.0; len]);
            }
        }
        memory.iter_mut().for_each(|m| m.push(77.0));
        let pointers: Vec<*mut f32> = at.iter().map(|&i| memory[i].as_mut_ptr()).collect();
        // SAFETY: `available`; each has `len` elements, and each output a memory of its own or all of an input's.
        unsafe { code.run(&pointers, len) };
        for i in 0..len {
            let mut values: Vec<f32> = Vec::new();
            for line in &straight.lines {
                let value = |argument: &Argument| match *argument {
                    Argument::Line(l) => values[l],
                    Argument::Input(k) => inputs[k][i],
                    Argument::Number(number) => number,
                };
                let reads = [value(&line.reads[0]), value(&line.reads[1]), value(&line.reads[2])];
                values.push(plain(line.does, reads));
            }
            for (k, &output) in straight.outputs.iter().enumerate() {
                same(memory[at[inputs.len() + k]][i], values[output], &format!("{what}, element {i}"));
            }
        }
        assert!(memory.iter().all(|m| m[len] == 77.0), "{what}: wrote behind the end");
    }

    #[test]
    fn each_line_with_each_kind_of_argument_is_plain_arithmetic() {
        if !available() {
            return println!("skipped: this CPU has no AVX2");
        }
        let mut random = Random(7);
        for does in ALL {
            for kinds in 0..8 {
                let reads = [0, 1, 2].map(|i| match kinds >> i & 1 {
                    0 => Argument::Input(i),
                    _ => Argument::Number(random.number()),
                });
                // In a high register too: six values are alive.
                let early = (0..6).map(|_| Line { does: Arithmetic::Copy, reads: [Argument::Input(0); 3] });
                let straight = Straight {
                    lines: early.chain([Line { does, reads }]).collect(),
                    n_inputs: 3,
                    outputs: (0..7).collect(),
                };
                assert!(fits(&straight));
                (0..20).for_each(|len| check(&straight, len, &mut random, &format!("{does:?} of {reads:?}")));
            }
        }
    }

    #[test]
    fn where_there_is_much_of_it_no_more_is_made() {
        let line = Line { does: Arithmetic::Copy, reads: [Argument::Number(1.0); 3] };
        let straight = Straight { lines: vec![line], n_inputs: 0, outputs: vec![0] };
        let first = Code::new(&straight).expect("memory for code");
        assert!(Code::as_one_of(1, &straight).is_none());
        drop(first);
        assert!(Code::new(&straight).is_some());
    }

    #[test]
    fn random_straight_code_is_plain_arithmetic() {
        if !available() {
            return println!("skipped: this CPU has no AVX2");
        }
        for seed in 1..400 {
            let mut random = Random(seed);
            let (n_inputs, n_lines) = (1 + random.below(6), 1 + random.below(30));
            let mut lines = Vec::new();
            for i in 0..n_lines {
                let reads = [0; 3].map(|_| match random.below(5) {
                    0 => Argument::Number(random.number()),
                    1 | 2 if i > 0 => Argument::Line(i - 1 - random.below(i.min(5))),
                    _ => Argument::Input(random.below(n_inputs)),
                });
                lines.push(Line { does: ALL[random.below(ALL.len())], reads });
            }
            let mut outputs: Vec<usize> = (0..n_lines).filter(|_| random.below(6) == 0).collect();
            outputs.push(n_lines - 1);
            outputs.dedup();
            let straight = Straight { lines, n_inputs, outputs };
            if fits(&straight) {
                let len = random.below(70);
                check(&straight, len, &mut random, &format!("seed {seed}"));
            }
        }
    }
}
