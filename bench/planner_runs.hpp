#pragma once
// Published training runs as jobs that the planner prices: machine, layout, software.
// What a source leaves open is decided here, the same way for all sources, in one place.

#include <cmath>
#include <string>
#include <vector>

#include "../tests/published_runs.hpp"

namespace planner {

namespace ts = tinyscale;

struct Run {
  published::PublishedRun from;
  std::string source;  // a short name; runs of one source are left out together
  ts::StepJob job;
  ts::Machine machine;
  ts::Layout layout;
  int chunks = 1;
  double step = 0;      // seconds, as published or from what is
  std::string skipped;  // why it is not priced
};

inline bool has(const std::string& text, const char* word) { return published::has(text, word); }

// Which program ran, by source and year.
inline ts::Software software_of(const published::PublishedRun& run) {
  const std::string& s = run.source;
  if (has(s, "bigscience") || has(run.layout.text, "DeepSpeed") || has(s, "MT-NLG") ||
      has(s, "NeoX")) {
    return ts::software_deepspeed_2022();
  }
  if (has(s, "Narayanan") || has(s, "Korthikanti") || has(s, "OPT") ||
      has(s, "Megatron-LM README @")) {
    return ts::software_megatron_2021();
  }
  return has(s, "mosaicml") || has(s, "InternEvo") ? ts::software_eager_fsdp() : ts::Software();
}

inline std::string source_of(const published::PublishedRun& run) {
  const std::size_t dash = run.id.find('-');
  std::string name = run.id.substr(0, dash);
  if (name == "maxtext") {
    name = run.id.substr(0, run.id.find('-', dash + 1));
  }
  return name;
}

// The machine with the network that the source names; a slice of a TPU as near a cube as it gets.
inline ts::Machine machine_of(const published::PublishedRun& run) {
  ts::Chip chip = run.hardware.chip();
  const auto chips = static_cast<std::int64_t>(run.chips);
  if (run.hardware.node_network_bandwidth > 0 && run.hardware.node_chips > 0) {
    chip.dcn_bandwidth =
        run.hardware.node_network_bandwidth / static_cast<double>(run.hardware.node_chips);
  }
  if (chip.kind == "gpu") {
    std::int64_t domain = chips < chip.domain_chips ? chips : chip.domain_chips;
    while (chips % domain != 0) {
      --domain;
    }
    return domain == chips ? ts::machine(chip, {chips})
                           : ts::machine(chip, {chips / domain, domain});
  }
  const std::int64_t slices = run.hardware.slices, slice = chips / slices;
  ts::Shape dims;
  if (slices > 1) {
    dims.push_back(slices);
  }
  const int axes = chip.topology == "torus3d" ? 3 : 2;
  std::int64_t left = slice;
  for (int i = axes; i > 0; --i) {
    auto side = static_cast<std::int64_t>(std::pow(static_cast<double>(left), 1.0 / i) + 1e-9);
    while (side > 1 && left % side != 0) {
      --side;
    }
    dims.push_back(side);
    left /= side;
  }
  return ts::machine(chip, dims);
}

// Seconds of a step from TFLOP/s, by the convention that the source names.
inline double step_from_flops(const published::PublishedRun& run) {
  const published::Figure* const figure = run.find("TFLOP/s/chip");
  if (figure == nullptr || !(run.batch_tokens() > 0)) {
    return 0;
  }
  const ts::ModelConfig& m = run.model;
  const auto megatron = [&](ts::MegatronFlops form) {
    return ts::megatron_flops_per_token(form, static_cast<double>(m.layers),
                                        static_cast<double>(m.width), run.context,
                                        static_cast<double>(m.vocabulary));
  };
  const std::string& convention = figure->convention;
  const double flops =
      has(convention, "megatron96")     ? megatron(ts::MegatronFlops::megatron96)
      : has(convention, "megatron72")   ? megatron(ts::MegatronFlops::megatron72)
      : has(convention, "maxtext-2024") ? ts::maxtext2024_flops_per_token(m, run.context)
      : has(convention, "maxtext")      ? ts::maxtext2025_flops_per_token(m, run.context)
                                        : 0;
  return flops * run.batch_tokens() / (figure->value * 1e12 * run.chips);
}

inline bool states_layout(const published::PublishedRun& run) { return run.layout.known; }

inline Run run_of(const published::PublishedRun& from) {
  Run run;
  run.from = from;
  run.source = source_of(from);
  const auto skip = [&](const char* why) {
    run.skipped = why;
    return run;
  };
  if (from.hardware.preset.empty()) {
    return skip("no preset of its chip");
  }
  const double printed = from.step_seconds();
  run.step = printed > 0 ? printed : step_from_flops(from);
  const bool memory = from.find("memory: peak on first/last node") != nullptr ||
                      from.find("memory: peak per device") != nullptr || from.out_of_memory();
  if (!(from.global_batch_seqs > 0) || !(from.context > 0) || (!(run.step > 0) && !memory)) {
    return skip("no step time, or no batch");
  }
  run.job.model = from.model;
  run.job.model.context = static_cast<std::int64_t>(from.context);
  run.job.context = from.context;
  run.job.batch = from.global_batch_seqs;
  run.job.format = from.format;
  run.job.software = software_of(from);
  run.machine = machine_of(from);
  run.job.gradient_bytes = ts::detail::wire_gradient_bytes(run.job.software, run.machine.chip);
  const published::RunLayout& l = from.layout;
  run.layout = l.layout();
  run.chunks = static_cast<int>(l.virtual_pipeline);
  run.layout.recompute = from.recompute;
  const bool current = run.job.software.hides_tensor;
  run.layout.sequence_parallel =
      l.sequence_parallel || (current && l.tensor > 1 && !l.no_sequence_parallel);
  if (current && run.layout.zero == ts::Zero::none && l.known && l.data > 1) {
    run.layout.zero = ts::Zero::optimizer;
  }
  if (l.expert > 1) {  // dealt out over tensor and data devices; here those of one tensor rank
    run.layout.expert = l.expert > l.tensor ? l.expert / l.tensor : 1;
    run.layout.whole_experts = l.tensor > 1 && run.layout.sequence_parallel;
  }
  const double each = from.micro_batch * static_cast<double>(l.data);
  const bool one_go = run.machine.chip.kind == "tpu" || !(from.micro_batch > 0);
  const bool sharded = run.layout.zero == ts::Zero::parameters;
  run.layout.microbatches =
      one_go && (run.machine.chip.kind == "tpu" || sharded)
          ? 1
          : static_cast<std::int64_t>(
                from.global_batch_seqs / (one_go ? static_cast<double>(l.data) : each) + 0.5);
  if (has(from.source, "torchtitan") && l.pipeline > 1) {
    run.layout.microbatches = static_cast<std::int64_t>(from.global_batch_seqs) / l.data;
  }
  if (!l.known) {
    return skip("the source states no layout");
  }
  if (run.layout.devices() != run.machine.chips()) {
    return skip("its layout is not of its chips");
  }
  if (from.hardware.peak_unknown) {
    return skip("the peak of its chip is not known");
  }
  if (!(run.step > 0)) {
    return skip("memory alone");
  }
  return run;
}

// Bytes of the fullest device. FP16 of 2022 keeps 2-byte gradients; torchtitan trains f32 states.
inline ts::StepMemory memory_of(const Run& run) {
  ts::MemoryConvention by;
  const bool titan = has(run.from.source, "torchtitan");
  by.states = titan ? ts::StateBytes::f32 : ts::StateBytes::mixed;
  by.logit_bytes = titan ? 10 : 14;
  by.selective_by_op = titan;
  ts::Layout layout = run.layout;
  layout.zero = titan ? ts::Zero::parameters : layout.zero;
  const double replicas = static_cast<double>(layout.data * layout.microbatches);
  const double microbatch = run.job.batch / replicas;
  ts::Software software = run.job.software;
  if (titan) {
    software.wasted = run.from.layout.compiled ? 0 : 0.15;
  }
  return ts::step_memory(run.job.model, layout, run.machine.chip, run.job.context, microbatch,
                         run.chunks, software, by);
}

// What the planner refuses is not priced, and says why.
inline std::vector<Run> read_runs() {
  std::vector<Run> runs;
  for (const published::PublishedRun& from : published::read_runs()) {
    Run run;
    try {
      run = run_of(from);
      if (run.skipped.empty()) {
        ts::price_step(run.job, run.machine, run.layout, run.chunks);
      }
    } catch (const ts::Error& error) {
      run = Run();
      run.from = from;
      run.source = source_of(from);
      run.skipped = error.what();
    }
    runs.push_back(run);
  }
  return runs;
}

}  // namespace planner
