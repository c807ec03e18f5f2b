//! `thalweg launch`: a cluster on this host. Each process only gets a few environment variables.

use std::fmt;
use std::io::Write;
use std::net::TcpListener;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use thalweg_cluster::ClusterError;
#[cfg(feature = "tls")]
use thalweg_cluster::net::config;
use thalweg_cluster::net::config::{Config, Etcd, RESTART, is_address};
use thalweg_cluster::net::handshake::Secret;
use thalweg_cluster::net::{life, process};

use crate::once::SAID;
use crate::progress;
use crate::train::STOPPED;

/// The variable that tells a launch from all others, by its time and its process: a name for what it leaves behind.
pub const LAUNCHED: &str = "THALWEG_LAUNCHED";
/// The file of a launch that tells which process it is.
const LAUNCHER: &str = "launcher";
/// How long processes may take to end by themselves.
const PATIENCE: Duration = Duration::from_secs(6);
/// How long the last worker may take to save the run.
const SAVING: Duration = Duration::from_secs(90);
/// How long a stopped worker is waited for when the run is done.
const GRACE: Duration = Duration::from_secs(2);
/// How long the others wait for a process that was killed, since it is started again.
const RESTARTED_MS: &str = "10000";
/// A process that ended by itself is started again so often.
const RESTARTS: u32 = 20;

const ENDS: &str = "\
Ends with 0 when the run is done, 1 when it has failed, 130 when it was interrupted; what was saved then goes on with `thalweg resume`.
THALWEG_SECRET, if set, is the secret by which others may join; docs/launching.md has all variables.";

