// plan/serving: the plan by cause, shardings, limits, beam search, speculation and the frontier,
// beside the scaling book, published runs and a real small model.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "error_of.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

ts::ServingJob job_of(const char* model, std::int64_t prompt, std::int64_t output,
                      std::int64_t batch, ts::DType format) {
  ts::ServingJob job;
  job.model = ts::config(model);
  job.prompt = prompt;
  job.output = output;
  job.batch = batch;
  job.format = format;
  return job;
}

const ts::ServingSharding& sharding(const ts::ServingPlan& plan, const std::string& name) {
  for (const ts::ServingSharding& s : plan.shardings) {
    if (s.name == name) {
      return s;
    }
  }
  FAIL("no sharding " << name);
  return plan.shardings[0];
}

}  // namespace

TEST_CASE("serving: the scaling book's chapter 8") {
  // Llama 3 70B in int8 on a 4x2 slice of v5e, 32 sequences of 8,192 tokens.
  const ts::ServingPlan plan = ts::plan_serving(job_of("llama3-70b", 8192, 0, 32, ts::DType::int8),
                                                ts::machine("tpu-v5e", {4, 2}));
  CHECK(plan.kv_cache_per_sequence.value() == 163840.0 * 8192);
  CHECK(plan.decode_step_time.value() == doctest::Approx(17e-3).epsilon(0.02));
  CHECK(plan.tokens_per_second_per_chip.value() == doctest::Approx(235).epsilon(0.02));
  CHECK(plan.critical_batch.value() == doctest::Approx(120).epsilon(0.01));  // int8, bf16 maths
  // Without the embedding and its rounding to 70e9 parameters the book has 43.
  CHECK(plan.most_sequences.value() == 42);
  // bf16 on 4x4, full: QPS a chip, prefill of 8,192 tokens, prefill servers to a decode server.
  ts::ServingJob prefill = job_of("llama3-70b", 7680, 512, 42, ts::DType::bf16);
  const ts::ServingPlan bf16 = ts::plan_serving(prefill, ts::machine("tpu-v5e", {4, 4}));
  CHECK(bf16.chips == 16);
  CHECK(bf16.prefill_time.value() * 8192 / 7680 == doctest::Approx(0.91).epsilon(0.01));
  CHECK(bf16.decode_step_time.value() == doctest::Approx(19e-3).epsilon(0.02));
  const double queries = bf16.tokens_per_second.value() / 512 / 16;
  CHECK(queries == doctest::Approx(0.27).epsilon(0.03));
  CHECK(bf16.prefill_servers.value() == doctest::Approx(42 * 0.86 / (512 * 19.2e-3)).epsilon(0.01));
  prefill.batch = 32;  // the book's 3:1, with a step of 19 ms
  const ts::ServingPlan three = ts::plan_serving(prefill, ts::machine("tpu-v5e", {4, 4}));
  CHECK(three.prefill_servers.value() * three.decode_step_time.value() / 19e-3 ==
        doctest::Approx(3 * 7680.0 / 8192).epsilon(0.01));
  // Batch above which math bounds: 240, 120, 240.
  prefill.format = ts::DType::bf16;
  CHECK(bf16.critical_batch.value() == doctest::Approx(240).epsilon(0.01));
  prefill.format = ts::DType::int8;
  prefill.compute = ts::DType::int8;
  CHECK(ts::plan_serving(prefill, ts::machine("tpu-v5e", {4, 4})).critical_batch.value() ==
        doctest::Approx(240).epsilon(0.01));
}

TEST_CASE("serving: the links of a sharding are the closed forms of chapter 7") {
  // A model of one layer without attention to speak of and no gate, on a torus of rings, beside
  // the book's times, which leave out that 1/n of a gather stays where it is.
  ts::ServingJob job = job_of("gpt3-175b", 100, 10, 64, ts::DType::bf16);
  job.model.layers = 1;
  job.model.block_norms = 1;  // one gather and scatter of a block
  job.model.heads = job.model.kv_heads = 1;
  job.model.head_size = 1;
  const ts::Machine cube = ts::machine("tpu-v4", {4, 4, 4});
  ts::BatchMatmul s;
  s.b = 64;
  s.d = static_cast<double>(job.model.width);
  s.f = static_cast<double>(job.model.hidden);
  const ts::Quantity link(cube.egress(0), "B/s", "W");
  bool one = false, two = false;
  for (const ts::ServingSharding& way : ts::serving_shardings(job, cube)) {
    double seconds = 0;
    for (const ts::LayerTraffic& t : way.traffic) {
      const bool outer = t.what == "gather, scatter D";
      const double n = way.width_ways == 1 ? 64 : outer ? 16 : 4;
      seconds += t.what == "gather, scatter D" || t.what == "reduce F"
                     ? 64 * t.bytes / t.bandwidth * n / (n - 1)
                     : 0;
    }
    if (way.weights == ts::WeightSharding::tensor) {
      one = true;
      CHECK(seconds == doctest::Approx(ts::one_dim_time(s, link, 3).value()).epsilon(1e-9));
    } else if (way.width_ways == 4) {
      two = true;
      CHECK(seconds == doctest::Approx(ts::two_dim_time(s, 64, 4, link).value()).epsilon(1e-3));
    }
  }
  CHECK(one);
  CHECK(two);
}

TEST_CASE("serving: local windows and latent attention") {
  ts::ServingJob job = job_of("gemma2-9b", 8000, 192, 8, ts::DType::int8);
  const ts::Machine machine = ts::machine("tpu-v5e", {4, 4});
  const ts::ServingPlan gemma = ts::plan_serving(job, machine);
  CHECK(gemma.kv_cache_per_sequence.value() ==
        ts::kv_cache_bytes(job.model, ts::DType::int8, 8192));
  const double every = static_cast<double>(job.model.layers * job.model.cached_numbers());
  CHECK(gemma.kv_cache_per_sequence.value() == every * (8192 + 4096) / 2);  // every second layer
  CHECK(gemma.decode.cache.value() ==
        doctest::Approx(8 * every * (8096 + 4096) / 2 / (16 * 8.19e11)));
  const ts::StepWork prompt = ts::detail::prompt_work(job, 8000);
  double pairs = 0;
  for (int i = 1; i <= 8000; ++i) {
    pairs += (i + std::min(i, 4096)) / 2.0;
  }
  CHECK(prompt.chunk_pairs == pairs);
  job = job_of("deepseek-v3", 4096, 256, 64, ts::DType::fp8_e4m3);
  const ts::ServingPlan deep = ts::plan_serving(job, ts::machine("h100", {4, 8}));
  CHECK(deep.kv_cache_per_sequence.value() == 4352 * 70272 / 2.0);
  // Queries times latents: 2 (512 + 64) for the scores and 2 x 512 for the values, of 128 heads.
  CHECK(deep.law().pair == doctest::Approx(61 * 128 * 2.0 * (512 + 64 + 512) / (32 * 9.894e14)));
  CHECK(deep.law().chunk_pair == doctest::Approx(61 * 128 * 2.0 * (192 + 128) / (32 * 9.894e14)));
  CHECK(deep.sharding().cache_ways == 32);  // no heads to divide: by batch
  CHECK(deep.sharding().cache == ts::CacheSharding::batch);
}

