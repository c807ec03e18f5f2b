//! The replicated state of one shard: tables, clocks and the marks that make pushes exactly-once.
//!
//! Everything that outlives a crash is here, and it changes only by [`State::apply`] of a [`Record`]:
//! parameters, marks and clocks in one step. The first of a chain makes the records, the others apply
//! the same ones, so all copies are equal bit by bit. No I/O, no clock on the wall, ordered maps.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use crate::error::Refusal;
use crate::ids::{Clock, Slot, TableId};
use crate::mechanisms::Mechanisms;
use crate::rule::Registry;
use crate::snapshot::Cuts;
use crate::sync::Sync;
use crate::table::{Contents, Delta, PartSpec, Table, Version, Want};
use crate::values::Values;

/// The gradients of one push, for the tables it touches. A push without any only moves the clock.
pub type Update = BTreeMap<TableId, Delta>;
/// What a pull asks for.
pub type Wants = BTreeMap<TableId, Want>;
/// What a pull brings.
pub type Reads = BTreeMap<TableId, Values>;
/// The tables of a shard.
pub type Tables = BTreeMap<TableId, Table>;
/// The parts to create: what they look like, and the first values of the dense ones.
pub type Parts = BTreeMap<TableId, (PartSpec, Values)>;

/// One change of a shard.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// Tables that were not there.
    Create(Arc<Parts>),
    /// A closed round: whose pushes count, and their sum in the order of the slots.
    Round {
        /// The round's clock.
        clock: Clock,
        /// Whose pushes are in the sum.
        slots: Vec<Slot>,
        /// The sum.
        sum: Arc<Update>,
    },
    /// One push, where pushes are not gathered.
    Push {
        /// Whose it is.
        slot: Slot,
        /// Its number.
        clock: Clock,
        /// The gradients.
        update: Arc<Update>,
    },
}

impl Record {
    /// How many values it carries.
    pub fn n_values(&self) -> usize {
        match self {
            Record::Create(parts) => parts.values().map(|(_, values)| values.len()).sum(),
            Record::Round { sum: update, .. } | Record::Push { update, .. } => {
                update.values().map(Delta::n_values).sum()
            }
        }
    }
}

/// How a push ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pushed {
    /// It is in the parameters, by this request.
    Applied,
    /// It was there already.
    Duplicate,
    /// Its round was closed without it.
    Stale,
}

/// What all shards of a run agree on.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The consistency.
    pub sync: Sync,
    /// Into how many slots a batch is divided.
    pub n_slots: usize,
    /// A snapshot is taken at every multiple of this clock.
    pub snapshot_every: Option<Clock>,
    /// The rules and functions of the program.
    pub registry: Registry,
    /// What the tests may switch off, to see that they notice.
    pub mechanisms: Mechanisms,
}

impl Plan {
    /// A plan with everything switched on and nothing registered.
    pub fn new(sync: Sync, n_slots: usize) -> Self {
        let (registry, mechanisms) = (Registry::default(), Mechanisms::default());
        Self { sync, n_slots, snapshot_every: None, registry, mechanisms }
    }
}

/// The state of one shard after `index` records.
#[derive(Debug, Clone)]
pub struct State {
    plan: Arc<Plan>,
    index: u64,
    version: Clock,              // every round below is closed
    marks: Vec<Clock>,           // by slot: every push below is settled
    counted: Vec<Option<Clock>>, // by slot: the last push that counted
    tables: Tables,
    created: bool, // all tables that the program has are there
    cuts: Cuts,
}

/// A state on its way to another server.
#[derive(Debug, Clone, PartialEq)]
pub struct Sent {
    pub(crate) index: u64,
    pub(crate) version: Clock,
    pub(crate) marks: Vec<Clock>,
    pub(crate) counted: Vec<Option<Clock>>,
    pub(crate) tables: BTreeMap<TableId, (PartSpec, Contents)>,
    pub(crate) created: bool,
}

