#!/usr/bin/env bash
# Each part compiles alone, without warnings.      tools/check_parts.sh [compiler]
set -u
cd "$(dirname "$0")/../src" || exit 1
export cxx=${1:-g++}
one() {
  printf '#include "%s"\nint main() {}\n' "$1" |
    "$cxx" -std=c++17 -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Werror -I. \
      -fsyntax-only -x c++ - || { echo "FAIL $1 alone"; return 1; }
}
export -f one
find tinyscale -name '*.hpp' | sort | xargs -P "$(nproc)" -I{} bash -c 'one {}' &&
  echo "each part compiles alone with $cxx"
