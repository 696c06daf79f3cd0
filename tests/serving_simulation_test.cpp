// plan/serving_simulation: a slow engine beside the fast one, hand-computed runs, queueing theory,
// what is conserved, and malformed traces.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "error_of.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

ts::ServingPlan small_plan(std::int64_t batch = 8) {
  ts::ServingJob job;
  job.model = ts::config("llama2-7b");
  job.prompt = 100;
  job.output = 50;
  job.batch = batch;
  job.format = ts::DType::int8;
  return ts::plan_serving(job, ts::machine("tpu-v5e", {2, 2}));
}

// ---- the slow engine: one step at a time, everything counted anew ----

struct SlowRequest {
  double arrival = 0, first = -1, last = 0;
  std::int64_t prompt = 1, output = 1, generated = 0, cached = 0, target = 0;
  std::int64_t prefix = -1, ticket = -1;  // ticket: order of admission
  bool running = false, owner = false, shares = false, done = false;
};

struct SlowPrefix {
  std::int64_t tokens = 0, used = -1;
  bool resident = false, ready = false;
};

struct SlowRun {
  std::vector<SlowRequest> all;
  std::vector<SlowPrefix> prefixes;
  std::vector<double> gaps;
  std::int64_t preemptions = 0, hits = 0, lookups = 0, evictions = 0, steps = 0, recomputed = 0;
  std::int64_t blocks = 0, block = 1, clock = 0, tickets = 0;
  double now = 0;

  std::int64_t ceiling(std::int64_t tokens) const { return (tokens + block - 1) / block; }
  std::int64_t shared(const SlowRequest& r) const {
    return r.owner || r.shares ? prefixes[static_cast<std::size_t>(r.prefix)].tokens : 0;
  }
  bool decoding(const SlowRequest& r) const { return r.running && r.cached >= r.target; }
  std::int64_t used() const {
    std::int64_t sum = 0;
    for (const SlowRequest& r : all) {
      if (r.running) {
        sum += ceiling(std::max(r.target, r.cached) - shared(r));
      }
    }
    for (const SlowPrefix& p : prefixes) {
      sum += p.resident ? p.tokens / block : 0;
    }
    return sum;
  }
  bool in_use(std::size_t p) const {
    for (const SlowRequest& r : all) {
      if (r.running && (r.owner || r.shares) && r.prefix == static_cast<std::int64_t>(p)) {
        return true;
      }
    }
    return false;
  }
  int oldest(std::int64_t except) const {
    int found = -1;
    for (std::size_t p = 0; p < prefixes.size(); ++p) {
      if (prefixes[p].resident && !in_use(p) && static_cast<std::int64_t>(p) != except &&
          (found < 0 || prefixes[p].used < prefixes[static_cast<std::size_t>(found)].used)) {
        found = static_cast<int>(p);
      }
    }
    return found;
  }
  void drop(int p) {
    prefixes[static_cast<std::size_t>(p)].resident = false;
    prefixes[static_cast<std::size_t>(p)].ready = false;
    ++evictions;
  }
  void leave(SlowRequest& r) {
    const std::int64_t prefix = r.prefix;
    const bool held = r.owner || r.shares;
    const bool half = r.owner && !prefixes[static_cast<std::size_t>(prefix)].ready;
    r.running = r.owner = r.shares = false;
    if (half) {
      prefixes[static_cast<std::size_t>(prefix)].resident = false;
    } else if (held && !in_use(static_cast<std::size_t>(prefix))) {
      prefixes[static_cast<std::size_t>(prefix)].used = ++clock;
    }
  }
};

