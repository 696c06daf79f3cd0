// Training by any layout is training on one device: losses, parameters, and a report whose counted
// rows are its formulas.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "error_of.hpp"
#include "long_tests.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

#if !defined(TINYSCALE_NO_THREADS)

namespace {

using ts::ContextParallel;
using ts::Layout;
using ts::PipelineSchedule;
using ts::PipelineWork;
using ts::Recompute;
using ts::Zero;

const ContextParallel ring = ContextParallel::ring, ulysses = ContextParallel::ulysses,
                      gathered = ContextParallel::gathered;
const Recompute selective = Recompute::selective, full = Recompute::full;

// The project's own source, or where it is not beside this file, a text made of a few words.
const ts::Text& source_text() {
  static const ts::Text text = [] {
    const std::string here = __FILE__;
    const std::string root = here.substr(0, here.rfind("tests/")) + "src/tinyscale/";
    std::string data;
    try {
      for (const char* const part : {"parallel/layout.hpp", "parallel/layout_axes.hpp",
                                     "model/transformer.hpp", "base/list.hpp"}) {
        data += ts::detail::read_file(root + part, "layout_test");
      }
    } catch (const ts::Error&) {
      for (int i = 0; i < 400; ++i) {
        data += ts::detail::cat({"line ", i * i, ": the quick brown fox jumps over dog ", i, "\n"});
      }
    }
    ts::Text made = ts::make_text("source", data);
    made.split = static_cast<std::int64_t>(made.tokens.size());  // nothing to validate
    return made;
  }();
  return text;
}

enum class Kind { gpt2, llama, mixture };

// GPT-2: biases, learned positions, tied. Llama: RoPE, grouped queries, gated, untied. Mixture:
// two of four experts and a shared one, untied, a balance loss.
ts::ModelConfig small_model(Kind kind) {
  ts::ModelConfig c;
  c.name = kind == Kind::gpt2    ? "small GPT-2"
           : kind == Kind::llama ? "small Llama"
                                 : "small mixture";
  c.layers = 4;
  c.width = 16;
  c.heads = c.kv_heads = 4;
  c.head_size = 4;
  c.hidden = 24;
  c.context = 16;
  c.vocabulary = source_text().tokenizer.vocabulary() / 2 * 2 + 1;  // odd
  if (kind == Kind::gpt2) {
    c.bias = true;
    return c;
  }
  c.norm = ts::Norm::rms;
  c.position = ts::Position::rotary;
  c.activation = ts::Activation::swiglu;
  c.tied = false;
  c.kv_heads = 2;
  if (kind == Kind::mixture) {
    c.experts = 4;
    c.top_k = 2;
    c.expert_hidden = 12;
    c.shared_experts = 1;
  }
  return c;
}

struct Row {
  ts::ModelConfig model;
  ts::TrainOptions options;

  Row() = default;
  Row(const ts::ModelConfig& of_model, std::int64_t data, std::int64_t tensor,
      std::int64_t pipeline, std::int64_t context, std::int64_t microbatches)
      : model(of_model) {
    options.out = nullptr;
    options.steps = 20;
    options.warmup = 5;
    options.learning_rate = 3e-3;
    options.batch = 8;
    options.eval_every = 0;
    options.check_steps = 0;
    options.layout.data = data;
    options.layout.tensor = tensor;
    options.layout.pipeline = pipeline;
    options.layout.context = context;
    options.layout.microbatches = microbatches;
    options.experts.balance_loss = model.experts > 0 ? 0.01 : 0;
    if (options.layout.devices() > 1) {
      options.machine = ts::machine("tpu-v5e", {options.layout.devices()});
    }
  }
  Row(Kind kind, std::int64_t data, std::int64_t tensor, std::int64_t pipeline,
      std::int64_t context, std::int64_t microbatches)
      : Row(small_model(kind), data, tensor, pipeline, context, microbatches) {}
  Row zero(Zero zero, std::int64_t devices = 0) const {
    Row row = *this;
    row.options.layout.zero = zero;
    row.options.layout.zero_devices = devices;
    return row;
  }
  Row sequence() const {
    Row row = *this;
    row.options.layout.sequence_parallel = true;
    return row;
  }
  Row again(Recompute recompute) const {
    Row row = *this;
    row.options.layout.recompute = recompute;
    return row;
  }
  Row by(ContextParallel kind) const {
    Row row = *this;
    row.options.layout.context_parallel = kind;
    return row;
  }
  Row by(const PipelineSchedule& schedule) const {
    Row row = *this;
    row.options.layout.schedule = schedule;
    row.options.machine = ts::machine("tpu-v5e", {row.options.layout.devices()});
    return row;
  }
  Row order(const std::vector<std::string>& names) const {
    Row row = *this;
    row.options.layout.order = names;
    return row;
  }
  Row experts(std::int64_t devices, double capacity_factor = 0) const {
    Row row = *this;
    row.options.layout.expert = devices;
    row.options.experts.capacity_factor = capacity_factor;
    row.set_groups();
    return row;
  }
  Row whole() const {
    Row row = sequence();
    row.options.layout.whole_experts = true;
    row.set_groups();
    return row;
  }
  void set_groups() {
    options.experts.groups =
        options.experts.capacity_factor > 0 ? options.layout.routing_devices() : 1;
  }
  Row dropout(double share) const {
    Row row = *this;
    row.options.dropout = share;
    return row;
  }
  Row on(const std::string& name, const ts::Shape& dims) const {
    Row row = *this;
    row.options.machine = ts::machine(name, dims);
    return row;
  }

