#pragma once
// A quantity: a number, its unit and what it was made of, and how it is written: as its number, its
// formula, the formula with the numbers put in, so for every named input below, and as JSON.
//   T = F / C / = 6e+12 FLOP / 2e+14 FLOP/s / = 30 ms / F = 6e+12 FLOP [counted] / C = ...
// Unnamed parts stand inside the formula; after 200 of them, the rest by their numbers.

#include <cstddef>  // std::size_t
#include <cstdint>  // std::uintptr_t
#include <cstring>  // strchr
#include <string>   // text
#include <utility>  // move

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/order.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/measure/units.hpp"

namespace tinyscale {

class Quantity;

namespace detail {

// What a quantity was made of; shared, never changed.
struct QuantityNode {
  ~QuantityNode();
  double value = 0;  // in bases
  Unit unit;
  std::string given;  // the unit that it is written in, where that has to be converted
  double scale = 1;   // of it, in bases
  PrefixFamily family = PrefixFamily::none;
  std::string name, source;
  const char* op = "";    // "+", "max", ...; empty for a given number
  List<Quantity> inputs;  // of the op
  int levels = 0;         // named quantities below each other in the formula
  int depth = 0;          // ops below each other
};

}  // namespace detail

class Quantity {
 public:
  Quantity() = default;                            // 0, no unit
  Quantity(double value) : Quantity(value, "") {}  // a plain number: no unit
  Quantity(double value, const std::string& unit, const std::string& name = "",
           const std::string& source = "");
  explicit Quantity(Shared<detail::QuantityNode> node) : node_(std::move(node)) {}

  double value() const { return node().value; }  // in bases: bytes, seconds, FLOP/s
  std::string unit() const { return detail::unit_text(node().unit); }
  const std::string& name() const { return node().name; }
  const std::string& source() const { return node().source; }
  const List<Quantity>& inputs() const { return node().inputs; }
  std::string op() const { return node().op; }
  PrefixFamily prefixes() const { return node().family; }

  double in(const std::string& unit) const;    // the number in that unit: in("GB"), in("TFLOP/s")
  Quantity to(const std::string& unit) const;  // the same in another unit, as a step of the formula

  std::string formula() const;               // "6 * P * B / (N * C)"
  Cell text() const;                         // "5.33 s", "95 GiB"
  std::string explain(int depth = 8) const;  // the formula, the numbers put in, and so for inputs
  std::string json(int depth = 64) const;    // the same as data

  const detail::QuantityNode& node() const {
    static const detail::QuantityNode nothing;
    return node_ == nullptr ? nothing : *node_;
  }

 private:
  friend struct detail::QuantityNode;
  Shared<detail::QuantityNode> node_;
};

namespace detail {

// A chain of a million sums must not end in a million calls of this: long ones are taken apart.
inline QuantityNode::~QuantityNode() {
  List<Quantity> held;
  if (depth > 100) {
    held.swap(inputs);
  }
  while (!held.empty()) {
    const Quantity last = static_cast<Quantity&&>(held.back());
    held.pop_back();
    if (last.node_.use_count() == 1) {
      for (Quantity& input : last.node_->inputs) {
        held.push_back(static_cast<Quantity&&>(input));
      }
      last.node_->depth = 0;
    }
  }
}

inline Cell short_number(double value) { return number_cell('g', 6, value); }

inline Cell base_text(const Quantity& q) { return number_cell('g', 6, q.value(), q.unit()); }

// As it was given or asked for, else seconds and bytes scaled; the rest is a number and its unit.
inline Cell quantity_text(const Quantity& q) {
  const QuantityNode& node = q.node();
  if (!node.given.empty()) {
    return {short_number(node.value / node.scale) + " " + node.given, node.value, q.unit()};
  }
  if (is_just(node.unit, "s")) {
    return format_seconds(node.value);
  }
  if (is_just(node.unit, "B") && node.family != PrefixFamily::mixed) {
    return node.family == PrefixFamily::binary ? format_binary_bytes(node.value)
                                               : format_bytes(node.value);
  }
  return base_text(q);
}

// A number that stands by itself, or a name: what no formula is written out for.
inline bool is_term(const Quantity& q) { return q.node().op[0] == 0 || !q.name().empty(); }

inline int binding_strength(const Quantity& q) {
  const char* const op = q.node().op;
  if (is_term(q)) {
    return 4;
  }
  return std::strchr("+-n", op[0]) != nullptr ? 1 : std::strchr("*/", op[0]) != nullptr ? 2 : 3;
}

// Writes one formula. Where GB and GiB both stand in it, its numbers are in plain bytes.
class FormulaWriter {
 public:
  FormulaWriter(const Quantity& q, bool numbers) : numbers_(numbers) {
    if (numbers) {
      PrefixFamily family = PrefixFamily::none;
      int parts = 0;
      join_families(q, true, parts, family);
      plain_ = family == PrefixFamily::mixed;
    }
    text = q.node().op[0] == 0 ? q.text() : expression(q);
  }

