#pragma once
// Rounding when devices put a number together: the error of an all_reduce and of merged attention
// against float64, by the order of the sums, their format and the number of devices.
//   a sum through k roundings of unit u: |error| <= ((1 + u)^k - 1) sum |x|  (Higham, 2002, ch. 4)
// u is 2^-24 in f32, 2^-8 in bf16; k is n - 1 around a ring, log2 n by halving.

#include <algorithm>  // max
#include <cmath>      // exp, log, pow
#include <cstdint>    // int64_t
#include <ostream>    // operator<<
#include <string>     // string
#include <vector>     // vector

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/hardware/presets.hpp"
#include "tinyscale/mesh/make_schedule.hpp"
#include "tinyscale/mesh/mesh.hpp"
#include "tinyscale/tensor/create.hpp"

namespace tinyscale {

// What is rounded to bf16: nothing, what is sent, and every sum as well.
enum class SumFormat { f32, bf16_sent, bf16 };

inline const char* name_of(SumFormat format) {
  static const char* const names[] = {"f32", "bf16 sent, f32 sums", "bf16 sums"};
  return detail::name_in("SumFormat", names, format);
}

struct NumericsRow {
  std::string way;  // in which order
  SumFormat format = SumFormat::f32;
  int parts = 1;       // devices, blocks of keys
  double typical = 0;  // measured, root mean square over the elements
  double error = 0;    // the worst of them
  double bound = 0;    // by the formula

  void add(double deviation) {
    typical += deviation * deviation;
    error = std::fmax(error, std::fabs(deviation));
  }
};

struct NumericsReport {
  std::string title;
  List<NumericsRow> rows;

  const NumericsRow& row(const std::string& way, SumFormat format, int parts) const {
    for (const NumericsRow& r : rows) {
      if (r.way == way && r.format == format && r.parts == parts) {
        return r;
      }
    }
    detail::fail({"NumericsReport: no row ", way, ", ", name_of(format), ", ", parts,
                  "; ask for one that was measured"});
  }
  Table table() const {
    Table out;
    out.title = title;
    out.columns = {"way", "format", "parts", "typical", "worst", "bound"};
    for (const NumericsRow& r : rows) {
      out.add({r.way, name_of(r.format), detail::cat({r.parts}),
               detail::number_cell('e', 2, r.typical), detail::number_cell('e', 2, r.error),
               detail::printed('e', 2, r.bound)});
    }
    return out;
  }
  operator Table() const { return table(); }
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }
};

inline std::ostream& operator<<(std::ostream& out, const NumericsReport& report) {
  return out << report.table();
}

namespace detail {

constexpr double unit_f32 = 1.0 / (1 << 24);
constexpr double unit_bf16 = 1.0 / (1 << 8);

inline double rounding_bound(int f32, int bf16) {
  return std::pow(1 + unit_f32, f32) * std::pow(1 + unit_bf16, bf16) - 1;
}

// One all_reduce by its schedule on the host, and how often a number was rounded on the way.
struct WalkedSum {
  List<std::vector<float>> held;                 // by device
  List<std::vector<int>> f32_steps, bf16_steps;  // by device and chunk

  double bound(int device) const {
    double worst = 0;
    const auto d = static_cast<std::size_t>(device);
    for (std::size_t c = 0; c < f32_steps[d].size(); ++c) {
      worst = std::max(worst, rounding_bound(f32_steps[d][c], bf16_steps[d][c]));
    }
    return worst;
  }
};

inline void round_all(std::vector<float>& x) {
  for (float& value : x) {
    value = round_to(value, DType::bf16);
  }
}

// What `t` brings of chunk c, taken before the step and applied after it.
struct WalkedChunk {
  Transfer t;
  std::int64_t begin = 0;
  std::size_t chunk = 0;
  std::vector<float> numbers;
  int f32 = 0, bf16 = 0;
};

inline void apply_chunk(WalkedSum& sum, const WalkedChunk& part, SumFormat format) {
  const auto to = static_cast<std::size_t>(part.t.to);
  const bool adds = part.t.action == Action::reduce;
  const bool rounds = adds && format == SumFormat::bf16;
  float* const own = sum.held[to].data() + part.begin;
  for (std::size_t i = 0; i < part.numbers.size(); ++i) {
    const float value = adds ? own[i] + part.numbers[i] : part.numbers[i];
    own[i] = rounds ? round_to(value, DType::bf16) : value;
  }
  int& f32 = sum.f32_steps[to][part.chunk];
  int& bf16 = sum.bf16_steps[to][part.chunk];
  f32 = adds ? std::max(f32, part.f32) + 1 : part.f32;
  bf16 = adds ? std::max(bf16, part.bf16) + (rounds ? 1 : 0) : part.bf16;
}

inline WalkedSum walk_all_reduce(const CollectiveSpec& spec, List<std::vector<float>> inputs,
                                 SumFormat format) {
  const Shared<const PreparedSchedule> plan = prepare(make_schedule(spec));
  const ChunkCut cut = chunk_cut(spec, plan->data.chunks);
  const bool sends_bf16 = format != SumFormat::f32;
  WalkedSum sum;
  for (std::vector<float>& input : inputs) {
    if (format == SumFormat::bf16) {
      round_all(input);
    }
    const auto chunks = static_cast<std::size_t>(plan->data.chunks);
    sum.f32_steps.push_back(std::vector<int>(chunks, 0));
    sum.bf16_steps.push_back(std::vector<int>(chunks, format == SumFormat::bf16 ? 1 : 0));
  }
  sum.held = inputs;
  for (const auto& step : plan->steps) {
    List<WalkedChunk> under_way;
    const std::size_t first = plan->messages[step.first].first;
    for (std::size_t i = first; i < plan->messages[step.last - 1].last; ++i) {
      const Transfer& t = plan->data.transfers[i];
      const auto from = static_cast<std::size_t>(t.from);
      for (int c = t.chunk; c < t.chunk + t.chunks; ++c) {
        WalkedChunk part{t, cut.begin(c), static_cast<std::size_t>(c), {}, 0, 0};
        const float* const own = sum.held[from].data();
        part.numbers.assign(own + part.begin, own + cut.begin(c + 1));
        part.f32 = sum.f32_steps[from][part.chunk];
        part.bf16 = sum.bf16_steps[from][part.chunk] + (sends_bf16 ? 1 : 0);
        if (sends_bf16) {
          round_all(part.numbers);
        }
        under_way.push_back(part);
      }
    }
    for (const WalkedChunk& part : under_way) {
      apply_chunk(sum, part, format);
    }
  }
  for (std::size_t d = 0; d < sum.held.size() && sends_bf16; ++d) {
    round_all(sum.held[d]);  // so that all devices have the same
    for (int& count : sum.bf16_steps[d]) {
      ++count;
    }
  }
  return sum;
}

}  // namespace detail

