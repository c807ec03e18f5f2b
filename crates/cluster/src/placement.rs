//! Who should hold which shard: pure functions from one view to the next. Servers should hold, and be first of, as many bytes.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::ServerId;
use crate::view::{Chain, View};

/// A shard costs its servers messages in every step, whatever it holds, and those take about as long as so many bytes do (0.03 ms
/// on loopback). Differences that are smaller decide nothing.
const MESSAGES: u64 = 64 << 10;

/// What each shard costs, in messages. Of those that nobody told of, one.
pub fn weights(shard_bytes: &[u64], n_shards: usize) -> Vec<u64> {
    let bytes = |shard: usize| shard_bytes.get(shard).copied().unwrap_or(0);
    (0..n_shards).map(|shard| 1 + bytes(shard).saturating_add(MESSAGES / 2) / MESSAGES).collect()
}

/// The first chains: the heaviest shard first, each to the server that is first of least, its copies to those that have least.
pub fn first_chains(servers: &[ServerId], weights: &[u64], length: usize) -> Vec<Chain> {
    let mut chains = vec![Chain::default(); weights.len()];
    let mut heads: BTreeMap<ServerId, u64> = servers.iter().map(|s| (*s, 0)).collect();
    let mut load = heads.clone();
    for shard in heaviest_first(weights) {
        let members = &mut chains[shard].members;
        while members.len() < length.min(servers.len()) {
            let others = servers.iter().filter(|s| !members.contains(s));
            let as_head = |s: &ServerId| if members.is_empty() { heads[s] } else { 0 };
            let next = *others.min_by_key(|s| (as_head(s), load[s], **s)).expect("fewer than there are");
            if members.is_empty() {
                *heads.entry(next).or_default() += weights[shard];
            }
            *load.entry(next).or_default() += weights[shard];
            members.push(next);
        }
    }
    chains
}

fn heaviest_first(weights: &[u64]) -> Vec<usize> {
    let mut shards: Vec<usize> = (0..weights.len()).collect();
    shards.sort_by_key(|shard| (std::cmp::Reverse(weights[*shard]), *shard));
    shards
}

/// Takes a server out of every chain. A chain that has nobody else who has everything is lost.
pub fn remove_server(view: &mut View, gone: ServerId) {
    view.servers.remove(&gone);
    for chain in &mut view.shards {
        let held = chain.members.len();
        take_back(chain, gone);
        chain.members.retain(|s| *s != gone);
        chain.lost |= chain.members.is_empty() && held > 0;
        if chain.joining.is_some_and(|(s, _)| s == gone) || chain.members.is_empty() {
            chain.joining = None;
        }
    }
}

/// A first member that is gone hands nothing over, and one that is gone takes over nothing.
fn take_back(chain: &mut Chain, gone: ServerId) {
    if chain.head() == Some(gone) || chain.handing == Some(gone) {
        chain.handing = None;
    }
}

/// Whether every chain that these servers are members of has a member besides them.
pub fn dispensable(view: &View, servers: &BTreeSet<ServerId>) -> bool {
    let others = |c: &Chain| c.members.is_empty() || c.members.iter().any(|s| !servers.contains(s));
    view.shards.iter().all(others)
}

/// One step towards chains of `length` servers, evenly spread, without those that want to go. Adds at
/// most one newcomer to a chain, and takes a server out of a chain only when enough others have
/// everything.
pub fn improve(view: &mut View, length: usize) {
    let staying: Vec<ServerId> =
        view.servers.iter().filter(|(_, m)| m.confirmed && !m.leaving).map(|(id, _)| *id).collect();
    let length = length.min(staying.len().max(1));
    let next_epoch = crate::ids::Epoch(view.epoch.0 + 1);
    let weights = weights(&view.shard_bytes, view.shards.len());
    // What remains after the heavy ones can be evened out by the light ones.
    for i in heaviest_first(&weights) {
        let load = load(view, &weights);
        let planned = planned(view, &weights, &staying, length);
        let chain = &mut view.shards[i];
        if chain.members.is_empty() {
            continue;
        }
        if chain.joining.is_some_and(|(newcomer, _)| !staying.contains(&newcomer)) {
            chain.joining = None;
        }
        let n_staying = chain.members.iter().filter(|s| staying.contains(s)).count();
        // Those that want to go first, then the busiest; ties by the later number, so that the choice
        // is the same on every run.
        let surplus = chain.members.iter().copied().max_by_key(|s| (!staying.contains(s), load[s], *s));
        let leaver = surplus.filter(|s| !staying.contains(s) && n_staying >= length && n_staying > 0);
        let extra = surplus.filter(|_| n_staying > length);
        if let Some(out) = leaver.or(extra) {
            take_back(chain, out);
            chain.members.retain(|s| *s != out);
            continue;
        }
        if chain.joining.is_none() && chain.handing.is_none() {
            let candidates = staying.iter().copied().filter(|s| !chain.members.contains(s));
            let Some(idlest) = candidates.min_by_key(|s| (planned[s], *s)) else { continue };
            let busiest = chain.members.iter().map(|s| planned[s]).max().unwrap_or(0);
            // A move must leave the two more even than they were, or it would be undone.
            if n_staying < length || planned[&idlest] + weights[i] < busiest {
                chain.joining = Some((idlest, next_epoch));
            }
        }
    }
    balance(view, &weights, &staying);
    // Who wants to go and holds nothing may go.
    let load = load(view, &weights);
    view.servers.retain(|id, m| !m.leaving || load[id] > 0);
}

