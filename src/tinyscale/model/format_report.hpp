#pragma once
// What storing weights in fewer bits costs and saves: bytes that a decoded token reads, how far the
// logits move, the perplexity of a text, tokens a second on this machine, each beside float32.
//   perplexity = exp(mean over tokens of -ln p(token | those before it in its window))

#include <cmath>    // exp, sqrt
#include <cstdint>  // int32_t
#include <ostream>  // operator<<
#include <string>   // string
#include <vector>   // vector

#include "tinyscale/base/function.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/compute/compressed_product.hpp"
#include "tinyscale/compute/store_matrix.hpp"
#include "tinyscale/model/generate.hpp"
#include "tinyscale/model/load.hpp"

namespace tinyscale {

namespace detail {

// Logits of windows of `context` tokens, one behind the other: what(first token, rows, logits).
inline void for_windows(const Transformer& model, const std::vector<std::int32_t>& ids,
                        const CacheOptions& pages,
                        const Function<void(std::int64_t, const Tensor&)>& what) {
  const auto all = static_cast<std::int64_t>(ids.size());
  KvPages cache(model.config, pages);
  const int sequence = cache.add();
  for (std::int64_t first = 0; first + 1 < all; first += model.config.context) {
    cache.truncate(sequence, 0);
    std::int64_t end = first + model.config.context < all ? first + model.config.context : all;
    for (std::int64_t at = first; at < end; at += 256) {
      const std::int64_t to = at + 256 < end ? at + 256 : end;
      what(at, decode(model, cache, {{sequence, {ids.begin() + at, ids.begin() + to}, true}}));
    }
  }
}

inline void check_text_ids(const char* who, const Transformer& model,
                           const std::vector<std::int32_t>& ids) {
  if (ids.size() < 2) {
    fail({who, ": ", ids.size(), " tokens; at least 2 are right, each but the first is predicted"});
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= model.config.vocabulary) {
      fail({who, ": id ", ids[i], " at position ", i, " is outside the ", model.config.vocabulary,
            " tokens of ", model.config.name});
    }
  }
}

}  // namespace detail

// Mean -ln p of each token of a text after those before it, in windows of the model's context; the
// first token of a window is not predicted. The perplexity is exp of it.
inline double mean_loss(const Transformer& model, const std::vector<std::int32_t>& ids,
                        const CacheOptions& pages = {}) {
  detail::check_text_ids("mean_loss", model, ids);
  double sum = 0, count = 0;
  detail::for_windows(model, ids, pages, [&](std::int64_t first, const Tensor& logits) {
    for (std::int64_t row = 0; row < logits.dim(0); ++row) {
      const float* const x = logits.data() + row * logits.dim(1);
      const std::int64_t next = first + row + 1;
      if (next < static_cast<std::int64_t>(ids.size()) && next % model.config.context != 0) {
        const double loss = detail::log_sum_exp(x, logits.dim(1)) -
                            static_cast<double>(x[ids[static_cast<std::size_t>(next)]]);
        if (!detail::is_finite(loss)) {
          detail::fail({"mean_loss: token ", next, " has the loss ", loss,
                        "; weights that give finite logits are right"});
        }
        sum += loss;
        ++count;
      }
    }
  });
  if (!(count > 0)) {
    detail::fail({"mean_loss: ", ids.size(), " tokens in a context of ", model.config.context,
                  " predict nothing; at least 2 of each are right"});
  }
  return sum / count;
}

// exp of the mean loss in nats: 1 is certainty, the vocabulary a blind guess.
inline double perplexity(const Transformer& model, const std::vector<std::int32_t>& ids,
                         const CacheOptions& pages = {}) {
  return std::exp(mean_loss(model, ids, pages));
}

// A model whose matrices are kept otherwise: bf16, int8, int4, or f32 that does not learn. It only
// runs, and stays as it is when the other learns on.
inline Transformer with_weights(const Transformer& model, const LoadOptions& options) {
  if (options.weights == Weights::as_stored) {
    detail::fail(
        {"with_weights: weights f32, bf16, int8 or int4 are right; load(path, options) keeps "
         "what a file has"});
  }
  Transformer out = Transformer::without_numbers(model.config);
  out.tokenizer = model.tokenizer;
  out.activations = options.activations;
  StoreAs how;
  how.group = options.group;
  how.format = options.weights == Weights::f32 ? BlockFormat::f32 : BlockFormat::bf16;
  how.packed_bits = options.weights == Weights::int8 ? 8 : options.weights == Weights::int4 ? 4 : 0;
  for (std::size_t i = 0; i < model.parameters.size(); ++i) {
    const Parameter& from = model.parameters[i];
    if (!from.value.defined()) {
      detail::fail({"with_weights: ", from.name, " of ", model.config.name, " is ",
                    from.stored ? from.stored->kind() : "not there", "; f32 is right"});
    }
    if (from.shape.size() != 2 || detail::ModelLoader::stays_f32(from.name)) {
      out.parameters[i].value = parameter(from.value);
    } else {
      const Tensor numbers = contiguous(from.value.detach());
      const float* const w = numbers.data();
      const std::int64_t rows = from.shape[0], cols = from.shape[1];
      const kernels::CompressedF32 compressed = options.weights == Weights::f32
                                                    ? kernels::compress_f32(rows, cols, w)
                                                    : kernels::CompressedF32();
      out.parameters[i].stored = Shared<StoredMatrix>(new StoredMatrix(
          compressed.rows > 0
              ? kernels::stored_compressed(compressed)
              : detail::store_named("with_weights: ", from.name, rows, cols, w, how)));
    }
  }
  return out;
}

