// plan/ and measure/quantity: transformer maths and serving against the scaling book.
#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>

#include "error_of.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

std::vector<std::vector<std::string>> tsv(const std::string& path) {
  const char* root = std::getenv("TINYSCALE_SHARED");
  std::ifstream file(std::string(root != nullptr ? root : "../shared") + "/" + path);
  std::vector<std::vector<std::string>> rows;
  std::string line, cell;
  while (std::getline(file, line)) {
    rows.emplace_back();
    std::istringstream text(line);
    while (std::getline(text, cell, '\t')) {
      rows.back().push_back(cell);
    }
  }
  if (rows.empty()) {
    std::cout << "skipped: no " << path << "\n";
  }
  return rows;
}

ts::ModelConfig layers_only(std::int64_t layers, std::int64_t width, std::int64_t hidden) {
  ts::ModelConfig model = ts::config("llama2-7b");
  model.layers = layers;
  model.width = width;
  model.hidden = hidden;
  return model;
}

// The model of the book's chapter 7 questions, with or without experts.
ts::ModelConfig chapter7(int experts, int top_k) {
  ts::ModelConfig model = layers_only(64, 4096, 16384);
  model.heads = 32;
  model.kv_heads = 8;
  model.head_size = 256;
  model.vocabulary = 32128;
  model.tied = true;
  model.experts = experts;
  model.top_k = top_k;
  model.expert_hidden = experts > 0 ? 16384 : 0;
  return model;
}

ts::Machine book_v5e(ts::Shape dims) {
  ts::Machine machine = ts::machine("tpu-v5e", dims);
  machine.chip.memory_bandwidth = 8.2e11;  // the book's rounding of 819 GB/s
  return machine;
}

ts::ServingPlan book_serving(const char* model, std::int64_t batch, ts::DType format) {
  ts::ServingJob job;
  job.model = ts::config(model);
  job.prompt = 8192;
  job.output = 0;
  job.batch = batch;
  job.format = format;
  return ts::plan_serving(job, book_v5e({4, 2}));
}

double days(double flops, double chips) {
  return ts::training_seconds(flops, chips, 4.59e14, 0.4) / 86400;
}

struct BookCase {
  const char* id;
  double ours;
  double tolerance;
};

