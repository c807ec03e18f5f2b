//! `thalweg info`.

use std::io::Write;

use anyhow::Result;

pub fn run() -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "thalweg {}", env!("CARGO_PKG_VERSION"))?;
    writeln!(out, "instruction set  {:?} (THALWEG_ISA=scalar|avx2 lowers it)", thalweg::isa())?;
    writeln!(out, "threads          {} (THALWEG_THREADS=n changes it)", thalweg::threads())?;
    writeln!(out, "ops              {}", thalweg::ops::NAMES.len())?;
    Ok(())
}
