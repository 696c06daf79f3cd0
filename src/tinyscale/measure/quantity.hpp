#pragma once
// A quantity that explains itself: a number, its unit, and the formula that it came from.
//   named("T", F / C).explain()  ->  "T = F / C" / "= 6e+12 FLOP / 2e+14 FLOP/s" / "= 30 ms"
//   Quantity(95, "GiB").value() -> 1.02e11 (bytes: values are kept in bases)   .in("GB") -> 102
// Arithmetic keeps the derivation and works the unit out; a named quantity stands as a symbol.
// Bytes remember the prefixes they were given in and print so; where GB meet GiB, formula and
// comparison show both in plain bytes.

#include <cmath>    // ceil, floor, pow, sqrt
#include <ostream>  // operator<<
#include <string>   // names

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/measure/quantity_formula.hpp"
#include "tinyscale/measure/units.hpp"

namespace tinyscale {

namespace detail {

inline void check_prefixes(const Quantity& q, const Unit& unit, QuantityNode& node) {
  if (q.prefixes() != PrefixFamily::none && has(unit, "B")) {
    node.family = joined(node.family, q.prefixes());
  }
}

inline Quantity make_quantity(const char* op, double value, const Unit& unit,
                              const List<Quantity>& inputs) {
  const Shared<QuantityNode> made = Shared<QuantityNode>::make();
  QuantityNode& node = *made;
  node.op = op;
  node.value = value;
  node.unit = unit;
  node.inputs = inputs;
  for (const Quantity& input : inputs) {
    const QuantityNode& from = input.node();
    const int levels = from.levels + (from.name.empty() ? 0 : 1);
    node.levels = levels > node.levels ? levels : node.levels;
    node.depth = from.depth + 1 > node.depth ? from.depth + 1 : node.depth;
    check_prefixes(input, unit, node);
  }
  return Quantity(made);
}

inline void same_unit(const char* op, const Quantity& a, const Quantity& b) {
  if (!same(a.node().unit, b.node().unit)) {
    fail({"Quantity: ", a.text(), " ", op, " ", b.text(), ": the units are \"", a.unit(),
          "\" and \"", b.unit(), "\"; both must be the same"});
  }
}

// The number of a unit that q's bases make; throws when both do not measure the same.
inline double conversion(const char* function, const Quantity& q, const WrittenUnit& to,
                         const std::string& unit) {
  if (same(q.node().unit, to.unit)) {
    return 1 / to.scale;
  }
  const WrittenUnit from_seconds = in_seconds(q.node().unit);
  const WrittenUnit to_seconds = in_seconds(to.unit);
  if (!same(from_seconds.unit, to_seconds.unit)) {
    fail({"Quantity::", function, ": ", q.name().empty() ? q.text() : q.name(), " is in \"",
          q.unit(), "\", asked for in \"", unit, "\"; both must measure the same"});
  }
  return from_seconds.scale / (to_seconds.scale * to.scale);
}

}  // namespace detail

inline Quantity::Quantity(double value, const std::string& unit, const std::string& name,
                          const std::string& source)
    : node_(Shared<detail::QuantityNode>::make()) {
  detail::QuantityNode& node = *node_;
  const detail::WrittenUnit written = detail::read_unit(unit);
  node.value = value * written.scale;
  node.unit = written.unit;
  node.family = written.family;
  if (!written.as_is) {
    node.given = unit;
    node.scale = written.scale;
  }
  node.name = name;
  node.source = source;
}

inline double Quantity::in(const std::string& unit) const {
  const detail::WrittenUnit to = detail::read_unit(unit);
  const double factor = detail::conversion("in", *this, to, unit);
  return detail::same(node().unit, to.unit) ? value() / to.scale : value() * factor;
}

// Hours to seconds by a factor that stands in the formula, so that nothing is converted unseen; a
// prefix changes only how the number is written.
inline Quantity Quantity::to(const std::string& unit) const {
  const detail::WrittenUnit to = detail::read_unit(unit);
  const double factor = detail::conversion("to", *this, to, unit) * to.scale;
  const Shared<detail::QuantityNode> out = Shared<detail::QuantityNode>::make();
  if (detail::same(node().unit, to.unit)) {
    *out = node();
  } else {
    const Quantity step(factor, detail::unit_text(detail::product(to.unit, node().unit, -1)));
    *out = detail::make_quantity("*", value() * factor, to.unit, {*this, step}).node();
  }
  out->given = to.as_is ? "" : unit;
  out->scale = to.scale;
  out->family = to.family;
  return Quantity(out);
}

inline Quantity operator+(const Quantity& a, const Quantity& b) {
  detail::same_unit("+", a, b);
  return detail::make_quantity("+", a.value() + b.value(), a.node().unit, {a, b});
}

inline Quantity operator-(const Quantity& a, const Quantity& b) {
  detail::same_unit("-", a, b);
  return detail::make_quantity("-", a.value() - b.value(), a.node().unit, {a, b});
}

inline Quantity operator*(const Quantity& a, const Quantity& b) {
  const detail::Unit unit = detail::product(a.node().unit, b.node().unit, 1);
  return detail::make_quantity("*", a.value() * b.value(), unit, {a, b});
}

inline Quantity operator/(const Quantity& a, const Quantity& b) {
  const detail::Unit unit = detail::product(a.node().unit, b.node().unit, -1);
  return detail::make_quantity("/", a.value() / b.value(), unit, {a, b});
}

inline Quantity operator-(const Quantity& a) {
  return detail::make_quantity("negative", -a.value(), a.node().unit, {a});
}

inline Quantity max(const Quantity& a, const Quantity& b) {
  detail::same_unit("max", a, b);
  const bool first = a.value() >= b.value() || detail::is_nan(a.value());  // NaN stays
  return detail::make_quantity("max", first ? a.value() : b.value(), a.node().unit, {a, b});
}

inline Quantity min(const Quantity& a, const Quantity& b) {
  detail::same_unit("min", a, b);
  const bool first = a.value() <= b.value() || detail::is_nan(a.value());
  return detail::make_quantity("min", first ? a.value() : b.value(), a.node().unit, {a, b});
}

// Of one term or more, all in one unit; for many, where a chain of + would be as deep as they are.
inline Quantity sum(const List<Quantity>& terms) {
  if (terms.empty()) {
    detail::fail({"sum: no quantities, so no unit; give at least one, as Quantity(0, \"s\")"});
  }
  double total = 0;
  for (const Quantity& term : terms) {
    detail::same_unit("+", terms[0], term);
    total += term.value();
  }
  return terms.size() == 1 ? terms[0]
                           : detail::make_quantity("+", total, terms[0].node().unit, terms);
}

inline Quantity ceil(const Quantity& a) {
  return detail::make_quantity("ceil", std::ceil(a.value()), a.node().unit, {a});
}

inline Quantity floor(const Quantity& a) {
  return detail::make_quantity("floor", std::floor(a.value()), a.node().unit, {a});
}

// To a whole power: the unit's too.
inline Quantity power(const Quantity& a, int exponent) {
  if (exponent < -12 || exponent > 12) {
    detail::fail({"power: ", a.text(), " to the ", exponent, "; -12 to 12 is right"});
  }
  detail::Unit unit = a.node().unit;
  for (int i = 0; i < unit.count; ++i) {
    detail::UnitFactor& factor = unit.factors[i];
    factor.power = detail::unit_power(factor.power * exponent, factor.name);
  }
  unit.count = exponent == 0 ? 0 : unit.count;
  return detail::make_quantity("^", std::pow(a.value(), exponent), unit,
                               {a, Quantity(static_cast<double>(exponent))});
}

inline Quantity square(const Quantity& a) { return power(a, 2); }

// Of a number, or of a unit that is a square: s*s.
inline Quantity sqrt(const Quantity& a) {
  detail::Unit unit = a.node().unit;
  for (int i = 0; i < unit.count; ++i) {
    if (unit.factors[i].power % 2 != 0) {
      detail::fail({"sqrt: ", a.text(), ": the unit is \"", a.unit(),
                    "\"; a plain number or the square of a unit is right"});
    }
    unit.factors[i].power = static_cast<signed char>(unit.factors[i].power / 2);
  }
  return detail::make_quantity("sqrt", std::sqrt(a.value()), unit, {a});
}

// The same quantity under a name, by which formulas that use it call it.
inline Quantity named(const std::string& name, const Quantity& q, const std::string& source = "") {
  const Shared<detail::QuantityNode> node = Shared<detail::QuantityNode>::make();
  *node = q.node();
  node->name = name;
  if (!source.empty()) {
    node->source = source;
  }
  return Quantity(node);
}

inline std::ostream& operator<<(std::ostream& out, const Quantity& q) { return out << q.text(); }

// What a comparison found: true or false wherever a bool is wanted, and what was compared with what
// when printed. GB and GiB are compared, and printed, in bytes.
struct QuantityComparison {
  Quantity left, right;
  const char* op = "";
  bool holds = false;

