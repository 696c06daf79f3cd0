// Simulated seconds of an all_reduce on the machine of eight_hosts.xml, three algorithms.
//   ours ALGORITHM BYTES...     prints a line "bytes seconds" for each size
#include <cstdio>
#include <cstdlib>
#include <string>

int main(int count, char** words) {
  const std::string algorithm = count > 1 ? words[1] : "";
  const double hop = 2e-6, bandwidth = 10e9;
  for (int i = 2; i < count; ++i) {
    const double bytes = std::atof(words[i]), all = bytes / bandwidth;
    const double seconds = algorithm == "ring"               ? 14 * hop + 14.0 / 8 * all
                           : algorithm == "halving_doubling" ? 6 * hop + 14.0 / 8 * all
                                                             : 3 * (hop + all);
    std::printf("%s %.9g\n", words[i], seconds);
  }
  return 0;
}
