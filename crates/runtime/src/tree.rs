//! Structured arguments and results: tensors inside tuples, lists, maps and structs.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::hash::Hash;

use thalweg_tensor::Tensor;

/// Anything that holds tensors in a fixed structure. What is no tensor (numbers, names) is part of
/// the structure: a compiled function is compiled again when it changes.
///
/// Tuples, `Vec`, arrays, `Option`, `Box` and maps of trees are trees. For a struct of one's own use
/// [`tree!`](crate::tree).
pub trait Tree: Sized {
    /// Calls `f` on every tensor, in a fixed order.
    fn visit(&self, f: &mut dyn FnMut(&Tensor));

    /// The same structure with every tensor replaced, in the order of [`Tree::visit`].
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Tensor) -> Self;

    /// Whether structure, and dtype and shape of every tensor, are those of `other`.
    fn fits(&self, other: &Self) -> bool;

    /// What differs in `now`, each with its place, such as `argument.1.x was f32[2], is f32[3]`; nothing where it fits.
    /// [`Jit::explain`](crate::Jit::explain) shows it.
    fn changes(&self, now: &Self, place: &str, list: &mut Vec<String>) {
        if !self.fits(now) {
            list.push(format!("{place} is of another structure"));
        }
    }
}

/// Two lengths that differ.
fn lengths(place: &str, was: usize, is: usize, list: &mut Vec<String>) -> bool {
    if was != is {
        list.push(format!("{place} had {was} entries, has {is}"));
    }
    was == is
}

impl Tree for Tensor {
    fn visit(&self, f: &mut dyn FnMut(&Tensor)) {
        f(self);
    }
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Tensor) -> Self {
        f(self)
    }
    fn fits(&self, other: &Self) -> bool {
        self.meta() == other.meta()
    }
    fn changes(&self, now: &Self, place: &str, list: &mut Vec<String>) {
        if !self.fits(now) {
            list.push(format!("{place} was {}, is {}", self.meta(), now.meta()));
        }
    }
}

macro_rules! tuples {
    ($(($($T:ident $i:tt),*))*) => {$(
        #[allow(unused_variables, clippy::unused_unit, reason = "the empty tuple has nothing to visit")]
        impl<$($T: Tree),*> Tree for ($($T,)*) {
            fn visit(&self, f: &mut dyn FnMut(&Tensor)) {
                $(self.$i.visit(f);)*
            }
            fn map(&self, f: &mut dyn FnMut(&Tensor) -> Tensor) -> Self {
                ($(self.$i.map(f),)*)
            }
            fn fits(&self, other: &Self) -> bool {
                true $(&& self.$i.fits(&other.$i))*
            }
            fn changes(&self, now: &Self, place: &str, list: &mut Vec<String>) {
                $(self.$i.changes(&now.$i, &format!("{place}.{}", $i), list);)*
            }
        }
    )*};
}

tuples! {
    ()
    (A 0)
    (A 0, B 1)
    (A 0, B 1, C 2)
    (A 0, B 1, C 2, D 3)
    (A 0, B 1, C 2, D 3, E 4)
    (A 0, B 1, C 2, D 3, E 4, F 5)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7)
}

impl<T: Tree> Tree for Vec<T> {
    fn visit(&self, f: &mut dyn FnMut(&Tensor)) {
        self.iter().for_each(|t| t.visit(f));
    }
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Tensor) -> Self {
        self.iter().map(|t| t.map(f)).collect()
    }
    fn fits(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().zip(other).all(|(a, b)| a.fits(b))
    }
    fn changes(&self, now: &Self, place: &str, list: &mut Vec<String>) {
        if lengths(place, self.len(), now.len(), list) {
            let both = self.iter().zip(now).enumerate();
            both.for_each(|(i, (a, b))| a.changes(b, &format!("{place}[{i}]"), list));
        }
    }
}

impl<T: Tree, const N: usize> Tree for [T; N] {
    fn visit(&self, f: &mut dyn FnMut(&Tensor)) {
        self.iter().for_each(|t| t.visit(f));
    }
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Tensor) -> Self {
        std::array::from_fn(|i| self[i].map(f))
    }
    fn fits(&self, other: &Self) -> bool {
        self.iter().zip(other).all(|(a, b)| a.fits(b))
    }
    fn changes(&self, now: &Self, place: &str, list: &mut Vec<String>) {
        if lengths(place, self.len(), now.len(), list) {
            let both = self.iter().zip(now).enumerate();
            both.for_each(|(i, (a, b))| a.changes(b, &format!("{place}[{i}]"), list));
        }
    }
}

impl<T: Tree> Tree for Option<T> {
    fn visit(&self, f: &mut dyn FnMut(&Tensor)) {
        self.iter().for_each(|t| t.visit(f));
    }
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Tensor) -> Self {
        self.as_ref().map(|t| t.map(f))
    }
    fn fits(&self, other: &Self) -> bool {
        match (self, other) {
            (Some(a), Some(b)) => a.fits(b),
            (a, b) => a.is_none() && b.is_none(),
        }
    }
    fn changes(&self, now: &Self, place: &str, list: &mut Vec<String>) {
        match (self, now) {
            (Some(a), Some(b)) => a.changes(b, place, list),
            (None, None) => {}
            (Some(_), None) => list.push(format!("{place} was there, is None")),
            (None, Some(_)) => list.push(format!("{place} was None, is there")),
        }
    }
}

impl<T: Tree> Tree for Box<T> {
    fn visit(&self, f: &mut dyn FnMut(&Tensor)) {
        (**self).visit(f);
    }
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Tensor) -> Self {
        Box::new((**self).map(f))
    }
    fn fits(&self, other: &Self) -> bool {
        (**self).fits(other)
    }
    fn changes(&self, now: &Self, place: &str, list: &mut Vec<String>) {
        (**self).changes(now, place, list);
    }
}

