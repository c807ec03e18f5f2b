//! Data sets inside the crate: nothing to download. Where they come from, and under which terms, is in
//! `assets/README.md`.

mod mnist;
mod toy;

pub use mnist::{Mnist, mnist};
pub use toy::{Labelled, breast_cancer, diabetes, digits, iris, wine};
