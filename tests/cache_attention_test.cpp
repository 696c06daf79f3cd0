#include <doctest/doctest.h>

#include "tinyscale.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "error_of.hpp"
#include "kernel_tests.hpp"

namespace ts = tinyscale;
namespace kernel = tinyscale::kernels;
using kernel::CacheShape;
using kernel_tests::Floats;
using kernel_tests::noise;
using kernel_tests::paths;
using ts::DType;

namespace {

// A sequence's keys and values, also in pages that stand in memory in no order.
struct Sequence {
  CacheShape s;
  std::int64_t tokens;
  Floats k, v;
  std::vector<Floats> memory;  // floats, so that pages stand at multiples of 4 bytes
  std::vector<const std::uint8_t*> pages;

  Sequence(const CacheShape& shape, std::int64_t count, std::uint64_t seed)
      : s(shape),
        tokens(count),
        k(noise(count * shape.row(), seed)),
        v(noise(count * shape.row(), seed + 1)) {
    const std::int64_t n = (count + s.page_tokens - 1) / s.page_tokens;
    memory.resize(static_cast<std::size_t>(n));
    for (Floats& page : memory) {
      page.assign(static_cast<std::size_t>(s.page_bytes() / 4 + 1), std::nanf(""));
      pages.push_back(reinterpret_cast<const std::uint8_t*>(page.data()));
    }
    for (std::int64_t t = 0; t < count; ++t) {
      Floats& page = memory[static_cast<std::size_t>(t / s.page_tokens)];
      kernel::cache_store(s, reinterpret_cast<std::uint8_t*>(page.data()), t % s.page_tokens,
                          k.data() + t * s.row(), v.data() + t * s.row());
    }
  }
  // The numbers as the pages hold them.
  void round() { kernel::cache_load(s, pages.data(), 0, tokens, k.data(), v.data()); }
  float number(std::int64_t token, std::int64_t side, std::int64_t i) const {
    const std::int64_t slot = token % s.page_tokens;
    return kernel::cache_number_reference(s, pages[static_cast<std::size_t>(token / s.page_tokens)],
                                          side * s.page_tokens + slot, i);
  }
};

// The largest error against the reference body.
double worst_error(const CacheShape& s, const kernel::CacheQuery& query) {
  Floats expected(static_cast<std::size_t>(s.heads * s.head_size));
  kernel::cache_attention_reference(s, query, expected.data());
  double worst = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double error = std::fabs(double{query.o[i]} - double{expected[i]});
    worst = std::max(worst, std::isnan(error) ? 1e9 : error);
  }
  return worst;
}

// Scores up to sqrt(head_size) are off by head_size 2^-24 of it, e^x by about that and 2e-7 more,
// and a mean of values below 1 by the number of keys.
double bound(const CacheShape& s, std::int64_t keys) {
  return 4e-7 * (std::sqrt(static_cast<double>(s.head_size)) + 4) +
         std::ldexp(static_cast<double>(keys), -24);
}

std::vector<CacheShape> shapes(std::initializer_list<DType> formats) {
  std::vector<CacheShape> all;
  for (const DType format : formats) {
    all.push_back({format, 16, 6, 6, 48});
    all.push_back({format, 5, 8, 4, 8});
    all.push_back({format, 1, 2, 1, 70});
    all.push_back({format, 16, 4, 2, 128});
  }
  return all;
}

}  // namespace

TEST_CASE("attention over pages: every format and path against the reference") {
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    CAPTURE(ts::name_of(path));
    for (const CacheShape& s : shapes({DType::f32, DType::bf16, DType::f16, DType::int8})) {
      CAPTURE(ts::name_of(s.format));
      CAPTURE(s.head_size);
      const Sequence one(s, 45, 1), two(s, 17, 3);
      const std::int64_t width = s.heads * s.head_size;
      const Floats q = noise(6 * width, 5);
      Floats o(q.size(), 9.0f);
      std::vector<kernel::CacheQuery> queries;
      const std::int64_t ends[] = {45, 17, 1, 17, 12, 3}, firsts[] = {0, 0, 0, 8, 11, 3};
      for (std::size_t i = 0; i < 6; ++i) {
        const std::size_t at = i * static_cast<std::size_t>(width);
        const Sequence& sequence = i % 2 == 0 ? one : two;
        queries.push_back(
            {q.data() + at, o.data() + at, sequence.pages.data(), firsts[i], ends[i]});
      }
      kernel::cache_attention(s, 6, queries.data());
      for (std::size_t i = 0; i < 5; ++i) {
        CAPTURE(i);
        CHECK(worst_error(s, queries[i]) <= bound(s, queries[i].end - queries[i].first));
      }
      CHECK(std::all_of(queries[5].o, queries[5].o + width, [](float x) { return x == 0.0f; }));
    }
  }
}

