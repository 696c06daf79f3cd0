#pragma once
// All chapters, and the table of cases that they are held to.
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "gpus.hpp"
#include "inference.hpp"
#include "roofline.hpp"
#include "sharding.hpp"
#include "training.hpp"
#include "transformer.hpp"

namespace book {

inline Answers all_answers() {
  Answers out;
  chapter1(out);
  chapter2(out);
  chapter3(out);
  chapter4(out);
  chapter5(out);
  chapter6(out);
  chapter7(out);
  chapter8(out);
  chapter12(out);
  return out;
}

// A line of book-cases.tsv.
struct Row {
  std::string id, chapter, source, type, inputs, formula, book, unit, recomputed, compare_to;
  double tolerance = 0;
  std::string flag, note;

  bool is_number() const { return type == "num" && flag != "EMPIRICAL"; }
  // What a statement must be: its own text, or "same" as the book's.
  std::string statement() const { return recomputed == "same" ? book : recomputed; }
};

inline std::vector<Row> read_rows(const std::string& path) {
  std::vector<Row> rows;
  std::ifstream file(path);
  std::string line, cell;
  std::getline(file, line);  // names
  while (std::getline(file, line)) {
    std::vector<std::string> cells;
    std::istringstream text(line);
    while (std::getline(text, cell, '\t')) {
      cells.push_back(cell);
    }
    cells.resize(13);
    rows.push_back({cells[0], cells[1], cells[2], cells[3], cells[4], cells[5], cells[6], cells[7],
                    cells[8], cells[9], std::strtod(cells[10].c_str(), nullptr), cells[11],
                    cells[12]});
  }
  return rows;
}

inline std::string rows_path() {
  const char* root = std::getenv("TINYSCALE_SHARED");
  return std::string(root != nullptr ? root : "../shared") + "/cases/book-cases.tsv";
}

// A unit of the table: which of the library's it is, and how many of those.
struct Unit {
  std::string base;
  double scale = 1;
};

inline Unit unit_of(const std::string& text) {
  static const struct {
    const char* text;
    const char* base;
    double scale;
  } units[] = {{"s", "s", 1},
               {"ms", "s", 1e-3},
               {"us", "s", 1e-6},
               {"ns", "s", 1e-9},
               {"days", "s", 86400},
               {"ms*N", "s", 1e-3},
               {"B", "B", 1},
               {"kB", "B", 1e3},
               {"MB", "B", 1e6},
               {"GB", "B", 1e9},
               {"TB", "B", 1e12},
               {"KiB", "B", 1024},
               {"MiB", "B", 1048576},
               {"GiB", "B", 1073741824},
               {"B/s", "B/s", 1},
               {"GB/s", "B/s", 1e9},
               {"TB/s", "B/s", 1e12},
               {"FLOP/s", "FLOP/s", 1},
               {"FLOP", "FLOP", 1},
               {"FLOP/B", "FLOP/B", 1},
               {"TFLOP/s", "FLOP/s", 1e12},
               {"GHz", "1/s", 1e9},
               {"OP/B", "FLOP/B", 1},
               {"tok/s", "token/s", 1},
               {"tokens", "token", 1},
               {"FLOP/$", "FLOP/USD", 1},
               {"tokens/chip", "token", 1},
               {"tokens/device", "token", 1},
               {"tokens/GPU", "token", 1},
               {"QPS/chip", "1/s", 1}};
  for (const auto& unit : units) {
    if (text == unit.text) {
      return {unit.base, unit.scale};
    }
  }
  return {"", 1};  // a count, a ratio
}

}  // namespace book
