#pragma once
// Numbers as people read them, and tables that line up.
//   format_bytes(1.23e9) -> "1.23 GB"   format_seconds(1.23e-5) -> "12.3 us"
//   format_count(803840) -> "803,840"   format_percent(0.123) -> "12.3 %"

#include <algorithm>  // count, max
#include <cmath>
#include <cstdint>
#include <iostream>
#include <string>
#include <type_traits>
#include <utility>  // move
#include <vector>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"

namespace tinyscale {

// A cell of a table: its text, and the number that the text is of, whole and in its base unit, as
// in Cell("12.3 us", 1.23456e-5, "s"). A text without a number converts by itself.
struct Cell : std::string {
  Cell() = default;
  Cell(const char* text) : std::string(text) {}
  Cell(std::string text) : std::string(std::move(text)) {}
  [[gnu::noinline]] Cell(std::string text, double number, std::string its_unit = "")
      : std::string(std::move(text)), value(number), unit(std::move(its_unit)), is_number(true) {}

  double value = 0;
  std::string unit;
  bool is_number = false;
};

inline void append_text(std::string& out, const Cell& cell) { out += cell; }

namespace detail {

// Three significant digits without exponent or trailing zeros, for 0.001 <= |v| < 1e6.
inline std::string three_digits(double v) {
  int decimals = 0;
  for (double one_more = 99.95; decimals < 5 && std::fabs(v) < one_more; one_more /= 10) {
    ++decimals;
  }
  std::string out = printed('f', decimals, v);
  if (decimals > 0) {
    out.erase(out.find_last_not_of('0') + 1);
    if (out.back() == '.') {
      out.pop_back();
    }
  }
  return out;
}

inline std::string with_unit(const std::string& number, const std::string& unit) {
  return unit.empty() ? number : number + " " + unit;
}

// As printed(kind, digits, v), then the unit.
[[gnu::noinline]] inline Cell number_cell(char kind, int digits, double v,
                                          const std::string& unit = "") {
  return {with_unit(printed(kind, digits, v), unit), v, unit};
}

// At most nine digits, as in a sentence.
inline Cell number_cell(double v, const std::string& unit = "") {
  return number_cell('g', 9, v, unit);
}

}  // namespace detail

// A value with the SI prefix that leaves one to three digits before the point: "1.23 GB".
inline Cell format_si(double value, const std::string& unit) {
  static const char* const prefixes[] = {"a", "f", "p", "n", "u", "m", "", "k",
                                         "M", "G", "T", "P", "E", "Z", "Y"};
  const int none = 6;
  const int last = 14;
  double v = value;
  if (!detail::is_finite(v) || v == 0) {
    return {detail::with_unit(v == 0 ? "0" : detail::cat({v}), unit), v, unit};
  }
  int prefix = none;
  while (std::fabs(v) >= 999.5 && prefix < last) {
    v /= 1000;
    ++prefix;
  }
  while (std::fabs(v) < 0.9995 && prefix > 0) {
    v *= 1000;
    --prefix;
  }
  const bool plain = std::fabs(v) >= 0.001 && std::fabs(v) < 1e6;
  return {detail::with_unit(plain ? detail::three_digits(v) : detail::cat({v}),
                            prefixes[prefix] + unit),
          value, unit};
}

// Decimal: 1 kB = 1000 B.
inline Cell format_bytes(double bytes) {
  const bool fraction = std::fabs(bytes) < 0.9995;
  return fraction ? detail::number_cell(bytes, "B") : format_si(bytes, "B");
}

inline Cell format_seconds(double seconds) {
  const double size = std::fabs(seconds);
  if (!detail::is_finite(seconds) || size < 119.5) {
    return format_si(seconds, "s");
  }
  if (size < 7170) {
    return {detail::three_digits(seconds / 60) + " min", seconds, "s"};
  }
  if (size < 48 * 3600.0) {
    return {detail::three_digits(seconds / 3600) + " h", seconds, "s"};
  }
  const double days = seconds / 86400;
  const std::string number =
      std::fabs(days) < 1e6 ? detail::three_digits(days) : detail::cat({days});
  return {number + " days", seconds, "s"};
}

// To the nearest integer, in groups of three digits.
inline Cell format_count(double v) {
  if (!detail::is_finite(v) || std::fabs(v) >= 1e18) {
    return detail::number_cell(v);
  }
  std::string out = detail::printed('f', 0, v);
  const int first = out[0] == '-' ? 1 : 0;
  for (int i = static_cast<int>(out.size()) - 3; i > first; i -= 3) {
    out.insert(static_cast<std::size_t>(i), ",");
  }
  return {out, v};
}

// "1.8985" for format_fixed(1.89851, 4).
inline Cell format_fixed(double v, int digits) { return detail::number_cell('f', digits, v); }

inline Cell format_percent(double fraction) {
  const double percent = 100 * fraction;
  return std::fabs(percent) < 1e15 ? detail::number_cell('f', 1, percent, "%")
                                   : detail::number_cell(percent, "%");
}

namespace detail {

constexpr std::uint32_t no_code_point = 0xFFFFFFFFU;  // of bytes that are not UTF-8

// One character of a text: its code point and its bytes. A byte that begins no UTF-8 character is a
// character by itself, of no class.
struct CodePoint {
  std::uint32_t code = 0;
  std::uint32_t size = 1;
};

// The character at `at`, before `end`: at least one byte is there.
inline CodePoint code_point(const char* text, std::size_t at, std::size_t end) {
  const auto byte = [text, at](std::size_t i) {
    return static_cast<std::uint32_t>(static_cast<unsigned char>(text[at + i]));
  };
  const std::uint32_t first = byte(0);
  if (first < 0x80) {
    return {first, 1};
  }
  const CodePoint none{no_code_point, 1};
  const std::uint32_t size = first < 0xC2   ? 1
                             : first < 0xE0 ? 2
                             : first < 0xF0 ? 3
                             : first < 0xF5 ? 4
                                            : 1;
  if (size == 1 || size > end - at) {
    return none;
  }
  std::uint32_t code = first & (0x7FU >> size);
  for (std::uint32_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U) {
      return none;
    }
    code = code << 6 | (byte(i) & 0x3FU);
  }
  const bool good = size == 2 || (size == 3 && code >= 0x800 && (code < 0xD800 || code > 0xDFFF)) ||
                    (size == 4 && code >= 0x10000 && code < 0x110000);
  return good ? CodePoint{code, size} : none;
}

inline bool is_utf8(const std::string& text) {
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point(text.data(), at, text.size());
    if (point.code == no_code_point) {
      return false;
    }
    at += point.size;
  }
  return true;
}

