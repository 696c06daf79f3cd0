// measure/quantity.hpp: units and prefixes, formulas that explain themselves, what an op costs.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <sstream>

#include <cmath>

#include "error_of.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

using ts::Quantity;

TEST_CASE("quantity: values are kept in bases, given and asked for with prefixes") {
  CHECK(Quantity(95, "GiB").value() == 95.0 * (1 << 30));
  CHECK(Quantity(95, "GiB").unit() == "B");
  CHECK(Quantity(95, "GiB").in("GB") == 95.0 * (1 << 30) / 1e9);
  CHECK(Quantity(80, "GB").value() == 80e9);
  CHECK(Quantity(400, "Gbit/s").value() == 50e9);
  CHECK(Quantity(400, "Gbit/s").unit() == "B/s");
  CHECK(Quantity(50, "GB/s").in("Gbit/s") == doctest::Approx(400));
  CHECK(Quantity(1, "Kibit").value() == 128);
  CHECK(Quantity(1, "TiB").in("GiB") == 1024);
  CHECK(Quantity(1, "PiB").in("TiB") == 1024);
  CHECK(Quantity(1, "EiB").in("PiB") == 1024);
  CHECK(Quantity(2, "MiB").in("KiB") == 2048);
  CHECK(Quantity(197, "TFLOP/s").value() == doctest::Approx(1.97e14));
  CHECK(Quantity(1.97e14, "FLOP/s").in("TFLOP/s") == doctest::Approx(197));
  CHECK(Quantity(3, "ms").in("us") == doctest::Approx(3000));
  CHECK(Quantity(3, "ns").value() == doctest::Approx(3e-9));
  CHECK(Quantity(1.75, "GHz").unit() == "1/s");
  CHECK(Quantity(44, "pJ/B").value() == doctest::Approx(44e-12));
  CHECK(Quantity(2, "kWh").in("MJ") == doctest::Approx(7.2));
  CHECK(Quantity(3, "USD/Mtoken").in("USD/token") == doctest::Approx(3e-6));
  CHECK(Quantity(2, "day").in("h") == doctest::Approx(48));
  CHECK(Quantity(90, "s").in("min") == doctest::Approx(1.5));
  CHECK(Quantity(1.2, "USD/h").in("USD/s") == doctest::Approx(1.2 / 3600));
  CHECK(Quantity(5, "tokens/s").unit() == "token/s");
  CHECK(Quantity(5, "page/s").unit() == "page/s");  // a word of one's own counts things
  CHECK((Quantity(6, "FLOP/cycle") * Quantity(2, "cycle/s")).unit() == "FLOP/s");
  CHECK((Quantity(6, "token*B") + Quantity(1, "B*token")).value() == 7);  // in any order
}

