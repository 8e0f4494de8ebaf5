//! Memory of the machine, limits of control groups, and macOS's limit on memory for the GPU.

use std::fs;

use super::{Check, Machine};
use crate::hub::megabytes;

/// Below this no useful model fits.
const LITTLE: u64 = 2 << 30;

pub(super) fn memory(machine: &Machine) -> Check {
    let total = machine.memory("MemTotal").or_else(|| machine.sysctl("hw.memsize"));
    let Some(total) = total else { return Check::warn("memory", "unknown", "set --memory-limit") };
    let available = machine.memory("MemAvailable");
    let limit = group_limit(machine).filter(|limit| *limit < total);
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

/// The least limit of this process's control groups, of version 2 or 1.
fn group_limit(machine: &Machine) -> Option<u64> {
    let files = [("", "memory.max"), ("memory", "memory.limit_in_bytes")];
    let limits = files.into_iter().flat_map(|(controller, file)| {
        machine
            .cgroups(controller)
            .into_iter()
            .filter_map(move |folder| fs::read_to_string(folder.join(file)).ok()?.trim().parse::<u64>().ok())
    });
    limits.min()
}

/// macOS's limit on memory that the GPU may hold.
pub(super) fn wired_limit(machine: &Machine) -> Option<Check> {
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
