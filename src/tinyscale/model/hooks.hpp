#pragma once
// What surrounds a forward pass: named parameters, the cache of keys and values, and the hooks by
// which a parallel strategy puts collectives between the parts of the transformer.
// An empty hook is the identity.

#include <cstdint>  // int64_t
#include <string>   // string
#include <vector>   // vector

#include "tinyscale/base/function.hpp"
#include "tinyscale/base/shape.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/compute/rope.hpp"
#include "tinyscale/compute/stored_matrix.hpp"
#include "tinyscale/model/experts.hpp"
#include "tinyscale/tensor/choose.hpp"
#include "tinyscale/tensor/tensor.hpp"

namespace tinyscale {

// How a parameter is cut over devices: not at all, by its rows (outputs of a linear layer, tokens
// of the embedding), by its columns (inputs of a linear layer), or with the expert it belongs to.
enum class Split { whole, rows, columns, expert };

struct Parameter {
  std::string name;  // as in Hugging Face's Llama files
  Tensor value;
  Split split = Split::whole;
  int layer = -1;                    // -1: embeddings, last norm, output matrix
  int expert = -1;                   // that it belongs to; -1: none
  Shape shape = {};                  // of the whole parameter
  Shared<StoredMatrix> stored = {};  // of a model that only runs: the numbers, and `value` has none
};

// Keys and values of the tokens seen so far: room for the whole context, one pair of
// [B, context, KV K] a layer. A copy shares that room; two that go on apart need clone() of each.
struct KvCache {
  std::vector<Tensor> keys;
  std::vector<Tensor> values;

  // Writes the rows of tokens first, first + 1, .. into their place; the rows of all tokens so far.
  static Tensor append(Tensor& rows, const Tensor& x, std::int64_t first, std::int64_t context) {
    if (!rows.defined()) {
      const MemoryScope scope(MemoryKind::kv_cache);
      rows = zeros({x.dim(0), context, x.dim(2)});
    }
    const std::int64_t end = first + x.dim(1);
    if (rows.dim(0) != x.dim(0) || rows.dim(2) != x.dim(2) || end > rows.dim(1)) {
      detail::fail(
          {"KvCache: ", x.shape(), " from token ", first, " on; the cache is ", rows.shape()});
    }
    copy_(slice(rows, 1, first, end), x);
    return slice(rows, 1, 0, end);
  }
};

// What a strategy may put between the parts of a forward pass.
struct Hooks {
  // The parameter as an op will use it (gathered, say); index is its place in parameters.
  Function<Tensor(const Tensor& value, int index)> weight;
  // Before the matmuls that read x (query-key-value, up, output matrix), after those that write
  // back to the width (attention output, down). The bias is added after linear_out.
  Function<Tensor(const Tensor& x)> linear_in;
  Function<Tensor(const Tensor& y)> linear_out;
  Function<Tensor(const Tensor& table, const std::vector<std::int32_t>& ids, const Shape& shape)>
      embedding;
  Function<Tensor(int layer, const Tensor& q, const Tensor& k, const Tensor& v)> attention;
  Function<Tensor(int layer, const Tensor& x)> feed_forward;  // all of it, after the norm
  // Mean cross-entropy of the logits x table^T: x after linear_in, table the output matrix.
  Function<Tensor(const Tensor& x, const Tensor& table, const std::vector<std::int32_t>& targets)>
      loss;
  std::int64_t first_sequence = 0;  // of this device's part in the whole batch
  TokenPlaces places;               // of the tokens that attention sees, in their sequences
  TokenPlaces stream;  // of those between the layers: under sequence parallelism a part of them
  // Of tokens of several sequences in one row (generation): the place of each, and the rotation of
  // queries or keys [1, T, heads K] to them.
  const std::vector<std::int32_t>* each_place = nullptr;
  Function<Tensor(const Tensor& x)> rotate;
  // Tokens of [1, T, D] that go on from a block, in order: the others give it keys and values
  // alone.
  const std::vector<std::int32_t>* wanted = nullptr;  // none: all
  std::int64_t sequence_length = 0;  // tokens of a whole sequence; 0: as many as are here
  KvCache* cache = nullptr;          // read and extended when set
  double dropout = 0.0;
  std::uint64_t dropout_seed = 0;
  // Mixtures of experts. Inside one all is a partial sum from linear_in until linear_out, which
  // comes once, after routed and shared experts are added. whole_experts: routed ones are whole
  // and read tokens as they lie between the layers; the two are around shared ones alone.
  bool whole_experts = false;
  ExpertOptions experts;
  ExpertCounts* expert_counts = nullptr;  // added to when set
  ExpertDispatch dispatch;                // empty: all experts are here
  // The mean over the devices that hold other tokens of the batch (all_reduce).
  Function<Tensor(const Tensor& x)> batch_mean;
  double balance_weight = 1;  // of the balance loss in what backward() starts from
  double partial_share = 1;   // of a bias in a partial sum: 1 / devices that add theirs up
};

}  // namespace tinyscale
