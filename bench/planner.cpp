// How near are the planner's step times to published runs? Two numbers for each: the limit, which
// no run may beat, and the typical time at one set of efficiencies for all sources. The set is
// fitted by --fit, from round numbers and with a price on leaving them; --sources fits it
// again without each source and prices that source with what the others say.
//   make bench ONLY=planner ARGS="--fit --sources --runs"
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "options.hpp"
#include "planner_runs.hpp"

namespace {

namespace ts = tinyscale;
using planner::Run;

// A number that is fitted: from which round one, and between what bounds.
struct Knob {
  const char* name;
  double ts::Efficiency::*value;
  double start, low, high;
};

const Knob knobs[] = {
    {"matmul", &ts::Efficiency::matmul, 0.92, 0.7, 1},
    {"matmul_hopper", &ts::Efficiency::matmul_hopper, 0.87, 0.6, 1},
    {"matmul_blackwell", &ts::Efficiency::matmul_blackwell, 0.87, 0.6, 1},
    {"matmul_tpu", &ts::Efficiency::matmul_tpu, 0.9, 0.7, 1.03},
    {"matmul_tpu_fp8", &ts::Efficiency::matmul_tpu_fp8, 0.65, 0.4, 1},
    {"waves", &ts::Efficiency::waves, 0.6, 0.3, 1.5},
    {"attention", &ts::Efficiency::attention, 0.45, 0.2, 0.8},
    {"attention_tpu", &ts::Efficiency::attention_tpu, 0.3, 0.15, 0.8},
    {"score_matmul", &ts::Efficiency::score_matmul, 0.4, 0.15, 0.9},
    {"odd_heads", &ts::Efficiency::odd_heads, 0.2, 0.1, 0.4},
    {"score_passes", &ts::Efficiency::score_passes, 8, 4, 12},
    {"memory", &ts::Efficiency::memory, 0.85, 0.6, 0.95},
    {"unfused", &ts::Efficiency::unfused, 3, 1, 5},
    {"tpu_elementwise", &ts::Efficiency::tpu_elementwise, 1, 0.5, 3},
    {"fp8_casts", &ts::Efficiency::fp8_casts, 1.5, 0, 4},
    {"logit_passes", &ts::Efficiency::logit_passes, 9, 4, 14},
    {"inner_links", &ts::Efficiency::inner_links, 0.9, 0.5, 0.95},
    {"outer_links", &ts::Efficiency::outer_links, 0.9, 0.5, 0.98},
    {"waiting_outer_links", &ts::Efficiency::waiting_outer_links, 0.5, 0.25, 0.95},
    {"slice_links", &ts::Efficiency::slice_links, 0.65, 0.4, 1},
    {"exchange_outer", &ts::Efficiency::exchange_outer, 0.75, 0.4, 0.95},
    {"hop", &ts::Efficiency::hop, 2e-05, 1e-6, 6e-5},
    {"hidden_tensor", &ts::Efficiency::hidden_tensor, 0.8, 0, 0.95},
    {"hidden_tensor_tpu", &ts::Efficiency::hidden_tensor_tpu, 0.8, 0.3, 1},
    {"hidden_expert", &ts::Efficiency::hidden_expert, 0.3, 0, 0.8},
    {"exposed_gather", &ts::Efficiency::exposed_gather, 0.5, 0.2, 0.9},
    {"exposed_gather_tpu", &ts::Efficiency::exposed_gather_tpu, 0.1, 0, 0.5},
    {"gather_beside", &ts::Efficiency::gather_beside, 0.2, 0.1, 0.5},
    {"transfer", &ts::Efficiency::transfer, 0.7, 0.3, 1.2},
    {"recompute", &ts::Efficiency::recompute, 0.85, 0.7, 1},
    {"recompute_tpu", &ts::Efficiency::recompute_tpu, 0.7, 0.5, 1},
    {"layer_wait", &ts::Efficiency::layer_wait, 0.008, 0, 2e-2},
    {"jitter", &ts::Efficiency::jitter, 0.01, 0, 0.02},
};
const double price_of_leaving = 0.01;  // of a whole range, in squared relative errors

std::size_t runs_of(const std::vector<Run>& runs, const std::string& source) {
  std::size_t n = 0;
  for (const Run& run : runs) {
    n += run.source == source ? 1 : 0;
  }
  return n;
}

double typical(const Run& run, const ts::Efficiency& e) {
  return ts::price_step(run.job, run.machine, run.layout, run.chunks, e).typical.total();
}

// Squared relative errors, linear above 20 %, a source weighing as the root of its runs.
double loss(const std::vector<Run>& runs, const ts::Efficiency& e, const std::string& without) {
  double sum = 0, weights = 0;
  for (const Run& run : runs) {
    if (run.source != without) {
      const double error = std::fabs(std::log(typical(run, e) / run.step));
      const double weight = 1 / std::sqrt(static_cast<double>(runs_of(runs, run.source)));
      sum += weight * (error < 0.2 ? 5 * error * error : 2 * error - 0.2);
      weights += weight;
    }
  }
  double leaving = 0;
  for (const Knob& knob : knobs) {
    const double far = (e.*knob.value - knob.start) / (knob.high - knob.low);
    leaving += far * far;
  }
  return sum / weights + price_of_leaving * leaving;
}

// Knob by knob, a step up or down, longer after success and shorter after failure.
ts::Efficiency fit(const std::vector<Run>& runs, const std::string& without, int rounds) {
  ts::Efficiency e;
  for (const Knob& knob : knobs) {
    e.*knob.value = knob.start;
  }
  double best = loss(runs, e, without);
  std::vector<double> steps(std::size(knobs), 0.1);
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const Knob& knob = knobs[i];
      bool better = false;
      for (const double sign : {1.0, -1.0}) {
        ts::Efficiency trial = e;
        const double moved = e.*knob.value + sign * steps[i] * (knob.high - knob.low);
        trial.*knob.value = std::min(knob.high, std::max(knob.low, moved));
        const double value = loss(runs, trial, without);
        if (value < best) {
          best = value;
          e = trial;
          better = true;
          break;
        }
      }
      steps[i] = std::min(0.3, std::max(0.002, steps[i] * (better ? 1.3 : 0.6)));
    }
  }
  return e;
}

