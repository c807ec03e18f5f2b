//! Two processes find out whether they run on one host, and share memory if they do.
//!
//! Right after the handshake, who connected sends 40 bytes: its process number, the number of an open file, and 32
//! random bytes that stand at the beginning of that file; all zero when it offers nothing. Who accepted opens the
//! file, looks for the random bytes and answers with one byte whether it found them. Whatever fails, the connection
//! goes on without shared memory.

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;

use super::handshake::random;
use crate::ring::{self, Inlet, Mark, Outlet};

const OFFER: usize = 40;

/// Both ends of the shared memory on this side, if there is any.
pub type Ends = Option<(Inlet, Outlet)>;

/// The side that connected.
pub fn offer(stream: &mut (impl Read + Write), willing: bool) -> io::Result<Ends> {
    let mark: Mark = std::array::from_fn(|_| u32::from_le_bytes(random()));
    let Some((file, inlet, outlet)) = willing.then(|| ring::create(mark).ok()).flatten() else {
        stream.write_all(&[0; OFFER])?;
        return answered(stream).map(|_| None);
    };
    let mut offer = [0; OFFER];
    let words = [std::process::id(), file.as_raw_fd() as u32].into_iter().chain(mark);
    offer.chunks_exact_mut(4).zip(words).for_each(|(bytes, word)| bytes.copy_from_slice(&word.to_le_bytes()));
    stream.write_all(&offer)?;
    Ok(answered(stream)?.then_some((inlet, outlet)))
}

/// The side that was connected to.
pub fn accept(stream: &mut (impl Read + Write), willing: bool) -> io::Result<Ends> {
    let mut offer = [0; OFFER];
    stream.read_exact(&mut offer)?;
    let mut words = offer.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().expect("four bytes")));
    let mut word = || words.next().expect("an offer has ten");
    let (process, file) = (word(), word());
    let mark: Mark = std::array::from_fn(|_| word());
    let ends = (willing && process != 0).then(|| ring::open(process, file, mark).ok()).flatten();
    stream.write_all(&[u8::from(ends.is_some())])?;
    Ok(ends)
}

fn answered(stream: &mut impl Read) -> io::Result<bool> {
    let mut answer = [0];
    stream.read_exact(&mut answer)?;
    Ok(answer == [1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn meet(offers: bool, accepts: bool) -> [bool; 2] {
        let (mut a, mut b) = UnixStream::pair().unwrap();
        let other = std::thread::spawn(move || accept(&mut b, accepts).unwrap().is_some());
        [offer(&mut a, offers).unwrap().is_some(), other.join().unwrap()]
    }

    #[test]
    fn memory_is_shared_when_both_sides_want_it() {
        let possible = cfg!(target_os = "linux");
        assert_eq!(meet(true, true), [possible; 2]);
        for (offers, accepts) in [(true, false), (false, true), (false, false)] {
            assert_eq!(meet(offers, accepts), [false; 2]);
        }
    }

    #[test]
    fn an_offer_that_cannot_be_opened_leaves_the_connection_as_it_is() {
        let (mut a, mut b) = UnixStream::pair().unwrap();
        a.write_all(&[7; OFFER]).unwrap();
        assert!(accept(&mut b, true).unwrap().is_none());
        assert!(!answered(&mut a).unwrap());
    }
}
