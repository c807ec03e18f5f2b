//! The Python dict literal in an npy header.
//!
//! A strict parser for the little Python that NumPy writes there: strings without escapes, `True`,
//! `False` and tuples of whole numbers. Nothing is evaluated.

use std::iter::Peekable;
use std::str::CharIndices;

use crate::error::Problem;

/// The dict's values, as far as they were of the right kind.
#[derive(Default)]
pub(super) struct Dict {
    pub(super) descr: Option<Descr>,
    pub(super) fortran: Option<bool>,
    pub(super) shape: Option<Vec<u64>>,
    pub(super) problems: Vec<Problem>,
}

/// The dtype as it stands in the file.
pub(super) enum Descr {
    Plain(String),
    Structured,
}

enum Value {
    Text(String),
    Flag(bool),
    Tuple(Vec<u64>),
    List,
}

impl Dict {
    /// Reads a header's text. Faults of the values go to `problems`; a fault of the syntax ends it.
    pub(super) fn read(&mut self, text: &str) -> Result<(), Problem> {
        let mut p = Parser { text, chars: text.char_indices().peekable() };
        p.expect('{', "'{'")?;
        let mut seen: Vec<String> = Vec::new();
        while !p.eat('}') {
            let key = p.string("a key in quotes or '}'")?;
            p.expect(':', "':'")?;
            let value = p.value()?;
            if seen.contains(&key) {
                self.problems.push(Problem::RepeatedKey { key });
            } else {
                seen.push(key.clone());
                self.set(key, value);
            }
            if !p.eat(',') {
                p.expect('}', "',' or '}'")?;
                break;
            }
        }
        p.end()
    }

    fn set(&mut self, key: String, value: Value) {
        let want = match (key.as_str(), value) {
            ("descr", Value::Text(s)) => return self.descr = Some(Descr::Plain(s)),
            ("descr", Value::List) => return self.descr = Some(Descr::Structured),
            ("fortran_order", Value::Flag(b)) => return self.fortran = Some(b),
            ("shape", Value::Tuple(dims)) => return self.shape = Some(dims),
            ("descr", v) => ("a string", v.kind()),
            ("fortran_order", v) => ("True or False", v.kind()),
            ("shape", v) => ("a tuple of whole numbers", v.kind()),
            _ => return self.problems.push(Problem::UnknownKey { key }),
        };
        self.problems.push(Problem::Kind { key, want: want.0, got: want.1 });
    }
}

impl Value {
    fn kind(&self) -> &'static str {
        match self {
            Value::Text(_) => "a string",
            Value::Flag(_) => "a bool",
            Value::Tuple(_) => "a tuple",
            Value::List => "a list",
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    chars: Peekable<CharIndices<'a>>,
}

impl Parser<'_> {
    fn error(&mut self, expected: &'static str) -> Problem {
        let at = self.chars.peek().map_or(self.text.len(), |&(at, _)| at);
        Problem::HeaderSyntax { at, expected }
    }

    fn skip_space(&mut self) {
        while self.chars.next_if(|(_, c)| matches!(c, ' ' | '\t' | '\n' | '\r')).is_some() {}
    }

    fn eat(&mut self, c: char) -> bool {
        self.skip_space();
        self.chars.next_if(|&(_, found)| found == c).is_some()
    }

    fn expect(&mut self, c: char, expected: &'static str) -> Result<(), Problem> {
        if self.eat(c) { Ok(()) } else { Err(self.error(expected)) }
    }

    fn end(&mut self) -> Result<(), Problem> {
        self.skip_space();
        if self.chars.peek().is_none() { Ok(()) } else { Err(self.error("the end of the header")) }
    }

    fn value(&mut self) -> Result<Value, Problem> {
        self.skip_space();
        match self.chars.peek() {
            Some((_, '\'' | '"')) => Ok(Value::Text(self.string("a string")?)),
            Some((_, 'T')) => self.word("True").map(|()| Value::Flag(true)),
            Some((_, 'F')) => self.word("False").map(|()| Value::Flag(false)),
            Some((_, '(')) => self.tuple().map(Value::Tuple),
            Some((_, '[')) => self.list().map(|()| Value::List),
            _ => Err(self.error("a string, True, False, or a tuple")),
        }
    }

    fn string(&mut self, expected: &'static str) -> Result<String, Problem> {
        self.skip_space();
        let Some((_, quote)) = self.chars.next_if(|(_, c)| matches!(c, '\'' | '"')) else {
            return Err(self.error(expected));
        };
        let mut out = String::new();
        loop {
            match self.chars.next_if(|(_, c)| !matches!(c, '\\' | '\n')) {
                Some((_, c)) if c == quote => return Ok(out),
                Some((_, c)) => out.push(c),
                None => return Err(self.error("a closing quote (escapes are not read)")),
            }
        }
    }

    fn word(&mut self, word: &'static str) -> Result<(), Problem> {
        for c in word.chars() {
            if self.chars.next_if(|&(_, found)| found == c).is_none() {
                return Err(self.error("True or False"));
            }
        }
        Ok(())
    }

    /// A tuple of whole numbers; `(3)` is none, `(3,)` is.
    fn tuple(&mut self) -> Result<Vec<u64>, Problem> {
        self.expect('(', "'('")?;
        let mut dims = Vec::new();
        while !self.eat(')') {
            dims.push(self.number()?);
            if !self.eat(',') {
                if dims.len() == 1 {
                    return Err(self.error("',' (a tuple of one needs it)"));
                }
                self.expect(')', "',' or ')'")?;
                break;
            }
        }
        Ok(dims)
    }

    /// A whole number, saturated: one that does not fit is refused with its shape.
    fn number(&mut self) -> Result<u64, Problem> {
        self.skip_space();
        let mut value: Option<u64> = None;
        while let Some((_, c)) = self.chars.next_if(|(_, c)| c.is_ascii_digit()) {
            let digit = u64::from(c as u8 - b'0');
            value = Some(value.unwrap_or(0).saturating_mul(10).saturating_add(digit));
        }
        let value = value.ok_or_else(|| self.error("a whole number"))?;
        // Python 2 marked its long integers.
        self.chars.next_if(|&(_, c)| c == 'L');
        Ok(value)
    }

    /// Steps over a list, which only structured dtypes have.
    fn list(&mut self) -> Result<(), Problem> {
        let mut depth = 0;
        loop {
            self.skip_space();
            match self.chars.peek() {
                None => return Err(self.error("']'")),
                Some((_, '\'' | '"')) => drop(self.string("a string")?),
                Some(&(_, c)) => {
                    self.chars.next();
                    match c {
                        '[' | '(' => depth += 1,
                        ']' | ')' => depth -= 1,
                        _ => {}
                    }
                    if depth == 0 {
                        return Ok(());
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_numpy_does_not_write_is_a_syntax_error() {
        for (dict, at) in [
            ("", 0),
            ("[]", 0),
            ("{'descr'", 8),
            ("{'descr': }", 10),
            ("{'descr': 'a\\n'}", 12),
            ("{'descr': Truth}", 13),
            ("{'shape': (3)}", 12),
            ("{'shape': (-3,)}", 11),
            ("{'shape': (1, 2}", 15),
            ("{'descr': [('a', }", 18),
            ("{} x", 3),
            ("{'descr': __import__('os')}", 10),
        ] {
            let found = Dict::default().read(dict).unwrap_err();
            assert!(matches!(found, Problem::HeaderSyntax { at: a, .. } if a == at), "{dict}: {found:?}");
        }
    }
}
