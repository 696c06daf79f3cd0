// hardware/: presets figure by figure, prices, energy, pods and fat trees, against what is
// published.
#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>

#include "error_of.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

using doctest::Approx;

namespace {

ts::ChipFact fact(const ts::List<ts::ChipFact>& facts, const std::string& figure) {
  for (const ts::ChipFact& each : facts) {
    if (each.figure == figure) {
      return each;
    }
  }
  return {};
}

}  // namespace

TEST_CASE("presets: chips that published runs used") {
  const ts::Chip v100 = ts::chip("v100");
  CHECK(v100.name == "v100-32");
  CHECK(v100.unit_peak() == Approx(v100.flops_bf16).epsilon(0.004));
  CHECK(v100.links * v100.link_bandwidth == 150e9);
  CHECK(v100.sram_bytes == 80 * 96 * 1024);
  CHECK(ts::machine(v100, {4, 8}).egress(0) == 6.25e9);
  const ts::Chip h800 = ts::chip("h800");
  CHECK(h800.flops_bf16 == ts::chip("h100").flops_bf16);
  CHECK(h800.links * h800.link_bandwidth == 200e9);
  CHECK(ts::machine(h800, {2, 8}).egress(0) == 50e9);
  const ts::Chip capped = ts::chip("h100-96");
  CHECK(capped.memory_bytes == 96e9);
  CHECK(capped.memory_bandwidth == 2.4e12);
  CHECK(capped.watts == 500);
  CHECK(fact(ts::chip_facts(capped), "bf16 peak").sure == "at most");
  const ts::Chip gb300 = ts::chip("gb300-nvl72");
  CHECK(gb300.memory_bytes == 288e9);
  CHECK(gb300.peak(ts::DType::bf16) == 2.5e15);
  CHECK(gb300.peak(ts::DType::fp8_e4m3) == 5e15);
  for (const ts::ChipFact& each : ts::chip_facts(gb300)) {
    CAPTURE(each.figure);
    CHECK(each.sure != "S");  // nothing of it was read
  }
}

TEST_CASE("presets: every figure has a unit, a source and how sure it is") {
  for (const std::string& name : ts::chips()) {
    CAPTURE(name);
    const ts::List<ts::ChipFact> facts = ts::chip_facts(name);
    CHECK(facts.size() >= 10);
    for (const ts::ChipFact& each : facts) {
      CAPTURE(each.figure);
      CHECK(each.value > 0);
      CHECK(each.source.size() > 1);
      bool known = false;
      for (const char* sure : {"S", "K", "derived", "inferred", "at most"}) {
        known = known || each.sure == sure;
      }
      CHECK(known);
    }
    const ts::Chip chip = ts::chip(name);
    CHECK(chip.price_date.empty() == !(chip.dollars_per_hour > 0));
  }
  const auto v7 = ts::chip_facts("tpu-v7");
  CHECK(fact(v7, "clock").sure == "inferred");
  CHECK(fact(v7, "bf16 peak").sure == "S");
  CHECK(fact(v7, "price").sure == "K");
  CHECK(fact(v7, "price").source == "K: list price, low confidence, undated");
  CHECK(fact(ts::chip_facts("wse-3"), "bf16 peak").sure == "inferred");
  CHECK(fact(ts::chip_facts("v5e"), "vector rate").sure == "derived");
  CHECK(fact(ts::chip_facts("v5e"), "on-chip bandwidth").source == "22 x HBM, scaling book");
  CHECK(fact(ts::chip_facts("h100"), "L2 bandwidth").value == 5.5e12);
  CHECK(ts::best_matmul_fraction(ts::chip("h100")) == 0.80);
  CHECK(ts::best_matmul_fraction(ts::chip("v5e")) == 0);
  CHECK(ts::best_matmul_fraction(ts::chip("h200"), ts::DType::fp8_e4m3) == 0.73);
  CHECK(ts::best_matmul_fraction(ts::chip("h100"), ts::DType::f32) == 0);
  // What a plan grants: of the kin where the chip itself was not measured.
  CHECK(ts::large_matmul_share(ts::chip("h800"), ts::DType::bf16) == 0.80);
  CHECK(ts::large_matmul_share(ts::chip("gb300"), ts::DType::fp8_e4m3) == 0.72);
  CHECK(ts::large_matmul_share(ts::chip("a100-80"), ts::DType::int8) == 0.87);
  CHECK(ts::large_matmul_share(ts::chip("v5e"), ts::DType::bf16) == 0.95);
  CHECK(ts::large_matmul_share(ts::chip("v100"), ts::DType::f16) == 1);
  CHECK(fact(ts::chip_facts("h100"), "best matmul, fp8_e4m3").value == 0.71);
  // Every note is of a chip or kind and of a figure that there is.
  for (const ts::detail::FactNote& note : ts::detail::fact_notes()) {
    CAPTURE(note.chip);
    CAPTURE(note.figure);
    bool used = false;
    for (const std::string& name : ts::chips()) {
      const ts::Chip chip = ts::chip(name);
      if (chip.name == note.chip || chip.kind == note.chip) {
        used = used || std::string(note.figure) == "*" ||
               !fact(ts::chip_facts(chip), note.figure).figure.empty();
      }
    }
    CHECK(used);
  }
}