  std::string text() const {
    std::string order;
    for (const std::string& name : options.layout.order) {
      order += " " + name;
    }
    return ts::detail::cat({model.name,
                            " (",
                            model.layers,
                            " layers, width ",
                            model.width,
                            ", ",
                            model.heads,
                            "/",
                            model.kv_heads,
                            " heads, hidden ",
                            model.hidden,
                            ", ",
                            model.experts,
                            " experts of ",
                            model.expert_hidden,
                            ", vocabulary ",
                            model.vocabulary,
                            ", context ",
                            model.context,
                            "), batch ",
                            options.batch,
                            ", dropout ",
                            options.dropout,
                            ", capacity ",
                            options.experts.capacity_factor,
                            ", ",
                            options.machine.name,
                            ": ",
                            options.layout.text(),
                            ", order",
                            order});
  }
  // A mixture's balance loss is that of a microbatch, its capacity that of a group of tokens.
  ts::TrainOptions one_device() const {
    ts::TrainOptions one = options;
    one.machine = ts::Machine();
    one.layout = Layout();
    one.layout.microbatches = model.experts > 0 ? options.layout.microbatches : 1;
    const Layout& l = options.layout;
    if (l.whole_experts && options.experts.groups > 1) {
      one.experts.group_of =
          ts::token_groups(l.context_parallel, l.data, l.context, options.batch / l.microbatches,
                           model.context, 1, l.tensor);
    }
    return one;
  }
};

struct Trained {
  std::string key;
  std::uint64_t seed = 1;  // of the batches
  ts::List<ts::Parameter> parameters;
  std::vector<double> losses, grad_norms;
};

// `moved`: the weights begin a rounding error away, another one for each number.
Trained train_alone(const Row& row, std::uint64_t seed, std::uint64_t moved = 0) {
  ts::Transformer model(row.model, 1);
  for (std::size_t p = 0; p < model.parameters.size() && moved > 0; ++p) {
    ts::Tensor value = model.parameters[p].value.detach();
    for (std::int64_t i = 0; i < value.count(); ++i) {
      const auto draw = static_cast<std::uint64_t>(i) << 8 | p;
      value.data()[i] *= 1 + (ts::uniform01(moved, draw) - 0.5f) * 0x1p-20f;
    }
  }
  Trained trained;
  ts::TrainOptions options = row.one_device();
  options.seed = trained.seed = seed;
  const ts::TrainReport report = ts::train(model, source_text(), options);
  trained.losses = report.losses;
  trained.grad_norms = report.grad_norms;
  trained.parameters = model.parameters;
  return trained;
}

double relative_difference(const ts::Tensor& a, const ts::Tensor& b) {
  double difference = 0, norm = 0;
  for (std::int64_t i = 0; i < a.count(); ++i) {
    const double x = static_cast<double>(a.data()[i]), y = static_cast<double>(b.data()[i]);
    difference += (x - y) * (x - y);
    norm += y * y;
  }
  return std::sqrt(difference / std::fmax(norm, 1e-30));
}

bool are_close(const Trained& a, const Trained& b) {
  bool close = true;
  for (std::size_t i = 0; i < a.losses.size(); ++i) {
    close = close && std::fabs(a.losses[i] / b.losses[i] - 1) <= 1e-5 &&
            std::fabs(a.grad_norms[i] / b.grad_norms[i] - 1) <= 1e-4;
  }
  for (std::size_t i = 0; i < a.parameters.size(); ++i) {
    close = close && relative_difference(a.parameters[i].value, b.parameters[i].value) <= 1e-4;
  }
  return close;
}

// Where two experts are all but equal in a router's eyes, rounding decides who gets the token, and
// one device is not alike on two processors. A mixture trains on the first batches for which
// rounding decides nothing on this one.
Trained train_alone(const Row& row) {
  constexpr std::uint64_t most = 10;
  std::uint64_t seed = row.options.seed;
  Trained trained = train_alone(row, seed);
  const auto decided = [&] {
    return row.model.experts == 0 || (are_close(train_alone(row, seed, 1), trained) &&
                                      are_close(train_alone(row, seed, 2), trained));
  };
  while (!decided() && seed < row.options.seed + most) {
    trained = train_alone(row, ++seed);
  }
  return trained;
}

// Rows with equal models share one device's run.
const Trained& trained_alone(const Row& row) {
  static ts::List<Trained> known;
  const ts::TrainOptions options = row.one_device();
  const std::string key =
      ts::detail::cat({row.model.name, ", ", options.layout.microbatches, " microbatches, dropout ",
                       options.dropout, ", capacity ", options.experts.capacity_factor, " in ",
                       options.experts.groups});
  for (const Trained& trained : known) {
    if (trained.key == key) {
      return trained;
    }
  }
  known.push_back(train_alone(row));
  known.back().key = key;
  return known.back();
}

// A bias of all keys adds the same number to all scores of a query, which softmax does not see: its
// true gradient is zero, and AdamW makes steps of the rounding errors. (RoPE turns it by position.)
bool has_no_gradient(const ts::ModelConfig& c, const std::string& name) {
  return c.position == ts::Position::learned && name.find("k_proj.bias") != std::string::npos;
}

// Rows that are no formula's: those that begin with "about" are right on average.
std::string wrong_rows(const ts::Comparison& rows, double tolerance) {
  std::string wrong;
  for (const ts::ReportRow& row : rows.rows) {
    if (row.name.find("about") != 0 && !row.equal(tolerance)) {
      wrong += ts::detail::cat({"\n  ", row.name, ", ", row.unit, ": formula ", row.predicted,
                                ", counted ", row.counted});
    }
  }
  return wrong;
}

// `tolerance` is of the parameters: the first steps of AdamW have the sign of a gradient, however
// small it is.
// What of a row's training is not one device's, and what of its report is not its formula.
std::string differences(const Row& row, const Trained& one, double tolerance = 1e-4) {
  ts::Transformer model(row.model, 1);
  ts::TrainOptions options = row.options;
  options.seed = one.seed;
  const ts::TrainReport report = ts::train(model, source_text(), options);
  std::string wrong;
  for (std::size_t i = 0; i < one.losses.size(); ++i) {
    const double difference = std::fabs(report.losses[i] / one.losses[i] - 1);
    if (!(difference <= 1e-5)) {
      wrong += ts::detail::cat(
          {"\n  loss ", i, " is ", report.losses[i], ", one device's ", one.losses[i]});
      break;
    }
  }
  // AdamW does not see the scale of gradients; it does move those near zero by a whole step, to
  // whichever side rounding puts them, so that later norms are less alike than the first.
  for (std::size_t i = 0; i < one.grad_norms.size(); ++i) {
    const double bound = i == 0 ? 1e-5 : std::fmax(1e-4, 0.1 * tolerance);
    if (!(std::fabs(report.grad_norms[i] / one.grad_norms[i] - 1) <= bound)) {
      wrong += ts::detail::cat({"\n  gradient norm ", i, " is ", report.grad_norms[i],
                                ", one device's ", one.grad_norms[i]});
      break;
    }
  }
  for (std::size_t i = 0; i < model.parameters.size(); ++i) {
    const std::string& name = model.parameters[i].name;
    const double difference =
        relative_difference(model.parameters[i].value, one.parameters[i].value);
    if (!(difference <= tolerance) && !has_no_gradient(row.model, name)) {
      wrong += ts::detail::cat({"\n  ", name, " differs by ", difference});
    }
  }
  if (report.last_step) {
    // Dropped tokens are not computed: with a capacity the formula is the most there can be.
    const bool drops = row.model.experts > 0 && row.options.experts.capacity_factor > 0;
    wrong += wrong_rows(report.step.sent, 0) + wrong_rows(report.step.work, drops ? 1 : 1e-12) +
             wrong_rows(report.step.memory, 1e-12);  // thirds of a byte are rounded
  }
  return wrong.empty() ? "" : row.text() + wrong;
}

// ---- Schedules that are not built in ----

// The model goes down the ranks and up again: the first rank has the first and the last stage.
PipelineSchedule v_shaped(int ranks, int microbatches) {
  PipelineSchedule schedule = ts::empty_schedule("v", ranks, microbatches, 2);
  for (int rank = 0; rank < ranks; ++rank) {
    const int up = 2 * ranks - 1 - rank;
    schedule.rank_of[static_cast<std::size_t>(up)] = rank;
    for (int j = 0; j < microbatches; ++j) {
      schedule.add(rank, PipelineWork::forward, rank, j);
    }
    for (int j = 0; j < microbatches; ++j) {
      schedule.add(rank, PipelineWork::forward, up, j);
      schedule.add(rank, PipelineWork::input_gradient, up, j);
      schedule.add(rank, PipelineWork::weight_gradient, up, j);
    }
    for (int j = 0; j < microbatches; ++j) {
      schedule.add(rank, PipelineWork::backward, rank, j);
    }
  }
  return schedule;
}

// Half of the microbatches enter at the first rank, half at the last (DualPipe, arXiv 2412.19437):
// the parameters are held twice.
PipelineSchedule both_ways(int microbatches) {
  PipelineSchedule schedule = ts::empty_schedule("both ways", 2, microbatches);
  schedule.rank_of = {0, 1, 1, 0};
  const int half = microbatches / 2;
  for (int rank = 0; rank < 2; ++rank) {
    const int enters = rank == 0 ? 0 : half, comes = half - enters;
    for (int j = 0; j < half; ++j) {
      schedule.add(rank, PipelineWork::forward, 0, enters + j);
    }
    for (int j = 0; j < half; ++j) {
      schedule.add(rank, PipelineWork::forward, 1, comes + j);
      schedule.add(rank, PipelineWork::backward, 1, comes + j);
    }
    for (int j = 0; j < half; ++j) {
      schedule.add(rank, PipelineWork::backward, 0, enters + j);
    }
  }
  return schedule;
}

const Kind gpt2 = Kind::gpt2, llama = Kind::llama, mixture = Kind::mixture;

ts::List<Row> quick_rows() {
  return {
      // data, tensor, pipeline, context, microbatches
      Row(gpt2, 1, 1, 1, 1, 4).dropout(0.1),
      Row(gpt2, 4, 1, 1, 1, 2).zero(Zero::parameters, 2),
      Row(gpt2, 2, 2, 1, 1, 2).sequence().zero(Zero::gradients),
      Row(gpt2, 1, 2, 2, 1, 2).by(ts::zero_bubble_h1(2, 2)).sequence().again(selective),
      Row(gpt2, 1, 1, 2, 1, 4).by(v_shaped(2, 4)),
      Row(llama, 1, 2, 1, 2, 1).again(full).dropout(0.1),
      Row(llama, 2, 1, 1, 2, 2).by(gathered).zero(Zero::optimizer),
      Row(llama, 1, 1, 2, 2, 2).by(ulysses).by(ts::interleaved(2, 2, 2)),
      Row(llama, 2, 1, 2, 1, 4).by(ts::gpipe(2, 4)).zero(Zero::parameters).again(full),
      Row(mixture, 4, 1, 1, 1, 1).experts(2).zero(Zero::parameters),
      Row(mixture, 2, 2, 1, 1, 2).experts(2, 1.25).sequence(),
      Row(mixture, 1, 1, 2, 2, 2).experts(2).again(selective).dropout(0.1),
      Row(mixture, 2, 2, 1, 1, 2).experts(2, 1.25).whole().zero(Zero::gradients),
  };
}

ts::List<Row> more_rows() {
  return {
      // One strategy.
      Row(gpt2, 2, 1, 1, 1, 1).dropout(0.1),
      Row(gpt2, 8, 1, 1, 1, 1).on("tpu-v4", {2, 2, 2}),
      Row(gpt2, 4, 1, 1, 1, 2).zero(Zero::optimizer),
      Row(gpt2, 4, 1, 1, 1, 2).zero(Zero::optimizer, 2),
      Row(gpt2, 4, 1, 1, 1, 2).zero(Zero::gradients).on("h100", {2, 2}),
      Row(gpt2, 4, 1, 1, 1, 2).zero(Zero::gradients, 2),
      Row(gpt2, 4, 1, 1, 1, 2).zero(Zero::parameters),
      Row(llama, 8, 1, 1, 1, 1).zero(Zero::parameters, 4).on("tpu-v5e", {4, 2}),
      Row(gpt2, 1, 2, 1, 1, 1),
      Row(gpt2, 1, 4, 1, 1, 2).dropout(0.1),
      Row(gpt2, 1, 4, 1, 1, 1).sequence().dropout(0.1),
      Row(llama, 1, 2, 1, 1, 1).sequence(),
      Row(gpt2, 1, 1, 2, 1, 4),
      Row(gpt2, 1, 1, 4, 1, 4).dropout(0.1),
      Row(gpt2, 1, 1, 2, 1, 4).by(ts::gpipe(2, 4)),
      Row(gpt2, 1, 1, 2, 1, 4).by(ts::interleaved(2, 4, 2)),
      Row(llama, 1, 1, 4, 1, 8).by(ts::zero_bubble_h1(4, 8)),
      Row(gpt2, 1, 1, 2, 1, 4).by(both_ways(4)),
      Row(gpt2, 1, 2, 2, 1, 4).by(both_ways(4)),
      Row(gpt2, 1, 1, 1, 1, 2).by(ts::interleaved(1, 2, 2)),
      Row(llama, 1, 1, 1, 1, 2).by(ts::interleaved(1, 2, 2)).again(full),
      Row(llama, 1, 1, 2, 1, 4).by(both_ways(4)).again(full),
      Row(llama, 1, 1, 1, 1, 2).again(full),
      Row(gpt2, 1, 1, 1, 1, 1).again(selective).dropout(0.1),
      Row(llama, 1, 1, 1, 2, 1),
      Row(llama, 1, 1, 1, 4, 1).dropout(0.1).on("tpu-v5e", {2, 2}),
      Row(llama, 1, 1, 1, 2, 1).by(ulysses),
      Row(gpt2, 1, 1, 1, 4, 1).by(ulysses).dropout(0.1),
      Row(llama, 1, 1, 1, 4, 1).by(gathered),
      Row(mixture, 2, 1, 1, 1, 1),
      Row(mixture, 4, 1, 1, 1, 1).experts(4, 1.25),
      // Two.
      Row(gpt2, 2, 4, 1, 1, 1).on("h100", {2, 4}).dropout(0.1),
      Row(llama, 4, 2, 1, 1, 2).zero(Zero::parameters).sequence().on("tpu-v5e", {4, 2}),
      Row(gpt2, 2, 1, 4, 1, 2).zero(Zero::optimizer),
      Row(gpt2, 2, 1, 2, 1, 4).zero(Zero::gradients).by(ts::zero_bubble_h1(2, 4)),
      Row(gpt2, 2, 1, 2, 1, 4).zero(Zero::parameters).by(v_shaped(2, 4)),
      Row(gpt2, 2, 1, 2, 1, 4).zero(Zero::optimizer).by(both_ways(4)),
      Row(llama, 2, 1, 1, 4, 1).zero(Zero::parameters, 4),
      Row(llama, 4, 1, 1, 2, 1).zero(Zero::parameters, 4).by(gathered).again(selective),
      Row(gpt2, 1, 2, 1, 2, 2).sequence().by(ulysses).again(selective),
      Row(mixture, 2, 1, 1, 2, 2).experts(4),
      Row(mixture, 4, 1, 1, 1, 1).experts(2).zero(Zero::parameters, 2),
      Row(mixture, 4, 1, 1, 1, 1).experts(4).zero(Zero::optimizer),
      Row(mixture, 2, 1, 2, 1, 2).experts(2).by(ts::zero_bubble_h1(2, 2)).zero(Zero::gradients),
      // Three.
      Row(gpt2, 2, 2, 2, 1, 2).zero(Zero::parameters).sequence().again(full),
      Row(gpt2, 2, 2, 2, 1, 2).order({"tensor", "data", "pipeline", "context"}),
      Row(llama, 2, 2, 2, 1, 4).zero(Zero::optimizer).by(ts::interleaved(2, 4, 2)).sequence(),
      Row(llama, 1, 2, 2, 2, 2).sequence().dropout(0.1).on("tpu-v4", {2, 2, 2}),
      Row(llama, 2, 2, 1, 2, 1).by(gathered).zero(Zero::gradients).again(full).sequence(),
      Row(mixture, 2, 2, 2, 1, 2).experts(2).again(full).sequence(),
      Row(mixture, 1, 2, 1, 1, 2).whole(),
      Row(mixture, 2, 2, 1, 1, 1).whole().zero(Zero::parameters),
      Row(mixture, 4, 2, 1, 1, 1).experts(2).whole().zero(Zero::optimizer, 2).dropout(0.1),
      Row(mixture, 1, 2, 2, 2, 2).experts(2).whole().again(full),
      // Four, 16 devices.
      Row(gpt2, 2, 2, 2, 2, 2).zero(Zero::parameters).sequence().by(ulysses).again(selective),
      Row(llama, 2, 2, 2, 2, 2).zero(Zero::optimizer).on("h100", {2, 8}).dropout(0.1),
      Row(mixture, 2, 2, 2, 2, 2)
          .experts(4)
          .zero(Zero::parameters, 2)
          .order({"data", "pipeline", "tensor", "context"}),
  };
}

// ---- Random layouts ----

struct Dice {
  std::uint32_t seed = 0, thrown = 0;
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(ts::philox4x32({thrown++, 0, 0, 0}, {seed, 0})[0]) % n;
  }
  bool one_in(std::int64_t n) { return below(n) == 0; }
  std::int64_t of(const std::vector<std::int64_t>& values) {
    return values[static_cast<std::size_t>(below(static_cast<std::int64_t>(values.size())))];
  }
};

