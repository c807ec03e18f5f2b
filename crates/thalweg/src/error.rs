//! The one error type of user programs.

use thalweg_cluster::ClusterError;
use thalweg_data::DataError;
use thalweg_formats::FormatError;
use thalweg_nn::{Mismatch, NnError};
use thalweg_tensor::OpError;
use thalweg_train::TrainError;
use thiserror::Error;

/// Everything that can go wrong and is not a programming error.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// An op refused its operands.
    #[error(transparent)]
    Op(#[from] OpError),
    /// A compiled function failed.
    #[error(transparent)]
    Run(#[from] thalweg_runtime::RunError),
    /// A file could not be read or written.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// Weights that are not those of the module.
    #[error(transparent)]
    Mismatch(#[from] Box<Mismatch>),
    /// Anything else that a layer or an optimiser refused.
    #[error(transparent)]
    Nn(Box<NnError>),
    /// A graph that is refused.
    #[error(transparent)]
    Graph(#[from] thalweg_graph::GraphError),
    /// A graph that cannot be written to, or read from, a file.
    #[error("{path}: {reason}")]
    GraphFile {
        /// The path as given.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// Data could not be had.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A run directory could not be used.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// A cluster could not be joined, or a run on it failed.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// A path whose ending names no format we know.
    #[error("{path}: unknown ending (use .npy, .npz or .safetensors)")]
    Ending {
        /// The path as given.
        path: String,
    },
    /// A format for one tensor, asked to hold another number of them.
    #[error("{path}: a .npy file holds one tensor, not {got} (use .npz or .safetensors)")]
    Count {
        /// The path as given.
        path: String,
        /// How many tensors came.
        got: usize,
    },
}

/// The result of anything that touches files or checks operands.
pub type Result<T> = std::result::Result<T, Error>;

impl From<NnError> for Error {
    fn from(error: NnError) -> Self {
        match error {
            NnError::Op(e) => Error::Op(e),
            NnError::Format(e) => Error::Format(e),
            NnError::Mismatch(e) => Error::Mismatch(e),
            other => Error::Nn(Box::new(other)),
        }
    }
}
