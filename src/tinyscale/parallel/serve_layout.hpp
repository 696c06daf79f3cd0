#pragma once
// How generation is divided over devices: layers over pipeline stages; query heads, feed-forward
// and vocabulary over tensor x sequence devices; of the cache heads over tensor, tokens over
// sequence (pages in turns). Fewer KV heads than tensor devices: those that share one have copies.
// Pope et al., arXiv 2211.05102; "How To Scale Your Model", chapter 7.

#include <cstdint>  // int64_t
#include <cstring>  // memcpy
#include <string>   // string
#include <vector>   // vector

#include "tinyscale/base/list.hpp"
#include "tinyscale/model/kv_pages.hpp"
#include "tinyscale/model/transformer.hpp"
#include "tinyscale/parallel/expert_parallel.hpp"
#include "tinyscale/parallel/layout_axes.hpp"
#include "tinyscale/parallel/tensor_parallel.hpp"

namespace tinyscale {

struct ServeLayout {
  std::int64_t tensor = 1;        // groups of KV heads; with sequence: pieces of every matrix
  std::int64_t pipeline = 1;      // stages of layers
  std::int64_t sequence = 1;      // parts of every sequence's keys and values
  std::int64_t microbatches = 0;  // groups of prompts under way at once; 0: as many as stages
  bool whole_experts = false;     // a device has whole experts, not a part of each
  Algorithm algorithm = Algorithm::automatic;  // of the collectives that have it

  std::int64_t pieces() const { return tensor * sequence; }  // of every matrix
  std::int64_t devices() const { return pieces() * pipeline; }
  // Groups that so many prompts make.
  std::int64_t groups(std::int64_t prompts) const {
    const std::int64_t wanted = microbatches > 0 ? microbatches : pipeline;
    return wanted < prompts ? wanted : prompts;
  }
  // "tensor 4, pipeline 1, sequence 1", then what else is not as it is by default.
  std::string text() const {
    return detail::cat({"tensor ", tensor, ", pipeline ", pipeline, ", sequence ", sequence}) +
           (microbatches != 0 ? detail::cat({", microbatches ", microbatches}) : "") +
           (whole_experts ? ", whole experts" : "");
  }
};

namespace detail {

// The mesh of a layout, the slowest links first; groups are empty where there is one device.
struct ServeAxes {
  List<MeshAxis> mesh;
  AxisGroup pipeline, sequence, pieces;
};

inline ServeAxes serve_axes(const ServeLayout& layout) {
  ServeAxes axes;
  if (layout.pipeline > 1) {
    axes.mesh.push_back({"pipeline", layout.pipeline});
    axes.pipeline.push_back("pipeline");
  }
  if (layout.tensor > 1 || layout.devices() == 1) {
    axes.mesh.push_back({"tensor", layout.tensor});
  }
  if (layout.tensor > 1) {
    axes.pieces.push_back("tensor");
  }
  if (layout.sequence > 1) {
    axes.mesh.push_back({"sequence", layout.sequence});
    axes.sequence.push_back("sequence");
    axes.pieces.push_back("sequence");
  }
  return axes;
}

// What one device has: its stage, its piece of matrices, its heads and tokens of the cache.
struct ServePlace {
  std::int64_t stage = 0, tensor = 0, sequence = 0;
  std::int64_t piece = 0;                       // of layout.pieces()
  std::int64_t first_layer = 0, end_layer = 0;  // of its stage
  std::int64_t first_kv = 0, end_kv = 0;        // KV heads
  bool first = true, last = true;               // stage

  ServePlace() = default;
  ServePlace(const ModelConfig& c, const ServeLayout& layout, std::int64_t rank)
      : stage(rank / layout.pieces()),
        tensor(rank / layout.sequence % layout.tensor),
        sequence(rank % layout.sequence),
        piece(rank % layout.pieces()),
        first_layer(shard_begin(c.layers, stage, layout.pipeline)),
        end_layer(shard_begin(c.layers, stage + 1, layout.pipeline)),
        first_kv(tensor * c.kv_heads / layout.tensor),
        end_kv(c.kv_heads < layout.tensor ? first_kv + 1
                                          : (tensor + 1) * c.kv_heads / layout.tensor),
        first(stage == 0),
        last(stage + 1 == layout.pipeline) {}

