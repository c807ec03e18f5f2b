//! Values in memory that two processes of one host share: a ring each way.
//!
//! The header of a chunk goes by the socket, its values by the ring: two plain copies without the kernel between. The
//! memory has no name in any file system, so nothing is left behind whoever is killed, and it is sealed against
//! changes of its size. Beyond the one view as atomic words nothing here is `unsafe`: the other process may write
//! whatever it likes whenever it likes, and all that it changes are numbers.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use memmap2::{MmapOptions, MmapRaw};

/// Values per ring: 4 MiB, four chunks. It stays in the last-level cache.
const RING: usize = 1 << 20;
/// Words before the first ring: a page, and each counter in a cache line of its own.
const FRONT: usize = 1024;
const WORDS: usize = FRONT + 2 * RING;
/// Between two looks at whether the connection is still there.
const LOOK: Duration = Duration::from_millis(50);

/// What proves to who opens the memory that it is the one meant.
pub type Mark = [u32; 8];

/// The memory, as this process sees it.
#[derive(Debug)]
struct Shared {
    map: MmapRaw,
    gone: AtomicBool, // the connection has ended
}

/// Which of the two rings.
#[derive(Debug, Clone, Copy)]
enum Way {
    /// From who made the memory.
    There,
    /// To who made the memory.
    Back,
}

/// The end of a ring that values are put into.
#[derive(Debug)]
pub struct Outlet {
    shared: Arc<Shared>,
    way: Way,
    put: u32, // values so far; it wraps around
}

/// The end of a ring that values are taken from. When it is dropped, nobody waits at the other end of this
/// connection any more.
#[derive(Debug)]
pub struct Inlet {
    shared: Arc<Shared>,
    way: Way,
    taken: u32, // values so far; it wraps around
}

/// Memory that nobody else has yet: the file to be offered, and both ends on this side.
pub fn create(mark: Mark) -> io::Result<(File, Inlet, Outlet)> {
    let file = system::anonymous(4 * WORDS as u64)?;
    let shared = Shared::new(&file)?;
    shared.words()[..mark.len()].iter().zip(mark).for_each(|(w, m)| w.store(m, Ordering::Relaxed));
    let (inlet, outlet) = ends(shared, [Way::Back, Way::There]);
    Ok((file, inlet, outlet))
}

/// The memory that another process of this host offers, if it is what it is said to be.
pub fn open(process: u32, file: u32, mark: Mark) -> io::Result<(Inlet, Outlet)> {
    let file = system::anonymous_of(process, file)?;
    if file.metadata()?.len() != 4 * WORDS as u64 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let shared = Shared::new(&file)?;
    if !shared.words().iter().zip(mark).all(|(w, m)| w.load(Ordering::Relaxed) == m) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(ends(shared, [Way::There, Way::Back]))
}

fn ends(shared: Shared, [takes, puts]: [Way; 2]) -> (Inlet, Outlet) {
    let shared = Arc::new(shared);
    (Inlet { shared: shared.clone(), way: takes, taken: 0 }, Outlet { shared, way: puts, put: 0 })
}