SlowRun slow_serving(const ts::ServingTraffic& traffic, const ts::ServingPlan& plan,
                     const ts::ServingOptions& o) {
  SlowRun run;
  run.block = o.block;
  run.blocks = o.cache_tokens / o.block;
  for (const ts::ServingRequest& from : traffic.requests) {
    SlowRequest r;
    r.arrival = from.arrival;
    r.prompt = from.prompt;
    r.output = from.output;
    r.prefix = o.prefix_cache ? from.prefix : -1;
    if (r.prefix >= 0) {
      const std::size_t p = static_cast<std::size_t>(r.prefix);
      if (run.prefixes.size() <= p) {
        run.prefixes.resize(p + 1);
        for (SlowPrefix& made : run.prefixes) {
          made.tokens = made.tokens == 0 ? 1000000 : made.tokens;
        }
      }
      const std::int64_t own = from.prefix_tokens > 0 ? from.prefix_tokens : from.prompt;
      run.prefixes[p].tokens =
          std::min(run.prefixes[p].tokens, std::min(own, from.prompt - 1) / o.block * o.block);
    }
    run.all.push_back(r);
  }
  std::vector<std::size_t> waiting;  // the next one first
  std::size_t arrived = 0, done = 0;
  while (done < run.all.size()) {
    const auto running = [&] {
      return std::count_if(run.all.begin(), run.all.end(),
                           [](const SlowRequest& r) { return r.running; });
    };
    if (running() == 0 && waiting.empty()) {
      run.now = std::max(run.now, run.all[arrived].arrival);
    }
    while (arrived < run.all.size() && run.all[arrived].arrival <= run.now) {
      waiting.push_back(arrived++);
    }
    bool preempted = false;
    for (;;) {  // room for the tokens of this step
      std::int64_t need = 0;
      for (const SlowRequest& r : run.all) {
        need += run.decoding(r) ? run.ceiling(r.cached + 1 - run.shared(r)) -
                                      run.ceiling(r.cached - run.shared(r))
                                : 0;
      }
      if (run.used() + need <= run.blocks) {
        break;
      }
      if (run.oldest(-1) >= 0) {
        run.drop(run.oldest(-1));
        continue;
      }
      std::size_t last = 0;
      for (std::size_t i = 0; i < run.all.size(); ++i) {
        if (run.all[i].running &&
            (!run.all[last].running || run.all[i].ticket > run.all[last].ticket)) {
          last = i;
        }
      }
      ++run.preemptions;
      run.recomputed += run.all[last].cached;
      run.leave(run.all[last]);
      waiting.insert(waiting.begin(), last);
      preempted = true;
    }
    ts::StepWork work;
    std::vector<std::size_t> tokens, chunked;
    for (std::size_t i = 0; i < run.all.size(); ++i) {
      SlowRequest& r = run.all[i];
      if (run.decoding(r)) {
        ++r.cached;
        ++r.target;
        work.decode += 1;
        work.context += static_cast<double>(r.cached);
        tokens.push_back(i);
      }
    }
    std::int64_t budget =
        o.token_budget > 0 ? o.token_budget - static_cast<std::int64_t>(work.decode) : 1000000000;
    const auto chunk = [&](std::size_t i) {
      SlowRequest& r = run.all[i];
      const std::int64_t part = std::min(budget, r.target - r.cached);
      for (std::int64_t k = 0; k < part; ++k) {
        work.chunk_pairs += static_cast<double>(r.cached + k + 1);
      }
      work.chunk += static_cast<double>(part);
      work.chunk_context += static_cast<double>(r.cached);
      r.cached += part;
      budget -= part;
      chunked.push_back(i);
    };
    for (std::int64_t t = 0; t < run.tickets && budget > 0; ++t) {  // by admission
      for (std::size_t i = 0; i < run.all.size(); ++i) {
        if (run.all[i].running && run.all[i].ticket == t && run.all[i].cached < run.all[i].target) {
          chunk(i);
        }
      }
    }
    while (!preempted && budget > 0 && !waiting.empty() && running() < o.max_batch) {
      SlowRequest& r = run.all[waiting[0]];
      const std::size_t p = static_cast<std::size_t>(r.prefix);
      const bool has = r.prefix >= 0 && run.prefixes[p].tokens > 0;
      const bool hit = has && run.prefixes[p].ready;
      const std::int64_t all = r.prompt + r.generated;
      const std::int64_t need = run.ceiling(all - (hit ? run.prefixes[p].tokens : 0));
      std::int64_t could = run.blocks - run.used();
      for (std::size_t q = 0; q < run.prefixes.size(); ++q) {
        const bool unused = run.prefixes[q].resident && !run.in_use(q) && !(hit && q == p);
        could += unused ? run.prefixes[q].tokens / run.block : 0;
      }
      if (need > could) {
        break;
      }
      while (run.used() + need > run.blocks) {
        run.drop(run.oldest(hit ? r.prefix : -1));
      }
      run.lookups += has ? 1 : 0;
      run.hits += hit ? 1 : 0;
      r.shares = hit;
      r.owner = has && !hit && !run.prefixes[p].resident;
      if (r.owner) {
        run.prefixes[p].resident = true;
      }
      r.running = true;
      r.ticket = run.tickets++;
      r.target = all;
      r.cached = hit ? run.prefixes[p].tokens : 0;
      const std::size_t place = waiting[0];
      waiting.erase(waiting.begin());
      chunk(place);
    }
    const double seconds = plan.law().seconds(work, o.overlap);
    run.now += seconds;
    ++run.steps;
    for (const std::size_t i : chunked) {
      SlowRequest& r = run.all[i];
      if (r.cached == r.target) {
        if (r.owner) {
          run.prefixes[static_cast<std::size_t>(r.prefix)].ready = true;
        }
        tokens.push_back(i);
      }
    }
    // The order in which sequences end decides which prefix was used last: prefills first, then by
    // request.
    std::stable_sort(tokens.begin(), tokens.end(), [&](std::size_t a, std::size_t b) {
      const bool x = std::count(chunked.begin(), chunked.end(), a) > 0;
      const bool y = std::count(chunked.begin(), chunked.end(), b) > 0;
      return x && !y;
    });
    for (const std::size_t i : tokens) {
      SlowRequest& r = run.all[i];
      if (r.generated == 0) {
        r.first = run.now;
      } else {
        run.gaps.push_back(run.now - r.last);
      }
      r.last = run.now;
      if (++r.generated == r.output) {
        run.leave(r);
        r.done = true;
        ++done;
      }
    }
  }
  return run;
}

