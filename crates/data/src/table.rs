//! Tables: named columns of one type each, with the places where values are missing.

use std::collections::BTreeMap;

use thalweg_core::DType;
use thalweg_tensor::Tensor;

use crate::csv::{Kind, Options};
use crate::error::{DataError, Reason};

/// Named columns of equal length.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Table {
    /// The columns, in the order of the file.
    pub columns: Vec<Column>,
}

/// One column.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its values; where one is missing stands NaN, 0 or an empty text.
    pub values: Values,
    /// The rows without a value, rising.
    pub missing: Vec<usize>,
}

/// The values of a column.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// Real numbers.
    Float(Vec<f64>),
    /// Whole numbers.
    Int(Vec<i64>),
    /// Text.
    Text(Vec<String>),
}

/// What takes the place of missing values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fill {
    /// This number.
    Value(f64),
    /// The mean of the values that are there.
    Mean,
}

impl Table {
    /// Number of rows.
    pub fn n_rows(&self) -> usize {
        self.columns.first().map_or(0, Column::len)
    }

    /// The column of this name.
    pub fn column(&self, name: &str) -> Result<&Column, DataError> {
        self.columns.iter().find(|c| c.name == name).ok_or_else(|| self.no_column(name))
    }

    /// These columns side by side as f32, one row per record. Refuses text and missing values.
    pub fn matrix(&self, names: &[&str]) -> Result<Tensor, DataError> {
        let columns = names.iter().map(|n| self.column(n)).collect::<Result<Vec<_>, _>>()?;
        Ok(side_by_side(self.n_rows(), &columns)?.to_dtype(DType::F32))
    }

    /// All columns side by side in double precision.
    pub fn matrix_f64(&self) -> Result<Tensor, DataError> {
        side_by_side(self.n_rows(), &self.columns.iter().collect::<Vec<_>>())
    }

    /// Puts numbers where values are missing. Refuses a text column, and the mean of nothing.
    ///
    /// ```
    /// use thalweg_data::{Fill, csv};
    /// let mut t = csv::parse("t", &b"a,b\n1,0\n,0\n4,0\n"[..], &csv::Options::default())?.data;
    /// t.fill("a", Fill::Mean)?;
    /// assert_eq!(t.matrix(&["a"])?.to_vec::<f32>(), [1.0, 2.5, 4.0]);
    /// # Ok::<(), thalweg_data::DataError>(())
    /// ```
    pub fn fill(&mut self, name: &str, fill: Fill) -> Result<(), DataError> {
        let missing_column = self.no_column(name);
        let column = self.columns.iter_mut().find(|c| c.name == name).ok_or(missing_column)?;
        let mut values = column.floats()?;
        let there = values.len() - column.missing.len();
        let value = match fill {
            Fill::Value(v) => v,
            Fill::Mean if there == 0 => {
                let reason = "has no value at all to take the mean of; use `Fill::Value`";
                return Err(DataError::Column { name: name.to_owned(), reason });
            }
            Fill::Mean => {
                column.missing.iter().for_each(|&row| values[row] = 0.0);
                values.iter().sum::<f64>() / there as f64
            }
        };
        column.missing.iter().for_each(|&row| values[row] = value);
        column.missing.clear();
        column.values = Values::Float(values);
        Ok(())
    }

    fn no_column(&self, name: &str) -> DataError {
        let have = self.columns.iter().map(|c| c.name.clone()).collect();
        DataError::NoColumn { name: name.to_owned(), have }
    }
}

fn side_by_side(n: usize, columns: &[&Column]) -> Result<Tensor, DataError> {
    let width = columns.len();
    let mut flat = vec![0.0; n * width];
    for (j, column) in columns.iter().enumerate() {
        if !column.missing.is_empty() {
            return Err(DataError::Holes { name: column.name.clone(), count: column.missing.len() });
        }
        column.floats()?.into_iter().enumerate().for_each(|(i, v)| flat[i * width + j] = v);
    }
    Ok(Tensor::from_vec(flat, [n, width]))
}

