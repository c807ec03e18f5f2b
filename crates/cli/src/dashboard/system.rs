//! How busy the machine is, as far as it says.

use serde_json::{Value, json};

/// Counters of the last look; shares are of the time since.
pub struct System {
    before: Option<(u64, u64)>,
}

impl System {
    pub fn new() -> Self {
        Self { before: read("/proc/stat").as_deref().and_then(ticks) }
    }

    /// `cpu`: the busy share since the last look; `memory` and `memory_total` in bytes. What the system does not tell is null.
    pub fn now(&mut self) -> Value {
        let now = read("/proc/stat").as_deref().and_then(ticks);
        let cpu = match (self.before, now) {
            (Some((busy, all)), Some((busy_now, all_now))) if all_now > all => {
                Some(busy_now.saturating_sub(busy) as f64 / (all_now - all) as f64)
            }
            _ => None,
        };
        self.before = now.or(self.before);
        let memory = read("/proc/meminfo").as_deref().and_then(used);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        json!({"cpu": cpu, "cores": cores, "memory": memory.map(|m| m.0), "memory_total": memory.map(|m| m.1)})
    }
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// Busy and all ticks of all cores: user nice system idle iowait irq softirq steal.
fn ticks(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let numbers: Vec<u64> = line.split_ascii_whitespace().take(8).map_while(|n| n.parse().ok()).collect();
    let all: u64 = numbers.iter().sum();
    Some((all - numbers.get(3)? - numbers.get(4)?, all))
}

/// Used and total bytes.
fn used(meminfo: &str) -> Option<(u64, u64)> {
    let kilobytes = |name: &str| {
        let line = meminfo.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_ascii_whitespace().next()?.parse::<u64>().ok()
    };
    let (total, free) = (kilobytes("MemTotal")?, kilobytes("MemAvailable")?);
    Some((1024 * total.saturating_sub(free), 1024 * total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_as_the_kernel_writes_them() {
        assert_eq!(ticks("cpu  10 1 5 80 4 0 0 0 0 0\ncpu0 1 2 3\n"), Some((16, 100)));
        assert_eq!(ticks("nonsense"), None);
        let meminfo = "MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    400 kB\n";
        assert_eq!(used(meminfo), Some((600 * 1024, 1000 * 1024)));
        assert_eq!(used("MemTotal: 3 kB"), None);
    }
}