struct ReductionErrorOptions {
  std::vector<int> devices = {2, 4, 8, 16};
  List<Algorithm> algorithms = {Algorithm::ring, Algorithm::ring_both_ways,
                                Algorithm::halving_doubling, Algorithm::tree, Algorithm::direct};
  std::int64_t elements = 1024;
  std::uint64_t seed = 1;
};

// Error of an all_reduce of numbers in [0, 1) by algorithm, format and device count: the worst
// element's over the sum of its |x|. f32 and bf16 sent run on a mesh; sums in bf16, which no
// collective here makes, walk the same schedule.
inline NumericsReport reduction_error(
    const ReductionErrorOptions& options = ReductionErrorOptions()) {
  if (options.elements < 1) {
    detail::fail({"reduction_error: ", options.elements, " elements; at least 1 is right"});
  }
  NumericsReport report;
  report.title = "error of an all_reduce, of the sum of |x|";
  for (const Algorithm algorithm : options.algorithms) {
    for (const SumFormat format : {SumFormat::f32, SumFormat::bf16_sent, SumFormat::bf16}) {
      for (const int n : options.devices) {
        List<std::vector<float>> inputs;
        std::vector<double> exact(static_cast<std::size_t>(options.elements), 0.0);
        for (int d = 0; d < n; ++d) {
          const auto seed = options.seed + static_cast<std::uint64_t>(d);
          inputs.push_back(uniform({options.elements}, seed).values());
          for (std::size_t i = 0; i < exact.size(); ++i) {
            exact[i] += static_cast<double>(inputs.back()[i]);
          }
        }
        const Mesh mesh(machine("tpu-v5e", {n}), {{"x", n}});
        const MeshRun run = mesh.run([&](Device& device) {
          CollectiveOptions how;
          how.algorithm = algorithm;
          how.format = format == SumFormat::f32 ? DType::f32 : DType::bf16;
          const auto own = static_cast<std::size_t>(device.rank());
          const Tensor x = tensor({options.elements}, inputs[own]);
          device.keep("sum", device.all_reduce(x, "x", Reduce::sum, how));
        });
        const CollectiveSpec& spec = run.log().calls[0].shape->spec;
        const detail::WalkedSum walked = detail::walk_all_reduce(spec, inputs, format);
        const std::vector<float> sum =
            format == SumFormat::bf16 ? walked.held[0] : run.kept(0, "sum").values();
        NumericsRow row{name_of(algorithm), format, n, 0, 0, walked.bound(0)};
        for (std::size_t i = 0; i < exact.size(); ++i) {
          row.add(exact[i] > 0 ? (static_cast<double>(sum[i]) - exact[i]) / exact[i] : 0);
        }
        row.typical = std::sqrt(row.typical / static_cast<double>(options.elements));
        report.rows.push_back(row);
      }
    }
  }
  return report;
}

struct MergeErrorOptions {
  std::vector<int> blocks = {1, 2, 4, 8, 16, 32};
  std::int64_t queries = 8, keys = 256, head_size = 32;
  std::uint64_t seed = 1;
};

