//! The fast product against its naive twin.

use super::{BatchMut, BatchRef, MatRef, gemm_batched_f32, gemm_f32, gemm_f64, naive};
use crate::rows::testing::values;
use crate::threads::set_threads;

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
    }
}

/// Strides of one of the ways to store a matrix, and the length it needs.
fn layout(rng: &mut Rng, rows: usize, cols: usize) -> (usize, usize, usize) {
    let (row_stride, col_stride) = match rng.below(7) {
        0 | 1 => (cols, 1),
        2 | 3 => (1, rows),
        4 => (cols + rng.below(9), 1),
        5 => (2 * cols + 1, 2),
        _ => [(0, 1), (1, 0), (0, 0)][rng.below(3)],
    };
    (row_stride, col_stride, rows * row_stride + cols * col_stride + 1)
}

fn to_f64(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
}

/// Compares both types with the naive f64 product, for 1 and 2 threads, and the threads bit for bit.
fn compare(seed: u64, m: usize, k: usize, n: usize) {
    let mut rng = Rng(seed);
    let (a_rs, a_cs, a_len) = layout(&mut rng, m, k);
    let (b_rs, b_cs, b_len) = layout(&mut rng, k, n);
    let ldc = n + rng.below(3);
    let accumulate = rng.below(2) == 1;
    let what =
        format!("seed {seed}: {m}×{k}×{n}, a ({a_rs}, {a_cs}), b ({b_rs}, {b_cs}), ldc {ldc}, {accumulate}");
    let (a, b, c) = (rng.floats(a_len), rng.floats(b_len), rng.floats(m * ldc));
    let (a64, b64, c64) = (to_f64(&a), to_f64(&b), to_f64(&c));
    let a_mat = MatRef::new(&a64, m, k, a_rs, a_cs);
    let b_mat = MatRef::new(&b64, k, n, b_rs, b_cs);
    let mut want = c64.clone();
    naive::gemm(a_mat, b_mat, &mut want, ldc, accumulate);

    let run = |n_threads| {
        set_threads(n_threads);
        let (mut got, mut got64) = (c.clone(), c64.clone());
        let (a_f32, b_f32) = (MatRef::new(&a, m, k, a_rs, a_cs), MatRef::new(&b, k, n, b_rs, b_cs));
        gemm_f32(a_f32, b_f32, &mut got, ldc, accumulate);
        gemm_f64(a_mat, b_mat, &mut got64, ldc, accumulate);
        (got, got64)
    };
    let (got, got64) = run(1);
    assert!(run(2) == (got.clone(), got64.clone()), "threads change the result, {what}");
    for i in 0..m * ldc {
        // Operands are below 1 in size, so an error of k roundings is below k ulps of the running sum.
        let scale = (k as f64).max(1.0);
        let (err, err64) = ((f64::from(got[i]) - want[i]).abs(), (got64[i] - want[i]).abs());
        assert!(err <= scale * 1.2e-6, "f32 element {i}: {} for {}, {what}", got[i], want[i]);
        assert!(err64 <= scale * 1e-14, "f64 element {i}: {} for {}, {what}", got64[i], want[i]);
    }
}

#[test]
fn small_shapes_and_all_layouts_agree_with_the_twin() {
    for seed in 0..600 {
        let mut rng = Rng(seed ^ 0xabcd);
        let mut dim = || [0, 1, 2, 3, 5, 6, 7, 8, 13, 16, 17, 31, 33][rng.below(13)];
        compare(seed, dim(), dim(), dim());
    }
}

#[test]
fn large_shapes_agree_with_the_twin() {
    for seed in 1000..1050 {
        let mut rng = Rng(seed ^ 0x1234);
        let mut dim = || [1, 4, 50, 97, 128, 130, 200, 385, 500][rng.below(9)];
        compare(seed, dim(), dim(), dim());
    }
    for seed in 2000..2008 {
        compare(seed, 131, 1000, 300);
        compare(seed, 1, 1000, 1000);
        compare(seed, 777, 500, 1);
    }
}

#[test]
fn slabs_that_do_not_hold_all_of_b_add_up() {
    compare(3000, 140, 40_000, 17);
    compare(3001, 130, 300, 9000);
}

#[test]
fn rows_that_collide_in_a_cache_give_the_bits_of_dense_ones() {
    let (m, k, n) = (20, 400, 100);
    let (a, b) = (values(m * 1024, 1), values(k * n, 2));
    let apart = MatRef::new(&a, m, k, 1024, 1);
    let dense: Vec<f32> = (0..m).flat_map(|i| apart.row(i).to_vec()).collect();
    let [mut got, mut want] = [(); 2].map(|()| vec![f32::NAN; m * n]);
    let b = MatRef::row_major(&b, k, n);
    gemm_f32(apart, b, &mut got, n, false);
    gemm_f32(MatRef::row_major(&dense, m, k), b, &mut want, n, false);
    assert_eq!(got, want);
}

