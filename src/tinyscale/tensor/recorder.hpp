#pragma once
// What stands between ops and a capture (compile/capture.hpp): while one is under way on a thread,
// ops there are recorded and not run. A recorded tensor has a shape, and no numbers until somebody
// reads them.

#include <cstddef>  // size_t
#include <cstdint>  // int32_t
#include <vector>   // vector

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/function.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/shape.hpp"
#include "tinyscale/base/thread_scope.hpp"
#include "tinyscale/tensor/op_set.hpp"
#include "tinyscale/tensor/storage.hpp"

namespace tinyscale {

class Tensor;

namespace detail {

class Recorder {
 public:
  const int threads = thread_limit();  // of loops where nothing is recorded

  Recorder() = default;
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // The result of an op over these tensors, recorded or not; empty ones are left out.
  virtual Tensor record(Op op, const Tensor* const* inputs, std::size_t n, const Shape& shape,
                        const List<double>& numbers) = 0;
  // Result `number` of an op of several.
  virtual Tensor part(const Tensor& all, int number, const Shape& shape) = 0;
  // Token numbers as a tensor of that shape.
  virtual Tensor ids(const std::vector<std::int32_t>& ids, const Shape& shape) = 0;
  // Token numbers that stand in this vector, wherever an op is given it, are those of `as`.
  virtual void bind_ids(const std::vector<std::int32_t>& ids, const Tensor& as) = 0;
  // What `read` gives, asked for once at every run of what is recorded.
  virtual Tensor host(const Function<Tensor()>& read, const Shape& shape) = 0;
  // A handle of its own to the same numbers.
  virtual Tensor same(const Tensor& x) = 0;
  // Whether the numbers of x, recorded or not, lie in row-major order where ops are run.
  virtual bool is_dense(const Tensor& x) = 0;
  // x becomes `value` from here on.
  virtual void write(const char* name, const Tensor& x, const Tensor& value) = 0;
  // Gradients of sum(y dy); no dy: of y, one number.
  virtual void backward(const Tensor& y, const Tensor* dy) = 0;
  // Somebody asks for numbers: the place where they stand once this returns.
  virtual float* read(Storage& storage, const char* file, int line) = 0;
  // Somebody looks at the numbers of a tensor that is not recorded.
  virtual void read_outside(const Tensor& x, const char* file, int line) = 0;

 protected:
  ~Recorder() = default;
};

inline Recorder*& thread_recorder() {
  static thread_local struct { Recorder* recorder; } own;
  return own.recorder;
}

// The numbers of a recorded tensor: what is recorded so far is computed now (a graph break).
[[gnu::noinline]] inline float* read_recorded(Storage& storage, const char* file, int line) {
  if (storage.data != nullptr) {
    return storage.data;
  }
  Recorder* const recorder = thread_recorder();
  if (recorder == nullptr || storage.node < 0) {
    fail({"compile: ", file, ":", line, " reads a tensor of ", storage.count,
          " numbers that was recorded in a call which is over; return it from the function"});
  }
  return recorder->read(storage, file, line);
}

// Gives a capture its thread, whose loops run on no other then; null: ends its hold of it.
class RecorderScope {
 public:
  explicit RecorderScope(Recorder* recorder)
      : before_(thread_recorder()), threads_(thread_limit()) {
    thread_recorder() = recorder;
    thread_limit() = recorder != nullptr ? 1 : before_ != nullptr ? before_->threads : threads_;
  }
  ~RecorderScope() {
    thread_recorder() = before_;
    thread_limit() = threads_;
  }
  RecorderScope(const RecorderScope&) = delete;
  RecorderScope& operator=(const RecorderScope&) = delete;

 private:
  Recorder* before_;
  int threads_;
};

}  // namespace detail
}  // namespace tinyscale
