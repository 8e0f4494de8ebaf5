//! Peak memory of quantising. A binary of its own: the peak is that of the process.

// Tests fail by panicking.
#![allow(clippy::unwrap_used)]
#![cfg(target_os = "linux")]

use std::{
    fs::File,
    io::{BufWriter, Write},
    ops::ControlFlow,
};

use lanner_engine::{
    Checkpoint,
    quantize::{Mode, Plan, SHARD_BYTES, quantization},
};
use serde_json::json;

const MIB: usize = 1 << 20;
/// Bytes of the only tensor, and the allowed increase while quantising it.
const TENSOR: usize = 256 * MIB;
const BOUND: usize = 128 * MIB;

#[test]
fn quantizing_never_holds_a_whole_large_tensor() {
    let folder = tempfile::tempdir().expect("a folder");
    write_checkpoint(folder.path()).expect("written");
    for (i, mode) in Mode::ALL.into_iter().enumerate() {
        let q = quantization(mode, None, None).expect("a format");
        let mut plan = Plan::new(&Checkpoint::Folder(folder.path().into()), q).expect("planned");
        let before = peak();
        let mut progress = |_| ControlFlow::Continue(());
        plan.write(&folder.path().join(i.to_string()), SHARD_BYTES, &mut progress).expect("written");
        let used = peak() - before;
        assert!(used < BOUND, "{} took {} MiB for a tensor of {}", mode.name(), used / MIB, TENSOR / MIB);
    }
}

/// The most memory this process has had, in bytes.
fn peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = status.lines().find(|line| line.starts_with("VmHWM")).expect("a peak");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<usize>().ok()).expect("a number") * 1024
}

fn write_checkpoint(folder: &std::path::Path) -> std::io::Result<()> {
    std::fs::write(folder.join("config.json"), json!({ "model_type": "llama" }).to_string())?;
    let (rows, inputs) = (TENSOR / 2 / 4096, 4096);
    let entry = json!({ "dtype": "BF16", "shape": [rows, inputs], "data_offsets": [0, TENSOR] });
    let mut header = json!({ "lm_head.weight": entry }).to_string();
    header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
    let mut file = BufWriter::new(File::create(folder.join("model.safetensors"))?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    // Numbers near one, of both signs.
    let values: Vec<u8> = (0..MIB / 2).flat_map(|i| [(i * 37) as u8, 0x3f | ((i & 1) << 7) as u8]).collect();
    (0..TENSOR / MIB).try_for_each(|_| file.write_all(&values))
}
