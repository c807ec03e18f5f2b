//! What the keeper of the books writes: losses, metrics, the manifests of checkpoints.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;
use thalweg_data::Position;
use thalweg_nn::{Module, save_weights};
use thalweg_tensor::Tensor;
use thalweg_train::{Callback, Checkpoints, Fitted, Keep, Place, Run, State, TrainError, load_latest};

use super::found::Found;
use crate::error::ClusterError;
use crate::ids::Clock;
use crate::say::say;

/// How long the end of a run waits for shards of the last checkpoint.
const LAST_SHARDS: Duration = Duration::from_secs(10);
/// Who has lost the first slot lets go of the books when it learns of that; one that was stopped does not, and is not waited
/// for longer.
const LETS_GO: Duration = Duration::from_secs(1);

/// What a step came to, among the metrics of a run.
pub(super) const LOSS: &str = "loss";

/// The books, opened by whoever computes the first slot.
pub(crate) struct Books {
    pub holder: String, // who all processes of the cluster are together
    pub n_shards: u32,
    pub folder: Option<(PathBuf, Place)>, // of the run, and where its checkpoints lie
    pub every: Clock,
    pub size: usize,
    pub keep: usize,
    pub resume: bool,
    pub config: Value,
    pub log_every: u64,
    pub per_epoch: u64,
    pub clocks: Clock,
    /// Where the run began under this coordinator. Whoever opens the books later takes them over.
    pub began: Clock,
    /// The run may be taken back to the checkpoint of this step, or to a newer one. Nothing is known at first, and everything stays.
    pub secured: Clock,
    pub open: Option<Open>,
    /// Losses of steps while another process still held the books.
    pub missed: Vec<(Clock, f64)>,
    /// Since when that is so.
    pub locked: Option<Instant>,
}

/// Open books.
pub(crate) struct Open {
    pub state: State,
    run: Option<Run>,
    checkpoints: Option<Checkpoints>,
    n_shards: u32,
    saved: Option<Clock>,            // the newest checkpoint that was made whole here
    measured: Option<Clock>, // at this step, where the books were opened, somebody has measured before
    begins: Option<(Clock, bool)>, // where the run begins here, and whether it was resumed, to be told
    began: (Clock, Instant), // where and when they were opened
    awaited: BTreeMap<Clock, Value>, // checkpoints whose shards are being written, with their states
    failed: Option<Clock>,   // the newest of which a shard could not be written
}

