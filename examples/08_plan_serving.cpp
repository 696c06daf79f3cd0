// What memory and how many chips does it take to serve a model? First a 13B model in int8 on v5e:
// cache, step time with its formula, price. Then Llama 3 70B on 16 chips: what each cause costs,
// which ways to share it lose and why, what latency costs, and beam search with a shared prefix.
//   g++ -std=c++17 -O2 -pthread -I. examples/08_plan_serving.cpp -o 08_serving && ./08_serving
#include <iostream>

#include "tinyscale.hpp"

namespace ts = tinyscale;

int main() {
  ts::ServingJob serve;
  serve.model = ts::config("llama2-13b");
  serve.prompt = 2048;
  serve.output = 256;
  serve.batch = 8;
  serve.format = ts::DType::int8;  // weights; serve.cache for the KV cache, by default the same
  ts::ServingPlan plan = ts::plan_serving(serve, ts::machine("tpu-v5e", {1}));
  std::cout << plan << "\n" << plan.decode_step_time.explain(1) << "\n";

  // Does it fit on one chip at all? And with 32 beams that share their prefix?
  const ts::Machine one = ts::machine("tpu-v5e", {1});
  ts::ServingJob alone = serve;
  alone.batch = 1;
  alone.compute = ts::DType::int8;
  std::cout << ts::fit_serving(alone, one) << "\n" << ts::plan_beam_search(alone, one, 32) << "\n";

  // A larger model with a latency target and a draft model.
  serve.model = ts::config("llama3-70b");
  serve.batch = 64;
  serve.target = 0.010;
  serve.speculation.length = 4;
  serve.speculation.acceptance = 0.8;
  serve.speculation.cost = 0.05;
  plan = ts::plan_serving(serve, ts::machine("tpu-v5e", {4, 4}));
  std::cout << plan << "\n" << plan.causes() << "\n" << plan.choices() << "\n";

  // Latency against cost: only rows that no other beats in both.
  ts::FrontierOptions options;
  options.formats = {ts::DType::bf16, ts::DType::int8, ts::DType::int4};
  options.overlap = false;
  std::cout << ts::serving_frontier(serve, ts::machine("tpu-v5e", {8, 8}), options);
}
