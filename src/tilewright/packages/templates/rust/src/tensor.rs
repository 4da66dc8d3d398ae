//! Tensors, elements and errors.

use std::{error, fmt};

use crate::ffi::DLDataType;

/// The failure of a call: a status of tilewright.h, and a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    pub status: i32,
    pub message: String,
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl error::Error for Error {}

/// An element of a tensor.
///
/// # Safety
///
/// Any bytes that the runtime writes for the data type are a value of the Rust type.
pub unsafe trait Element: Copy {
    const DTYPE: DLDataType;
}

macro_rules! elements {
    ($($kind:ty: $code:expr, $bits:expr;)*) => {
        $(unsafe impl Element for $kind {
            const DTYPE: DLDataType = DLDataType { code: $code, bits: $bits, lanes: 1 };
        })*
    };
}

elements! {
    i8: 0, 8; i16: 0, 16; i32: 0, 32; i64: 0, 64;
    u8: 1, 8; u16: 1, 16; u32: 1, 32; u64: 1, 64;
    f32: 2, 32; f64: 2, 64; bool: 6, 8;
}

/// The bits of an element that Rust has no type for, with DLPack's code: `Bits<u16, 4, 16>` is bfloat16.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Bits<T, const CODE: u8, const BITS: u8>(pub T);

unsafe impl<T: Copy, const CODE: u8, const BITS: u8> Element for Bits<T, CODE, BITS> {
    const DTYPE: DLDataType = DLDataType { code: CODE, bits: BITS, lanes: 1 };
}

pub type F16 = Bits<u16, 2, 16>;
pub type Bf16 = Bits<u16, 4, 16>;
/// Real and imaginary part.
pub type Complex64 = Bits<[f32; 2], 5, 64>;
pub type Complex128 = Bits<[f64; 2], 5, 128>;

fn checked<const N: usize>(elements: usize, shape: [usize; N]) -> [i64; N] {
    let count = shape.iter().try_fold(1usize, |count, &size| count.checked_mul(size));
    assert!(
        count == Some(elements),
        "a tensor of shape {:?} is given {} elements",
        shape,
        elements
    );
    shape.map(|size| size as i64)
}

/// Elements of a tensor with N dimensions, compact and row-major.
#[derive(Debug, Clone, Copy)]
pub struct Tensor<'a, T, const N: usize> {
    pub(crate) data: &'a [T],
    pub(crate) shape: [i64; N],
}

impl<'a, T: Element, const N: usize> Tensor<'a, T, N> {
    /// A tensor of these elements. Panics if their number is not that of the shape.
    pub fn new(data: &'a [T], shape: [usize; N]) -> Self {
        Tensor { data, shape: checked(data.len(), shape) }
    }

    pub fn data(&self) -> &'a [T] {
        self.data
    }

    pub fn shape(&self) -> [usize; N] {
        self.shape.map(|size| size as usize)
    }
}

/// A tensor that the model also writes.
#[derive(Debug)]
pub struct TensorMut<'a, T, const N: usize> {
    pub(crate) data: &'a mut [T],
    pub(crate) shape: [i64; N],
}

impl<'a, T: Element, const N: usize> TensorMut<'a, T, N> {
    /// A tensor of these elements. Panics if their number is not that of the shape.
    pub fn new(data: &'a mut [T], shape: [usize; N]) -> Self {
        let shape = checked(data.len(), shape);
        TensorMut { data, shape }
    }

    pub fn data(&mut self) -> &mut [T] {
        self.data
    }

    pub fn shape(&self) -> [usize; N] {
        self.shape.map(|size| size as usize)
    }
}
