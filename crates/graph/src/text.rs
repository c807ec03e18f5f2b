//! The text form of a graph, to be printed, compared and parsed back.
//!
//! ```text
//! v0 = input "x" : f32[2, 3]
//! v1 = param "w" : f32[3, 4]
//! v2 = matmul v0 v1 : f32[2, 4]
//! v3 = sum(axes:[0]) v2 : f32[4]
//! v4 = literal 0.5 : f32[4]
//! v5 = mul v3 v4 : f32[4]
//! write v1 v6
//! label total=v3
//! return y=v5
//! ```
//!
//! Statements end at a line break or `;`. What an op gives may be left out: it is inferred. `@1`
//! after a node is its region, `#2` its group, `--` begins a comment (the user's line). Names stand in
//! quotes where they are more than letters, digits and `_ . /`.

use std::collections::HashMap;
use std::fmt;

use smallvec::SmallVec;
use thalweg_core::{DType, Shape, with_dtype};
use thalweg_tensor::ops::{Custom, Op};
use thalweg_tensor::{Meta, Tensor};

use crate::error::GraphError;
use crate::graph::{Graph, Kind, Node, NodeId};
use crate::literal::{Literal, is_uniform};
use crate::rule;
use crate::traced::Traced;

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for id in self.ids() {
            let node = self.node(id);
            write!(f, "{id} = ")?;
            match &node.kind {
                Kind::Input(i) => write!(f, "input {}", quoted(&self.inputs[*i]))?,
                Kind::Param(i) => write!(f, "param {}", quoted(&self.params[*i]))?,
                Kind::Captured(_) => write!(f, "captured")?,
                Kind::Literal(literal) => write!(f, "literal {}", numbers(literal.tensor()))?,
                Kind::Op(op) => {
                    let attributes = op.attributes();
                    write!(f, "{}{}", op.name(), if attributes == "()" { "" } else { &attributes })?;
                    node.inputs.iter().try_for_each(|i| write!(f, " {i}"))?;
                }
            }
            write!(f, " : {}", node.meta)?;
            if node.region != 0 {
                write!(f, " @{}", node.region)?;
            }
            if node.group != 0 {
                write!(f, " #{}", node.group)?;
            }
            writeln!(f)?;
        }
        let params: HashMap<usize, NodeId> = self
            .ids()
            .filter_map(|id| if let Kind::Param(i) = self.node(id).kind { Some((i, id)) } else { None })
            .collect();
        for (param, id) in &self.writes {
            match params.get(param) {
                Some(read) => writeln!(f, "write {read} {id}")?,
                None => writeln!(f, "write {} {id}", quoted(&self.params[*param]))?,
            }
        }
        let named = |f: &mut fmt::Formatter<'_>, list: &[(String, NodeId)]| {
            list.iter().try_for_each(|(name, id)| write!(f, " {}={id}", plain_or_quoted(name)))
        };
        if !self.labels.is_empty() {
            write!(f, "label")?;
            named(f, &self.labels)?;
            writeln!(f)?;
        }
        write!(f, "return")?;
        named(f, &self.outputs)?;
        writeln!(f)
    }
}

/// A name in quotes, on one line.
fn quoted(name: &str) -> String {
    let mut text = String::from("\"");
    for c in name.chars() {
        match c {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            c => text.push(c),
        }
    }
    text + "\""
}

fn plain_or_quoted(name: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '/');
    if !name.is_empty() && name.chars().all(plain) { name.to_owned() } else { quoted(name) }
}

