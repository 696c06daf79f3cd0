// plan/mfu: published claims under every convention, against what their sources print.
#include <doctest/doctest.h>

#include <cmath>
#include <iostream>
#include <sstream>

#include "error_of.hpp"
#include "published_runs.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

using Convention = ts::FlopsConvention;

// A GPT of Megatron's shape: hidden width 4 D, learned positions, tied.
ts::ModelConfig gpt(const char* name, std::int64_t layers, std::int64_t width, std::int64_t heads,
                    std::int64_t vocabulary) {
  ts::ModelConfig model = ts::config("gpt3-175b");
  model.name = name;
  model.layers = layers;
  model.width = width;
  model.heads = heads;
  model.kv_heads = heads;
  model.head_size = width / heads;
  model.hidden = 4 * width;
  model.vocabulary = vocabulary;
  model.context = 2048;
  return model;
}

ts::MfuClaim claim_on(const char* chip, double chips, const ts::ModelConfig& model,
                      double context) {
  ts::MfuClaim claim;
  claim.model = model;
  claim.context = context;
  claim.chip = ts::chip(chip);
  claim.chips = chips;
  return claim;
}

ts::MfuClaim bloom() {
  ts::MfuClaim claim = claim_on("a100-80", 384, gpt("GPT-181B", 72, 14336, 64, 250880), 2048);
  claim.format = ts::DType::f16;
  claim.recompute = ts::Recompute::full;
  claim.batch_tokens = 2048 * 2048;
  claim.step_seconds = 121.48;
  claim.tflops_per_chip = 132.71;
  return claim;
}

bool contains(const ts::List<Convention>& list, Convention wanted) {
  for (const Convention convention : list) {
    if (convention == wanted) {
      return true;
    }
  }
  return false;
}

double utilisation(const ts::MfuClaim& claim, Convention convention) {
  return ts::decode_mfu(claim).row(convention).utilisation.value();
}

}  // namespace

TEST_CASE("mfu: a printed number carries half a unit of its last digit") {
  const struct {
    const char* text;
    double value, rounding;
  } cases[] = {{"121.48", 121.48, 0.005}, {"155", 155, 0.5},    {"64.05 %", 0.6405, 0.00005},
               {"41%", 0.41, 0.005},      {"2e12", 2e12, 5e11}, {"1.50e-3", 1.5e-3, 5e-6},
               {"97.0", 97, 0.05},        {"-3", -3, 0.5}};
  for (const auto& each : cases) {
    CAPTURE(each.text);
    const ts::Printed printed = each.text;
    CHECK(printed.value == doctest::Approx(each.value).epsilon(1e-12));
    CHECK(printed.rounding == doctest::Approx(each.rounding).epsilon(1e-12));
    CHECK(printed.stated);
  }
  CHECK(ts::Printed(121.48).rounding == doctest::Approx(0.005));
  CHECK(ts::Printed(0.412).rounding == doctest::Approx(0.0005));
  CHECK(ts::Printed(155).relative() == doctest::Approx(0.5 / 155));
  CHECK(!ts::Printed().stated);
  const std::string right = "\" is not a number; right is such as 121.48, 2e12, 41.5 %";
  for (const char* text : {"", "fast", "12 s", "41 %%", "nan", "inf", "0x1e2"}) {
    CHECK(error_of([&] { static_cast<void>(ts::Printed(text)); }) ==
          std::string("Printed: \"") + text + right);
  }
}

TEST_CASE("mfu: slices of two cores a chip are named by cores") {
  CHECK(ts::tpu_slice("v5p-2048").chips == 1024);
  CHECK(ts::tpu_slice("v5p-2048").chip == "tpu-v5p");
  CHECK(ts::tpu_slice("v4-128").chips == 64);
  CHECK(ts::tpu_slice("v3-8").chips == 4);
  CHECK(ts::tpu_slice("v5e-256").chips == 256);
  CHECK(ts::tpu_slice("v5litepod-256").chip == "tpu-v5e");
  CHECK(ts::tpu_slice("v6e-256").chips == 256);
  for (const char* name : {"tpu7x-128", "v7-128", "Ironwood-128", "TPU v5p-128"}) {
    CHECK(ts::tpu_slice(name).chips == 64);
  }
  CHECK(ts::tpu_slice("tpu7x-128").chip == "tpu-v7");
  for (const char* name : {"v5p", "v5p-", "v5p-8x", "v9-8", "v4-0", "tpu-v1-8", "h100-8", "-8"}) {
    CHECK(error_of([&] { ts::tpu_slice(name); }) ==
          std::string("tpu_slice: \"") + name +
              "\" is not the name of a slice; right is such as v4-128, v5p-2048, v5e-256, "
              "tpu7x-128");
  }
}

