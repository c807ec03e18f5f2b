//! Event files, read back with the `tensorboard` package where there is a Python that has it.

use std::fs;
use std::process::Command;

use thalweg_data::{Channels, Image};
use thalweg_tensor::Tensor;
use thalweg_train::events::{EventWriter, crc32c};

/// Prints what TensorBoard finds, in a fixed form.
const READ: &str = r#"
import sys, struct, json
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
acc = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "images": 0, "histograms": 0})
acc.Reload()
out = {"tags": {k: v for k, v in acc.Tags().items() if k in ("scalars", "histograms", "images")}}
out["loss"] = [[e.step, e.value] for e in acc.Scalars("loss")]
h = acc.Histograms("weights")[0].histogram_value
out["histogram"] = [h.min, h.max, h.num, h.sum, h.sum_squares, sum(h.bucket), len(h.bucket) == len(h.bucket_limit)]
i = acc.Images("digit")[0]
out["image"] = [i.width, i.height, list(i.encoded_image_string[:4])]
print(json.dumps(out, sort_keys=True))
"#;

#[test]
fn tensorboard_reads_what_we_write() {
    let python = std::env::var("THALWEG_PYTHON").unwrap_or("python3".into());
    let has =
        Command::new(&python).args(["-c", "import tensorboard"]).output().is_ok_and(|o| o.status.success());
    if !has {
        assert!(std::env::var_os("CI").is_none(), "{python} has no tensorboard, and CI must have it");
        println!("skipped: {python} has no tensorboard; name one that has in THALWEG_PYTHON");
        return;
    }
    let dir = std::env::temp_dir().join(format!("thalweg-events-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let mut events = EventWriter::create(&dir).unwrap();
    for step in 0..300u64 {
        events.scalar(step, "loss", 1.0 / (step + 1) as f32).unwrap();
    }
    events.scalar(7, "ä/b c", f32::NAN).unwrap();
    events.histogram(5, "weights", &Tensor::from([-1.5f32, 0.0, 0.25, 2.0, f32::NAN])).unwrap();
    let pixels = (0..6 * 4).map(|i| i * 10).collect();
    events.image(9, "digit", &Image { width: 6, height: 4, channels: Channels::Grey, pixels }).unwrap();

    // A second process takes the run up after step 99: the rest of the first one's curve is void.
    let mut again = EventWriter::resume(&dir, 99).unwrap();
    again.scalar(100, "loss", 7.0).unwrap();

    let output = Command::new(&python).args(["-c", READ]).arg(&dir).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let read: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    let expected =
        serde_json::json!({"histograms": ["weights"], "images": ["digit"], "scalars": ["loss", "ä/b c"]});
    assert_eq!(read["tags"], expected);
    assert_eq!(read["loss"].as_array().unwrap().len(), 101);
    for (step, pair) in read["loss"].as_array().unwrap().iter().enumerate() {
        assert_eq!(pair[0], step);
        let value = if step == 100 { 7.0 } else { 1.0 / (step + 1) as f32 };
        assert_eq!(pair[1].as_f64().unwrap() as f32, value);
    }
    assert_eq!(read["histogram"], serde_json::json!([-1.5, 2.0, 4.0, 0.75, 6.3125, 4.0, true]));
    assert_eq!(read["image"], serde_json::json!([6, 4, [137, 80, 78, 71]]));
    fs::remove_dir_all(dir).unwrap();
}

/// The framing, taken apart by hand: this runs everywhere.
#[test]
fn every_record_has_its_length_and_both_checksums() {
    let dir = std::env::temp_dir().join(format!("thalweg-records-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let mut events = EventWriter::create(&dir).unwrap();
    events.scalar(3, "loss", 0.5).unwrap();
    let bytes = fs::read(events.path()).unwrap();
    let unmask =
        |b: &[u8]| u32::from_le_bytes(b.try_into().unwrap()).wrapping_sub(0xa282_ead8).rotate_left(15);
    let (mut rest, mut messages) = (&bytes[..], Vec::new());
    while !rest.is_empty() {
        let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
        assert_eq!(unmask(&rest[8..12]), crc32c(&rest[..8]));
        let message = &rest[12..12 + length];
        assert_eq!(unmask(&rest[12 + length..16 + length]), crc32c(message));
        messages.push(message);
        rest = &rest[16 + length..];
    }
    assert_eq!(messages.len(), 2);
    assert!(messages[0].ends_with(b"brain.Event:2"));
    // summary { value { tag: "loss" simple_value: 0.5 } } after wall time and step 3.
    let tail =
        [&[0x10, 3, 0x2a, 13, 0x0a, 11, 0x0a, 4][..], b"loss", &[0x15], &0.5f32.to_le_bytes()].concat();
    assert!(messages[1].ends_with(&tail), "{:02x?}", messages[1]);
    fs::remove_dir_all(dir).unwrap();
}
