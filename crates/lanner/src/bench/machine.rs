//! The machine: processor, memory and memory bandwidth; `None` where the system does not report it.

use std::{fs, process::Command, thread};

/// Bytes to read: many times the size of any cache if there is memory for it.
const MAX_BUFFER: usize = 1 << 30;
const MIN_BUFFER: usize = 1 << 24;

pub(crate) struct Machine {
    pub cpu: Option<String>,
    /// Physical cores that this process may use.
    pub cores: usize,
    /// Compute threads.
    pub threads: usize,
    /// The SIMD level of the kernels.
    pub vectors: &'static str,
    /// Read bandwidth of all threads, in gigabytes (10^9 bytes) per second.
    pub read_gb_s: Option<f64>,
}

impl Machine {
    /// This machine, without its bandwidth.
    pub(crate) fn here() -> Machine {
        Machine {
            cpu: cpu(),
            cores: cores(),
            threads: engine::threads(),
            vectors: vectors(),
            read_gb_s: None,
        }
    }

    /// Measures the memory bandwidth; the best of all calls counts.
    pub(crate) fn measure_reading(&mut self) {
        let bytes = (spare_memory() / 4).clamp(MIN_BUFFER, MAX_BUFFER);
        let measured = engine::read_bandwidth(bytes, self.threads) / 1e9;
        self.read_gb_s = Some(self.read_gb_s.map_or(measured, |best| best.max(measured)));
    }
}

/// Peak memory of this process since its start or [`reset_peak_memory`], in bytes.
pub(crate) fn peak_memory() -> Option<usize> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()? * 1024)
}

/// Resets the peak of MLX, and that of the process where the system can.
pub(crate) fn reset_peak_memory() {
    engine::reset_peak_memory();
    // Without permission the peak remains that of the whole run.
    let _ = fs::write("/proc/self/clear_refs", "5");
}

fn cpu() -> Option<String> {
    field(&cpu_info(), "model name").map(str::to_owned).or_else(|| sysctl("machdep.cpu.brand_string"))
}

fn cores() -> usize {
    let usable = thread::available_parallelism().map_or(1, Into::into);
    let physical = physical_cores(&cpu_info()).or_else(|| sysctl("hw.physicalcpu")?.parse().ok());
    physical.map_or(usable, |physical| physical.clamp(1, usable))
}

/// Threads of one core share its socket and its number.
fn physical_cores(cpu_info: &str) -> Option<usize> {
    let mut cores: Vec<_> = cpu_info
        .split("\n\n")
        .filter_map(|processor| Some((field(processor, "physical id")?, field(processor, "core id")?)))
        .collect();
    cores.sort_unstable();
    cores.dedup();
    (!cores.is_empty()).then_some(cores.len())
}

pub(crate) fn vectors() -> &'static str {
    match engine::simd_level().name() {
        "portable" if cfg!(target_arch = "aarch64") => "neon",
        name => name,
    }
}

/// Bytes of memory of the machine.
pub(crate) fn memory() -> Option<usize> {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kilobytes = field(&info, "MemTotal").and_then(|text| text.strip_suffix(" kB")?.parse::<usize>().ok());
    kilobytes.map(|kilobytes| kilobytes * 1024).or_else(|| sysctl("hw.memsize")?.parse().ok())
}

/// Bytes of available memory; `usize::MAX` where the system does not report it.
fn spare_memory() -> usize {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kilobytes =
        field(&info, "MemAvailable").and_then(|text| text.strip_suffix(" kB")?.parse::<usize>().ok());
    kilobytes.map_or(usize::MAX, |kilobytes| kilobytes * 1024)
}

fn cpu_info() -> String {
    fs::read_to_string("/proc/cpuinfo").unwrap_or_default()
}

/// The first `name : value` of a text.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let value = |line: &'a str| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    };
    text.lines().find_map(value).filter(|value| !value.is_empty())
}

/// A value of macOS's sysctl.
fn sysctl(name: &str) -> Option<String> {
    if !cfg!(target_os = "macos") {
        return None;
    }
    let output = Command::new("sysctl").args(["-n", name]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn physical_cores_counts_hyperthreads_once() {
        let processor =
            |core, socket| format!("processor : 0\nphysical id\t: {socket}\ncore id\t\t: {core}\n\n");
        let info: String = [(0, 0), (1, 0), (0, 0), (1, 0), (0, 1)].map(|(c, s)| processor(c, s)).concat();
        assert_eq!(physical_cores(&info), Some(3));
        assert_eq!(physical_cores("processor : 0\nBogoMIPS : 50\n"), None);
    }

    #[test]
    fn field_matches_the_whole_name() {
        assert_eq!(field("MemFree: 1 kB\nMemAvailable:  22 kB\n", "MemAvailable"), Some("22 kB"));
        assert_eq!(field("cpu model name : x", "model name"), None);
    }
}