TEST_CASE("mfu: conventions are the forms of parallel/, and apply where they are meant") {
  const ts::ModelConfig model = gpt("GPT-1T", 128, 25600, 160, 51200);
  const auto flops = [&](Convention convention) {
    return ts::convention_flops(convention, model, 2048, ts::Recompute::full).value();
  };
  const auto same = [](double a, double b) { CHECK(a == doctest::Approx(b).epsilon(1e-14)); };
  same(flops(Convention::six_n), ts::six_n(model));
  same(flops(Convention::six_n_without_embedding), ts::six_n_without_embedding(model));
  same(flops(Convention::palm), ts::palm_flops_per_token(model, 2048));
  same(flops(Convention::palm_without_embedding), ts::palm_flops_without_embedding(model, 2048));
  const auto causal = ts::AttentionFlops::causal, full = ts::AttentionFlops::full;
  same(flops(Convention::exact_causal), ts::training_flops_per_token(model, 2048, causal));
  same(flops(Convention::exact_full), ts::training_flops_per_token(model, 2048, full));
  same(flops(Convention::maxtext_2024), ts::maxtext2024_flops_per_token(model, 2048));
  same(flops(Convention::maxtext_2025), ts::maxtext2025_flops_per_token(model, 2048));
  const Convention forms[] = {Convention::megatron72, Convention::megatron96,
                              Convention::megatron72_core_once,
                              Convention::megatron72_core_published};
  for (int i = 0; i < 4; ++i) {
    same(flops(forms[i]),
         ts::megatron_flops_per_token(static_cast<ts::MegatronFlops>(i), 128, 25600, 2048, 51200));
  }
  same(flops(Convention::causal_again),
       ts::hardware_flops_per_token(model, 2048, causal, ts::Recompute::full));
  same(flops(Convention::full_again),
       ts::hardware_flops_per_token(model, 2048, full, ts::Recompute::full));
  same(flops(Convention::eight_n), ts::six_n(model) * 4 / 3);
  same(flops(Convention::two_n), ts::six_n(model) / 3);
  same(flops(Convention::forward_full), ts::training_flops_per_token(model, 2048, full) / 3);
  same(flops(Convention::forward_causal), ts::training_flops_per_token(model, 2048, causal) / 3);
  const auto applies = [](Convention convention, const char* name, ts::TokenWork work) {
    return ts::convention_applies(convention, ts::config(name), work, ts::Recompute::none);
  };
  const auto training = ts::TokenWork::training;
  CHECK(applies(Convention::megatron72, "gpt3-175b", training));
  CHECK(!applies(Convention::megatron72, "llama3-70b", training));
  CHECK(!applies(Convention::megatron_moe, "llama3-70b", training));
  CHECK(applies(Convention::megatron_moe, "mixtral-8x7b", training));
  CHECK(!applies(Convention::one_more_token, "mixtral-8x7b", training));
  CHECK(applies(Convention::one_more_token, "deepseek-v3", training));
  CHECK(!applies(Convention::causal_again, "llama3-70b", training));
  CHECK(!applies(Convention::two_n, "llama3-70b", training));
  CHECK(applies(Convention::two_n, "llama3-70b", ts::TokenWork::decode));
  CHECK(!applies(Convention::six_n, "llama3-70b", ts::TokenWork::prefill));
}

TEST_CASE("mfu: logs are given back to their digits") {
  const ts::MfuDecoding log = ts::decode_mfu(bloom());
  CHECK(log.used()[0] == Convention::megatron96);
  CHECK(ts::format_fixed(log.row(Convention::megatron96).rate.value() / 1e12, 2) == "132.71");
  CHECK(log.verdict == ts::MfuVerdict::possible);
  CHECK(log.remarks.empty());
  const struct {
    const char* model;
    double context;
    const char *tokens, *teraflops;
    Convention convention;
  } logs[] = {{"llama3-70b", 8192, "960.248", "462.297", Convention::maxtext_2024},
              {"llama3-70b", 8192, "2686.98", "1207.05", Convention::maxtext_2025},
              {"mixtral-8x22b", 4096, "1326.307", "332.463", Convention::maxtext_2024},
              {"qwen3-235b-a22b", 4096, "1575", "233", Convention::megatron_moe},
              {"deepseek-v3", 4096, "2446.25", "612.66", Convention::maxtext_2025},
              {"deepseek-v3", 4096, "1297", "338", Convention::one_more_token}};
  for (const auto& each : logs) {
    CAPTURE(each.tokens);
    ts::MfuClaim claim = claim_on("tpu-v7", 0, ts::config(each.model), each.context);
    claim.tokens_per_second_per_chip = each.tokens;
    claim.tflops_per_chip = each.teraflops;
    const ts::MfuDecoding decoded = ts::decode_mfu(claim);
    REQUIRE(!decoded.matches[0].within.empty());
    CHECK(decoded.used()[0] == each.convention);
    CHECK(std::fabs(decoded.matches[0].gap) <= decoded.matches[0].rounding);
  }
}

