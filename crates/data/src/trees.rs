//! Trees in brackets, one per line, as the Stanford Sentiment Treebank writes them:
//! `(3 (2 It) (4 (2 is) (4 lovely)))`.

use std::collections::HashMap;
use std::io::BufRead;
use std::path::Path;

use crate::error::{DataError, Reason};
use crate::records::{self, Lines, OnError, Read};

/// A labelled tree with words at its leaves.
///
/// The nodes stand children first, so a loop over them sees every child before its parent; the root is last.
/// Deep trees need no deep stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// The nodes, children first.
    pub nodes: Vec<Node>,
}

/// A node of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its label.
    pub label: i64,
    /// What is below it.
    pub below: Below,
}

/// What is below a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Below {
    /// A word.
    Word(String),
    /// Other nodes, by their place in [`Tree::nodes`], from left to right; never empty.
    Nodes(Vec<usize>),
}

impl Tree {
    /// The node that all others are below of.
    pub fn root(&self) -> &Node {
        self.nodes.last().expect("the parser makes no tree without nodes")
    }

    /// The words from left to right.
    pub fn words(&self) -> impl Iterator<Item = &str> {
        self.nodes.iter().filter_map(|n| match &n.below {
            Below::Word(w) => Some(w.as_str()),
            Below::Nodes(_) => None,
        })
    }
}

/// The number of each word.
pub type Vocabulary = HashMap<String, i64>;

/// Numbers from 1 for the words of some trees, in the order in which they come.
///
/// ```
/// use thalweg_data::{OnError, trees};
/// let all = trees::parse("two lines", "(3 (2 It) (3 flows))\n(3 (2 It) (3 runs))".as_bytes(), OnError::Stop)?.data;
/// assert_eq!(trees::vocabulary(&all)["runs"], 3);
/// # Ok::<(), thalweg_data::DataError>(())
/// ```
pub fn vocabulary(trees: &[Tree]) -> Vocabulary {
    let mut words = Vocabulary::new();
    for word in trees.iter().flat_map(Tree::words) {
        let next = words.len() as i64 + 1;
        words.entry(word.to_owned()).or_insert(next);
    }
    words
}

/// The trees of a file, which may be gzipped.
pub fn read(path: impl AsRef<Path>, on_error: OnError) -> Result<Read<Vec<Tree>>, DataError> {
    parse(path.as_ref(), records::open(path.as_ref())?, on_error)
}

/// The trees in these bytes, gzipped or not; `name` is for messages.
///
/// ```
/// use thalweg_data::{OnError, trees};
/// let text = "(3 (2 It) (4 (2 is) (4 lovely)))";
/// let trees = trees::parse("t", text.as_bytes(), OnError::Stop)?.data;
/// assert_eq!(trees[0].words().collect::<Vec<_>>(), ["It", "is", "lovely"]);
/// assert_eq!((trees[0].root().label, trees[0].nodes.len()), (3, 5));
/// let e = trees::parse("t", &b"(3 (2 It)"[..], OnError::Stop).unwrap_err();
/// assert_eq!(e.to_string(), "t:1: column 10: expected `)`");
/// # Ok::<(), thalweg_data::DataError>(())
/// ```
pub fn parse(
    name: impl AsRef<Path>,
    bytes: impl BufRead,
    on_error: OnError,
) -> Result<Read<Vec<Tree>>, DataError> {
    let path = name.as_ref();
    let bytes = records::unpacked(bytes).map_err(DataError::io("read", path))?;
    let mut data = Vec::new();
    let skipped = Lines::new(path, bytes).each(on_error, |line| {
        data.push(parse_tree(line)?);
        Ok(())
    })?;
    Ok(Read { data, skipped })
}

/// A node whose closing bracket has not come yet.
struct Open {
    label: i64,
    word: Option<String>,
    children: Vec<usize>,
}