TEST_CASE("attention over pages: a prompt at once gives what its tokens give one by one") {
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    CAPTURE(ts::name_of(path));
    for (const CacheShape& s : shapes({DType::f32, DType::int8})) {
      const Sequence sequence(s, 61, 7);
      const std::int64_t width = s.heads * s.head_size, m = 20;
      for (const std::int64_t count : {std::int64_t{3}, m}) {
        const std::int64_t first = 61 - count;
        const Floats q = noise(count * (width + 2), 8);
        Floats o(q.size(), 9.0f);
        kernel::cache_attention_prefill(s, sequence.pages.data(), first, count, q.data(), width + 2,
                                        o.data(), width + 2);
        for (std::int64_t i = 0; i < count; ++i) {
          const kernel::CacheQuery query{q.data() + i * (width + 2), o.data() + i * (width + 2),
                                         sequence.pages.data(), 0, first + i + 1};
          CHECK(worst_error(s, query) <= bound(s, query.end));
          CHECK(query.o[width] == 9.0f);
        }
      }
    }
  }
}

TEST_CASE("pages: what they hold, within the format's step") {
  const CacheShape f32{DType::f32, 4, 2, 2, 6};
  for (const DType format : {DType::f32, DType::bf16, DType::f16, DType::int8}) {
    CacheShape s = f32;
    s.format = format;
    Sequence sequence(s, 9, 11);
    const Floats k = sequence.k, v = sequence.v;
    sequence.round();
    const double step = format == DType::f32    ? 0.0
                        : format == DType::bf16 ? 1.0 / 256
                        : format == DType::f16  ? 1.0 / 2048
                                                : 0.501 / 127;
    for (std::size_t i = 0; i < k.size(); ++i) {
      CHECK(std::fabs(double{k[i]} - double{sequence.k[i]}) <= step);
      CHECK(std::fabs(double{v[i]} - double{sequence.v[i]}) <= step);
    }
  }
  CHECK(CacheShape{DType::f32, 16, 6, 6, 48}.page_bytes() == 2 * 16 * 288 * 4);
  CHECK(CacheShape{DType::bf16, 16, 6, 6, 48}.page_bytes() == 2 * 16 * 288 * 2);
  CHECK(CacheShape{DType::int8, 16, 6, 6, 48}.page_bytes() == 2 * 16 * (288 + 6 * 4));
  CHECK(CacheShape{DType::int8, 1, 1, 1, 3}.page_bytes() == 8 + 2 * 4);
}

TEST_CASE("pages: every number is the reference's, rounded as its format rounds, on every path") {
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    CAPTURE(ts::name_of(path));
    for (const CacheShape& s : shapes({DType::f32, DType::bf16, DType::f16, DType::int8})) {
      CAPTURE(ts::name_of(s.format));
      CAPTURE(s.head_size);
      Sequence sequence(s, 23, 17);
      Floats k = sequence.k, v = sequence.v, row(static_cast<std::size_t>(s.row()));
      sequence.round();
      std::int64_t same = 0;
      for (std::int64_t at = 0; at < 23 * 2 * s.row(); ++at) {
        const std::int64_t token = at / s.row() / 2, side = at / s.row() % 2, i = at % s.row();
        const auto place = static_cast<std::size_t>(token * s.row() + i);
        const float* const from = (side == 0 ? k : v).data() + token * s.row();
        if (s.format == DType::int8 && i == 0) {
          kernel::round_activations_reference(ts::Activations::int8_groups, s.row(), s.head_size,
                                              from, row.data());
        } else if (i == 0) {
          std::copy_n(from, s.row(), row.data());
        }
        if (s.format == DType::bf16 || s.format == DType::f16) {
          kernel::round_halves_reference(s.format == DType::bf16, 1, from + i, row.data() + i);
        }
        const float stored = sequence.number(token, side, i);
        const float loaded = (side == 0 ? sequence.k : sequence.v)[place];
        same += stored == row[static_cast<std::size_t>(i)] && loaded == stored ? 1 : 0;
      }
      CHECK(same == 23 * 2 * s.row());
    }
  }
}

TEST_CASE("attention over pages: one thread and many, what is refused") {
  const CacheShape s{DType::f32, 16, 8, 2, 64};
  Sequence sequence(s, 200, 13);
  const Floats q = noise(4 * 512, 14);
  Floats many(q.size()), one(q.size());
  std::vector<kernel::CacheQuery> queries;
  for (Floats* const to : {&many, &one}) {
    queries.clear();
    for (std::int64_t i = 0; i < 4; ++i) {
      queries.push_back(
          {q.data() + i * 512, to->data() + i * 512, sequence.pages.data(), 0, 197 + i});
    }
    if (to == &many) {
      kernel::cache_attention(s, 4, queries.data());
    } else {
      const ts::detail::SerialScope alone;
      kernel::cache_attention(s, 4, queries.data());
    }
  }
  CHECK(many == one);
  CacheShape bad = s;
  bad.format = DType::int4;
  CHECK(error_of([&] { kernel::cache_attention(bad, 0, nullptr); }) ==
        "cache_attention: pages of int4; there are f32, bf16, f16, int8");
  bad = s;
  bad.kv_heads = 3;
  CHECK(error_of([&] { kernel::cache_attention(bad, 0, nullptr); }) ==
        "cache_attention: pages of 16 tokens, 8 heads on 3 of 64 numbers; each at least 1, and "
        "heads a multiple");
  queries[0].first = -1;
  CHECK(error_of([&] { kernel::cache_attention(s, 1, queries.data()); }) ==
        "cache_attention: query 0 sees from place -1 on");
  CHECK(error_of([&] { kernel::cache_store(s, nullptr, 16, nullptr, nullptr); }) ==
        "cache_store: row 16 of a page of 16");
}

