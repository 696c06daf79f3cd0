#pragma once
// Which expert each token visits: the top_k most probable of the router, ties to the lower number
// (mixture of experts, arXiv 2101.03961; weights of the chosen ones sum to 1, arXiv 2401.04088).

#include <cstdint>  // int32_t
#include <vector>   // vector

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/tensor/tensor.hpp"

namespace tinyscale {

struct Routing {
  List<std::vector<std::int32_t>> rows;  // of each expert: the tokens it gets, ascending
  std::vector<std::int32_t> chosen;      // [N, k] places in the flat probabilities [N, E]
  std::vector<std::int32_t> places;      // [N, k] rows in the experts' outputs, joined in order
};

// Routes N tokens by their probabilities [N, E].
inline Routing route(const Tensor& probabilities, int top_k) {
  const std::int64_t tokens = probabilities.dim(0);
  const std::int64_t experts = probabilities.dim(1);
  if (top_k < 1 || top_k > experts) {
    detail::fail(
        {"route: top_k is ", top_k, " of ", experts, " experts; 1 to ", experts, " is right"});
  }
  Routing routing;
  routing.rows.resize(static_cast<std::size_t>(experts));
  std::vector<std::int32_t> order(static_cast<std::size_t>(experts));
  for (std::int64_t n = 0; n < tokens; ++n) {
    const float* p = probabilities.data() + n * experts;
    for (std::size_t i = 0; i < order.size(); ++i) {
      order[i] = static_cast<std::int32_t>(i);
    }
    for (int j = 0; j < top_k; ++j) {
      std::size_t best = static_cast<std::size_t>(j);
      for (std::size_t i = best + 1; i < order.size(); ++i) {
        const std::int32_t a = order[i];
        const std::int32_t b = order[best];
        best = (p[a] != p[b] ? p[a] > p[b] : a < b) ? i : best;
      }
      const std::int32_t e = order[best];
      order[best] = order[static_cast<std::size_t>(j)];
      order[static_cast<std::size_t>(j)] = e;
      auto& rows = routing.rows[static_cast<std::size_t>(e)];
      routing.chosen.push_back(static_cast<std::int32_t>(n * experts + e));
      routing.places.push_back(static_cast<std::int32_t>(rows.size()));  // within the expert
      rows.push_back(static_cast<std::int32_t>(n));
    }
  }
  std::vector<std::int32_t> first(static_cast<std::size_t>(experts), 0);
  for (std::size_t e = 1; e < first.size(); ++e) {
    first[e] = first[e - 1] + static_cast<std::int32_t>(routing.rows[e - 1].size());
  }
  for (std::size_t i = 0; i < routing.places.size(); ++i) {
    routing.places[i] += first[static_cast<std::size_t>(routing.chosen[i] % experts)];
  }
  return routing;
}

}  // namespace tinyscale
