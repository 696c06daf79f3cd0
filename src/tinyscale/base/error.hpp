#pragma once
// One exception type for everything that can go wrong, and the way its sentence is joined:
//   detail::fail({"matmul: inner sizes differ: x is ", x.shape(), ", w is ", w.shape()});
// A message says the function, what was given, and what would be right.

#include <algorithm>  // min
#include <cstddef>    // size_t
#include <cstdint>
#include <cstdio>   // snprintf
#include <cstdlib>  // strtod
#include <cstring>  // memcpy
#include <initializer_list>
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

// What this program's locale (setlocale) writes between whole and tenths; "." unless it is set.
inline std::string decimal_point() {
  char half[16];
  const int length = std::snprintf(half, sizeof half, "%.1f", 0.5);
  return std::string(half + 1, static_cast<std::size_t>(length) - 2);
}

// printf's %.<digits>f for kind 'f', else %.<digits>g; a point in every locale, nan and what 'f'
// rounds to 0 without sign.
inline std::string printed(char kind, int digits, double value) {
  char buffer[400];
  std::snprintf(buffer, sizeof buffer, kind == 'f' ? "%.*f" : "%.*g", digits, value);
  std::string out = is_nan(value) ? "nan" : buffer;
  const std::string point = decimal_point();
  const std::size_t at = out.find(point);
  if (at != std::string::npos) {
    out.replace(at, point.size(), ".");
  }
  const bool minus_zero = kind == 'f' && out.find_first_not_of("-0.") == std::string::npos;
  return minus_zero && out[0] == '-' ? out.substr(1) : out;
}

// The number that a text begins with, its point a point in every locale; `used`: its characters.
[[gnu::noinline]] inline double read_decimal(std::string text, std::size_t* used = nullptr) {
  const std::string point = decimal_point();
  text.resize(point == "." ? text.size() : std::min(text.size(), text.find(point)));
  const std::size_t at = text.find('.');
  if (at != std::string::npos) {
    text.replace(at, 1, point);  // what strtod expects
  }
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (used != nullptr) {
    *used = static_cast<std::size_t>(end - text.c_str());
    *used -= at < *used ? point.size() - 1 : 0;
  }
  return value;
}

// One part of a sentence: its value or where it is, and how it is written. A list of them costs the
// caller a few stores and one call, where joining strings in place costs each of the user's
// compiles. A type of this library joins in by a function append_text(std::string&, const Type&)
// beside it.
class Piece {
 public:
  Piece(const char* text)
      : Piece(text,
              [](std::string& out, const Piece& p) { out += static_cast<const char*>(p.at_); }) {}
  Piece(char* text) : Piece(static_cast<const char*>(text)) {}
  Piece(const std::string& text)
      : Piece(&text, [](std::string& out, const Piece& p) {
          out += *static_cast<const std::string*>(p.at_);
        }) {}
  template <class T>
  Piece(const T& value)
      : Piece(&value, [](std::string& out, const Piece& p) {
          append_text(out, *static_cast<const T*>(p.at_));
        }) {}
  Piece(char one) : write_(letter), whole_(one) {}
  Piece(int value) : write_(whole), whole_(value) {}
  Piece(long value) : write_(whole), whole_(value) {}
  Piece(long long value) : write_(whole), whole_(value) {}
  Piece(unsigned value) : write_(natural), natural_(value) {}
  Piece(unsigned long value) : write_(natural), natural_(value) {}
  Piece(unsigned long long value) : write_(natural), natural_(value) {}
  Piece(float value) : Piece(static_cast<double>(value)) {}
  Piece(double value) : write_(real), real_(value) {}

  void append_to(std::string& out) const { write_(out, *this); }

 private:
  using Write = void (*)(std::string& out, const Piece& piece);
  Piece(const void* at, Write write) : write_(write), at_(at) {}

  static void letter(std::string& out, const Piece& p) { out += static_cast<char>(p.whole_); }
  static void whole(std::string& out, const Piece& p) { out += std::to_string(p.whole_); }
  static void natural(std::string& out, const Piece& p) { out += std::to_string(p.natural_); }
  // At most nine significant digits, no trailing zeros: 0.1, 1e+30, 197000000.
  static void real(std::string& out, const Piece& p) { out += printed('g', 9, p.real_); }

  Write write_;
  union {
    const void* at_;
    long long whole_;
    unsigned long long natural_;
    double real_;
  };
};

// Joins strings, characters, integers, floating point numbers and shapes into one string. No
// template: every new list of types would cost each of the user's compiles 0.1 ms.
[[gnu::noinline]] inline std::string cat(std::initializer_list<Piece> pieces) {
  std::string out;
  for (const Piece& piece : pieces) {
    piece.append_to(out);
  }
  return out;
}

// Throws the sentence as an Error.
[[noreturn, gnu::cold, gnu::noinline]] inline void fail(std::initializer_list<Piece> sentence) {
  throw Error(cat(sentence));
}

// The name of a value of an enum; another number that was cast to it is refused.
template <class E, std::size_t N>
const char* name_in(const char* of, const char* const (&names)[N], E value) {
  const auto number = static_cast<std::size_t>(value);
  if (number >= N) {
    fail({of, ": ", static_cast<int>(value), " is no value of it; 0 to ", N - 1, " are right"});
  }
  return names[number];
}

}  // namespace detail
}  // namespace tinyscale
