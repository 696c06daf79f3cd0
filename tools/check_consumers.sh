#!/usr/bin/env bash
# Installs into a scratch folder and builds the outside program (tests/outside) in four ways: make install
# with pkg-config; cmake --install with find_package; FetchContent; a copied header.
#   tools/check_consumers.sh [pkgconfig|cmake]       exit code 77: a tool is missing
set -eu
cd "$(dirname "$0")/.."
repository=$PWD
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cxx=${CXX:-g++}

use_pkgconfig() {
  command -v pkg-config > /dev/null || { echo "pkg-config is not here"; exit 77; }
  make --no-print-directory install PREFIX="$scratch/a prefix"
  export PKG_CONFIG_PATH="$scratch/a prefix/lib/pkgconfig"
  pkg-config --modversion tinyscale | grep -Fx "$(bash tools/version.sh)"
  # pkg-config quotes for a shell to read again.
  eval '$cxx tests/outside/main.cpp -o "$scratch/outside"' "$(pkg-config --cflags --libs tinyscale)"
  "$scratch/outside"
  mkdir "$scratch/copied" && cp tinyscale.hpp tests/outside/main.cpp "$scratch/copied"
  (cd "$scratch/copied" && $cxx -std=c++17 -O2 -pthread main.cpp -o outside && ./outside)
}
use_cmake() {
  command -v cmake > /dev/null || { echo "cmake is not here"; exit 77; }
  cmake -S . -B "$scratch/tinyscale" -DCMAKE_INSTALL_PREFIX="$scratch/cmake"
  cmake --install "$scratch/tinyscale"
  cmake -S tests/outside -B "$scratch/found" -DCMAKE_PREFIX_PATH="$scratch/cmake"
  cmake --build "$scratch/found" && "$scratch/found/outside"
  cmake -S tests/outside -B "$scratch/fetched" -DFETCH_FROM="$repository"
  cmake --build "$scratch/fetched" && "$scratch/fetched/outside"
}
for way in ${@:-pkgconfig cmake}; do "use_$way"; done