std::int64_t drawn(std::uint64_t seed, std::uint64_t index, std::int64_t least, std::int64_t most) {
  const std::uint64_t range = static_cast<std::uint64_t>(most - least + 1);
  return least + static_cast<std::int64_t>(ts::random_below(seed, index, range));
}

double relative(double a, double b) { return std::fabs(a - b) / std::max(1e-12, std::fabs(b)); }

}  // namespace

TEST_CASE("serving simulation: the fast engine does what the slow one does") {
  const ts::ServingPlan plan = small_plan();
  std::int64_t preemptions = 0, hits = 0, evictions = 0, skipped = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    ts::ServingOptions options;
    options.block = drawn(seed, 0, 1, 7);
    options.max_batch = drawn(seed, 1, 1, 6);
    options.token_budget = seed % 4 == 0 ? 0 : drawn(seed, 2, options.max_batch, 40);
    options.cache_tokens =
        options.block * drawn(seed, 3, 86 / options.block + 1, 140 / options.block + 1);
    options.overlap = seed % 3 != 0;
    options.prefix_cache = seed % 5 != 0;
    options.keep_requests = true;
    ts::PoissonTraffic poisson;
    poisson.requests_per_second = static_cast<double>(drawn(seed, 4, 5, 1000));
    poisson.requests = 24;
    poisson.least_prompt = drawn(seed, 5, 1, 20);
    poisson.most_prompt = poisson.least_prompt + drawn(seed, 6, 0, 30);
    poisson.most_output = drawn(seed, 7, 1, 30);
    poisson.least_output = 1;
    poisson.prefixes = drawn(seed, 8, 0, 5);
    poisson.prefix_tokens = poisson.prefixes > 0 ? poisson.least_prompt : 0;
    poisson.seed = seed;
    const ts::ServingTraffic traffic = ts::poisson_traffic(poisson);
    const ts::ServingSimulation fast = ts::simulate_serving(traffic, plan, options);
    const SlowRun slow = slow_serving(traffic, plan, options);
    CHECK(fast.totals.steps == slow.steps);
    CHECK(fast.totals.preemptions == slow.preemptions);
    CHECK(fast.totals.recomputed == slow.recomputed);
    CHECK(fast.totals.prefix_lookups == slow.lookups);
    CHECK(fast.totals.prefix_hits == slow.hits);
    CHECK(fast.totals.evictions == slow.evictions);
    double worst = 0;
    for (std::size_t i = 0; i < slow.all.size(); ++i) {
      worst = std::max(worst, relative(fast.served[i].first_token, slow.all[i].first));
      worst = std::max(worst, relative(fast.served[i].last_token, slow.all[i].last));
    }
    CHECK(worst < 1e-9);
    if (!slow.gaps.empty()) {
      std::vector<double> gaps = slow.gaps;
      std::sort(gaps.begin(), gaps.end());
      const double share = std::ceil(0.9 * static_cast<double>(gaps.size()));
      CHECK(relative(fast.gap.p90, gaps[static_cast<std::size_t>(share) - 1]) < 0.011);
      CHECK(relative(fast.gap.most, gaps.back()) < 0.011);
      double sum = 0;
      for (const double gap : gaps) {
        sum += gap;
      }
      CHECK(relative(fast.gap.mean, sum / static_cast<double>(gaps.size())) < 1e-9);
    }
    preemptions += slow.preemptions;
    hits += slow.hits;
    evictions += slow.evictions;
    skipped += fast.totals.steps - fast.totals.jumps;
  }
  CHECK(preemptions > 300);  // the cases are about something
  CHECK(hits > 1000);
  CHECK(evictions > 200);
  CHECK(skipped > 5000);
}