// Rows of the book's cases, each from the library's functions.
std::vector<BookCase> book_cases() {
  const ts::Machine pod = ts::machine("tpu-v5p", {16, 20, 28});
  const double alpha = pod.chip.flops_bf16 / pod.egress(0);
  const ts::Machine v5e = book_v5e({16, 16});
  const ts::ModelConfig big = ts::config("llama3-70b");
  const ts::ModelConfig b13 = ts::config("llama2-13b");
  const double checkpoints = ts::checkpoint_bytes(big, 4e6, 4);
  const double state = 10.0 * static_cast<double>(big.parameters());
  const ts::ServingPlan mha8 = book_serving("llama2-13b", 8, ts::DType::bf16);
  const ts::ServingPlan int8 = book_serving("llama3-70b", 32, ts::DType::int8);
  const auto kv70 = [&](ts::DType f) { return ts::kv_cache_bytes_per_token(big, f) / 1e3; };
  return {
      {"R03", v5e.chip.intensity(ts::DType::bf16), 1e-3},
      {"R18", ts::chip("h100").intensity(ts::DType::bf16), 1e-3},
      {"U13", ts::chip("b200").intensity(ts::DType::bf16), 1e-3},
      {"T16", static_cast<double>(pod.chips()) * pod.chip.flops_bf16, 1e-3},
      {"I14", v5e.chip.flops_bf16 / v5e.egress(0), 1e-3},
      {"F06", ts::checkpoint_bytes(layers_only(64, 8192, 1), 4e6, 7) / 1e12, 1e-3},
      {"G02", alpha, 1e-3},
      {"G03", ts::fsdp_threshold(alpha, 3), 1e-3},
      {"G09", ts::tensor_limit(alpha, 1, 30000), 1e-3},
      {"G15", ts::mixed_threshold(alpha, 2, 1, 32768), 1e-3},
      {"G25", ts::mixed_threshold(alpha, 2, 1, 30000), 1e-3},
      {"A28", ts::mixed_threshold(alpha, 2, 1, 53248), 1e-3},
      {"G43", 1e3 * ts::training_seconds(6 * 3e6 * 13e9, 4096, 4.59e14, 0.4), 1e-3},
      {"A04", static_cast<double>(big.parameters()), 1e-3},
      {"A09", days(6.3e24, 8960), 1e-3},
      {"A24", days(6.3e24, 35840), 1e-3},
      {"A27", days(3.645e25, 71680), 1e-3},
      {"A12", checkpoints / 1e12, 1e-3},
      {"A13", (state + checkpoints) / 1e12, 1e-3},
      {"A14", std::ceil((state + checkpoints) / 96e9), 1e-9},
      {"A25", static_cast<double>(ts::config("llama3.1-405b").parameters()), 1e-3},
      {"I09", 8192 * ts::kv_cache_bytes_per_token(b13, ts::DType::bf16) / 1e9, 1e-3},
      {"I11-MHA-B8-step", 1e3 * mha8.decode_step_time.value(), 3e-3},
      {"I11-MHA-B8-thr", mha8.tokens_per_second.value(), 3e-3},
      {"I17", static_cast<double>(chapter7(0, 0).parameters()), 1e-3},
      {"I25", static_cast<double>(chapter7(16, 2).parameters()), 1e-3},
      {"I30", 2.0 * static_cast<double>(chapter7(16, 2).active_parameters()), 1e-3},
      {"L04", kv70(ts::DType::int8), 1e-3},
      {"L08", int8.memory.value() / 1e9, 6e-3},  // the book rounds 70.55e9 parameters to 70e9
      {"L11", int8.tokens_per_second.value(), 6e-3},
      {"L16-bf16-kv", kv70(ts::DType::bf16), 1e-3},
      {"L16-int4-kv", kv70(ts::DType::int4), 1e-3},
  };
}

}  // namespace

TEST_CASE("quantity: arithmetic keeps the formula and works out the unit") {
  const ts::Quantity flops(6e12, "FLOP", "F", "counted"), rate(2e14, "FLOP/s", "C");
  const ts::Quantity time = ts::named("T", flops / rate);
  CHECK(time.value() == doctest::Approx(0.03));
  CHECK(time.unit() == "s");
  CHECK(time.formula() == "F / C");
  CHECK(time.explain() ==
        "T = F / C\n"
        "  = 6e+12 FLOP / 2e+14 FLOP/s\n"
        "  = 30 ms\n"
        "  F = 6e+12 FLOP   [counted]\n"
        "  C = 2e+14 FLOP/s\n");
  CHECK(time.explain(0) == "T = F / C\n  = 6e+12 FLOP / 2e+14 FLOP/s\n  = 30 ms\n");
  const ts::Quantity a(2, "s", "a"), b(3, "s", "b");
  CHECK(((a + b) * (a - b) / (a * b)).formula() == "(a + b) * (a - b) / (a * b)");
  CHECK((a - (a - b)).formula() == "a - (a - b)");
  CHECK((a * b).unit() == "s*s");
  CHECK((a / b).unit().empty());
  CHECK((1.0 / a).unit() == "1/s");
  CHECK(ts::max(a, b).formula() == "max(a, b)");
  CHECK(ts::ceil(a / b).value() == 1);
  CHECK(ts::sqrt(ts::Quantity(16.0)).value() == 4);
  CHECK(error_of([&] { a + flops; }) ==
        "Quantity: 2 s + 6e+12 FLOP: the units are \"s\" and \"FLOP\"; both must be the same");
}