struct Errors {
  std::vector<double> all;

  void add(double error) { all.push_back(std::fabs(error)); }
  std::string text() {
    std::sort(all.begin(), all.end());
    double sum = 0;
    for (const double error : all) {
      sum += error;
    }
    return "median " + ts::format_percent(all[all.size() / 2]) + ", mean " +
           ts::format_percent(sum / static_cast<double>(all.size()));
  }
};

std::vector<std::string> sources_of(const std::vector<Run>& runs) {
  std::vector<std::string> names;
  for (const Run& run : runs) {
    if (std::find(names.begin(), names.end(), run.source) == names.end()) {
      names.push_back(run.source);
    }
  }
  return names;
}

// Layouts of BLOOM 181B, 25 and 26 February: pairs whose times a sequence differ by over 3 %.
bool asked_verbose = false;
void print_pairs(const std::vector<Run>& runs, const ts::Efficiency& e) {
  int right[2] = {0, 0}, pairs[2] = {0, 0};
  for (const Run& a : runs) {
    for (const Run& b : runs) {
      const auto counted = [](const Run& run) {
        const published::Figure* const step = run.from.find("step time");
        return run.from.id.rfind("bloom-tune", 0) == 0 && run.from.model.layers == 72 &&
               step != nullptr &&
               (planner::has(step->notes, "02-25") || planner::has(step->notes, "02-26"));
      };
      if (&a >= &b || !counted(a) || !counted(b)) {
        continue;
      }
      const double ran = a.step / a.job.batch / (b.step / b.job.batch);
      const double said = typical(a, e) / a.job.batch / (typical(b, e) / b.job.batch);
      const bool noise = a.from.model.heads != b.from.model.heads ||
                         planner::has(a.from.find("step time")->notes, "OUTLIER") ||
                         planner::has(b.from.find("step time")->notes, "OUTLIER");
      if (std::fabs(ran - 1) > 0.03 && asked_verbose && (ran > 1) != (said > 1)) {
        std::printf("  %s %s: ran %.3f said %.3f\n", a.from.id.c_str(), b.from.id.c_str(), ran,
                    said);
      }
      if (std::fabs(ran - 1) > 0.03) {
        for (int set = noise ? 1 : 0; set < 2; ++set) {
          ++pairs[set];
          right[set] += (ran > 1) == (said > 1) ? 1 : 0;
        }
      }
    }
  }
  std::printf(
      "BLOOM layouts of one model, pairs more than 3 %% apart ranked right: %d of %d = %.1f %%; "
      "with "
      "other head counts and the run marked as noise %d of %d = %.1f %%\n",
      right[0], pairs[0], 100.0 * right[0] / std::max(1, pairs[0]), right[1], pairs[1],
      100.0 * right[1] / std::max(1, pairs[1]));
}