TEST_CASE("serving simulation: one request by hand") {
  const ts::ServingPlan plan = small_plan();
  const ts::ServingLaw& law = plan.law();
  ts::ServingTraffic traffic;
  traffic.requests = {{2.0, 100, 5, -1, 0}};
  ts::ServingOptions options;
  options.token_budget = 40;  // chunks of 40, 40 and 20
  options.keep_requests = true;
  for (const bool overlap : {true, false}) {
    options.overlap = overlap;
    const ts::ServingSimulation run = ts::simulate_serving(traffic, plan, options);
    double now = 2;
    for (const double begin : {0.0, 40.0, 80.0}) {
      ts::StepWork work;
      work.chunk = std::min(40.0, 100 - begin);
      work.chunk_context = begin;
      work.chunk_pairs = work.chunk * begin + work.chunk * (work.chunk + 1) / 2;
      now += law.seconds(work, overlap);
    }
    CHECK(run.ttft.mean == doctest::Approx(now - 2).epsilon(1e-12));
    CHECK(run.served[0].first_token == doctest::Approx(now).epsilon(1e-12));
    for (double token = 1; token <= 4; ++token) {
      ts::StepWork work;
      work.decode = 1;
      work.context = 100 + token;
      now += law.seconds(work, overlap);
    }
    CHECK(run.seconds == doctest::Approx(now).epsilon(1e-12));
    CHECK(run.per_token.mean == doctest::Approx((now - run.served[0].first_token) / 4));
    CHECK(run.totals.steps == 7);
    CHECK(run.totals.jumps == 4);  // three chunks and all decode steps at once
    CHECK(run.busy == doctest::Approx((now - 2) / now));
  }
}

TEST_CASE("serving simulation: a batch that stays, and the plan's law") {
  const ts::ServingPlan plan = small_plan(16);
  ts::ServingTraffic traffic;
  for (int i = 0; i < 16; ++i) {
    traffic.requests.push_back({0, 100, 51, -1, 0});
  }
  ts::ServingOptions options;
  options.token_budget = 0;
  const ts::ServingSimulation run = ts::simulate_serving(traffic, plan, options);
  ts::StepWork prompts;
  prompts.chunk = 1600;
  prompts.chunk_pairs = 16 * 100 * 101 / 2.0;
  double seconds = plan.law().bound(prompts);
  CHECK(run.ttft.most == doctest::Approx(seconds).epsilon(1e-12));
  for (int step = 1; step <= 50; ++step) {
    ts::StepWork work;
    work.decode = 16;
    work.context = 16 * (100.0 + step);
    seconds += plan.law().bound(work);
  }
  CHECK(run.seconds == doctest::Approx(seconds).epsilon(1e-12));
  CHECK(run.totals.steps == 51);
  CHECK(run.totals.prompt_tokens == 1600);
  CHECK(run.totals.decode_tokens == 800);
  CHECK(run.tokens_per_second == doctest::Approx(16 * 51 / seconds));
  // 16 sequences of 150 tokens in blocks of 16 at the end.
  const double held = plan.cache_tokens.value();
  CHECK(run.cache_most == doctest::Approx(16 * 10 / std::floor(held / 16)));
}

TEST_CASE(
    "serving simulation: servers for prefill alone: who waits, and gaps of who comes in vain") {
  const ts::ServingPlan plan = small_plan();
  ts::ServingTraffic traffic;
  traffic.requests = {{0, 100, 1, -1, 0}, {0, 100, 1, -1, 0}, {0, 100, 1, -1, 0}};
  ts::ServingOptions options;
  options.prefill_servers = 1;
  const ts::ServingSimulation queue = ts::simulate_serving(traffic, plan, options);
  CHECK(queue.queue_mean == doctest::Approx(1));  // 0, 1 and 2 of 3 prompts' time
  CHECK(queue.totals.queue_most == 2);
  CHECK(queue.busy == doctest::Approx(0.5));
  // The second comes after 4.5 steps of the first, finds room, and leaves again in the same step,
  // as both would open a block; nothing is between two tokens of it but the wait for the other.
  ts::StepWork one;
  one.decode = one.context = 1;
  const double step = plan.law().bound(one);
  traffic.requests = {{0, 1, 12, -1, 0}, {0, 10, 2, -1, 0}};
  options.prefill_servers = 2;
  options.block = 1;
  options.cache_tokens = 16;
  options.transfer_bandwidth = 10 * ts::detail::serving_kv(plan.job) / (5 * step);
  const ts::ServingSimulation vain = ts::simulate_serving(traffic, plan, options);
  CHECK(vain.totals.preemptions == 1);
  CHECK(vain.gap.p90 == doctest::Approx(step).epsilon(0.02));  // the eleventh of twelve
  CHECK(vain.gap.most > 12 * step);
}

