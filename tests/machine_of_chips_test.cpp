// Machines of so many chips: the slices and nodes that are offered, and what is said of others.
#include <doctest/doctest.h>

#include "error_of.hpp"

namespace ts = tinyscale;

TEST_CASE("machine_of_chips: slices of TPUs as they are offered") {
  const auto dims = [](const char* chip, std::int64_t chips) {
    return ts::machine_of_chips(chip, chips).dims;
  };
  CHECK(dims("tpu-v5p", 1) == ts::Shape{1, 1, 1});
  CHECK(dims("tpu-v5p", 16) == ts::Shape{2, 2, 4});
  CHECK(dims("tpu-v5p", 64) == ts::Shape{4, 4, 4});
  CHECK(dims("tpu-v5p", 8960) == ts::Shape{16, 20, 28});  // the whole pod
  CHECK(dims("tpu-v4", 3072) == ts::Shape{12, 16, 16});   // PaLM's slices
  CHECK(dims("tpu-v4", 6144) == ts::Shape{2, 12, 16, 16});
  CHECK(dims("tpu-v5p", 6144) == ts::Shape{16, 16, 24});
  CHECK(dims("tpu-v5e", 8) == ts::Shape{2, 4});
  CHECK(dims("tpu-v5e", 256) == ts::Shape{16, 16});
  CHECK(dims("tpu-v5e", 50944) == ts::Shape{199, 16, 16});  // Google's run of 2023
  CHECK(dims("tpu-v5e", 320) == ts::Shape{5, 8, 8});
  CHECK(dims("tpu-v3", 1024) == ts::Shape{32, 32});
  // Whole cubes close to rings, so does a side of 16.
  CHECK(ts::machine_of_chips("tpu-v5p", 8960).links[0].kind == ts::AxisKind::ring);
  CHECK(ts::machine_of_chips("tpu-v5e", 128).links[1].kind == ts::AxisKind::ring);
  CHECK(ts::machine_of_chips("tpu-v5e", 128).links[0].kind == ts::AxisKind::line);
  CHECK(ts::machine_of_chips("tpu-v5p", 17920).name == "tpu-v5p 2x16x20x28");
}

TEST_CASE("machine_of_chips: nodes of GPUs, boxes of others") {
  CHECK(ts::machine_of_chips("h100", 4).dims == ts::Shape{4});
  CHECK(ts::machine_of_chips("h100", 8).dims == ts::Shape{8});
  CHECK(ts::machine_of_chips("h100", 16384).dims == ts::Shape{2048, 8});
  CHECK(ts::machine_of_chips("gb200", 72).dims == ts::Shape{72});
  CHECK(ts::machine_of_chips("gb200", 576).dims == ts::Shape{8, 72});
  CHECK(ts::machine_of_chips("gb200", 256).dims == ts::Shape{4, 64});  // 16 hosts of 4
  CHECK(ts::machine_of_chips("wse-3", 16).dims == ts::Shape{16});
  CHECK(ts::machine_of_chips("laptop-x86", 1).dims == ts::Shape{1});
}

TEST_CASE("machine_of_chips: every offered number is a machine of as many chips") {
  for (const char* chip : {"tpu-v4", "tpu-v5p", "tpu-v5e", "tpu-v6e", "tpu-v7", "h100", "gb200"}) {
    const ts::Chip preset = ts::chip(chip);
    for (std::int64_t n = 1; n <= 700; ++n) {
      if (ts::detail::offered_dims(preset, n).size() > 0) {
        CHECK(ts::machine_of_chips(preset, n).chips() == n);
      }
    }
  }
}

TEST_CASE("machine_of_chips: what is not offered, and what is near") {
  CHECK(error_of([] { ts::machine_of_chips("tpu-v5p", 100); }) ==
        "machine_of_chips: 100 chips of tpu-v5p make no whole cubes of 4x4x4; near are 64 and 128, "
        "or say the dimensions");
  CHECK(error_of([] { ts::machine_of_chips("tpu-v5e", 100); }) ==
        "machine_of_chips: 100 chips of tpu-v5e make no whole slice; near are 64 and 128, or say "
        "the dimensions");
  CHECK(error_of([] { ts::machine_of_chips("h100", 100); }) ==
        "machine_of_chips: 100 chips of h100-sxm make no whole nodes; near are 96 and 104, or say "
        "the dimensions");
  CHECK(error_of([] { ts::machine_of_chips("h100", 0); }) ==
        "machine_of_chips: 0 chips of h100-sxm; 1 to 10000000 is right");
  // Beyond a pod slices have 64 chips or more.
  CHECK(error_of([] { ts::machine_of_chips("tpu-v5e", 260); }) ==
        "machine_of_chips: 260 chips of tpu-v5e make no whole slice; near are 256 and 320, or say "
        "the dimensions");
  CHECK(error_of([] { ts::machine_of_chips("tpu-v5p", 8964); }) ==
        "machine_of_chips: 8964 chips of tpu-v5p make no whole cubes of 4x4x4; near are 8960 and "
        "9024, or say the dimensions");
  // A pod of fewer than 64 chips is the largest machine that is offered.
  ts::Chip few = ts::chip("tpu-v5e");
  few.domain_chips = 16;
  CHECK(error_of([&] { ts::machine_of_chips(few, 32); }) ==
        "machine_of_chips: 32 chips of tpu-v5e make no whole slice; near is 16, or say the "
        "dimensions");
  CHECK(error_of([&] { ts::machine_of_chips(few, 7); }) ==
        "machine_of_chips: 7 chips of tpu-v5e make no whole slice; near are 4 and 8, or say the "
        "dimensions");
  few.domain_chips = 0;
  CHECK(error_of([&] { ts::machine_of_chips(few, 16); }) ==
        "machine_of_chips: tpu-v5e has domain_chips 0, host_chips 8; 1 or more of each is right");
  ts::Chip gpu = ts::chip("h100");
  gpu.host_chips = 0;
  CHECK(error_of([&] { ts::machine_of_chips(gpu, 16); }) ==
        "machine_of_chips: h100-sxm has domain_chips 8, host_chips 0; 1 or more of each is right");
}