/// Takes a name off the beginning of a text: in quotes, or up to `end`.
fn take_name<'a>(text: &'a str, end: &[char]) -> Result<(String, &'a str), String> {
    let Some(inside) = text.strip_prefix('"') else {
        let at = text.find(end).unwrap_or(text.len());
        return Ok((text[..at].trim().to_owned(), &text[at..]));
    };
    let mut name = String::new();
    let mut chars = inside.char_indices();
    while let Some((i, c)) = chars.next() {
        match c {
            '"' => return Ok((name, &inside[i + 1..])),
            '\\' => match chars.next() {
                Some((_, 'n')) => name.push('\n'),
                Some((_, 'r')) => name.push('\r'),
                Some((_, c)) => name.push(c),
                None => break,
            },
            c => name.push(c),
        }
    }
    Err("a quote is not closed".to_owned())
}

/// The statements of a text with their lines. Inside quotes, nothing ends a statement but the line.
fn statements(text: &str) -> Vec<(usize, &str)> {
    let mut list = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let (mut begin, mut quote, mut escape) = (0, false, false);
        let mut end = line.len();
        for (i, c) in line.char_indices() {
            match c {
                _ if escape => escape = false,
                '\\' if quote => escape = true,
                '"' => quote = !quote,
                ';' if !quote => {
                    list.push((number + 1, line[begin..i].trim()));
                    begin = i + 1;
                }
                '-' if !quote && line[i..].starts_with("--") => {
                    end = i;
                    break;
                }
                _ => {}
            }
        }
        list.push((number + 1, line[begin..end].trim()));
    }
    list.retain(|(_, s)| !s.is_empty());
    list
}

/// The elements: one number for a uniform tensor, else a list.
fn numbers(t: &Tensor) -> String {
    let one = |t: &Tensor| with_dtype!(t.dtype(), T => t.to_vec::<T>().into_iter().map(text_of).collect::<Vec<_>>());
    if is_uniform(t) {
        return one(&crate::literal::first(t)).remove(0);
    }
    format!("[{}]", one(t).join(", "))
}

fn text_of<T: thalweg_core::Element>(v: T) -> String {
    if T::DTYPE.is_float() { format!("{:?}", v.to_f64()) } else { v.to_i64().to_string() }
}

impl std::str::FromStr for Graph {
    type Err = GraphError;

    /// Without decisions and loops, which are ops of the runtime: that has a way to read them.
    fn from_str(text: &str) -> Result<Self, GraphError> {
        Self::parse_with(text, &|_| {
            Err("an op of one's own cannot be read back; decisions and loops are read by `parse_graph`"
                .to_owned())
        })
    }
}

/// Makes an op from what [`CustomOp::text`](thalweg_tensor::ops::CustomOp::text) says of it, or tells why not.
pub type ReadCustom<'a> = dyn Fn(&str) -> Result<Custom, String> + 'a;

impl Graph {
    /// Reads a text with ops that are not in the list of ops.
    pub fn parse_with(text: &str, custom: &ReadCustom<'_>) -> Result<Self, GraphError> {
        let mut parser = Parser { graph: Graph::default(), names: HashMap::new(), custom };
        for (line, statement) in statements(text) {
            let wrong = |reason| GraphError::Text { line, reason, text: statement.to_owned() };
            parser.statement(statement).map_err(wrong)?;
        }
        crate::verify(&parser.graph)?;
        Ok(parser.graph)
    }
}

struct Parser<'a> {
    graph: Graph,
    names: HashMap<String, NodeId>,
    custom: &'a ReadCustom<'a>,
}

