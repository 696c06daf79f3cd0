// Random programs give equal results eager and compiled, whichever passes run: their results, the
// tensors that they write, the gradients that they give to parameters inside and from outside, in
// calls that capture, that replay, and that come with other shapes. A failing one is made smaller
// and printed as C++.
#include <doctest/doctest.h>

#include "tinyscale.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "long_tests.hpp"
#include "random_programs.hpp"

namespace ts = tinyscale;
using random_programs::Dice;
using random_programs::Do;
using random_programs::Leaves;
using random_programs::Lies;
using random_programs::Line;
using random_programs::Numbers;
using random_programs::Program;
using random_programs::Watch;

namespace {

std::size_t at(int i) { return static_cast<std::size_t>(i); }

// ---- making programs

// Writes a program line by line; each is run as it is written, and left out where it throws.
class Author {
 public:
  explicit Author(std::uint64_t seed) : dice_(seed) {
    program_.seed = seed;
    for (std::int64_t& size : sizes_) {
      const int which = dice_.below(100);
      const int common[] = {2, 3, 4, 5, 6, 8, 17};
      size = which < 4 ? 0 : which < 30 ? 1 : common[dice_.below(7)];
    }
    nan_ = dice_.percent(4);
    effects_ = dice_.percent(45);
    gradients_ = dice_.percent(60);
  }

  Program make() {
    const int first = 1 + dice_.below(3), lines = 3 + dice_.below(18);
    for (int i = 0; i < first; ++i) {
      leaf(some_shape(), i == 0);
    }
    for (int i = 0; i < lines; ++i) {
      one_line();
    }
    choose_outputs();
    return program_;
  }

 private:
  Line& line(int i) { return program_.lines[at(i)]; }
  ts::Shape shape(int i) { return program_.lines[at(i)].shape; }  // lines move
  int count() const { return static_cast<int>(program_.lines.size()); }
  std::int64_t size() { return sizes_[dice_.below(4)]; }

  ts::Shape some_shape() {
    ts::Shape out;
    const int dims = dice_.percent(8) ? 0 : 1 + dice_.below(dice_.percent(20) ? 4 : 3);
    for (int i = 0; i < dims; ++i) {
      out.push_back(size());
    }
    return out;
  }

  int leaf(const ts::Shape& shape, bool given, Numbers numbers = Numbers::normal, int below = 0) {
    Line out;
    out.shape = shape;
    out.given = given;
    out.numbers = numbers;
    out.below = below;
    out.exact = true;
    if (numbers == Numbers::normal) {
      const int style = dice_.below(100);
      out.numbers = nan_ && style < 30 ? Numbers::with_nan
                    : style < 15       ? Numbers::positive
                    : style < 30       ? Numbers::whole
                                       : Numbers::normal;
      out.grad = gradients_ && dice_.percent(60);
    }
    const int lies = dice_.below(100);
    out.lies = lies < 70   ? Lies::dense
               : lies < 82 ? Lies::turned
               : lies < 94 ? Lies::sliced
                           : Lies::repeated;
    out.lies = out.grad && !given ? Lies::dense : out.lies;  // else it has a graph behind it
    program_.lines.push_back(out);
    ts::Tensor view, base;
    make_leaf(out, shape, program_.seed * 1000 + at(count() - 1), 0, view, base);
    values_.push_back(view);
    return count() - 1;
  }

  bool is_value(int i) { return values_[at(i)].defined(); }
  int any() {
    for (int tries = 0; tries < 50; ++tries) {
      const int back = dice_.percent(60) ? std::min(count(), 4) : count();
      const int i = count() - 1 - dice_.below(back);
      if (is_value(i)) {
        return i;
      }
    }
    return 0;
  }
  int any_with_dims(int dims) {
    for (int tries = 0; tries < 20; ++tries) {
      const int i = any();
      if (shape(i).size() >= dims) {
        return i;
      }
    }
    ts::Shape made = some_shape();
    while (made.size() < dims) {
      made.push_back(size());
    }
    return leaf(made, dice_.percent(40));
  }

  // Some value of that shape: one there is, another seen so, or a new leaf.
  int need(const ts::Shape& wanted) {
    for (int tries = 0; tries < 6; ++tries) {
      const int i = any();
      if (shape(i) == wanted && line(i).below == 0) {
        return i;
      }
      if (shape(i).count() == wanted.count() && line(i).below == 0) {
        Line view;
        view.what = Do::reshape;
        view.of = {i};
        view.n = random_programs::sizes_of(wanted);
        if (add(view)) {
          return count() - 1;
        }
      }
    }
    return leaf(wanted, dice_.percent(40));
  }
  // A shape that can stand beside another.
  ts::Shape beside(const ts::Shape& other) {
    ts::Shape out;
    const int from = dice_.percent(40) ? 0 : dice_.below(other.size() + 1);
    for (int i = from; i < other.size(); ++i) {
      out.push_back(dice_.percent(25) ? 1 : other[i]);
    }
    return out;
  }
  int operand_for(int i) {
    const int kind = dice_.below(100);
    return kind < 35 ? any() : kind < 75 ? need(beside(shape(i))) : need(shape(i));
  }