TEST_CASE("mfu: training facts of the papers") {
  ts::MfuClaim palm = claim_on("tpu-v4", 6144, ts::config("palm-540b"), 2048);
  palm.tokens_per_second = "238.3e3";
  palm.mfu = "46.2 %";
  palm.hfu = "57.8 %";
  const ts::MfuDecoding decoded = ts::decode_mfu(palm);
  CHECK(contains(decoded.used(), Convention::palm));
  CHECK(ts::format_percent(decoded.row(Convention::palm).utilisation.value()) == "46.2 %");
  CHECK(decoded.verdict == ts::MfuVerdict::possible);
  CHECK(decoded.remarks.at(0) ==
        "57.8 % HFU is as if 75.09 % of the forward pass were computed again");

  const struct {
    const char *model, *chip;
    double tokens, hours;
    const char* mfu;
  } by_hours[] = {{"llama2-7b", "a100-80", 2e12, 184320, "39.1 %"},
                  {"llama2-13b", "a100-80", 2e12, 368640, "37.7 %"},
                  {"llama2-70b", "a100-80", 2e12, 1720320, "42.8 %"},
                  {"llama3.1-405b", "h100-sxm", 15.6e12, 30.84e6, "34.6 %"}};
  for (const auto& run : by_hours) {
    CAPTURE(run.model);
    ts::MfuClaim claim = claim_on(run.chip, 0, ts::config(run.model), 4096);
    claim.tokens = run.tokens;
    claim.chip_hours = run.hours;
    claim.mfu = run.mfu;
    CHECK(ts::format_percent(utilisation(claim, Convention::six_n)) == run.mfu);
    CHECK(contains(ts::decode_mfu(claim).used(), Convention::six_n));
  }

  // GPT-3: 6 N of 300e9 tokens are 3.14e23 FLOP.
  const double gpt3 =
      ts::convention_flops(Convention::six_n, ts::config("gpt3-175b"), 2048).value();
  CHECK(gpt3 * 300e9 == doctest::Approx(3.14e23).epsilon(0.002));

  // DeepSeek-V3 in the scaling book: 37e9 active parameters, 1.513e15 FLOP/s in fp8.
  ts::MfuClaim v3 = claim_on("h100-sxm", 0, ts::config("deepseek-v3"), 4096);
  v3.model.other_parameters = 37000000000 - v3.model.active_parameters();
  v3.chip.flops_fp8 = 1.513e15;
  v3.format = ts::DType::fp8_e4m3;
  v3.tokens = 14.8e12;
  v3.chip_hours = 2.79e6;
  CHECK(ts::format_percent(utilisation(v3, Convention::six_n)) == "21.6 %");
}

TEST_CASE("mfu: answering counts 2N") {
  // Pope et al. (arXiv 2211.05102), table 2: PaLM 540B on 64 TPU v4, prompts of 2048 tokens and 64
  // tokens decoded.
  const struct {
    ts::TokenWork work;
    double tokens;
    const char *seconds, *mfu, *by_two_n;
  } rows[] = {{ts::TokenWork::prefill, 2048, "0.29", "43 %", "43.4 %"},
              {ts::TokenWork::decode, 64 * 64, "1.82", "14 %", "13.8 %"},
              {ts::TokenWork::prefill, 512 * 2048, "85.2", "76 %", "75.6 %"},
              {ts::TokenWork::decode, 512 * 64, "6.0", "33 %", "33.5 %"}};
  for (const auto& row : rows) {
    CAPTURE(row.mfu);
    ts::MfuClaim claim = claim_on("tpu-v4", 64, ts::config("palm-540b"), 2048);
    claim.work = row.work;
    claim.batch_tokens = row.tokens;
    claim.step_seconds = row.seconds;
    claim.mfu = row.mfu;
    CHECK(ts::format_percent(utilisation(claim, Convention::two_n)) == row.by_two_n);
    CHECK(contains(ts::decode_mfu(claim).used(), Convention::two_n));
    CHECK(ts::decode_mfu(claim).verdict == ts::MfuVerdict::possible);
  }
  // DeepSeek-V3, prefill on nodes of 8 H800, cached prefixes among its tokens.
  ts::MfuClaim prefill = claim_on("h100-sxm", 8, ts::config("deepseek-v3"), 4096);
  prefill.work = ts::TokenWork::prefill;
  prefill.format = ts::DType::fp8_e4m3;
  prefill.tokens_per_second = "73.7e3";
  CHECK(ts::format_percent(utilisation(prefill, Convention::two_n)) == "35.0 %");
  CHECK(ts::decode_mfu(prefill).verdict == ts::MfuVerdict::possible);
}

TEST_CASE("mfu: what cannot be, what is odd, and what only counts differently") {
  using Verdict = ts::MfuVerdict;
  // google/maxtext README, 1024B on v5p-2048: 249 TFLOP/s and 64.05 %.
  ts::MfuClaim odd = claim_on("tpu-v5p", 0, ts::config("llama2-70b"), 2048);
  odd.slice = "v5p-2048";
  odd.tflops_per_chip = "249";
  odd.mfu = "64.05 %";
  const ts::MfuDecoding impossible = ts::decode_mfu(odd);
  CHECK(impossible.claim.chips == 1024);
  CHECK(impossible.verdict == Verdict::impossible);
  CHECK(impossible.remarks.size() == 1);
  CHECK(impossible.remarks[0] ==
        "the printed numbers disagree: 249 TFLOP/s is 54.25 % of the bf16 peak, 459 TFLOP/s; an "
        "MFU of 64.05 % is 293.99 TFLOP/s");
  odd.tflops_per_chip = "254";
  odd.mfu = "55.35 %";  // what the README of the configuration says
  CHECK(ts::decode_mfu(odd).verdict == Verdict::possible);
  odd.chips = 2048;
  CHECK(ts::decode_mfu(odd).verdict == Verdict::suspicious);
  CHECK(ts::decode_mfu(odd).remarks.at(0) ==
        "v5p-2048 has 1024 chips, the claim counts 2048: the name counts cores, two a chip");
  odd.chip = ts::chip("tpu-v4");
  CHECK(ts::decode_mfu(odd).remarks.at(1) == "v5p-2048 is of tpu-v5p, the claim's chip is tpu-v4");

  // Too fast for the matrices alone.
  ts::MfuClaim fast = claim_on("h100-sxm", 8, ts::config("llama3-8b"), 8192);
  fast.tokens_per_second_per_chip = 25000;
  CHECK(ts::decode_mfu(fast).verdict == Verdict::impossible);
  CHECK(ts::decode_mfu(fast).remarks.at(0) ==
        "what the matrices alone need, 1125.7 TFLOP/s a chip, is above the bf16 peak of h100-sxm, "
        "989.4 TFLOP/s; of the fp8 peak, 1979 TFLOP/s, it would be 56.88 %");
  fast.tokens_per_second_per_chip = 19000;
  CHECK(ts::decode_mfu(fast).verdict == Verdict::suspicious);
  CHECK(ts::decode_mfu(fast).remarks.at(0) ==
        "what the matrices alone need, 855.53 TFLOP/s a chip, is above the best bf16 matmul "
        "measured on h100-sxm, 80 % of its peak");
  fast.format = ts::DType::fp8_e4m3;
  CHECK(ts::decode_mfu(fast).verdict == Verdict::possible);
  fast.format = ts::DType::bf16;
  fast.tokens_per_second_per_chip = 17000;
  CHECK(ts::decode_mfu(fast).verdict == Verdict::possible);
  fast.recompute = ts::Recompute::full;
  CHECK(ts::decode_mfu(fast).verdict == Verdict::impossible);
  fast.tokens_per_second_per_chip = 14000;
  CHECK(ts::decode_mfu(fast).verdict == Verdict::suspicious);
  CHECK(ts::decode_mfu(fast).remarks.at(0) ==
        "what the matrices need with the layers computed again, 825.81 TFLOP/s a chip, is above "
        "the best bf16 matmul measured on h100-sxm, 80 % of its peak");
}

