use super::*;
use std::collections::VecDeque;
use std::sync::Arc;

use crate::codec::{Codec, RowEncoder};
use crate::ids::{CallId, Epoch, ServerId, SessionId, ShardId, Slot, TableId};
use crate::landing::Landing;
use crate::layout::Layout;
use crate::message::{Answer, Call, Done, Outcome};
use crate::state::{Reads, Update, Wants};
use crate::table::{Delta, Want, mix};
use crate::values::Values;

fn bytes(frame: Frame) -> Vec<u8> {
    let mut out = Vec::new();
    frame.write(&mut out).unwrap();
    out
}

fn back(bytes: &[u8]) -> io::Result<Option<(Peer, Data)>> {
    read(&mut &*bytes, &Limits::default())
}

/// Without arrays.
fn small(shard: u32) -> Data {
    Data::Replicated { epoch: Epoch(1), shard: ShardId(shard), index: 9 }
}

fn call() -> Data {
    let rows = Delta::Rows(Arc::new(vec![3, 9]), vec![1.0, 2.0, 3.0, 4.0].into());
    let dense = Delta::Dense(vec![0.5; 1000].into());
    let packed = RowEncoder::new(Codec::Int8).encode(&[4, 5], &[1.0, -2.0]);
    let packed = Delta::PackedRows(Arc::new(vec![4, 5]), Arc::new(packed));
    let push = Update::from([(TableId(0), dense), (TableId(1), rows), (TableId(2), packed)]);
    Data::Call(Call {
        epoch: Epoch(7),
        shard: ShardId(1),
        id: CallId(99),
        slot: Slot(3),
        clock: 12,
        create: None,
        push: Some(Arc::new(push)),
        pull: None,
        fresh: false,
        save: false,
    })
}

#[test]
fn a_call_comes_back_as_it_was() {
    let frame = Frame::new(Peer::Worker(SessionId(5)), &call());
    let len = frame.len();
    let bytes = bytes(frame);
    let (from, message) = back(&bytes).unwrap().unwrap();
    assert_eq!(from, Peer::Worker(SessionId(5)));
    assert_eq!(format!("{message:?}"), format!("{:?}", call()));
    assert_eq!(len + 24, bytes.len(), "one chunk");
}

#[test]
fn empty_arrays_and_empty_messages_pass() {
    let reads = Reads::from([(TableId(0), Values::default()), (TableId(1), vec![1.0].into())]);
    let done = Done { pushed: None, reads: Some(reads), version: 1, mark: 2 };
    let answer = Answer { epoch: Epoch(1), shard: ShardId(0), id: CallId(1), outcome: Outcome::Done(done) };
    for message in [Data::Answer(answer), small(1)] {
        let (_, again) = back(&bytes(Frame::new(Peer::Server(ServerId(1)), &message))).unwrap().unwrap();
        assert_eq!(format!("{again:?}"), format!("{message:?}"));
    }
    assert!(back(&[]).unwrap().is_none());
}

#[test]
fn a_frame_cut_anywhere_or_changed_anywhere_is_refused() {
    let whole = bytes(Frame::new(Peer::Worker(SessionId(5)), &call()));
    for n in 1..whole.len() {
        assert!(back(&whole[..n]).is_err(), "cut at {n}");
    }
    for i in 0..whole.len() {
        let mut bad = whole.clone();
        bad[i] ^= 1 << (mix(i as u64) % 8);
        assert!(back(&bad).is_err(), "changed at {i}");
    }
}

/// Whoever believed a length that was changed would wait for bytes that nobody sends.
#[test]
fn a_changed_length_is_noticed_before_anything_is_read_by_it() {
    struct Counted<'a>(&'a [u8], usize);
    impl Read for Counted<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let n = self.0.read(out)?;
            self.1 += n;
            Ok(n)
        }
    }
    let whole = bytes(Frame::new(Peer::Worker(SessionId(5)), &call()));
    let chunk = whole.len() - 4 * 1004 - 24;
    for (at, ends) in
        [(8, HEADER), (12, HEADER), (17, HEADER), (chunk + 5, chunk + 24), (chunk + 9, chunk + 24)]
    {
        let mut bad = whole.clone();
        bad[at] ^= 4;
        let mut counted = Counted(&bad, 0);
        let e = read(&mut counted, &Limits::default()).unwrap_err().to_string();
        assert!(e.contains("checksum"), "changed at {at}: {e}");
        assert_eq!(counted.1, ends, "changed at {at}");
    }
}

