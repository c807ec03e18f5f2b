//! The few calls of etcd's version 3 that an election needs, over its JSON gateway.
//!
//! Plain HTTP rather than gRPC: five calls, blocking as everything here, without an async runtime and without
//! `protoc` at build time. Numbers of 64 bits come as text, keys and values in base 64.

use std::io::{BufRead, BufReader, Read};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use crate::error::ClusterError;

/// An answer takes milliseconds; who takes longer is as good as dead.
const CALL: Duration = Duration::from_millis(500);
/// A watch is opened anew after so long, so that one whose connection died without a word is noticed.
const WATCH: Duration = Duration::from_secs(5);
/// No answer is longer: the longest is a view.
const LONGEST: u64 = 16 << 20;

/// A key with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub value: Vec<u8>,
    /// When it came into being: of two that held the key one after the other, the later has the higher number.
    pub created: i64,
    /// When it was last changed.
    pub modified: i64,
    /// The lease under which it stands; zero: none.
    pub lease: i64,
}

/// What must hold for a put.
pub enum Only<'a> {
    /// The key was created at this revision; zero: it does not exist.
    Created(&'a str, i64),
    /// The key was last changed at this revision; zero: it does not exist.
    Modified(&'a str, i64),
}

/// The members of an etcd cluster; whoever answered last is asked first.
pub struct Api {
    endpoints: Vec<String>,
    last: AtomicUsize,
    agent: ureq::Agent,
}

impl Api {
    /// From addresses such as `http://127.0.0.1:2379`.
    pub fn new(endpoints: Vec<String>) -> Self {
        let config = ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(CALL));
        Self { endpoints, last: AtomicUsize::new(0), agent: config.build().into() }
    }

    /// A lease of at least this length in seconds.
    pub fn grant(&self, seconds: u64) -> Result<i64, ClusterError> {
        let answer = self.call("lease/grant", &json!({ "TTL": seconds }))?;
        number(&answer["ID"]).ok_or_else(|| self.senseless(&answer))
    }

    /// Whether the lease still was there, and then lasts as long as at its beginning.
    pub fn keep_alive(&self, lease: i64) -> Result<bool, ClusterError> {
        let answer = self.call("lease/keepalive", &json!({ "ID": lease.to_string() }))?;
        Ok(number(&answer["result"]["TTL"]).is_some_and(|ttl| ttl > 0))
    }

    /// Ends a lease, and what stands under it.
    pub fn revoke(&self, lease: i64) -> Result<(), ClusterError> {
        self.call("lease/revoke", &json!({ "ID": lease.to_string() })).map(drop)
    }

    /// The entry of a key, and the revision at which that was so.
    pub fn get(&self, key: &str) -> Result<(Option<Entry>, i64), ClusterError> {
        let answer = self.call("kv/range", &json!({ "key": BASE64.encode(key) }))?;
        let revision = number(&answer["header"]["revision"]).ok_or_else(|| self.senseless(&answer))?;
        Ok((entry(&answer["kvs"][0]), revision))
    }

    /// Puts a value if all conditions hold, and tells at which revision that was done; `None` if they do not hold.
    pub fn put_if(
        &self,
        only: &[Only],
        key: &str,
        value: &[u8],
        lease: Option<i64>,
    ) -> Result<Option<i64>, ClusterError> {
        let compare = |only: &Only| match only {
            Only::Created(key, at) => compare(key, "CREATE", "create_revision", *at),
            Only::Modified(key, at) => compare(key, "MOD", "mod_revision", *at),
        };
        let lease = lease.unwrap_or(0).to_string();
        let put = json!({ "key": BASE64.encode(key), "value": BASE64.encode(value), "lease": lease });
        let body = json!({
            "compare": only.iter().map(compare).collect::<Vec<_>>(),
            "success": [{ "request_put": put }],
        });
        let answer = self.call("kv/txn", &body)?;
        if answer["succeeded"] != json!(true) {
            return Ok(None);
        }
        number(&answer["header"]["revision"]).map(Some).ok_or_else(|| self.senseless(&answer))
    }

    /// Removes all keys that begin so.
    pub fn delete_all(&self, prefix: &str) -> Result<(), ClusterError> {
        // The end of the range is the prefix with its last byte one higher.
        let mut end = prefix.as_bytes().to_vec();
        *end.last_mut().expect("a prefix is not empty") += 1;
        let body = json!({ "key": BASE64.encode(prefix), "range_end": BASE64.encode(end) });
        self.call("kv/deleterange", &body).map(drop)
    }

    /// Tells every change of a key from this revision on, until the connection ends or `told` says false. It ends
    /// often; whoever watches reads the key again and goes on from there.
    pub fn watch(
        &self,
        key: &str,
        from: i64,
        mut told: impl FnMut(Option<Entry>) -> bool,
    ) -> Result<(), ClusterError> {
        let create = json!({ "key": BASE64.encode(key), "start_revision": from.to_string() });
        let endpoint = self.endpoint();
        let request = self.agent.post(format!("{endpoint}/v3/watch"));
        let request = request.config().timeout_global(Some(WATCH)).build();
        let answer = request.send(json!({ "create_request": create }).to_string().as_bytes());
        let answer = answer.map_err(|e| failed(endpoint, e.to_string()))?;
        for line in BufReader::new(answer.into_body().into_reader().take(LONGEST)).lines() {
            // A watch that was long silent ends as one whose connection broke.
            let Ok(line) = line else { return Ok(()) };
            let line: Value = serde_json::from_str(&line).unwrap_or_default();
            let result = &line["result"];
            if !result.is_object() || result["canceled"] == json!(true) {
                return Ok(());
            }
            for event in result["events"].as_array().into_iter().flatten() {
                let gone = event["type"] == json!("DELETE");
                if !told(if gone { None } else { entry(&event["kv"]) }) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn endpoint(&self) -> &str {
        &self.endpoints[self.last.load(Ordering::Relaxed) % self.endpoints.len()]
    }

    /// Asks one member after the other until one answers.
    fn call(&self, path: &str, body: &Value) -> Result<Value, ClusterError> {
        let mut problem = None;
        for _ in 0..self.endpoints.len() {
            match self.ask(self.endpoint(), path, body) {
                Ok(answer) => return Ok(answer),
                Err(e) => problem = Some(e),
            }
            self.last.fetch_add(1, Ordering::Relaxed);
        }
        Err(problem.expect("there is an endpoint"))
    }

    fn ask(&self, endpoint: &str, path: &str, body: &Value) -> Result<Value, ClusterError> {
        let failed = |problem: String| failed(endpoint, problem);
        let sent = self.agent.post(format!("{endpoint}/v3/{path}")).send(body.to_string().as_bytes());
        let mut answer = sent.map_err(|e| failed(e.to_string()))?;
        let status = answer.status();
        let read = answer.body_mut().with_config().limit(LONGEST).read_to_vec();
        let bytes = read.map_err(|e| failed(e.to_string()))?;
        let value: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        if !status.is_success() {
            return Err(failed(value["error"].as_str().map_or_else(|| status.to_string(), str::to_owned)));
        }
        Ok(value)
    }

    fn senseless(&self, answer: &Value) -> ClusterError {
        failed(self.endpoint(), format!("it answered {answer}; is this etcd 3.4 or newer?"))
    }
}

fn failed(endpoint: &str, problem: String) -> ClusterError {
    ClusterError::Etcd { endpoint: endpoint.to_owned(), problem }
}

fn compare(key: &str, target: &str, field: &str, at: i64) -> Value {
    json!({ "key": BASE64.encode(key), "target": target, "result": "EQUAL", field: at.to_string() })
}

fn entry(kv: &Value) -> Option<Entry> {
    Some(Entry {
        value: BASE64.decode(kv["value"].as_str().unwrap_or_default()).ok()?,
        created: number(&kv["create_revision"])?,
        modified: number(&kv["mod_revision"])?,
        lease: number(&kv["lease"]).unwrap_or(0),
    })
}

/// The gateway writes numbers of 64 bits as text.
fn number(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| value.as_str()?.parse().ok())
}
