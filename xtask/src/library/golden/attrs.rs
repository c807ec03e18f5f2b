//! The attributes of a case, read by name.

use serde_json::Value;

/// A JSON object with typed access. A missing or `null` entry is `None`.
pub struct Attrs(Value);

impl Attrs {
    pub fn new(value: &Value) -> Self {
        Self(value.clone())
    }

    fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|v| !v.is_null())
    }

    pub fn f64(&self, name: &str) -> Option<f64> {
        self.get(name)?.as_f64()
    }

    pub fn int(&self, name: &str) -> Option<isize> {
        self.get(name)?.as_i64().map(|i| i as isize)
    }

    pub fn bool(&self, name: &str) -> Option<bool> {
        self.get(name)?.as_bool()
    }

    pub fn str(&self, name: &str) -> Option<&str> {
        self.get(name)?.as_str()
    }

    /// A list of integers; a single integer is a list of one.
    pub fn ints(&self, name: &str) -> Option<Vec<isize>> {
        match self.get(name)? {
            Value::Array(list) => list.iter().map(|v| v.as_i64().map(|i| i as isize)).collect(),
            single => Some(vec![single.as_i64()? as isize]),
        }
    }

    /// A list of numbers; one that is `null` or missing makes the list end.
    pub fn f64s(&self, name: &str) -> Option<Vec<f64>> {
        Some(self.get(name)?.as_array()?.iter().map_while(Value::as_f64).collect())
    }

    /// The entry as it stands.
    pub fn raw(&self, name: &str) -> Option<&Value> {
        self.get(name)
    }
}
