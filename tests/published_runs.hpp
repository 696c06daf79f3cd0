#pragma once
// Published runs as structs, for tests and benches: a table of one row per run and metric, tab
// separated under named columns, read into one PublishedRun for each id.
// A cell that the source leaves open stays 0, empty or `unknown`: nothing is filled in but the
// data-parallel size, which is what the chips leave over.

#include <cctype>   // isalpha, isdigit, isalnum, tolower
#include <cstdlib>  // getenv, strtod
#include <fstream>
#include <string>
#include <vector>

#include "tinyscale.hpp"

namespace published {

namespace ts = tinyscale;

// One printed number of a run.
struct Figure {
  std::string metric;      // "step time", "tokens/s/chip", "TFLOP/s/chip", "MFU", "HFU", ...
  std::string text;        // as printed: "121.48", "OOM"
  double value = 0;        // NaN when the cell is no number
  double rounding = 0;     // half a unit of its last printed digit
  std::string unit;        // "s", "tok/s", "TFLOP/s", "%", "GB", "GiB"
  std::string convention;  // of its FLOPs, as the table names it
  std::string confidence, check, notes;
};

struct RunLayout {
  std::string text;
  std::int64_t tensor = 1, pipeline = 1, virtual_pipeline = 1, expert = 1, context = 1;
  std::int64_t data = 1;          // all replicas, sharded ones too: FSDP16 x TP4, DP2 on DCN is 32
  bool data_stated = false;       // else: what the chips leave over
  std::int64_t fsdp = 0;          // devices that share the parameters; 0: they are not sharded
  std::int64_t dcn_data = 1;      // the part of data that goes over the slow network between slices
  int zero = 0;                   // ZeRO stage 0 to 3
  std::int64_t zero_devices = 0;  // that share what ZeRO shards; 0: all of data (x context)
  bool sequence_parallel = false, no_sequence_parallel = false;  // "SP", "(no SP)", else not stated
  bool async_tensor = false, compiled = false;
  bool known = false;  // the text states at least one axis

  ts::Layout layout(std::int64_t microbatches = 1) const {
    ts::Layout out;
    out.data = data;
    out.tensor = tensor;
    out.pipeline = pipeline;
    out.context = context;
    out.expert = expert;
    out.microbatches = microbatches;
    out.zero = static_cast<ts::Zero>(zero);
    out.zero_devices = zero_devices == data ? 0 : zero_devices;
    out.sequence_parallel = sequence_parallel;
    return out;
  }
};

// What the hardware cell says; rates one way, 0 where it says nothing.
struct RunHardware {
  std::string text;
  std::string preset;                             // of ts::chip(); empty: none is like it
  double peak_bf16 = 0, peak_fp8 = 0;             // FLOP/s as printed
  bool peak_unknown = false;                      // "peak below 989 TF, unknown"
  double memory_bytes = 0, memory_bandwidth = 0;  // as printed
  double watts = 0;                               // a cap on the power
  std::int64_t slices = 1;                        // slices or pods joined by a slow network
  std::int64_t node_chips = 0;                    // "8/node", "(8 GPUs)"
  std::int64_t domain_chips = 0;                  // "NVL72"
  std::int64_t node_nics = 0;
  double nic_bandwidth = 0;           // bytes/s of one network card
  double node_network_bandwidth = 0;  // bytes/s of a node, all its cards

  // The preset with what the cell says otherwise; a GB300 is a GB200 with more memory where the
  // library has no preset of it, an H800 an H100 whose NVLink is cut from 900 to 400 GB/s.
  ts::Chip chip() const {
    bool known = false;
    for (const std::string& name : ts::chips()) {
      known = known || name == preset;
    }
    ts::Chip out = ts::chip(!known && preset == "gb300" ? "gb200" : preset);
    out.name = preset;
    if (!known) {
      out.memory_bytes = 288e9;
    }
    if (text.rfind("H800", 0) == 0) {
      out.name = "h800";
      out.link_bandwidth *= 400.0 / 900;
    }
    if (memory_bandwidth > 0) {  // a part of its own: "H100-96GB HBM2e 2.4 TB/s, 500 W cap"
      out.name += " with other memory";
      out.memory_bandwidth = memory_bandwidth;
      out.memory_bytes = memory_bytes;
    }
    return out;
  }
};

struct PublishedRun {
  std::string id, source;
  ts::ModelConfig model;
  double context = 0;  // tokens of a sequence
  RunHardware hardware;
  double chips = 0;
  RunLayout layout;
  double micro_batch = 0;        // sequences that a replica takes at a time; 0: not stated
  double global_batch_seqs = 0;  // sequences of a step; 0: not stated
  std::string precision;
  ts::DType format = ts::DType::bf16;  // of the matmul operands
  std::string recompute_text;
  ts::Recompute recompute = ts::Recompute::none;
  bool recompute_known = false;
  std::vector<Figure> figures;