void print_runs(const std::vector<Run>& runs, const ts::Efficiency& e) {
  ts::Table table;
  table.columns = {"run",    "published", "limit",     "of it",       "bound",     "typical",
                   "error",  "matmul",    "attention", "elementwise", "head",      "again",
                   "tensor", "expert",    "bubble",    "gather",      "gradients", "rest"};
  for (const Run& run : runs) {
    const ts::StepPrice p = ts::price_step(run.job, run.machine, run.layout, run.chunks, e);
    const ts::StepCost& t = p.typical;
    const double all = t.total(), limit = p.limit.total();
    std::vector<std::string> row = {run.from.id,
                                    ts::format_fixed(run.step, 2),
                                    ts::format_fixed(limit, 2),
                                    ts::format_percent(limit / run.step),
                                    p.limit.bound(),
                                    ts::format_fixed(all, 2),
                                    ts::format_fixed(100 * (all / run.step - 1), 1)};
    const double parts[] = {t.matmul,
                            t.attention,
                            t.elementwise,
                            t.head,
                            t.recompute,
                            t.tensor,
                            t.expert,
                            t.bubble,
                            t.gather,
                            t.gradients,
                            t.context + t.transfer + t.update + t.waiting + t.jitter};
    for (const double part : parts) {
      row.push_back(ts::format_fixed(100 * part / all, 1));
    }
    table.add(row);
  }
  std::cout << table << "\n";
}

// From the limit to the published time, in shares of the published time, the mean of a source.
void print_ledger(const std::vector<Run>& runs, const ts::Efficiency& e) {
  ts::Table table;
  table.title = "from the limit to the run, % of the run";
  table.columns = {"source",   "limit",  "compute below the peak", "elementwise",
                   "messages", "bubble", "update, host, jitter",   "not explained"};
  for (const std::string& source : sources_of(runs)) {
    double parts[7] = {}, n = 0;
    for (const Run& run : runs) {
      if (run.source == source) {
        const ts::StepPrice p = ts::price_step(run.job, run.machine, run.layout, run.chunks, e);
        const ts::StepCost& t = p.typical;
        const double limit = p.limit.total();
        const double math = p.limit.math + p.limit.bubble;  // what else bounds the limit hides it
        const double row[7] = {
            limit,
            t.matmul + t.attention + t.head + t.recompute - p.limit.math - (limit - math),
            t.elementwise,
            t.tensor + t.context + t.expert + t.transfer + t.gather + t.gradients,
            t.bubble - p.limit.bubble,
            t.update + t.waiting + t.jitter,
            run.step - t.total()};
        for (int i = 0; i < 7; ++i) {
          parts[i] += row[i] / run.step;
        }
        n += 1;
      }
    }
    std::vector<std::string> row = {source};
    for (const double part : parts) {
      row.push_back(ts::format_fixed(100 * part / n, 1));
    }
    table.add(row);
  }
  std::cout << table;
}

