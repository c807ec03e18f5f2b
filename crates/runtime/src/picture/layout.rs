//! Layered drawing of a graph without cycles, after Sugiyama: ranks by longest path, long wires cut
//! into pieces of one rank, order within ranks by barycentre, places by least squares.

/// Space between neighbours in a rank.
const GAP: f64 = 26.0;
/// Space between ranks, where wires run and shapes are written.
const RANK_GAP: f64 = 58.0;
/// Rounds of ordering; the best is kept.
const ORDER_ROUNDS: usize = 16;
/// Rounds of placing.
const PLACE_ROUNDS: usize = 24;

/// A box to be placed; the number is its place in the list, and readers come after what they read.
pub(super) struct Block {
    pub width: f64,
    pub height: f64,
}

/// A value: leaves a block at `port` (from its middle) and goes to some others.
pub(super) struct Net {
    pub from: usize,
    pub port: f64,
    pub to: Vec<usize>,
}

/// Where everything is.
pub(super) struct Drawing {
    /// Left upper corners.
    pub blocks: Vec<(f64, f64)>,
    /// For each net, for each of its targets: the points that the wire goes through.
    pub wires: Vec<Vec<Vec<(f64, f64)>>>,
    pub width: f64,
    pub height: f64,
}

/// Something that has a place in a rank: a block, or a piece of a wire.
struct Cell {
    rank: usize,
    width: f64,
    /// The middle.
    x: f64,
    above: Vec<(usize, f64)>,
    below: Vec<(usize, f64)>,
    is_wire: bool,
}

pub(super) fn draw(blocks: &[Block], nets: &[Net]) -> Drawing {
    let rank = ranks(blocks.len(), nets);
    let mut cells: Vec<Cell> =
        blocks.iter().zip(&rank).map(|(b, &rank)| cell(rank, b.width, false)).collect();
    // The cells that each net passes, from its block down.
    let mut chains: Vec<Vec<usize>> = Vec::new();
    for net in nets {
        let last = net.to.iter().map(|&t| rank[t]).max().unwrap_or(rank[net.from]);
        let mut chain = vec![net.from];
        for r in rank[net.from] + 1..last {
            cells.push(cell(r, 4.0, true));
            chain.push(cells.len() - 1);
        }
        for (i, pair) in chain.windows(2).enumerate() {
            join(&mut cells, pair[0], pair[1], if i == 0 { net.port } else { 0.0 });
        }
        for &t in &net.to {
            let hop = chain[rank[t] - 1 - rank[net.from]];
            join(&mut cells, hop, t, if hop == net.from { net.port } else { 0.0 });
        }
        chains.push(chain);
    }
    let n_ranks = cells.iter().map(|c| c.rank + 1).max().unwrap_or(0);
    let mut rows: Vec<Vec<usize>> = vec![Vec::new(); n_ranks];
    (0..cells.len()).for_each(|i| rows[cells[i].rank].push(i));
    order(&cells, &mut rows);
    place(&mut cells, &rows);
    finish(blocks, nets, &rank, &cells, &chains, n_ranks)
}

fn cell(rank: usize, width: f64, is_wire: bool) -> Cell {
    Cell { rank, width, x: 0.0, above: Vec::new(), below: Vec::new(), is_wire }
}

fn join(cells: &mut [Cell], upper: usize, lower: usize, port: f64) {
    cells[upper].below.push((lower, -port));
    cells[lower].above.push((upper, port));
}

/// One below the lowest that is read; what reads nothing stands just above its first reader.
fn ranks(n: usize, nets: &[Net]) -> Vec<usize> {
    let mut rank = vec![0; n];
    let mut by_source: Vec<&Net> = nets.iter().collect();
    by_source.sort_by_key(|net| net.from);
    let mut reads = vec![false; n];
    for net in &by_source {
        for &t in &net.to {
            rank[t] = rank[t].max(rank[net.from] + 1);
            reads[t] = true;
        }
    }
    for from in (0..n).filter(|&i| !reads[i]) {
        let first =
            nets.iter().filter(|net| net.from == from).flat_map(|net| &net.to).map(|&t| rank[t]).min();
        rank[from] = first.map_or(0, |r| r - 1);
    }
    rank
}

