//! How a newcomer is brought up to date, message by message.

use std::sync::Arc;

use thalweg_cluster::message::{Answer, Call, Data, Message, Outcome, Outgoing};
use thalweg_cluster::replica::Replica;
use thalweg_cluster::state::{Parts, Plan, State, Update};
use thalweg_cluster::table::{Delta, Form, PartSpec};
use thalweg_cluster::view::Chain;
use thalweg_cluster::{CallId, Clock, Epoch, Peer, Rule, ServerId, SessionId, ShardId, Slot, Sync, TableId};

const SHARD: ShardId = ShardId(0);
const T: TableId = TableId(0);
const HEAD: ServerId = ServerId(1);
const NEWCOMER: ServerId = ServerId(2);
const WORKER: Peer = Peer::Worker(SessionId(3));

struct Two {
    head: Replica,
    newcomer: Replica,
    clock: Clock,
}

impl Two {
    /// A head with a table of four values, and a newcomer that has nothing. What the head says to it.
    fn new() -> (Self, Vec<Data>) {
        let plan = Arc::new(Plan::new(Sync::Async, 1));
        let mut two = Self {
            head: Replica::new(SHARD, plan.clone(), Some(State::new(plan.clone()))),
            newcomer: Replica::new(SHARD, plan, None),
            clock: 0,
        };
        let alone = Chain { members: vec![HEAD], ..Chain::default() };
        two.head.adopt(Epoch(1), &alone, HEAD, &mut Vec::new());
        assert_eq!(answers(&two.push(true)), 1);
        let out = two.adopt(2);
        (two, out)
    }

    /// The same newcomer, since view 2, in a later view.
    fn adopt(&mut self, epoch: u64) -> Vec<Data> {
        let chain = Chain { members: vec![HEAD], joining: Some((NEWCOMER, Epoch(2))), ..Chain::default() };
        let mut out = Vec::new();
        self.head.adopt(Epoch(epoch), &chain, HEAD, &mut out);
        self.newcomer.adopt(Epoch(epoch), &chain, NEWCOMER, &mut Vec::new());
        data(out)
    }

    /// The next push of the only slot, with values or none.
    fn push(&mut self, values: bool) -> Vec<Data> {
        let delta = values.then(|| (T, Delta::Dense(vec![1.0; 4].into())));
        let spec = PartSpec { form: Form::Dense { len: 4 }, rule: Rule::Add };
        let call = Call {
            epoch: Epoch(1),
            shard: SHARD,
            id: CallId(self.clock + 1),
            slot: Slot(0),
            clock: self.clock,
            create: Some(Arc::new(Parts::from([(T, (spec, vec![0.0; 4].into()))]))),
            push: Some(Arc::new(Update::from_iter(delta))),
            pull: None,
            fresh: false,
            save: false,
        };
        self.clock += 1;
        let mut out = Vec::new();
        self.head.call(WORKER, call, &mut out);
        data(out)
    }

    fn look(&mut self) -> Vec<Data> {
        let mut out = Vec::new();
        self.head.look_after(&mut out);
        data(out)
    }

    /// The newcomer takes this in, the head its acknowledgements, and so on until nobody says anything more to the other.
    /// What the head says to workers.
    fn deliver(&mut self, message: &Data) -> Vec<Data> {
        let (mut to_newcomer, mut to_worker) = (vec![message.clone()], Vec::new());
        while !to_newcomer.is_empty() {
            let mut back = Vec::new();
            for message in to_newcomer.drain(..) {
                match message {
                    Data::Install { state, .. } => self.newcomer.install(HEAD, &state, &mut back),
                    Data::Replicate { index, record, .. } => {
                        self.newcomer.replicate(HEAD, index, record, &mut back);
                    }
                    other => panic!("{other:?} is not for a newcomer"),
                }
            }
            let mut out = Vec::new();
            for message in data(back) {
                let Data::Replicated { index, .. } = message else { panic!("{message:?}") };
                self.head.replicated(NEWCOMER, index, &mut out);
            }
            for message in data(out) {
                if answers(std::slice::from_ref(&message)) > 0 {
                    to_worker.push(message);
                } else {
                    to_newcomer.push(message);
                }
            }
        }
        to_worker
    }

    fn equal(&self) -> bool {
        let hash = |replica: &Replica| replica.state().map(State::hash);
        hash(&self.head) == hash(&self.newcomer)
    }
}

fn data(out: Vec<Outgoing>) -> Vec<Data> {
    let data = |(_, message)| if let Message::Data(data) = message { data } else { panic!("{message:?}") };
    out.into_iter().map(data).collect()
}

fn answers(out: &[Data]) -> usize {
    let done = |d: &&Data| matches!(d, Data::Answer(Answer { outcome: Outcome::Done(_), .. }));
    out.iter().filter(done).count()
}

fn states(out: &[Data]) -> usize {
    out.iter().filter(|d| matches!(d, Data::Install { .. })).count()
}

#[test]
fn a_state_that_comes_late_is_taken_and_only_the_records_since_follow() {
    let (mut two, first) = Two::new();
    assert_eq!(states(&first), 1);
    assert_eq!(answers(&two.push(false)), 1, "nobody waits for a newcomer that has nothing yet");
    assert_eq!(states(&two.look()), 0, "it may be on its way");
    assert_eq!(states(&two.look()), 1, "it is missed after two looks");
    assert_eq!(two.deliver(&first[0]).len(), 0);
    assert!(two.equal());
    assert_eq!(two.head.caught_up(), Some(NEWCOMER));
    assert_eq!(states(&two.look()) + two.look().len(), 0, "nothing is outstanding");
}

#[test]
fn a_newcomer_slower_than_the_training_holds_up_answers_before_the_log_outgrows_the_state() {
    let (mut two, first) = Two::new();
    // Four values: the first record makes the log as large as the state, which has no version before it.
    let answered: Vec<usize> = (0..3).map(|_| answers(&two.push(true))).collect();
    assert_eq!(answered.iter().sum::<usize>(), 0, "{answered:?}");
    assert_eq!(two.head.caught_up(), None);
    let released = two.deliver(&first[0]);
    assert_eq!(answers(&released), 1, "a slot has one call under way: the last");
    assert!(two.equal());
    assert_eq!(two.head.caught_up(), Some(NEWCOMER));
}

#[test]
fn a_state_on_its_way_outlives_a_change_of_the_view() {
    let (mut two, first) = Two::new();
    let sent = two.adopt(3);
    assert_eq!(states(&sent), 0, "the one of view 2 is still on its way");
    two.deliver(&first[0]);
    assert!(two.equal());
    assert_eq!(two.head.caught_up(), Some(NEWCOMER));
}
