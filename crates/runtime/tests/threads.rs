//! Threads that run one graph do not wait for each other.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use thalweg_core::{DType, View, ViewMut};
use thalweg_graph::Traced;
use thalweg_runtime::{Session, cond, scan, while_loop};
use thalweg_tensor::ops::CustomOp;
use thalweg_tensor::{Meta, OpError, Tensor, custom};

/// Repeats its operand; the first two runs wait for each other, so that they must be under way at the same time.
struct Meets {
    arrived: Sender<()>,
    seen: Mutex<Receiver<()>>,
    n_runs: std::sync::atomic::AtomicUsize,
}

impl CustomOp for Meets {
    fn name(&self) -> &str {
        "meets"
    }
    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        Ok(x[0].clone())
    }
    fn eval(&self, x: &[&View<'_>], y: &mut ViewMut<'_>) {
        y.map_f32(x[0], |v| v);
        match self.n_runs.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
            0 => {
                let seen = self.seen.lock().unwrap().recv_timeout(Duration::from_secs(20));
                assert!(seen.is_ok(), "the other thread waits for this one");
            }
            1 => self.arrived.send(()).unwrap(),
            _ => {}
        }
    }
}

fn meets() -> Meets {
    let (arrived, seen) = channel();
    Meets { arrived, seen: Mutex::new(seen), n_runs: 0.into() }
}

#[test]
fn two_sessions_of_one_graph_run_its_bodies_at_the_same_time() {
    let bodies: [fn(&Tensor, Meets) -> Tensor; 3] = [
        |x, op| {
            let op = Mutex::new(Some(op));
            cond(&x.sum(()).gt(0.0), || custom(op.lock().unwrap().take().unwrap(), &[x]) * 2.0, || x.clone())
        },
        |x, op| {
            let op = Mutex::new(Some(op));
            let turn = |s: Tensor, row: Tensor| {
                let s = custom(op.lock().unwrap().take().unwrap(), &[&(s + row)]);
                (s.clone(), s)
            };
            scan(Tensor::scalar(0.0f32), x.clone(), turn).1
        },
        |x, op| {
            let op = Mutex::new(Some(op));
            let turn = |s: Tensor| custom(op.lock().unwrap().take().unwrap(), &[&(s * 2.0)]);
            while_loop(x.clone(), |s| s.amax(()).lt(30.0), turn)
        },
    ];
    for (i, body) in bodies.into_iter().enumerate() {
        let traced = Traced::record(&[Meta::new(DType::F32, [3])], |x| vec![body(&x[0], meets())]);
        let run = |scale: f32| {
            let mut session = Session::of(traced.clone()).unwrap();
            let x = Tensor::from([1.0f32, 2.0, 3.0]) * f64::from(scale);
            session.run(&[("x0", &x)], &["y0"]).unwrap().remove(0).to_vec::<f32>()
        };
        let (a, b) = std::thread::scope(|s| {
            let (a, b) = (s.spawn(|| run(1.0)), s.spawn(|| run(2.0)));
            (a.join().unwrap(), b.join().unwrap())
        });
        let want: [[f32; 3]; 2] = match i {
            0 => [[2.0, 4.0, 6.0], [4.0, 8.0, 12.0]],
            1 => [[1.0, 3.0, 6.0], [2.0, 6.0, 12.0]],
            _ => [[16.0, 32.0, 48.0], [16.0, 32.0, 48.0]],
        };
        assert_eq!([&a[..], &b], [&want[0][..], &want[1]], "body {i}");
    }
}
