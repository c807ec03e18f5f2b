//! What a process is told by its environment: one way in, whoever starts it.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `THALWEG_ROLE` | `worker`, `server` or `coordinator` | alone: all three |
//! | `THALWEG_COORDINATOR` | where the coordinator listens, `host:port` | |
//! | `THALWEG_ETCD` | instead: where etcd listens, `http://host:port`, several with commas | |
//! | `THALWEG_CLUSTER` | the name by which the processes of a cluster find each other in etcd | `default` |
//! | `THALWEG_NAME` | the same for all lives of a process | role and process number |
//! | `THALWEG_SECRET` | what all processes of the cluster know | none, on loopback only |
//! | `THALWEG_TLS_CERT`, `THALWEG_TLS_KEY`, `THALWEG_TLS_CA` | PEM files: what this process shows, and who signed it | none |
//! | `THALWEG_BIND` | where a server listens: an address of this host, or with a port, `host:port` | `127.0.0.1`, any port |
//! | `THALWEG_ADVERTISE` | by which name or address of this host others reach it | where it listens; of `0.0.0.0`, the address from which the coordinator is reached |
//! | `THALWEG_WORKERS`, `THALWEG_SERVERS` | how many are announced | 1 |
//! | `THALWEG_SLOTS` | parts of a batch | the number of workers |
//! | `THALWEG_SHARDS` | parts of the parameters | the number of servers, up to four times as many of 1 MiB or more |
//! | `THALWEG_REPLICAS` | servers per shard, as long as there are so many | 2 |
//! | `THALWEG_SYNC` | `bsp`, `ssp:S`, `async`, `backup:B`; for nets also `local:STEPS`, `easgd:SHARE[:STEPS]` | `bsp` |
//! | `THALWEG_CODEC` | how pushes to dense tables are made smaller: `f32`, `bf16`, `int8`, `topk:ONE_IN` | `f32` |
//! | `THALWEG_STATE` | the coordinator's file | none |
//! | `THALWEG_CHECKPOINTS` | where checkpoints lie, such as `s3://bucket/path` | in the folder of the run |
//! | `THALWEG_LEASE_MS` | how long silence is borne | 300 |
//! | `THALWEG_RESTART_MS` | how long a process that has ended and that no other can replace may take to be started again, before the wait for it is an error | 400; under `launch`, which starts it again, 10000 |
//! | `THALWEG_GIVE_UP_MS` | the same for one of which nothing is known: it may be stopped, or the network cut | 10000 |
//! | `THALWEG_SHARED_MEMORY` | `on` or `off`: values between processes of one host go through memory | `on` |
//! | `THALWEG_METRICS` | where the coordinator serves metrics for Prometheus | nowhere |
//! | `THALWEG_PARENT` | the process without which this one ends | none |
//!
//! Under mpirun, Slurm or any other launcher that numbers its processes, only `THALWEG_COORDINATOR` and
//! `THALWEG_SERVERS` need be said: the first process is the coordinator, the next ones are servers, the others workers,
//! and coordinator and servers end when the workers are done.
//! `mpirun -np 7 -x THALWEG_COORDINATOR=127.0.0.1:7700 -x THALWEG_SERVERS=2 program` runs four workers.
//!
//! A server or worker that is started later, with the variables of the others and a name of its own, joins: it takes over
//! shards or slots of theirs. There is something to do for as many workers as there are slots.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use super::handshake::Secret;
use super::membership::{Embedded, Membership};
use super::stream::Security;
use crate::codec::Codec;
use crate::coordinator::Size;
use crate::error::ClusterError;
use crate::message::Settings;
use crate::sync::Sync;
use crate::view::Timing;

/// The variable that says how long a process that has ended may take to be started again.
pub const RESTART: &str = "THALWEG_RESTART_MS";

/// What a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The only one: worker, server and coordinator.
    Alone,
    /// Computes.
    Worker,
    /// Holds shards.
    Server,
    /// Keeps the view.
    Coordinator,
}

