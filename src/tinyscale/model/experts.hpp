#pragma once
// Which expert each token visits: the top_k most probable of the router, ties to the lower number
// (mixture of experts, arXiv 2101.03961; weights of the chosen ones sum to 1, arXiv 2401.04088).
// With a capacity factor cf an expert takes C = ceil(top_k T cf / E) of a group's T tokens, the
// first ones; without, all (dropless, arXiv 2211.15841).

#include <cmath>    // ceil
#include <cstdint>  // int32_t
#include <utility>  // swap
#include <vector>   // vector

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/function.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/tensor/reduce.hpp"
#include "tinyscale/tensor/tensor.hpp"
#include "tinyscale/tensor/tokens.hpp"
#include "tinyscale/tensor/views.hpp"

namespace tinyscale {

// How tokens are spread over experts.
struct ExpertOptions {
  double capacity_factor = 0;  // 0: dropless
  double balance_loss = 0;     // coefficient of E sum_e f_e P_e, which is 1 when balanced; 0: none
  std::int64_t groups = 1;     // equal contiguous parts of the tokens, each with a capacity of its
                               // own: what each of so many data-parallel devices would see
  std::vector<std::int32_t> group_of;  // of each token, where the equal parts are not contiguous
};

// Rows (n, D) of an expert through it.
using ExpertBody = Function<Tensor(int expert, const Tensor& rows)>;

// What a layer's experts get.
struct ExpertRows {
  Tensor rows;                       // (sum of counts, D), sorted by expert
  std::vector<std::int64_t> counts;  // [E]
  std::int64_t capacity = 0;         // at most so many of one expert; 0: no limit
};

// Brings rows to their experts and gives the results in the same order.
using ExpertDispatch = Function<Tensor(const ExpertRows& in, const ExpertBody& run)>;

struct Routing {
  List<std::vector<std::int32_t>> rows;  // of each expert: the tokens it takes, ascending
  std::vector<std::int64_t> routed;      // [E] tokens that chose it, the dropped ones too
  std::vector<std::int32_t> chosen;      // [N, k] places in the flat probabilities [N, E]
  std::vector<std::int32_t> places;      // [N, k] rows in the experts' outputs, joined in order;
                                         // a dropped choice has the number of all rows
  std::int64_t kept = 0;                 // rows of all experts
  std::int64_t capacity = 0;             // of an expert, over all groups; 0: no limit
};

// Routing added up over passes. A pass that runs a second time (recomputation) leaves it out.
struct ExpertCounts {
  std::vector<std::int64_t> routed;   // [L, E] (token, choice) pairs, the dropped ones too
  std::vector<std::int64_t> dropped;  // [L, E]
  double balance_loss = 0;            // with its coefficient, summed over layers

  void add(std::int64_t layer, std::int64_t layers, const Routing& routing) {
    const std::size_t experts = routing.rows.size();
    routed.resize(static_cast<std::size_t>(layers) * experts, 0);
    dropped.resize(routed.size(), 0);
    for (std::size_t e = 0; e < experts; ++e) {
      const std::size_t at = static_cast<std::size_t>(layer) * experts + e;
      routed[at] += routing.routed[e];
      dropped[at] += routing.routed[e] - static_cast<std::int64_t>(routing.rows[e].size());
    }
  }
  std::int64_t all_routed() const { return total(routed); }
  std::int64_t all_dropped() const { return total(dropped); }

