//! Element-wise, shape, order and reduction operations, as methods and operators on [`Array`].
//!
//! Results have the operands' dtype; scalars are built in the operand's dtype. All panic at the
//! caller's line on shapes that do not fit.

use std::ops;

use crate::{
    Array, Dtype,
    array::built,
    bridge, cuda,
    cuda::on_device::{self, Arithmetic},
    eager,
    eval::list,
};

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident),*) => {
        impl Array {
            $($(#[$doc])* #[track_caller] pub fn $name(&self) -> Array { built(bridge::$name(&self.host())) })*
        }
    };
}
unary!(
    exp,
    log,
    sigmoid,
    /// log(1 + exp(x)), without overflow.
    softplus,
    sin,
    cos,
    square,
    /// 1 / sqrt(x).
    rsqrt,
    tanh,
    floor
);

macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident),*) => {
        impl Array {
            $($(#[$doc])* #[track_caller]
            pub fn $name(&self, other: &Array) -> Array { built(bridge::$name(&self.host(), &other.host())) })*
        }
    };
}
binary!(
    maximum,
    minimum,
    /// Matrix product over the last two axes.
    matmul,
    greater,
    greater_equal,
    less,
    less_equal
);

macro_rules! operator {
    ($($op:ident $method:ident $arithmetic:ident $bridge:ident),*) => {
        $(
            impl ops::$op<&Array> for &Array {
                type Output = Array;
                #[track_caller]
                fn $method(self, other: &Array) -> Array {
                    on_device::arithmetic(Arithmetic::$arithmetic, self, other)
                        .unwrap_or_else(|| built(bridge::$bridge(&self.host(), &other.host())))
                }
            }
            impl ops::$op<Array> for &Array {
                type Output = Array;
                #[track_caller]
                fn $method(self, other: Array) -> Array { ops::$op::$method(self, &other) }
            }
            impl ops::$op<&Array> for Array {
                type Output = Array;
                #[track_caller]
                fn $method(self, other: &Array) -> Array { ops::$op::$method(&self, other) }
            }
            impl ops::$op<Array> for Array {
                type Output = Array;
                #[track_caller]
                fn $method(self, other: Array) -> Array { ops::$op::$method(&self, &other) }
            }
            impl ops::$op<f32> for &Array {
                type Output = Array;
                #[track_caller]
                fn $method(self, other: f32) -> Array {
                    on_device::arithmetic_with(Arithmetic::$arithmetic, self, other)
                        .unwrap_or_else(|| ops::$op::$method(self, &Array::scalar(other, self.dtype())))
                }
            }
            impl ops::$op<f32> for Array {
                type Output = Array;
                #[track_caller]
                fn $method(self, other: f32) -> Array { ops::$op::$method(&self, other) }
            }
        )*
    };
}
operator!(Add add Add add, Sub sub Subtract subtract, Mul mul Multiply multiply, Div div Divide divide);

impl ops::Neg for &Array {
    type Output = Array;
    #[track_caller]
    fn neg(self) -> Array {
        built(bridge::negative(&self.host()))
    }
}

impl ops::Neg for Array {
    type Output = Array;
    #[track_caller]
    fn neg(self) -> Array {
        -&self
    }
}

impl Array {
    /// Conversion; the same array if it has the type already.
    #[track_caller]
    pub fn astype(&self, dtype: Dtype) -> Array {
        if self.dtype() == dtype { self.clone() } else { built(bridge::astype(&self.host(), dtype)) }
    }

    /// The same values, row-major in memory.
    #[track_caller]
    pub fn contiguous(&self) -> Array {
        if self.on_device() { self.clone() } else { built(bridge::contiguous(&self.0)) }
    }

