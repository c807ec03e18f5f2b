//! Values to bytes and back: little-endian, every length checked against what is there before memory
//! is asked for. Large arrays travel beside the text of a message, as raw values; a set of keys that the
//! receiver was sent before travels as its hash.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use thiserror::Error;

use super::keys::{KeySets, hash};
use crate::values::Values;

/// Why bytes are no message.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WireError {
    /// It ends in the middle of something.
    #[error("frame: {want} more bytes are needed, {left} are left")]
    Short {
        /// Bytes needed.
        want: u64,
        /// Bytes there.
        left: usize,
    },
    /// A number that means nothing.
    #[error("frame: {got} is no {what}")]
    Unknown {
        /// What was expected.
        what: &'static str,
        /// The number that came.
        got: u64,
    },
    /// Something follows the end.
    #[error("frame: {left} bytes or arrays are left over")]
    Left {
        /// How many.
        left: usize,
    },
    /// A claim beyond what is allowed.
    #[error("frame: {what} of {got} bytes, at most {most} are allowed")]
    Large {
        /// What.
        what: &'static str,
        /// The size claimed.
        got: u64,
        /// The limit.
        most: u64,
    },
    /// The bytes are not those that were sent.
    #[error("frame: the checksum is {got:08x} instead of {want:08x}")]
    Checksum {
        /// What the header says.
        want: u32,
        /// What the bytes give.
        got: u32,
    },
    /// A frame that has come before, or too early.
    #[error("frame {got} of its lane came when frame {due} was due")]
    Repeated {
        /// The number that is due.
        due: u32,
        /// The number that it has.
        got: u32,
    },
    /// Text that is no text.
    #[error("frame: a text is not UTF-8")]
    Text,
}

/// A message being written: small things as bytes, arrays as shared memory.
#[derive(Debug, Default)]
pub struct Writer {
    pub(super) text: Vec<u8>,
    pub(super) arrays: Vec<Array>,
    pub(super) keys: KeySets, // what the receiver was sent before
}

/// A message being read.
#[derive(Debug)]
pub struct Reader<'a> {
    pub(super) text: &'a [u8],
    pub(super) arrays: VecDeque<Values>,
    pub(super) keys: KeySets, // what the sender has sent before
}

/// Values on their way out: all of an array, or the part of it that lies in one shard.
#[derive(Debug, Clone)]
pub(super) struct Array {
    values: Values,
    range: Range<usize>,
}

impl Array {
    pub(super) fn values(&self) -> &[f32] {
        &self.values[self.range.clone()]
    }
}

impl Writer {
    /// The bytes, for what has no arrays.
    pub fn into_text(self) -> Vec<u8> {
        debug_assert!(self.arrays.is_empty());
        self.text
    }

    /// Bytes, and before them how many.
    pub(super) fn put_bytes(&mut self, bytes: &[u8]) {
        bytes.len().put(self);
        self.text.extend_from_slice(bytes);
    }

    /// Sends this part of an array as if it were a whole one.
    pub(super) fn put_part(&mut self, values: &Values, range: Range<usize>) {
        self.arrays.push(Array { values: values.clone(), range });
    }
}

impl<'a> Reader<'a> {
    /// Reads text without arrays.
    pub fn new(text: &'a [u8]) -> Self {
        Self { text, arrays: VecDeque::new(), keys: KeySets::default() }
    }

    fn take(&mut self, n: u64) -> Result<&'a [u8], WireError> {
        let short = WireError::Short { want: n, left: self.text.len() };
        let n = usize::try_from(n).map_err(|_| short.clone())?;
        let (head, rest) = self.text.split_at_checked(n).ok_or(short)?;
        self.text = rest;
        Ok(head)
    }

    /// The number of things that follow, each of at least one byte.
    fn count(&mut self) -> Result<usize, WireError> {
        let n = u64::get(self)?;
        let left = self.text.len();
        usize::try_from(n).ok().filter(|n| *n <= left).ok_or(WireError::Short { want: n, left })
    }

    /// Bytes, with how many before them.
    pub(super) fn get_bytes(&mut self) -> Result<&'a [u8], WireError> {
        let n = self.count()? as u64;
        self.take(n)
    }

    /// Nothing may be left.
    pub(super) fn end(&self) -> Result<(), WireError> {
        let left = self.text.len() + self.arrays.len();
        if left == 0 { Ok(()) } else { Err(WireError::Left { left }) }
    }
}

