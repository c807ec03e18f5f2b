//! The few instructions of x86-64 that a loop over vectors needs, as bytes.
//!
//! Vector instructions are all in a VEX form on 256 bits (Intel's manual, volume 2, 2.3): the same bytes for each, but for
//! an opcode and where its arguments are. Of two ways to say the same the shorter one is taken: long bodies outgrow what
//! the CPU decodes in a cycle.

/// A vector instruction: the map of opcodes, the prefix that it implies, its opcode.
#[derive(Debug, Clone, Copy)]
pub(super) struct Instruction(u8, u8, u8);

impl Instruction {
    pub const ADD: Self = Self(MAP_0F, NONE, 0x58);
    pub const SUB: Self = Self(MAP_0F, NONE, 0x5c);
    pub const MUL: Self = Self(MAP_0F, NONE, 0x59);
    pub const DIV: Self = Self(MAP_0F, NONE, 0x5e);
    pub const SQRT: Self = Self(MAP_0F, NONE, 0x51);
    /// The first where it is larger, else the second.
    pub const MAX: Self = Self(MAP_0F, NONE, 0x5f);
    /// The first where it is smaller, else the second.
    pub const MIN: Self = Self(MAP_0F, NONE, 0x5d);
    pub const AND: Self = Self(MAP_0F, NONE, 0x54);
    /// The bits of the second that the first has not.
    pub const AND_NOT: Self = Self(MAP_0F, NONE, 0x55);
    pub const XOR: Self = Self(MAP_0F, NONE, 0x57);
    /// All bits where the predicate in the byte behind it holds.
    const COMPARE: Self = Self(MAP_0F, NONE, 0xc2);
    /// The second where the register in the byte behind it has the sign, else the first.
    const BLEND: Self = Self(MAP_0F3A, PREFIX_66, 0x4a);
    const LOAD: Self = Self(MAP_0F, NONE, 0x10);
    const STORE: Self = Self(MAP_0F, NONE, 0x11);
    const LOAD_MASKED: Self = Self(MAP_0F38, PREFIX_66, 0x2c);
    const STORE_MASKED: Self = Self(MAP_0F38, PREFIX_66, 0x2e);
}

const MAP_0F: u8 = 1;
const MAP_0F38: u8 = 2;
const MAP_0F3A: u8 = 3;
const NONE: u8 = 0;
const PREFIX_66: u8 = 1;

/// The last argument of a vector instruction.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place {
    Register(u8),
    /// `[rdx + offset]`.
    Table(i32),
    /// `[base + rcx]`.
    Element(Base),
    /// `[rdx + rax + offset]`.
    Left(i8),
}

/// A register that holds an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Base(u8);

impl Base {
    /// The one that is free at any time.
    pub const RAX: Self = Self(0);
    /// Those that may hold an address for the whole loop.
    pub const KEPT: [Self; 7] = [Self(9), Self(10), Self(11), Self(3), Self(12), Self(14), Self(15)];
    /// Those of them that belong to the caller: `rbx`, `r12`, `r14` and `r15`.
    const BORROWED: [Self; 4] = [Self(3), Self(12), Self(14), Self(15)];
}

/// Where a jump's distance is written once it is known.
#[must_use]
pub(super) struct Jump(usize);

/// Bytes of code, and what writes them. Vector registers are numbered 0 to 15.
#[derive(Default)]
pub(super) struct Assembler {
    pub bytes: Vec<u8>,
}

impl Assembler {
    /// `d = instruction(a, b)`. An instruction with one argument has it in `b`, and 0 for `a`.
    pub fn vector(&mut self, Instruction(map, prefix, opcode): Instruction, d: u8, a: u8, b: Place) {
        assert!(d < 16 && a < 16);
        let b_high = match b {
            Place::Register(b) | Place::Element(Base(b)) => high(b),
            Place::Table(_) | Place::Left(_) => 0,
        };
        // The top bits of registers, and all of `a`, are stored inverted.
        let rest = (a ^ 15) << 3 | 1 << 2 | prefix;
        match map == MAP_0F && b_high == 0 {
            true => self.bytes.extend([0xc5, (high(d) ^ 1) << 7 | rest]),
            false => self.bytes.extend([0xc4, (high(d) ^ 1) << 7 | 1 << 6 | (b_high ^ 1) << 5 | map, rest]),
        }
        self.bytes.push(opcode);
        let (d, rax, rcx, rdx, with_index) = ((d & 7) << 3, 0, 1, 2, 4);
        match b {
            Place::Register(b) => self.bytes.push(3 << 6 | d | b & 7),
            Place::Table(offset) => self.at_offset(d | rdx, offset),
            Place::Element(Base(base)) => self.bytes.extend([d | with_index, rcx << 3 | base & 7]),
            Place::Left(offset) => {
                self.bytes.extend([1 << 6 | d | with_index, rax << 3 | rdx, offset.cast_unsigned()]);
            }
        }
    }