PipelineSchedule random_schedule(Dice& dice, int ranks, int microbatches) {
  switch (dice.below(6)) {
    case 0: return ts::gpipe(ranks, microbatches);
    case 1:
      if (microbatches % ranks == 0) {
        return ts::interleaved(ranks, microbatches, 2);
      }
      break;
    case 2: return ts::zero_bubble_h1(ranks, microbatches);
    case 3: return v_shaped(ranks, microbatches);
    case 4:
      if (ranks == 2 && microbatches % 2 == 0) {
        return both_ways(microbatches);
      }
      break;
    default: break;
  }
  return PipelineSchedule();
}

// A model and a layout that fit each other in most cases.
Row random_row(std::uint32_t seed) {
  Dice dice;
  dice.seed = seed;
  Layout l;
  do {
    for (std::int64_t* const axis : {&l.data, &l.tensor, &l.pipeline, &l.context}) {
      *axis = dice.of({1, 1, 2, 2, 3, 4});
    }
  } while (l.devices() > (dice.one_in(8) ? 16 : 8));
  l.microbatches = dice.of({1, 2, 2, 3, 4, 6});
  l.zero = static_cast<Zero>(dice.below(4));
  l.zero_devices = l.zero != Zero::none && dice.one_in(2) ? dice.of({1, 2, 2, 3, 4}) : 0;
  l.sequence_parallel = dice.one_in(2);
  l.recompute = static_cast<Recompute>(dice.below(3));
  l.context_parallel = static_cast<ContextParallel>(dice.below(3));
  l.schedule =
      random_schedule(dice, static_cast<int>(l.pipeline), static_cast<int>(l.microbatches));
  for (std::size_t i = 4; i > 1; --i) {
    std::swap(l.order[i - 1], l.order[static_cast<std::size_t>(dice.below(std::int64_t(i)))]);
  }
  ts::ModelConfig c = small_model(static_cast<Kind>(dice.below(3)));
  c.layers = l.stages() * dice.of({1, 1, 2});
  c.width = dice.of({8, 10, 12});
  c.kv_heads = l.tensor * (dice.one_in(2) ? l.context : 1);
  c.heads = c.kv_heads * dice.of({1, 2});
  c.head_size = dice.of({2, 4});
  c.hidden = l.tensor * dice.of({1, 4, 6});
  c.context = 2 * l.context * l.tensor * dice.of({1, 2});
  c.vocabulary = source_text().tokenizer.vocabulary() + dice.below(8);
  c.bias = dice.one_in(2);
  c.qkv_bias = dice.one_in(4);
  c.qk_norm = dice.one_in(4);
  c.head_size = c.qk_norm ? 8 : c.head_size;  // two numbers normalised have nearly any gradient
  c.tied = dice.one_in(2);
  c.norm = static_cast<ts::Norm>(dice.below(2));
  c.position = static_cast<ts::Position>(dice.below(2));
  c.activation = static_cast<ts::Activation>(dice.below(4));
  double capacity_factor = 0;
  if (c.experts > 0) {
    l.expert = dice.of({1, 2, 3, 4});
    l.expert = l.batch_devices() % l.expert == 0 ? l.expert : l.data;
    l.whole_experts = l.sequence_parallel && dice.one_in(2);
    c.experts = static_cast<int>(l.expert_devices() * dice.of({1, 2}));
    c.top_k = static_cast<int>(std::min<std::int64_t>(c.experts, dice.of({1, 2})));
    c.shared_experts = static_cast<int>(dice.below(3));
    c.expert_hidden = l.tensor * dice.of({1, 3});
    capacity_factor = l.context == 1 && dice.one_in(3) ? 1.25 : 0;
  }
  const std::int64_t batch = l.data * l.microbatches * dice.of({1, 2});
  switch (dice.below(40)) {  // what does not fit, or fits nevertheless
    case 0: c.heads += c.kv_heads; break;
    case 1: ++c.hidden; break;
    case 2: ++c.context; break;
    case 3: ++c.layers; break;
    case 4: l.expert = dice.of({2, 3, 4}); break;
    case 5: l.order.pop_back(); break;
    default: break;
  }
  Row row(c, l.data, l.tensor, l.pipeline, l.context, l.microbatches);
  row.options.batch = batch;
  row.options.layout = l;
  row.options.steps = 2;
  row.options.warmup = 0;
  row.options.dropout = dice.one_in(3) ? 0.1 : 0;
  row.options.experts.balance_loss = c.experts > 0 && dice.one_in(2) ? 0.01 : 0;
  row.options.experts.capacity_factor = capacity_factor;
  row.set_groups();
  return row;
}