TEST_CASE("mfu: rates above the peak, of another peak, or that count something else") {
  using Verdict = ts::MfuVerdict;
  ts::MfuClaim claim = claim_on("h100-sxm", 8, ts::config("llama3-8b"), 8192);
  claim.tflops_per_chip = 1200;
  CHECK(ts::decode_mfu(claim).remarks.at(0) ==
        "the printed rate, 1200 TFLOP/s a chip, is above the bf16 peak of h100-sxm, 989.4 "
        "TFLOP/s; of the fp8 peak, 1979 TFLOP/s, it would be 60.64 %");
  claim.tflops_per_chip = ts::Printed();
  claim.mfu = 1.2;
  CHECK(ts::decode_mfu(claim).remarks.at(0) == "an MFU of 120 % is more than all of the peak");
  claim.mfu = "45 %";
  claim.hfu = "40 %";
  CHECK(ts::decode_mfu(claim).remarks.at(0) ==
        "the HFU, 40 %, is below the MFU, 45 %; it counts the same and what is computed again");
  CHECK(ts::decode_mfu(claim).verdict == Verdict::impossible);

  // 744 TFLOP/s in fp8 printed as a share of the bf16 peak.
  ts::MfuClaim fp8 = claim_on("h100-sxm", 8, ts::config("llama3-8b"), 8192);
  fp8.format = ts::DType::fp8_e4m3;
  fp8.tflops_per_chip = 744;
  fp8.mfu = "75.2 %";
  CHECK(ts::decode_mfu(fp8).verdict == Verdict::possible);
  CHECK(ts::decode_mfu(fp8).remarks.at(0) ==
        "the printed MFU divides by the bf16 peak, 989.4 TFLOP/s, not by the fp8_e4m3 peak, 1979 "
        "TFLOP/s");
  fp8.tokens_per_second_per_chip = 14451;
  CHECK(ts::decode_mfu(fp8).matches[1].peak == "bf16");
  CHECK(ts::decode_mfu(fp8).remarks.at(0) == "75.2 % MFU is of the bf16 peak, not of fp8_e4m3");

  // Half of the dense peak's share: of an A100 the sparse peak is also that of int8.
  ts::MfuClaim sparse = claim_on("a100-80", 8, ts::config("llama3-8b"), 8192);
  sparse.tflops_per_chip = 155;
  sparse.mfu = "24.8 %";
  CHECK(ts::decode_mfu(sparse).remarks.at(0) ==
        "the printed MFU divides by the int8 or bf16 sparse peak, 624 TFLOP/s, not by the bf16 "
        "peak, 312 TFLOP/s");

  // MT-NLG: 126 TFLOP/s a GPU counts recomputation, PaLM's table gives it 30.2 % MFU.
  ts::MfuClaim nlg = claim_on("a100-80", 2240, gpt("MT-NLG-530B", 105, 20480, 128, 51200), 2048);
  nlg.tflops_per_chip = 126;
  nlg.mfu = "30.2 %";
  CHECK(ts::decode_mfu(nlg).verdict == Verdict::possible);
  CHECK(ts::decode_mfu(nlg).remarks.at(0) ==
        "the TFLOP/s count what is computed again, as megatron96 does, the MFU does not, as "
        "PaLM without embedding");
  // Korthikanti et al. 2022: MFU and HFU apart.
  ts::MfuClaim sp = claim_on("a100-80", 280, gpt("GPT-530B", 105, 20480, 128, 51200), 2048);
  sp.recompute = ts::Recompute::selective;
  sp.batch_tokens = 280 * 2048;
  sp.step_seconds = "37.83";
  sp.mfu = "56.0 %";
  sp.hfu = "57.0 %";
  const ts::MfuDecoding apart = ts::decode_mfu(sp);
  CHECK(contains(apart.matches[0].within, Convention::megatron72));
  CHECK(apart.matches[1].within.size() == 1);
  CHECK(apart.matches[1].within[0] == Convention::megatron72_core_published);
  sp.mfu = "57.0 %";
  sp.hfu = ts::Printed();
  CHECK(ts::decode_mfu(sp).remarks.at(0) ==
        "57 % MFU counts what is computed again (megatron72, core as published): it is an HFU");
}

