#pragma once
// A tensor: a shape, a shared buffer of floats, and the record of how it was made.
// Row-major unless it is a view, float32. Copying a Tensor copies the handle, never the numbers.

#include <cstdint>           // int64_t
#include <initializer_list>  // inputs of an op
#include <iostream>          // ostream
#include <string>            // string
#include <utility>           // move
#include <vector>            // vector

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/shape.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/compute/row_moves.hpp"
#include "tinyscale/measure/context.hpp"
#include "tinyscale/measure/memory.hpp"
#include "tinyscale/tensor/graph.hpp"
#include "tinyscale/tensor/recorder.hpp"
#include "tinyscale/tensor/storage.hpp"
#include "tinyscale/tensor/strides.hpp"

namespace tinyscale {

// The line that calls, for what says where a number was read.
#define TINYSCALE_LINE const char *file = __builtin_FILE(), int line = __builtin_LINE()

class Tensor {
 public:
  Tensor() = default;
  // Uninitialised numbers; users call zeros, full, randn, ...
  explicit Tensor(const Shape& shape) : Tensor(shape, context().kind) {}
  Tensor(const Shape& shape, MemoryKind kind)
      : shape_(shape),
        count_(shape.count()),
        storage_(detail::make_storage(shape, count_, kind)),
        data_(storage_->data) {}
  Tensor(const Shape& shape, Shared<detail::Storage> storage)
      : shape_(shape), count_(shape.count()), storage_(std::move(storage)), data_(storage_->data) {}

  // Out of line: each holds three counts, and every op copies, moves and drops tensors.
  [[gnu::noinline]] Tensor(const Tensor& other) = default;
  [[gnu::noinline]] Tensor(Tensor&& other) = default;
  [[gnu::noinline]] Tensor& operator=(const Tensor& other) = default;
  [[gnu::noinline]] Tensor& operator=(Tensor&& other) = default;
  [[gnu::noinline]] ~Tensor() = default;

  bool defined() const { return storage_ != nullptr; }
  // By a capture that may still be under way: there are no numbers, or not yet.
  bool is_recorded() const { return storage_ && storage_->recorded; }
  const Shape& shape() const { return shape_; }
  int dims() const { return shape_.size(); }
  std::int64_t dim(int i) const { return shape_[i]; }  // negative i counts from the end
  std::int64_t count() const { return count_; }

  // The numbers in row-major order; throws when they do not lie so (see contiguous()).
  float* data(TINYSCALE_LINE) { return layout_ || data_ == nullptr ? checked(file, line) : data_; }
  const float* data(TINYSCALE_LINE) const {
    return layout_ || data_ == nullptr ? checked(file, line) : data_;
  }
  // The first number, wherever the others are.
  float* origin(TINYSCALE_LINE) const {
    return data_ == nullptr ? checked_defined(file, line) : data_;
  }
  bool is_contiguous() const { return !layout_; }
  // The steps from an element to the next of dimension i, in elements.
  std::int64_t stride(int i) const {
    static_cast<void>(shape_[i]);  // throws where there is none
    const int dim = i < 0 ? i + dims() : i;
    return layout_ ? layout_->of[dim] : detail::row_major(shape_).of[dim];
  }
  std::vector<std::int64_t> strides() const {
    const detail::Strides by = steps();
    return std::vector<std::int64_t>(by.of, by.of + dims());
  }
  detail::Strides steps() const { return layout_ ? *layout_ : detail::row_major(shape_); }
  const Shared<detail::Storage>& storage() const { return storage_; }

  // Other dims of the same numbers: element i is at origin() + offset + sum of i[d] strides[d].
  // Records nothing for backward(). Throws when that leaves the buffer.
  Tensor as_strided(const Shape& shape, const detail::Strides& steps, std::int64_t offset) const;

  // The one number of a tensor of one element.
  float item(TINYSCALE_LINE) const {
    if (count() != 1) {
      detail::fail({"item: the tensor has ", count(), " elements, shape ", shape_.text(),
                    "; item() needs exactly 1"});
    }
    return read(file, line)[0];
  }
  float at(std::initializer_list<Dim> index, TINYSCALE_LINE) const {
    if (static_cast<int>(index.size()) != dims()) {
      detail::fail({"at: ", index.size(), " indices given for shape ", shape_.text(),
                    "; one per dimension is right"});
    }
    const detail::Strides by = steps();
    std::int64_t offset = 0;
    int axis = 0;
    for (const Dim& i : index) {
      if (i.value < 0 || i.value >= shape_[axis]) {
        detail::fail(
            {"at: index ", i.value, " in dimension ", axis, " is outside shape ", shape_.text()});
      }
      offset += by.of[axis] * i.value;
      ++axis;
    }
    return read(file, line)[offset];
  }
  std::vector<float> values(TINYSCALE_LINE) const {
    const Tensor flat = is_contiguous() ? *this : copied();
    const float* const first = count() == 0 ? nullptr : flat.read(file, line);
    return first == nullptr ? std::vector<float>() : std::vector<float>(first, first + count_);
  }

  bool requires_grad() const { return slot_ != nullptr; }
  const detail::Slot& slot() const { return slot_; }
  void set_slot(detail::Slot slot) { slot_ = std::move(slot); }