#[derive(clap::Args)]
#[command(after_help = ENDS)]
pub struct Args {
    /// Processes that compute.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    workers: u32,
    /// Processes that hold the parameters.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    servers: u32,
    /// Consistency: bsp, ssp:STALENESS, async or backup:SLOTS; for nets also local:STEPS (local SGD) and
    /// easgd:SHARE or easgd:SHARE:STEPS (elastic averaging).
    #[arg(long, default_value = "bsp")]
    sync: String,
    /// Make what workers push smaller: bf16, int8 or topk:ONE_IN, such as topk:100 or topk:0.01. What is left out comes
    /// later. Sparse rows go as bf16 and int8 too; topk leaves them as they are.
    #[arg(long, default_value = "f32")]
    codec: String,
    /// Parts of every batch [default: the number of workers].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    slots: Option<u32>,
    /// Parts of the parameters [default: the number of servers, up to four times as many of 1 MiB or more].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=65536))]
    shards: Option<u32>,
    /// Servers that hold each part, as long as there are so many [default: 2].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    replicas: Option<u32>,
    /// Leave a worker that was killed dead; the others take over its slots. The same for one of several coordinators.
    #[arg(long)]
    no_restart: bool,
    /// Elect the coordinator through etcd at this address, such as http://127.0.0.1:2379; several with commas.
    #[cfg(feature = "etcd")]
    #[arg(long, env = "THALWEG_ETCD")]
    etcd: Option<String>,
    /// Processes of which one is the coordinator and the others stand by; more than one needs --etcd.
    #[cfg(feature = "etcd")]
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    coordinators: u32,
    /// Serve metrics for Prometheus at this address of this host, such as 127.0.0.1:9090.
    #[arg(long)]
    metrics: Option<String>,
    #[cfg(feature = "tls")]
    #[command(flatten)]
    tls: Tls,
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// What the processes show each other, as PEM files; `thalweg certificates` makes such.
#[cfg(feature = "tls")]
#[derive(clap::Args)]
struct Tls {
    /// The certificate that every process shows.
    #[arg(long, env = "THALWEG_TLS_CERT", requires = "tls_key", requires = "tls_ca")]
    tls_cert: Option<std::path::PathBuf>,
    /// Its key.
    #[arg(long, env = "THALWEG_TLS_KEY")]
    tls_key: Option<std::path::PathBuf>,
    /// The authority that must have signed the others'.
    #[arg(long, env = "THALWEG_TLS_CA")]
    tls_ca: Option<std::path::PathBuf>,
}

/// One process of the cluster.
struct Process {
    role: &'static str,
    name: String,
    child: Child,
    lives: u32,
    done: Option<ExitStatus>,
}

pub fn run(args: &Args) -> Result<()> {
    let slots = args.slots.unwrap_or(args.workers);
    if let thalweg_cluster::Sync::Backup(spare) = args.sync.parse()? {
        ensure!(
            spare < slots,
            "--sync backup:{spare} leaves nobody of {slots} slots: say fewer, or more --slots"
        );
    }
    args.codec.parse::<thalweg_cluster::codec::Codec>()?;
    if slots < args.workers {
        say(&format!(
            "of {} workers only {slots} will have something to do: there are no more slots",
            args.workers
        ));
    }
    let end = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, end.clone())?;
    }
    let secret = std::env::var("THALWEG_SECRET").map_or_else(|_| Secret::random(), Secret::new);
    let meeting = Meeting::new(args)?;
    let folder = Folder::new(meeting.name(), &secret)?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).context("the clock is before 1970")?;
    let launched = format!("{}-{}", now.as_millis(), std::process::id());
    let launch = Launch { args, meeting: &meeting, secret, folder: &folder, launched };
    // Not among what the program prints: that may be read by another.
    eprintln!("{meeting}");
    let mut processes = Cluster(Vec::new(), PATIENCE);
    match args.n_coordinators() {
        1 => processes.0.push(launch.start("coordinator", "coordinator".into(), 0)?),
        n => {
            for i in 0..n {
                processes.0.push(launch.start("coordinator", format!("coordinator-{i}"), 0)?);
            }
        }
    }
    for i in 0..args.servers {
        processes.0.push(launch.start("server", format!("server-{i}"), 0)?);
    }
    for i in 0..args.workers {
        processes.0.push(launch.start("worker", format!("worker-{i}"), 0)?);
    }
    let mut stopped_since = None;
    while !end.load(Ordering::Relaxed) {
        for i in 0..processes.0.len() {
            let process = &mut processes.0[i];
            if process.done.is_some() {
                continue;
            }
            let Some(status) = process.child.try_wait()? else { continue };
            let (killed, left) = (status.code().is_none(), status.code() == Some(process::LEFT));
            let (role, name, lives) = (process.role, process.name.clone(), process.lives);
            match role {
                _ if left => {
                    say(&format!("{name} has left as it was asked to; the others go on without it"));
                    process.done = Some(status);
                }
                "worker" if status.code() == Some(STOPPED) => {
                    process.done = Some(status);
                    return stopped(processes);
                }
                "worker" if !killed || args.no_restart => {
                    if killed {
                        say(&format!("{name} was killed ({status}); the others go on without it"));
                    }
                    process.done = Some(status);
                }
                // One of several that was told to end, or that is to stay dead, is not missed.
                "coordinator"
                    if args.n_coordinators() > 1 && (status.success() || killed && args.no_restart) =>
                {
                    process.done = Some(status);
                }
                _ if lives >= RESTARTS => bail!("{name} ended {lives} times, last with {status}"),
                "server" if status.success() => {
                    bail!(
                        "{name} ended before the run did; is `{}` a program that runs on a cluster?",
                        args.command.join(" ")
                    )
                }
                "server" if !killed => bail!("{name} ended with {status}"),
                "coordinator" if !killed => bail!("{name} ended with {status}"),
                _ => {
                    say(&format!("{name} was killed ({status}); it starts again"));
                    processes.0[i] = launch.start(role, name, lives + 1)?;
                }
            }
        }
        // Who was stopped and is still so when others are done has lost its slots to them.
        let done = processes.0.iter().any(|p| p.role == "worker" && p.done.is_some_and(|s| s.success()));
        let mut rest = processes.0.iter().filter(|p| p.role == "worker" && p.done.is_none()).peekable();
        let stopped = done && rest.peek().is_some() && rest.all(|p| life::is_stopped(p.child.id()));
        stopped_since = stopped.then(|| stopped_since.unwrap_or_else(Instant::now));
        if stopped_since.is_some_and(|since| since.elapsed() > GRACE) {
            say("the run is done; a worker that was stopped is killed");
            processes.1 = Duration::ZERO;
            return Ok(());
        }
        let workers: Vec<&Process> = processes.0.iter().filter(|p| p.role == "worker").collect();
        let fails = |s: ExitStatus| s.code().is_some_and(|c| c != 0 && c != process::LEFT);
        let failed = workers.iter().find(|p| p.done.is_some_and(fails));
        if let Some(process) = failed {
            bail!("{} ended with {}", process.name, process.done.expect("it was found by this"));
        }
        if workers.iter().all(|p| p.done.is_some()) {
            let finished = workers.iter().any(|p| p.done.is_some_and(|s| s.success()));
            ensure!(finished, "every worker was killed or has left before the end");
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    // The last worker to leave saves the run and says how to go on. Whoever asks twice does not want to wait for that.
    end.store(false, Ordering::Relaxed);
    processes.wake();
    processes.ask("worker");
    let until = Instant::now() + SAVING;
    while processes.are_running("worker") && Instant::now() < until && !end.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(10));
    }
    if processes.are_running("worker") {
        processes.1 = Duration::ZERO;
    }
    let saved = |p: &Process| p.done.is_some_and(|status| status.code() == Some(STOPPED));
    if processes.0.iter().any(saved) {
        return stopped(processes);
    }
    Err(Interrupted.into())
}

