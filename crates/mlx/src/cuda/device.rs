//! The device: opened once, then shared by all threads.

#![allow(unsafe_code, reason = "calls to the driver")]

use std::{
    cell::Cell,
    collections::HashMap,
    ffi::{CStr, CString, c_char, c_int},
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
};

use super::{
    Fault, Result,
    compile::{CacheUse, CompileOptions, Sources, cubins},
    download::Pinned,
    driver::{Driver, Handle},
    operations::Operations,
};
use crate::profile;

/// An open device with all kernels loaded.
pub struct Device {
    pub(super) driver: Driver,
    context: Handle,
    pub(super) stream: Handle,
    /// Part of the disk cache's fingerprint: another device may compute other bits.
    pub name: String,
    pub multiprocessors: u32,
    /// Compute capability: major and minor.
    pub capability: (u32, u32),
    /// Bytes of the device's memory.
    pub total_memory: usize,
    /// Bytes that its memory can deliver per second, by clock and width; `None` if the driver does
    /// not know them.
    pub memory_bandwidth: Option<f64>,
    functions: HashMap<&'static str, Function>,
    /// Pinned memory through which results are read.
    pub(super) staging: Mutex<Staging>,
    /// Pieces of pinned memory for downloads that are waited for later.
    pub(super) pinned: Mutex<Vec<Pinned>>,
    /// Operations to be launched.
    pub(super) operations: Mutex<Operations>,
}

/// A kernel on the device.
pub(super) struct Function {
    pub handle: Handle,
    /// Bytes of dynamic shared memory that the kernel may use; a launch raises them if it needs
    /// more.
    pub shared: Mutex<u32>,
}

/// Pinned host memory.
pub(super) struct Staging {
    pub memory: *mut u8,
    pub bytes: usize,
}

// SAFETY: the memory is the process's, and a mutex guards it.
unsafe impl Send for Staging {}

impl Default for Staging {
    fn default() -> Staging {
        Staging { memory: std::ptr::null_mut(), bytes: 0 }
    }
}

static DEVICE: OnceLock<Device> = OnceLock::new();
static OPENING: Mutex<()> = Mutex::new(());

thread_local! {
    static ENTERED: Cell<bool> = const { Cell::new(false) };
    static IN_USE: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread computes on the device.
pub fn in_use() -> bool {
    IN_USE.get()
}

/// Sets whether the calling thread computes on the device from here on.
pub fn set_in_use(in_use: bool) {
    IN_USE.set(in_use);
}

/// The open device, if there is one.
pub fn device() -> Option<&'static Device> {
    DEVICE.get()
}

/// Opens the first device with the driver `library` (`libcuda.so.1`) and loads kernels, all of
/// which are named in `names`. Does nothing if a device is open.
///
/// # Errors
/// There is no driver, no device of compute capability 9.0 or later, or kernels cannot be compiled.
pub fn open(
    library: &str,
    sources: Sources,
    names: &[&'static str],
    options: &CompileOptions,
) -> Result<&'static Device> {
    let _opening: MutexGuard<()> = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(device) = DEVICE.get() {
        return Ok(device);
    }
    let device = Device::new(Driver::open(library)?, sources, names, options)?;
    Ok(DEVICE.get_or_init(|| device))
}

/// Attributes of a device.
const MULTIPROCESSORS: c_int = 16;
/// In kilohertz.
const MEMORY_CLOCK: c_int = 36;
/// In bits.
const MEMORY_WIDTH: c_int = 37;
const MAJOR: c_int = 75;
const MINOR: c_int = 76;

