//! Parquet files, and Arrow's own (Feather), as tables.

use std::fs::File;
use std::path::Path;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{Array, RecordBatch};
use arrow_schema::{ArrowError, DataType};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use crate::error::{BadRecord, DataError, Place, Reason};
use crate::table::{Column, Table, Values};

/// All columns of a Parquet file.
///
/// Whole numbers and booleans become [`Values::Int`], other numbers [`Values::Float`], text
/// [`Values::Text`]; missing values are listed. Refuses nested columns, and unsigned numbers that are too large.
pub fn read(path: impl AsRef<Path>) -> Result<Table, DataError> {
    let path = path.as_ref();
    let file = File::open(path).map_err(DataError::io("open", path))?;
    let wrong = |e: parquet::errors::ParquetError| bad(path, Place::Whole, e.to_string());
    let builder = ParquetRecordBatchReaderBuilder::try_new(file).map_err(wrong)?;
    let mut table = Builder::new(path, builder.schema())?;
    table.extend(builder.build().map_err(wrong)?)?;
    Ok(table.finish())
}

/// All columns of an Arrow IPC file.
pub fn read_arrow(path: impl AsRef<Path>) -> Result<Table, DataError> {
    let path = path.as_ref();
    let file = File::open(path).map_err(DataError::io("open", path))?;
    let reader = arrow_ipc::reader::FileReader::try_new_buffered(file, None)
        .map_err(|e| bad(path, Place::Whole, e.to_string()))?;
    let mut table = Builder::new(path, &reader.schema())?;
    table.extend(reader)?;
    Ok(table.finish())
}

fn bad(path: &Path, place: Place, reason: String) -> DataError {
    BadRecord { path: path.to_owned(), place, reason: Reason::Unreadable(reason) }.into()
}

struct Builder<'a> {
    path: &'a Path,
    columns: Vec<(Column, DataType)>,
    n_rows: usize,
}

impl<'a> Builder<'a> {
    fn new(path: &'a Path, schema: &arrow_schema::Schema) -> Result<Self, DataError> {
        let columns = schema.fields().iter().map(|field| {
            let (values, cast) = match field.data_type() {
                t if t.is_integer() || *t == DataType::Boolean => (Values::Int(Vec::new()), DataType::Int64),
                t if t.is_floating() => (Values::Float(Vec::new()), DataType::Float64),
                DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Dictionary(..) => {
                    (Values::Text(Vec::new()), DataType::Utf8)
                }
                _ => {
                    let reason = "is neither numbers nor text; leave it out or convert it";
                    return Err(DataError::Column { name: field.name().clone(), reason });
                }
            };
            Ok((Column { name: field.name().clone(), values, missing: Vec::new() }, cast))
        });
        Ok(Self { path, columns: columns.collect::<Result<_, _>>()?, n_rows: 0 })
    }

    fn extend(
        &mut self,
        batches: impl Iterator<Item = Result<RecordBatch, ArrowError>>,
    ) -> Result<(), DataError> {
        for batch in batches {
            let place = Place::Row(self.n_rows as u64 + 1);
            let batch = batch.map_err(|e| bad(self.path, place, e.to_string()))?;
            for ((column, cast), array) in self.columns.iter_mut().zip(batch.columns()) {
                // Not the default, which turns what does not fit into a missing value.
                let options = arrow_cast::CastOptions { safe: false, ..Default::default() };
                let array = arrow_cast::cast_with_options(array, cast, &options)
                    .map_err(|e| bad(self.path, place, format!("column {:?}: {e}", column.name)))?;
                append(column, &array, self.n_rows);
            }
            self.n_rows += batch.num_rows();
        }
        Ok(())
    }

    fn finish(self) -> Table {
        Table { columns: self.columns.into_iter().map(|(c, _)| c).collect() }
    }
}

fn append(column: &mut Column, array: &dyn Array, n_rows: usize) {
    column.missing.extend((0..array.len()).filter(|&i| array.is_null(i)).map(|i| n_rows + i));
    match &mut column.values {
        Values::Int(v) => v.extend(array.as_primitive::<Int64Type>().iter().map(Option::unwrap_or_default)),
        Values::Float(v) => {
            v.extend(array.as_primitive::<Float64Type>().iter().map(|x| x.unwrap_or(f64::NAN)))
        }
        Values::Text(v) => {
            v.extend(array.as_string::<i32>().iter().map(|x| x.unwrap_or_default().to_owned()));
        }
    }
}
