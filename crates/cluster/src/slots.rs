//! Who should compute which slot.

use std::collections::BTreeMap;

use crate::ids::SessionId;

/// Gives every slot to a worker that lives, evenly, and moves no more slots than that takes.
pub fn assign(slots: &mut [Option<SessionId>], workers: &[SessionId]) {
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

    #[test]
    fn slots_are_even_and_move_only_when_they_must() {
        let [a, b, c] = [1, 2, 3].map(SessionId);
        let mut slots = vec![None; 7];
        assign(&mut slots, &[a, b]);
        let before = slots.clone();
        assign(&mut slots, &[a, b]);
        assert_eq!(slots, before);
        assign(&mut slots, &[a, b, c]);
        let moved = slots.iter().zip(&before).filter(|(x, y)| x != y).count();
        assert_eq!(moved, 2, "{slots:?}");
        assign(&mut slots, &[b, c]);
        for w in [b, c] {
            assert!((3..=4).contains(&slots.iter().filter(|s| **s == Some(w)).count()), "{slots:?}");
        }
        assign(&mut slots, &[]);
        assert_eq!(slots, vec![None; 7]);
    }
}
