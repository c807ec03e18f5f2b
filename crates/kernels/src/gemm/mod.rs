//! Matrix product.