impl Books {
    /// Brings the books to a clock, counted in steps: notes the loss of the step before it, and where its samples begin if `start` says in
    /// which order they come. `None` while another process still holds them.
    pub fn at(
        &mut self,
        clock: Clock,
        loss: f64,
        start: Option<Position>,
    ) -> Result<Option<&mut Open>, ClusterError> {
        if self.open.is_none() {
            self.open = self.begin(clock)?;
        }
        // Who tells the result has to have them; whoever holds them has lost the first slot, and sees that in a moment.
        let end = Instant::now() + LAST_SHARDS;
        while self.open.is_none() && clock == self.clocks && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
            self.open = self.begin(clock)?;
        }
        if self.missed.last() != Some(&(clock, loss)) {
            self.missed.push((clock, loss));
        }
        let Some(mut open) = self.open.take() else { return Ok(None) };
        open.checkpoints.iter_mut().for_each(|c| c.keep_from(self.secured));
        for (clock, loss) in std::mem::take(&mut self.missed) {
            self.note(&mut open, clock, loss, start)?;
        }
        Ok(Some(self.open.insert(open)))
    }

    /// The step before a clock had this loss, unless somebody has noted that.
    fn note(
        &self,
        open: &mut Open,
        clock: Clock,
        loss: f64,
        start: Option<Position>,
    ) -> Result<(), TrainError> {
        let state = &mut open.state;
        // A clock may be several steps.
        let before = state.step;
        let passed = |every: u64| clock / every > before / every;
        if clock > before {
            state.pending = (state.pending.0 + 1, state.pending.1 + loss);
            state.step = clock;
        }
        let (epoch, at) = (clock / self.per_epoch, (clock % self.per_epoch) as usize);
        state.position = start.map(|start| Position { epoch, sample: at * self.size, ..start });
        if passed(self.log_every) || passed(self.per_epoch) || clock == self.clocks {
            open.log_loss()?;
        }
        if clock > before && clock.is_multiple_of(self.every) && open.checkpoints.is_some() {
            let state = serde_json::to_value(&open.state).expect("a state is always JSON");
            open.awaited.insert(clock, state);
        }
        let (step, pending) = (open.state.step, open.state.pending);
        open.run.iter_mut().for_each(|run| run.mark(step, pending));
        Ok(())
    }

    /// The first slot is somebody else's.
    pub fn let_go(&mut self) {
        self.open = None;
        self.missed.clear();
        self.locked = None;
    }

    /// The step of the newest checkpoint that was made whole here.
    pub fn saved(&self) -> Option<Clock> {
        self.open.as_ref()?.saved
    }

    /// Opens the books at a clock; `None` while another process still holds them.
    fn begin(&mut self, clock: Clock) -> Result<Option<Open>, TrainError> {
        let Some((folder, place)) = &self.folder else { return Ok(Some(self.blank(clock))) };
        let goes_on = self.goes_on(clock, folder, place)?;
        let created = if goes_on { None } else { Some(Run::create(folder, &self.config)?) };
        let keep = Keep { last: self.keep, ..Keep::default() };
        let opened = match self.locked.is_some_and(|since| since.elapsed() > LETS_GO) {
            false => Checkpoints::open_shared(place, keep, &self.holder),
            true => Checkpoints::take_over_shared(place, keep, &self.holder),
        };
        let checkpoints = match opened {
            // A peer that held them has not ended yet, or does not know that it has lost them; a stranger trains this run.
            Err(TrainError::Locked { holder, .. }) if holder.is_empty() || holder == self.holder => {
                self.locked.get_or_insert_with(Instant::now);
                return Ok(None);
            }
            opened => opened?,
        };
        let open = match created {
            Some(run) => Open { run: Some(run), checkpoints: Some(checkpoints), ..self.blank(clock) },
            None => self.go_on(clock, (folder, place), checkpoints)?,
        };
        Ok(Some(open))
    }

    /// Books in which nothing stands.
    fn blank(&self, clock: Clock) -> Open {
        // Somebody else may have held them for a while.
        let first = self.missed.first().map_or(clock, |(clock, _)| *clock);
        Open {
            state: State { step: clock, ..State::default() },
            run: None,
            checkpoints: None,
            n_shards: self.n_shards,
            saved: None,
            measured: None,
            begins: (first == self.began).then_some((first, self.resume)),
            began: (clock, Instant::now()),
            awaited: BTreeMap::new(),
            failed: None,
        }
    }

    /// Those of the run in the folder. What came after this clock will be written again.
    fn go_on(
        &self,
        clock: Clock,
        (folder, place): (&Path, &Place),
        mut checkpoints: Checkpoints,
    ) -> Result<Open, TrainError> {
        checkpoints.forget_after(clock)?;
        let run = Run::resume_at(folder, clock)?;
        let Found { state, is_measured } = Found::read(folder, place, clock)?;
        Ok(Open {
            state,
            run: Some(run),
            checkpoints: Some(checkpoints),
            measured: is_measured.then_some(clock),
            ..self.blank(clock)
        })
    }

    /// Who takes over in the middle of a run goes on with its folder; nobody else's is touched.
    fn goes_on(&self, clock: Clock, folder: &Path, place: &Place) -> Result<bool, TrainError> {
        Ok(Run::exists(folder) && (self.resume || clock > 0 || self.is_blank(folder, place)?))
    }

    /// Whether this is a run like ours in which nothing stands yet: whoever kept the books before was killed in the
    /// first step.
    fn is_blank(&self, folder: &Path, place: &Place) -> Result<bool, TrainError> {
        let like_ours = Run::config_of(folder)? == self.config && Run::summary_of(folder)?.is_none();
        Ok(like_ours && Run::metrics_of(folder)?.is_empty() && load_latest(place)?.is_none())
    }

    /// A run that everybody was asked to end at this clock, whose shards are being saved. Whether it can go on from there.
    pub fn stop(
        &mut self,
        clock: Clock,
        loss: f64,
        start: Option<Position>,
        noise: &[(String, Tensor)],
    ) -> Result<bool, ClusterError> {
        let end = Instant::now() + LAST_SHARDS;
        // Who kept the books before may still be about to end.
        while self.at(clock, loss, start)?.is_none() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        let Some(open) = self.open.as_mut().filter(|open| open.checkpoints.is_some()) else {
            return Ok(false);
        };
        let state = serde_json::to_value(&open.state).expect("a state is always JSON");
        open.awaited.insert(clock, state);
        while open.awaited.contains_key(&clock) && Instant::now() < end {
            open.checkpoints(noise.to_vec())?;
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(open.saved == Some(clock))
    }

    /// The last entries of a run that is done.
    pub fn close(
        &mut self,
        fitted: &mut Fitted,
        net: &impl Module,
        noise: Vec<(String, Tensor)>,
    ) -> Result<(), ClusterError> {
        let Some(open) = &mut self.open else { return Ok(()) };
        fitted.metrics = open.state.metrics.clone();
        fitted.loss = open.state.loss.unwrap_or(fitted.loss);
        let end = Instant::now() + LAST_SHARDS;
        while !open.awaited.is_empty() && Instant::now() < end {
            open.checkpoints(noise.clone())?;
            std::thread::sleep(Duration::from_millis(20));
        }
        let lacking = open.failed.filter(|failed| open.saved.is_none_or(|saved| saved < *failed));
        if let Some(step) = open.awaited.keys().next_back().copied().or(lacking) {
            // Whoever could not write its part has said why.
            let from = open.saved.map_or("its last checkpoint".into(), |saved| format!("step {saved}"));
            let lacks =
                format_args!("the checkpoint of step {step} is not whole; `resume` would go on from {from}");
            say("thalweg", lacks);
            open.checkpoints.iter_mut().try_for_each(Checkpoints::give_up)?;
        }
        if let Some(run) = &mut open.run {
            fitted.seconds = run.seconds();
            fitted.steps_per_second = fitted.steps as f64 / fitted.seconds.max(1e-9);
            save_weights(net, run.path().join("model.safetensors")).map_err(TrainError::from)?;
            run.finish(fitted)?;
        }
        Ok(())
    }
}

