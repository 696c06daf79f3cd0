#pragma once
// Serving as it goes: requests arrive, wait, are prefilled and decoded by servers whose steps take
// what the plan's law says. Told are time to first token (TTFT), time per output token of a
// request (its mean), gaps between tokens, and how busy the server and its cache are.
// Prefill may have servers of its own, one prompt at a time, that send the cache to the decoders.
// The cache of a server keeps every token in every layer, windows or not.

#include <algorithm>  // max, min
#include <cstddef>    // std::size_t
#include <cstdint>    // std::int64_t
#include <ostream>    // operator<<
#include <string>     // text
#include <vector>     // lists

#include "tinyscale/base/order.hpp"
#include "tinyscale/plan/serving.hpp"
#include "tinyscale/plan/serving_engine.hpp"
#include "tinyscale/plan/serving_traffic.hpp"

namespace tinyscale {

struct ServingOptions {
  std::int64_t max_batch = 0;        // sequences of a server; 0: the plan's batch
  std::int64_t token_budget = 2048;  // tokens of a step, prompts are cut to it; 0: whole prompts
  std::int64_t block = 16;           // tokens of a cache block
  std::int64_t cache_tokens = 0;     // that a server's cache holds; 0: as the plan says
  bool prefix_cache = true;          // keep shared beginnings
  bool overlap = true;               // a step takes its bound, else the sum of its causes
  std::int64_t servers = 1;          // requests go round
  std::int64_t prefill_servers = 0;  // apart from those that decode; 0: the same ones do both
  double transfer_bandwidth = 0;     // bytes/s of a cache to its decoder, from 1; 0: at once
  bool keep_requests = false;        // fill `served`
};

struct ServedRequest {
  double arrival = 0, first_token = 0, last_token = 0;  // seconds
};

struct Percentiles {
  double mean = 0, p50 = 0, p90 = 0, p99 = 0, most = 0;
};

struct ServingSimulation {
  std::string title;
  std::int64_t requests = 0, prompt_tokens = 0, output_tokens = 0;
  double seconds = 0;                         // until the last token
  Percentiles ttft, per_token, gap, latency;  // seconds; gaps between tokens, to 1 %
  double requests_per_second = 0, tokens_per_second = 0;
  double busy = 0, math = 0;              // shares: of time in steps; of peak in matmuls
  double mean_batch = 0;                  // sequences decoded in a step
  double queue_mean = 0;                  // waiting
  double cache_mean = 0, cache_most = 0;  // share of the cache in use
  ServingCounters totals;                 // of all servers: steps, preemptions, prefix hits, ...
  List<ServedRequest> served;