TEST_CASE("serving simulation: the cache has what copies of experts leave of a chip's memory") {
  ts::ServingJob job;
  job.model = ts::config("qwen3-30b-a3b");
  job.batch = 1;
  job.format = ts::DType::int8;
  const ts::ServingPlan plan = ts::plan_serving(job, ts::machine("tpu-v5e", {16, 16}));
  const ts::ServingSharding& s = plan.sharding();
  REQUIRE(s.name == "expert 128, cache by heads 4");  // two copies of each expert
  ts::ServingTraffic traffic;
  traffic.requests = {{0, 1600, 1, -1, 0}};
  const double blocks = 100 / ts::simulate_serving(traffic, plan).cache_most;
  const double kv = ts::kv_cache_bytes_per_token(job.model, job.format);
  const double own = ts::detail::last_context(job) * kv / 4;  // of the job's one sequence
  const double left = plan.on.chip.memory_bytes - (s.chip_bytes - own);
  CHECK(blocks == doctest::Approx(std::floor(left * 4 / kv / 16)).epsilon(1e-9));
  CHECK(blocks < std::floor(plan.cache_tokens.value() * 4 / 256 / 16));  // without copies
}

TEST_CASE("serving simulation: what is conserved, and equal seeds are equal to the bit") {
  ts::PoissonTraffic poisson;
  poisson.requests_per_second = 300;
  poisson.requests = 3000;
  poisson.least_prompt = 40;
  poisson.most_prompt = 400;
  poisson.least_output = 1;
  poisson.most_output = 200;
  poisson.prefixes = 30;
  poisson.prefix_tokens = 40;
  poisson.seed = 7;
  const ts::ServingTraffic traffic = ts::poisson_traffic(poisson);
  std::int64_t prompts = 0, outputs = 0;
  for (const ts::ServingRequest& r : traffic.requests) {
    prompts += r.prompt;
    outputs += r.output;
  }
  const ts::ServingPlan plan = small_plan(32);
  for (const int mode : {0, 1, 2}) {
    ts::ServingOptions options;
    options.cache_tokens = 6000;
    options.block = 8;
    options.servers = mode == 1 ? 3 : 1;
    options.prefill_servers = mode == 2 ? 2 : 0;
    options.transfer_bandwidth = mode == 2 ? 1e10 : 0;
    const ts::ServingSimulation run = ts::simulate_serving(traffic, plan, options);
    CHECK(run.requests == 3000);
    CHECK(run.prompt_tokens == prompts);
    CHECK(run.output_tokens == outputs);
    // Each token is computed once, and again when its cache was given up; hits are not computed.
    // A sequence that comes back computes its last token with the prompt: one decode step less, so
    // that the sum stays; the prefill servers' first tokens need no step.
    CHECK(run.totals.prompt_tokens + run.totals.decode_tokens ==
          prompts + outputs - 3000 + run.totals.recomputed - run.totals.prefix_tokens);
    CHECK(run.cache_most <= 1);
    CHECK(run.cache_most > 0.9);
    CHECK(run.busy <= 1 + 1e-12);
    CHECK(run.totals.batch_most <= 32);
    CHECK(run.ttft.p50 <= run.ttft.p90);
    CHECK(run.ttft.p90 <= run.ttft.p99);
    CHECK(run.ttft.p99 <= run.ttft.most);
    CHECK(run.latency.mean >= run.ttft.mean);
    const ts::ServingSimulation again = ts::simulate_serving(traffic, plan, options);
    CHECK(again.json() == run.json());
    CHECK(again.seconds == run.seconds);
    poisson.seed = 8;
    CHECK(ts::simulate_serving(ts::poisson_traffic(poisson), plan, options).seconds != run.seconds);
  }
}