/// Where a coordinator is elected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Etcd {
    /// Addresses of etcd.
    pub endpoints: Vec<String>,
    /// The cluster's name.
    pub cluster: String,
}

impl Etcd {
    /// From the variables, or `None` when there is nothing about etcd.
    pub fn from(get: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, ClusterError> {
        let Some(text) = get("THALWEG_ETCD") else { return Ok(None) };
        if cfg!(not(feature = "etcd")) {
            return Err(bad("THALWEG_ETCD", &text, "unset, or the program built with the feature `etcd`"));
        }
        let endpoints: Vec<String> = text.split(',').map(|e| e.trim_end_matches('/').to_owned()).collect();
        if endpoints.iter().any(|e| e.strip_prefix("http://").is_none_or(str::is_empty)) {
            return Err(bad("THALWEG_ETCD", &text, "http://host:port, several with commas between them"));
        }
        let cluster = get("THALWEG_CLUSTER").unwrap_or_else(|| "default".into());
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if cluster.is_empty() || !cluster.chars().all(plain) {
            return Err(bad("THALWEG_CLUSTER", &cluster, "a name of letters, digits, '-', '_' and '.'"));
        }
        Ok(Some(Self { endpoints, cluster }))
    }
}

/// Everything a process is told.
#[derive(Debug, Clone)]
pub struct Config {
    /// What it is.
    pub part: Part,
    /// Where the coordinator listens.
    pub coordinator: String,
    /// Where the coordinator is elected, if it is.
    pub etcd: Option<Etcd>,
    /// The same for all lives of this process.
    pub name: String,
    /// How peers prove that they belong to the cluster.
    pub security: Security,
    /// Where to listen.
    pub bind: String,
    /// By which name or address others reach this host, if not by where it listens.
    pub advertise: Option<String>,
    /// What the run is made of.
    pub size: Size,
    /// The consistency.
    pub sync: Sync,
    /// How what this worker pushes is made smaller.
    pub codec: Codec,
    /// What the program adds to the [`settings`](Self::settings) of a run, in words by name.
    pub settings: Settings,
    /// The bytes of each shard, once the program has said what its tables are.
    pub shard_bytes: Vec<u64>,
    /// The coordinator's file.
    pub state: Option<PathBuf>,
    /// Where checkpoints lie, if not in the folder of the run.
    pub checkpoints: Option<String>,
    /// Leases and heartbeats.
    pub timing: Timing,
    /// How long a process that has ended may take to be started again, where no other can replace it.
    pub restart: Duration,
    /// How long such a process is waited for when nothing is known of it.
    pub give_up: Duration,
    /// Whether coordinator and servers end when the workers are done, since nobody ends them.
    pub until_done: bool,
    /// Whether values may go through memory shared with other processes of this host.
    pub shared_memory: bool,
    /// Where the coordinator serves metrics.
    pub metrics: Option<String>,
    /// The process without which this one ends.
    pub parent: Option<u32>,
}

impl Config {
    /// From the variables above.
    pub fn from_env() -> Result<Self, ClusterError> {
        Self::from(|name| std::env::var(name).ok())
    }

