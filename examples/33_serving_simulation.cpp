// How long do users wait? Requests arrive at random at a server of Llama 3 70B on 16 v5e that
// batches continuously; the same traffic then with whole prompts in one step, with prefill on
// servers of its own, and with a shared beginning whose cache is kept. You see how the time to the
// first token grows with load, and what cutting prompts does to the gaps between tokens.
//   g++ -std=c++17 -O2 -pthread -I. examples/33_serving_simulation.cpp -o 33_sim && ./33_sim
#include <iostream>

#include "tinyscale.hpp"

namespace ts = tinyscale;

int main() {
  ts::ServingJob job;
  job.model = ts::config("llama3-70b");
  job.prompt = 1024;
  job.output = 256;
  job.batch = 64;
  job.format = ts::DType::int8;
  const ts::ServingPlan plan = ts::plan_serving(job, ts::machine("tpu-v5e", {4, 4}));

  ts::PoissonTraffic poisson;
  poisson.requests = 5000;
  poisson.least_prompt = 256;
  poisson.most_prompt = 1792;
  poisson.least_output = 1;
  poisson.most_output = 511;

  ts::Table load;
  load.title = "Load: " + plan.sharding().name;
  load.columns = {"requests/s",  "TTFT p50, simulated", "TTFT p99",
                  "a token p50", "a token p99",         "busy",
                  "sequences"};
  for (const double rate : {0.5, 1.0, 2.0, 4.0, 6.0, 7.0}) {
    poisson.requests_per_second = rate;
    const ts::ServingSimulation run = ts::simulate_serving(ts::poisson_traffic(poisson), plan);
    load.add({ts::format_fixed(rate, 1), ts::format_seconds(run.ttft.p50),
              ts::format_seconds(run.ttft.p99), ts::format_seconds(run.per_token.p50),
              ts::format_seconds(run.per_token.p99), ts::format_percent(run.busy),
              ts::format_si(run.mean_batch, "")});
  }
  std::cout << load << "\n";

  poisson.requests_per_second = 4;
  poisson.prefixes = 8;
  poisson.prefix_tokens = 200;
  const ts::ServingTraffic traffic = ts::poisson_traffic(poisson);
  ts::Table ways;
  ways.title = "4 requests/s, five ways";
  ways.columns = {"server", "TTFT p50, simulated", "TTFT p99", "gap p50", "gap p99", "prefix hits"};
  const auto add = [&](const char* name, const ts::ServingOptions& options) {
    const ts::ServingSimulation run = ts::simulate_serving(traffic, plan, options);
    ways.add({name, ts::format_seconds(run.ttft.p50), ts::format_seconds(run.ttft.p99),
              ts::format_seconds(run.gap.p50), ts::format_seconds(run.gap.p99),
              ts::format_count(static_cast<double>(run.totals.prefix_hits))});
  };
  ts::ServingOptions options;
  options.prefix_cache = false;
  options.token_budget = 0;
  add("whole prompts", options);
  options.token_budget = 2048;
  add("chunks of 2048 tokens", options);
  options.token_budget = 256;
  add("chunks of 256 tokens", options);
  options.prefix_cache = true;
  add("the same, prefixes kept", options);
  options.prefill_servers = 1;
  options.transfer_bandwidth = 16 * plan.on.chip.dcn_bandwidth;
  add("prefill on a server of its own", options);
  std::cout << ways << "\n";

  // A cache of 20,000 tokens is too small for this load: sequences are thrown out and come again.
  options = ts::ServingOptions();
  options.cache_tokens = 20000;
  poisson.requests_per_second = 7;
  std::cout << ts::simulate_serving(ts::poisson_traffic(poisson), plan, options);
}