// Of a parameter that each tensor rank has whole, those that it differs in after `steps` steps.
std::string drifted(const Row& row, int steps) {
  const Layout& layout = row.options.layout;
  const ts::detail::LayoutAxes axes = ts::detail::layout_axes(layout);
  const ts::Transformer whole(row.model, 1);
  ts::Mesh mesh(row.options.machine, axes.mesh);
  const ts::MeshRun run = mesh.run([&](ts::Device& device) {
    ts::detail::DeviceModel mine(whole, layout, axes, device, {}, row.options.format);
    ts::detail::StepRunner runner(device, mine, layout, axes, row.options, source_text().tokens);
    for (int step = 0; step < steps; ++step) {
      runner.run(step, 1, step);
    }
    for (const ts::Parameter& p : mine.model.parameters) {
      if (p.split == ts::Split::whole && p.value.defined()) {
        device.keep(p.name, p.value.detach());
      }
    }
  });
  std::string out;
  for (const ts::Parameter& p : whole.parameters) {
    for (int rank = 1; p.split == ts::Split::whole && rank < mesh.size(); ++rank) {
      if (run.kept(rank, p.name).values() != run.kept(0, p.name).values()) {
        out += ts::detail::cat({"\n", p.name, " of device ", rank});
      }
    }
  }
  return out.empty() ? "" : row.text() + out;
}

}  // namespace