  Table table() const;
  std::string csv() const { return table().csv(); }
  std::string json() const { return table().json(); }
};

namespace detail {

inline Percentiles percentiles(const std::vector<double>& values) {
  if (values.empty()) {
    return {};
  }
  const std::vector<std::size_t> order = stable_order(values);
  const auto at = [&](double share) {  // the smallest that this share does not exceed
    const double n = static_cast<double>(values.size());
    return values[order[static_cast<std::size_t>(std::max(0.0, std::ceil(share * n) - 1))]];
  };
  double mean = 0;
  for (const double value : values) {
    mean += value / static_cast<double>(values.size());
  }
  return {mean, at(0.5), at(0.9), at(0.99), at(1)};
}

inline EngineLimits engine_limits(const ServingPlan& plan, const ServingOptions& options) {
  const char* const who = "simulate_serving";
  const double most = 1e12;
  check_job(who, "max_batch", static_cast<double>(options.max_batch), 0, 1e6);
  check_job(who, "block", static_cast<double>(options.block), 1, 65536);
  check_job(who, "cache_tokens", static_cast<double>(options.cache_tokens), 0, most);
  check_job(who, "servers", static_cast<double>(options.servers), 1, 1e5);
  check_job(who, "prefill_servers", static_cast<double>(options.prefill_servers), 0, 1e5);
  const double least = options.transfer_bandwidth > 0 ? 1 : 0;
  check_job(who, "transfer_bandwidth", options.transfer_bandwidth, least, 1e18);
  EngineLimits limits;
  limits.batch = options.max_batch > 0 ? options.max_batch : plan.job.batch;
  limits.budget = options.token_budget;
  limits.block = options.block;
  const ServingSharding& s = plan.sharding();  // whose chips may hold copies of experts
  const double kv = serving_kv(plan.job), cached = double(plan.job.batch) * last_context(plan.job);
  const double room = plan.on.chip.memory_bytes - s.chip_bytes + cached * kv / s.cache_ways;
  const double held = room * s.room_ways / kv;
  const std::int64_t tokens =
      options.cache_tokens > 0 ? options.cache_tokens : static_cast<std::int64_t>(held);
  limits.blocks = tokens / options.block;
  limits.prefix_cache = options.prefix_cache;
  limits.overlap = options.overlap;
  if (limits.budget < 0 || (limits.budget > 0 && limits.budget < limits.batch)) {
    fail({who, ": token_budget is ", limits.budget, " for ", limits.batch,
          " sequences; 0 or at least one token for each is right"});
  }
  return limits;
}

// The requests as an engine sees them, and the beginnings that they share.
inline void engine_requests(const ServingTraffic& traffic, const EngineLimits& limits,
                            List<EngineRequest>& requests, List<EnginePrefix>& prefixes) {
  std::vector<double> ids;
  double before = 0;
  for (std::size_t i = 0; i < traffic.requests.size(); ++i) {
    const ServingRequest& from = traffic.requests[i];
    check_request(cat({"simulate_serving: request ", i}), from, before);
    before = from.arrival;
    EngineRequest& to = requests[i];
    to.arrival = to.comes = to.queued = from.arrival;
    to.prompt = from.prompt;
    to.output = from.output;
    const std::int64_t blocks = (from.prompt + from.output - 2 + limits.block) / limits.block;
    if (blocks > limits.blocks) {
      fail({"simulate_serving: request ", i, " of ", from.prompt, " + ", from.output,
            " tokens needs ", blocks, " blocks of ", limits.block, " tokens; the cache holds ",
            limits.blocks, ": a shorter request or more chips is right"});
    }
    ids.push_back(static_cast<double>(from.prefix));
  }
  double id = -1;
  for (const std::size_t i : stable_order(ids)) {
    if (!(ids[i] > -1)) {
      continue;
    }
    const ServingRequest& from = traffic.requests[i];
    const std::int64_t own = from.prefix_tokens > 0 ? from.prefix_tokens : from.prompt;
    const std::int64_t tokens = std::min(own, from.prompt - 1) / limits.block * limits.block;
    if (ids[i] != id) {
      id = ids[i];
      prefixes.push_back(EnginePrefix());
      prefixes.back().tokens = tokens;
    }
    prefixes.back().tokens = std::min(prefixes.back().tokens, tokens);
    requests[i].prefix = static_cast<int>(prefixes.size()) - 1;
  }
}

// Prefill on servers of its own, first come first served; what arrives at the decoders afterwards,
// by time. Those servers' seconds of work are added to `out.busy`.
inline void prefill_apart(const ServingPlan& plan, const ServingOptions& options,
                          List<EngineRequest>& requests, std::vector<std::size_t>& order,
                          ServingSimulation& out) {
  EventQueue servers;
  for (std::int64_t s = 0; s < options.prefill_servers; ++s) {
    servers.push({0, static_cast<std::size_t>(s), 0});
  }
  std::vector<double> keys, begins;
  std::vector<std::size_t> places;
  std::size_t begun = 0;
  ServingCounters& totals = out.totals;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EngineRequest& r = requests[i];
    Event server = servers.pop();
    const double tokens = static_cast<double>(r.prompt);
    const double took = plan.law().seconds(prompt_work(plan.job, tokens), options.overlap);
    begins.push_back(std::max(server.key, r.arrival));
    while (begun <= i && begins[begun] <= r.arrival) {
      ++begun;
    }
    totals.queue_most = std::max(totals.queue_most, static_cast<std::int64_t>(i + 1 - begun));
    totals.queue_seconds += begins[i] - r.arrival;
    totals.prompt_tokens += r.prompt;
    out.busy += took;
    server.key = begins[i] + took;
    servers.push(server);
    r.first = r.last = server.key;
    r.generated = 1;
    r.prefilled = true;
    r.prefix = -1;
    const double bytes = tokens * serving_kv(plan.job);
    const double sent = options.transfer_bandwidth > 0 ? bytes / options.transfer_bandwidth : 0;
    r.comes = r.queued = server.key + sent;
    if (r.output > 1) {
      keys.push_back(r.comes);
      places.push_back(i);
    }
  }
  order.clear();
  for (const std::size_t k : stable_order(keys)) {
    order.push_back(places[k]);
  }
}

inline void report_requests(const List<EngineRequest>& requests, bool keep,
                            ServingSimulation& out) {
  std::vector<double> ttft, per_token, latency;
  double between = 0;  // seconds from first to last tokens
  for (const EngineRequest& r : requests) {
    ttft.push_back(r.first - r.arrival);
    latency.push_back(r.last - r.arrival);
    between += r.last - r.first;
    if (r.output > 1) {
      per_token.push_back((r.last - r.first) / static_cast<double>(r.output - 1));
    }
    out.prompt_tokens += r.prompt;
    out.output_tokens += r.generated;
    out.seconds = std::max(out.seconds, r.last);
    if (keep) {
      out.served.push_back({r.arrival, r.first, r.last});
    }
  }
  out.requests = static_cast<std::int64_t>(requests.size());
  out.gap.mean = between / std::max(1.0, double(out.output_tokens - out.requests));
  out.ttft = percentiles(ttft);
  out.per_token = percentiles(per_token);
  out.latency = percentiles(latency);
}

}  // namespace detail

