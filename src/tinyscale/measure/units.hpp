#pragma once
// Units as powers of named bases, and the prefixes in front of them.
//   "FLOP/s" = FLOP s^-1   "GiB" = 2^30 B   "Gbit/s" = 1e9/8 B s^-1   "kWh" = 1e3 W h
// Kept in bases: bit is B/8, Hz is 1/s, J is W*s, Wh is W*h; h, min and day stay what they are
// until asked for in s. Prefixes of 1000 (k M G T P E; m u n p) and, for B and bit, of 1024 (Ki to
// Ei). A word of three small letters or more counts things of its own: "token", "page".

#include <cstddef>  // std::size_t
#include <cstring>  // memcmp, memcpy, strcmp
#include <string>
#include <vector>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/near_names.hpp"
#include "tinyscale/base/text.hpp"

namespace tinyscale {

// By which prefixes a quantity of bytes was given: 1 GB is 1e9 B, 1 GiB is 2^30 B. Of both: mixed.
enum class PrefixFamily { none, decimal, binary, mixed };

// 1 GiB = 2^30 B: "95 GiB" where format_bytes() prints "102 GB".
inline Cell format_binary_bytes(double value) {
  static const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double bytes = value;
  int step = 0;
  while (std::fabs(bytes) >= 1023.5 && step < 6) {
    bytes /= 1024;
    ++step;
  }
  const double size = std::fabs(bytes);  // up to 1023: one digit more than three
  const bool plain = detail::is_finite(bytes) && (bytes == 0 || (size >= 0.001 && size < 1e6));
  return {(plain ? detail::three_digits(bytes) : detail::cat({bytes})) + " " + units[step], value,
          "B"};
}

namespace detail {

// A unit: at most six bases of at most 14 letters, in the order in which they came.
struct UnitFactor {
  char name[15] = {};
  signed char power = 0;
};

struct Unit {
  UnitFactor factors[6];
  int count = 0;

