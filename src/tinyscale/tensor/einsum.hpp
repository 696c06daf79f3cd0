#pragma once
// Products by letters: einsum("bthd,bshd->bhts", q, k) sums over the letters that the result lacks.
// Letters of both operands and of the result are leading dimensions of a matmul, letters of one
// operand its rows or columns, letters that are summed its inner size.

#include <cstdint>  // int64_t
#include <limits>   // max
#include <string>   // string

#include "tinyscale/tensor/matmul.hpp"
#include "tinyscale/tensor/reduce.hpp"

namespace tinyscale {
namespace detail {

// The letters of each operand and of the result.
struct EinsumSpec {
  std::string a, b, out;
};

inline EinsumSpec parse_einsum(const std::string& spec) {
  const std::size_t comma = spec.find(',');
  const std::size_t arrow = spec.find("->");
  bool good = comma < arrow && arrow != std::string::npos;
  EinsumSpec s;
  if (good) {
    s = {spec.substr(0, comma), spec.substr(comma + 1, arrow - comma - 1), spec.substr(arrow + 2)};
    for (const std::string* part : {&s.a, &s.b, &s.out}) {
      for (std::size_t i = 0; i < part->size(); ++i) {
        const char c = (*part)[i];
        good = good && c >= 'a' && c <= 'z' && part->find(c, i + 1) == std::string::npos;
      }
    }
    for (const char c : s.out) {
      good = good && (s.a + s.b).find(c) != std::string::npos;
    }
  }
  if (!good) {
    fail({"einsum: \"", spec, "\"; two operands, each letter a to z at most once in ",
          "each, and a result of their letters are right, as in \"ik,kj->ij\""});
  }
  return s;
}

// x with its letters in another order, as three dimensions: leading, rows, columns.
inline Tensor einsum_operand(const Tensor& x, std::string letters, const std::string (&groups)[3]) {
  List<int> gone;
  std::string left;
  for (std::size_t i = 0; i < letters.size(); ++i) {
    const bool kept = (groups[0] + groups[1] + groups[2]).find(letters[i]) != std::string::npos;
    if (kept) {
      left += letters[i];
    } else {
      gone.push_back(static_cast<int>(i));
    }
  }
  const Tensor y = gone.empty() ? x : sum(x, gone);
  List<int> order;
  Shape shape;
  for (const std::string& group : groups) {
    std::int64_t size = 1;
    for (const char c : group) {
      order.push_back(static_cast<int>(left.find(c)));
      const std::int64_t n = y.dim(order.back());
      // More than 2^63 - 1: then y has no elements, and of no size there are as many.
      size = n > 0 && size > std::numeric_limits<std::int64_t>::max() / n ? 0 : size * n;
    }
    shape.push_back(size);
  }
  return reshape(permute(y, order), shape);
}

}  // namespace detail

// The sum of the products of two operands over every letter that is not in the result.
inline Tensor einsum(const std::string& spec, const Tensor& a, const Tensor& b) {
  const detail::EinsumSpec s = detail::parse_einsum(spec);
  const auto in = [](const std::string& text, char c) { return text.find(c) != std::string::npos; };
  bool fits = static_cast<int>(s.a.size()) == a.dims() && static_cast<int>(s.b.size()) == b.dims();
  std::string lead, rows, columns, inner;
  for (std::size_t i = 0; fits && i < s.a.size(); ++i) {
    const std::size_t j = s.b.find(s.a[i]);
    if (j == std::string::npos) {
      rows += in(s.out, s.a[i]) ? std::string(1, s.a[i]) : "";
    } else {
      fits = a.dim(static_cast<int>(i)) == b.dim(static_cast<int>(j));
      (in(s.out, s.a[i]) ? lead : inner) += s.a[i];
    }
  }
  if (!fits) {
    detail::fail({"einsum: \"", spec, "\" of ", a.shape().text(), " and ", b.shape().text(),
                  "; a letter a dimension and one size a letter are ", "right"});
  }
  for (const char c : s.b) {
    columns += in(s.out, c) && !in(s.a, c) ? std::string(1, c) : "";
  }
  const Tensor y = matmul(detail::einsum_operand(a, s.a, {lead, rows, inner}),
                          detail::einsum_operand(b, s.b, {lead, inner, columns}));
  Shape shape;
  List<int> order;
  for (const char c : lead + rows + columns) {
    shape.push_back(in(s.a, c) ? a.dim(static_cast<int>(s.a.find(c)))
                               : b.dim(static_cast<int>(s.b.find(c))));
  }
  for (const char c : s.out) {
    order.push_back(static_cast<int>((lead + rows + columns).find(c)));
  }
  return permute(reshape(y, shape), order);
}

}  // namespace tinyscale