TEST_CASE("plan: cases of the scaling book") {
  std::map<std::string, double> recomputed;
  for (const auto& row : tsv("cases/book-cases.tsv")) {
    if (row.size() > 8 && row[3] == "num") {
      recomputed[row[0]] = std::strtod(row[8].c_str(), nullptr);
    }
  }
  if (recomputed.empty()) {
    return;
  }
  for (const BookCase& book : book_cases()) {
    const std::string id = book.id;
    CAPTURE(id);
    REQUIRE(recomputed.count(book.id) == 1);
    CHECK(book.ours == doctest::Approx(recomputed[book.id]).epsilon(book.tolerance));
  }
}

TEST_CASE("plan: parameter counts of the table of models") {
  const auto rows = tsv("data/tables/models.tsv");
  for (std::size_t i = 1; i < rows.size(); ++i) {
    const std::string& name = rows[i][0];
    const std::int64_t count = std::strtoll(rows[i][19].c_str(), nullptr, 10);
    if (count > 0) {
      CAPTURE(name);
      CHECK(ts::config(name).parameters() == count);
    }
  }
}

TEST_CASE("plan: published training runs") {
  CHECK(ts::six_n(ts::config("gpt3-175b")) * 300e9 == doctest::Approx(3.14e23).epsilon(0.002));
  const double palm = ts::palm_flops_per_token(ts::config("palm-540b"), 2048);
  CHECK(238.3e3 * palm / (6144 * 275e12) == doctest::Approx(0.462).epsilon(0.002));
  const auto mfu = [](const char* model, double tokens, double hours, double peak) {
    return ts::six_n(ts::config(model)) * tokens / (hours * 3600 * peak);
  };
  CHECK(mfu("llama2-7b", 2e12, 184320, 312e12) == doctest::Approx(0.391).epsilon(0.002));
  CHECK(mfu("llama2-13b", 2e12, 368640, 312e12) == doctest::Approx(0.377).epsilon(0.002));
  CHECK(mfu("llama2-70b", 2e12, 1720320, 312e12) == doctest::Approx(0.428).epsilon(0.002));
  CHECK(mfu("llama3.1-405b", 15.6e12, 30.84e6, 989e12) == doctest::Approx(0.346).epsilon(0.002));
}

TEST_CASE("plan: transformer maths") {
  const ts::ModelConfig model = ts::config("llama3-70b");
  const double full = ts::attention_flops_per_token(model, 8192, ts::AttentionFlops::full);
  CHECK(full == 4.0 * 80 * 8192 * 64 * 128);
  CHECK(ts::attention_flops_per_token(model, 8192, ts::AttentionFlops::causal) == full / 2);
  CHECK(ts::attention_flops_per_token(model, 8192, ts::AttentionFlops::none) == 0);
  CHECK(ts::matmul_parameters(model) == 70553706496.0 - 128256.0 * 8192);
  CHECK(ts::training_flops_per_token(model, 8192, ts::AttentionFlops::none) ==
        6 * ts::matmul_parameters(model));
  const ts::ModelConfig gpt2 = ts::config("gpt2-small");  // tied: the table multiplies at the end
  CHECK(ts::matmul_parameters(gpt2) == 124439808.0 - 1024 * 768);
  CHECK(ts::state_parts(ts::StateBytes::book).total() == 10);
  CHECK(ts::state_parts(ts::StateBytes::mixed).total() == 16);
  CHECK(ts::state_parts(ts::StateBytes::mixed_f32_gradients).total() == 18);
  CHECK(ts::kv_cache_bytes_per_token(ts::config("llama2-7b"), ts::DType::bf16) == 524288);
  CHECK(ts::kv_cache_bytes_per_token(ts::config("deepseek-v3"), ts::DType::bf16) == 70272);
  CHECK(error_of([] { ts::training_seconds(1, 0, 1, 1); }) ==
        "training_seconds: flops 1, chips 0, peak 1, mfu 1; finite numbers above 0, an mfu of at "
        "most 1, are right");
  CHECK(error_of([] { ts::training_seconds(0, 1, 1, 1); }) ==
        "training_seconds: flops 0, chips 1, peak 1, mfu 1; finite numbers above 0, an mfu of at "
        "most 1, are right");
}

