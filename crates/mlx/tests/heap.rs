//! Free memory of the heap: the process's resident memory is measured, so this test runs alone.

// A panic is the verdict of a test.
#![allow(clippy::unwrap_used)]

/// Resident megabytes of this process.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
}

#[test]
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn trim_heap_returns_free_memory_below_a_live_allocation() {
    let mut blocks: Vec<Vec<u8>> = (0..400).map(|i| vec![i as u8 | 1; 256 << 10]).collect();
    let last = blocks.pop();
    let full = resident();
    drop(blocks);
    // The heap keeps what lies below the last block.
    let kept = resident();
    lanner_mlx::trim_heap();
    let trimmed = resident();
    assert!(full - kept < 20.0, "{full} MB, {kept} MB once the blocks were freed");
    assert!(full - trimmed > 90.0, "{full} MB, {trimmed} MB once the heap was trimmed");
    drop(last);
}
