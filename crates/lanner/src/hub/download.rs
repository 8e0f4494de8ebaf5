//! One file from the hub into the cache: resumed, verified while it comes, put in place when it is whole.

use std::{
    fs::{self, File},
    io::{self, ErrorKind, Read, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use ureq::{
    Body,
    http::{
        Response,
        header::{CONTENT_LENGTH, CONTENT_RANGE, TRANSFER_ENCODING},
    },
};

use super::{
    cache::RepoCache,
    client::{Client, FetchError},
    error::HubError,
    listing::{Digest, RemoteFile},
    name::RepoName,
    pull::{PullEvent, PullJob},
};

const CHUNK: usize = 256 << 10;
/// Failures in a row, with nothing gained in between, before a download is given up.
const MAX_FAILURES: u32 = 5;
/// The longest that the hub may ask to wait.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// What the files of one snapshot have in common.
pub struct Fetch<'a> {
    pub client: &'a Client,
    pub cache: &'a RepoCache,
    pub repo: &'a RepoName,
    pub commit: &'a str,
    pub job: &'a PullJob<'a>,
    pub backoff: Duration,
    /// Bytes of this pull still to come, for the message about a full disk.
    pub remaining: &'a AtomicU64,
}

impl Fetch<'_> {
    /// Brings the file into the snapshot; one that is there already is not fetched again.
    ///
    /// # Errors
    /// The hub does not give it, it is not what was promised, or it cannot be written. What has come is kept.
    pub fn file(&self, file: &RemoteFile) -> Result<(), HubError> {
        let blob = self.cache.blobs().join(file.digest.etag());
        if !is_whole(&blob, file) {
            let _lock = self.cache.lock(file.digest.etag(), || self.job.is_cancelled())?;
            // Whoever held the lock may have brought it.
            if !is_whole(&blob, file) {
                self.download(file, &blob)?;
            }
        }
        self.report(file, file.size);
        self.cache.link(self.commit, &file.path, file.digest.etag())
    }

    fn download(&self, file: &RemoteFile, blob: &Path) -> Result<(), HubError> {
        let path = blob.with_file_name(format!("{}.incomplete", file.digest.etag()));
        let mut partial = Partial::open(path.clone(), file)?;
        let resumed = partial.length > 0;
        self.fill(&mut partial, file)?;
        let mut found = partial.digest();
        if found != file.digest.etag() && resumed {
            // What lay there was not the start of this file.
            self.remaining.fetch_add(file.size, Ordering::Relaxed);
            partial = Partial::create(path, file)?;
            self.fill(&mut partial, file)?;
            found = partial.digest();
        }
        if found != file.digest.etag() {
            let _ = fs::remove_file(&partial.path);
            return Err(self.mismatch(file, found));
        }
        let put = partial.file.sync_data().and_then(|()| fs::rename(&partial.path, blob));
        put.map_err(|error| self.write_error(&partial.path, error))
    }

    /// Fetches until the file has its full length.
    fn fill(&self, partial: &mut Partial, file: &RemoteFile) -> Result<(), HubError> {
        let mut backoff = Backoff::new(self.backoff);
        // A try that begins anew gains nothing until it has brought more than any before it.
        let mut longest = partial.length;
        while partial.length < file.size {
            match self.fetch(partial, file) {
                Ok(()) => {}
                Err(FetchError::Permanent(error)) => return Err(error),
                Err(FetchError::Transient { error, wait }) => {
                    let gained = partial.length > longest;
                    longest = longest.max(partial.length);
                    backoff.wait(error, wait, gained, self.job)?;
                }
            }
        }
        Ok(())
    }

    /// Appends what one request brings.
    fn fetch(&self, partial: &mut Partial, file: &RemoteFile) -> Result<(), FetchError> {
        let response = self.client.file(self.repo, self.commit, &file.path, partial.length)?;
        if let Some(length) = whole_length(&response).filter(|&length| length != file.size) {
            return Err(self.wrong_length(file, partial, length));
        }
        if !heeds(&response, partial.length) {
            self.remaining.fetch_add(partial.length, Ordering::Relaxed);
            partial.restart(file).map_err(|error| self.write_error(&partial.path, error))?;
            if response.status() != 200 {
                return Err(FetchError::Transient {
                    error: HubError::Status { url: file.path.clone(), status: response.status().as_u16() },
                    wait: None,
                });
            }
        }
        self.copy(response, partial, file)
    }

    fn copy(
        &self,
        response: Response<Body>,
        partial: &mut Partial,
        file: &RemoteFile,
    ) -> Result<(), FetchError> {
        // The last chunk says that nothing was cut off.
        let ends_cleanly = response.status() == 200 && response.headers().contains_key(TRANSFER_ENCODING);
        let mut body = response.into_body().into_reader();
        let mut chunk = vec![0; CHUNK];
        loop {
            if self.job.is_cancelled() {
                return Err(FetchError::Permanent(HubError::Cancelled));
            }
            let read = match body.read(&mut chunk) {
                Ok(0) if partial.length == file.size => return Ok(()),
                Ok(0) if ends_cleanly => return Err(self.useless(file, partial, partial.length)),
                Ok(0) => {
                    let reason =
                        format!("the connection ended after {} of {} bytes", partial.length, file.size);
                    return Err(cut(file, reason));
                }
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(cut(file, error.to_string())),
            };
            if partial.length + read as u64 > file.size {
                return Err(self.useless(file, partial, format!("more than {}", file.size)));
            }
            partial.append(&chunk[..read]).map_err(|error| self.write_error(&partial.path, error))?;
            self.remaining.fetch_sub(read as u64, Ordering::Relaxed);
            self.report(file, partial.length);
        }
    }

    /// What has come ends where the file should not: no later try can complete it.
    fn useless(&self, file: &RemoteFile, partial: &Partial, found: impl ToString) -> FetchError {
        let _ = fs::remove_file(&partial.path);
        self.wrong_length(file, partial, found)
    }

    /// What came before such an answer may still be right, and is kept; an empty file is not.
    fn wrong_length(&self, file: &RemoteFile, partial: &Partial, found: impl ToString) -> FetchError {
        if partial.length == 0 {
            let _ = fs::remove_file(&partial.path);
        }
        FetchError::Permanent(HubError::Length {
            repo: self.repo.id(),
            file: file.path.clone(),
            expected: file.size,
            found: found.to_string(),
        })
    }

    fn report(&self, file: &RemoteFile, completed: u64) {
        self.job.report(PullEvent::File { path: file.path.clone(), completed, total: file.size });
    }

    fn mismatch(&self, file: &RemoteFile, found: String) -> HubError {
        let expected = file.digest.etag().to_owned();
        HubError::Mismatch { repo: self.repo.id(), file: file.path.clone(), expected, found }
    }

    fn write_error(&self, path: &Path, error: io::Error) -> HubError {
        match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
                HubError::DiskFull {
                    path: self.cache.folder.clone(),
                    needed: self.remaining.load(Ordering::Relaxed),
                }
            }
            _ => HubError::Write { path: path.to_path_buf(), error },
        }
    }
}

