//! Memory of the machine, limits of control groups, and macOS's limit on memory for the GPU.

use super::Check;
use crate::{
    host::HostInfo,
    hub::megabytes,
    memory::{MemoryReading, Pressure},
};

/// Below this no useful model fits.
const LITTLE: u64 = 2 << 30;

pub(super) fn memory(machine: &HostInfo) -> Check {
    let total = machine.total_memory();
    let Some(total) = total else { return Check::warn("memory", "unknown", "set --memory-limit") };
    let available = machine.memory("MemAvailable");
    let limit = machine.group_limit().filter(|limit| *limit < total);
    let mut found = megabytes(total);
    if let Some(available) = available {
        found = format!("{found}, {} available", megabytes(available));
    }
    if let Some(limit) = limit {
        let found = format!("{found}; the control group allows {}", megabytes(limit));
        let bytes = limit / 10 * 9;
        return Check::warn(
            "memory",
            found,
            format!(
                "set --memory-limit {}M: beyond the group's limit the system ends the process",
                bytes >> 20
            ),
        );
    }
    match available.is_some_and(|available| available < LITTLE) {
        true => Check::warn("memory", found, "end other programs, or choose a smaller model"),
        false => Check::ok("memory", found),
    }
}

/// Whether the system is short of memory now, as `lanner serve` sees it; `None` where the system
/// reports nothing.
pub(super) fn pressure(machine: &HostInfo) -> Option<Check> {
    let reading = MemoryReading::of(machine);
    if reading == MemoryReading::default() {
        return None;
    }
    let found = reading.to_string();
    let hint = "end other programs; servers of Lanner give back their prefix caches meanwhile";
    Some(match reading.pressure() {
        Pressure::Normal => Check::ok("memory pressure", found),
        Pressure::Warning => Check::warn("memory pressure", found, hint),
        Pressure::Critical => {
            Check::warn("memory pressure", format!("{found}: the system is about to swap"), hint)
        }
    })
}

/// macOS's limit on memory that the GPU may hold.
pub(super) fn wired_limit(machine: &HostInfo) -> Option<Check> {
    if machine.os != "macos" {
        return None;
    }
    let total = machine.sysctl("hw.memsize")?;
    let limit = machine.sysctl("iogpu.wired_limit_mb").unwrap_or(0) << 20;
    Some(match limit {
        0 => Check::ok(
            "wired limit",
            "the system's own: about two thirds of the memory, three quarters above 32 GB; \
             `sudo sysctl iogpu.wired_limit_mb=MB` raises it until the next start",
        ),
        limit if limit > total / 10 * 9 => Check::warn(
            "wired limit",
            format!("{} of {}", megabytes(limit), megabytes(total)),
            "leave a tenth of the memory to the system: sudo sysctl iogpu.wired_limit_mb=0 resets it",
        ),
        limit => Check::ok("wired limit", format!("{} of {}", megabytes(limit), megabytes(total))),
    })
}
