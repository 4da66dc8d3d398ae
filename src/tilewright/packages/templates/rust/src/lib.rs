//! The model @name@, compiled by Tilewright.

mod ffi;
mod tensor;

use std::ffi::CStr;
use std::ptr::NonNull;

pub use ffi::DLDataType;
pub use tensor::{Bf16, Bits, Complex128, Complex64, Element, Error, Tensor, TensorMut, F16};

use ffi::DLTensor;

@structs@

/// The model with its working memory. It serves one call at a time; threads make models of their own, or pass
/// one on.
#[derive(Debug)]
pub struct Model {
    context: NonNull<ffi::Context>,
}

unsafe impl Send for Model {}

impl Model {
    /// A model that uses all cores.
    pub fn new() -> Result<Model, Error> {
        Model::with_threads(0)
    }

    /// A model that uses at most `threads` threads; 0: one for each core.
    pub fn with_threads(threads: usize) -> Result<Model, Error> {
        let options = ffi::Options {
            abi_version: ffi::ABI_VERSION,
            num_threads: threads.min(i32::MAX as usize) as i32,
            weights: std::ptr::null(),
            weights_size: 0,
            flags: 0,
            weights_path: std::ptr::null(),
        };
        let mut context = std::ptr::null_mut();
        check(unsafe { ffi::@name@_create(&options, &mut context) })?;
        Ok(Model { context: NonNull::new(context).expect("a context is made where no error is reported") })
    }
@methods@
}

impl Drop for Model {
    fn drop(&mut self) {
        unsafe { ffi::@name@_destroy(self.context.as_ptr()) }
    }
}

fn check(status: i32) -> Result<(), Error> {
    if status == 0 {
        return Ok(());
    }
    let message = unsafe { CStr::from_ptr(ffi::@name@_last_error()) };
    Err(Error { status, message: message.to_string_lossy().into_owned() })
}
