//! Folders of pictures, on disk.

use std::fs;
use std::path::PathBuf;

use thalweg_data::{Channels, DataError, Dataset, Image, ImageFolder, OnError, decode, encode_png};

/// An empty folder of this test's own.
fn folder(test: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("thalweg-images-{}-{test}", std::process::id()));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

fn picture(value: u8) -> Vec<u8> {
    encode_png(&Image { width: 4, height: 3, channels: Channels::Grey, pixels: vec![value; 12] })
}

#[test]
fn a_folder_per_class_becomes_images_and_labels() {
    let dir = folder("classes");
    for (class, name, value) in [("b", "1.png", 51), ("a", "2.PNG", 102), ("a", "1.png", 255)] {
        fs::create_dir_all(dir.join(class)).unwrap();
        fs::write(dir.join(class).join(name), picture(value)).unwrap();
    }
    fs::write(dir.join("a/notes.txt"), "no picture").unwrap();
    let data = ImageFolder::open(&dir, Channels::Rgb, 2, 2, OnError::Stop).unwrap();
    assert_eq!((data.classes(), data.len()), (&["a".to_owned(), "b".to_owned()][..], 3));
    let (x, y) = data.batches(3).into_iter().next().unwrap().unwrap();
    assert_eq!((x.shape().to_vec(), y.to_vec::<i64>()), (vec![3, 3, 2, 2], vec![0, 0, 1]));
    let means = x.mean([1, 2, 3]).to_vec::<f32>();
    assert!(means.iter().zip([1.0, 0.4, 0.2]).all(|(a, b)| (a - b).abs() < 1e-6), "{means:?}");
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_broken_picture_is_named_or_skipped() {
    let dir = folder("broken");
    fs::create_dir_all(dir.join("a")).unwrap();
    fs::write(dir.join("a/1.png"), picture(9)).unwrap();
    let cut = picture(8);
    fs::write(dir.join("a/2.png"), &cut[..cut.len() / 2]).unwrap();
    fs::write(dir.join("a/3.jpg"), "hello").unwrap();

    let stop = ImageFolder::open(&dir, Channels::Grey, 3, 4, OnError::Stop).unwrap();
    let e = stop.batches(3).into_iter().next().unwrap().unwrap_err();
    assert!(e.to_string().contains("2.png: cannot be decoded"), "{e}");

    let skip = ImageFolder::open(&dir, Channels::Grey, 3, 4, OnError::Skip).unwrap();
    let (x, y) = skip.batches(3).into_iter().next().unwrap().unwrap();
    assert_eq!((x.shape().to_vec(), y.to_vec::<i64>()), (vec![1, 1, 3, 4], vec![0]));
    let skipped = skip.skipped();
    assert_eq!(skipped.count, 2);
    assert!(skipped.to_string().contains("3.jpg: starts with bytes [68, 65, 6c, 6c, 6f]"), "{skipped}");
    let last = skip.batches(1).into_iter().last().unwrap();
    assert!(matches!(last, Err(DataError::BrokenBatch { count: 1, .. })));
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn an_empty_or_missing_folder_is_an_error() {
    let dir = folder("empty");
    let open = |path: &PathBuf| {
        ImageFolder::open(path, Channels::Grey, 1, 1, OnError::Stop).unwrap_err().to_string()
    };
    assert!(open(&dir).ends_with("holds no folders with .png or .jpg pictures"));
    assert!(open(&dir.join("no")).starts_with("list "));
    fs::remove_dir_all(dir).unwrap();
}

/// A JPEG of 8 x 8 pixels, all of one grey: made with `PIL.Image.new("L", (8, 8), 100).save("g.jpg", quality=95)`.
#[test]
fn a_jpeg_is_decoded_within_its_error() {
    let image = decode(include_bytes!("grey100.jpg"), Channels::Grey).unwrap();
    assert_eq!((image.width, image.height), (8, 8));
    assert!(image.pixels.iter().all(|p| p.abs_diff(100) <= 2), "{:?}", image.pixels);
    let colours = decode(include_bytes!("red.jpg"), Channels::Rgb).unwrap();
    assert!(
        colours.pixels.chunks(3).all(|p| p[0] > 240 && p[1] < 15 && p[2] < 15),
        "{:?}",
        &colours.pixels[..6]
    );
}

#[test]
fn damaged_pictures_never_panic() {
    for file in [picture(7), include_bytes!("grey100.jpg").to_vec(), include_bytes!("red.jpg").to_vec()] {
        for at in 0..file.len() {
            for value in [0, 1, 127, 255, file[at] ^ 1, file[at] ^ 128] {
                let mut copy = file.clone();
                copy[at] = value;
                drop(decode(&copy, Channels::Rgb));
            }
            drop(decode(&file[..at], Channels::Grey));
        }
    }
}
