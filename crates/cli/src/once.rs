//! What all processes of a launch would say alike is said by the first of them.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Result, Write};

/// The variable that names the file in which the processes of a launch note what they have said.
pub const SAID: &str = "THALWEG_SAID";

/// Says something, unless another process of this launch has.
pub fn once(what: &str, say: impl FnOnce()) {
    match std::env::var_os(SAID).map(|path| note(&path, what)) {
        Some(Ok(None)) => {}
        // Held until it is said: who would say the same ends only then, and with it the launch.
        Some(Ok(Some(_held))) => say(),
        None | Some(Err(_)) => say(),
    }
}

/// The file, held, unless this stands in it already.
fn note(path: &OsStr, what: &str) -> Result<Option<File>> {
    let mut file = File::options().read(true).append(true).create(true).open(path)?;
    file.lock()?;
    let (mut said, line) = (String::new(), format!("{what:?}"));
    file.read_to_string(&mut said)?;
    if said.lines().any(|before| before == line) {
        return Ok(None);
    }
    writeln!(file, "{line}")?;
    Ok(Some(file))
}