  void add(const char* name, int power);
};

inline signed char unit_power(int power, const char* name) {
  if (power < -99 || power > 99) {
    fail({"Quantity: the unit \"", name, "\" to the power ", power, "; -99 to 99 is right"});
  }
  return static_cast<signed char>(power);
}

inline void Unit::add(const char* name, int power) {
  char key[15] = {};
  for (int i = 0; i < 14 && name[i] != 0; ++i) {
    key[i] = name[i];
  }
  for (int i = 0; i < count; ++i) {
    if (std::memcmp(factors[i].name, key, sizeof key) == 0) {
      factors[i].power = unit_power(factors[i].power + power, name);
      if (factors[i].power == 0) {
        --count;
        for (int j = i; j < count; ++j) {
          factors[j] = factors[j + 1];
        }
      }
      return;
    }
  }
  if (count == 6) {
    fail({"Quantity: a product with more than six different units, the last \"", name,
          "\"; name an intermediate result in units of its own"});
  }
  std::memcpy(factors[count].name, key, sizeof key);
  factors[count].power = unit_power(power, name);
  ++count;
}

inline bool same(const Unit& a, const Unit& b) {
  bool all = a.count == b.count;
  for (int i = 0; all && i < a.count; ++i) {
    bool found = false;
    for (int j = 0; j < b.count; ++j) {
      found = found || std::memcmp(&a.factors[i], &b.factors[j], sizeof(UnitFactor)) == 0;
    }
    all = found;
  }
  return all;
}

inline bool is_just(const Unit& unit, const char* name) {
  return unit.count == 1 && unit.factors[0].power == 1 &&
         std::strcmp(unit.factors[0].name, name) == 0;
}

inline bool has(const Unit& unit, const char* name) {
  bool found = false;
  for (int i = 0; i < unit.count; ++i) {
    found = found || std::strcmp(unit.factors[i].name, name) == 0;
  }
  return found;
}

inline Unit product(const Unit& a, const Unit& b, int sign) {
  Unit out = a;
  for (int i = 0; i < b.count; ++i) {
    out.add(b.factors[i].name, sign * b.factors[i].power);
  }
  return out;
}

inline std::string unit_text(const Unit& unit) {
  std::string over, under;
  for (int i = 0; i < unit.count; ++i) {
    for (int k = 0; k < unit.factors[i].power; ++k) {
      over += (over.empty() ? "" : "*") + std::string(unit.factors[i].name);
    }
    for (int k = 0; k < -unit.factors[i].power; ++k) {
      under += "/" + std::string(unit.factors[i].name);
    }
  }
  return over.empty() && !under.empty() ? "1" + under : over + under;
}

// A name that may stand in a unit: what it is in bases, and which prefixes may stand before it.
struct UnitName {
  const char* name;
  const char *base, *base2;  // base^power * base2
  int power;
  double scale;
  bool binary, small;  // Ki...; m, u, n, p
};

// clang-format off
inline const UnitName* unit_names(std::size_t& count) {
  static const UnitName names[] = {
      {"B", "B", "", 1, 1, true, false},        {"bit", "B", "", 1, 0.125, true, false},
      {"s", "s", "", 1, 1, false, true},        {"FLOP", "FLOP", "", 1, 1, false, false},
      {"OP", "OP", "", 1, 1, false, false},     {"W", "W", "", 1, 1, false, true},
      {"J", "W", "s", 1, 1, false, true},       {"Wh", "W", "h", 1, 1, false, false},
      {"Hz", "s", "", -1, 1, false, false},     {"USD", "USD", "", 1, 1, false, false},
      {"min", "min", "", 1, 1, false, false},   {"h", "h", "", 1, 1, false, false},
      {"day", "day", "", 1, 1, false, false},
      // counted things, from the 13th on
      {"token", "token", "", 1, 1, false, false},     {"chip", "chip", "", 1, 1, false, false},
      {"cycle", "cycle", "", 1, 1, false, false},     {"step", "step", "", 1, 1, false, false},
      {"layer", "layer", "", 1, 1, false, false},     {"param", "param", "", 1, 1, false, false},
      {"sequence", "sequence", "", 1, 1, false, false},
      {"request", "request", "", 1, 1, false, false}};
  count = sizeof names / sizeof names[0];
  return names;
}

struct UnitPrefix {
  const char* name;
  double factor;
  int group;  // 0 large decimal, 1 small decimal, 2 binary
};

inline const UnitPrefix* unit_prefixes(std::size_t& count) {
  static const UnitPrefix prefixes[] = {
      {"Ki", 1024.0, 2}, {"Mi", 1048576.0, 2}, {"Gi", 1073741824.0, 2}, {"Ti", 1099511627776.0, 2},
      {"Pi", 1125899906842624.0, 2}, {"Ei", 1152921504606846976.0, 2}, {"k", 1e3, 0},
      {"M", 1e6, 0}, {"G", 1e9, 0}, {"T", 1e12, 0}, {"P", 1e15, 0}, {"E", 1e18, 0},
      {"m", 1e-3, 1}, {"u", 1e-6, 1}, {"n", 1e-9, 1}, {"p", 1e-12, 1}};
  count = sizeof prefixes / sizeof prefixes[0];
  return prefixes;
}

// clang-format on

inline bool may_stand(const UnitPrefix& prefix, const UnitName& unit) {
  const bool clock = std::strcmp(unit.name, "h") == 0 || std::strcmp(unit.name, "min") == 0 ||
                     std::strcmp(unit.name, "day") == 0;
  return !clock && (prefix.group == 0 || (prefix.group == 1 ? unit.small : unit.binary));
}

// A unit as it was written: value in bases = value as written * scale.
struct WrittenUnit {
  Unit unit;
  double scale = 1;
  PrefixFamily family = PrefixFamily::none;
  bool as_is = true;  // written in bases: nothing to convert
};

inline PrefixFamily joined(PrefixFamily a, PrefixFamily b) {
  return a == PrefixFamily::none || a == b ? b : b == PrefixFamily::none ? a : PrefixFamily::mixed;
}

inline void add_written(const UnitName& name, const UnitPrefix* prefix, int sign,
                        WrittenUnit& out) {
  const double scale = (prefix != nullptr ? prefix->factor : 1) * name.scale;
  out.unit.add(name.base, sign * name.power);
  if (name.base2[0] != 0) {
    out.unit.add(name.base2, sign);
  }
  out.scale = sign > 0 ? out.scale * scale : out.scale / scale;
  if (prefix != nullptr && name.binary) {
    out.family =
        joined(out.family, prefix->group == 2 ? PrefixFamily::binary : PrefixFamily::decimal);
  }
  out.as_is = out.as_is && prefix == nullptr && std::strcmp(name.base, name.name) == 0;
}

// What people write and what they mean by it; empty for other words.
inline const char* unit_meant(const std::string& written) {
  // clang-format off
  static const char* const said[][2] = {
      {"byte", "B"}, {"bytes", "B"}, {"b", "bit, B"}, {"bits", "bit"}, {"Gb", "Gbit, GB"},
      {"Mb", "Mbit, MB"}, {"Tb", "Tbit, TB"}, {"kb", "kbit, kB"}, {"Kb", "kbit, Kibit, kB, KiB"},
      {"KB", "kB, KiB"}, {"sec", "s"}, {"second", "s"}, {"seconds", "s"}, {"hour", "h"},
      {"hours", "h"}, {"hr", "h"}, {"minute", "min"}, {"minutes", "min"}, {"days", "day"},
      {"flop", "FLOP"}, {"flops", "FLOP, FLOP/s"}, {"FLOPS", "FLOP, FLOP/s"},
      {"FLOPs", "FLOP, FLOP/s"}, {"TFLOPS", "TFLOP, TFLOP/s"}, {"TFLOPs", "TFLOP, TFLOP/s"},
      {"dollar", "USD"}, {"dollars", "USD"}, {"watt", "W"}, {"watts", "W"},
      {"joule", "J"}, {"joules", "J"}, {"GBps", "GB/s"}, {"Gbps", "Gbit/s"}};
  // clang-format on
  for (const auto& pair : said) {
    if (written == pair[0]) {
      return pair[1];
    }
  }
  return "";
}

// The end of an error message: units near to what was written, prefixed ones included.
inline std::string near_units(const std::string& written) {
  if (unit_meant(written)[0] != 0) {
    return cat({"right is ", unit_meant(written)});
  }
  std::vector<std::string> all;
  std::size_t units = 0, prefixes = 0;
  const UnitName* const unit = unit_names(units);
  const UnitPrefix* const prefix = unit_prefixes(prefixes);
  for (std::size_t i = 0; i < units; ++i) {
    all.push_back(unit[i].name);
    for (std::size_t k = 0; k < prefixes && i < 13; ++k) {  // of counted things only themselves
      if (may_stand(prefix[k], unit[i])) {
        all.push_back(std::string(prefix[k].name) + unit[i].name);
      }
    }
  }
  const std::vector<std::string> alike = near_names(written, all);
  return alike.empty()
             ? "right are B, bit, FLOP, OP, s, h, day, W, J, Wh, Hz, USD, token and "
               "others, with prefixes as in GB, GiB or ms, joined by * and /"
             : "near it " + std::string(alike.size() == 1 ? "is " : "are ") + joined_names(alike);
}

// A counted thing under its own name, unless it is a misspelt unit.
inline bool is_own_word(const std::string& word) {
  bool own = word.size() >= 3 && word.size() <= 14 && unit_meant(word)[0] == 0;
  for (const char c : word) {
    own = own && ((c >= 'a' && c <= 'z') || c == '_');
  }
  std::size_t units = 0, prefixes = 0;
  const UnitName* const unit = unit_names(units);
  const UnitPrefix* const prefix = unit_prefixes(prefixes);
  for (std::size_t i = 0; own && i < units; ++i) {
    const std::size_t length = std::strlen(unit[i].name);
    const bool alike = unit[i].name[0] == word[0] && length >= 4 && length < word.size() + 2;
    own = (!alike || edit_distance(unit[i].name, word) > 1) && word != plain_letters(unit[i].name);
    for (std::size_t k = 0; k < prefixes && i < 13; ++k) {  // "gib", "tflop"
      own = own && (!may_stand(prefix[k], unit[i]) ||
                    word != plain_letters(std::string(prefix[k].name) + unit[i].name));
    }
  }
  return own;
}

inline void add_word(const std::string& word, const std::string& whole, int sign,
                     WrittenUnit& out) {
  std::size_t units = 0, prefixes = 0;
  const UnitName* const unit = unit_names(units);
  for (std::size_t i = 0; i < units; ++i) {
    if (word[0] == unit[i].name[0] && word == unit[i].name) {
      return add_written(unit[i], nullptr, sign, out);
    }
  }
  const UnitPrefix* const prefix = unit_prefixes(prefixes);
  for (std::size_t k = 0; k < prefixes; ++k) {
    const std::size_t length = std::strlen(prefix[k].name);
    for (std::size_t i = 0; i < units && word.compare(0, length, prefix[k].name) == 0; ++i) {
      if (may_stand(prefix[k], unit[i]) && word.compare(length, word.npos, unit[i].name) == 0) {
        return add_written(unit[i], prefix + k, sign, out);
      }
    }
  }
  for (std::size_t i = 13; i < units; ++i) {  // several of a counted thing: "tokens"
    if (word == std::string(unit[i].name) + "s") {
      return add_written(unit[i], nullptr, sign, out);
    }
  }
  if (!is_own_word(word)) {
    fail({"Quantity: \"", word, "\" in the unit \"", whole, "\" is not known; ", near_units(word)});
  }
  out.unit.add(word.c_str(), sign);
}

// Reads "GB/s", "FLOP/token", "1/s"; after a / one factor is divided by, as in "B/token/s".
inline WrittenUnit read_unit(const std::string& text) {
  WrittenUnit out;
  int sign = 1;
  std::size_t begin = 0;
  while (begin < text.size()) {
    std::size_t end = begin;
    while (end < text.size() && text[end] != '*' && text[end] != '/') {
      ++end;
    }
    const std::string word = text.substr(begin, end - begin);
    if (word.empty() || end + 1 == text.size()) {
      fail({"Quantity: the unit \"", text, "\" lacks a name beside its ",
            word.empty() ? text[begin] : text[end], "; right is as \"B/s\" or \"1/s\""});
    }
    if (word != "1") {
      add_word(word, text, sign, out);
    }
    sign = end < text.size() && text[end] == '/' ? -1 : 1;
    begin = end + 1;
  }
  return out;
}

// Hours, minutes and days as seconds, so that rates in either can be compared.
inline WrittenUnit in_seconds(const Unit& unit) {
  WrittenUnit out;
  for (int i = 0; i < unit.count; ++i) {
    const char* const name = unit.factors[i].name;
    const int power = unit.factors[i].power;
    const double seconds = std::strcmp(name, "h") == 0     ? 3600
                           : std::strcmp(name, "min") == 0 ? 60
                           : std::strcmp(name, "day") == 0 ? 86400
                                                           : 0;
    for (int k = 0; seconds > 0 && k < (power < 0 ? -power : power); ++k) {
      out.scale = power > 0 ? out.scale * seconds : out.scale / seconds;
    }
    out.unit.add(seconds > 0 ? "s" : name, power);
  }
  return out;
}

}  // namespace detail
}  // namespace tinyscale
