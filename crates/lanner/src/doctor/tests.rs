//! Machines of other kinds, by their files and the output of their programs.

use std::{fs, path::Path};

use tempfile::{TempDir, tempdir};

use super::*;

const CPU: &str =
    "processor\t: 0\nmodel name\t: Xeon\nflags\t\t: fpu avx2 avx512f avx512_vnni avx512_bf16 amx_tile\n";
const MEMORY: &str = "MemTotal:       32000000 kB\nMemAvailable:   20000000 kB\n";

/// A machine with these files, and programs that print these texts.
fn machine(files: &[(&str, &str)], programs: &'static [(&'static str, &'static str)]) -> (TempDir, HostInfo) {
    let root = tempdir().unwrap();
    for (path, text) in [("proc/cpuinfo", CPU), ("proc/meminfo", MEMORY)].iter().chain(files) {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let run = |program: &str, args: &[&str]| {
        let line = [&[program], args].concat().join(" ");
        programs.iter().find(|(start, _)| line.starts_with(start)).map(|(_, text)| (*text).to_owned())
    };
    let machine = HostInfo {
        os: "linux",
        arch: "x86_64",
        root: root.path().into(),
        run: Box::new(run),
        simd: "amx",
        threads: || 8,
        has_library: |_| false,
        program: None,
    };
    (root, machine)
}

#[track_caller]
fn check_one(checks: &[Check], name: &str, status: Status, part: &str) {
    let check = checks.iter().find(|check| check.name == name);
    let check = check.unwrap_or_else(|| panic!("no {name} in {checks:?}"));
    let text = format!("{} {}", check.found, check.hint.as_deref().unwrap_or_default());
    assert_eq!(check.status, status, "{text}");
    assert!(text.contains(part), "{text:?} lacks {part:?}");
    assert_eq!(check.hint.is_some(), status != Status::Ok, "{text}");
}

#[test]
fn instruction_sets_below_those_of_the_processor_are_named() {
    let check = |simd, status, part| {
        let (_root, mut machine) = machine(&[], &[]);
        machine.simd = simd;
        check_one(&[processor::instructions(&machine)], "processor", status, part);
    };
    check("amx", Status::Ok, "Xeon, kernels for amx, 8 threads");
    check("avx512bf16", Status::Warn, "it has amx the system does not let programs use AMX");
    let (_root, mut old) = machine(&[("proc/cpuinfo", "model name : Old\nflags : sse2\n")], &[]);
    old.simd = "portable";
    check_one(&[processor::instructions(&old)], "processor", Status::Warn, "without AVX2");
}

#[test]
fn control_groups_limit_processors_and_memory() {
    let group = ("proc/self/cgroup", "0::/box/inner\n");
    let check = |files: &[(&str, &str)], name, status, part| {
        let (_root, machine) = machine(files, &[]);
        let checks: Vec<Check> =
            processor::quota(&machine).into_iter().chain([memory::memory(&machine)]).collect();
        check_one(&checks, name, status, part);
    };
    let outer = ("sys/fs/cgroup/box/cpu.max", "150000 100000\n");
    check(&[group, outer], "processor quota", Status::Warn, "allows 1.5 processors, and 8 threads");
    check(&[group, outer], "processor quota", Status::Warn, "--threads 1");
    let wide = ("sys/fs/cgroup/cpu.max", "1600000 100000\n");
    check(&[group, wide], "processor quota", Status::Ok, "16 processors");
    let memory = ("sys/fs/cgroup/box/inner/memory.max", "1073741824\n");
    check(&[group, memory], "memory", Status::Warn, "--memory-limit 921M");
    check(&[group, ("sys/fs/cgroup/box/memory.max", "max\n")], "memory", Status::Ok, "20");
    let first = [
        ("proc/self/cgroup", "4:memory:/old\n"),
        ("sys/fs/cgroup/memory/old/memory.limit_in_bytes", "1073741824\n"),
    ];
    check(&first, "memory", Status::Warn, "control group");
    check(
        &[("proc/meminfo", "MemTotal: 8000000 kB\nMemAvailable: 900000 kB\n")],
        "memory",
        Status::Warn,
        "end other programs",
    );
}

#[test]
fn nvidia_gpus_need_a_driver_and_a_compiler() {
    let card = [("sys/bus/pci/devices/0/vendor", "0x10de\n"), ("sys/bus/pci/devices/0/class", "0x030200\n")];
    let (root, mut with) = machine(
        &card,
        &[
            ("nvidia-smi --query-gpu=driver_version", "570.1\n"),
            ("nvidia-smi --query-gpu=name", "NVIDIA H100, 81559 MiB, 9.0, 570.1\n"),
        ],
    );
    let kernels = PathBuf::from("/cache/kernels");
    let checks = gpu::checks(&with, Some(&kernels));
    check_one(&checks, "driver", Status::Error, "no libcuda.so.1 install");
    with.has_library = |name| name == "libcuda.so.1";
    let checks = gpu::checks(&with, Some(&kernels));
    check_one(&checks, "driver", Status::Warn, "570.1 CUDA 13 needs 580");
    check_one(&checks, "GPU", Status::Ok, "NVIDIA H100, 81559 MiB");
    check_one(&checks, "NVRTC", Status::Error, "pip install nvidia-cuda-nvrtc");
    fs::create_dir_all(root.path().join("cache/kernels")).unwrap();
    fs::write(root.path().join("cache/kernels/a.cubin"), "").unwrap();
    check_one(&gpu::checks(&with, Some(&kernels)), "NVRTC", Status::Warn, "1 compiled");
    with.has_library = |_| true;
    check_one(&gpu::checks(&with, Some(&kernels)), "NVRTC", Status::Ok, "libnvrtc.so.13");

    let (_root, old) =
        machine(&card, &[("nvidia-smi --query-gpu=name", "NVIDIA A100, 40960 MiB, 8.0, 580.2\n")]);
    check_one(&gpu::checks(&old, None), "GPU", Status::Warn, "compute capability 8.0");
    let (_root, none) = machine(&[("sys/bus/pci/devices/0/vendor", "0x8086\n")], &[]);
    check_one(&gpu::checks(&none, None), "GPU", Status::Ok, "no NVIDIA GPU");
}

#[test]
fn mlx_library_is_found_in_the_process() {
    let library = "/home/a/.cache/lanner/mlx/mlx-cpu-0.32.4-0e0a24fa2ce8/mlx/lib/libmlx.so";
    let maps = format!("7f0 r-xp 0 08:01 1 /usr/lib/libc.so.6\n7f1 r-xp 0 08:01 2 {library}\n");
    let (_root, found) = machine(&[("proc/self/maps", &maps)], &[]);
    check_one(&mlx::checks(&found), "MLX", Status::Ok, "libmlx.so (mlx-cpu-0.32.4)");
    let (_root, lost) = machine(&[], &[]);
    check_one(&mlx::checks(&lost), "MLX", Status::Warn, "docs/files.md");
}

#[test]
fn macs_need_a_metallib_and_m5_the_newer_one() {
    let lib = "opt/lanner/lib/mlx/lib";
    let check = |kernels: Option<&str>, status, part| {
        let mut files = vec![(format!("{lib}/libmlx.dylib"), "")];
        files.extend(kernels.map(|kernels| (format!("{lib}/mlx.metallib"), kernels)));
        let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (&**path, *text)).collect();
        let (_root, mut mac) = machine(
            &files,
            &[
                ("sysctl -n machdep.cpu.brand_string", "Apple M5 Max\n"),
                ("sysctl -n hw.memsize", "137438953472\n"),
                ("sysctl -n iogpu.wired_limit_mb", "0\n"),
            ],
        );
        (mac.os, mac.arch, mac.program) = ("macos", "aarch64", Some("/opt/lanner/bin".into()));
        check_one(&mlx::checks(&mac), "metallib", status, part);
        check_one(
            &memory::wired_limit(&mac).into_iter().collect::<Vec<_>>(),
            "wired limit",
            Status::Ok,
            "sysctl",
        );
        assert_eq!(gpu::checks(&mac, None), []);
    };
    check(None, Status::Error, "there is no /opt/lanner/lib/mlx/lib/mlx.metallib");
    check(Some("steel_gemm_fused"), Status::Warn, "macOS 26");
    check(Some("x steel_gemm_fused_nax y"), Status::Ok, "with kernels for M5");
}