    /// From any source of variables.
    pub fn from(get: impl Fn(&str) -> Option<String>) -> Result<Self, ClusterError> {
        let numbered = Numbered::find(&get)?;
        let told = get("THALWEG_ROLE").or_else(|| numbered.as_ref().map(|n| n.role.to_owned()));
        let part = match told.as_deref() {
            None => Part::Alone,
            Some("worker") => Part::Worker,
            Some("server") => Part::Server,
            Some("coordinator") => Part::Coordinator,
            Some(got) => return Err(bad("THALWEG_ROLE", got, "worker, server or coordinator")),
        };
        let etcd = if part == Part::Alone { None } else { Etcd::from(&get)? };
        let bind = get("THALWEG_BIND").unwrap_or_else(|| "127.0.0.1".into());
        let wanted = "the coordinator's host:port, such as 127.0.0.1:7700, or THALWEG_ETCD said";
        let coordinator = match (part, get("THALWEG_COORDINATOR")) {
            // Whoever names a coordinator does not mean to be alone.
            (Part::Alone, Some(_)) => return Err(bad("THALWEG_ROLE", "", "worker, server or coordinator")),
            (Part::Alone, None) => "127.0.0.1:0".to_owned(),
            (_, None) if etcd.is_some() => with_port(&bind),
            (_, Some(address)) if !is_address(&address) => {
                return Err(bad("THALWEG_COORDINATOR", &address, wanted));
            }
            (_, Some(address)) => address,
            (_, None) => return Err(bad("THALWEG_COORDINATOR", "", wanted)),
        };
        let n_workers = number(&get, "THALWEG_WORKERS", numbered.as_ref().map_or(1, |n| n.n_workers))?;
        let n_servers = number(&get, "THALWEG_SERVERS", 1)?;
        let size = Size {
            n_servers,
            n_workers,
            n_shards: get("THALWEG_SHARDS").map(|_| number(&get, "THALWEG_SHARDS", 1)).transpose()?,
            n_slots: number(&get, "THALWEG_SLOTS", n_workers)?,
            replicas: number(&get, "THALWEG_REPLICAS", 2)?,
        };
        let lease = number(&get, "THALWEG_LEASE_MS", 300)?;
        let timing = Timing {
            lease: Duration::from_millis(lease as u64),
            // People look at what is told with it, so a long lease is no reason to tell it rarely.
            heartbeat: Duration::from_millis(lease as u64 / 5).min(Duration::from_millis(200)),
            retry: Duration::from_secs(1),
            ..Timing::default()
        };
        let role = told.unwrap_or_else(|| "alone".into());
        let index = numbered.as_ref().map_or(std::process::id() as usize, |n| n.index);
        let config = Self {
            part,
            coordinator,
            etcd,
            name: get("THALWEG_NAME").unwrap_or_else(|| format!("{role}-{index}")),
            security: security(&get)?,
            bind,
            advertise: get("THALWEG_ADVERTISE").filter(|host| !host.is_empty()),
            size,
            sync: get("THALWEG_SYNC").map_or(Ok(Sync::Bsp), |s| s.parse())?,
            codec: get("THALWEG_CODEC").map_or(Ok(Codec::F32), |s| s.parse())?,
            settings: Settings::new(),
            shard_bytes: Vec::new(),
            state: get("THALWEG_STATE").map(PathBuf::from),
            checkpoints: get("THALWEG_CHECKPOINTS"),
            timing,
            restart: Duration::from_millis(number(&get, RESTART, 400)? as u64),
            give_up: Duration::from_millis(number(&get, "THALWEG_GIVE_UP_MS", 10_000)? as u64),
            until_done: numbered.is_some(),
            shared_memory: match get("THALWEG_SHARED_MEMORY").as_deref() {
                None | Some("on") => true,
                Some("off") => false,
                Some(got) => return Err(bad("THALWEG_SHARED_MEMORY", got, "on or off")),
            },
            metrics: get("THALWEG_METRICS"),
            parent: get("THALWEG_PARENT").map(|p| parse("THALWEG_PARENT", &p)).transpose()?,
        };
        Ok(config)
    }

    /// Everything that must be the same for all processes of a run, in words by name.
    pub fn settings(&self) -> Settings {
        let own = [("sync", self.sync.to_string()), ("codec", self.codec.to_string())];
        let own = own.map(|(name, value)| (name.to_owned(), value)).into_iter().chain(self.size.settings());
        // A net whose workers step on their own has said what that was; what is left of it is the servers' part.
        own.chain(self.settings.clone()).collect()
    }

