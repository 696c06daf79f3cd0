#pragma once
// plan train, plan serve, plan explain: jobs on machines.
#include <ostream>
#include <string>
#include <vector>

#include "plan_options.hpp"

namespace plan_program {

// Lines of at most 98 letters, later ones set in.
inline std::string wrapped(const std::string& text) {
  std::string out;
  std::size_t line = 0;
  for (const std::string& word : split(text, ' ')) {
    if (line > 0 && line + 1 + word.size() > 98) {
      out += "\n  ";
      line = 2;
    } else if (line > 0 || !out.empty()) {
      out += ' ';
      ++line;
    }
    out += word;
    line += word.size();
  }
  return out;
}

inline ts::Table titled(ts::Table table) {
  table.title = wrapped(table.title);
  return table;
}

inline void print_notes(std::ostream& out, const Strings& notes) {
  for (const std::string& note : notes) {
    out << wrapped("- " + note) << "\n";
  }
}

// Tables and quantities by name, as one object.
class Json {
 public:
  void add(const std::string& key, const std::string& value) {
    text_ += (text_.empty() ? "{\"" : ",\n\"") + key + "\": " + value;
  }
  void add(const std::string& key, const ts::Table& table) { add(key, table.json()); }
  void add(const std::string& key, const Strings& notes) {
    std::string list;
    for (const std::string& note : notes) {
      list += (list.empty() ? "\"" : ", \"") + ts::json_escape(note) + "\"";
    }
    add(key, "[" + list + "]");
  }
  friend std::ostream& operator<<(std::ostream& out, const Json& json) {
    return out << json.text_ << "}\n";
  }

