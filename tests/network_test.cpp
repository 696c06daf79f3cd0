// Networks: presets against ../shared/reference/specs.md and the scaling book, where axes lie, and
// which links messages cross.
#include "tinyscale.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "error_of.hpp"

namespace ts = tinyscale;

namespace {

std::string kinds(const ts::Machine& machine) {
  std::string text;
  for (const ts::Links& links : machine.links) {
    text += std::string(text.empty() ? "" : ", ") + ts::name_of(links.kind);
  }
  return text;
}

// "4 ring of 0, 2 line of 1 by 2"
std::string parts_text(const ts::List<ts::AxisPart>& parts) {
  std::string text;
  for (const ts::AxisPart& part : parts) {
    text += (text.empty() ? "" : ", ") + std::to_string(part.size) + " " + ts::name_of(part.kind) +
            " of " + std::to_string(part.dim);
    text += part.spacing == 1 ? "" : " by " + std::to_string(part.spacing);
  }
  return text;
}

std::string placed(const ts::Machine& machine, const ts::List<ts::MeshAxis>& axes) {
  std::string text;
  for (const ts::AxisPlacement& place : ts::detail::place_axes(machine, axes)) {
    text += (text.empty() ? "" : "; ") + place.name + ": " + parts_text(place.parts);
  }
  return text;
}

std::string route_text(const ts::Machine& machine, int from, int to) {
  const ts::detail::MachineLinks links(machine);
  std::vector<std::size_t> route;
  links.route(from, to, route);
  std::string text;
  for (const std::size_t link : route) {
    text += (text.empty() ? "" : ", ") + links.name(link);
  }
  return text;
}

// Links that leave one half of a machine, of the coordinates below n / 2 of a dimension.
int links_across(const ts::Machine& machine, int dim) {
  const ts::detail::MachineLinks links(machine);
  const std::int64_t behind = ts::detail::chips_behind(machine, dim), n = machine.dims[dim];
  const auto lower = [&](std::int64_t chip) { return chip / behind % n < n / 2; };
  int cut = 0;
  for (std::size_t link = 0; link < links.count(); ++link) {
    const bool wraps = links.dim_of(link) != dim ||
                       machine.links[static_cast<std::size_t>(dim)].kind == ts::AxisKind::ring;
    cut += wraps && lower(links.from(link)) && !lower(links.to(link)) ? 1 : 0;
  }
  return cut;
}

}  // namespace

TEST_CASE("network: bandwidth says by which convention") {
  const ts::Bandwidth link = ts::Bandwidth::one_way(45e9);
  CHECK(link.both_ways() == 90e9);
  CHECK(ts::Bandwidth::both_ways(90e9).one_way() == link.one_way());
  CHECK(ts::Bandwidth().one_way() == 0);
}

TEST_CASE("network: presets have the links of specs.md") {
  CHECK(kinds(ts::machine("tpu-v5e", {8, 16})) == "line, ring");
  CHECK(kinds(ts::machine("tpu-v5p", {16, 20, 28})) == "ring, ring, ring");
  CHECK(kinds(ts::machine("tpu-v4", {2, 2, 4})) == "line, line, line");
  CHECK(kinds(ts::machine("tpu-v5p", {6, 16, 20, 28})) == "switched, ring, ring, ring");
  CHECK(kinds(ts::machine("tpu-v5e", {2, 16, 16})) == "switched, ring, ring");
  CHECK(kinds(ts::machine("h100", {8})) == "switched");
  CHECK(kinds(ts::machine("h100", {4, 32, 8})) == "switched, switched, switched");
  CHECK(kinds(ts::machine("mi300x", {8})) == "fully connected");
  CHECK(kinds(ts::machine("h100-pcie", {2})) == "fully connected");
  CHECK(kinds(ts::machine("laptop-x86", {4})) == "switched");
  struct Case {
    const char* chip;
    ts::Shape dims;
    int dim;
    double egress;
  };
  const std::vector<Case> cases = {
      {"tpu-v5p", {16, 20, 28}, 2, 1.8e11},  // both ways, the scaling book's W
      {"tpu-v5e", {4, 2}, 0, 4.5e10},        // a line: one way
      {"tpu-v5p", {2, 4, 4, 4}, 0, 6.25e9},  // DCN, a chip
      {"a100-80", {8}, 0, 300e9},
      {"h100", {8}, 0, 450e9},
      {"h100", {32, 8}, 0, 50e9},
      {"h100", {4, 32, 8}, 0, 50e9},  // through the leaf to the spine
      {"h100", {4, 32, 8}, 1, 50e9},
      {"b200", {8}, 0, 900e9},
      {"gb200", {72}, 0, 900e9},
      {"gb200", {4, 72}, 0, 50e9},
      {"mi300x", {8}, 0, 448e9},
      {"mi300x", {4}, 0, 192e9},  // three links of seven
      {"h100-pcie", {2}, 0, 18 * 1.67e10}};
  for (const Case& c : cases) {
    CAPTURE(c.chip);
    CAPTURE(c.dim);
    CHECK(ts::machine(c.chip, c.dims).egress(c.dim) == doctest::Approx(c.egress).epsilon(1e-12));
  }
  const ts::Machine tree = ts::machine("h100", {4, 32, 8});  // scaling book 2.3
  CHECK(tree.links[0].uplink.one_way() == doctest::Approx(12.8e12));
  CHECK(tree.links[1].uplink.one_way() == doctest::Approx(400e9));
  CHECK(ts::machine("gb200", {4, 72}).links[0].uplink.one_way() == doctest::Approx(3.6e12));
  std::ostringstream printed;
  printed << tree;
  CHECK(printed.str() ==
        "h100-sxm 4x32x8: 1024 x h100-sxm\n"
        "dimension  chips  kind      latency   one way\n"
        "---------  -----  --------  -------  --------\n"
        "        0      4  switched     1 us         -\n"
        "        1     32  switched     1 us   50 GB/s\n"
        "        2      8  switched     1 us  450 GB/s\n");
}

