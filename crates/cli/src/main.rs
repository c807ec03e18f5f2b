//! The `thalweg` command: a thin layer over the library.

mod bench;
#[cfg(feature = "tls")]
mod certificates;
mod dashboard;
mod info;
mod inspect;
mod job;
mod launch;
mod once;
mod plot;
mod predict;
mod progress;
mod recipes;
mod runs;
mod train;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use once::once;

/// Tensors, gradients and models in pure Rust.
#[derive(Parser)]
#[command(name = "thalweg", version, arg_required_else_help = true, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "Examples:
  thalweg train mnist                   train a network on handwritten digits; nothing to download
  thalweg resume runs/mnist             go on with a run that was stopped, to the same bits
  thalweg eval runs/mnist               measure it on the test set
  thalweg predict runs/mnist digit.png  use it
  thalweg info                          what this machine offers
  thalweg inspect model.safetensors     names, dtypes, shapes and ranges of a file's tensors
  thalweg bench --threads 2 add matmul  time workloads on this machine
  thalweg runs runs                     list the runs in a folder, with their last numbers
  thalweg runs -c runs/mnist runs/mlp    compare two of them
  thalweg plot runs --metric loss       draw a curve of each run into loss.svg
  thalweg report runs/mnist             a page about one run
  thalweg dashboard                     the same live, for all runs
  thalweg launch --workers 4 --servers 2 --sync ssp:3 -- thalweg train kmeans
                                        four workers and two servers on this host";

#[derive(Subcommand)]
enum Command {
    /// Train a network or another model by name, and leave a run behind: metrics, checkpoints, the model.
    Train(train::Args),
    /// Go on with a run that was stopped or killed. It ends as if it never had been.
    Resume {
        /// The run.
        run: PathBuf,
        #[command(flatten)]
        how: train::How,
    },
    /// Measure a run's model on its test set.
    Eval {
        /// The run.
        run: PathBuf,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Use a run's model: on inputs of yours, or on examples.
    Predict {
        /// The run.
        run: PathBuf,
        /// For digits: pictures (.png, .jpg) or rows of numbers (.npy). For char-gpt: how a text begins. For tree-lstm:
        /// sentences as trees.
        inputs: Vec<String>,
        /// Print one JSON object per input.
        #[arg(long)]
        json: bool,
    },
    /// Show the instruction set, the threads and the version.
    Info,
    /// List the tensors of a .npy, .npz or .safetensors file with their ranges, or the settings, model and checkpoints of a run.
    Inspect {
        /// The file, or the folder of a run.
        path: PathBuf,
        /// Print the values too (large tensors are summarised).
        #[arg(long)]
        values: bool,
    },
    /// Time workloads; without names, list them.
    Bench(bench::Args),
    /// List runs side by side: state, steps, last numbers, and the settings in which they differ.
    Runs {
        /// Folders of runs, or runs.
        #[arg(default_value = "runs")]
        paths: Vec<PathBuf>,
        /// One column per run, with the best value of each metric beside the last: for comparing a few.
        #[arg(short, long)]
        compare: bool,
        /// Print one JSON object per run instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Draw a metric of one or more runs.
    Plot(plot::Args),
    /// Write a page about one run: settings, numbers and curves in one HTML file.
    Report {
        /// The run.
        run: PathBuf,
        /// The file; `report.html` in the run unless said otherwise.
        #[arg(short, long)]
        out: Option<PathBuf>,
    },
    /// Show runs live on a local web page: curves, settings, the compiled step, how busy the machine is.
    Dashboard(dashboard::Args),
    /// Print a script that completes this command in a shell.
    ///
    /// bash: thalweg completions bash > ~/.local/share/bash-completion/completions/thalweg
    /// zsh:  thalweg completions zsh > ~/.zfunc/_thalweg   (a folder of your $fpath)
    /// fish: thalweg completions fish > ~/.config/fish/completions/thalweg.fish
    #[command(verbatim_doc_comment)]
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Run a program on a cluster of processes on this host.
    Launch(launch::Args),
    /// Show what every process of a cluster does and waits for.
    Status {
        /// Where its coordinator listens: `thalweg launch` prints it. May be left out where THALWEG_ETCD and
        /// THALWEG_CLUSTER say where to ask.
        #[arg(env = "THALWEG_COORDINATOR")]
        coordinator: Option<String>,
        /// Ask again every second.
        #[arg(long)]
        watch: bool,
    },
    /// Make certificates for the hosts of a cluster, and the authority that they believe.
    #[cfg(feature = "tls")]
    Certificates(certificates::Args),
    /// Keep the membership of a cluster, at the address in THALWEG_COORDINATOR; docs/launching.md has all variables.
    Coordinate,
}

/// As the shell tells of a program that wrote to a pipe which nobody reads any more.
const UNREAD: i32 = 128 + 13;

fn main() -> ExitCode {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        // A reader that stops early, such as `head`, is no error of ours.
        if panic.payload_as_str().is_some_and(|text| text.starts_with("failed printing to std")) {
            std::process::exit(UNREAD);
        }
        usual(panic);
    }));
    let cli = Cli::try_parse().unwrap_or_else(|e| {
        once(&e.to_string(), || drop(e.print()));
        std::process::exit(e.exit_code())
    });
    let outcome = match cli.command {
        Command::Train(args) => train::run(&args),
        Command::Resume { run, how } => train::resume(&run, &how),
        Command::Eval { run, json } => predict::eval(&run, json),
        Command::Predict { run, inputs, json } => predict::predict(&run, inputs, json),
        Command::Info => info::run(),
        Command::Inspect { path, values } => inspect::run(&path, values),
        Command::Bench(args) => bench::run(&args),
        Command::Runs { paths, compare, json } => runs::run(&paths, compare, json),
        Command::Plot(args) => plot::run(&args),
        Command::Report { run, out } => runs::report(&run, out),
        Command::Dashboard(args) => dashboard::run(&args),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "thalweg", &mut script);
            std::io::Write::write_all(&mut std::io::stdout(), &script).map_err(Into::into)
        }
        Command::Launch(args) => launch::run(&args),
        Command::Status { coordinator, watch } => launch::status(coordinator.as_deref(), watch),
        #[cfg(feature = "tls")]
        Command::Certificates(args) => certificates::run(&args),
        Command::Coordinate => launch::coordinate(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        // Who saved the run has said how to go on.
        Err(e) if e.is::<launch::Stopped>() => ExitCode::from(train::STOPPED as u8),
        // A reader that stops early, such as `head`, is no error of ours.
        Err(e) if is_broken_pipe(&e) => ExitCode::SUCCESS,
        Err(e) => {
            let told = told(&e);
            once(&told, || thalweg::cluster::say("thalweg", &told));
            let is_interrupted = e.is::<launch::Interrupted>();
            if is_interrupted { ExitCode::from(train::STOPPED as u8) } else { ExitCode::FAILURE }
        }
    }
}

/// An error with its causes, each said once.
fn told(e: &anyhow::Error) -> String {
    e.chain().skip(1).fold(e.to_string(), |told, cause| {
        let cause = cause.to_string();
        if told.contains(&cause) { told } else { format!("{told}: {cause}") }
    })
}

fn is_broken_pipe(e: &anyhow::Error) -> bool {
    e.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}