impl Open {
    /// Whether what is due at this step was measured before these books were opened.
    pub fn is_measured(&self, step: Clock) -> bool {
        self.measured == Some(step)
    }

    /// Tells that the run begins or goes on here, once.
    pub fn begin<'c, N>(&mut self, callbacks: &mut [Box<dyn Callback<N> + 'c>]) {
        let Some((step, resumed)) = self.begins.take() else { return };
        for callback in callbacks {
            callback.begun(step);
            if resumed {
                callback.resumed(step, &[]);
            }
        }
    }

    /// Steps and seconds since the books were opened.
    pub fn own(&self, step: Clock) -> (u64, f64) {
        let (from, began) = self.began;
        (step.saturating_sub(from), began.elapsed().as_secs_f64())
    }

    /// Writes down the mean of the losses since the last time.
    fn log_loss(&mut self) -> Result<(), TrainError> {
        let (n, sum) = std::mem::take(&mut self.state.pending);
        if n == 0 {
            return Ok(());
        }
        self.state.loss = Some(sum / n as f64);
        let step = self.state.step;
        self.run.as_mut().map_or(Ok(()), |run| run.log(step, &[(LOSS, sum / n as f64)]))
    }

    /// Writes down what was measured.
    pub fn measured(&mut self, found: &BTreeMap<String, f64>) -> Result<(), TrainError> {
        let values: Vec<(&str, f64)> = found.iter().map(|(n, v)| (n.as_str(), *v)).collect();
        let step = self.state.step;
        self.state.metrics.extend(found.iter().filter(|(_, v)| v.is_finite()).map(|(n, v)| (n.clone(), *v)));
        // The state of the checkpoint of this very clock should know it too.
        if let Some(state) = self.awaited.get_mut(&step) {
            *state = serde_json::to_value(&self.state).expect("a state is always JSON");
        }
        self.run.as_mut().map_or(Ok(()), |run| run.log(step, &values))
    }

    /// Writes the manifests of the checkpoints whose shards are all there. One that was overtaken will never be.
    pub fn checkpoints(&mut self, noise: Vec<(String, Tensor)>) -> Result<(), TrainError> {
        let Some(checkpoints) = &mut self.checkpoints else { return Ok(()) };
        for clock in self.awaited.keys().copied().collect::<Vec<_>>() {
            let state = self.awaited[&clock].clone();
            if checkpoints.complete(clock, state, self.n_shards, ("noise", noise.clone()))? {
                self.saved = Some(clock);
                self.awaited = self.awaited.split_off(&(clock + 1));
            } else if checkpoints.has_failed(clock, self.n_shards)? {
                self.failed = Some(clock);
                self.awaited.remove(&clock);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::OnceLock;
    use thalweg_train::{ShardParts, save_shard};

    const CLOCKS: Clock = 23;

    fn books(folder: &Path) -> Books {
        Books {
            holder: "the cluster of a test".into(),
            n_shards: 1,
            folder: Some((folder.to_owned(), Place::from(folder.join("checkpoints")))),
            every: 10,
            size: 4,
            keep: 3,
            resume: false,
            config: serde_json::json!({}),
            log_every: 5,
            per_epoch: 8,
            clocks: CLOCKS,
            began: 0,
            secured: 0,
            open: None,
            missed: Vec::new(),
            locked: None,
        }
    }

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("thalweg-books-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        folder
    }

    fn loss(clock: Clock) -> f64 {
        1.0 / (clock as f64 + 0.3)
    }

    fn note(books: &mut Books, clocks: impl IntoIterator<Item = Clock>) {
        for clock in clocks {
            books.at(clock, loss(clock), None).unwrap().expect("nobody else holds them");
        }
    }

    fn losses(folder: &Path) -> Vec<(u64, f64)> {
        Run::metrics_of(folder).unwrap().iter().map(|line| (line.step, line.values[LOSS])).collect()
    }

    /// What stands in the books of a run with one keeper.
    fn undisturbed() -> &'static [(u64, f64)] {
        static FOUND: OnceLock<Vec<(u64, f64)>> = OnceLock::new();
        FOUND.get_or_init(|| {
            let folder = folder("undisturbed");
            note(&mut books(&folder), 0..=CLOCKS);
            let losses = losses(&folder);
            std::fs::remove_dir_all(folder).unwrap();
            assert_eq!(losses.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [5, 8, 10, 15, 16, 20, 23]);
            losses
        })
    }

    #[test]
    fn whoever_takes_the_books_over_goes_on_with_every_loss_once() {
        let want = undisturbed();
        for last in 0..CLOCKS {
            // The one before has pushed its last step, or was killed before that.
            for next in [last, last + 1] {
                let folder = folder(&format!("over-{last}-{next}"));
                let [mut first, mut second] = [(); 2].map(|()| books(&folder));
                note(&mut first, 0..=last);
                drop(first);
                note(&mut second, next..=CLOCKS);
                assert_eq!(losses(&folder), want, "from {last} to {next}");
                std::fs::remove_dir_all(folder).unwrap();
            }
        }
    }

    #[test]
    fn steps_while_another_still_holds_the_books_are_noted_when_it_does_not() {
        let folder = folder("held");
        let [mut first, mut second] = [(); 2].map(|()| books(&folder));
        for clock in 0..=CLOCKS {
            if clock <= 13 {
                first.at(clock, loss(clock), None).unwrap().unwrap();
            }
            if clock == 17 {
                first.let_go();
            }
            if clock > 13 {
                let noted = second.at(clock, loss(clock), None).unwrap();
                assert_eq!(noted.is_some(), clock >= 17, "{clock}");
            }
        }
        assert_eq!(losses(&folder), undisturbed());
        std::fs::remove_dir_all(folder).unwrap();
    }

    /// The steps at which a run was said to begin and to go on.
    #[derive(Default)]
    struct Heard {
        begun: Vec<u64>,
        resumed: Vec<u64>,
    }

    impl Callback<()> for &mut Heard {
        fn begun(&mut self, step: u64) {
            self.begun.push(step);
        }

        fn resumed(&mut self, step: u64, _: &[String]) {
            self.resumed.push(step);
        }
    }

    /// The checkpoint of the step at which it opens them may have been written a moment ago.
    #[test]
    fn who_takes_the_books_over_at_a_checkpoint_does_not_say_that_a_run_is_resumed() {
        let folder = folder("resumed");
        let mut first = books(&folder);
        note(&mut first, 0..=10);
        save_shard(folder.join("checkpoints"), 10, 0, ShardParts::new()).unwrap();
        first.open.as_mut().unwrap().checkpoints(Vec::new()).unwrap();
        assert_eq!(first.saved(), Some(10));
        first.let_go();
        for (began, told) in [(0, vec![]), (10, vec![10])] {
            let mut next = Books { resume: true, began, ..books(&folder) };
            let open = next.at(10, loss(10), None).unwrap().unwrap();
            let mut heard = Heard::default();
            (0..2).for_each(|_| open.begin::<()>(&mut [Box::new(&mut heard)]));
            assert_eq!((&heard.begun, &heard.resumed), (&told, &told), "began at {began}");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_run_that_strangers_train_is_refused() {
        let folder = folder("strangers");
        let mut first = books(&folder);
        note(&mut first, 0..=3);
        for resume in [false, true] {
            let mut second = Books { holder: "process 7".into(), resume, ..books(&folder) };
            let refused = second.at(0, loss(0), None).map(|_| ()).unwrap_err().to_string();
            assert!(refused.contains("is being written by the cluster of a test"), "{refused}");
        }
        note(&mut first, 4..=CLOCKS);
        assert_eq!(losses(&folder), undisturbed());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn nobody_waits_for_a_shard_that_could_not_be_written() {
        let folder = folder("failed");
        let mut books = books(&folder);
        note(&mut books, 0..=10);
        let checkpoints = folder.join("checkpoints");
        // A folder stands where the part is to be, so that it cannot be written whoever the user is.
        let part = checkpoints.join("step-0000000010.model-0.safetensors");
        std::fs::create_dir(&part).unwrap();
        let shard =
            || ShardParts::from([("model".to_owned(), vec![("w".to_owned(), Tensor::from([1.0f32]))])]);
        save_shard(checkpoints.clone(), 10, 0, shard()).unwrap_err();
        let open = books.open.as_mut().unwrap();
        open.checkpoints(Vec::new()).unwrap();
        assert_eq!((open.awaited.len(), open.failed, open.saved), (0, Some(10), None));
        // The next one is saved as ever.
        std::fs::remove_dir(&part).unwrap();
        note(&mut books, 11..=20);
        save_shard(checkpoints, 20, 0, shard()).unwrap();
        let open = books.open.as_mut().unwrap();
        open.checkpoints(Vec::new()).unwrap();
        assert_eq!((open.awaited.len(), open.saved), (0, Some(20)));
        drop(books);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_run_that_is_taken_back_notes_what_came_after_again() {
        let folder = folder("back");
        let mut first = books(&folder);
        note(&mut first, 0..=18);
        first.let_go();
        // Without a checkpoint it begins anew.
        let mut second = Books { resume: true, ..books(&folder) };
        note(&mut second, 0..=CLOCKS);
        assert_eq!(losses(&folder), undisturbed());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
