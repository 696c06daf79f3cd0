#pragma once
// A well-known claim beside what this library makes of it: a verdict, the figures of the claim next
// to ours with their formulas, the assumptions, and what the claim leaves out.
//   ours: formula (closed form), simulated (on a declared machine) or counted (in a run made here);
//   "unknown" where nothing public says: no number is made up.

#include <cmath>       // fabs, floor
#include <cstddef>     // std::size_t
#include <functional>  // curves
#include <limits>      // a figure that there is not
#include <ostream>     // operator<<
#include <string>      // text
#include <vector>      // notes

#include "tinyscale.hpp"

namespace tinyscale {

enum class Verdict { holds, holds_when, refuted, unknown };

inline const char* name_of(Verdict verdict) {
  static const char* const names[] = {"holds", "holds when", "refuted", "unknown"};
  return names[static_cast<int>(verdict)];
}

constexpr double no_figure = std::numeric_limits<double>::quiet_NaN();

// A figure of a claim; no_figure: ours is not known, or the claim has none.
struct ClaimRow {
  std::string name, formula;  // the formula in letters, or what was run
  double ours = no_figure, claimed = no_figure;
  std::string unit, kind;  // kind: formula, simulated, counted

  bool known() const { return !detail::is_nan(ours); }
};

// Curves over one axis, one for each series: points of a plot, or rows of a heat map.
struct ClaimSeries {
  std::string name;
  std::vector<double> y;  // no_figure: there is no such point
};

struct ClaimChart {
  std::string title, x_label, y_label;
  std::vector<double> x;
  List<ClaimSeries> series;

  Table table() const {
    Table out;
    out.title = detail::cat({title, ": ", y_label});
    out.columns = {x_label};
    for (const ClaimSeries& s : series) {
      out.columns.push_back(s.name);
    }
    for (std::size_t i = 0; i < x.size(); ++i) {
      std::vector<Cell> row = {detail::short_number(x[i])};
      for (const ClaimSeries& s : series) {
        row.push_back(detail::is_nan(s.y[i]) ? "-" : detail::number_cell('g', 4, s.y[i]));
      }
      out.add(row);
    }
    return out;
  }
};

namespace detail {

inline std::string claim_number(double value, const std::string&) {
  return printed('g', 12, value);
}

// From 1000 on as whole numbers, bytes, FLOPs and seconds scaled, the rest by four digits.
inline std::string claim_figure(double value, const std::string& unit) {
  const bool si = (unit.find("FLOP") == 0 && unit != "FLOP/B") || unit == "B/s" || unit == "bit/s";
  const double size = std::fabs(value);
  const bool whole = size < 1e13 && (size >= 1000 || value == std::floor(value));
  return unit == "s" || unit == "B" ? Quantity(value, unit).text()
         : si                       ? format_si(value, "")
         : whole                    ? format_count(value)
                                    : printed('g', 4, value);
}

}  // namespace detail

struct ClaimReport {
  std::string id, title;
  std::string claim;  // what is said, in our words
  Verdict verdict = Verdict::unknown;
  std::string when;  // under what it holds, or what refutes it
  std::vector<std::string> assumptions, caveats;
  List<ClaimRow> rows;
  List<Quantity> quantities;  // those of the rows that explain themselves
  List<ClaimChart> charts;
  std::string picture;

  // A figure from a formula that explains itself, and those from a closed form of the library, from
  // counters of a run, from a run on a declared machine.
  void add(const std::string& name, const Quantity& q, double claimed = no_figure) {
    quantities.push_back(named(name, q));
    rows.push_back({name, q.formula(), q.value(), claimed, q.unit(), "formula"});
  }
  void formula(const std::string& name, const std::string& how, double ours,
               const std::string& unit = "", double claimed = no_figure) {
    rows.push_back({name, how, ours, claimed, unit, "formula"});
  }
  void counted(const std::string& name, const std::string& how, double ours,
               const std::string& unit = "", double claimed = no_figure) {
    rows.push_back({name, how, ours, claimed, unit, "counted"});
  }
  void simulated(const std::string& name, const std::string& how, double ours,
                 const std::string& unit = "", double claimed = no_figure) {
    rows.push_back({name, how, ours, claimed, unit, "simulated"});
  }