/// How long the whole file is by this answer, if it says that.
fn whole_length(response: &Response<Body>) -> Option<u64> {
    let text = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
    match response.status().as_u16() {
        200 => text(CONTENT_LENGTH)?.trim().parse().ok(),
        206 => text(CONTENT_RANGE)?.rsplit('/').next()?.trim().parse().ok(),
        _ => None,
    }
}

/// Whether the answer begins where it was asked to.
fn heeds(response: &Response<Body>, from: u64) -> bool {
    let range = response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
    match response.status().as_u16() {
        206 => range.is_some_and(|range| range.starts_with(&format!("bytes {from}-"))),
        status => status == 200 && from == 0,
    }
}

fn cut(file: &RemoteFile, reason: String) -> FetchError {
    FetchError::Transient { error: HubError::Unreachable { url: file.path.clone(), reason }, wait: None }
}

/// Whether the blob is there in full. Its name is its hash, which was checked when it was put there.
pub fn is_whole(blob: &Path, file: &RemoteFile) -> bool {
    fs::metadata(blob).is_ok_and(|metadata| metadata.len() == file.size)
}

/// How much of the file lies in the cache.
pub fn present(cache: &RepoCache, file: &RemoteFile) -> u64 {
    let blob = cache.blobs().join(file.digest.etag());
    if is_whole(&blob, file) {
        return file.size;
    }
    let partial = blob.with_file_name(format!("{}.incomplete", file.digest.etag()));
    fs::metadata(partial).map_or(0, |metadata| metadata.len().min(file.size))
}

