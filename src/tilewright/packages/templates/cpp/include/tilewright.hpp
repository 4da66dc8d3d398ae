/* tilewright.hpp - types of the C++ interface of models that Tilewright compiled. C++17. */
#ifndef TILEWRIGHT_HPP_
#define TILEWRIGHT_HPP_

#include <array>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "tilewright.h"

namespace tilewright {

/* In the sizes of a Tensor: one that is not fixed. */
inline constexpr std::int64_t dynamic = -1;

/* The failure of a call. status() is a tw_status, what() the message. */
class Error : public std::runtime_error {
 public:
  Error(int status, const std::string& message) : std::runtime_error(message), status_(status) {}
  int status() const noexcept { return status_; }

 private:
  int status_;
};

/* Options of a model: see tw_options in tilewright.h. */
struct Options {
  int threads = 0; /* at most; 0: one for each core */
  std::uint32_t flags = 0;
};

/* An element without a type in C++, by DLPack's code and its number of bits. */
template <int Code, int Bits>
struct Element {
  std::conditional_t<(Bits > 8), std::uint16_t, std::uint8_t> bits;
};
using float16 = Element<kDLFloat, 16>;
using bfloat16 = Element<kDLBfloat, 16>;

namespace detail {

template <typename T>
struct DType {
  static_assert(std::is_arithmetic_v<T>, "an element of a tensor is a number");
  static constexpr int code = std::is_same_v<T, bool>       ? kDLBool
                              : std::is_floating_point_v<T> ? kDLFloat
                              : std::is_signed_v<T>         ? kDLInt
                                                            : kDLUInt;
  static constexpr int bits = 8 * static_cast<int>(sizeof(T));
};
template <int Code, int Bits>
struct DType<Element<Code, Bits>> {
  static constexpr int code = Code, bits = Bits;
};
template <typename T>
struct DType<std::complex<T>> {
  static constexpr int code = kDLComplex, bits = 16 * static_cast<int>(sizeof(T));
};

}  // namespace detail

/* A view of a tensor's elements, which are compact and row-major: Tensor<const float, dynamic, 8>.
 *
 * It is made from the elements, a pointer or a container, and the sizes that are not fixed, in their order. */
template <typename T, std::int64_t... Sizes>
class Tensor {
 public:
  using value_type = std::remove_cv_t<T>;
  static constexpr std::size_t rank = sizeof...(Sizes);
  static constexpr std::size_t dynamic_sizes = (std::size_t{0} + ... + std::size_t{Sizes == dynamic});
  using Shape = std::array<std::int64_t, rank>;

  Tensor() = default;

  template <typename... Given, std::enable_if_t<sizeof...(Given) == dynamic_sizes &&
                                                    (std::is_convertible_v<Given, std::int64_t> && ...),
                                                int> = 0>
  Tensor(T* elements, Given... sizes) : data_(elements) {
    [[maybe_unused]] const std::array<std::int64_t, dynamic_sizes + 1> given = {
        static_cast<std::int64_t>(sizes)..., 0};
    std::size_t next = 0;
    for (std::int64_t& size : shape_)
      if (size == dynamic) size = given[next++];
  }

  /* Throws an Error if the container does not have as many elements as the sizes say. */
  template <typename Container, typename... Given,
            typename = std::enable_if_t<
                sizeof...(Given) == dynamic_sizes && !std::is_pointer_v<std::decay_t<Container>> &&
                std::is_convertible_v<decltype(std::data(std::declval<Container&>())), T*>>>
  Tensor(Container&& elements, Given... sizes) : Tensor(std::data(elements), sizes...) {
    if (std::size(elements) != size())
      throw Error(TW_ERROR_SHAPE, "a tensor of " + std::to_string(size()) + " elements is given " +
                                      std::to_string(std::size(elements)));
  }

  /* The tensor that the runtime describes. */
  static Tensor of(const DLTensor& tensor) {
    Tensor result;
    result.data_ = static_cast<T*>(tensor.data);
    for (std::size_t k = 0; k < rank; ++k) result.shape_[k] = tensor.shape[k];
    return result;
  }

  T* data() const noexcept { return data_; }
  const Shape& shape() const noexcept { return shape_; }
  std::size_t size() const noexcept {
    std::size_t count = 1;
    for (std::int64_t size : shape_) count *= static_cast<std::size_t>(size < 0 ? 0 : size);
    return count;
  }
  T* begin() const noexcept { return data_; }
  T* end() const noexcept { return data_ + size(); }
  /* The element at a position in memory. */
  T& operator[](std::size_t k) const { return data_[k]; }

  /* The same for the functions of tilewright.h. */
  DLTensor dl() const noexcept {
    DLTensor tensor = {};
    tensor.data = const_cast<value_type*>(data_);
    tensor.device.device_type = kDLCPU;
    tensor.ndim = static_cast<std::int32_t>(rank);
    tensor.dtype.code = static_cast<std::uint8_t>(detail::DType<value_type>::code);
    tensor.dtype.bits = static_cast<std::uint8_t>(detail::DType<value_type>::bits);
    tensor.dtype.lanes = 1;
    tensor.shape = const_cast<std::int64_t*>(shape_.data());
    return tensor;
  }

 private:
  T* data_ = nullptr;
  Shape shape_ = {Sizes...};
};

}  // namespace tilewright

#endif /* TILEWRIGHT_HPP_ */