TEST_CASE("serving: of steps that take as long the one at the lowest price is on the frontier") {
  const ts::ServingJob job = job_of("gemma2-9b", 3000, 100, 1, ts::DType::bf16);
  ts::FrontierOptions options;
  options.chips = {16};
  options.batches = {1, 1, 2};
  ts::Machine machine = ts::machine("tpu-v5e", {4, 4});
  for (ts::Links& links : machine.links) {  // their latency takes longest, whatever they carry
    links.bandwidth = ts::Bandwidth::one_way(1e30);
    links.latency = 1e-3;
  }
  const ts::ServingFrontier frontier = ts::serving_frontier(job, machine, options);
  REQUIRE(frontier.points.size() == 3);
  CHECK(frontier.points[0].step_seconds == frontier.points[2].step_seconds);
  REQUIRE(frontier.best().size() == 1);
  CHECK(frontier.best()[0].batch == 2);
}

TEST_CASE("serving: a point of the frontier has the sharding whose step is shortest as it counts") {
  int other = 0;  // points whose sharding is another one when all overlaps
  for (const char* const model : {"llama3-70b", "mixtral-8x7b"}) {
    for (const bool overlap : {true, false}) {
      const ts::ServingJob job = job_of(model, 2048, 256, 1, ts::DType::int8);
      const ts::Machine machine = ts::machine("tpu-v5e", {8, 8});
      ts::FrontierOptions options;
      options.overlap = overlap;
      for (const ts::FrontierPoint& point : ts::serving_frontier(job, machine, options).points) {
        ts::ServingJob one = job;
        one.batch = point.batch;
        const ts::Machine on = ts::detail::slice_machine(machine, point.chips);
        const ts::List<ts::ServingSharding> all = ts::serving_shardings(one, on);
        double best = 1e9;
        for (const ts::ServingSharding& s : all) {
          const bool fits = s.chip_bytes <= on.chip.memory_bytes;
          best = fits ? std::min(best, overlap ? s.bound : s.sum) : best;
        }
        CHECK(point.step_seconds == best);
        other += point.sharding != all[0].name ? 1 : 0;
      }
    }
  }
  CHECK(other > 10);
}

TEST_CASE("serving: a slice has links as fast as the machine's own") {
  const ts::ServingJob job = job_of("llama3-8b", 1000, 200, 8, ts::DType::bf16);
  ts::Machine slow = ts::machine("tpu-v5e", {4, 4});
  for (ts::Links& links : slow.links) {
    links.bandwidth = ts::Bandwidth::one_way(1e6);
    links.latency = 5e-6;
  }
  ts::Machine half = ts::machine("tpu-v5e", {4, 2});
  half.links = slow.links;
  ts::FrontierOptions options;
  options.chips = {8};
  options.batches = {8};
  CHECK(ts::serving_frontier(job, slow, options).points[0].step_seconds ==
        doctest::Approx(ts::serving_shardings(job, half)[0].bound).epsilon(1e-12));
  ts::Machine one = ts::machine("tpu-v5e", {1});
  one.links = {slow.links[0]};
  const ts::ServingPlan plan = ts::plan_serving(job, one);
  CHECK(plan.on.dims == ts::Shape{2, 2});
  for (const ts::Links& links : plan.on.links) {
    CHECK(links.bandwidth.one_way() == 1e6);
    CHECK(links.latency == 5e-6);
  }
  ts::Machine nodes = ts::machine("h100", {4, 8});
  nodes.links[0].bandwidth = ts::Bandwidth::one_way(2e9);
  nodes.links[0].uplink = ts::Bandwidth::one_way(8e9);
  nodes.links[1].kind = ts::AxisKind::full;
  const ts::Machine two = ts::detail::slice_machine(nodes, 16);
  CHECK(two.dims == ts::Shape{2, 8});
  CHECK(two.links[0].uplink.one_way() == 8e9);
  CHECK(two.egress(0) == 1e9);
  CHECK(two.links[1].kind == ts::AxisKind::full);
}

TEST_CASE("serving: causes by hand, and the law that the simulation uses") {
  ts::ServingJob job = job_of("llama2-13b", 1000, 200, 8, ts::DType::bf16);
  const ts::Machine machine = ts::machine("tpu-v5e", {4, 2});
  const ts::ServingPlan plan = ts::plan_serving(job, machine);
  CHECK(plan.sharding().name == "tensor 8, cache by heads 8");
  CHECK(plan.shardings.size() == 3);  // Megatron, 4 or 2 ways of D; all divide the cache by heads
  const double parameters = 13015864320, bandwidth = 8 * 8.19e11, peak = 8 * 1.97e14;
  CHECK(plan.decode.weights.value() == doctest::Approx(2 * parameters / bandwidth));
  CHECK(plan.decode.cache.value() == doctest::Approx(8.0 * 1100 * 819200 / bandwidth));
  CHECK(plan.decode.math.value() == doctest::Approx(2 * 8 * parameters / peak));
  // 4 rows of 2 links and 2 of 1, open: 45 GB/s each way; a gather and a scatter of 8 x 5120 bf16
  // before and after attention and feed-forward, 7/8 of it sent.
  const double links = 40 * 4 * (8 * 5120 * 2) * 7 / 8.0 / 9e10;
  CHECK(plan.decode.links.value() == doctest::Approx(links));
  CHECK(plan.decode.latency.value() == doctest::Approx(40 * 4 * (3 + 1) * 1e-6));
  const double scores = 4 * 8 * 1100.0 * 40 * 5120 / peak;
  const double alone = plan.decode.cache.value() + plan.decode.weights.value();
  CHECK(plan.decode.bound.value() == doctest::Approx(alone));
  CHECK(plan.decode.sum.value() == doctest::Approx(alone + plan.decode.math.value() + scores +
                                                   links + plan.decode.latency.value()));
  CHECK(plan.decode.bound.value() == doctest::Approx(plan.decode_step_time.value()));
  CHECK(plan.decode.links.explain().find("T_links = L * T * b(gather, scatter D) / ") == 0);
  // One function for plan and simulation.
  for (const char* model : {"llama2-13b", "llama3-70b", "palm-540b", "mixtral-8x7b"}) {
    for (const std::int64_t batch : {1, 16, 200}) {
      CAPTURE(model);
      job.model = ts::config(model);
      job.batch = batch;
      const ts::ServingPlan p = ts::plan_serving(job, ts::machine("h100", {4, 8}));
      const ts::StepWork step = ts::detail::decode_work(job);
      const ts::StepWork prompt = ts::detail::prompt_work(job, 1000);
      CHECK(p.decode.bound.value() == doctest::Approx(p.law().bound(step)).epsilon(1e-12));
      CHECK(p.decode.sum.value() == doctest::Approx(p.law().sum(step)).epsilon(1e-12));
      CHECK(p.decode.bound.value() == doctest::Approx(p.sharding().bound).epsilon(1e-12));
      CHECK(p.decode_step_time.value() <= p.decode.bound.value() * (1 + 1e-12));
      CHECK(p.decode.bound.value() <= p.decode.sum.value());
      // The plan's causes of a prompt are at peak; the law's prefill at the MFU assumed.
      ts::ServingLaw peak_law = p.law();
      peak_law.prefill_mfu = 1;
      CHECK(p.prefill.bound.value() == doctest::Approx(peak_law.bound(prompt)).epsilon(1e-12));
      CHECK(p.prefill.sum.value() == doctest::Approx(peak_law.sum(prompt)).epsilon(1e-12));
      CHECK(p.prefill_time.value() == doctest::Approx(p.law().math(prompt)).epsilon(1e-12));
    }
  }
}

