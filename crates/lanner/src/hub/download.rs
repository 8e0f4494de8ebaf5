//! Downloads one file from the hub into the cache: resumed, verified while it arrives, moved into
//! place when complete.

use std::{
    fs::{self, File},
    io::{self, ErrorKind, Read, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
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
    backoff::Backoff,
    cache::RepoCache,
    client::{Client, FetchError},
    error::HubError,
    job::{PullEvent, PullJob},
    listing::{Digest, RemoteFile},
    name::RepoName,
};

const CHUNK: usize = 256 << 10;
/// State shared by downloads of one snapshot's files.
pub(super) struct Fetch<'a> {
    pub client: &'a Client,
    pub cache: &'a RepoCache,
    pub repo: &'a RepoName,
    pub commit: &'a str,
    pub job: &'a PullJob<'a>,
    pub backoff: Duration,
    /// Bytes of this pull still missing, for the error about a full disk.
    pub remaining: &'a AtomicU64,
}

impl Fetch<'_> {
    /// Adds the file to the snapshot, and downloads it if the cache does not have it.
    ///
    /// # Errors
    /// The hub refuses or fails, the hash differs, or the file cannot be written. A partial file
    /// stays.
    pub(super) fn file(&self, file: &RemoteFile) -> Result<(), HubError> {
        let blob = self.cache.blobs().join(file.digest.etag());
        if !is_whole(&blob, file) {
            let _lock = self.cache.lock(file.digest.etag(), || self.job.is_cancelled())?;
            // The previous holder of the lock may have downloaded it.
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
            // The partial file was not the start of this one.
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
        // A restarted attempt makes progress once it has more bytes than any before it.
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

    /// Appends the bytes of one response.
    fn fetch(&self, partial: &mut Partial, file: &RemoteFile) -> Result<(), FetchError> {
        let response = self.client.file(self.repo, self.commit, &file.path, partial.length)?;
        if let Some(length) = whole_length(&response).filter(|&length| length != file.size) {
            return Err(self.wrong_length(file, partial, length));
        }
        if !starts_at(&response, partial.length) {
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
        // A chunked body has an end marker, so nothing was cut off.
        let ends_cleanly = response.status() == 200 && response.headers().contains_key(TRANSFER_ENCODING);
        let mut body = response.into_body().into_reader();
        let mut chunk = vec![0; CHUNK];
        loop {
            if self.job.is_cancelled() {
                return Err(FetchError::Permanent(HubError::Cancelled));
            }
            let read = match body.read(&mut chunk) {
                Ok(0) if partial.length == file.size => return Ok(()),
                Ok(0) if ends_cleanly => return Err(self.unusable(file, partial, partial.length)),
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
                return Err(self.unusable(file, partial, format!("more than {}", file.size)));
            }
            partial.append(&chunk[..read]).map_err(|error| self.write_error(&partial.path, error))?;
            self.remaining.fetch_sub(read as u64, Ordering::Relaxed);
            self.report(file, partial.length);
        }
    }

    /// The file ended early or goes on too long: no later attempt can complete it.
    fn unusable(&self, file: &RemoteFile, partial: &Partial, found: impl ToString) -> FetchError {
        let _ = fs::remove_file(&partial.path);
        self.wrong_length(file, partial, found)
    }

    /// Keeps the partial file, whose bytes may be right, unless it is empty.
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

/// Length of the whole file as the response states it, if it does.
fn whole_length(response: &Response<Body>) -> Option<u64> {
    let text = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
    match response.status().as_u16() {
        200 => text(CONTENT_LENGTH)?.trim().parse().ok(),
        206 => text(CONTENT_RANGE)?.rsplit('/').next()?.trim().parse().ok(),
        _ => None,
    }
}

/// Whether the response begins at the requested byte.
fn starts_at(response: &Response<Body>, from: u64) -> bool {
    let range = response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
    match response.status().as_u16() {
        206 => range.is_some_and(|range| range.starts_with(&format!("bytes {from}-"))),
        status => status == 200 && from == 0,
    }
}

fn cut(file: &RemoteFile, reason: String) -> FetchError {
    FetchError::Transient { error: HubError::Unreachable { url: file.path.clone(), reason }, wait: None }
}

/// Whether the blob is complete. Its name is its hash, verified when it was moved there.
pub(super) fn is_whole(blob: &Path, file: &RemoteFile) -> bool {
    fs::metadata(blob).is_ok_and(|metadata| metadata.len() == file.size)
}

/// Bytes of the file that the cache has.
pub(super) fn present_bytes(cache: &RepoCache, file: &RemoteFile) -> u64 {
    let blob = cache.blobs().join(file.digest.etag());
    if is_whole(&blob, file) {
        return file.size;
    }
    let partial = blob.with_file_name(format!("{}.incomplete", file.digest.etag()));
    fs::metadata(partial).map_or(0, |metadata| metadata.len().min(file.size))
}

/// An incomplete file, and the hash of its bytes so far.
struct Partial {
    path: PathBuf,
    file: File,
    length: u64,
    hash: Context,
}

impl Partial {
    /// Resumes an earlier download.
    fn open(path: PathBuf, file: &RemoteFile) -> Result<Partial, HubError> {
        let mut partial = Partial::at(path, file)?;
        let read = partial.resume(file.size);
        read.map_err(|error| HubError::Read { path: partial.path.clone(), error })?;
        Ok(partial)
    }

    /// Starts over.
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

    fn resume(&mut self, size: u64) -> io::Result<()> {
        if self.file.metadata()?.len() > size {
            return self.file.set_len(0);
        }
        let mut chunk = vec![0; CHUNK];
        // No more than its current length: a device file may never end.
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
