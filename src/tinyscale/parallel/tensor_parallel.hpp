#pragma once
// Tensor parallelism (Megatron, arXiv 1909.08053) and sequence parallelism (arXiv 2205.05198):
// x -> f -> x W1[D, F_t] -> act -> W2[F_t, D] {U_t} -> g. f copies x (backward all_reduce), g is an
// all_reduce (backward: nothing); with sequence parallelism the residual stream is x[B, T_t, D],
// f an all_gather and g a reduce_scatter over tokens. Heads, hidden and vocabulary are cut.

#include <cmath>    // exp, log
#include <cstdint>  // int64_t
#include <cstring>  // memcpy
#include <string>   // string
#include <vector>   // vector

#include "tinyscale/base/list.hpp"
#include "tinyscale/mesh/device.hpp"
#include "tinyscale/model/forward.hpp"
#include "tinyscale/tensor/deferred.hpp"

namespace tinyscale {
namespace detail {

inline void check_shard(const char* function, int index, int devices) {
  if (devices < 1 || index < 0 || index >= devices) {
    fail({function, ": shard ", index, " of ", devices, "; shards of n devices are 0 to n - 1"});
  }
}

}  // namespace detail

// The first row that device `index` of `devices` has of `rows`: what does not divide is spread.
inline std::int64_t shard_begin(std::int64_t rows, std::int64_t index, std::int64_t devices) {
  return rows * index / devices;
}

// A device's part of a parameter: rows in dimension 0, columns in dimension 1; what is whole or of
// an expert as it is. A copy, cut off from the graph.
inline Tensor tensor_shard(const Tensor& whole, Split split, int index, int devices) {
  detail::check_given("tensor_shard", whole);
  detail::check_shard("tensor_shard", index, devices);
  if (split == Split::whole || split == Split::expert) {
    return whole.copied();
  }
  const int dim = split == Split::rows ? 0 : 1;
  if (whole.dims() <= dim || whole.dim(dim) < devices) {
    detail::fail({"tensor_shard: ", whole.shape(), " cut in dimension ", dim, " over ", devices,
                  " devices; a size of at least ", devices, " is right"});
  }
  return slice(whole.detach(), dim, shard_begin(whole.dim(dim), index, devices),
               shard_begin(whole.dim(dim), index + 1, devices))
      .copied();
}

// The parameter whose parts these are, in order of the devices.
inline Tensor tensor_unshard(const std::vector<Tensor>& shards, Split split) {
  if (shards.empty()) {
    detail::fail({"tensor_unshard: no shards; one of each device is right"});
  }
  if (split == Split::whole || split == Split::expert || shards.size() == 1) {
    return shards[0].copied();
  }
  const NoGrad no_graph;
  return concat(shards, split == Split::rows ? 0 : 1);
}

namespace detail {

// "1, 2, 3": over how many devices heads, hidden layer and vocabulary can be cut.
inline std::string tensor_sizes(const ModelConfig& c, std::int64_t hidden) {
  std::string out;
  for (std::int64_t t = 1; t <= c.kv_heads && t <= c.vocabulary; ++t) {
    if (c.heads % t == 0 && c.kv_heads % t == 0 && hidden % t == 0) {
      out += (out.empty() ? "" : ", ") + std::to_string(t);
    }
  }
  return out;
}

// Throws what of the model cannot be cut over so many devices.
inline void check_tensor_split(const ModelConfig& c, std::int64_t devices) {
  const std::int64_t hidden = c.experts > 0 ? c.expert_hidden : c.hidden;
  const struct {
    const char* field;
    std::int64_t value;
    bool whole;
  } sizes[] = {{"heads", c.heads, c.heads % devices == 0},
               {"kv_heads", c.kv_heads, c.kv_heads % devices == 0},
               {c.experts > 0 ? "expert_hidden" : "hidden", hidden, hidden % devices == 0},
               {"vocabulary", c.vocabulary, c.vocabulary >= devices}};
  for (const auto& size : sizes) {
    if (!size.whole) {
      fail({"tensor parallel: ", c.name, " has ", size.field, " ", size.value, ", over ", devices,
            " devices; each has whole heads, an equal part of the hidden layer and a token at ",
            "least, so that tensor is right as one of ", tensor_sizes(c, hidden)});
    }
  }
}

inline void check_sequence_split(std::int64_t tokens, std::int64_t devices) {
  if (tokens % devices != 0) {
    fail({"sequence parallel: ", tokens, " tokens of a sequence over ", devices,
          " devices; a multiple of ", devices, " is right"});
  }
}

// The devices of a tensor axis and this one's part of the vocabulary.
struct TensorGroup {
  Device* device = nullptr;
  Axes axes;
  int index = 0;
  int devices = 1;
  std::int64_t vocabulary = 0;