impl Parser<'_> {
    fn statement(&mut self, text: &str) -> Result<(), String> {
        let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
        match word {
            _ if rest.trim_start().starts_with('=') => {}
            "return" => {
                let named = self.named(rest, "y")?;
                self.graph.outputs.extend(named);
                return Ok(());
            }
            "label" => {
                let named = self.named(rest, "l")?;
                self.graph.labels.extend(named);
                return Ok(());
            }
            "write" => return self.write(rest.trim()),
            _ => {}
        }
        let (name, rest) = text.split_once('=').ok_or("neither a node nor `write` nor `return`")?;
        let node = self.node(rest.trim())?;
        let id = self.graph.push(node);
        match self.names.insert(name.trim().to_owned(), id) {
            Some(_) => Err(format!("{} is defined twice", name.trim())),
            None => Ok(()),
        }
    }

    /// `name=v3 v4 …`: nodes with their names; one without gets its position.
    fn named(&self, text: &str, prefix: &str) -> Result<Vec<(String, NodeId)>, String> {
        let (mut list, mut rest) = (Vec::new(), text.trim());
        while !rest.is_empty() {
            let (first, after) = take_name(rest, &['=', ' ', '\t'])?;
            let (label, value, after) = match after.strip_prefix('=') {
                Some(after) => {
                    let (value, after) = take_name(after, &[' ', '\t'])?;
                    (first, value, after)
                }
                None => (format!("{prefix}{}", list.len()), first, after),
            };
            list.push((label, self.value(&value)?));
            if !after.is_empty() && !after.starts_with([' ', '\t']) {
                return Err(format!("a blank is missing before `{after}`"));
            }
            rest = after.trim_start();
        }
        Ok(list)
    }

    fn write(&mut self, text: &str) -> Result<(), String> {
        let is_quoted = text.starts_with('"');
        let (param, value) = take_name(text, &[' ', '\t'])?;
        let position = match is_quoted {
            true => self.graph.params.iter().position(|p| *p == param),
            false => match self.graph.node(self.value(&param)?).kind {
                Kind::Param(i) => Some(i),
                _ => None,
            },
        };
        let position = position.ok_or_else(|| format!("{param} is no param"))?;
        let id = self.value(value)?;
        self.graph.writes.push((position, id));
        Ok(())
    }

    fn node(&mut self, text: &str) -> Result<Node, String> {
        let (head, meta, region, group) = split_tail(text)?;
        let word_end = head.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(head.len());
        let (word, rest) = (&head[..word_end], head[word_end..].trim());
        let need_meta = || meta.clone().ok_or_else(|| format!("{word} needs `: dtype[shape]`"));
        let mut node = match word {
            "input" => {
                let name = label(rest, "x", self.graph.inputs.len())?;
                self.graph.inputs.push(name);
                Traced::bare(Kind::Input(self.graph.inputs.len() - 1), need_meta()?)
            }
            "param" => {
                let name = label(rest, "p", self.graph.params.len())?;
                self.graph.params.push(name);
                Traced::bare(Kind::Param(self.graph.params.len() - 1), need_meta()?)
            }
            "captured" => {
                self.graph.n_captured += 1;
                Traced::bare(Kind::Captured(self.graph.n_captured - 1), need_meta()?)
            }
            "literal" => {
                let meta = need_meta()?;
                Traced::bare(Kind::Literal(Literal::new(parse_numbers(rest, &meta)?)), meta)
            }
            name => self.op(name, rest, meta)?,
        };
        (node.region, node.group) = (region, group);
        Ok(node)
    }

    fn op(&self, name: &str, rest: &str, meta: Option<Meta>) -> Result<Node, String> {
        let (attributes, operands) = match rest.starts_with('(') {
            true => rest.split_at(closing(rest).ok_or("a parenthesis is not closed")? + 1),
            false => ("()", rest),
        };
        let op = match name {
            "custom" => {
                let text = attributes[1..attributes.len() - 1].trim();
                Op::Custom(rule::read(text, self.custom).unwrap_or_else(|| (self.custom)(text))?)
            }
            _ => {
                let op = Op::parse(name, attributes).ok_or_else(|| format!("there is no op {name}"))?;
                op.map_err(|e| format!("{name}: {e}"))?
            }
        };
        let inputs: SmallVec<[NodeId; 4]> =
            operands.split_whitespace().map(|n| self.value(n)).collect::<Result<_, _>>()?;
        let metas: Vec<&Meta> = inputs.iter().map(|&i| &self.graph.node(i).meta).collect();
        let inferred = op.infer(&metas).map_err(|e| e.to_string())?;
        if meta.as_ref().is_some_and(|m| *m != inferred) {
            return Err(format!("{name} gives {inferred}"));
        }
        Ok(Node { inputs, ..Traced::bare(Kind::Op(op), inferred) })
    }

    fn value(&self, name: &str) -> Result<NodeId, String> {
        self.names.get(name.trim()).copied().ok_or_else(|| format!("{name} is not defined before"))
    }
}

