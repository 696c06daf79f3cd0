#!/usr/bin/env bash
# 1. An empty program that includes the header defines no function but main and the iostream initialiser.
# 2. A program that trains on one device from its own text compiles no mesh, no training file, no kernel of
#    stored weights; with a machine, a path and a kind of weights it compiles them (so the names are right).
# 3. g++ optimises the kernels whatever its flags: their helpers for wide registers are all inlined. Not under a
#    sanitizer, where that takes too long to compile.
#   tools/check_symbols.sh [include directory]
set -u
cd "$(dirname "$0")/.." || exit 1
export LC_ALL=C
include=${1:-.}
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
failures=0
printf '#include "tinyscale.hpp"\nint main() {}\n' > "$scratch/empty.cpp"

kernels() {                                  # on the other core
  local level apart sanitizer
  printf '#define TINYSCALE_ONLY TINYSCALE_TENSORS\n#include "tinyscale.hpp"\nint main() { std::cout << tinyscale::matmul(tinyscale::ones({9, 9}), tinyscale::ones({9, 9})); }\n' > "$scratch/product.cpp"
  for level in -O0 -O1; do                   # the two forms of TINYSCALE_OPTIMIZED
    g++ -std=c++17 "$level" -I"$include" -c "$scratch/product.cpp" -o "$scratch/product.o" || return 1
    nm -C "$scratch/product.o" > "$scratch/names"
    apart=$(grep -oE 'detail::(broadcast|max|min|load_part|store_part)_(8|16)\(' "$scratch/names" | sort -u)
    if [ -n "$apart" ] || ! grep -q 'run_avx512<' "$scratch/names"; then
      echo "symbols: g++ $level does not optimise the kernels; functions of their own: $(echo $apart)"
      return 1
    fi
  done
  for sanitizer in address thread; do
    if printf '#include "tinyscale/base/config.hpp"\nTINYSCALE_OPTIMIZED\n' | g++ -std=c++17 -Isrc -fsanitize=$sanitizer -E -P -x c++ - | grep -q 'optimize("O2"'; then
      echo "symbols: kernels are optimised under -fsanitize=$sanitizer"
      return 1
    fi
  done
}
beside=""
if command -v g++ > /dev/null && [ "$(uname -m)" = x86_64 ] && ! g++ -dM -E -x c++ /dev/null | grep -q __clang__; then
  kernels & beside=$!
fi

for cxx in g++ clang++; do
  command -v "$cxx" > /dev/null || { echo "symbols: $cxx is not here, skipped"; continue; }
  "$cxx" -std=c++17 -O0 -I"$include" -c "$scratch/empty.cpp" -o "$scratch/empty.o" || exit 1
  extra=$(nm -C --defined-only "$scratch/empty.o" | grep -E '^[0-9a-f]* [TtWwi] ' | cut -d' ' -f3- |
    grep -vE '^(main|_GLOBAL__sub_I_.*|__static_initialization_and_destruction_0.*|__cxx_global_var_init.*)$')
  if [ -n "$extra" ]; then
    echo "symbols: $cxx emits functions for an empty program:"
    echo "$extra" | head -20
    failures=$((failures + 1))
  fi
done

train() {                                    # train STATEMENT: what is defined of that which must be asked for
  printf '#include "tinyscale.hpp"\nnamespace ts = tinyscale;\nint main() {\n  const ts::Text text = %s;\n%s\n%s\n%s\n}\n' \
    'ts::make_text("own", "a text of its own")' '  ts::Transformer model(ts::config("nano"), 1); ts::TrainOptions options;' "  $1" \
    '  std::cout << ts::train(model, text, options);' > "$scratch/train.cpp"
  # Kernels as under a sanitizer, not optimised: which there are is the same, and they compile in half the time.
  g++ -std=c++17 -O0 -D__SANITIZE_ADDRESS__ -I"$include" -c "$scratch/train.cpp" -o "$scratch/train.o" || exit 1
  nm -C --defined-only "$scratch/train.o" | grep -oE '::(MeshTrainer::step|Endpoint::|Replay::|StepReporter::|TrainCheckpoint::)|StoredDots<[^>]*WideBf16>|PackedDots' | sort -u
}

if command -v g++ > /dev/null; then
  unasked=$(train '')
  asked=$(train 'options.machine = ts::machine("tpu-v5e", {2}); options.checkpoint = "file"; ts::LoadOptions how; how.weights = ts::Weights::int8;')
  if [ -n "$unasked" ] || [ "$(echo "$asked" | wc -l)" -ne 7 ]; then
    echo "symbols: training on one device compiles what it does not use: $(echo $unasked); all there is: $(echo $asked)"
    failures=$((failures + 1))
  fi
fi
if [ -n "$beside" ]; then
  wait "$beside" || failures=$((failures + 1))
fi
[ "$failures" -eq 0 ] && echo "symbols: only main and the iostream initialiser; of training what is asked for"
exit $((failures > 0))
