#!/usr/bin/env bash
# With every inline function kept, as an interpreter sees the header, no symbol is needed that an interpreter
# cannot find (those that the standard headers alone need do not count). All code is compiled: most of a minute.
#   tools/check_interpreter_symbols.sh [include directory]
set -u
cd "$(dirname "$0")/.." || exit 1
export LC_ALL=C
include=${1:-.}
command -v g++ > /dev/null || { echo "interpreter symbols: g++ is not here, skipped"; exit 0; }
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
failures=0
printf '#include "tinyscale.hpp"\nint main() {}\n' > "$scratch/empty.cpp"
kept() { g++ -std=c++17 -O0 -fkeep-inline-functions -DTINYSCALE_INTERPRETER=1 -I"$include" -c "$1" -o "$scratch/kept.o" &&
         nm -u "$scratch/kept.o" | awk '{ print $2 }' | sort -u; }
sed -n 's/^\(#include <.*>\).*/\1/p' "$include/tinyscale.hpp" > "$scratch/std.cpp"
[ -s "$scratch/std.cpp" ] ||
  find "$include/tinyscale" -name '*.hpp' -exec sed -n 's/^\(#include <.*>\).*/\1/p' {} + | sort -u > "$scratch/std.cpp"
echo 'int main() {}' >> "$scratch/std.cpp"
kept "$scratch/empty.cpp" > "$scratch/ours" || exit 1
kept "$scratch/std.cpp" > "$scratch/theirs" || exit 1
poison=$(comm -23 "$scratch/ours" "$scratch/theirs" |
  grep -E '__cpu_model|__cpu_indicator_init|__once_call|__once_proxy|__atomic_|__kmpc_|GOMP_|__emutls')
if [ -n "$poison" ]; then
  echo "symbols: an interpreter would not find:"
  echo "$poison"
  failures=$((failures + 1))
fi
[ "$failures" -eq 0 ] && echo "interpreter symbols: all are found"
exit $((failures > 0))