/// Whether nothing is left to improve, nobody is on its way, and no server is first of so much more than another that handing
/// a chain over would even it out.
pub fn is_settled(view: &View, length: usize) -> bool {
    let mut next = view.clone();
    improve(&mut next, length);
    let quiet = view.shards.iter().all(|c| c.joining.is_none() && c.handing.is_none());
    let weights = weights(&view.shard_bytes, view.shards.len());
    let weighed = || view.shards.iter().zip(&weights);
    let first_of = |server: ServerId| -> u64 {
        weighed().filter(|(c, _)| c.head() == Some(server)).map(|(_, weight)| *weight).sum()
    };
    let even = |(c, weight): (&Chain, &u64)| {
        c.members.iter().all(|s| c.head().is_none_or(|head| first_of(head) <= first_of(*s) + weight))
    };
    quiet && next == *view && weighed().all(even)
}

/// Lets a server that is first of much hand a chain over to a member that is first of little, the one that evens them out
/// most. One at a time, when no newcomer is on its way: calls wait meanwhile.
fn balance(view: &mut View, weights: &[u64], staying: &[ServerId]) {
    if view.shards.iter().any(|c| c.joining.is_some() || c.handing.is_some()) {
        return;
    }
    let mut first_of: BTreeMap<ServerId, u64> = staying.iter().map(|s| (*s, 0)).collect();
    for (chain, weight) in view.shards.iter().zip(weights) {
        chain.head().into_iter().for_each(|head| *first_of.entry(head).or_default() += weight);
    }
    let gain = |chain: &Chain, weight: u64| {
        let others = chain.members.iter().skip(1).copied().filter(|s| staying.contains(s));
        let next = others.min_by_key(|s| (first_of[s], *s))?;
        let left = first_of[&chain.head()?].checked_sub(first_of[&next] + weight)?;
        // By twice the smaller of the two the difference becomes less.
        (left > 0).then_some((weight.min(left), left, next))
    };
    let chains = view.shards.iter().zip(weights).enumerate();
    let gains = chains.filter_map(|(i, (chain, weight))| Some((i, gain(chain, *weight)?)));
    let best = gains.max_by_key(|(i, (gain, left, _))| (*gain, *left, std::cmp::Reverse(*i)));
    if let Some((i, (.., next))) = best {
        view.shards[i].handing = Some(next);
    }
}

/// What each server holds, newcomers too.
fn load(view: &View, weights: &[u64]) -> BTreeMap<ServerId, u64> {
    let mut load: BTreeMap<ServerId, u64> = view.servers.keys().map(|s| (*s, 0)).collect();
    for (chain, weight) in view.shards.iter().zip(weights) {
        chain.pipeline().for_each(|server| *load.entry(server).or_default() += weight);
    }
    load
}