// Runs whose source states no layout, beside the best that the search finds for them.
void print_searched(const std::vector<Run>& runs) {
  ts::Table table;
  table.title = "layout not stated: the best that is found";
  table.columns = {"run", "published", "limit", "typical", "run / typical", "layout"};
  for (const Run& run : runs) {
    if (run.skipped != "the source states no layout" || !(run.step > 0)) {
      continue;
    }
    ts::TrainingJob job;
    job.model = run.job.model;
    job.context = static_cast<std::int64_t>(run.job.context);
    job.batch_tokens = run.job.batch * run.job.context;
    job.format = run.job.format;
    const ts::TrainingPlan plan = ts::plan_training(job, run.machine);
    table.add({run.from.id, ts::format_fixed(run.step, 2), ts::format_fixed(plan.best.step_time, 2),
               ts::format_fixed(plan.best.typical_time, 2),
               ts::format_fixed(run.step / plan.best.typical_time, 2), plan.best.text()});
  }
  std::cout << table;
}

// Peaks that sources print, and the run that ran out of memory.
void print_memory(const std::vector<Run>& runs) {
  ts::Table table;
  table.columns = {"run",      "published",   "planned",    "error",  "states",
                   "gathered", "activations", "recomputed", "logits", "besides"};
  int within = 0, all = 0, verdicts = 0, right = 0;
  for (const Run& run : runs) {
    double published = 0;
    for (const char* metric : {"memory: peak on first/last node", "memory: peak per device"}) {
      const published::Figure* const figure = run.from.find(metric);
      published = figure != nullptr ? figure->value * (figure->unit == "GiB" ? 1073741824.0 : 1e9)
                                    : published;
    }
    const bool oom = run.from.out_of_memory();
    if ((!(published > 0) && !oom) || run.machine.dims.size() == 0) {
      continue;
    }
    const ts::StepMemory m = planner::memory_of(run);
    const double total = m.total(), holds = run.machine.chip.memory_bytes;
    ++verdicts;
    right += (total > holds) == oom ? 1 : 0;
    if (!oom) {
      ++all;
      within += std::fabs(total / published - 1) <= 0.1 ? 1 : 0;
    }
    table.add({run.from.id, oom ? "out of memory" : ts::format_bytes(published),
               ts::format_bytes(total),
               oom ? "-" : ts::format_fixed(100 * (total / published - 1), 1),
               ts::format_bytes(m.parts.states()), ts::format_bytes(m.parts.gathered),
               ts::format_bytes(m.parts.activations), ts::format_bytes(m.parts.recomputed),
               ts::format_bytes(m.parts.logits), ts::format_bytes(m.wasted + m.system)});
  }
  std::cout << table << "memory within 10 %: " << within << " of " << all
            << "; fits or does not, said right: " << right << " of " << verdicts << "\n";
}

// What planning takes on one core: medians of several.
void print_speed() {
  const auto median_of = [](int times, const auto& work) {
    std::vector<double> seconds;
    for (int i = 0; i < times; ++i) {
      const double begin = ts::detail::seconds_now();
      work();
      seconds.push_back(ts::detail::seconds_now() - begin);
    }
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
  };
  ts::Table table;
  table.columns = {"speed, one core", "measured", "target"};
  ts::TrainingJob job;
  job.model = ts::config("llama3-70b");
  job.context = 8192;
  job.batch_tokens = 4194304;
  const ts::Machine pod = ts::machine("tpu-v5p", {16, 16, 32});
  ts::Layout layout;
  layout.data = 512;
  layout.tensor = 16;
  layout.zero = ts::Zero::parameters;
  table.add({"one training plan",
             ts::format_seconds(median_of(101, [&] { ts::plan_training(job, pod, layout); })),
             "100 us"});
  const char* const models[] = {"llama3-70b", "llama3.1-405b", "deepseek-v3"};
  for (const char* const model : models) {
    job.model = ts::config(model);
    job.context = 4096;
    job.batch_tokens = 33554432;
    table.add(
        {std::string("search, 16,384 H100, ") + model,
         ts::format_seconds(median_of(3,
                                      [&] {
                                        ts::plan_training(job, ts::machine("h100", {2048, 8}));
                                      })),
         "1 s"});
  }
  ts::ServingJob serve;
  serve.model = ts::config("llama3-70b");
  serve.prompt = 1024;
  serve.batch = 64;
  serve.format = ts::DType::int8;
  const ts::ServingPlan plan = ts::plan_serving(serve, ts::machine("tpu-v5e", {4, 4}));
  table.add({"one serving plan",
             ts::format_seconds(median_of(101,
                                          [&] {
                                            ts::plan_serving(serve, ts::machine("tpu-v5e", {4, 4}));
                                          })),
             "100 us"});
  ts::PoissonTraffic traffic;
  traffic.requests = 1000000;
  traffic.requests_per_second = 6;
  traffic.least_prompt = 256;
  traffic.most_prompt = 1792;
  traffic.least_output = 1;
  traffic.most_output = 511;
  table.add({"a million requests served",
             ts::format_seconds(
                 median_of(1, [&] { ts::simulate_serving(ts::poisson_traffic(traffic), plan); })),
             "10 s"});
  std::cout << table << "\n";
}

}  // namespace