// One way to keep weights, activations and the cache.
struct FormatChoice {
  std::string name;  // "int8, groups of 32"
  LoadOptions options;
  CacheOptions pages;
};

struct FormatRow {
  std::string name;
  double weight_bytes = 0;       // that a decoded token reads
  double cache_bytes = 0;        // of a token in the cache, all layers
  double loss = 0;               // mean -ln p
  double logit_error = 0;        // root mean square distance to float32's logits
  double largest_error = 0;      // the largest
  double same_top = 0;           // share of tokens whose most probable next token is float32's
  double tokens_per_second = 0;  // measured: one sequence, decode
};

struct FormatReport {
  std::string model;
  std::int64_t tokens = 0;
  List<FormatRow> rows;  // the first is float32

  Table table() const {
    Table t;
    t.title = detail::cat({model, ": formats of weights, on ", tokens, " tokens"});
    t.columns = {"weights",     "bytes a token", "cache a token", "perplexity",
                 "logit error", "largest",       "same top-1",    "tokens/s measured"};
    for (const FormatRow& row : rows) {
      t.add({row.name, format_bytes(row.weight_bytes), format_bytes(row.cache_bytes),
             format_fixed(std::exp(row.loss), 4), format_fixed(row.logit_error, 4),
             format_fixed(row.largest_error, 3), format_percent(row.same_top),
             format_fixed(row.tokens_per_second, 1)});
    }
    return t;
  }
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }
};

inline std::ostream& operator<<(std::ostream& out, const FormatReport& report) {
  return out << report.table().text();
}

namespace detail {

// Adds up how far `logits` are from `exact`.
inline void compare_logits(const Tensor& logits, const Tensor& exact, FormatRow& row) {
  const std::int64_t n = logits.dim(1);
  for (std::int64_t i = 0; i < logits.count(); ++i) {
    const double d =
        std::fabs(static_cast<double>(logits.data()[i]) - static_cast<double>(exact.data()[i]));
    row.logit_error += d * d;
    row.largest_error = d > row.largest_error ? d : row.largest_error;
  }
  for (std::int64_t t = 0; t < logits.dim(0); ++t) {
    const float* const a = logits.data() + t * n;
    const float* const b = exact.data() + t * n;
    row.same_top += std::max_element(a, a + n) - a == std::max_element(b, b + n) - b ? 1 : 0;
  }
}

inline FormatRow format_row(const Transformer& model, const FormatChoice& choice,
                            const std::vector<std::int32_t>& ids, const List<Tensor>& exact,
                            std::int64_t generated) {
  FormatRow row;
  row.name = choice.name;
  row.loss = mean_loss(model, ids, choice.pages);
  std::size_t piece = 0;
  double rows = 0, numbers = 0;
  for_windows(model, ids, choice.pages, [&](std::int64_t, const Tensor& logits) {
    compare_logits(logits, exact[piece++], row);
    rows += static_cast<double>(logits.dim(0));
    numbers += static_cast<double>(logits.count());
  });
  row.logit_error = std::sqrt(row.logit_error / numbers);
  row.same_top /= rows;
  GenerateOptions options;
  options.temperature = 0;
  options.pages = choice.pages;
  const Generation made = generate_batch(model, {{ids[0]}}, generated, options);
  const StepTotals& one = made.decode.steps > 0 ? made.decode : made.prefill;  // a token a step
  const auto steps = static_cast<double>(one.steps);
  row.weight_bytes = steps > 0 ? one.all.weight_bytes / steps : 0;
  row.tokens_per_second = steps > 0 ? steps / one.all.seconds : 0;
  row.cache_bytes = static_cast<double>(KvPages(model.config, choice.pages).token_bytes());
  return row;
}

}  // namespace detail

// float32 and each choice on the same text.
inline FormatReport compare_formats(const Transformer& model, const std::vector<std::int32_t>& ids,
                                    const List<FormatChoice>& choices,
                                    std::int64_t generated = 64) {
  detail::check_text_ids("compare_formats", model, ids);
  FormatReport report;
  report.model = model.config.name;
  report.tokens = static_cast<std::int64_t>(ids.size());
  List<Tensor> exact;
  detail::for_windows(model, ids, CacheOptions(),
                      [&](std::int64_t, const Tensor& logits) { exact.push_back(logits); });
  report.rows.push_back(detail::format_row(model, {"f32", {}, {}}, ids, exact, generated));
  for (const FormatChoice& choice : choices) {
    const bool weights = choice.options.weights != Weights::f32;  // else the cache alone differs
    const Transformer other = weights ? with_weights(model, choice.options) : model;
    report.rows.push_back(detail::format_row(other, choice, ids, exact, generated));
  }
  return report;
}

}  // namespace tinyscale
