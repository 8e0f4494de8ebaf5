//! Broken safetensors files: each error names the file and the fault.

use std::{fs, path::Path};

use lanner_mlx::load::Safetensors;

fn file(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

fn open(bytes: &[u8]) -> Result<Safetensors, String> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.safetensors");
    fs::write(&path, bytes).expect("written");
    Safetensors::open(&path).map_err(|e| e.to_string())
}

fn check_refused(bytes: &[u8], expected: &str) {
    let message = open(bytes).err().expect("refused");
    assert!(message.contains("model.safetensors") && message.contains(expected), "{message}");
}

const GOOD: &str = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;

#[test]
fn valid_file_is_read() {
    let data: Vec<u8> = [1.5f32, -2.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    let mut file = open(&file(GOOD, &data)).expect("good");
    assert_eq!(file.read("a").expect("there").to_f32().expect("read"), [1.5, -2.0]);
    assert!(file.read("b").expect_err("not there").to_string().contains("no tensor b"));
}

#[test]
fn file_with_a_million_tensors_is_refused() {
    let tensors: Vec<String> = (0..1_000_000)
        .map(|n| format!(r#""{n}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}"#))
        .collect();
    check_refused(&file(&format!("{{{}}}", tensors.join(",")), &[]), "more than 262144 tensors");
    let axes = vec!["1"; 100_000].join(",");
    let header = format!(r#"{{"a":{{"dtype":"F32","shape":[{axes}],"data_offsets":[0,4]}}}}"#);
    check_refused(&file(&header, &[0; 4]), "100000 axes");
}

#[cfg(unix)]
#[test]
fn pipe_is_refused_without_blocking() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.safetensors");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().expect("run").success());
    let message = Safetensors::open(&path).err().expect("refused").to_string();
    assert!(message.contains("model.safetensors") && message.contains("not a regular file"), "{message}");
}

#[test]
fn truncated_or_inconsistent_files_are_refused() {
    check_refused(b"", "cut short");
    check_refused(b"1234567", "cut short");
    check_refused(&[0xff; 64], "not a safetensors file");
    check_refused(&file(GOOD, &[0; 7]), "download it again");
    check_refused(&file(GOOD, &[0; 9]), "download it again");
    check_refused(&file(GOOD, &[0; 8])[..30], "cut short");
    check_refused(&file("{not json", &[0; 8]), "header is broken");
    for offsets in ["[0,4]", "[0,80]", "[8,0]", "[4,12]", "[0,18446744073709551615]"] {
        let lying = GOOD.replace("[0,8]", offsets);
        assert!(open(&file(&lying, &[0; 8])).is_err(), "{offsets}");
    }
    let overlapping = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
        "b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    assert!(open(&file(overlapping, &[0; 8])).is_err());
    let huge = r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296,2],"data_offsets":[0,8]}}"#;
    assert!(open(&file(huge, &[0; 8])).is_err());
}

#[test]
fn missing_file_error_names_the_file() {
    let message = Safetensors::open(Path::new("nowhere.safetensors")).err().expect("missing").to_string();
    assert!(message.contains("nowhere.safetensors"), "{message}");
}