TEST_CASE("serving: which sharding, and why not the others") {
  // PaLM has one KV head: by heads every chip would keep the whole cache. 64 chips are fewer than
  // the 72 from which two dimensions beat three axes.
  ts::ServingJob job = job_of("palm-540b", 2048, 64, 64, ts::DType::int8);
  job.cache = ts::DType::bf16;
  const ts::Machine cube = ts::machine("tpu-v4", {4, 4, 4});
  const ts::ServingPlan plan = ts::plan_serving(job, cube);
  CHECK(plan.sharding().name == "tensor 64, cache by batch 64");
  const ts::ServingSharding& heads = sharding(plan, "tensor 64, cache by heads 1");
  CHECK(heads.law.cached == doctest::Approx(64 * plan.law().cached));
  CHECK(heads.why_not == "cache: 12.9 ms more to read a step");
  const ts::ServingSharding& two = sharding(plan, "2D 64 (4 of D), cache by batch 64");
  CHECK(two.width_ways == 4);
  CHECK(two.law.link > plan.law().link);
  CHECK(two.why_not.find("links: ") == 0);
  // A batch of 8,192 of them does not fit in copies.
  job.batch = 8192;
  job.prompt = 1024;
  const ts::ServingPlan many = ts::plan_serving(job, cube);
  CHECK(sharding(many, "tensor 64, cache by heads 1").why_not ==
        "memory: 1.09 TB a chip of 34.4 GB, 64 copies of the cache");
  // Ring of 16 of v5e over both dimensions: 256 chips, 2D wins (256 > 8 F / D of two axes).
  ts::ServingJob wide = job_of("llama3-70b", 2048, 256, 512, ts::DType::int8);
  const ts::ServingPlan pod = ts::plan_serving(wide, ts::machine("tpu-v5e", {16, 16}));
  CHECK(pod.sharding().weights == ts::WeightSharding::two_dimensional);
  CHECK(pod.prefill_tensor_limit.value() == doctest::Approx(2 * 28672 / 2188.9).epsilon(1e-4));
  CHECK(pod.prefill_tensor_limit.unit().empty());
  // Of fully connected chips those links count that lead to chips of the slice: 3 and 7.
  const ts::ServingJob box = job_of("llama3-70b", 32, 256, 512, ts::DType::bf16);
  const double four = ts::plan_serving(box, ts::machine("mi300x", {4})).tensor_limit.value();
  const double eight = ts::plan_serving(box, ts::machine("mi300x", {8})).tensor_limit.value();
  CHECK(four / eight == doctest::Approx(3.0 / 7).epsilon(1e-12));
  // By hand: gathers of 4 B D / 16 over 16 chips, reductions of (3 F + 2 H K + 2 KV K) / 16.
  double bytes = 0;
  for (const ts::LayerTraffic& t : pod.sharding().traffic) {
    if (t.what == "gather, scatter D") {
      CHECK(t.bytes == doctest::Approx(2 * 4 * 8192.0 / 16 * 15 / 16));
    } else if (t.what == "reduce F") {
      CHECK(t.bytes == doctest::Approx(2 * (3 * 28672 + 2 * 8192 + 2048) / 16.0 * 15 / 16));
    }
    bytes += t.bytes;
  }
  CHECK(bytes > 0);
  // One chip has nothing to share.
  const ts::ServingPlan one = ts::plan_serving(job_of("llama2-7b", 100, 10, 1, ts::DType::int8),
                                               ts::machine("tpu-v5e", {1}));
  CHECK(one.shardings.size() == 1);
  CHECK(one.decode.links.value() == 0);
  CHECK(one.decode.latency.value() == 0);
  std::ostringstream text;
  text << plan.choices() << plan.causes();
  CHECK(text.str().find("chosen") != std::string::npos);
  CHECK(text.str().find("links, latency") != std::string::npos);
}

TEST_CASE("serving: mixtures read the experts that a batch touches, and may be shared by expert") {
  ts::ServingJob job = job_of("mixtral-8x7b", 1024, 256, 1, ts::DType::bf16);
  const ts::Machine node = ts::machine("h100", {1, 8});
  const ts::ModelConfig& m = job.model;
  const double routed =
      static_cast<double>(m.layers * m.experts * m.feed_forward_parameters(m.expert_hidden));
  const double rest = static_cast<double>(m.parameters()) - routed;
  const ts::ServingPlan one = ts::plan_serving(job, node);
  CHECK(one.decode.weights.value() ==
        doctest::Approx(2 * (rest + routed / 4) / (8 * 3.35e12)));  // 2 of 8 experts
  job.batch = 64;
  const ts::ServingPlan many = ts::plan_serving(job, node);
  CHECK(many.decode.weights.value() ==
        doctest::Approx(2 * (rest + routed * (1 - std::pow(0.75, 64))) / (8 * 3.35e12)));
  CHECK(many.critical_batch.value() == doctest::Approx(295 * static_cast<double>(m.parameters()) /
                                                       static_cast<double>(m.active_parameters()))
                                           .epsilon(2e-3));
  const ts::ServingSharding& expert = sharding(many, "expert 8, cache by heads 8");
  bool dispatched = false;
  for (const ts::LayerTraffic& t : expert.traffic) {
    if (t.what == "dispatch, combine") {
      dispatched = true;
      CHECK(t.bytes == doctest::Approx(2 * 2 * 4096 * 2 / 8.0));  // both ways, bf16, 2 experts
    }
  }
  CHECK(dispatched);
}

