//! Opens untrusted files of a checkpoint: regular files only, and text only up to a size. Knows
//! nothing of their contents.
//!
//! An untrusted folder may contain a pipe or a device instead of a file: opening a pipe can block
//! forever, and reading a device may never end.
//!
//! ```
//! let folder = tempfile::tempdir()?;
//! let config = folder.path().join("config.json");
//! std::fs::write(&config, "{}")?;
//! assert_eq!(lanner_files::read_text(&config, lanner_files::SETTINGS)?, "{}");
//! assert!(lanner_files::open(folder.path()).is_err());
//! # Ok::<(), std::io::Error>(())
//! ```

use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, Read},
    path::Path,
};

/// Maximum bytes of config.json, generation_config.json, tokenizer_config.json and chat templates.
pub const SETTINGS: u64 = 16 << 20;
/// Maximum bytes of a file that names a commit.
pub const REF: u64 = 4096;
/// Maximum bytes of an index of tensors; the largest published ones have about 20 MB.
pub const INDEX: u64 = 64 << 20;
/// Maximum bytes of tokenizer.json; the largest published ones have about 35 MB.
pub const TOKENIZER: u64 = 128 << 20;

/// Opens a regular file for reading, without blocking.
///
/// # Errors
/// The file is missing or unreadable, or is a folder, pipe, socket or device.
pub fn open(path: &Path) -> io::Result<File> {
    // Opening some devices has side effects.
    check(&fs::metadata(path)?)?;
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK | libc::O_NOCTTY);
    let file = options.open(path)?;
    // The file may have been replaced since the first check.
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

/// Reads a regular file of at most `max_bytes`.
///
/// # Errors
/// Those of [`open`], or the file is larger.
pub fn read(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let length = file.metadata()?.len();
    let too_large = || {
        let message = format!("the file has more than {max_bytes} bytes, which no such file needs");
        Err(io::Error::new(ErrorKind::FileTooLarge, message))
    };
    if length > max_bytes {
        return too_large();
    }
    let mut bytes = Vec::with_capacity(length as usize);
    file.take(max_bytes + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max_bytes { too_large() } else { Ok(bytes) }
}

/// Reads a regular UTF-8 file of at most `max_bytes`.
///
/// # Errors
/// Those of [`read`], or the file is not UTF-8.
pub fn read_text(path: &Path, max_bytes: u64) -> io::Result<String> {
    let not_text = |_| io::Error::new(ErrorKind::InvalidData, "the file is not UTF-8 text");
    String::from_utf8(read(path, max_bytes)?).map_err(not_text)
}

#[cfg(all(test, unix))]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn read_larger_file_than_limit_fails() {
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
    fn open_pipe_device_or_folder_fails_at_once() {
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