impl Sent {
    /// How many values it carries.
    pub(crate) fn n_values(&self) -> usize {
        self.tables.values().map(|(_, contents)| contents.n_values()).sum()
    }
}

/// A shard exactly at a clock: every push below it, none above.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The clock.
    pub clock: Clock,
    /// The tables at that clock.
    pub tables: Tables,
}

impl State {
    /// An empty shard.
    pub fn new(plan: Arc<Plan>) -> Self {
        Self::restored(plan, Snapshot { clock: 0, tables: Tables::new() })
    }

    /// A shard that goes on from a snapshot.
    pub fn restored(plan: Arc<Plan>, from: Snapshot) -> Self {
        let Snapshot { clock, tables } = from;
        let (marks, counted) = (vec![clock; plan.n_slots], vec![None; plan.n_slots]);
        let cuts = Cuts::new(plan.snapshot_every, clock);
        Self { plan, index: 0, version: clock, marks, counted, tables, created: false, cuts }
    }

    /// A copy of another server's state, from what was sent.
    pub(crate) fn received(plan: Arc<Plan>, sent: Sent) -> Result<Self, Refusal> {
        let Sent { index, version, marks, counted, tables: parts, created } = sent;
        let n_slots = plan.n_slots;
        if marks.len() != n_slots || counted.len() != n_slots {
            return Err(Refusal::Slot { got: marks.len() as u32, n_slots });
        }
        let mut tables = Tables::new();
        for (id, (spec, contents)) in parts {
            tables.insert(id, Table::received(id, spec, contents, &plan.registry)?);
        }
        let furthest = marks.iter().copied().max().unwrap_or(version);
        let cuts = Cuts::resumed(plan.snapshot_every, version, furthest);
        Ok(Self { plan, index, version, marks, counted, tables, created, cuts })
    }

    /// What another server needs to go on from here.
    pub(crate) fn to_send(&self) -> Sent {
        let tables = self.tables.iter().map(|(id, t)| (*id, (t.spec().clone(), t.stored()))).collect();
        let (marks, counted) = (self.marks.clone(), self.counted.clone());
        Sent { index: self.index, version: self.version, marks, counted, tables, created: self.created }
    }

    /// How many records it has applied.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Every round below this clock is closed.
    pub fn version(&self) -> Clock {
        self.version
    }

    /// What the run agreed on.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The slot's next clock: every push of it below is settled.
    pub fn mark(&self, slot: Slot) -> Result<Clock, Refusal> {
        let n_slots = self.marks.len();
        self.marks.get(slot.0 as usize).copied().ok_or(Refusal::Slot { got: slot.0, n_slots })
    }

    /// How a push ended that came before, or `None` when it is the slot's next.
    pub fn settled(&self, slot: Slot, clock: Clock) -> Result<Option<Pushed>, Refusal> {
        let mark = self.mark(slot)?;
        if clock > mark {
            return Err(Refusal::Clock { want: mark, got: clock });
        }
        let Mechanisms { dedup, round_dedup, .. } = self.plan.mechanisms;
        if clock == mark || !(if self.plan.sync.gathers() { round_dedup } else { dedup }) {
            return Ok(None);
        }
        let counted = match self.plan.sync {
            // A slot has one push under way, so the last that counted is enough to tell the two apart.
            Sync::Backup(_) => self.counted[slot.0 as usize] == Some(clock),
            _ => true,
        };
        Ok(Some(if counted { Pushed::Duplicate } else { Pushed::Stale }))
    }

    /// Whether every table is there and fits.
    pub fn check(&self, update: &Update) -> Result<(), Refusal> {
        update.iter().try_for_each(|(id, delta)| {
            self.tables.get(id).ok_or(Refusal::NoTable { table: *id })?.check(*id, delta)
        })
    }