TEST_CASE("layouts: what several devices hold and update alike stays the same in every bit") {
  for (const Kind kind : {gpt2, llama, mixture}) {
    CHECK(drifted(Row(kind, 4, 2, 1, 1, 1), 3) == "");
    CHECK(drifted(Row(kind, 2, 2, 1, 2, 2).zero(Zero::optimizer), 3) == "");
    Row row = Row(kind, 2, 4, 1, 1, 1).zero(Zero::gradients, kind == gpt2 ? 2 : 1);
    row.model.kv_heads = 4;
    row.options.layout.gradient_format = ts::DType::bf16;
    CHECK(drifted(row, 3) == "");
    row.options.layout.algorithm = ts::Algorithm::ring;
    CHECK(drifted(row, 3) == "");
  }
}

TEST_CASE("layouts: bytes of a capacity that rounding alone lifts above a whole number") {
  Row row = Row(mixture, 2, 1, 1, 1, 1).experts(2, 1.1);  // 2 of 4 experts, 100 tokens: 55 rows
  row.model.context = 50;
  row.options.batch = 4;
  row.options.steps = 1;
  ts::Transformer model(row.model, 1);
  CHECK(wrong_rows(ts::train(model, source_text(), row.options).step.sent, 0) == "");
}

TEST_CASE("layouts: twelve train as one device does, and send, compute and hold what they should") {
  for (const Row& row : quick_rows()) {
    CHECK(differences(row, trained_alone(row)) == "");
  }
}

