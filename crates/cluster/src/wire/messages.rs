//! The layout of every message of the data plane, and of what a coordinator remembers: one line each, in the order of
//! their bytes.

use std::sync::Arc;

use super::Limits;
use super::codec::{Reader, Wire, WireError, Writer, wire};
use crate::codec::{Codec, Encoded};
use crate::coordinator::Durable;
use crate::error::Refusal;
use crate::ids::{CallId, Epoch, Peer, RunId, ServerId, SessionId, ShardId, Slot, TableId};
use crate::message::{Answer, Call, Data, Done, Outcome};
use crate::rule::Rule;
use crate::state::{Pushed, Record, Sent};
use crate::table::{Contents, Delta, Form, Init, PartSpec, Want};
use crate::view::{Chain, Member, View};

wire!(tuple RunId ServerId SessionId ShardId Slot Epoch TableId CallId);
wire!(enum Peer, "peer" { 0 Coordinator, 1 Server(id), 2 Worker(id), 3 Newcomer(nonce) });

wire!(enum Data, "message" {
    0 Call(call),
    1 Answer(answer),
    2 Replicate { epoch, shard, index, record },
    3 Replicated { epoch, shard, index },
    4 Install { epoch, shard, state }
});

wire!(struct Call { epoch, shard, id, slot, clock, create, push, pull, fresh, save });
wire!(struct Answer { epoch, shard, id, outcome });
wire!(enum Outcome, "outcome" { 0 Done(done), 1 Fenced, 2 Refused(refusal) });
wire!(struct Done { pushed, reads, version, mark });
wire!(enum Pushed, "end of a push" { 0 Applied, 1 Duplicate, 2 Stale });

wire!(struct View { epoch, servers, workers, shards, slots, restored, shard_bytes, keeper });
wire!(struct Durable { run, view, next_id, yielding, begun, saved, settings });
wire!(struct Member { name, address, nonce, leaving, confirmed, host });
wire!(struct Chain { members, joining, lost, handing });

wire!(enum Record, "record" {
    0 Create(parts),
    1 Round { clock, slots, sum },
    2 Push { slot, clock, update }
});
wire!(struct Sent { index, version, marks, counted, tables, created });
wire!(struct PartSpec { form, rule });
wire!(enum Form, "form" { 0 Dense { len }, 1 Rows { width, init } });
wire!(enum Init, "first value" { 0 Zero, 1 Uniform { seed, scale } });
wire!(enum Rule, "rule" { 0 Add, 1 Sgd { lr }, 2 Adagrad { lr, eps }, 3 Named(name) });
wire!(enum Codec, "codec" { 0 F32, 1 Bf16, 2 Int8, 3 TopK(one_in) });
wire!(enum Want, "wish" { 0 Dense, 1 Rows(keys), 2 Compute(table, name, args) });
wire!(enum Contents, "contents" {
    0 Dense { values, state, previous },
    1 Rows { rows, previous }
});
wire!(enum Refusal, "refusal" {
    0 Mismatch { table },
    1 UnknownRule { table, rule },
    2 UnknownFunction { function },
    3 NoTable { table },
    4 Form { table, want, got },
    5 Keys { table },
    6 Clock { want, got },
    7 Slot { got, n_slots }
});

/// A part of an array arrives as an array of its own.
impl Wire for Delta {
    fn put(&self, w: &mut Writer) {
        let number: u8 = match self {
            Delta::Dense(_) | Delta::Cut(..) => 0,
            Delta::Rows(..) => 1,
            Delta::Packed(_) => 2,
            Delta::PackedRows(..) => 3,
        };
        number.put(w);
        match self {
            Delta::Dense(values) => values.put(w),
            Delta::Cut(values, range) => w.put_part(values, range.clone()),
            Delta::Rows(keys, values) => {
                keys.put(w);
                values.put(w);
            }
            Delta::Packed(encoded) => encoded.put(w),
            Delta::PackedRows(keys, encoded) => {
                keys.put(w);
                encoded.put(w);
            }
        }
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, WireError> {
        match u8::get(r)? {
            0 => Wire::get(r).map(Delta::Dense),
            1 => Ok(Delta::Rows(Wire::get(r)?, Wire::get(r)?)),
            2 => Wire::get(r).map(Delta::Packed),
            3 => Ok(Delta::PackedRows(Wire::get(r)?, Wire::get(r)?)),
            got => Err(WireError::Unknown { what: "gradient", got: got.into() }),
        }
    }
}

impl Wire for Arc<Encoded> {
    fn put(&self, w: &mut Writer) {
        self.codec().put(w);
        self.len().put(w);
        w.put_bytes(self.bytes());
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (codec, len, bytes) = (Codec::get(r)?, usize::get(r)?, r.get_bytes()?.to_vec());
        let most = Limits::default().data;
        if len as u64 > most / 4 {
            return Err(WireError::Large { what: "packed values", got: len as u64, most: most / 4 });
        }
        let unfit = WireError::Unknown { what: "length of packed values", got: len as u64 };
        Encoded::from_bytes(codec, len, bytes).map(Arc::new).ok_or(unfit)
    }
}