// The UTF-8 bytes of a code point, at the end of `out`.
[[gnu::noinline]] inline void append_utf8(std::string& out, std::uint32_t code) {
  const auto tail = [&out, code](int shift) {
    out += static_cast<char>(0x80U | ((code >> shift) & 0x3FU));
  };
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0U | (code >> 6));
    tail(0);
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0U | (code >> 12));
    tail(6), tail(0);
  } else {
    out += static_cast<char>(0xF0U | (code >> 18));
    tail(12), tail(6), tail(0);
  }
}

}  // namespace detail

// The inside of a JSON string: quotes, backslashes, controls escaped; U+FFFD for what is no UTF-8.
inline std::string json_escape(const std::string& text) {
  std::string out;
  for (std::size_t at = 0, size = 1; at < text.size(); at += size) {
    const detail::CodePoint point = detail::code_point(text.data(), at, text.size());
    size = point.size;
    const char c = text[at];
    if (point.code == detail::no_code_point) {
      out += "\xEF\xBF\xBD";
    } else if (size > 1) {
      out.append(text, at, size);
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += std::string("\\u00") + "01"[c >> 4] + "0123456789abcdef"[c & 15];
    } else {
      out += c;
    }
  }
  return out;
}

namespace detail {

// Columns on the screen: every byte that does not continue a UTF-8 character.
inline std::size_t text_width(const std::string& text) {
  std::size_t width = 0;
  for (const char c : text) {
    width += (static_cast<unsigned char>(c) & 0xC0U) != 0x80U ? 1U : 0U;
  }
  return width;
}

// Starts as a number does: "12.3 us", "-4", ".5". Such cells are aligned at their right.
inline bool looks_like_number(const std::string& cell) {
  std::size_t i = !cell.empty() && (cell[0] == '-' || cell[0] == '+') ? 1U : 0U;
  i += i < cell.size() && cell[i] == '.' ? 1U : 0U;
  return i < cell.size() && cell[i] >= '0' && cell[i] <= '9';
}

// Exactly a number of the JSON grammar: -?(0|[1-9][0-9]*)(.[0-9]+)?([eE][+-]?[0-9]+)?
inline bool is_json_number(const std::string& cell) {
  std::size_t i = 0;
  const auto digits = [&] {
    const std::size_t first = i;
    while (i < cell.size() && cell[i] >= '0' && cell[i] <= '9') {
      ++i;
    }
    return i > first;
  };
  i += !cell.empty() && cell[0] == '-' ? 1U : 0U;
  const std::size_t first = i;
  if (!digits() || (cell[first] == '0' && i > first + 1)) {
    return false;
  }
  if (i < cell.size() && cell[i] == '.') {
    ++i;
    if (!digits()) {
      return false;
    }
  }
  if (i < cell.size() && (cell[i] == 'e' || cell[i] == 'E')) {
    ++i;
    i += i < cell.size() && (cell[i] == '+' || cell[i] == '-') ? 1U : 0U;
    if (!digits()) {
      return false;
    }
  }
  return i == cell.size();
}

// The shortest decimal that is this number again; null for what JSON has no number for.
inline std::string json_number(double value) {
  for (int digits = 15; is_finite(value) && digits <= 17; ++digits) {
    const std::string text = printed('g', digits, value);
    if (digits == 17 || read_decimal(text) == value) {
      return text;
    }
  }
  return "null";
}

inline std::string json_value(const Cell& cell) {
  const std::string quoted = "\"" + json_escape(cell) + "\"";
  return cell.is_number ? json_number(cell.value) : is_json_number(cell) ? cell : quoted;
}

inline std::string csv_cell(const std::string& cell) {
  if (cell.find_first_of(",\"\n\r") == std::string::npos) {
    return cell;
  }
  std::string out = "\"";
  for (const char c : cell) {
    out += c == '"' ? std::string("\"\"") : std::string(1, c);
  }
  return out + "\"";
}

}  // namespace detail