TEST_CASE("plan: serving Llama 2 13B") {
  ts::ServingJob job;
  job.model = ts::config("llama2-13b");
  job.prompt = 2048;
  job.output = 256;
  job.batch = 8;
  job.format = ts::DType::int8;
  const ts::ServingPlan plan = ts::plan_serving(job, ts::machine("tpu-v5e", {1}));
  CHECK(plan.kv_cache_per_sequence.value() == 2304.0 * 409600);
  CHECK(plan.chips_needed.value() == 2);
  CHECK(plan.chips == 4);  // the smallest slice above one chip
  CHECK(plan.notes[0] == "chips: tpu-v5e 1 holds 16 GB of the 20.6 GB needed; planned on 4 chips");
  const double kv = 8 * (2048 + 128) * 409600.0, weights = 13015864320.0;
  CHECK(plan.decode_step_time.value() == doctest::Approx((kv + weights) / (4 * 8.19e11)));
  CHECK(plan.bound == "memory");
  CHECK(plan.tokens_per_second_per_chip.value() ==
        doctest::Approx(8 / plan.decode_step_time.value() / 4));
  CHECK(plan.dollars_per_million_tokens.value() ==
        doctest::Approx(1e6 * 4 * 1.2 / 3600 * plan.decode_step_time.value() / 8));
  CHECK(plan.dollars_per_million_tokens.unit() == "USD");
  CHECK(plan.dollars_with_prefill.value() > plan.dollars_per_million_tokens.value());
  CHECK(plan.decode_step_time.explain(0).find("T_decode = T_kv + max(T_math, T_weights)") == 0);
  job.cache = ts::DType::bf16;
  CHECK(ts::plan_serving(job, ts::machine("h100", {1})).kv_cache_per_sequence.value() ==
        2304.0 * 819200);
  std::ostringstream text;
  text << plan;
  CHECK(text.str().find("Serving llama2-13b on 4 x tpu-v5e") == 0);
}

TEST_CASE("plan: errors of plan_serving") {
  ts::ServingJob job;
  job.model = ts::config("llama2-13b");
  CHECK(error_of([&] { ts::plan_serving(job, ts::Machine()); }) ==
        "plan_serving: the machine has no chips; make one with machine(\"tpu-v5e\", {1})");
  job.batch = 0;
  const auto refused = [&] {
    return error_of([&] { ts::plan_serving(job, ts::machine("tpu-v5e", {1})); });
  };
  CHECK(refused() == "plan_serving: batch is 0; a number from 1 to 1e+09 is right");
  job.batch = 1000000000000000000;
  CHECK(refused() == "plan_serving: batch is 1e+18; a number from 1 to 1e+09 is right");
  job.batch = 1000000000;
  job.prompt = 1000000000000000;
  CHECK(refused() == "plan_serving: prompt is 1e+15; a number from 0 to 1e+09 is right");
  job.prompt = 1000000000;
  CHECK(refused() ==
        "plan_serving: the number of chips needed is 5.12000131e+13; a number from 0 "
        "to 1e+12 is right");
  job.prompt = job.output = 0;
  CHECK(refused() == "plan_serving: prompt is 0; a number from 1 to 1e+09 is right");
  job.output = -1;
  CHECK(refused() == "plan_serving: output is -1; a number from 0 to 1e+09 is right");
  job = ts::ServingJob();
  for (const double mfu : {0.0, double{NAN}, -1.0}) {
    job.prefill_mfu = mfu;
    CHECK(refused() == ts::detail::cat({"plan_serving: prefill_mfu is ", mfu,
                                        "; a number from 1e-06 to 1 is right"}));
  }
}
