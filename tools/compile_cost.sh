#!/usr/bin/env bash
# What including the header costs, -fsyntax-only of include + empty main, beside the standard headers that it
# includes: CPU time, interleaved, medians, and memory. The law of time: those headers and 0.035 s per 1,000
# lines, 1.2 s in all, where those headers take 0.53 s; another machine is as much slower or faster as it is
# with those headers. Time alone is no judge (one header gave ratios of 6.5 to 10.4, by the machine and by
# chance), so it fails only where it has become half again as long. Memory above that of those headers is the
# same on every run: it fails above a ratchet with 5 % of room. Lower that with every gain; raise it only with a
# floor that grows.
#   tools/compile_cost.sh [runs]        without runs nine, and the topics alone
set -u
cd "$(dirname "$0")/.." || exit 1
export LC_ALL=C
runs=${1:-9}
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
failures=0
# "seconds megabytes"; no memory where Python is not.
TIMEFORMAT='%3U %3S'
cost() {
  if command -v python3 > /dev/null; then python3 tools/cost_of.py "$@" 2> /dev/null; return; fi
  { time "$@" > /dev/null 2>&1; } 2>&1 | awk '{ printf "%.3f 0\n", $1 + $2 }'
}
median() { sort -n "$1" | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

printf '#include "tinyscale.hpp"\nint main() {}\n' > "$scratch/header.cpp"
law=$(awk 'END { law = 0.53 + 0.035 * NR / 1000; if (law > 1.2) law = 1.2; printf "%.2f", law / 0.53 }' tinyscale.hpp)
limit=16
for cxx in g++ clang++; do
  command -v "$cxx" > /dev/null || { echo "compile cost: $cxx is not here, skipped"; continue; }
  case $cxx in # g++ keeps what it could free until memory, which it measures, runs short: here it keeps all
    g++) most=365 keep=--param=ggc-min-heapsize=16777216 ;;
    *) most=113 keep= ;;
  esac
  "$cxx" -std=c++17 -I. -fsyntax-only "$scratch/header.cpp" || exit 1
  # Depth 2 of -H: the files that tinyscale.hpp itself includes, those inside an #if that holds too.
  "$cxx" -std=c++17 -I. -H -fsyntax-only "$scratch/header.cpp" 2>&1 |
    sed -n 's/^\.\. \(.*\)$/#include "\1"/p' > "$scratch/std.cpp"
  echo 'int main() {}' >> "$scratch/std.cpp"
  "$cxx" -std=c++17 -fsyntax-only "$scratch/std.cpp" || exit 1
  : > "$scratch/ours"; : > "$scratch/theirs"; : > "$scratch/ratios"
  for _ in $(seq "$runs"); do
    read -r ours _ < <(cost "$cxx" -std=c++17 -I. -fsyntax-only "$scratch/header.cpp")
    read -r theirs _ < <(cost "$cxx" -std=c++17 -fsyntax-only "$scratch/std.cpp")
    echo "$ours" >> "$scratch/ours"; echo "$theirs" >> "$scratch/theirs"
    awk -v a="$ours" -v b="$theirs" 'BEGIN { printf "%.3f\n", a / b }' >> "$scratch/ratios"
  done
  read -r _ peak < <(cost "$cxx" $keep -std=c++17 -I. -fsyntax-only "$scratch/header.cpp")
  read -r _ base < <(cost "$cxx" $keep -std=c++17 -fsyntax-only "$scratch/std.cpp")
  more=$(awk -v a="$peak" -v b="$base" 'BEGIN { printf "%.1f", a - b }')
  ratio=$(median "$scratch/ratios")
  echo "compile cost, $cxx: header $(median "$scratch/ours") s, its standard headers" \
       "$(median "$scratch/theirs") s, ratio $ratio (law $law, limit $limit, median of $runs)," \
       "$peak MB and $base MB, $more MB more (limit $most)"
  awk -v r="$ratio" -v l="$limit" -v m="$more" -v n="$most" 'BEGIN { exit !(r > l || m > n) }' &&
    failures=$((failures + 1))
  [ $# -gt 0 ] || for topic in $(sed -n 's/^#define TINYSCALE_\([A-Z]*\) [0-9].*/\1/p' src/tinyscale.hpp); do
    echo "  $topic alone: $(cost "$cxx" -std=c++17 -DTINYSCALE_ONLY=TINYSCALE_"$topic" -I. -fsyntax-only "$scratch/header.cpp" | cut -d' ' -f1) s"
  done
done
exit $((failures > 0))