    /// One dimension may be -1: it is inferred.
    #[track_caller]
    pub fn reshape(&self, shape: &[i32]) -> Array {
        if !self.on_device() {
            return built(bridge::reshape(&self.0, shape));
        }
        // A reshape on the device is a view made at once, which needs every dimension.
        let known: i32 = shape.iter().filter(|&&dim| dim >= 0).product();
        let infer = |&dim: &i32| if dim < 0 { self.size() as i32 / known.max(1) } else { dim };
        let shape: Vec<i32> = shape.iter().map(infer).collect();
        let size: usize = shape.iter().map(|&dim| dim as usize).product();
        assert!(size == self.size() && size > 0, "{:?} is not {shape:?}", self.shape());
        built(bridge::reshape(&self.0, &shape))
    }

    #[track_caller]
    pub fn transpose(&self, axes: &[i32]) -> Array {
        built(bridge::transpose(&self.host(), axes))
    }

    #[track_caller]
    pub fn broadcast_to(&self, shape: &[i32]) -> Array {
        built(bridge::broadcast_to(&self.host(), shape))
    }

    /// Indices `start..stop` along `axis` (negative counts from the end), everything along the
    /// others.
    #[track_caller]
    pub fn slice(&self, axis: i32, start: i32, stop: i32) -> Array {
        if start == 0 && stop == self.dim(axis) {
            return self.clone();
        }
        let (from, to) = self.span(axis, start, stop);
        if !self.on_device() {
            return built(bridge::slice(&self.0, &from, &to));
        }
        let axis = if axis < 0 { axis + self.ndim() as i32 } else { axis } as usize;
        if start < stop && self.size() > 0 && self.shape()[..axis].iter().all(|&dim| dim == 1) {
            return built(bridge::slice(&self.0, &from, &to));
        }
        let device = cuda::device().unwrap_or_else(|| unreachable!("an array on no device"));
        device.slice(self, axis, start, stop).unwrap_or_else(|e| panic!("{e}"))
    }

    /// `self` with `update` written at `start..` along `axis`; in place if nothing else holds
    /// `self`'s buffer.
    #[track_caller]
    pub fn slice_update(&self, axis: i32, start: i32, update: &Array) -> Array {
        let (from, to) = self.span(axis, start, start + update.dim(axis));
        built(bridge::slice_update(&self.host(), &update.host(), &from, &to))
    }

    #[track_caller]
    fn span(&self, axis: i32, start: i32, stop: i32) -> (Vec<i32>, Vec<i32>) {
        let dim = self.dim(axis);
        assert!(0 <= start && start <= stop && stop <= dim, "span {start}..{stop} of axis of size {dim}");
        let index = if axis < 0 { axis + self.ndim() as i32 } else { axis } as usize;
        let (mut from, mut to) = (vec![0; self.ndim()], self.shape().to_vec());
        (from[index], to[index]) = (start, stop);
        (from, to)
    }

    /// Consecutive pieces of the given sizes along `axis`; the sizes add up to the axis.
    #[track_caller]
    pub fn split(&self, axis: i32, sizes: &[i32]) -> Vec<Array> {
        assert_eq!(sizes.iter().sum::<i32>(), self.dim(axis), "split sizes {sizes:?} of {:?}", self.shape());
        let mut start = 0;
        let piece = |&size: &i32| {
            start += size;
            self.slice(axis, start - size, start)
        };
        sizes.iter().map(piece).collect()
    }