/// What can be written and read.
pub trait Wire: Sized {
    /// Appends it.
    fn put(&self, w: &mut Writer);
    /// Takes it off.
    fn get(r: &mut Reader<'_>) -> Result<Self, WireError>;
}

macro_rules! numbers {
    ($($t:ty)*) => {$(
        impl Wire for $t {
            fn put(&self, w: &mut Writer) {
                w.text.extend_from_slice(&self.to_le_bytes());
            }
            fn get(r: &mut Reader<'_>) -> Result<Self, WireError> {
                let bytes = r.take(size_of::<$t>() as u64)?;
                Ok(<$t>::from_le_bytes(bytes.try_into().expect("so many were taken")))
            }
        }
    )*};
}
numbers!(u8 u32 u64 f32);

impl Wire for bool {
    fn put(&self, w: &mut Writer) {
        u8::from(*self).put(w);
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, WireError> {
        match u8::get(r)? {
            0 => Ok(false),
            1 => Ok(true),
            n => Err(WireError::Unknown { what: "truth value", got: n.into() }),
        }
    }
}

impl Wire for usize {
    fn put(&self, w: &mut Writer) {
        (*self as u64).put(w);
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let n = u64::get(r)?;
        usize::try_from(n).map_err(|_| WireError::Unknown { what: "size", got: n })
    }
}

impl Wire for String {
    fn put(&self, w: &mut Writer) {
        w.put_bytes(self.as_bytes());
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, WireError> {
        String::from_utf8(r.get_bytes()?.to_vec()).map_err(|_| WireError::Text)
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, w: &mut Writer) {
        self.is_some().put(w);
        self.iter().for_each(|v| v.put(w));
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, WireError> {
        bool::get(r)?.then(|| T::get(r)).transpose()
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, w: &mut Writer) {
        self.len().put(w);
        self.iter().for_each(|v| v.put(w));
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, WireError> {
        (0..r.count()?).map(|_| T::get(r)).collect()
    }
}

impl<K: Wire + Ord, V: Wire> Wire for BTreeMap<K, V> {
    fn put(&self, w: &mut Writer) {
        self.len().put(w);
        for (k, v) in self {
            k.put(w);
            v.put(w);
        }
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, WireError> {
        (0..r.count()?).map(|_| Ok((K::get(r)?, V::get(r)?))).collect()
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    fn put(&self, w: &mut Writer) {
        self.0.put(w);
        self.1.put(w);
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok((A::get(r)?, B::get(r)?))
    }
}

/// Anything shared but arrays of values is written in place.
macro_rules! shared {
    ($($t:ty)*) => {$(
        impl Wire for Arc<$t> {
            fn put(&self, w: &mut Writer) {
                <$t as Wire>::put(self, w);
            }
            fn get(r: &mut Reader<'_>) -> Result<Self, WireError> {
                <$t as Wire>::get(r).map(Arc::new)
            }
        }
    )*};
}
shared!(crate::state::Parts crate::state::Update crate::state::Wants crate::state::Record crate::state::Sent
    crate::view::View);

/// The numbers of rows: in full, or by the hash of a set that the receiver was sent before.
impl Wire for Arc<Vec<u64>> {
    fn put(&self, w: &mut Writer) {
        let hash = hash(self);
        let known = w.keys.find(hash).is_some_and(|known| known == self);
        known.put(w);
        if known {
            return hash.put(w);
        }
        Vec::put(self, w);
        w.keys.add(hash, self);
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, WireError> {
        if bool::get(r)? {
            let hash = u64::get(r)?;
            let known = r.keys.find(hash).cloned();
            return known.ok_or(WireError::Unknown { what: "hash of row numbers", got: hash });
        }
        let keys = Arc::new(Vec::get(r)?);
        r.keys.add(hash(&keys), &keys);
        Ok(keys)
    }
}

impl Wire for Values {
    fn put(&self, w: &mut Writer) {
        w.put_part(self, 0..self.len());
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, WireError> {
        r.arrays.pop_front().ok_or(WireError::Short { want: 1, left: 0 })
    }
}

/// Structs field by field; enums by the number of the variant, then field by field.
macro_rules! wire {
    (struct $t:ident { $($field:ident),* }) => {
        impl Wire for $t {
            fn put(&self, w: &mut Writer) {
                $(self.$field.put(w);)*
            }
            fn get(r: &mut Reader<'_>) -> Result<Self, WireError> {
                Ok(Self { $($field: Wire::get(r)?),* })
            }
        }
    };
    (tuple $($t:ident)*) => {$(
        impl Wire for $t {
            fn put(&self, w: &mut Writer) {
                self.0.put(w);
            }
            fn get(r: &mut Reader<'_>) -> Result<Self, WireError> {
                Wire::get(r).map($t)
            }
        }
    )*};
    (enum $t:ident, $what:literal { $($n:literal $variant:ident $(($($tuple:ident),*))? $({ $($field:ident),* })?),* }) => {
        impl Wire for $t {
            fn put(&self, w: &mut Writer) {
                match self {
                    $($t::$variant $(($($tuple),*))? $({ $($field),* })? => {
                        let n: u8 = $n;
                        n.put(w);
                        $($($tuple.put(w);)*)?
                        $($($field.put(w);)*)?
                    })*
                }
            }
            fn get(r: &mut Reader<'_>) -> Result<Self, WireError> {
                match u8::get(r)? {
                    $($n => {
                        $($(let $tuple = Wire::get(r)?;)*)?
                        $($(let $field = Wire::get(r)?;)*)?
                        Ok($t::$variant $(($($tuple),*))? $({ $($field),* })?)
                    })*
                    got => Err(WireError::Unknown { what: $what, got: got.into() }),
                }
            }
        }
    };
}
pub(super) use wire;