TEST_CASE("serving simulation: queueing theory at one sequence a time") {
  // One token each, one sequence at a time: an M/D/1 queue of service D, mean wait
  // rho D / (2 (1 - rho)).
  const ts::ServingPlan plan = small_plan();
  const double service = plan.law().bound(ts::detail::prompt_work(plan.job, 200));
  ts::PoissonTraffic poisson;
  poisson.requests = 40000;
  poisson.least_prompt = poisson.most_prompt = 200;
  poisson.least_output = poisson.most_output = 1;
  ts::ServingOptions options;
  options.max_batch = 1;
  for (const double rho : {0.01, 0.3, 0.7}) {
    poisson.requests_per_second = rho / service;
    const ts::ServingSimulation run =
        ts::simulate_serving(ts::poisson_traffic(poisson), plan, options);
    const double wait = rho * service / (2 * (1 - rho));
    CHECK(run.ttft.mean == doctest::Approx(service + wait).epsilon(0.015));
    CHECK(run.busy == doctest::Approx(rho).epsilon(0.02));
    CHECK(run.queue_mean == doctest::Approx(wait * rho / service).epsilon(0.05));  // Little's law
    // A prefill server of its own is the same queue.
    ts::ServingOptions apart = options;
    apart.prefill_servers = 1;
    const ts::ServingSimulation other =
        ts::simulate_serving(ts::poisson_traffic(poisson), plan, apart);
    CHECK(other.ttft.mean == doctest::Approx(run.ttft.mean).epsilon(1e-9));
    CHECK(other.ttft.p99 == doctest::Approx(run.ttft.p99).epsilon(1e-9));
    CHECK(other.totals.steps == 0);
  }
}

TEST_CASE("serving simulation: full servers give the plan's tokens a second") {
  ts::ServingJob job;
  job.model = ts::config("llama3-70b");
  job.prompt = 1024;
  job.output = 257;
  job.batch = 32;
  job.format = ts::DType::int8;
  const ts::ServingPlan plan = ts::plan_serving(job, ts::machine("tpu-v5e", {4, 4}));
  CHECK(plan.decode.bound.value() == plan.decode_step_time.value());  // links are hidden here
  ts::ServingTraffic traffic;
  for (int i = 0; i < 640; ++i) {
    traffic.requests.push_back({0, 1024, 257, -1, 0});
  }
  ts::ServingOptions options;
  options.prefill_servers = 640;  // decode alone, always 32 sequences of equal age
  const ts::ServingSimulation run = ts::simulate_serving(traffic, plan, options);
  const double steps = 20 * 256.0;
  CHECK(run.totals.steps == steps);
  CHECK(run.mean_batch == 32);
  // The plan's step is at the mean length, prompt + output / 2 = 1152.5; here 1024 + 1 to 256.
  CHECK(run.totals.busy / steps == doctest::Approx(plan.decode_step_time.value()).epsilon(1e-12));
  const double rate = 32 * steps / run.totals.busy;
  CHECK(rate == doctest::Approx(plan.tokens_per_second.value()).epsilon(1e-12));
  // The same server prefills: at most the plan's rate with the time of its prompts.
  options.prefill_servers = 0;
  const ts::ServingSimulation both = ts::simulate_serving(traffic, plan, options);
  const double prompts = 640 * plan.prefill_time.value();
  const double least = prompts + 640 * 257 / plan.tokens_per_second.value();
  CHECK(both.seconds > prompts);
  CHECK(both.seconds == doctest::Approx(least).epsilon(0.05));
}

TEST_CASE("serving simulation: prefill on servers of its own, by hand") {
  const ts::ServingPlan plan = small_plan();
  ts::ServingTraffic traffic;
  traffic.requests = {{1, 200, 3, -1, 0}, {1, 200, 1, -1, 0}};
  ts::ServingOptions options;
  options.prefill_servers = 1;
  options.transfer_bandwidth = 1e9;
  options.keep_requests = true;
  const ts::ServingSimulation run = ts::simulate_serving(traffic, plan, options);
  const double prefill = plan.law().bound(ts::detail::prompt_work(plan.job, 200));
  CHECK(run.served[0].first_token == doctest::Approx(1 + prefill).epsilon(1e-12));
  CHECK(run.served[1].first_token == doctest::Approx(1 + 2 * prefill).epsilon(1e-12));
  CHECK(run.served[1].last_token == run.served[1].first_token);  // one token: no decoder
  double now = 1 + prefill + 200 * 262144 / 1e9;  // Llama 2 7B keeps 262,144 B a token in int8
  ts::StepWork work;
  work.decode = 1;
  work.context = 201;
  now += plan.law().bound(work);
  const double gap = now - run.served[0].first_token;  // transfer and step
  work.context = 202;
  now += plan.law().bound(work);
  CHECK(run.served[0].last_token == doctest::Approx(now).epsilon(1e-12));
  CHECK(run.gap.most == doctest::Approx(gap).epsilon(0.011));
  CHECK(run.totals.steps == 2);
}

