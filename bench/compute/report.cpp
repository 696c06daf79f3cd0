// What is written at the end: the summary, results.json, the picture, the README's table.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "driver.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace bench {

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
      "faster. of limit: what we reach of it; at limit: the ratio that the limit itself would have.\n",
      met, missed, beyond);
}

void save_results(const Bench&, const std::string&) {}
void save_picture(const Bench&, const std::string&) {}
void save_markdown(const std::string&, const std::string&) {}

}  // namespace bench
