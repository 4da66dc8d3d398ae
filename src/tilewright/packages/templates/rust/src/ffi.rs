//! The functions of the library that this crate calls, and the types of tilewright.h.

#![allow(dead_code)]

use std::os::raw::{c_char, c_int, c_void};

use crate::tensor::{Element, Tensor, TensorMut};

pub const ABI_VERSION: u32 = @abi_version@;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct DLDevice {
    pub device_type: i32,
    pub device_id: i32,
}

/// DLPack's code, number of bits and lanes of an element.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DLDataType {
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct DLTensor {
    pub data: *mut c_void,
    pub device: DLDevice,
    pub ndim: i32,
    pub dtype: DLDataType,
    pub shape: *mut i64,
    pub strides: *mut i64,
    pub byte_offset: u64,
}

#[repr(C)]
pub struct Options {
    pub abi_version: u32,
    pub num_threads: i32,
    pub weights: *const c_void,
    pub weights_size: u64,
    pub flags: u32,
    pub weights_path: *const c_char,
}

#[repr(C)]
pub struct Context {
    _private: [u8; 0],
}

extern "C" {
    pub fn @name@_create(options: *const Options, context: *mut *mut Context) -> c_int;
    pub fn @name@_destroy(context: *mut Context);
    pub fn @name@_function_run(
        context: *mut Context,
        function: i32,
        inputs: *const DLTensor,
        num_inputs: i32,
        outputs: *mut DLTensor,
        num_outputs: i32,
    ) -> c_int;
    pub fn @name@_state(context: *mut Context, index: i32, state: *mut DLTensor) -> c_int;
    pub fn @name@_reset(context: *mut Context) -> c_int;
    pub fn @name@_last_error() -> *const c_char;
}

impl DLTensor {
    /// No elements: the runtime provides them.
    pub fn empty() -> DLTensor {
        DLTensor {
            data: std::ptr::null_mut(),
            device: DLDevice { device_type: 1, device_id: 0 },
            ndim: 0,
            dtype: DLDataType { code: 0, bits: 0, lanes: 0 },
            shape: std::ptr::null_mut(),
            strides: std::ptr::null_mut(),
            byte_offset: 0,
        }
    }

    fn of(data: *const c_void, shape: &[i64], dtype: DLDataType) -> DLTensor {
        DLTensor {
            data: data as *mut c_void,
            ndim: shape.len() as i32,
            dtype,
            shape: shape.as_ptr() as *mut i64,
            ..DLTensor::empty()
        }
    }

    pub fn read<T: Element, const N: usize>(tensor: &Tensor<'_, T, N>) -> DLTensor {
        DLTensor::of(tensor.data.as_ptr().cast(), &tensor.shape, T::DTYPE)
    }

    pub fn updated<T: Element, const N: usize>(tensor: &mut TensorMut<'_, T, N>) -> DLTensor {
        DLTensor::of(tensor.data.as_mut_ptr().cast(), &tensor.shape, T::DTYPE)
    }

    fn sizes<const N: usize>(&self) -> [i64; N] {
        let mut shape = [0; N];
        for (k, size) in shape.iter_mut().enumerate() {
            // The runtime describes a tensor of N dimensions.
            *size = unsafe { *self.shape.add(k) };
        }
        shape
    }

    /// # Safety
    ///
    /// The runtime has described a tensor of this type, which lives as long as `'a`.
    pub unsafe fn view<'a, T: Element, const N: usize>(&self) -> Tensor<'a, T, N> {
        let shape = self.sizes::<N>();
        let count = shape.iter().product::<i64>() as usize;
        let data = if count == 0 { &[] } else { std::slice::from_raw_parts(self.data as *const T, count) };
        Tensor { data, shape }
    }

    /// # Safety
    ///
    /// As for `view`, and nothing else refers to the elements.
    pub unsafe fn view_mut<'a, T: Element, const N: usize>(&self) -> TensorMut<'a, T, N> {
        let shape = self.sizes::<N>();
        let count = shape.iter().product::<i64>() as usize;
        let data: &'a mut [T] =
            if count == 0 { &mut [] } else { std::slice::from_raw_parts_mut(self.data as *mut T, count) };
        TensorMut { data, shape }
    }
}