TEST_CASE("presets: what a user sets is shown as set") {
  ts::Chip mine = ts::chip("h100");
  mine.memory_bandwidth = 3e12;
  mine.dollars_per_hour = 2.5;
  mine.price_source = "our invoice";
  mine.price_date = "2026-11";
  const auto facts = ts::chip_facts(mine);
  CHECK(fact(facts, "memory bandwidth").sure == "set");
  CHECK(fact(facts, "memory bandwidth").source == "not a preset's figure");
  CHECK(fact(facts, "memory").sure == "S");
  CHECK(fact(facts, "price").value == 2.5);
  CHECK(fact(facts, "price").source == "our invoice, 2026-11");
  CHECK(ts::hourly_price(mine).explain() == "price = 2.5 USD/h   [our invoice, 2026-11]\n");
  ts::Chip own;
  own.flops_bf16 = 1e12;
  CHECK(fact(ts::chip_facts(own), "bf16 peak").sure == "set");
  ts::Machine pod = ts::machine("v5e", {4, 4});
  CHECK(ts::hourly_price(pod).explain() ==
        "price = 1.2 USD/h   [S: scaling book; S: quoted list price, 2025-02]\n");
  pod.dollars_per_hour = 0.5;
  CHECK(ts::hourly_price(pod).explain() == "price = 0.5 USD/h   [set on the machine]\n");
  ts::Chip cheap = ts::chip("v5e");
  cheap.dollars_per_hour = 0.5;
  CHECK(ts::hourly_price(cheap).explain() == "price = 0.5 USD/h   [set on the chip]\n");
  ts::ServingJob job;
  job.model = ts::config("llama3-8b");
  CHECK(ts::plan_serving(job, pod).dollars_per_million_tokens.explain().find(
            "price = 0.5 USD/h   [set on the machine]\n") != std::string::npos);
  CHECK(error_of([&] { ts::hourly_price(own); }) ==
        "hourly_price: this chip has no price; set its dollars_per_hour");
  CHECK(error_of([] { ts::flops_per_dollar(ts::chip("b200")); }) ==
        "hourly_price: b200 has no price; set its dollars_per_hour");
  const std::string table = ts::chip_facts_table(mine).csv();
  CHECK(table.find("figure,value,unit,sure,source\nbf16 peak,989400000000000,FLOP/s,S,") == 0);
  CHECK(ts::chip_facts_table("v5e").title == "tpu-v5e, google, 2023");
}

