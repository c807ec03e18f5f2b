//! The control plane as protobuf: what is said to and by the coordinator, over gRPC.
//!
//! `proto/control.proto` is the contract; `cargo xtask proto` makes [`proto`] of it. Here its messages become those of
//! the state machines, or an error that names what is missing. No sockets: those are in `net::control`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use crate::error::Unwelcome;
use crate::ids::{Epoch, Peer, RunId, ServerId, SessionId, ShardId, Slot};
use crate::message::{Activity, Behind, Counts, FromMember, Heartbeat, Join, Role, ToMember, Wish};
use crate::report::{Progress, Report, Standing};
use crate::view::{Chain, Member, View};

/// Generated from `proto/control.proto`.
#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]
pub mod proto {
    include!("generated/thalweg.control.v1.rs");
}

/// A member says no more than this many bytes at once.
pub const LONGEST_FROM_MEMBER: usize = 4 << 20;
/// A coordinator says no more than this many bytes at once: a view of as many shards and slots as there may be.
pub const LONGEST_TO_MEMBER: usize = 64 << 20;

/// Why a message of the control plane means nothing.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ControlError {
    /// A field that must be there is not.
    #[error("control: {field} is missing")]
    Missing {
        /// Which.
        field: &'static str,
    },
    /// A number that stands for no wish.
    #[error("control: {got} is no wish to stay or to go")]
    Wish {
        /// The number that came.
        got: i32,
    },
    /// A number that stands for no role.
    #[error("control: {got} is no role")]
    Role {
        /// The number that came.
        got: i32,
    },
}

/// What this peer says. Nothing when it is no member any more, and would say that it lives.
pub fn from_member(from: Peer, message: &FromMember) -> Option<proto::FromMember> {
    use proto::from_member::What;
    let what = match message {
        FromMember::Join(join) => What::Join(proto::Join {
            role: role(join.role),
            nonce: join.nonce,
            name: join.name.clone(),
            address: join.address.clone(),
            restored: join.restored,
            shard_bytes: join.shard_bytes.clone(),
            host: join.host.clone(),
            settings: join.settings.clone(),
        }),
        FromMember::Heartbeat(heartbeat) => What::Heartbeat(proto::Heartbeat {
            member: Some(member(from)?),
            epoch: heartbeat.epoch.0,
            sent: nanos(heartbeat.sent),
            caught_up: heartbeat
                .caught_up
                .iter()
                .map(|(shard, server)| proto::CaughtUp { shard: shard.0, server: server.0 })
                .collect(),
            wish: wish(heartbeat.wish),
            waiting_for: heartbeat.waiting_for.clone(),
            clock: heartbeat.clock,
            counts: Some(counts(heartbeat.counts)),
            behind: heartbeat.behind.map(|b| proto::Behind { clock: b.clock, slot: b.slot.0 }),
            activity: Some(activity(&heartbeat.activity)),
            saved: heartbeat.saved,
            keeps: heartbeat.keeps,
            handed: heartbeat.handed.iter().map(|shard| shard.0).collect(),
        }),
    };
    Some(proto::FromMember { what: Some(what) })
}

/// What a peer has said, and who it is.
pub fn read_from_member(message: proto::FromMember) -> Result<(Peer, FromMember), ControlError> {
    use proto::from_member::What;
    match there(message.what, "what a member says")? {
        What::Join(join) => {
            let proto::Join { role, nonce, name, address, restored, shard_bytes, host, settings } = join;
            let role = read_role(role)?;
            let join = Join { role, nonce, name, address, restored, shard_bytes, host, settings };
            Ok((Peer::Newcomer(nonce), FromMember::Join(join)))
        }
        What::Heartbeat(h) => {
            let from = read_member(h.member, "the member of a heartbeat")?;
            let caught_up = h.caught_up.iter().map(|c| (ShardId(c.shard), ServerId(c.server))).collect();
            let heartbeat = Heartbeat {
                epoch: Epoch(h.epoch),
                sent: Duration::from_nanos(h.sent),
                caught_up,
                wish: read_wish(h.wish)?,
                waiting_for: h.waiting_for,
                clock: h.clock,
                counts: read_counts(h.counts),
                behind: h.behind.map(|b| Behind { clock: b.clock, slot: Slot(b.slot) }),
                activity: read_activity(h.activity),
                saved: h.saved,
                keeps: h.keeps,
                handed: h.handed.into_iter().map(ShardId).collect(),
            };
            Ok((from, FromMember::Heartbeat(heartbeat)))
        }
    }
}