type Tail<'a> = (&'a str, Option<Meta>, u32, u32);

/// Splits `… : f32[2, 3] @1 #2` off. Marks inside a quoted name are part of the name.
fn split_tail(text: &str) -> Result<Tail<'_>, String> {
    let Some(open) = text.find('"') else { return split_plain_tail(text) };
    // Attributes with quotes in them end where their parenthesis does, and operands follow.
    if let Some(attributes) = text[..open].find('(') {
        let end = attributes + closing(&text[attributes..]).ok_or("a parenthesis is not closed")? + 1;
        let (operands, meta, region, group) = split_plain_tail(&text[end..])?;
        let head = end + text[end..].find(operands).unwrap_or(0) + operands.len();
        return Ok((text[..head].trim(), meta, region, group));
    }
    let (_, tail) = take_name(&text[open..], &[])?;
    let (between, meta, region, group) = split_plain_tail(tail)?;
    let end = text.len() - tail.len();
    match between.is_empty() {
        true => Ok((text[..end].trim(), meta, region, group)),
        false => Err(format!("`{between}` after a name")),
    }
}

fn split_plain_tail(text: &str) -> Result<Tail<'_>, String> {
    let mark = |text: &str, sign: char| -> Result<(usize, u32), String> {
        match text.rfind(sign) {
            Some(at) if text[at + 1..].trim().chars().all(|c| c.is_ascii_digit()) => {
                Ok((at, text[at + 1..].trim().parse().map_err(|e| format!("{sign}: {e}"))?))
            }
            _ => Ok((text.len(), 0)),
        }
    };
    let (end, group) = mark(text, '#')?;
    let text = text[..end].trim();
    let (end, region) = mark(text, '@')?;
    let text = text[..end].trim();
    // A colon inside attributes is followed by no dtype and a bracket at the end.
    match text.rsplit_once(':') {
        Some((head, tail)) if tail.trim_end().ends_with(']') && !tail.contains([')', '(']) => {
            Ok((head.trim(), Some(parse_meta(tail.trim())?), region, group))
        }
        _ => Ok((text, None, region, group)),
    }
}

fn parse_meta(text: &str) -> Result<Meta, String> {
    let (dtype, sizes) = text.split_once('[').ok_or("a shape is missing")?;
    let dtype = DType::from_name(dtype.trim()).ok_or_else(|| format!("there is no dtype {dtype}"))?;
    let sizes = sizes.trim_end_matches(']').split(',').map(str::trim).filter(|s| !s.is_empty());
    let shape =
        sizes.map(|s| s.parse().map_err(|_| format!("{s} is no size"))).collect::<Result<Shape, _>>()?;
    shape.check_countable().map_err(|e| e.to_string())?;
    Ok(Meta { dtype, shape })
}

fn parse_numbers(text: &str, meta: &Meta) -> Result<Tensor, String> {
    with_dtype!(meta.dtype, T => {
        let number = |s: &str| -> Result<T, String> {
            let bad = |_| format!("{s} is no number");
            if meta.dtype.is_float() {
                Ok(thalweg_core::Element::from_f64(s.trim().parse().map_err(|e: std::num::ParseFloatError| bad(e.to_string()))?))
            } else {
                Ok(thalweg_core::Element::from_i64(s.trim().parse().map_err(|e: std::num::ParseIntError| bad(e.to_string()))?))
            }
        };
        match text.strip_prefix('[') {
            None => Ok(Tensor::from_slice(&[number(text)?], ()).broadcast_to(&meta.shape)),
            Some(list) => {
                let list = list.trim_end_matches(']').split(',').filter(|s| !s.trim().is_empty());
                let data = list.map(number).collect::<Result<Vec<T>, _>>()?;
                if data.len() != meta.numel() {
                    return Err(format!("{} numbers for {meta}", data.len()));
                }
                Ok(Tensor::from_slice(&data, &meta.shape))
            }
        }
    })
}

