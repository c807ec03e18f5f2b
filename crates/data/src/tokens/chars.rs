//! One token per character.

use std::collections::{BTreeSet, HashMap};

use crate::error::DataError;

/// The vocabulary of the characters that occur in a text, sorted.
///
/// ```
/// use thalweg_data::Chars;
/// let chars = Chars::of("hello");
/// assert_eq!(chars.encode("hole")?, [1, 3, 2, 0]);
/// assert_eq!(chars.decode(&[1, 3, 2, 0])?, "hole");
/// assert_eq!(chars.encode("help").unwrap_err().to_string(), "character 'p' at 3 is not in the vocabulary of 4");
/// # Ok::<(), thalweg_data::DataError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chars {
    characters: Vec<char>,
    index: HashMap<char, u32>,
}

impl Chars {
    /// The characters of this text.
    pub fn of(text: &str) -> Self {
        Self::from_sorted(text.chars().collect::<BTreeSet<_>>().into_iter().collect())
    }

    /// The vocabulary that [`Chars::alphabet`] gave.
    pub fn from_alphabet(alphabet: &str) -> Self {
        Self::of(alphabet)
    }

    fn from_sorted(characters: Vec<char>) -> Self {
        let index = characters.iter().zip(0..).map(|(&c, i)| (c, i)).collect();
        Self { characters, index }
    }

    /// Number of tokens.
    pub fn size(&self) -> usize {
        self.characters.len()
    }

    /// All characters, in the order of their tokens: what is to be saved.
    pub fn alphabet(&self) -> String {
        self.characters.iter().collect()
    }

    /// The tokens of a text. Refuses characters that the vocabulary does not have.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        let token = |(at, c)| {
            self.index.get(&c).copied().ok_or(DataError::UnknownChar { found: c, at, size: self.size() })
        };
        text.chars().enumerate().map(token).collect()
    }

    /// The text of tokens. Refuses numbers that are no tokens.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, DataError> {
        let character = |&t: &u32| {
            let need = format!("tokens are below {}", self.size());
            let wrong = DataError::Range { what: "token", got: t as usize, need };
            self.characters.get(t as usize).copied().ok_or(wrong)
        };
        tokens.iter().map(character).collect()
    }
}
