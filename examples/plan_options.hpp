#pragma once
// Words and flags of a command line: "--chips 8960", "--chips=8960", "--json". What is not known or
// not a number is an Error that says what would be right.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "tinyscale.hpp"

namespace plan_program {

namespace ts = tinyscale;
using Strings = std::vector<std::string>;

inline std::string joined(const Strings& words, const char* between = ", ") {
  std::string out;
  for (const std::string& word : words) {
    out += (out.empty() ? "" : between) + word;
  }
  return out;
}

// "a;b;c" -> {"a", "b", "c"}
inline Strings split(const std::string& text, char at) {
  Strings out(1);
  for (const char c : text) {
    if (c == at) {
      out.emplace_back();
    } else {
      out.back() += c;
    }
  }
  return out;
}

// "12", "4e6", "1.5T": a number, then k, M, B or T.
inline double number_of(const std::string& what, const std::string& text, double least,
                        double most) {
  const std::size_t digits = text.find_first_not_of("0123456789.eE+-");
  const std::string number = text.substr(0, digits);
  const std::string suffix = digits == std::string::npos ? "" : text.substr(digits);
  char* end = nullptr;
  double value = std::strtod(number.c_str(), &end);
  static const struct {
    const char* name;
    double factor;
  } suffixes[] = {{"", 1}, {"k", 1e3}, {"K", 1e3}, {"M", 1e6}, {"B", 1e9}, {"T", 1e12}};
  bool good = !number.empty() && *end == '\0', known = false;
  for (const auto& one : suffixes) {
    known = known || suffix == one.name;
    value *= suffix == one.name ? one.factor : 1;
  }
  if (!good || !known) {
    ts::detail::fail({what, " is \"", text, "\"; a number such as 4000000, 4e6 or 4M is right"});
  }
  if (!(value >= least && value <= most)) {
    ts::detail::fail({what, " is ", text, "; a number from ", least, " to ", most, " is right"});
  }
  return value;
}

inline std::int64_t whole_of(const std::string& what, const std::string& text, double least,
                             double most) {
  const double value = number_of(what, text, least, most);
  if (value != static_cast<double>(static_cast<std::int64_t>(value))) {
    ts::detail::fail({what, " is ", text, "; a whole number is right"});
  }
  return static_cast<std::int64_t>(value);
}

// The place of a word among the known ones; throws and names the near.
inline std::size_t choice_of(const std::string& what, const std::string& word,
                             const Strings& known) {
  for (std::size_t i = 0; i < known.size(); ++i) {
    if (known[i] == word) {
      return i;
    }
  }
  ts::detail::fail({what, " \"", word, "\" is not known; ", ts::detail::near_text(word, known)});
}

class Options {
 public:
  // `valued` flags have a value, `plain` ones none; both as "--chip --chips".
  Options(const Strings& args, const std::string& valued, const std::string& plain) {
    const Strings with = split(valued, ' '), without = split(plain, ' ');
    Strings known = with;
    known.insert(known.end(), without.begin(), without.end());
    for (std::size_t i = 0; i < args.size(); ++i) {
      if (args[i].compare(0, 2, "--") != 0) {
        words.push_back(args[i]);
        continue;
      }
      const std::size_t equals = args[i].find('=');
      const std::string name = args[i].substr(0, equals);
      const bool takes = choice_of("the flag", name, known) < with.size();
      if (has(name)) {
        ts::detail::fail({name, " is said twice; once is right"});
      }
      if (!takes && equals != std::string::npos) {
        ts::detail::fail({name, " takes no value, \"", args[i].substr(equals + 1), "\" is given"});
      }
      if (takes && equals == std::string::npos &&
          (i + 1 == args.size() || args[i + 1].compare(0, 2, "--") == 0)) {
        ts::detail::fail({name, " has no value; right is ", name, " and its value"});
      }
      flags_.push_back({name, !takes                        ? ""
                              : equals != std::string::npos ? args[i].substr(equals + 1)
                                                            : args[++i]});
    }
  }

  Strings words;

  bool has(const std::string& name) const { return find(name) != nullptr; }
  std::string text(const std::string& name, const std::string& otherwise = "") const {
    const std::string* found = find(name);
    return found == nullptr ? otherwise : *found;
  }
  double number(const std::string& name, double otherwise, double least = 1e-30,
                double most = 1e30) const {
    return has(name) ? number_of(name, text(name), least, most) : otherwise;
  }
  std::int64_t whole(const std::string& name, std::int64_t otherwise, double least = 1,
                     double most = 1e12) const {
    return has(name) ? whole_of(name, text(name), least, most) : otherwise;
  }
  // Throws when a flag is missing that the command cannot do without.
  const Options& needs(const std::string& name, const std::string& such_as) const {
    if (!has(name)) {
      ts::detail::fail({name, " is missing; right is such as ", name, " ", such_as});
    }
    return *this;
  }
  std::string only_word(const std::string& what) const {
    if (words.size() != 1) {
      ts::detail::fail(
          {words.empty() ? "no " + what + " is named" : "\"" + joined(words, " ") + "\"", "; one ",
           what, " is right"});
    }
    return words[0];
  }