  // Runs the line and keeps it where it gives a modest tensor.
  bool add(Line out) {
    out.no_grad = dice_.percent(4);
    ts::Tensor y;
    try {
      std::vector<ts::Tensor>& v = values_;
      Watch watch;
      watch.before(program_, out, v);
      if (watch.near_tie && !dice_.percent(3)) {
        return false;
      }
      if (out.no_grad) {
        const ts::NoGrad off;
        y = run_line(out, v);
      } else {
        y = run_line(out, v);
      }
      const bool value = y.defined();
      if (value) {
        if (y.count() > 1500 || y.dims() > 6) {
          return false;
        }
        for (const float number : y.values()) {
          const double a = std::fabs(static_cast<double>(number));
          if (a > 300 || (!(a <= 300) && !nan_ && !dice_.percent(3))) {
            return false;
          }
        }
        out.shape = y.shape();
      }
    } catch (const ts::Error&) {
      return false;
    }
    if (out.what == Do::write) {
      for (Line& each : program_.lines) {
        each.exact = each.exact && each.below > 0;
      }
    }
    program_.lines.push_back(out);
    values_.push_back(y);
    return true;
  }
  // For views and choices: as exact as what they are of.
  bool add_exact(Line out) {
    out.exact = true;
    for (const int i : out.of) {
      out.exact = out.exact && line(i).exact;
    }
    return add(out);
  }

  static Line make(Do what, const std::vector<int>& of, const std::vector<std::int64_t>& n = {},
                   float f = 0) {
    Line out;
    out.what = what;
    out.of = of;
    out.n = n;
    out.f = f;
    return out;
  }
  std::vector<std::int64_t> some_dims(const ts::Shape& of) {
    std::vector<std::int64_t> n = {dice_.below(2)};
    for (int i = 0; i < of.size(); ++i) {
      if (dice_.percent(50)) {
        n.push_back(dice_.percent(30) ? i - of.size() : i);
      }
    }
    return n;
  }
  int one_dim(const ts::Shape& of) {
    const int d = dice_.below(std::max(of.size(), 1));
    return dice_.percent(20) ? d - of.size() : d;
  }
  float some_float() {
    const float common[] = {0.0f, 1.0f, -1.0f, 2.0f, 0.5f, -0.3f, 1.7f};
    return common[dice_.below(7)];
  }

  void one_line() {
    const int kind = dice_.below(100);
    if (kind < 34) {
      elementwise();
    } else if (kind < 46) {
      reduction();
    } else if (kind < 60) {
      rows_or_product();
    } else if (kind < 78) {
      move();
    } else if (kind < 82) {
      source();
    } else if (effects_) {
      effect();
    } else {
      elementwise();
    }
  }

  void elementwise() {
    const int x = any();
    switch (dice_.below(8)) {
      case 0:
      case 1: add(make(Do::unary, {x}, {dice_.below(14)})); return;
      case 2: {
        const float powers[] = {2.0f, 3.0f, 0.5f, -1.0f, 0.0f, 1.0f};
        const int which = dice_.below(5);
        add(make(Do::scalar, {x}, {which}, which == 4 ? powers[dice_.below(6)] : some_float()));
        return;
      }
      case 3:
      case 4:
      case 5: {
        const int y = operand_for(x);
        const int which = dice_.below(9);
        Line out = make(Do::binary, {x, y}, {which});
        out.of = dice_.percent(30) ? std::vector<int>{y, x} : out.of;
        out.exact = which >= 6;
        add(out);
        return;
      }
      case 6: {
        int condition = any();
        if (!line(condition).exact) {
          Line mask = make(Do::binary, {x, operand_for(x)}, {7});
          mask.exact = true;
          condition = add(mask) ? count() - 1 : leaf(shape(x), false, Numbers::whole);
        }
        const int y = operand_for(x);
        if (dice_.percent(30)) {
          add(make(Do::masked_fill, {x, condition}, {}, some_float()));
        } else {
          add(make(Do::where, {condition, x, y}));
        }
        return;
      }
      default: add(make(Do::unary, {x}, {6 + dice_.below(6)})); return;
    }
  }

  // x and what it reduces to, together: norms, centring, weights of their own.
  void reduce_and_combine() {
    const int x = any();
    Line reduced = make(Do::sum, {x}, some_dims(shape(x)));
    reduced.n[0] = dice_.percent(80) ? 1 : 0;
    if (dice_.percent(30)) {
      reduced.what = Do::mean;
    } else if (dice_.percent(30)) {
      reduced.what = Do::max;
      reduced.n = {reduced.n[0], one_dim(shape(x))};
    } else if (dice_.percent(20)) {
      reduced.what = Do::total;
    }
    if (!add(reduced)) {
      return;
    }
    int y = count() - 1;
    if (dice_.percent(40) && add(make(Do::unary, {y}, {dice_.below(14)}))) {
      y = count() - 1;
    }
    add(make(Do::binary, {x, y}, {dice_.below(6)}));
  }

