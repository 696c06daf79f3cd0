#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <sstream>

#include "error_of.hpp"
#include "fake_json.hpp"
#include "tinyscale.hpp"
#include "well_formed.hpp"

namespace ts = tinyscale;

namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string read_file(const std::string& path) {
  std::string text;
  if (std::FILE* file = std::fopen(path.c_str(), "rb")) {
    char buffer[4096];
    for (std::size_t n = 0; (n = std::fread(buffer, 1, sizeof buffer, file)) > 0;) {
      text.append(buffer, n);
    }
    std::fclose(file);
  }
  return text;
}

ts::RooflinePlot laptop_like() {
  ts::RooflinePlot plot;
  plot.title = "Roofline of <this> & that";
  plot.peak_flops_per_second = 1e11;
  plot.vector_flops_per_second = 2e10;
  plot.roofs = {{"L2", 1e11}, {"DRAM", 2e10}};
  plot.points = {{"matmul", 40, 1e11, 8e10}, {"add", 0.1, 2e9, 0}, {"reshape", 0, 0, 0}};
  return plot;
}

}  // namespace

TEST_CASE("show: a picture is one well-formed, self-contained element") {
  const ts::Svg picture = ts::svg(laptop_like());
  const std::string markup = picture.markup();
  CHECK(well_formed(markup));
  CHECK(contains(markup, "Roofline of &lt;this&gt; &amp; that"));
  CHECK_FALSE(contains(markup, "<script"));
  CHECK(occurrences(markup, "http") == 1);  // the name of the format, nothing to fetch
  CHECK(markup.size() < 200000);
  CHECK(contains(markup, "prefers-color-scheme: dark"));
}

TEST_CASE("show: a roofline has a slope for each level, dots, rings, and names its units") {
  const std::string markup = ts::svg(laptop_like()).markup();
  CHECK(contains(markup, "FLOP per byte"));
  CHECK(contains(markup, "FLOP per second"));
  CHECK(contains(markup, "DRAM 20 GB/s"));
  CHECK(contains(markup, "op, measured"));
  CHECK(contains(markup, "without FLOPs, not drawn: reshape"));
  CHECK(occurrences(markup, "<circle") == 3 + 2);  // two dots, one ring, two samples
}

TEST_CASE("show: a roofline report is drawn under its chip's roof") {
  ts::Profile profile;
  ts::gelu(ts::matmul(ts::randn({8, 64}, 1), ts::randn({64, 32}, 2)));
  const ts::Chip chip = ts::chip("tpu-v5e");
  const ts::Svg picture = ts::svg(profile.roofline(chip, ts::DType::bf16), chip);
  CHECK(well_formed(picture.markup()));
  CHECK(contains(picture.markup(), "Roofline of " + chip.name + " in bf16"));
  CHECK(contains(picture.markup(), "matmul"));
  CHECK_FALSE(contains(picture.markup(), "op, measured"));  // host time says nothing of a TPU
}

TEST_CASE("show: a point lies where the axes say") {
  ts::Plot plot;
  plot.x = {"devices", ts::Scale::logarithmic, 1, 100};
  plot.y = {"seconds", ts::Scale::linear, 0, 10};
  plot.series = {{"simulated", {10}, {5}, ts::Mark::points}};
  ts::detail::Canvas canvas(plot.width, plot.height);
  const ts::detail::Frame frame = ts::detail::draw_plot(canvas, plot);
  CHECK(frame.px(10) == doctest::Approx((frame.left + frame.right) / 2));
  CHECK(frame.py(5) == doctest::Approx((frame.top + frame.bottom) / 2));
}

TEST_CASE("show: ticks are round, never minus zero, and a few") {
  CHECK(ts::detail::linear_ticks({"", ts::Scale::linear, 0, 500}) ==
        std::vector<double>{0, 100, 200, 300, 400, 500});
  CHECK(ts::detail::log_ticks({"", ts::Scale::logarithmic, 0.5, 2000}) ==
        std::vector<double>{1, 10, 100, 1000});
  for (const double high : {1e-9, 0.03, 1.0, 7.0, 12345.0, 1e15}) {
    const auto ticks = ts::detail::linear_ticks({"", ts::Scale::linear, -0.1 * high, high});
    CHECK(ticks.size() >= 3);
    CHECK(ticks.size() <= 9);
    for (const double tick : ticks) {
      CHECK(ts::detail::tick_text(tick) != "-0");
    }
  }
  CHECK(ts::detail::tick_text(1.97e14) == "197T");
  CHECK(ts::detail::tick_text(0.25) == "0.25");
  CHECK(ts::detail::tick_text(999.94) == "999.9");
  CHECK(ts::detail::tick_text(999.96) == "1k");  // not 1000
  CHECK(ts::detail::tick_text(-999999) == "-1M");
  CHECK(ts::detail::tick_text(1e24) == "1e+24");  // not 1e+06E
}

TEST_CASE("show: ticks that lie close together are told apart, and fit beside the axis") {
  const auto texts = [](double low, double high) {
    return ts::detail::tick_texts({"", ts::Scale::linear, low, high});
  };
  CHECK(texts(10000, 10020) ==
        std::vector<std::string>{"10k", "10.005k", "10.01k", "10.015k", "10.02k"});
  CHECK(texts(1.00001, 1.00003) ==
        std::vector<std::string>{"1.00001", "1.000015", "1.00002", "1.000025", "1.00003"});
  CHECK(texts(0, 500) == std::vector<std::string>{"0", "100", "200", "300", "400", "500"});
  ts::Plot plot;
  plot.y.label = "a label that is much longer than the picture is high, and goes on from there";
  plot.series.push_back({"", {1, 2}, {123456.781, 123456.782}});
  const ts::Svg picture = ts::svg(plot);
  const std::size_t at = picture.body.find(" transform=\"rotate(-90 ");
  REQUIRE(at < picture.body.size());
  CHECK(std::stod(picture.body.substr(at + 23)) >= 13);
  CHECK(contains(picture.body, ">a label that is much longer than the picture is "));
  CHECK_FALSE(contains(picture.body, "and goes on from there<"));
}

