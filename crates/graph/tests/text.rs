//! No text makes the parser panic, and what it accepts prints to a text that parses to the same.

use thalweg_graph::Graph;
use thalweg_tensor::ops::sample::Draw;
use thalweg_tensor::ops::samples;

/// Every op on the operands of its samples.
fn texts() -> Vec<String> {
    let operand = |draw: &Draw| match draw {
        Draw::Float { shape, .. } | Draw::Distinct { shape } => format!("f32{shape}"),
        Draw::Int { shape, .. } => format!("i64{shape}"),
        Draw::Bool { shape } => format!("bool{shape}"),
        Draw::Definite { n } => format!("f32[{n}, {n}]"),
    };
    let mut texts = vec![
        include_str!("../../../fuzz/corpus/graph/layer").to_owned(),
        include_str!("../../../fuzz/corpus/graph/attributes").to_owned(),
    ];
    for (name, samples) in samples() {
        for sample in samples {
            let mut text = String::new();
            let inputs = sample.inputs.iter().enumerate();
            inputs.for_each(|(i, draw)| text += &format!("x{i} = input : {}\n", operand(draw)));
            let operands: String = (0..sample.inputs.len()).map(|i| format!(" x{i}")).collect();
            text += &format!("y = {name}{}{operands}\nreturn y\n", sample.op.attributes());
            texts.push(text);
        }
    }
    texts
}

/// Numbers below `n` from a seed.
struct Draws(u64);

impl Draws {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

/// A text with some of its words changed.
fn mutated(text: &str, draws: &mut Draws) -> String {
    const WORDS: &[&str] = &[
        "0",
        "1",
        "2",
        "7",
        "-1",
        "4294967295",
        "18446744073709551615",
        "-9223372036854775808",
        "1e999",
        "NaN",
        "[",
        "]",
        "(",
        ")",
        "\"",
        ":",
        ",",
        "=",
        "@",
        "#",
        ";",
        "--",
        "\\",
        "\n",
        " ",
        "true",
        "v0",
        "x0",
        "y",
        "f32",
        "i64",
        "bool",
        "return",
        "write",
        "label",
        "literal",
        "λ",
        "[]",
        "()",
        "[1, 1, 1, 1, 1, 1, 1]",
    ];
    let mut words: Vec<String> = Vec::new();
    for c in text.chars() {
        match words.last_mut() {
            Some(word) if c.is_alphanumeric() && word.ends_with(char::is_alphanumeric) => word.push(c),
            _ => words.push(c.to_string()),
        }
    }
    for _ in 0..1 + draws.below(3) {
        let at = draws.below(words.len().max(1));
        let word = WORDS[draws.below(WORDS.len())].to_owned();
        match draws.below(4) {
            0 => words.insert(at, word),
            1 if at < words.len() => drop(words.remove(at)),
            2 if at < words.len() => {
                let other = draws.below(words.len());
                words.swap(at, other);
            }
            _ if at < words.len() => words[at] = word,
            _ => {}
        }
    }
    words.concat()
}

fn parse_and_print(text: &str) {
    if let Ok(graph) = text.parse::<Graph>() {
        let printed = graph.to_string();
        let again: Graph = printed.parse().unwrap_or_else(|e| panic!("{e}\n{printed}"));
        assert_eq!(again.to_string(), printed);
    }
}

#[test]
fn every_sample_of_every_op_parses_and_prints() {
    for text in texts() {
        text.parse::<Graph>().unwrap_or_else(|e| panic!("{e}\n{text}"));
        parse_and_print(&text);
    }
}

#[test]
fn no_text_makes_the_parser_panic() {
    let texts = texts();
    let mut wrong = Vec::new();
    for seed in 0..40_000u64 {
        let mut draws = Draws(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        draws.below(2);
        let text = mutated(&texts[draws.below(texts.len())], &mut draws);
        if std::panic::catch_unwind(|| parse_and_print(&text)).is_err() {
            wrong.push(format!("seed {seed}:\n{text}"));
        }
    }
    assert!(wrong.is_empty(), "{} texts panic, such as\n{}", wrong.len(), wrong.concat());
}
