//! Functions that servers run where the values lie, and pushes that were made smaller, on real sockets.

use std::sync::Arc;

use thalweg_cluster::codec::Codec;
use thalweg_cluster::state::Wants;
use thalweg_cluster::table::{Delta, Init, Want};
use thalweg_cluster::{
    Cluster, ClusterError, Gradients, Program, Pulled, Refusal, Registry, Rule, Run, Step, TableId, TableSpec,
};

const DENSE: TableId = TableId(0);
const ROWS: TableId = TableId(1);
const OF_DENSE: TableId = TableId(10);
const OF_ROWS: TableId = TableId(11);

/// Adds to both tables and asks for sums of them, never for the dense values themselves until the end.
struct Summing {
    function: &'static str,
    seen: Vec<(f32, f32)>, // by clock: what the servers said of the dense table and of the rows
}

fn keys() -> Arc<Vec<u64>> {
    Arc::new((0..40).collect())
}

impl Program for &mut Summing {
    fn wants(&mut self, step: Step, _tables: &[TableSpec]) -> Wants {
        let compute = |of| Want::Compute(of, self.function.to_owned(), vec![2.0].into());
        let mut wants = Wants::from([(OF_DENSE, compute(DENSE)), (OF_ROWS, compute(ROWS))]);
        if step.clock == 4 {
            wants.extend([(DENSE, Want::Dense), (ROWS, Want::Rows(keys()))]);
        }
        wants
    }

    fn compute(&mut self, step: Step, pulled: &Pulled) -> Gradients {
        if step.slot.0 == 0 {
            self.seen.push((pulled[&OF_DENSE].iter().sum(), pulled[&OF_ROWS].iter().sum()));
        }
        let dense = Delta::Dense(vec![1.0; 100].into());
        let rows = Delta::Rows(keys(), (0..80).map(|i| f32::from(i % 2 == 0)).collect());
        vec![(DENSE, dense), (ROWS, rows)]
    }
}

/// Two slots, two shards, four clocks.
fn run(function: &'static str) -> Result<(Run, Vec<(f32, f32)>), ClusterError> {
    let registry = Registry::default().compute("squares", |values, factor| values.square().sum(()) * factor);
    let tables = [
        TableSpec::Dense { values: vec![0.0; 100].into(), rule: Rule::Add },
        TableSpec::Rows { width: 2, init: Init::Zero, rule: Rule::Add },
    ];
    let mut summing = Summing { function, seen: Vec::new() };
    let run = Cluster::with(registry)?.with_slots(2).with_shards(2).run(&tables, 4, &mut summing)?;
    Ok((run, summing.seen))
}

#[test]
fn servers_compute_with_tensors_where_the_values_lie() {
    let (run, seen) = run("squares").unwrap();
    // Each clock adds 2 to 100 dense values and to the first of the two values of 40 rows; arguments double the sums.
    let after = |clock: u32| (2 * clock * 2 * clock * 2) as f32;
    let want: Vec<(f32, f32)> = (0..4).map(|clock| (100.0 * after(clock), 40.0 * after(clock))).collect();
    assert_eq!(seen, want);
    assert_eq!(run.pulled[&DENSE][..], [8.0; 100]);
    assert_eq!(run.pulled[&OF_DENSE].len(), 2, "one result of each shard");
    assert_eq!(run.pulled[&OF_DENSE].iter().sum::<f32>(), 100.0 * after(4));
    assert_eq!(run.pulled[&OF_ROWS].iter().sum::<f32>(), 40.0 * after(4));
}

#[test]
fn a_function_that_nobody_registered_is_refused_by_name() {
    let refused = run("cubes").unwrap_err().to_string();
    assert!(refused.contains("cubes"), "{refused}");
}

/// Steps towards 3 with pushes that were made smaller; the distance that is left, and the bytes that were sent.
fn squeezed(codec: Codec) -> (f32, u64) {
    let table = TableSpec::Dense { values: vec![0.0; 20_000].into(), rule: Rule::Sgd { lr: 0.1 } };
    let cluster = Cluster::from_env().unwrap().with_slots(2).with_shards(2).with_codec(codec);
    let towards = |_: Step, pulled: &Pulled| {
        let gradient = pulled[&DENSE].iter().map(|w| (w - 3.0) / 2.0).collect();
        vec![(DENSE, Delta::Dense(gradient))]
    };
    let run = cluster.run(&[table], 60, towards).unwrap();
    let furthest = run.pulled[&DENSE].iter().map(|w| (w - 3.0).abs()).fold(0.0, f32::max);
    (furthest, run.traffic[1])
}

/// The same with rows, of which each slot has its own half.
fn squeezed_rows(codec: Codec) -> (f32, u64) {
    const N: u64 = 2000;
    struct Halves(Vec<Want>);
    impl Program for Halves {
        fn wants(&mut self, step: Step, _: &[TableSpec]) -> Wants {
            Wants::from([(ROWS, self.0[step.slot.0 as usize].clone())])
        }
        fn compute(&mut self, step: Step, pulled: &Pulled) -> Gradients {
            let Want::Rows(rows) = &self.0[step.slot.0 as usize] else { panic!() };
            let gradient = pulled[&ROWS].iter().map(|w| w - 3.0).collect();
            vec![(ROWS, Delta::Rows(rows.clone(), gradient))]
        }
    }
    let halves = [0..N, N..2 * N].map(|rows| Want::Rows(Arc::new(rows.collect())));
    let empty = TableSpec::Dense { values: Vec::new().into(), rule: Rule::Add };
    let table = TableSpec::Rows { width: 16, init: Init::Zero, rule: Rule::Sgd { lr: 0.1 } };
    let cluster = Cluster::from_env().unwrap().with_slots(2).with_shards(2).with_codec(codec);
    let run = cluster.run(&[empty, table], 60, Halves(halves.to_vec())).unwrap();
    let furthest = run.pulled[&ROWS].iter().map(|w| (w - 3.0).abs()).fold(0.0, f32::max);
    (furthest, run.traffic[1])
}