TEST_CASE("serving: published runs stay above the limit") {
  // Pope et al. 2022, PaLM 540B on 64 v4: MFU by 2 N a token, and our bound of the same work.
  const ts::Machine cube = ts::machine("tpu-v4", {4, 4, 4});
  const double n = static_cast<double>(ts::config("palm-540b").parameters());
  struct Run {
    std::int64_t batch, prompt, output;
    bool decode;
    ts::DType format;
    double seconds, mfu;
  };
  for (const Run& run : {Run{1, 2048, 64, false, ts::DType::int8, 0.29, 0.433},
                         Run{64, 2048, 64, true, ts::DType::int8, 1.82, 0.138},
                         Run{512, 2048, 64, false, ts::DType::bf16, 85.2, 0.755},
                         Run{512, 2048, 64, true, ts::DType::bf16, 6.0, 0.335}}) {
    CAPTURE(run.seconds);
    ts::ServingJob job = job_of("palm-540b", run.prompt, run.output, run.batch, run.format);
    job.cache = ts::DType::bf16;
    const ts::ServingPlan plan = ts::plan_serving(job, cube);
    const double tokens = static_cast<double>(run.batch * (run.decode ? run.output : run.prompt));
    CHECK(2 * n * tokens / (64 * 2.75e14 * run.seconds) ==
          doctest::Approx(run.mfu).epsilon(run.mfu < 0.4 ? 0.005 : 0.003));
    const double bound = run.decode ? plan.decode.bound.value() * static_cast<double>(run.output)
                                    : plan.prefill.bound.value() * static_cast<double>(run.batch);
    CHECK(bound < run.seconds);
    CHECK(bound > 0.2 * run.seconds);
  }
  // DeepSeek's prefill: 73,700 tokens/s on a node of 8 H800, cache hits included.
  ts::ServingJob job = job_of("deepseek-v3", 4096, 1, 1, ts::DType::fp8_e4m3);
  job.compute = ts::DType::fp8_e4m3;
  const ts::ServingPlan plan = ts::plan_serving(job, ts::machine("h100", {4, 8}));
  CHECK(4096 / plan.prefill.math.value() / 4 > 73700);
}

TEST_CASE("serving: v5e beside v4, A100 beside H100, a wafer") {
  // GPT-J on one chip: seconds of prefill and decode, matmuls at peak.
  const auto seconds = [](const char* chip, ts::DType format, std::int64_t batch,
                          std::int64_t prompt, std::int64_t output) {
    ts::ServingJob job = job_of("gpt-j-6b", prompt, output, batch, format);
    job.compute = format;
    job.prefill_mfu = 1;
    const ts::ServingLaw law = ts::detail::even_law(job, ts::chip(chip), 1);
    ts::StepWork work;
    work.chunk = static_cast<double>(batch * prompt);
    double sum = law.bound(work);
    work = ts::StepWork();
    work.decode = static_cast<double>(batch);
    for (std::int64_t i = 1; i <= output; ++i) {
      work.context = static_cast<double>(batch * (prompt + i));
      sum += law.bound(work);
    }
    return sum;
  };
  const auto per_dollar = [&](ts::DType on_v5e, ts::DType on_v4, std::int64_t batch,
                              std::int64_t prompt) {
    return seconds("tpu-v4", on_v4, batch, prompt, 128) * 3.22 /
           (seconds("tpu-v5e", on_v5e, batch, prompt, 128) * 1.20);
  };
  const ts::DType int8 = ts::DType::int8, bf16 = ts::DType::bf16;
  CHECK(per_dollar(int8, int8, 8, 128) == doctest::Approx(1.85).epsilon(0.01));
  CHECK(per_dollar(int8, int8, 16, 1024) == doctest::Approx(2.29).epsilon(0.01));
  CHECK(per_dollar(int8, int8, 32, 1024) == doctest::Approx(2.43).epsilon(0.01));
  CHECK(per_dollar(bf16, bf16, 8, 128) == doctest::Approx(1.79).epsilon(0.01));
  CHECK(per_dollar(bf16, bf16, 32, 1024) == doctest::Approx(1.83).epsilon(0.01));
  // Chip for chip one sequence in bf16 is 1.5 times slower; int8 against bf16 1.33 times faster.
  CHECK(seconds("tpu-v5e", bf16, 1, 128, 128) / seconds("tpu-v4", bf16, 1, 128, 128) ==
        doctest::Approx(1.5).epsilon(0.01));
  CHECK(seconds("tpu-v4", bf16, 1, 128, 128) / seconds("tpu-v5e", int8, 1, 128, 128) ==
        doctest::Approx(1.34).epsilon(0.015));
  // Utilisation of decode matmuls falls from A100 to H100: peak grows more than bandwidth.
  const auto used = [](const char* chip, ts::DType format, std::int64_t batch) {
    ts::ServingJob job = job_of("llama2-13b", 1, 0, batch, format);
    job.compute = format;
    const ts::ServingLaw law = ts::detail::even_law(job, ts::chip(chip), 1);
    ts::StepWork step;
    step.decode = static_cast<double>(batch);
    return 100 * law.math(step) / law.bound(step);
  };
  for (const auto& row : std::vector<std::vector<double>>{{16, 10.5, 5.4},
                                                          {64, 41.8, 21.7},
                                                          {153, 100, 51.8},
                                                          {256, 100, 86.7},
                                                          {512, 100, 100}}) {
    const std::int64_t batch = static_cast<std::int64_t>(row[0]);
    CHECK(used("a100-80", bf16, batch) == doctest::Approx(row[1]).epsilon(0.005));
    CHECK(used("h100", bf16, batch) == doctest::Approx(row[2]).epsilon(0.005));
    CHECK(used("h100", ts::DType::fp8_e4m3, batch) == doctest::Approx(row[2]).epsilon(0.005));
  }
  // On a wafer even one sequence is bound by math: 13B in bf16, 1.3 us of bytes, 3.5 us of FLOPs.
  const ts::ServingPlan wafer =
      ts::plan_serving(job_of("llama2-13b", 1, 0, 1, bf16), ts::machine("wse-2", {1}));
  CHECK(wafer.bound == "math");
  CHECK(wafer.decode.weights.value() == doctest::Approx(1.3e-6).epsilon(0.01));
  CHECK(wafer.decode.math.value() == doctest::Approx(3.5e-6).epsilon(0.01));
}