// Rows of cells under named columns: printed in line, as CSV or as JSON.
// CSV and JSON have numbers whole, where text() has "7.83 ns": a column of one unit is named with
// it, "time (s)"; beside one of several stands another, "value" and "value unit". What is not
// known, "" or "-" among numbers, is an empty cell of CSV and null in JSON.
struct Table {
  std::vector<std::string> columns;
  List<std::vector<Cell>> rows;
  std::string title;

  // Appends a row; it must have a cell for each column.
  void add(std::vector<Cell> row) {
    check_row(row);
    rows.push_back(std::move(row));
  }
  template <class Text>
  void add(const std::vector<Text>& row) {
    add(std::vector<Cell>(row.begin(), row.end()));
  }

  // Throws where a row, which may have been written by hand, has not a cell for each column.
  void check_rows() const {
    for (const std::vector<Cell>& row : rows) {
      check_row(row);
    }
  }

  std::string text() const {
    std::vector<std::size_t> widths(columns.size());
    std::vector<int> right(columns.size());
    check_rows();
    for (std::size_t c = 0; c < columns.size(); ++c) {
      widths[c] = detail::text_width(columns[c]);
      bool any = false;
      bool all = true;
      for (const std::vector<Cell>& row : rows) {
        const std::string& cell = row[c];
        widths[c] = std::max(widths[c], detail::text_width(cell));
        const bool blank = cell.empty() || cell == "-";
        any = any || !blank;
        all = all && (blank || detail::looks_like_number(cell));
      }
      right[c] = any && all ? 1 : 0;
    }
    std::string out = title.empty() ? "" : title + "\n";
    out += line(columns, widths, right);
    std::vector<std::string> rule;
    for (const std::size_t width : widths) {
      rule.push_back(std::string(width, '-'));
    }
    out += line(rule, widths, right);
    for (const std::vector<Cell>& row : rows) {
      out += line(row, widths, right);
    }
    return out;
  }

  std::string csv() const {
    const Table whole = in_one_unit();
    std::string out = csv_line(whole.columns);
    for (const std::vector<Cell>& row : whole.rows) {
      out += csv_line(row);
    }
    return out;
  }

