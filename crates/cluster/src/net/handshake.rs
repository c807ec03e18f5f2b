//! Proof of the cluster's secret, before anything else is read.
//!
//! Who accepts sends 32 bytes, a greeting and random ones; who connects answers with 32 random bytes of its own and an
//! HMAC-SHA256 over both; who accepts answers with another, or with zeros when the first was wrong. Lengths are fixed, so
//! that nothing is parsed before the proof. An eavesdropper cannot replay it, since both sides drew new numbers. It does
//! not encrypt.
//!
//! The greeting and the zeros are there so that a process with the wrong secret knows it, and does not try for ever.

use std::io::{self, Read, Write};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use thiserror::Error;
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

/// What a challenge begins with.
pub(super) const GREETING: [u8; 8] = *b"THWGauth";
/// What is answered to a proof that is none. No proof is all zeros but by a chance of one in 2²⁵⁶.
const REFUSED: Number = [0; 32];

/// Why two sides will never come to an agreement, however often they try.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Unproved {
    /// They know different secrets.
    #[error("the secret was refused; set THALWEG_SECRET to that of the cluster")]
    Wrong,
    /// The other side wants a secret, and this one has none.
    #[error("a secret is wanted there, and this process has none; set THALWEG_SECRET to that of the cluster")]
    Wanted,
    /// This side has a secret, and the other wants none.
    #[error("no secret is wanted there; unset THALWEG_SECRET, or is the address that of another program?")]
    Unwanted,
}

impl Unproved {
    /// What of this kind has led to an error.
    pub fn of(e: &(dyn std::error::Error + 'static)) -> Option<Self> {
        e.downcast_ref::<io::Error>()?.get_ref()?.downcast_ref().copied()
    }
}

impl From<Unproved> for io::Error {
    fn from(why: Unproved) -> Self {
        io::Error::new(io::ErrorKind::PermissionDenied, why)
    }
}

fn challenge() -> Number {
    let mut challenge = random::<32>();
    challenge[..GREETING.len()].copy_from_slice(&GREETING);
    challenge
}

/// The side that was connected to.
pub fn accept(stream: &mut (impl Read + Write), secret: &Secret) -> io::Result<()> {
    let (challenge, mut reply) = (challenge(), [0; 64]);
    stream.write_all(&challenge)?;
    stream.read_exact(&mut reply)?;
    let proof = check_reply(secret, &challenge, &reply);
    stream.write_all(&proof.unwrap_or(REFUSED))?;
    proof.map(|_| ()).map_err(io::Error::from)
}

/// The side that connects.
pub fn connect(stream: &mut (impl Read + Write), secret: &Secret) -> io::Result<()> {
    let (mut challenge, mut proof) = ([0; 32], [0; 32]);
    let (greeting, rest) = challenge.split_at_mut(GREETING.len());
    stream.read_exact(greeting).map_err(silent)?;
    check_greeting(greeting)?;
    stream.read_exact(rest)?;
    let (answer, reply) = reply(secret, &challenge);
    stream.write_all(&reply)?;
    stream.read_exact(&mut proof)?;
    Ok(verify(secret.mac(b"accept", &challenge, &answer), &proof)?)
}

/// [`accept`] on the thread of the control plane.
pub async fn accept_async(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    secret: &Secret,
) -> io::Result<()> {
    let (challenge, mut reply) = (challenge(), [0; 64]);
    stream.write_all(&challenge).await?;
    stream.read_exact(&mut reply).await?;
    let proof = check_reply(secret, &challenge, &reply);
    stream.write_all(&proof.unwrap_or(REFUSED)).await?;
    proof.map(|_| ()).map_err(io::Error::from)
}

/// [`connect`] on the thread of the control plane.
pub async fn connect_async(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    secret: &Secret,
) -> io::Result<()> {
    let (mut challenge, mut proof) = ([0; 32], [0; 32]);
    let (greeting, rest) = challenge.split_at_mut(GREETING.len());
    stream.read_exact(greeting).await.map_err(silent)?;
    check_greeting(greeting)?;
    stream.read_exact(rest).await?;
    let (answer, reply) = reply(secret, &challenge);
    stream.write_all(&reply).await?;
    stream.read_exact(&mut proof).await?;
    Ok(verify(secret.mac(b"accept", &challenge, &answer), &proof)?)
}

/// Whoever begins otherwise wants no proof.
fn check_greeting(got: &[u8]) -> Result<(), Unproved> {
    if got == GREETING { Ok(()) } else { Err(Unproved::Unwanted) }
}

/// The number that the side that connects draws, and what it sends: that and its proof.
fn reply(secret: &Secret, challenge: &Number) -> (Number, Vec<u8>) {
    let answer = random();
    let proof = secret.mac(b"connect", challenge, &answer).finalize().into_bytes();
    (answer, [&answer[..], &proof[..]].concat())
}

/// The proof of the side that was connected to, if the reply to its challenge has one.
fn check_reply(secret: &Secret, challenge: &Number, reply: &[u8; 64]) -> Result<Number, Unproved> {
    let (answer, proof) = reply.split_first_chunk().expect("the first half");
    verify(secret.mac(b"connect", challenge, answer), proof)?;
    Ok(secret.mac(b"accept", challenge, answer).finalize().into_bytes().into())
}

/// In constant time.
fn verify(mac: Hmac<Sha256>, proof: &[u8]) -> Result<(), Unproved> {
    mac.verify_slice(proof).map_err(|_| Unproved::Wrong)
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
    let problem = "the peer says nothing; does it want a certificate (THALWEG_TLS_CERT) \
                   or no secret (THALWEG_SECRET), or is it another program?";
    io::Error::new(SAYS_NOTHING, problem)
}

/// The kind of that error.
pub(super) const SAYS_NOTHING: io::ErrorKind = io::ErrorKind::PermissionDenied;

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
        assert_eq!(Unproved::of(&b.unwrap_err()), Some(Unproved::Wrong));
    }

    #[test]
    fn who_is_greeted_by_another_protocol_knows_that_no_secret_is_wanted() {
        struct Settings; // of HTTP/2
        impl Read for Settings {
            fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
                out.fill(4);
                Ok(out.len())
            }
        }
        impl Write for Settings {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                panic!("nothing is said to whoever is not known")
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let refused = connect(&mut Settings, &Secret::new("one")).unwrap_err();
        assert_eq!(Unproved::of(&refused), Some(Unproved::Unwanted));
    }

    #[test]
    fn a_peer_that_goes_away_in_the_middle_of_a_proof_may_come_back() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let other = std::thread::spawn(move || {
            connect(&mut TcpStream::connect(address).unwrap(), &Secret::new("one")).unwrap_err()
        });
        let mut stream = listener.accept().unwrap().0;
        stream.write_all(&challenge()).unwrap();
        stream.read_exact(&mut [0; 64]).unwrap();
        drop(stream);
        assert_eq!(Unproved::of(&other.join().unwrap()), None);
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
