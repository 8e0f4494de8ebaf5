//! Instruction sets, and how much of the processor this process may use.

use std::fs;

use super::Check;
use crate::host::HostInfo;

/// Flags of /proc/cpuinfo, each with the level that kernels have with it.
const LEVELS: [(&str, &str); 5] = [
    ("amx_tile", "amx"),
    ("avx512_bf16", "avx512bf16"),
    ("avx512_vnni", "avx512vnni"),
    ("avx512f", "avx512"),
    ("avx2", "avx2"),
];

/// The instruction set that kernels use, and a better one that the processor has.
pub(super) fn instructions(machine: &HostInfo) -> Check {
    let cpu = machine
        .field("/proc/cpuinfo", "model name")
        .or_else(|| machine.output("sysctl", &["-n", "machdep.cpu.brand_string"]))
        .unwrap_or_else(|| "unknown processor".into());
    let (simd, threads) = (machine.simd, (machine.threads)());
    let found = format!("{cpu}, kernels for {simd}, {threads} threads");
    if machine.arch != "x86_64" {
        return Check::ok("processor", found);
    }
    let flags = machine.field("/proc/cpuinfo", "flags").unwrap_or_default();
    let has = |flag: &str| flags.split(' ').any(|own| own == flag);
    let best = LEVELS.iter().find(|(flag, _)| has(flag)).map_or("portable", |(_, level)| level);
    let rank = |level: &str| LEVELS.iter().position(|(_, own)| *own == level).unwrap_or(LEVELS.len());
    if rank(best) < rank(simd) {
        let hint = match best {
            "amx" => {
                "the system does not let programs use AMX (Linux 5.16 or later does), or LANNER_VECTORS is set"
            }
            _ => "unset LANNER_VECTORS",
        };
        return Check::warn("processor", format!("{found}; it has {best}"), hint);
    }
    match simd {
        "portable" => {
            Check::warn("processor", found, "without AVX2 the CPU computes several times as slowly")
        }
        _ => Check::ok("processor", found),
    }
}

/// The limit of a control group on processor time, if there is one.
pub(super) fn quota(machine: &HostInfo) -> Option<Check> {
    let second = machine.cgroups("").into_iter().filter_map(|folder| {
        let text = fs::read_to_string(folder.join("cpu.max")).ok()?;
        let (quota, period) = text.trim().split_once(' ')?;
        Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
    });
    let first = machine.cgroups("cpu").into_iter().filter_map(|folder| {
        let number = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<f64>().ok();
        let quota = number("cpu.cfs_quota_us").filter(|quota| *quota > 0.0)?;
        Some(quota / number("cpu.cfs_period_us")?)
    });
    let cores = second.chain(first).min_by(f64::total_cmp)?;
    let found = format!("the control group allows {cores} processors");
    let threads = (cores.floor() as usize).max(1);
    Some(match (machine.threads)() as f64 > cores {
        true => Check::warn(
            "processor quota",
            format!("{found}, and {} threads would compute", (machine.threads)()),
            format!(
                "set --threads {threads}: threads beyond the quota are stopped in the middle of each step"
            ),
        ),
        false => Check::ok("processor quota", found),
    })
}
