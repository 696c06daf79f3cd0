#pragma once
// A training job: what is to be trained, with what is left open decided and said.

#include <algorithm>  // max
#include <cmath>      // floor
#include <cstdint>    // std::int64_t
#include <string>     // text
#include <vector>     // notes

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/hardware/network.hpp"
#include "tinyscale/parallel/goodput.hpp"
#include "tinyscale/plan/efficiency.hpp"
#include "tinyscale/plan/step_cost.hpp"
#include "tinyscale/plan/transformer_math.hpp"

namespace tinyscale {

struct TrainingJob {
  ModelConfig model;
  double tokens = 0;  // 0: the preset's published count, else 20 for each parameter
  double batch_tokens = 4e6;
  std::int64_t context = 0;  // 0: the model's
  DType format = DType::bf16;
  StateBytes state = StateBytes::mixed;  // 16 bytes a parameter
  Software software;
  double typical_mfu = 0;  // of 6 N FLOPs; 0: what the layout reaches by its causes
  double device_hours_per_failure = 50000;  // Llama 3 (arXiv 2407.21783); 0: nothing fails
  double save_seconds = 30, restart_seconds = 600;
};

namespace detail {

// The job with its open fields decided, and the sentences that say how.
struct TrainingInputs {
  TrainingJob job;
  Machine machine;
  double tokens = 0, batch = 0, context = 0, sequences = 0;
  std::vector<std::string> notes;

  StepJob step() const {
    StepJob s;
    s.model = job.model;
    s.context = context;
    s.batch = sequences;
    s.format = job.format;
    s.software = job.software;
    s.gather_bytes = activation_bytes(job.format);  // 16 bits, or all 32
    s.gradient_bytes = std::max(s.gather_bytes, wire_gradient_bytes(job.software, machine.chip));
    return s;
  }
};

inline void check_training(const TrainingJob& job, const Machine& machine) {
  if (job.model.vocabulary == 0 && job.model.layers > 0) {
    fail({"plan_training: ", job.model.name,
          " has no vocabulary: it is no language model, which alone is planned"});
  }
  job.model.validate();
  if (machine.dims.size() == 0 || machine.chips() < 1) {
    detail::fail(
        {"plan_training: the machine has no chips; make one with machine(\"tpu-v5p\", "
         "{4, 4, 4})"});
  }
  check_network("plan_training", machine);
  const char* const who = "plan_training";
  check_job(who, "batch_tokens", job.batch_tokens, 1, 1e18);
  check_job(who, "tokens", job.tokens, 0, 1e30);  // 0: the plan chooses
  check_job(who, "model.training_tokens", job.model.training_tokens, 0, 1e30);
  check_job(who, "context", static_cast<double>(job.context), 0, 1e9);
  check_job(who, "typical_mfu", job.typical_mfu, 0, 1);
  check_job(who, "device_hours_per_failure", job.device_hours_per_failure, 0, 1e12);
  check_job(who, "save_seconds", job.save_seconds, 0, 1e9);
  check_job(who, "restart_seconds", job.restart_seconds, 0, 1e9);
  check_chip_figures(who, machine);
  check_job(who, "software.system_bytes", job.software.system_bytes, 0, 1e18);
  check_job(who, "software.wasted", job.software.wasted, 0, 10);
  check_job(who, "software.gradient_bytes", job.software.gradient_bytes, 0, 8);
  if (machine.chips() > std::int64_t{1} << 22) {
    fail({who, ": ", machine.name, " has ", machine.chips(), " chips; at most ",
          std::int64_t{1} << 22, " are planned"});
  }
}

inline TrainingInputs training_inputs(const TrainingJob& job, const Machine& machine) {
  check_training(job, machine);
  TrainingInputs in{job, machine, job.tokens, 0, 0, 0, {}};
  const double parameters = static_cast<double>(job.model.active_parameters());
  if (in.tokens == 0 && job.model.training_tokens > 0) {
    in.tokens = job.model.training_tokens;
    in.notes.push_back(
        cat({"tokens: ", format_count(in.tokens), ", as published for ", job.model.name}));
  } else if (in.tokens == 0) {
    in.tokens = 20 * parameters;
    in.notes.push_back(
        cat({"tokens: assumed 20 for each parameter (Chinchilla), ", format_count(in.tokens)}));
  }
  in.context = static_cast<double>(job.context > 0 ? job.context : job.model.context);
  if (job.model.position == Position::learned &&
      in.context > static_cast<double>(job.model.context)) {
    in.notes.push_back(cat({"positions: ", job.model.name, " has learned ",
                            format_count(static_cast<double>(job.model.context)), "; counted with ",
                            format_count(in.context)}));
  }
  in.job.model.context = static_cast<std::int64_t>(in.context);
  in.sequences = std::max(1.0, std::floor(job.batch_tokens / in.context + 0.5));
  in.batch = in.sequences * in.context;
  if (in.tokens < in.batch) {
    in.notes.push_back(
        cat({"tokens: ", format_count(in.tokens), " are fewer than a batch; one step"}));
    in.tokens = in.batch;
  }
  if (machine.chip.memory_bytes == 0) {
    in.notes.push_back(
        cat({"memory: ", machine.chip.name, " states no memory_bytes, so no layout is too large"}));
  }
  if (machine.chip.memory_bandwidth == 0) {
    in.notes.push_back(cat({"memory: ", machine.chip.name,
                            " states no memory_bandwidth, so what memory bounds takes no time"}));
  }
  if (in.batch != job.batch_tokens) {
    in.notes.push_back(cat({"batch: ", format_count(job.batch_tokens), " tokens rounded to ",
                            format_count(in.sequences), " sequences of ", format_count(in.context),
                            " = ", format_count(in.batch)}));
  }
  return in;
}

}  // namespace detail
}  // namespace tinyscale
