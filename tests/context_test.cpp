#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "error_of.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

TEST_CASE("places of tokens: one stretch, two, and what is left from a token on") {
  const ts::TokenPlaces plain = 5;
  CHECK(plain.at(0) == 5);
  CHECK(plain.at(7) == 12);
  CHECK(plain.before_jump(9) == 9);
  const ts::TokenPlaces zigzag = {2, 2, 8};  // 2 3 | 12 13
  const std::int64_t expected[4] = {2, 3, 12, 13};
  for (std::int64_t t = 0; t < 4; ++t) {
    CHECK(zigzag.at(t) == expected[t]);
    for (std::int64_t u = 0; t + u < 4; ++u) {
      CHECK(zigzag.from(t).at(u) == expected[t + u]);
    }
  }
  CHECK(zigzag.before_jump(4) == 2);
  CHECK(zigzag.before_jump(1) == 1);
  CHECK(zigzag.from(3).before_jump(1) == 1);
}

TEST_CASE("dropout: a part of the tokens gets its part of the mask") {
  const std::int64_t b = 3, t = 8, d = 6;
  const ts::Tensor x = ts::ones({b, t, d});
  const ts::Tensor whole = ts::dropout(x, 0.4f, 9, 2 * t * d);  // sequences 2, 3, 4
  for (const ts::TokenPlaces& places :
       {ts::TokenPlaces(0), ts::TokenPlaces(3), ts::TokenPlaces(1, 2, 4)}) {
    const std::int64_t n = places.jump != 0 ? 3 : places.first != 0 ? 4 : t;
    const ts::Tensor part = ts::dropout(ts::ones({b, n, d}), 0.4f, 9, places, t, 2);
    for (std::int64_t i = 0; i < b * n * d; ++i) {
      const std::int64_t sequence = i / (n * d), token = i / d % n;
      CHECK(part.data()[i] == whole.at({sequence, places.at(token), i % d}));
    }
  }
  CHECK(ts::dropout(x, 0, 9, 0, 9, 0).data() == x.data());
  CHECK(error_of([&] { ts::dropout(x, 0.4f, 9, 1, 8, 0); }) ==
        "dropout: x is [3, 8, 6], its tokens at places 1 to 8 of sequences of 8; right is "
        "[B, T, D] and places within their sequences");
  CHECK(error_of([&] { ts::dropout(x, 1.0f, 9, 0, 8, 0); }) ==
        "dropout: p is 1; right is 0 <= p < 1");
}