TEST_CASE("quantity: a unit that is not known is refused with those near it") {
  const auto unit = [](const char* text) { return error_of([&] { Quantity(1, text); }); };
  CHECK(unit("Gb/s") == "Quantity: \"Gb\" in the unit \"Gb/s\" is not known; right is Gbit, GB");
  CHECK(unit("KB") == "Quantity: \"KB\" in the unit \"KB\" is not known; right is kB, KiB");
  CHECK(unit("TFLOPS") ==
        "Quantity: \"TFLOPS\" in the unit \"TFLOPS\" is not known; right is TFLOP, TFLOP/s");
  CHECK(unit("GFLOPS") ==
        "Quantity: \"GFLOPS\" in the unit \"GFLOPS\" is not known; near it are "
        "GFLOP, FLOP, kFLOP, MFLOP, TFLOP");
  CHECK(unit("tokn/s") ==
        "Quantity: \"tokn\" in the unit \"tokn/s\" is not known; near it is "
        "token");
  CHECK(unit("mB") ==
        "Quantity: \"mB\" in the unit \"mB\" is not known; near it are MB, Mbit, MiB, kB, GB");
  CHECK(
      unit("gib") ==
      "Quantity: \"gib\" in the unit \"gib\" is not known; near it are GiB, Gibit, KiB, MiB, TiB");
  CHECK(unit("flop/s") == "Quantity: \"flop\" in the unit \"flop/s\" is not known; right is FLOP");
  CHECK(Quantity(1, "gpu").unit() == "gpu");
  CHECK(unit("kh") ==
        "Quantity: \"kh\" in the unit \"kh\" is not known; near it are kHz, kB, ks, kW, kJ");
  CHECK(unit("XYZZY") ==
        "Quantity: \"XYZZY\" in the unit \"XYZZY\" is not known; right are B, bit, FLOP, OP, s, h, "
        "day, W, J, Wh, Hz, USD, token and others, with prefixes as in GB, GiB or ms, joined by * "
        "and /");
  CHECK(unit("B/") ==
        "Quantity: the unit \"B/\" lacks a name beside its /; right is as \"B/s\" or \"1/s\"");
  CHECK(unit("/s") ==
        "Quantity: the unit \"/s\" lacks a name beside its /; right is as \"B/s\" or \"1/s\"");
  CHECK(error_of([] { Quantity(3, "s", "T").in("GB"); }) ==
        "Quantity::in: T is in \"s\", asked for in \"GB\"; both must measure the same");
  CHECK(error_of([] { Quantity(3, "s").to("B/s"); }) ==
        "Quantity::to: 3 s is in \"s\", asked for in \"B/s\"; both must measure the same");
  Quantity many(1.0);
  for (const char* name : {"B", "s", "FLOP", "token", "USD", "W"}) {
    many = many * Quantity(1, name);
  }
  CHECK(error_of([&] { many* Quantity(1, "chip"); }) ==
        "Quantity: a product with more than six different units, the last \"chip\"; name an "
        "intermediate result in units of its own");
}