TEST_CASE("serving: what fits on one v5e, and on 256") {
  ts::ServingJob job = job_of("llama2-13b", 2048, 256, 1, ts::DType::int8);
  ts::Machine one = ts::machine("tpu-v5e", {1});
  const ts::ServingFit fit = ts::fit_serving(job, one);
  CHECK(fit.fits);
  CHECK(fit.weights.value() == 13015864320.0);
  CHECK(fit.most_tokens.value() == 7285);
  CHECK(fit.most_sequences.value() == 3);
  CHECK(fit.largest_model.value() == 16e9 - 2304 * 409600.0);
  one.chip.memory_bytes = 16.0 * (1 << 30);
  CHECK(ts::fit_serving(job, one).most_tokens.value() == 10166);  // (2^34 - P) / 409600 = 10166.02
  one.chip.memory_bytes = 16e9;
  job.format = ts::DType::bf16;
  const ts::ServingFit not_fit = ts::fit_serving(job, one);
  CHECK(!not_fit.fits);
  std::ostringstream text;
  text << not_fit;
  CHECK(text.str().find("llama2-13b on tpu-v5e 1: does not fit") == 0);
  CHECK(text.str().find("none") != std::string::npos);
  job.format = ts::DType::int8;
  job.model.other_parameters = 14000000000 - 13015864320;  // 14B with 8k tokens
  job.prompt = 8192;
  job.output = 0;
  CHECK(!ts::fit_serving(job, one).fits);
  // 2e12 parameters over 256 chips: 7.8 GB each in int8, 15.6 GB in bf16.
  const ts::Machine pod = ts::machine("tpu-v5e", {16, 16});
  job = job_of("llama3-405b", 1, 0, 1, ts::DType::int8);
  job.model.other_parameters += 2000000000000 - job.model.parameters();
  CHECK(ts::fit_serving(job, pod).fits);
  CHECK(ts::fit_serving(job, pod).weights.value() / 256 == doctest::Approx(7.8125e9));
  CHECK(ts::chips_that_hold(job, pod.chip) == 126);
  job.format = ts::DType::bf16;
  CHECK(ts::fit_serving(job, pod).fits);
  CHECK(ts::fit_serving(job, pod).weights.value() / 256 == doctest::Approx(15.625e9));
  // From 13B on one chip to 2T on 256, in int8: the slices that are made.
  struct Size {
    const char* model;
    std::int64_t chips;
  };
  for (const Size& size : {Size{"llama2-13b", 1}, Size{"llama3-70b", 8}, Size{"gpt3-175b", 16},
                           Size{"llama3-405b", 32}, Size{"palm-540b", 64}}) {
    CAPTURE(size.model);
    const ts::ServingPlan plan = ts::plan_serving(job_of(size.model, 2048, 256, 1, ts::DType::int8),
                                                  ts::machine("tpu-v5e", {1}));
    CHECK(plan.chips == size.chips);
    CHECK(plan.on.chips() == size.chips);
    CHECK(plan.memory.value() <= 16e9 * static_cast<double>(size.chips));
  }
}

TEST_CASE("serving: beam search with a shared prefix on one v5e") {
  ts::ServingJob job = job_of("llama2-13b", 2048, 256, 1, ts::DType::int8);
  job.compute = ts::DType::int8;
  ts::Machine one = ts::machine("tpu-v5e", {1});
  const ts::BeamPlan plan = ts::plan_beam_search(job, one, 32);
  CHECK(plan.prefill_time.value() == doctest::Approx(0.136).epsilon(0.003));
  CHECK(plan.weights_time.value() == doctest::Approx(15.9e-3).epsilon(0.002));
  CHECK(plan.shared_cache.value() == (2048 + 32 * 256) * 409600.0);  // 4.19 GB
  CHECK(plan.shared_cache.value() == doctest::Approx(4.19e9).epsilon(0.002));
  CHECK(plan.shared_cache.value() / 409600 == 10240);  // places of tokens
  CHECK(plan.copied_cache.value() / 409600 == 73728);
  CHECK(plan.shared_memory.value() == doctest::Approx(17.2e9).epsilon(0.002));
  CHECK(!plan.fits_shared);
  CHECK(plan.copied_cache.value() == doctest::Approx(30.2e9).epsilon(0.002));
  CHECK(plan.shared_time.value() == doctest::Approx(4.85).epsilon(0.002));
  CHECK(plan.copied_time.value() == doctest::Approx(13.0).epsilon(0.003));
  CHECK(plan.largest_beams == 20);
  CHECK(ts::plan_beam_search(job, one, 20).fits_shared);
  CHECK(!ts::plan_beam_search(job, one, 21).fits_shared);
  one.chip.memory_bytes = 16.0 * (1 << 30);
  const ts::BeamPlan gib = ts::plan_beam_search(job, one, 32);
  CHECK(!gib.fits_shared);
  const double over = gib.shared_memory.value() - gib.capacity.value();
  CHECK(over == doctest::Approx(30e6).epsilon(0.02));
  // Of a mixture the experts that the beams visit, as in a step of as many sequences.
  ts::ServingJob mixture = job_of("mixtral-8x7b", 2048, 256, 4, ts::DType::int8);
  const ts::Machine eight = ts::machine("tpu-v5e", {2, 4});
  CHECK(ts::plan_beam_search(mixture, eight, 4).weights_time.value() * eight.chip.memory_bandwidth *
            8 ==
        doctest::Approx(ts::ServingPlan(ts::plan_serving(mixture, eight)).weights.value() -
                        ts::detail::routed_bytes(mixture) * std::pow(0.75, 4)));
  // Llama 2 70B's grouped queries would need an eighth of the cache a layer and width.
  const ts::ModelConfig grouped = ts::config("llama2-70b");
  CHECK(grouped.cached_numbers() * 8 == 2 * grouped.query_width());
  std::ostringstream text;
  text << plan;
  CHECK(text.str().find("Beam search with 32 beams") == 0);
  CHECK(error_of([&] { ts::plan_beam_search(job, one, 0); }) ==
        "plan_beam_search: beams is 0; a number from 1 to 1e+09 is right");
}