TEST_CASE("presets: FLOP for a dollar") {
  const auto per_dollar = [](const char* name) {
    return ts::flops_per_dollar(ts::chip(name)).value();
  };
  CHECK(per_dollar("v4") == Approx(3.07e17).epsilon(0.005));
  CHECK(per_dollar("v5e") == Approx(5.91e17).epsilon(0.005));
  CHECK(per_dollar("v5p") == Approx(3.93e17).epsilon(0.005));
  CHECK(per_dollar("v6e") == Approx(1.22e18).epsilon(0.005));
  CHECK(per_dollar("a100-40") == Approx(3.06e17).epsilon(0.005));
  CHECK(per_dollar("h100") == Approx(3.30e17).epsilon(0.005));
  CHECK(per_dollar("h200") == Approx(3.56e17).epsilon(0.005));
  const ts::Quantity v5p = ts::flops_per_dollar(ts::chip("v5p"));
  CHECK(v5p.unit() == "FLOP/USD");
  CHECK((v5p / ts::Quantity(3600, "s/h")).value() == Approx(1.09e14).epsilon(0.005));  // the book's
  CHECK(ts::flops_per_dollar(ts::chip("v5e"), ts::DType::int8).value() ==
        Approx(2 * per_dollar("v5e")).epsilon(0.01));
  const ts::Table prices = ts::price_table();
  CHECK(prices.csv().find("AWS p4d,a100-40,8,32.77,4.09625,undated,K\n") != std::string::npos);
  for (const ts::PriceRow& row : ts::price_rows()) {
    CAPTURE(row.offer);
    CHECK(!row.date.empty());
    CHECK(ts::chip(row.chip).name == row.chip);
    CHECK(row.of_one() == Approx(ts::chip(row.chip).dollars_per_hour).epsilon(0.15));
  }
}

TEST_CASE("presets: energy of operations") {
  const char* const root = std::getenv("TINYSCALE_SHARED");
  std::ifstream file(std::string(root != nullptr ? root : "../shared") + "/data/tables/energy.tsv");
  std::string line;
  std::size_t i = 0;
  for (std::getline(file, line); std::getline(file, line); ++i) {
    std::istringstream cells(line);
    std::string operation, pj45, pj7, source;
    std::getline(cells, operation, '\t');
    std::getline(cells, pj45, '\t');
    std::getline(cells, pj7, '\t');
    std::getline(cells, source, '\t');
    REQUIRE(i < ts::energy_rows().size());
    const ts::EnergyRow& row = ts::energy_rows()[i];
    CHECK(row.operation == operation);
    CHECK(row.pj_45nm == (pj45.empty() ? 0 : std::stod(pj45)));
    CHECK(row.pj_7nm == (pj7.empty() ? 0 : std::stod(pj7)));
    CHECK(row.source == source);
  }
  if (i == 0) {
    std::cout << "skipped: no energy.tsv\n";
  }
  const ts::ChipEnergy v4 = ts::chip("v4").energy;
  CHECK(v4.mac_int8 == Approx(0.077));
  CHECK(v4.mac_bf16 == Approx(0.59));
  CHECK(v4.mac_f32 == Approx(1.69));
  CHECK(v4.sram_byte == 1.75);
  CHECK(v4.memory_byte == Approx(44).epsilon(0.01));
  CHECK(v4.memory_byte / 8 == Approx(5.5).epsilon(0.01));  // pJ a bit
  CHECK(ts::picojoules("dram ddr3/ddr4, 64 bit", 7) / 8 == Approx(163).epsilon(0.01));
  CHECK(2 * v4.memory_byte / v4.mac_bf16 == Approx(150).epsilon(0.02));  // a weight from HBM
  CHECK(2 * v4.sram_byte / v4.mac_bf16 == Approx(6).epsilon(0.02));      // and from SRAM
  const ts::Chip chip = ts::chip("v4");
  CHECK(chip.flops_bf16 / 2 * v4.mac_bf16 * 1e-12 == Approx(81).epsilon(0.01));       // W
  CHECK(chip.memory_bandwidth * v4.memory_byte * 1e-12 == Approx(53).epsilon(0.02));  // W
  CHECK(ts::energy_table().csv().find("bf16 add,,0.11,K,\n") != std::string::npos);
  CHECK(error_of([] { ts::picojoules("bf16 add", 45); }) ==
        "picojoules: nothing known of \"bf16 add\" at 45 nm; the table has 45 and 7 nm, see "
        "energy_table()");
  CHECK(error_of([] { ts::picojoules("bf16 mul", 7); }) ==
        "picojoules: no operation \"bf16 mul\"; near it is bf16 multiply");
}

