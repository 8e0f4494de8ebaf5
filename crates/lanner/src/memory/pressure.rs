//! How short of memory the system is.

use std::fmt;

use crate::{host::HostInfo, hub::megabytes};

/// Shortage of memory, by severity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pressure {
    #[default]
    Normal,
    /// Caches should shrink.
    Warning,
    /// The system is about to swap, or does so already.
    Critical,
}

/// Memory figures of the system; `None` where it does not report them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct MemoryReading {
    /// Bytes of the machine or of the control group.
    pub total: Option<u64>,
    /// Bytes that programs may still take.
    pub available: Option<u64>,
    /// Percent of the last ten seconds in which some task waited for memory (Linux's PSI).
    pub some_stalled: Option<f64>,
    /// The same, in which all tasks did.
    pub all_stalled: Option<f64>,
    /// macOS's level: 1 normal, 2 warning, 4 critical.
    pub level: Option<u64>,
}

/// Available memory below these parts of the whole is short, as divisors.
const WARNING_PART: u64 = 10;
const CRITICAL_PART: u64 = 20;
/// Available memory that lets caches grow again, as a divisor.
const ROOMY_PART: u64 = 5;
/// Percent of time in which tasks wait for memory.
const SOME_STALLED: f64 = 10.0;
const ALL_STALLED: f64 = 10.0;
/// macOS's levels.
const WARNING_LEVEL: u64 = 2;
const CRITICAL_LEVEL: u64 = 4;

impl Pressure {
    /// From when on, for the description of a mode.
    pub(crate) fn when(self) -> &'static str {
        match self {
            Pressure::Normal => "always",
            Pressure::Warning => "when memory is short",
            Pressure::Critical => "when the system is about to swap",
        }
    }
}

impl MemoryReading {
    /// Reads /proc and the control group on Linux, sysctl on macOS.
    pub(crate) fn of(host: &HostInfo) -> MemoryReading {
        if host.os == "macos" {
            let level = host.sysctl("kern.memorystatus_vm_pressure_level");
            return MemoryReading { level, ..MemoryReading::default() };
        }
        let files = host.cgroups("").into_iter().map(|folder| folder.join("memory.pressure"));
        let texts = files.filter_map(|file| std::fs::read_to_string(file).ok());
        // The system's own comes too: a program outside the group may take the memory.
        let texts: Vec<String> = texts.chain(host.read("/proc/pressure/memory")).collect();
        let most = |kind: &str| texts.iter().filter_map(|text| average(text, kind)).max_by(f64::total_cmp);
        MemoryReading {
            total: host.usable_memory(),
            available: host.available_memory(),
            some_stalled: most("some"),
            all_stalled: most("full"),
            level: None,
        }
    }

    pub(crate) fn pressure(&self) -> Pressure {
        let is_below = |part: u64| {
            let total = self.total.unwrap_or(0);
            self.available.is_some_and(|available| available < total / part)
        };
        let is_stalled = |share: Option<f64>, most: f64| share.is_some_and(|share| share >= most);
        let level = self.level.unwrap_or(0);
        if is_below(CRITICAL_PART) || is_stalled(self.all_stalled, ALL_STALLED) || level >= CRITICAL_LEVEL {
            Pressure::Critical
        } else if is_below(WARNING_PART)
            || is_stalled(self.some_stalled, SOME_STALLED)
            || level >= WARNING_LEVEL
        {
            Pressure::Warning
        } else {
            Pressure::Normal
        }
    }

    /// Whether caches may grow again: more than the end of a warning, so that they do not shrink
    /// and grow by turns.
    pub(crate) fn is_roomy(&self) -> bool {
        let total = self.total.unwrap_or(0);
        let has_headroom = self.available.is_none_or(|available| available >= total / ROOMY_PART);
        self.pressure() == Pressure::Normal
            && has_headroom
            && self.some_stalled.is_none_or(|share| share < SOME_STALLED / 10.0)
    }
}

impl fmt::Display for MemoryReading {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let mut parts = vec![];
        if let (Some(available), Some(total)) = (self.available, self.total) {
            parts.push(format!("{} of {} available", megabytes(available), megabytes(total)));
        }
        if let Some(share) = self.some_stalled {
            parts.push(format!("programs waited for memory {share} % of the last ten seconds"));
        }
        match self.level {
            Some(level) if level >= CRITICAL_LEVEL => parts.push("the system says critical".into()),
            Some(level) if level >= WARNING_LEVEL => parts.push("the system warns".into()),
            Some(_) => parts.push("the system says normal".into()),
            None => {}
        }
        f.write_str(&parts.join(", "))
    }
}

/// `avg10` of the line that begins with `kind`.
fn average(text: &str, kind: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(kind))?;
    line.split_whitespace().find_map(|word| word.strip_prefix("avg10=")?.parse().ok())
}
