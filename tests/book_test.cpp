// Every row of the cases of "How To Scale Your Model": the library's answer with the row's own
// constants beside the recomputed figure and the book's. examples/31_book.cpp prints the table.
#if !defined(TINYSCALE_NO_THREADS)  // some answers run on several devices
#include <doctest/doctest.h>

#include <cmath>
#include <iostream>

#include "../examples/book/all.hpp"
#include "error_of.hpp"

namespace ts = tinyscale;

namespace {

const book::Answers& answers() {
  static const book::Answers all = book::all_answers();
  return all;
}

double number_of(const std::string& text) { return std::strtod(text.c_str(), nullptr); }

void check_number(const book::Row& row, const book::Answer& answer) {
  CAPTURE(row.inputs);
  const book::Unit unit = book::unit_of(row.unit);
  const double ours = answer.ours.value() / unit.scale;
  const double recomputed = number_of(row.recomputed);
  CHECK(std::fabs(ours - recomputed) <= 1e-3 * std::fabs(recomputed));
  const double wanted = number_of(row.compare_to == "book" ? row.book : row.recomputed);
  CHECK(std::fabs(ours - wanted) <= row.tolerance * std::fabs(wanted) * (1 + 1e-9));
  if (!unit.base.empty() && ours != 0) {
    CHECK(answer.ours.unit() == unit.base);
  }
}

}  // namespace

TEST_CASE("book: every row of the cases") {
  const std::vector<book::Row> rows = book::read_rows(book::rows_path());
  if (rows.empty()) {
    std::cout << "skipped: no cases/book-cases.tsv\n";
  }
  for (const book::Row& row : rows) {
    CAPTURE(row.id);
    const book::Answer* answer = answers().find(row.id);
    if (row.flag == "EMPIRICAL") {  // measured on hardware
      continue;
    }
    REQUIRE_MESSAGE(answer != nullptr, "no function answers this row");
    if (row.is_number()) {
      check_number(row, *answer);
    } else {
      // Where the book is off, the statement goes on to say why.
      const std::string said = row.statement().substr(0, answer->category.size());
      CHECK(answer->category == (row.flag == "BOOK_OFF" ? said : row.statement()));
    }
  }
}
#endif