 private:
  static std::int64_t total(const std::vector<std::int64_t>& counts) {
    std::int64_t sum = 0;
    for (const std::int64_t count : counts) {
      sum += count;
    }
    return sum;
  }
};

// C = ceil(top_k T cf / E), of T tokens; a product that rounding alone lifts above a whole number
// is that number.
inline std::int64_t expert_capacity(std::int64_t tokens, std::int64_t top_k, std::int64_t experts,
                                    double capacity_factor) {
  const double sent = static_cast<double>(top_k) * static_cast<double>(tokens);
  const double most = sent / static_cast<double>(experts) * capacity_factor * (1 - 1e-12);
  if (tokens < 0 || top_k < 0 || experts < 1 || !(capacity_factor >= 0) || !(most < 9e18)) {
    detail::fail({"expert_capacity: ", tokens, " tokens to ", top_k, " of ", experts,
                  " experts, capacity factor ", capacity_factor,
                  "; counts of at least 0, an expert, a factor of at least 0 are right"});
  }
  return static_cast<std::int64_t>(std::ceil(most));
}

namespace detail {

inline void check_routing(std::int64_t tokens, std::int64_t experts, std::int64_t top_k,
                          const ExpertOptions& options) {
  if (top_k < 1 || top_k > experts) {
    fail({"route: top_k is ", top_k, " of ", experts, " experts; 1 to ", experts, " is right"});
  }
  if (!(options.capacity_factor >= 0 && options.capacity_factor <= 1e6)) {
    fail({"route: capacity_factor is ", options.capacity_factor,
          "; a number from 0 (dropless) to 1e+06 is right"});
  }
  if (options.groups < 1 || tokens % options.groups != 0) {
    fail({"route: ", tokens, " tokens in ", options.groups,
          " groups; a number of groups that divides the tokens is right"});
  }
  const auto given = static_cast<std::int64_t>(options.group_of.size());
  if (given != 0 && given != tokens) {
    fail(
        {"route: group_of has ", given, " entries for ", tokens, " tokens; one for each, or none"});
  }
  for (const std::int32_t group : options.group_of) {
    if (group < 0 || group >= options.groups) {
      fail({"route: group_of names group ", group, "; groups are 0 to ", options.groups - 1});
    }
  }
}

// Makes `order` begin with the top_k most probable.
inline void best_first(const float* p, int top_k, std::vector<std::int32_t>& order) {
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[i] = static_cast<std::int32_t>(i);
  }
  for (std::size_t j = 0; j < static_cast<std::size_t>(top_k); ++j) {
    std::size_t best = j;
    for (std::size_t i = j + 1; i < order.size(); ++i) {
      const std::int32_t a = order[i], b = order[best];
      best = (p[a] != p[b] ? p[a] > p[b] : a < b) ? i : best;
    }
    std::swap(order[best], order[j]);
  }
}

}  // namespace detail

// Routes N tokens by their probabilities [N, E]. A full expert drops the later tokens of a group;
// a token names an expert once, so it does not matter whether as its first choice or its last.
inline Routing route(const Tensor& probabilities, int top_k,
                     const ExpertOptions& options = ExpertOptions()) {
  const std::int64_t tokens = probabilities.dim(0), experts = probabilities.dim(1);
  detail::check_routing(tokens, experts, top_k, options);
  const std::int64_t group = tokens / options.groups;
  const bool dropless = options.capacity_factor <= 0;
  const std::int64_t most =
      dropless ? group : expert_capacity(group, top_k, experts, options.capacity_factor);
  Routing routing;
  routing.capacity = dropless ? 0 : options.groups * most;
  routing.rows.resize(static_cast<std::size_t>(experts));
  routing.routed.resize(routing.rows.size(), 0);
  const std::size_t all = routing.rows.size();
  std::vector<std::int64_t> room(static_cast<std::size_t>(options.groups) * all, most);
  std::vector<std::int32_t> order(all);
  for (std::int64_t n = 0; n < tokens; ++n) {
    const std::size_t own = options.group_of.empty()
                                ? static_cast<std::size_t>(n / group)
                                : static_cast<std::size_t>(options.group_of.data()[n]);
    detail::best_first(probabilities.data() + n * experts, top_k, order);
    for (int j = 0; j < top_k; ++j) {
      const auto e = static_cast<std::size_t>(order[static_cast<std::size_t>(j)]);
      auto& rows = routing.rows[e];
      ++routing.routed[e];
      routing.chosen.push_back(
          static_cast<std::int32_t>(n * experts + static_cast<std::int64_t>(e)));
      if (room[own * all + e] > 0) {
        --room[own * all + e];
        ++routing.kept;
        routing.places.push_back(static_cast<std::int32_t>(rows.size()));  // within the expert
        rows.push_back(static_cast<std::int32_t>(n));
      } else {
        routing.places.push_back(-1);
      }
    }
  }
  std::vector<std::int32_t> first(routing.rows.size(), 0);
  for (std::size_t e = 1; e < first.size(); ++e) {
    first[e] = first[e - 1] + static_cast<std::int32_t>(routing.rows[e - 1].size());
  }
  for (std::size_t i = 0; i < routing.places.size(); ++i) {
    std::int32_t& place = routing.places[i];
    place = place < 0 ? static_cast<std::int32_t>(routing.kept)
                      : place + first[static_cast<std::size_t>(routing.chosen[i] % experts)];
  }
  return routing;
}