TEST_CASE("mfu: a rate that no convention gives") {
  ts::MfuClaim claim = bloom();
  claim.tflops_per_chip = 115;
  CHECK(ts::decode_mfu(claim).verdict == ts::MfuVerdict::suspicious);
  CHECK(ts::decode_mfu(claim).used().empty());
  CHECK(ts::decode_mfu(claim).remarks.at(0) ==
        "no convention gives 115 TFLOP/s: the nearest, megatron72, core as published, is -11.05 % "
        "off");
  ts::MfuClaim cores = claim_on("tpu-v5p", 2048, ts::config("llama3-70b"), 8192);
  cores.tokens_per_second = 1024 * 500;  // of 1024 chips, counted as cores
  cores.tflops_per_chip = "240.7";
  CHECK(ts::decode_mfu(cores).remarks.at(0) ==
        "no convention gives 240.7 TFLOP/s: the nearest, PaLM: 6N + 12 L H K T, is -49.34 % off; "
        "as of half as many chips it is exact, full attention (slices of TPU v2, v3, "
        "v4 and v5p are named by cores, two a chip)");
  ts::MfuClaim speeds = bloom();
  speeds.tokens_per_second = 30000;
  CHECK(ts::decode_mfu(speeds).verdict == ts::MfuVerdict::suspicious);
  CHECK(
      ts::decode_mfu(speeds).remarks.at(0) ==
      "the step time and the tokens/s are 15.09 % apart, more than their digits allow: 89.9133 and "
      "78.125 tokens/s a chip");
}

TEST_CASE("mfu: what a claim lacks or cannot state") {
  const auto error = [](const ts::MfuClaim& claim) {
    return error_of([&] { ts::decode_mfu(claim); });
  };
  ts::MfuClaim claim = bloom();
  claim.work = static_cast<ts::TokenWork>(9);
  CHECK(error(claim) == "decode_mfu: work is 9; a name of its enum is right");
  claim = bloom();
  claim.recompute = static_cast<ts::Recompute>(-1);
  CHECK(error(claim) == "decode_mfu: recompute is -1; a name of its enum is right");
  CHECK(error_of([] { ts::MfuDecoding().explain(); }) ==
        "MfuDecoding::explain: an empty decoding; decode_mfu(claim) makes one");
  claim = bloom();
  claim.step_seconds = ts::Printed();
  claim.tflops_per_chip = ts::Printed();
  CHECK(error(claim) ==
        "decode_mfu: the claim of GPT-181B states no speed; right is one of tokens_per_second, "
        "tokens_per_second_per_chip, step_seconds with batch_tokens, days or chip_hours with "
        "tokens, tflops_per_chip, mfu, hfu");
  claim = bloom();
  claim.chips = 0;
  CHECK(error(claim) == "decode_mfu: chips is 0; with step_seconds a number above 0 is right");
  claim.chips = -384;
  CHECK(error(claim) == "decode_mfu: chips is -384; a number above 0 is right");
  claim = bloom();
  claim.batch_tokens = 0;
  CHECK(error(claim) ==
        "decode_mfu: batch_tokens is 0; with step_seconds a number above 0 is right");
  claim = bloom();
  claim.days = 3;
  CHECK(error(claim) == "decode_mfu: tokens is 0; with days a number above 0 is right");
  claim = bloom();
  claim.step_seconds = 0;
  CHECK(error(claim) == "decode_mfu: step_seconds is 0; a number above 0 is right");
  claim = bloom();
  claim.tflops_per_chip = 1.3271e14;
  CHECK(error(claim) ==
        "decode_mfu: tflops_per_chip is 1.3271e+14; units of 1e12 FLOP/s are right");
  claim = bloom();
  claim.mfu = 41.25;
  CHECK(error(claim) ==
        "decode_mfu: mfu is 41.25; a fraction such as 0.4125 or a text such as \"41.25 %\" is "
        "right");
  claim = bloom();
  claim.context = -1;
  CHECK(error(claim) == "decode_mfu: context is -1; 1 to 1e+09 tokens are right");
  claim = bloom();
  claim.model.layers = 0;
  CHECK(error(claim) == "ModelConfig: GPT-181B: layers is 0; at least 1 is right");
  claim = bloom();
  claim.chip = ts::Chip();
  CHECK(error(claim) ==
        "Chip::peak: this chip has no rate for f16; set flops_bf16 or flops_f32, or price it in "
        "another format");
  const ts::MfuDecoding decoded = ts::decode_mfu(bloom());
  CHECK(
      error_of([&] {
        decoded.row(Convention::two_n);
      }).rfind("MfuDecoding::row: 2N is not of this claim of GPT-181B; right is one of: 6N; ", 0) ==
      0);
}