  // {"title": "...", "rows": [{"column": cell, ...}, ...]}; cells that are numbers stay numbers.
  std::string json() const {
    const Table whole = in_one_unit();
    std::string out = "{\"title\": \"" + json_escape(title) + "\", \"rows\": [";
    for (std::size_t r = 0; r < rows.size(); ++r) {
      out += r > 0 ? ",\n  {" : "\n  {";
      for (std::size_t c = 0; c < whole.columns.size(); ++c) {
        out += (c > 0 ? ", \"" : "\"") + json_escape(whole.columns[c]) + "\": ";
        out += detail::json_value(whole.rows[r][c]);
      }
      out += "}";
    }
    return out + "]}\n";
  }

 private:
  // Numbers as json_number, units in the names of columns or in columns of their own. A number that
  // is a text alone has no unit; 0 has any.
  Table in_one_unit() const {
    check_rows();
    Table out;
    out.rows = List<std::vector<Cell>>(rows.size());
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const Cell* first = nullptr;
      bool numbers = false, mixed = false;
      for (const std::vector<Cell>& row : rows) {
        if (row[c].is_number || detail::is_json_number(row[c])) {
          numbers = true;
          first = first == nullptr && row[c] != "0" ? &row[c] : first;
          mixed = mixed || (row[c] != "0" && first->unit != row[c].unit);
        }
      }
      const bool named = first != nullptr && !mixed && !first->unit.empty();
      out.columns.push_back(out.free_name(columns[c] + (named ? " (" + first->unit + ")" : "")));
      if (mixed) {
        out.columns.push_back(out.free_name(columns[c] + " unit"));
      }
      for (std::size_t r = 0; r < rows.size(); ++r) {
        const Cell& cell = rows[r][c];
        const bool unknown = numbers && (cell.empty() || cell == "-");
        const bool exact = cell.is_number && detail::is_finite(cell.value);
        out.rows[r].push_back(unknown          ? Cell("", std::nan(""))
                              : exact          ? Cell(detail::json_number(cell.value), cell.value)
                              : cell.is_number ? Cell(detail::cat({cell.value}), cell.value)
                                               : cell);
        if (mixed) {
          out.rows[r].push_back(cell.unit);
        }
      }
    }
    return out;
  }
  // The name, or "name 2" and so on where a column has it: rows of JSON have each key once.
  std::string free_name(const std::string& name) const {
    std::string free = name;
    for (int i = 2; std::count(columns.begin(), columns.end(), free) > 0; ++i) {
      free = detail::cat({name, " ", i});
    }
    return free;
  }
  void check_row(const std::vector<Cell>& row) const {
    if (row.size() != columns.size()) {
      detail::fail({"Table: a row of ", row.size(), " cells for ", columns.size(),
                    " columns; a row must have a cell for each column"});
    }
  }
  template <class Text>
  static std::string line(const std::vector<Text>& cells, const std::vector<std::size_t>& widths,
                          const std::vector<int>& right) {
    std::string out;
    for (std::size_t c = 0; c < cells.size(); ++c) {
      const std::string padding(widths[c] - detail::text_width(cells[c]), ' ');
      out += c > 0 ? "  " : "";
      out += right[c] != 0 ? padding + cells[c] : cells[c] + padding;
    }
    out.erase(out.find_last_not_of(' ') + 1);
    return out + "\n";
  }

  template <class Text>
  static std::string csv_line(const std::vector<Text>& cells) {
    std::string out;
    for (std::size_t c = 0; c < cells.size(); ++c) {
      out += (c > 0 ? "," : "") + detail::csv_cell(cells[c]);
    }
    return (cells.size() == 1 && out.empty() ? "\"\"" : out) + "\n";  // an empty line is no row
  }
};

// A number format, an algorithm: what has a name_of is printed by that name.
template <class Named, class = std::enable_if_t<std::is_enum<Named>::value>,
          class = decltype(name_of(Named()))>
std::ostream& operator<<(std::ostream& out, Named it) {
  return out << name_of(it);
}

inline std::ostream& operator<<(std::ostream& out, const Table& table) {
  return out << table.text();
}

}  // namespace tinyscale
