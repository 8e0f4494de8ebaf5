//! The machine that is checked: its files, the output of its programs, and what the engine knows.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::bench::machine;

/// The output of a program, or `None` if it fails or is not there.
type Run = Box<dyn Fn(&str, &[&str]) -> Option<String>>;

pub(crate) struct Machine {
    /// As Rust names it.
    pub os: &'static str,
    pub arch: &'static str,
    /// Before all paths of the system.
    pub root: PathBuf,
    pub run: Run,
    /// The instruction set of the kernels, and threads that compute.
    pub simd: &'static str,
    pub threads: usize,
    /// Whether the loader finds a library.
    pub has_library: fn(&str) -> bool,
    /// The folder of this program.
    pub program: Option<PathBuf>,
}

impl Machine {
    pub(crate) fn here() -> Machine {
        let known = machine::Machine::here();
        Machine {
            os: std::env::consts::OS,
            arch: std::env::consts::ARCH,
            root: "/".into(),
            run: Box::new(run),
            simd: known.vectors,
            threads: known.threads,
            has_library: engine::has_library,
            program: std::env::current_exe().ok().and_then(|file| Some(file.parent()?.to_owned())),
        }
    }

    /// The first lines of what a program prints, without white space around.
    pub(super) fn output(&self, program: &str, args: &[&str]) -> Option<String> {
        (self.run)(program, args).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    /// Whether a program succeeds.
    pub(super) fn succeeds(&self, program: &str, args: &[&str]) -> bool {
        (self.run)(program, args).is_some()
    }

    /// A file of the system.
    pub(super) fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.path(path)).ok()
    }

    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// A path on the machine as it is seen from here.
    pub(super) fn see(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The first `name : value` of a file.
    pub(super) fn field(&self, path: &str, name: &str) -> Option<String> {
        let text = self.read(path)?;
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        let value = lines.map(|(key, value)| (key.trim(), value.trim())).find(|(key, _)| *key == name)?.1;
        Some(value.to_owned())
    }

    /// Bytes from a line `name: 12 kB` of /proc/meminfo.
    pub(super) fn memory(&self, name: &str) -> Option<u64> {
        let kilobytes = self.field("/proc/meminfo", name)?;
        Some(kilobytes.strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
    }

    pub(super) fn sysctl(&self, name: &str) -> Option<u64> {
        self.output("sysctl", &["-n", name])?.parse().ok()
    }

    /// The folders of this process's control group, the innermost first, below `controller` (for
    /// version 2 empty).
    pub(super) fn cgroups(&self, controller: &str) -> Vec<PathBuf> {
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

fn run(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}
