#pragma once
// One exception type for everything that can go wrong, and the way its sentence is joined:
//   throw Error(detail::cat("matmul: inner sizes differ: x is ", x.shape(), ", w is ", w.shape()));
// A message says the function, what was given, and what would be right.

#include <cstdint>
#include <cstdio>     // snprintf
#include <cstring>    // memcpy
#include <stdexcept>  // runtime_error
#include <string>

namespace tinyscale {

// What every function of this library throws.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}
};

namespace detail {

// By bits: under -ffast-math the compiler takes std::isfinite for true and x != x for false.
inline std::uint64_t exponent_and_mantissa(double x) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &x, sizeof bits);
  return bits & 0x7fffffffffffffffU;
}
inline bool is_finite(double x) { return exponent_and_mantissa(x) < 0x7ff0000000000000U; }
inline bool is_nan(double x) { return exponent_and_mantissa(x) > 0x7ff0000000000000U; }

inline void append_text(std::string& out, const std::string& part) { out += part; }
inline void append_text(std::string& out, const char* part) { out += part; }
inline void append_text(std::string& out, char part) { out += part; }
inline void append_text(std::string& out, int part) { out += std::to_string(part); }
inline void append_text(std::string& out, unsigned part) { out += std::to_string(part); }
inline void append_text(std::string& out, long part) { out += std::to_string(part); }
inline void append_text(std::string& out, unsigned long part) { out += std::to_string(part); }
inline void append_text(std::string& out, long long part) { out += std::to_string(part); }
inline void append_text(std::string& out, unsigned long long part) { out += std::to_string(part); }

// What this program's locale (setlocale) writes between whole and tenths; "." unless it is set.
inline std::string decimal_point() {
  char half[16];
  const int length = std::snprintf(half, sizeof half, "%.1f", 0.5);
  return std::string(half + 1, static_cast<std::size_t>(length) - 2);
}

// printf's %.<digits>f for kind 'f', else %.<digits>g; a point in every locale, nan without sign.
inline std::string printed(char kind, int digits, double value) {
  char buffer[400];
  std::snprintf(buffer, sizeof buffer, kind == 'f' ? "%.*f" : "%.*g", digits, value);
  std::string out = is_nan(value) ? "nan" : buffer;
  const std::string point = decimal_point();
  const std::size_t at = out.find(point);
  return at == std::string::npos ? out : out.replace(at, point.size(), ".");
}

// At most nine significant digits, no trailing zeros: 0.1, 1e+30, 197000000.
inline void append_text(std::string& out, double part) { out += printed('g', 9, part); }

// Joins strings, characters, integers, floating point numbers and shapes into one string.
// A type of this library joins in by a function append_text(std::string&, const Type&) beside it.
template <class... Parts>
std::string cat(const Parts&... parts) {
  std::string out;
  (append_text(out, parts), ...);
  return out;
}

}  // namespace detail
}  // namespace tinyscale
