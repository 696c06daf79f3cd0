#pragma once
// A layout: how one training step is divided over devices.
// devices = data * tensor * pipeline * context; expert divides data * context.

#include <cstdint>  // int64_t
#include <string>   // string

#include "tinyscale/base/error.hpp"
#include "tinyscale/hardware/network.hpp"

namespace tinyscale {

// What ZeRO (arXiv 1910.02054) shards over the data axis, each stage with those before it.
enum class Zero { none, optimizer, gradients, parameters };

// What is computed again in the backward pass: nothing, the attention core, all but a block's
// input (arXiv 2205.05198).
enum class Recompute { none, selective, full };

struct Layout {
  std::int64_t data = 1;      // replicas, each with its part of the batch
  std::int64_t tensor = 1;    // pieces of every matrix
  std::int64_t pipeline = 1;  // groups of layers
  std::int64_t context = 1;   // pieces of every sequence
  std::int64_t expert = 1;    // groups of experts
  std::int64_t microbatches = 1;
  Zero zero = Zero::none;

  std::int64_t devices() const { return data * tensor * pipeline * context; }
  // "data 4, tensor 1, pipeline 1, context 1", then what else is not as it is by default.
  std::string text() const {
    static const char* const shards[] = {"", ", ZeRO: optimizer", ", ZeRO: gradients",
                                         ", ZeRO: parameters"};
    std::string out = detail::cat(
        {"data ", data, ", tensor ", tensor, ", pipeline ", pipeline, ", context ", context});
    out += expert != 1 ? detail::cat({", expert ", expert}) : "";
    out += microbatches != 1 ? detail::cat({", microbatches ", microbatches}) : "";
    return out + shards[static_cast<int>(zero)];
  }
};

namespace detail {

inline void check_layout_counts(const char* who, const Layout& layout) {
  const std::int64_t most = 2147483647;  // so that products fit
  std::int64_t devices = 1;
  bool good = layout.expert >= 1 && layout.microbatches >= 1;
  for (const std::int64_t n : {layout.data, layout.tensor, layout.pipeline, layout.context}) {
    good = good && n >= 1 && n <= most / devices;
    devices *= good ? n : 1;
  }
  if (!good) {
    fail({who, ": layout is ", layout.text(), "; each must be at least 1, and the devices at most ",
          most});
  }
}

// Throws what is wrong with training `batch` sequences by `layout` on `chips` chips.
inline void check_layout(const Layout& layout, std::int64_t chips, std::int64_t batch) {
  check_layout_counts("train", layout);
  if (layout.tensor > 1 || layout.pipeline > 1 || layout.context > 1 || layout.expert > 1 ||
      layout.microbatches > 1 || layout.zero != Zero::none) {
    fail({"train: layout is ", layout.text(),
          "; this version runs data parallelism alone: set tensor, pipeline, context, "
          "expert and microbatches to 1 and zero to Zero::none"});
  }
  if (layout.devices() != chips) {
    fail({"train: layout is ", layout.text(), " = ", layout.devices(), " devices, the machine has ",
          chips, " chips; they must be equal"});
  }
  if (batch % layout.data != 0) {
    fail({"train: a batch of ", batch, " sequences does not divide over ", layout.data,
          " data-parallel devices; right is a multiple of ", layout.data});
  }
}

}  // namespace detail
}  // namespace tinyscale