TEST_CASE("serving simulation: a shared beginning is computed once") {
  const ts::ServingPlan plan = small_plan();
  ts::ServingTraffic traffic;
  traffic.requests = {{0, 512, 4, 3, 0}, {10, 700, 4, 3, 0}, {20, 600, 4, 4, 0}};
  ts::ServingOptions options;
  options.token_budget = 0;
  options.keep_requests = true;
  const ts::ServingSimulation run = ts::simulate_serving(traffic, plan, options);
  CHECK(run.totals.prefix_lookups == 3);
  CHECK(run.totals.prefix_hits == 1);
  CHECK(run.totals.prefix_tokens == 496);  // 511 tokens, in whole blocks of 16
  ts::StepWork rest;
  rest.chunk = 204;
  rest.chunk_context = 496;
  rest.chunk_pairs = 204 * 496 + 204 * 205 / 2;
  CHECK(run.served[1].first_token - 10 == doctest::Approx(plan.law().bound(rest)));
  options.prefix_cache = false;
  CHECK(ts::simulate_serving(traffic, plan, options).totals.prefix_hits == 0);
}

TEST_CASE("serving simulation: traffic from a trace, and what is wrong with one") {
  const ts::ServingTraffic traffic =
      ts::trace_traffic("calls.csv",
                        "arrival_seconds,prompt_tokens,output_tokens,prefix_id,prefix_tokens\r\n"
                        "0.5,100,20,,\r\n\n1e0, 200, 30, 7, 64\n");
  REQUIRE(traffic.requests.size() == 2);
  CHECK(traffic.requests[0].prefix == -1);
  CHECK(traffic.requests[1].arrival == 1);
  CHECK(traffic.requests[1].prompt == 200);
  CHECK(traffic.requests[1].output == 30);
  CHECK(traffic.requests[1].prefix == 7);
  CHECK(traffic.requests[1].prefix_tokens == 64);
  const std::string head = "arrival_seconds,prompt_tokens,output_tokens\n";
  const std::string mark = "\xEF\xBB\xBF";  // that spreadsheets put before UTF-8
  CHECK(ts::trace_traffic("calls.csv", mark + head + "2,3,4\n").requests[0].arrival == 2);
  const auto wrong = [](const std::string& text) {
    return error_of([&] { ts::trace_traffic("calls.csv", text); });
  };
  const std::string who = "read_traffic: calls.csv line ";
  CHECK(wrong("arrival_seconds,prompt,output_tokens\n") ==
        who +
            "1, column 2: \"prompt\"; the header "
            "arrival_seconds,prompt_tokens,output_tokens[,prefix_id[,prefix_tokens]] is right");
  CHECK(wrong("arrival_seconds,prompt_tokens\n").find(who + "1, column 3: \"\"; the header") == 0);
  CHECK(ts::trace_traffic("t", head + " 0 ,\t12 , 3\r\n").requests[0].prompt == 12);
  CHECK(wrong(head + "0,1 2,3\n") ==
        who + "2, column 2: prompt_tokens is \"1 2\"; a number is right");
  CHECK(wrong(head + "0,1,1\n0.5,1\n") == who + "3: 2 cells; 3 as in the header are right");
  CHECK(wrong(head + "0,many,1\n") ==
        who + "2, column 2: prompt_tokens is \"many\"; a number is right");
  CHECK(wrong(head + "0,1,\n") == who + "2, column 3: output_tokens is \"\"; a number is right");
  CHECK(wrong(head + "0,1.5,1\n") ==
        who + "2, column 2: prompt_tokens is 1.5; a whole number is right");
  CHECK(wrong(head + "0,1,0\n") == who + "2: output_tokens is 0; 1 to 1e9 is right");
  CHECK(wrong(head + "0,-4,1\n") == who + "2: prompt_tokens is -4; 1 to 1e9 is right");
  CHECK(wrong(head + "3,1,1\n2,1,1\n") ==
        who + "3: arrival_seconds is 2; a time not before the line above is right");
  CHECK(wrong(head + "-1,1,1\n") ==
        who + "2: arrival_seconds is -1; a finite number from 0 is right");
  CHECK(wrong(head) ==
        "read_traffic: calls.csv has no requests; a header and a line for each is right");
  const std::string five = "arrival_seconds,prompt_tokens,output_tokens,prefix_id,prefix_tokens\n";
  CHECK(wrong(five + "0,5,1,-2,\n") ==
        who + "2: prefix_id is -2; 0 to 1e9, or -1 for none is right");
  CHECK(wrong(five + "0,5,1,2,6\n") == who + "2: prefix_tokens is 6; 0 to prompt_tokens is right");
  CHECK(error_of([] { ts::read_traffic("/no/such.csv"); }).find("read_traffic: cannot open") == 0);
  const char* folder = std::getenv("TMPDIR");
  const std::string path = std::string(folder != nullptr ? folder : ".") + "/serving_trace.csv";
  std::ofstream(path) << head << "0,10,2\n";
  CHECK(ts::read_traffic(path).requests.size() == 1);
  std::remove(path.c_str());
}