TEST_CASE("quantity: every op checks units and keeps the formula") {
  const Quantity a(2, "s", "a"), b(3, "s", "b"), f(6, "FLOP", "f");
  CHECK(ts::min(a, b).value() == 2);
  CHECK(ts::min(a, b).formula() == "min(a, b)");
  const Quantity none(std::numeric_limits<double>::quiet_NaN(), "s");
  for (const Quantity& q :
       {ts::max(a, none), ts::max(none, a), ts::min(a, none), ts::min(none, a)}) {
    CHECK(ts::detail::is_nan(q.value()));
  }
  CHECK((-a).value() == -2);
  CHECK((a - (-b)).formula() == "a - (-b)");
  CHECK((-(a + b)).formula() == "-(a + b)");
  CHECK((-(a * b)).formula() == "-a * b");
  CHECK(ts::floor(b / a).value() == 1);
  CHECK(ts::floor(b / a).formula() == "floor(b / a)");
  CHECK(ts::power(a, 3).value() == 8);
  CHECK(ts::power(a, 3).unit() == "s*s*s");
  CHECK(ts::power(a, -1).unit() == "1/s");
  CHECK(ts::power(a, 0).unit() == "");
  CHECK(ts::square(a + b).formula() == "(a + b)^2");
  CHECK(ts::square(Quantity(3, "s")).formula() == "(3 s)^2");
  CHECK((a * ts::square(b)).formula() == "a * b^2");
  const Quantity minus(-3, "s", "m");  // -3^2 is -9
  CHECK(ts::square(Quantity(-3)).formula() == "(-3)^2");
  CHECK(ts::square(minus).explain() ==
        "result = m^2\n       = (-3 s)^2\n       = 9 s*s\n  m = -3 s\n");
  CHECK((a - Quantity(-3, "s")).formula() == "a - (-3 s)");
  CHECK((-Quantity(-3)).formula() == "-(-3)");
  CHECK((a + Quantity(-3, "s")).formula() == "a + -3 s");
  CHECK((Quantity(-3, "s") - a).formula() == "-3 s - a");
  CHECK(ts::sqrt(ts::square(a) + ts::square(b)).unit() == "s");
  CHECK(ts::sum({a, b, a}).value() == 7);
  CHECK(ts::sum({a, b, a}).formula() == "a + b + a");
  CHECK((f / ts::sum({a, b})).formula() == "f / (a + b)");
  CHECK(ts::sum({a}).formula() == "2 s");
  CHECK(error_of([] { ts::sum(ts::List<Quantity>()); }) ==
        "sum: no quantities, so no unit; give at least one, as Quantity(0, \"s\")");
  CHECK(error_of([&] {
          ts::sum({a, f});
        }) == "Quantity: 2 s + 6 FLOP: the units are \"s\" and \"FLOP\"; both must be the same");
  CHECK(error_of([&] { ts::max(a, f); }) ==
        "Quantity: 2 s max 6 FLOP: the units are \"s\" and \"FLOP\"; both must be the same");
  CHECK(error_of([&] { ts::min(a, f); }) ==
        "Quantity: 2 s min 6 FLOP: the units are \"s\" and \"FLOP\"; both must be the same");
  CHECK(error_of([&] { a - 1.0; }) ==
        "Quantity: 2 s - 1: the units are \"s\" and \"\"; both must be the same");
  CHECK(error_of([&] { static_cast<void>(a < f); }) ==
        "Quantity: 2 s < 6 FLOP: the units are \"s\" and \"FLOP\"; both must be the same");
  CHECK(error_of([&] { a + Quantity(1, "h"); }) ==
        "Quantity: 2 s + 1 h: the units are \"s\" and \"h\"; both must be the same");
  CHECK(error_of([&] { ts::sqrt(a); }) ==
        "sqrt: 2 s: the unit is \"s\"; a plain number or the square of a unit is right");
  CHECK(error_of([&] { ts::power(a, 13); }) == "power: 2 s to the 13; -12 to 12 is right");
  CHECK(error_of([&] { ts::power(ts::power(a, 12), 9); }) ==
        "Quantity: the unit \"s\" to the power 108; -99 to 99 is right");
  const Quantity sum = a + Quantity(1, "h", "c").to("s");  // converted in the open
  CHECK(sum.value() == 3602);
  CHECK(sum.formula() == "a + c * 3600 s/h");
  CHECK(Quantity(7, "s").to("s").formula() == "7 s");
  CHECK((a + b).to("ms").text() == "5000 ms");
  CHECK(ts::named("d", (a + b).to("ms")).explain(0) == "d = a + b\n  = 2 s + 3 s\n  = 5000 ms\n");
  CHECK(Quantity(36, "Gbit/h").to("MB/s").text() == "1.25 MB/s");
  CHECK(Quantity(1, "kWh").to("J").explain() == "result = 1 kWh * 3600 s/h\n       = 3.6e+06 J\n");
  CHECK(Quantity(95, "GiB", "M").to("GB").text() == "102.005 GB");
  CHECK((Quantity(95, "GiB", "M").to("GB") + Quantity(1, "GB")).text() == "103 GB");
}

TEST_CASE("quantity: comparisons are true or false, and print what they compared") {
  const Quantity a(2, "s", "a"), b(3, "s", "b");
  CHECK(a < b);
  CHECK(a <= b);
  CHECK(!(a > b));
  CHECK(!(a >= b));
  CHECK(a != b);
  CHECK(a == Quantity(2, "s"));
  CHECK(a == Quantity(2000, "ms"));
  const double nan = std::nan("");
  CHECK(!(Quantity(nan) == Quantity(nan)));
  CHECK((a < b).text() == "2 s < 3 s: true");
  std::ostringstream out;
  out << (Quantity(95, "GiB") <= Quantity(100, "GB"));
  CHECK(out.str() == "95 GiB (1.02005e+11 B) <= 100 GB (1e+11 B): false");
  CHECK((Quantity(64, "GiB") < Quantity(80, "GiB")).text() == "64 GiB < 80 GiB: true");
  CHECK((Quantity(64, "GiB") < Quantity(80e9, "B")).text() ==
        "64 GiB (6.87195e+10 B) < 80 GB (8e+10 B): true");
  CHECK((Quantity(64, "GB") < Quantity(80e9, "B")).text() == "64 GB < 80 GB: true");
}