    /// How the processes agree on a coordinator.
    pub fn membership(&self) -> Arc<dyn Membership> {
        #[cfg(feature = "etcd")]
        if let Some(Etcd { endpoints, cluster }) = &self.etcd {
            return Arc::new(super::etcd::Etcd::new(endpoints.clone(), cluster));
        }
        Arc::new(Embedded::new(self.coordinator.clone(), self.state.clone()))
    }

    /// Listens at an address, if that is safe: beyond this host only with a secret or certificates.
    pub fn listen(&self, address: &str) -> Result<TcpListener, ClusterError> {
        let failed = |source| ClusterError::Listen { address: address.to_owned(), source };
        let resolved: Vec<_> = address.to_socket_addrs().map_err(failed)?.collect();
        let outside = resolved.iter().map(|a| a.ip()).any(|ip: IpAddr| !ip.is_loopback());
        if outside && self.security.is_open() {
            return Err(ClusterError::Open { address: address.to_owned() });
        }
        TcpListener::bind(&resolved[..]).map_err(failed)
    }

    /// Where a server of this process listens; any port, unless one is said.
    pub fn data_address(&self) -> String {
        with_port(&self.bind)
    }

    /// Where others reach what listens here at `local`. A wildcard is no address: in its place comes the one from which
    /// this host reaches the coordinator, or etcd.
    pub fn reached_at(&self, local: SocketAddr) -> String {
        if let Some(host) = &self.advertise {
            let bare_v6 = host.parse::<Ipv6Addr>().is_ok();
            return if bare_v6 {
                format!("[{host}]:{}", local.port())
            } else {
                format!("{host}:{}", local.port())
            };
        }
        if !local.ip().is_unspecified() {
            return local.to_string();
        }
        let meeting = match &self.etcd {
            Some(etcd) => etcd.endpoints[0].trim_start_matches("http://").to_owned(),
            None => self.coordinator.clone(),
        };
        let own = source_towards(&meeting).unwrap_or(Ipv4Addr::LOCALHOST.into());
        SocketAddr::new(own, local.port()).to_string()
    }
}

/// The address of this host on the way to another. Nothing is sent: a datagram socket only looks up the route.
fn source_towards(address: &str) -> Option<IpAddr> {
    let to = address.to_socket_addrs().ok()?.next()?;
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(to).ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_unspecified())
}

/// An address with a port: its own, or any.
fn with_port(bind: &str) -> String {
    let has_port = bind.parse::<SocketAddr>().is_ok()
        || bind
            .rsplit_once(':')
            .is_some_and(|(host, port)| !host.contains(':') && port.parse::<u16>().is_ok());
    match bind.parse::<Ipv6Addr>() {
        Ok(v6) => format!("[{v6}]:0"),
        Err(_) if has_port => bind.to_owned(),
        Err(_) => format!("{bind}:0"),
    }
}

/// The three files of TLS, in the order of certificate, key and authority.
pub const TLS: [&str; 3] = ["THALWEG_TLS_CERT", "THALWEG_TLS_KEY", "THALWEG_TLS_CA"];

fn security(get: &impl Fn(&str) -> Option<String>) -> Result<Security, ClusterError> {
    let secret = get("THALWEG_SECRET").map(Secret::new).unwrap_or_default();
    let files = TLS.map(|name| get(name).filter(|path| !path.is_empty()));
    let Some(some) = files.iter().flatten().next() else {
        return Ok(Security::by(secret));
    };
    if cfg!(not(feature = "tls")) {
        return Err(bad(&TLS.join(", "), some, "unset, or the program built with the feature `tls`"));
    }
    if let Some(missing) = TLS.iter().zip(&files).find(|(_, file)| file.is_none()) {
        return Err(bad(missing.0, "", "a file: certificate, key and authority belong together"));
    }
    #[cfg(feature = "tls")]
    if let [Some(certificate), Some(key), Some(authority)] = files.map(|file| file.map(PathBuf::from)) {
        let tls = super::tls::Tls::from_files(&certificate, &key, &authority)?;
        return Ok(Security { secret, tls: Some(Arc::new(tls)) });
    }
    Ok(Security::by(secret))
}