/// What the coordinator says.
pub fn to_member(message: &ToMember) -> proto::ToMember {
    use proto::to_member::What;
    let what = match message {
        ToMember::Welcome { nonce, you, run } => {
            What::Welcome(proto::Welcome { nonce: *nonce, you: member(*you), run: run.0 })
        }
        ToMember::Grant { lease, view: news, held, saved } => {
            let (lease, held) = (lease.map(nanos), held.clone());
            What::Grant(proto::Grant { lease, view: news.as_deref().map(view), held, saved: *saved })
        }
        ToMember::Expelled { run } => What::Expelled(proto::Expelled { run: run.0 }),
        ToMember::Refused { nonce, why } => {
            What::Refused(proto::Refused { nonce: *nonce, why: Some(unwelcome(why)) })
        }
    };
    proto::ToMember { what: Some(what) }
}

/// What the coordinator has said.
pub fn read_to_member(message: proto::ToMember) -> Result<ToMember, ControlError> {
    use proto::to_member::What;
    Ok(match there(message.what, "what a coordinator says")? {
        What::Welcome(welcome) => {
            let you = read_member(welcome.you, "the number in a welcome")?;
            ToMember::Welcome { nonce: welcome.nonce, you, run: RunId(welcome.run) }
        }
        What::Grant(grant) => {
            let lease = grant.lease.map(Duration::from_nanos);
            let view = grant.view.map(|view| Arc::new(read_view(view)));
            ToMember::Grant { lease, view, held: grant.held, saved: grant.saved }
        }
        What::Expelled(proto::Expelled { run }) => ToMember::Expelled { run: RunId(run) },
        What::Refused(proto::Refused { nonce, why }) => {
            ToMember::Refused { nonce, why: read_unwelcome(there(why, "the reason of a refusal")?) }
        }
    })
}

/// How things stand.
pub fn report(report: &Report) -> proto::Report {
    let progress = |told: &Progress| proto::Progress {
        clock: told.clock,
        speed: told.speed,
        counts: Some(counts(told.counts)),
        silence: nanos(told.silence),
        waiting_for: told.waiting_for.clone(),
        activity: Some(activity(&told.activity)),
    };
    let standing = |member: &Standing| proto::Standing {
        name: member.name.clone(),
        role: role(member.role),
        host: member.host.clone(),
        holds: member.holds.clone(),
        told: member.told.as_ref().map(progress),
    };
    proto::Report {
        epoch: report.epoch.0,
        n_shards: report.n_shards,
        n_slots: report.n_slots,
        members: report.members.iter().map(standing).collect(),
    }
}

/// How things stood.
pub fn read_report(report: proto::Report) -> Result<Report, ControlError> {
    let progress = |told: proto::Progress| Progress {
        clock: told.clock,
        speed: told.speed,
        counts: read_counts(told.counts),
        silence: Duration::from_nanos(told.silence),
        waiting_for: told.waiting_for,
        activity: read_activity(told.activity),
    };
    let standing = |member: proto::Standing| {
        let proto::Standing { name, role, host, holds, told } = member;
        Ok(Standing { name, role: read_role(role)?, host, holds, told: told.map(progress) })
    };
    Ok(Report {
        epoch: Epoch(report.epoch),
        n_shards: report.n_shards,
        n_slots: report.n_slots,
        members: report.members.into_iter().map(standing).collect::<Result<_, _>>()?,
    })
}

fn view(view: &View) -> proto::View {
    let process = |member: &Member| proto::Process {
        name: member.name.clone(),
        address: member.address.clone(),
        nonce: member.nonce,
        leaving: member.leaving,
        confirmed: member.confirmed,
        host: member.host.clone(),
    };
    let chain = |chain: &Chain| proto::Chain {
        members: chain.members.iter().map(|id| id.0).collect(),
        joining: chain.joining.map(|(server, since)| proto::Joining { server: server.0, epoch: since.0 }),
        lost: chain.lost,
        handing: chain.handing.map(|id| id.0),
    };
    proto::View {
        epoch: view.epoch.0,
        servers: view.servers.iter().map(|(id, member)| (id.0, process(member))).collect(),
        workers: view.workers.iter().map(|(id, member)| (id.0, process(member))).collect(),
        shards: view.shards.iter().map(chain).collect(),
        slots: view.slots.iter().map(|owner| owner.map_or(0, |id| id.0)).collect(),
        restored: view.restored,
        shard_bytes: view.shard_bytes.clone(),
        keeper: view.keeper.clone(),
    }
}