TEST_CASE("quantity: prefixes of 1000 and of 1024 never meet unseen") {
  CHECK(ts::format_binary_bytes(0.0123) == "0.0123 B");
  CHECK(ts::format_binary_bytes(-0.003) == "-0.003 B");
  CHECK(ts::format_binary_bytes(1023.4) == "1023 B");
  CHECK(ts::format_binary_bytes(1023.6) == "1 KiB");
  const Quantity memory(95, "GiB", "M", "published"), weights(80, "GB", "P");
  CHECK(memory.text() == "95 GiB");
  CHECK(memory.explain() == "M = 95 GiB = 1.02005e+11 B   [published]\n");
  CHECK((2.0 * memory).text() == "190 GiB");  // the family stays
  CHECK((2.0 * weights).text() == "160 GB");
  CHECK((memory / Quantity(2, "s")).text() == "5.10027e+10 B/s");
  CHECK((memory / Quantity(2, "B/s")).prefixes() == ts::PrefixFamily::none);
  const Quantity left = ts::named("left", memory - weights);
  CHECK(left.prefixes() == ts::PrefixFamily::mixed);
  CHECK(left.explain() ==
        "left = M - P\n"
        "     = 1.02005e+11 B - 8e+10 B\n"
        "     = 2.20055e+10 B\n"
        "  M = 95 GiB = 1.02005e+11 B   [published]\n"
        "  P = 80 GB = 8e+10 B\n");
  CHECK(ts::named("ratio", memory / weights).explain(0) ==
        "ratio = M / P\n"
        "      = 1.02005e+11 B / 8e+10 B\n"
        "      = 1.27507\n");
  CHECK((Quantity(95, "GiB") + 8e9 * Quantity(1, "B")).explain() ==
        "result = 95 GiB + 8e+09 * 1 B\n"
        "       = 1.02005e+11 B + 8e+09 * 1 B\n"
        "       = 102 GiB\n");
  const Quantity rate(400, "Gbit/s", "W");
  CHECK(ts::named("T", weights / rate).explain() ==
        "T = P / W\n"
        "  = 80 GB / 400 Gbit/s\n"
        "  = 1.6 s\n"
        "  P = 80 GB = 8e+10 B\n"
        "  W = 400 Gbit/s = 5e+10 B/s\n");
  CHECK(ts::format_binary_bytes(1023) == "1023 B");
  CHECK(ts::format_binary_bytes(1536) == "1.5 KiB");
  CHECK(ts::format_binary_bytes(-95.0 * (1 << 30)) == "-95 GiB");
  CHECK(ts::format_binary_bytes(0) == "0 B");
  CHECK(ts::format_bytes(95.0 * (1 << 30)) == "102 GB");  // decimal, and says so
}

TEST_CASE("quantity: each input is told once, as deep as asked") {
  const Quantity x(2, "s", "x", "given");
  const Quantity y = ts::named("y", x + x), z = ts::named("z", y + x), w = ts::named("w", z * y);
  CHECK(w.explain(0) == "w = z * y\n  = 6 s * 4 s\n  = 24 s*s\n");
  CHECK(w.explain(1) ==
        "w = z * y\n  = 6 s * 4 s\n  = 24 s*s\n"
        "  z = y + x\n    = 4 s + 2 s\n    = 6 s\n"
        "  y = x + x\n    = 2 s + 2 s\n    = 4 s\n");
  CHECK(w.explain(2) ==  // y is told where its own inputs are told too
        "w = z * y\n  = 6 s * 4 s\n  = 24 s*s\n"
        "  z = y + x\n    = 4 s + 2 s\n    = 6 s\n"
        "    x = 2 s   [given]\n"
        "  y = x + x\n    = 2 s + 2 s\n    = 4 s\n");
  CHECK(w.explain(3) == w.explain());
  CHECK(w.explain().find("    y = x + x\n      = 2 s + 2 s\n      = 4 s\n      x = 2 s") !=
        std::string::npos);
  CHECK(w.explain(-1) == w.explain(0));
  CHECK(Quantity(3, "s").explain() == "result = 3 s\n");
  CHECK(Quantity().explain() == "result = 0\n");
}