TEST_CASE("layouts: every third of fifty more, in the long tests all [slow]") {
  CHECK(quick_rows().size() + more_rows().size() >= 45);
  const auto rows = more_rows();
  for (std::size_t i = 0; i < rows.size(); i += long_tests() ? 1 : 3) {
    CHECK(differences(rows[i], trained_alone(rows[i])) == "");
  }
}

TEST_CASE("layouts: a random one trains as one device does or says what is wrong [slow]") {
  const char* const from = std::getenv("TINYSCALE_FUZZ_FROM");  // for more than a test should do
  const char* const count = std::getenv("TINYSCALE_FUZZ_COUNT");
  const int first = from != nullptr ? std::atoi(from) : 0;
  const int last = first + (count != nullptr ? std::atoi(count) : long_tests() ? 60 : 24);
  int trained = 0;
  for (int seed = first; seed < last; ++seed) {
    const Row row = random_row(static_cast<std::uint32_t>(seed));
    CAPTURE(seed);
    const std::string refusal = error_of([&] {
      const ts::Transformer model(row.model, 1);
      ts::detail::check_training(model, source_text(), row.options);
    });
    if (refusal != "no error") {
      const bool known = refusal.find("train: ") == 0 || refusal.find("tensor parallel: ") == 0;
      CHECK_MESSAGE(known, refusal);
      if (count != nullptr) {
        MESSAGE(refusal);
      }
      continue;
    }
    ++trained;
    std::string wrong;
    const std::string error = error_of([&] { wrong = differences(row, train_alone(row), 1e-2); });
    CHECK(wrong == "");
    CHECK_MESSAGE(error == "no error", row.text() << " " << error);
  }
  CHECK(trained > (last - first) / 2);
}