TEST_CASE("show: numbers that a dozen digits do not tell apart are drawn as a constant") {
  const double large = 9007199254740992.0;  // 2^53: the next number is 2 away
  ts::Plot plot;
  plot.x.label = "byte";
  plot.series.push_back({"", {large, large + 2}, {1e15, 1e15 + 100}});
  const std::string markup = ts::svg(plot).markup();
  for (const std::string text : {"8.5P", "9P", "9.5P", "900T", "950T", "1P", "1.05P", "1.1P"}) {
    CHECK(occurrences(markup, ">" + text + "</text>") == 1);
  }
  plot.x = {"byte", ts::Scale::linear, large, large + 2};
  CHECK(error_of([&] { ts::svg(plot); }) ==
        "svg: axis \"byte\" runs from 9007199254740992 to 9007199254740994, a billionth of these "
        "numbers or less, which no tick can show; limits further apart, or values less what they "
        "share, are right");
  const auto texts = ts::detail::tick_texts({"", ts::Scale::linear, 1e15, 1e15 + 2e6});
  for (std::size_t i = 1; i < texts.size(); ++i) {
    CHECK(texts[i] != texts[i - 1]);
  }
}

TEST_CASE("show: a short logarithmic axis has ticks too") {
  const auto texts = [](double low, double high) {
    return ts::detail::tick_texts({"", ts::Scale::logarithmic, low, high});
  };
  CHECK(texts(10.8, 18.2) == std::vector<std::string>{"12", "14", "16", "18"});
  CHECK(texts(0.26, 0.44) == std::vector<std::string>{"0.3", "0.35", "0.4"});
  CHECK(texts(8, 16) == std::vector<std::string>{"8", "10", "12", "14", "16"});
  CHECK(texts(1, 2) == std::vector<std::string>{"1", "2"});
  ts::Plot plot;
  plot.x = {"x", ts::Scale::logarithmic, 0, 0};
  plot.y = {"y", ts::Scale::logarithmic, 0, 0};
  plot.series = {{"one point", {14}, {3.5}}};
  const std::string markup = ts::svg(plot).markup();
  CHECK(contains(markup, ">14</text>"));
  CHECK(contains(markup, ">3.5</text>"));
}

TEST_CASE("show: a legend of many names leaves room for the lines and counts the others") {
  ts::LossCurve curve;
  curve.train_steps = {0, 1};
  curve.train = {5, 4};
  for (int i = 0; i < 40; ++i) {
    curve.others.push_back(
        {ts::detail::cat({"another run of the same training, seed ", i}), {0, 1}, {5, 3.0 + i}});
  }
  const std::string markup = ts::svg(curve).markup();
  CHECK(contains(markup, ">another run of the same training, seed 0</text>"));
  CHECK(contains(markup, ">another run of the same training, seed 8</text>"));
  CHECK_FALSE(contains(markup, ">another run of the same training, seed 9</text>"));
  CHECK(contains(markup, ">... and 31 more</text>"));
  ts::Plot plot;
  plot.series = curve.others;
  ts::detail::Canvas canvas(plot.width, plot.height);
  const ts::detail::Frame frame = ts::detail::draw_plot(canvas, plot);
  CHECK(frame.bottom - frame.top >= 120);
  plot.series = {{"a", {0, 1}, {0, 1}}, {"b", {0, 1}, {0, 1}}};
  CHECK_FALSE(contains(ts::svg(plot).markup(), "more"));
}

TEST_CASE("show: values that cannot be drawn leave a gap, never a NaN") {
  ts::Plot plot;
  plot.x.label = "step";
  plot.y = {"loss", ts::Scale::logarithmic, 0, 0};
  plot.series = {{"run", {0, 1, 2, 3, 4, 5}, {3, 2, std::nan(""), 0, 1.5, 1.2}}};
  const std::string markup = ts::svg(plot).markup();
  CHECK_FALSE(contains(markup, "nan"));
  CHECK_FALSE(contains(markup, "inf"));
  CHECK(occurrences(markup, "<polyline") == 3);  // two pieces and the legend's sample
  CHECK(occurrences(markup, "<circle") == 0);
  plot.series = {{"run", {0, 1, 2, 3, 4}, {3, std::nan(""), 2, -1, 1.5}}};
  CHECK(occurrences(ts::svg(plot).markup(), "<circle") == 3);  // points between gaps
  plot.series.clear();
  CHECK(contains(ts::svg(plot).markup(), "no data"));
}

TEST_CASE("show: a line that leaves the frame is cut at it") {
  ts::Plot plot;
  plot.x = {"x", ts::Scale::linear, 0, 1};
  plot.y = {"y", ts::Scale::linear, 0, 1};
  plot.series = {{"", {-1, 2}, {-1, 2}}};
  ts::detail::Canvas canvas(plot.width, plot.height);
  const ts::detail::Frame frame = ts::detail::draw_plot(canvas, plot);
  const std::string corner =
      ts::detail::coordinate(frame.left) + "," + ts::detail::coordinate(frame.bottom);
  CHECK(contains(canvas.finish("").body, "points=\"" + corner));
  for (const double far : {1e9, 1e20, 1e305}) {  // from far above to the middle to far below
    plot.series = {{"", {0, 0.5, 1}, {far, 0.5, -far}}};
    ts::detail::Canvas steep(plot.width, plot.height);
    ts::detail::draw_plot(steep, plot);
    const std::string middle = ts::detail::coordinate((frame.left + frame.right) / 2);
    CHECK(contains(steep.finish("").body,
                   "points=\"" + middle + "," + ts::detail::coordinate(frame.top) + " " + middle +
                       "," + ts::detail::coordinate((frame.top + frame.bottom) / 2) + " " + middle +
                       "," + ts::detail::coordinate(frame.bottom) + "\""));
  }
}

