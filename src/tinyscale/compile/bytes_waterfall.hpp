#pragma once
// Which ops' memory traffic a compilation takes away: bytes of each op when run alone, and what is
// left of them in the kernels that ops share.

#include <algorithm>  // min
#include <cmath>      // round
#include <cstddef>    // size_t
#include <ostream>    // operator<<
#include <string>     // names
#include <vector>     // sorting

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/order.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/compile/compiled.hpp"
#include "tinyscale/measure/quantity_formula.hpp"

namespace tinyscale {

struct OpBytes {
  std::string op;
  double before = 0, after = 0;  // read and written

  double gone() const { return before - after; }  // below 0: there is more
};

struct BytesWaterfall {
  List<OpBytes> rows;  // what goes most first
  int kernels_before = 0, kernels_after = 0;

  double before() const;
  double after() const;
  Table table() const;
  Table data() const;
  std::string csv() const { return data().csv(); }
  std::string json() const { return data().json(); }
};

namespace detail {

// An op of a kernel's name and how often it is in it: "mul x3 add" is mul 3, add 1.
struct NamedOp {
  std::string op;
  double times = 1;
};
inline List<NamedOp> ops_of_name(const std::string& name) {
  List<NamedOp> out;
  for (std::size_t at = 0; at < name.size();) {
    const std::size_t end = std::min(name.find(' ', at), name.size());
    const std::string word = name.substr(at, end - at);
    double times = 0;
    bool number = word.size() > 1 && word[0] == 'x' && !out.empty();
    for (std::size_t i = 1; i < word.size(); ++i) {
      number = number && word[i] >= '0' && word[i] <= '9';
      times = 10 * times + (word[i] - '0');
    }
    if (number) {
      out.back().times = times;
    } else if (!word.empty()) {
      out.push_back(NamedOp{word, 1});
    }
    at = end + 1;
  }
  return out;
}

}  // namespace detail

// Of records of ops alone and of kernels named by their ops. A kernel's bytes are shared among its
// ops in proportion to what one of each moved alone.
inline BytesWaterfall bytes_waterfall(const List<OpRecord>& before, const List<OpRecord>& after) {
  List<OpBytes> rows;
  std::vector<double> count;
  const auto row_of = [&](const std::string& op) {
    std::size_t i = 0;
    while (i < rows.size() && rows[i].op != op) {
      ++i;
    }
    if (i == rows.size()) {
      rows.push_back(OpBytes{op, 0, 0});
      count.push_back(0);
    }
    return i;
  };
  for (const OpRecord& record : before) {
    const std::size_t row = row_of(record.name);
    rows[row].before += record.bytes();
    ++count[row];
  }
  for (const OpRecord& record : after) {
    const List<detail::NamedOp> ops = detail::ops_of_name(record.name);
    std::vector<double> share;
    double all = 0;
    for (const detail::NamedOp& named : ops) {
      const std::size_t row = row_of(named.op);
      share.push_back(count[row] > 0 ? named.times * rows[row].before / count[row] : 0);
      all += share.back();
    }
    for (std::size_t i = 0; i < ops.size(); ++i) {
      rows[row_of(ops[i].op)].after +=
          record.bytes() * (all > 0 ? share[i] / all : 1 / static_cast<double>(ops.size()));
    }
  }
  BytesWaterfall out;
  out.kernels_before = static_cast<int>(before.size());
  out.kernels_after = static_cast<int>(after.size());
  std::vector<double> keys;
  for (const OpBytes& row : rows) {
    keys.push_back(-row.gone());
  }
  for (const std::size_t i : detail::stable_order(keys)) {
    if (rows[i].before > 0 || rows[i].after > 0) {
      out.rows.push_back(rows[i]);
    }
  }
  return out;
}

// Of the ops of a graph run one by one, and of a plan.
inline BytesWaterfall bytes_waterfall(const Graph& before, const GraphPlan& after) {
  return bytes_waterfall(op_by_op(before), after.records());
}

namespace detail {

// A captured graph without the ops that recognition left behind: it has put a composite op in their
// place.
inline Graph written_graph(const Compiled& f) {
  Graph graph = f.captured();
  if (f.plan().options().recognize) {
    sort_needed(graph);
  }
  return graph;
}

}  // namespace detail

// Of a function as it was captured, and as it runs. With options.recognize off ops are what was
// written; else primitives that are a composite op count as that one.
inline BytesWaterfall bytes_waterfall(const Compiled& f) {
  return bytes_waterfall(detail::written_graph(f), f.plan());
}

inline double BytesWaterfall::before() const {
  double sum = 0;
  for (const OpBytes& row : rows) {
    sum += row.before;
  }
  return sum;
}
inline double BytesWaterfall::after() const {
  double sum = 0;
  for (const OpBytes& row : rows) {
    sum += row.after;
  }
  return sum;
}

inline Table BytesWaterfall::table() const {
  Table out;
  out.title =
      detail::cat({"bytes by op: ", kernels_before, " kernels before, ", kernels_after, " after"});
  out.columns = {"op", "before", "gone", "left"};
  for (const OpBytes& row : rows) {
    const double left = std::round(row.after);
    out.add(
        {row.op, format_bytes(row.before), format_bytes(row.before - left), format_bytes(left)});
  }
  out.add(
      {"total", format_bytes(before()), format_bytes(before() - after()), format_bytes(after())});
  return out;
}

inline Table BytesWaterfall::data() const {
  Table out;
  out.title = "bytes by op";
  out.columns = {"op", "bytes before", "bytes after"};
  for (const OpBytes& row : rows) {
    out.add({row.op, detail::json_number(row.before), detail::json_number(row.after)});
  }
  return out;
}

inline std::ostream& operator<<(std::ostream& out, const BytesWaterfall& waterfall) {
  return out << waterfall.table();
}

}  // namespace tinyscale
