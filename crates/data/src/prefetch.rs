//! Threads that fetch batches ahead.
//!
//! Of `n` threads, thread `j` fetches the batches `j, j + n, j + 2n, …` and puts them into a channel of its
//! own, which holds only a few. The consumer takes from the channels in turn: so batches come in order, the
//! memory in use is bounded, and no thread needs to know of another.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

use crate::batches::Epoch;
use crate::dataset::Dataset;

pub(crate) struct Prefetch<B> {
    lanes: Vec<Lane<B>>,
}

struct Lane<B> {
    /// `None` once the thread is to end.
    batches: Option<Receiver<B>>,
    thread: Option<JoinHandle<()>>,
}

impl<B: Send + 'static> Prefetch<B> {
    pub(crate) fn start<D: Dataset<Batch = B>>(epoch: &Arc<Epoch<D>>, workers: usize, ahead: usize) -> Self {
        let lane = |worker: usize| {
            let (sender, receiver) = sync_channel(ahead);
            let epoch = epoch.clone();
            let fetch = move || {
                for step in (worker..epoch.batches.steps()).step_by(workers) {
                    // An error means that nobody wants the rest.
                    if sender.send(epoch.fetch(step)).is_err() {
                        return;
                    }
                }
            };
            let name = format!("thalweg-data-{worker}");
            let thread =
                std::thread::Builder::new().name(name).spawn(fetch).expect("the system starts threads");
            Lane { batches: Some(receiver), thread: Some(thread) }
        };
        Self { lanes: (0..workers).map(lane).collect() }
    }

    /// Batch `step`; they must be asked for in order. A panic of the thread goes on here.
    pub(crate) fn take(&mut self, step: usize) -> B {
        let n = self.lanes.len();
        let lane = &mut self.lanes[step % n];
        match lane.batches.as_ref().map(Receiver::recv) {
            Some(Ok(batch)) => batch,
            _ => match lane.thread.take().map(JoinHandle::join) {
                Some(Err(panic)) => std::panic::resume_unwind(panic),
                _ => panic!("a fetching thread has already failed"),
            },
        }
    }
}

impl<B> Drop for Prefetch<B> {
    fn drop(&mut self) {
        // First close all channels, then wait, so that the threads end side by side.
        self.lanes.iter_mut().for_each(|lane| drop(lane.batches.take()));
        for lane in &mut self.lanes {
            // A panic in a batch that nobody asked for is nobody's concern.
            let _ = lane.thread.take().map(JoinHandle::join);
        }
    }
}
