/* Runs the model once, on zeros, and prints the first elements of each output. */
#include <cstdio>
#include <memory>
#include <vector>

#include "@name@.hpp"

template <typename T>
static double number(T value) {
  if constexpr (std::is_arithmetic_v<T>)
    return static_cast<double>(value);
  else
    return 0.0;
}

template <typename Tensor>
static void print(const char* name, const Tensor& tensor) {
  std::printf("%s:", name);
  for (std::size_t k = 0; k < tensor.size() && k < 4; ++k) std::printf(" %g", number(tensor[k]));
  std::printf("\n");
}

int main() try {
  @name@::Model model;
@buffers@
  const auto outputs = model.@call@({@arguments@});
@prints@
  return 0;
} catch (const tilewright::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