// The rows of the tokens (N, D) that experts take, sorted by expert.
inline ExpertRows expert_rows(const Tensor& tokens, const Routing& routing) {
  ExpertRows out;
  out.capacity = routing.capacity;
  std::vector<std::int32_t> sorted;
  for (const std::vector<std::int32_t>& own : routing.rows) {
    out.counts.push_back(static_cast<std::int64_t>(own.size()));
    sorted.insert(sorted.end(), own.begin(), own.end());
  }
  out.rows = embedding(tokens, sorted, {routing.kept});
  return out;
}

// Of each token the sum of its experts' outputs (kept, D), weighted by their probabilities, which
// are made to sum to 1; a dropped choice counts as zeros.
inline Tensor combine(const Tensor& outputs, const Tensor& probabilities, const Routing& routing) {
  const std::int64_t n = probabilities.dim(0),
                     k = static_cast<std::int64_t>(routing.chosen.size()) / (n > 0 ? n : 1);
  const bool dropped = routing.kept < n * k;
  const Tensor table = dropped ? concat({outputs, zeros({1, outputs.dim(1)})}, 0) : outputs;
  const Tensor p = embedding(reshape(probabilities, {probabilities.count(), 1}), routing.chosen,
                             {n, k});  // (N, k, 1)
  const Tensor weights = p / sum(p, 1, KeepDim::yes);
  return sum(embedding(table, routing.places, {n, k}) * weights, 1);  // (N, D)
}

// Rows of every expert padded with zeros to its capacity: equal parts for all devices.
struct ExpertBuffer {
  Tensor buffer;                    // (E, C, D)
  std::vector<std::int32_t> slots;  // of each row its place in (E C, D)

  // The rows of such a buffer, in their order: (sum of counts, D).
  Tensor rows_of(const Tensor& like) const {
    return embedding(reshape(like, {like.dim(0) * like.dim(1), like.dim(2)}), slots,
                     {slots.size()});
  }
};

inline ExpertBuffer pad_to_capacity(const ExpertRows& in) {
  ExpertBuffer out;
  const auto rows = static_cast<std::int32_t>(in.rows.dim(0));
  std::vector<std::int32_t> row_of;
  for (const std::int64_t count : in.counts) {
    for (std::int64_t i = 0; i < in.capacity; ++i) {
      if (i < count) {
        out.slots.push_back(static_cast<std::int32_t>(row_of.size()));
      }
      row_of.push_back(i < count ? static_cast<std::int32_t>(out.slots.size()) - 1 : rows);
    }
  }
  const Tensor padded = concat({in.rows, zeros({1, in.rows.dim(1)})}, 0);
  out.buffer = embedding(padded, row_of, {in.counts.size(), in.capacity});
  return out;
}

// Switch's balance of a routing, E sum_e f_e P_e: f_e the share of all choices that fell on e (no
// gradient), P_e its mean probability. 1 when even, at most E. `batch_mean`, when given, makes
// both means over the devices that hold other tokens.
inline Tensor balance_loss(const Tensor& probabilities, const Routing& routing,
                           const Function<Tensor(const Tensor& x)>& batch_mean = {}) {
  const std::int64_t experts = probabilities.dim(1);
  if (static_cast<std::size_t>(experts) != routing.routed.size()) {
    detail::fail({"balance_loss: probabilities are ", probabilities.shape(), ", the routing has ",
                  routing.routed.size(), " experts; those that it was made of are right"});
  }
  Tensor shares({experts});
  for (std::int64_t e = 0; e < experts; ++e) {
    shares.data()[e] = static_cast<float>(routing.routed[static_cast<std::size_t>(e)]) /
                       static_cast<float>(routing.chosen.size());
  }
  Tensor both = concat({shares, mean(probabilities, List<int>{0})}, 0);  // (2 E): one collective
  both = batch_mean ? batch_mean(both) : both;
  const Tensor f = slice(both, 0, 0, experts).detach();
  return sum(f * slice(both, 0, experts, 2 * experts)) * static_cast<float>(experts);
}

namespace detail {

// All experts at hand: the rows of each through it, and the results one after another.
inline Tensor run_experts(const ExpertRows& in, const ExpertBody& run) {
  std::vector<Tensor> parts;
  std::int64_t first = 0;
  for (std::size_t e = 0; e < in.counts.size(); ++e) {
    const std::int64_t end = first + in.counts[e];
    if (end > first) {
      parts.push_back(run(static_cast<int>(e), slice(in.rows, 0, first, end)));
    }
    first = end;
  }
  return parts.empty() ? in.rows : concat(parts, 0);  // no rows: still joined to the graph
}

}  // namespace detail
}  // namespace tinyscale