  void reduction() {
    if (dice_.percent(40)) {
      reduce_and_combine();
      return;
    }
    const int x = any();
    switch (dice_.below(6)) {
      case 0:
      case 1: add(make(Do::sum, {x}, some_dims(shape(x)))); return;
      case 2: add(make(Do::mean, {x}, some_dims(shape(x)))); return;
      case 3: add(make(Do::total, {x})); return;
      case 4: add(make(Do::max, {x}, {dice_.below(2), one_dim(shape(x))})); return;
      default: {
        Line out = make(Do::argmax, {x}, {dice_.below(2), one_dim(shape(x))});
        out.exact = true;
        add(out);
        return;
      }
    }
  }

  void rows_or_product() {
    const int kind = dice_.below(16);
    if (kind < 7) {
      const int x = any_with_dims(1);
      const std::int64_t d = shape(x)[-1];
      switch (kind) {
        case 0:
        case 1: add(make(Do::softmax, {x})); return;
        case 2: add(make(Do::log_softmax, {x})); return;
        case 3: {
          const int w = need({d});
          std::vector<int> of = {x, w};
          if (dice_.percent(70)) {
            of.push_back(need({d}));
          }
          add(make(Do::layer_norm, of));
          return;
        }
        case 4: add(make(Do::rms_norm, {x, need({d})})); return;
        case 5: {
          if (d < 1) {
            return;
          }
          const int targets = leaf({shape(x).count() / d}, dice_.percent(50), Numbers::targets,
                                   static_cast<int>(d));
          add(make(Do::cross_entropy, {x, targets}));
          return;
        }
        default: {
          if (d < 1 || nan_) {  // a row left out that holds a NaN: its gradient is 0 or NaN
            return;
          }
          const std::int64_t v = 2 + dice_.below(6);
          const int w = need({v, d});
          const int targets = leaf({shape(x).count() / d}, dice_.percent(50), Numbers::targets,
                                   static_cast<int>(v));
          add(make(Do::linear_loss, {x, w, targets}));
          return;
        }
      }
    }
    const int x = any_with_dims(2);
    const std::int64_t k = shape(x)[-1];
    switch (kind) {
      case 7:
      case 8: add(make(Do::matmul, {x, need({k, size()})})); return;
      case 9: {
        ts::Shape w;
        for (int i = 0; i + 2 < shape(x).size(); ++i) {
          w.push_back(dice_.percent(30) ? 1 : shape(x)[i]);
        }
        if (dice_.percent(30)) {
          w = {};
          w.push_back(size());
        }
        w.push_back(k);
        w.push_back(size());
        add(make(Do::matmul, {x, need(w)}));
        return;
      }
      case 10: add(make(Do::matmul_transposed, {x, need({size(), k})})); return;
      case 11: {
        const std::int64_t n = size();
        std::vector<int> of = {x, need({n, k})};
        if (dice_.percent(70)) {
          of.push_back(need({n}));
        }
        add(make(Do::linear, of));
        return;
      }
      case 12: {
        const int kv = 1 + dice_.below(2), each = 1 + dice_.below(2), head = 1 + dice_.below(4);
        const std::int64_t b = size(), t = size(), s = t + (dice_.percent(30) ? 2 : 0);
        const int q = need({b, t, kv * each * head});
        const int key = need({b, s, kv * head}), value = need({b, s, kv * head});
        if (s > 0) {
          const int causal = dice_.below(2);  // primitives multiply what a mask hides by 0
          add(make(Do::attention, {q, key, value}, {kv * each, kv, nan_ ? 0 : causal}));
        }
        return;
      }
      case 13: {
        const std::int64_t head = 2 * (1 + dice_.below(3));
        add(make(Do::rope, {need({size(), size(), head * (1 + dice_.below(3))})},
                 {head, dice_.below(2)}));
        return;
      }
      case 14: {
        const int which = dice_.below(3);
        const std::int64_t i = size(), j = size(), n = size(), b = size();
        if (which == 2) {
          add(make(Do::einsum, {need({b, i, j}), need({b, j, n})}, {which}));
        } else {
          add(make(Do::einsum, {need({i, j}), need(which == 0 ? ts::Shape{j, n} : ts::Shape{n, j})},
                   {which}));
        }
        return;
      }
      default: {
        const float p = static_cast<float>(dice_.below(4)) / 5.0f;
        add(make(Do::dropout, {x}, {dice_.below(1000)}, p));
        return;
      }
    }
  }

  std::vector<std::int64_t> some_ids(std::int64_t n, std::int64_t below) {
    std::vector<std::int64_t> ids;
    for (std::int64_t i = 0; i < n && below > 0; ++i) {
      ids.push_back(dice_.below(static_cast<int>(below)));
    }
    return ids;
  }