  operator bool() const { return holds; }
  std::string text() const;  // "95 GiB = 1.02005e+11 B <= 1e+11 B = 100 GB: false"
};

namespace detail {

inline QuantityComparison compared(const char* op, const Quantity& a, const Quantity& b,
                                   bool holds) {
  same_unit(op, a, b);
  QuantityComparison out;
  out.left = a;
  out.right = b;
  out.op = op;
  out.holds = holds;
  return out;
}

}  // namespace detail

inline QuantityComparison operator<(const Quantity& a, const Quantity& b) {
  return detail::compared("<", a, b, a.value() < b.value());
}
inline QuantityComparison operator<=(const Quantity& a, const Quantity& b) {
  return detail::compared("<=", a, b, a.value() <= b.value());
}
inline QuantityComparison operator>(const Quantity& a, const Quantity& b) {
  return detail::compared(">", a, b, a.value() > b.value());
}
inline QuantityComparison operator>=(const Quantity& a, const Quantity& b) {
  return detail::compared(">=", a, b, a.value() >= b.value());
}
inline QuantityComparison operator==(const Quantity& a, const Quantity& b) {
  return detail::compared("==", a, b, a.value() == b.value());
}
inline QuantityComparison operator!=(const Quantity& a, const Quantity& b) {
  return detail::compared("!=", a, b, a.value() != b.value());
}

inline std::ostream& operator<<(std::ostream& out, const QuantityComparison& c) {
  return out << c.text();
}

inline std::string QuantityComparison::text() const {
  const PrefixFamily both = detail::joined(left.prefixes(), right.prefixes());
  const bool mixed = both == PrefixFamily::mixed ||
                     (left.prefixes() != right.prefixes() && both == PrefixFamily::binary);
  const auto side = [&](const Quantity& q) {
    return mixed ? q.text() + " (" + detail::base_text(q) + ")" : q.text();
  };
  return side(left) + " " + op + " " + side(right) + (holds ? ": true" : ": false");
}

}  // namespace tinyscale
