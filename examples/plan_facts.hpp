#pragma once
// plan mfu, plan chip, plan model, plan claims, plan collective: what is known, claimed and sent.
#include "claims/claims.hpp"
#include "plan_train.hpp"

namespace plan_program {

// A rate with the digits that were said: "4.10M" is 4.10e6. A percentage is one of --printed-mfu
// and
// --printed-hfu alone.
inline ts::Printed printed_of(const std::string& flag, const std::string& text) {
  if (flag == "--printed-mfu" || flag == "--printed-hfu") {
    return ts::Printed(text);
  }
  number_of(flag, text, 0, 1e30);  // throws what is no number
  const std::size_t suffix = text.find_first_of("kKMBT");
  const char* const powers[] = {"e3", "e3", "e6", "e9", "e12"};
  return ts::Printed(suffix == std::string::npos
                         ? text
                         : text.substr(0, suffix) +
                               powers[std::string("kKMBT").find(text[suffix])]);
}

inline void mfu(const Strings& args, std::ostream& out) {
  const Options options(args,
                        "--chip --chips --slice --format --context --recompute --tokens-per-second "
                        "--tokens-per-second-per-chip --step --batch --days --chip-hours --tokens "
                        "--printed-mfu --printed-hfu --printed-tflops",
                        "--json --why");
  ts::MfuClaim claim;
  claim.model = model_of(options.only_word("model"));
  claim.chip = ts::chip(options.needs("--chip", "h100").text("--chip"));
  claim.chips = options.number("--chips", 0, 1, 1e9);
  claim.slice = options.text("--slice");
  claim.format = format_of(options.text("--format", "bf16"));
  claim.context = options.number("--context", 0, 1, 1e9);
  claim.recompute = static_cast<ts::Recompute>(
      choice_of("--recompute", options.text("--recompute", "none"), {"none", "selective", "full"}));
  claim.batch_tokens = options.number("--batch", 0);
  claim.tokens = options.number("--tokens", 0);
  const struct {
    const char* flag;
    ts::Printed ts::MfuClaim::*printed;
  } rates[] = {{"--tokens-per-second", &ts::MfuClaim::tokens_per_second},
               {"--tokens-per-second-per-chip", &ts::MfuClaim::tokens_per_second_per_chip},
               {"--step", &ts::MfuClaim::step_seconds},
               {"--days", &ts::MfuClaim::days},
               {"--chip-hours", &ts::MfuClaim::chip_hours},
               {"--printed-mfu", &ts::MfuClaim::mfu},
               {"--printed-hfu", &ts::MfuClaim::hfu},
               {"--printed-tflops", &ts::MfuClaim::tflops_per_chip}};
  for (const auto& rate : rates) {
    if (options.has(rate.flag)) {
      claim.*rate.printed = printed_of(rate.flag, options.text(rate.flag));
    }
  }
  const ts::MfuDecoding decoding = ts::decode_mfu(claim);
  out << (options.has("--json") ? decoding.json() : decoding.text());
  if (options.has("--why") && !options.has("--json")) {
    out << "\n" << decoding.explain();
  }
}

// FLOPs for a byte of memory, and of each other thing that feeds the units, at which math is as
// long.
inline ts::Table knees(const ts::Chip& chip) {
  ts::Table table;
  table.title = "FLOP for a byte at the knee of the roofline";
  table.columns = {"format", "peak"};
  struct Roof {
    std::string name;
    double rate;
  };
  const std::vector<Roof> roofs = {{"on-chip memory", chip.sram_bandwidth},
                                   {"L2", chip.l2_bandwidth},
                                   {"memory", chip.memory_bandwidth},
                                   {"all links one way", chip.links * chip.link_bandwidth},
                                   {"network", chip.dcn_bandwidth}};
  for (const Roof& roof : roofs) {
    if (roof.rate > 0) {
      table.columns.push_back(roof.name);
    }
  }
  for (const ts::DType format : {ts::DType::bf16, ts::DType::int8, ts::DType::fp8_e4m3}) {
    const double peak = ts::detail::matmul_rate(chip, format);
    if (peak > 0) {
      Strings row = {ts::name_of(format), ts::format_si(peak, "FLOP/s")};
      for (const Roof& roof : roofs) {
        if (roof.rate > 0) {
          row.push_back(ts::detail::printed('g', 4, peak / roof.rate));
        }
      }
      table.add(row);
    }
  }
  return table;
}

inline void chip(const Strings& args, std::ostream& out) {
  const Options options(args, "--format --svg", "--json");
  const ts::Chip chip = ts::chip(options.only_word("chip"));
  if (options.has("--json")) {
    Json json;
    json.add("facts", ts::chip_facts_table(chip));
    json.add("knees", knees(chip));
    out << json;
  } else {
    out << ts::chip_facts_table(chip) << "\n" << knees(chip);
  }
  if (options.has("--svg")) {
    save(ts::roofline_picture(chip, format_of(options.text("--format", "bf16"))), "roofline.svg",
         options, out);
  }
}

inline void model(const Strings& args, std::ostream& out) {
  const Options options(args, "--context", "--json");
  const ts::ModelConfig model = model_of(options.only_word("model"));
  const double context = options.number("--context", static_cast<double>(model.context), 1, 1e9);
  ts::Table cache;
  cache.title = "KV cache";
  cache.columns = {"format", "a token", ts::detail::cat({"a sequence of ", context})};
  for (const ts::DType format : {ts::DType::bf16, ts::DType::int8, ts::DType::int4}) {
    cache.add(
        {ts::name_of(format), ts::format_bytes(ts::kv_cache_bytes_per_token(model, format)),
         ts::format_bytes(ts::kv_cache_bytes(model, format, static_cast<std::int64_t>(context)))});
  }
  ts::Table memory;
  memory.title = "memory of training, by convention";
  memory.columns = {"convention", "weights", "gradients", "optimizer", "bytes a parameter", "all"};
  for (const ts::StateBytes state : {ts::StateBytes::f32, ts::StateBytes::book,
                                     ts::StateBytes::mixed, ts::StateBytes::mixed_f32_gradients}) {
    const ts::StateParts p = ts::state_parts(state);
    memory.add({ts::name_of(state), ts::detail::cat({p.weights}), ts::detail::cat({p.gradients}),
                ts::detail::cat({p.optimizer()}), ts::detail::cat({p.total()}),
                ts::format_bytes(p.total() * static_cast<double>(model.parameters()))});
  }
  if (options.has("--json")) {
    Json json;
    json.add("parameters", ts::params_table(model));
    json.add("flops", ts::flops_table(model, context));
    json.add("cache", cache);
    json.add("memory", memory);
    out << json;
  } else {
    out << ts::params_table(model) << "\n"
        << ts::flops_table(model, context) << "\n"
        << cache << "\n"
        << memory;
  }
}

inline void claims(const Strings& args, std::ostream& out) {
  const Options options(args, "", "--json");
  if (options.words.empty()) {
    out << (options.has("--json") ? ts::claim_table().json() : ts::claim_table().text());
  } else {
    const ts::ClaimReport report = ts::claim(options.only_word("claim"));
    if (options.has("--json")) {
      out << report.json();
    } else {
      out << report;
    }
  }
}

// "64KiB", "1GB", "4e6": bytes.
inline double bytes_of_text(const std::string& text) {
  const std::size_t unit = text.find_first_not_of("0123456789.eE+-");
  double bytes = 0;
  try {
    const double number = number_of("--bytes", text.substr(0, unit), -1e300, 1e300);
    bytes = ts::Quantity(number, unit == std::string::npos ? "B" : text.substr(unit)).in("B");
  } catch (const ts::Error&) {
    ts::detail::fail({"--bytes is ", text, "; a number of B, kB, MB, GB, KiB, MiB, GiB is right"});
  }
  if (!(bytes >= 0 && bytes <= 1e18)) {
    ts::detail::fail({"--bytes is ", text, "; from 0 to 1e18 bytes are right"});
  }
  return bytes;
}

inline const char* meaning_of(ts::Collective what) {
  static const char* const meanings[] = {
      "each device has a part of V, all get the whole: A[I_x] -> A[I]",
      "each device has a V to add, each gets a part of the sum: A[I]{U_x} -> A[I_x]",
      "each device has a V to add, all get the sum: A[I]{U_x} -> A[I]",
      "each device deals its V out to all: A[I_x, J] -> A[I, J_x]", "one device has V, all get it"};
  return meanings[static_cast<int>(what)];
}

// What the links need for the bytes alone, all of them at once: the book's formulas.
inline ts::Quantity links_time(const ts::CollectiveSpec& spec, const ts::GroupLinks& links,
                               double bytes) {
  const double n = spec.devices();
  const ts::Quantity V(bytes, "B", "V", "of the whole vector");
  if (spec.what == ts::Collective::all_to_all) {
    const ts::Quantity W(bytes / links.exchange(bytes), "B/s", "W_exchange", "of a device");
    return ts::named("T_links", V / W, "of what each device deals out");
  }
  const ts::Quantity N(n, "", "N", "devices");
  const ts::Quantity W((n - 1) / n * bytes / links.gather(bytes), "B/s", "W",
                       "into a device, all its links in use");
  const ts::Quantity part = V * (N - 1.0) / (N * W);
  return spec.what == ts::Collective::all_reduce
             ? ts::named("T_links", 2.0 * part, "there and back")
         : spec.what == ts::Collective::broadcast ? ts::named("T_links", V / W)
                                                  : ts::named("T_links", part);
}

// The collective run on devices with real numbers: at most 1 MB a device, 256 devices.
inline ts::MeshRun run_collective(const ts::Mesh& mesh, ts::Collective what,
                                  const std::string& axis, std::int64_t elements) {
  const std::int64_t n = mesh.size(axis);
  ts::CollectiveOptions wire;
  wire.format = ts::DType::bf16;
  return mesh.run([&](ts::Device& device) {
    switch (what) {
      case ts::Collective::all_gather:
        device.all_gather(ts::zeros({elements / n}), axis, 0, wire);
        break;
      case ts::Collective::reduce_scatter:
        device.reduce_scatter(ts::zeros({elements}), axis, 0, ts::Reduce::sum, wire);
        break;
      case ts::Collective::all_reduce:
        device.all_reduce(ts::zeros({elements}), axis, ts::Reduce::sum, wire);
        break;
      case ts::Collective::all_to_all:
        device.all_to_all(ts::zeros({elements}), axis, 0, 0, wire);
        break;
      default: device.broadcast(ts::zeros({elements}), axis, 0, wire);
    }
  });
}

struct AskedCollective {
  ts::Machine machine;
  ts::CollectiveSpec spec;
  ts::GroupLinks links;
  std::string axis, group;
  ts::List<ts::MeshAxis> axes;
};

// Over all chips, or along one dimension of the machine.
inline AskedCollective asked_collective(const Options& options) {
  AskedCollective asked;
  const Strings names = {"all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast"};
  const std::size_t what = choice_of("the collective", options.only_word("collective"), names);
  asked.machine = machine_of(options, "--dims 4x4x4");
  const ts::Shape& dims = asked.machine.dims;
  const std::int64_t axis = options.whole("--axis", -1, 0, dims.size() - 1);
  std::int64_t stride = 1;
  for (int d = 0; axis >= 0 && d < dims.size(); ++d) {
    asked.axes.push_back({ts::detail::cat({"d", d}), dims[d]});
    stride *= d > axis ? dims[d] : 1;
  }
  if (axis < 0) {
    asked.axes.push_back({"all", asked.machine.chips()});
  }
  const std::size_t place = axis < 0 ? 0 : static_cast<std::size_t>(axis);
  asked.axis = asked.axes[place].name;
  asked.spec.what = static_cast<ts::Collective>(what);
  asked.spec.element_bytes = 2;  // bf16
  const ts::Mesh mesh(asked.machine, asked.axes);
  asked.spec.parts = mesh.placement().axes[place].parts;
  const std::int64_t n = asked.spec.devices();
  if (n < 2) {
    ts::detail::fail({names[what], " on ", asked.machine.name, " is over one device, which sends ",
                      "nothing; 2 or more are right"});
  }
  const double bytes = bytes_of_text(options.needs("--bytes", "1GB").text("--bytes"));
  asked.spec.elements = static_cast<std::int64_t>(bytes / 2) / n * n;
  if (asked.spec.elements < n) {
    ts::detail::fail({"--bytes is ", options.text("--bytes"), "; ", 2 * n,
                      " or more, a bf16 number for each of ", n, " devices, are right"});
  }
  asked.links = ts::group_links(asked.machine, axis < 0 ? 1 : stride, n);
  for (const ts::AxisPart& part : asked.spec.parts) {
    asked.group += (asked.group.empty() ? "" : " x ") +
                   ts::detail::cat({part.size, " (", ts::name_of(part.kind), ", ",
                                    ts::format_si(part.bandwidth, "B/s"), " one way)"});
  }
  return asked;
}

inline ts::Table algorithm_table(const ts::AlgorithmChoice& choice) {
  ts::Table table;
  table.title = "by every algorithm that suits these links";
  table.columns = {"algorithm", "steps", "formula"};
  for (const ts::AlgorithmCandidate& one : choice.candidates) {
    table.add({ts::name_of(one.algorithm), ts::detail::cat({one.steps}),
               (one.exact ? "" : "about ") + ts::format_seconds(one.seconds)});
  }
  return table;
}

// A grid of chips as it lies; of chips behind a switch, which sent how much to which.
inline ts::Svg links_picture(const ts::MeshRun& run) {
  bool grid = false;
  for (int d = 0; d < run.machine().dims.size(); ++d) {
    const ts::AxisKind kind = run.machine().links[static_cast<std::size_t>(d)].kind;
    grid = grid || (run.machine().dims[d] > 1 &&
                    (kind == ts::AxisKind::line || kind == ts::AxisKind::ring));
  }
  return grid ? ts::link_map(run) : ts::svg(run);
}

// On simulated devices, with fewer bytes, so that every device has room on this machine.
inline void run_here(const AskedCollective& asked, const Options& options, std::ostream& out) {
  ts::CollectiveSpec small = asked.spec;
  const std::int64_t n = small.devices();
  small.elements = std::min(small.elements, (std::int64_t{1} << 18) / n * n);
  const ts::Mesh mesh(asked.machine, asked.axes);
  const ts::MeshRun run = run_collective(mesh, small.what, asked.axis, small.elements);
  const ts::CollectiveRow row = run.collectives()[0];
  const ts::AlgorithmCandidate formula = ts::choose_algorithm(small).candidates[0];
  if (!options.has("--json")) {
    out << wrapped(ts::detail::cat(
               {"run on ", run.devices(), " devices with ",
                ts::format_bytes(2.0 * double(small.elements)), ": ", row.algorithm, ", ",
                row.steps, row.steps == 1 ? " step" : " steps", ", a device sends ",
                ts::format_count(row.bytes_out), " bytes (counted), ",
                ts::format_seconds(row.seconds), " (simulated), ", formula.exact ? "" : "about ",
                ts::format_seconds(formula.seconds), " (formula)"}))
        << "\n";
  }
  if (options.has("--svg")) {
    save(ts::device_timeline(run), "timeline.svg", options, out);
    save(links_picture(run), "links.svg", options, out);
  }
}

// Why no device runs here; empty: they do.
inline std::string no_run(const AskedCollective& asked) {
#if defined(TINYSCALE_NO_THREADS)
  static_cast<void>(asked);
  return "not without threads: this is compiled with TINYSCALE_NO_THREADS";
#else
  return asked.machine.chips() <= 256
             ? ""
             : ts::detail::cat({"not of ", asked.machine.chips(), " devices here; up to 256 are"});
#endif
}

inline void collective(const Strings& args, std::ostream& out) {
  const Options options(args, "--chip --chips --dims --axis --bytes --svg", "--json");
  AskedCollective asked = asked_collective(options);
  ts::CollectiveSpec& spec = asked.spec;
  const double bytes = 2.0 * static_cast<double>(spec.elements);
  const ts::AlgorithmChoice choice = ts::choose_algorithm(spec);
  const ts::Quantity time = links_time(spec, asked.links, bytes);
  const ts::Table table = algorithm_table(choice);
  spec.algorithm = choice.algorithm;
  const std::string not_run = no_run(asked);
  if (options.has("--svg") && !not_run.empty()) {
    ts::detail::fail({"--svg draws a run, and there is none: ", not_run});
  }
  if (options.has("--json")) {
    Json json;
    json.add("T_links", time.json(2));
    json.add("rule_of_thumb", ts::detail::cat({ts::rule_of_thumb_seconds(spec)}));
    json.add("seconds", ts::detail::cat({choice.seconds}));
    json.add("algorithms", table);
    out << json;
  } else {
    out << ts::name_of(spec.what) << ": " << meaning_of(spec.what) << "\n"
        << wrapped(ts::detail::cat(
               {ts::format_bytes(bytes), " over ", asked.group, " of ", asked.machine.name}))
        << "\n\n"
        << time.explain(2) << "\n"
        << table << "\n";
    if (spec.devices() <= 8) {
      out << ts::schedule_table(ts::make_schedule(spec)) << "\n";
    }
    out << (not_run.empty() ? "" : "run: " + not_run + "\n");
  }
  if (not_run.empty() && (options.has("--svg") || !options.has("--json"))) {
    run_here(asked, options, out);
  }
}

}  // namespace plan_program
