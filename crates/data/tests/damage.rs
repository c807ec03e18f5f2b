//! Every text reader against random damage: never a panic, every broken record has its line, and skipping
//! finds exactly the records that stopping would complain about.

use std::io::Write;

use thalweg_data::{
    DataError, Draw, OnError, Place, Skipped, bag_of_words, csv, idx, libsvm, ratings, trees,
};

/// Reads the bytes and says what was skipped.
type Reader = fn(&[u8], OnError) -> Result<Skipped, DataError>;

const READERS: &[(&str, &str, Reader)] = &[
    ("csv", "a,b,c\n1,2.5,x\n3,,\"y, z\"\n-4,1e3,é\n", |b, on_error| {
        let kinds = vec![("a".to_owned(), csv::Kind::Int), ("b".to_owned(), csv::Kind::Float)];
        csv::parse("f", b, &csv::Options { on_error, kinds, ..Default::default() }).map(|r| r.skipped)
    }),
    ("libsvm", "-1 1:0.5 3:2\n+1 2:1e-3 7:-4 # x\n1\n", |b, on_error| {
        libsvm::parse("f", b, &libsvm::Options { on_error, ..Default::default() }).map(|r| r.skipped)
    }),
    ("trees", "(3 (2 It) (4 (2 is) (4 lovely)))\n(0 a)\n", |b, on_error| {
        trees::parse("f", b, on_error).map(|r| r.skipped)
    }),
    ("ratings", "1::1074638::7::1365029107\n1::18::8::1366576639\n", |b, on_error| {
        ratings::parse("f", b, on_error).map(|r| r.skipped)
    }),
    ("bag of words", "0\t60\t2\n0\t75\t1\n3\t1\t9\n", |b, on_error| {
        bag_of_words::parse("f", b, bag_of_words::Form::Triplets, None, on_error).map(|r| r.skipped)
    }),
    ("uci bag of words", "2\n9\n2\n1 2 5\n2 1 1\n", |b, on_error| {
        bag_of_words::parse("f", b, bag_of_words::Form::Uci, None, on_error).map(|r| r.skipped)
    }),
];

fn damaged(text: &[u8], seed: u64) -> Vec<u8> {
    let mut rng = Draw::new(seed, 0, 0).rng(0);
    let mut bytes = text.to_vec();
    for _ in 0..1 + rng.below(4) {
        let at = rng.below(bytes.len());
        match rng.below(4) {
            0 => bytes[at] = rng.bits() as u8,
            1 => bytes[at] = b"0 9,:()\"\n\r\t-.#"[rng.below(14)],
            2 => drop(bytes.remove(at)),
            _ => bytes.insert(at, b"0 9,:()\"\n\r\t-.#"[rng.below(14)]),
        }
        if bytes.is_empty() {
            break;
        }
    }
    bytes
}

#[test]
fn whole_files_are_read_plain_and_gzipped() {
    for (name, text, read) in READERS {
        assert_eq!(read(text.as_bytes(), OnError::Stop).unwrap(), Skipped::default(), "{name}");
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        packed.write_all(text.as_bytes()).unwrap();
        assert_eq!(read(&packed.finish().unwrap(), OnError::Stop).unwrap(), Skipped::default(), "{name}");
    }
}

#[test]
fn damage_is_found_and_skipping_agrees_with_stopping() {
    for (name, text, read) in READERS {
        for seed in 0..3000 {
            let bytes = damaged(text.as_bytes(), seed);
            let (stop, skip) = (read(&bytes, OnError::Stop), read(&bytes, OnError::Skip));
            match (stop, skip) {
                (Ok(_), Ok(skipped)) => assert_eq!(skipped.count, 0, "{name}, seed {seed}"),
                (Err(DataError::Record(bad)), Ok(skipped)) => {
                    assert!(matches!(bad.place, Place::Line(n) if n > 0), "{name}, seed {seed}: {bad}");
                    assert_eq!(skipped.first.first(), Some(&bad), "{name}, seed {seed}");
                }
                // Some faults end a file whatever the caller would like: a broken header, nothing at all.
                (Err(a), Err(b)) => assert_eq!(a.to_string(), b.to_string(), "{name}, seed {seed}"),
                (stop, skip) => panic!("{name}, seed {seed}: {stop:?} but {skip:?}"),
            }
        }
    }
}

#[test]
fn idx_files_survive_any_single_damage() {
    let file = [&[0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3][..], &[1, 2, 3, 4, 5, 6]].concat();
    assert_eq!(idx::parse("f", &file[..]).unwrap().shape().to_vec(), [2, 3]);
    for at in 0..file.len() {
        for value in 0..=255 {
            let mut copy = file.clone();
            copy[at] = value;
            if let Err(e) = idx::parse("f", &copy[..]) {
                assert!(e.to_string().starts_with("f at byte "), "{e}");
            }
        }
        assert!(idx::parse("f", &file[..at]).is_err());
    }
}
