//! What the page shows of a cluster, asked for once a second on a thread of its own: one that does not answer keeps
//! nobody else waiting.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use thalweg_cluster::message::Role;
use thalweg_cluster::net::config::Config;
use thalweg_cluster::net::process::ask_status;
use thalweg_cluster::{Report, Standing};

/// The last answer.
pub struct Cluster(Arc<Mutex<Value>>);

impl Cluster {
    pub fn new(config: Config) -> Self {
        let last = Arc::new(Mutex::new(json!({"error": "not heard of yet"})));
        let told = last.clone();
        std::thread::spawn(move || {
            let mut said = false;
            loop {
                let shown = match ask_status(&config, None) {
                    Ok(report) => shown(&report),
                    Err(e) => {
                        if !std::mem::replace(&mut said, true) {
                            eprintln!("thalweg: {e}; the page shows the cluster once it answers");
                        }
                        json!({"error": e.to_string()})
                    }
                };
                *told.lock().unwrap_or_else(PoisonError::into_inner) = shown;
                std::thread::sleep(Duration::from_secs(1));
            }
        });
        Self(last)
    }

    pub fn state(&self) -> Value {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn shown(report: &Report) -> Value {
    let members: Vec<Value> = report.members.iter().map(member).collect();
    json!({
        "epoch": report.epoch.0,
        "shards": report.n_shards,
        "slots": report.n_slots,
        "members": members,
    })
}

fn member(member: &Standing) -> Value {
    let works = member.role == Role::Worker;
    let mut shown = json!({"name": member.name, "holds": member.holds, "worker": works});
    if let Some(told) = &member.told {
        shown["clock"] = json!(told.clock);
        shown["speed"] = json!(told.speed);
        shown["received"] = json!(told.counts.received);
        shown["sent"] = json!(told.counts.sent);
        shown["silence"] = json!(told.silence.as_secs_f64());
        shown["waiting_for"] = json!(told.waiting_for);
        if !told.activity.what.is_empty() {
            shown["doing"] = json!(told.activity.to_string());
        }
        if works {
            shown["staleness"] = json!(told.counts.staleness);
            shown["waited"] = json!(told.counts.waited.as_secs_f64());
            shown["idle"] = json!(told.idle());
        }
    }
    shown
}
