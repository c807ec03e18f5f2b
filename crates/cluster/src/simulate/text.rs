//! Schedules as text, which reads back as it was: what is printed can be played again.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::schedule::{Fault, Node, Schedule, What};

/// A line that is no part of a schedule.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("simulate: {line:?} is no line of a schedule")]
pub struct BadLine {
    /// The line.
    pub line: String,
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Node::Coordinator(i) => write!(f, "coordinator-{i}"),
            Node::Server(i) => write!(f, "server-{i}"),
            Node::Worker(i) => write!(f, "worker-{i}"),
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "seed {}: {}, {} coordinators, {} workers, {} servers, {} shards, {} slots, {} replicas, {} clocks",
            self.seed,
            self.sync,
            self.n_coordinators,
            self.n_workers,
            self.n_servers,
            self.n_shards,
            self.n_slots,
            self.replicas,
            self.clocks
        )?;
        writeln!(
            f,
            "  network: {} in 1000 lost, {} twice, up to {} us late, {} us per 100 bytes",
            self.loss, self.twice, self.delay, self.slow
        )?;
        self.faults.iter().try_for_each(|fault| writeln!(f, "  at {:4} ms: {}", fault.at, fault.what))
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Crash(node, ms) => write!(f, "{node} crashes and is back after {ms} ms"),
            What::Pause(node, ms) => write!(f, "{node} stands still for {ms} ms"),
            What::Partition(nodes, ms) => {
                let names: Vec<_> = nodes.iter().map(Node::to_string).collect();
                write!(f, "{} cut off for {ms} ms", names.join(", "))
            }
            What::Cut(from, to, ms) => write!(f, "nothing passes from {from} to {to} for {ms} ms"),
            What::Arrive(node) => write!(f, "{node} comes"),
            What::Leave(node) => write!(f, "{node} asks to go"),
        }
    }
}

impl FromStr for Node {
    type Err = BadLine;

    fn from_str(text: &str) -> Result<Self, BadLine> {
        let (kind, number) = text.rsplit_once('-').ok_or_else(|| bad(text))?;
        let number = number.parse().map_err(|_| bad(text))?;
        match kind {
            "coordinator" => Ok(Node::Coordinator(number)),
            "server" => Ok(Node::Server(number)),
            "worker" => Ok(Node::Worker(number)),
            _ => Err(bad(text)),
        }
    }
}

impl FromStr for What {
    type Err = BadLine;

    fn from_str(text: &str) -> Result<Self, BadLine> {
        let during =
            |rest: &str| rest.strip_suffix(" ms").and_then(|ms| ms.parse().ok()).ok_or_else(|| bad(text));
        if let Some((node, rest)) = text.split_once(" crashes and is back after ") {
            return Ok(What::Crash(node.parse()?, during(rest)?));
        }
        if let Some((node, rest)) = text.split_once(" stands still for ") {
            return Ok(What::Pause(node.parse()?, during(rest)?));
        }
        if let Some((nodes, rest)) = text.split_once(" cut off for ") {
            let nodes = nodes.split(", ").map(str::parse).collect::<Result<_, _>>()?;
            return Ok(What::Partition(nodes, during(rest)?));
        }
        if let Some(rest) = text.strip_prefix("nothing passes from ") {
            let (from, rest) = rest.split_once(" to ").ok_or_else(|| bad(text))?;
            let (to, rest) = rest.split_once(" for ").ok_or_else(|| bad(text))?;
            return Ok(What::Cut(from.parse()?, to.parse()?, during(rest)?));
        }
        match (text.strip_suffix(" comes"), text.strip_suffix(" asks to go")) {
            (Some(node), _) => Ok(What::Arrive(node.parse()?)),
            (_, Some(node)) => Ok(What::Leave(node.parse()?)),
            _ => Err(bad(text)),
        }
    }
}

impl FromStr for Schedule {
    type Err = BadLine;

    fn from_str(text: &str) -> Result<Self, BadLine> {
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let first = lines.next().unwrap_or_default();
        let (seed, rest) =
            first.strip_prefix("seed ").and_then(|l| l.split_once(": ")).ok_or_else(|| bad(first))?;
        let (sync, sizes) = rest.split_once(", ").ok_or_else(|| bad(first))?;
        let [n_coordinators, n_workers, n_servers, n_shards, n_slots, replicas, clocks] = numbers(sizes)?;
        let size = |n: u64| u32::try_from(n).map_err(|_| bad(first));
        let network = lines.next().unwrap_or_default();
        let [loss, _, twice, delay, slow, _] = numbers(network)?;
        let mut faults = Vec::new();
        for line in lines {
            let (at, what) =
                line.strip_prefix("at ").and_then(|l| l.split_once(" ms: ")).ok_or_else(|| bad(line))?;
            let at = at.trim().parse().map_err(|_| bad(line))?;
            faults.push(Fault { at, what: what.parse()? });
        }
        Ok(Self {
            seed: seed.parse().map_err(|_| bad(first))?,
            sync: sync.parse().map_err(|_| bad(first))?,
            n_coordinators: size(n_coordinators)?,
            n_workers: size(n_workers)?,
            n_servers: size(n_servers)?,
            n_shards: size(n_shards)?,
            n_slots: size(n_slots)?,
            replicas: size(replicas)?,
            clocks,
            loss,
            twice,
            delay,
            slow,
            faults,
        })
    }
}

fn bad(line: &str) -> BadLine {
    BadLine { line: line.to_owned() }
}

/// All numbers of a line, when there are so many.
fn numbers<const N: usize>(line: &str) -> Result<[u64; N], BadLine> {
    let words = line.split(|c: char| !c.is_ascii_digit()).filter(|word| !word.is_empty());
    let all: Vec<u64> = words.map(|word| word.parse().map_err(|_| bad(line))).collect::<Result<_, _>>()?;
    all.try_into().map_err(|_| bad(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_schedule_reads_back_from_its_own_text() {
        for seed in 0..2000 {
            let schedule = Schedule::new(seed);
            assert_eq!(schedule.to_string().parse(), Ok(schedule));
        }
    }

    #[test]
    fn a_line_that_means_nothing_is_named() {
        let schedule = Schedule::new(1);
        let text = schedule.to_string();
        let wrong = format!("{text}  at   12 ms: server-0 sneezes\n");
        assert_eq!(wrong.parse::<Schedule>(), Err(bad("server-0 sneezes")));
        assert_eq!("".parse::<Schedule>(), Err(bad("")));
        assert!(text.replace(" slots", "").parse::<Schedule>().is_ok(), "only the numbers count");
        assert!(text.replacen(&schedule.sync.to_string(), "quick", 1).parse::<Schedule>().is_err());
    }
}
