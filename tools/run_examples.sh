#!/usr/bin/env bash
# Runs the examples that are built, except the demo. Where NN_name.txt stands beside the source, the output must
# equal it. A lab may end with 1: not solved yet. They run in a folder of their own, in which input.txt is
# the header's text.
#   tools/run_examples.sh build/examples
set -u
cd "$(dirname "$0")/.." || exit 1
programs=$(cd "${1:-build/examples}" && pwd) || exit 1
export TINYSCALE_SHARED=${TINYSCALE_SHARED:-$PWD/../shared}
[ -d "$TINYSCALE_SHARED" ] && TINYSCALE_SHARED=$(cd "$TINYSCALE_SHARED" && pwd)
mkdir -p "$programs/run" && cp tinyscale.hpp "$programs/run/input.txt" || exit 1
limit=""
command -v timeout > /dev/null && limit="timeout 300"
passed=0 failed=0
output=$(mktemp) || exit 1
trap 'rm -f "$output"' EXIT
shopt -s nullglob
for source in examples/*.cpp examples/labs/*.cpp; do
  name=${source#examples/}; name=${name%.cpp}
  [ "$name" != 00_demo ] && [ -x "$programs/$name" ] || continue
  (cd "$programs/run" && exec $limit "$programs/$name") > "$output" 2>&1 < /dev/null
  code=$?
  expected=${source%.cpp}.txt
  if [ "$code" -ne 0 ] && ! { [ "$code" -eq 1 ] && [[ $name == labs/* ]]; }; then
    echo "FAIL $name: exit code $code"; tail -n 20 "$output"; failed=$((failed + 1))
  elif [ -f "$expected" ] && ! difference=$(diff "$expected" "$output"); then
    echo "FAIL $name: output differs from $expected"; echo "$difference" | head -n 20; failed=$((failed + 1))
  else
    echo "ok   $name"; passed=$((passed + 1))
  fi
done
echo "examples: $passed passed, $failed failed"
exit $((failed > 0 || passed == 0))