/// Sorts each rank by the mean place of its neighbours, downwards and upwards in turn.
fn order(cells: &[Cell], rows: &mut [Vec<usize>]) {
    let mut place = vec![0.0; cells.len()];
    let number = |rows: &[Vec<usize>], place: &mut [f64]| {
        rows.iter().for_each(|row| row.iter().enumerate().for_each(|(i, &c)| place[c] = i as f64));
    };
    number(rows, &mut place);
    let mut best = (crossings(cells, rows, &place), rows.to_vec());
    for round in 0..ORDER_ROUNDS {
        let down = round % 2 == 0;
        let n = rows.len();
        for r in (0..n).map(|i| if down { i } else { n - 1 - i }) {
            let mean = |c: usize| {
                let near = if down { &cells[c].above } else { &cells[c].below };
                let sum: f64 = near.iter().map(|&(other, port)| place[other] + port * 1e-4).sum();
                if near.is_empty() { place[c] } else { sum / near.len() as f64 }
            };
            let mut keyed: Vec<(f64, usize)> = rows[r].iter().map(|&c| (mean(c), c)).collect();
            keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
            rows[r] = keyed.into_iter().map(|(_, c)| c).collect();
            rows[r].iter().enumerate().for_each(|(i, &c)| place[c] = i as f64);
        }
        let now = crossings(cells, rows, &place);
        if now < best.0 {
            best = (now, rows.to_vec());
        }
    }
    rows.clone_from_slice(&best.1);
}

/// How many pairs of wires cross between neighbouring ranks.
fn crossings(cells: &[Cell], rows: &[Vec<usize>], place: &[f64]) -> usize {
    let mut n = 0;
    for row in rows {
        let wires: Vec<(f64, f64)> = row
            .iter()
            .flat_map(|&c| cells[c].below.iter().map(move |&(to, port)| (c, to, port)))
            .map(|(c, to, port)| (place[c] - port * 1e-4, place[to]))
            .collect();
        for (i, a) in wires.iter().enumerate() {
            n += wires[..i].iter().filter(|b| (a.0 - b.0) * (a.1 - b.1) < 0.0).count();
        }
    }
    n
}

/// Moves cells towards the mean of their neighbours, keeping order and distance: for each rank the
/// least squares solution, which is an isotonic regression. Wires weigh more, so that they run straight.
fn place(cells: &mut [Cell], rows: &[Vec<usize>]) {
    for row in rows {
        let mut x = 0.0;
        for &c in row {
            cells[c].x = x + cells[c].width / 2.0;
            x += cells[c].width + GAP;
        }
    }
    for round in 0..PLACE_ROUNDS {
        let n = rows.len();
        for r in (0..n).map(|i| if round % 2 == 0 { i } else { n - 1 - i }) {
            let row = &rows[r];
            let mut offset = 0.0;
            let mut wanted: Vec<(f64, f64)> = Vec::new(); // place without distances, weight
            let mut offsets = Vec::new();
            for (i, &c) in row.iter().enumerate() {
                if i > 0 {
                    let (left, right) = (&cells[row[i - 1]], &cells[c]);
                    let gap = if left.is_wire && right.is_wire { GAP / 3.0 } else { GAP };
                    offset += (left.width + right.width) / 2.0 + gap;
                }
                offsets.push(offset);
                let near = if round % 2 == 0 { &cells[c].above } else { &cells[c].below };
                let near = if near.is_empty() { &cells[c].below } else { near };
                let sum: f64 = near.iter().map(|&(other, port)| cells[other].x + port).sum();
                let mean = if near.is_empty() { cells[c].x } else { sum / near.len() as f64 };
                wanted.push((mean - offset, if cells[c].is_wire { 4.0 } else { 1.0 }));
            }
            for (i, x) in isotonic(&wanted).into_iter().enumerate() {
                cells[row[i]].x = x + offsets[i];
            }
        }
    }
}

/// The ascending numbers that are nearest to these, by pooling neighbours that are out of order.
fn isotonic(wanted: &[(f64, f64)]) -> Vec<f64> {
    let mut pools: Vec<(f64, f64, usize)> = Vec::new(); // mean, weight, how many
    for &(value, weight) in wanted {
        pools.push((value, weight, 1));
        while let [.., a, b] = pools[..] {
            if a.0 <= b.0 {
                break;
            }
            pools.pop();
            let weight = a.1 + b.1;
            let pool = ((a.0 * a.1 + b.0 * b.1) / weight, weight, a.2 + b.2);
            *pools.last_mut().expect("two were there") = pool;
        }
    }
    pools.iter().flat_map(|&(mean, _, n)| std::iter::repeat_n(mean, n)).collect()
}

