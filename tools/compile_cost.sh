#!/usr/bin/env bash
# What including the header costs: CPU time of -fsyntax-only for include + empty main, beside that of the
# standard headers that it includes. The law: those headers and 0.035 s per 1,000 lines, 1.2 s in all,
# where those headers take 0.53 s; another machine is as much slower or faster as it is with those headers.
# So the law is a ratio, measured interleaved, medians. It fails above LIMIT, a
# ratchet with room for noise: lower it towards the law with every gain; raise it only with a floor that grows
# (3.0 to 3.3: arrays, chips and tile kernels, 3,000 lines; 3.3 to 3.9: networks, collectives, sharding, 7,100 lines, measured 3.5 to 3.75;
# 3.9 to 5.0: training by a layout, 8,600 lines, measured 3.6 to 4.65; 5.0 to 6.5: the planner and what it stands on,
# 11,400 lines, measured 4.1 to 6.0, one compiler or the other by chance: to be lowered; 6.5 to 7.6: checkpoints,
# tokenizers, generation, on one device and many, 12,000 lines, measured 5.4 to 6.8; 7.6 to 9.2: vector programs,
# compiled functions, launches, sharded programs, 16,000 lines, measured 6.5 to 8.3; 9.2 to 11.3: the same header on
# processors with 512 KB of second cache, 10.2 to 10.4 with g++, whose trees are the larger part of the header's cost).
#   tools/compile_cost.sh [runs]        LIMIT=11.3; without runs nine, and the topics alone
set -u
cd "$(dirname "$0")/.." || exit 1
export LC_ALL=C
runs=${1:-9}
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
failures=0
TIMEFORMAT='%3U %3S'
seconds() { { time "$@" > /dev/null 2>&1; } 2>&1 | awk '{ printf "%.3f\n", $1 + $2 }'; }
median() { sort -n "$1" | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

printf '#include "tinyscale.hpp"\nint main() {}\n' > "$scratch/header.cpp"
law=$(awk 'END { law = 0.53 + 0.035 * NR / 1000; if (law > 1.2) law = 1.2; printf "%.2f", law / 0.53 }' tinyscale.hpp)
limit=${LIMIT:-11.3}
for cxx in g++ clang++; do
  command -v "$cxx" > /dev/null || { echo "compile cost: $cxx is not here, skipped"; continue; }
  "$cxx" -std=c++17 -I. -fsyntax-only "$scratch/header.cpp" || exit 1
  # Depth 2 of -H: the files that tinyscale.hpp itself includes, those inside an #if that holds too.
  "$cxx" -std=c++17 -I. -H -fsyntax-only "$scratch/header.cpp" 2>&1 |
    sed -n 's/^\.\. \(.*\)$/#include "\1"/p' > "$scratch/std.cpp"
  echo 'int main() {}' >> "$scratch/std.cpp"
  "$cxx" -std=c++17 -fsyntax-only "$scratch/std.cpp" || exit 1
  : > "$scratch/ours"; : > "$scratch/theirs"; : > "$scratch/ratios"
  for _ in $(seq "$runs"); do
    ours=$(seconds "$cxx" -std=c++17 -I. -fsyntax-only "$scratch/header.cpp")
    theirs=$(seconds "$cxx" -std=c++17 -fsyntax-only "$scratch/std.cpp")
    echo "$ours" >> "$scratch/ours"; echo "$theirs" >> "$scratch/theirs"
    awk -v a="$ours" -v b="$theirs" 'BEGIN { printf "%.3f\n", a / b }' >> "$scratch/ratios"
  done
  ratio=$(median "$scratch/ratios")
  echo "compile cost, $cxx: header $(median "$scratch/ours") s, its standard headers" \
       "$(median "$scratch/theirs") s, ratio $ratio (law $law, limit $limit, median of $runs)"
  awk -v r="$ratio" -v l="$limit" 'BEGIN { exit !(r > l) }' && failures=$((failures + 1))
  [ $# -gt 0 ] || for topic in $(sed -n 's/^#define TINYSCALE_\([A-Z]*\) [0-9].*/\1/p' src/tinyscale.hpp); do
    echo "  $topic alone: $(seconds "$cxx" -std=c++17 -DTINYSCALE_ONLY=TINYSCALE_"$topic" -I. -fsyntax-only "$scratch/header.cpp") s"
  done
done
exit $((failures > 0))