  void move() {
    const int x = dice_.percent(85) ? any_with_dims(1) : any();
    const ts::Shape s = shape(x);
    const int d = one_dim(s);
    const int front = d < 0 ? d + s.size() : d;
    const std::int64_t n = s.size() > 0 ? s[front] : 0;
    switch (dice_.below(22)) {
      case 0:
      case 1:
      case 2: add_exact(make(Do::reshape, {x}, another_shape(s))); return;
      case 3:
      case 4: {
        std::vector<std::int64_t> order;
        for (int i = 0; i < s.size(); ++i) {
          order.insert(order.begin() + dice_.below(i + 1), i);
        }
        add_exact(make(Do::permute, {x}, order));
        return;
      }
      case 5:
      case 6:
      case 7: {
        const std::int64_t begin = dice_.below(static_cast<int>(n) + 1);
        const std::int64_t end = begin + dice_.below(static_cast<int>(n - begin) + 1);
        add_exact(make(
            Do::slice, {x},
            {d, begin, dice_.percent(40) ? n : end, 1 + (dice_.percent(40) ? dice_.below(3) : 0)}));
        return;
      }
      case 8:
      case 9: {
        std::vector<std::int64_t> to = random_programs::sizes_of(s);
        for (std::int64_t& size : to) {
          size = size == 1 && dice_.percent(70) ? this->size() : size;
        }
        if (dice_.percent(40)) {
          to.insert(to.begin(), size());
        }
        add_exact(make(Do::broadcast_to, {x}, to));
        return;
      }
      case 10: add_exact(make(Do::squeeze, {x}, {d})); return;
      case 11: add_exact(make(Do::unsqueeze, {x}, {dice_.below(s.size() + 2) - 1})); return;
      case 12: add_exact(make(Do::split, {x}, {d, 1 + dice_.below(3), dice_.below(4)})); return;
      case 13: {
        std::vector<int> of = {x};
        const int parts = dice_.percent(10) ? 9 : 1 + dice_.below(3);
        for (int i = 1; i < parts; ++i) {
          ts::Shape part = s;
          if (s.size() > 0) {
            part.set(front, dice_.percent(50) ? n : size());
          }
          of.push_back(need(part));
        }
        add_exact(make(Do::concat, of, {d}));
        return;
      }
      case 14: {
        std::vector<int> of = {x};
        for (int i = dice_.below(3); i > 0; --i) {
          of.push_back(dice_.percent(30) ? x : need(s));
        }
        add_exact(make(Do::stack, of, {dice_.below(s.size() + 1)}));
        return;
      }
      case 15: {
        const std::int64_t begin = dice_.below(3), step = 1 + dice_.below(3);
        const std::int64_t last = n > 0 ? begin + (n - 1) * step + 1 : begin;
        add_exact(make(Do::pad, {x}, {d, begin, last + dice_.below(3), step}));
        return;
      }
      case 16: add_exact(make(Do::detach, {x})); return;
      case 17:
        add_exact(make(dice_.percent(40)   ? Do::copy
                       : dice_.percent(50) ? Do::clone
                                           : Do::contiguous,
                       {x}));
        return;
      case 18: {
        if (s.size() != 2 || s[0] < 1) {
          return;
        }
        const ts::Shape ids = beside(s);
        if (dice_.percent(70)) {
          add_exact(make(Do::embedding,
                         {x, leaf(ids, dice_.percent(50), Numbers::ids, static_cast<int>(s[0]))}));
        } else {
          add_exact(make(Do::embedding_of, {x}, some_ids(dice_.below(6), s[0])));
        }
        return;
      }
      default: by_number(x, s, front, n); return;
    }
  }
  void by_number(int x, const ts::Shape& s, int d, std::int64_t n) {
    if (s.size() == 0 || n < 1 || s.count() > 200) {
      return;
    }
    std::vector<std::int64_t> numbers = {d};
    const int which = dice_.below(3);
    const std::vector<std::int64_t> ids = some_ids(which == 0 ? dice_.below(6) : s.count(), n);
    numbers.insert(numbers.end(), ids.begin(), ids.end());
    if (which == 0) {
      add_exact(make(Do::index_select, {x}, numbers));
    } else if (which == 1) {
      add_exact(make(Do::gather, {x}, numbers));
    } else {
      add(make(Do::scatter_add, {x, need(s)}, numbers));
    }
  }
  std::vector<std::int64_t> another_shape(const ts::Shape& s) {
    std::vector<std::int64_t> out = random_programs::sizes_of(s);
    for (int tries = dice_.below(3) + 1; tries > 0; --tries) {
      const int kind = dice_.below(3);
      if (kind == 0 && out.size() > 1) {  // two joined
        const std::size_t i = at(dice_.below(static_cast<int>(out.size()) - 1));
        out[i] *= out[i + 1];
        out.erase(out.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      } else if (kind == 1 && out.size() < 5) {
        out.insert(out.begin() + dice_.below(static_cast<int>(out.size()) + 1), 1);
      } else if (!out.empty()) {
        const std::size_t i = at(dice_.below(static_cast<int>(out.size())));
        for (const std::int64_t by : {2, 3}) {
          if (out[i] > 0 && out[i] % by == 0 && out.size() < 5) {
            out[i] /= by;
            out.insert(out.begin() + static_cast<std::ptrdiff_t>(i), by);
            break;
          }
        }
      }
    }
    return out;
  }

  void source() {
    const int kind = dice_.below(3);
    if (kind == 0) {
      leaf(some_shape(), dice_.percent(50));
    } else if (kind == 1) {
      Line out = make(Do::full, {}, random_programs::sizes_of(some_shape()), some_float());
      out.exact = true;
      add(out);
    } else {
      Line out = make(Do::arange, {}, {size()});
      out.exact = true;
      add(out);
    }
  }

  int some_parameter() {
    for (int tries = 0; tries < 20; ++tries) {
      const int i = any();
      if (line(i).what == Do::leaf && line(i).grad && line(i).lies == Lies::dense) {
        return i;
      }
    }
    return -1;
  }

  void effect() {
    const int kind = dice_.below(10);
    if (kind < 5) {
      int x = any();
      const int which = dice_.below(6);
      if (line(x).below > 0) {
        return;
      }
      std::vector<int> of = {x};
      if (which < 4) {
        of.push_back(operand_for(x));
      }
      add(make(Do::write, of, {which}, some_float()));
    } else if (kind < 8) {
      const int x = any();
      add(make(Do::backward, {x}, {dice_.below(3)}));
    } else {
      const int x = some_parameter();
      if (x >= 0) {
        add(make(kind == 8 ? Do::zero_grad : Do::grad, {x}));
      }
    }
  }

  void choose_outputs() {
    const int n = 1 + dice_.below(3);
    for (int i = 0; i < n; ++i) {
      program_.outputs.push_back(i == 0 ? last_value() : any());
    }
    if (dice_.percent(10)) {
      program_.outputs.push_back(program_.outputs[0]);
    }
  }
  int last_value() {
    int i = count() - 1;
    while (i > 0 && !is_value(i)) {
      --i;
    }
    return i;
  }

  Dice dice_;
  Program program_;
  std::vector<ts::Tensor> values_;
  std::int64_t sizes_[4] = {};
  bool nan_ = false, effects_ = false, gradients_ = false;
};

// ---- comparing

struct Configuration {
  std::string name;
  ts::CompileOptions options;
};

using Flag = bool ts::CompileOptions::*;
const std::vector<std::pair<const char*, Flag>>& flags() {
  static const std::vector<std::pair<const char*, Flag>> all = {
      {"simplify", &ts::CompileOptions::simplify},
      {"fuse_elementwise", &ts::CompileOptions::fuse_elementwise},
      {"fuse_rows", &ts::CompileOptions::fuse_rows},
      {"fuse_matmul", &ts::CompileOptions::fuse_matmul},
      {"fuse_attention", &ts::CompileOptions::fuse_attention},
      {"plan_memory", &ts::CompileOptions::plan_memory},
      {"recognize", &ts::CompileOptions::recognize}};
  return all;
}
// All passes; none; each alone off; each alone on.
std::vector<Configuration> configurations() {
  std::vector<Configuration> all = {{"all passes", ts::CompileOptions()},
                                    {"no passes", ts::CompileOptions::none()}};
  for (const auto& flag : flags()) {
    Configuration off = {std::string("without ") + flag.first, ts::CompileOptions()};
    off.options.*flag.second = false;
    all.push_back(off);
    Configuration on = {std::string("only ") + flag.first, ts::CompileOptions::none()};
    on.options.*flag.second = true;
    all.push_back(on);
  }
  Configuration lean = {"a budget of bytes", ts::CompileOptions()};
  lean.options.activation_bytes = 32;
  all.push_back(lean);
  Configuration primitives = {"a budget of bytes, no passes", ts::CompileOptions::none()};
  primitives.options.activation_bytes = 1;
  all.push_back(primitives);
  return all;
}

enum class Verdict { equal, refused, skipped, different };

struct Outcome {
  Verdict verdict = Verdict::equal;
  std::string why;
};

// How far results may be apart. Sums are gathered in another order and what is fused rounds
// elsewhere: each of the few tens of ops that stand behind a number errs by a few 2^-24 of the
// largest number that it meets, hence 2^-18 of the largest number of the program. Where a program
// amplifies its errors (divisions, norms), it amplifies changes as well, which an eager run shows
// whose inputs are changed by up to 2^-20 and whose lines by some 2^-22; 16 of these are allowed.
struct Tolerance {
  double most = 1;
  bool any_infinite = false;  // infinities and NaN are the same
  double of(double apart) const { return std::ldexp(most, -18) + 16 * apart; }
};

std::string compare(const std::string& what, const ts::Tensor& eager, const ts::Tensor& shaken,
                    const ts::Tensor& compiled, Tolerance tolerance) {
  if (eager.defined() != compiled.defined()) {
    return what + ": eager " + (eager.defined() ? "has" : "has no") + " numbers, compiled " +
           (compiled.defined() ? "has" : "has none");
  }
  if (!eager.defined()) {
    return "";
  }
  if (eager.shape() != compiled.shape()) {
    return what + ": eager " + eager.shape().text() + ", compiled " + compiled.shape().text();
  }
  const std::vector<float> a = eager.values(), b = compiled.values();
  const std::vector<float> c =
      shaken.defined() && shaken.shape() == eager.shape() ? shaken.values() : a;
  double apart = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double size = std::fabs(static_cast<double>(a[i]));
    tolerance.most = size < 1e30 && size > tolerance.most ? size : tolerance.most;
    const double by = std::fabs(static_cast<double>(a[i] - c[i]));
    apart = by < 1e30 && by > apart ? by : apart;
  }
  for (std::size_t i = 0; i < a.size(); ++i) {
    const bool both_nan = tolerance.any_infinite ? !std::isfinite(a[i]) && !std::isfinite(b[i])
                                                 : std::isnan(a[i]) && std::isnan(b[i]);
    const double by = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    const bool same = a[i] <= b[i] && a[i] >= b[i];
    if (!both_nan && !same && !(by <= tolerance.of(apart))) {
      return what + ": element " + std::to_string(i) + " of " + eager.shape().text() + " is " +
             ts::detail::printed('g', 9, static_cast<double>(a[i])) + " eager, " +
             ts::detail::printed('g', 9, static_cast<double>(b[i])) + " compiled; " +
             ts::detail::printed('g', 3, tolerance.of(apart)) + " apart is allowed";
    }
  }
  return "";
}

// What a call leaves: results, then written tensors, then gradients.
struct Left {
  std::vector<std::string> names;
  std::vector<ts::Tensor> tensors;
  std::vector<bool> with_grad;