TEST_CASE("network: bisection of a pod and a node") {
  const ts::Machine pod = ts::machine("tpu-v5e", {16, 16});  // Google: 50 GB/s a link, 1.6 TB/s
  CHECK(links_across(pod, 0) == 32);
  CHECK(links_across(pod, 1) * 50e9 == 1.6e12);
  CHECK(links_across(ts::machine("tpu-v4", {4, 4, 4}), 0) == 32);
}

TEST_CASE("network: errors of machines") {
  CHECK(error_of([] {
          ts::machine("tpu-v5e", {2, 2, 2, 2});
        }) ==
        "machine: tpu-v5e [2, 2, 2, 2] has 4 dimensions; its network has 3, the first of them "
        "slices");
  CHECK(error_of([] {
          ts::machine("h100", {2, 2, 2, 8});
        }) == "machine: h100-sxm [2, 2, 2, 8] has 4 dimensions; its network has 3");
  CHECK(error_of([] {
          ts::machine("tpu-v2", {2, 16, 16});
        }) ==
        "machine: tpu-v2 2x16x16: the bandwidth of links[0] is 0 bytes/s one way; a finite number "
        "above 0 is right, as a chip's link_bandwidth, between nodes its dcn_bandwidth");
  ts::Machine mine;
  mine.name = "mine";
  mine.dims = {4};
  const auto check = [&] { ts::detail::check_network("Mesh", mine); };
  mine.dims = {};
  CHECK(error_of(check) ==
        "Mesh: the machine mine has no dimensions; machine(\"tpu-v5e\", {4, 2}) has, or give its "
        "dims and links");
  mine.dims = {4};
  CHECK(error_of(check) ==
        "Mesh: mine [4] has links along 0 dimensions; one Links for every dimension is right");
  mine.links.resize(1);
  CHECK(error_of(check) ==
        "Mesh: mine: the bandwidth of links[0] is 0 bytes/s one way; a finite number above 0 is "
        "right, as a chip's link_bandwidth, between nodes its dcn_bandwidth");
  mine.links[0].bandwidth = ts::Bandwidth::one_way(1e9);
  CHECK(error_of(check) == "no error");
  mine.links[0].uplink = ts::Bandwidth::one_way(1e9);
  CHECK(error_of(check) ==
        "Mesh: mine: links[0] is a line with an uplink; only what is behind a switch has one");
  mine.links[0].kind = ts::AxisKind::switched;
  CHECK(error_of(check) == "no error");
  mine.links[0].uplink = ts::Bandwidth::one_way(-1);
  CHECK(error_of(check).find("Mesh: mine: the uplink of links[0] is -1 bytes/s one way") == 0);
  mine.links[0].uplink = ts::Bandwidth();
  mine.links[0].latency = std::numeric_limits<double>::infinity();
  CHECK(error_of(check) ==
        "Mesh: mine: the latency of links[0] is inf s; a finite number from 0 is right");
}

