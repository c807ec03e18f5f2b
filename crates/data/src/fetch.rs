//! Files that are too large to ship: checked by their checksum, downloaded when they are not there.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::error::DataError;

/// A file that can be had from somewhere.
///
/// ```no_run
/// use thalweg_data::fetch::{Remote, cache_dir};
/// let shakespeare = Remote {
///     name: "tiny-shakespeare.txt",
///     url: "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
///     sha256: "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
/// };
/// let path = shakespeare.fetch(&cache_dir()?)?;
/// let text = std::fs::read_to_string(path);
/// # Ok::<(), thalweg_data::DataError>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Remote<'a> {
    /// What the file is called in the cache.
    pub name: &'a str,
    /// Where it comes from.
    pub url: &'a str,
    /// What it must be, in hexadecimal.
    pub sha256: &'a str,
}

/// The plays of Shakespeare in one megabyte of text, as gathered by A. Karpathy.
pub const TINY_SHAKESPEARE: Remote = Remote {
    name: "tiny-shakespeare.txt",
    url: "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    sha256: "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
};

impl Remote<'_> {
    /// The path of the file in this folder, downloaded unless it is there already. A download that was cut
    /// off goes on where it stopped; what comes out is used only if its checksum is right.
    pub fn fetch(&self, folder: &Path) -> Result<PathBuf, DataError> {
        let path = folder.join(self.name);
        if path.exists() {
            self.check(&path, "remove it to download it again")?;
            return Ok(path);
        }
        fs::create_dir_all(folder).map_err(DataError::io("create", folder))?;
        let part = folder.join(format!("{}.part", self.name));
        download(self.url, &part)?;
        if let Err(wrong) = self.check(&part, "it was thrown away: try again, or ask who offers it") {
            // Kept, it would spoil every further try.
            let _ = fs::remove_file(&part);
            return Err(wrong);
        }
        fs::rename(&part, &path).map_err(DataError::io("rename to", &path))?;
        Ok(path)
    }

    fn check(&self, path: &Path, advice: &'static str) -> Result<(), DataError> {
        let got = sha256(path)?;
        if got.eq_ignore_ascii_case(self.sha256) {
            return Ok(());
        }
        Err(DataError::Checksum { path: path.to_owned(), want: self.sha256.to_owned(), got, advice })
    }
}

/// The sha256 of a file, in hexadecimal.
pub fn sha256(path: impl AsRef<Path>) -> Result<String, DataError> {
    let path = path.as_ref();
    let mut file = File::open(path).map_err(DataError::io("open", path))?;
    let (mut sum, mut chunk) = (Sha256::new(), vec![0; 1 << 16]);
    loop {
        match file.read(&mut chunk).map_err(DataError::io("read", path))? {
            0 => return Ok(sum.finalize().iter().map(|b| format!("{b:02x}")).collect()),
            n => sum.update(&chunk[..n]),
        }
    }
}

/// Where downloads go: `THALWEG_CACHE`, or `thalweg` in the user's cache folder.
pub fn cache_dir() -> Result<PathBuf, DataError> {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    set("THALWEG_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|p| p.join("thalweg")))
        .or_else(|| set("LOCALAPPDATA").map(|p| p.join("thalweg")))
        .or_else(|| set("HOME").map(|p| p.join(".cache/thalweg")))
        .ok_or(DataError::Empty {
            path: "the environment".into(),
            what: "HOME; set THALWEG_CACHE to a folder",
        })
}

#[cfg(not(feature = "download"))]
fn download(url: &str, _: &Path) -> Result<(), DataError> {
    Err(DataError::Feature { what: format!("downloading {url}"), feature: "download" })
}

/// Appends to what is there until the server says that nothing is missing; gives up after several failures
/// without progress.
#[cfg(feature = "download")]
fn download(url: &str, part: &Path) -> Result<(), DataError> {
    if url.starts_with("https:") && !cfg!(feature = "https") {
        return Err(DataError::Feature { what: format!("downloading {url}"), feature: "https" });
    }
    const TRIES: u32 = 4;
    let length = || fs::metadata(part).map_or(0, |m| m.len());
    let (mut failures, mut have) = (0, length());
    loop {
        let reason = match attempt(url, part, have) {
            Ok(()) => return Ok(()),
            Err(Trouble::Local(e)) => return Err(e),
            Err(Trouble::Remote(reason)) => reason,
        };
        failures = if length() > have { 1 } else { failures + 1 };
        have = length();
        if failures == TRIES {
            return Err(DataError::Download { url: url.to_owned(), reason, have, part: part.to_owned() });
        }
        std::thread::sleep(std::time::Duration::from_millis(50 << failures));
    }
}

#[cfg(feature = "download")]
enum Trouble {
    /// Trying again will not help.
    Local(DataError),
    /// It may.
    Remote(String),
}

/// One request for what is missing. `Ok` when the file is as long as the server says.
#[cfg(feature = "download")]
fn attempt(url: &str, part: &Path, have: u64) -> Result<(), Trouble> {
    use std::io::Write;
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_connect(Some(std::time::Duration::from_secs(20)))
        .timeout_recv_response(Some(std::time::Duration::from_secs(60)))
        .build()
        .into();
    let mut request = agent.get(url).header("accept-encoding", "identity");
    if have > 0 {
        request = request.header("range", format!("bytes={have}-"));
    }
    let mut response = request.call().map_err(|e| Trouble::Remote(e.to_string()))?;
    let local = |action| move |e| Trouble::Local(DataError::io(action, part)(e));
    let (mut at, total) = match response.status().as_u16() {
        200 => (0, header(&response, "content-length").and_then(|v| v.parse().ok())),
        206 => {
            let range = header(&response, "content-range").unwrap_or_default();
            let (start, total) = parse_range(&range).ok_or_else(|| odd(&range))?;
            if start != have {
                return Err(odd(&range));
            }
            (have, total)
        }
        // Nothing is missing, or what is there is not a beginning of the file: the checksum will tell.
        416 => return Ok(()),
        status => return Err(Trouble::Remote(format!("the server answered with status {status}"))),
    };
    let mut file = File::options().create(true).append(true).open(part).map_err(local("open"))?;
    // A server that does not do ranges sends everything again.
    file.set_len(at).map_err(local("write"))?;
    let (mut body, mut chunk) = (response.body_mut().as_reader(), vec![0; 1 << 16]);
    loop {
        let n = body.read(&mut chunk).map_err(|e| Trouble::Remote(e.to_string()))?;
        if n == 0 {
            break;
        }
        file.write_all(&chunk[..n]).map_err(local("write"))?;
        at += n as u64;
    }
    file.sync_all().map_err(local("write"))?;
    match total {
        Some(total) if at < total => {
            Err(Trouble::Remote(format!("the connection ended at byte {at} of {total}")))
        }
        _ => Ok(()),
    }
}

#[cfg(feature = "download")]
fn odd(range: &str) -> Trouble {
    Trouble::Remote(format!("the server answered with another range: {range:?}"))
}

#[cfg(feature = "download")]
fn header(response: &ureq::http::Response<ureq::Body>, name: &str) -> Option<String> {
    response.headers().get(name)?.to_str().ok().map(str::to_owned)
}

/// Start and total of `bytes start-end/total`; the total may be `*`.
#[cfg(feature = "download")]
fn parse_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let start = range.split_once('-')?.0.parse().ok()?;
    Some((start, total.parse().ok()))
}