/// What each server will hold once those on their way have come and, where there are enough, the busiest has gone: whoever
/// counted both would move more than is needed, and some of it back.
fn planned(view: &View, weights: &[u64], staying: &[ServerId], length: usize) -> BTreeMap<ServerId, u64> {
    let load = load(view, weights);
    let mut planned = load.clone();
    for (chain, weight) in view.shards.iter().zip(weights).filter(|(c, _)| c.joining.is_some()) {
        let stay = chain.members.iter().filter(|s| staying.contains(s)).count();
        let goes = chain.members.iter().max_by_key(|s| (!staying.contains(s), load[s], **s));
        if let Some(planned) = goes.filter(|_| stay >= length).and_then(|s| planned.get_mut(s)) {
            *planned = planned.saturating_sub(*weight);
        }
    }
    planned
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Epoch;
    use crate::view::Member;

    fn view(servers: &[u64], n_shards: usize, length: usize) -> View {
        sized(servers, vec![1 << 20; n_shards], length)
    }

    fn sized(servers: &[u64], shard_bytes: Vec<u64>, length: usize) -> View {
        let servers: Vec<ServerId> = servers.iter().copied().map(ServerId).collect();
        let shards = first_chains(&servers, &weights(&shard_bytes, shard_bytes.len()), length);
        View {
            shard_bytes,
            servers: servers
                .into_iter()
                .map(|s| (s, Member { confirmed: true, ..Member::default() }))
                .collect(),
            shards,
            ..View::default()
        }
    }

    /// What the coordinator does when newcomers catch up at once, until nothing changes.
    fn settle(view: &mut View, length: usize) -> usize {
        for round in 0..100 {
            let before = view.clone();
            for chain in &mut view.shards {
                chain.members.extend(chain.joining.take().map(|(s, _)| s));
                chain.hand_over();
            }
            improve(view, length);
            if before == *view {
                return round;
            }
            view.epoch = Epoch(view.epoch.0 + 1);
        }
        panic!("placement never settles: {view:?}");
    }

    #[test]
    fn a_new_server_takes_its_share_and_every_chain_keeps_its_length() {
        let mut v = view(&[1, 2], 4, 2);
        v.servers.insert(ServerId(3), Member { confirmed: true, ..Member::default() });
        settle(&mut v, 2);
        assert!(v.shards.iter().all(|c| c.members.len() == 2), "{v:?}");
        let copies = |s: &ServerId| v.shards.iter().filter(|c| c.members.contains(s)).count();
        assert!(v.servers.keys().all(|s| (2..=3).contains(&copies(s))), "{v:?}");
    }

    #[test]
    fn a_server_that_has_copies_of_everything_becomes_the_first_of_half() {
        let mut v = view(&[1], 4, 2);
        v.servers.insert(ServerId(2), Member { confirmed: true, ..Member::default() });
        settle(&mut v, 2);
        for server in [1, 2].map(ServerId) {
            let n = v.shards.iter().filter(|c| c.head() == Some(server)).count();
            assert_eq!(n, 2, "{:?}", v.shards);
        }
    }

    /// One tensor of a net as large as all others together, which are cut into seven shards.
    const UNEVEN: [u64; 8] = [3 << 20, 3 << 20, 21 << 20, 3 << 20, 3 << 20, 3 << 20, 3 << 20, 3 << 20];

    fn megabytes(v: &View, held: impl Fn(&Chain) -> Vec<ServerId>) -> Vec<u64> {
        let shards = || v.shards.iter().zip(&v.shard_bytes);
        let of = |server: &ServerId| {
            shards().filter(|(c, _)| held(c).contains(server)).map(|(_, b)| b >> 20).sum()
        };
        v.servers.keys().map(of).collect()
    }

    #[test]
    fn servers_are_first_of_as_many_bytes_whatever_the_sizes_of_shards() {
        for length in [1, 2] {
            let mut v = sized(&[1, 2], UNEVEN.into(), length);
            assert_eq!(megabytes(&v, |c| c.head().into_iter().collect()), [21, 21], "{:?}", v.shards);
            let first = v.shards.clone();
            settle(&mut v, length);
            assert_eq!(v.shards, first, "what was given out evenly stays where it is");
        }
    }

    #[test]
    fn a_new_server_takes_half_of_the_bytes_and_nothing_is_copied_in_vain() {
        let mut v = sized(&[1], UNEVEN.into(), 1);
        v.servers.insert(ServerId(2), Member { confirmed: true, ..Member::default() });
        improve(&mut v, 1);
        let (all, moved) = (42 << 20, v.shards.iter().zip(UNEVEN).filter(|(c, _)| c.joining.is_some()));
        assert_eq!(moved.map(|(_, bytes)| bytes).sum::<u64>(), all / 2, "{:?}", v.shards);
        settle(&mut v, 1);
        assert_eq!(megabytes(&v, |c| c.members.clone()), [21, 21], "{:?}", v.shards);
        assert!(is_settled(&v, 1));
    }

    #[test]
    fn a_server_that_has_copies_of_everything_becomes_the_first_of_half_of_the_bytes() {
        let mut v = sized(&[1], UNEVEN.into(), 2);
        v.servers.insert(ServerId(2), Member { confirmed: true, ..Member::default() });
        settle(&mut v, 2);
        assert_eq!(megabytes(&v, |c| c.head().into_iter().collect()), [21, 21], "{:?}", v.shards);
        assert!(is_settled(&v, 2));
    }

    #[test]
    fn a_server_that_wants_to_go_is_replaced_before_it_goes() {
        let mut v = view(&[1, 2, 3], 3, 2);
        v.servers.get_mut(&ServerId(2)).unwrap().leaving = true;
        settle(&mut v, 2);
        assert!(!v.servers.contains_key(&ServerId(2)));
        assert!(v.shards.iter().all(|c| c.members.len() == 2 && !c.lost), "{v:?}");
    }

    #[test]
    fn the_last_server_cannot_go() {
        let mut v = view(&[1], 2, 2);
        v.servers.get_mut(&ServerId(1)).unwrap().leaving = true;
        settle(&mut v, 2);
        assert_eq!(v.shards[0].members, [ServerId(1)]);
    }

    #[test]
    fn a_chain_whose_last_member_dies_is_lost_and_says_so() {
        let mut v = view(&[1, 2], 2, 1);
        assert!(!dispensable(&v, &BTreeSet::from([ServerId(1)])));
        remove_server(&mut v, ServerId(1));
        assert_eq!((v.shards[0].lost, v.shards[1].lost), (true, false));
        settle(&mut v, 1);
        assert!(v.shards[0].members.is_empty(), "nobody is given an empty shard in its place");
    }
}
