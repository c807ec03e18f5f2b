//! Walking several layouts of one shape together, a straight run at a time.

use smallvec::SmallVec;

use crate::layout::Layout;

/// Calls `f(positions, len, strides)` for each innermost run: element `i` of operand `k` lies at
/// `positions[k] + i·strides[k]`. Runs come in row-major order. Axes that all operands walk as one
/// are merged, so dense operands give a single run.
#[inline]
pub fn for_each_run<const N: usize>(layouts: [&Layout; N], mut f: impl FnMut([usize; N], usize, [isize; N])) {
    walk(layouts, &mut f);
}

/// One instance per number of operands, whatever is done with the runs.
fn walk<const N: usize>(layouts: [&Layout; N], f: &mut dyn FnMut([usize; N], usize, [isize; N])) {
    let shape = layouts[0].shape();
    debug_assert!(layouts.iter().all(|l| l.shape() == shape));
    if shape.contains(&0) {
        return;
    }
    // (size, stride of each operand), outermost first, merged.
    let mut axes: SmallVec<[(usize, [isize; N]); 4]> = SmallVec::new();
    for (axis, &size) in shape.iter().enumerate() {
        if size == 1 {
            continue;
        }
        let strides = layouts.map(|l| l.strides()[axis]);
        match axes.last_mut() {
            Some((outer, outer_strides))
                if (0..N).all(|k| outer_strides[k] == strides[k] * size as isize) =>
            {
                *outer *= size;
                *outer_strides = strides;
            }
            _ => axes.push((size, strides)),
        }
    }
    let mut position = layouts.map(|l| l.offset() as isize);
    let (len, strides) = axes.pop().unwrap_or((1, [0; N]));
    let mut index: SmallVec<[usize; 4]> = SmallVec::from_elem(0, axes.len());
    loop {
        f(position.map(|p| p as usize), len, strides);
        let mut axis = axes.len();
        loop {
            if axis == 0 {
                return;
            }
            axis -= 1;
            let (size, strides) = axes[axis];
            index[axis] += 1;
            for k in 0..N {
                position[k] += strides[k];
            }
            if index[axis] < size {
                break;
            }
            for k in 0..N {
                position[k] -= strides[k] * size as isize;
            }
            index[axis] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Shape;

    #[test]
    fn runs_visit_what_positions_visit() {
        let base = Layout::contiguous(Shape::from([3, 4, 5]));
        let views = [
            base.clone(),
            base.permute(&[0, 2, 1]).permute(&[0, 2, 1]),
            base.slice(1, 3, 4, -1),
            Layout::contiguous(Shape::from([4, 1])).broadcast_to(&[3, 4, 5].into()).unwrap(),
        ];
        for a in &views {
            for b in &views {
                let mut got = Vec::new();
                for_each_run([a, b], |p, len, s| {
                    let at = |k: usize, i: usize| (p[k] as isize + i as isize * s[k]) as usize;
                    got.extend((0..len).map(|i| (at(0, i), at(1, i))));
                });
                let want: Vec<_> = a.positions().zip(b.positions()).collect();
                assert_eq!(got, want);
            }
        }
    }

    #[test]
    fn dense_operands_are_one_run_and_empty_ones_none() {
        let a = Layout::contiguous(Shape::from([3, 4]));
        let mut n = 0;
        for_each_run([&a, &a], |_, len, _| n += len);
        assert_eq!(n, 12);
        let empty = Layout::contiguous(Shape::from([3, 0]));
        for_each_run([&empty], |_, _, _| panic!("no elements"));
        let scalar = Layout::contiguous(Shape::scalar());
        let mut calls = 0;
        for_each_run([&scalar], |_, len, _| calls += len);
        assert_eq!(calls, 1);
    }
}