  std::string text;

 private:
  static void join_families(const Quantity& q, bool whole, int& parts, PrefixFamily& family) {
    if (is_term(q) && !whole) {
      const PrefixFamily own = q.prefixes();
      const bool scaled = own == PrefixFamily::none && is_just(q.node().unit, "B");
      family = joined(family, scaled ? PrefixFamily::decimal : own);
    } else if (++parts <= 200) {
      for (const Quantity& input : q.inputs()) {
        join_families(input, false, parts, family);
      }
    }
  }

  std::string number(const Quantity& q) const { return plain_ ? base_text(q) : q.text(); }

  // An input of a formula: its name or its number, or its own formula when it has no name. A number
  // below 0 binds as the minus before it does.
  std::string term(const Quantity& q, int least_strength) {
    const bool whole = is_term(q) || parts_ >= 200;
    const std::string inner = !whole                           ? expression(q)
                              : !numbers_ && !q.name().empty() ? q.name()
                                                               : std::string(number(q));
    const int strength = !whole ? binding_strength(q) : inner[0] == '-' ? 1 : 4;
    return strength < least_strength ? "(" + inner + ")" : inner;
  }

  std::string added(const List<Quantity>& in) {
    std::string out;
    for (std::size_t i = 0; i < in.size(); ++i) {
      const bool left_out = in.size() > 12 && i >= 10 && i + 1 < in.size();
      out += left_out ? (i == 10 ? " + ..." : "") : (i > 0 ? " + " : "") + term(in[i], 1);
    }
    return out;
  }

  std::string expression(const Quantity& q) {
    const std::string op = q.op();
    const List<Quantity>& in = q.inputs();
    ++parts_;
    if (op == "+") {
      return added(in);
    }
    if (op == "-" || op == "*" || op == "/") {
      const int own = op == "-" ? 1 : 2;
      const std::string left = term(in[0], own);
      return left + " " + op + " " + term(in[1], op == "*" ? own : own + 1);
    }
    if (op == "negative") {
      return "-" + term(in[0], 2);
    }
    if (op == "^") {
      const std::string base = term(in[0], 4);
      const bool spaces = base[0] != '(' && base.find(' ') != std::string::npos;
      return (spaces ? "(" + base + ")" : base) + "^" + in[1].text();
    }
    std::string list;
    for (const Quantity& input : in) {
      list += (list.empty() ? "" : ", ") + term(input, 0);
    }
    return op + "(" + list + ")";
  }