/// Waits between tries, until there have been too many.
pub struct Backoff {
    failures: u32,
    backoff: Duration,
}

impl Backoff {
    pub fn new(backoff: Duration) -> Backoff {
        Backoff { failures: 0, backoff }
    }

    /// Waits as long as the hub asks, or longer each time; `gained` says that the last try was not in vain.
    ///
    /// # Errors
    /// The failure itself if it was one too many or the hub asks for too long a wait; or the job was cancelled.
    pub fn wait(
        &mut self,
        error: HubError,
        wait: Option<Duration>,
        gained: bool,
        job: &PullJob,
    ) -> Result<(), HubError> {
        self.failures = if gained { 1 } else { self.failures + 1 };
        let wait = wait.unwrap_or(self.backoff * 2u32.pow(self.failures - 1));
        if self.failures >= MAX_FAILURES || wait > MAX_WAIT {
            return Err(error);
        }
        tracing::info!("waiting {} s: {error}", wait.as_secs_f32());
        job.report(PullEvent::Waiting { seconds: wait.as_secs_f64(), reason: error.to_string() });
        let until = Instant::now() + wait;
        while Instant::now() < until {
            if job.is_cancelled() {
                return Err(HubError::Cancelled);
            }
            let left = until.saturating_duration_since(Instant::now());
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
        Ok(())
    }
}

/// A file that is not whole yet, and the hash of what there is of it.
struct Partial {
    path: PathBuf,
    file: File,
    length: u64,
    hash: Context,
}

impl Partial {
    /// Takes up what an earlier download left.
    fn open(path: PathBuf, file: &RemoteFile) -> Result<Partial, HubError> {
        let mut partial = Partial::at(path, file)?;
        let read = partial.take_up(file.size);
        read.map_err(|error| HubError::Read { path: partial.path.clone(), error })?;
        Ok(partial)
    }

    /// Begins anew.
    fn create(path: PathBuf, file: &RemoteFile) -> Result<Partial, HubError> {
        let mut partial = Partial::at(path, file)?;
        let emptied = partial.restart(file);
        emptied.map_err(|error| HubError::Write { path: partial.path.clone(), error })?;
        Ok(partial)
    }

    fn at(path: PathBuf, file: &RemoteFile) -> Result<Partial, HubError> {
        let open = || {
            fs::create_dir_all(path.parent().unwrap_or(&path))?;
            File::options().create(true).read(true).append(true).open(&path)
        };
        match open() {
            Ok(handle) => Ok(Partial { file: handle, length: 0, hash: new_hash(file), path }),
            Err(error) => Err(HubError::Write { path, error }),
        }
    }

    fn take_up(&mut self, size: u64) -> io::Result<()> {
        if self.file.metadata()?.len() > size {
            return self.file.set_len(0);
        }
        let mut chunk = vec![0; CHUNK];
        // Not beyond the length that it has now: not every file ends.
        let mut rest = (&self.file).take(self.file.metadata()?.len());
        loop {
            match rest.read(&mut chunk)? {
                0 => return Ok(()),
                read => {
                    self.hash.update(&chunk[..read]);
                    self.length += read as u64;
                }
            }
        }
    }

    fn restart(&mut self, file: &RemoteFile) -> io::Result<()> {
        self.hash = new_hash(file);
        self.length = 0;
        self.file.set_len(0)
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.hash.update(bytes);
        self.length += bytes.len() as u64;
        Ok(())
    }

    fn digest(&self) -> String {
        let digest = self.hash.clone().finish();
        digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

fn new_hash(file: &RemoteFile) -> Context {
    match file.digest {
        Digest::Sha256(_) => Context::new(&SHA256),
        Digest::Git(_) => {
            let mut hash = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
            hash.update(format!("blob {}\0", file.size).as_bytes());
            hash
        }
    }
}
