//! What goes wrong in one simulated run, drawn from a seed.

use crate::sync::Sync;
use crate::table::mix;

/// Random numbers from a seed.
#[derive(Debug, Clone)]
pub struct Draw(u64);

impl Draw {
    /// A stream of its own for each pair of numbers.
    pub fn new(seed: u64, stream: u64) -> Self {
        Self(mix(seed) ^ mix(stream.wrapping_mul(0x517c_c1b7_2722_0a95)))
    }

    /// Any number.
    pub fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.any() % n.max(1)
    }

    /// Whether something of this many in a thousand happens.
    pub fn happens(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }
}

/// One process of the simulated cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Node {
    /// A coordinator, by number. When there are several, they elect one of them.
    Coordinator(u32),
    /// A server, by number.
    Server(u32),
    /// A worker, by number.
    Worker(u32),
}

/// Something that goes wrong at a moment, in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// When.
    pub at: u64,
    /// What.
    pub what: What,
}

/// What goes wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// Memory is lost; the process starts again after so long.
    Crash(Node, u64),
    /// The process stands still for so long, like under SIGSTOP.
    Pause(Node, u64),
    /// No message passes between these and the others for so long.
    Partition(Vec<Node>, u64),
    /// No message passes from the first to the second for so long; the other way it does.
    Cut(Node, Node, u64),
    /// A process that was not there comes.
    Arrive(Node),
    /// A process asks to go.
    Leave(Node),
}

/// A simulated run: its size, its mode and all that goes wrong.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// From which it was drawn; also drives the network.
    pub seed: u64,
    /// The consistency.
    pub sync: Sync,
    /// Coordinators: one that remembers in a file, or several that elect one.
    pub n_coordinators: u32,
    /// Workers at the start.
    pub n_workers: u32,
    /// Servers at the start.
    pub n_servers: u32,
    /// Shards.
    pub n_shards: u32,
    /// Slots.
    pub n_slots: u32,
    /// Servers per shard.
    pub replicas: u32,
    /// How many clocks every slot makes.
    pub clocks: u64,
    /// How many in a thousand messages are lost.
    pub loss: u64,
    /// How many in a thousand messages come twice.
    pub twice: u64,
    /// The longest ordinary delay of a message, in microseconds.
    pub delay: u64,
    /// How long 100 bytes take between a worker and a server or two servers, in microseconds.
    pub slow: u64,
    /// What goes wrong, in order of time.
    pub faults: Vec<Fault>,
}

/// Faults come within so many milliseconds.
const CHAOS: u64 = 1200;

impl Schedule {
    /// The schedule of a seed.
    pub fn new(seed: u64) -> Self {
        let mut d = Draw::new(seed, 1);
        let (mut elections, mut links) = (Draw::new(seed, 3), Draw::new(seed, 4));
        let n_slots = 2 + d.below(4) as u32;
        let sync = match d.below(5) {
            0 | 1 => Sync::Bsp,
            2 => Sync::Ssp(1 + d.below(4)),
            3 => Sync::Async,
            _ => Sync::Backup(1 + d.below(u64::from(n_slots) - 1) as u32),
        };
        let n_servers = 1 + d.below(4) as u32;
        let n_workers = 1 + d.below(u64::from(n_slots)) as u32;
        let mut schedule = Self {
            seed,
            sync,
            n_coordinators: if elections.below(4) == 0 { 2 } else { 1 },
            n_workers,
            n_servers,
            n_shards: 1 + d.below(3) as u32,
            n_slots,
            replicas: 1 + d.below(3) as u32,
            clocks: 4 + d.below(10),
            loss: [0, 0, 20, 100, 250][d.below(5) as usize],
            twice: [0, 50, 300][d.below(3) as usize],
            delay: [500, 5_000, 40_000][d.below(3) as usize],
            // So that a state takes no time, a third of what it takes until it is missed, or twice as long.
            slow: [0, 0, 0, 4_000, 25_000][links.below(5) as usize],
            faults: Vec::new(),
        };
        let mut faults: Vec<Fault> = (0..d.below(10)).map(|_| schedule.fault(&mut d)).collect();
        if schedule.n_coordinators > 1 {
            faults.extend((0..=elections.below(4)).map(|_| schedule.deposing(&mut elections)));
        }
        faults.sort_by_key(|f| f.at);
        schedule.faults = faults;
        schedule
    }

    fn fault(&self, d: &mut Draw) -> Fault {
        let (at, length) = (d.below(CHAOS), 20 + d.below(700));
        let what = match d.below(12) {
            0..=3 => What::Crash(self.node(d), length),
            4..=6 => What::Pause(self.node(d), length),
            7 => What::Partition((0..=d.below(3)).map(|_| self.node(d)).collect(), length),
            8 => What::Cut(self.node(d), self.node(d), length),
            9 => What::Arrive(Node::Worker(self.n_workers + d.below(2) as u32)),
            10 => What::Arrive(Node::Server(self.n_servers)),
            _ => What::Leave(match self.node(d) {
                Node::Coordinator(_) => Node::Worker(0),
                other => other,
            }),
        };
        Fault { at, what }
    }

    /// Something that may cost a coordinator its place.
    fn deposing(&self, d: &mut Draw) -> Fault {
        let (at, length) = (d.below(CHAOS), 100 + d.below(900));
        let node = Node::Coordinator(d.below(u64::from(self.n_coordinators)) as u32);
        let what = match d.below(4) {
            0 => What::Crash(node, length),
            1 => What::Partition(vec![node], length),
            _ => What::Pause(node, length),
        };
        Fault { at, what }
    }

    /// Servers are hit most: they have most to lose.
    fn node(&self, d: &mut Draw) -> Node {
        match d.below(10) {
            0 => Node::Coordinator(0),
            1..=3 => Node::Worker(d.below(u64::from(self.n_workers)) as u32),
            _ => Node::Server(d.below(u64::from(self.n_servers)) as u32),
        }
    }

    /// The same with only some of the faults, by position.
    pub fn keeping(&self, faults: &[usize]) -> Self {
        let kept = faults.iter().filter_map(|i| self.faults.get(*i).cloned()).collect();
        Self { faults: kept, ..self.clone() }
    }
}