TEST_CASE("mfu: reports") {
  const ts::MfuDecoding decoded = ts::decode_mfu(bloom());
  std::ostringstream out;
  out << decoded;
  CHECK(out.str() == decoded.text());
  CHECK(decoded.text().rfind("GPT-181B on 384 x a100-80, f16 peak 312 TFLOP/s, context 2048, by "
                             "formula\n",
                             0) == 0);
  CHECK(decoded.text().find("132.71 TFLOP/s: megatron96; exact, full, and what is computed again "
                            "(within the printed digits)\n") != std::string::npos);
  CHECK(decoded.text().find("verdict: possible\n") != std::string::npos);
  CHECK(decoded.table().rows.size() == decoded.rows.size());
  CHECK(decoded.csv().find("megatron96,hardware,1475962994688,") != std::string::npos);
  CHECK(decoded.json().rfind("{\"model\": \"GPT-181B\", \"chip\": \"a100-80\", \"chips\": 384, "
                             "\"peak\": 3.12e+14, \"needed\": 9.77",
                             0) == 0);
  CHECK(decoded.json().find("\"used\": [\"megatron96\", ") != std::string::npos);
  CHECK(decoded.explain().rfind("HFU = FLOP/s a chip / peak\n", 0) == 0);
  CHECK(decoded.explain().find("96 FLOP * 72 * 14336 * 14336 + 16 FLOP * 72 * 14336 * 2048 + 6 "
                               "FLOP * 14336 * 250880") != std::string::npos);
  CHECK(decoded.explain(Convention::six_n).find("FLOPs of a token = 6 FLOP * N   [6N]") !=
        std::string::npos);
}

namespace {

// The figure after `before` in a check: "TF from step time 120.3 vs reported 120.29 (+0.0%)".
std::string word_after(const std::string& text, const char* before) {
  const std::size_t at = text.find(before);
  if (at == std::string::npos) {
    return "";
  }
  const std::size_t start = at + std::string(before).size();
  return text.substr(start, text.find_first_not_of("0123456789.", start) - start);
}

// What a run's source prints: a rate or the days of 300e9 tokens may stand in the check alone.
ts::MfuClaim claim_of(const published::PublishedRun& run) {
  ts::MfuClaim claim;
  claim.source = run.id;
  claim.model = run.model;
  claim.context = run.context;
  claim.chip = run.hardware.chip();
  claim.chips = run.chips;
  claim.format = run.format;
  claim.recompute = run.recompute;
  claim.batch_tokens = run.batch_tokens();
  for (const published::Figure& figure : run.figures) {
    const std::string days = word_after(figure.check, "days for 300B tokens by 8TP/(nX) = ");
    const std::string reported = word_after(figure.check, "vs reported ");
    if (!days.empty()) {
      claim.tokens = 300e9;
      claim.days = reported;
    } else if (figure.check.rfind("TF from ", 0) == 0) {
      claim.tflops_per_chip = reported.empty() ? word_after(figure.check, " vs ") : reported;
    }
    if (!(figure.value > 0)) {
      continue;
    }
    if (figure.metric == "step time" && claim.batch_tokens > 0) {
      claim.step_seconds = figure.text;
    } else if (figure.metric == "latency (decode 64 tokens)") {
      claim.work = ts::TokenWork::decode;
      claim.step_seconds = figure.text;
      claim.batch_tokens = 64 * run.global_batch_seqs;
    } else if (figure.metric == "tokens/s/chip") {
      claim.tokens_per_second_per_chip = figure.text;
    }
  }
  for (const published::Figure& figure : run.figures) {
    if (!(figure.value > 0)) {
      continue;
    }
    if (figure.metric == "TFLOP/s/chip") {
      claim.tflops_per_chip = figure.text;
    } else if (figure.metric == "MFU") {
      claim.mfu = figure.text + " %";
    } else if (figure.metric == "HFU") {
      claim.hfu = figure.text + " %";
    }
  }
  return claim;
}

bool states_speed(const ts::MfuClaim& claim) {
  return claim.step_seconds.stated || claim.tokens_per_second_per_chip.stated || claim.days.stated;
}

// What the table calls a convention; six_n where it names none.
Convention named_convention(const std::string& name) {
  const struct {
    const char* start;
    Convention convention;
  } names[] = {{"megatron96", Convention::megatron96},
               {"megatron72 with s/(3h)", Convention::megatron72_core_published},
               {"megatron72", Convention::megatron72},
               {"6N + 12*L*d*s", Convention::palm},
               {"maxtext-2025+", Convention::maxtext_2025},
               {"maxtext-2024", Convention::maxtext_2024},
               {"model FLOPs, causal", Convention::exact_causal},
               {"causal", Convention::exact_causal},
               {"2N per token", Convention::two_n}};
  for (const auto& each : names) {
    if (name.rfind(each.start, 0) == 0) {
      return each.convention;
    }
  }
  return Convention::six_n;
}

// Percent between the two rates of a check, "TF from step 247 vs 245"; 0: it has not two.
double gap_of(const std::string& check) {
  const std::size_t at = check.find(" vs ");
  if (check.find("PF") != std::string::npos || at == std::string::npos) {
    return 0;
  }
  const std::size_t first = check.find_last_of(' ', at - 1) + 1;
  const std::string reported = word_after(check, "vs reported ");
  const double b = std::atof((reported.empty() ? word_after(check, " vs ") : reported).c_str());
  return b > 0 ? 100 * (std::atof(check.c_str() + first) / b - 1) : 0;
}

}  // namespace