fn read_view(view: proto::View) -> View {
    let member = |process: proto::Process| {
        let proto::Process { name, address, nonce, leaving, confirmed, host } = process;
        Member { name, address, nonce, leaving, confirmed, host }
    };
    let chain = |chain: proto::Chain| Chain {
        members: chain.members.into_iter().map(ServerId).collect(),
        joining: chain.joining.map(|j| (ServerId(j.server), Epoch(j.epoch))),
        lost: chain.lost,
        handing: chain.handing.map(ServerId),
    };
    fn members<I: Ord>(
        processes: BTreeMap<u64, proto::Process>,
        id: fn(u64) -> I,
        member: impl Fn(proto::Process) -> Member,
    ) -> BTreeMap<I, Member> {
        processes.into_iter().map(|(n, process)| (id(n), member(process))).collect()
    }
    View {
        epoch: Epoch(view.epoch),
        servers: members(view.servers, ServerId, member),
        workers: members(view.workers, SessionId, member),
        shards: view.shards.into_iter().map(chain).collect(),
        slots: view.slots.into_iter().map(|n| (n > 0).then_some(SessionId(n))).collect(),
        restored: view.restored,
        shard_bytes: view.shard_bytes,
        keeper: view.keeper,
    }
}

fn member(peer: Peer) -> Option<proto::Member> {
    use proto::member::Number;
    let number = match peer {
        Peer::Server(id) => Number::Server(id.0),
        Peer::Worker(id) => Number::Worker(id.0),
        Peer::Coordinator | Peer::Newcomer(_) => return None,
    };
    Some(proto::Member { number: Some(number) })
}

fn read_member(member: Option<proto::Member>, field: &'static str) -> Result<Peer, ControlError> {
    use proto::member::Number;
    Ok(match there(member.and_then(|m| m.number), field)? {
        Number::Server(n) => Peer::Server(ServerId(n)),
        Number::Worker(n) => Peer::Worker(SessionId(n)),
    })
}

fn unwelcome(why: &Unwelcome) -> proto::refused::Why {
    use proto::refused::Why;
    match why.clone() {
        Unwelcome::Differs { setting, run, own } => Why::Differs(proto::Differs { setting, run, own }),
        Unwelcome::Taken { name, host } => Why::Taken(proto::Taken { name, host }),
    }
}

fn read_unwelcome(why: proto::refused::Why) -> Unwelcome {
    use proto::refused::Why;
    match why {
        Why::Differs(proto::Differs { setting, run, own }) => Unwelcome::Differs { setting, run, own },
        Why::Taken(proto::Taken { name, host }) => Unwelcome::Taken { name, host },
    }
}

fn role(role: Role) -> i32 {
    match role {
        Role::Server => proto::Role::Server.into(),
        Role::Worker => proto::Role::Worker.into(),
    }
}

fn read_role(got: i32) -> Result<Role, ControlError> {
    match proto::Role::try_from(got) {
        Ok(proto::Role::Server) => Ok(Role::Server),
        Ok(proto::Role::Worker) => Ok(Role::Worker),
        Ok(proto::Role::Unspecified) | Err(_) => Err(ControlError::Role { got }),
    }
}

fn wish(wish: Wish) -> i32 {
    match wish {
        Wish::Stay => proto::Wish::Stay.into(),
        Wish::Leave => proto::Wish::Leave.into(),
        Wish::Go => proto::Wish::Go.into(),
    }
}

fn read_wish(got: i32) -> Result<Wish, ControlError> {
    match proto::Wish::try_from(got) {
        Ok(proto::Wish::Stay) => Ok(Wish::Stay),
        Ok(proto::Wish::Leave) => Ok(Wish::Leave),
        Ok(proto::Wish::Go) => Ok(Wish::Go),
        Err(_) => Err(ControlError::Wish { got }),
    }
}

fn activity(activity: &Activity) -> proto::Activity {
    let Activity { what, lasts, usual } = activity;
    proto::Activity { what: what.clone(), lasts: nanos(*lasts), usual: nanos(*usual) }
}

/// Who does not say what it does does nothing.
fn read_activity(activity: Option<proto::Activity>) -> Activity {
    let proto::Activity { what, lasts, usual } = activity.unwrap_or_default();
    Activity { what, lasts: Duration::from_nanos(lasts), usual: Duration::from_nanos(usual) }
}

fn counts(counts: Counts) -> proto::Counts {
    let Counts { received, sent, waited, staleness, lived } = counts;
    proto::Counts { received, sent, waited: nanos(waited), staleness, lived: nanos(lived) }
}