fn finish(
    blocks: &[Block],
    nets: &[Net],
    rank: &[usize],
    cells: &[Cell],
    chains: &[Vec<usize>],
    n_ranks: usize,
) -> Drawing {
    let left = cells.iter().map(|c| c.x - c.width / 2.0).reduce(f64::min).unwrap_or(0.0) - GAP;
    let right = cells.iter().map(|c| c.x + c.width / 2.0).reduce(f64::max).unwrap_or(0.0) + GAP;
    let x = |c: usize| cells[c].x - left;
    let mut top = vec![GAP];
    let mut heights = vec![0.0; n_ranks];
    for r in 0..n_ranks {
        heights[r] =
            blocks.iter().zip(rank).filter(|(_, k)| **k == r).map(|(b, _)| b.height).fold(0.0, f64::max);
        top.push(top[r] + heights[r] + RANK_GAP);
    }
    let corner = |(i, b): (usize, &Block)| (x(i) - b.width / 2.0, top[rank[i]]);
    // Wires enter a block side by side, in the order in which they come.
    let mut entering: Vec<Vec<(f64, usize, usize)>> = vec![Vec::new(); blocks.len()];
    for (n, net) in nets.iter().enumerate() {
        for (k, &t) in net.to.iter().enumerate() {
            let hop = chains[n][rank[t] - 1 - rank[net.from]];
            let from = if hop == net.from { x(hop) + net.port } else { x(hop) };
            entering[t].push((from, n, k));
        }
    }
    let mut entry = std::collections::HashMap::new();
    for (t, list) in entering.iter_mut().enumerate() {
        list.sort_by(|a, b| a.0.total_cmp(&b.0));
        let step = (blocks[t].width - 24.0) / list.len().max(1) as f64;
        let step = step.min(22.0);
        let first = x(t) - step * (list.len() as f64 - 1.0) / 2.0;
        entry.extend(list.iter().enumerate().map(|(i, &(_, n, k))| ((n, k), first + step * i as f64)));
    }
    let wire = |n: usize, k: usize| {
        let (net, t) = (&nets[n], nets[n].to[k]);
        let mut points = vec![(x(net.from) + net.port, top[rank[net.from]] + blocks[net.from].height)];
        for &c in &chains[n][1..rank[t] - rank[net.from]] {
            points.extend([(x(c), top[cells[c].rank]), (x(c), top[cells[c].rank] + heights[cells[c].rank])]);
        }
        points.push((entry[&(n, k)], top[rank[t]]));
        points
    };
    Drawing {
        blocks: blocks.iter().enumerate().map(corner).collect(),
        wires: nets
            .iter()
            .enumerate()
            .map(|(n, net)| (0..net.to.len()).map(|k| wire(n, k)).collect())
            .collect(),
        width: right - left,
        height: top[n_ranks] - RANK_GAP + GAP,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block() -> Block {
        Block { width: 100.0, height: 40.0 }
    }

    #[test]
    fn random_graphs_are_drawn_downwards_without_overlap() {
        for seed in 1..100u64 {
            let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
            let mut draw_number = |n: usize| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state % n as u64) as usize
            };
            let n = 2 + draw_number(25);
            let blocks: Vec<Block> = (0..n).map(|_| block()).collect();
            let nets: Vec<Net> = (0..n - 1)
                .map(|from| {
                    let to: std::collections::BTreeSet<usize> =
                        (0..1 + draw_number(3)).map(|_| from + 1 + draw_number(n - from - 1)).collect();
                    Net { from, port: 0.0, to: to.into_iter().collect() }
                })
                .collect();
            let drawing = draw(&blocks, &nets);
            for net in &nets {
                for &t in &net.to {
                    assert!(drawing.blocks[t].1 >= drawing.blocks[net.from].1 + 40.0, "seed {seed}");
                }
            }
            for (i, a) in drawing.blocks.iter().enumerate() {
                assert!(a.0 >= 0.0 && a.0 + 100.0 <= drawing.width, "seed {seed}");
                let apart = |b: &(f64, f64)| (a.0 - b.0).abs() >= 99.0 || (a.1 - b.1).abs() >= 40.0;
                assert!(drawing.blocks[..i].iter().all(apart), "seed {seed}: block {i} covers another");
            }
        }
    }

    #[test]
    fn a_chain_is_straight_and_crossings_are_undone() {
        let net = |from: usize, to: &[usize]| Net { from, port: 0.0, to: to.to_vec() };
        let chain = draw(&[block(), block(), block()], &[net(0, &[1]), net(1, &[2])]);
        assert!(chain.blocks.iter().all(|b| (b.0 - chain.blocks[0].0).abs() < 1e-6));
        // 0 → 3 and 1 → 2 cross unless the second rank is turned around.
        let pair = draw(&[block(), block(), block(), block()], &[net(0, &[3]), net(1, &[2])]);
        assert!((pair.blocks[0].0 < pair.blocks[1].0) == (pair.blocks[3].0 < pair.blocks[2].0));
    }
}
