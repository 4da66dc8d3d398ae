/* @name@.hpp - the model @name@ in C++17. */
#ifndef TILEWRIGHT_@upper@_HPP_
#define TILEWRIGHT_@upper@_HPP_

#include <memory>

#include "@name@.h"
#include "tilewright.hpp"

namespace @name@ {

@structs@

/* The model with its working memory. It serves one call at a time; threads make models of their own. */
class Model {
 public:
  /* Throws a tilewright::Error, as all functions here. */
  explicit Model(const tilewright::Options& options = {}) {
    tw_options given = {};
    given.abi_version = TW_ABI_VERSION;
    given.num_threads = options.threads;
    given.flags = options.flags;
    tw_context* context = nullptr;
    check(@name@_create(&given, &context));
    context_.reset(context);
  }
@methods@
  /* For the functions of @name@.h. */
  tw_context* context() const noexcept { return context_.get(); }

 private:
  struct Destroy {
    void operator()(tw_context* context) const noexcept { @name@_destroy(context); }
  };

  static void check(int status) {
    if (status != TW_OK) throw tilewright::Error(status, @name@_last_error());
  }

  std::unique_ptr<tw_context, Destroy> context_;
};

}  // namespace @name@

#endif /* TILEWRIGHT_@upper@_HPP_ */