impl Outlet {
    /// Puts values in, waiting for room. No more than a chunk at once.
    pub fn put(&mut self, slices: &[&[f32]]) -> io::Result<()> {
        let n: usize = slices.iter().map(|s| s.len()).sum();
        let [put, taken, waits] = self.shared.counters(self.way);
        loop {
            let seen = taken.load(Ordering::SeqCst);
            // A peer that claims to have taken what was never put is not to be trusted with more.
            let free = RING.checked_sub(self.put.wrapping_sub(seen) as usize);
            let free = free.ok_or(io::ErrorKind::InvalidData)?;
            if n <= free {
                break;
            }
            if self.shared.gone.load(Ordering::Relaxed) || n > RING {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            waits.store(1, Ordering::SeqCst);
            system::wait(taken, seen, LOOK);
        }
        waits.store(0, Ordering::Relaxed);
        let ring = self.shared.ring(self.way);
        for slice in slices {
            let (first, second) = pieces(ring, self.put, slice.len());
            let (head, tail) = slice.split_at(first.len());
            for (words, values) in [(first, head), (second, tail)] {
                words.iter().zip(values).for_each(|(w, v)| w.store(v.to_bits(), Ordering::Relaxed));
            }
            self.put = self.put.wrapping_add(slice.len() as u32);
        }
        put.store(self.put, Ordering::Release);
        Ok(())
    }
}

impl Inlet {
    /// Takes values that were put in before.
    pub fn take(&mut self, to: &mut [f32]) -> io::Result<()> {
        let [put, taken, waits] = self.shared.counters(self.way);
        let there = put.load(Ordering::Acquire).wrapping_sub(self.taken) as usize;
        if to.len() > there || there > RING {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let (first, second) = pieces(self.shared.ring(self.way), self.taken, to.len());
        let (head, tail) = to.split_at_mut(first.len());
        for (words, values) in [(first, head), (second, tail)] {
            words.iter().zip(values).for_each(|(w, v)| *v = f32::from_bits(w.load(Ordering::Relaxed)));
        }
        self.taken = self.taken.wrapping_add(to.len() as u32);
        taken.store(self.taken, Ordering::SeqCst);
        if waits.load(Ordering::SeqCst) != 0 {
            system::wake(taken);
        }
        Ok(())
    }
}

impl Drop for Inlet {
    fn drop(&mut self) {
        self.shared.gone.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    fn new(file: &File) -> io::Result<Self> {
        let map = MmapOptions::new().len(4 * WORDS).map_raw(file)?;
        Ok(Self { map, gone: AtomicBool::new(false) })
    }

    #[allow(unsafe_code)]
    fn words(&self) -> &[AtomicU32] {
        let start: *const AtomicU32 = self.map.as_ptr().cast();
        // SAFETY: the map has `4 * WORDS` bytes, readable and writable, aligned to a page, for as long as `self` lives,
        // and every bit pattern is an `AtomicU32`. The file cannot become shorter: `system` sealed it or saw its seal.
        // Nobody in this process sees this memory but by this function, and other processes may write to it at any
        // time, which atomics allow.
        unsafe { std::slice::from_raw_parts(start, WORDS) }
    }

    /// How many values were put in, how many were taken, and whether somebody waits for room.
    fn counters(&self, way: Way) -> [&AtomicU32; 3] {
        let first = match way {
            Way::There => 16,
            Way::Back => 64,
        };
        [first, first + 16, first + 32].map(|i| &self.words()[i])
    }

    fn ring(&self, way: Way) -> &[AtomicU32] {
        let start = match way {
            Way::There => FRONT,
            Way::Back => FRONT + RING,
        };
        &self.words()[start..][..RING]
    }
}

/// The `n` words from a position on, which may continue at the ring's beginning.
fn pieces(ring: &[AtomicU32], position: u32, n: usize) -> (&[AtomicU32], &[AtomicU32]) {
    let start = position as usize % RING;
    let first = n.min(RING - start);
    (&ring[start..start + first], &ring[..n - first])
}

/// What only Linux has: elsewhere no memory is shared and everything goes by the socket.
#[cfg(target_os = "linux")]
mod system {
    use super::{AtomicU32, Duration, File, io};
    use std::os::unix::fs::OpenOptionsExt;

    use rustix::fs::{MemfdFlags, OFlags, SealFlags};
    use rustix::thread::futex;

    const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

    /// Memory as a file that has no name and whose size is fixed.
    pub fn anonymous(bytes: u64) -> io::Result<File> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(rustix::fs::memfd_create("thalweg", flags)?);
        file.set_len(bytes)?;
        rustix::fs::fcntl_add_seals(&file, SEALS | SealFlags::SEAL)?;
        Ok(file)
    }

    /// Such a file of another process. The system lets processes of the same user open it.
    pub fn anonymous_of(process: u32, file: u32) -> io::Result<File> {
        let path = format!("/proc/{process}/fd/{file}");
        let refused = || io::Error::from(io::ErrorKind::InvalidData);
        // Opening anything else might have effects of its own.
        if std::fs::read_link(&path)?.as_os_str() != "/memfd:thalweg (deleted)" {
            return Err(refused());
        }
        let flags = OFlags::NONBLOCK.bits() as i32;
        let file = File::options().read(true).write(true).custom_flags(flags).open(path)?;
        let sealed = rustix::fs::fcntl_get_seals(&file)?.contains(SEALS);
        if sealed { Ok(file) } else { Err(refused()) }
    }

    /// Waits until the word is not this number any more, or so long.
    pub fn wait(word: &AtomicU32, number: u32, at_most: Duration) {
        let timeout = at_most.try_into().expect("a short time");
        // It changed already, it was interrupted, the time is over: the caller looks again.
        let _ = futex::wait(word, futex::Flags::empty(), number, Some(&timeout));
    }