TEST_CASE("presets: published pod figures come out of the table") {
  const ts::PodFigures v5e = ts::pod_figures("v5e"), v6e = ts::pod_figures("v6e");
  CHECK(v5e.flops_int8.in("POP/s") == Approx(100).epsilon(0.01));
  CHECK(v5e.flops_bf16.in("PFLOP/s") == Approx(50.63).epsilon(0.005));
  CHECK(v5e.all_reduce.in("TB/s") == Approx(51.2));
  CHECK(v5e.bisection.in("TB/s") == Approx(1.6));
  CHECK(v5e.network.in("Tbit/s") == Approx(6.4));
  CHECK(v6e.flops_bf16.in("PFLOP/s") == Approx(234.9).epsilon(0.001));
  CHECK(v6e.all_reduce.in("TB/s") == Approx(102.4));
  CHECK(v6e.bisection.in("TB/s") == Approx(3.2));
  CHECK(v6e.network.in("Tbit/s") == Approx(25.6));
  CHECK(ts::pod_figures("v4").flops_bf16.in("EFLOP/s") == Approx(1.1).epsilon(0.03));
  CHECK(ts::pod_figures("v5p").flops_bf16.in("EFLOP/s") == Approx(4.11).epsilon(0.001));
  const ts::PodFigures v7 = ts::pod_figures("v7");
  CHECK(v7.flops_fp8.in("EFLOP/s") == Approx(42.5).epsilon(0.001));
  CHECK(v7.memory.in("GiB") == Approx(1.77e6).epsilon(0.001));  // published as 1.77 PB
  CHECK(v7.memory.value() == Approx(1.90e15).epsilon(0.001));
  CHECK(v7.bisection.in("TB/s") == Approx(2 * 16 * 24 * 0.1));  // 16x24x24, cut across a 24
  CHECK(v7.flops_int8.value() == 0);                            // not known
  CHECK(v7.table().csv().find("int8") == std::string::npos);
  CHECK(v5e.bisection.explain() ==
        "bisection bandwidth = 2 * N / X * W_link   [links cut twice]\n"
        "                    = 2 * 256 chip / 16 chip * 5e+10 B/s\n"
        "                    = 1.6e+12 B/s\n"
        "  N = 256 chip   [tpu-v5e 16x16]\n"
        "  X = 16 chip   [longest side]\n"
        "  W_link = 5e+10 B/s   [a link, the vendor's rate, one way]\n");
  std::ostringstream out;
  out << v5e;
  CHECK(out.str().find("Pod of tpu-v5e, tpu-v5e 16x16\n") == 0);
  CHECK(error_of([] { ts::pod_figures("h100"); }) ==
        "pod_shape: h100-sxm is not of a TPU pod; for v2 to v7 it is known, of GPUs see "
        "fat_tree(machine)");
}

TEST_CASE("presets: a whole pod is the machine of as many chips") {
  for (const char* name : {"v4", "v5e", "v5p", "v6e", "v7"}) {
    CAPTURE(name);
    const ts::Chip chip = ts::chip(name);
    CHECK(ts::pod_shape(chip).count() == chip.domain_chips);
    CHECK(ts::machine_of_chips(chip, chip.domain_chips).dims == ts::pod_shape(chip));
  }
}

TEST_CASE("presets: the vendor's links, chip by chip") {
  const auto total = [](const char* name) {  // Gbit/s of a chip
    const ts::Chip chip = ts::vendor_links(name);
    return chip.links * chip.link_bandwidth * 8e-9;
  };
  CHECK(total("v5e") == 1600);
  CHECK(total("v5p") == 4800);
  CHECK(total("v6e") == 3200);
  CHECK(total("v7") == 4800);  // 1200 GB/s both ways
  CHECK(ts::vendor_links("v4").link_bandwidth == 5e10);
  CHECK(ts::vendor_links("v3").link_bandwidth == ts::chip("v3").link_bandwidth);
  CHECK(ts::vendor_links("h100").link_bandwidth == 2.5e10);
  for (const char* name : {"v4", "v5e", "v5p", "v6e", "v7"}) {
    CHECK(ts::vendor_links(name).link_bandwidth * 0.9 == Approx(ts::chip(name).link_bandwidth));
  }
  CHECK(fact(ts::chip_facts(ts::vendor_links("v5e")), "link").sure == "set");
}