namespace detail {

// Attention of one query over keys first to last - 1, in f64: its output and log-sum-exp.
inline double attend_exactly(const Tensor& q, const Tensor& k, const Tensor& v, std::int64_t query,
                             std::int64_t first, std::int64_t last, std::vector<double>& out) {
  const std::int64_t width = q.dim(1);
  std::vector<double> scores;
  double most = -1e300;
  for (std::int64_t j = first; j < last; ++j) {
    double score = 0;
    for (std::int64_t i = 0; i < width; ++i) {
      score += static_cast<double>(q.data()[query * width + i]) *
               static_cast<double>(k.data()[j * width + i]);
    }
    scores.push_back(score / std::sqrt(static_cast<double>(width)));
    most = std::max(most, scores.back());
  }
  double total = 0;
  out.assign(static_cast<std::size_t>(width), 0.0);
  for (std::int64_t j = first; j < last; ++j) {
    const double weight = std::exp(scores[static_cast<std::size_t>(j - first)] - most);
    total += weight;
    for (std::int64_t i = 0; i < width; ++i) {
      out[static_cast<std::size_t>(i)] += weight * static_cast<double>(v.data()[j * width + i]);
    }
  }
  for (double& value : out) {
    value /= total;
  }
  return most + std::log(total);
}

// What has been merged so far: sum of w_i o_i and of w_i, w_i = exp(lse_i - most).
struct MergedAttention {
  std::vector<float> sum;
  float weight = 0, most = 0;

  void merge(const std::vector<double>& output, double log_sum_exp, SumFormat format) {
    const auto lse = static_cast<float>(log_sum_exp);
    const bool first = sum.empty();
    sum.resize(output.size(), 0.0f);
    const float top = first ? lse : std::max(most, lse);
    const float old = first ? 0.0f : static_cast<float>(std::exp(double(most) - double(top)));
    const auto own = static_cast<float>(std::exp(double(lse) - double(top)));
    for (std::size_t i = 0; i < sum.size(); ++i) {
      const auto part = static_cast<float>(output[i]);
      const float sent = format == SumFormat::f32 ? part : round_to(part, DType::bf16);
      const float next = sum[i] * old + sent * own;
      sum[i] = format == SumFormat::bf16 ? round_to(next, DType::bf16) : next;
    }
    weight = weight * old + own;
    most = top;
  }
};

}  // namespace detail

// Error of attention over keys in blocks, merged by their log-sum-exp one after another as ring
// attention does: the worst output's over the largest |v|. Blocks are exact until they are sent.
inline NumericsReport merge_error(const MergeErrorOptions& options = MergeErrorOptions()) {
  if (options.queries < 1 || options.keys < 1 || options.head_size < 1) {
    detail::fail({"merge_error: ", options.queries, " queries, ", options.keys, " keys, head_size ",
                  options.head_size, "; at least 1 of each is right"});
  }
  NumericsReport report;
  report.title = "error of attention merged from blocks of keys, of the largest |v|";
  const Tensor q = uniform({options.queries, options.head_size}, options.seed, -3.0f, 3.0f);
  const Tensor k = uniform({options.keys, options.head_size}, options.seed + 1, -3.0f, 3.0f);
  const Tensor v = uniform({options.keys, options.head_size}, options.seed + 2, -1.0f, 1.0f);
  for (const SumFormat format : {SumFormat::f32, SumFormat::bf16_sent, SumFormat::bf16}) {
    for (const int n : options.blocks) {
      if (n < 1 || options.keys % n != 0) {
        detail::fail({"merge_error: ", options.keys, " keys in ", n,
                      " blocks; a number that divides them is right"});
      }
      const std::int64_t size = options.keys / n;
      NumericsRow row{"log-sum-exp", format, n, 0, 0, 0};
      double spread = 0;  // |lse|, and from one to another
      for (std::int64_t query = 0; query < options.queries; ++query) {
        detail::MergedAttention merged;
        std::vector<double> out;
        double low = 1e300, high = -1e300;
        for (int b = 0; b < n; ++b) {
          const double lse = detail::attend_exactly(q, k, v, query, b * size, (b + 1) * size, out);
          low = std::min(low, lse);
          high = std::max(high, lse);
          merged.merge(out, lse, format);
        }
        spread = std::max(spread, high - low + std::max(std::fabs(low), std::fabs(high)));
        detail::attend_exactly(q, k, v, query, 0, options.keys, out);
        for (std::size_t i = 0; i < out.size(); ++i) {
          row.add(double(merged.sum[i]) / double(merged.weight) - out[i]);
        }
      }
      row.typical = std::sqrt(row.typical / static_cast<double>(q.count()));
      // Each merge rounds the sum and its weight twice each; an error of a log-sum-exp is one of a
      // weight, which moves the mean by twice as much; bf16 once when sent, once for each sum.
      row.bound = detail::unit_f32 * (4 * n + 2 * spread + 6) +
                  detail::unit_bf16 * (format == SumFormat::f32         ? 0
                                       : format == SumFormat::bf16_sent ? 1
                                                                        : n + 1);
      report.rows.push_back(row);
    }
  }
  return report;
}

}  // namespace tinyscale