TEST_CASE("show: a loss curve draws training and validation") {
  ts::LossCurve curve;
  curve.train_steps = {0, 1, 2};
  curve.train = {5.5, 4, 3};
  curve.validation_steps = {0, 2};
  curve.validation = {5.6, 3.2};
  const ts::Svg picture = ts::svg(curve);
  CHECK(contains(picture.markup(), "loss, nats per token"));
  CHECK(picture.text ==
        "Loss (loss, nats per token over step); train: 3 at 2; validation: 3.2 at 2");
}

TEST_CASE("show: a heat map shows every pair that exchanged bytes") {
  ts::LinkHeatMap map;
  map.bytes = {{0, 4096, 0}, {0, 0, 4096}, {8192, 0, 0}};
  const ts::Svg picture = ts::svg(map);
  CHECK(well_formed(picture.markup()));
  CHECK(occurrences(picture.markup(), "ts-empty\"") == 6);
  CHECK(occurrences(picture.markup(), ">4.1 kB<") == 2);
  CHECK(contains(picture.text, "3 devices, 16.4 kB in all, at most 8.19 kB"));
  map.bytes.assign(2, {0, 0});
  CHECK(contains(ts::svg(map).markup(), "nothing was sent"));
}

// Where the texts of a size stand, by their anchor: the ends of each on its line, and which line.
struct Words {
  double left = 0, right = 0, y = 0;
};
ts::List<Words> words_of(const ts::Svg& picture, double size, const std::string& anchor) {
  ts::List<Words> out;
  const std::string mark =
      " font-size=\"" + ts::detail::coordinate(size) + "\" text-anchor=\"" + anchor + "\"";
  for (std::size_t at = picture.body.find(mark); at != std::string::npos;
       at = picture.body.find(mark, at + 1)) {
    const std::size_t begin = picture.body.rfind("<text x=\"", at) + 9;
    const std::size_t from = picture.body.find('>', at) + 1;
    const std::string text = picture.body.substr(from, picture.body.find('<', from) - from);
    const double x = std::stod(picture.body.substr(begin));
    const double wide = ts::detail::drawn_width(text, size);
    const double y = std::stod(picture.body.substr(picture.body.find("y=\"", begin) + 3));
    const double left = x - (anchor == "end" ? wide : anchor == "middle" ? wide / 2 : 0);
    out.push_back({left, left + wide, y});
  }
  return out;
}

void check_apart(const ts::Svg& picture, double size, const std::string& anchor) {
  const ts::List<Words> all = words_of(picture, size, anchor);
  CHECK_FALSE(all.empty());
  for (std::size_t i = 0; i < all.size(); ++i) {
    CHECK(all[i].left >= 0);
    CHECK(all[i].right <= picture.width);
    const bool beside = i > 0 && !(all[i].y > all[i - 1].y) && !(all[i].y < all[i - 1].y);
    CHECK((!beside || all[i].left >= all[i - 1].right));
  }
}

TEST_CASE("show: a heat map of many devices has a cell for each pair that exchanged bytes alone") {
  ts::LinkHeatMap map;
  map.bytes = ts::List<std::vector<double>>(500);
  for (std::size_t i = 0; i < map.bytes.size(); ++i) {
    map.bytes[i] = std::vector<double>(500);
    map.bytes[i][(i + 1) % 500] = 1e6;  // a ring
  }
  const ts::Svg picture = ts::svg(map);
  CHECK(occurrences(picture.body, "fill=\"rgb(254,232,56)\"") == 500);
  CHECK(occurrences(picture.body, "ts-empty") == 1);
  CHECK(picture.body.size() < 200000);  // not 250,000 cells
  CHECK(picture.text ==
        "Bytes over each link: 500 devices, 500 MB in all, at most 1 MB from one to another");
}

TEST_CASE("show: names of many devices stand apart, long ones keep their ends") {
  ts::LinkHeatMap map;
  map.bytes.assign(64, std::vector<double>(64, 1.0));
  for (int i = 0; i < 64; ++i) {
    map.names.push_back("dev" + std::to_string(i));
  }
  check_apart(ts::svg(map), 12, "middle");
  map.bytes.assign(256, std::vector<double>(256, 1.0));
  map.names.clear();
  check_apart(ts::svg(map), 12, "middle");
  map.bytes.assign(2, std::vector<double>(2, 1.0));
  map.names = {"device of rack 1", "device of rack 2"};
  CHECK(contains(ts::svg(map).body, ">device of rack 2<"));
  CHECK(words_of(ts::svg(map), 12, "end")[0].left > 30);
}