TEST_CASE("serving: batch for a latency, speculation") {
  ts::ServingJob job = job_of("llama3-70b", 2048, 256, 8, ts::DType::int8);
  const ts::Machine machine = ts::machine("tpu-v5e", {4, 4});
  job.target = 10e-3;
  const ts::ServingPlan plan = ts::plan_serving(job, machine);
  const std::int64_t batch = static_cast<std::int64_t>(plan.target_batch.value());
  job.batch = batch;
  CHECK(ts::plan_serving(job, machine).decode_step_time.value() <= 10e-3);
  job.batch = batch + 1;
  CHECK(ts::plan_serving(job, machine).decode_step_time.value() > 10e-3);
  job.batch = 8;
  job.target = 5e-3;  // reading 70 GB takes 5.4 ms
  const ts::ServingPlan never = ts::plan_serving(job, machine);
  CHECK(never.target_batch.value() == 0);
  CHECK(never.notes.back() ==
        "target: 5 ms a token holds for 0 sequences, not for 8; one alone takes 5.41 ms");

  CHECK(ts::expected_tokens(0, 4) == 1);
  CHECK(ts::expected_tokens(1, 4) == 5);
  CHECK(ts::expected_tokens(0.8, 4) == doctest::Approx((1 - std::pow(0.8, 5)) / 0.2));
  double tokens = 0;  // by hand: i accepted and one more with r^i (1 - r), or all g and one
  for (int i = 0; i < 4; ++i) {
    tokens += (i + 1) * std::pow(0.8, i) * 0.2;
  }
  CHECK(ts::expected_tokens(0.8, 4) == doctest::Approx(tokens + 5 * std::pow(0.8, 4)));
  CHECK(ts::speculative_speed_up(0.8, 4, 0.05) == doctest::Approx(3.3616 / 1.2));
  job.target = 0;
  job.speculation.length = 4;
  job.speculation.acceptance = 0.8;
  job.speculation.cost = 0.05;
  job.batch = 4;  // checking 20 tokens stays under the time of the weights
  const ts::ServingPlan few = ts::plan_serving(job, machine);
  CHECK(few.speculative_speed_up.value() ==
        doctest::Approx(ts::speculative_speed_up(0.8, 4, 0.05)));
  job.batch = 200;  // bound by math: five times the tokens take five times as long
  const ts::ServingPlan many = ts::plan_serving(job, machine);
  CHECK(many.speculative_speed_up.value() < 1);
  CHECK(error_of([] { ts::expected_tokens(1.5, 2); }) ==
        "expected_tokens: acceptance is 1.5; a number from 0 to 1 is right");
  CHECK(error_of([&] { ts::batch_within(job, machine.chip, 16, std::nan("")); }) ==
        "batch_within: seconds is nan; a number from 0 to 1e+09 is right");
  const auto refused = [&](const ts::ServingJob& bad, const ts::Chip& chip) {
    return error_of([&] { ts::decode_seconds(bad, chip, 16); });
  };
  ts::ServingJob bad = job;
  bad.model.layers = 0;
  CHECK(refused(bad, machine.chip) == "ModelConfig: llama3-70b: layers is 0; at least 1 is right");
  bad = job;
  bad.prompt = INT64_MAX;
  CHECK(refused(bad, machine.chip) ==
        "decode_seconds: prompt is 9.22337204e+18; a number from 0 to 1e+09 is right");
  ts::Chip unknown = machine.chip;
  unknown.memory_bandwidth = 0;
  CHECK(refused(job, unknown) ==
        "decode_seconds: the chip's memory_bandwidth is 0; a number from 1e-09 to 1e+18 is right");
}

TEST_CASE("serving: formats that a chip multiplies or does not") {
  ts::ServingJob job = job_of("llama2-13b", 100, 10, 4, ts::DType::int4);
  const auto note = [&](const char* chip) {
    const ts::ServingPlan plan = ts::plan_serving(job, ts::machine(chip, {1, 1}));
    for (const std::string& line : plan.notes) {
      if (line.find("compute: ") == 0) {
        return line;
      }
    }
    return std::string();
  };
  CHECK(note("tpu-v5e").empty());
  job.compute = ts::DType::fp8_e4m3;
  CHECK(note("tpu-v5e") ==
        "compute: tpu-v5e has no rate for fp8_e4m3; products run at its bf16 rate, 197 TFLOP/s");
  CHECK(note("h100").empty());
  job.compute = ts::DType::int4;
  CHECK(note("tpu-v5e") ==
        "compute: tpu-v5e has no rate for int4; products run at its int8 rate, 393 TFLOP/s");
  job.compute = ts::DType::int8;
  CHECK(note("tpu-v7") ==
        "compute: tpu-v7 has no rate for int8; products run at its bf16 rate, 2.31 PFLOP/s");
  job.compute = ts::DType::int32;
  CHECK(error_of([&] {
          ts::plan_serving(job, ts::machine("h100", {1}));
        }).find("Chip::peak: h100-sxm has no rate for int32") == 0);
  // Four pairs of PCIe cards: nothing is known of what joins the pairs.
  job = job_of("gpt3-175b", 100, 10, 4, ts::DType::bf16);
  CHECK(ts::plan_serving(job, ts::machine("h100-pcie", {1, 2})).notes.back() ==
        "links: not known between all chips of h100-pcie 4x2; their time is not counted, set "
        "link_bandwidth and dcn_bandwidth of the chip");
  job = job_of("llama2-13b", 100, 10, 4, ts::DType::int4);
  // Weights, cache and maths each count for themselves.
  job.compute = ts::DType::bf16;
  job.cache = ts::DType::fp8_e5m2;
  const ts::ServingPlan plan = ts::plan_serving(job, ts::machine("h100", {1}));
  CHECK(plan.weights.value() == 13015864320.0 / 2);
  CHECK(plan.kv_cache_per_sequence.value() == 110 * 409600.0);
}