  // States all that a model's cost needs: its sizes, a context, chips that are a preset.
  bool complete() const {
    return model.layers > 0 && model.width > 0 && model.heads > 0 && model.kv_heads > 0 &&
           model.head_size > 0 && model.vocabulary > 0 && (model.hidden > 0 || model.experts > 0) &&
           context > 0 && chips > 0 && !hardware.preset.empty();
  }
  const Figure* find(const std::string& metric) const {
    for (const Figure& figure : figures) {
      if (figure.metric == metric) {
        return &figure;
      }
    }
    return nullptr;
  }
  double value(const std::string& metric) const {
    const Figure* const figure = find(metric);
    return figure != nullptr ? figure->value : 0;
  }
  double batch_tokens() const { return global_batch_seqs * context; }
  bool out_of_memory() const {
    const Figure* const figure = find("memory: fits?");
    return figure != nullptr && figure->text == "OOM";
  }
  // Seconds of a step as printed, or from the printed tokens/s; 0: neither.
  double step_seconds() const {
    const double rate = value("tokens/s/chip") * chips;
    return find("step time") != nullptr ? value("step time") : rate > 0 ? batch_tokens() / rate : 0;
  }
  // Sequences of each replica in a step over its micro-batch; 1 where one is not stated.
  std::int64_t microbatches() const {
    const double each = micro_batch * static_cast<double>(layout.data);
    return each > 0 && global_batch_seqs >= each
               ? static_cast<std::int64_t>(global_batch_seqs / each)
               : 1;
  }
};

// Half a unit of the last digit of "155", "1.1", "121.48": 0.5, 0.05, 0.005.
inline double rounding_of(const std::string& text) {
  const std::size_t point = text.find('.');
  double unit = 1;
  for (std::size_t i = point == std::string::npos ? text.size() : point + 1; i < text.size(); ++i) {
    unit /= 10;
  }
  return unit / 2;
}

inline bool has(const std::string& text, const char* word) {
  return text.find(word) != std::string::npos;
}

// The number that stands before `word`: 312 in "(312 bf16 TF)" for " bf16"; 0: none does.
inline double number_before(const std::string& text, const char* word) {
  const std::size_t end = text.find(word);
  std::size_t first = end == std::string::npos ? 0 : end;
  while (first > 0 && (std::isdigit(static_cast<unsigned char>(text[first - 1])) != 0 ||
                       text[first - 1] == '.')) {
    --first;
  }
  return end == std::string::npos || first == end ? 0 : std::strtod(text.c_str() + first, nullptr);
}

// A count as "2048", "~4k", "128k" (1024 each).
inline double count_of(const std::string& cell) {
  const std::size_t first = cell.find_first_of("0123456789");
  if (first == std::string::npos) {
    return 0;
  }
  char* end = nullptr;
  const double number = std::strtod(cell.c_str() + first, &end);
  return *end == 'k' || *end == 'K' ? 1024 * number : number;
}

inline std::int64_t whole_of(const std::string& cell) {
  return static_cast<std::int64_t>(count_of(cell));
}

// Axes are words of capital letters with a number: "TP8 PP16 VPP2 DP15 (no SP)".
inline void read_axis(RunLayout& out, const std::string& word, std::int64_t n, bool negated,
                      std::int64_t& dp) {
  const bool axis = n > 0;
  if (word == "TP" && axis) {
    out.tensor = n;
  } else if (word == "PP" && axis) {
    out.pipeline = n;
  } else if (word == "VPP" && axis) {
    out.virtual_pipeline = n;
  } else if (word == "EP" && axis) {
    out.expert = n;
  } else if (word == "CP" && axis) {
    out.context = n;
  } else if (word == "DP" && axis) {
    dp = n;
  } else if (word == "FSDP" || word == "HSDP") {
    out.fsdp = axis ? n : -1;  // -1: over all replicas
  } else if (word == "ZeRO") {
    out.zero = static_cast<int>(n);
  } else if (word == "SP") {
    out.sequence_parallel = !negated;
    out.no_sequence_parallel = negated;
    return;
  } else {
    return;
  }
  out.known = true;
}

// The data axis: stated, or what the chips leave over.
inline void read_replicas(RunLayout& out, std::int64_t dp, std::int64_t chips) {
  const std::int64_t others = out.tensor * out.pipeline * out.context;
  const std::int64_t left = chips > others ? chips / others : 1;
  out.data_stated = dp > 0 || out.fsdp > 0;
  out.data = !out.data_stated ? left : (dp > 0 ? dp : 1) * (out.fsdp > 0 ? out.fsdp : 1);
  if (out.fsdp != 0) {
    out.fsdp = out.fsdp > 0 ? out.fsdp : out.data;
    out.zero = has(out.text, "SHARD_GRAD_OP") ? 2 : 3;
    out.zero_devices = out.fsdp;
  }
}

inline bool is_digit(const std::string& text, std::size_t i) {
  return i < text.size() && std::isdigit(static_cast<unsigned char>(text[i])) != 0;
}

// A word and the number glued to it: {"TP", 8}, {"ZeRO", 1} of "ZeRO-1", {"over", 512} of
// "over 512".
inline std::string next_word(const std::string& text, std::size_t& i, std::int64_t& number) {
  std::string word;
  for (; i < text.size() &&
         (std::isalpha(static_cast<unsigned char>(text[i])) != 0 || text[i] == '_');
       ++i) {
    word += text[i];
  }
  const bool apart = (word == "ZeRO" && i < text.size() && text[i] == '-') || word == "over";
  const std::size_t first = i + (apart ? 1 : 0);
  number = is_digit(text, first) ? whole_of(text.substr(first)) : 0;
  for (i = is_digit(text, first) ? first : i; is_digit(text, i); ++i) {
  }
  i += word.empty() && number == 0 ? 1 : 0;
  return word;
}

inline RunLayout read_layout(const std::string& text, std::int64_t chips) {
  RunLayout out;
  out.text = text;
  std::int64_t dp = 0, n = 0;
  std::string before;  // the word before this one
  for (std::size_t i = 0; i < text.size();) {
    const std::string word = next_word(text, i, n);
    if (word.empty()) {
      continue;
    }
    if (word == "over" && n > 0) {
      (out.fsdp != 0 ? out.fsdp : out.zero_devices) = n;  // "FSDP FULL_SHARD over 512"
    } else if (word == "DCN" && before == "on") {
      out.dcn_data = dp > 0 ? dp : 1;
    } else {
      read_axis(out, word, n, before == "no", dp);
    }
    before = word;
  }
  out.async_tensor = has(text, "asyncTP");
  out.compiled = has(text, "compile");
  read_replicas(out, dp, chips);
  return out;
}

inline std::string chip_preset(const std::string& text) {
  static const char* const presets[][2] = {
      {"A100-80GB", "a100-80"}, {"A100-40GB", "a100-40"},  {"A100", "a100-80"},
      {"A800", "a100-80"},      {"H100-80GB", "h100-sxm"}, {"H100", "h100-sxm"},
      {"H800", "h100-sxm"},     {"H200", "h200"},          {"GB300", "gb300"},
      {"GB200", "gb200"},       {"B200", "b200"},          {"MI300X", "mi300x"},
      {"TPU v5p", "tpu-v5p"},   {"TPU v5e", "tpu-v5e"},    {"TPU v6e", "tpu-v6e"},
      {"TPU v7", "tpu-v7"},     {"TPU v4", "tpu-v4"},      {"TPU v3", "tpu-v3"}};
  for (const auto& preset : presets) {
    if (text.rfind(preset[0], 0) == 0) {
      return preset[1];
    }
  }
  return "";
}

// How many network cards "4x100 Gb/s", "8x50 GB/s" or "8xHDR" name; 0: none are counted.
inline std::int64_t cards_of(const std::string& text) {
  for (std::size_t i = 1; i + 1 < text.size(); ++i) {
    const bool named = text.compare(i, 4, "xHDR") == 0 || text.compare(i, 4, "xNDR") == 0;
    const bool rated = text[i] == 'x' && is_digit(text, i + 1) &&
                       (has(text.substr(i, 12), " Gb/s") || has(text.substr(i, 12), " GB/s"));
    if ((named || rated) && is_digit(text, i - 1)) {
      return static_cast<std::int64_t>(number_before(text.substr(i > 4 ? i - 4 : 0, 5), "x"));
    }
  }
  return 0;
}

// "4x100 Gb/s Omni-Path", "8x50 GB/s IB", "8xHDR IB" (200 Gb/s), "8xNDR IB" (400 Gb/s): a card;
// "400 Gb/s RDMA per GPU": a chip's; "1600 Gb/s RoCE per node": all of a node's.
inline void read_network(RunHardware& out) {
  const std::string& text = out.text;
  const double bits = has(text, "xHDR")   ? 200e9
                      : has(text, "xNDR") ? 400e9
                                          : 1e9 * number_before(text, " Gb/s");
  const double rate = bits > 0 ? bits / 8 : 1e9 * number_before(text, " GB/s");
  const std::int64_t chips = out.node_chips > 0 ? out.node_chips : 8;
  out.node_nics = has(text, "per GPU") ? chips : cards_of(text);
  const bool all = out.node_nics == 0;
  out.nic_bandwidth = all ? 0 : rate;
  out.node_network_bandwidth = all ? rate : rate * static_cast<double>(out.node_nics);
}

inline RunHardware read_hardware(const std::string& text) {
  RunHardware out;
  out.text = text;
  out.preset = chip_preset(text);
  out.peak_unknown = has(text, "unknown");
  const double plain = number_before(text, " TF");  // "(312 TF)"
  const double bf16 = number_before(text, " bf16");
  out.peak_bf16 = out.peak_unknown ? 0 : 1e12 * (bf16 > 0 ? bf16 : plain);
  out.peak_fp8 = 1e12 * number_before(text, " fp8");
  const double glued = number_before(text, "GB ");
  const double spaced = number_before(text, " GB,");
  out.memory_bytes = 1e9 * (glued > 0 ? glued : spaced);
  out.memory_bandwidth = 1e12 * number_before(text, " TB/s");
  out.watts = number_before(text, " W cap");
  const double slices = number_before(text, " slice(s)");
  const double pods = number_before(text, " pod(s)");
  out.slices = slices > 0 ? static_cast<std::int64_t>(slices)
               : pods > 0 ? static_cast<std::int64_t>(pods)
                          : 1;
  const double nodes = number_before(text, "/node");
  out.node_chips = static_cast<std::int64_t>(nodes > 0 ? nodes : number_before(text, " GPUs)"));
  out.domain_chips = has(text, "NVL72") ? 72 : 0;
  read_network(out);
  return out;
}

inline ts::DType format_of(const std::string& precision) {
  return has(precision, "fp8")                              ? ts::DType::fp8_e4m3
         : has(precision, "bf16") || has(precision, "int8") ? ts::DType::bf16  // int8: weights
         : has(precision, "fp16")                           ? ts::DType::f16
         : has(precision, "fp32")                           ? ts::DType::f32
                                                            : ts::DType::bf16;
}

// "minimal" and "per-op SAC" keep the matmuls' outputs and compute the attention core again;
// "qkv_proj_offloaded" computes all but those again; "norm+act" computes no matmul again.
inline void read_recompute(PublishedRun& out) {
  const std::string& text = out.recompute_text;
  const bool full = has(text, "full") || text == "yes" || has(text, "offloaded");
  const bool selective = has(text, "selective") || text == "minimal" || has(text, "SAC");
  out.recompute = selective ? ts::Recompute::selective
                  : full    ? ts::Recompute::full
                            : ts::Recompute::none;
  out.recompute_known = full || selective || text == "none" || text == "norm+act";
}

// "E256/top8/dff2048/shared1"
inline void read_experts(const std::string& cell, ts::ModelConfig& model) {
  std::size_t i = 0;
  while (i < cell.size()) {
    std::int64_t n = 0;
    const std::string word = next_word(cell, i, n);
    if (word == "E" || word == "EE") {
      model.experts = static_cast<int>(n);
    } else if (word == "top") {
      model.top_k = static_cast<int>(n);
    } else if (word == "dff") {
      model.expert_hidden = n;
    } else if (word == "shared") {
      model.shared_experts = static_cast<int>(n);
    }
  }
}

inline std::string plain_name(const std::string& name) {
  std::string out;
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  return out;
}

// What a table of shapes leaves open, as the maker's own model has it where it is a preset, else
// of GPT (two matrices: biases, learned positions, tied) or of Llama (gated: none of them).
inline ts::ModelConfig base_model(const std::string& name, const std::string& ffn,
                                  std::int64_t layers, std::int64_t width) {
  const std::string plain = plain_name(name);
  for (const std::string& preset : ts::configs()) {
    const std::string own = plain_name(preset);
    if (own == plain || (own == "deepseekv3" && plain.rfind(own, 0) == 0)) {
      const ts::ModelConfig model = ts::config(preset);
      if (model.layers == layers && model.width == width) {
        return model;
      }
    }
  }
  ts::ModelConfig model;
  const bool gated = ffn == "gated";
  model.norm = gated ? ts::Norm::rms : ts::Norm::layer;
  model.position = gated ? ts::Position::rotary : ts::Position::learned;
  model.activation = gated ? ts::Activation::swiglu : ts::Activation::gelu_tanh;
  model.bias = !gated;
  model.tied = !gated;
  return model;
}

// A row's cells by the names of the table's columns.
struct Row {
  const std::vector<std::string>& columns;
  std::vector<std::string> cells;
  const std::string& operator[](const char* column) const {
    for (std::size_t i = 0; i < columns.size(); ++i) {
      if (columns[i] == column) {
        return cells.at(i);
      }
    }
    throw ts::Error(std::string("published runs: no column is named ") + column);
  }
};

inline ts::ModelConfig read_model(const Row& row) {
  const std::string& name = row["model"];
  const std::string& ffn = row["ffn"];
  const std::int64_t layers = whole_of(row["layers"]);
  ts::ModelConfig model = base_model(name, ffn, layers, whole_of(row["d_model"]));
  const bool preset = model.name != "custom";
  model.name = name;
  model.layers = layers;
  model.width = whole_of(row["d_model"]);
  model.heads = whole_of(row["heads"]);
  model.kv_heads = whole_of(row["kv_heads"]);
  model.head_size = whole_of(row["head_dim"]);
  model.hidden = preset && model.hidden == 0 ? 0 : whole_of(row["d_ff"]);
  model.vocabulary = whole_of(row["vocab"]);  // 0: not stated
  model.context = preset ? model.context : whole_of(row["seq"]);
  read_experts(row["experts"], model);
  return model;
}

inline PublishedRun read_run(const Row& row) {
  PublishedRun out;
  out.id = row["id"];
  out.source = row["source"];
  out.model = read_model(row);
  out.context = count_of(row["seq"]);
  out.hardware = read_hardware(row["hardware"]);
  out.chips = count_of(row["chips"]);
  out.layout = read_layout(row["layout"], static_cast<std::int64_t>(out.chips));
  if (out.hardware.slices == 1 && has(out.layout.text, " pods")) {
    out.hardware.slices = static_cast<std::int64_t>(number_before(out.layout.text, " pods"));
  }
  out.micro_batch = count_of(row["micro_batch"]);
  if (has(out.layout.text, "on ICI")) {  // MaxText states sequences a chip
    out.micro_batch *= static_cast<double>(out.layout.tensor * out.layout.context);
  }
  out.global_batch_seqs = count_of(row["global_batch_seqs"]);
  out.precision = row["precision"];
  out.format = format_of(out.precision);
  out.recompute_text = row["recompute"];
  read_recompute(out);
  return out;
}

inline Figure read_figure(const Row& row) {
  Figure out;
  out.metric = row["metric"];
  out.text = row["value"];
  char* end = nullptr;
  const double value = std::strtod(out.text.c_str(), &end);
  const bool number = end != out.text.c_str() && *end == '\0';
  out.value = number ? value : std::strtod("nan", nullptr);
  out.rounding = number ? rounding_of(out.text) : 0;
  out.unit = row["unit"];
  out.convention = row["flops_convention"];
  out.confidence = row["confidence"];
  out.check = row["check"];
  out.notes = row["notes"];
  return out;
}

inline std::vector<std::string> split(const std::string& line) {
  std::vector<std::string> cells(1);
  for (const char c : line) {
    if (c == '\t') {
      cells.emplace_back();
    } else if (c != '\r') {
      cells.back() += c;
    }
  }
  return cells;
}

// The runs of a table, in its order; throws with the line where a row has other columns.
inline std::vector<PublishedRun> read_runs(std::istream& in) {
  std::vector<PublishedRun> runs;
  std::vector<std::string> columns;
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    const std::vector<std::string> cells = split(line);
    if (columns.empty()) {
      columns = cells;
      continue;
    }
    if (line.empty()) {
      continue;
    }
    if (cells.size() != columns.size()) {
      throw ts::Error("published runs: line " + std::to_string(number) + " has " +
                      std::to_string(cells.size()) + " cells for " +
                      std::to_string(columns.size()) + " columns");
    }
    const Row row{columns, cells};
    PublishedRun* run = nullptr;
    for (PublishedRun& known : runs) {
      run = known.id == row["id"] ? &known : run;
    }
    if (run == nullptr) {
      runs.push_back(read_run(row));
      run = &runs.back();
    }
    run->figures.push_back(read_figure(row));
  }
  return runs;
}

// The published runs of the data folder; empty where there is none.
inline std::vector<PublishedRun> read_runs() {
  const char* const root = std::getenv("TINYSCALE_SHARED");
  std::ifstream file(std::string(root != nullptr ? root : "../shared") +
                     "/cases/published-runs.tsv");
  return read_runs(file);
}

}  // namespace published