    /// The parts that are not there yet; an error when one is there otherwise.
    pub fn missing(&self, parts: &Parts) -> Result<Parts, Refusal> {
        let mut missing = Parts::new();
        for (id, (spec, values)) in parts {
            match self.tables.get(id) {
                Some(table) if table.spec() != spec => return Err(Refusal::Mismatch { table: *id }),
                Some(_) => {}
                None => {
                    Table::new(*id, spec.clone(), values, &self.plan.registry)?;
                    missing.insert(*id, (spec.clone(), values.clone()));
                }
            }
        }
        Ok(missing)
    }

    /// Whether every table that the program has is there. The owner of the first slot creates them all at once, and others
    /// may ask before that; what is not there after it never will be.
    pub fn is_created(&self) -> bool {
        self.created
    }

    /// Whether a slot at this clock may read: all updates below `clock - s` are in, and its own. With
    /// `fresh`, as if `s` were zero. A read of a table that nobody will create is not kept waiting: it is refused.
    pub fn readable(&self, slot: Slot, clock: Clock, wants: &Wants, fresh: bool) -> bool {
        let slack = if self.plan.mechanisms.staleness_bound { 0 } else { 2 };
        let bound = match self.plan.sync.staleness() {
            _ if fresh => self.version >= clock,
            Some(s) => self.version + s + slack >= clock,
            None => true,
        };
        let own = self.marks.get(slot.0 as usize).is_some_and(|mark| *mark >= clock);
        let there = |id: TableId| self.tables.contains_key(&id) || self.created;
        bound && own && wants.iter().all(|(id, want)| there(want.table(*id)))
    }

    /// The values for a slot at this clock. In BSP they are those of exactly this clock, even when a
    /// faster shard has gone one round further: who takes over a slot must see what its owner saw.
    pub fn read(&self, clock: Clock, wants: &Wants) -> Result<Reads, Refusal> {
        let version = match self.plan.sync {
            Sync::Bsp if self.version == clock + 1 => Version::Previous,
            Sync::Bsp if self.version > clock => {
                return Err(Refusal::Clock { want: self.version, got: clock });
            }
            _ => Version::Current,
        };
        let mut reads = Reads::new();
        for (id, want) in wants {
            let from = want.table(*id);
            let table = self.tables.get(&from).ok_or(Refusal::NoTable { table: from })?;
            reads.insert(*id, table.read(from, version, want, &self.plan.registry)?);
        }
        Ok(reads)
    }

    /// The state as it is, when every slot stands at this clock.
    pub fn standing(&self, clock: Clock) -> Result<Snapshot, Refusal> {
        match self.marks.iter().find(|mark| **mark != clock) {
            None if self.version == clock => Ok(Snapshot { clock, tables: self.tables.clone() }),
            other => Err(Refusal::Clock { want: *other.unwrap_or(&self.version), got: clock }),
        }
    }

    /// Makes one change, whole. The record was checked by whoever made it. Returns the snapshots that
    /// it completed.
    pub fn apply(&mut self, record: &Record) -> Vec<Snapshot> {
        self.index += 1;
        match record {
            Record::Create(parts) => {
                for (id, (spec, values)) in parts.iter() {
                    let table = Table::new(*id, spec.clone(), values, &self.plan.registry)
                        .expect("the same program made the record after the same check");
                    self.tables.insert(*id, table);
                }
                self.created = true;
                Vec::new()
            }
            Record::Round { clock, slots, sum } => {
                update(&mut self.tables, *clock, &self.plan.registry.seen_jointly(sum), true);
                self.version = clock + 1;
                self.marks.fill(self.version);
                for slot in slots {
                    self.counted[slot.0 as usize] = Some(*clock);
                }
                self.cuts.completed(self.version, &self.tables)
            }
            Record::Push { slot, clock, update: gradients } => {
                self.cuts.before(*clock, &self.tables);
                update(&mut self.tables, *clock, gradients, false);
                self.cuts.beside(*clock, |tables| update(tables, *clock, gradients, false));
                let mark = &mut self.marks[slot.0 as usize];
                *mark = (*mark).max(clock + 1);
                self.version = self.marks.iter().copied().min().unwrap_or(0);
                self.cuts.completed(self.version, &self.tables)
            }
        }
    }

