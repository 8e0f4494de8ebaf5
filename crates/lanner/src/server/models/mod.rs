//! The models that a server has: which are loaded, who uses them, and how others are loaded by
//! their names.

mod engines;
mod expiry;
mod lease;
mod listing;
mod loads;
mod names;
mod registry;
mod requested;
mod room;

pub(crate) use self::{
    engines::{EngineGuard, Engines},
    expiry::unload_expired,
    lease::ModelLease,
    listing::{DiskModel, Listed, ModelState},
    loads::{LoadOptions, Loads},
    names::{Names, untagged},
    registry::{LoadedModel, Registry, Retention},
    room::NO_ROOM_RETRY_AFTER,
};
