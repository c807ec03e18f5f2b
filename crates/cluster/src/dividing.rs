//! What of a step goes to which shard, and what comes back put together.

use std::sync::Arc;

use thalweg_kernels::stream::split::par_chunks_mut;

use crate::cluster::Pulled;
use crate::ids::{ShardId, TableId};
use crate::layout::Layout;
use crate::session::Request;
use crate::state::{Reads, Wants};
use crate::table::{Delta, Values, Want, reuse};

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
                (!keys.is_empty()).then(|| Delta::Rows(Arc::new(keys), Arc::new(part)))
            }
        }
    }
}

/// What was last put together of several shards: memory for the next.
#[derive(Default)]
pub(crate) struct Gathered(Pulled);

impl Gathered {
    /// What the shards sent, put together in the order that was asked for.
    pub fn gather(&mut self, layout: &Layout, wants: &Wants, reads: &[Reads]) -> Pulled {
        let mut pulled = Pulled::new();
        for (id, want) in wants {
            let parts: Vec<&Values> = reads.iter().filter_map(|r| r.get(id)).collect();
            let whole = match (want, &parts[..]) {
                (_, [only]) => (*only).clone(),
                (Want::Dense | Want::Compute(..), parts) => {
                    let n = parts.iter().map(|p| p.len()).sum();
                    let mut whole = reuse([self.0.remove(id)], n);
                    lay_end_to_end(parts, Arc::get_mut(&mut whole).expect("nobody else has it"));
                    self.0.insert(*id, whole.clone());
                    whole
                }
                (Want::Rows(rows), parts) => {
                    let n: usize = parts.iter().map(|p| p.len()).sum();
                    let width = n.checked_div(rows.len()).unwrap_or(0);
                    let mut next = vec![0; parts.len()];
                    let mut whole = Vec::with_capacity(n);
                    for row in rows.iter() {
                        let shard = layout.shard_of_row(*row).0 as usize;
                        whole.extend_from_slice(&parts[shard][next[shard]..][..width]);
                        next[shard] += width;
                    }
                    Arc::new(whole)
                }
            };
            pulled.insert(*id, whole);
        }
        pulled
    }
}

/// Values that one thread copies at a time.
const PIECE: usize = 1 << 17;

/// Copies the parts one behind the other into `whole`, which is as long as all of them.
fn lay_end_to_end(parts: &[&Values], whole: &mut [f32]) {
    let ends: Vec<usize> = parts
        .iter()
        .scan(0, |end, part| {
            *end += part.len();
            Some(*end)
        })
        .collect();
    par_chunks_mut(whole, PIECE, |start, mut out| {
        let mut at = start;
        for i in ends.partition_point(|end| *end <= start).. {
            if out.is_empty() {
                break;
            }
            let (place, rest) = out.split_at_mut(out.len().min(ends[i] - at));
            let from = at + parts[i].len() - ends[i];
            place.copy_from_slice(&parts[i][from..][..place.len()]);
            (at, out) = (at + place.len(), rest);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_any_lengths_come_one_behind_the_other() {
        for lens in [vec![], vec![0], vec![3, 0, 5], vec![PIECE + 1, 0, 7, 3 * PIECE, 1], vec![PIECE; 3]] {
            let n: usize = lens.iter().sum();
            let want: Vec<f32> = (0..n).map(|i| i as f32).collect();
            let mut rest = &want[..];
            let parts: Vec<Values> = lens
                .iter()
                .map(|len| Arc::new(rest.split_off(..*len).expect("they add up").to_vec()))
                .collect();
            let mut whole = vec![-1.0; n];
            lay_end_to_end(&parts.iter().collect::<Vec<_>>(), &mut whole);
            assert!(whole == want, "{lens:?}");
        }
    }
}
