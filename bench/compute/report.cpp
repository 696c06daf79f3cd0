// What is written at the end: the summary, results.json, the picture, the README's table.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "driver.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace bench {
namespace {

std::string digits(double value) {
  const double size = std::fabs(value);
  return ts::format_fixed(value, size >= 100 ? 0 : size >= 10 ? 1 : 2);
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    out += c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c < ' ' ? ' ' : c);
  }
  return out + "\"";
}

std::string exact(double value) { return ts::detail::printed('g', 6, value); }

std::string json(const Spread& s) {
  return ts::detail::cat({"{\"median\": ", exact(s.median), ", \"least\": ", exact(s.least),
                          ", \"most\": ", exact(s.most), ", \"rounds\": ", s.count, "}"});
}

const char* verdict(const Row& row) {
  return row.target <= 0 ? "" : row.met() ? "met" : row.reachable() ? "missed" : "past the limit";
}

std::string json(const Row& r) {
  std::string out =
      ts::detail::cat({"    {\"group\": ", quoted(r.group), ", \"what\": ", quoted(r.what),
                       ", \"unit\": ", quoted(r.unit), ", \"threads\": ", r.threads,
                       ",\n     \"peer\": ", quoted(r.peer)});
  if (r.ours.count > 0) {
    out += ", \"ours\": " + json(r.ours);
  }
  if (r.theirs.count > 0) {
    out += ", \"theirs\": " + json(r.theirs);
  }
  if (r.ratio.count > 0) {
    out += ",\n     \"ratio\": " + json(r.ratio);
  }
  if (r.of_limit > 0) {
    out += ", \"of_limit\": " + exact(r.of_limit);
  }
  if (r.at_limit > 0) {
    out += ", \"ratio_at_limit\": " + exact(r.at_limit);
  }
  if (r.target > 0) {
    out += ", \"target\": " + exact(r.target) + ", \"verdict\": " + quoted(verdict(r));
  }
  return out + "}";
}

[[noreturn]] void cannot_write(const std::string& path) {
  throw ts::Error(ts::detail::cat({"bench: ", path, " cannot be written"}));
}

void write(const std::string& path, const std::string& text) {
  std::FILE* const file = std::fopen(path.c_str(), "w");
  if (file == nullptr) {
    cannot_write(path);
  }
  const bool whole = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (std::fclose(file) != 0 || !whole) {
    cannot_write(path);
  }
  std::printf("wrote %s\n", path.c_str());
}

std::string read(const std::string& path) {
  std::FILE* const file = std::fopen(path.c_str(), "r");
  if (file == nullptr) {
    throw ts::Error(ts::detail::cat({"bench: ", path, " cannot be read"}));
  }
  std::string text;
  char part[4096];
  for (std::size_t count = 0; (count = std::fread(part, 1, sizeof part, file)) > 0;) {
    text.append(part, count);
  }
  std::fclose(file);
  return text;
}

// The picture: a row a line, ratio from 1/16 to 64 on a logarithmic axis.
struct Axis {
  double left = 330, width = 480;
  double x(double ratio) const {
    const double held = std::min(64.0, std::max(1.0 / 16, ratio));
    return left + width * (std::log2(held) + 4) / 10;
  }
};

std::string text_at(double x, double y, const char* anchor, const char* style,
                    const std::string& text) {
  return ts::detail::cat({"<text x=\"", x, "\" y=\"", y, "\" text-anchor=\"", anchor, "\" class=\"",
                          style, "\">", ts::detail::xml_escape(text), "</text>\n"});
}

std::string line(double x1, double y1, double x2, double y2, const char* style) {
  return ts::detail::cat({"<line x1=\"", x1, "\" y1=\"", y1, "\" x2=\"", x2, "\" y2=\"", y2,
                          "\" class=\"", style, "\"/>\n"});
}

std::string draw(const Row& r, const Axis& axis, double y) {
  const char* const kind = r.target <= 0   ? "none"
                           : r.met()       ? "met"
                           : r.reachable() ? "missed"
                                           : "past";
  std::string out = text_at(axis.left - 12, y + 4, "end", "name", r.what + " / " + r.peer);
  if (r.at_limit > 0) {
    out += line(axis.x(r.at_limit), y - 6, axis.x(r.at_limit), y + 6, "limit");
  }
  if (r.target > 0) {
    out += line(axis.x(r.target), y - 6, axis.x(r.target), y + 6, "target");
  }
  out += line(axis.x(r.ratio.least), y, axis.x(r.ratio.most), y, kind);
  out += ts::detail::cat({"<circle cx=\"", axis.x(r.ratio.median), "\" cy=\"", y,
                          "\" r=\"4\" class=\"", kind, "\"/>\n"});
  return out + text_at(axis.left + axis.width + 60, y + 4, "end", "name", digits(r.ratio.median)) +
         text_at(axis.left + axis.width + 72, y + 4, "start", "name",
                 r.target > 0 ? ts::detail::cat({digits(r.target), " ", verdict(r)}) : "");
}