/// The place of a process among those that a launcher has numbered.
struct Numbered {
    role: &'static str,
    index: usize,
    n_workers: usize,
}

/// Whether this is a host and a port, as far as one can see.
pub fn is_address(text: &str) -> bool {
    let is_host = |host: &str| !host.is_empty() && !host.contains('/');
    text.rsplit_once(':').is_some_and(|(host, port)| is_host(host) && port.parse::<u16>().is_ok())
}

impl Numbered {
    /// How launchers call a process's number and how many there are.
    const LAUNCHERS: [[&str; 2]; 3] = [
        ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"],
        ["PMI_RANK", "PMI_SIZE"],
        ["SLURM_PROCID", "SLURM_NTASKS"],
    ];

    /// `None` without a way to the coordinator: a program in such a job that knows of no cluster is alone.
    fn find(get: &impl Fn(&str) -> Option<String>) -> Result<Option<Self>, ClusterError> {
        let way = get("THALWEG_COORDINATOR").or_else(|| get("THALWEG_ETCD"));
        if get("THALWEG_ROLE").is_some() || way.is_none() {
            return Ok(None);
        }
        let named =
            Self::LAUNCHERS.iter().find_map(|[rank, size]| Some((rank, get(rank)?, size, get(size)?)));
        let Some((rank_name, rank, size_name, size_text)) = named else { return Ok(None) };
        let (rank, size): (usize, usize) = (parse(rank_name, &rank)?, parse(size_name, &size_text)?);
        let n_servers = number(get, "THALWEG_SERVERS", 1)?;
        let Some(n_workers) = size.checked_sub(1 + n_servers).filter(|n| *n > 0) else {
            let want = format!("at least {}: a coordinator, {n_servers} servers and a worker", n_servers + 2);
            return Err(bad(size_name, &size_text, &want));
        };
        let (role, index) = match rank {
            0 => ("coordinator", 0),
            r if r <= n_servers => ("server", r - 1),
            r => ("worker", r - 1 - n_servers),
        };
        Ok(Some(Self { role, index, n_workers }))
    }
}

fn bad(name: &str, got: &str, want: &str) -> ClusterError {
    ClusterError::Variable { name: name.to_owned(), got: got.to_owned(), want: want.to_owned() }
}

fn parse<T: FromStr>(name: &str, text: &str) -> Result<T, ClusterError> {
    text.parse().map_err(|_| bad(name, text, "a number"))
}