  std::int64_t layers() const { return end_layer - first_layer; }
  // Shape of the cache of this device: its layers and KV heads.
  ModelConfig cache_config(ModelConfig c) const {
    c.layers = layers();
    c.kv_heads = end_kv - first_kv;
    return c;
  }
};

inline void check_serve_sizes(const ModelConfig& c, const ServeLayout& layout) {
  const auto fails = [&](const std::string& why) {
    fail({"generate_sharded: ", c.name, " over ", layout.text(), ": ", why});
  };
  const std::int64_t n = layout.pieces(), t = layout.tensor;
  if (c.layers < layout.pipeline) {
    fails(cat({c.layers, " layers for ", layout.pipeline, " stages; at most ", c.layers,
               " stages are right"}));
  }
  if (c.heads % n != 0) {
    fails(cat({c.heads, " heads over ", n, " devices; tensor x sequence that divides ", c.heads,
               " is right"}));
  }
  if (c.kv_heads % t != 0 && t % c.kv_heads != 0) {
    fails(cat({c.kv_heads, " KV heads over tensor ", t, "; one that divides the other is right"}));
  }
  const std::int64_t hidden = c.experts > 0 ? c.expert_hidden : c.hidden;
  const std::int64_t least = hidden < c.vocabulary ? hidden : c.vocabulary;
  if (least < n) {
    fails(cat({"a hidden layer of ", hidden, " and a vocabulary of ", c.vocabulary, " over ", n,
               " devices; at most ", least, " are right"}));
  }
  if (layout.whole_experts && (c.experts == 0 || c.experts % n != 0)) {
    fails(c.experts == 0
              ? "it has no experts; whole_experts = false is right"
              : cat({c.experts, " experts over ", n,
                     " devices; a number of devices that divides the experts is right"}));
  }
  if (c.vocabulary > (1 << 24)) {  // ids travel as floats
    fails(cat({"a vocabulary of ", c.vocabulary, "; at most 16777216 is right"}));
  }
}

inline void check_serve_layout(const Transformer& model, const ServeLayout& layout) {
  const std::int64_t most = 1 << 20;
  bool good = layout.microbatches >= 0;
  for (const std::int64_t n : {layout.tensor, layout.pipeline, layout.sequence}) {
    good = good && n >= 1 && n <= most;
  }
  if (!good) {
    fail({"generate_sharded: layout is ", layout.text(), "; each of 1 to ", most,
          ", microbatches from 0, is right"});
  }
  check_serve_sizes(model.config, layout);
  for (const Parameter& p : model.parameters) {
    if (!p.value.defined() && !p.stored) {
      fail({"generate_sharded: ", p.name, " of ", model.config.name,
            " has no numbers; a model that was made or loaded is right"});
    }
    if (p.stored && model.activations != Activations::f32) {
      fail({"generate_sharded: ", p.name, " of ", model.config.name, " is ", p.stored->kind(),
            " and meets activations in 8 bits; devices have it in float32, so that activations ",
            "in float32 are right"});
    }
  }
}

inline bool name_has(const Parameter& p, const char* part) {
  return p.name.find(part) != std::string::npos;
}

// Which rows or columns of a parameter are a device's; count 0: none of it.
struct ServeCut {
  int dim = -1;  // -1: all of it
  std::int64_t begin = 0, end = 0;
  bool here = true;
};

inline ServeCut serve_cut(const Parameter& p, const ModelConfig& c, const ServeLayout& layout,
                          const ServePlace& at) {
  ServeCut cut;
  const bool table = p.name == "model.embed_tokens.weight";
  if (p.layer >= 0) {
    cut.here = p.layer >= at.first_layer && p.layer < at.end_layer;
  } else if (table || name_has(p, "embed_positions")) {
    cut.here = at.first || (table && c.tied && at.last);
  } else {
    cut.here = at.last;
  }
  if (p.expert >= 0 && layout.whole_experts) {
    const ExpertPart own = expert_part(c.experts, layout.pieces(), at.piece);
    cut.here = cut.here && p.expert >= own.first && p.expert < own.first + own.count;
    return cut;
  }
  if (p.split == Split::whole || p.split == Split::expert) {
    return cut;
  }
  cut.dim = p.split == Split::rows ? 0 : 1;
  if (name_has(p, ".k_proj.") || name_has(p, ".v_proj.")) {
    cut.begin = at.first_kv * c.head_size;
    cut.end = at.end_kv * c.head_size;
  } else {
    cut.begin = shard_begin(p.shape[cut.dim], at.piece, layout.pieces());
    cut.end = shard_begin(p.shape[cut.dim], at.piece + 1, layout.pieces());
  }
  return cut;
}

// A device's part of a parameter; of a stored one in float32.
inline Tensor cut_parameter(const Parameter& p, const ServeCut& cut) {
  if (p.value.defined()) {
    const Tensor all = p.value.detach();
    return (cut.dim < 0 ? all : slice(all, cut.dim, cut.begin, cut.end)).copied();
  }
  const StoredMatrix& from = *p.stored;
  const std::int64_t row0 = cut.dim == 0 ? cut.begin : 0;
  const std::int64_t rows = cut.dim == 0 ? cut.end - cut.begin : from.rows;
  const std::int64_t col0 = cut.dim == 1 ? cut.begin : 0;
  const std::int64_t cols = cut.dim == 1 ? cut.end - cut.begin : from.cols;
  Tensor part({rows, cols});
  std::vector<float> row(static_cast<std::size_t>(from.cols));
  for (std::int64_t i = 0; i < rows; ++i) {
    kernels::stored_row(from, row0 + i, row.data());
    std::memcpy(part.data() + i * cols, row.data() + col0,
                static_cast<std::size_t>(cols) * sizeof(float));
  }
  return part;
}

// The model as a device has it; of what is not there nothing.
inline Transformer serve_model(const Transformer& whole, const ServeLayout& layout,
                               const ServePlace& at) {
  const MemoryScope scope(MemoryKind::parameter);
  Transformer own = whole;
  for (Parameter& p : own.parameters) {
    const ServeCut cut = serve_cut(p, whole.config, layout, at);
    p.value = cut.here ? cut_parameter(p, cut) : Tensor();
    p.stored = Shared<StoredMatrix>();
    // A whole expert's bias comes from one device: more than its share of a partial sum.
    const bool bias = layout.whole_experts && cut.here && p.expert >= 0;
    if (bias && name_has(p, ".down_proj.bias")) {
      for (std::int64_t i = 0; layout.pieces() > 1 && i < p.value.count(); ++i) {
        p.value.data()[i] *= static_cast<float>(layout.pieces());  // its own, cut from the whole
      }
    }
  }
  return own;
}

// Bytes of the weights on a device, or of its routed experts alone.
inline double serve_weight_bytes(const Transformer& whole, const ServeLayout& layout,
                                 const ServePlace& at, bool experts = false) {
  double numbers = 0;
  for (const Parameter& p : whole.parameters) {
    const ServeCut cut = serve_cut(p, whole.config, layout, at);
    if (cut.here && (!experts || p.expert >= 0)) {
      const double all = static_cast<double>(p.shape.count());
      numbers += cut.dim < 0 ? all
                             : all / static_cast<double>(p.shape[cut.dim]) *
                                   static_cast<double>(cut.end - cut.begin);
    }
  }
  return 4 * numbers;
}

// ---- The tokens of a sequence that a device of the sequence axis keeps: pages in turns ----

struct CacheTurns {
  std::int64_t page = 64, devices = 1, index = 0;

  bool mine(std::int64_t place) const { return place / page % devices == index; }
  // Where a token of mine stands among mine.
  std::int64_t local(std::int64_t place) const {
    return place / page / devices * page + place % page;
  }
  // How many of the first `length` tokens are mine.
  std::int64_t count(std::int64_t length) const {
    const std::int64_t pages = length / page, whole = pages / devices;
    const std::int64_t rest = pages % devices;
    return whole * page + (rest > index ? page : rest == index ? length % page : 0);
  }
};

}  // namespace detail
}  // namespace tinyscale