TEST_CASE("serving simulation: what is refused") {
  const ts::ServingPlan plan = small_plan();
  ts::ServingTraffic traffic;
  ts::ServingOptions options;
  const auto refused = [&] {
    return error_of([&] { ts::simulate_serving(traffic, plan, options); });
  };
  CHECK(refused() ==
        "simulate_serving: the traffic has no requests; poisson_traffic({...}) or "
        "read_traffic(path) makes some");
  traffic.requests = {{0, 100, 29, -1, 0}};
  options.token_budget = 4;
  CHECK(refused() ==
        "simulate_serving: token_budget is 4 for 8 sequences; 0 or at least one "
        "token for each is right");
  options.token_budget = 0;
  options.cache_tokens = 127;
  CHECK(refused() ==
        "simulate_serving: request 0 of 100 + 29 tokens needs 8 blocks of 16 tokens; "
        "the cache holds 7: a shorter request or more chips is right");
  options.cache_tokens = 128;
  CHECK(ts::simulate_serving(traffic, plan, options).output_tokens == 29);
  options.prefill_servers = 1;
  options.transfer_bandwidth = 1e-300;  // a cache would come after more seconds than doubles have
  CHECK(refused() ==
        "simulate_serving: transfer_bandwidth is 1e-300; a number from 1 to 1e+18 is right");
  options.prefill_servers = 0;
  options.transfer_bandwidth = 0;
  options.block = 0;
  CHECK(refused() == "simulate_serving: block is 0; a number from 1 to 65536 is right");
  options.block = 16;
  options.servers = 0;
  CHECK(refused() == "simulate_serving: servers is 0; a number from 1 to 100000 is right");
  options.servers = 1;
  traffic.requests.push_back({-1, 100, 29, -1, 0});
  CHECK(refused() ==
        "simulate_serving: request 1: arrival_seconds is -1; a finite number from 0 "
        "is right");
  ts::PoissonTraffic poisson;
  const auto no_traffic = [&] { return error_of([&] { ts::poisson_traffic(poisson); }); };
  poisson.requests_per_second = 0;
  CHECK(no_traffic() ==
        "poisson_traffic: requests_per_second is 0; a finite number above 0 is "
        "right");
  poisson.requests_per_second = 1;
  poisson.requests = -5;
  CHECK(no_traffic() == "poisson_traffic: requests is -5; 1 to 1e8 is right");
  poisson.requests = 5;
  poisson.most_prompt = 3;
  CHECK(no_traffic() ==
        "poisson_traffic: prompt is from 512 to 3; 1 <= least <= most <= 1e9 is "
        "right");
  poisson.most_prompt = 512;
  poisson.prefixes = 2;
  poisson.prefix_tokens = 600;
  CHECK(no_traffic() ==
        "poisson_traffic: prefixes is 2 of 600 tokens; numbers from 0, and no "
        "more tokens than the shortest prompt, 512, are right");
}

TEST_CASE("serving simulation: the report") {
  ts::PoissonTraffic poisson;
  poisson.requests = 50;
  const ts::ServingSimulation run = ts::simulate_serving(
      ts::poisson_traffic(poisson), small_plan().job, ts::machine("tpu-v5e", {2, 2}));
  std::ostringstream text;
  text << run;
  CHECK(text.str().find("Serving llama2-7b on 1 x 4 x tpu-v5e: Poisson, 1 requests/s, seed 1") ==
        0);
  CHECK(run.table().columns[1] == "simulated");
  CHECK(run.csv().find("time to first token,") != std::string::npos);
  CHECK(run.json().find("\"quantity\": \"preemptions\", \"simulated\": 0") != std::string::npos);
}
