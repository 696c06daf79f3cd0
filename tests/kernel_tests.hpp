#pragma once
// What tests of kernels share: numbers, and each way that this machine's processor can compute.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tinyscale.hpp"

namespace kernel_tests {

using Floats = std::vector<float>;

inline Floats noise(std::int64_t n, std::uint64_t seed) {  // uniform in [-1, 1)
  Floats x(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = 2.0f * tinyscale::uniform01(seed, i) - 1.0f;
  }
  return x;
}

inline std::vector<tinyscale::CpuPath> paths() {  // narrowest first, up to what is in use
  using tinyscale::CpuPath;
  std::vector<CpuPath> all;
  for (const CpuPath path : {CpuPath::portable, CpuPath::neon, CpuPath::avx2, CpuPath::avx512}) {
    if (tinyscale::cpu().has(path) && path <= tinyscale::cpu().path) {
      all.push_back(path);
    }
  }
  return all;
}

template <class Body>
void on_every_path(const Body& body) {
  for (const tinyscale::CpuPath path : paths()) {
    const tinyscale::detail::PathScope scope(path);
    CAPTURE(tinyscale::name_of(path));
    body();
  }
}

}  // namespace kernel_tests
