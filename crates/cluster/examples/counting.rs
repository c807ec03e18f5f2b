//! The program of the process tests: gradients that depend on what was read and on their order, so that
//! anything lost, repeated, mixed up or reordered changes the printed hash. Not an example to learn from.
//!
//! `counting CLOCKS MILLISECONDS SLOTS VALUES FAULT`, alone or under `thalweg launch`, which says the number of slots itself. With a
//! FAULT the rule of the dense table panics in that update.

use std::sync::Arc;
use std::time::Duration;

use thalweg_cluster::state::Wants;
use thalweg_cluster::table::{Delta, Init, Want};
use thalweg_cluster::{
    Cluster, ClusterError, Gradients, Program, Pulled, Rule, Step, TableId, TableSpec, UpdateRule,
};

const DENSE: TableId = TableId(0);
const ROWS: TableId = TableId(1);

struct Counting {
    pause: Duration,
}

impl Program for Counting {
    fn wants(&mut self, step: Step, _tables: &[TableSpec]) -> Wants {
        let rows = (0..8).map(|i| i * 1000 + step.clock % 5).collect();
        Wants::from([(DENSE, Want::Dense), (ROWS, Want::Rows(Arc::new(rows)))])
    }

    fn compute(&mut self, step: Step, pulled: &Pulled) -> Gradients {
        std::thread::sleep(self.pause);
        println!("step {} {}", step.slot.0, step.clock);
        let k = f32::from(step.slot.0 as u16 + 1) * 1.1 + step.clock as f32 * 0.37;
        let dense = pulled[&DENSE].iter().zip(0..).map(|(w, i)| 0.3 * w + k / (1.0 + i as f32)).collect();
        let rows: Vec<u64> = (0..8).map(|i| i * 1000 + step.clock % 5).collect();
        let values = pulled[&ROWS].iter().map(|w| 0.1 * w - k).collect();
        vec![(DENSE, Delta::Dense(dense)), (ROWS, Delta::Rows(Arc::new(rows), values))]
    }
}

/// A rule with a bug in one update.
struct Faulty(u64);

impl UpdateRule for Faulty {
    fn update(&self, step: u64, values: &[f32], _gradient: &[f32], _state: &mut [f32], out: &mut [f32]) {
        assert_ne!(step, self.0, "a bug in a rule of the user's");
        out.copy_from_slice(values);
    }
}

fn main() {
    if let Err(e) = count() {
        eprintln!("counting: {e}");
        std::process::exit(1);
    }
}

fn count() -> Result<(), ClusterError> {
    let number =
        |i: usize, default: u64| std::env::args().nth(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let (clocks, pause) = (number(1, 20), Duration::from_millis(number(2, 0)));
    let cluster = Cluster::from_env()?.with_slots(number(3, 1) as usize);
    let fault = number(5, 0);
    let rule = if fault == 0 { Rule::Sgd { lr: 0.05 } } else { Rule::Named("faulty".into()) };
    let cluster = cluster.with_rule("faulty", Faulty(fault));
    let tables = [
        TableSpec::Dense { values: vec![1.0; number(4, 1000) as usize].into(), rule },
        TableSpec::Rows {
            width: 3,
            init: Init::Uniform { seed: 1, scale: 1.0 },
            rule: Rule::Adagrad { lr: 0.1, eps: 1e-6 },
        },
    ];
    let run = cluster.run(&tables, clocks, Counting { pause })?;
    let bits = run.pulled.values().flat_map(|v| v.iter()).map(|v| v.to_bits());
    let hash = bits.fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    println!("hash {hash:016x}");
    Ok(())
}