/// A number of things, at least one.
fn number(get: &impl Fn(&str) -> Option<String>, name: &str, default: usize) -> Result<usize, ClusterError> {
    let Some(text) = get(name) else { return Ok(default) };
    let n: usize = parse(name, &text)?;
    if (1..=1 << 20).contains(&n) { Ok(n) } else { Err(bad(name, &text, "a number from 1 to 1048576")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(variables: &[(&str, &str)]) -> Result<Config, ClusterError> {
        let get = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        Config::from(get)
    }

    #[test]
    fn nothing_said_is_a_process_alone() {
        let c = config(&[]).unwrap();
        assert_eq!((c.part, c.sync, c.size.n_slots, c.size.n_servers), (Part::Alone, Sync::Bsp, 1, 1));
        assert_eq!((c.size.n_shards, c.size.replicas), (None, 2), "the program and who lives decide");
        assert_eq!(config(&[("THALWEG_SHARDS", "3")]).unwrap().size.n_shards, Some(3));
    }

    #[test]
    fn who_is_numbered_by_a_launcher_knows_its_part() {
        let place = |rank: &str| {
            let common = [("THALWEG_COORDINATOR", "h:1"), ("THALWEG_SERVERS", "2")];
            let mpi = [("OMPI_COMM_WORLD_RANK", rank), ("OMPI_COMM_WORLD_SIZE", "6")];
            let c = config(&[&common[..], &mpi[..]].concat()).unwrap();
            (c.part, c.name, c.size.n_workers, c.until_done)
        };
        assert_eq!(place("0"), (Part::Coordinator, "coordinator-0".into(), 3, true));
        assert_eq!(place("2"), (Part::Server, "server-1".into(), 3, true));
        assert_eq!(place("5"), (Part::Worker, "worker-2".into(), 3, true));
        let alone = config(&[("SLURM_PROCID", "3"), ("SLURM_NTASKS", "4")]).unwrap();
        assert_eq!((alone.part, alone.until_done), (Part::Alone, false));
        let few = [("THALWEG_COORDINATOR", "h:1"), ("PMI_RANK", "0"), ("PMI_SIZE", "2")];
        assert!(config(&few).unwrap_err().to_string().contains("at least 3"));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_value() {
        let worker = ("THALWEG_ROLE", "worker");
        for (variables, part) in [
            (vec![("THALWEG_ROLE", "boss")], "THALWEG_ROLE is \"boss\""),
            (vec![worker], "THALWEG_COORDINATOR"),
            (vec![worker, ("THALWEG_COORDINATOR", "h")], "THALWEG_COORDINATOR is \"h\""),
            (vec![worker, ("THALWEG_COORDINATOR", "h:99999")], "host:port"),
            (vec![("THALWEG_COORDINATOR", "h:1")], "THALWEG_ROLE is \"\""),
            (vec![worker, ("THALWEG_ETCD", "somewhere")], "THALWEG_ETCD is \"somewhere\""),
            (vec![("THALWEG_TLS_CERT", "x.pem")], "THALWEG_TLS_"),
            (vec![("THALWEG_SLOTS", "0")], "THALWEG_SLOTS is \"0\""),
            (vec![("THALWEG_SLOTS", "many")], "\"many\""),
            (vec![("THALWEG_SYNC", "bps")], "\"bps\""),
            (vec![("THALWEG_CODEC", "zip")], "\"zip\""),
            (vec![("THALWEG_SHARED_MEMORY", "yes")], "should be on or off"),
        ] {
            let e = config(&variables).unwrap_err().to_string();
            assert!(e.contains(part), "{e}");
        }
    }

    #[test]
    fn a_wildcard_is_not_told_to_others() {
        let at = |variables: &[(&str, &str)], local: &str| {
            let common = [("THALWEG_ROLE", "server"), ("THALWEG_COORDINATOR", "127.0.0.1:7700")];
            config(&[&common[..], variables].concat()).unwrap().reached_at(local.parse().unwrap())
        };
        assert_eq!(at(&[], "10.1.2.3:50"), "10.1.2.3:50");
        assert_eq!(at(&[], "0.0.0.0:50"), "127.0.0.1:50");
        assert_eq!(at(&[("THALWEG_ADVERTISE", "node7")], "0.0.0.0:50"), "node7:50");
        assert_eq!(at(&[("THALWEG_ADVERTISE", "fd00::7")], "[::]:50"), "[fd00::7]:50");
    }

    #[test]
    fn a_server_listens_at_the_port_that_was_said_or_at_any() {
        for (bind, want) in [
            ("h", "h:0"),
            ("h:7", "h:7"),
            ("0.0.0.0:7", "0.0.0.0:7"),
            ("::1", "[::1]:0"),
            ("[::1]:7", "[::1]:7"),
        ] {
            assert_eq!(config(&[("THALWEG_BIND", bind)]).unwrap().data_address(), want);
        }
    }

    #[test]
    fn beyond_this_host_a_secret_is_needed_or_tls() {
        let open = config(&[]).unwrap();
        assert!(matches!(open.listen("0.0.0.0:0"), Err(ClusterError::Open { .. })));
        assert!(open.listen("127.0.0.1:0").is_ok());
        assert!(config(&[("THALWEG_SECRET", "x")]).unwrap().listen("0.0.0.0:0").is_ok());
    }
}