#[test]
fn empty_sums_write_zeros_or_leave_c() {
    let (a, b) = (MatRef::<f32>::new(&[], 2, 0, 0, 1), MatRef::<f32>::new(&[], 0, 3, 3, 1));
    let mut c = [7.0; 8];
    gemm_f32(a, b, &mut c, 4, true);
    assert_eq!(c, [7.0; 8]);
    gemm_f32(a, b, &mut c, 4, false);
    assert_eq!(c, [0.0, 0.0, 0.0, 7.0, 0.0, 0.0, 0.0, 7.0]);
}

#[test]
fn zero_times_infinity_is_nan_on_every_path() {
    // x: (m, k) zeros; y: (k, n) with one infinity and one NaN.
    for (m, k, n) in [(1, 20, 30), (30, 20, 1), (5, 20, 30), (200, 20, 300), (3, 1, 3)] {
        for transposed in [false, true] {
            let (x, mut y) = (vec![0f32; m * k], vec![1f32; k * n]);
            y[0] = f32::INFINITY;
            y[k * n - 1] = f32::NAN;
            let strides = if transposed { (1, k) } else { (n, 1) };
            let mut c = vec![0f32; m * n];
            gemm_f32(
                MatRef::row_major(&x, m, k),
                MatRef::new(&y, k, n, strides.0, strides.1),
                &mut c,
                n,
                false,
            );
            for (i, got) in c.iter().enumerate() {
                let bad = i % n == 0 || i % n == n - 1;
                assert!(if bad { got.is_nan() } else { *got == 0.0 }, "{m}×{k}×{n}: c[{i}] is {got}");
            }
        }
    }
}

#[test]
fn batched_equals_single_products() {
    for (n_batch, m, k, n) in [(0, 2, 2, 2), (1, 5, 6, 7), (9, 20, 33, 17), (3, 0, 2, 2), (2, 300, 260, 270)]
    {
        for (a_shared, b_shared) in [(false, false), (true, false), (false, true)] {
            let mut rng = Rng(77);
            let stride = |shared: bool, len| if shared { 0 } else { len };
            let (a_bs, b_bs, c_bs) = (stride(a_shared, m * k), stride(b_shared, k * n), m * n + 3);
            let (a, b) = (rng.floats(m * k * n_batch.max(1)), rng.floats(k * n * n_batch.max(1)));
            let (mut got, mut want) = (vec![1f32; n_batch * c_bs], vec![1f32; n_batch * c_bs]);
            for i in 0..n_batch {
                let a = MatRef::row_major(&a[i * a_bs..], m, k);
                let b = MatRef::row_major(&b[i * b_bs..], k, n);
                gemm_f32(a, b, &mut want[i * c_bs..], n, true);
            }
            let a = BatchRef::new(&a, a_bs, (m, k), (k, 1));
            let b = BatchRef::new(&b, b_bs, (k, n), (n, 1));
            gemm_batched_f32(n_batch, a, b, BatchMut { data: &mut got, batch_stride: c_bs, ldc: n }, true);
            assert_eq!(got, want, "{n_batch} of {m}×{k}×{n}");
        }
    }
}

#[test]
#[should_panic(expected = "gemm: 2×3 times 2×3")]
fn disagreeing_shapes_are_refused() {
    let x = [0f32; 6];
    gemm_f32(MatRef::row_major(&x, 2, 3), MatRef::row_major(&x, 2, 3), &mut [0.0; 9], 3, false);
}

#[test]
#[should_panic(expected = "overlap")]
fn overlapping_outputs_are_refused() {
    let x = [0f32; 8];
    let mats = BatchRef::new(&x, 4, (2, 2), (2, 1));
    gemm_batched_f32(2, mats, mats, BatchMut { data: &mut [0.0; 8], batch_stride: 3, ldc: 2 }, false);
}

#[test]
fn every_element_is_ready_once_and_final_and_a_bias_is_added_once() {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    for (m, k, n) in [(1, 5, 7), (6, 5, 1), (3, 0, 4), (64, 40, 48), (200, 500, 300), (300, 9, 1100)] {
        let (a, b, bias) = (values(m * k, 1), values(k * n, 2), values(n, 3));
        let (a, b) = (MatRef::row_major(&a, m, k), MatRef::row_major(&b, k, n));
        let mut want: Vec<f32> = (0..m).flat_map(|_| bias.iter().copied()).collect();
        gemm_f32(a, b, &mut want, n, true);
        let (ready, mut c) =
            ((0..m * n).map(|_| AtomicU32::new(0)).collect::<Vec<_>>(), vec![f32::NAN; m * n]);
        let count = |pieces: super::Pieces, _: *mut u8| {
            pieces.iter().flat_map(|piece| &ready[piece]).for_each(|n| {
                n.fetch_add(1, Relaxed);
            });
        };
        super::gemm_then_f32(a, b, &mut c, n, super::Start::Row(&bias), Some(&count));
        assert_eq!(c, want, "{m}×{k}×{n}");
        assert!(ready.iter().all(|n| n.load(Relaxed) == 1), "{m}×{k}×{n}");
    }
}