/// A quoted name, or one made from the position.
fn label(text: &str, prefix: &str, position: usize) -> Result<String, String> {
    match take_name(text, &[' '])? {
        (name, _) if text.is_empty() && name.is_empty() => Ok(format!("{prefix}{position}")),
        (name, "") => Ok(name),
        (_, rest) => Err(format!("`{rest}` after a name")),
    }
}

/// Where the parenthesis that opens the text is closed. Those inside quotes do not count.
fn closing(text: &str) -> Option<usize> {
    let (mut depth, mut quote, mut escape) = (0usize, false, false);
    for (i, c) in text.char_indices() {
        match c {
            _ if escape => escape = false,
            '\\' if quote => escape = true,
            '"' => quote = !quote,
            _ if quote => {}
            '(' => depth += 1,
            ')' => {
                depth -= 1;
                if depth == 0 {
                    return Some(i);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_graph_parses_to_the_same_text() {
        let text = "v0 = input \"x\" : f32[2, 3]\nv1 = param \"w\" : f32[3, 4]\nv2 = matmul v0 v1 : f32[2, 4]\n\
                    v3 = sum(axes:[0]) v2 : f32[4]\nv4 = literal 0.5 : f32[4]\n\
                    v5 = literal [1, 2] : i64[2]\nv6 = mul v3 v4 : f32[4] @1 #2\nreturn y0=v6 y1=v5\n";
        assert_eq!(text.parse::<Graph>().unwrap().to_string(), text);
    }

    #[test]
    fn any_name_survives_printing_and_parsing() {
        for name in [
            "x",
            "layer.0/w",
            "two words",
            "a=b",
            "q\"uote",
            "back\\slash",
            "semi;colon",
            "da--sh",
            "line\nbreak",
            "x : f32[2] @1 #2",
            "λ",
        ] {
            let mut graph: Graph =
                "x = input : f32[2]; w = param : f32[2]; y = mul x w; return y".parse().unwrap();
            graph.inputs[0] = name.to_owned();
            graph.params[0] = format!("{name}2");
            graph.outputs[0].0 = format!("{name}3");
            graph.labels.push((format!("{name}4"), NodeId(2)));
            graph.writes.push((0, NodeId(2)));
            let text = graph.to_string();
            let back: Graph = text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"));
            assert_eq!(back.to_string(), text);
            assert_eq!((&back.inputs[0], &back.labels[0].0), (&graph.inputs[0], &graph.labels[0].0));
        }
    }

    #[test]
    fn every_ops_attributes_survive_printing_and_parsing() {
        for (name, samples) in thalweg_tensor::ops::samples() {
            for sample in samples {
                let text = sample.op.attributes();
                let back =
                    Op::parse(name, &text).expect("listed").unwrap_or_else(|e| panic!("{name}{text}: {e}"));
                assert_eq!(back, sample.op, "{name}{text}");
            }
        }
    }

    #[test]
    fn bad_text_says_line_and_reason() {
        let error = |text: &str| text.parse::<Graph>().unwrap_err().to_string();
        assert_eq!(
            error("a = input : f32[2]\nb = mul a c"),
            "line 2: c is not defined before: `b = mul a c`"
        );
        assert_eq!(error("a = input"), "line 1: input needs `: dtype[shape]`: `a = input`");
        assert!(error("a = input : f32[2]; b = input : f32[3]; c = add a b").contains("shapes [2] and [3]"));
        assert!(error("a = nothing").contains("no op nothing"));
        assert!(error("hello").contains("neither a node"));
    }
}
