#!/usr/bin/env bash
# The house: each part includes only its own floor and floors below, file names are unique, the spine
# lists every part, no part is above 500 lines, no floor above its budget (table in CONTRIBUTING.md).
#   tools/check_floors.sh [root]
set -u
cd "${1:-$(dirname "$0")/..}" || exit 1
export LC_ALL=C
floors=(base measure hardware compute tensor compile systolic mesh model parallel plan show)
failures=0
fail() { echo "$*"; failures=$((failures + 1)); }
level() { local i; for i in "${!floors[@]}"; do [ "${floors[$i]}" = "$1" ] && echo "$i" && return; done; echo -1; }

spine=src/tinyscale.hpp
[ -f "$spine" ] || { echo "$spine: missing"; exit 1; }
mapfile -t parts < <(find src/tinyscale -type f -name '*.hpp' | sort)

for part in "${parts[@]}"; do
  name=${part#src/}
  floor=${name#tinyscale/}; floor=${floor%%/*}
  own=$(level "$floor")
  [ "$own" -ge 0 ] || fail "$part: $floor is not a floor (${floors[*]})"
  grep -qF "#include \"$name\"" "$spine" || fail "$part: not listed in $spine"
  [ "$(head -n 1 "$part")" = "#pragma once" ] || fail "$part: its first line must be #pragma once"
  lines=$(wc -l < "$part")
  [ "$lines" -le 500 ] || fail "$part: $lines lines; a part has at most 500"
  while read -r included; do
    [ -f "src/$included" ] || { fail "$part: includes $included, which does not exist"; continue; }
    other=${included#tinyscale/}; other=${other%%/*}
    [ "$(level "$other")" -le "$own" ] || fail "$part: includes $included from a floor above"
  done < <(sed -n 's/^# *include "\(.*\)".*/\1/p' "$part")
done

while read -r included; do
  [ -f "src/$included" ] || fail "$spine: lists $included, which does not exist"
done < <(sed -n 's/^#include "\(.*\)".*/\1/p' "$spine")

while read -r name; do
  fail "$name: two parts have this file name"
done < <(for part in "${parts[@]}"; do basename "$part"; done | sort | uniq -d)

total=0
for floor in "${floors[@]}"; do
  [ -d "src/tinyscale/$floor" ] || continue
  lines=$(find "src/tinyscale/$floor" -type f -name '*.hpp' -exec cat {} + | wc -l)
  total=$((total + lines))
  budget=$(awk -F'|' -v floor="$floor" '{ gsub(/[ `\/]/, "", $2); gsub(/[ ,]/, "", $3) }
                                        $2 == floor && $3 ~ /^[0-9]+$/ { print $3; exit }' CONTRIBUTING.md)
  if [ -z "$budget" ]; then
    fail "$floor: no line budget in CONTRIBUTING.md"
  elif [ "$lines" -gt "$budget" ]; then
    fail "$floor: $lines lines, budget $budget; delete first, or raise it in CONTRIBUTING.md with a sentence"
  fi
done
[ "$failures" -eq 0 ] && echo "floors: ${#parts[@]} parts, $total lines"
exit $((failures > 0))