TEST_CASE("serving: the frontier") {
  const ts::ServingJob job = job_of("llama3-70b", 2048, 256, 1, ts::DType::int8);
  ts::FrontierOptions options;
  options.formats = {ts::DType::bf16, ts::DType::int8};
  const ts::ServingFrontier frontier =
      ts::serving_frontier(job, ts::machine("tpu-v5e", {8, 8}), options);
  CHECK(frontier.points.size() > 30);
  const ts::List<ts::FrontierPoint> best = frontier.best();
  REQUIRE(best.size() > 3);
  for (const ts::FrontierPoint& p : frontier.points) {
    bool beaten = false;
    for (const ts::FrontierPoint& q : frontier.points) {
      const bool no_worse = q.step_seconds <= p.step_seconds &&
                            q.tokens_per_second_per_chip >= p.tokens_per_second_per_chip;
      const bool equal = q.step_seconds == p.step_seconds &&
                         q.tokens_per_second_per_chip == p.tokens_per_second_per_chip;
      beaten = beaten || (no_worse && (!equal || &q < &p));  // of equal ones the first stays
    }
    CHECK(p.best == !beaten);
    ts::ServingJob one = job;
    one.batch = p.batch;
    one.format = p.format;
    CHECK(ts::detail::weight_bytes(one) < 16e9 * static_cast<double>(p.chips));
  }
  for (std::size_t i = 1; i < best.size(); ++i) {
    CHECK(best[i].step_seconds > best[i - 1].step_seconds);
    CHECK(best[i].dollars_per_million_tokens < best[i - 1].dollars_per_million_tokens);
  }
  // A point is the plan of that batch and slice.
  ts::ServingJob same = job;
  same.batch = best[0].batch;
  same.format = best[0].format;
  const ts::Machine slice =
      ts::detail::slice_machine(ts::machine("tpu-v5e", {8, 8}), best[0].chips);
  CHECK(ts::plan_serving(same, slice).decode.bound.value() ==
        doctest::Approx(best[0].step_seconds).epsilon(1e-12));
  CHECK(frontier.csv().find("chips,batch,weights,sharding,") == 0);
  CHECK(error_of([&] { ts::serving_frontier(job, ts::machine("tpu-v5e", {1})); }) ==
        "serving_frontier: nothing fits: llama3-70b has 70.6 GB of weights in int8 and tpu-v5e 1 "
        "holds 16 GB; more chips, a narrower format or a smaller batch is right");
  // More chips than a pod has are slices joined by the data-centre network, not a larger torus.
  for (const char* name : {"tpu-v5e", "tpu-v5p"}) {
    const std::int64_t chips = 2 * ts::chip(name).domain_chips;
    options.chips = {chips};
    const ts::Machine slices = ts::machine_of_chips(name, chips);
    ts::ServingJob large = job;
    large.format = ts::DType::int8;
    const ts::ServingFrontier beyond =
        ts::serving_frontier(large, ts::machine_of_chips(name, 64), options);
    for (const ts::FrontierPoint& p : beyond.points) {
      large.batch = p.batch;
      large.format = p.format;
      double shortest = 1e9;
      for (const ts::ServingSharding& s : ts::serving_shardings(large, slices)) {
        const bool fits = s.chip_bytes <= slices.chip.memory_bytes;
        shortest = fits ? std::min(shortest, s.bound) : shortest;
      }
      CHECK(p.step_seconds == shortest);
    }
  }
  // A pod of one's own chips, of no power of two.
  ts::Chip mine = ts::chip("tpu-v5p");
  mine.name = "mine";
  ts::ServingJob wide = job;
  wide.batch = 2300000;
  const ts::ServingPlan pod = ts::plan_serving(wide, ts::machine(mine, {4, 4, 4}));
  CHECK(pod.on.name == "mine 16x20x28");
  options.chips = {12};
  CHECK(error_of([&] {
          ts::serving_frontier(job, ts::machine("tpu-v5e", {8, 8}), options);
        }) ==
        "serving_frontier: 12 chips make no slice; a power of two or 64, the machine's own, "
        "is right");
}

TEST_CASE("serving: requests that cannot be met say what would fit") {
  ts::ServingJob job = job_of("llama3-405b", 100000, 1000, 200, ts::DType::int8);
  CHECK(error_of([&] { ts::plan_serving(job, ts::machine("tpu-v5e", {1})); }) ==
        "plan_serving: llama3.1-405b needs 352 tpu-v5e; a pod has 256, which hold 4.1 TB: with "
        "101000 tokens each 141 sequences fit, a narrower format or a chip with more memory is "
        "right");
  job.batch = 141;
  CHECK(ts::plan_serving(job, ts::machine("tpu-v5e", {1})).chips == 256);
  job.model.other_parameters = 5000000000000;
  CHECK(error_of([&] {
          ts::plan_serving(job, ts::machine("tpu-v5e", {1}));
        }).find("which hold 4.1 TB: the weights alone are 5.41 TB, a narrower format") !=
        std::string::npos);
  job = ts::ServingJob();
  job.target = -1;
  const auto refused = [&] {
    return error_of([&] { ts::plan_serving(job, ts::machine("tpu-v5e", {1})); });
  };
  CHECK(refused() == "plan_serving: target is -1; a number from 0 to 1e+09 is right");
  job.target = 0;
  job.batch = -8;
  CHECK(refused() == "plan_serving: batch is -8; a number from 1 to 1e+09 is right");
  job.batch = 1;
  job.speculation.acceptance = 2;
  CHECK(refused() == "plan_serving: speculation.acceptance is 2; a number from 0 to 1 is right");
  job.speculation = ts::Speculation();
  job.speculation.length = -1;
  CHECK(refused() == "plan_serving: speculation.length is -1; a number from 0 to 1000 is right");
  CHECK(error_of([&] { ts::fit_serving(job, ts::Machine()); }) ==
        "fit_serving: the machine has no chips; make one with machine(\"tpu-v5e\", {1})");
}

TEST_CASE("serving: a real small model's cache, maths and weights are the plan's") {
  ts::ServingJob job;
  job.model = ts::config("nano");
  job.model.layers = 2;
  job.model.width = 32;
  job.model.heads = 4;
  job.model.kv_heads = 2;
  job.model.head_size = 8;
  job.model.hidden = 64;
  job.model.context = 24;
  job.model.vocabulary = 40;
  job.format = ts::DType::f32;
  const ts::ModelConfig& m = job.model;
  const ts::Transformer model(m, 1);
  const ts::NoGrad no_grad;
  ts::KvCache cache;
  const auto run = [&](std::int64_t first, std::int64_t tokens) {
    ts::Hooks hooks;
    hooks.places = hooks.stream = first;
    hooks.cache = &cache;
    const ts::Profile profile;
    model.forward(std::vector<std::int32_t>(static_cast<std::size_t>(tokens), 3), 1, tokens, hooks);
    return profile.totals();
  };
  const ts::Counters prompt = run(0, 16);
  double held = 0;
  for (std::size_t layer = 0; layer < cache.keys.size(); ++layer) {
    held += 4.0 * static_cast<double>(cache.keys[layer].count() + cache.values[layer].count());
  }
  CHECK(held == 24 * ts::kv_cache_bytes_per_token(m, ts::DType::f32));  // the whole context
  // Matmuls of a step: 2 P for each token but vectors, tables read by place and the causal half.
  const double matrices = static_cast<double>(
      m.layers * (m.attention_parameters() + m.feed_forward_parameters(m.hidden)) +
      m.vocabulary * m.width);
  const ts::Counters step = run(16, 1);
  const double pairs = 4.0 * static_cast<double>(m.layers * m.query_width());
  CHECK(step.matmul_flops == 2 * matrices + pairs * 17);
  // The plan's law has the same FLOPs on a chip of 1 FLOP/s, but for its vectors.
  ts::Chip chip;
  chip.flops_f32 = 1;
  chip.memory_bandwidth = 1;
  job.compute = ts::DType::f32;
  const ts::ServingLaw law = ts::detail::even_law(job, chip, 1);
  CHECK(law.pair * 17 == pairs * 17);
  CHECK(law.token == doctest::Approx(2 * matrices).epsilon(0.06));
  CHECK(law.token > 2 * matrices);
  CHECK(prompt.matmul_flops > 16 * 2 * matrices);
  // Bytes: the step reads every matrix and the cache once, as the law says, and little more.
  const double least = 4 * matrices + 17 * law.cached;
  CHECK(step.bytes_read > least);
  CHECK(step.bytes_read < 1.25 * least);
}