TEST_CASE("show: a picture of shards has room for its title and for what its blocks are") {
  const ts::Mesh mesh(ts::machine("tpu-v5e", {8, 8}), {{"x", 8}, {"y", 8}});
  for (const char* const text :
       {"LongNameOfADimension_x, AnotherName_y", "I_{x,y}, J", "I, J_{x,y}", "I_x, J_y"}) {
    CAPTURE(text);
    const ts::Svg picture = ts::svg(mesh.shard(ts::Shape{1024000000, 4096}, text).picture());
    CHECK(words_of(picture, 16, "start")[0].right <= picture.width);
    check_apart(picture, 11, "middle");
    check_apart(picture, 11, "end");
  }
  const ts::Mesh small(ts::machine("tpu-v5e", {4, 4}), {{"x", 4}, {"y", 4}});
  const ts::Svg sums = ts::svg(ts::sum(small.shard({32, 16, 4}, "I, J, K_x"), "K").picture());
  const std::size_t label = sums.body.find(">0+4+8+12, ");
  REQUIRE(label != std::string::npos);
  double wide = 0;  // in DejaVu Sans, whose figures and signs are among the widest
  for (const char c : sums.body.substr(label + 1, sums.body.find('<', label) - label - 1)) {
    wide += c == '+' ? 0.838 : c == ',' || c == ' ' ? 0.318 : 0.636;
  }
  const double size = std::stod(sums.body.substr(sums.body.rfind("font-size=\"", label) + 11));
  double drawn = 0;  // the stripes
  for (std::size_t at = sums.body.find("fill=\"rgb("); at < label;
       at = sums.body.find("fill=\"rgb(", at + 1)) {
    drawn += std::stod(sums.body.substr(sums.body.rfind("width=\"", at) + 7));
  }
  CHECK(wide * size <= drawn);
  const ts::Svg rows = ts::svg(mesh.shard(ts::Shape{640, 64}, "I_{x,y}, J").picture());
  CHECK(words_of(rows, 11, "middle").size() == 65);  // J, and the devices below each other
  CHECK(words_of(rows, 11, "middle")[2].y - words_of(rows, 11, "middle")[1].y >= 11);
}

#if !defined(TINYSCALE_NO_THREADS)
// Two groups of four along a closed dimension, compute between a start and its wait.
ts::MeshRun small_run() {
  ts::Machine machine = ts::machine("tpu-v5e", {4, 2});
  machine.links[0].kind = ts::AxisKind::ring;
  const ts::Mesh mesh(machine, {{"x", 4}, {"y", 2}});
  return mesh.run([](ts::Device& d) {
    const ts::Tensor mine = ts::ones({64, 64});
    ts::Pending all = d.start_all_gather(mine, "x", 0, {ts::Algorithm::ring});
    ts::matmul(mine, mine);
    all.wait();
    d.all_reduce(mine, "y", ts::Reduce::sum, {ts::Algorithm::ring});
  });
}

TEST_CASE("show: a mesh run's timeline has every span, and each step of a call apart") {
  const ts::MeshRun run = small_run();
  REQUIRE(run.timeline.spans.size() == 24);  // of 8 devices: compute and two waits
  double compute = 0, waiting = 0;
  for (const ts::TimedSpan& span : run.timeline.spans) {
    if (span.device == 5) {
      (span.call < 0 ? compute : waiting) += span.finish - span.start;
    }
  }
  CHECK(compute == doctest::Approx(run.timeline.devices[5].compute));
  CHECK(waiting == doctest::Approx(run.timeline.devices[5].waiting));
  const ts::Svg picture = ts::device_timeline(run);
  const std::string markup = picture.markup();
  CHECK(well_formed(markup));
  CHECK(contains(markup, ">all_gather over x, show_test.cpp:"));
  CHECK(contains(markup, ">all_reduce over y, show_test.cpp:"));
  CHECK(contains(markup, ">simulated time, us<"));
  CHECK(occurrences(markup, "class=\"tf6\"") == 1 + 8);  // and the legend
  CHECK(occurrences(markup, "class=\"ts-empty\"") == 16);
  CHECK(occurrences(markup, "class=\"tf0\"") == 1 + 8 * 3);  // steps of the all_gather
  CHECK(occurrences(markup, "class=\"tf1\"") == 1 + 8 * 2);
  CHECK(contains(picture.text, "tpu-v5e 4x2: 8 devices, "));
  const ts::Mesh row(ts::machine("tpu-v5e", {17}), {{"x", 17}});
  CHECK(contains(ts::device_timeline(row.run([](ts::Device& d) { d.barrier(); })).body,
                 ">Devices on tpu-v5e 17 (16 of 17 devices)<"));

  const std::string trace = ts::trace_json(run);
  CHECK(occurrences(trace, "\"ph\": \"M\"") == 8 * 4);  // process, compute, axes x and y
  CHECK(occurrences(trace, "\"name\": \"wait for all_gather over x, show_test.cpp:") == 8);
  CHECK(occurrences(trace, "\"name\": \"wait for all_reduce over y, show_test.cpp:") == 8);
  CHECK(occurrences(trace, "\"args\": {\"name\": \"axis y\"}") == 8);
  CHECK(occurrences(trace, "\"name\": \"all_gather over x, show_test.cpp:") == 8);
  CHECK(occurrences(trace, "{") == occurrences(trace, "}"));
  CHECK(trace.substr(0, 2) + trace.substr(trace.size() - 2) == "[{]\n");
  CHECK(
      error_of([&] { ts::save_trace(run, "no/such/folder/a.json"); }) ==
      "save_trace: cannot write \"no/such/folder/a.json\": No such file or directory; give a path "
      "in a folder that exists and can be written");
}

// Two stages, two microbatches, an optimizer; the stages send along their axis.
ts::MeshRun two_stages() {
  const ts::Mesh mesh(ts::machine("tpu-v5e", {2, 2}), {{"pipeline", 2}, {"data", 2}});
  return mesh.run([](ts::Device& d) {
    const ts::Tensor x = ts::ones({128, 128});
    const bool first = d.index("pipeline") == 0;
    ts::Tensor y;
    for (int m = 0; m < 2; ++m) {
      d.task(m);
      y = first ? ts::matmul(x, x) : ts::matmul(d.recv(d.rank() - 2), x);
      if (first) {
        d.send(y, d.rank() + 2);
      }
    }
    d.task(2);
    y = x + d.all_reduce(y, "data");
  });
}

ts::TaskNames stage_names() {
  ts::TaskNames names;
  names.names = {"F0", "F1", "opt"};
  names.classes = {"forward", "forward", "optimizer"};
  names.waits = {{"pipeline", "bubble"}};
  return names;
}