  void add(const std::string& name, const ts::Tensor& x, bool grad = false) {
    names.push_back(name);
    tensors.push_back(x.defined() ? x.detach().clone() : ts::Tensor());
    with_grad.push_back(grad);
  }
};

// Trains through results: the gradient of their sum, each with weights of its own.
void train_through(const std::vector<ts::Tensor>& results) {
  ts::Tensor loss = ts::zeros({});
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i].requires_grad()) {
      loss = loss + ts::sum(results[i] * ts::randn(results[i].shape(), 5 + i));
    }
  }
  if (loss.requires_grad()) {
    loss.backward();
  }
}

Left what_is_left(const Program& p, const std::vector<ts::Tensor>& results, const Leaves& leaves) {
  Left left;
  for (std::size_t i = 0; i < results.size(); ++i) {
    left.add("result " + std::to_string(i), results[i], results[i].requires_grad());
  }
  for (std::size_t i = 0; i < leaves.base.size(); ++i) {
    if (leaves.base[i].defined()) {
      const std::string name = "v" + std::to_string(i);
      left.add((p.lines[i].given ? "input " : "captured ") + name, leaves.base[i]);
      if (p.lines[i].grad) {
        left.add("gradient of " + name, leaves.base[i].grad());
      }
    }
  }
  return left;
}

