// What does a training step on N simulated devices cost the host, beside one device's step?
// Figures are processor time of the whole program, all threads together, of a step on the same
// global batch: nano, width 256, tiny Shakespeare. One device runs on one thread with the other
// processors at rest, and so does each of many here: one at a time, so that a ratio is the devices'
// own time and not what two threads take from each other in one core. The column "at once" has that
// too. One device and many take turns; a ratio is the median of those within a round. Where the
// difference goes:
//   work      ops that the strategy does on several devices (or in parts that add up to less), each
//             kind at one device's speed: FLOPs of all devices over one device's (bytes, of ops
//             without FLOPs)
//   shapes    the same ops at their own speed, on smaller or other shapes, one device at a time
//   copies    bytes that collectives and sends deliver, at the measured speed of a sum of vectors
//   threads   a run in which the devices do nothing
//   replay    the simulated clock over the log of the step
//   rest      what is left: waiting, numbers that the device before left in the cache, the log
// outside: all but work and shapes, as a share of one device's step. at once: the ratio when every
// device that has work may run, which is how a mesh runs unless told otherwise.
//   make bench ONLY=layouts ARGS="--rounds=5 --only=tensor --batch=32"
#include <cstdlib>
#include <ctime>

#include "bench.hpp"
#include "options.hpp"

namespace {

namespace ts = tinyscale;

double wall() { return ts::detail::seconds_now(); }

// Processor seconds of the program, all its threads.
double used() {
#if defined(CLOCK_PROCESS_CPUTIME_ID)
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
#else
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
#endif
}

struct Options {
  int rounds = 5, batch = 16;
  std::string only, directory;  // where the program stands
};

enum class Kind { nano, deep, mixture };  // 4 layers, 8 layers, 4 layers of 8 experts

struct Row {
  std::string name;
  ts::Layout layout;
  Kind kind = Kind::nano;
  bool whole = false;  // the whole ratio has the target: data with ZeRO-1, pipeline
};

ts::ModelConfig config_of(Kind kind) {
  ts::ModelConfig c = ts::config(kind == Kind::mixture ? "nano-moe" : "nano");
  c.layers = kind == Kind::deep ? 8 : 4;
  c.width = 256;
  c.heads = c.kv_heads = 8;
  c.head_size = 32;
  c.hidden = kind == Kind::mixture ? 0 : 1024;
  c.expert_hidden = kind == Kind::mixture ? 344 : 0;
  c.context = 128;
  return c;
}

std::vector<Row> rows() {
  std::vector<Row> all;
  ts::Layout l;
  for (const int n : {2, 4, 8}) {
    l = ts::Layout();
    l.data = n;
    all.push_back({"data", l});
  }
  for (const int n : {2, 4, 8}) {
    l = ts::Layout();
    l.data = n;
    l.zero = ts::Zero::optimizer;
    all.push_back({"data, ZeRO-1", l, Kind::nano, true});
  }
  for (const int n : {2, 4, 8}) {
    l = ts::Layout();
    l.pipeline = n;
    l.microbatches = n == 2 ? 4 : 8;
    all.push_back({ts::detail::cat({"pipeline, ", l.microbatches, " microbatches"}), l,
                   n == 8 ? Kind::deep : Kind::nano, true});
  }
  for (const int n : {4, 8}) {
    l = ts::Layout();
    l.data = n;
    l.zero = ts::Zero::parameters;
    all.push_back({"FSDP", l});
  }
  for (const int n : {2, 4, 8}) {
    l = ts::Layout();
    l.tensor = n;
    all.push_back({"tensor", l});
    l.sequence_parallel = true;
    all.push_back({"tensor, sequence", l});
  }
  for (const int n : {2, 4}) {
    l = ts::Layout();
    l.context = n;
    all.push_back({"context, ring", l});
  }
  l.context_parallel = ts::ContextParallel::ulysses;
  all.push_back({"context, ulysses", l});
  for (const int n : {2, 4}) {
    l = ts::Layout();
    l.data = l.expert = n;
    all.push_back({"expert", l, Kind::mixture});
  }
  l = ts::Layout();
  l.data = l.tensor = l.pipeline = 2;
  l.microbatches = 4;
  l.zero = ts::Zero::optimizer;
  l.sequence_parallel = true;
  all.push_back({"data 2, tensor 2, pipeline 2", l});
  l = ts::Layout();
  l.data = l.context = l.tensor = 2;
  l.zero = ts::Zero::parameters;
  all.push_back({"FSDP 2, context 2, tensor 2", l});
  return all;
}

// ---- What ops cost, by kind

struct OpTime {
  std::string name;
  double work = 0, seconds = 0;  // work: FLOPs, or bytes where there are none
};

struct OpTimes {
  std::vector<OpTime> kinds;
  double seconds = 0, whole = 0;  // of all ops, of the step