impl<K: Ord + Clone + Debug, T: Tree> Tree for BTreeMap<K, T> {
    fn visit(&self, f: &mut dyn FnMut(&Tensor)) {
        self.values().for_each(|t| t.visit(f));
    }
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Tensor) -> Self {
        self.iter().map(|(k, t)| (k.clone(), t.map(f))).collect()
    }
    fn fits(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().zip(other).all(|((ka, a), (kb, b))| ka == kb && a.fits(b))
    }
    fn changes(&self, now: &Self, place: &str, list: &mut Vec<String>) {
        entries(&self.iter().collect::<Vec<_>>(), |k| now.get(k), now.keys(), place, list);
    }
}

/// Visited in the order of the keys, since a hash map has none of its own.
impl<K: Ord + Hash + Clone + Debug, T: Tree> Tree for HashMap<K, T> {
    fn visit(&self, f: &mut dyn FnMut(&Tensor)) {
        sorted(self).into_iter().for_each(|(_, t)| t.visit(f));
    }
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Tensor) -> Self {
        sorted(self).into_iter().map(|(k, t)| (k.clone(), t.map(f))).collect()
    }
    fn fits(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().all(|(k, a)| other.get(k).is_some_and(|b| a.fits(b)))
    }
    fn changes(&self, now: &Self, place: &str, list: &mut Vec<String>) {
        let keys = sorted(now).into_iter().map(|(k, _)| k);
        entries(&sorted(self), |k| now.get(k), keys, place, list);
    }
}

fn sorted<K: Ord, T>(map: &HashMap<K, T>) -> Vec<(&K, &T)> {
    let mut entries: Vec<(&K, &T)> = map.iter().collect();
    entries.sort_by_key(|(k, _)| *k);
    entries
}

/// What differs between two maps.
fn entries<'a, K: Ord + Debug + 'a, T: Tree + 'a>(
    before: &[(&K, &T)],
    now: impl Fn(&K) -> Option<&'a T>,
    keys: impl Iterator<Item = &'a K>,
    place: &str,
    list: &mut Vec<String>,
) {
    for (k, a) in before {
        match now(k) {
            Some(b) => a.changes(b, &format!("{place}[{k:?}]"), list),
            None => list.push(format!("{place}[{k:?}] is gone")),
        }
    }
    let new = keys.filter(|k| before.iter().all(|(known, _)| known != k));
    list.extend(new.map(|k| format!("{place}[{k:?}] is new")));
}

macro_rules! fixed {
    ($equal:expr; $($t:ty)*) => {$(
        /// Part of the structure.
        impl Tree for $t {
            fn visit(&self, _: &mut dyn FnMut(&Tensor)) {}
            fn map(&self, _: &mut dyn FnMut(&Tensor) -> Tensor) -> Self {
                self.clone()
            }
            fn fits(&self, other: &Self) -> bool {
                $equal(self, other)
            }
            fn changes(&self, now: &Self, place: &str, list: &mut Vec<String>) {
                if !self.fits(now) {
                    list.push(format!("{place} was {self:?}, is {now:?}"));
                }
            }
        }
    )*};
}

fixed!(|a, b| a == b; bool u8 u32 u64 usize i32 i64 isize char String &'static str);
// By bits: 0 and -0 give different results, and a NaN is itself.
fixed!(|a: &f32, b: &f32| a.to_bits() == b.to_bits(); f32);
fixed!(|a: &f64, b: &f64| a.to_bits() == b.to_bits(); f64);

/// Makes a struct a [`Tree`], given its fields; those of a tuple struct are called 0, 1 and so on. Type parameters are trees.
///
/// ```
/// use thalweg_runtime::{jit, tree};
/// use thalweg_tensor::Tensor;
///
/// struct Batch {
///     x: Tensor,
///     weight: f64,
/// }
/// tree!(Batch { x, weight });
///
/// let mut scaled = jit(|batch: Batch| &batch.x * batch.weight);
/// let batch = Batch { x: Tensor::from([1.0f32, 2.0]), weight: 0.5 };
/// assert_eq!(scaled.call(batch).unwrap().to_vec::<f32>(), [0.5, 1.0]);
///
/// struct Pair<T>(T, T);
/// tree!(Pair<T> { 0, 1 });
/// let mut swap = jit(|pair: Pair<Tensor>| Pair(pair.1, pair.0));
/// let swapped = swap.call(Pair(Tensor::scalar(1.0f32), Tensor::scalar(2.0f32))).unwrap();
/// assert_eq!(swapped.0.item::<f32>(), 2.0);
/// ```
#[macro_export]
macro_rules! tree {
    ($Name:ident $(<$($T:ident),+ $(,)?>)? { $($field:tt),* $(,)? }) => {
        impl $(<$($T: $crate::Tree),+>)? $crate::Tree for $Name $(<$($T),+>)? {
            fn visit(&self, f: &mut dyn FnMut(&$crate::Tensor)) {
                $($crate::Tree::visit(&self.$field, f);)*
            }
            fn map(&self, f: &mut dyn FnMut(&$crate::Tensor) -> $crate::Tensor) -> Self {
                Self { $($field: $crate::Tree::map(&self.$field, f)),* }
            }
            fn fits(&self, other: &Self) -> bool {
                true $(&& $crate::Tree::fits(&self.$field, &other.$field))*
            }
            fn changes(
                &self,
                now: &Self,
                place: &str,
                list: &mut ::std::vec::Vec<::std::string::String>,
            ) {
                $($crate::Tree::changes(
                    &self.$field,
                    &now.$field,
                    &::std::format!("{place}.{}", ::std::stringify!($field)),
                    list,
                );)*
            }
        }
    };
}