  std::int64_t first() const { return shard_begin(vocabulary, index, devices); }
  std::int64_t end() const { return shard_begin(vocabulary, index + 1, devices); }
};

inline TensorGroup tensor_group(Device& device, const Axes& axes, std::int64_t vocabulary) {
  const std::vector<int> found = device.endpoint().find_axes("tensor parallel", axes);
  return {&device, axes, device.endpoint().index_on(found), device.endpoint().size_of(found),
          vocabulary};
}

inline void check_local_rows(const char* what, const TensorGroup& group, const Tensor& table) {
  if (table.dims() != 2 || table.dim(0) != group.end() - group.first()) {
    fail({what, ": device ", group.index, " of ", group.devices, " has the table ", table.shape(),
          "; rows ", group.first(), " to ", group.end() - 1, " of ", group.vocabulary,
          " are right: tensor_shard cuts them"});
  }
}

// Adds rows of dy to rows of a table's gradient, that begin at these elements.
struct LocalTableGradient {
  List<std::int64_t> from, to;
  std::int64_t width;
  Slot table;

  void operator()(const Tensor& dy) const {
    DeferWeightGradients* const later = context().deferred;
    if (later != nullptr && later->waits_for(table)) {
      later->push(table, dy, *this);
      return;
    }
    float* const out = grad_buffer(table);
    for (std::size_t i = 0; i < from.size(); ++i) {
      kernels::add(width, out + from[i], dy.data() + to[i], out + from[i]);
    }
  }
};

// Rows of a table of which this device has those from `first` on; those of others are zero, here,
// and get no gradient.
inline Tensor local_embedding(const Tensor& table, const std::vector<std::int32_t>& ids,
                              const Shape& ids_shape, const TensorGroup& group) {
  check_local_rows("embedding", group, table);
  if (static_cast<std::int64_t>(ids.size()) != ids_shape.count()) {
    fail({"embedding: ", ids.size(), " ids for shape ", ids_shape, "; one per element is right"});
  }
  const OpScope scope;
  const std::int64_t width = table.dim(1);
  const std::size_t row_bytes = static_cast<std::size_t>(width) * sizeof(float);
  Shape shape = ids_shape;
  shape.push_back(width);
  Tensor y = zeros(shape);
  List<std::int64_t> from, to;  // elements at which the rows that are here begin
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= group.vocabulary) {
      fail({"embedding: id ", ids[i], " at position ", i, " is outside the vocabulary of ",
            group.vocabulary});
    }
    if (ids[i] >= group.first() && ids[i] < group.end()) {
      from.push_back((ids[i] - group.first()) * width);
      to.push_back(static_cast<std::int64_t>(i) * width);
      std::memcpy(y.data() + to.back(), table.data() + from.back(), row_bytes);
    }
  }
  const double copied = static_cast<double>(from.size()) * static_cast<double>(width);
  scope.done("embedding", shape, {copied, static_cast<double>(ids.size())},
             {static_cast<double>(y.count())}, 0, 0);
  if (tracked({&table})) {
    attach(y, "embedding", {&table}, LocalTableGradient{from, to, width, table.slot()});
  }
  return y;
}

// Of whole rows from those of each device's columns: the largest, log(sum exp) above it, and losses
// from the target's logit, from the device that has it: two all_reduces, three numbers a row.
inline void sum_over_columns(const TensorGroup& group, Tensor& top, Tensor& above, Tensor& losses,
                             const Tensor& target_logits) {
  const std::int64_t rows = above.count();
  const Tensor most = group.device->all_reduce(top, group.axes, Reduce::max);
  Tensor both({2, rows});
  for (std::int64_t i = 0; i < rows; ++i) {
    both.data()[i] = std::exp(top.data()[i] - most.data()[i] + above.data()[i]);
    both.data()[rows + i] = target_logits.data()[i];
  }
  both = group.device->all_reduce(both, group.axes);
  top = most;
  for (std::int64_t i = 0; i < rows; ++i) {
    above.data()[i] = std::log(both.data()[i]);
    losses.data()[i] = most.data()[i] - both.data()[rows + i] + above.data()[i];
  }
}