    /// A number that differs when any bit of the state does.
    pub fn hash(&self) -> u64 {
        let mut h = DefaultHasher::new();
        [self.index, self.version, self.created.into()]
            .iter()
            .chain(&self.marks)
            .for_each(|n| h.write_u64(*n));
        self.counted.iter().for_each(|c| h.write_u64(c.map_or(0, |c| c + 1)));
        self.tables.values().for_each(|t| t.hash(&mut h));
        h.finish()
    }

    /// The tables as they are now.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }
}

/// Applies gradients to the tables they are for. With `round`, the others note that a round went by.
fn update(tables: &mut Tables, clock: Clock, gradients: &Update, round: bool) {
    for (id, table) in tables {
        match gradients.get(id) {
            Some(delta) => table.update(clock + 1, delta, round),
            None if round => table.skip(),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::Rule;
    use crate::table::Form;

    const T: TableId = TableId(0);

    fn shard(sync: Sync, n_slots: usize) -> State {
        let mut state = State::new(Arc::new(Plan::new(sync, n_slots)));
        let spec = PartSpec { form: Form::Dense { len: 1 }, rule: Rule::Add };
        state.apply(&Record::Create(Arc::new(Parts::from([(T, (spec, vec![0.0].into()))]))));
        state
    }

    fn add(v: f32) -> Arc<Update> {
        Arc::new(Update::from([(T, Delta::Dense(vec![v].into()))]))
    }

    fn wants() -> Wants {
        Wants::from([(T, Want::Dense)])
    }

    #[test]
    fn a_shard_is_saved_as_it_is_only_when_every_slot_stands_at_that_clock() {
        let mut state = shard(Sync::Ssp(2), 2);
        state.apply(&Record::Push { slot: Slot(0), clock: 0, update: add(1.0) });
        assert_eq!(state.standing(1).err(), Some(Refusal::Clock { want: 0, got: 1 }), "slot 1 is behind");
        state.apply(&Record::Push { slot: Slot(1), clock: 0, update: add(1.0) });
        assert_eq!(state.standing(1).unwrap().clock, 1);
        assert!(state.standing(0).is_err() && state.standing(2).is_err());
    }

    #[test]
    fn ssp_lets_a_slot_read_exactly_up_to_its_bound() {
        let mut state = shard(Sync::Ssp(2), 2);
        for clock in 0..2 {
            state.apply(&Record::Push { slot: Slot(0), clock, update: add(1.0) });
        }
        assert!(
            state.readable(Slot(0), 2, &wants(), false),
            "two clocks ahead of slot 1 is within the bound"
        );
        state.apply(&Record::Push { slot: Slot(0), clock: 2, update: add(1.0) });
        assert!(!state.readable(Slot(0), 3, &wants(), false), "three is not");
        state.apply(&Record::Push { slot: Slot(1), clock: 0, update: add(1.0) });
        assert!(state.readable(Slot(0), 3, &wants(), false));
        assert!(!state.readable(Slot(1), 2, &wants(), false), "its own push is not there");
    }

    #[test]
    fn a_push_that_was_applied_is_a_duplicate_and_one_too_early_is_refused() {
        let mut state = shard(Sync::Async, 2);
        assert_eq!(state.settled(Slot(1), 0), Ok(None));
        state.apply(&Record::Push { slot: Slot(1), clock: 0, update: add(1.0) });
        assert_eq!(state.settled(Slot(1), 0), Ok(Some(Pushed::Duplicate)));
        assert_eq!(state.settled(Slot(1), 5), Err(Refusal::Clock { want: 1, got: 5 }));
        assert_eq!(state.settled(Slot(2), 0), Err(Refusal::Slot { got: 2, n_slots: 2 }));
    }

    #[test]
    fn a_push_too_late_for_its_round_is_stale_and_one_that_counted_is_not() {
        let mut state = shard(Sync::Backup(1), 3);
        state.apply(&Record::Round { clock: 0, slots: vec![Slot(0), Slot(2)], sum: add(1.0) });
        assert_eq!(state.settled(Slot(2), 0), Ok(Some(Pushed::Duplicate)));
        assert_eq!(state.settled(Slot(1), 0), Ok(Some(Pushed::Stale)));
    }

    #[test]
    fn what_is_done_to_a_whole_round_is_done_to_its_sum_and_to_no_single_push() {
        let halved = |sum: &Update| -> Update {
            let half = |delta: &Delta| match delta {
                Delta::Dense(values) => Delta::Dense(values.iter().map(|v| v / 2.0).collect()),
                other => other.clone(),
            };
            sum.iter().map(|(id, delta)| (*id, half(delta))).collect()
        };
        for (sync, want) in [(Sync::Bsp, 5.0), (Sync::Async, 10.0)] {
            let plan = Plan { registry: Registry::default().jointly(halved), ..Plan::new(sync, 1) };
            let mut state = State { plan: Arc::new(plan), ..shard(sync, 1) };
            state.apply(&match sync {
                Sync::Bsp => Record::Round { clock: 0, slots: vec![Slot(0)], sum: add(10.0) },
                _ => Record::Push { slot: Slot(0), clock: 0, update: add(10.0) },
            });
            assert_eq!(state.read(1, &wants()).unwrap()[&T][..], [want], "{sync}");
        }
    }

    #[test]
    fn who_takes_over_a_slot_in_bsp_reads_what_its_owner_read() {
        let mut state = shard(Sync::Bsp, 1);
        for clock in 0..3 {
            state.apply(&Record::Round { clock, slots: vec![Slot(0)], sum: add(1.0) });
        }
        assert_eq!(state.read(3, &wants()).unwrap()[&T][..], [3.0]);
        assert_eq!(state.read(2, &wants()).unwrap()[&T][..], [2.0]);
        assert_eq!(state.read(1, &wants()), Err(Refusal::Clock { want: 3, got: 1 }));
    }

    #[test]
    fn a_read_waits_for_tables_to_be_created_and_not_for_one_that_will_never_be() {
        let mut state = State::new(Arc::new(Plan::new(Sync::Bsp, 2)));
        let never = Wants::from([(TableId(7), Want::Dense)]);
        assert!(!state.readable(Slot(1), 0, &wants(), false), "slot 0 has not created it yet");
        assert!(!state.readable(Slot(1), 0, &never, false), "nor this one");
        let spec = PartSpec { form: Form::Dense { len: 1 }, rule: Rule::Add };
        state.apply(&Record::Create(Arc::new(Parts::from([(T, (spec, vec![0.0].into()))]))));
        assert!(state.readable(Slot(1), 0, &wants(), false));
        assert!(state.readable(Slot(1), 0, &never, false));
        assert_eq!(state.read(0, &never), Err(Refusal::NoTable { table: TableId(7) }));
    }

    #[test]
    fn a_table_created_twice_is_created_once_and_never_otherwise() {
        let state = shard(Sync::Bsp, 1);
        let part = |len, rule| {
            Parts::from([(T, (PartSpec { form: Form::Dense { len }, rule }, vec![0.0; len].into()))])
        };
        assert_eq!(state.missing(&part(1, Rule::Add)), Ok(Parts::new()));
        assert_eq!(state.missing(&part(2, Rule::Add)), Err(Refusal::Mismatch { table: T }));
        let unknown = Parts::from([(
            TableId(1),
            (PartSpec { form: Form::Dense { len: 0 }, rule: Rule::Named("x".into()) }, Values::default()),
        )]);
        assert!(matches!(state.missing(&unknown), Err(Refusal::UnknownRule { .. })));
    }
}
