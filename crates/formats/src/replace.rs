//! Replacing a file in one step: readers see the old contents or the new, never a part.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Action, FormatError};

/// Writes a new file beside `path`, forces it to disk and renames it into place. When anything fails,
/// the old file is as it was and the new one is gone.
///
/// A link is followed and its target replaced. A device or pipe is written straight through, since a
/// rename would put a plain file in its place. A read-only file is not replaced. The rename itself is
/// forced to disk where the system allows it: after a power cut the old file may be back, but whole.
///
/// A process that is killed in between leaves a file `.thalweg-*.tmp` beside `path`, and nothing else.
///
/// ```
/// let path = std::env::temp_dir().join(format!("thalweg-replace-doc-{}", std::process::id()));
/// thalweg_formats::replace(&path, |w| w.write_all(b"whole"))?;
/// assert_eq!(std::fs::read(&path).unwrap(), b"whole");
/// # std::fs::remove_file(path).unwrap();
/// # Ok::<(), thalweg_formats::FormatError>(())
/// ```
pub fn replace(path: &Path, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), FormatError> {
    let failed = |action| move |source| FormatError::Io { action, path: path.to_owned(), source };
    let target = match fs::symlink_metadata(path) {
        Ok(m) if m.is_symlink() => fs::canonicalize(path).map_err(failed(Action::Create))?,
        _ => path.to_owned(),
    };
    let mode = match fs::metadata(&target) {
        Ok(m) if m.is_dir() => return Err(FormatError::NotAFile { path: path.to_owned() }),
        Ok(m) if !m.is_file() => {
            let device = OpenOptions::new().write(true).open(&target).map_err(failed(Action::Create))?;
            return filled(&device, fill).map_err(failed(Action::Write));
        }
        Ok(m) if m.permissions().readonly() => {
            return Err(failed(Action::Create)(io::ErrorKind::PermissionDenied.into()));
        }
        Ok(m) => Some(m.permissions()),
        Err(_) => None,
    };
    if target.file_name().is_none() {
        return Err(FormatError::NotAFile { path: path.to_owned() });
    }
    let folder = match target.parent() {
        Some(p) if p != Path::new("") => p,
        _ => Path::new("."),
    };

    let (file, temporary) = Temporary::create(folder).map_err(failed(Action::Create))?;
    filled(&file, fill).and_then(|()| settle(&file, mode)).map_err(failed(Action::Write))?;
    drop(file);
    temporary.rename(&target).map_err(failed(Action::Rename))?;
    // Not every file system can do this, and the new file is whole either way.
    if cfg!(unix) {
        let _ = File::open(folder).and_then(|d| d.sync_all());
    }
    Ok(())
}

fn filled(file: &File, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut w = BufWriter::with_capacity(1 << 16, file);
    fill(&mut w)?;
    w.flush()
}

/// Gives the new file the old one's permissions and forces it to disk.
fn settle(file: &File, mode: Option<Permissions>) -> io::Result<()> {
    if let Some(mode) = mode {
        file.set_permissions(mode)?;
    }
    file.sync_all()
}

/// A file that is removed again unless it was renamed into place.
struct Temporary(Option<PathBuf>);

impl Temporary {
    fn create(folder: &Path) -> io::Result<(File, Self)> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        loop {
            // Not made from the target's name, which may already be as long as names can be.
            let n = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = folder.join(format!(".thalweg-{}-{n}.tmp", std::process::id()));
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => return Ok((file, Self(Some(path)))),
                // Left behind by a process of the same id that was killed.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
    }

    fn rename(mut self, target: &Path) -> io::Result<()> {
        if let Some(path) = &self.0 {
            fs::rename(path, target)?;
        }
        self.0 = None;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An empty folder of this test's own.
    fn folder(test: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("thalweg-replace-{}-{test}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        path
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_failed_write_leaves_the_old_file_and_nothing_else() {
        let dir = folder("failed");
        let path = dir.join("a");
        replace(&path, |w| w.write_all(b"old")).unwrap();
        let err = replace(&path, |w| {
            w.write_all(&[0; 1 << 20])?;
            Err(io::ErrorKind::StorageFull.into())
        })
        .unwrap_err();
        match err {
            FormatError::Io { action: Action::Write, path: p, source } => {
                assert_eq!((p, source.kind()), (path.clone(), io::ErrorKind::StorageFull));
            }
            other => panic!("{other}"),
        }
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(names(&dir), ["a"]);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    #[cfg(unix)]
    fn a_full_device_is_an_error_and_stays_a_device() {
        let full = Path::new("/dev/full");
        if !full.exists() {
            return;
        }
        let err = replace(full, |w| w.write_all(&[1; 1 << 18])).unwrap_err();
        assert!(err.to_string().starts_with("write /dev/full: "), "{err}");
        assert!(!fs::metadata(full).unwrap().is_file());
    }

    #[test]
    #[cfg(unix)]
    fn read_only_places_are_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = folder("readonly");
        let path = dir.join("a");
        replace(&path, |w| w.write_all(b"old")).unwrap();

        fs::set_permissions(&path, Permissions::from_mode(0o444)).unwrap();
        let denied = |e: FormatError| match e {
            FormatError::Io { action: Action::Create, source, .. } => {
                source.kind() == io::ErrorKind::PermissionDenied
            }
            _ => false,
        };
        assert!(denied(replace(&path, |w| w.write_all(b"new")).unwrap_err()));
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();

        fs::set_permissions(&dir, Permissions::from_mode(0o555)).unwrap();
        // The superuser may write here all the same; then there is nothing to see.
        if File::create(dir.join("probe")).is_err() {
            assert!(denied(replace(&path, |w| w.write_all(b"new")).unwrap_err()));
            assert_eq!(fs::read(&path).unwrap(), b"old");
        }
        fs::set_permissions(&dir, Permissions::from_mode(0o755)).unwrap();

        replace(&path, |w| w.write_all(b"new")).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    #[cfg(unix)]
    fn a_link_is_followed_and_stays_a_link() {
        let dir = folder("link");
        fs::write(dir.join("real"), b"old").unwrap();
        std::os::unix::fs::symlink("real", dir.join("link")).unwrap();
        replace(&dir.join("link"), |w| w.write_all(b"new")).unwrap();
        assert_eq!(fs::read(dir.join("real")).unwrap(), b"new");
        assert!(fs::symlink_metadata(dir.join("link")).unwrap().is_symlink());
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_folder_or_a_missing_folder_is_an_error() {
        let dir = folder("folder");
        assert!(matches!(replace(&dir, |_| Ok(())), Err(FormatError::NotAFile { .. })));
        let err = replace(&dir.join("no/such"), |_| Ok(())).unwrap_err();
        assert!(matches!(err, FormatError::Io { action: Action::Create, .. }), "{err}");
        fs::remove_dir_all(dir).unwrap();
    }
}
