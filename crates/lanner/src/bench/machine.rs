//! The machine that is measured on. What a platform does not say is `None`.

use std::{fs, process::Command, thread};

/// Bytes: many times the size of any cache, where there is room for it, and enough to be read at all.
const BUFFER: usize = 1 << 30;
const LEAST: usize = 1 << 24;

pub struct Machine {
    pub cpu: Option<String>,
    /// Physical ones that this program may use.
    pub cores: usize,
    /// That compute.
    pub threads: usize,
    /// The family of vector instructions that kernels use.
    pub vectors: &'static str,
    /// Gigabytes (10^9 bytes) per second that all threads read together.
    pub read_gb_s: Option<f64>,
}

impl Machine {
    /// Of this computer, without its speed.
    pub fn here() -> Machine {
        Machine {
            cpu: cpu(),
            cores: cores(),
            threads: engine::threads(),
            vectors: vectors(),
            read_gb_s: None,
        }
    }

    /// Measures how fast memory is read; the best of all calls counts.
    pub fn measure_reading(&mut self) {
        let bytes = (spare_memory() / 4).clamp(LEAST, BUFFER);
        let measured = engine::read_bandwidth(bytes, self.threads) / 1e9;
        self.read_gb_s = Some(self.read_gb_s.map_or(measured, |best| best.max(measured)));
    }
}

/// Most memory that this process has held since it began or since [`reset_peak_memory`], in bytes.
pub fn peak_memory() -> Option<usize> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()? * 1024)
}

/// Forgets the peak, where the system can; MLX's own too.
pub fn reset_peak_memory() {
    engine::reset_peak_memory();
    // Without the permission the peak stays that of the whole run.
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

fn vectors() -> &'static str {
    match engine::simd_level().name() {
        "portable" if cfg!(target_arch = "aarch64") => "neon",
        name => name,
    }
}

/// Bytes of memory of the machine, if the system says.
pub fn memory() -> Option<usize> {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kilobytes = field(&info, "MemTotal").and_then(|text| text.strip_suffix(" kB")?.parse::<usize>().ok());
    kilobytes.map(|kilobytes| kilobytes * 1024).or_else(|| sysctl("hw.memsize")?.parse().ok())
}

/// Bytes of memory that nobody uses; plenty where the system does not say.
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

/// What macOS says about itself.
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
    fn threads_of_one_core_count_once() {
        let processor =
            |core, socket| format!("processor : 0\nphysical id\t: {socket}\ncore id\t\t: {core}\n\n");
        let info: String = [(0, 0), (1, 0), (0, 0), (1, 0), (0, 1)].map(|(c, s)| processor(c, s)).concat();
        assert_eq!(physical_cores(&info), Some(3));
        assert_eq!(physical_cores("processor : 0\nBogoMIPS : 50\n"), None);
    }

    #[test]
    fn fields_are_found_by_their_whole_name() {
        assert_eq!(field("MemFree: 1 kB\nMemAvailable:  22 kB\n", "MemAvailable"), Some("22 kB"));
        assert_eq!(field("cpu model name : x", "model name"), None);
    }
}
