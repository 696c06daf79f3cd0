#pragma once
// Claims of models, D, from their presets: counts, caches, FLOPs and utilisation of published runs;
// and E, what cannot be shown honestly: nothing public says it, so the figure stays unknown.

#include <cstdint>  // int64_t
#include <string>   // names

#include "report.hpp"
#include "serving.hpp"
#include "tinyscale.hpp"

namespace tinyscale {
namespace detail {

inline ClaimReport claim_models() {
  ClaimReport r =
      claim_of("Published models have these parameters, caches, training FLOPs and utilisations.",
               Verdict::holds);
  const struct {
    const char* name;
    double parameters;
  } counts[] = {
      {"gpt-j-6b", 6050882784},  {"gpt3-175b", 174.6e9},      {"palm-540b", 540.36e9},
      {"llama2-7b", 6738415616}, {"llama2-13b", 13015864320}, {"llama2-70b", 68976648192},
      {"llama3-8b", 8030261248}, {"llama3-70b", 70553706496}, {"llama3.1-405b", 405.85e9},
      {"sd2.1-unet", 865.9e6},   {"mixtral-8x7b", 46.7e9},    {"deepseek-v3", 671026419200}};
  for (const auto& c : counts) {
    r.formula(c.name, "ModelConfig::parameters", double(config(c.name).parameters()), "",
              c.parameters);
  }
  r.formula("deepseek-v3, active", "ModelConfig::active_parameters",
            double(config("deepseek-v3").active_parameters()), "", 37.55e9);
  r.formula("mixtral-8x7b, active", "ModelConfig::active_parameters",
            double(config("mixtral-8x7b").active_parameters()));
  const auto parameters = [](const char* model) {
    return Quantity(double(config(model).parameters()), "", "P", model);
  };
  const Quantity p = parameters("gpt3-175b"), six(6, "FLOP"), bf16(2, "B", "b", "bf16");
  r.add("gpt3-175b, training", six * p * Quantity(300e9, "", "tokens"), 3.14e23);
  r.add("gpt3-175b, bf16", p * bf16, 350e9);
  for (const char* const name : {"tpu-v5e", "a100-80"}) {
    const Quantity memory(chip(name).memory_bytes, "B", "M", name);
    r.add(cat({"gpt3-175b, ", name, " for the weights"}), ceil(p * bf16 / memory),
          memory.value() < 20e9 ? 22 : 5);
  }
  const Quantity flops(palm_flops_per_token(config("palm-540b"), 2048), "FLOP", "6 N + 12 L H K T",
                       "a token of palm-540b");
  r.add("palm-540b, MFU",
        Quantity(238.3e3, "1/s", "tokens/s") * flops /
            (Quantity(6144, "", "chips") * peak_of(chip("tpu-v4"), DType::bf16)),
        0.462);
  const struct {
    const char* name;
    double hours, claimed;
  } runs[] = {
      {"llama2-7b", 184320, 0.39}, {"llama2-13b", 368640, 0.38}, {"llama2-70b", 1720320, 0.43}};
  for (const auto& run : runs) {
    r.add(cat({run.name, ", MFU"}),
          six * parameters(run.name) * Quantity(2e12, "", "tokens") /
              (Quantity(run.hours, "h", "A100 hours") * Quantity(3600, "s/h") *
               peak_of(chip("a100-80"), DType::bf16)),
          run.claimed);
  }
  r.add("llama3.1-405b, training",
        six * parameters("llama3.1-405b") * Quantity(15.6e12, "", "tokens"), 3.8e25);
  const auto smaller = [&](const char* name, double claimed) {
    ModelConfig all = config(name);
    const double kept = kv_cache_bytes_per_token(all, DType::bf16);
    all.kv_heads = all.heads;
    all.kv_lora_rank = all.q_lora_rank = all.rope_head = all.value_head = 0;
    r.add(cat({name, ", cache smaller than multi-head"}),
          Quantity(kv_cache_bytes_per_token(all, DType::bf16), "B", "all heads") /
              Quantity(kept, "B", "kept a token"),
          claimed);
  };
  smaller("palm-540b", 48);
  smaller("llama2-70b", 8);
  smaller("deepseek-v3", 56.9);
  const Chip e = chip("tpu-v5e");
  r.add("sd2.1, images/s of a v5e at most",
        peak_of(e, DType::bf16) /
            (Quantity(50, "", "steps") * Quantity(2, "", "guidance") *
             Quantity(0.75e12, "FLOP", "U-Net, 512 px", "0.7 to 0.8e12, approximate")));
  FaultyJob job;
  job.devices = 4096;
  const double mean = mean_time_between_failures(job), every = young_interval(job);
  r.add("goodput, first order",
        Quantity(1) -
            (Quantity(job.restart_seconds, "s", "restart") +
             Quantity(every, "s", "interval", "sqrt(2 write MTBF)") / Quantity(2)) /
                Quantity(mean, "s", "MTBF") -
            Quantity(job.save_seconds, "s", "write") / Quantity(every, "s", "interval"));
  r.formula("goodput, exact", "expected_goodput", expected_goodput(job, every), "",
            r.row("goodput, first order").ours);
  r.simulated("goodput, run", "1,000 checkpoints with failures at random",
              simulate_goodput(job, every, 1000).goodput(), "", r.row("goodput, exact").ours);
  r.assumptions = {
      "goodput: 4096 chips, a failure each 50,000 chip hours, saves of 10 s, restarts "
      "of 300 s: the story of Gemini without its figures",
      "sd2.1: at peak; a rate that is reached lies below"};
  r.caveats = {"mixtures: how evenly a router spreads tokens is not in a config"};
  return r;
}

inline ClaimReport claim_unknown() {
  ClaimReport r =
      claim_of("Milliseconds of named services, image rates, Gemini's sizes, watts of later TPUs.",
               Verdict::unknown, "no public figures to start from; nothing is made up");
  r.formula("latency of a vendor's service", "queues, batching and hosts are not public", no_figure,
            "s");
  r.formula("sd2.1, images/s as a vendor prints", "utilisation is not public", no_figure, "1/s");
  double gemini = no_figure;
  try {
    gemini = double(config("gemini").parameters());
  } catch (const Error&) {  // no such preset: no figure
  }
  r.formula("gemini, parameters", "no preset: architecture not published", gemini);
  for (const char* const name : {"tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-v7"}) {
    const double watts = chip(name).watts;
    r.formula(cat({name, ", watts"}), watts > 0 ? "preset" : "empty in the chip table",
              watts > 0 ? watts : no_figure, "W");
  }
  for (const char* const name : {"b200", "gb200", "h100-pcie"}) {
    const double price = chip(name).dollars_per_hour;
    r.formula(cat({name, ", price"}), price > 0 ? "preset" : "empty in the chip table",
              price > 0 ? price : no_figure, "USD/h");
  }
  return r;
}

}  // namespace detail
}  // namespace tinyscale
