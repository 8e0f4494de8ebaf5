//! Memory that models may take on this machine.

use engine::Device;

use crate::host::HostInfo;

/// Memory for weights, steps and state of models, in bytes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Room {
    /// Memory of the machine, or of its GPU if that has memory of its own.
    pub total: u64,
    /// A control group's limit below that.
    pub group_limit: Option<u64>,
    /// Memory left for models.
    pub bytes: u64,
    /// Rule that gives `bytes`, in words.
    pub rule: &'static str,
}

/// Up to this many bytes macOS lets a GPU hold two thirds of the memory, above three quarters.
const SMALL_MAC: u64 = 36 << 30;

impl Room {
    /// `None`: the system does not report its memory.
    pub(crate) fn of(host: &HostInfo, device: Option<Device>) -> Option<Room> {
        let total = host.total_memory()?;
        if host.os == "macos" && device != Some(Device::Cpu) {
            let bytes = match host.sysctl("iogpu.wired_limit_mb").unwrap_or(0) << 20 {
                0 if total <= SMALL_MAC => total / 3 * 2,
                0 => total / 4 * 3,
                limit => limit,
            };
            let rule = "what the system lets the GPU hold";
            return Some(Room { total, group_limit: None, bytes, rule });
        }
        if device == Some(Device::Gpu) {
            let args = ["--query-gpu=memory.total", "--format=csv,noheader,nounits"];
            let text = host.output("nvidia-smi", &args)?;
            let total = text.lines().next()?.trim().parse::<u64>().ok()? << 20;
            let rule = "nine tenths of the GPU's memory";
            return Some(Room { total, group_limit: None, bytes: total / 10 * 9, rule });
        }
        let group_limit = host.group_limit().filter(|limit| *limit < total);
        let (usable, rule) = match group_limit {
            Some(limit) => (limit, "nine tenths of what the control group allows"),
            None => (total, "nine tenths of the memory"),
        };
        Some(Room { total, group_limit, bytes: usable / 10 * 9, rule })
    }
}