// Cross-entropy of logits [.., V_t] whose columns are cut over devices: the same number on all.
// Backward: softmax - onehot on the own columns, written over the logits; nothing is sent.
inline Tensor cut_cross_entropy(const Tensor& logits, const std::vector<std::int32_t>& targets,
                                const TensorGroup& group) {
  const std::int64_t columns = logits.dim(-1);
  const std::int64_t rows = logits.count() / columns;
  const double n = check_targets("cross_entropy", targets, Shape{rows, group.vocabulary}, rows);
  const OpScope scope;
  List<std::int32_t> own(targets.size()), graded(targets.size());
  Tensor target_logits = zeros({rows});
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const bool here = targets[i] >= group.first() && targets[i] < group.end();
    own[i] = here ? targets[i] - static_cast<std::int32_t>(group.first()) : -1;
    graded[i] = here || targets[i] < 0 ? own[i] : static_cast<std::int32_t>(columns);
    const auto row = static_cast<std::int64_t>(i);
    target_logits.data()[i] = here ? logits.data()[row * columns + own[i]] : 0.0f;
  }
  Tensor losses({rows}), above({rows}), top({rows});
  kernels::cross_entropy_forward(rows, columns, logits.data(), own.data(), losses.data(),
                                 above.data(), top.data());
  const double elements = static_cast<double>(logits.count());
  scope.done("cross_entropy", logits.shape(), {elements, static_cast<double>(rows)},
             {static_cast<double>(rows)}, 0,
             vector_cost("cross_entropy", elements, &VectorCost::forward));
  sum_over_columns(group, top, above, losses, target_logits);
  for (std::size_t i = 0; i < targets.size(); ++i) {
    losses.data()[i] = targets[i] < 0 ? 0.0f : losses.data()[i];
  }
  Tensor y = mean_loss(losses, n);
  if (tracked({&logits})) {
    attach(y, "cross_entropy", {&logits},
           [rows, columns, n, above, top, graded, dx = logits.detach(),
            slot = logits.slot()](const Tensor& dy) mutable {
             const OpScope backward;
             kernels::cross_entropy_backward(rows, columns, dx.data(), above.data(), graded.data(),
                                             static_cast<float>(dy.item() / n), dx.data(), 0.0f,
                                             top.data());
             backward.done_unary("cross_entropy backward", "cross_entropy", dx.shape(),
                                 &VectorCost::backward);
             add_grad(slot, dx);
             dx = Tensor();
           });
  }
  return y;
}

// The all_reduce of what a matmul gave and nobody else reads: the sum lands in the same numbers.
inline Tensor sum_in_place(const TensorGroup& group, const Tensor& y) {
  const bool free = y.is_contiguous() && y.storage()->block().kept.load() == 0;
  const Calling by = {group.device->endpoint(), CollectiveOptions(), {__FILE__, __LINE__}};
  return start_all_reduce(by, y, group.axes, Reduce::sum, free ? y.detach() : Tensor()).wait();
}

// x, whole on every device, to the cut matmuls; what they give, summed.
inline void add_linear_hooks(Hooks& hooks, const TensorGroup& group, bool sequence_parallel,
                             bool gather_again) {
  if (sequence_parallel) {
    CollectiveOptions options;
    options.gather_again = gather_again;
    hooks.linear_in = [group, options](const Tensor& x) {
      return group.device->all_gather(x, group.axes, 1, options);
    };
    hooks.linear_out = [group](const Tensor& y) {
      return group.device->reduce_scatter(y, group.axes, 1);
    };
  } else {
    hooks.linear_in = [group](const Tensor& x) { return group.device->replicate(x, group.axes); };
    hooks.linear_out = [group](const Tensor& y) { return sum_in_place(group, y); };
  }
}

inline void add_vocabulary_hooks(Hooks& hooks, const TensorGroup& group, bool sequence_parallel,
                                 std::int64_t tokens) {
  hooks.embedding = [group, sequence_parallel, tokens](const Tensor& table,
                                                       const std::vector<std::int32_t>& ids,
                                                       const Shape& shape) {
    if (sequence_parallel && shape[1] != tokens) {
      fail({"sequence parallel: ", shape[1], " tokens of a sequence; the hooks were made for ",
            tokens, ", which is right"});
    }
    const Tensor rows = local_embedding(table, ids, shape, group);
    return sequence_parallel ? group.device->reduce_scatter(rows, group.axes, 1)
                             : sum_in_place(group, rows);
  };
  hooks.loss = [group](const Tensor& x, const Tensor& table,
                       const std::vector<std::int32_t>& targets) {
    check_local_rows("loss", group, table);
    Tensor logits;
    {
      const MemoryScope scope(MemoryKind::logits);
      logits = matmul_transposed(x, table);
    }
    return cut_cross_entropy(logits, targets, group);
  };
}