TEST_CASE("show: a Gantt chart has the tasks' names, a lane for each axis, and the legend") {
  const ts::MeshRun run = two_stages();
  const ts::Svg picture = ts::device_timeline(run, stage_names());
  const std::string markup = picture.markup();
  CHECK(well_formed(markup));
  CHECK(contains(markup, ">Tasks of each device on tpu-v5e 2x2<"));
  CHECK(contains(markup, ">simulated time, us<"));
  for (const char* const text : {">F0<", ">F1<", ">pipeline<", ">data<"}) {
    CHECK(occurrences(markup, text) == 4);
  }
  for (const char* const text : {">forward<", ">optimizer<", ">bubble<", ">exposed data<"}) {
    CHECK(occurrences(markup, text) == 1);
  }
  CHECK(occurrences(markup, "fill=\"#0072b2\"/>") == 1 + 4 * 2);  // the legend, and F0 and F1
  CHECK(occurrences(markup, "fill=\"#d55e00\"/>") == 1 + 4);
  CHECK(occurrences(markup, "fill=\"#0072b2\" fill-opacity=\"0.42\"/>") == 1 + 4);  // data
  CHECK(contains(picture.text, "tpu-v5e 2x2: 4 devices, "));
  const std::string two = ts::device_timeline(run, stage_names(), {0, 3}).markup();
  CHECK(contains(two, ">Tasks of each device on tpu-v5e 2x2 (2 of 4 devices)<"));
  CHECK(contains(two, ">device 3<"));
  CHECK_FALSE(contains(two, ">device 1<"));
  CHECK(error_of([&] { ts::device_timeline(run, stage_names(), {4}); }) ==
        "device_timeline: rank 4 of 4 devices; ranks are 0 to 3");
}

TEST_CASE("show: a waterfall goes from one share to the next, and each device has a bar") {
  using Kind = ts::TimeShare::Kind;
  const ts::Svg small = ts::waterfall({{"forward", 0.002, Kind::compute},
                                       {"exposed <data>", 0.001, Kind::wait},
                                       {"bubble", 0.001, Kind::wait}},
                                      "Device 0");
  CHECK(well_formed(small.markup()));
  CHECK(small.text ==
        "Device 0: forward 2 ms, 50.0 %; exposed <data> 1 ms, 25.0 %; bubble 1 ms, "
        "25.0 %; 4 ms in all");
  CHECK(contains(small.markup(), ">exposed &lt;data&gt;<"));
  CHECK(contains(small.markup(), ">= total<"));
  CHECK(occurrences(small.body, "<rect") == 1 + 4);
  CHECK(well_formed(ts::waterfall({}, "nothing").markup()));
  CHECK(error_of([] {
          ts::waterfall({{"forward", -1, ts::TimeShare::Kind::compute}}, "");
        }) == "waterfall: forward has -1 s; 0 or more is right, as time_breakdown gives");
  CHECK(error_of([&] {
          ts::waterfall({{"all", std::numeric_limits<double>::infinity()}}, "a step");
        }) == "waterfall: all has inf s; 0 or more is right, as time_breakdown gives");

  const ts::MeshRun run = two_stages();
  const ts::Svg bars = ts::time_bars(run, stage_names());
  CHECK(well_formed(bars.markup()));
  CHECK(contains(bars.markup(), ">device 3<"));
  CHECK(contains(bars.markup(), ">exposed data<"));
  CHECK(contains(bars.text, ", forward "));
  CHECK(occurrences(bars.body, "fill=\"#0072b2\"/>") == 1 + 4);
  CHECK(error_of([&] { ts::time_bars(run, stage_names(), {-1}); }) ==
        "time_bars: rank -1 of 4 devices; ranks are 0 to 3");
}

TEST_CASE("show: memory over time has an area for each kind that was used") {
  const ts::MeshRun run = two_stages();
  const ts::Svg picture = ts::memory_timeline(run);
  const std::string markup = picture.markup();
  CHECK(well_formed(markup));
  CHECK(occurrences(markup, "<polygon") == 4);  // activations only
  CHECK(occurrences(markup, ">activation<") == 1);
  CHECK(occurrences(markup, "<polyline") == 4);
  CHECK(occurrences(markup, ">kB<") == 4);
  CHECK(contains(markup, ">device 3, at most "));
  CHECK(contains(picture.text, "memory on tpu-v5e 2x2: device 0 at most "));
  const ts::Mesh eight(ts::machine("tpu-v5e", {8}), {{"x", 8}});
  const ts::Svg low = ts::memory_timeline(eight.run([](ts::Device& d) {
    const ts::Tensor held = ts::zeros({1600000});
    d.task(0);
  }));  // low panels: every second tick has room for its number
  for (const char* number : {">0<", ">2<", ">4<", ">6<"}) {
    CHECK(occurrences(low.body, number) >= 8);
  }
  CHECK(occurrences(low.body, ">5<") == 0);
  CHECK(error_of([&] {
          ts::memory_timeline(run, {0, 9});
        }) == "memory_timeline: rank 9 of 4 devices; ranks are 0 to 3");
  CHECK(error_of([] { ts::memory_timeline(small_run()); }) ==
        "memory_timeline: device 0 took no samples; device.task(tag) in its program takes one");
}