const char* const picture_style =
    "<style>text{font:12px sans-serif;fill:#222}.name{font-size:11px}.head{font-weight:bold}"
    ".title{font-size:16px;font-weight:bold}line{stroke:#bbb;stroke-width:1}"
    ".grid{stroke:#e4e4e4}.one{stroke:#888}.limit{stroke:#222;stroke-dasharray:2 2}"
    ".target{stroke:#222;stroke-width:2.5}.met{stroke:#1a7f37;fill:#1a7f37;stroke-width:2}"
    ".missed{stroke:#c62828;fill:#c62828;stroke-width:2}"
    ".past{stroke:#b26a00;fill:#b26a00;stroke-width:2}"
    ".none{stroke:#5b7ea6;fill:#5b7ea6;stroke-width:2}</style>\n";

std::string legend(double y) {
  struct Entry {
    const char *kind, *text;
  };
  std::string out;
  double x = 24;
  for (const Entry& e : {Entry{"met", "target met"}, Entry{"missed", "missed"},
                         Entry{"past", "past this machine's limit"}, Entry{"none", "no target"}}) {
    out += ts::detail::cat(
               {"<circle cx=\"", x, "\" cy=\"", y - 4, "\" r=\"4\" class=\"", e.kind, "\"/>\n"}) +
           text_at(x + 10, y, "start", "name", e.text);
    x += 40 + 6.2 * static_cast<double>(std::string(e.text).size());
  }
  return out + line(x, y - 10, x, y + 2, "target") + text_at(x + 8, y, "start", "name", "target") +
         line(x + 62, y - 10, x + 62, y + 2, "limit") +
         text_at(x + 70, y, "start", "name", "what the limit would give");
}

// "Rounds: 5; train-gpt2 1 to 5.": those of most rows, then the groups where a row has others.
std::string rounds_of(const ts::Json& rows) {
  struct Rounds {
    std::string group;
    int least, most;
  };
  std::vector<Rounds> groups;
  std::vector<int> rows_with;  // by number of rounds
  for (const ts::Json& row : rows.list) {
    const ts::Json* const ratio = row.find("ours") != nullptr ? row.find("ratio") : nullptr;
    const ts::Json* const found = ratio != nullptr ? ratio->find("rounds") : nullptr;
    const ts::Json* const group = row.find("group");
    if (found == nullptr || group == nullptr) {
      continue;  // a mean of others
    }
    const int rounds = static_cast<int>(found->number);
    if (groups.empty() || groups.back().group != group->text) {
      groups.push_back({group->text, rounds, rounds});
    }
    groups.back().least = std::min(groups.back().least, rounds);
    groups.back().most = std::max(groups.back().most, rounds);
    rows_with.resize(std::max(rows_with.size(), static_cast<std::size_t>(rounds) + 1));
    ++rows_with[static_cast<std::size_t>(rounds)];
  }
  const int usual =
      static_cast<int>(std::max_element(rows_with.begin(), rows_with.end()) - rows_with.begin());
  std::string text = ts::detail::cat({"Rounds: ", usual});
  for (const Rounds& g : groups) {
    if (g.least != usual || g.most != usual) {
      text += ts::detail::cat({"; ", g.group, " ", g.least});
      text += g.most > g.least ? ts::detail::cat({" to ", g.most}) : "";
    }
  }
  return text + ".";
}

}  // namespace

void print_summary(const Bench& bench) {
  int met = 0, missed = 0, beyond = 0;
  for (const Row& row : bench.rows()) {
    if (row.target > 0) {
      (row.met() ? met : row.reachable() ? missed : beyond) += 1;
    }
  }
  std::printf(
      "\ntargets: %d met, %d missed, %d past the limit of this machine\n"
      "ratio: the peer's time over ours, median and range over the rounds; above 1 tinyscale is\n"
      "faster. of limit: what we reach of it; at limit: the ratio that the limit itself would "
      "have.\n",
      met, missed, beyond);
}

std::string picture_of(const std::string& results) {
  return results.substr(0, results.size() - 5) + ".svg";
}

void check_results(const std::string& path) {
  if (path.empty()) {
    return;
  }
  if (path.size() < 6 || path.compare(path.size() - 5, 5, ".json") != 0) {
    throw ts::Error(ts::detail::cat({"bench: --results=", path, ": NAME.json is right"}));
  }
  for (const std::string& name : {path, picture_of(path)}) {
    std::FILE* const before = std::fopen(name.c_str(), "r");
    std::FILE* const file = std::fopen(name.c_str(), "a");
    if (file == nullptr) {
      cannot_write(name);
    }
    std::fclose(file);
    if (before == nullptr) {
      std::remove(name.c_str());
    } else {
      std::fclose(before);
    }
  }
}