#[test]
fn rows_are_sent_smaller_and_still_arrive_and_top_k_leaves_them_alone() {
    let (plain, bytes) = squeezed_rows(Codec::F32);
    assert!(plain < 0.01, "{plain}");
    for (codec, less) in [(Codec::Bf16, 1.8), (Codec::Int8, 3.0), (Codec::TopK(100), 0.99)] {
        let (left, sent) = squeezed_rows(codec);
        println!("{codec}: {left} left, {sent} bytes instead of {bytes}");
        assert!(left < 0.05, "{codec}: {left} left");
        assert!(sent as f64 * less < bytes as f64, "{codec}: {sent} bytes instead of {bytes}");
        assert!(codec != Codec::TopK(100) || (left, sent > bytes / 2) == (plain, true), "{sent} of {bytes}");
    }
}

#[test]
fn every_codec_sends_less_and_still_arrives() {
    let (plain, bytes) = squeezed(Codec::F32);
    assert!(plain < 0.01, "{plain}");
    for (codec, near, less) in
        [(Codec::Bf16, 0.05, 1.9), (Codec::Int8, 0.05, 3.5), (Codec::TopK(4), 1.0, 1.9)]
    {
        let (left, sent) = squeezed(codec);
        println!("{codec}: {left} left, {sent} bytes instead of {bytes}");
        assert!(left < near, "{codec}: {left} left");
        assert!(sent as f64 * less < bytes as f64, "{codec}: {sent} bytes instead of {bytes}");
    }
}

/// A rule or a function of the user's with a bug in it.
struct Faulty;

impl thalweg_cluster::UpdateRule for Faulty {
    fn update(&self, step: u64, values: &[f32], _gradient: &[f32], _state: &mut [f32], out: &mut [f32]) {
        assert!(step < 3, "a bug in a rule");
        out.copy_from_slice(values);
    }
}

#[test]
fn a_panic_on_a_server_is_an_error_with_its_message() {
    let run = |rule: Rule, wants: Wants| {
        let table = TableSpec::Dense { values: vec![0.0; 4].into(), rule };
        let registry = Registry::default().rule("faulty", Faulty);
        let registry = registry.function("faulty", |_, _, _| -> Vec<f32> { panic!("a bug in a function") });
        Cluster::with(registry).unwrap().run(&[table], 10, Asking(wants)).unwrap_err()
    };
    let compute = Want::Compute(DENSE, "faulty".into(), Default::default());
    for (error, says) in [
        (run(Rule::Named("faulty".into()), Wants::from([(DENSE, Want::Dense)])), "a bug in a rule"),
        (run(Rule::Add, Wants::from([(OF_DENSE, compute)])), "a bug in a function"),
    ] {
        assert!(matches!(&error, ClusterError::Panicked { message } if message.contains(says)), "{error}");
    }
}

struct Asking(Wants);

impl Program for Asking {
    fn wants(&mut self, _step: Step, _tables: &[TableSpec]) -> Wants {
        self.0.clone()
    }

    fn compute(&mut self, _step: Step, _pulled: &Pulled) -> Gradients {
        vec![(DENSE, Delta::Dense(vec![1.0; 4].into()))]
    }
}

/// Reads a table that the program does not begin with, from this clock on.
struct Astray(u64, Want);

impl Program for Astray {
    fn wants(&mut self, step: Step, _tables: &[TableSpec]) -> Wants {
        let (id, want) =
            if step.clock < self.0 { (DENSE, Want::Dense) } else { (TableId(7), self.1.clone()) };
        Wants::from([(id, want)])
    }

    fn compute(&mut self, _step: Step, _pulled: &Pulled) -> Gradients {
        Gradients::new()
    }
}

#[test]
fn a_read_of_a_table_that_nobody_creates_is_an_error_that_names_it() {
    let compute = Want::Compute(TableId(7), "squares".into(), vec![].into());
    for (clock, want) in [(0, Want::Dense), (2, Want::Dense), (0, Want::Rows(keys())), (1, compute)] {
        let (send, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let tables = [TableSpec::Dense { values: vec![0.0; 100].into(), rule: Rule::Add }];
            let cluster = Cluster::from_env().unwrap().with_slots(2).with_shards(2);
            send.send(cluster.run(&tables, 4, Astray(clock, want)).map(|_| ()))
        });
        let refused =
            ended.recv_timeout(std::time::Duration::from_secs(60)).expect("it does not wait for ever");
        let refused = refused.unwrap_err();
        assert!(
            matches!(refused, ClusterError::Refused(Refusal::NoTable { table: TableId(7) })),
            "at clock {clock}: {refused}"
        );
        assert!(refused.to_string().starts_with("there is no table 7;"), "{refused}");
    }
}