TEST_CASE("mfu: the reader of published runs") {
  const std::string columns =
      "id\tsource\tmodel\tlayers\td_model\theads\tkv_heads\thead_dim\td_"
      "ff\tffn\texperts\tvocab\tseq"
      "\thardware\tchips\tlayout\tmicro_batch\tglobal_batch_"
      "seqs\tprecision\trecompute\tmetric\tvalue"
      "\tunit\tflops_convention\tconfidence\tcheck\tnotes\n";
  const std::string moe =
      "a\tpaper\tDeepSeek-V3-671B\t61\t7168\t128\t128\t128\t18432\tgated\tE256/top8/dff2048/"
      "shared1\t"
      "129280\t~4k\tH800 node (8 GPUs)\t512\tTP2 PP8 VPP4 EP32 (no SP)\t1\t4096\tfp8\tnorm+act\t";
  const std::string dense =
      "b\tlog\tMaxText-9B\t32\t4096\t32\t8\t128\t14336\tgated\t\t32000\t2048\tTPU v5p (459 TF, 95 "
      "GB, "
      "3D torus), slice of 64 chips x 2 slice(s) over DCN\t128\tFSDP16 x TP4 on ICI, DP2 on "
      "DCN\t6\t768\tbf16 (fp32 weights)\tminimal\t";
  std::istringstream text(columns + moe + "step time\t1.10\ts\t\thigh\t\t\n" + dense +
                          "MFU\t69.43\t%\tmaxtext-2024\thigh\t\t\r\n\n" + moe +
                          "memory: fits?\tOOM\t\t\thigh\t\tnote\n");
  const std::vector<published::PublishedRun> runs = published::read_runs(text);
  REQUIRE(runs.size() == 2);
  const published::PublishedRun& a = runs[0];
  CHECK(a.figures.size() == 2);
  CHECK(a.figures[0].rounding == doctest::Approx(0.005));
  CHECK(a.out_of_memory());
  CHECK(a.model.experts == 256);
  CHECK(a.model.top_k == 8);
  CHECK(a.model.expert_hidden == 2048);
  CHECK(a.model.shared_experts == 1);
  CHECK(a.model.latent());  // of the preset: the table has no column for it
  CHECK(a.context == 4096);
  CHECK(a.hardware.preset == "h100-sxm");
  CHECK(a.hardware.chip().name == "h800");
  CHECK(a.hardware.node_chips == 8);
  CHECK(a.layout.tensor == 2);
  CHECK(a.layout.pipeline == 8);
  CHECK(a.layout.virtual_pipeline == 4);
  CHECK(a.layout.expert == 32);
  CHECK(a.layout.data == 32);  // what the chips leave over
  CHECK(!a.layout.data_stated);
  CHECK(a.layout.no_sequence_parallel);
  CHECK(a.microbatches() == 128);
  CHECK(a.format == ts::DType::fp8_e4m3);
  CHECK(a.recompute == ts::Recompute::none);
  CHECK(a.recompute_known);
  CHECK(a.step_seconds() == 1.1);
  const published::PublishedRun& b = runs[1];
  CHECK(b.hardware.slices == 2);
  CHECK(b.hardware.peak_bf16 == 459e12);
  CHECK(b.layout.fsdp == 16);
  CHECK(b.layout.data == 32);
  CHECK(b.layout.dcn_data == 2);
  CHECK(b.layout.layout().text() ==
        "data 32, tensor 4, pipeline 1, context 1, ZeRO: parameters over 16");
  CHECK(b.micro_batch == 24);
  CHECK(b.recompute == ts::Recompute::selective);
  CHECK(b.value("MFU") == 69.43);
  CHECK(b.find("HFU") == nullptr);
  CHECK(b.figures[0].notes.empty());

  std::istringstream short_row(columns + "a\tb\n");
  CHECK(error_of([&] { published::read_runs(short_row); }) ==
        "published runs: line 2 has 2 cells for 27 columns");
  std::istringstream other("id\tsource\na\tb\n");
  CHECK(error_of([&] { published::read_runs(other); }) ==
        "published runs: no column is named model");

  const auto network = [](const char* hardware) {
    const published::RunHardware h = published::read_hardware(hardware);
    return std::vector<double>{static_cast<double>(h.node_nics), h.nic_bandwidth,
                               h.node_network_bandwidth};
  };
  CHECK(network("A100-80GB (312 TF), 8/node NVLink, 4x100 Gb/s Omni-Path per node") ==
        std::vector<double>{4, 12.5e9, 50e9});
  CHECK(network("A100-80GB SXM (312 bf16 TF), 8/node NVLink + 8xHDR IB (Selene)") ==
        std::vector<double>{8, 25e9, 200e9});
  CHECK(network("A100-80GB (312 TF), 1600 Gb/s RoCE per node") == std::vector<double>{0, 0, 200e9});
  CHECK(network("H100-80GB SXM (989 bf16 TF), 8x50 GB/s IB") ==
        std::vector<double>{8, 50e9, 400e9});
  CHECK(network("H100-96GB HBM2e 2.4 TB/s, 500 W cap, 400 Gb/s RDMA per GPU (peak unknown)") ==
        std::vector<double>{8, 50e9, 400e9});
  CHECK(network("H100-80GB SXM (989 bf16 TF) + IB") == std::vector<double>{0, 0, 0});
  const published::RunLayout over = published::read_layout("FSDP SHARD_GRAD_OP over 256", 256);
  CHECK(over.zero == 2);
  CHECK(over.fsdp == 256);
  CHECK(published::read_layout("TP8 PP6 DP8 ZeRO-1 (DeepSpeed 1F1B)", 384).zero == 1);
  CHECK(published::read_layout("TP2 EP8 DP128 FSDP", 256).fsdp == 128);
  CHECK(!published::read_layout("see recipe", 256).known);
}