impl Column {
    /// Number of values.
    pub fn len(&self) -> usize {
        match &self.values {
            Values::Float(v) => v.len(),
            Values::Int(v) => v.len(),
            Values::Text(v) => v.len(),
        }
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The values as classes: numbers from 0 in the sorted order of the names, and the names.
    pub fn classes(&self) -> Result<(Tensor, Vec<String>), DataError> {
        if !self.missing.is_empty() {
            return Err(DataError::Holes { name: self.name.clone(), count: self.missing.len() });
        }
        fn number<K: Ord + Clone>(values: &[K]) -> (Vec<i64>, Vec<K>) {
            let mut index: BTreeMap<K, i64> = values.iter().map(|v| (v.clone(), 0)).collect();
            index.values_mut().zip(0..).for_each(|(slot, i)| *slot = i);
            (values.iter().map(|v| index[v]).collect(), index.into_keys().collect())
        }
        let (numbers, names) = match &self.values {
            Values::Text(v) => number(v),
            Values::Int(v) => {
                let (numbers, names) = number(v);
                (numbers, names.iter().map(i64::to_string).collect())
            }
            Values::Float(_) => {
                let reason = "holds real numbers, which are no classes";
                return Err(DataError::Column { name: self.name.clone(), reason });
            }
        };
        Ok((Tensor::from(numbers), names))
    }

    fn floats(&self) -> Result<Vec<f64>, DataError> {
        match &self.values {
            Values::Float(v) => Ok(v.clone()),
            Values::Int(v) => Ok(v.iter().map(|&i| i as f64).collect()),
            Values::Text(_) => {
                let reason = "holds text; turn it into numbers with `Column::classes`";
                Err(DataError::Column { name: self.name.clone(), reason })
            }
        }
    }
}

/// Collects text fields, and gives the columns their types in the end.
pub(crate) struct Builder<'a> {
    options: &'a Options,
    names: Vec<String>,
    kinds: Vec<Option<Kind>>,
    cells: Vec<Vec<Option<String>>>,
}

impl<'a> Builder<'a> {
    pub(crate) fn new(names: Vec<String>, options: &'a Options) -> Result<Self, DataError> {
        if let Some((unknown, _)) = options.kinds.iter().find(|(k, _)| !names.contains(k)) {
            return Err(DataError::NoColumn { name: unknown.clone(), have: names });
        }
        let kind = |name: &String| options.kinds.iter().find(|(k, _)| k == name).map(|(_, kind)| *kind);
        let kinds = names.iter().map(kind).collect();
        let cells = names.iter().map(|_| Vec::new()).collect();
        Ok(Self { options, names, kinds, cells })
    }

    /// One record: all of it or nothing.
    pub(crate) fn push(&mut self, fields: &[&str]) -> Result<(), Reason> {
        if fields.len() != self.names.len() {
            return Err(Reason::Fields { want: self.names.len(), got: fields.len() });
        }
        let mut row = Vec::with_capacity(fields.len());
        for ((field, kind), name) in fields.iter().zip(&self.kinds).zip(&self.names) {
            let text = if matches!(kind, Some(Kind::Text)) { field } else { field.trim() };
            let missing = text.is_empty() || self.options.missing.iter().any(|m| m == text);
            let fits = match kind {
                Some(Kind::Int) => text.parse::<i64>().is_ok(),
                Some(Kind::Float) => text.parse::<f64>().is_ok(),
                _ => true,
            };
            if !missing && !fits {
                let want = if *kind == Some(Kind::Int) { "a whole number" } else { "a number" };
                return Err(Reason::Field { field: format!("column {name}"), text: text.to_owned(), want });
            }
            row.push((!missing).then(|| text.to_owned()));
        }
        self.cells.iter_mut().zip(row).for_each(|(column, cell)| column.push(cell));
        Ok(())
    }

    pub(crate) fn finish(self) -> Table {
        let columns = self.names.into_iter().zip(self.kinds).zip(self.cells).map(|((name, kind), cells)| {
            let kind = kind.unwrap_or_else(|| narrowest(&cells));
            column(name, kind, cells)
        });
        Table { columns: columns.collect() }
    }
}

fn narrowest(cells: &[Option<String>]) -> Kind {
    let all = |fits: fn(&str) -> bool| cells.iter().flatten().all(|c| fits(c));
    if all(|c| c.parse::<i64>().is_ok()) {
        Kind::Int
    } else if all(|c| c.parse::<f64>().is_ok()) {
        Kind::Float
    } else {
        Kind::Text
    }
}

fn column(name: String, kind: Kind, cells: Vec<Option<String>>) -> Column {
    let missing = cells.iter().enumerate().filter(|(_, c)| c.is_none()).map(|(i, _)| i).collect();
    let checked = "every value was tried before";
    let values = match kind {
        Kind::Int => {
            Values::Int(cells.iter().map(|c| c.as_ref().map_or(0, |c| c.parse().expect(checked))).collect())
        }
        Kind::Float => Values::Float(
            cells.iter().map(|c| c.as_ref().map_or(f64::NAN, |c| c.parse().expect(checked))).collect(),
        ),
        Kind::Text => Values::Text(cells.into_iter().map(Option::unwrap_or_default).collect()),
    };
    Column { name, values, missing }
}