TEST_CASE("network: dimensions in another order") {
  const ts::Machine machine = ts::machine("tpu-v5e", {8, 16});
  const ts::Machine turned = ts::reordered(machine, {1, 0});
  CHECK(turned.dims == ts::Shape({16, 8}));
  CHECK(turned.name == "tpu-v5e 16x8");
  CHECK(kinds(turned) == "ring, line");
  CHECK(placed(turned, {{"x", 16}, {"y", 8}}) == "x: 16 ring of 0; y: 8 line of 1");
  CHECK(error_of([&] { ts::reordered(machine, {0}); }) ==
        "reordered: 1 of the 2 dimensions of tpu-v5e 8x16; each once is right");
  CHECK(error_of([&] {
          ts::reordered(machine, {0, 0});
        }) == "reordered: dimension 0 of tpu-v5e 8x16 twice; once is right");
  CHECK(error_of([&] {
          ts::reordered(machine, {0, 2});
        }) == "Machine: dimension 2 of tpu-v5e 8x16; its dimensions are 0 to 1");
  CHECK(error_of([] {
          ts::reordered(ts::machine("h100", {4, 8}), {1, 0});
        }) ==
        "reordered: dimension 0 of h100-sxm 4x8 has an uplink of the chips behind it; it must stay "
        "at its place");
}

TEST_CASE("network: where axes lie") {
  const ts::Machine pod = ts::machine("tpu-v5e", {16, 16});
  CHECK(placed(pod, {{"x", 16}, {"y", 16}}) == "x: 16 ring of 0; y: 16 ring of 1");
  CHECK(placed(pod, {{"x", 256}}) == "x: 16 ring of 0, 16 ring of 1");
  CHECK(placed(pod, {{"x", 4}, {"y", 64}}) == "x: 4 ring of 0 by 4; y: 4 line of 0, 16 ring of 1");
  CHECK(placed(pod, {{"x", 32}, {"y", 1}, {"z", 8}}) ==
        "x: 16 ring of 0, 2 line of 1 by 8; y: 1 line of -1; z: 8 line of 1");
  const ts::Machine line = ts::machine("tpu-v5e", {4, 2});
  CHECK(placed(line, {{"x", 8}}) == "x: 4 line of 0, 2 line of 1");
  CHECK(placed(line, {{"x", 2}, {"y", 4}}) == "x: 2 line of 0 by 2; y: 2 line of 0, 2 line of 1");
  const ts::Machine three = ts::machine("tpu-v5e", {3, 4});
  CHECK(placed(three, {{"x", 2}, {"y", 6}}) == "x: 2 line of -1; y: 6 line of -1");
  CHECK(placed(three, {{"x", 6}, {"y", 2}}) == "x: 3 line of 0, 2 line of 1 by 2; y: 2 line of 1");
  const ts::Machine gpus = ts::machine("h100", {4, 8});
  CHECK(placed(gpus, {{"x", 2}, {"y", 16}}) ==
        "x: 2 switched of 0; y: 2 switched of 0, 8 switched of 1");
  CHECK(placed(ts::machine("h100", {2, 4, 8}), {{"x", 8}, {"y", 8}}) ==
        "x: 8 switched of 0; y: 8 switched of 2");  // leaf and spine are one switch,
  ts::Machine thin = ts::machine("h100", {2, 4, 8});
  thin.links[0].uplink = ts::Bandwidth::one_way(100e9);  // unless the spine is oversubscribed
  CHECK(placed(thin, {{"x", 8}, {"y", 8}}) ==
        "x: 2 switched of 0, 4 switched of 1; y: 8 switched of 2");
  CHECK(placed(ts::machine("mi300x", {8}), {{"x", 2}, {"y", 4}}) ==
        "x: 2 fully connected of 0; y: 4 fully connected of 0");

  const ts::List<ts::AxisPlacement> axes =
      ts::detail::place_axes(pod, {{"a", 4}, {"b", 4}, {"c", 16}});
  CHECK(parts_text(ts::detail::parts_of_group(pod, axes, {0, 1})) == "16 ring of 0");
  CHECK(parts_text(ts::detail::parts_of_group(pod, axes, {1, 0})) ==
        "4 line of 0, 4 ring of 0 by 4");
  CHECK(parts_text(ts::detail::parts_of_group(pod, axes, {1, 2})) == "4 line of 0, 16 ring of 1");
  CHECK(parts_text(ts::detail::parts_of_group(pod, axes, {})) == "1 line of -1");
  CHECK(axes[0].stride == 64);
  CHECK(axes[0].parts[0].bandwidth == 4.5e10);
  CHECK(axes[0].parts[0].latency == 1e-6);

  const ts::MeshPlacement shown = {pod.name, axes};
  CHECK(shown.csv() ==
        "axis,devices,kind,dimension,apart,latency (s),one way (B/s)\n"
        "a,4,ring,0,4,1e-06,45000000000\nb,4,line,0,1,1e-06,45000000000\n"
        "c,16,ring,1,1,1e-06,45000000000\n");
}

