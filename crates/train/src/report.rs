//! A page about one run: its settings, its last numbers and a curve of each metric, in one file without links.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use crate::error::TrainError;
use crate::plot::svg::escape;
use crate::plot::{Plot, Series};
use crate::run::Run;
use crate::summary::{RunSummary, short};

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:760px;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse;margin:.5em 0 1.5em}td,th{padding:.2em .9em .2em 0;text-align:left;vertical-align:top}
td{border-top:1px solid #ddd;font-variant-numeric:tabular-nums}figure{margin:1.5em 0}svg{max-width:100%;height:auto}
h1{font-size:1.6em}h2{font-size:1.2em;margin-top:1.8em}";

/// The page as HTML. Metrics that share the word before a slash share a picture (`loss/train` and `loss/test` do,
/// `train/loss` and `test/loss` do not).
pub fn report(path: impl AsRef<Path>) -> Result<String, TrainError> {
    let run = RunSummary::read(path.as_ref())?;
    let summary = Run::summary_of(path.as_ref())?;
    let mut page = String::new();
    let fits = "a string takes all text";
    let name = escape(&run.name);
    write!(
        page,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{name}</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style></head><body>\n<h1>{name}</h1>\n"
    )
    .expect(fits);
    let state = if run.finished { "finished" } else { "unfinished" };
    writeln!(page, "<p>{state} after {} steps and {:.1} seconds</p>", run.step, run.seconds).expect(fits);

    let last = run.last.iter().map(|(k, v)| (k.as_str(), short(*v)));
    rows(&mut page, "Last values", last);
    if let Some(serde_json::Value::Object(summary)) = summary {
        rows(&mut page, "Result", summary.iter().map(|(k, v)| (k.as_str(), v.to_string())));
    }
    rows(&mut page, "Settings", run.config.iter().map(|(k, v)| (k.as_str(), v.clone())));

    let group = |metric: &str| metric.split('/').next().unwrap_or_default().to_owned();
    let groups: BTreeSet<String> = run.last.keys().map(|m| group(m)).collect();
    for title in groups {
        let series: Vec<Series> = run
            .last
            .keys()
            .filter(|m| group(m) == title)
            .map(|m| Series { name: m.clone(), points: run.series(m) })
            .collect();
        let plot = Plot { title, x_name: "step".into(), series, log_y: false, ..Plot::default() };
        writeln!(page, "<figure>\n{}</figure>", plot.svg()).expect(fits);
    }
    page.push_str("</body></html>\n");
    Ok(page)
}

fn rows<'a>(page: &mut String, title: &str, rows: impl Iterator<Item = (&'a str, String)>) {
    let fits = "a string takes all text";
    let mut rows = rows.peekable();
    if rows.peek().is_none() {
        return;
    }
    writeln!(page, "<h2>{title}</h2>\n<table>").expect(fits);
    for (name, value) in rows {
        writeln!(page, "<tr><td>{}</td><td>{}</td></tr>", escape(name), escape(&value)).expect(fits);
    }
    page.push_str("</table>\n");
}