 private:
  const std::string* find(const std::string& name) const {
    for (const auto& flag : flags_) {
      if (flag.first == name) {
        return &flag.second;
      }
    }
    return nullptr;
  }

  std::vector<std::pair<std::string, std::string>> flags_;
};

inline ts::DType format_of(const std::string& name) {
  const Strings names = {"bf16", "fp8", "int8", "int4", "f16", "f32"};
  const ts::DType formats[] = {ts::DType::bf16, ts::DType::fp8_e4m3, ts::DType::int8,
                               ts::DType::int4, ts::DType::f16,      ts::DType::f32};
  return formats[choice_of("the format", name, names)];
}

// What a training program hides and fuses, by the name of one that is known.
inline ts::Software software_of(const std::string& name) {
  const Strings names = {"current", "megatron-2021", "deepspeed-2022", "eager-fsdp",
                         "deepseek-2024"};
  const ts::Software known[] = {ts::Software(), ts::software_megatron_2021(),
                                ts::software_deepspeed_2022(), ts::software_eager_fsdp(),
                                ts::software_deepseek_2024()};
  return known[choice_of("the software", name, names)];
}

// A preset, or a config.json.
inline ts::ModelConfig model_of(const std::string& name) {
  if (name.find('/') != std::string::npos ||
      (name.size() > 5 && name.substr(name.size() - 5) == ".json")) {
    return ts::read_config(name);
  }
  try {
    return ts::config(name);
  } catch (const ts::Error&) {
    ts::detail::fail({"no model is named \"", name, "\"; ",
                      ts::detail::near_text(name, ts::configs()), "; a config.json is right too"});
  }
}

inline ts::Shape dims_of(const std::string& text) {
  ts::Shape dims;
  for (const std::string& side : split(text, 'x')) {
    if (dims.size() == 4) {
      ts::detail::fail({"--dims is ", text, "; up to four, such as 16x20x28, are right"});
    }
    dims.push_back(whole_of("a side of --dims " + text, side, 1, 1e4));
  }
  return dims;
}

inline ts::Machine machine_of(const Options& options, const std::string& such_as) {
  options.needs("--chip", "tpu-v5p");
  const ts::Chip chip = ts::chip(options.text("--chip"));
  if (options.has("--chips") == options.has("--dims")) {
    ts::detail::fail({options.has("--dims") ? "both --chips and --dims are said"
                                            : "neither --chips nor --dims is said",
                      "; one is right, such as ", such_as});
  }
  ts::Machine machine = options.has("--dims")
                            ? ts::machine(chip, dims_of(options.text("--dims")))
                            : ts::machine_of_chips(chip, options.whole("--chips", 1, 1, 1e7));
  machine.dollars_per_hour = options.number("--price", machine.dollars_per_hour, 0, 1e6);
  return machine;
}

// "data=8,tensor=4,zero=3"; experts=whole: one on one tensor rank; data is what is left of the
// chips, chunks of a pipeline rank are no field of a layout.
inline ts::Layout layout_of(const std::string& text, std::int64_t chips, int& chunks) {
  ts::Layout layout;
  std::int64_t ts::Layout::*const counts[] = {&ts::Layout::data,        &ts::Layout::tensor,
                                              &ts::Layout::pipeline,    &ts::Layout::context,
                                              &ts::Layout::expert,      &ts::Layout::microbatches,
                                              &ts::Layout::zero_devices};
  const Strings keys = {"data",         "tensor", "pipeline",  "context", "expert", "microbatches",
                        "zero_devices", "zero",   "recompute", "chunks",  "experts"};
  Strings said;
  layout.data = 0;
  for (const std::string& item : split(text, ',')) {
    const std::size_t equals = item.find('=');
    const std::size_t key = choice_of("the part of --layout", item.substr(0, equals), keys);
    const std::string value = equals == std::string::npos ? "" : item.substr(equals + 1);
    const std::string what = "--layout " + keys[key];
    for (const std::string& before : said) {
      if (before == keys[key]) {
        ts::detail::fail({what, " is said twice; once is right"});
      }
    }
    said.push_back(keys[key]);
    if (key < 7) {
      layout.*counts[key] = whole_of(what, value, 1, 1e6);
    } else if (key == 7) {
      layout.zero = static_cast<ts::Zero>(whole_of(what, value, 0, 3));
    } else if (key == 9) {
      chunks = static_cast<int>(whole_of(what, value, 1, 1e6));
    } else if (key == 10) {
      layout.whole_experts = choice_of(what, value, {"cut", "whole"}) == 1;
    } else {
      layout.recompute =
          static_cast<ts::Recompute>(choice_of(what, value, {"none", "selective", "full"}));
    }
  }
  const std::int64_t others = layout.tensor * layout.pipeline * layout.context;
  layout.data = layout.data > 0 ? layout.data : std::max<std::int64_t>(1, chips / others);
  layout.sequence_parallel = layout.tensor > 1;
  return layout;
}

}  // namespace plan_program
