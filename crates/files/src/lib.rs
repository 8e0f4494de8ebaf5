//! Opens the files of a checkpoint: regular ones only, and text only up to a size. Knows nothing of what is in them.
//!
//! A folder that somebody else filled may hold a pipe or a device where a file is expected: opening the one waits for ever,
//! reading the other never ends.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, Read},
    path::Path,
};

/// The most bytes of a file of settings: config.json, generation_config.json, tokenizer_config.json, a chat template.
pub const SETTINGS: u64 = 16 << 20;
/// The most bytes of an index of tensors; the largest published ones have some 20 MB.
pub const INDEX: u64 = 64 << 20;
/// The most bytes of tokenizer.json; the largest published ones have some 35 MB.
pub const TOKENIZER: u64 = 128 << 20;

/// Opens a regular file for reading. Never waits.
///
/// # Errors
/// There is none, it cannot be read, or it is a folder, a pipe, a socket or a device.
pub fn open(path: &Path) -> io::Result<File> {
    // Merely opening some devices does something.
    check(&fs::metadata(path)?)?;
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK | libc::O_NOCTTY);
    let file = options.open(path)?;
    // It may have been put in the other's place just now.
    check(&file.metadata()?)?;
    Ok(file)
}

fn check(metadata: &fs::Metadata) -> io::Result<()> {
    match metadata.is_file() {
        true => Ok(()),
        false if metadata.is_dir() => {
            Err(io::Error::new(ErrorKind::IsADirectory, "it is a folder, not a file"))
        }
        false => Err(io::Error::new(ErrorKind::InvalidInput, "it is a pipe or a device, not a regular file")),
    }
}

/// Reads a regular file of at most `most` bytes.
///
/// # Errors
/// As [`open`]; or it has more bytes than that.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let length = file.metadata()?.len();
    let too_large = || {
        let message = format!("the file has more than {most} bytes, which no such file needs");
        Err(io::Error::new(ErrorKind::FileTooLarge, message))
    };
    if length > most {
        return too_large();
    }
    let mut bytes = Vec::with_capacity(length as usize);
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { too_large() } else { Ok(bytes) }
}

/// As [`read`], as text.
///
/// # Errors
/// As [`read`]; or it is not UTF-8.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    let not_text = |_| io::Error::new(ErrorKind::InvalidData, "the file is not UTF-8 text");
    String::from_utf8(read(path, most)?).map_err(not_text)
}

#[cfg(all(test, unix))]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_file_is_read_up_to_its_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        fs::write(&path, "12345").unwrap();
        assert_eq!(read_text(&path, 5).unwrap(), "12345");
        assert_eq!(read(&path, 4).unwrap_err().kind(), ErrorKind::FileTooLarge);
        fs::write(&path, [0xff]).unwrap();
        assert_eq!(read_text(&path, 5).unwrap_err().kind(), ErrorKind::InvalidData);
        assert_eq!(open(&folder.path().join("nothing")).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn anything_but_a_regular_file_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
        for path in [&pipe, &link, folder.path()] {
            assert!(open(path).unwrap_err().to_string().contains("not a"), "{}", path.display());
        }
    }
}
