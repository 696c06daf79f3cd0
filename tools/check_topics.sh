#!/usr/bin/env bash
# TINYSCALE_ONLY: each topic of the spine compiles alone, from the parts and from the joined header, and programs
# of that topic find what they name. With a second word all its inline functions are compiled and linked too.
#   tools/check_topics.sh [compiler [link]]
set -u
cd "$(dirname "$0")/.." || exit 1
cxx=${1:-g++}
keep=-fsyntax-only
[ -n "${2:-}" ] && keep=-fkeep-inline-functions
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
failures=0
printf '#include "tinyscale.hpp"\nint main() {}\n' > "$scratch/empty.cpp"

# topic EXAMPLE...
topic() {
  local name=TINYSCALE_$1 example
  shift
  grep -q "^#define $name " src/tinyscale.hpp || { echo "FAIL $name is no topic of the spine"; failures=$((failures + 1)); return; }
  "$cxx" -std=c++17 -Wall -Wextra -Werror -pthread "-DTINYSCALE_ONLY=$name" -I. "$keep" \
    "$scratch/empty.cpp" -o "$scratch/empty" &&
    "$cxx" -std=c++17 -Wall -Wextra -Werror "-DTINYSCALE_ONLY=$name" -Isrc -fsyntax-only "$scratch/empty.cpp" ||
    { echo "FAIL $name alone"; failures=$((failures + 1)); return; }
  for example in "$@"; do
    "$cxx" -std=c++17 "-DTINYSCALE_ONLY=$name" -I. -fsyntax-only examples/"$example"_*.cpp ||
      { echo "FAIL examples/${example}_ with $name"; failures=$((failures + 1)); }
  done
}
topic TENSORS 01 11 13
topic GRAPHS
cat > "$scratch/graphs.cpp" <<'END'
#include "tinyscale.hpp"
namespace ts = tinyscale;
int main() {
  const ts::Compiled block = ts::compile([](const std::vector<ts::Tensor>& in) {
    return std::vector<ts::Tensor>{ts::gelu(in[0] * 2.0f + 1.0f)};
  });
  const ts::Profile profile;
  block({ts::randn({64, 64}, 1)});
  ts::Transformer model(ts::config("nano"), 1);
  ts::StepOptions options;
  ts::AdamW optimizer(model.tensors(), ts::adamw_options(options));
  ts::CompiledStep step = ts::compile_step(model, optimizer, options);
  std::cout << block.graph() << profile.roofline(ts::laptop());
}
END
"$cxx" -std=c++17 -DTINYSCALE_ONLY=TINYSCALE_GRAPHS -I. -fsyntax-only "$scratch/graphs.cpp" ||
  { echo "FAIL program 9 with TINYSCALE_GRAPHS"; failures=$((failures + 1)); }
topic SYSTOLIC 02 10
topic MESH 03 04 12 16
topic GENERATION 38
topic TRAINING 05 20 29
topic PLANNING 07 08 34
topics=$(grep -c '^#define TINYSCALE_[A-Z]* [0-9]' src/tinyscale.hpp)
[ "$topics" -eq 7 ] || { echo "FAIL the spine has $topics topics, 7 are checked here"; failures=$((failures + 1)); }
printf '#define TINYSCALE_ONLY TINYSCALE_TENSORS | TINYSCALE_MESH\n#include "tinyscale.hpp"\nint main() { return tinyscale::Mesh(tinyscale::machine("tpu-v5e", {2}), {{"x", 2}}).size() - 2; }\n' > "$scratch/two.cpp"
"$cxx" -std=c++17 -I. -fsyntax-only "$scratch/two.cpp" || { echo "FAIL two topics, joined by |"; failures=$((failures + 1)); }
"$cxx" -std=c++17 -DTINYSCALE_ONLY=TINYSCALE_NOTHING -I. -fsyntax-only "$scratch/empty.cpp" 2> "$scratch/none" &&
  { echo "FAIL a topic that does not exist compiles"; failures=$((failures + 1)); }
grep -q "names none of the topics" "$scratch/none" || { echo "FAIL the error of no topic: $(head -n 1 "$scratch/none")"; failures=$((failures + 1)); }
"$cxx" -std=c++14 -I. -fsyntax-only "$scratch/empty.cpp" 2> "$scratch/old"
grep "error" "$scratch/old" | head -n 1 | grep -q "needs C++17: compile with -std=c++17" || { echo "FAIL C++14 is told: $(head -n 2 "$scratch/old")"; failures=$((failures + 1)); }
[ "$failures" -eq 0 ] && echo "topics: $topics compile alone with $cxx"
exit $((failures > 0))
