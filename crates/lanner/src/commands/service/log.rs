//! The log of the server in the background.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    net::SocketAddr,
    path::Path,
};

use serde_json::Value;

use crate::service::{ServiceError, ServiceFolders};

/// The line that `lanner serve` prints once it is ready begins like this.
const READY: &str = "lanner: serving ";
/// Bytes that are read at a time from the end.
const BLOCK: u64 = 64 << 10;

/// Where the server listens, as the last line of its log that says so.
pub(super) fn address(log: &Path) -> Option<SocketAddr> {
    let mut file = File::open(log).ok()?;
    let mut start = file.seek(SeekFrom::End(0)).ok()?;
    // Begins in the block before.
    let mut line = vec![];
    while start > 0 {
        let mut bytes = block_before(&mut file, &mut start).ok()?;
        bytes.append(&mut line);
        let newline = bytes.iter().position(|byte| *byte == b'\n');
        let whole = if start == 0 { 0 } else { newline.map_or(bytes.len(), |at| at + 1) };
        let text = String::from_utf8_lossy(&bytes[whole..]);
        if let Some(found) = text.lines().rev().find_map(ready_address) {
            return Some(found);
        }
        bytes.truncate(whole);
        line = bytes;
    }
    None
}

/// The bytes before `start`, at most a block, which `start` then precedes.
fn block_before(file: &mut File, start: &mut u64) -> io::Result<Vec<u8>> {
    let length = BLOCK.min(*start);
    *start -= length;
    file.seek(SeekFrom::Start(*start))?;
    let mut block = vec![0; length as usize];
    file.read_exact(&mut block)?;
    Ok(block)
}

fn ready_address(line: &str) -> Option<SocketAddr> {
    let message = match line.strip_prefix('{') {
        None => line.to_owned(),
        Some(_) => serde_json::from_str::<Value>(line).ok()?["message"].as_str()?.to_owned(),
    };
    let (_, url) = message.strip_prefix(READY)?.rsplit_once(" on http://")?;
    url.split("/v1").next()?.parse().ok()
}

/// Sets the log of the server before aside.
pub(super) fn rotate(folders: &ServiceFolders) -> Result<(), ServiceError> {
    match fs::rename(folders.log(), folders.former_log()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(ServiceError::File { path: folders.log(), error })
        }
        _ => Ok(()),
    }
}

/// The last lines, and where the file ended.
pub(super) fn tail(file: &mut File, lines: usize) -> io::Result<(String, u64)> {
    let end = file.seek(SeekFrom::End(0))?;
    let mut start = end;
    let mut bytes = vec![];
    while start > 0 && bytes.iter().filter(|byte| **byte == b'\n').count() <= lines {
        let mut block = block_before(file, &mut start)?;
        block.append(&mut bytes);
        bytes = block;
    }
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = text.split_inclusive('\n').collect();
    Ok((all[all.len().saturating_sub(lines)..].concat(), end))
}

/// The last lines for an error.
pub(super) fn last_lines(log: &Path, lines: usize) -> String {
    let read = File::open(log).and_then(|mut file| tail(&mut file, lines));
    let text = read.map_or_else(|_| String::new(), |(text, _)| text);
    match text.trim_end() {
        "" => "(it is empty)".into(),
        text => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_that_of_the_last_ready_line() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("server.log");
        let check = |text: &str, expected: Option<&str>| {
            fs::write(&log, text).unwrap();
            assert_eq!(address(&log).map(|found| found.to_string()).as_deref(), expected, "{text}");
        };
        check("lanner: loaded merlin\n", None);
        let ready = "lanner: serving a on http://b on http://127.0.0.1:1/v1 (ready in 0.10 s)\n";
        check(ready, Some("127.0.0.1:1"));
        check(
            &format!("{ready}lanner: serving m on http://[::1]:2/v1 (ready in 1 s)\nmore"),
            Some("[::1]:2"),
        );
        let json = r#"{"time":"t","message":"lanner: serving m on http://127.0.0.1:3/v1 (ready in 1 s)"}"#;
        check(json, Some("127.0.0.1:3"));
        let long = format!("{ready}{}\n", "x".repeat(3 * BLOCK as usize));
        check(&long, Some("127.0.0.1:1"));
        check(&format!("{}{ready}", &long[..BLOCK as usize - 9].replace("serving", "x")), None);
        check("WARN no model `lanner: serving m on http://127.0.0.1:4/v1`", None);
    }

    #[test]
    fn tail_is_the_last_lines() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("server.log");
        let line = "x".repeat(70);
        let text: String = (0..2000).map(|i| format!("{line} {i}\n")).collect();
        for (text, lines, expected) in [
            ("", 3, String::new()),
            ("a\nb\nc", 2, "b\nc".into()),
            ("a\nb\n", 5, "a\nb\n".into()),
            ("a\nb\n", 0, String::new()),
            (&*text, 1, format!("{line} 1999\n")),
            (&*text, 1500, text[text.find(&format!("{line} 500\n")).unwrap()..].to_owned()),
        ] {
            fs::write(&log, text).unwrap();
            let found = tail(&mut File::open(&log).unwrap(), lines).unwrap();
            assert_eq!(found, (expected, text.len() as u64));
        }
    }
}