#[test]
fn wired_limit_close_to_the_whole_memory_is_a_warning() {
    let (_root, mut mac) = machine(
        &[],
        &[("sysctl -n hw.memsize", "17179869184\n"), ("sysctl -n iogpu.wired_limit_mb", "16000\n")],
    );
    mac.os = "macos";
    let check = memory::wired_limit(&mac).unwrap();
    check_one(&[check], "wired limit", Status::Warn, "iogpu.wired_limit_mb=0");
}

fn scope<'a>(hub: &'a Result<HubConfig, String>, fault: Option<&'a str>) -> Scope<'a> {
    Scope {
        hub,
        config_file: None,
        config_fault: fault,
        prefixes: None,
        kernels: None,
        path: &[],
        address: "127.0.0.1:0".parse().unwrap(),
        server: None,
    }
}

fn hub_at(cache: &Path) -> HubConfig {
    HubConfig {
        cache: Some(cache.into()),
        endpoint: "https://hub.example".into(),
        token: None,
        offline: false,
        proxy: None,
        uses: None,
        backoff: Duration::ZERO,
    }
}

#[test]
fn faults_of_settings_are_findings() {
    let (_root, machine) = machine(&[], &[]);
    let hub = Err("HF_ENDPOINT is `x`".to_owned());
    let all = checks(&machine, &scope(&hub, Some("unknown field `prot`")));
    check_one(&all, "config", Status::Error, "unknown field `prot`");
    check_one(&all, "models", Status::Error, "HF_ENDPOINT");
    check_one(&all, "port", Status::Ok, "is free");
    check_one(&all, "agents", Status::Ok, "none");
}