  // y(series, x) for every series and x; returns the chart.
  const ClaimChart& chart(const std::string& name, const std::string& x_label,
                          const std::string& y_label, const std::vector<double>& x,
                          const std::vector<std::string>& names,
                          const std::function<double(std::size_t series, double x)>& y) {
    ClaimChart made{name, x_label, y_label, x, {}};
    for (std::size_t i = 0; i < names.size(); ++i) {
      made.series.push_back({names[i], {}});
      for (const double at : x) {
        made.series[i].y.push_back(y(i, at));
      }
    }
    charts.push_back(made);
    return charts.back();
  }

  // What a run must show; if it does not, the claim is refuted for that reason.
  void needs(bool shown, const std::string& otherwise) {
    verdict = shown ? verdict : Verdict::refuted;
    when = shown ? when : otherwise;
  }

  const ClaimRow& row(const std::string& name) const {
    std::string names;
    for (const ClaimRow& r : rows) {
      if (r.name == name) {
        return r;
      }
      names += (names.empty() ? "" : ", ") + r.name;
    }
    detail::fail({"ClaimReport: ", id, " has no row \"", name, "\"; its rows are ", names});
  }
  const Quantity& quantity(const std::string& name) const {
    for (const Quantity& q : quantities) {
      if (q.name() == name) {
        return q;
      }
    }
    detail::fail({"ClaimReport: ", id, " has no quantity \"", name, "\"; row() has all figures"});
  }

  std::string verdict_text() const {
    return when.empty() ? name_of(verdict) : detail::cat({name_of(verdict), ": ", when});
  }
  std::string explain() const {  // how each quantity comes about
    std::string out;
    for (const Quantity& q : quantities) {
      out += q.explain();
    }
    return out;
  }
  // As people read it; data() has the numbers as they are, in units without prefixes.
  Table table() const { return table_of(&detail::claim_figure); }
  Table data() const { return table_of(&detail::claim_number); }
  operator Table() const { return table(); }
  std::string csv() const { return data().csv(); }
  std::string json() const;

 private:
  using Written = std::string (*)(double value, const std::string& unit);
  Table table_of(Written written) const {
    Table out;
    out.title = detail::cat({id, "  ", title});
    out.columns = {"figure", "ours", "claimed", "unit", "kind", "from"};
    for (const ClaimRow& r : rows) {
      out.add({r.name, r.known() ? written(r.ours, r.unit) : "unknown",
               detail::is_nan(r.claimed) ? "-" : written(r.claimed, r.unit), r.unit,
               r.known() ? r.kind : "-", r.formula});
    }
    return out;
  }
};

namespace detail {

inline ClaimReport claim_of(const char* claim, Verdict verdict, const char* when = "") {
  ClaimReport report;
  report.claim = claim;
  report.verdict = verdict;
  report.when = when;
  return report;
}

}  // namespace detail

inline std::string ClaimReport::json() const {
  const auto text = [](const char* key, const std::string& value) {
    return detail::cat({"\"", key, "\": \"", json_escape(value), "\", "});
  };
  std::string out = "{" + text("id", id) + text("title", title) + text("claim", claim) +
                    text("verdict", name_of(verdict)) + text("when", when);
  out += "\"assumptions\": " + detail::json_texts(assumptions);
  out += ", \"caveats\": " + detail::json_texts(caveats) + ", \"figures\": " + data().json();
  std::vector<std::string> told;
  for (const Quantity& q : quantities) {
    told.push_back(q.explain());
  }
  out += ", \"derivations\": " + detail::json_texts(told) + ", \"charts\": [";
  for (std::size_t i = 0; i < charts.size(); ++i) {
    out += (i > 0 ? ", " : "") + charts[i].table().json();
  }
  return out + "]}\n";
}

inline std::ostream& operator<<(std::ostream& out, const ClaimReport& report) {
  out << report.table() << "\nClaim: " << report.claim << "\n" << report.verdict_text() << "\n";
  for (const std::string& text : report.assumptions) {
    out << "- assumed: " << text << "\n";
  }
  for (const std::string& text : report.caveats) {
    out << "- " << text << "\n";
  }
  for (const ClaimChart& chart : report.charts) {
    out << "\n" << chart.table();
  }
  return report.picture.empty() ? out : out << "\n" << report.picture;
}

}  // namespace tinyscale