// Fills the hooks of a model whose parameters are tensor_shards over the axes. The hooks use the
// device as long as they live. With sequence parallelism hooks.places is set before; `tokens` are
// those of a sequence that attention sees here (0: config.context). gather_again: a device keeps
// its part alone of what matmuls read, and the backward pass gathers it anew (Megatron does).
inline void add_tensor_hooks(Hooks& hooks, Device& device, const Axes& tensor,
                             const ModelConfig& config, bool sequence_parallel,
                             std::int64_t tokens = 0, bool gather_again = false) {
  const TensorGroup group = tensor_group(device, tensor, config.vocabulary);
  const std::int64_t here = tokens > 0 ? tokens : config.context;
  check_tensor_split(config, group.devices);
  if (sequence_parallel) {
    check_sequence_split(here, group.devices);
    hooks.stream = hooks.places.from(shard_begin(here, group.index, group.devices));
    hooks.sequence_length = hooks.sequence_length > 0 ? hooks.sequence_length : here;
  }
  hooks.partial_share = 1.0 / group.devices;
  hooks.balance_weight /= group.devices;
  add_linear_hooks(hooks, group, sequence_parallel, gather_again);
  add_vocabulary_hooks(hooks, group, sequence_parallel, here);
}

}  // namespace detail

// Bytes that a device sends for one microbatch of `batch` sequences of `time` tokens, forward and
// backward, with or without sequence parallelism: an all_reduce is 2 (t-1)/t of its elements, an
// all_gather or a reduce_scatter (t-1)/t. Exact for each device by a ring or direct, where t
// divides batch time, and else for their mean. `forward_passes` is 2 under full recomputation.
// gather_again, of sequence parallelism: an all_gather more of what attention, feed-forward and
// output matrix read.
struct TensorParallelBytes {
  double layers = 0;     // 8 b s h (t-1)/t elements each: 2 all_reduces forward, 2 backward
  double embedding = 0;  // 2 b s h (t-1)/t
  double output = 0;     // 2 b s h (t-1)/t: the gradient of what the output matrix reads
  double loss = 0;       // 6 b s (t-1)/t: largest logit, sum of exponentials, target's logit

  double total() const { return layers + embedding + output + loss; }
};

inline TensorParallelBytes tensor_parallel_bytes(const ModelConfig& c, std::int64_t batch,
                                                 std::int64_t time, std::int64_t devices,
                                                 int forward_passes = 1, bool gather_again = false,
                                                 double element_bytes = 4) {
  if (devices < 1 || batch < 1 || time < 1) {
    detail::fail({"tensor_parallel_bytes: ", batch, " sequences of ", time, " tokens over ",
                  devices, " devices; each must be at least 1"});
  }
  const double t = static_cast<double>(devices);
  const double once = static_cast<double>(batch * time) * (t - 1) / t * element_bytes;
  const double wide = once * static_cast<double>(c.width);
  TensorParallelBytes bytes;
  // What the router and routed experts read, they keep; what runs again anyway, is gathered then.
  const int feed_forward = c.experts == 0 || c.shared_experts > 0 ? 1 : 0;
  const int again = gather_again && forward_passes == 1 ? 1 + feed_forward : 0;
  bytes.layers = static_cast<double>(c.layers) * (4 * forward_passes + 4 + again) * wide;
  bytes.embedding = 2 * wide;
  bytes.output = (gather_again ? 3 : 2) * wide;
  bytes.loss = 6 * once;
  return bytes;
}

// True where a device's gradient of a parameter is only its part of the sum over the tensor axis.
// After the last backward pass of a step, and before norms, clipping and ZeRO, the executor sums
// these over the axis (one all_reduce of them packed). All others are right as they are: shards of
// their own, or, without sequence parallelism, equal on all devices.
inline bool partial_over_tensor(const Parameter& p, const ModelConfig& config,
                                bool sequence_parallel) {
  if (p.split != Split::whole) {
    return false;
  }
  const auto is = [&p](const char* part) { return p.name.find(part) != std::string::npos; };
  const bool of_heads = is(".q_norm.") || is(".k_norm.");
  const bool of_experts = config.experts > 0 && is(".mlp.");  // router, biases of down
  return sequence_parallel || of_heads || of_experts;
}

}  // namespace tinyscale