    /// The end of an instruction whose memory is at some bytes from a register.
    fn at_offset(&mut self, registers: u8, offset: i32) {
        match i8::try_from(offset) {
            Ok(offset) => self.bytes.extend([1 << 6 | registers, offset.cast_unsigned()]),
            Err(_) => {
                self.bytes.push(2 << 6 | registers);
                self.bytes.extend(offset.to_le_bytes());
            }
        }
    }

    /// `d = b`.
    pub fn load(&mut self, d: u8, b: Place) {
        self.vector(Instruction::LOAD, d, 0, b);
    }

    /// `d` = the lanes of an element where the mask has the sign, 0 elsewhere.
    pub fn load_masked(&mut self, d: u8, mask: u8, from: Base) {
        self.vector(Instruction::LOAD_MASKED, d, mask, Place::Element(from));
    }

    /// An element = `a`.
    pub fn store(&mut self, a: u8, to: Base) {
        self.vector(Instruction::STORE, a, 0, Place::Element(to));
    }

    /// An element = the lanes of `a` where the mask has the sign; the others are left alone.
    pub fn store_masked(&mut self, a: u8, mask: u8, to: Base) {
        self.vector(Instruction::STORE_MASKED, a, mask, Place::Element(to));
    }

    /// `d` = all bits where the predicate holds between `a` and `b`.
    pub fn compare(&mut self, predicate: u8, d: u8, a: u8, b: Place) {
        self.vector(Instruction::COMPARE, d, a, b);
        self.bytes.push(predicate);
    }

    /// `d` = `b` where the mask has the sign, else `a`.
    pub fn blend(&mut self, mask: u8, d: u8, a: u8, b: Place) {
        self.vector(Instruction::BLEND, d, a, b);
        self.bytes.push(mask << 4);
    }

    /// Saves what belongs to the caller; `rcx = 0; r8 = rsi` without what is less than a vector.
    pub fn begin(&mut self) {
        for Base(register) in Base::BORROWED {
            self.with_top_bit(register);
            self.bytes.push(0x50 | register & 7); // push
        }
        self.bytes.extend([0x31, 0xc9]); // xor ecx, ecx
        self.bytes.extend([0x49, 0x89, 0xf0]); // mov r8, rsi
        self.bytes.extend([0x49, 0x83, 0xe0, 0xe0]); // and r8, -32
    }

    /// The prefix of registers above seven, where they are the only argument.
    fn with_top_bit(&mut self, register: u8) {
        if high(register) == 1 {
            self.bytes.push(0x41);
        }
    }

    /// `base = [rdi + offset]`.
    pub fn address(&mut self, Base(base): Base, offset: i32) {
        self.bytes.extend([0x48 | high(base) << 2, 0x8b]); // mov base, [rdi + offset]
        self.at_offset((base & 7) << 3 | 7, offset);
    }

    /// Jumps if `rcx >= r8`.
    pub fn jump_if_no_vector(&mut self) -> Jump {
        self.bytes.extend([0x4c, 0x39, 0xc1]); // cmp rcx, r8
        self.jump_if_not_below()
    }

    /// Jumps if `rcx >= rsi`.
    pub fn jump_if_no_element(&mut self) -> Jump {
        self.bytes.extend([0x48, 0x39, 0xf1]); // cmp rcx, rsi
        self.jump_if_not_below()
    }

    fn jump_if_not_below(&mut self) -> Jump {
        self.bytes.extend([0x0f, 0x83, 0, 0, 0, 0]); // jae
        Jump(self.bytes.len())
    }

    /// `rcx += 32`, and back to a place before.
    pub fn next_vector(&mut self, to: usize) {
        self.bytes.extend([0x48, 0x83, 0xc1, 0x20]); // add rcx, 32
        self.bytes.push(0xe9); // jmp
        let distance = to as i32 - (self.bytes.len() as i32 + 4);
        self.bytes.extend(distance.to_le_bytes());
    }

    /// Lets a jump end here.
    pub fn land(&mut self, Jump(from): Jump) {
        let distance = (self.bytes.len() - from) as i32;
        self.bytes[from - 4..from].copy_from_slice(&distance.to_le_bytes());
    }

    /// `rax = rcx - rsi`: the elements that are left, negative.
    pub fn what_is_left(&mut self) {
        self.bytes.extend([0x48, 0x89, 0xc8]); // mov rax, rcx
        self.bytes.extend([0x48, 0x29, 0xf0]); // sub rax, rsi
    }

    /// Leaves, with the upper halves of all vectors clean, as the functions of others want them, and all as the caller had it.
    pub fn end(&mut self) {
        self.bytes.extend([0xc5, 0xf8, 0x77]); // vzeroupper
        for Base(register) in Base::BORROWED.into_iter().rev() {
            self.with_top_bit(register);
            self.bytes.push(0x58 | register & 7); // pop
        }
        self.bytes.push(0xc3); // ret
    }
}

/// The bit of a register's number that lies apart from the others.
fn high(register: u8) -> u8 {
    register >> 3 & 1
}