int main(int count, char** words) {
  bool fit_again = false, by_source = false, all = false, pairs = false;
  bench::read_options(count, words,
                      {bench::flag("--fit", &fit_again), bench::flag("--sources", &by_source),
                       bench::flag("--runs", &all), bench::flag("--pairs", &pairs)});
  print_speed();
  std::vector<Run> runs;
  std::vector<std::string> skipped;
  const std::vector<Run> all_runs = planner::read_runs();
  for (const Run& run : all_runs) {
    if (run.skipped.empty()) {
      runs.push_back(run);
    } else {
      skipped.push_back(run.from.id + ": " + run.skipped);
    }
  }
  if (runs.empty()) {
    std::cout << "no table of published runs: ../shared/cases/published-runs.tsv, or set "
                 "TINYSCALE_SHARED\n";
    return 0;
  }
  const ts::Efficiency e = fit_again ? fit(runs, "", 60) : ts::typical_efficiency();
  if (fit_again) {
    for (const Knob& knob : knobs) {
      std::printf("%s %.3g\n", knob.name, e.*knob.value);
    }
  }
  if (all) {
    print_runs(runs, e);
    for (const std::string& line : skipped) {
      std::cout << "not priced: " << line << "\n";
    }
  }
  ts::Table table;
  table.columns = {"source",
                   "runs",
                   "nearest to its limit",
                   "typical: mean error",
                   "bias",
                   "left out: mean error",
                   "bias"};
  Errors here, out;
  int beaten = 0;
  for (const std::string& source : sources_of(runs)) {
    const bool again = by_source;
    const ts::Efficiency others = again ? fit(runs, source, 60) : e;
    double nearest = 0, sum = 0, bias = 0, out_sum = 0, out_bias = 0, n = 0;
    for (const Run& run : runs) {
      if (run.source == source) {
        const ts::StepPrice p = ts::price_step(run.job, run.machine, run.layout, run.chunks, e);
        const double error = p.typical.total() / run.step - 1,
                     left = typical(run, others) / run.step - 1;
        here.add(error);
        out.add(left);
        nearest = std::max(nearest, p.limit.total() / run.step);
        beaten += p.limit.total() > run.step ? 1 : 0;
        sum += std::fabs(error);
        bias += error;
        out_sum += std::fabs(left);
        out_bias += left;
        n += 1;
      }
    }
    const auto percent = [](double x) { return ts::format_fixed(100 * x, 1) + " %"; };
    table.add({source, ts::format_count(n), percent(nearest), percent(sum / n), percent(bias / n),
               again ? percent(out_sum / n) : "-", again ? percent(out_bias / n) : "-"});
  }
  std::cout << table;
  std::cout << "runs that beat their limit: " << beaten << " of " << runs.size() << "\n";
  std::cout << "typical: " << here.text() << "\n";
  if (by_source) {
    std::cout << "each source left out: " << out.text() << "\n";
  }
  asked_verbose = pairs;
  print_pairs(runs, e);
  print_ledger(runs, e);
  print_searched(all_runs);
  print_memory(all_runs);
  return 0;
}
