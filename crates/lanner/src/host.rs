//! The machine and its system: files, output of programs, memory, and what the engine knows of it.
//! Tests replace it by folders and outputs of other machines.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::bench::machine;

/// The output of a program, or `None` if it fails or is not there.
type Run = Box<dyn Fn(&str, &[&str]) -> Option<String> + Send>;

pub(crate) struct HostInfo {
    /// Operating system, by Rust's name.
    pub os: &'static str,
    pub arch: &'static str,
    /// Before all paths of the system.
    pub root: PathBuf,
    pub run: Run,
    /// The instruction set of the kernels, and threads that compute.
    pub simd: &'static str,
    pub threads: fn() -> usize,
    /// Whether the loader finds a library.
    pub has_library: fn(&str) -> bool,
    /// The folder of this program.
    pub program: Option<PathBuf>,
}

impl HostInfo {
    pub(crate) fn here() -> HostInfo {
        HostInfo {
            os: std::env::consts::OS,
            arch: std::env::consts::ARCH,
            root: "/".into(),
            run: Box::new(run),
            simd: machine::vectors(),
            // Asked when needed: the first question settles the number of threads.
            threads: engine::threads,
            has_library: engine::has_library,
            program: std::env::current_exe().ok().and_then(|file| Some(file.parent()?.to_owned())),
        }
    }

    /// The first lines of what a program prints, without white space around.
    pub(crate) fn output(&self, program: &str, args: &[&str]) -> Option<String> {
        (self.run)(program, args).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    /// Whether a program succeeds.
    pub(crate) fn succeeds(&self, program: &str, args: &[&str]) -> bool {
        (self.run)(program, args).is_some()
    }

    /// A file of the system.
    pub(crate) fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.path(path)).ok()
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// A path on the machine as it is seen from here.
    pub(crate) fn see(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The first `name : value` of a file.
    pub(crate) fn field(&self, path: &str, name: &str) -> Option<String> {
        let text = self.read(path)?;
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        let value = lines.map(|(key, value)| (key.trim(), value.trim())).find(|(key, _)| *key == name)?.1;
        Some(value.to_owned())
    }

    /// Bytes from a line `name: 12 kB` of /proc/meminfo.
    pub(crate) fn memory(&self, name: &str) -> Option<u64> {
        let kilobytes = self.field("/proc/meminfo", name)?;
        Some(kilobytes.strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
    }

    pub(crate) fn sysctl(&self, name: &str) -> Option<u64> {
        self.output("sysctl", &["-n", name])?.parse().ok()
    }

    /// The folders of this process's control group, the innermost first, below `controller` (for
    /// version 2 empty).
    pub(crate) fn cgroups(&self, controller: &str) -> Vec<PathBuf> {
        let groups = self.read("/proc/self/cgroup").unwrap_or_default();
        let own = groups.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            controllers.split(',').any(|name| name == controller).then(|| path.to_owned())
        });
        let base = self.path(&format!("/sys/fs/cgroup/{controller}"));
        let own = base.join(own.unwrap_or_default().trim_start_matches('/'));
        own.ancestors().take_while(|folder| folder.starts_with(&base)).map(Path::to_path_buf).collect()
    }
}

/// Memory, in bytes.
impl HostInfo {
    /// Memory of the machine.
    pub(crate) fn total_memory(&self) -> Option<u64> {
        self.memory("MemTotal").or_else(|| self.sysctl("hw.memsize"))
    }

    /// The least limit of this process's control groups, of version 2 or 1.
    pub(crate) fn group_limit(&self) -> Option<u64> {
        self.groups().into_iter().map(|group| group.limit).min()
    }

    /// Memory of the machine, or a control group's limit below that.
    pub(crate) fn usable_memory(&self) -> Option<u64> {
        let total = self.total_memory();
        total.map(|total| self.group_limit().map_or(total, |limit| limit.min(total)))
    }

    /// Memory that programs may still take before the system takes it from others, within the
    /// control groups too; `None` where the system does not report it.
    pub(crate) fn available_memory(&self) -> Option<u64> {
        let groups = self.groups().into_iter().filter_map(|group| group.available);
        self.memory("MemAvailable").into_iter().chain(groups).min()
    }

    /// The control groups that limit memory.
    fn groups(&self) -> Vec<MemoryGroup> {
        let second = self.cgroups("").into_iter();
        let second = second.filter_map(|folder| MemoryGroup::of(&folder, &GROUP_2));
        let first = self.cgroups("memory").into_iter();
        second.chain(first.filter_map(|folder| MemoryGroup::of(&folder, &GROUP_1))).collect()
    }
}

/// A control group with a limit on memory.
struct MemoryGroup {
    limit: u64,
    /// The limit less what is used and cannot be dropped like files that were read; `None`:
    /// unknown.
    available: Option<u64>,
}

/// Files of a control group: its limit and its use; and the name of a field of memory.stat.
struct GroupFiles {
    limit: &'static str,
    used: &'static str,
    file_pages: &'static str,
}

const GROUP_2: GroupFiles =
    GroupFiles { limit: "memory.max", used: "memory.current", file_pages: "inactive_file" };
const GROUP_1: GroupFiles = GroupFiles {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    file_pages: "total_inactive_file",
};

impl MemoryGroup {
    /// `None` without a limit.
    fn of(folder: &Path, files: &GroupFiles) -> Option<MemoryGroup> {
        let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
        let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
        let limit = number(files.limit)?;
        let stat = read("memory.stat").unwrap_or_default();
        let pages =
            stat.lines().find_map(|line| line.strip_prefix(files.file_pages)?.trim().parse::<u64>().ok());
        let used = number(files.used).map(|used| used.saturating_sub(pages.unwrap_or(0)));
        Some(MemoryGroup { limit, available: used.map(|used| limit.saturating_sub(used)) })
    }
}

fn run(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}