// One call, eager or compiled; whether it threw.
struct Called {
  std::string error;
  Left left;
  std::vector<std::string> views;  // of each result: the inputs whose numbers it shares
  std::vector<bool> dense;
};
Called call(const Program& p, Leaves& leaves,
            const ts::Function<std::vector<ts::Tensor>(const std::vector<ts::Tensor>&)>& f) {
  Called out;
  try {
    const std::vector<ts::Tensor> results = f(inputs_of(p, leaves));
    for (const ts::Tensor& y : results) {
      std::string of;
      for (std::size_t i = 0; i < leaves.base.size(); ++i) {
        const bool same = p.lines[i].given && leaves.base[i].defined() && y.defined() &&
                          leaves.base[i].storage().get() == y.storage().get();
        of += same ? " v" + std::to_string(i) : "";
      }
      out.views.push_back(of);
      out.dense.push_back(y.is_contiguous());
    }
    if (p.outside) {
      train_through(results);
    }
    out.left = what_is_left(p, results, leaves);
  } catch (const ts::Error& error) {
    out.error = error.what();
  }
  return out;
}

bool is_refusal(const std::string& error) {
  return error.compare(0, 8, "compile:") == 0 || error.compare(0, 9, "Compiled:") == 0;
}

struct Counts {
  std::int64_t calls = 0, other_shapes = 0, threw = 0, captures = 0, hits = 0;
  std::map<std::string, int> refusals;
};

