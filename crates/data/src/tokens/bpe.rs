//! Byte-pair encoding over bytes (Sennrich et al. 2016, as GPT-2 uses it): every text has tokens.
//!
//! The text is first cut into words, each with the spaces before it; pairs never cross words. Training
//! merges the most frequent pair of neighbours into a new token, again and again; of equally frequent pairs the
//! one with the smaller tokens wins, so that a corpus always gives the same vocabulary. Encoding
//! applies the merges to a word in the order in which they were learned.

use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};

use serde::{Deserialize, Serialize};

use crate::error::DataError;

type Pair = (u32, u32);

/// A byte-pair vocabulary: tokens 0..256 are the bytes, token 256 + i is merge i.
///
/// ```
/// use thalweg_data::Bpe;
/// let bpe = Bpe::train("low lower lowest low low", 259);
/// let tokens = bpe.encode("lowest");
/// assert!(tokens.len() < "lowest".len());
/// assert_eq!(bpe.decode(&tokens)?, "lowest".as_bytes());
/// assert_eq!(bpe.decode(&bpe.encode("Thalweg → 谷"))?, "Thalweg → 谷".as_bytes());
/// # Ok::<(), thalweg_data::DataError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bpe {
    merges: Vec<Pair>,
    rank: HashMap<Pair, u32>,
    bytes: Vec<Vec<u8>>,
}

/// What is saved.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    kind: String,
    merges: Vec<Pair>,
}

const KIND: &str = "thalweg byte pairs";

impl Bpe {
    /// Learns up to `size` tokens from a text; fewer when no pair is left. At least the 256 bytes are there.
    pub fn train(text: &str, size: usize) -> Self {
        let mut corpus = Corpus::new(text);
        let mut merges = Vec::new();
        while 256 + merges.len() < size {
            let Some(pair) = corpus.most_frequent() else { break };
            corpus.merge(pair, 256 + merges.len() as u32);
            merges.push(pair);
        }
        Self::from_merges(merges)
    }

    fn from_merges(merges: Vec<Pair>) -> Self {
        let mut bytes: Vec<Vec<u8>> = (0..=255u8).map(|b| vec![b]).collect();
        for &(a, b) in &merges {
            bytes.push([&bytes[a as usize][..], &bytes[b as usize]].concat());
        }
        let rank = merges.iter().zip(0..).map(|(&p, i)| (p, i)).collect();
        Self { merges, rank, bytes }
    }

    /// Number of tokens.
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// The tokens of a text.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let mut known: HashMap<&str, Vec<u32>> = HashMap::new();
        let mut tokens = Vec::new();
        for word in words(text) {
            tokens.extend_from_slice(known.entry(word).or_insert_with(|| self.encode_word(word)));
        }
        tokens
    }

    fn encode_word(&self, word: &str) -> Vec<u32> {
        let mut tokens: Vec<u32> = word.bytes().map(u32::from).collect();
        loop {
            let ranks = tokens.windows(2).filter_map(|w| self.rank.get(&(w[0], w[1])));
            let Some(&first) = ranks.min() else { return tokens };
            replace(&mut tokens, self.merges[first as usize], 256 + first);
        }
    }

    /// The bytes of tokens; a part of a text need not be whole characters. Refuses numbers that are no tokens.
    pub fn decode(&self, tokens: &[u32]) -> Result<Vec<u8>, DataError> {
        let mut out = Vec::new();
        for &t in tokens {
            let need = || format!("tokens are below {}", self.size());
            let bytes = self.bytes.get(t as usize);
            out.extend(bytes.ok_or_else(|| DataError::Range {
                what: "token",
                got: t as usize,
                need: need(),
            })?);
        }
        Ok(out)
    }

    /// The vocabulary as JSON.
    pub fn to_json(&self) -> String {
        let saved = Saved { kind: KIND.to_owned(), merges: self.merges.clone() };
        serde_json::to_string(&saved).expect("numbers are always JSON")
    }

    /// The vocabulary that [`Bpe::to_json`] wrote. Refuses merges of tokens that do not exist yet, or twice
    /// the same.
    pub fn from_json(text: &str) -> Result<Self, DataError> {
        let wrong = |reason: String| DataError::Tokeniser { reason };
        let saved: Saved = serde_json::from_str(text).map_err(|e| wrong(e.to_string()))?;
        if saved.kind != KIND {
            return Err(wrong(format!("kind {:?} is not {KIND:?}", saved.kind)));
        }
        let (mut seen, mut lengths) = (HashSet::new(), vec![1usize; 256]);
        for (i, &(a, b)) in saved.merges.iter().enumerate() {
            if a.max(b) as usize >= 256 + i || !seen.insert((a, b)) {
                return Err(wrong(format!("merge {i} of {a} and {b} comes too early or twice")));
            }
            lengths.push(lengths[a as usize].saturating_add(lengths[b as usize]));
            if lengths[256 + i] > MAX_TOKEN {
                return Err(wrong(format!("merge {i} makes a token of more than {MAX_TOKEN} bytes")));
            }
        }
        Ok(Self::from_merges(saved.merges))
    }
}

