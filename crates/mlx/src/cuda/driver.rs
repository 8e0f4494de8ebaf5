//! The functions of the CUDA driver and of NVRTC, found when the program runs: nothing links to
//! them.

#![allow(unsafe_code, reason = "C functions of libraries that may not be there")]

use std::{
    ffi::{CStr, CString, c_char, c_int, c_uint, c_void},
    path::Path,
};

use super::{Fault, Result};

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

const RTLD_NOW: c_int = 2;

/// Addresses on the device, and handles of the driver.
pub(super) type Address = u64;
pub(super) type Handle = usize;

/// An open library, never closed.
struct Library {
    handle: *mut c_void,
    name: String,
}

impl Library {
    fn open(name: &str) -> Option<Library> {
        let text = CString::new(name).ok()?;
        // SAFETY: `dlopen` reads the name; initialisers of NVIDIA's libraries may run on any
        // thread.
        let handle = unsafe { dlopen(text.as_ptr(), RTLD_NOW) };
        (!handle.is_null()).then(|| Library { handle, name: name.into() })
    }

    fn find(&self, name: &str) -> Result<*mut c_void> {
        let text = CString::new(name).map_err(|e| Fault(e.to_string()))?;
        // SAFETY: the library is open, and `dlsym` reads the name.
        let found = unsafe { dlsym(self.handle, text.as_ptr()) };
        if found.is_null() { Err(Fault(format!("{} has no {name}", self.name))) } else { Ok(found) }
    }
}

/// A struct of a library's functions, and a function that finds them all.
macro_rules! functions {
    ($(#[$doc:meta])* $library:ident { $($field:ident = $name:literal: fn($($argument:ty),*);)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(super) struct $library { $(pub $field: unsafe extern "C" fn($($argument),*) -> c_int,)* }

        impl $library {
            fn find(library: &Library) -> Result<$library> {
                Ok($library {
                    $(
                        // SAFETY: these are the library's documented signatures.
                        $field: unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> c_int>(
                                library.find($name)?,
                            )
                        },
                    )*
                })
            }
        }
    };
}

/// A launch's grid, block, shared memory and stream, in the driver's layout.
#[repr(C)]
pub(super) struct LaunchConfig {
    pub grid: [c_uint; 3],
    pub block: [c_uint; 3],
    pub shared: c_uint,
    pub stream: Handle,
    pub attributes: *const LaunchAttribute,
    pub num_attributes: c_uint,
}

/// How a kernel is launched.
#[repr(C)]
pub(super) struct LaunchAttribute {
    id: c_uint,
    padding: c_uint,
    value: [u64; 8],
}

impl LaunchAttribute {
    /// It may start before the previous kernel ends.
    pub(super) const DEPENDENT: LaunchAttribute =
        LaunchAttribute { id: 6, padding: 0, value: [1, 0, 0, 0, 0, 0, 0, 0] };
    /// All of its blocks run at the same time, or the launch fails.
    pub(super) const COOPERATIVE: LaunchAttribute =
        LaunchAttribute { id: 2, padding: 0, value: [1, 0, 0, 0, 0, 0, 0, 0] };
}

/// A copy of rows between two places on the device, in the driver's layout.
#[repr(C)]
pub(super) struct Copy2D {
    from_x: usize,
    from_y: usize,
    from_kind: c_uint,
    from_host: usize,
    from: Address,
    from_array: usize,
    from_pitch: usize,
    to_x: usize,
    to_y: usize,
    to_kind: c_uint,
    to_host: usize,
    to: Address,
    to_array: usize,
    to_pitch: usize,
    width: usize,
    height: usize,
}

impl Copy2D {
    /// `height` rows of `width` bytes, each `pitch` bytes after the one before.
    pub(super) fn new(
        [from, to]: [Address; 2],
        [from_pitch, to_pitch]: [usize; 2],
        width: usize,
        height: usize,
    ) -> Copy2D {
        const DEVICE: c_uint = 2;
        Copy2D {
            from_x: 0,
            from_y: 0,
            from_kind: DEVICE,
            from_host: 0,
            from,
            from_array: 0,
            from_pitch,
            to_x: 0,
            to_y: 0,
            to_kind: DEVICE,
            to_host: 0,
            to,
            to_array: 0,
            to_pitch,
            width,
            height,
        }
    }
}