  OpTime& of(const std::string& name) {
    for (OpTime& kind : kinds) {
      if (kind.name == name) {
        return kind;
      }
    }
    kinds.push_back({name, 0, 0});
    return kinds.back();
  }
};

// A fused matmul and loss and the two one after another are one kind: their matmul is most of it.
std::string kind_of(const ts::OpRecord& op) {
  const bool loss = op.name.find("cross_entropy") != std::string::npos;
  return loss || op.matmul_flops > 0 ? (op.name.find("attention") == 0 ? "attention" : "matmul")
                                     : op.name;
}

// One step after another of its kind: its processor seconds and its ops', of the same step. What
// other programs took of the processor meanwhile is left out.
OpTimes op_times(const std::function<void()>& step) {
  step();
  OpTimes times;
  const ts::Profile profile;
  const double start = used(), began = wall();
  step();
  times.whole = used() - start;
  const double share = std::min(1.0, times.whole / (wall() - began));
  for (const ts::OpRecord& op : profile.records()) {
    OpTime& kind = times.of(kind_of(op));
    kind.work += op.flops() > 0 ? op.flops() : op.bytes();
    kind.seconds += op.seconds * share;
    times.seconds += op.seconds * share;
  }
  return times;
}

// Seconds that the ops of all devices would take at one device's speed.
double at_speed_of(OpTimes one, const OpTimes& all) {
  double seconds = 0;
  for (const OpTime& kind : all.kinds) {
    const OpTime& known = one.of(kind.name);
    seconds += known.work > 0 ? kind.work * known.seconds / known.work : kind.seconds;
  }
  return seconds;
}

// Processor seconds for each byte that a sum of two vectors writes.
double seconds_of_byte() {
  const std::int64_t floats = 1 << 22;
  const ts::detail::SerialScope serial;
  ts::Tensor a = ts::full({floats}, 1.0f);
  const ts::Tensor b = ts::full({floats}, 2.0f);
  std::vector<double> seconds;
  for (int i = 0; i < 7; ++i) {
    const double start = used();
    ts::kernels::add(floats, a.data(), b.data(), a.data());
    seconds.push_back(used() - start);
  }
  return bench::median(seconds) / static_cast<double>(4 * floats);
}

double delivered(const ts::MeshRun& run) {
  double bytes = 0;
  for (int rank = 0; rank < run.devices(); ++rank) {
    bytes += run.bytes_sent(rank);
  }
  return bytes;
}

double median_of(int times, const std::function<void()>& work) {
  std::vector<double> seconds;
  for (int i = 0; i < times; ++i) {
    const double start = used();
    work();
    seconds.push_back(used() - start);
  }
  return bench::median(seconds);
}

// ---- The table

struct Costs {
  double one = 0, all = 0, plan = 0;           // seconds
  double ratio = 0, at_once = 0;               // medians of rounds
  double work = 0, shapes = 0, outside = 0;    // shares of one device's step: the same
  double copies = 0, threads = 0, replay = 0;  // shares, measured apart