    #[track_caller]
    pub fn concatenate<'a>(arrays: impl IntoIterator<Item = &'a Array>, axis: i32) -> Array {
        let arrays: Vec<&Array> = arrays.into_iter().collect();
        if let Some(joined) = on_device::concatenate(&arrays, axis) {
            return joined;
        }
        eager::concatenate(&arrays, axis).unwrap_or_else(|| built(bridge::concatenate(&list(arrays), axis)))
    }

    /// Rows `indices` along `axis`.
    #[track_caller]
    pub fn take(&self, indices: &Array, axis: i32) -> Array {
        let copied = match axis {
            0 => on_device::rows(self, indices).or_else(|| eager::rows(self, indices)),
            _ => None,
        };
        copied.unwrap_or_else(|| built(bridge::take(&self.host(), &indices.host(), axis)))
    }

    #[track_caller]
    pub fn take_along_axis(&self, indices: &Array, axis: i32) -> Array {
        built(bridge::take_along_axis(&self.host(), &indices.host(), axis))
    }

    /// One product per token and chosen matrix of a stack: `self` `[tokens, 1 or n, 1, in]`,
    /// `weight` `[matrices, out, in]`, `indices` uint32 `[tokens, n]`; returns
    /// `[tokens, n, 1, out]`.
    #[track_caller]
    pub fn gather_mm(&self, weight: &Array, indices: &Array) -> Array {
        built(bridge::gather_mm(&self.host(), &weight.host(), &indices.host()))
    }

    /// `self` with `values` put at `indices` along `axis`.
    #[track_caller]
    pub fn put_along_axis(&self, indices: &Array, values: &Array, axis: i32) -> Array {
        built(bridge::put_along_axis(&self.host(), &indices.host(), &values.host(), axis))
    }

    /// `self` with `values` added at `indices` along `axis`; repeated indices add up.
    #[track_caller]
    pub fn scatter_add(&self, indices: &Array, values: &Array, axis: i32) -> Array {
        built(bridge::scatter_add_axis(&self.host(), &indices.host(), &values.host(), axis))
    }

    /// `start..stop` in steps of 1.
    #[track_caller]
    pub fn arange(start: i32, stop: i32, dtype: Dtype) -> Array {
        built(bridge::arange(start, stop, dtype))
    }

    #[track_caller]
    pub fn full(shape: &[i32], value: f32, dtype: Dtype) -> Array {
        built(bridge::full(shape, value, dtype))
    }

    #[track_caller]
    pub fn zeros(shape: &[i32], dtype: Dtype) -> Array {
        if bridge::on_gpu() {
            return Array::full(shape, 0.0, dtype);
        }
        let zero = |bytes: &mut [u8]| {
            bytes.fill(0);
            Ok(())
        };
        Array::fill_with(shape, dtype, zero).unwrap_or_else(|e| panic!("{e}"))
    }

    /// `yes` where `self` (bool) is true, else `no`.
    #[track_caller]
    pub fn select(&self, yes: &Array, no: &Array) -> Array {
        built(bridge::select(&self.host(), &yes.host(), &no.host()))
    }

    #[track_caller]
    pub fn sum(&self, axis: i32, keepdims: bool) -> Array {
        built(bridge::sum(&self.host(), axis, keepdims))
    }

    #[track_caller]
    pub fn max(&self, axis: i32, keepdims: bool) -> Array {
        built(bridge::max(&self.host(), axis, keepdims))
    }

    /// Index (uint32) of the largest value along `axis`; the first of equals.
    #[track_caller]
    pub fn argmax(&self, axis: i32) -> Array {
        built(bridge::argmax(&self.host(), axis))
    }

    #[track_caller]
    pub fn cumsum(&self, axis: i32) -> Array {
        built(bridge::cumsum(&self.host(), axis))
    }

    /// Indices (uint32) that sort `axis` in ascending order.
    #[track_caller]
    pub fn argsort(&self, axis: i32) -> Array {
        built(bridge::argsort(&self.host(), axis))
    }

    /// log(sum(exp(x))) along `axis`, which is dropped.
    #[track_caller]
    pub fn logsumexp(&self, axis: i32) -> Array {
        built(bridge::logsumexp(&self.host(), axis))
    }

    /// Softmax along `axis`, computed in float32.
    #[track_caller]
    pub fn softmax(&self, axis: i32) -> Array {
        built(bridge::softmax(&self.host(), axis))
    }

    /// Standard Gumbel noise (float32), a pure function of `shape` and `seed` (Threefry,
    /// counter-based).
    #[track_caller]
    pub fn gumbel(shape: &[i32], seed: u64) -> Array {
        built(bridge::gumbel(shape, seed))
    }
}