TEST_CASE("mfu: every published run that prints a speed and a rate") {
  const std::vector<published::PublishedRun> runs = published::read_runs();
  if (runs.empty()) {
    std::cout << "skipped: no cases/published-runs.tsv\n";
    return;
  }
  ts::Table listed;
  listed.title = "rows whose check shows a gap above 0.5 %";
  listed.columns = {"run", "check", "its gap", "decoded as", "gap", "printed digits allow"};
  int decoded_runs = 0, named_right = 0, alone = 0;
  for (const published::PublishedRun& run : runs) {
    if (!run.complete()) {
      continue;
    }
    const ts::MfuClaim claim = claim_of(run);
    const bool rate = claim.tflops_per_chip.stated || claim.mfu.stated || claim.hfu.stated;
    if (!states_speed(claim) || !rate) {
      continue;
    }
    CAPTURE(run.id);
    const ts::MfuDecoding decoded = ts::decode_mfu(claim);
    const ts::MfuMatch& first = decoded.matches[0];
    const double own_gap = gap_of(run.figures[0].check);
    ++decoded_runs;
    if (std::fabs(own_gap) > 0.5) {
      Convention nearest = decoded.used().empty() ? first.closest : decoded.used()[0];
      const Convention named = named_convention(run.figures[0].convention);
      nearest = contains(decoded.used(), named) ? named : nearest;
      const double gap = 100 * (decoded.row(nearest).rate.value() / first.rate - 1);
      listed.add({run.id, run.figures[0].check.substr(0, 60), ts::format_fixed(own_gap, 2) + " %",
                  name_of(nearest), ts::format_fixed(gap, 3) + " %",
                  ts::format_fixed(100 * first.rounding, 3) + " %"});
    }
    // What nothing gives back is listed with the gap that its own check shows.
    const bool listed_alone = std::fabs(own_gap) > 0.5 && decoded.used().empty();
    alone += listed_alone ? 1 : 0;
    for (const ts::MfuMatch& match : decoded.matches) {
      CAPTURE(match.printed);
      CHECK((!match.none() || listed_alone));
      CHECK((std::fabs(match.gap) <= std::max(0.005, match.rounding) || std::fabs(own_gap) > 0.5));
    }
    CHECK((decoded.verdict == ts::MfuVerdict::possible || listed_alone));
    // The convention that the table names is among those that give the rate back.
    for (const published::Figure& figure : run.figures) {
      const Convention named = named_convention(figure.convention);
      if (named == Convention::six_n || listed_alone) {
        continue;
      }
      const ts::List<Convention> used =
          figure.metric == "HFU" ? decoded.matches[1].best() : decoded.used();
      const bool one_more =
          named == Convention::exact_causal && contains(used, Convention::one_more_token);
      const bool no_router =
          named == Convention::exact_causal && contains(used, Convention::megatron_moe);
      CHECK((contains(used, named) || one_more || no_router));
      ++named_right;
    }
  }
  std::cout << listed << decoded_runs << " runs print a speed and a rate, " << alone
            << " of them apart by more\n";
  CHECK(decoded_runs >= 100);
  CHECK(named_right >= 100);
  CHECK(100 * alone <= decoded_runs);
}

TEST_CASE("mfu: published runs whose two rates are all that they print") {
  for (const published::PublishedRun& run : published::read_runs()) {
    const ts::MfuClaim claim = run.complete() ? claim_of(run) : ts::MfuClaim();
    if (states_speed(claim) || !claim.tflops_per_chip.stated || !claim.mfu.stated) {
      continue;
    }
    CAPTURE(run.id);
    const ts::MfuDecoding decoded = ts::decode_mfu(claim);
    CHECK(!decoded.speed_stated);
    const double gap = claim.tflops_per_chip.value * 1e12 / decoded.peak / claim.mfu.value - 1;
    const double digits = claim.tflops_per_chip.relative() + claim.mfu.relative() + 5e-4;
    const bool agree = std::fabs(gap) <= std::max(0.005, digits);
    CHECK((decoded.verdict == ts::MfuVerdict::possible) == agree);
    CHECK(decoded.remarks.empty() == agree);
    // The step that the table derives of it is that of the convention that it names.
    const std::string step = word_after(run.figures[0].check, "implied step ");
    const Convention named = named_convention(run.figures[0].convention);
    if (!step.empty() && named != Convention::six_n) {
      const double rate = decoded.row(named).tokens.value() * claim.chips;
      CHECK(claim.batch_tokens / rate == doctest::Approx(std::atof(step.c_str())).epsilon(1e-3));
    }
  }
}

TEST_CASE("slices have whole chips") {
  CHECK(ts::tpu_slice("v4-128").chips == 64);
  for (const char* name : {"v4-129", "v4- 128", "v4-0x80", "v4-"}) {
    CHECK_THROWS_AS(ts::tpu_slice(name), ts::Error);
  }
}

TEST_CASE("mfu: a context that no run has") {
  ts::MfuClaim claim;
  claim.model = ts::config("llama3-8b");
  claim.chip = ts::chip("h100");
  claim.mfu = 0.4;
  claim.context = 1e300;
  CHECK(error_of([&] { ts::decode_mfu(claim); }) ==
        "decode_mfu: context is 1e+300; 1 to 1e+09 tokens are right");
  CHECK(ts::keys_seen(1e300, 0, ts::AttentionFlops::causal) == doctest::Approx(5e299));
  CHECK(ts::keys_seen(1e300, 0, ts::AttentionFlops::causal_exact) == doctest::Approx(5e299));
}