  double rest() const { return outside - copies - threads - replay; }
};

Costs measure(const Row& row, const ts::Text& text, const Options& options) {
  ts::TrainOptions one, many;
  one.steps = 1000;
  one.batch = options.batch;
  one.eval_every = 0;
  one.out = nullptr;
  many = one;
  one.experts.groups = row.layout.batch_devices();  // the same sum of tokens an expert
  many.layout = row.layout;
  many.machine = ts::machine("tpu-v5e", {row.layout.devices()});
  const ts::ModelConfig config = config_of(row.kind);
  ts::Transformer alone(config, 1), parted(config, 1);
  ts::detail::Trainer single(alone, text.train(), one), trainer(parted, text.train(), many);
  std::int64_t step = 0;
  const auto one_step = [&] {
    const ts::detail::SerialScope serial;
    single.step(step);
  };
  const auto mesh_step = [&] { trainer.step(step); };
  Costs costs;
  std::vector<double> ones, alls, ratios, works, shapes, outside, at_once;
  // The first round is not counted: a step asks the system for nothing when it is not the first.
  for (int round = 0; round <= options.rounds; ++round) {
    const OpTimes by_one = op_times(one_step);
    trainer.on().mesh().runnable = 1;
    const OpTimes by_all = op_times(mesh_step);
    trainer.on().mesh().runnable = 0;
    const double start = used();
    mesh_step();
    const double end = used();
    if (round > 0) {
      const double same_speed = at_speed_of(by_one, by_all);
      ones.push_back(by_one.whole);
      alls.push_back(by_all.whole);
      ratios.push_back(by_all.whole / by_one.whole);
      works.push_back((same_speed - by_one.seconds) / by_one.whole);
      shapes.push_back((by_all.seconds - same_speed) / by_one.whole);
      outside.push_back(((by_all.whole - by_all.seconds) - (by_one.whole - by_one.seconds)) /
                        by_one.whole);
      at_once.push_back((end - start) / by_one.whole);
    }
  }
  costs.one = bench::median(ones);
  costs.all = bench::median(alls);
  costs.ratio = bench::median(ratios);
  costs.work = bench::median(works);
  costs.shapes = bench::median(shapes);
  costs.outside = bench::median(outside);
  costs.at_once = bench::median(at_once);
  const ts::MeshRun& run = *trainer.on().last_run();
  costs.copies = delivered(run) * seconds_of_byte() / costs.one;
  costs.threads = median_of(7, [&] { trainer.on().mesh().run([](ts::Device&) {}); }) / costs.one;
  costs.replay = median_of(3, [&] { run.with(ts::Faults()); }) / costs.one;
  const std::int64_t last = row.layout.devices() - 1;
  costs.plan = median_of(7,
                         [&] {
                           for (int i = 0; i < 20; ++i) {
                             ts::plan_step(parted, row.layout, many, last);
                           }
                         }) /
               20;
  return costs;
}

Options read_options(int count, char** words) {
  Options options;
  options.directory = words[0];
  const std::size_t slash = options.directory.rfind('/');
  options.directory = slash == std::string::npos ? "." : options.directory.substr(0, slash);
  bench::read_options(
      count, words,
      {bench::whole("--rounds=", 1, &options.rounds), bench::whole("--batch=", 8, &options.batch),
       bench::text("--only=", &options.only)});
  if (options.batch % 8 != 0) {
    bench::refuse("--batch=" + std::to_string(options.batch) + ": a multiple of 8 is right");
  }
  std::vector<std::string> names;
  for (const Row& row : rows()) {
    names.push_back(row.name);
  }
  bench::must_choose("--only=", options.only, names);
  return options;
}

// Tiny Shakespeare, else this project's header.
ts::Text text_of(const Options& options) {
  const char* const shared = std::getenv("TINYSCALE_SHARED");
  const std::string root = options.directory + "/../..";  // of build/bench
  const std::string folder = shared != nullptr ? shared : root + "/../shared";
  try {
    return ts::read_text(folder + "/data/text/tinyshakespeare.txt");
  } catch (const ts::Error& error) {
    bench::skip("tiny Shakespeare", error.what());
    return ts::read_text(root + "/tinyscale.hpp");
  }
}

std::string percent(double share) { return ts::format_fixed(100 * share, 1); }

}  // namespace

int main(int count, char** words) {
  const Options options = read_options(count, words);
  bench::print_machine("layouts: processor time of a training step, all devices together");
  const ts::Text text = text_of(options);
  ts::Table table;
  table.title = ts::detail::cat({"nano of width 256, ", options.batch, " sequences of 128 of ",
                                 text.name, "; shares in % of one device's step"});
  table.columns = {"layout", "devices", "one device", "all",    "ratio", "work",
                   "shapes", "copies",  "threads",    "replay", "rest",  "outside",
                   "target", "",        "at once",    "plan"};
  for (const Row& row : rows()) {
    if (row.name.find(options.only) == std::string::npos) {
      continue;
    }
    const Costs c = measure(row, text, options);
    const bool met = row.whole ? c.ratio <= 1.15 : c.outside <= 0.15;
    table.add({row.name, std::to_string(row.layout.devices()), ts::format_seconds(c.one),
               ts::format_seconds(c.all), ts::format_fixed(c.ratio, 2), percent(c.work),
               percent(c.shapes), percent(c.copies), percent(c.threads), percent(c.replay),
               percent(c.rest()), percent(c.outside), row.whole ? "ratio 1.15" : "outside 15",
               met ? "met" : "missed", ts::format_fixed(c.at_once, 2), ts::format_seconds(c.plan)});
    std::fflush(stdout);
  }
  std::printf("%s\n", table.text().c_str());
  std::printf(
      "work: ops done on several devices, at one device's speed; shapes: these ops' own speed on "
      "smaller\nshapes; copies: bytes delivered, at the speed of a sum of vectors; threads: a run "
      "that does nothing;\nreplay: the simulated clock; rest: waiting, cold caches, the log; "
      "outside: "
      "all but the first two;\nratio: with one device at a time; at once: the ratio when all may "
      "run, two threads to a core;\nplan: plan_step, the closed form of one device's part\n");
  return 0;
}
