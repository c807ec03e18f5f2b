//! Parquet and Arrow files, written with the crates of the Arrow project and read as tables.

use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::Arc;

use arrow_array::{ArrayRef, BooleanArray, Float32Array, Int32Array, RecordBatch, StringArray, UInt64Array};
use parquet::arrow::ArrowWriter;
use thalweg_data::{Values, parquet as tables};

fn path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("thalweg-parquet-{}-{name}", std::process::id()))
}

fn batch() -> RecordBatch {
    let columns: [(&str, ArrayRef); 4] = [
        ("n", Arc::new(Int32Array::from(vec![Some(1), None, Some(-3)]))),
        ("x", Arc::new(Float32Array::from(vec![0.5, 1.5, 2.5]))),
        ("t", Arc::new(StringArray::from(vec![Some("a"), Some("b"), None]))),
        ("b", Arc::new(BooleanArray::from(vec![true, false, true]))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(n, c)| (n, c, true))).unwrap()
}

fn check(table: &thalweg_data::Table) {
    // The batch stands twice in the file.
    let n = table.column("n").unwrap();
    assert_eq!((&n.values, &n.missing[..]), (&Values::Int(vec![1, 0, -3, 1, 0, -3]), &[1, 4][..]));
    assert_eq!(table.matrix(&["x"]).unwrap().to_vec::<f32>(), [0.5, 1.5, 2.5, 0.5, 1.5, 2.5]);
    assert_eq!(table.column("t").unwrap().missing, [2, 5]);
    assert_eq!(table.column("b").unwrap().values, Values::Int(vec![1, 0, 1, 1, 0, 1]));
}

#[test]
fn parquet_columns_are_read_with_their_missing_values() {
    let path = path("a.parquet");
    let mut writer = ArrowWriter::try_new(File::create(&path).unwrap(), batch().schema(), None).unwrap();
    (0..2).for_each(|_| writer.write(&batch()).unwrap());
    writer.close().unwrap();
    check(&tables::read(&path).unwrap());

    let bytes = fs::read(&path).unwrap();
    for end in (0..bytes.len()).step_by(7) {
        fs::write(&path, &bytes[..end]).unwrap();
        assert!(tables::read(&path).unwrap_err().to_string().contains("cannot be read"));
    }
    fs::remove_file(path).unwrap();
}

#[test]
fn arrow_files_are_read_the_same() {
    let path = path("a.arrow");
    let mut writer =
        arrow_ipc::writer::FileWriter::try_new(File::create(&path).unwrap(), &batch().schema()).unwrap();
    (0..2).for_each(|_| writer.write(&batch()).unwrap());
    writer.finish().unwrap();
    check(&tables::read_arrow(&path).unwrap());
    fs::remove_file(path).unwrap();
}

#[test]
fn a_number_that_does_not_fit_is_an_error() {
    let path = path("big.parquet");
    let column: ArrayRef = Arc::new(UInt64Array::from(vec![u64::MAX]));
    let batch = RecordBatch::try_from_iter([("u", column)]).unwrap();
    let mut writer = ArrowWriter::try_new(File::create(&path).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let e = tables::read(&path).unwrap_err().to_string();
    assert!(e.contains("row 1") && e.contains("column \"u\""), "{e}");
    fs::remove_file(path).unwrap();
}
