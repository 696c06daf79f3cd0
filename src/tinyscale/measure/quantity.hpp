#pragma once
// A quantity that explains itself: a number, its unit, and the formula that it came from.
//   named("T", F / C).explain()  ->  "T = F / C" / "= 6e+12 FLOP / 2e+14 FLOP/s" / "= 0.03 s"
// Arithmetic keeps the derivation and works the unit out; a named quantity stands as a symbol.

#include <algorithm>  // max
#include <cmath>      // ceil, sqrt
#include <cstddef>    // std::size_t
#include <ostream>    // operator<<
#include <string>     // text
#include <utility>    // move, pair
#include <vector>     // inputs

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/order.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/base/text.hpp"

namespace tinyscale {

class Quantity;

namespace detail {

// What a quantity was made of; shared, never changed.
struct QuantityNode {
  double value = 0;
  std::string unit, name, source;
  std::string op;         // "+", "max", ...; empty for a given number
  List<Quantity> inputs;  // of the op
};

// Adds the powers of a unit's bases: "FLOP/s" is {FLOP 1, s -1}.
inline void add_unit(NameTable& powers, const std::string& unit, int sign) {
  std::string base;
  int power = sign;
  for (const char c : unit + "*") {
    if (c == '*' || c == '/') {
      if (!base.empty() && base != "1") {
        powers[base] += power;
      }
      base.clear();
      power = c == '/' ? -sign : sign;
    } else {
      base += c;
    }
  }
}

inline std::string unit_text(const NameTable& powers) {
  std::string over, under;
  for (const NameTable::Entry& base : powers) {
    for (int i = 0; i < base.number; ++i) {
      over += (over.empty() ? "" : "*") + base.name;
    }
    for (int i = 0; i < -base.number; ++i) {
      under += "/" + base.name;
    }
  }
  return over.empty() && !under.empty() ? "1" + under : over + under;
}

inline std::string combined_unit(const std::string& a, const std::string& b, int sign) {
  NameTable powers;
  add_unit(powers, a, 1);
  add_unit(powers, b, sign);
  return unit_text(powers);
}

}  // namespace detail

class Quantity {
 public:
  Quantity() : node_(new detail::QuantityNode) {}
  Quantity(double value) : Quantity(value, "") {}  // a plain number: no unit
  Quantity(double value, const std::string& unit, const std::string& name = "",
           const std::string& source = "") {
    const Shared<detail::QuantityNode> node(new detail::QuantityNode);
    node->value = value;
    node->unit = unit;
    node->name = name;
    node->source = source;
    node_ = node;
  }
  explicit Quantity(Shared<detail::QuantityNode> node) : node_(std::move(node)) {}

  double value() const { return node_->value; }
  const std::string& unit() const { return node_->unit; }
  const std::string& name() const { return node_->name; }
  const std::string& source() const { return node_->source; }
  const List<Quantity>& inputs() const { return node_->inputs; }
  const std::string& op() const { return node_->op; }

  std::string formula() const;               // "6 * P * B / (N * C)"
  std::string text() const;                  // "5.33 s"
  std::string explain(int depth = 8) const;  // the formula, the numbers put in, and so for inputs

