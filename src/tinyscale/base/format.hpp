#pragma once
// Number formats: how many bytes an element takes, and rounding a float to each of them.
//   value = (-1)^sign * 1.mantissa * 2^(exponent - bias), without the leading 1 when exponent is 0
//   format  exponent, mantissa bits   largest    source
//   bf16        8, 7                  3.39e38    the upper half of an f32
//   f16         5, 10                 65504      IEEE 754
//   fp8_e4m3    4, 3                  448        OCP 8-bit floating point 1.0 (no infinity)
//   fp8_e5m2    5, 2                  57344      OCP 8-bit floating point 1.0

#include <cmath>  // nearbyint
#include <cstdint>
#include <cstring>  // memcpy
#include <limits>
#include <string>
#include <vector>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"

namespace tinyscale {

enum class DType { f64, f32, bf16, f16, fp8_e4m3, fp8_e5m2, int32, int8, int4 };

inline const char* name_of(DType format) {
  static const char* const names[] = {"f64",      "f32",   "bf16", "f16", "fp8_e4m3",
                                      "fp8_e5m2", "int32", "int8", "int4"};
  return detail::name_in("DType", names, format);
}

// Bytes of one element; half a byte for int4.
inline double bytes_of(DType format) {
  switch (format) {
    case DType::f64: return 8;
    case DType::f32:
    case DType::int32: return 4;
    case DType::bf16:
    case DType::f16: return 2;
    case DType::fp8_e4m3:
    case DType::fp8_e5m2:
    case DType::int8: return 1;
    case DType::int4: return 0.5;
  }
  detail::fail({"bytes_of: ", name_of(format), " has no size"});
}

inline void append_text(std::string& out, DType format) { out += name_of(format); }

// The format of that name; throws and lists the names when there is none.
inline DType dtype(const std::string& name) {
  std::string names;
  for (int i = 0; i <= static_cast<int>(DType::int4); ++i) {
    const DType format = static_cast<DType>(i);
    if (name == name_of(format)) {
      return format;
    }
    names += (i > 0 ? ", " : "") + std::string(name_of(format));
  }
  detail::fail({"dtype: no format \"", name, "\"; there are ", names});
}

namespace detail {

inline std::uint32_t bits_of(float x) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline float float_of(std::uint32_t bits) {
  float x = 0;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// A format below 32 bits, by its codes without the sign.
struct SmallFloat {
  int exponent_bits;
  int mantissa_bits;
  std::uint32_t largest;   // code of the largest finite value
  std::uint32_t overflow;  // code of what is larger: infinity, or NaN where there is none
  std::uint32_t nan;
};

inline SmallFloat small_f16() { return {5, 10, 0x7bff, 0x7c00, 0x7e00}; }
inline SmallFloat small_e4m3() { return {4, 3, 0x7e, 0x7f, 0x7f}; }
inline SmallFloat small_e5m2() { return {5, 2, 0x7b, 0x7c, 0x7e}; }
inline SmallFloat saturated(SmallFloat f) {
  f.overflow = f.largest;
  return f;
}

// a b rounded to f32, before a sum it goes into: compilers fuse the two where the CPU can, also
// where the product was written in double.
inline float rounded_product(float a, float b) {
  const volatile float product = a * b;
  return product;
}

// Rounds to nearest, ties to even; returns the code with its sign.
inline std::uint32_t encode(float x, const SmallFloat& f) {
  const std::uint32_t bits = bits_of(x);
  const std::uint32_t sign = (bits >> 31) << (f.exponent_bits + f.mantissa_bits);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) {
    return sign | f.nan;
  }
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(magnitude >> 23) - 127 + bias;  // in the small format
  int shift = 23 - f.mantissa_bits;
  std::uint32_t code = 0;
  if (exponent >= 1) {
    code = static_cast<std::uint32_t>(exponent - 1) << f.mantissa_bits;
  } else {
    shift += 1 - exponent;  // below the smallest normal value: fewer mantissa bits
  }
  if (shift > 24 || magnitude < 0x00800000U) {
    return sign;  // less than half of the smallest value
  }
  const std::uint32_t mantissa = (magnitude & 0x007fffffU) | 0x00800000U;
  const std::uint32_t half = 1U << (shift - 1);
  const std::uint32_t rest = mantissa & ((1U << shift) - 1);
  std::uint32_t kept = mantissa >> shift;
  kept += (rest > half || (rest == half && (kept & 1U) != 0)) ? 1U : 0U;
  code += kept;  // a carry moves into the exponent, which is what rounding up means
  return sign | (code > f.largest ? f.overflow : code);
}

inline float decode(std::uint32_t code, const SmallFloat& f) {
  const std::uint32_t magnitude = code & ((1U << (f.exponent_bits + f.mantissa_bits)) - 1);
  const auto bits = static_cast<std::uint32_t>(f.mantissa_bits);
  const std::uint32_t rebias = 128U - (1U << (f.exponent_bits - 1));  // to the exponent of a float
  const std::uint32_t exponent = magnitude >> bits, mantissa = magnitude & ((1U << bits) - 1);
  float value = 0;
  if (magnitude > f.largest) {
    value = magnitude == f.overflow && f.overflow != f.nan
                ? std::numeric_limits<float>::infinity()
                : std::numeric_limits<float>::quiet_NaN();
  } else if (exponent == 0) {
    value = static_cast<float>(mantissa) * float_of((rebias + 1 - bits) << 23);
  } else {
    value = float_of((exponent + rebias) << 23 | mantissa << (23 - bits));
  }
  return (code >> (f.exponent_bits + f.mantissa_bits)) != 0 ? -value : value;
}

}  // namespace detail

inline std::uint16_t to_bf16(float x) {
  std::uint32_t bits = detail::bits_of(x);
  if ((bits & 0x7fffffffU) > 0x7f800000U) {
    return static_cast<std::uint16_t>((bits >> 16) | 0x0040U);  // stays a NaN
  }
  bits += 0x7fffU + ((bits >> 16) & 1U);  // to nearest, ties to even
  return static_cast<std::uint16_t>(bits >> 16);
}
inline float from_bf16(std::uint16_t code) {
  return detail::float_of(static_cast<std::uint32_t>(code) << 16);
}

inline std::uint16_t to_f16(float x) {
  return static_cast<std::uint16_t>(detail::encode(x, detail::small_f16()));
}
inline float from_f16(std::uint16_t code) { return detail::decode(code, detail::small_f16()); }

// Beyond 448: NaN, or +-448 when saturated.
inline std::uint8_t to_fp8_e4m3(float x) {
  return static_cast<std::uint8_t>(detail::encode(x, detail::small_e4m3()));
}
inline std::uint8_t to_fp8_e4m3_saturated(float x) {
  return static_cast<std::uint8_t>(detail::encode(x, detail::saturated(detail::small_e4m3())));
}
inline float from_fp8_e4m3(std::uint8_t code) { return detail::decode(code, detail::small_e4m3()); }

// Beyond 57344: infinity, or +-57344 when saturated.
inline std::uint8_t to_fp8_e5m2(float x) {
  return static_cast<std::uint8_t>(detail::encode(x, detail::small_e5m2()));
}
inline std::uint8_t to_fp8_e5m2_saturated(float x) {
  return static_cast<std::uint8_t>(detail::encode(x, detail::saturated(detail::small_e5m2())));
}
inline float from_fp8_e5m2(std::uint8_t code) { return detail::decode(code, detail::small_e5m2()); }

// Integers with one scale for all: x ~ values * scale, scale = max|x| / 127.
struct Int8Values {
  List<std::int8_t> values;
  float scale = 1;
};

inline Int8Values to_int8(const std::vector<float>& x) {
  float largest = 0;
  for (const float value : x) {
    if (!detail::is_finite(double{value})) {
      detail::fail({"to_int8: a value is ", double{value}, "; values must be finite"});
    }
    largest = std::fmax(largest, std::fabs(value));
  }
  Int8Values out;
  out.scale = largest / 127.0F;
  out.scale = out.scale > 0 ? out.scale : 1.0F;
  out.values.reserve(x.size());
  for (const float value : x) {
    const float scaled = std::fmin(std::fmax(value / out.scale, -127.0F), 127.0F);
    out.values.push_back(static_cast<std::int8_t>(std::nearbyint(scaled)));
  }
  return out;
}

inline std::vector<float> from_int8(const Int8Values& x) {
  std::vector<float> out(x.values.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<float>(x.values[i]) * x.scale;
  }
  return out;
}

namespace detail {
inline float round_between(float x, float low, float high) {
  return is_nan(x) ? x : std::fmin(std::fmax(std::nearbyint(x), low), high);
}
}  // namespace detail

// The nearest value of that format, as a float. f32 and f64 leave it; integers round and saturate;
// NaN stays, so that it is seen.
inline float round_to(float x, DType format) {
  switch (format) {
    case DType::f64:
    case DType::f32: return x;
    case DType::bf16: return from_bf16(to_bf16(x));
    case DType::f16: return from_f16(to_f16(x));
    case DType::fp8_e4m3: return from_fp8_e4m3(to_fp8_e4m3(x));
    case DType::fp8_e5m2: return from_fp8_e5m2(to_fp8_e5m2(x));
    case DType::int32: return detail::round_between(x, -2147483648.0F, 2147483520.0F);
    case DType::int8: return detail::round_between(x, -128.0F, 127.0F);
    case DType::int4: return detail::round_between(x, -8.0F, 7.0F);
  }
  return x;
}

}  // namespace tinyscale