fn parse_tree(line: &str) -> Result<Tree, Reason> {
    let mut nodes = Vec::new();
    let mut open: Vec<Open> = Vec::new();
    let mut done = false;
    let mut words = Words { line, at: 0 };
    while let Some((at, word)) = words.next() {
        let syntax = |expected| Reason::Syntax { column: at + 1, expected };
        match word {
            _ if done => return Err(syntax("the end of the line")),
            "(" => {
                if open.last().is_some_and(|o| o.word.is_some()) {
                    return Err(syntax("`)` after a word"));
                }
                let (at, label) = words.next().unwrap_or((line.len(), ""));
                let label =
                    label.parse().map_err(|_| Reason::Syntax { column: at + 1, expected: "a label" })?;
                open.push(Open { label, word: None, children: Vec::new() });
            }
            ")" => {
                let Some(o) = open.pop() else { return Err(syntax("`(`")) };
                let below = match (o.word, o.children) {
                    (Some(word), _) => Below::Word(word),
                    (None, children) if !children.is_empty() => Below::Nodes(children),
                    _ => return Err(syntax("a word or `(` after a label")),
                };
                nodes.push(Node { label: o.label, below });
                match open.last_mut() {
                    Some(parent) => parent.children.push(nodes.len() - 1),
                    None => done = true,
                }
            }
            word => match open.last_mut() {
                Some(o) if o.word.is_none() && o.children.is_empty() => o.word = Some(word.to_owned()),
                Some(_) => return Err(syntax("`)` or `(`")),
                None => return Err(syntax("`(`")),
            },
        }
    }
    if done { Ok(Tree { nodes }) } else { Err(Reason::Syntax { column: line.len() + 1, expected: "`)`" }) }
}

/// Brackets and the words between them, with their places.
struct Words<'a> {
    line: &'a str,
    at: usize,
}

impl<'a> Iterator for Words<'a> {
    type Item = (usize, &'a str);
    fn next(&mut self) -> Option<(usize, &'a str)> {
        let rest = &self.line[self.at..];
        let start = self.at + rest.find(|c: char| !c.is_ascii_whitespace())?;
        let word = &self.line[start..];
        let end = word.find(|c: char| c.is_ascii_whitespace() || c == '(' || c == ')').unwrap_or(word.len());
        self.at = start + end.max(1);
        Some((start, &self.line[start..self.at]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The slow obvious way: print it and compare.
    fn print(tree: &Tree, node: usize) -> String {
        let n = &tree.nodes[node];
        match &n.below {
            Below::Word(w) => format!("({} {w})", n.label),
            Below::Nodes(below) => {
                let parts: Vec<String> = below.iter().map(|&b| print(tree, b)).collect();
                format!("({} {})", n.label, parts.join(" "))
            }
        }
    }

    #[test]
    fn a_tree_prints_as_it_was_read() {
        for text in
            ["(0 a)", "(3 (2 It) (4 (2 is) (4 lovely)))", "(1 (2 (3 (4 -LRB-))))", "(-1 (0 é) (0 b) (0 c))"]
        {
            let tree = parse_tree(text).unwrap();
            assert_eq!(print(&tree, tree.nodes.len() - 1), text);
        }
    }

    #[test]
    fn broken_trees_say_where() {
        for (text, column, expected) in [
            ("(1 a) b", 7, "the end of the line"),
            ("x", 1, "`(`"),
            ("(x a)", 2, "a label"),
            ("(1)", 3, "a word or `(` after a label"),
            ("(1 a b)", 6, "`)` or `(`"),
            ("(1 a (2 b))", 6, "`)` after a word"),
            (")", 1, "`(`"),
            ("(", 2, "a label"),
        ] {
            assert_eq!(parse_tree(text), Err(Reason::Syntax { column, expected }), "{text}");
        }
    }

    #[test]
    fn a_tree_may_be_deeper_than_the_stack() {
        let depth = 200_000;
        let text = "(1 ".repeat(depth) + "w" + &")".repeat(depth);
        assert_eq!(parse_tree(&text).unwrap().nodes.len(), depth);
    }
}