Outcome check(const Program& p, const Configuration& with, Counts& counts) {
  const float shake = std::ldexp(1.0f, -20);
  Leaves eager = make_leaves(p, 0), shaken = make_leaves(p, shake), own = make_leaves(p, 0);
  const ts::Compiled compiled = ts::compile(
      [&p, &own](const std::vector<ts::Tensor>& in) { return run(p, own, in); }, with.options);
  for (int round = 0; round < 5; ++round) {
    const bool other = round == 3;
    if (other && p.has_effects()) {  // half of them done is not to be compared
      continue;
    }
    renew_inputs(p, eager, round, other, 0);
    renew_inputs(p, shaken, round, other, shake);
    renew_inputs(p, own, round, other, 0);
    Watch watch;
    const Called a = call(
        p, eager, [&](const std::vector<ts::Tensor>& in) { return run(p, eager, in, &watch); });
    const Called b = call(p, shaken, [&](const std::vector<ts::Tensor>& in) {
      return run(p, shaken, in, nullptr, shake / 4);
    });
    if (watch.near_tie) {
      return {round == 0 ? Verdict::skipped : Verdict::equal, "near ties"};
    }
    const Called c = call(p, own, compiled);
    ++counts.calls;
    counts.other_shapes += other ? 1 : 0;
    if (!c.error.empty() && is_refusal(c.error) && p.has_effects() && round == 0) {
      return {Verdict::refused, c.error};
    }
    const std::string where = with.name + ", call " + std::to_string(round) + ": ";
    if (a.error.empty() != c.error.empty()) {
      return {Verdict::different, where + "eager " + (a.error.empty() ? "runs" : a.error) +
                                      ", compiled " + (c.error.empty() ? "runs" : c.error)};
    }
    if (!a.error.empty()) {
      ++counts.threw;
      if (p.has_effects() || !b.left.tensors.empty()) {
        return {Verdict::skipped, a.error};
      }
      continue;
    }
    for (std::size_t i = 0; i < a.views.size(); ++i) {
      if (c.views[i] != a.views[i] || (a.dense[i] && !c.dense[i])) {
        return {Verdict::different, where + "result " + std::to_string(i) + " shares" + a.views[i] +
                                        " eager," + c.views[i] + " compiled" +
                                        (c.dense[i] ? "" : ", in other strides")};
      }
    }
    Tolerance tolerance;
    tolerance.most = watch.most;
    for (std::size_t i = 0; i < a.left.tensors.size(); ++i) {
      // Each result has a backward pass of its own, whose infinities meet at the parameter.
      tolerance.any_infinite = a.left.names[i][0] == 'g' && p.outside && p.outputs.size() > 1;
      const bool same_shaken = b.left.tensors.size() == a.left.tensors.size();
      std::string apart =
          compare(a.left.names[i], a.left.tensors[i],
                  same_shaken ? b.left.tensors[i] : ts::Tensor(), c.left.tensors[i], tolerance);
      if (apart.empty() && a.left.with_grad[i] != c.left.with_grad[i] && !p.has(Do::backward)) {
        apart = a.left.names[i] + (a.left.with_grad[i] ? ": only eager has a gradient"
                                                       : ": only compiled has a gradient");
      }
      if (!apart.empty()) {
        return {Verdict::different, where + apart};
      }
    }
  }
  counts.captures += compiled.counters().captures;
  counts.hits += compiled.counters().hits;
  return {};
}

// ---- making a failing program smaller

// Without the lines that nothing needs; numbers of lines change.
Program without_dead(const Program& p) {
  std::vector<char> needed(p.lines.size());
  for (const int output : p.outputs) {
    needed[at(output)] = 1;
  }
  for (std::size_t i = p.lines.size(); i-- > 0;) {
    const Do what = p.lines[i].what;
    if (what == Do::write || what == Do::backward || what == Do::zero_grad) {
      needed[i] = 1;
    }
    for (const int of : needed[i] != 0 ? p.lines[i].of : std::vector<int>()) {
      needed[at(of)] = 1;
    }
  }
  Program out = p;
  out.lines.clear();
  std::vector<int> to(p.lines.size());
  for (std::size_t i = 0; i < p.lines.size(); ++i) {
    if (needed[i] != 0) {
      to[i] = static_cast<int>(out.lines.size());
      out.lines.push_back(p.lines[i]);
      for (int& of : out.lines.back().of) {
        of = to[at(of)];
      }
    }
  }
  for (int& output : out.outputs) {
    output = to[at(output)];
  }
  return out;
}

bool still_fails(const Program& p, const Configuration& with) {
  Counts counts;
  try {
    return check(p, with, counts).verdict == Verdict::different;
  } catch (const std::exception&) {
    return false;
  }
}