    /// Wakes who waits for a change of the word.
    pub fn wake(word: &AtomicU32) {
        let _ = futex::wake(word, futex::Flags::empty(), 1);
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use super::{AtomicU32, Duration, File, io};

    pub fn anonymous(_bytes: u64) -> io::Result<File> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub fn anonymous_of(_process: u32, _file: u32) -> io::Result<File> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub fn wait(_word: &AtomicU32, _number: u32, at_most: Duration) {
        std::thread::sleep(at_most);
    }

    pub fn wake(_word: &AtomicU32) {}
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    const MARK: Mark = [1, 2, 3, 4, 5, 6, 7, 8];

    fn pair() -> ((Inlet, Outlet), (Inlet, Outlet)) {
        let (file, inlet, outlet) = create(MARK).unwrap();
        let other = open(std::process::id(), file.as_raw_fd() as u32, MARK).unwrap();
        ((inlet, outlet), other)
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|v| v.to_bits()).collect()
    }

    #[test]
    fn values_pass_both_ways_and_around_the_ring_with_every_bit() {
        let ((mut in_a, mut out_a), (mut in_b, mut out_b)) = pair();
        let values: Vec<f32> =
            (0..RING as u32 / 3 + 7).map(|i| f32::from_bits(i.wrapping_mul(0x9e37_79b9))).collect();
        let (head, tail) = values.split_at(1001);
        for _ in 0..10 {
            for (from, to) in [(&mut out_a, &mut in_b), (&mut out_b, &mut in_a)] {
                from.put(&[head, &[], tail]).unwrap();
                let mut got = vec![0.0; values.len()];
                got.chunks_mut(70_001).for_each(|piece| to.take(piece).unwrap());
                assert_eq!(bits(&got), bits(&values));
            }
        }
    }

    #[test]
    fn who_finds_no_room_waits_until_there_is() {
        let ((_in_a, mut out_a), (mut in_b, _out_b)) = pair();
        let sent: Vec<f32> = (0..5 * RING).map(|i| i as f32).collect();
        let expected = sent.clone();
        let putting =
            std::thread::spawn(move || sent.chunks(RING / 4).try_for_each(|chunk| out_a.put(&[chunk])));
        let mut got = vec![0.0; expected.len()];
        for piece in got.chunks_mut(RING / 8) {
            while in_b.take(piece).is_err() {
                std::thread::yield_now(); // in earnest the header of a chunk tells when
            }
        }
        putting.join().unwrap().unwrap();
        assert_eq!(got, expected);
    }

    #[test]
    fn the_end_of_a_connection_ends_the_wait_for_room() {
        let ((in_a, mut out_a), _other) = pair();
        out_a.put(&[&vec![0.0; RING]]).unwrap();
        let waiting = std::thread::spawn(move || out_a.put(&[&[1.0]]));
        drop(in_a);
        assert_eq!(waiting.join().unwrap().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn claims_that_cannot_be_are_refused() {
        let ((mut in_a, mut out_a), (in_b, _out_b)) = pair();
        assert!(in_a.take(&mut [0.0]).is_err(), "nothing was put in");
        let [put, ..] = in_a.shared.counters(Way::Back);
        put.store(RING as u32 + 1, Ordering::SeqCst);
        assert!(in_a.take(&mut [0.0]).is_err(), "more than fits was put in");
        let [_, taken, _] = in_b.shared.counters(Way::There);
        taken.store(5, Ordering::SeqCst);
        assert!(out_a.put(&[&[1.0]]).is_err(), "more was taken than put in");
    }

    #[test]
    fn only_memory_that_was_made_for_this_is_opened() {
        let (file, ..) = create(MARK).unwrap();
        let (me, number) = (std::process::id(), file.as_raw_fd() as u32);
        assert!(open(me, number, [0; 8]).is_err(), "another mark");
        let null = File::open("/dev/null").unwrap();
        assert!(open(me, null.as_raw_fd() as u32, MARK).is_err(), "another file");
        let unsealed = rustix::fs::memfd_create("thalweg", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        assert!(open(me, unsealed.as_raw_fd() as u32, MARK).is_err(), "a file that may shrink");
        assert!(file.set_len(0).is_err(), "the seal holds");
    }
}