  // The same numbers, cut off from the graph.
  Tensor detach() const {
    Tensor same = *this;
    same.slot_.reset();
    return same;
  }
  // The same shape and strides over other numbers, or over none (null), cut off from the graph.
  Tensor over(const Shared<detail::Storage>& numbers, std::int64_t offset) const {
    Tensor other;
    other.shape_ = shape_;
    other.count_ = count_;
    other.layout_ = layout_;
    other.storage_ = numbers;
    other.data_ = numbers ? numbers->data + offset : nullptr;
    return other;
  }
  // A copy of the numbers in row-major order, cut off from the graph.
  Tensor clone() const;
  Tensor copied() const;  // the same within an op, whose profile counts it

  // The gathered gradient; an empty Tensor before backward() or after zero_grad().
  Tensor grad() const {
    return slot_ && slot_->grad && !slot_->fresh ? Tensor(slot_->shape, slot_->grad) : Tensor();
  }
  void zero_grad() const {
    if (slot_) {
      slot_->grad.reset();
      slot_->fresh = false;
    }
  }
  // Gradients of this scalar with respect to every parameter behind it; frees the graph.
  void backward() const;
  // Gradients of sum(this dy), dy of this shape.
  void backward(const Tensor& dy) const;

 private:
  float* checked(const char* file, int line) const {
    if (layout_) {
      detail::fail({"data: shape ", shape_.text(), " has strides ", Shape(strides()).text(),
                    ", not the row-major ", Shape(Tensor(shape_, storage_).strides()).text(),
                    "; take contiguous() first"});
    }
    return checked_defined(file, line);
  }
  // For the host to look at, which a capture must know of: at the next call it may see others.
  const float* read(const char* file, int line) const {
    const float* const numbers = checked_defined(file, line);
    if (detail::thread_recorder() != nullptr && !storage_->recorded) {
      detail::thread_recorder()->read_outside(*this, file, line);
    }
    return numbers;
  }
  float* checked_defined(const char* file, int line) const {
    if (!storage_) {
      detail::fail(
          {"data: the tensor is empty (default-constructed); make one with zeros, full, ..."});
    }
    return storage_->recorded ? detail::read_recorded(*storage_, file, line) : data_;
  }

  Shape shape_;
  std::int64_t count_ = 0;
  Shared<detail::Storage> storage_;
  float* data_ = nullptr;
  Shared<detail::Strides> layout_;  // null: row-major without gaps
  detail::Slot slot_;
};

inline Tensor Tensor::as_strided(const Shape& shape, const detail::Strides& steps,
                                 std::int64_t offset) const {
  const double begin = static_cast<double>(origin() - storage_->data) + static_cast<double>(offset);
  double low = begin, high = begin;  // in double: absurd steps would wrap round to inside
  bool dense = true;
  const detail::Strides wanted = detail::row_major(shape);
  Tensor view;
  view.count_ = shape.count();
  for (int i = 0; i < shape.size() && view.count_ > 0; ++i) {
    const double reach = static_cast<double>(shape[i] - 1) * static_cast<double>(steps.of[i]);
    (reach < 0 ? low : high) += reach;
    dense = dense && (shape[i] == 1 || steps.of[i] == wanted.of[i]);
  }
  if (low < 0 || high >= static_cast<double>(storage_->count + (view.count_ > 0 ? 0 : 1))) {
    detail::fail({"as_strided: shape ", shape.text(), " reaches elements ", low, " to ", high,
                  " of a buffer of ", storage_->count});
  }
  view.shape_ = shape;
  view.storage_ = storage_;
  view.data_ = origin() + offset;
  if (!dense) {
    view.layout_ = Shared<detail::Strides>::make();
    *view.layout_ = steps;
  }
  return view;
}

inline Tensor Tensor::copied() const {
  if (!storage_) {
    return Tensor();
  }
  if (detail::thread_recorder() != nullptr) {
    return detail::thread_recorder()->same(detach());
  }
  Tensor copy(shape_);
  const float* const from = origin();
  const detail::Strides own = steps();
  const detail::Walk walk(shape_, own, own);
  const int turned = detail::turned_dim(walk);
  if (turned >= 0) {  // matrices that lie turned over
    const detail::Strides to = detail::row_major(walk.shape);
    Shape each = walk.shape;
    each.set(turned, 1);
    each.set(-1, 1);
    const detail::Walk matrices(each, walk.a, to);
    matrices.rows([&](std::int64_t, std::int64_t at_from, std::int64_t at_to) {
      for (std::int64_t j = 0; j < matrices.columns(); ++j) {
        kernels::turn_matrix(walk.columns(), walk.shape[turned],
                             from + at_from + j * matrices.step_a(), walk.step_a(),
                             copy.data_ + at_to + j * matrices.step_b(), to.of[turned]);
      }
    });
    return copy;
  }
  walk.rows([&](std::int64_t first, std::int64_t offset, std::int64_t) {
    kernels::copy_steps(walk.columns(), from + offset, walk.step_a(), copy.data_ + first, 1);
  });
  return copy;
}

// Prints the shape and at most the first eight numbers.
inline std::ostream& operator<<(std::ostream& out, const Tensor& t) {
  out << t.shape().text() << " {";
  const detail::Strides steps = t.steps();
  for (std::int64_t i = 0; i < t.count() && i < 8; ++i) {
    std::int64_t left = i;
    std::int64_t offset = 0;
    for (int d = t.dims() - 1; d >= 0; --d) {
      offset += left % t.dim(d) * steps.of[d];
      left /= t.dim(d);
    }
    out << (i ? ", " : "") << t.origin()[offset];
  }
  return out << (t.count() > 8 ? ", ...}" : "}");
}

}  // namespace tinyscale
