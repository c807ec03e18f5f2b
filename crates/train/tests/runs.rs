//! Run directories: made, killed, resumed, listed, compared, drawn.

use std::fs;
use std::path::PathBuf;

use serde_json::json;
use thalweg_data::{Channels, decode, encode_png};
use thalweg_tensor::Tensor;
use thalweg_train::plot::{Plot, Series};
use thalweg_train::{Keep, Mark, Run, Snapshot, TrainError, compare, list, report, table};

fn folder(test: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("thalweg-runs-{}-{test}", std::process::id()));
    let _ = fs::remove_dir_all(&path);
    path
}

#[test]
fn a_run_goes_on_at_its_checkpoint_and_forgets_what_came_after() {
    let dir = folder("resume");
    let mut run = Run::create(&dir, &json!({"lr": 0.1})).unwrap();
    let mut checkpoints = run.checkpoints(Keep::default()).unwrap();
    for step in 1..=5 {
        run.log(step, &[("loss", 1.0 / step as f64)]).unwrap();
        if step == 3 {
            let tensors = [("w", Tensor::from([step as f32]))];
            checkpoints.save(Snapshot::new(step, json!({"position": 7})).part("model", tensors)).unwrap();
        }
    }
    drop((run, checkpoints));
    assert!(matches!(Run::create(&dir, &json!({})), Err(TrainError::Exists { .. })));

    let (mut run, loaded) = Run::resume(&dir).unwrap();
    let loaded = loaded.unwrap();
    assert_eq!((loaded.step, &loaded.state), (3, &json!({"position": 7})));
    assert_eq!(Run::metrics_of(&dir).unwrap().last().unwrap().step, 3);
    run.log(4, &[("loss", 0.5)]).unwrap();
    run.finish(&json!({"loss": 0.5})).unwrap();
    let lines = Run::metrics_of(&dir).unwrap();
    assert_eq!(lines.iter().map(|l| l.step).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert!(lines.windows(2).all(|w| w[0].seconds <= w[1].seconds), "time goes on");
    assert_eq!(Run::summary_of(&dir).unwrap().unwrap(), json!({"loss": 0.5}));
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn the_last_mark_counts_unless_it_is_torn_or_of_what_is_forgotten() {
    let dir = folder("mark");
    let mut run = Run::create(&dir, &json!({})).unwrap();
    assert_eq!(Run::mark_of(&dir), None);
    run.mark(6, (1, 0.25));
    run.mark(7, (2, 1.5));
    let last = Some(Mark { step: 7, pending: (2, 1.5) });
    assert_eq!(Run::mark_of(&dir), last);
    assert_eq!(Run::resume_at(&dir, 7).map(|_| Run::mark_of(&dir)).unwrap(), last);
    let whole = fs::read(dir.join("bookmark")).unwrap();
    for i in 0..whole.len() {
        let mut torn = whole.clone();
        torn[i] ^= 0x10;
        fs::write(dir.join("bookmark"), &torn).unwrap();
        assert_eq!(Run::mark_of(&dir), None, "byte {i}");
        fs::write(dir.join("bookmark"), &whole[..i]).unwrap();
        assert_eq!(Run::mark_of(&dir), None, "{i} bytes");
    }
    fs::write(dir.join("bookmark"), &whole).unwrap();
    let mut run = Run::resume_at(&dir, 6).unwrap();
    assert_eq!(Run::mark_of(&dir), None);
    run.mark(6, (1, 0.25));
    assert_eq!(Run::mark_of(&dir), Some(Mark { step: 6, pending: (1, 0.25) }));
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_folder_that_is_no_run_is_an_error() {
    let dir = folder("none");
    fs::create_dir_all(&dir).unwrap();
    let e = Run::resume(&dir).unwrap_err().to_string();
    assert!(e.ends_with("is not a run directory (it has no config.json)"), "{e}");
    assert!(matches!(list(&dir), Err(TrainError::NoRuns { .. })));
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_comparison_shows_the_settings_that_differ() {
    let dir = folder("compare");
    for (name, lr) in [("b", 0.1), ("a", 0.01)] {
        let mut run = Run::create(dir.join(name), &json!({"opt": {"lr": lr}, "batch": 64})).unwrap();
        run.log(10, &[("loss", lr * 10.0)]).unwrap();
        if name == "a" {
            run.finish(&json!({})).unwrap();
        }
    }
    let runs = list(&dir).unwrap();
    let lines: Vec<String> =
        table(&runs).lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(lines[0], "run state step seconds loss opt.lr");
    assert!(lines[1].starts_with("a finished 10 ") && lines[1].ends_with(" 0.1000 0.01"), "{lines:?}");
    assert!(lines[2].starts_with("b unfinished 10 ") && lines[2].ends_with(" 1.0000 0.1"), "{lines:?}");
    let columns: Vec<Vec<String>> =
        compare(&runs).lines().map(|l| l.split_whitespace().map(str::to_owned).collect()).collect();
    assert_eq!(columns[0], ["a", "b"]);
    let named = |name: &str| columns.iter().find(|c| c.join(" ").starts_with(name)).unwrap().clone();
    assert_eq!(named("state")[1..], ["finished", "unfinished"]);
    assert_eq!(named("best loss")[2..], ["0.1000", "1.0000"]);
    assert_eq!(named("opt.lr")[1..], ["0.01", "0.1"]);
    assert!(!compare(&runs).contains("batch"), "what is the same is left out");
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_report_is_one_file_and_names_are_no_markup() {
    let dir = folder("report");
    let mut run = Run::create(&dir, &json!({"name": "<script>alert(1)</script>"})).unwrap();
    (1..50)
        .for_each(|s| run.log(s, &[("loss/train", 1.0 / s as f64), ("loss/test", 2.0 / s as f64)]).unwrap());
    let page = report(&dir).unwrap();
    assert!(!page.contains("<script") && page.contains("&lt;script&gt;"));
    assert_eq!(page.matches("<svg").count(), 1, "both curves are in one picture");
    assert!(!page.contains("href=") && !page.contains("src="));
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn curves_with_gaps_extremes_and_nothing_are_drawn() {
    let values = [f64::NAN, 1.0, f64::INFINITY, -3.0, 0.0, 1e300, -1e300];
    let points: Vec<_> = values.iter().zip(0..).map(|(&y, x)| (f64::from(x), y)).collect();
    for log_y in [false, true] {
        for series in [vec![], vec![Series { name: "é <&>".into(), points: points.clone() }; 2]] {
            let plot = Plot { title: "t".into(), x_name: "x".into(), series, log_y, ..Plot::default() };
            assert!(
                plot.svg().ends_with("</svg>\n")
                    && !plot.svg().contains("NaN")
                    && !plot.svg().contains("inf")
            );
            let image = plot.image(300, 200);
            assert_eq!(decode(&encode_png(&image), Channels::Rgb).unwrap(), image);
            drop(plot.image(1, 1));
        }
    }
}

#[test]
fn a_curve_is_where_its_points_are() {
    let series = vec![Series { name: "s".into(), points: vec![(0.0, 0.0), (1.0, 1.0)] }];
    let plot = Plot { title: String::new(), x_name: String::new(), series, log_y: false, ..Plot::default() };
    let image = plot.image(400, 300);
    // The plot area: 64..384 from left to right, 34..(300 − 44 − 18) from top to bottom.
    let at = |x: usize, y: usize| &image.pixels[(y * 400 + x) * 3..][..3];
    assert_eq!(at(223, 136), [0, 114, 178], "the middle of the diagonal has the curve's colour");
    assert_eq!(at(100, 60), [255; 3], "far from it the paper is white");
}