void save_results(const Bench& bench, const std::string& path) {
  std::string out = ts::detail::cat({"{\n  \"machine\": ", quoted(ts::cpu().text),
                                     ",\n  \"threads\": ", all_threads(),
                                     ",\n  \"load\": ", exact(bench.load()), ",\n  \"peers\": ["});
  for (std::size_t i = 0; i < bench.peers().size(); ++i) {
    out += (i == 0 ? "\n    " : ",\n    ") + quoted(bench.peers()[i]);
  }
  out += "\n  ],\n  \"rows\": [";
  for (std::size_t i = 0; i < bench.rows().size(); ++i) {
    out += (i == 0 ? "\n" : ",\n") + json(bench.rows()[i]);
  }
  write(path, out + "\n  ]\n}\n");
}

void save_picture(const Bench& bench, const std::string& path) {
  const Axis axis;
  std::string body;
  double y = 96;
  std::string group;
  for (const Row& r : bench.rows()) {
    if (r.ratio.count == 0) {
      continue;
    }
    if (r.group != group) {
      group = r.group;
      y += 14;
      body += text_at(24, y + 4, "start", "head", group);
      y += 18;
    }
    body += draw(r, axis, y);
    y += 16;
  }
  std::string grid;
  for (int power = -4; power <= 6; power += 2) {
    const double at = axis.x(std::pow(2.0, power));
    grid += line(at, 84, at, y, power == 0 ? "one" : "grid");
    grid += text_at(at, 78, "middle", "name",
                    power < 0 ? ts::detail::cat({"1/", 1 << -power}) : std::to_string(1 << power));
  }
  const double wide = axis.left + axis.width + 190;
  write(path,
        ts::detail::cat({"<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", wide, "\" height=\"",
                         y + 20, "\" viewBox=\"0 0 ", wide, " ", y + 20, "\">\n", picture_style,
                         "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
                         text_at(24, 28, "start", "title",
                                 "The peer's time over ours: to the right, tinyscale is faster"),
                         legend(50), grid, body, "</svg>\n"}));
}

// The rows of results.json as a table, between two marks of the README.
void save_markdown(const std::string& results, const std::string& readme) {
  const ts::Json all = ts::parse_json(read(results));
  const ts::Json* const rows = all.find("rows");
  if (rows == nullptr) {
    throw ts::Error(ts::detail::cat({"bench: ", results, " has no rows"}));
  }
  const auto text = [](const ts::Json& row, const char* key) {
    const ts::Json* const found = row.find(key);
    return found != nullptr ? found->text : std::string();
  };
  const auto number = [](const ts::Json& row, const char* key) {
    const ts::Json* const found = row.find(key);
    const ts::Json* const median = found != nullptr ? found->find("median") : nullptr;
    return found == nullptr ? std::string("")
                            : digits(median != nullptr ? median->number : found->number);
  };
  std::string table = ts::detail::cat(
      {"Machine: ", text(all, "machine"), ", load ", number(all, "load"), ". ", rounds_of(*rows),
       "\n\n", "| group | what | ours | peer | peer's | ratio | of limit | at limit | target |\n",
       "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"});
  std::string group;
  for (const ts::Json& row : rows->list) {
    const std::string here = text(row, "group");
    const std::string unit = number(row, "ours").empty() ? "" : " " + text(row, "unit");
    table += ts::detail::cat({"| ",
                              here == group ? "" : here,
                              " | ",
                              text(row, "what"),
                              " | ",
                              number(row, "ours"),
                              unit,
                              " | ",
                              text(row, "peer"),
                              " | ",
                              number(row, "theirs"),
                              " | ",
                              number(row, "ratio"),
                              " | ",
                              number(row, "of_limit"),
                              " | ",
                              number(row, "ratio_at_limit"),
                              " | ",
                              number(row, "target"),
                              " ",
                              text(row, "verdict"),
                              " |\n"});
    group = here;
  }
  std::string page = read(readme);
  const std::string open = "<!-- results -->\n", close = "<!-- end of results -->";
  const std::size_t begin = page.find(open), end = page.find(close);
  if (begin == std::string::npos || end == std::string::npos || end < begin) {
    throw ts::Error(ts::detail::cat({"bench: ", readme, " lacks the marks of the results"}));
  }
  page.replace(begin + open.size(), end - begin - open.size(), table);
  write(readme, page);
}

}  // namespace bench
