//! Downloads from a server on this machine that behaves badly.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use thalweg_data::DataError;
use thalweg_data::fetch::{Remote, sha256};

/// How the server treats one request.
#[derive(Clone, Copy)]
enum Manner {
    /// Sends everything that was asked for.
    Honest,
    /// Promises everything and hangs up after so many bytes.
    Drops(usize),
    /// Ignores ranges and sends the whole file.
    NoRanges,
    /// Answers 500.
    Fails,
}

/// Serves `file`, one manner per request, the last one for ever. Returns the address and the ranges asked for.
fn serve(file: Vec<u8>, manners: &'static [Manner]) -> (String, Arc<Mutex<Vec<u64>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/file", listener.local_addr().unwrap());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = asked.clone();
    std::thread::spawn(move || {
        for (i, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            let head = BufReader::new(stream.try_clone().unwrap()).lines().map(Result::unwrap);
            let head: Vec<String> = head.take_while(|l| !l.is_empty()).map(|l| l.to_lowercase()).collect();
            let range =
                head.iter().find_map(|l| l.strip_prefix("range: bytes=")?.strip_suffix('-')?.parse().ok());
            seen.lock().unwrap().push(range.unwrap_or(0));
            let manner = manners[i.min(manners.len() - 1)];
            let start = if matches!(manner, Manner::NoRanges) { 0 } else { range.unwrap_or(0) as usize };
            let (total, body) = (file.len(), &file[start..]);
            let (status, body) = match manner {
                Manner::Fails => ("500 Oops".to_owned(), &b""[..]),
                _ if range.is_some() && start > 0 => {
                    (format!("206 Partial\r\ncontent-range: bytes {start}-{}/{total}", total - 1), body)
                }
                _ => ("200 OK".to_owned(), body),
            };
            let _ = write!(
                stream,
                "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                body.len()
            );
            let end = if let Manner::Drops(n) = manner { n.min(body.len()) } else { body.len() };
            let _ = stream.write_all(&body[..end]);
        }
    });
    (url, asked)
}

fn folder(test: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("thalweg-download-{}-{test}", std::process::id()));
    let _ = fs::remove_dir_all(&path);
    path
}

fn file() -> (Vec<u8>, String) {
    let bytes: Vec<u8> = (0..300_000u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
    let path = std::env::temp_dir().join(format!(
        "thalweg-download-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    fs::write(&path, &bytes).unwrap();
    let sum = sha256(&path).unwrap();
    fs::remove_file(path).unwrap();
    (bytes, sum)
}

#[test]
fn a_connection_that_drops_half_way_is_taken_up_again() {
    let (bytes, sum) = file();
    let (url, asked) = serve(bytes.clone(), &[Manner::Drops(100_000), Manner::Drops(50_000), Manner::Honest]);
    let dir = folder("drops");
    let path = Remote { name: "f", url: &url, sha256: &sum }.fetch(&dir).unwrap();
    assert_eq!(fs::read(&path).unwrap(), bytes);
    assert_eq!(*asked.lock().unwrap(), [0, 100_000, 150_000]);
    assert!(!dir.join("f.part").exists());
    // The second time nothing is asked.
    Remote { name: "f", url: &url, sha256: &sum }.fetch(&dir).unwrap();
    assert_eq!(asked.lock().unwrap().len(), 3);
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn what_a_dead_server_left_is_kept_for_the_next_run() {
    let (bytes, sum) = file();
    let dir = folder("later");
    let (url, _) = serve(bytes.clone(), &[Manner::Drops(200_000), Manner::Fails]);
    let e = Remote { name: "f", url: &url, sha256: &sum }.fetch(&dir).unwrap_err();
    assert!(matches!(&e, DataError::Download { have: 200_000, .. }), "{e}");
    assert!(e.to_string().contains("the server answered with status 500"), "{e}");

    let (url, asked) = serve(bytes.clone(), &[Manner::Honest]);
    let path = Remote { name: "f", url: &url, sha256: &sum }.fetch(&dir).unwrap();
    assert_eq!((fs::read(&path).unwrap() == bytes, asked.lock().unwrap()[0]), (true, 200_000));
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_server_without_ranges_sends_everything_again() {
    let (bytes, sum) = file();
    let dir = folder("noranges");
    let (url, _) = serve(bytes.clone(), &[Manner::Drops(10), Manner::NoRanges]);
    let path = Remote { name: "f", url: &url, sha256: &sum }.fetch(&dir).unwrap();
    assert_eq!(fs::read(path).unwrap(), bytes);
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn another_file_than_promised_is_thrown_away() {
    let (bytes, sum) = file();
    let dir = folder("wrong");
    let (url, _) = serve(bytes[1..].to_vec(), &[Manner::Honest]);
    let e = Remote { name: "f", url: &url, sha256: &sum }.fetch(&dir).unwrap_err();
    assert!(matches!(&e, DataError::Checksum { want, .. } if *want == sum), "{e}");
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);

    fs::write(dir.join("f"), "edited").unwrap();
    let e = Remote { name: "f", url: &url, sha256: &sum }.fetch(&dir).unwrap_err();
    assert!(e.to_string().ends_with("remove it to download it again"), "{e}");
    assert_eq!(fs::read(dir.join("f")).unwrap(), b"edited", "a user's file is not removed");
    fs::remove_dir_all(dir).unwrap();
}