TEST_CASE("serving: windows count in what chips must hold, slices are those of a pod") {
  ts::ServingJob job;
  job.model = ts::config("gemma3-27b-text");
  job.batch = 64;
  job.prompt = 131000;
  job.output = 0;
  const ts::Chip chip = ts::chip("h100");
  const ts::ServingPlan plan = ts::plan_serving(job, ts::machine("h100", {1, 8}));
  CHECK(static_cast<double>(ts::chips_that_hold(job, chip)) ==
        doctest::Approx(plan.chips_needed.value()));
  job.batch = -5;
  CHECK(error_of([&] { ts::chips_that_hold(job, chip); }).find("chips_that_hold: batch is -5") ==
        0);
  ts::ServingJob huge = job;
  huge.batch = huge.output = 1000000000;
  ts::Chip tiny = chip;
  tiny.memory_bytes = 1;
  CHECK(error_of([&] {
          ts::chips_that_hold(huge, tiny);
        }).find("chips_that_hold: the number of chips is ") == 0);
  job.batch = 1;
  job.output = 8;
  CHECK(error_of([&] {
          ts::plan_beam_search(job, ts::machine("h100", {1, 8}), 2);
        }).find("plan_beam_search: gemma3-27b-text has layers that see the last ") == 0);
  ts::ServingJob large;
  large.model = ts::config("llama3.1-405b");
  const ts::Chip pod = ts::chip("tpu-v5p");
  const double each = ts::kv_cache_bytes(large.model, ts::DType::bf16, 2048 + 256);
  large.prompt = 2048;
  large.output = 256;
  large.batch = static_cast<std::int64_t>((8500 * pod.memory_bytes - 811e9) / each);
  const ts::ServingPlan whole = ts::plan_serving(large, ts::machine("tpu-v5p", {4, 4, 4}));
  CHECK(whole.chips == pod.domain_chips);
  CHECK(whole.on.dims == ts::pod_shape(pod));
}

TEST_CASE("serving: a note says when a job is longer than the positions that a model learned") {
  ts::ServingJob job;
  job.model = ts::config("gpt2-xl");
  job.prompt = 5000;
  const ts::ServingPlan plan = ts::plan_serving(job, ts::machine("h100", {1}));
  bool said = false;
  for (const std::string& note : plan.notes) {
    said = said || note.find("positions: gpt2-xl has learned 1024; counted with ") == 0;
  }
  CHECK(said);
}

TEST_CASE("serving: links that bound a step are said; an empty plan is no crash") {
  ts::ServingJob job;
  job.model = ts::config("llama3-8b");
  job.batch = 1;
  job.prompt = 512;
  job.output = 128;
  job.format = ts::DType::int8;
  const ts::ServingPlan plan = ts::plan_serving(job, ts::machine("tpu-v5e", {8, 8}));
  std::string note;
  for (const std::string& one : plan.notes) {
    note = one.find("links: with all overlapping") == 0 ? one : note;
  }
  CHECK(note ==
        "links: with all overlapping a step takes 1.8 ms, not 154 us: at most 8.66692 "
        "tokens/s/chip, 38.4604 USD per million tokens; what stands above is without links");
  CHECK(error_of([] { ts::ServingPlan().sharding(); }) ==
        "ServingPlan: an empty plan; plan_serving(job, machine) makes one");
}

TEST_CASE("serving: a message along a line crosses all its links, around a ring half of them") {
  for (const bool ring : {false, true}) {
    ts::Machine on = ts::machine("tpu-v5e", {8, 8});
    for (ts::Links& links : on.links) {
      links.kind = ring ? ts::AxisKind::ring : ts::AxisKind::line;
      links.latency = 1e-6;
    }
    CHECK(ts::detail::all_to_all_group(on, 64).latency == doctest::Approx(ring ? 8e-6 : 14e-6));
    CHECK(ts::detail::all_to_all_group(on, 8).latency == doctest::Approx(ring ? 4e-6 : 7e-6));
    CHECK(ts::detail::group_of(on, 3).latency == doctest::Approx(ring ? 8e-6 : 14e-6));
  }
}

TEST_CASE("serving: heads that do not divide the cache, and what else cuts it has messages") {
  ts::ServingJob job = job_of("llama3-8b", 1000, 200, 12, ts::DType::bf16);
  const double cache = job.batch * 1200.0 * 131072, weights = 2.0 * 8030261248;
  for (const int chips : {3, 5, 6, 7}) {
    CAPTURE(chips);
    for (const ts::ServingSharding& s : ts::serving_shardings(job, ts::machine("h100", {chips}))) {
      if (s.cache == ts::CacheSharding::heads) {  // 8 heads: the fullest chip has 3 or 2
        const double fullest = chips == 3 ? 3 : 2;
        CHECK(s.cache_ways == 8 / fullest);
        CHECK(s.chip_bytes == doctest::Approx(weights / chips + cache * fullest / 8));
        CHECK(s.traffic.size() == 1);
      } else {  // groups of as many heads each, the rest by sequence or token
        // 12 sequences over 5 or 7 groups: the fullest has 3 or 2
        const bool by_batch = s.cache == ts::CacheSharding::batch;
        CHECK(s.cache_ways == (by_batch && chips == 5 ? 4 : by_batch && chips == 7 ? 6 : chips));
        CHECK(s.room_ways == chips);
        CHECK(s.chip_bytes == doctest::Approx(weights / chips + cache / s.cache_ways));
        CHECK(s.traffic.size() == 2);
      }
    }
  }
  CHECK(ts::serving_shardings(job, ts::machine("h100", {3}))[0].name ==
        "tensor 3, cache by heads 2.66667");
}