 private:
  Shared<detail::QuantityNode> node_;
};

namespace detail {

inline std::string short_number(double value) { return printed('g', 6, value); }

// Seconds, bytes and dollars read better scaled; the rest is a number and its unit.
inline std::string quantity_text(double value, const std::string& unit) {
  if (unit == "s") {
    return format_seconds(value);
  }
  if (unit == "B") {
    return format_bytes(value);
  }
  return unit.empty() ? short_number(value) : short_number(value) + " " + unit;
}

inline int binding_strength(const Quantity& q) {
  const std::string& op = q.op();
  if (op.empty() || !q.name().empty()) {
    return 3;
  }
  return op == "+" || op == "-" ? 1 : op == "*" || op == "/" ? 2 : 3;
}

enum class QuantityStyle { symbols, numbers };

inline std::string expression(const Quantity& q, QuantityStyle style);

// An input of an expression: its name or its number, or its own expression when it has no name.
inline std::string term(const Quantity& q, QuantityStyle style, int least_strength) {
  if (q.op().empty() || !q.name().empty()) {
    const bool symbol = style == QuantityStyle::symbols && !q.name().empty();
    return symbol ? q.name() : q.text();
  }
  const std::string inner = expression(q, style);
  return binding_strength(q) < least_strength ? "(" + inner + ")" : inner;
}

inline std::string expression(const Quantity& q, QuantityStyle style) {
  const std::string& op = q.op();
  const List<Quantity>& in = q.inputs();
  if (op.empty()) {
    return q.text();
  }
  if (op == "+" || op == "-" || op == "*" || op == "/") {
    const int own = op == "+" || op == "-" ? 1 : 2;
    const int right = op == "-" || op == "/" ? own + 1 : own;
    return term(in[0], style, own) + " " + op + " " + term(in[1], style, right);
  }
  std::string list;
  for (const Quantity& input : in) {
    list += (list.empty() ? "" : ", ") + term(input, style, 0);
  }
  return op + "(" + list + ")";
}

// The named inputs of an expression, those inside its unnamed parts included.
inline void named_inputs(const Quantity& q, List<Quantity>& out) {
  for (const Quantity& input : q.inputs()) {
    if (input.name().empty()) {
      named_inputs(input, out);
    } else {
      out.push_back(input);
    }
  }
}

inline void explain_into(const Quantity& q, int depth, int indent, std::string& out,
                         std::vector<std::string>& told) {
  const std::string margin(static_cast<std::size_t>(2 * indent), ' ');
  const std::string name = q.name().empty() ? "result" : q.name();
  for (const std::string& other : told) {
    if (other == name + q.text()) {
      return;
    }
  }
  told.push_back(name + q.text());
  const std::string source = q.source().empty() ? "" : "   [" + q.source() + "]";
  if (q.op().empty()) {
    out += margin + name + " = " + q.text() + source + "\n";
    return;
  }
  const std::string under = margin + std::string(name.size(), ' ') + " = ";
  out += margin + name + " = " + expression(q, QuantityStyle::symbols) + source + "\n";
  out += under + expression(q, QuantityStyle::numbers) + "\n";
  out += under + q.text() + "\n";
  List<Quantity> inputs;
  named_inputs(q, inputs);
  for (const Quantity& input : inputs) {
    if (depth > 0) {
      explain_into(input, depth - 1, indent + 1, out, told);
    }
  }
}

inline Quantity make_quantity(const char* op, double value, const std::string& unit,
                              const List<Quantity>& inputs) {
  const Shared<QuantityNode> node(new QuantityNode);
  node->op = op;
  node->value = value;
  node->unit = unit;
  node->inputs = inputs;
  return Quantity(node);
}

inline void same_unit(const char* op, const Quantity& a, const Quantity& b) {
  if (a.unit() != b.unit()) {
    fail({"Quantity: ", a.text(), " ", op, " ", b.text(), ": the units are \"", a.unit(),
          "\" and \"", b.unit(), "\"; both must be the same"});
  }
}

}  // namespace detail

inline std::string Quantity::formula() const {
  return detail::expression(*this, detail::QuantityStyle::symbols);
}

inline std::string Quantity::text() const { return detail::quantity_text(value(), unit()); }

inline std::string Quantity::explain(int depth) const {
  std::string out;
  std::vector<std::string> told;
  detail::explain_into(*this, depth, 0, out, told);
  return out;
}

inline Quantity operator+(const Quantity& a, const Quantity& b) {
  detail::same_unit("+", a, b);
  return detail::make_quantity("+", a.value() + b.value(), a.unit(), {a, b});
}

inline Quantity operator-(const Quantity& a, const Quantity& b) {
  detail::same_unit("-", a, b);
  return detail::make_quantity("-", a.value() - b.value(), a.unit(), {a, b});
}

inline Quantity operator*(const Quantity& a, const Quantity& b) {
  const std::string unit = detail::combined_unit(a.unit(), b.unit(), 1);
  return detail::make_quantity("*", a.value() * b.value(), unit, {a, b});
}

inline Quantity operator/(const Quantity& a, const Quantity& b) {
  const std::string unit = detail::combined_unit(a.unit(), b.unit(), -1);
  return detail::make_quantity("/", a.value() / b.value(), unit, {a, b});
}

inline Quantity max(const Quantity& a, const Quantity& b) {
  detail::same_unit("max", a, b);
  return detail::make_quantity("max", std::max(a.value(), b.value()), a.unit(), {a, b});
}

inline Quantity ceil(const Quantity& a) {
  return detail::make_quantity("ceil", std::ceil(a.value()), a.unit(), {a});
}

// The square root of a plain number: no unit.
inline Quantity sqrt(const Quantity& a) {
  detail::same_unit("sqrt", a, Quantity(0.0));
  return detail::make_quantity("sqrt", std::sqrt(a.value()), "", {a});
}

// The same quantity under a name, by which formulas that use it call it.
inline Quantity named(const std::string& name, const Quantity& q, const std::string& source = "") {
  const Shared<detail::QuantityNode> node(new detail::QuantityNode);
  node->value = q.value();
  node->unit = q.unit();
  node->name = name;
  node->source = source.empty() ? q.source() : source;
  node->op = q.op();
  node->inputs = q.inputs();
  return Quantity(node);
}

inline std::ostream& operator<<(std::ostream& out, const Quantity& q) { return out << q.text(); }

}  // namespace tinyscale