  bool numbers_ = false, plain_ = false;
  int parts_ = 0;
};

// The named inputs of a formula, those inside its unnamed parts included, each part once.
inline List<Quantity> named_inputs(const Quantity& q) {
  List<Quantity> out, open;
  NameTable seen;
  open.push_back(q);
  while (!open.empty()) {
    const Quantity part = open.back();
    open.pop_back();
    const std::string at = std::to_string(reinterpret_cast<std::uintptr_t>(&part.node()));
    if (part.node().op[0] == 0 && part.name().empty()) {
      continue;
    }
    if (seen[at]++ > 0) {
      continue;
    }
    if (!part.name().empty() && &part.node() != &q.node()) {
      out.push_back(part);
      continue;
    }
    for (std::size_t i = part.inputs().size(); i > 0; --i) {
      open.push_back(part.inputs()[i - 1]);
    }
  }
  return out;
}

// One quantity, however often it was made: the same name, number and unit.
inline std::string told_as(const Quantity& q) {
  return q.name() + "=" + printed('g', 17, q.value()) + " " + q.unit();
}

// Tells a quantity, then its inputs, at most `depth` levels below each other.
class Explanation {
 public:
  Explanation(const Quantity& q, int depth) : depth_(depth < 0 ? 0 : depth > 1000 ? 1000 : depth) {
    find_levels(q);
    tell(q, 0);
  }

  std::string text;

 private:
  // How near to the top each quantity stands, plus 1.
  void find_levels(const Quantity& q) {
    List<Quantity> now{q};
    for (int level = 0; level <= depth_ && !now.empty(); ++level) {
      List<Quantity> next;
      for (const Quantity& each : now) {
        int& nearest = nearest_[told_as(each)];
        if (nearest == 0) {
          nearest = level + 1;
          for (const Quantity& input : named_inputs(each)) {
            next.push_back(input);
          }
        }
      }
      now.swap(next);
    }
  }

  void tell(const Quantity& q, int level) {
    const std::string key = told_as(q);
    const bool cut = q.node().levels > depth_ - level;
    if (level > depth_ || told_.has(key) || (cut && level + 1 > nearest_[key])) {
      return;  // told already, or told whole nearer to the top
    }
    told_[key] = 1;
    write(q, level);
    for (const Quantity& input : named_inputs(q)) {
      tell(input, level + 1);
    }
  }

  void write(const Quantity& q, int level) {
    const std::string margin(static_cast<std::size_t>(2 * level), ' ');
    const std::string name = q.name().empty() ? "result" : q.name();
    const std::string source = q.source().empty() ? "" : "   [" + q.source() + "]";
    if (q.node().op[0] == 0) {
      const bool given = !q.node().given.empty();
      text +=
          margin + name + " = " + q.text() + (given ? " = " + base_text(q) : "") + source + "\n";
      return;
    }
    const std::string under = margin + std::string(text_width(name), ' ') + " = ";
    const std::string formula = q.formula(), numbers = FormulaWriter(q, true).text;
    text += margin + name + " = " + formula + source + "\n";
    text += numbers == formula ? "" : under + numbers + "\n";
    text += under + q.text() + "\n";
  }

  int depth_ = 0;
  NameTable nearest_, told_;
};

// A quantity told already stands by its name, number and unit alone.
inline void json_into(const Quantity& q, int depth, NameTable& told, std::string& out) {
  const auto string = [&](const char* key, const std::string& value) {
    out += std::string(", \"") + key + "\": \"" + json_escape(value) + "\"";
  };
  out += "{\"name\": \"" + json_escape(q.name()) + "\", \"value\": " + json_number(q.value());
  string("unit", q.unit());
  if (told[told_as(q)]++ == 0) {
    string("text", q.text());
    string("formula", q.node().op[0] == 0 ? "" : q.formula());
    string("source", q.source());
    out += ", \"inputs\": [";
    const char* between = "";
    for (const Quantity& input : depth > 0 ? named_inputs(q) : List<Quantity>()) {
      out += between;
      json_into(input, depth - 1, told, out);
      between = ", ";
    }
    out += "]";
  }
  out += "}";
}

}  // namespace detail

inline std::string Quantity::formula() const { return detail::FormulaWriter(*this, false).text; }

inline Cell Quantity::text() const { return detail::quantity_text(*this); }

inline std::string Quantity::explain(int depth) const {
  return detail::Explanation(*this, depth).text;
}

inline std::string Quantity::json(int depth) const {
  std::string out;
  detail::NameTable told;
  detail::json_into(*this, depth < 1000 ? depth : 1000, told, out);
  return out + "\n";
}

}  // namespace tinyscale