/// A line of its own, not behind that of a worker that shows how far it has come.
fn say(what: &str) {
    progress::clear();
    thalweg_cluster::say("thalweg", what);
}

/// The run was saved and everybody has been asked to end: what is left goes too.
fn stopped(processes: Cluster) -> Result<()> {
    drop(processes);
    Err(Stopped.into())
}

/// The run has ended early and can go on, as the worker that saved it has said.
#[derive(Debug)]
pub struct Stopped;

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stopped")
    }
}

impl std::error::Error for Stopped {}

/// Whoever asked could not or would not wait for the run to be saved.
#[derive(Debug)]
pub struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "interrupted; a run that had begun goes on from its last checkpoint, if there is one, with `resume`"
        )
    }
}

impl std::error::Error for Interrupted {}

/// `thalweg status`, once or again every second.
pub fn status(coordinator: Option<&str>, watch: bool) -> Result<()> {
    let config = onlooker(coordinator)?;
    writeln!(std::io::stdout(), "{}", process::ask_status(&config, None)?)?;
    if !watch {
        return Ok(());
    }
    loop {
        std::thread::sleep(Duration::from_secs(1));
        match process::ask_status(&config, Some(config.give_up)) {
            Ok(report) => writeln!(std::io::stdout(), "\n{report}")?,
            // As at the end of every run.
            Err(ClusterError::Unreachable { problem, .. }) => {
                say(&format!("the coordinator answers no more ({problem})"));
                return Ok(());
            }
            Err(e) => return Err(e.into()),
        }
    }
}

/// What a process needs to know that only asks how a cluster stands: its coordinator's address, or nothing where the
/// environment says which etcd to ask.
pub fn onlooker(coordinator: Option<&str>) -> Result<Config> {
    let variable = |name: &str| std::env::var(name).ok();
    match coordinator {
        Some(address) if !is_address(address) => {
            bail!("{address:?} is no address of a coordinator; give host:port, such as 127.0.0.1:7700")
        }
        None if variable("THALWEG_ETCD").is_none() => {
            bail!(
                "which cluster? Give the address that its coordinator printed, or set THALWEG_COORDINATOR to it"
            )
        }
        _ => {}
    }
    let cluster = coordinator.map(str::to_owned).or_else(|| variable("THALWEG_CLUSTER"));
    let get = |name: &str| match name {
        "THALWEG_ROLE" => Some("worker".to_owned()),
        "THALWEG_COORDINATOR" => coordinator.map(str::to_owned),
        "THALWEG_ETCD" if coordinator.is_some() => None,
        "THALWEG_SECRET" => variable(name).or_else(|| Folder::secret_of(cluster.as_deref()?)),
        _ => variable(name),
    };
    Ok(Config::from(get)?)
}

/// `thalweg coordinate`: what `launch` starts, and what other launchers may start.
pub fn coordinate() -> Result<()> {
    let get = |name: &str| match name {
        "THALWEG_ROLE" => Some("coordinator".to_owned()),
        _ => std::env::var(name).ok(),
    };
    Ok(process::coordinate(&Config::from(get)?)?)
}

