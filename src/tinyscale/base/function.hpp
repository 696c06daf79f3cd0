#pragma once
// A callable of any type behind one type, so that public functions are no templates. What
// std::function does, while each lambda in one adds less to a user's compile: a quarter without
// optimisation, 0.6 at -O2. Copies share one callable.

#include <cstddef>     // nullptr_t
#include <functional>  // function
#include <new>         // placement
#include <utility>     // declval

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/shared.hpp"

namespace tinyscale {

template <class Signature>
class Function;

namespace detail {

// What needs no signature: the callable, and how many hold it.
class FunctionHead : public SharedHead {
 public:
  FunctionHead() = default;
  FunctionHead(const FunctionHead& other) = default;
  FunctionHead& operator=(FunctionHead other) noexcept {
    swap(other);
    return *this;
  }

 protected:
  [[noreturn, gnu::cold, gnu::noinline]] static void fail_empty() {
    fail({"Function: there is nothing to call; give it a lambda or the name of a function"});
  }
};

// Whether a callable given to a Function is an empty one.
template <class F>
bool is_empty_callable(const F&) {
  return false;
}
template <class F>
bool is_empty_callable(F* const& pointer) {
  return pointer == nullptr;
}
template <class S>
bool is_empty_callable(const std::function<S>& other) {
  return !other;
}
template <class S>
bool is_empty_callable(const Function<S>& other) {
  return !other;
}

}  // namespace detail

template <class R, class... A>
class Function<R(A...)> : public detail::FunctionHead {
 public:
  Function() = default;
  Function(std::nullptr_t) {}
  template <class F, class = decltype(static_cast<R>(std::declval<F&>()(std::declval<A>()...)))>
  Function(F body) {
    static_assert(alignof(F) <= 16, "as far as make_block aligns");
    if (!detail::is_empty_callable(body)) {
      make_block(sizeof(F));
      new (object_) F(static_cast<F&&>(body));
      holders_->destroy = [](void* object, bool) { static_cast<F*>(object)->~F(); };
      call_ = [](void* object, A... arguments) -> R {
        return static_cast<R>((*static_cast<F*>(object))(static_cast<A&&>(arguments)...));
      };
    }
  }

  R operator()(A... arguments) const {
    if (object_ == nullptr) {
      fail_empty();
    }
    return call_(object_, static_cast<A&&>(arguments)...);
  }

 private:
  R (*call_)(void* object, A... arguments) = nullptr;
};

}  // namespace tinyscale