impl Device {
    fn new(
        driver: Driver,
        sources: Sources,
        names: &[&'static str],
        options: &CompileOptions,
    ) -> Result<Device> {
        let (mut count, mut ordinal, mut context, mut stream) = (0, 0, 0, 0);
        let (mut free, mut total_memory) = (0, 0);
        let mut name = [0 as c_char; 128];
        // SAFETY: every pointer is to a local of the type that the function writes.
        unsafe {
            driver.check((driver.init)(0), "start")?;
            driver.check((driver.device_count)(&mut count), "count devices")?;
            if count == 0 {
                return Err(Fault("there is no CUDA device".into()));
            }
            driver.check((driver.device)(&mut ordinal, 0), "find a device")?;
            driver.check((driver.device_name)(name.as_mut_ptr(), 127, ordinal), "name the device")?;
            driver.check((driver.retain_context)(&mut context, ordinal), "open the device")?;
            driver.check((driver.set_context)(context), "use the device")?;
            // Not synchronised with the default stream.
            driver.check((driver.create_stream)(&mut stream, 1), "make a stream")?;
            driver.check((driver.memory_info)(&mut free, &mut total_memory), "read the size of memory")?;
        }
        let attribute = |which: c_int| -> Result<c_int> {
            let mut value = 0;
            // SAFETY: as above.
            let status = unsafe { (driver.device_attribute)(&mut value, which, ordinal) };
            driver.check(status, "describe the device").map(|()| value)
        };
        let (major, minor) = (attribute(MAJOR)?, attribute(MINOR)?);
        // SAFETY: the driver ends the name with zero, and the last byte was left zero.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        if major < 9 {
            return Err(Fault(format!(
                "{name} has compute capability {major}.{minor}; the kernels need 9.0 or later"
            )));
        }
        let arch = format!("sm_{major}{minor}a");
        let load = |cache_use| load(&driver, &cubins(sources, &arch, options, cache_use)?, names);
        // A file in the cache may be damaged.
        let functions = load(CacheUse::Read).or_else(|_| load(CacheUse::Renew))?;
        let multiprocessors = attribute(MULTIPROCESSORS)? as u32;
        let memory_bandwidth = bandwidth(attribute(MEMORY_CLOCK).ok(), attribute(MEMORY_WIDTH).ok());
        let name = format!("{name} sm_{major}{minor}");
        let (staging, pinned, operations) = Default::default();
        Ok(Device {
            driver,
            context,
            stream,
            name,
            multiprocessors,
            capability: (major as u32, minor as u32),
            total_memory,
            memory_bandwidth,
            functions,
            staging,
            pinned,
            operations,
        })
    }

    /// Makes the device's context current on the calling thread, which every call to the driver
    /// needs.
    pub(super) fn enter(&self) -> &Driver {
        if !ENTERED.get() {
            // SAFETY: the context exists as long as the process.
            let status = unsafe { (self.driver.set_context)(self.context) };
            ENTERED.set(self.driver.check(status, "use the device").is_ok());
        }
        &self.driver
    }

    /// Whether the device was opened with such a kernel.
    pub(crate) fn has_kernel(&self, name: &str) -> bool {
        self.functions.contains_key(name)
    }

    /// # Panics
    /// If there is no such kernel: a bug of ours.
    pub(super) fn function(&self, name: &str) -> &Function {
        self.functions.get(name).unwrap_or_else(|| panic!("there is no kernel {name}"))
    }

    /// Waits until the device has done everything queued so far.
    ///
    /// # Errors
    /// A kernel failed.
    pub fn synchronize(&self) -> Result<()> {
        self.launch_operations()?;
        self.wait()
    }

    /// Waits until the device has done everything launched so far.
    pub(super) fn wait(&self) -> Result<()> {
        let driver = self.enter();
        // SAFETY: the stream exists as long as the process.
        let status = profile::waited(|| unsafe { (driver.synchronize)(self.stream) });
        driver.check(status, "finish a kernel")
    }
}

/// Bytes per second of memory with that clock and width; `None` if the driver reports 0 or nothing.
fn bandwidth(clock: Option<c_int>, width: Option<c_int>) -> Option<f64> {
    let known = |value: Option<c_int>| value.filter(|&value| value > 0).map(f64::from);
    // Two transfers in each of the kilohertz.
    Some(2.0 * 1e3 * known(clock)? * known(width)? / 8.0)
}

/// The kernels `names` of the modules.
fn load(
    driver: &Driver,
    images: &[Vec<u8>],
    names: &[&'static str],
) -> Result<HashMap<&'static str, Function>> {
    let mut modules = vec![];
    for image in images {
        let mut module = 0;
        // SAFETY: the image is a cubin, which the driver copies and checks.
        driver.check(unsafe { (driver.load_module)(&mut module, image.as_ptr().cast()) }, "load kernels")?;
        modules.push(module);
    }
    let find = |name: &'static str| -> Result<(&'static str, Function)> {
        let text = CString::new(name).map_err(|e| Fault(e.to_string()))?;
        for &module in &modules {
            let mut handle = 0;
            // SAFETY: the module is loaded, the name null-terminated.
            if unsafe { (driver.find_function)(&mut handle, module, text.as_ptr()) } == 0 {
                return Ok((name, Function { handle, shared: Mutex::new(48 << 10) }));
            }
        }
        Err(Fault(format!("no source has a kernel {name}")))
    };
    names.iter().map(|name| find(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidth_is_that_of_two_transfers_per_clock() {
        assert_eq!(bandwidth(Some(10_501_000), Some(384)), Some(1_008_096_000_000.0));
        assert_eq!((bandwidth(Some(0), Some(384)), bandwidth(Some(1), None)), (None, None));
    }
}
