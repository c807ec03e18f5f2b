//! What of a step goes to which shard, and what comes back put together.

use std::sync::Arc;

use crate::cluster::Pulled;
use crate::ids::{ShardId, TableId};
use crate::landing::Places;
use crate::layout::Layout;
use crate::session::Request;
use crate::state::{Reads, Wants};
use crate::table::{Delta, Want};
use crate::values::Values;

impl Layout {
    /// What each shard is to read.
    pub fn divide(&self, wants: &Wants) -> Vec<Request> {
        let shards = (0..self.n_shards() as u32).map(ShardId);
        let part = |shard: ShardId, want: &Want| match want {
            Want::Rows(rows) => {
                let here = rows.iter().copied().filter(|row| self.shard_of_row(*row) == shard);
                Want::Rows(Arc::new(here.collect()))
            }
            other => other.clone(),
        };
        shards
            .map(|shard| {
                let pull = wants.iter().map(|(id, want)| (*id, part(shard, want))).collect();
                Request { pull: Some(Arc::new(pull)), ..Request::default() }
            })
            .collect()
    }

    /// The part of a gradient that lies in a shard.
    pub fn part(&self, shard: ShardId, id: TableId, delta: &Delta) -> Option<Delta> {
        match delta {
            Delta::Dense(values) => {
                let range = self.range(id, shard);
                // A gradient of another length is refused by the shard, with both lengths.
                let whole = range.len() == values.len() || range.end > values.len();
                let all = || Delta::Dense(values.clone());
                Some(if whole { all() } else { Delta::Cut(values.clone(), range) })
            }
            Delta::Packed(_) | Delta::PackedRows(..) | Delta::Cut(..) => {
                self.part(shard, id, &delta.unpacked())
            }
            Delta::Rows(rows, values) => {
                let width = values.len().checked_div(rows.len()).unwrap_or(0);
                let here = |row: &&u64| self.shard_of_row(**row) == shard;
                let keys: Vec<u64> = rows.iter().filter(here).copied().collect();
                let zipped = rows.iter().enumerate().filter(|(_, row)| here(row));
                let part = zipped.flat_map(|(i, _)| &values[i * width..][..width]).copied().collect();
                (!keys.is_empty()).then(|| Delta::Rows(Arc::new(keys), part))
            }
        }
    }

    /// Memory for what each shard will answer, so that it comes together as it comes in.
    pub(crate) fn places(&self, wants: &Wants) -> Vec<Places> {
        let mut places = vec![vec![None; wants.len()]; self.n_shards()];
        // A table that there is not is for the shards to refuse.
        let lands = |id: &TableId, want: &Want| *want == Want::Dense && (id.0 as usize) < self.n_tables();
        for (at, (id, _)) in wants.iter().enumerate().filter(|(_, (id, want))| lands(id, want)) {
            let parts = (0..self.n_shards()).map(|i| (i, self.range(*id, ShardId(i as u32)).len()));
            let (shards, lens): (Vec<usize>, Vec<usize>) = parts.filter(|(_, len)| *len > 0).unzip();
            // What comes from one shard is whole where it lands.
            if lens.len() > 1 {
                let memory = Values::side_by_side(&lens).expect("cuts lie between cache lines");
                shards.into_iter().zip(memory).for_each(|(i, part)| places[i][at] = Some(part));
            }
        }
        places
    }

    /// What the shards sent, put together in the order that was asked for.
    pub(crate) fn gather(&self, wants: &Wants, mut reads: Vec<Reads>) -> Pulled {
        let mut pulled = Pulled::new();
        for (id, want) in wants {
            let mut parts: Vec<Values> = reads.iter_mut().filter_map(|r| r.remove(id)).collect();
            let whole = match want {
                Want::Rows(rows) if parts.len() > 1 => {
                    let n: usize = parts.iter().map(|p| p.len()).sum();
                    let width = n.checked_div(rows.len()).unwrap_or(0);
                    let mut next = vec![0; parts.len()];
                    let mut whole = Vec::with_capacity(n);
                    for row in rows.iter() {
                        let shard = self.shard_of_row(*row).0 as usize;
                        whole.extend_from_slice(&parts[shard][next[shard]..][..width]);
                        next[shard] += width;
                    }
                    whole.into()
                }
                _ => {
                    parts.retain(|part| !part.is_empty());
                    if parts.len() == 1 { parts.remove(0) } else { Values::join(parts) }
                }
            };
            pulled.insert(*id, whole);
        }
        pulled
    }
}
