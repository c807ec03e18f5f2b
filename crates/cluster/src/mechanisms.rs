//! The mechanisms that keep the promises, each with a switch.
//!
//! Only the tests of the simulator switch one off, to prove that its checks notice. Everything else
//! uses [`Mechanisms::default`], where all are on.

/// What is switched on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mechanisms {
    /// A push that was applied is not applied again, where pushes are not gathered.
    pub dedup: bool,
    /// A push that came too late for its round does not count in another.
    pub round_dedup: bool,
    /// Requests of another epoch, or for a slot of somebody else, are refused.
    pub fencing: bool,
    /// A server whose lease has ended answers nothing.
    pub lease: bool,
    /// A read waits for what the staleness bound asks for.
    pub staleness_bound: bool,
    /// An answer waits until the whole chain has what it tells of.
    pub replication: bool,
    /// A replica is promoted only once it has everything.
    pub full_sync: bool,
    /// Gradients of a round are added in the order of their slots.
    pub slot_order: bool,
    /// A coordinator that was deposed stores nothing. The simulator's memory looks at this one, as etcd does at its own.
    pub store_fencing: bool,
    /// A state on its way to a newcomer is waited for, however long it takes, not given up for a newer one.
    pub patience: bool,
    /// A call that waits is looked at again whenever it may have become possible to answer it.
    pub waking: bool,
    /// A head is followed by another member only once that has everything.
    pub draining: bool,
}

impl Default for Mechanisms {
    fn default() -> Self {
        Self {
            dedup: true,
            round_dedup: true,
            fencing: true,
            lease: true,
            staleness_bound: true,
            replication: true,
            full_sync: true,
            slot_order: true,
            store_fencing: true,
            patience: true,
            waking: true,
            draining: true,
        }
    }
}