#[test]
fn a_claim_beyond_the_limits_is_refused_before_memory_is_asked_for() {
    let mut header = bytes(Frame::new(Peer::Coordinator, &small(1)));
    header[16..24].copy_from_slice(&(1u64 << 60).to_le_bytes());
    seal(&mut header);
    let e = back(&header).unwrap_err().to_string();
    assert!(e.contains("data of 1152921504606846976 bytes"), "{e}");
    header[16..24].fill(0);
    header[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
    seal(&mut header);
    assert!(back(&header).unwrap_err().to_string().contains("text of 4294967295 bytes"));
}

/// A small fuzzer that runs everywhere: text with a right checksum and random changes.
#[test]
fn random_text_never_panics() {
    let seeds = [call(), small(1)];
    for round in 0..20_000u64 {
        let whole = bytes(Frame::new(Peer::Worker(SessionId(5)), &seeds[round as usize % 2]));
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
        let arrays: VecDeque<Values> = (0..arrays).map(|_| Values::default()).collect();
        let mut r = Reader { text: &text, arrays, keys: KeySets::default() };
        if let Err(e) = Peer::get(&mut r).and_then(|_| Data::get(&mut r)) {
            assert!(!e.to_string().is_empty(), "round {round}");
        }
    }
}

fn answer(shard: u32, values: &Values) -> Data {
    let reads = Some(Reads::from([(TableId(0), values.clone())]));
    let done = Done { pushed: None, reads, version: 1, mark: 2 };
    let (epoch, shard, id) = (Epoch(1), ShardId(shard), CallId(1));
    Data::Answer(Answer { epoch, shard, id, outcome: Outcome::Done(done) })
}

fn shards(mut incoming: Incoming, mut bytes: &[u8]) -> Vec<(u32, Data)> {
    let mut found = Vec::new();
    while let Some((_, message)) = incoming.read(&mut bytes).unwrap() {
        found.push((message.shard().0, message));
    }
    found
}

/// Large enough for several chunks, with bits that tell every position.
fn large() -> Values {
    (0..700_001u32).map(f32::from_bits).collect()
}

#[test]
fn lower_lanes_pass_between_the_chunks_of_higher_ones() {
    let (mut lanes, mut out) = (Lanes::default(), Vec::new());
    let server = Peer::Server(ServerId(1));
    let (values, mut sent) = (large(), BTreeMap::new());
    let mut frame = |message: Data| Frame::after(&mut sent, server, &message);
    lanes.add(frame(answer(5, &values)));
    lanes.write(&mut out).unwrap(); // the head and the first chunk
    lanes.add(frame(answer(2, &values)));
    lanes.add(frame(answer(5, &values)));
    lanes.write(&mut out).unwrap();
    lanes.add(frame(small(0)));
    while !lanes.is_empty() {
        lanes.write(&mut out).unwrap();
    }
    let found = shards(Incoming::new(Limits::default()), &out);
    assert_eq!(found.iter().map(|(shard, _)| *shard).collect::<Vec<_>>(), [0, 2, 5, 5]);
    for (_, message) in &found[1..] {
        let Data::Answer(Answer { outcome: Outcome::Done(done), .. }) = message else { panic!() };
        let got = &done.reads.as_ref().unwrap()[&TableId(0)];
        assert!(got.iter().map(|v| v.to_bits()).eq(values.iter().map(|v| v.to_bits())));
    }
}

#[test]
fn parts_of_a_table_are_received_side_by_side_whatever_the_order_and_again_elsewhere() {
    let (layout, wants) = (Layout::new(&[700_001, 5], 3), Wants::from([(TableId(0), Want::Dense)]));
    let (values, landing) = (large(), Arc::new(Landing::default()));
    let places = layout.places(&wants);
    let whole = places[0][0].as_ref().expect("the first part has a place").as_ptr();
    landing.expect(Slot(0), CallId(1), places);
    let parts = (0..3).map(|i| {
        let part = Values::from(&values[layout.range(TableId(0), ShardId(i))]);
        let Data::Answer(answer) = answer(i, &part) else { unreachable!("it is one") };
        bytes(Frame::new(
            Peer::Server(ServerId(1)),
            &Data::Answer(Answer { id: CallId(u64::from(i) + 1), ..answer }),
        ))
    });
    let parts: Vec<Vec<u8>> = parts.collect();
    let receive = |order: [usize; 3]| {
        let mut reads = vec![Reads::new(); 3];
        for i in order {
            let mut incoming = Incoming::new(Limits::default()).landing(landing.clone());
            let (_, message) = incoming.read(&mut &parts[i][..]).unwrap().unwrap();
            let Data::Answer(Answer { outcome: Outcome::Done(done), .. }) = message else { panic!() };
            reads[i] = done.reads.unwrap();
        }
        layout.gather(&wants, reads).remove(&TableId(0)).unwrap()
    };
    let same = |got: &Values| got.iter().map(|v| v.to_bits()).eq(values.iter().map(|v| v.to_bits()));
    let got = receive([2, 0, 1]);
    assert_eq!(got.as_ptr(), whole, "it was put together by a copy");
    assert!(same(&got));
    let again = receive([0, 1, 2]);
    assert_ne!(again.as_ptr(), whole, "the first is still there");
    assert!(same(&got) && same(&again));
}

#[test]
fn a_part_of_an_array_arrives_as_an_array() {
    let mut push = call();
    let Data::Call(call) = &mut push else { panic!() };
    let cut = Delta::Cut(vec![1.0, 2.0, 3.0, 4.0].into(), 1..3);
    call.push = Some(Arc::new(Update::from([(TableId(0), cut)])));
    let (_, message) = back(&bytes(Frame::new(Peer::Coordinator, &push))).unwrap().unwrap();
    let Data::Call(Call { push: Some(update), .. }) = message else { panic!() };
    assert_eq!(update[&TableId(0)], Delta::Dense(vec![2.0, 3.0].into()));
}

#[test]
fn row_numbers_that_were_sent_before_go_as_a_hash_and_come_back_whole() {
    let rows = |first: u64| {
        let keys: Vec<u64> = (first..first + 1000).collect();
        let mut message = call();
        let Data::Call(call) = &mut message else { panic!() };
        let delta = Delta::Rows(Arc::new(keys), vec![1.0; 1000].into());
        call.push = Some(Arc::new(Update::from([(TableId(1), delta)])));
        message
    };
    let (mut sent, mut incoming) = (BTreeMap::new(), Incoming::new(Limits::default()));
    let mut lens = Vec::new();
    for message in [rows(7), rows(7), rows(8), rows(7), rows(8)] {
        let frame = bytes(Frame::after(&mut sent, Peer::Coordinator, &message));
        lens.push(frame.len());
        let (_, got) = incoming.read(&mut &frame[..]).unwrap().unwrap();
        assert_eq!(format!("{got:?}"), format!("{message:?}"));
    }
    assert!(lens[1] + 7900 < lens[0] && lens[2] == lens[0] && lens[3..] == [lens[1]; 2], "{lens:?}");
    // The second frame of one connection after the first of another, which had other row numbers.
    let mut sent = BTreeMap::new();
    let [_, unknown] = [7, 7].map(|first| bytes(Frame::after(&mut sent, Peer::Coordinator, &rows(first))));
    let mut other = Incoming::new(Limits::default());
    other.read(&mut &bytes(Frame::new(Peer::Coordinator, &rows(8)))[..]).unwrap();
    let e = other.read(&mut &unknown[..]).unwrap_err().to_string();
    assert!(e.contains("is no hash of row numbers"), "{e}");
}

#[test]
fn chunks_that_belong_to_nothing_are_refused() {
    let whole = bytes(Frame::new(Peer::Server(ServerId(1)), &answer(0, &vec![1.0; 9].into())));
    let chunk = whole.len() - 24 - 36;
    let claim = |at: usize, word: u32| {
        let mut bad = whole.clone();
        bad[chunk + at..][..4].copy_from_slice(&word.to_le_bytes());
        seal(&mut bad);
        back(&bad).unwrap_err().to_string()
    };
    assert!(claim(4, 7).contains("7 is no lane"));
    assert!(claim(4, 256).contains("256 is no lane"));
    for n in [0, 3, 40, u32::MAX] {
        assert!(claim(8, n).contains("is no length of a chunk"), "{n}");
    }
    assert!(claim(12, 1).contains("1 is no place of a chunk"), "nothing is shared");
    let twice = [&whole[..chunk], &whole[..chunk]].concat();
    assert!(back(&twice).unwrap_err().to_string().contains("0 is no free lane"));
}

#[test]
fn a_frame_that_comes_again_or_too_early_is_refused() {
    let (mut sent, server) = (BTreeMap::new(), Peer::Server(ServerId(1)));
    let mut frame = |shard| bytes(Frame::after(&mut sent, server, &small(shard)));
    let [first, other_lane, second, third] = [5, 2, 5, 5].map(&mut frame);
    let reads = |frames: &[&[u8]]| -> Result<usize, String> {
        let (bytes, mut incoming) = (frames.concat(), Incoming::new(Limits::default()));
        let (mut rest, mut n) = (&bytes[..], 0);
        while incoming.read(&mut rest).map_err(|e| e.to_string())?.is_some() {
            n += 1;
        }
        Ok(n)
    };
    assert_eq!(reads(&[&first, &other_lane, &second, &third]), Ok(4));
    assert_eq!(reads(&[&other_lane, &first]), Ok(2), "lanes pass each other");
    let refused = |frames: &[&[u8]], due, got| {
        assert_eq!(reads(frames), Err(format!("frame {got} of its lane came when frame {due} was due")));
    };
    refused(&[&first, &first], 1, 0);
    refused(&[&first, &second, &first], 2, 0);
    refused(&[&first, &third], 1, 2);
    refused(&[&second], 0, 1);
}