functions! {
    /// The driver, libcuda.
    Driver {
        init = "cuInit": fn(c_uint);
        device_count = "cuDeviceGetCount": fn(*mut c_int);
        device = "cuDeviceGet": fn(*mut c_int, c_int);
        device_name = "cuDeviceGetName": fn(*mut c_char, c_int, c_int);
        device_attribute = "cuDeviceGetAttribute": fn(*mut c_int, c_int, c_int);
        retain_context = "cuDevicePrimaryCtxRetain": fn(*mut Handle, c_int);
        set_context = "cuCtxSetCurrent": fn(Handle);
        create_stream = "cuStreamCreate": fn(*mut Handle, c_uint);
        synchronize = "cuStreamSynchronize": fn(Handle);
        query_stream = "cuStreamQuery": fn(Handle);
        create_event = "cuEventCreate": fn(*mut Handle, c_uint);
        record_event = "cuEventRecord": fn(Handle, Handle);
        wait_for_event = "cuEventSynchronize": fn(Handle);
        destroy_event = "cuEventDestroy_v2": fn(Handle);
        elapsed_ms = "cuEventElapsedTime": fn(*mut f32, Handle, Handle);
        memory_info = "cuMemGetInfo_v2": fn(*mut usize, *mut usize);
        allocate = "cuMemAlloc_v2": fn(*mut Address, usize);
        free = "cuMemFree_v2": fn(Address);
        allocate_host = "cuMemAllocHost_v2": fn(*mut *mut u8, usize);
        upload = "cuMemcpyHtoDAsync_v2": fn(Address, *const u8, usize, Handle);
        download = "cuMemcpyDtoHAsync_v2": fn(*mut u8, Address, usize, Handle);
        fill = "cuMemsetD8Async": fn(Address, u8, usize, Handle);
        copy_2d = "cuMemcpy2DAsync_v2": fn(*const Copy2D, Handle);
        load_module = "cuModuleLoadData": fn(*mut Handle, *const c_void);
        find_function = "cuModuleGetFunction": fn(*mut Handle, Handle, *const c_char);
        set_function_attribute = "cuFuncSetAttribute": fn(Handle, c_int, c_int);
        launch = "cuLaunchKernelEx": fn(*const LaunchConfig, Handle, *const *const c_void, *const c_void);
        error_string = "cuGetErrorString": fn(c_int, *mut *const c_char);
    }
}

functions! {
    /// The compiler at run time, libnvrtc.
    Nvrtc {
        create = "nvrtcCreateProgram":
            fn(*mut Handle, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char);
        compile = "nvrtcCompileProgram": fn(Handle, c_int, *const *const c_char);
        cubin_size = "nvrtcGetCUBINSize": fn(Handle, *mut usize);
        cubin = "nvrtcGetCUBIN": fn(Handle, *mut u8);
        log_size = "nvrtcGetProgramLogSize": fn(Handle, *mut usize);
        log = "nvrtcGetProgramLog": fn(Handle, *mut u8);
        destroy = "nvrtcDestroyProgram": fn(*mut Handle);
    }
}

impl Driver {
    /// # Errors
    /// There is no driver, or it is too old.
    pub(super) fn open(library: &str) -> Result<Driver> {
        let found = Library::open(library).ok_or_else(|| Fault(format!("there is no {library}")))?;
        Driver::find(&found)
    }

    /// # Errors
    /// `status` is an error.
    pub(super) fn check(&self, status: c_int, what: &str) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: the function writes a pointer to a static string, or leaves null.
        unsafe { (self.error_string)(status, &mut text) };
        let text = match text.is_null() {
            true => format!("error {status}"),
            // SAFETY: a static, null-terminated string.
            false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
        };
        Err(Fault(format!("CUDA could not {what}: {text}")))
    }
}

/// Whether the loader finds a library of this name, such as `libcuda.so.1`.
pub fn has_library(name: &str) -> bool {
    Library::open(name).is_some()
}

impl Nvrtc {
    /// NVRTC from one of `folders`, or from where the loader finds it.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn open(folders: &[impl AsRef<Path>]) -> Result<Nvrtc> {
        // NVRTC opens its library of built-ins by name, which succeeds wherever the library lies if
        // it is open already.
        for major in ["13", "12"] {
            let names = [format!("libnvrtc-builtins.so.{major}"), format!("libnvrtc.so.{major}")];
            let places = folders.iter().map(|folder| Some(folder.as_ref())).chain([None]);
            for folder in places {
                if let Some(folder) = folder {
                    open_builtins(folder, &names[0]);
                }
                let name = folder.map_or(names[1].clone(), |f| f.join(&names[1]).display().to_string());
                if let Some(library) = Library::open(&name) {
                    return Nvrtc::find(&library);
                }
            }
        }
        Err(Fault(
            "there is no libnvrtc.so.13 (it is in CUDA's toolkit, and in the Python package \
                   nvidia-cuda-nvrtc)"
                .into(),
        ))
    }
}

/// Opens the library whose name is `prefix` and a version, the latest of several.
fn open_builtins(folder: &Path, prefix: &str) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(|entry| entry.ok());
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    if let Some(name) = latest(names, prefix) {
        Library::open(&folder.join(name).display().to_string());
    }
}

/// The name of `prefix` and the highest version, whose numbers are compared as numbers.
fn latest(names: impl Iterator<Item = String>, prefix: &str) -> Option<String> {
    let version = |name: &String| -> Vec<u32> {
        name[prefix.len()..].split('.').filter_map(|number| number.parse().ok()).collect()
    };
    names.filter(|name| name.starts_with(prefix)).max_by_key(version)
}

#[cfg(test)]
mod tests {
    #[test]
    fn latest_of_versions_with_two_digits_is_the_highest_number() {
        let names = ["libx.so.13.2", "libx.so.13.10", "libx.so.13.9", "liby.so.13.11"].map(String::from);
        assert_eq!(super::latest(names.into_iter(), "libx.so.13"), Some("libx.so.13.10".into()));
    }
}
