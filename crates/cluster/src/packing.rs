//! What a worker pushes, made smaller by a codec.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::codec::{Codec, Encoder, RowEncoder};
use crate::ids::{ShardId, Slot, TableId};
use crate::table::Delta;

/// What codecs have left out of what was pushed. It stays with the worker: who takes over a slot begins with nothing left out.
#[derive(Default)]
pub(crate) struct Encoders {
    dense: BTreeMap<(Slot, TableId, ShardId), Encoder>,
    rows: BTreeMap<(Slot, TableId, ShardId), RowEncoder>,
}

impl Encoders {
    /// Makes a gradient smaller, and keeps what is left out of it for the next.
    pub fn pack(&mut self, codec: Codec, key: (Slot, TableId, ShardId), delta: &mut Delta) {
        let values = match delta {
            Delta::Dense(values) => &values[..],
            Delta::Cut(values, range) => &values[range.clone()],
            Delta::Rows(rows, values) => {
                // The largest of a few rows' values would be a poor choice, and their positions as large as what is saved.
                if !matches!(codec, Codec::TopK(_)) {
                    let encoder = self.rows.entry(key).or_insert_with(|| RowEncoder::new(codec));
                    let encoded = encoder.encode(rows, values);
                    *delta = Delta::PackedRows(rows.clone(), Arc::new(encoded));
                }
                return;
            }
            Delta::Packed(_) | Delta::PackedRows(..) => return,
        };
        let encoder = self.dense.entry(key).or_insert_with(|| Encoder::new(codec, values.len()));
        *delta = Delta::Packed(Arc::new(encoder.encode(values)));
    }

    /// A slot is somebody else's: what was left out of its pushes is worth nothing.
    pub fn let_go(&mut self, slot: Slot) {
        self.dense.retain(|(of, ..), _| *of != slot);
        self.rows.retain(|(of, ..), _| *of != slot);
    }
}
