//! Arrays in the device's memory.

use std::borrow::Cow;

use super::{Buffer, Device, Result, device, driver::Address};
use crate::{
    Array, Dtype,
    bridge::{self, RawArray},
};

impl Device {
    /// An array in `buffer`, which is freed with the array's last handle.
    ///
    /// # Panics
    /// If the buffer is too small.
    #[track_caller]
    pub fn array(&self, buffer: Buffer, shape: &[i32], dtype: Dtype) -> Array {
        let bytes = shape.iter().map(|&dim| dim as usize).product::<usize>() * dtype.size();
        assert!(bytes <= buffer.bytes(), "{bytes} bytes in a buffer of {}", buffer.bytes());
        let (pointer, bytes) = buffer.leak();
        let raw = bridge::device_array(shape, dtype, pointer as usize, bytes);
        Array(raw.unwrap_or_else(|e| panic!("{e}")))
    }

    /// An uninitialised array.
    ///
    /// # Errors
    /// The device has no memory left.
    #[track_caller]
    pub fn empty(&self, shape: &[i32], dtype: Dtype) -> Result<Array> {
        let bytes = shape.iter().map(|&dim| dim as usize).product::<usize>() * dtype.size();
        Ok(self.array(Buffer::new(self, bytes)?, shape, dtype))
    }

    /// An array of zeros.
    ///
    /// # Errors
    /// The device failed, or has no memory left.
    #[track_caller]
    pub fn zeros(&self, shape: &[i32], dtype: Dtype) -> Result<Array> {
        let array = self.empty(shape, dtype)?;
        self.clear(address(&array), array.nbytes())?;
        Ok(array)
    }

    /// The array itself, or a copy of it on the device.
    ///
    /// # Errors
    /// It cannot be evaluated, or the device failed.
    #[track_caller]
    pub fn resident<'a>(&self, array: &'a Array) -> crate::Result<Cow<'a, Array>> {
        if array.on_device() {
            return Ok(Cow::Borrowed(array));
        }
        let bytes = array.to_bytes()?;
        let copy = self.empty(array.shape(), array.dtype())?;
        self.upload(address(&copy), &bytes)?;
        Ok(Cow::Owned(copy))
    }

    /// A copy of elements `start..stop` along `axis`.
    ///
    /// # Errors
    /// The device failed, or has no memory left.
    #[track_caller]
    pub(crate) fn slice(&self, array: &Array, axis: usize, start: i32, stop: i32) -> Result<Array> {
        let mut shape = array.shape().to_vec();
        shape[axis] = stop - start;
        let out = self.empty(&shape, array.dtype())?;
        let [outer, dim, inner] = around(array, axis);
        let from = address(array) + (start as usize * inner) as Address;
        let width = (stop - start) as usize * inner;
        self.copy_rows([from, address(&out)], [dim * inner, width], width, outer)?;
        Ok(out)
    }

    /// The arrays concatenated along `axis`; their other dimensions and their types are equal.
    ///
    /// # Errors
    /// An array cannot be evaluated, or the device failed.
    #[track_caller]
    pub(crate) fn concatenate(&self, arrays: &[&Array], axis: usize) -> crate::Result<Array> {
        let mut shape = arrays[0].shape().to_vec();
        shape[axis] = arrays.iter().map(|array| array.shape()[axis]).sum();
        let out = self.empty(&shape, arrays[0].dtype())?;
        let (mut to, pitch) = (address(&out), around(&out, axis)[1] * around(&out, axis)[2]);
        for array in arrays.iter().filter(|array| array.size() > 0) {
            let array = self.resident(array)?;
            let [outer, dim, inner] = around(&array, axis);
            self.copy_rows([address(&array), to], [dim * inner, pitch], dim * inner, outer)?;
            to += (dim * inner) as Address;
        }
        Ok(out)
    }

    /// A copy of the array's bytes, once everything queued so far is done.
    ///
    /// # Errors
    /// The device failed.
    pub(crate) fn read(&self, array: &Array) -> Result<Vec<u8>> {
        let mut bytes = vec![0; array.nbytes()];
        self.download(address(array), &mut bytes)?;
        Ok(bytes)
    }
}

/// The product of the dimensions before `axis`, the dimension, and the bytes of one of its
/// elements.
fn around(array: &Array, axis: usize) -> [usize; 3] {
    let size = |dims: &[i32]| dims.iter().map(|&dim| dim as usize).product::<usize>();
    let shape = array.shape();
    [size(&shape[..axis]), shape[axis] as usize, size(&shape[axis + 1..]) * array.dtype().size()]
}

fn address(array: &Array) -> Address {
    bridge::device_address(&array.0) as Address
}

impl Array {
    /// Whether it lies in the device's memory.
    pub fn on_device(&self) -> bool {
        bridge::device_address(&self.0) != 0
    }

    /// The array's address on the device.
    ///
    /// # Panics
    /// If the array is in the host's memory.
    #[track_caller]
    pub fn device_address(&self) -> u64 {
        let address = address(self);
        assert!(address != 0, "an array of the host's as an argument of a kernel");
        address
    }

    /// A copy in the host's memory, or the array itself if it is there already.
    #[track_caller]
    pub fn to_host(&self) -> Array {
        let Some(device) = device().filter(|_| self.on_device()) else { return self.clone() };
        let bytes = device.read(self).unwrap_or_else(|e| panic!("{e}"));
        let fill = |to: &mut [u8]| {
            to.copy_from_slice(&bytes);
            Ok(())
        };
        Array::fill_with(self.shape(), self.dtype(), fill).unwrap_or_else(|e| panic!("{e}"))
    }

    /// The array as MLX's operations need it: a copy in the host's memory if it is on the device.
    #[track_caller]
    pub(crate) fn host(&self) -> Host<'_> {
        match self.on_device() {
            true => Host::Copy(self.to_host()),
            false => Host::Own(&self.0),
        }
    }
}

/// An array in the host's memory.
pub(crate) enum Host<'a> {
    Own(&'a RawArray),
    Copy(Array),
}

impl std::ops::Deref for Host<'_> {
    type Target = RawArray;

    fn deref(&self) -> &RawArray {
        match self {
            Host::Own(raw) => raw,
            Host::Copy(array) => &array.0,
        }
    }
}