TEST_CASE("quantity: long chains and wide sums stay short to write and safe to drop") {
  Quantity chain(0, "s");
  for (int i = 0; i < 200000; ++i) {
    chain = chain + Quantity(1, "s");
  }
  CHECK(chain.value() == 200000);
  CHECK(chain.formula().size() < 2000);
  CHECK(chain.explain().size() < 5000);
  Quantity doubled(1, "s", "one");
  for (int i = 0; i < 60; ++i) {  // 2^60 places in the formula written out
    doubled = doubled + doubled;
  }
  CHECK(doubled.value() == 1152921504606846976.0);
  CHECK(doubled.explain().size() < 20000);
  CHECK(doubled.json().size() < 20000);
  Quantity link(1, "s", "a0");
  for (int i = 1; i < 3000; ++i) {
    link = ts::named(ts::detail::cat({"a", i}), link + link);
    link = ts::named(link.name(), link / 2.0);
  }
  CHECK(link.explain(1000000).find("\n") != std::string::npos);
  ts::List<Quantity> terms;
  for (int i = 0; i < 100; ++i) {
    terms.push_back(Quantity(i, "s", ts::detail::cat({"t", i})));
  }
  CHECK(ts::sum(terms).formula() == "t0 + t1 + t2 + t3 + t4 + t5 + t6 + t7 + t8 + t9 + ... + t99");
  CHECK(ts::sum(terms).value() == 4950);
}

TEST_CASE("quantity: as JSON") {
  const Quantity f(6e12, "FLOP", "F", "a \"count\""), c(0.1, "TFLOP/s", "C");
  const Quantity t = ts::named("T", f / c + f / c);
  CHECK(t.json() ==
        "{\"name\": \"T\", \"value\": 120, \"unit\": \"s\", \"text\": \"2 min\", \"formula\": "
        "\"F / C + F / C\", \"source\": \"\", \"inputs\": [{\"name\": \"F\", \"value\": "
        "6000000000000, \"unit\": \"FLOP\", \"text\": \"6e+12 FLOP\", \"formula\": \"\", "
        "\"source\": \"a \\\"count\\\"\", \"inputs\": []}, {\"name\": \"C\", \"value\": "
        "100000000000, \"unit\": \"FLOP/s\", \"text\": \"0.1 TFLOP/s\", \"formula\": \"\", "
        "\"source\": \"\", \"inputs\": []}]}\n");
  const Quantity u = ts::named("U", t * t / f);
  CHECK(u.json(0).find("\"inputs\": []}") != std::string::npos);
  const std::string json = u.json();
  CHECK(json.find("\"name\": \"F\", \"value\": 6000000000000, \"unit\": \"FLOP\"}") !=
        std::string::npos);  // told already
  CHECK(Quantity(0.1).json().find("\"value\": 0.1,") != std::string::npos);
  CHECK(Quantity(1.0 / 3).json().find("\"value\": 0.3333333333333333,") != std::string::npos);
  CHECK(Quantity(std::nan("")).json().find("\"value\": null,") != std::string::npos);
}

TEST_CASE("quantity: an op costs no more than a few numbers written out") {
  const Quantity f(6e12, "FLOP", "F"), c(2e14, "FLOP/s", "C", "peak of a chip, out of a table");
  const auto seconds = [](void (*body)(const Quantity&, const Quantity&), const Quantity& a,
                          const Quantity& b) {
    double best = 1;
    for (int round = 0; round < 5; ++round) {
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < 5000; ++i) {
        body(a, b);
      }
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      best = std::min(best, took.count() / 5000);
    }
    return best;
  };
  const double four = seconds(
      [](const Quantity& a, const Quantity& b) { ts::named("T", ts::max(a / b, a / b)); }, f, c);
  const double written = seconds(
      [](const Quantity& a, const Quantity&) { ts::detail::printed('g', 17, a.value()); }, f, c);
  std::cout << "a quantity's op: " << ts::format_seconds(four / 4)
            << ", a number written out: " << ts::format_seconds(written) << "\n";
  CHECK(four / 4 < 20 * written);  // with -O2 a fifth of one; unoptimised, five of them
}