/// Bytes of a token in a file, so that a few doublings do not ask for all memory.
const MAX_TOKEN: usize = 1 << 16;

/// Cuts a text where a word begins: each piece is white space followed by letters, by digits or by other signs.
fn words(text: &str) -> impl Iterator<Item = &str> {
    #[derive(PartialEq, Clone, Copy)]
    enum Class {
        Space,
        Letter,
        Digit,
        Sign,
    }
    let class = |c: char| match c {
        c if c.is_whitespace() => Class::Space,
        c if c.is_alphabetic() => Class::Letter,
        c if c.is_numeric() => Class::Digit,
        _ => Class::Sign,
    };
    let mut rest = text;
    std::iter::from_fn(move || {
        let mut previous = class(rest.chars().next()?);
        let end = rest.char_indices().find(|&(_, c)| {
            let now = class(c);
            let cut = now != previous && previous != Class::Space;
            previous = now;
            cut
        });
        let (word, after) = rest.split_at(end.map_or(rest.len(), |(at, _)| at));
        rest = after;
        Some(word)
    })
}

fn replace(tokens: &mut Vec<u32>, (a, b): Pair, new: u32) {
    let (mut read, mut write) = (0, 0);
    while read < tokens.len() {
        let found = tokens[read] == a && tokens.get(read + 1) == Some(&b);
        tokens[write] = if found { new } else { tokens[read] };
        read += if found { 2 } else { 1 };
        write += 1;
    }
    tokens.truncate(write);
}

/// The different words of a text, and how often each pair of neighbours stands in them.
struct Corpus {
    words: Vec<(Vec<u32>, u64)>,
    counts: HashMap<Pair, u64>,
    found_in: HashMap<Pair, HashSet<usize>>,
    /// Candidates with the count they once had; stale ones are corrected when they come up.
    heap: BinaryHeap<(u64, std::cmp::Reverse<Pair>)>,
}

impl Corpus {
    fn new(text: &str) -> Self {
        let mut frequency: BTreeMap<&str, u64> = BTreeMap::new();
        words(text).for_each(|w| *frequency.entry(w).or_default() += 1);
        let words = frequency.into_iter().map(|(w, n)| (w.bytes().map(u32::from).collect(), n)).collect();
        let (counts, found_in, heap) = Default::default();
        let mut corpus = Self { words, counts, found_in, heap };
        for word in 0..corpus.words.len() {
            corpus.count(word);
        }
        corpus.heap = corpus.counts.iter().map(|(&p, &n)| (n, std::cmp::Reverse(p))).collect();
        corpus
    }

    fn count(&mut self, word: usize) {
        let (tokens, n) = &self.words[word];
        for w in tokens.windows(2) {
            *self.counts.entry((w[0], w[1])).or_default() += n;
            self.found_in.entry((w[0], w[1])).or_default().insert(word);
        }
    }

