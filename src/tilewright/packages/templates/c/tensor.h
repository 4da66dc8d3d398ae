/* A tensor in the CPU's memory, compact and row-major. */
static inline DLTensor @name@_tensor(const void* data, int64_t* shape, int32_t ndim, int code, int bits) {
  DLTensor tensor;
  tensor.data = (void*)data;
  tensor.device.device_type = kDLCPU;
  tensor.device.device_id = 0;
  tensor.ndim = ndim;
  tensor.dtype.code = (uint8_t)code;
  tensor.dtype.bits = (uint8_t)bits;
  tensor.dtype.lanes = 1;
  tensor.shape = shape;
  tensor.strides = 0;
  tensor.byte_offset = 0;
  return tensor;
}
