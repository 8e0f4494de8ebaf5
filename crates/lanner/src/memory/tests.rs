//! Readings of other machines, and what follows from them.

use std::{
    fs,
    path::Path,
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use engine::MemoryAccount;

use super::{
    monitor::{CacheControl, Change},
    *,
};

const MIB_64: u64 = 64 << 20;

/// A machine with these files.
fn host(root: &Path, files: &[(&str, &str)]) -> HostInfo {
    for (path, text) in files {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    HostInfo { os: "linux", root: root.into(), run: Box::new(|_, _| None), ..HostInfo::here() }
}

fn memory_with(available: u64) -> MemoryReading {
    MemoryReading { total: Some(100), available: Some(available), ..MemoryReading::default() }
}

#[test]
fn reading_takes_the_worst_of_the_machine_and_its_groups() {
    let root = tempfile::tempdir().unwrap();
    let host = host(
        root.path(),
        &[
            ("proc/meminfo", "MemTotal: 1048576 kB\nMemAvailable: 524288 kB\n"),
            ("proc/pressure/memory", "some avg10=1.50 avg60=0.00\nfull avg10=0.25 avg60=0.00\n"),
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/memory.max", "134217728\n"),
            ("sys/fs/cgroup/a/memory.current", "100663296\n"),
            ("sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 33554432\nactive_file 9\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/b/memory.pressure", "some avg10=12.00 avg60=0.00\nfull avg10=0.00\n"),
        ],
    );
    let expected = MemoryReading {
        total: Some(2 * MIB_64),
        available: Some(MIB_64),
        some_stalled: Some(12.0),
        all_stalled: Some(0.25),
        level: None,
    };
    assert_eq!(MemoryReading::of(&host), expected);
    assert_eq!(expected.pressure(), Pressure::Warning, "tasks wait for memory");
}

#[test]
fn reading_of_macos_is_its_level() {
    let root = tempfile::tempdir().unwrap();
    for (level, expected) in
        [("1\n", Pressure::Normal), ("2\n", Pressure::Warning), ("4\n", Pressure::Critical)]
    {
        let run = move |program: &str, args: &[&str]| {
            let asked = program == "sysctl" && args == ["-n", "kern.memorystatus_vm_pressure_level"];
            asked.then(|| level.to_owned())
        };
        let mac = HostInfo { os: "macos", run: Box::new(run), ..host(root.path(), &[]) };
        let reading = MemoryReading::of(&mac);
        assert_eq!((reading.pressure(), reading.available), (expected, None), "{level}");
    }
}

#[test]
fn pressure_grows_with_the_shortage() {
    let check = |reading: MemoryReading, expected: Pressure, roomy: bool| {
        assert_eq!((reading.pressure(), reading.is_roomy()), (expected, roomy), "{reading:?}");
    };
    check(MemoryReading::default(), Pressure::Normal, true);
    check(memory_with(50), Pressure::Normal, true);
    check(memory_with(15), Pressure::Normal, false);
    check(memory_with(9), Pressure::Warning, false);
    check(memory_with(4), Pressure::Critical, false);
    check(MemoryReading { some_stalled: Some(5.0), ..memory_with(50) }, Pressure::Normal, false);
    check(MemoryReading { some_stalled: Some(30.0), ..memory_with(50) }, Pressure::Warning, false);
    check(MemoryReading { all_stalled: Some(30.0), ..memory_with(50) }, Pressure::Critical, false);
}

#[test]
fn caches_shrink_by_halves_and_grow_after_a_calm_time() {
    let mut control = CacheControl { budget: 1600, reacts_at: Pressure::Warning, most: None, calm: 0 };
    let shrunk = |most| Some(Change { most: Some(most), release: true });
    assert_eq!(control.next(&memory_with(50), 1000), None);
    assert_eq!(control.next(&memory_with(9), 1000), shrunk(500));
    assert_eq!(control.next(&memory_with(9), 500), shrunk(250));
    assert_eq!(control.next(&memory_with(9), 250), shrunk(125));
    assert_eq!(control.next(&memory_with(9), 125), shrunk(100), "a sixteenth is kept under a warning");
    assert_eq!(control.next(&memory_with(9), 100), None);
    assert_eq!(control.next(&memory_with(4), 100), shrunk(0));
    assert_eq!(control.next(&memory_with(4), 0), None);
    assert_eq!(control.next(&memory_with(9), 0), None, "a lesser shortage gives nothing back");
    let mut sizes = vec![];
    while control.most.is_some() {
        let calm: Vec<_> = (0..15).map(|_| control.next(&memory_with(50), 0)).collect();
        assert!(calm[..14].iter().all(Option::is_none), "{calm:?}");
        assert_eq!(control.next(&memory_with(15), 0), None, "not roomy: the calm time begins again");
        let Some(Change { most, release: false }) = calm[14] else { panic!("{calm:?}") };
        sizes.push(most);
    }
    assert_eq!(sizes, [Some(100), Some(200), Some(400), Some(800), None]);
}

#[test]
fn full_mode_reacts_only_when_it_is_critical() {
    let mut control = CacheControl { budget: 1600, reacts_at: Pressure::Critical, most: None, calm: 0 };
    assert_eq!(control.next(&memory_with(9), 1000), None);
    assert_eq!(control.next(&memory_with(4), 1000), Some(Change { most: Some(0), release: true }));
}

#[test]
fn monitor_presses_the_engines_and_ends_when_dropped() {
    let account = Arc::new(MemoryAccount::default());
    let (woken, wakes) = mpsc::channel();
    let woken = Mutex::new(woken);
    let _engine = account.register(move || woken.lock().unwrap().send(()).unwrap());
    let available = Arc::new(Mutex::new(4));
    let source = available.clone();
    let every = Duration::from_millis(1);
    let read = move || memory_with(*source.lock().unwrap());
    let monitor = Monitor::with(&account, 1600, Pressure::Warning, every, read);
    let next = || wakes.recv_timeout(Duration::from_secs(60)).unwrap();
    next();
    assert_eq!((account.cache_pressure().most, account.cache_pressure().releases), (Some(0), 1));
    *available.lock().unwrap() = 50;
    // 100, 200, 400, 800 bytes, then all.
    (0..5).for_each(|_| next());
    assert_eq!((account.cache_pressure().most, account.cache_pressure().releases), (None, 1));
    drop(monitor);
    *available.lock().unwrap() = 4;
    assert!(wakes.recv_timeout(Duration::from_millis(50)).is_err(), "it watches no longer");
}

#[test]
fn shares_of_memory_stay_within_their_bounds() {
    let check = |mode: MemoryMode, machine: Option<usize>, expected: usize| {
        assert_eq!(mode.preset().prefix_cache.of(machine), expected, "{mode:?} {machine:?}");
    };
    check(MemoryMode::Balanced, None, 256 * MIB);
    check(MemoryMode::Balanced, Some(16 * GIB), 2 * GIB);
    check(MemoryMode::Balanced, Some(512 * GIB), 8 * GIB);
    check(MemoryMode::Full, Some(16 * GIB), 4 * GIB);
    check(MemoryMode::Eco, Some(16 * GIB), 512 * MIB);
    check(MemoryMode::Eco, Some(GIB), 64 * MIB);
}

#[test]
fn summary_names_what_the_mode_and_flags_come_to() {
    let options = engine::Options {
        prefix_cache_bytes: 512 << 20,
        prefill_chunk: 128,
        max_batch: 3,
        memory_limit: Some(4 << 30),
        ..engine::Options::default()
    };
    let text = summary(MemoryMode::Eco, &options);
    for part in
        ["mode eco", "limit 4", "prefix cache up to 5", "chunks of 128", "3 requests", "memory is short"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}
