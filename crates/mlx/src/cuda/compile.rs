//! Compiles kernels with NVRTC to cubins, which are cached in a folder.

#![allow(unsafe_code, reason = "calls to NVRTC")]

use std::{
    ffi::{CString, c_char, c_int},
    fs,
    path::{Path, PathBuf},
    ptr,
    sync::OnceLock,
    thread,
};

use sha2::{Digest, Sha256};

use super::{
    Fault, Result,
    driver::{Handle, Nvrtc},
};

/// CUDA sources: kernels, and the headers that they include.
#[derive(Clone, Copy, Debug)]
pub struct Sources {
    /// Name and text of each.
    pub kernels: &'static [(&'static str, &'static str)],
    pub headers: &'static [(&'static str, &'static str)],
}

/// The sources write each fused multiply-add explicitly; `--fmad=false` stops the compiler from
/// adding others.
const OPTIONS: [&str; 3] = ["--fmad=false", "-std=c++17", "-default-device"];

/// The folders searched first for NVRTC, and the folder of cached cubins.
#[derive(Clone, Debug, Default)]
pub struct CompileOptions {
    pub nvrtc_folders: Vec<PathBuf>,
    pub cache: Option<PathBuf>,
}

/// Whether cubins in the cache are used, or written anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheUse {
    Read,
    Renew,
}

/// A cubin of each source for `arch`, such as `sm_90a`; those that the cache lacks are compiled,
/// each by a thread.
///
/// # Errors
/// There is no NVRTC and a cubin is missing, or a source does not compile.
pub fn cubins(
    sources: Sources,
    arch: &str,
    options: &CompileOptions,
    cache_use: CacheUse,
) -> Result<Vec<Vec<u8>>> {
    let nvrtc: OnceLock<Result<Nvrtc>> = OnceLock::new();
    let one = |(name, text): (&str, &str)| -> Result<Vec<u8>> {
        let file = options.cache.as_ref().map(|folder| folder.join(cache_name(name, text, sources, arch)));
        let kept = file.as_ref().filter(|_| cache_use == CacheUse::Read);
        if let Some(kept) = kept.and_then(|file| fs::read(file).ok()) {
            return Ok(kept);
        }
        let nvrtc = nvrtc.get_or_init(|| Nvrtc::open(&options.nvrtc_folders)).clone()?;
        let cubin = nvrtc.compile_source(name, text, sources.headers, arch, None)?.0;
        if let Some(file) = file {
            keep(&file, &cubin);
        }
        Ok(cubin)
    };
    thread::scope(|scope| {
        let threads: Vec<_> =
            sources.kernels.iter().map(|&source| scope.spawn(move || one(source))).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Result<Vec<u8>>>| {
            thread.join().unwrap_or_else(|_| Err(Fault("compiling a kernel panicked".into())))
        };
        threads.into_iter().map(join).collect()
    })
}

/// Compiles every source for `arch` and returns the assembler's reports.
///
/// # Errors
/// There is no NVRTC, or a source does not compile.
pub fn compile_logs(sources: Sources, arch: &str, options: &CompileOptions) -> Result<Vec<String>> {
    let nvrtc = Nvrtc::open(&options.nvrtc_folders)?;
    let log = |&(name, text): &(&str, &str)| {
        let compile = |option| nvrtc.compile_source(name, text, sources.headers, arch, option);
        // NVRTC may have a cubin in a cache of its own, and then reports nothing. Versions without
        // this option have no such cache.
        compile(Some("--no-cache")).or_else(|_| compile(None)).map(|(_, report)| report)
    };
    sources.kernels.iter().map(log).collect()
}

/// The name covers everything that a cubin depends on except NVRTC's version: a cubin of another
/// version serves as well.
fn cache_name(name: &str, text: &str, sources: Sources, arch: &str) -> String {
    let mut hash = Sha256::new();
    let headers = sources.headers.iter().flat_map(|(name, text)| [*name, *text]);
    for part in [text, arch].into_iter().chain(OPTIONS).chain(headers) {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let hash: String = hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{arch}-{hash}.cubin", name.trim_end_matches(".cu"))
}

/// Writes a cubin whole or not at all. If it cannot be written, the next process compiles it again.
fn keep(file: &Path, cubin: &[u8]) {
    let partial = file.with_extension(format!("partial-{}", std::process::id()));
    let written = file.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&partial, cubin));
    if written.and_then(|()| fs::rename(&partial, file)).is_err() {
        let _ = fs::remove_file(&partial);
    }
}

impl Nvrtc {
    /// The cubin, and the assembler's report.
    fn compile_source(
        &self,
        name: &str,
        text: &str,
        headers: &[(&str, &str)],
        arch: &str,
        option: Option<&str>,
    ) -> Result<(Vec<u8>, String)> {
        let text_of = |text: &str| CString::new(text).map_err(|e| Fault(e.to_string()));
        let (source, source_name) = (text_of(text)?, text_of(name)?);
        let texts: Vec<CString> = headers.iter().map(|(_, text)| text_of(text)).collect::<Result<_>>()?;
        let names: Vec<CString> = headers.iter().map(|(name, _)| text_of(name)).collect::<Result<_>>()?;
        let options = [&format!("--gpu-architecture={arch}"), "--ptxas-options=-v"].map(String::from);
        let options = options.iter().map(String::as_str).chain(OPTIONS).chain(option);
        let options: Vec<CString> = options.map(text_of).collect::<Result<_>>()?;
        let pointers =
            |list: &[CString]| -> Vec<*const c_char> { list.iter().map(|text| text.as_ptr()).collect() };
        let (texts, names, options) = (pointers(&texts), pointers(&names), pointers(&options));
        let mut program: Handle = 0;
        // SAFETY: all strings outlive the calls that read them; buffers have the sizes that NVRTC
        // names.
        unsafe {
            let created = (self.create)(
                &mut program,
                source.as_ptr(),
                source_name.as_ptr(),
                texts.len() as c_int,
                texts.as_ptr(),
                names.as_ptr(),
            );
            if created != 0 {
                return Err(Fault(format!("NVRTC refused {name} with error {created}")));
            }
            let status = (self.compile)(program, options.len() as c_int, options.as_ptr());
            let log = self.text(program, self.log_size, self.log);
            let log = String::from_utf8_lossy(&log).trim_end_matches('\0').to_string();
            let cubin = self.text(program, self.cubin_size, self.cubin);
            (self.destroy)(&mut program);
            match status {
                0 => Ok((cubin, log)),
                status => Err(Fault(format!("{name} does not compile for {arch} (error {status}): {log}"))),
            }
        }
    }

    /// # Safety
    /// `program` exists, and `read` writes as many bytes as `size` says.
    unsafe fn text(
        &self,
        program: Handle,
        size: unsafe extern "C" fn(Handle, *mut usize) -> c_int,
        read: unsafe extern "C" fn(Handle, *mut u8) -> c_int,
    ) -> Vec<u8> {
        let mut length = 0;
        // SAFETY: the caller ensures it.
        unsafe { size(program, &mut length) };
        let mut bytes = vec![0; length];
        let to = if bytes.is_empty() { ptr::null_mut() } else { bytes.as_mut_ptr() };
        // SAFETY: the caller ensures it.
        unsafe { read(program, to) };
        bytes
    }
}
