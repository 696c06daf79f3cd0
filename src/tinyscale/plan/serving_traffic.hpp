#pragma once
// Who asks and when: requests by a Poisson process, whose gaps are -ln(1 - u) / rate with u from
// Philox by seed and index, or from a trace, a CSV file with the header
//   arrival_seconds,prompt_tokens,output_tokens[,prefix_id[,prefix_tokens]]
// Requests of one prefix_id begin with the same tokens: prefix_tokens of them, or without that
// column as many as the shortest prompt of the id has.

#include <algorithm>  // min
#include <cmath>      // log
#include <cstdint>    // std::int64_t
#include <string>     // text
#include <vector>     // lists

#include "tinyscale/base/random.hpp"
#include "tinyscale/model/read_text.hpp"

namespace tinyscale {

struct ServingRequest {
  double arrival = 0;                   // seconds
  std::int64_t prompt = 1, output = 1;  // tokens
  std::int64_t prefix = -1;             // id of the beginning that it shares; -1: none
  std::int64_t prefix_tokens = 0;       // 0: as many as the shortest prompt of the id
};

struct ServingTraffic {
  std::string name;
  List<ServingRequest> requests;  // by arrival
};

// Lengths are even over [least, most]; of `prefixes` shared beginnings each is as likely.
struct PoissonTraffic {
  double requests_per_second = 1;
  std::int64_t requests = 1000;
  std::int64_t least_prompt = 512, most_prompt = 512;
  std::int64_t least_output = 128, most_output = 128;
  std::int64_t prefixes = 0, prefix_tokens = 0;  // 0: prompts share nothing
  std::uint64_t seed = 1;
};

namespace detail {

inline std::int64_t between(std::int64_t least, std::int64_t most, std::uint32_t word) {
  const std::uint64_t range = static_cast<std::uint64_t>(most - least) + 1;
  return least + static_cast<std::int64_t>((range * word) >> 32);
}

inline void check_lengths(const char* field, std::int64_t least, std::int64_t most,
                          std::int64_t floor) {
  if (least < floor || most < least || most > 1000000000) {
    fail({"poisson_traffic: ", field, " is from ", least, " to ", most, "; ", floor,
          " <= least <= most <= 1e9 is right"});
  }
}

inline void check_request(const std::string& where, const ServingRequest& r, double before) {
  const auto wrong = [&](const char* key, double value, const char* right) {
    fail({where, ": ", key, " is ", value, "; ", right, " is right"});
  };
  const double most = 1e9;
  const double prompt = static_cast<double>(r.prompt), output = static_cast<double>(r.output);
  if (!is_finite(r.arrival) || r.arrival < 0) {
    wrong("arrival_seconds", r.arrival, "a finite number from 0");
  }
  if (r.arrival < before) {
    wrong("arrival_seconds", r.arrival, "a time not before the line above");
  }
  if (prompt < 1 || prompt > most) {
    wrong("prompt_tokens", prompt, "1 to 1e9");
  }
  if (output < 1 || output > most) {
    wrong("output_tokens", output, "1 to 1e9");
  }
  if (r.prefix < -1 || r.prefix > 1000000000) {
    wrong("prefix_id", static_cast<double>(r.prefix), "0 to 1e9, or -1 for none");
  }
  if (r.prefix_tokens < 0 || r.prefix_tokens > r.prompt) {
    wrong("prefix_tokens", static_cast<double>(r.prefix_tokens), "0 to prompt_tokens");
  }
}

// The cells of a line, without spaces around them.
inline std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells(1);
  for (const char c : line + ",") {
    if (c != ',') {
      cells.back() += c;
    } else {
      cells.back().erase(cells.back().find_last_not_of(" \t\r") + 1);
      cells.back().erase(0, cells.back().find_first_not_of(" \t\r"));
      cells.emplace_back();
    }
  }
  cells.pop_back();
  return cells;
}

inline double trace_number(const std::string& where, const char* key, const std::string& cell,
                           bool whole) {
  if (!is_json_number(cell)) {
    fail({where, ": ", key, " is \"", cell, "\"; a number is right"});
  }
  const double value = read_decimal(cell);
  if (whole && (value > 1e15 || value < -1e15 || value != std::floor(value))) {
    fail({where, ": ", key, " is ", cell, "; a whole number is right"});
  }
  return value;
}

}  // namespace detail

