#pragma once
// Matrix products whose operands are rounded to bf16, f16 or fp8, with sums in f32: what training
// in mixed precision computes.

#include <cstdint>  // int64_t

#include "tinyscale/base/format.hpp"
#include "tinyscale/compute/gemm.hpp"
#include "tinyscale/compute/gemm_bf16.hpp"
#include "tinyscale/measure/context.hpp"
#include "tinyscale/tensor/matmul.hpp"
#include "tinyscale/tensor/tensor.hpp"

namespace tinyscale {
namespace detail {

// Adds what rounding took from x.
inline void count_rounding(const Tensor& x, const Tensor& rounded, RoundingCount& counts) {
  std::int64_t numbers = 0, lost = 0, overflowed = 0;
  for (std::int64_t i = 0; i < rounded.count(); ++i) {
    const float before = x.data()[i], after = rounded.data()[i];
    numbers += before < 0 || before > 0 ? 1 : 0;
    lost += (before < 0 || before > 0) && !(after < 0 || after > 0) && !is_nan(after) ? 1 : 0;
    overflowed += is_finite(before) && !is_finite(after) ? 1 : 0;
  }
  counts.add({double(numbers), double(lost), double(overflowed)});
}

// x as a product reads it: f16 and fp8 numbers are rounded before, bf16 ones by the kernel.
// Of fp8_e4m3 training, gradients are fp8_e5m2 for their range (arXiv 2209.05433).
inline Tensor rounded_operand(const Tensor& x, bool gradient) {
  DType format = context().matmul_format;
  if (format == DType::f32 || format == DType::bf16) {
    return x;
  }
  format = gradient && format == DType::fp8_e4m3 ? DType::fp8_e5m2 : format;
  const MemoryScope scope(MemoryKind::buffer);
  Tensor rounded = x.copied();
  float* const numbers = rounded.data();
  for (std::int64_t i = 0; i < rounded.count(); ++i) {
    numbers[i] = round_to(numbers[i], format);
  }
  if (gradient && context().rounding != nullptr) {
    count_rounding(contiguous(x), rounded, *context().rounding);
  }
  return rounded;
}

inline void multiply_rounded(std::int64_t m, std::int64_t n, std::int64_t k, const Matrix& a,
                             const float* a_data, const Matrix& b, const float* b_data, float beta,
                             float* y) {
  if (context().matmul_format == DType::bf16) {
    kernels::gemm_bf16(a.trans, b.trans, m, n, k, a_data, a.ld, b_data, b.ld, beta, y, n);
  } else {
    kernels::gemm(a.trans, b.trans, m, n, k, a_data, a.ld, b_data, b.ld, beta, y, n);
  }
}

inline ProductFormat product_format(DType type) {
  static const RoundedProducts rounded = {rounded_operand, multiply_rounded};
  return {type, type == DType::f32 ? nullptr : &rounded};
}

// A format among options: who never sets it compiles no kernels of rounded products.
struct FormatOption : ProductFormat {
  FormatOption& operator=(DType given) {
    ProductFormat::operator=(product_format(given));
    return *this;
  }
};

}  // namespace detail

// Matmuls read their operands in `format` while it lives: f32, or a smaller one with sums in f32.
// fp8_e4m3: gradients are read as fp8_e5m2. `counts`, if any: what gradients lost is added there.
class MatmulFormat {
 public:
  explicit MatmulFormat(DType format, RoundingCount* counts = nullptr)
      : MatmulFormat(detail::product_format(format), counts) {}
  explicit MatmulFormat(detail::ProductFormat format, RoundingCount* counts = nullptr)
      : context_(&context()),
        previous_(context_->matmul_format),
        previous_counts_(context_->rounding) {
    if (format < DType::f32 || format > DType::fp8_e5m2) {
      detail::fail({"MatmulFormat: ", name_of(format.type),
                    "; f32, bf16, f16, fp8_e4m3 or fp8_e5m2 is right"});
    }
    context_->matmul_format = format;
    context_->rounding = counts;
  }
  ~MatmulFormat() {
    context_->matmul_format = previous_;
    context_->rounding = previous_counts_;
  }
  MatmulFormat(const MatmulFormat&) = delete;
  MatmulFormat& operator=(const MatmulFormat&) = delete;

 private:
  Context* context_;
  detail::ProductFormat previous_;
  RoundingCount* previous_counts_;
};

}  // namespace tinyscale
