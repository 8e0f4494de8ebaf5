//! Cache of BLAKE3 digests of model files, because hashing weights takes as long as reading them. A
//! file is identified by path, device, inode, size and times.

use std::{
    collections::BTreeMap,
    fs::{self, Metadata},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};

use super::{atomic::write_atomic, folder};

/// In the folder of the disk cache.
const FILE: &str = "digests.json";
/// A file that changed more recently might change again without new times: file system clocks are
/// coarse.
const MIN_AGE: Duration = Duration::from_millis(100);
/// Bytes hashed between two looks at the stop flag.
const PIECE: usize = 1 << 20;

pub(super) struct Digests {
    file: PathBuf,
    /// By path.
    known: BTreeMap<String, Known>,
    changed: bool,
    /// Bytes read.
    #[cfg(test)]
    pub hashed: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Known {
    digest: String,
    stamp: Stamp,
}

/// Metadata that changes with a file's contents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Stamp {
    bytes: u64,
    /// Nanoseconds since 1970.
    modified: u64,
    /// Last change of contents or metadata, device and inode; 0 where the system does not report
    /// them.
    changed: u64,
    device: u64,
    inode: u64,
}

impl Digests {
    /// Loads the digests in the disk cache's folder `root`; none if their file is unreadable.
    pub(super) fn open(root: &Path) -> Digests {
        let file = root.join(FILE);
        let known =
            files::read(&file, files::SETTINGS).ok().and_then(|text| serde_json::from_slice(&text).ok());
        Digests {
            file,
            known: known.unwrap_or_default(),
            changed: false,
            #[cfg(test)]
            hashed: 0,
        }
    }

    /// The digest of a whole regular file; stops as soon as `stop` is set.
    ///
    /// # Errors
    /// The file is a pipe or a device, cannot be read, or changes while it is read; or it stopped.
    pub(super) fn of(&mut self, path: &Path, stop: &AtomicBool) -> io::Result<String> {
        let path = fs::canonicalize(path)?;
        let name = path.to_string_lossy().into_owned();
        let file = files::open(&path)?;
        let stamp = Stamp::of(&file.metadata()?)?;
        if let Some(known) = self.known.get(&name).filter(|known| known.stamp == stamp) {
            return Ok(known.digest.clone());
        }
        let hash = hash(file, stop)?;
        #[cfg(test)]
        {
            self.hashed += stamp.bytes;
        }
        if Stamp::of(&fs::metadata(&path)?)? != stamp {
            return Err(io::Error::other(format!("{name} changes while it is read")));
        }
        let digest = hash.finalize().to_hex().to_string();
        if stamp.is_old_enough() {
            self.known.insert(name, Known { digest: digest.clone(), stamp });
            self.changed = true;
        }
        Ok(digest)
    }

    /// Saves new digests, without those of deleted files.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub(super) fn save(mut self) -> io::Result<()> {
        if !self.changed {
            return Ok(());
        }
        self.known.retain(|path, _| Path::new(path).exists());
        let text = serde_json::to_vec_pretty(&self.known)?;
        write_atomic(&self.file, |file| file.write_all(&text))
    }
}

fn hash(mut file: impl Read, stop: &AtomicBool) -> io::Result<blake3::Hasher> {
    let (mut hash, mut piece) = (blake3::Hasher::new(), vec![0; PIECE]);
    loop {
        if stop.load(Ordering::Relaxed) {
            return Err(io::Error::other("the load that needed the digest has ended"));
        }
        match file.read(&mut piece) {
            Ok(0) => return Ok(hash),
            Ok(length) => _ = hash.update(&piece[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Removes all digests.
///
/// # Errors
/// The file cannot be removed.
pub(super) fn clear(root: &Path) -> io::Result<()> {
    folder::remove(&root.join(FILE))
}

impl Stamp {
    fn of(metadata: &Metadata) -> io::Result<Stamp> {
        let modified = metadata.modified()?.duration_since(SystemTime::UNIX_EPOCH);
        let stamp = Stamp {
            bytes: metadata.len(),
            modified: modified.map_or(0, |time| time.as_nanos() as u64),
            changed: 0,
            device: 0,
            inode: 0,
        };
        #[cfg(unix)]
        let stamp = {
            use std::os::unix::fs::MetadataExt;
            let changed = metadata.ctime() as u64 * 1_000_000_000 + metadata.ctime_nsec() as u64;
            Stamp { changed, device: metadata.dev(), inode: metadata.ino(), ..stamp }
        };
        Ok(stamp)
    }

    fn is_old_enough(&self) -> bool {
        let changed = SystemTime::UNIX_EPOCH + Duration::from_nanos(self.changed.max(self.modified));
        SystemTime::now().duration_since(changed).is_ok_and(|age| age > MIN_AGE)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, thread};

    use super::*;

    static GO_ON: AtomicBool = AtomicBool::new(false);

    #[test]
    fn digest_of_unchanged_file_is_cached_and_of_changed_file_is_not() {
        let root = tempfile::tempdir().expect("a folder");
        let path = root.path().join("weights");
        let check = |hashed: u64| {
            let mut digests = Digests::open(root.path());
            let digest = digests.of(&path, &GO_ON).expect("a digest");
            assert_eq!(digest, blake3::hash(&fs::read(&path).expect("a file")).to_hex().to_string());
            assert_eq!(digests.hashed, hashed);
            digests.save().expect("saves");
        };
        fs::write(&path, "one").expect("writes");
        thread::sleep(2 * MIN_AGE);
        check(3);
        check(0);
        // Size, name and time of modification stay the same.
        let time = fs::metadata(&path).and_then(|data| data.modified()).expect("a time");
        fs::write(&path, "two").expect("writes");
        let file = File::options().write(true).open(&path).expect("a file");
        file.set_modified(time).expect("a time");
        // Not cached: it might change again within a tick of the clock.
        check(3);
        check(3);
        thread::sleep(2 * MIN_AGE);
        check(3);
        check(0);
        // A damaged cache only costs time.
        fs::write(root.path().join(FILE), "{\"a\":").expect("writes");
        check(3);
        clear(root.path()).expect("removes");
        check(3);
    }

    #[cfg(unix)]
    #[test]
    fn digest_of_pipe_or_device_fails_at_once() {
        let root = tempfile::tempdir().expect("a folder");
        let (pipe, device) = (root.path().join("pipe"), root.path().join("device"));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("run").success());
        std::os::unix::fs::symlink("/dev/zero", &device).expect("a link");
        for path in [pipe, device] {
            let error = Digests::open(root.path()).of(&path, &GO_ON).expect_err("it is no file");
            assert!(error.to_string().contains("not a regular file"), "{error}");
        }
    }

    #[test]
    fn digest_stops_when_its_load_has_ended() {
        let stop = AtomicBool::new(false);
        /// Ends the load after its first piece, and has no end itself.
        struct Endless<'a>(&'a AtomicBool);
        impl Read for Endless<'_> {
            fn read(&mut self, piece: &mut [u8]) -> io::Result<usize> {
                assert!(!self.0.swap(true, Ordering::Relaxed), "a second piece is read");
                Ok(piece.len())
            }
        }
        assert!(hash(Endless(&stop), &stop).is_err());
    }
}
