use super::*;
use crate::ids::{CallId, Epoch, ServerId, SessionId, ShardId, Slot, TableId};
use crate::message::{Answer, Call, Done, Outcome};
use crate::state::{Reads, Update};
use crate::table::{Delta, mix};

fn bytes(frame: &Frame) -> Vec<u8> {
    let mut out = Vec::new();
    frame.write(&mut out).unwrap();
    out
}

fn back(bytes: &[u8]) -> io::Result<Option<(Peer, Message)>> {
    read(&mut &*bytes, &Limits::default())
}

fn call() -> Message {
    let rows = Delta::Rows(Arc::new(vec![3, 9]), Arc::new(vec![1.0, 2.0, 3.0, 4.0]));
    let dense = Delta::Dense(Arc::new(vec![0.5; 1000]));
    let push = Update::from([(TableId(0), dense), (TableId(1), rows)]);
    Message::Call(Call {
        epoch: Epoch(7),
        shard: ShardId(1),
        id: CallId(99),
        slot: Slot(3),
        clock: 12,
        create: None,
        push: Some(Arc::new(push)),
        pull: None,
        fresh: false,
    })
}

#[test]
fn a_call_comes_back_as_it_was() {
    let frame = Frame::new(Peer::Worker(SessionId(5)), &call());
    let (from, message) = back(&bytes(&frame)).unwrap().unwrap();
    assert_eq!(from, Peer::Worker(SessionId(5)));
    assert_eq!(format!("{message:?}"), format!("{:?}", call()));
    assert_eq!(frame.len(), bytes(&frame).len());
}

#[test]
fn empty_arrays_and_empty_messages_pass() {
    let reads = Reads::from([(TableId(0), Values::default()), (TableId(1), Arc::new(vec![1.0]))]);
    let done = Done { pushed: None, reads: Some(reads), version: 1, mark: 2 };
    let answer = Answer { epoch: Epoch(1), shard: ShardId(0), id: CallId(1), outcome: Outcome::Done(done) };
    for message in [Message::Answer(answer), Message::Expelled] {
        let (_, again) = back(&bytes(&Frame::new(Peer::Server(ServerId(1)), &message))).unwrap().unwrap();
        assert_eq!(format!("{again:?}"), format!("{message:?}"));
    }
    assert!(back(&[]).unwrap().is_none());
}

#[test]
fn a_frame_cut_anywhere_or_changed_anywhere_before_its_data_is_refused() {
    let whole = bytes(&Frame::new(Peer::Worker(SessionId(5)), &call()));
    let head = whole.len() - 4 * 1004;
    for n in 1..whole.len() {
        assert!(back(&whole[..n]).is_err(), "cut at {n}");
    }
    for i in 0..head {
        let mut bad = whole.clone();
        bad[i] ^= 1 << (mix(i as u64) % 8);
        assert!(back(&bad).is_err(), "changed at {i}");
    }
}

#[test]
fn a_claim_beyond_the_limits_is_refused_before_memory_is_asked_for() {
    let mut header = bytes(&Frame::new(Peer::Coordinator, &Message::Expelled));
    header[16..24].copy_from_slice(&(1u64 << 60).to_le_bytes());
    let e = back(&header).unwrap_err().to_string();
    assert!(e.contains("data of 1152921504606846976 bytes"), "{e}");
    header[16..24].fill(0);
    header[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(back(&header).unwrap_err().to_string().contains("text of 4294967295 bytes"));
}

/// A small fuzzer that runs everywhere: text with a right checksum and random changes.
#[test]
fn random_text_never_panics() {
    let seeds = [call(), Message::Expelled];
    for round in 0..20_000u64 {
        let whole = bytes(&Frame::new(Peer::Worker(SessionId(5)), &seeds[round as usize % 2]));
        let arrays = u32::from_le_bytes(whole[8..12].try_into().unwrap()) as usize;
        let text_len = u32::from_le_bytes(whole[12..16].try_into().unwrap()) as usize;
        let start = HEADER + 8 * arrays;
        let mut text = whole[start..start + text_len].to_vec();
        for k in 0..1 + round % 4 {
            let r = mix(round * 31 + k);
            let i = r as usize % text.len();
            match r >> 60 {
                0..8 => text[i] = (r >> 32) as u8,
                8..12 => text.truncate(i.max(1)),
                _ => text.insert(i, (r >> 24) as u8),
            }
        }
        let arrays = (0..arrays).map(|_| Values::default()).collect();
        if let Err(e) = parse(&text, arrays) {
            assert!(!e.to_string().is_empty(), "round {round}");
        }
    }
}
