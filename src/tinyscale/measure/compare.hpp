#pragma once
// Predicted beside counted: rows that say what a formula promised and what a run did,
// and reports side by side.

#include <cmath>
#include <cstddef>
#include <iostream>
#include <string>
#include <vector>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"

namespace tinyscale {

struct ReportRow {
  std::string name, unit;
  double predicted = 0, counted = 0;
  std::string how = "";  // the formula in letters, or in words

  // counted / predicted; 1 when both are 0.
  double ratio() const { return predicted == counted ? 1 : counted / predicted; }
  // Whether they differ by at most `relative` of the larger.
  bool equal(double relative) const {
    const double larger = std::fmax(std::fabs(predicted), std::fabs(counted));
    const double apart = std::fabs(predicted - counted);
    return predicted == counted || (detail::is_finite(apart) && apart <= relative * larger);
  }
};

struct Comparison {
  std::string title;
  List<ReportRow> rows;
  std::string formula_head = "formula", counted_head = "counted";  // of the columns

  void add(const std::string& name, const std::string& unit, double predicted, double counted,
           const std::string& how = "") {
    rows.push_back({name, unit, predicted, counted, how});
  }

  // Whether every row agrees to within `relative`; 0 asks for the same number.
  bool equal(double relative) const {
    for (const ReportRow& row : rows) {
      if (!row.equal(relative)) {
        return false;
      }
    }
    return true;
  }

  Table table() const {
    Table out;
    out.title = title;
    out.columns = {"name", "unit", formula_head, counted_head, counted_head + "/" + formula_head};
    bool explained = false;
    for (const ReportRow& row : rows) {
      explained = explained || !row.how.empty();
    }
    if (explained) {
      out.columns.push_back("how");
    }
    for (const ReportRow& row : rows) {
      std::vector<Cell> cells = {row.name, row.unit, detail::number_cell(row.predicted),
                                 detail::number_cell(row.counted), format_fixed(row.ratio(), 3)};
      if (explained) {
        cells.push_back(row.how);
      }
      out.add(cells);
    }
    return out;
  }
  operator Table() const { return table(); }

  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }
};

inline std::ostream& operator<<(std::ostream& out, const Comparison& comparison) {
  return out << comparison.table();
}

namespace detail {

// The row whose first cell is `key`, the n-th of them; null when there is none.
inline const std::vector<Cell>* find_row(const Table& table, const std::string& key,
                                         std::size_t n) {
  for (const std::vector<Cell>& row : table.rows) {
    if (!row.empty() && row[0] == key && n-- == 0) {
      return &row;
    }
  }
  return nullptr;
}

// How many characters all titles begin with, up to the end of a clause.
inline std::size_t common_start(const List<Table>& reports) {
  const std::string& first = reports[0].title;
  std::size_t same = first.size();
  for (const Table& report : reports) {
    std::size_t i = 0;
    while (i < same && i < report.title.size() && report.title[i] == first[i]) {
      ++i;
    }
    same = i < same ? i : same;
  }
  bool alike = true;
  for (const Table& report : reports) {
    alike = alike && report.title == first;
  }
  while (same > 0 && !(same > 1 && first[same - 1] == ' ' &&
                       (first[same - 2] == ',' || first[same - 2] == ':'))) {
    --same;
  }
  return alike ? 0 : same;
}

}  // namespace detail

// Reports side by side: rows are matched by their first cell, columns are "title: column", titles
// without the words that all begin with.
// A report takes part by converting to a Table.
inline Table compare(const List<Table>& reports) {
  if (reports.empty()) {
    detail::fail({"compare: there is no report; give one or more, each with columns"});
  }
  for (std::size_t r = 0; r < reports.size(); ++r) {
    if (reports[r].columns.empty()) {
      detail::fail({"compare: report ", r + 1, " of ", reports.size(),
                    " has no columns; rows are matched by the cell in the first"});
    }
    reports[r].check_rows();
  }
  Table out;
  out.columns.push_back(reports[0].columns[0]);
  std::vector<std::string> keys;    // first cells
  std::vector<std::size_t> before;  // how many equal ones come before each
  for (std::size_t r = 0; r < reports.size(); ++r) {
    const std::string name = reports[r].title.empty()
                                 ? detail::cat({"report ", r + 1})
                                 : reports[r].title.substr(detail::common_start(reports));
    for (std::size_t c = 1; c < reports[r].columns.size(); ++c) {
      out.columns.push_back(name + ": " + reports[r].columns[c]);
    }
    std::vector<std::string> seen;
    for (const std::vector<Cell>& row : reports[r].rows) {
      std::size_t n = 0;
      for (const std::string& key : seen) {
        n += key == row[0] ? 1U : 0U;
      }
      seen.push_back(row[0]);
      bool known = false;
      for (std::size_t i = 0; i < keys.size(); ++i) {
        known = known || (before[i] == n && keys[i] == row[0]);
      }
      if (!known) {
        keys.push_back(row[0]);
        before.push_back(n);
      }
    }
  }
  for (std::size_t i = 0; i < keys.size(); ++i) {
    std::vector<Cell> cells = {keys[i]};
    for (const Table& report : reports) {
      const std::vector<Cell>* row = detail::find_row(report, keys[i], before[i]);
      for (std::size_t c = 1; c < report.columns.size(); ++c) {
        cells.push_back(row == nullptr ? "-" : (*row)[c]);
      }
    }
    out.add(cells);
  }
  return out;
}

}  // namespace tinyscale