TEST_CASE(
    "layouts: counts whose products do not fit are refused, and all that is set is in the text") {
  const ts::ModelConfig c = ts::config("nano");
  const auto wrong = [&](const Layout& layout) {
    return error_of([&] { ts::detail::check_layout(layout, c, layout.devices(), 8, 16); });
  };
  Layout many;
  many.data = 4;
  many.microbatches = std::int64_t{1} << 62;
  CHECK(wrong(many) ==
        "train: layout is data 4, tensor 1, pipeline 1, context 1, microbatches "
        "4611686018427387904; each must be at least 1, and the devices x microbatches at most "
        "2147483647");
  many.microbatches = 1;
  many.expert = std::int64_t{1} << 40;
  CHECK(wrong(many) ==
        "train: layout is data 4, tensor 1, pipeline 1, context 1, expert 1099511627776; each must "
        "be at least 1, and the devices at most 2147483647");
  Layout named;
  named.algorithm = ts::Algorithm::ring;
  named.order = {"data", "pipeline", "context", "tensor"};
  CHECK(
      named.text() ==
      "data 1, tensor 1, pipeline 1, context 1, algorithm ring, order data > pipeline > context > "
      "tensor");
  named.algorithm = ts::Algorithm::custom;
  CHECK(wrong(named) ==
        "train: layout.algorithm is custom, which is a schedule for one collective; another is "
        "right");
}

#endif  // TINYSCALE_NO_THREADS