// Every device of every axis: the parts' coordinates and spacings give the chip that rank is.
TEST_CASE("network: parts are the chips that the axis has") {
  const std::vector<ts::Machine> machines = {
      ts::machine("tpu-v5e", {16, 8}), ts::machine("tpu-v5p", {4, 8, 4}),
      ts::machine("tpu-v5e", {6, 10}), ts::machine("tpu-v5p", {2, 4, 4, 4})};
  int aligned = 0;
  for (const ts::Machine& machine : machines) {
    const std::int64_t chips = machine.chips();
    for (std::int64_t x = 1; x <= chips; ++x) {
      for (std::int64_t y = 1; chips % x == 0 && y <= chips / x; ++y) {
        if (chips / x % y != 0) {
          continue;
        }
        const ts::List<ts::AxisPlacement> axes =
            ts::detail::place_axes(machine, {{"x", x}, {"y", y}, {"z", chips / x / y}});
        for (const ts::AxisPlacement& axis : axes) {
          int size = 1;
          for (const ts::AxisPart& part : axis.parts) {
            size *= part.size;
          }
          CHECK(size == axis.size);
          for (int i = 0; i < axis.size && axis.parts[0].dim >= 0; ++i) {
            std::int64_t chip = 0, rest = i;
            for (std::size_t p = axis.parts.size(); p-- > 0;) {
              const ts::AxisPart& part = axis.parts[p];
              const bool spaced =
                  machine.links[static_cast<std::size_t>(part.dim)].kind != ts::AxisKind::switched;
              const std::int64_t step =
                  ts::detail::chips_behind(machine, part.dim) * (spaced ? part.spacing : 1);
              chip += rest % part.size * step;
              rest /= part.size;
            }
            ++aligned;
            CHECK(chip == std::int64_t{i} * axis.stride);
          }
        }
      }
    }
  }
  CHECK(aligned > 1000);
}

TEST_CASE("network: routes") {
  const ts::Machine line = ts::machine("tpu-v5e", {4, 2});
  CHECK(route_text(line, 0, 0) == "");
  CHECK(route_text(line, 0, 7) == "0 -> 2, 2 -> 4, 4 -> 6, 6 -> 7");
  CHECK(route_text(line, 7, 2) == "7 -> 5, 5 -> 3, 3 -> 2");
  const ts::Machine ring = ts::machine("tpu-v5e", {16});
  CHECK(route_text(ring, 15, 1) == "15 -> 0, 0 -> 1");
  CHECK(route_text(ring, 1, 14) == "1 -> 0, 0 -> 15, 15 -> 14");
  CHECK(route_text(ring, 0, 8).find("0 -> 1") == 0);  // both are equal: upwards
  CHECK(route_text(ts::machine("mi300x", {8}), 6, 1) == "6 -> 1");
  const ts::Machine gpus = ts::machine("h100", {4, 8});
  CHECK(route_text(gpus, 1, 3) == "1 -> switch, switch -> 3");
  CHECK(route_text(gpus, 1, 11) ==
        "1 -> switch, 0..7 -> switch, switch -> 8..15, switch -> 9, 9 -> switch, switch -> 11");
  const ts::Machine tree = ts::machine("h100", {2, 2, 8});
  CHECK(route_text(tree, 1, 9) == "1 -> switch, 0..7 -> switch, switch -> 8..15, switch -> 9");
  CHECK(route_text(tree, 1, 25) ==
        "1 -> switch, 0..7 -> switch, 0..15 -> switch, switch -> 16..31, switch -> 24..31, "
        "switch -> 25");
  const ts::Machine slices = ts::machine("tpu-v5p", {2, 4, 4, 4});
  CHECK(route_text(slices, 0, 65) == "0 -> switch, switch -> 64, 64 -> 65");
  for (const ts::Machine& machine : {line, ring, gpus, tree, slices, ts::machine("mi300x", {8})}) {
    const ts::detail::MachineLinks links(machine);
    std::vector<std::size_t> route;
    for (int from = 0; from < machine.chips(); from += 3) {
      for (int to = 0; to < machine.chips(); ++to) {
        links.route(from, to, route);
        double latency = 0;
        const int hops = links.hops(from, to, latency);
        int counted = 0;  // a switch is entered once
        std::int64_t at = from;
        for (const std::size_t link : route) {
          counted += links.to(link) >= 0 && !links.is_uplink(link) ? 1 : 0;
          if (links.from(link) >= 0 && !links.is_uplink(link)) {
            CHECK(links.from(link) == at);
          }
          at = links.to(link) >= 0 && !links.is_uplink(link) ? links.to(link) : at;
          CHECK(links.bandwidth(link) > 0);
        }
        CHECK(at == to);
        CHECK(counted == hops);
        CHECK(latency == doctest::Approx(1e-6 * hops));
      }
    }
  }
}
