//! Reading an array's values once they are computed, without waiting for later operations.

use crate::{Array, Error, Result, cuda, dtype::Element};

/// An array whose values are on their way to the host's memory.
pub struct PendingRead {
    array: Array,
    /// Of an array on a device.
    download: Option<cuda::Download>,
}

impl Array {
    /// Starts reading the array as it is after everything queued so far.
    ///
    /// # Errors
    /// The device failed.
    pub fn start_read(&self) -> Result<PendingRead> {
        let device = cuda::device().filter(|_| self.on_device());
        let start = |device: &cuda::Device| device.start_download(self.device_address(), self.nbytes());
        Ok(PendingRead { array: self.clone(), download: device.map(start).transpose()? })
    }
}

impl PendingRead {
    /// The array.
    pub fn array(&self) -> &Array {
        &self.array
    }

    /// Waits for the values, row-major.
    ///
    /// # Errors
    /// Computing them failed, or the array's type is not `T`.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        let Some(download) = &self.download else { return self.array.to_vec() };
        if self.array.dtype() != T::DTYPE {
            let dtype = self.array.dtype().name();
            return Err(Error::WrongType { asked: std::any::type_name::<T>(), dtype });
        }
        Ok(bytemuck::pod_collect_to_vec(download.wait()?))
    }
}
