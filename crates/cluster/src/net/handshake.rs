//! Proof of the cluster's secret, before anything else is read.
//!
//! Who accepts sends 32 random bytes; who connects answers with 32 of its own and an HMAC-SHA256 over
//! both; who accepts answers with another. Lengths are fixed, so that nothing is parsed before the proof.
//! An eavesdropper cannot replay it, since both sides drew new numbers. It does not encrypt.

use std::io::{self, Read, Write};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// What all processes of a cluster know and nobody else. Empty is allowed on loopback only.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// From any text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into().into_bytes())
    }

    /// A new one from the system's random numbers.
    pub fn random() -> Self {
        Self::new(random::<16>().iter().map(|b| format!("{b:02x}")).collect::<String>())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The text, to be handed to processes that this one starts.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }

    fn mac(&self, role: &[u8], challenge: &Number, answer: &Number) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        [role, challenge, answer].iter().for_each(|part| mac.update(part));
        mac
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Secret(..)")
    }
}

/// Bytes from the system's random numbers.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the system has random numbers");
    bytes
}

type Number = [u8; 32];

/// The side that was connected to.
pub fn accept(stream: &mut (impl Read + Write), secret: &Secret) -> io::Result<()> {
    let (challenge, mut reply) = (random(), [0; 64]);
    stream.write_all(&challenge)?;
    stream.read_exact(&mut reply)?;
    stream.write_all(&check_reply(secret, &challenge, &reply)?)
}

/// The side that connects.
pub fn connect(stream: &mut (impl Read + Write), secret: &Secret) -> io::Result<()> {
    let (mut challenge, mut proof) = ([0; 32], [0; 32]);
    stream.read_exact(&mut challenge).map_err(silent)?;
    let (answer, reply) = reply(secret, &challenge);
    stream.write_all(&reply)?;
    stream.read_exact(&mut proof).map_err(|_| wrong_secret())?;
    verify(secret.mac(b"accept", &challenge, &answer), &proof)
}

/// [`accept`] on the thread of the control plane.
pub async fn accept_async(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    secret: &Secret,
) -> io::Result<()> {
    let (challenge, mut reply) = (random(), [0; 64]);
    stream.write_all(&challenge).await?;
    stream.read_exact(&mut reply).await?;
    stream.write_all(&check_reply(secret, &challenge, &reply)?).await
}

/// [`connect`] on the thread of the control plane.
pub async fn connect_async(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    secret: &Secret,
) -> io::Result<()> {
    let (mut challenge, mut proof) = ([0; 32], [0; 32]);
    stream.read_exact(&mut challenge).await.map_err(silent)?;
    let (answer, reply) = reply(secret, &challenge);
    stream.write_all(&reply).await?;
    stream.read_exact(&mut proof).await.map_err(|_| wrong_secret())?;
    verify(secret.mac(b"accept", &challenge, &answer), &proof)
}

/// The number that the side that connects draws, and what it sends: that and its proof.
fn reply(secret: &Secret, challenge: &Number) -> (Number, Vec<u8>) {
    let answer = random();
    let proof = secret.mac(b"connect", challenge, &answer).finalize().into_bytes();
    (answer, [&answer[..], &proof[..]].concat())
}

/// The proof of the side that was connected to, if the reply to its challenge has one.
fn check_reply(secret: &Secret, challenge: &Number, reply: &[u8; 64]) -> io::Result<Number> {
    let (answer, proof) = reply.split_first_chunk().expect("the first half");
    verify(secret.mac(b"connect", challenge, answer), proof)?;
    Ok(secret.mac(b"accept", challenge, answer).finalize().into_bytes().into())
}

/// In constant time.
fn verify(mac: Hmac<Sha256>, proof: &[u8]) -> io::Result<()> {
    mac.verify_slice(proof).map_err(|_| wrong_secret())
}

/// A peer that waits for a certificate says nothing; one that refuses ours says so.
fn silent(e: io::Error) -> io::Error {
    match e.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::WouldBlock => {
            says_nothing()
        }
        _ => e,
    }
}

/// A peer that should have begun has not.
pub fn says_nothing() -> io::Error {
    let problem = "the peer says nothing; does it want a certificate (THALWEG_TLS_CERT), \
                   or no secret (THALWEG_SECRET)?";
    io::Error::new(io::ErrorKind::PermissionDenied, problem)
}

fn wrong_secret() -> io::Error {
    io::Error::new(
        io::ErrorKind::PermissionDenied,
        "the peer does not have the cluster's secret (THALWEG_SECRET)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    fn meet(accepts: &'static str, connects: &'static str) -> (io::Result<()>, io::Result<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let other = std::thread::spawn(move || {
            connect(&mut TcpStream::connect(address).unwrap(), &Secret::new(connects))
        });
        let accepted = accept(&mut listener.accept().unwrap().0, &Secret::new(accepts));
        (accepted, other.join().unwrap())
    }

    #[test]
    fn equal_secrets_meet_and_others_are_refused_on_both_sides() {
        let (a, b) = meet("one", "one");
        assert!(a.is_ok() && b.is_ok());
        let (a, b) = meet("one", "two");
        assert_eq!(a.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert!(b.unwrap_err().to_string().contains("THALWEG_SECRET"));
    }

    #[test]
    fn who_sends_anything_else_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let other = std::thread::spawn(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(&[b'G'; 64]).unwrap();
            stream
        });
        assert!(accept(&mut listener.accept().unwrap().0, &Secret::new("one")).is_err());
        drop(other.join().unwrap());
    }
}
