//! How often each word stands in each document, as the UCI "Bag of Words" sets have it.

use std::io::BufRead;
use std::path::Path;

use crate::error::{DataError, Reason};
use crate::records::{self, Lines, OnError, Read, number};

/// Word counts of documents.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BagOfWords {
    /// Of each document, its words and how often each stands in it.
    pub documents: Vec<Vec<(u32, u32)>>,
    /// Number of different words; those in use are below it.
    pub n_words: usize,
}

impl BagOfWords {
    /// Words of all documents, repeated ones counted as often as they stand there.
    pub fn n_tokens(&self) -> u64 {
        self.documents.iter().flatten().map(|&(_, count)| u64::from(count)).sum()
    }

    /// Different words of all documents, counted once per document.
    pub fn n_entries(&self) -> usize {
        self.documents.iter().map(Vec::len).sum()
    }
}

/// How documents and words are numbered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Lines `document word count`, numbered from 0.
    Triplets,
    /// UCI's `docword` files: three lines with the numbers of documents, words and entries, then
    /// lines `document word count`, numbered from 1.
    Uci,
}

/// The counts of a file, which may be gzipped. `n_words` is the size of the vocabulary, if known.
pub fn read(
    path: impl AsRef<Path>,
    form: Form,
    n_words: Option<usize>,
    on_error: OnError,
) -> Result<Read<BagOfWords>, DataError> {
    parse(path.as_ref(), records::open(path.as_ref())?, form, n_words, on_error)
}

/// The words of a vocabulary file, one per line.
pub fn read_vocabulary(path: impl AsRef<Path>) -> Result<Vec<String>, DataError> {
    let path = path.as_ref();
    let mut words = Vec::new();
    Lines::new(path, records::open(path)?).each(OnError::Stop, |line| {
        words.push(line.trim().to_owned());
        Ok(())
    })?;
    Ok(words)
}

/// Documents or words that a file may number, so that one wrong digit does not ask for all memory.
const LIMIT: u64 = 1 << 24;

/// The counts in these bytes, gzipped or not; `name` is for messages.
///
/// ```
/// use thalweg_data::{OnError, bag_of_words::{Form, parse}};
/// let text = "2\n3\n3\n1 2 5\n2 1 1\n2 3 1\n";
/// let bag = parse("docword.txt", text.as_bytes(), Form::Uci, None, OnError::Stop)?.data;
/// assert_eq!(bag.documents, [vec![(1, 5)], vec![(0, 1), (2, 1)]]);
/// assert_eq!(bag.n_tokens(), 7);
/// # Ok::<(), thalweg_data::DataError>(())
/// ```
pub fn parse(
    name: impl AsRef<Path>,
    bytes: impl BufRead,
    form: Form,
    n_words: Option<usize>,
    on_error: OnError,
) -> Result<Read<BagOfWords>, DataError> {
    let path = name.as_ref();
    let bytes = records::unpacked(bytes).map_err(DataError::io("read", path))?;
    let mut lines = Lines::new(path, bytes);
    let low = u64::from(form == Form::Uci);
    let (mut documents, mut words) = (LIMIT, n_words.map_or(LIMIT, |n| n as u64));
    if form == Form::Uci {
        let mut head = [0u64; 3];
        for (slot, field) in
            head.iter_mut().zip(["number of documents", "number of words", "number of entries"])
        {
            let line = match lines.next()? {
                Some(line) => line?.trim().to_owned(),
                None => return Err(DataError::Empty { path: path.to_owned(), what: "counts" }),
            };
            *slot = number(field, &line, "a whole number").map_err(|r| lines.bad(r))?;
        }
        (documents, words) = (head[0].min(LIMIT), head[1].min(words));
    }
    let mut bag =
        BagOfWords { documents: Vec::new(), n_words: if words < LIMIT { words as usize } else { 0 } };
    let skipped = lines.each(on_error, |line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [document, word, count] = fields[..] else {
            return Err(Reason::Fields { want: 3, got: fields.len() });
        };
        let document = index("document", document, low, documents)?;
        let word = index("word", word, low, words)?;
        let count = number("count", count, "a whole number")?;
        if bag.documents.len() <= document {
            bag.documents.resize_with(document + 1, Vec::new);
        }
        bag.documents[document].push((word as u32, count));
        bag.n_words = bag.n_words.max(word + 1);
        Ok(())
    })?;
    Ok(Read { data: bag, skipped })
}

fn index(what: &'static str, text: &str, low: u64, n: u64) -> Result<usize, Reason> {
    let index = number(what, text, "a whole number")?;
    if (low..n + low).contains(&index) {
        Ok((index - low) as usize)
    } else {
        Err(Reason::Index { what, index, low, high: n + low })
    }
}
