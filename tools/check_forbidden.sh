#!/usr/bin/env bash
# What the header must not contain: constructs that kill a C++ notebook kernel, headers that cost too
# much, direct output, characters outside ASCII, lines above 100 columns, long reference bodies.
#   tools/check_forbidden.sh [root]
set -u
cd "${1:-$(dirname "$0")/..}" || exit 1
export LC_ALL=C
failures=0

scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT

# Every line of code, comments removed; and the same with its place before it.
find src -type f -name '*.hpp' | sort | xargs awk -v code="$scratch/code" -v placed="$scratch/placed" \
  '{ sub("//.*", ""); print > code; print FILENAME ":" FNR ":" $0 > placed }'

# search NAME PATTERN [EXEMPT...]: reports every line of code that matches.
search() {
  local name=$1 pattern=$2 exempt found
  shift 2
  found=$(grep -nE "$pattern" "$scratch/code" | cut -d: -f1 |
    awk 'NR == FNR { wanted[$1]; next } FNR in wanted' - "$scratch/placed")
  for exempt in "$@"; do
    found=$(grep -v "^src/tinyscale/$exempt:" <<< "$found")
  done
  [ -z "$found" ] && return
  echo "forbidden: $name"
  echo "$found"
  failures=$((failures + 1))
}

search "std::call_once (breaks interpreters; use a function-local static)" 'call_once'
search "<future> and std::async (break interpreters)" '<future>|std::(async|promise|packaged_task)'
search "an expensive standard header" \
  '# *include *<(regex|filesystem|immintrin\.h|sstream|iomanip|fstream|random|locale|bits/stdc\+\+\.h)>'
search "a constructor attribute (never runs in interpreters)" '__attribute__ *\( *\( *constructor'
search "a detached thread (own every thread and join it)" \
  '(^|[;{}]) *[a-z_0-9.]+(\[[^]]*\])?(\.|->)detach\(\) *;'
search "inline assembler outside the parts that interpreters leave out" '(^|[^a-z_])(__)?asm(__)?([ \t]+(__)?volatile(__)?)?[ \t]*\(' base/cpu.hpp base/fiber.hpp \
  hardware/laptop_loops.hpp compute/x86_units.hpp
search "__builtin_cpu_* outside base/cpu.hpp" '__builtin_cpu_(init|supports|is)' base/cpu.hpp
search "function multiversioning" 'target_clones|__attribute__ *\( *\( *ifunc'
search "a thread_local with a value that is not zero" 'thread_local [^;(]*(=|\{) *([1-9]|-|true|[0-9]+\.[0-9]*[1-9])'
search "a bare thread_local pointer or float (clang-repl ends at its second use; put it in a struct)" \
  'thread_local ([a-zA-Z_:]+ )*([a-zA-Z_:]+ *\*|float|double) *[a-z_]+ *(;|=|\{)'
search "a thread_local with a destructor (runs after clang-repl's code is gone; lend from a static pool)" \
  'thread_local (const )?std::'
search "a thread_local that FiberLocals does not keep for each fiber (mesh/carrier.hpp)" 'thread_local' base/pool.hpp \
  base/thread_scope.hpp tensor/recorder.hpp tensor/matmul.hpp
search "leaving the program (throw Error instead)" 'std::(abort|exit|_Exit|quick_exit|terminate)|(^|[^a-z_.])assert *\('
search "direct output (print to a std::ostream&)" '(^|[^a-z_])(std::)?(printf|puts|putchar|perror) *\(|[^a-z_](stdout|stderr)[^a-z_]'

found=$(find src tinyscale.hpp -type f -name '*.hpp' -exec grep -nHP '[^\x00-\x7F]' {} + 2>/dev/null)
[ -z "$found" ] || { echo "forbidden: characters outside ASCII"; echo "$found" | head -20; failures=$((failures + 1)); }
found=$(find src -type f -name '*.hpp' -exec grep -nHE '^.{101,}' {} + 2>/dev/null)
[ -z "$found" ] || { echo "forbidden: lines above 100 columns"; echo "$found" | cut -c1-160 | head -20; failures=$((failures + 1)); }
found=$(find src -type f -name '*.hpp' -exec grep -nHE 'TODO|FIXME|XXX' {} + 2>/dev/null)
[ -z "$found" ] || { echo "forbidden: unfinished business"; echo "$found" | head -20; failures=$((failures + 1)); }
found=$(find src/tinyscale/compute -type f -name '*.hpp' | sort | xargs awk '
  /^[a-z].*_reference\(/ { begin = FNR; name = $0; sub(/\(.*/, "", name); sub(/.* /, "", name) }
  begin && /^[^ ].*}$|^}/ {
    if (FNR - begin >= 19) print FILENAME ":" begin ": " name ", " FNR - begin + 1 " lines"
    begin = 0
  }')
[ -z "$found" ] || { echo "forbidden: a reference body above 19 lines"; echo "$found"; failures=$((failures + 1)); }

[ "$failures" -eq 0 ] && echo "forbidden constructs: none"
exit $((failures > 0))
