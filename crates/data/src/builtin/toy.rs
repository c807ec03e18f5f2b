//! The small sets of scikit-learn.

use thalweg_core::DType;
use thalweg_tensor::Tensor;

use crate::csv::{self, Options};
use crate::error::DataError;
use crate::examples::Examples;

/// Examples with the names of their classes.
#[derive(Debug, Clone)]
pub struct Labelled {
    /// The samples.
    pub data: Examples,
    /// What class `i` is called.
    pub classes: Vec<String>,
}

/// 150 irises, four measures in centimetres, three species.
pub fn iris() -> Result<Labelled, DataError> {
    labelled("iris.csv", include_bytes!("../../assets/toy/iris.csv.gz"))
}

/// 178 wines, thirteen measures, three growers.
pub fn wine() -> Result<Labelled, DataError> {
    labelled("wine_data.csv", include_bytes!("../../assets/toy/wine_data.csv.gz"))
}

/// 569 tumours, thirty measures, malignant (0) or benign (1).
pub fn breast_cancer() -> Result<Labelled, DataError> {
    labelled("breast_cancer.csv", include_bytes!("../../assets/toy/breast_cancer.csv.gz"))
}

/// 1,797 digits of 8 × 8 grey values in `0..=16`, as rows of 64.
pub fn digits() -> Result<Examples, DataError> {
    let table = matrix("digits.csv", include_bytes!("../../assets/toy/digits.csv.gz"), b',', false)?;
    split_last(&table)
}

/// 442 patients, ten measures, and how far diabetes went in a year (a regression). The measures are
/// centred and scaled so that the squares of each column sum to 1, as scikit-learn does.
pub fn diabetes() -> Result<Examples, DataError> {
    let x = matrix(
        "diabetes_data_raw.csv",
        include_bytes!("../../assets/toy/diabetes_data_raw.csv.gz"),
        b' ',
        false,
    )?;
    let y = matrix(
        "diabetes_target.csv",
        include_bytes!("../../assets/toy/diabetes_target.csv.gz"),
        b' ',
        false,
    )?;
    let centred = &x - x.mean_keepdim(0);
    let scaled = &centred / centred.square().sum_keepdim(0).sqrt();
    Examples::new(scaled.to_dtype(DType::F32), y.to_dtype(DType::F32).reshape([-1]))
}

/// A file whose first line is "samples,features,class,class,…" and whose last column is the class.
fn labelled(name: &str, packed: &[u8]) -> Result<Labelled, DataError> {
    let (head, table) = (first_line(name, packed)?, matrix(name, packed, b',', true)?);
    let classes = head.split(',').skip(2).map(|c| c.trim().to_owned()).collect();
    Ok(Labelled { data: split_last(&table)?, classes })
}

fn first_line(name: &str, packed: &[u8]) -> Result<String, DataError> {
    let bytes = crate::records::unpacked(packed).map_err(DataError::io("read", name.as_ref()))?;
    let mut lines = crate::records::Lines::new(name, bytes);
    match lines.next()? {
        Some(line) => Ok(line?.to_owned()),
        None => Err(DataError::Empty { path: name.into(), what: "lines" }),
    }
}

/// All fields as one f64 matrix.
fn matrix(name: &str, packed: &[u8], delimiter: u8, header: bool) -> Result<Tensor, DataError> {
    // The first line of a labelled file has another number of fields than the rest: it is no header.
    let options = Options { delimiter, header: false, skip_lines: header as usize, ..Options::default() };
    csv::parse(name, packed, &options)?.data.matrix_f64()
}

/// The last column as classes, the others as inputs.
fn split_last(table: &Tensor) -> Result<Examples, DataError> {
    let n = table.shape()[1] - 1;
    Examples::new(table.i((.., 0..n)).to_dtype(DType::F32), table.i((.., n)).to_dtype(DType::I64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::Dataset;

    #[test]
    fn the_toy_sets_have_their_known_sizes_and_first_rows() {
        let iris = iris().unwrap();
        assert_eq!(iris.classes, ["setosa", "versicolor", "virginica"]);
        assert_eq!((iris.data.len(), iris.data.x.shape()[1]), (150, 4));
        assert_eq!(iris.data.x.i(0).to_vec::<f32>(), [5.1, 3.5, 1.4, 0.2]);
        assert_eq!(iris.data.y.sum(()).item::<i64>(), 150);

        let wine = wine().unwrap();
        assert_eq!((wine.data.len(), wine.data.x.shape()[1], wine.classes.len()), (178, 13, 3));
        let cancer = breast_cancer().unwrap();
        assert_eq!((cancer.data.len(), cancer.data.x.shape()[1]), (569, 30));
        assert_eq!(cancer.classes, ["malignant", "benign"]);
        assert_eq!(cancer.data.y.sum(()).item::<i64>(), 357);

        let digits = digits().unwrap();
        assert_eq!((digits.len(), digits.x.shape()[1]), (1797, 64));
        assert_eq!(digits.y.i(0..4).to_vec::<i64>(), [0, 1, 2, 3]);
        assert_eq!(digits.x.amax(()).item::<f32>(), 16.0);
    }

    /// Expected: `sklearn.datasets.load_diabetes().data[0, :2]` and `.target[:2]`.
    #[test]
    fn diabetes_is_scaled_as_in_scikit_learn() {
        let d = diabetes().unwrap();
        assert_eq!((d.len(), d.x.shape()[1]), (442, 10));
        let first = d.x.i((0, 0..2)).to_vec::<f32>();
        assert!(
            (first[0] - 0.038_075_905).abs() < 1e-6 && (first[1] - 0.050_680_12).abs() < 1e-6,
            "{first:?}"
        );
        assert_eq!(d.y.i(0..2).to_vec::<f32>(), [151.0, 75.0]);
    }
}