TEST_CASE("show: a trace has tasks by name, tracks by axis, and the memory by kind") {
  const ts::MeshRun run = two_stages();
  const std::string trace = ts::trace_json(run, stage_names());
  CHECK(occurrences(trace, "\"name\": \"F0\", \"cat\": \"forward\"") == 4);
  CHECK(occurrences(trace, "\"name\": \"opt\", \"cat\": \"optimizer\"") == 4);
  CHECK(occurrences(trace, "\"cat\": \"bubble\"") >= 2);
  CHECK(occurrences(trace, "\"args\": {\"name\": \"axis pipeline\"}") == 4);
  CHECK(occurrences(trace, "\"args\": {\"name\": \"axis data\"}") == 4);
  CHECK(occurrences(trace, "\"ph\": \"C\", \"name\": \"memory, bytes\"") == 4 * 4);
  CHECK(occurrences(trace, "\"activation\": ") == 4 * 4);
  CHECK(occurrences(trace, "{") == occurrences(trace, "}"));
  CHECK(trace.substr(0, 2) + trace.substr(trace.size() - 3) == "[{}]\n");
}

TEST_CASE("show: the last step of a training on a mesh is drawn in one call") {
  const std::string none =
      ": the report is of a training on one device by itself, of which no simulated time is known; "
      "options.machine and options.layout of several devices are right";
  const ts::TrainReport alone;
  CHECK(error_of([&] { ts::device_timeline(alone); }) == "device_timeline" + none);
  CHECK(error_of([&] { ts::waterfall(alone); }) == "waterfall" + none);
  CHECK(error_of([&] { ts::memory_timeline(alone); }) == "memory_timeline" + none);
  CHECK(error_of([&] { ts::save_trace(alone, "none.json"); }) == "save_trace" + none);

  ts::TrainReport report;
  report.devices = 4;
  report.last_step.reset(new ts::MeshRun(two_stages()));
  report.step.tasks = stage_names();
  report.step.time = ts::time_breakdown(*report.last_step, report.step.tasks);
  CHECK(ts::device_timeline(report, {0, 2}).markup() ==
        ts::device_timeline(*report.last_step, stage_names(), {0, 2}).markup());
  CHECK(contains(ts::waterfall(report).markup(), "A step on 4 devices: where the time went"));
  report.step.tasks.note = "F: forward";
  CHECK(contains(ts::device_timeline(report).markup(), ">F: forward<"));
  CHECK(ts::memory_timeline(report, {1}).markup() ==
        ts::memory_timeline(*report.last_step, {1}).markup());
  const std::string path = "show_test_trace.json";
  ts::save_trace(report, path);
  CHECK(read_file(path) == ts::trace_json(*report.last_step, stage_names()));
  std::remove(path.c_str());
}

TEST_CASE("show: a link map has both ways of each link, and letters for terminals") {
  const ts::MeshRun run = small_run();
  const ts::Svg picture = ts::link_map(run);
  CHECK(well_formed(picture.markup()));
  CHECK(occurrences(picture.markup(), "#4a525b") == 8);  // chips
  // Used: 3 links down each column and one stub at either end, the ring goes down only; and across.
  CHECK(occurrences(picture.markup(), "ts-empty\"") == 2 * 5);
  std::vector<std::string> lines = {""};
  for (const char c : picture.text) {
    if (c == '\n') {
      lines.push_back("");
    } else {
      lines.back() += c;
    }
  }
  REQUIRE(lines.size() == 9);
  for (std::size_t row = 0; row < 4; ++row) {
    CHECK(lines[1 + 2 * row].size() == 3);
    CHECK(lines[1 + 2 * row][0] == 'o');
    CHECK(lines[2 + 2 * row].size() == 3);  // the ring: a link below the last row as well
    CHECK(lines[2 + 2 * row][0] >= '0');
  }
  const ts::Mesh cube(ts::machine("tpu-v4", {4, 4, 4}), {{"x", 4}, {"y", 16}});
  const ts::MeshRun across = cube.run([](ts::Device& d) { d.permute(ts::ones({8}), "x", 1); });
  const std::string markup = ts::link_map(across).markup();  // all on links that lead out of panels
  CHECK(contains(markup, ">from chip 48<"));
  CHECK(occurrences(markup, "#4a525b") == 0);
  const ts::Mesh node(ts::machine("h100", {1, 8}), {{"x", 8}});
  const ts::MeshRun switched = node.run([](ts::Device& d) { d.barrier(); });
  CHECK(error_of([&] { ts::link_map(switched); }) ==
        "link_map: h100-sxm 1x8 has no dimension whose neighbours are joined; svg(run) shows the "
        "links of any machine");
}
#endif  // TINYSCALE_NO_THREADS

TEST_CASE("show: a schedule's table says what each device receives in each step") {
  ts::CollectiveSchedule pair;
  pair.name = "pair";
  pair.what = ts::Collective::all_reduce;
  pair.devices = 2;
  pair.chunks = 2;
  pair.transfers = {{0, 0, 1, 1, 1, ts::Action::reduce, 0},
                    {0, 1, 0, 0, 1, ts::Action::reduce, 0},
                    {1, 1, 0, 0, 2, ts::Action::copy, 0}};
  CHECK(ts::schedule_table(pair).text() ==
        "pair: chunk < sender, + is added\n"
        "stream  step      to 0    to 1\n"
        "------  ----  --------  ------\n"
        "     0     0    +0 < 1  +1 < 0\n"
        "     0     1  0..1 < 1\n");
}

