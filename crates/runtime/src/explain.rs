//! Why a function was compiled again: what differs from the most similar call that it was compiled for before.

use thalweg_tensor::ambient::Ambient;

use crate::family::Stand;
use crate::tree::Tree;

/// More than so many differences tell no more.
const MOST: usize = 8;

/// What differs between an earlier call and this one, each as `argument.1.x was f32[2], is f32[3]`.
fn changes<A: Tree>(before: &A, stand: &Stand, args: &A) -> Vec<String> {
    let mut list = Vec::new();
    before.changes(args, "argument", &mut list);
    let now = Ambient::now();
    if stand.ambient.compute != now.compute {
        let autocast = |a: Ambient| a.compute.map_or("off".to_owned(), |dtype| dtype.to_string());
        list.push(format!("`autocast` was {}, is {}", autocast(stand.ambient), autocast(now)));
    }
    if stand.ambient.records != now.records {
        let recorded = |records: bool| if records { "recorded" } else { "not recorded (`no_grad`)" };
        let (was, is) = (recorded(stand.ambient.records), recorded(now.records));
        list.push(format!("gradients were {was}, are {is}"));
    }
    let word = |on: bool| if on { "on" } else { "off" };
    let mut turned: Vec<(String, usize)> = Vec::new();
    for (switch, was) in stand.switches.iter().filter(|(switch, was)| switch.is_on() != *was) {
        let what = format!("{} was {}, is {}", switch.name(), word(*was), word(!was));
        match turned.iter_mut().find(|(known, _)| *known == what) {
            Some((_, n)) => *n += 1,
            None => turned.push((what, 1)),
        }
    }
    list.extend(turned.into_iter().map(|(what, n)| if n > 1 { format!("{what} ({n} times)") } else { what }));
    list
}

/// The reason for one more compilation; `before` are earlier ones with their numbers, in their order.
pub(crate) fn why<'a, A: Tree + 'a>(
    before: impl Iterator<Item = (usize, &'a A, &'a Stand)>,
    args: &A,
) -> Option<String> {
    let compared = before.map(|(number, known, stand)| (number, changes(known, stand, args)));
    // Of several that are as similar the last is what one thinks of.
    let (number, list) = compared.min_by_key(|(number, list)| (list.len(), std::cmp::Reverse(*number)))?;
    let more = list.len().saturating_sub(MOST);
    let shown = list.into_iter().take(MOST).collect::<Vec<_>>().join(", ");
    let more = if more > 0 { format!(" and {more} more differences") } else { String::new() };
    Some(format!("unlike {number}: {shown}{more}"))
}
