//! `thalweg bench`: times workloads and prints them as a table, or in the CSV format of the rivals'
//! scripts in `benches/peers`.

mod clock;
mod networks;
mod workloads;

use anyhow::{Result, bail};

use clock::Timing;

#[derive(clap::Args)]
pub struct Args {
    /// Workloads or groups of workloads by name.
    names: Vec<String>,
    /// Threads to use.
    #[arg(long, default_value_t = thalweg::threads())]
    threads: usize,
    /// Print `framework,threads,workload,wall_median,wall_min,cpu_median,cpu_min,n` in ms.
    #[arg(long)]
    csv: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let all: Vec<_> = workloads::all().into_iter().chain(networks::all()).collect();
    if args.names.is_empty() {
        println!("workloads (group: names):");
        for group in workloads::GROUPS {
            let names: Vec<&str> = all.iter().filter(|w| w.group == *group).map(|w| w.name).collect();
            println!("  {group}: {}", names.join(" "));
        }
        return Ok(());
    }
    for name in &args.names {
        if !all.iter().any(|w| w.name == name || w.group == name) {
            bail!("no workload or group `{name}`; `thalweg bench` lists them");
        }
    }
    thalweg::set_threads(args.threads);
    if !args.csv {
        println!("{:<22} {:>12} {:>12} {:>6}", "workload", "median ms", "min ms", "n");
    }
    for w in all.iter().filter(|w| args.names.iter().any(|n| n == w.name || n == w.group)) {
        let Timing { wall_median, wall_min, cpu_median, cpu_min, n } = (w.run)();
        if args.csv {
            let (threads, name) = (args.threads, w.name);
            println!(
                "thalweg,{threads},{name},{wall_median:.6},{wall_min:.6},{cpu_median:.6},{cpu_min:.6},{n}"
            );
        } else {
            println!("{:<22} {wall_median:>12.6} {wall_min:>12.6} {n:>6}", w.name);
        }
    }
    Ok(())
}