TEST_CASE("show: an array's frames are its registers, its bars sum to one") {
  const ts::SystolicArray array(4, 4);
  const ts::Tensor x = ts::ones({6, 8}), w = ts::ones({8, 6});
  const ts::List<ts::Wavefront> frames = ts::wavefronts(array, x, w, 2, 5, 3);
  const ts::Svg strip = ts::svg(frames);
  CHECK(well_formed(strip.markup()));
  CHECK(strip.text == "4 x 4 array in 5 ticks from 2");
  CHECK(frames[4].tick == 14);
  CHECK(occurrences(strip.body, "<rect") == 1 + 5 * 16 + 6);  // paper, PEs, key
  std::int64_t useful = 0;
  for (const ts::Wavefront& frame : frames) {
    for (const ts::WavefrontCell& cell : frame.cells) {
      useful += cell.state == '#' ? 1 : 0;
    }
  }
  CHECK(occurrences(strip.body, ">x") == useful);  // a label each
  CHECK(contains(ts::svg(frames[0]).text, "in 1 ticks from 2"));
  CHECK(well_formed(ts::svg(ts::active_pes(array, x, w)).markup()));
  const ts::SystolicTiming t = array.timing(6, 8, 6);
  const ts::Svg bar = ts::svg(t);
  CHECK(well_formed(bar.markup()));
  CHECK(contains(bar.text, "Ledger of 1 runs"));
  CHECK(occurrences(bar.body, "<rect") == 1 + 6 + 6);
  CHECK(well_formed(ts::utilization_plot(array, 8, 8, 8).markup()));
  CHECK(error_of([] { ts::svg(ts::List<ts::Wavefront>()); }) ==
        "svg: no frames; give wavefronts(array, x, w, first, count)");
  CHECK(error_of([&] {
          ts::svg({frames[0], ts::wavefront(ts::SystolicArray(2, 2), x, w, 0)});
        }) == "svg: frames of 4 x 4 and 2 x 2 PEs; give frames of one array");
  CHECK(error_of([&] { ts::ledger_bars({t}, {}); }) ==
        "ledger_bars: 1 cases and 0 names; give a name for each of at least one case");
}

TEST_CASE("show: what is no character of XML is none in a picture") {
  ts::LossCurve curve;
  curve.title = "a<b&\"c\"\xEF\xBF\xBE\xEF\xBF\xBF\x01";
  CHECK(contains(ts::svg(curve).markup(), "a&lt;b&amp;&quot;c&quot;\xEF\xBF\xBD\xEF\xBF\xBD <"));
}

TEST_CASE("show: bad pictures are refused in one sentence") {
  ts::Plot plot;
  plot.series = {{"run", {1, 2}, {1}}};
  CHECK(error_of([&] { ts::svg(plot); }) ==
        "svg: series \"run\" has 2 x values and 1 y values; give one y for each x");
  plot.series.clear();
  plot.x = {"step", ts::Scale::linear, 5, 1};
  CHECK(error_of([&] { ts::svg(plot); }) ==
        "svg: axis \"step\" runs from 5 to 1; low must be below high");
  plot.x = {"step", ts::Scale::logarithmic, 0, 1};
  CHECK(error_of([&] { ts::svg(plot); }) ==
        "svg: axis \"step\" runs from 0 to 1; low must be below high, and above 0 on a "
        "logarithmic axis");
  plot.x = {"step", ts::Scale::linear, -1.5e308, 1.5e308};
  CHECK(error_of([&] { ts::svg(plot); }) ==
        "svg: axis \"step\" runs from -1.5e+308 to 1.5e+308; low must be below high, both within "
        "1e307 of 0");
  plot.x = {"step", ts::Scale::linear, 0, 1};
  plot.title = "loss";
  for (const double width : {0.0, 100.0, -720.0, 1e7}) {
    plot.width = width;
    CHECK(error_of([&] { ts::svg(plot); }) ==
          ts::detail::cat({"svg: plot \"loss\" of ", width,
                           " x 420 pixels has no room for its lines between the words; 720 x 420 "
                           "is the default, at most a million together are right"}));
  }
  plot.width = 720;
  plot.height = std::nan("");
  CHECK(error_of([&] { ts::svg(plot); }).find("svg: plot \"loss\" of 720 x nan pixels has") == 0);
  ts::RooflinePlot roofline;
  roofline.title = "mine";
  CHECK(error_of([&] { ts::svg(roofline); }) ==
        "svg: roofline \"mine\" has no peak or no memory level; give a peak above 0 and one roof "
        "or more");
  const double inf = std::numeric_limits<double>::infinity();
  roofline.peak_flops_per_second = inf;  // no limit is drawn
  roofline.roofs = {{"L1", 1}};
  CHECK(error_of([&] { ts::svg(roofline); }) ==
        "svg: roofline \"mine\" has no peak or no memory level; give a peak above 0 and one roof "
        "or more");
  roofline.peak_flops_per_second = 1;
  for (const double none : {0.0, -1.0, inf, std::nan("")}) {
    roofline.roofs = {{"L1", none}};
    CHECK(error_of([&] { ts::svg(roofline); }) ==
          "svg: roofline \"mine\": memory level \"L1\" has no bandwidth; give bytes per second "
          "above 0");
  }
  ts::LinkHeatMap map;
  map.bytes = {{0, 1}, {1}};
  CHECK(error_of([&] { ts::svg(map); }) ==
        "svg: link heat map: row 1 has 1 of 2 columns; give one for each device");
  map.bytes = {{0, -1}, {1, 0}};
  CHECK(error_of([&] { ts::svg(map); }) ==
        "svg: link heat map: row 0 holds a negative or not finite count of bytes; give 0 or more");
  map.bytes = {{0, 1}, {1, 0}};
  map.names = {"a"};
  CHECK(error_of([&] { ts::svg(map); }) ==
        "svg: link heat map: 1 names for 2 devices; give one for each device, or none");
}

TEST_CASE("show: a page is one file, escaped, without a script") {
  ts::HtmlPage page("A & B");
  page.text("one <two>\n\nthree");
  page.heading("Ops");
  ts::Table table;
  table.title = "ops";
  table.columns = {"op", "bytes"};
  table.add({"<matmul>", "4,096"});
  page.table(table);
  page.code("x < y");
  page.picture(ts::svg(laptop_like()));
  const std::string html = page.html();
  CHECK(contains(html, "<h1>A &amp; B</h1>"));
  CHECK(contains(html, "<p>one &lt;two&gt;</p>\n<p>three</p>"));
  CHECK(contains(html, "<td>&lt;matmul&gt;</td><td class=\"n\">4,096</td>"));
  CHECK(contains(html, "<pre>x &lt; y</pre>"));
  CHECK_FALSE(contains(html, "<script"));
  CHECK_FALSE(contains(html, "<link"));
  CHECK_FALSE(contains(html, " src="));
}

