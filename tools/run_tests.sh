#!/usr/bin/env bash
# Runs the tests, a process for each test file and as many at a time as there are cores, and adds up what
# they say. What passes is silent but for the lines of skipped tests.
#   tools/run_tests.sh build/run_tests [options of doctest]     -tc=NAME* or -sf=FILE: as doctest prints it
set -u
program=$1
shift
for option in "$@"; do
  case $option in
    -tc=* | --test-case=* | -sf=* | --source-file=* | -l* | -c | -h | --help | -f=* | --first=*)
      "$program" -c "$@" | grep -q 'filters: 0$' && { echo "no test is chosen by: $*" >&2; exit 1; }
      exec "$program" "$@" ;;
  esac
done
jobs=$(nproc 2> /dev/null || sysctl -n hw.ncpu 2> /dev/null || echo 2)
logs=$(mktemp -d) || exit 1
trap 'rm -rf "$logs"' EXIT

# The last files first: systolic, the longest, must not be what is waited for at the end.
files=$("$program" -ltc -r=xml "$@" | sed -n 's/.* filename="\([^"]*\)".*/\1/p' | sort -ru)
[ -n "$files" ] || { echo "no test is chosen by: $*" >&2; exit 1; }
export program logs
one() {
  local file=$1 log="$logs/$(basename "$1").log" code
  shift
  "$program" -sf="$file" "$@" > "$log" 2>&1
  code=$?                                    # a sanitizer speaks after doctest, by the exit code
  [ "$code" -eq 0 ] && { grep '^skipped' "$log"; return 0; }
  { echo "$file: exit code $code"; cat "$log"; }
  return 1
}
export -f one
printf '%s\n' "$files" | xargs -P "$jobs" -I '{}' bash -c 'one "$@"' one '{}' "$@"
code=$?
cat "$logs"/*.log | awk -v code="$code" '
  /^\[doctest\] test cases:/ { cases += $4; passed += $6; failed += $9 }
  /^\[doctest\] assertions:/ { assertions += $3 }
  END {
    printf "%d test cases: %d passed, %d failed; %d assertions\n", cases, passed, failed, assertions
    exit code != 0 || failed > 0 || passed != cases
  }'
