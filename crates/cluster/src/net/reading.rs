//! Reads frames from a connection that may be silent between two of them for as long as it likes, but not within one: a peer
//! that has sent half a frame and says no more has lost the connection, or has nothing good in mind.

use std::io::{self, BufRead, BufReader, Read};
use std::time::{Duration, Instant};

use super::stream::Stream;
use crate::ids::Peer;
use crate::message::Data;
use crate::wire::Incoming;

/// Between two looks at the time.
const LOOK: Duration = Duration::from_millis(250);
/// Within a frame nothing may come for so long; and all of it has so long, and as long as its bytes take at the slowest.
const LONGEST_GAP: Duration = Duration::from_secs(5);
/// Bytes per second, at the slowest.
const SLOWEST: u64 = 16 << 10;

/// The receiving end of a connection.
pub(super) struct Reading {
    reader: BufReader<Stream>,
    longest_gap: Duration,
}

impl Reading {
    pub fn new(stream: Stream) -> io::Result<Self> {
        stream.look_up_every(LOOK)?;
        // For headers and small messages; large arrays pass it by, but for what comes in with their header.
        Ok(Self { reader: BufReader::with_capacity(1 << 13, stream), longest_gap: LONGEST_GAP })
    }

    /// The next message. `None` is an end between two frames.
    pub fn next(&mut self, incoming: &mut Incoming) -> io::Result<Option<(Peer, Data)>> {
        if incoming.is_between_frames() {
            self.wait_for_a_byte()?;
        }
        let (reader, longest_gap) = (&mut self.reader, self.longest_gap);
        incoming.read(&mut Within { reader, longest_gap, began: Instant::now(), n_bytes: 0 })
    }

    fn wait_for_a_byte(&mut self) -> io::Result<()> {
        loop {
            match self.reader.fill_buf() {
                Err(e) if is_look(&e) => {}
                came => return came.map(|_| ()),
            }
        }
    }
}

/// Within a frame.
struct Within<'a, R> {
    reader: &'a mut R,
    longest_gap: Duration,
    began: Instant,
    n_bytes: u64,
}

impl<R: Read> Read for Within<'_, R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let gap = Instant::now();
        loop {
            let enough = self.longest_gap + Duration::from_secs(self.n_bytes / SLOWEST);
            if gap.elapsed() > self.longest_gap || self.began.elapsed() > enough {
                let problem = "a frame was begun and does not go on";
                return Err(io::Error::new(io::ErrorKind::TimedOut, problem));
            }
            match self.reader.read(out) {
                Err(e) if is_look(&e) => {}
                came => {
                    self.n_bytes += *came.as_ref().unwrap_or(&0) as u64;
                    return came;
                }
            }
        }
    }
}

/// Nothing has come since the last look.
fn is_look(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A byte now and then, and nothing in between.
    struct Drips {
        pause: Duration,
        came: usize,
    }

    impl Read for Drips {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            std::thread::sleep(self.pause);
            self.came += 1;
            if self.came.is_multiple_of(2) {
                out[0] = 7;
                return Ok(1);
            }
            Err(io::ErrorKind::WouldBlock.into())
        }
    }

    fn read(pause: u64, longest_gap: u64) -> io::Result<()> {
        let [pause, longest_gap] = [pause, longest_gap].map(Duration::from_millis);
        let reader = &mut Drips { pause, came: 0 };
        Within { reader, longest_gap, began: Instant::now(), n_bytes: 0 }.read_exact(&mut [0; 20])
    }

    #[test]
    fn a_frame_that_goes_on_is_waited_for_and_one_that_drips_is_not() {
        assert!(read(0, 2000).is_ok());
        let silent = read(40, 20).unwrap_err();
        assert_eq!(silent.kind(), io::ErrorKind::TimedOut, "nothing came for too long");
        let drips = read(10, 100).unwrap_err();
        assert_eq!(drips.kind(), io::ErrorKind::TimedOut, "every byte came in time, and all of them did not");
    }
}
