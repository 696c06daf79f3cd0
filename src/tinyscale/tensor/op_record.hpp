#pragma once
// What an op costs: bytes of each operand once, 2 M K N for a matmul, and for everything else a
// published number of vector operations an element (the table below; an exp by polynomial is 10).

#include <cstdint>           // int64_t
#include <initializer_list>  // operands
#include <string>            // string
#include <utility>           // move

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/measure/profile.hpp"
#include "tinyscale/tensor/tensor.hpp"

namespace tinyscale {

// Vector operations an element of the named op, as profiles count them.
struct VectorCost {
  const char* name;
  double forward;
  double backward;
};

// clang-format off
inline const List<VectorCost>& vector_costs() {
  static const List<VectorCost> costs = {
      {"add", 1, 1},        {"sub", 1, 1},         {"mul", 1, 2},           {"div", 4, 9},
      {"exp", 10, 1},       {"log", 10, 4},        {"sqrt", 4, 5},          {"tanh", 12, 3},
      {"relu", 1, 1},       {"square", 1, 2},      {"neg", 1, 1},           {"silu", 16, 18},
      {"gelu", 22, 26},     {"gelu_tanh", 18, 24}, {"sum", 1, 1},           {"softmax", 16, 4},
      {"layer_norm", 8, 13}, {"rms_norm", 5, 10},  {"cross_entropy", 13, 13}, {"rope", 3, 3},
      {"dropout", 2, 1},    {"log_softmax", 13, 13}, {"copy", 0, 0},        {"max", 1, 1},
      {"less", 1, 0},        {"equal", 1, 0},         {"where", 1, 2},
      {"pow", 40, 42},      {"erf", 20, 14},        {"sigmoid", 15, 4},      {"argmax", 1, 0},
      {"adamw", 20, 0},      {"abs", 1, 2},         {"maximum", 1, 2},
  };
  return costs;
}
// clang-format on

inline double vector_cost(const std::string& op, double elements, double VectorCost::*pass) {
  for (const VectorCost& cost : vector_costs()) {
    if (op == cost.name) {
      return elements * (cost.*pass);
    }
  }
  detail::fail({"vector_cost: no op is called '", op, "'; vector_costs() lists them"});
}

namespace detail {

// Times one op and hands its record to the profile that is alive, if any; else costs one branch.
class OpScope {
 public:
  OpScope() : profile_(context().profile) {
    if (profile_ != nullptr) {
      start_ = seconds_now();
    }
  }

  void done(const char* name, const Shape& shape, std::initializer_list<double> reads,
            std::initializer_list<double> writes, double matmul_flops, double vector_flops,
            DType read_as = DType::f32) const {
    if (profile_ == nullptr) {
      return;
    }
    OpRecord record;
    record.seconds = seconds_now() - start_;
    record.name = name;
    record.shape = shape.text();
    record.matmul_flops = matmul_flops;
    record.vector_flops = vector_flops;
    record.device = context().device;
    for (const double elements : reads) {
      record.reads.push_back(Operand{elements, read_as});
      record.bytes_read += elements * bytes_of(read_as);
    }
    for (const double elements : writes) {
      record.writes.push_back(Operand{elements, DType::f32});
      record.bytes_written += elements * bytes_of(DType::f32);
    }
    profile_->record(std::move(record));
  }

  // A record that was filled elsewhere, but for what is known here.
  void done(OpRecord& record) const {
    if (profile_ != nullptr) {
      record.seconds = seconds_now() - start_;
      record.device = context().device;
      profile_->record(std::move(record));
    }
  }

  // An op of as many elements as the shape has, priced by the table.
  void done_priced(const char* name, const char* price, const Shape& shape,
                   double VectorCost::*pass, std::initializer_list<std::int64_t> reads,
                   std::initializer_list<std::int64_t> writes) const {
    if (profile_ == nullptr) {
      return;
    }
    OpRecord record;
    record.name = name;
    record.shape = shape.text();
    record.vector_flops = vector_cost(price, static_cast<double>(shape.count()), pass);
    for (const std::int64_t elements : reads) {
      record.reads.push_back(Operand{static_cast<double>(elements), DType::f32});
    }
    for (const std::int64_t elements : writes) {
      record.writes.push_back(Operand{static_cast<double>(elements), DType::f32});
    }
    record.count_bytes();
    done(record);
  }
  // The same of one operand; backward, of two.
  void done_unary(const char* name, const char* price, const Shape& shape,
                  double VectorCost::*pass = &VectorCost::forward) const {
    const std::int64_t n = shape.count();
    done_priced(name, price, shape, pass, {pass == &VectorCost::forward ? n : 2 * n}, {n});
  }

 private:
  Profile* profile_;
  double start_ = 0;
};

}  // namespace detail

inline Tensor Tensor::clone() const {
  const detail::OpScope scope;
  Tensor copy = copied();
  if (defined() && detail::thread_recorder() == nullptr) {
    scope.done_unary("clone", "copy", shape_);
  }
  return copy;
}

}  // namespace tinyscale