 private:
  std::string text_;
};

// A quantity of a plan by its name in the struct.
template <class Plan>
struct Named {
  const char* name;
  const ts::Quantity Plan::*quantity;
};

using Training = ts::TrainingPlan;
inline const std::vector<Named<Training>>& quantities(const Training*) {
  static const std::vector<Named<Training>> all = {
      {"tokens", &Training::tokens},
      {"batch", &Training::batch},
      {"math_time", &Training::math_time},
      {"bubble_time", &Training::bubble_time},
      {"memory_time", &Training::memory_time},
      {"tensor_time", &Training::tensor_time},
      {"context_time", &Training::context_time},
      {"expert_time", &Training::expert_time},
      {"data_time", &Training::data_time},
      {"step_time", &Training::step_time},
      {"typical_step_time", &Training::typical_step_time},
      {"weights_memory", &Training::weights_memory},
      {"gradients_memory", &Training::gradients_memory},
      {"optimizer_memory", &Training::optimizer_memory},
      {"activation_memory", &Training::activation_memory},
      {"other_memory", &Training::other_memory},
      {"memory", &Training::memory},
      {"limit_mfu", &Training::limit_mfu},
      {"typical_mfu", &Training::typical_mfu},
      {"tokens_per_chip", &Training::tokens_per_chip},
      {"threshold", &Training::threshold},
      {"goodput", &Training::goodput},
      {"checkpoint_interval", &Training::checkpoint_interval},
      {"limit_days", &Training::limit_days},
      {"days", &Training::days},
      {"dollars", &Training::dollars},
      {"energy", &Training::energy}};
  return all;
}

using Serving = ts::ServingPlan;
inline const std::vector<Named<Serving>>& quantities(const Serving*) {
  static const std::vector<Named<Serving>> all = {
      {"weights", &Serving::weights},
      {"kv_cache_per_sequence", &Serving::kv_cache_per_sequence},
      {"memory", &Serving::memory},
      {"chips_needed", &Serving::chips_needed},
      {"most_sequences", &Serving::most_sequences},
      {"critical_batch", &Serving::critical_batch},
      {"target_batch", &Serving::target_batch},
      {"decode_step_time", &Serving::decode_step_time},
      {"prefill_time", &Serving::prefill_time},
      {"prefill_servers", &Serving::prefill_servers},
      {"tensor_limit", &Serving::tensor_limit},
      {"tokens_per_second", &Serving::tokens_per_second},
      {"tokens_per_second_per_chip", &Serving::tokens_per_second_per_chip},
      {"dollars_per_million_tokens", &Serving::dollars_per_million_tokens},
      {"dollars_with_prefill", &Serving::dollars_with_prefill}};
  return all;
}

// {"step_time": {"name": "T_step", "value": ...}, ...} with `depth` levels of inputs.
template <class Plan>
std::string quantities_json(const Plan& plan, int depth) {
  std::string out;
  for (const auto& one : quantities(&plan)) {
    out += (out.empty() ? "{\"" : ",\n  \"") + std::string(one.name) +
           "\": " + (plan.*one.quantity).json(depth);
  }
  return out + "}";
}

template <class Plan>
void explain(const Plan& plan, const std::string& name, const Options& options, std::ostream& out) {
  Strings names;
  for (const auto& one : quantities(&plan)) {
    names.push_back(one.name);
  }
  const std::size_t at = choice_of("the quantity", name, names);
  const ts::Quantity& quantity = plan.*quantities(&plan)[at].quantity;
  const int depth = static_cast<int>(options.whole("--depth", 8, 0, 64));
  out << (options.has("--json") ? quantity.json(depth) + "\n" : quantity.explain(depth));
}

// To the folder of --svg; what is JSON stays JSON alone.
inline void save(const ts::Svg& picture, const char* name, const Options& options,
                 std::ostream& out) {
  const std::string path = options.text("--svg") + "/" + name;
  picture.save(path);
  if (!options.has("--json")) {
    out << "wrote " << path << "\n";
  }
}

// Of train and of explain: pictures and depth are of one of them alone.
inline std::string train_flags() {
  return "--chip --chips --dims --batch --context --tokens --format --software --layout --mfu "
         "--price";
}

inline ts::TrainingJob training_job(const Options& options) {
  ts::TrainingJob job;
  job.model = model_of(options.only_word("model"));
  job.batch_tokens = options.number("--batch", job.batch_tokens, 1, 1e18);
  job.context = options.whole("--context", 0, 1, 1e9);
  job.tokens = options.number("--tokens", 0, 1, 1e30);
  job.format = format_of(options.text("--format", "bf16"));
  job.software = software_of(options.text("--software", "current"));
  job.typical_mfu = options.number("--mfu", 0, 1e-6, 1);
  return job;
}

inline Training training_plan(const Options& options) {
  const ts::TrainingJob job = training_job(options);
  const ts::Machine machine = machine_of(options, "--chips 8960");
  if (options.has("--layout")) {
    int chunks = 1;
    const ts::Layout layout = layout_of(options.text("--layout"), machine.chips(), chunks);
    return ts::plan_training(job, machine, layout, chunks);
  }
  return ts::plan_training(job, machine);
}

// Without the column of remarks, and rows that say nothing.
inline ts::Table shortened(ts::Table table, bool remarks) {
  ts::List<std::vector<ts::Cell>> rows;
  for (std::vector<ts::Cell> row : table.rows) {
    const bool nothing = remarks ? row[3] == "0.0 %" : row[1] == "-";
    if (remarks) {
      row.pop_back();
    }
    if (!nothing) {
      rows.push_back(row);
    }
  }
  if (remarks) {
    table.columns.pop_back();
  }
  table.rows = rows;
  return table;
}

inline void train(const Strings& args, std::ostream& out) {
  const Options options(args, train_flags() + " --svg", "--json --why --twin");
  const Training plan = training_plan(options);
  if (options.has("--json")) {
    Json json;
    json.add("layout", "\"" + ts::json_escape(plan.best.text()) + "\"");
    json.add("quantities", quantities_json(plan, 0));
    json.add("causes", plan.cause_table());
    json.add("memory", plan.memory_table());
    json.add("layouts", plan.layout_table());
    json.add("why_not", plan.why_not_table());
    json.add("notes", plan.notes);
    if (options.has("--twin")) {
      json.add("twin", plan.twin().table());
    }
    out << json;
  } else if (options.has("--why")) {
    out << plan;
  } else {
    out << titled(shortened(plan.table(), false)) << "\n"
        << shortened(plan.cause_table(), true) << "\n";
    print_notes(out, plan.notes);
  }
  if (options.has("--twin") && !options.has("--json")) {
    out << "\n" << plan.twin();
  }
  if (options.has("--svg")) {
    save(ts::step_waterfall(plan), "step.svg", options, out);
    save(ts::memory_bars(plan), "memory.svg", options, out);
    save(ts::roofline_picture(plan), "roofline.svg", options, out);
    if (plan.on.chips() > 1) {
      save(ts::svg(ts::strategy_regimes(plan.job, plan.on)), "regimes.svg", options, out);
    }
  }
}

inline std::string serve_flags() {
  return "--chip --chips --dims --batch --prompt --output --format --cache --compute --target "
         "--price";
}

inline ts::ServingJob serving_job(const Options& options) {
  ts::ServingJob job;
  job.model = model_of(options.only_word("model"));
  job.batch = options.whole("--batch", job.batch, 1, 1e9);
  job.prompt = options.whole("--prompt", job.prompt, 0, 1e9);
  job.output = options.whole("--output", job.output, 0, 1e9);
  job.format = format_of(options.text("--format", "bf16"));
  job.compute = format_of(options.text("--compute", "bf16"));
  if (options.has("--cache")) {
    job.cache = format_of(options.text("--cache"));
  }
  job.target = options.number("--target", 0, 1e-9, 1e9);
  return job;
}

inline ts::ServingSimulation simulated(const Serving& plan, const Options& options) {
  ts::PoissonTraffic traffic;
  traffic.requests_per_second =
      options.needs("--rate", "4 (requests a second)").number("--rate", 1, 1e-9, 1e9);
  traffic.requests = options.whole("--requests", 1000, 1, 1e6);
  traffic.least_prompt = traffic.most_prompt = plan.job.prompt;
  traffic.least_output = traffic.most_output = plan.job.output;
  ts::ServingOptions engine;
  engine.servers = options.whole("--servers", 1, 1, 1e6);
  return ts::simulate_serving(ts::poisson_traffic(traffic), plan, engine);
}

inline void serve(const Strings& args, std::ostream& out) {
  const Options options(args, serve_flags() + " --rate --requests --servers --svg",
                        "--json --why --frontier --simulate");
  for (const char* flag : {"--rate", "--requests", "--servers"}) {
    if (options.has(flag) && !options.has("--simulate")) {
      ts::detail::fail({flag, " is said without --simulate; both or neither are right"});
    }
  }
  const ts::ServingJob job = serving_job(options);
  const ts::Machine machine = machine_of(options, "--chips 8");
  const Serving plan = ts::plan_serving(job, machine);
  const bool frontier = options.has("--frontier") || options.has("--svg");
  const ts::ServingFrontier all =
      frontier ? ts::serving_frontier(job, machine) : ts::ServingFrontier();
  if (options.has("--json")) {
    Json json;
    json.add("sharding", "\"" + ts::json_escape(plan.sharding().name) + "\"");
    json.add("quantities", quantities_json(plan, 0));
    json.add("causes", plan.causes());
    json.add("choices", plan.choices());
    json.add("notes", plan.notes);
    if (frontier) {
      json.add("frontier", all.table());
    }
    if (options.has("--simulate")) {
      json.add("simulated", simulated(plan, options).table());
    }
    out << json;
  } else {
    out << titled(plan.table()) << "\n" << titled(plan.causes()) << "\n";
    print_notes(out, plan.notes);
    if (options.has("--why")) {
      out << "\n" << plan.choices();
    }
    if (options.has("--frontier")) {
      out << "\n" << all;
    }
    if (options.has("--simulate")) {
      out << "\n" << simulated(plan, options);
    }
  }
  if (options.has("--svg")) {
    save(ts::svg(all), "frontier.svg", options, out);
  }
}

// plan explain step_time train llama3-70b --chip ...
inline void explain(const Strings& args, std::ostream& out) {
  if (args.size() < 2 || args[0].compare(0, 2, "--") == 0) {
    ts::detail::fail(
        {"explain needs a quantity and a job; right is such as explain step_time train ",
         "llama3-70b --chip tpu-v5p --chips 8960"});
  }
  const Strings rest(args.begin() + 2, args.end());
  if (choice_of("the job", args[1], {"train", "serve"}) == 0) {
    const Options options(rest, train_flags() + " --depth", "--json");
    explain(training_plan(options), args[0], options, out);
  } else {
    const Options options(rest, serve_flags() + " --depth", "--json");
    explain(ts::plan_serving(serving_job(options), machine_of(options, "--chips 8")), args[0],
            options, out);
  }
}

}  // namespace plan_program