TEST_CASE("a table of angles turns as the reference does") {
  const std::vector<std::int64_t> places{0, 5, 5, 1000, 3, 31};
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    CAPTURE(ts::name_of(path));
    for (const ts::RopePairs pairs : {ts::RopePairs::interleaved, ts::RopePairs::halves}) {
      for (const std::int64_t size : {2, 8, 48, 66}) {
        const std::int64_t heads = 3, width = heads * size + 1;
        const kernel::RopeTable table(places.data(), 6, size, 10000.0);
        CHECK(table.tokens() == 6);
        CHECK(table.head_size() == size);
        const Floats x = noise(6 * width, 15);
        Floats y = x, expected(static_cast<std::size_t>(width));
        table.turn(pairs, heads, y.data(), width);
        double worst = 0.0;
        for (std::size_t t = 0; t < 6; ++t) {
          kernel::RopeShape shape;
          shape.heads = heads;
          shape.head_size = size;
          shape.places = ts::TokenPlaces(places[t]);
          shape.pairs = pairs;
          const std::size_t at = t * static_cast<std::size_t>(width);
          kernel::rope_reference(shape, kernel::RopeTurn::forward, x.data() + at, expected.data());
          for (std::size_t i = 0; i + 1 < static_cast<std::size_t>(width); ++i) {
            worst = std::max(worst, std::fabs(double{y[at + i]} - double{expected[i]}));
          }
          CHECK(y[at + static_cast<std::size_t>(width) - 1] ==
                x[at + static_cast<std::size_t>(width) - 1]);
        }
        CHECK(worst < 5e-7);  // |x| < 1.5: two products and their sum, each rounded
      }
    }
  }
  const double thin = -1.0;
  CHECK(error_of([&] { kernel::RopeTable(places.data(), 6, 7, thin); }) ==
        "RopeTable: 6 tokens, heads of 7, theta -1; heads must be even, theta above 0");
}

TEST_CASE("attention over pages: in place of the queries, and nowhere else among them") {
  for (const ts::CpuPath path : paths()) {
    const ts::detail::PathScope scope(path);
    for (const DType format : {DType::f32, DType::int8}) {
      const CacheShape s{format, 16, 4, 2, 24};
      Sequence sequence(s, 40, 13);
      for (const std::int64_t m : {1, 3, 40}) {
        Floats q = noise(m * 96, 14), o(q.size());
        kernel::cache_attention_prefill(s, sequence.pages.data(), 40 - m, m, q.data(), 96, o.data(),
                                        96);
        kernel::cache_attention_prefill(s, sequence.pages.data(), 40 - m, m, q.data(), 96, q.data(),
                                        96);
        CHECK(q == o);
      }
    }
  }
  const CacheShape s{DType::f32, 16, 4, 2, 24};
  Sequence sequence(s, 40, 13);
  Floats q = noise(41 * 96, 15), o(3 * 96);
  const std::string bad =
      " overlaps what is read; it must be q of that query, or have memory of its own";
  const auto run = [&](float* first, float* second, float* third) {
    const kernel::CacheQuery queries[] = {{q.data(), first, sequence.pages.data(), 0, 3},
                                          {q.data() + 96, second, sequence.pages.data(), 0, 3},
                                          {q.data() + 192, third, sequence.pages.data(), 0, 3}};
    return error_of([&] { kernel::cache_attention(s, 3, queries); });
  };
  CHECK(run(o.data(), q.data() + 97, o.data() + 192) == "cache_attention: o of query 1" + bad);
  CHECK(run(o.data(), o.data() + 96, q.data()) == "cache_attention: o of query 2" + bad);
  CHECK(run(q.data() + 95 + 192, o.data() + 96, o.data() + 192) ==
        "cache_attention: o of query 0" + bad);
  CHECK(run(q.data(), q.data() + 96 * 3, q.data() + 192) == "no error");
  CHECK(run(o.data(), q.data() + 96, o.data() + 192) == "no error");
  CHECK(error_of([&] {
          kernel::cache_attention_prefill(s, sequence.pages.data(), 0, 40, q.data(), 96,
                                          q.data() + 96, 96);
        }) ==
        "cache_attention_prefill: o overlaps q in part; it must be q itself, number for number, or "
        "have memory of its own");
}