inline ServingTraffic poisson_traffic(const PoissonTraffic& t) {
  const char* const who = "poisson_traffic";
  detail::check_lengths("prompt", t.least_prompt, t.most_prompt, 1);
  detail::check_lengths("output", t.least_output, t.most_output, 1);
  if (!(t.requests_per_second > 0) || !detail::is_finite(t.requests_per_second)) {
    detail::fail({who, ": requests_per_second is ", t.requests_per_second,
                  "; a finite number above 0 is right"});
  }
  if (t.requests < 1 || t.requests > 100000000) {
    detail::fail({who, ": requests is ", t.requests, "; 1 to 1e8 is right"});
  }
  if (t.prefixes < 0 || t.prefixes > 1000000000 || t.prefix_tokens < 0 ||
      t.prefix_tokens > t.least_prompt) {
    detail::fail({who, ": prefixes is ", t.prefixes, " of ", t.prefix_tokens,
                  " tokens; numbers from 0, and no more tokens than the shortest prompt, ",
                  t.least_prompt, ", are right"});
  }
  ServingTraffic out;
  out.name = detail::cat({"Poisson, ", t.requests_per_second, " requests/s, seed ",
                          static_cast<unsigned long long>(t.seed)});
  out.requests.resize(static_cast<std::size_t>(t.requests));
  double now = 0;
  for (std::int64_t i = 0; i < t.requests; ++i) {
    const std::uint64_t block = 2 * static_cast<std::uint64_t>(i);
    const auto words = detail::random_block(t.seed, block, detail::RandomKind::integer);
    now -= std::log1p(-static_cast<double>(words[0]) / 4294967296.0) / t.requests_per_second;
    ServingRequest& r = out.requests[static_cast<std::size_t>(i)];
    r.arrival = now;
    r.prompt = detail::between(t.least_prompt, t.most_prompt, words[1]);
    r.output = detail::between(t.least_output, t.most_output, words[2]);
    if (t.prefixes > 0 && t.prefix_tokens > 0) {
      r.prefix = detail::between(0, t.prefixes - 1, words[3]);
      r.prefix_tokens = t.prefix_tokens;
    }
  }
  return out;
}

// The requests of a CSV text; `name` stands in errors before the line.
inline ServingTraffic trace_traffic(const std::string& name, const std::string& text) {
  static const char* const keys[] = {"arrival_seconds", "prompt_tokens", "output_tokens",
                                     "prefix_id", "prefix_tokens"};
  ServingTraffic out;
  out.name = name;
  std::size_t columns = 0, line = 0;
  for (std::size_t begin = text.find("\xEF\xBB\xBF") == 0 ? 3 : 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::vector<std::string> cells = detail::cells_of(text.substr(begin, end - begin));
    begin = end + 1;
    const std::string where = detail::cat({"read_traffic: ", name, " line ", ++line});
    if (cells.size() == 1 && cells[0].empty()) {
      continue;
    }
    if (columns == 0) {
      columns = cells.size();
      for (std::size_t c = 0; c < (columns < 3 ? 3 : columns); ++c) {
        if (c >= 5 || c >= columns || cells[c] != keys[c]) {
          detail::fail({where, ", column ", c + 1, ": \"", c < columns ? cells[c] : "",
                        "\"; the header ", keys[0], ",", keys[1], ",", keys[2], "[,", keys[3], "[,",
                        keys[4], "]] is right"});
        }
      }
      continue;
    }
    if (cells.size() != columns) {
      detail::fail({where, ": ", cells.size(), " cells; ", columns, " as in the header are right"});
    }
    double values[5] = {0, 1, 1, -1, 0};
    for (std::size_t c = 0; c < columns; ++c) {
      const std::string place = detail::cat({where, ", column ", c + 1});
      if (c < 3 || !cells[c].empty()) {
        values[c] = detail::trace_number(place, keys[c], cells[c], c > 0);
      }
    }
    ServingRequest r;
    r.arrival = values[0];
    r.prompt = static_cast<std::int64_t>(values[1]);
    r.output = static_cast<std::int64_t>(values[2]);
    r.prefix = static_cast<std::int64_t>(values[3]);
    r.prefix_tokens = static_cast<std::int64_t>(values[4]);
    detail::check_request(where, r, out.requests.empty() ? 0 : out.requests.back().arrival);
    out.requests.push_back(r);
  }
  if (out.requests.empty()) {
    detail::fail(
        {"read_traffic: ", name, " has no requests; a header and a line for each is ", "right"});
  }
  return out;
}

inline ServingTraffic read_traffic(const std::string& path) {
  return trace_traffic(path, detail::read_file(path, "read_traffic"));
}

}  // namespace tinyscale