    fn most_frequent(&mut self) -> Option<Pair> {
        while let Some((n, std::cmp::Reverse(pair))) = self.heap.pop() {
            match self.counts.get(&pair).copied().unwrap_or(0) {
                0 => {}
                now if now == n => return Some(pair),
                now => self.heap.push((now, std::cmp::Reverse(pair))),
            }
        }
        None
    }

    /// Replaces the pair in the words that have it, and counts those words anew.
    fn merge(&mut self, pair: Pair, new: u32) {
        for word in self.found_in.remove(&pair).unwrap_or_default() {
            let (tokens, n) = &mut self.words[word];
            for w in tokens.windows(2) {
                *self.counts.get_mut(&(w[0], w[1])).expect("counted before") -= *n;
            }
            replace(tokens, pair, new);
            self.count(word);
            for w in self.words[word].0.windows(2) {
                // Only pairs with the new token can have become more frequent.
                if w[0] == new || w[1] == new {
                    self.heap.push((self.counts[&(w[0], w[1])], std::cmp::Reverse((w[0], w[1]))));
                }
            }
        }
        self.counts.remove(&pair);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::Draw;

    /// The definition, without any cleverness: count all pairs of all words, every time.
    fn naive(text: &str, size: usize) -> Vec<Pair> {
        let mut words: Vec<Vec<u32>> = words(text).map(|w| w.bytes().map(u32::from).collect()).collect();
        let mut merges = Vec::new();
        while 256 + merges.len() < size {
            let mut counts: BTreeMap<Pair, u64> = BTreeMap::new();
            words
                .iter()
                .flat_map(|w| w.windows(2))
                .for_each(|w| *counts.entry((w[0], w[1])).or_default() += 1);
            let Some((&pair, _)) = counts.iter().max_by_key(|&(&p, &n)| (n, std::cmp::Reverse(p))) else {
                break;
            };
            words.iter_mut().for_each(|w| replace(w, pair, 256 + merges.len() as u32));
            merges.push(pair);
        }
        merges
    }

    #[test]
    fn training_agrees_with_the_definition_on_random_texts() {
        for seed in 0..60 {
            let mut rng = Draw::new(seed, 0, 0).rng(0);
            let letters = ["a", "b", "c", " ", "aa", "é", "7", "."];
            let text: String = (0..rng.below(300)).map(|_| letters[rng.below(letters.len())]).collect();
            let size = 256 + rng.below(60);
            let bpe = Bpe::train(&text, size);
            assert_eq!(bpe.merges, naive(&text, size), "seed {seed}, text {text:?}");
            assert_eq!(bpe.decode(&bpe.encode(&text)).unwrap(), text.as_bytes(), "seed {seed}");
            assert_eq!(Bpe::from_json(&bpe.to_json()).unwrap(), bpe, "seed {seed}");
        }
    }

    #[test]
    fn words_keep_the_spaces_before_them() {
        let cut: Vec<&str> = words("It's  12 o'clock,\nnow ").collect();
        assert_eq!(cut, ["It", "'", "s", "  12", " o", "'", "clock", ",", "\nnow", " "]);
        assert_eq!(words("").count(), 0);
    }

    #[test]
    fn a_file_with_impossible_merges_is_refused() {
        let with = |merges: &str| Bpe::from_json(&format!(r#"{{"kind":"{KIND}","merges":{merges}}}"#));
        assert!(with("[[97,98],[256,99]]").is_ok());
        for merges in ["[[97,256]]", "[[97,98],[97,98]]", "[[1]]", "7"] {
            assert!(matches!(with(merges), Err(DataError::Tokeniser { .. })), "{merges}");
        }
        // Seventeen doublings of one byte.
        let doublings: Vec<String> =
            (0..17).map(|i| if i == 0 { "[97,97]".into() } else { format!("[{0},{0}]", 255 + i) }).collect();
        assert!(with(&format!("[{}]", doublings.join(","))).is_err());
    }
}