// The traffic served by replicas of the plan. Equal input gives equal output, to the bit.
inline ServingSimulation simulate_serving(const ServingTraffic& traffic, const ServingPlan& plan,
                                          const ServingOptions& options = {}) {
  const detail::EngineLimits limits = detail::engine_limits(plan, options);
  if (traffic.requests.empty()) {
    detail::fail({"simulate_serving: the traffic has no requests; poisson_traffic({...}) or ",
                  "read_traffic(path) makes some"});
  }
  ServingSimulation out;
  List<detail::EngineRequest> requests(traffic.requests.size());
  List<detail::EnginePrefix> prefixes;
  detail::engine_requests(traffic, limits, requests, prefixes);
  std::vector<std::size_t> order = detail::stable_order(std::vector<double>(requests.size()));
  if (options.prefill_servers > 0) {
    detail::prefill_apart(plan, options, requests, order, out);
  }
  const std::size_t servers = static_cast<std::size_t>(options.servers);
  for (std::size_t s = 0; s < servers; ++s) {
    std::vector<std::size_t> mine;
    for (std::size_t i = s; i < order.size(); i += servers) {
      mine.push_back(order[i]);
    }
    detail::ServingEngine(plan.law(), limits, requests, mine, prefixes, out.totals).run();
  }
  detail::report_requests(requests, options.keep_requests, out);
  const ServingCounters& t = out.totals;
  const double all = out.seconds * static_cast<double>(options.servers);
  const double pools = out.seconds * static_cast<double>(options.servers + options.prefill_servers);
  const double blocks = static_cast<double>(limits.blocks);
  out.title = detail::cat({"Serving ", plan.model, " on ", options.servers, " x ", plan.chips,
                           " x ", plan.machine, ": ", traffic.name});
  out.gap = {out.gap.mean, t.gaps.percentile(0.5), t.gaps.percentile(0.9), t.gaps.percentile(0.99),
             t.gaps.percentile(1)};
  out.requests_per_second = static_cast<double>(out.requests) / out.seconds;
  out.tokens_per_second = static_cast<double>(out.output_tokens) / out.seconds;
  out.busy = (t.busy + out.busy) / pools;
  out.math = static_cast<double>(t.prompt_tokens + t.decode_tokens) * plan.law().token / pools;
  out.mean_batch = static_cast<double>(t.decode_tokens) / std::max(1.0, double(t.steps));
  out.queue_mean = t.queue_seconds / out.seconds;
  out.cache_mean = t.block_seconds / (blocks * all);
  out.cache_most = static_cast<double>(t.blocks_most) / blocks;
  return out;
}

inline ServingSimulation simulate_serving(const ServingTraffic& traffic, const ServingJob& job,
                                          const Machine& machine,
                                          const ServingOptions& options = {}) {
  return simulate_serving(traffic, plan_serving(job, machine), options);
}

inline Table ServingSimulation::table() const {
  Table out;
  out.title = title;
  out.columns = {"quantity", "simulated", "p50", "p90", "p99", "most"};
  const auto times = [&](const char* name, const Percentiles& p) {
    out.add({name, format_seconds(p.mean), format_seconds(p.p50), format_seconds(p.p90),
             format_seconds(p.p99), format_seconds(p.most)});
  };
  const auto row = [&](const char* name, const Cell& value) {
    out.add({name, value, "-", "-", "-", "-"});
  };
  const auto count = [&](const char* name, std::int64_t value) {
    row(name, format_count(static_cast<double>(value)));
  };
  count("requests", requests);
  count("output tokens", output_tokens);
  row("time", format_seconds(seconds));
  times("time to first token", ttft);
  times("time per output token", per_token);
  times("gap between tokens", gap);
  times("latency of a request", latency);
  row("requests/s", detail::short_number(requests_per_second));
  row("output tokens/s", detail::short_number(tokens_per_second));
  row("busy", format_percent(busy));
  row("matmuls, of peak", format_percent(math));
  row("sequences in a step, mean", detail::short_number(mean_batch));
  row("waiting, mean", detail::short_number(queue_mean));
  count("waiting, most", totals.queue_most);
  row("cache in use, mean", format_percent(cache_mean));
  row("cache in use, most", format_percent(cache_most));
  count("preemptions", totals.preemptions);
  count("tokens computed again", totals.recomputed);
  count("prefix hits", totals.prefix_hits);
  row("  of lookups", format_count(static_cast<double>(totals.prefix_lookups)));
  return out;
}

inline std::ostream& operator<<(std::ostream& out, const ServingSimulation& run) {
  return out << run.table();
}

}  // namespace tinyscale