TEST_CASE("show: a page is saved whole, and a failed save leaves the old one") {
  const std::string path = "show_test_page.html";
  ts::HtmlPage page("first");
  page.save(path);
  CHECK(read_file(path) == page.html());
  ts::HtmlPage second("second");
  second.save(path);
  CHECK(read_file(path) == second.html());
  CHECK(read_file(path + ".part").empty());
  std::remove(path.c_str());
  CHECK(error_of([&] { page.save("no/such/folder/page.html"); }) ==
        "HtmlPage::save: cannot write \"no/such/folder/page.html\": No such file or directory; "
        "give a path in a folder that exists and can be written");
  CHECK(error_of([&] { ts::svg(laptop_like()).save("no/such/folder/a.svg"); }) ==
        "Svg::save: cannot write \"no/such/folder/a.svg\": No such file or directory; give a path "
        "in a folder that exists and can be written");
  for (const std::string name : {"a.png", "A.PNG"}) {
    CHECK(error_of([&] { ts::svg(laptop_like()).save(name); }) ==
          "Svg::save: \"" + name + "\" would hold SVG, which its name denies; .svg is right");
  }
#if !defined(_WIN32)
  CHECK(error_of([&] { page.save("."); }) ==
        "HtmlPage::save: \".\" is there and is no regular file (a folder, a device, a link to "
        "nothing); a new name or an old file is right");
#endif
}

TEST_CASE("show: base64 is that of RFC 4648") {
  const char* const plain[] = {"", "f", "fo", "foo", "foob", "fooba", "foobar"};
  const char* const coded[] = {"", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"};
  for (int i = 0; i < 7; ++i) {
    CHECK(ts::detail::base64(plain[i]) == coded[i]);
  }
  CHECK(ts::detail::base64("\xff\xfe\xfd") == "//79");
}

TEST_CASE("show: text on a terminal, a frame where the environment asks for it, or silence") {
  std::ostringstream out;
  ts::ShowOptions options;
  options.out = &out;
  ts::Table table;
  table.columns = {"op"};
  table.add({"add"});
  const ts::Svg picture = ts::svg(laptop_like());
  ts::show(picture, options);
  ts::show(table, options);
  ts::show(3.5, options);
  CHECK(out.str() == picture.text + "\n" + table.text() + "3.5\n");
#if !defined(_WIN32)
  out.str("");
  setenv("TINYSCALE_DISPLAY", "frame", 1);
  ts::show(picture, options);
  ts::show(table, options);
  unsetenv("TINYSCALE_DISPLAY");
  CHECK(out.str() == "\x02MIME image/svg+xml " + ts::detail::base64(picture.markup()) +
                         "\x03\n\x02MIME text/html " +
                         ts::detail::base64(ts::detail::html_table(table)) + "\x03\n");
#endif
  options.out = nullptr;
  options.path = "show_test_picture.svg";
  ts::show(picture, options);
  CHECK(read_file(options.path) == picture.markup());
  std::remove(options.path.c_str());
}

TEST_CASE("show: a notebook kernel finds the pictures by its own json type") {
  FakeJson drawn = mime_bundle_repr(ts::svg(laptop_like()));
  CHECK(contains(drawn["image/svg+xml"], "<svg"));
  CHECK(contains(drawn["text/plain"], "Roofline of"));
  ts::Table table;
  table.columns = {"op"};
  FakeJson set = mime_bundle_repr(table);
  CHECK(contains(set["text/html"], "<table>"));
}

TEST_CASE("pictures of all floats, of nothing, and of texts that are no UTF-8") {
  ts::Plot plot;
  plot.y.scale = ts::Scale::logarithmic;
  plot.series.push_back({"wide", {1, 2}, {1e-300, 1e300}, ts::Mark::line});
  ts::detail::Canvas canvas(plot.width, plot.height);
  const ts::detail::Frame frame = ts::detail::draw_plot(canvas, plot);
  CHECK(frame.py(1) == doctest::Approx((frame.top + frame.bottom) / 2));
  CHECK(ts::svg(plot).markup().find("<svg") != std::string::npos);
  plot.y.scale = ts::Scale::linear;  // 1e308 is left out, as infinity is
  plot.series = {{"", {0, 1, 2, 3}, {-1e307, 1e307, 1e308, -1e308}, ts::Mark::points}};
  CHECK(occurrences(ts::svg(plot).markup(), "<circle") == 2);
  CHECK(error_of([] {
          ts::svg(ts::StrategyRegimes());
        }).find("svg: the strategy regimes have no ") == 0);
  CHECK(ts::detail::xml_escape("a\xC3\xA9\xFF<\xE6\x97") ==
        "a\xC3\xA9\xEF\xBF\xBD&lt;\xEF\xBF\xBD\xEF\xBF\xBD");
  ts::Table table;
  table.columns = {"a", "b"};
  table.rows.push_back({"1"});
  const std::string error =
      "Table: a row of 1 cells for 2 columns; a row must have a cell for each column";
  CHECK(error_of([&] { table.json(); }) == error);
  CHECK(error_of([&] { table.text(); }) == error);
  CHECK(error_of([&] { ts::HtmlPage("page").table(table); }) == error);
}

TEST_CASE("show: no page is made of what is only printed") {
  ts::ShowOptions options;
  options.path = "plan.html";
  CHECK(error_of([&] { ts::show(ts::ones({2}), options); }) ==
        "show: path is \"plan.html\", but only pictures and tables are written to a page; "
        "show(report.table(), options) is right, or print to a file");
}
