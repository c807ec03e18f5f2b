//! Who should hold which shard and compute which slot: pure functions from one view to the next.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{ServerId, SessionId};
use crate::view::{Chain, View};

/// The first chains: shard `i` starts at server `i`, so that heads are spread evenly.
pub fn first_chains(servers: &[ServerId], n_shards: usize, length: usize) -> Vec<Chain> {
    let chain = |shard: usize| {
        let members = (0..length.min(servers.len())).map(|k| servers[(shard + k) % servers.len()]).collect();
        Chain { members, ..Chain::default() }
    };
    (0..n_shards).map(chain).collect()
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
    for i in 0..view.shards.len() {
        let load = load(view);
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
            let Some(idlest) = candidates.min_by_key(|s| (load[s], *s)) else { continue };
            let busiest = chain.members.iter().map(|s| load[s]).max().unwrap_or(0);
            if n_staying < length || load[&idlest] + 2 <= busiest {
                chain.joining = Some((idlest, next_epoch));
            }
        }
    }
    balance(view, &staying);
    // Who wants to go and holds nothing may go.
    let load = load(view);
    view.servers.retain(|id, m| !m.leaving || load[id] > 0);
}

/// Whether nothing is left to improve, nobody is on its way, and no server is first in many more chains than others that
/// could be.
pub fn is_settled(view: &View, length: usize) -> bool {
    let mut next = view.clone();
    improve(&mut next, length);
    let quiet = view.shards.iter().all(|c| c.joining.is_none() && c.handing.is_none());
    let heads = |server: &ServerId| view.shards.iter().filter(|c| c.head() == Some(*server)).count();
    let even = |c: &Chain| c.members.iter().all(|s| c.head().is_none_or(|head| heads(&head) <= heads(s) + 1));
    quiet && next == *view && view.shards.iter().all(even)
}

/// Lets the server that is first in most chains hand one over to the member that is first in fewest, if that makes them more
/// even. One at a time, when no newcomer is on its way: calls wait meanwhile.
fn balance(view: &mut View, staying: &[ServerId]) {
    if view.shards.iter().any(|c| c.joining.is_some() || c.handing.is_some()) {
        return;
    }
    let mut heads: BTreeMap<ServerId, usize> = staying.iter().map(|s| (*s, 0)).collect();
    view.shards.iter().filter_map(Chain::head).for_each(|head| *heads.entry(head).or_default() += 1);
    let gain = |chain: &Chain| {
        let others = chain.members.iter().skip(1).copied().filter(|s| staying.contains(s));
        let next = others.min_by_key(|s| (heads[s], *s))?;
        let gain = heads[&chain.head()?].checked_sub(heads[&next] + 2)?;
        Some((gain, next))
    };
    let gains =
        view.shards.iter().enumerate().filter_map(|(i, chain)| gain(chain).map(|(g, next)| (g, i, next)));
    if let Some((_, i, next)) = gains.max_by_key(|(gain, i, _)| (*gain, std::cmp::Reverse(*i))) {
        view.shards[i].handing = Some(next);
    }
}

fn load(view: &View) -> BTreeMap<ServerId, usize> {
    let mut load: BTreeMap<ServerId, usize> = view.servers.keys().map(|s| (*s, 0)).collect();
    for server in view.shards.iter().flat_map(Chain::pipeline) {
        *load.entry(server).or_default() += 1;
    }
    load
}

/// Gives every slot to a worker that lives, evenly, and moves no more slots than that takes.
pub fn assign_slots(slots: &mut [Option<SessionId>], workers: &[SessionId]) {
    let mut held: BTreeMap<SessionId, usize> = workers.iter().map(|w| (*w, 0)).collect();
    if held.is_empty() {
        return slots.fill(None);
    }
    // Some may hold one more than others when the numbers do not divide.
    let (least, mut with_one_more) = (slots.len() / held.len(), slots.len() % held.len());
    for slot in slots.iter_mut() {
        let kept = slot.and_then(|w| held.get_mut(&w)).is_some_and(|n| {
            let may = *n < least || (*n == least && with_one_more > 0);
            if may {
                with_one_more -= usize::from(*n == least);
                *n += 1;
            }
            may
        });
        if !kept {
            *slot = None;
        }
    }
    for slot in slots.iter_mut().filter(|s| s.is_none()) {
        let (worker, n) = held.iter_mut().min_by_key(|(w, n)| (**n, **w)).expect("there are some");
        *slot = Some(*worker);
        *n += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Epoch;
    use crate::view::Member;

    fn ids<T>(numbers: &[u64], new: fn(u64) -> T) -> Vec<T> {
        numbers.iter().map(|n| new(*n)).collect()
    }

    fn view(servers: &[u64], n_shards: usize, length: usize) -> View {
        let servers = ids(servers, ServerId);
        let shards = first_chains(&servers, n_shards, length);
        View {
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
    fn slots_are_even_and_move_only_when_they_must() {
        let [a, b, c] = [1, 2, 3].map(SessionId);
        let mut slots = vec![None; 7];
        assign_slots(&mut slots, &[a, b]);
        let before = slots.clone();
        assign_slots(&mut slots, &[a, b]);
        assert_eq!(slots, before);
        assign_slots(&mut slots, &[a, b, c]);
        let moved = slots.iter().zip(&before).filter(|(x, y)| x != y).count();
        assert_eq!(moved, 2, "{slots:?}");
        assign_slots(&mut slots, &[b, c]);
        for w in [b, c] {
            assert!((3..=4).contains(&slots.iter().filter(|s| **s == Some(w)).count()), "{slots:?}");
        }
        assign_slots(&mut slots, &[]);
        assert_eq!(slots, vec![None; 7]);
    }

    #[test]
    fn a_new_server_takes_its_share_and_every_chain_keeps_its_length() {
        let mut v = view(&[1, 2], 4, 2);
        v.servers.insert(ServerId(3), Member { confirmed: true, ..Member::default() });
        settle(&mut v, 2);
        assert!(v.shards.iter().all(|c| c.members.len() == 2), "{v:?}");
        assert!(load(&v).values().all(|n| (2..=3).contains(n)), "{:?}", load(&v));
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