Program smaller(Program p, const Configuration& with) {
  for (bool again = true; again;) {
    again = false;
    const auto take = [&](Program next) {
      next = without_dead(next);
      if (still_fails(next, with)) {
        p = next;
        again = true;
        return true;
      }
      return false;
    };
    for (std::size_t i = 0; i < p.outputs.size() && p.outputs.size() > 1; ++i) {
      Program next = p;
      next.outputs.erase(next.outputs.begin() + static_cast<std::ptrdiff_t>(i));
      if (take(next)) {
        break;
      }
    }
    if (p.outside) {
      Program next = p;
      next.outside = false;
      take(next);
    }
    for (std::size_t i = p.lines.size(); i-- > 0;) {
      if (i >= p.lines.size()) {
        continue;
      }
      const Line& line = p.lines[i];
      if (line.what == Do::leaf) {
        for (int part = 0; part < 3; ++part) {
          Program next = p;
          Line& leaf = next.lines[i];
          const bool changes = part == 0 ? leaf.lies != Lies::dense
                               : part == 1
                                   ? leaf.grad
                                   : leaf.numbers < Numbers::ids && leaf.numbers != Numbers::normal;
          leaf.lies = part == 0 ? Lies::dense : leaf.lies;
          leaf.grad = part == 1 ? false : leaf.grad;
          leaf.numbers = part == 2 ? Numbers::normal : leaf.numbers;
          if (changes && take(next)) {
            break;
          }
        }
        continue;
      }
      const bool value =
          line.what != Do::write && line.what != Do::backward && line.what != Do::zero_grad;
      Program next = p;
      if (!value) {
        next.lines.erase(next.lines.begin() + static_cast<std::ptrdiff_t>(i));
        for (Line& each : next.lines) {
          for (int& of : each.of) {
            of -= of > static_cast<int>(i) ? 1 : 0;
          }
        }
        for (int& output : next.outputs) {
          output -= output > static_cast<int>(i) ? 1 : 0;
        }
        take(next);
        continue;
      }
      Line leaf;  // the value, given
      leaf.shape = line.shape;
      leaf.exact = false;
      leaf.grad = true;
      leaf.given = true;
      next.lines[i] = leaf;
      if (take(next)) {
        continue;
      }
      next.lines[i].grad = false;
      if (take(next)) {
        continue;
      }
      for (const int of : line.of) {  // or what it is of
        if (i < p.lines.size() && p.lines[at(of)].shape == p.lines[i].shape) {
          Program other = p;
          for (Line& each : other.lines) {
            for (int& use : each.of) {
              use = use == static_cast<int>(i) ? of : use;
            }
          }
          for (int& output : other.outputs) {
            output = output == static_cast<int>(i) ? of : output;
          }
          if (take(other)) {
            break;
          }
        }
      }
    }
  }
  return p;
}

// A program that runs eagerly, from this seed.
bool make_program(std::uint64_t seed, Program& out) {
  out = Author(seed).make();
  for (int tries = 0; tries < 2; ++tries) {
    Leaves leaves = make_leaves(out, 0);
    const Called first =
        call(out, leaves, [&](const std::vector<ts::Tensor>& in) { return run(out, leaves, in); });
    if (first.error.empty()) {
      return true;
    }
    out.outside = false;
  }
  return false;
}

std::int64_t number_from(const char* name, std::int64_t otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::atoll(text) : otherwise;
}

}  // namespace

TEST_CASE("random programs give equal results eager and compiled, pass by pass") {
  const std::vector<Configuration> all = configurations();
  const std::int64_t first = number_from("TINYSCALE_RANDOM_GRAPH_SEED", 0);
  const std::int64_t programs = number_from("TINYSCALE_RANDOM_GRAPHS", long_tests() ? 10000 : 300);
  Counts counts;
  int ran = 0, checked = 0, refused = 0, skipped = 0, failures = 0;
  for (std::int64_t seed = first; seed < first + programs; ++seed) {
    Program p;
    if (!make_program(static_cast<std::uint64_t>(seed), p)) {
      continue;
    }
    ++ran;
    for (std::size_t c = 0; c < all.size(); ++c) {
      // Both ends always; of the others, unless the test runs whole, two a program in turn.
      const bool in_turn = c >= 2 && (c - 2) % 7 == static_cast<std::size_t>(seed) % 7;
      if (c >= 2 && !in_turn && !long_tests()) {
        continue;
      }
      const Outcome outcome = check(p, all[c], counts);
      ++checked;
      refused += outcome.verdict == Verdict::refused ? 1 : 0;
      skipped += outcome.verdict == Verdict::skipped ? 1 : 0;
      if (outcome.verdict == Verdict::skipped) {
        ++counts.refusals["skipped: " + outcome.why.substr(0, 60)];
      }
      if (outcome.verdict == Verdict::refused) {
        std::string kind = outcome.why;
        kind = kind.substr(0, kind.find('['));
        ++counts.refusals[kind];
      }
      if (outcome.verdict == Verdict::different) {
        ++failures;
        const Program least = smaller(p, all[c]);
        const std::string why = check(least, all[c], counts).why;
        FAIL_CHECK("seed " << seed << ", " << outcome.why << "\n" << why << "\n" << text(least));
        break;
      }
    }
    if (failures >= number_from("TINYSCALE_RANDOM_GRAPH_FAILURES", 5)) {
      break;
    }
  }
  MESSAGE(ran << " programs, " << checked << " times compiled, " << counts.calls << " calls ("
              << counts.captures << " captures, " << counts.hits << " replays, " << counts.threw
              << " threw as eager), " << refused << " refused, " << skipped << " skipped");
  for (const auto& kind : counts.refusals) {
    MESSAGE(kind.second << " x " << kind.first);
  }
  CHECK(ran > programs * 8 / 10);
  CHECK(refused < checked / 4);
  CHECK(skipped < checked / 5);
}
