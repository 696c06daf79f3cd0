#pragma once
// Generated C++: what a compiler that writes loops (TorchInductor, XLA on a CPU) would make of a
// vector program. One function a program, which needs the standard library only:
//   extern "C" void NAME(const float* const* in, float* const* out)

#include <cstddef>  // size_t
#include <string>   // source

#include "tinyscale/compile/cpp_kernel.hpp"
#include "tinyscale/compute/vector_program.hpp"

namespace tinyscale {
namespace detail {

// Functions of one number that <cmath> does not have, in the order of VectorOp; each as
// vector_op_reference says it.
struct CppFunction {
  kernels::VectorOp op;
  const char* text;
};

inline constexpr CppFunction cpp_functions[] = {
    {kernels::VectorOp::maximum,
     "// NaN where one is; b where they are equal.\n"
     "static inline float maximum(float a, float b) { return std::isnan(a) || a > b ? a : b; }\n"},
    {kernels::VectorOp::relu,
     "static inline float relu(float x) { return x < 0.0f ? 0.0f : x; }\n"},
    {kernels::VectorOp::sigmoid,
     "static inline float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }\n"},
    {kernels::VectorOp::silu,
     "static inline float silu(float x) { return x / (1.0f + std::exp(-x)); }\n"},
    {kernels::VectorOp::gelu,
     "static inline float gelu(float x) { return 0.5f * x * (1.0f + std::erf(0.707106781f * x)); "
     "}\n"},
    {kernels::VectorOp::gelu_tanh,
     "static inline float gelu_tanh(float x) {\n"
     "  return 0.5f * x * (1.0f + std::tanh(0.797884561f * x * (1.0f + 0.044715f * x * x)));\n"
     "}\n"},
    {kernels::VectorOp::relu_slope,
     "static inline float relu_slope(float x) { return x > 0.0f ? 1.0f : 0.0f; }\n"},
    {kernels::VectorOp::tanh_slope,
     "static inline float tanh_slope(float x) {\n"
     "  const float t = std::tanh(x);\n"
     "  return 1.0f - t * t;\n"
     "}\n"},
    {kernels::VectorOp::silu_slope,
     "static inline float silu_slope(float x) {\n"
     "  const float s = 1.0f / (1.0f + std::exp(-x));\n"
     "  return s * (1.0f + x * (1.0f - s));\n"
     "}\n"},
    {kernels::VectorOp::gelu_slope,
     "static inline float gelu_slope(float y) {  // 0.3989... = 1 / sqrt(2 pi); y cut as below\n"
     "  const float x = y < -12.0f ? -12.0f : y > 12.0f ? 12.0f : y;\n"
     "  const float bell = 0.398942280f * std::exp(-0.5f * x * x);\n"
     "  return 0.5f * (1.0f + std::erf(0.707106781f * x)) + x * bell;\n"
     "}\n"},
    {kernels::VectorOp::gelu_tanh_slope,
     "static inline float gelu_tanh_slope(float y) {  // 0 or 1 where y is cut\n"
     "  const float x = y < -12.0f ? -12.0f : y > 12.0f ? 12.0f : y;\n"
     "  const float t = std::tanh(0.797884561f * x * (1.0f + 0.044715f * x * x));\n"
     "  const float slope = 0.797884561f * (1.0f + 0.134145f * x * x);\n"
     "  return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * slope;\n"
     "}\n"}};

// What stands before the functions of a file.
inline std::string cpp_head(const CppNeeds& needs) {
  std::string out = "#include <cmath>\n#include <cstdint>\n";
  out += needs.scratch ? "#include <vector>\n\n" : "\n";
  for (const CppFunction& function : cpp_functions) {
    if (needs.functions[static_cast<std::size_t>(function.op)]) {
      out += std::string(function.text) + "\n";
    }
  }
  if (needs.loops) {
    out +=
        "// With -fopenmp-simd -DKERNEL_SIMD sums are added in another order, many columns at a "
        "time.\n"
        "#ifdef KERNEL_SIMD\n"
        "#define SIMD(...) _Pragma(#__VA_ARGS__)\n";
    out += needs.maximum
               ? "SIMD(omp declare reduction(row_maximum : float : omp_out = maximum(omp_in, "
                 "omp_out)) initializer(omp_priv = -INFINITY))\n"
               : "";
    out += "#else\n#define SIMD(...)\n#endif\n\n";
  }
  return out;
}

inline void check_cpp_name(const std::string& name) {
  bool good = !name.empty() && !(name[0] >= '0' && name[0] <= '9');
  for (const char c : name) {
    good = good &&
           ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_');
  }
  if (!good) {
    fail({"print_cpp: a function named \"", name,
          "\"; a name is letters, digits and _, a digit not first"});
  }
}

}  // namespace detail

// A file with one function that does what kernels::run does with the plan of this program.
inline std::string print_cpp(const kernels::VectorProgram& program, const std::string& name) {
  detail::check_cpp_name(name);
  detail::CppNeeds needs;
  const std::string body = detail::CppKernel(program, name, detail::CppNotes(), needs).text();
  return detail::cpp_head(needs) + body;
}

}  // namespace tinyscale