TEST_CASE("presets: link totals and fat trees of GPUs") {
  const auto total = [](const char* name) {
    const ts::Chip chip = ts::chip(name);
    return chip.links * chip.link_bandwidth;
  };
  CHECK(total("a100") == 300e9);
  CHECK(total("h100") == 450e9);
  CHECK(total("h200") == 450e9);
  CHECK(total("b200") == 900e9);
  CHECK(total("gb200") == 900e9);
  const ts::Machine pod = ts::machine("h100", {4, 32, 8});  // a SuperPod of 1024
  const ts::List<ts::FatTreeLevel> tree = ts::fat_tree(pod);
  REQUIRE(tree.size() == 3);
  CHECK(tree[0].part.in("GB/s") == Approx(450));
  CHECK(tree[0].all.in("TB/s") == Approx(3.6));
  CHECK(tree[0].gathering.in("GB/s") == Approx(514.286));
  CHECK(tree[1].part.in("GB/s") == Approx(400));
  CHECK(tree[1].all.in("TB/s") == Approx(12.8));
  CHECK(tree[1].gathering.in("GB/s") == Approx(412.903));
  CHECK(tree[2].all.in("TB/s") == Approx(51.2));
  CHECK(tree[2].gathering.in("GB/s") == Approx(17066.7));
  CHECK(ts::fat_tree(ts::machine("b200", {2, 8}))[1].part.in("GB/s") == Approx(400));
  const auto racks = ts::fat_tree(ts::machine("gb200", {8, 72}));
  CHECK(racks[0].part.in("GB/s") == Approx(900));
  CHECK(racks[1].part.in("TB/s") == Approx(3.6));  // 4 * 18 ports of 400 Gbit/s
  CHECK(racks[1].part.in("Gbit/s") == Approx(4 * 18 * 400));
  CHECK(ts::fat_tree(ts::machine("h100", {1, 8}))[1].gathering.value() == 0);
  CHECK(ts::fat_tree_table(pod).csv() ==
        "level,degree,a part sends (B/s),all parts (B/s),all-gather (B/s)\n"
        "node,8,450000000000,3600000000000,514285714285.7143\n"
        "leaf,32,400000000000,12800000000000,412903225806.4516\n"
        "spine,4,12800000000000,51200000000000,17066666666666.666\n");
  CHECK(ts::network_table().csv().find(
            "\"NVLink 5, "
            "NVL72\",gb200,50000000000,18,900000000000,18,72,50000000000,3600000000000\n") !=
        std::string::npos);
  CHECK(error_of([] {
          ts::fat_tree(ts::machine("v5e", {4, 4}));
        }) ==
        "fat_tree: tpu-v5e 4x4: dimension 1 is line; at most three of switches are right, as "
        "machine(\"h100\", {4, 32, 8})");
}

TEST_CASE("presets: a bandwidth in a formula says which way it is counted") {
  const ts::Bandwidth link = ts::Bandwidth::one_way(45e9);
  const ts::Quantity one = ts::quantity_of(link, ts::Convention::one_way);
  const ts::Quantity both = ts::quantity_of(link, ts::Convention::both_ways, "W_ici", "v5e");
  CHECK(one.in("GB/s") == 45);
  CHECK(both.in("GB/s") == 90);
  CHECK(one.explain() == "W = 4.5e+10 B/s   [one way]\n");
  CHECK(both.explain() == "W_ici = 9e+10 B/s   [v5e, both ways]\n");
}

TEST_CASE("presets: names near one that is not known") {
  using ts::detail::near_names;
  using Names = std::vector<std::string>;
  const Names models = {"gpt2", "gpt2-medium", "llama3-8b", "llama3-70b", "mixtral-8x7b"};
  CHECK(near_names("lama3-8b", models) == Names{"llama3-8b", "llama3-70b"});
  CHECK(near_names("Llama_3_8B", models) == Names{"llama3-8b", "llama3-70b"});
  CHECK(near_names("llama3", models) == Names{"llama3-8b", "llama3-70b"});
  CHECK(near_names("gtp2", models) == Names{"gpt2"});  // neighbours swapped: one step
  CHECK(near_names("8x7b", models) == Names{"mixtral-8x7b"});
  CHECK(near_names("bert", models).empty());
  CHECK(near_names("", models).empty());
  CHECK(near_names("gpt2-medium", models, 1) == Names{"gpt2-medium"});
  CHECK(ts::detail::near_text("gtp2", models) == "near it is gpt2");
  CHECK(ts::detail::near_text("bert", {"a", "bb"}) == "the names are a, bb");
  CHECK(ts::detail::edit_distance("kitten", "sitting") == 3);
  CHECK(ts::detail::edit_distance("", "abc") == 3);
}