/// Where the processes meet: at an address, or under a name in etcd.
enum Meeting {
    Address(String),
    Etcd(Etcd),
}

impl Args {
    #[cfg(feature = "tls")]
    fn certificates(&self) -> impl Iterator<Item = (&'static str, &std::path::PathBuf)> {
        let files = [&self.tls.tls_cert, &self.tls.tls_key, &self.tls.tls_ca];
        config::TLS.into_iter().zip(files).filter_map(|(name, file)| Some((name, file.as_ref()?)))
    }

    #[cfg(not(feature = "tls"))]
    fn certificates(&self) -> std::iter::Empty<(&'static str, &'static str)> {
        std::iter::empty()
    }

    #[cfg(feature = "etcd")]
    fn n_coordinators(&self) -> u32 {
        self.coordinators
    }

    #[cfg(not(feature = "etcd"))]
    fn n_coordinators(&self) -> u32 {
        1
    }

    #[cfg(feature = "etcd")]
    fn etcd(&self) -> Result<Option<Etcd>> {
        // A name that was not used before, unless one is said: what an earlier run has left is not this one's.
        let new = || format!("run-{}", Secret::random().text());
        let get = |name: &str| match name {
            "THALWEG_ETCD" => self.etcd.clone(),
            "THALWEG_CLUSTER" => Some(std::env::var(name).unwrap_or_else(|_| new())),
            _ => None,
        };
        ensure!(self.etcd.is_some() || self.coordinators == 1, "--coordinators above 1 needs --etcd");
        Ok(Etcd::from(get)?)
    }

    #[cfg(not(feature = "etcd"))]
    fn etcd(&self) -> Result<Option<Etcd>> {
        // Says that the feature is missing when the environment asks for it.
        Ok(Etcd::from(|name| std::env::var(name).ok())?)
    }
}

impl Meeting {
    fn new(args: &Args) -> Result<Self> {
        Ok(match args.etcd()? {
            Some(etcd) => Self::Etcd(etcd),
            None => Self::Address(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string()),
        })
    }

    fn name(&self) -> &str {
        match self {
            Self::Address(address) => address,
            Self::Etcd(etcd) => &etcd.cluster,
        }
    }

    fn variables(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::Address(address) => vec![("THALWEG_COORDINATOR", address.clone())],
            Self::Etcd(etcd) => {
                vec![("THALWEG_ETCD", etcd.endpoints.join(",")), ("THALWEG_CLUSTER", etcd.cluster.clone())]
            }
        }
    }
}

impl fmt::Display for Meeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "coordinator {address}"),
            Self::Etcd(etcd) => write!(f, "cluster {} in etcd at {}", etcd.cluster, etcd.endpoints.join(",")),
        }
    }
}

#[cfg(feature = "etcd")]
impl Drop for Meeting {
    /// The run is over, and with it what it has left in etcd.
    fn drop(&mut self) {
        if let Self::Etcd(etcd) = self {
            let _ = thalweg_cluster::net::etcd::Etcd::forget(etcd.endpoints.clone(), &etcd.cluster);
        }
    }
}

struct Launch<'a> {
    args: &'a Args,
    meeting: &'a Meeting,
    secret: Secret,
    folder: &'a Folder,
    launched: String,
}