#[test]
fn taken_port_is_a_warning_unless_lanner_has_it() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let hub = Err(String::new());
    let mut scope = scope(&hub, None);
    scope.address = taken.local_addr().unwrap();
    check_one(&[port(&scope)], "port", Status::Warn, "used by another program");
    scope.server = Some("1.2".into());
    check_one(&[port(&scope)], "port", Status::Ok, "Lanner 1.2 runs");
}

#[test]
fn prefix_cache_that_others_can_read_is_a_warning() {
    use std::os::unix::fs::PermissionsExt;
    let (root, machine) = machine(&[], &[("test -w", ""), ("df -Pk", "h\n/dev/x 9 9 99999999 1% /\n")]);
    let hub = Ok(hub_at(Path::new("/cache")));
    let path = PathBuf::from("/state");
    let mut scope = scope(&hub, None);
    scope.prefixes = Some(&path);
    fs::create_dir(root.path().join("state")).unwrap();
    let set =
        |mode| fs::set_permissions(root.path().join("state"), fs::Permissions::from_mode(mode)).unwrap();
    set(0o755);
    check_one(&disk::checks(&machine, &scope), "prefix cache", Status::Warn, "chmod 700 /state");
    set(0o700);
    let all = disk::checks(&machine, &scope);
    check_one(&all, "prefix cache", Status::Ok, "/state, 102");
    check_one(&all, "model folder", Status::Ok, "/cache");
    check_one(&all, "models", Status::Ok, "merlin");
}

#[test]
fn incomplete_model_is_named_with_the_command_that_completes_it() {
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let snapshot = format!("hub/models--org--owl/snapshots/{commit}/config.json");
    let (_root, machine) = machine(&[(&snapshot, "{\"model_type\": \"qwen3\"}")], &[]);
    let hub = Ok(hub_at(Path::new("/hub")));
    check_one(&disk::checks(&machine, &scope(&hub, None)), "models", Status::Warn, "lanner pull org/owl");
}

#[test]
fn hub_is_judged_by_its_answer() {
    let config = Ok(hub_at(Path::new("/hub")));
    let check = |answer: Result<u16, String>, status, part| {
        check_one(&[hub(&config, |_| answer.clone())], "hub", status, part);
    };
    check(Ok(200), Status::Ok, "answers 200");
    check(Ok(401), Status::Error, "HF_TOKEN");
    check(Err("no route".into()), Status::Error, "cannot be reached: no route");
    let offline = Ok(HubConfig { offline: true, ..hub_at(Path::new("/hub")) });
    check_one(&[hub(&offline, |_| panic!("asked"))], "hub", Status::Warn, "HF_HUB_OFFLINE");
}