/// Who counts nothing has done nothing.
fn read_counts(counts: Option<proto::Counts>) -> Counts {
    let proto::Counts { received, sent, waited, staleness, lived } = counts.unwrap_or_default();
    let [waited, lived] = [waited, lived].map(Duration::from_nanos);
    Counts { received, sent, waited, staleness, lived }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn there<T>(value: Option<T>, field: &'static str) -> Result<T, ControlError> {
    value.ok_or(ControlError::Missing { field })
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    fn carried<T: Message + Default>(message: &T) -> T {
        T::decode(&message.encode_to_vec()[..]).unwrap()
    }

    #[test]
    fn what_is_said_comes_back_as_it_was() {
        let join = Join {
            role: Role::Server,
            nonce: u64::MAX,
            name: "server-0".into(),
            address: "127.0.0.1:1".into(),
            restored: Some(0),
            shard_bytes: vec![4, 0, u64::MAX],
            host: "b3".into(),
            settings: [("sync".to_owned(), "bsp".to_owned())].into(),
        };
        let heartbeat = Heartbeat {
            epoch: Epoch(7),
            sent: Duration::from_nanos(3),
            caught_up: vec![(ShardId(0), ServerId(9))],
            wish: Wish::Leave,
            waiting_for: "shard 0".into(),
            clock: 12,
            counts: Counts {
                received: 1,
                sent: 2,
                waited: Duration::from_secs(3),
                staleness: 4,
                lived: Duration::from_secs(5),
            },
            behind: Some(Behind { clock: 11, slot: Slot(0) }),
            activity: Activity {
                what: "computes".into(),
                lasts: Duration::from_secs(4),
                usual: Duration::from_secs(1),
            },
            saved: Some(11),
            keeps: true,
            handed: vec![ShardId(1)],
        };
        for (from, said) in [
            (Peer::Newcomer(u64::MAX), FromMember::Join(join)),
            (Peer::Server(ServerId(3)), FromMember::Heartbeat(heartbeat.clone())),
            (Peer::Worker(SessionId(4)), FromMember::Heartbeat(heartbeat.clone())),
        ] {
            let sent = carried(&from_member(from, &said).unwrap());
            assert_eq!(read_from_member(sent), Ok((from, said)));
        }
        assert_eq!(from_member(Peer::Newcomer(1), &FromMember::Heartbeat(heartbeat)), None);
    }

    #[test]
    fn a_view_comes_back_as_it_was() {
        let process =
            |name: &str| Member { name: name.into(), nonce: 5, confirmed: true, ..Member::default() };
        let joining = Some((ServerId(2), Epoch(6)));
        let chain = Chain { members: vec![ServerId(1)], joining, lost: false, handing: Some(ServerId(1)) };
        let view = View {
            epoch: Epoch(7),
            servers: [1, 2].map(|id| (ServerId(id), process("s"))).into(),
            workers: [(SessionId(3), process("w"))].into(),
            shards: vec![chain, Chain { lost: true, ..Chain::default() }],
            slots: vec![Some(SessionId(3)), None],
            restored: Some(30),
            shard_bytes: vec![2, 3],
            keeper: Some("w".into()),
        };
        let differs = Unwelcome::Differs { setting: "sync".into(), run: Some("bsp".into()), own: None };
        for said in [
            ToMember::Welcome { nonce: 1, you: Peer::Worker(SessionId(3)), run: RunId(9) },
            ToMember::Grant {
                lease: Some(Duration::ZERO),
                view: Some(Arc::new(view)),
                held: None,
                saved: None,
            },
            ToMember::Grant { lease: None, view: None, held: Some("worker-7".into()), saved: Some(7) },
            ToMember::Expelled { run: RunId(9) },
            ToMember::Refused { nonce: 1, why: Unwelcome::Taken { name: "w".into(), host: "b3".into() } },
            ToMember::Refused { nonce: 1, why: differs },
        ] {
            assert_eq!(read_to_member(carried(&to_member(&said))), Ok(said));
        }
    }

    #[test]
    fn what_lacks_something_is_refused_with_its_name() {
        use proto::from_member::What;
        let refused = |what| read_from_member(proto::FromMember { what }).unwrap_err().to_string();
        assert_eq!(refused(None), "control: what a member says is missing");
        assert_eq!(refused(Some(What::Join(proto::Join::default()))), "control: 0 is no role");
        let nobody = refused(Some(What::Heartbeat(proto::Heartbeat::default())));
        assert_eq!(nobody, "control: the member of a heartbeat is missing");
    }
}