impl Launch<'_> {
    fn start(&self, role: &'static str, name: String, lives: u32) -> Result<Process> {
        let args = self.args;
        let own = std::env::current_exe().context("cannot find this program's own file")?;
        // The coordinator runs no code of the user's; servers do, for rules of their own.
        let mut command = if role == "coordinator" {
            let mut command = Command::new(own);
            command.arg("coordinate");
            command
        } else {
            let mut command = Command::new(&args.command[0]);
            command.args(&args.command[1..]);
            command
        };
        let slots = args.slots.unwrap_or(args.workers);
        command
            .env("THALWEG_ROLE", role)
            .env("THALWEG_NAME", &name)
            .env_remove("THALWEG_COORDINATOR")
            .env_remove("THALWEG_ETCD")
            .envs(self.meeting.variables())
            .env("THALWEG_SECRET", self.secret.text())
            .env("THALWEG_SYNC", &args.sync)
            .env("THALWEG_CODEC", &args.codec)
            .env("THALWEG_WORKERS", args.workers.to_string())
            .env("THALWEG_SERVERS", args.servers.to_string())
            .env("THALWEG_SLOTS", slots.to_string())
            .envs(args.shards.map(|n| ("THALWEG_SHARDS", n.to_string())))
            .envs(args.replicas.map(|n| ("THALWEG_REPLICAS", n.to_string())))
            .env("THALWEG_STATE", self.folder.0.join("view"))
            .env(RESTART, std::env::var(RESTART).unwrap_or_else(|_| RESTARTED_MS.into()))
            .env("THALWEG_PARENT", std::process::id().to_string())
            .env(LAUNCHED, &self.launched)
            .env(SAID, self.folder.0.join("said"))
            .envs(args.certificates())
            .envs(args.metrics.as_ref().map(|address| ("THALWEG_METRICS", address)))
            .stdin(Stdio::null());
        let child =
            command.spawn().with_context(|| format!("cannot start {:?} as {name}", command.get_program()))?;
        Ok(Process { role, name, child, lives, done: None })
    }
}

impl Process {
    fn signal(&self, signal: &str) {
        if self.done.is_none() {
            // Through the shell's own command: the standard library can only kill.
            let mut kill = Command::new("kill");
            let _ = kill.arg(signal).arg(self.child.id().to_string()).stderr(Stdio::null()).status();
        }
    }
}

/// All processes; none is left behind however this ends.
struct Cluster(Vec<Process>, Duration); // and how long they may take to end

impl Cluster {
    /// Asks processes to end.
    fn ask(&self, role: &str) {
        self.0.iter().filter(|p| p.role == role).for_each(|process| process.signal("-TERM"));
    }

    /// Lets those go on that were stopped: who is to end needs them, and they have to hear of it.
    fn wake(&self) {
        self.0.iter().for_each(|process| process.signal("-CONT"));
    }

    fn are_running(&mut self, role: &str) -> bool {
        let mut running = false;
        for process in self.0.iter_mut().filter(|p| p.role == role && p.done.is_none()) {
            process.done = process.child.try_wait().ok().flatten();
            running |= process.done.is_none();
        }
        running
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.wake();
        // Workers first: then servers know that there is nobody to hand over to.
        for role in ["worker", "server", "coordinator"] {
            self.ask(role);
            let until = Instant::now() + self.1;
            for process in self.0.iter_mut().filter(|p| p.role == role && p.done.is_none()) {
                while process.child.try_wait().is_ok_and(|s| s.is_none()) {
                    if Instant::now() > until {
                        let _ = process.child.kill();
                        let _ = process.child.wait();
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        }
    }
}

/// A folder that only this user can read, for the coordinator's file and the secret; `status` finds it by where the
/// processes meet. Removed at the end.
struct Folder(std::path::PathBuf);

impl Folder {
    fn path(meeting: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("thalweg-{}", meeting.replace([':', '/'], "-")))
    }

    fn new(meeting: &str, secret: &Secret) -> Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        Self::sweep();
        let path = Self::path(meeting);
        let _ = std::fs::remove_dir_all(&path);
        let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
        made.with_context(|| format!("cannot make {}", path.display()))?;
        let folder = Self(path);
        std::fs::write(folder.0.join(LAUNCHER), life::myself().unwrap_or_default())?;
        std::fs::write(folder.0.join("secret"), secret.text())?;
        Ok(folder)
    }

    /// Removes what launchers of this user have left that were killed.
    fn sweep() {
        for entry in std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
            let file = entry.path().join(LAUNCHER);
            // Others may have put anything there.
            let is_ours = entry.file_name().to_string_lossy().starts_with("thalweg-")
                && std::fs::symlink_metadata(&file).is_ok_and(|m| m.is_file() && m.len() < 4096);
            if is_ours && std::fs::read_to_string(file).is_ok_and(|launcher| life::has_ended(&launcher)) {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
    }

    /// The secret of a cluster that this user launched on this host.
    fn secret_of(meeting: &str) -> Option<String> {
        std::fs::read_to_string(Self::path(meeting).join("secret")).ok()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
