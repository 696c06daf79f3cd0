// Questions of "How To Scale Your Model", answered by the library's functions: once with the
// constants that the book puts in and once with the preset chip, beside the book's own answer and
// why they differ. With the table of cases (TINYSCALE_SHARED, or ../shared) every row of it, else
// twenty well-known ones; `31_book explain R03` prints how an answer comes about.
//   g++ -std=c++17 -O2 -pthread -I. examples/31_book.cpp -o 31_book && ./31_book
#include "book/all.hpp"

namespace ts = tinyscale;

namespace {

using book::Answer;
using book::Row;

// What the book prints for the best-known of its questions, for when the table is not there.
std::vector<Row> known_rows() {
  const struct {
    const char *id, *what, *book, *unit;
  } known[] = {{"R03", "tokens from which v5e is bound by math", "240", "FLOP/B"},
               {"R10", "D of a matmul split over two chips", "8755", "(dim D)"},
               {"T16", "a pod of v5p, bf16", "4.1e18", "FLOP/s"},
               {"T27", "16.8 MB across a 4x4 slice", "194", "us"},
               {"S14", "AllGather over one axis of a 4x4x4", "23", "us"},
               {"S17", "the same with an idle axis", "11.5", "us"},
               {"F09", "parameters of 64 layers of 4096", "1.6e10", "params"},
               {"F20", "FLOPs of training DeepSeek-V3", "3.3e24", "FLOP"},
               {"G02", "tokens a chip of data parallelism, v5p", "2550", "tokens/chip"},
               {"G09", "ways of tensor parallelism, F 30000", "11", "ways"},
               {"G15", "tokens a chip of both, F 32768", "99", "tokens/chip"},
               {"A09", "LLaMA 3 70B on 8960 v5p", "44", "days"},
               {"A14", "v5p chips that hold it", "225", "chips"},
               {"A21", "FSDP ways of it", "1618", "ways"},
               {"I08", "a decode step of 30e9 at 256", "21", "ms"},
               {"I35", "chips from which 2 dims are better", "72", "chips"},
               {"L13", "a decode step of 70B on 4x4", "8.5", "ms"},
               {"L32", "prefill servers for each of decode", "3", "x"},
               {"U31", "AllGather in a node of H100", "1.04", "ms"},
               {"U48", "what a pod of H100 gathers at", "413", "GB/s"},
               {"U88", "of a dense AllToAll, 8 of 64", "0.123", "fraction"}};
  std::vector<Row> rows;
  for (const auto& one : known) {
    Row row;
    row.id = one.id, row.inputs = one.what, row.book = one.book, row.unit = one.unit;
    row.type = "num";
    rows.push_back(row);
  }
  return rows;
}

std::string cell(const ts::Quantity& q, const std::string& unit) {
  return ts::detail::short_number(q.value() / book::unit_of(unit).scale);
}

// Why ours is not the preset's, or not the book's.
std::string reason(const Row& row, const Answer& answer) {
  std::string out = answer.constants;
  const bool said = row.flag != "OK" && !row.flag.empty();
  if (said) {
    out += (out.empty() ? "" : "; ") + row.flag + (row.note.empty() ? "" : ": " + row.note);
  }
  return out;
}

struct Summary {
  int rows = 0, equal = 0, within = 0, statements = 0, skipped = 0, presets = 0, presets_equal = 0;
};

void add_row(const Row& row, const Answer& answer, ts::Table& table, Summary& sum) {
  const double scale = book::unit_of(row.unit).scale;
  ++sum.rows;
  const double recomputed = std::strtod(row.recomputed.c_str(), nullptr);
  const double printed = std::strtod(row.book.c_str(), nullptr);
  const double ours = answer.ours.value() / scale;
  sum.equal += book::near(ours, recomputed, 1e-3) ? 1 : 0;
  sum.within += printed != 0 && book::near(ours, printed, 0.015) ? 1 : 0;
  sum.presets += answer.has_preset ? 1 : 0;
  sum.presets_equal += answer.has_preset && book::near(answer.preset.value() / scale, ours) ? 1 : 0;
  table.add({row.id, cell(answer.ours, row.unit),
             answer.has_preset ? cell(answer.preset, row.unit) : "-", row.book, row.unit,
             reason(row, answer)});
}

void print_all(const book::Answers& answers, const std::vector<Row>& rows) {
  ts::Table table;
  table.title = "\"How To Scale Your Model\", by formula";
  table.columns = {"id", "row's constants", "preset", "book", "unit", "why they differ"};
  ts::Table statements;
  statements.columns = {"id", "by evaluating both sides", "book", "why they differ"};
  Summary sum;
  for (const Row& row : rows) {
    const Answer* answer = answers.find(row.id);
    if (answer == nullptr || row.flag == "EMPIRICAL") {
      ++sum.skipped;  // measured on hardware
    } else if (row.type == "cat") {
      ++sum.statements;
      statements.add({row.id, answer->category, row.book, reason(row, *answer)});
    } else {
      add_row(row, *answer, table, sum);
    }
  }
  std::cout << table << "\n";
  if (sum.statements > 0) {
    std::cout << statements << "\n";
  }
  std::cout << sum.rows << " numbers and " << sum.statements << " statements; ";
  if (!rows.empty() && !rows[0].recomputed.empty()) {
    std::cout << sum.equal << " numbers within 0.1 % of the recomputed, " << sum.skipped
              << " rows measured on hardware and not here; ";
  }
  std::cout << sum.within << " within 1.5 % of what the book prints; " << sum.presets_equal
            << " of " << sum.presets << " presets give the same\n";
}

}  // namespace

int main(int count, char** words) {
  const book::Answers answers = book::all_answers();
  if (count == 3 && std::string(words[1]) == "explain") {
    const Answer* answer = answers.find(words[2]);
    std::cout << (answer == nullptr          ? std::string("no such row\n")
                  : answer->category.empty() ? answer->ours.explain()
                                             : answer->category + "\n");
    return answer == nullptr ? 1 : 0;
  }
  const std::vector<Row> rows = book::read_rows(book::rows_path());
  print_all(answers, rows.empty() ? known_rows() : rows);
  std::cout << "\nHow one comes about, R10:\n" << answers.find("R10")->ours.explain();
  return 0;
}
