#pragma once
// A training in a file, whole, whatever layout it ran in: the model as save() writes it, which
// load(path) reads, both moments of AdamW, and in the metadata how far it came, what its batches
// depend on and its losses. Written beside, then renamed: a kill loses the steps since the last
// save.

#include <cerrno>   // errno
#include <cmath>    // floor, sqrt, HUGE_VAL
#include <cstdint>  // int64_t
#include <cstring>  // memcpy
#include <string>   // string
#include <vector>   // vector

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/order.hpp"
#include "tinyscale/base/save_file.hpp"
#include "tinyscale/model/checkpoint.hpp"
#include "tinyscale/model/read_text.hpp"
#include "tinyscale/parallel/train_report.hpp"
#include "tinyscale/parallel/trainer.hpp"

namespace tinyscale {
namespace detail {

constexpr const char* moment_prefix = "optimizer.moments.";
constexpr const char* square_prefix = "optimizer.squares.";

// null: a norm that overflowed, in a step that was left out.
inline std::string numbers_json(const std::vector<double>& numbers) {
  std::string json = "[";
  for (const double number : numbers) {
    json += json.size() > 1 ? "," : "";
    json += is_finite(number) ? exact_number(number) : "null";
  }
  return json + "]";
}

inline std::string training_json(const List<SafetensorsNote>& data, const TrainState& state,
                                 const TrainReport& report) {
  std::string json = cat({"{\"format\":\"", name_of(report.format), "\","});
  for (const SafetensorsNote& note : data) {
    json += cat({"\"", note.name, "\":\"", json_escape(note.text), "\","});
  }
  std::vector<double> validated, validation;
  for (const Validation& v : report.validation) {
    validated.push_back(static_cast<double>(v.step));
    validation.push_back(v.loss);
  }
  return json +
         cat({"\"steps\":", report.losses.size(), ",\"updates\":", state.steps,
              ",\"loss_scale\":", exact_number(state.loss_scale),
              ",\"good_steps\":", state.good_steps, ",\"losses\":", numbers_json(report.losses),
              ",\"grad_norms\":", numbers_json(report.grad_norms), ",\"validated\":",
              numbers_json(validated), ",\"validation\":", numbers_json(validation), "}"});
}

inline const Json& training_note(const Json& notes, const char* key, Json::Kind kind,
                                 const std::string& who) {
  const Json* const note = notes.find(key);
  if (note == nullptr || note->kind != kind) {
    fail({who, "its training lacks ", key});
  }
  return *note;
}

inline std::int64_t training_whole(const Json& notes, const char* key, const std::string& who) {
  const Json& note = training_note(notes, key, Json::Kind::number, who);
  return static_cast<std::int64_t>(json_whole(note, cat({who, "its ", key})));
}

inline std::vector<double> training_numbers(const Json& notes, const char* key,
                                            const std::string& who, bool may_overflow = false) {
  std::vector<double> numbers;
  for (const Json& item : training_note(notes, key, Json::Kind::list, who).list) {
    const bool overflowed = may_overflow && item.kind == Json::Kind::null;
    if (!overflowed && (item.kind != Json::Kind::number || !is_finite(item.number))) {
      fail({who, "its ", key, " hold what is no finite number"});
    }
    numbers.push_back(overflowed ? HUGE_VAL : item.number);
  }
  return numbers;
}

// How far it came; the report's losses so far.
inline void read_progress(const Json& notes, TrainState& state, TrainReport& report,
                          const std::string& who) {
  report.resumed = training_whole(notes, "steps", who);
  state.steps = training_whole(notes, "updates", who);
  state.good_steps = training_whole(notes, "good_steps", who);
  state.loss_scale = training_note(notes, "loss_scale", Json::Kind::number, who).number;
  report.losses = training_numbers(notes, "losses", who);
  report.grad_norms = training_numbers(notes, "grad_norms", who, true);
  const std::vector<double> validated = training_numbers(notes, "validated", who);
  const std::vector<double> validation = training_numbers(notes, "validation", who);
  const auto steps = static_cast<std::size_t>(report.resumed);
  if (report.losses.size() != steps || report.grad_norms.size() != steps ||
      validated.size() != validation.size()) {
    fail({who, report.resumed, " steps with ", report.losses.size(), " losses, ",
          report.grad_norms.size(), " gradient norms and ", validation.size(),
          " validation losses at ", validated.size(), " steps; one of each a step is right"});
  }
  for (std::size_t i = 0; i < validated.size(); ++i) {
    if (!(validated[i] >= 0 && validated[i] <= static_cast<double>(steps)) ||
        std::floor(validated[i]) < validated[i]) {
      fail({who, "validation after step ", validated[i], " of ", steps,
            "; a whole number up to those is right"});
    }
    report.validation.push_back({static_cast<std::int64_t>(validated[i]), validation[i]});
  }
  if (state.steps > report.resumed || !is_finite(state.loss_scale) || state.loss_scale <= 0) {
    fail({who, state.steps, " updates in ", report.resumed, " steps at a loss scale of ",
          state.loss_scale, "; at most one a step and a scale above 0 are right"});
  }
}

inline std::string json_word(const Json* value) {
  return value == nullptr                     ? "nothing"
         : value->kind == Json::Kind::text    ? value->text
         : value->kind == Json::Kind::list    ? cat({value->list.size(), " numbers"})
         : value->kind == Json::Kind::boolean ? (value->number != 0 ? "true" : "false")
                                              : cat({value->number});
}

// One field of a config, in the file and here; null: not there. Of lists of one length an Error
// names the item.
inline void check_same_field(const std::string& name, const Json* there, const Json* own,
                             const std::string& who) {
  const bool both = there != nullptr && own != nullptr && there->kind == own->kind;
  bool same = both && there->text == own->text && !(there->number < own->number) &&
              !(there->number > own->number) && there->list.size() == own->list.size();
  for (std::size_t i = 0; same && i < own->list.size(); ++i) {
    check_same_field(cat({name, "[", i, "]"}), &there->list[i], &own->list[i], who);
  }
  if (!same) {
    fail({who, "its model has ", name, " ", json_word(there), ", this one ", json_word(own),
          "; resume the model that was saved"});
  }
}

// Both as config_json writes them, which leaves out what is as in most models.
inline void check_same_model(const std::string& text, const ModelConfig& config,
                             const std::string& who) {
  const Json there = parse_json(config_json(config_from_json(text, who)));
  const Json own = parse_json(config_json(config));
  for (const JsonField& field : own.fields) {
    if (field.name != "name") {
      check_same_field(field.name, there.find(field.name), &field.value, who);
    }
  }
  for (const JsonField& field : there.fields) {
    if (own.find(field.name) == nullptr) {
      check_same_field(field.name, &field.value, nullptr, who);
    }
  }
}

inline Tensor checkpoint_tensor(const Safetensors& file, const std::string& name,
                                const Shape& shape, NameTable& used, const std::string& who) {
  const SafetensorsEntry* const entry = file.find(name);
  if (entry == nullptr) {
    fail({who, "no tensor \"", name, "\""});
  }
  if (entry->shape != shape || entry->dtype != "F32") {
    fail({who, "the tensor \"", name, "\" is ", entry->shape, " of ", entry->dtype, "; ", shape,
          " of F32 is right"});
  }
  ++used[name];
  Tensor value(shape);
  std::memcpy(value.data(), file.stored(*entry).data, static_cast<std::size_t>(value.count()) * 4);
  if (!is_finite(kernels::sum_of_squares(value.count(), value.data()))) {
    fail({who, "the tensor \"", name, "\" holds what is no finite number"});
  }
  return value;
}

// What a file's text is to be the same in, so that the batches go on as they would have.
inline std::string text_mark(const Text& text) {
  std::uint64_t hash = 14695981039346656037U;  // FNV-1a of the tokens to learn
  for (std::int64_t i = 0; i < text.split; ++i) {
    hash = (hash ^ static_cast<std::uint32_t>(text.tokens[static_cast<std::size_t>(i)])) *
           1099511628211U;
  }
  return cat({text.split, " tokens of hash ", hash});
}

// The file of one training.
class TrainCheckpoint {
 public:
  TrainCheckpoint(const Text& text, const TrainOptions& options) : options_(options) {
    data_ = {{"seed", cat({options.seed})}, {"batch", cat({options.batch})}};
    data_.push_back({"text", text_mark(text)});
    check_safetensors_name("train", path());
    remove_abandoned("train", path());      // of a training that was killed
    const SaveFile probe("train", path());  // now, not after the first hour
  }

  // Where the training stood, its weights put in the model and its losses in the report; the start,
  // if there is no file or nobody wants it.
  TrainState resume(Transformer& model, TrainReport& report) const {
    TrainState state;
    if (!options_.resume || !exists()) {
      return state;
    }
    const Safetensors file = read_safetensors(path());
    const std::string who = cat({"train: \"", path(), "\": "});
    const std::string* const config = file.find_metadata("tinyscale.config");
    const std::string* const training = file.find_metadata("tinyscale.training");
    if (config == nullptr || training == nullptr) {
      fail({who, "it holds no training to resume; give the checkpoint of one, or resume false"});
    }
    check_same_model(*config, model.config, who);
    const Json notes = parse_named(*training, who);
    for (const SafetensorsNote& own : data_) {
      const Json& note = training_note(notes, own.name.c_str(), Json::Kind::text, who);
      if (note.text != own.text) {
        fail({who, own.name, " is ", note.text, " there and ", own.text,
              " here; the same is right, for the same batches"});
      }
    }
    TrainReport read;
    read_progress(notes, state, read, who);
    if (training_note(notes, "format", Json::Kind::text, who).text !=
        name_of(options_.format.type)) {
      state.loss_scale = 0;  // that of another format says nothing about this one
      state.good_steps = 0;
    }
    read_tensors(file, model, state, who);
    report.resumed = read.resumed;
    report.skipped_steps = read.resumed - state.steps;
    report.losses.swap(read.losses);
    report.grad_norms.swap(read.grad_norms);
    report.validation.swap(read.validation);
    return state;
  }

  // Throws before the old file is touched when a number is not finite.
  void save(Trainer& trainer, const TrainReport& report) const {
    const Transformer& model = trainer.model();
    const TrainState& state = trainer.state();
    List<Parameter> tensors = model.parameters;
    for (std::size_t i = 0; i < model.parameters.size(); ++i) {
      const std::string& name = model.parameters[i].name;
      tensors.push_back({moment_prefix + name, state.moments[i]});
      tensors.push_back({square_prefix + name, state.squares[i]});
    }
    double total = 0;
    for (const Parameter& tensor : tensors) {
      total += kernels::sum_of_squares(tensor.value.count(), tensor.value.data());
    }
    const auto steps = static_cast<std::int64_t>(report.losses.size());
    check_finite("train", "norm of the weights and moments", std::sqrt(total), steps - 1, options_);
    write_safetensors(path(), tensors,
                      {{"format", "pt"},
                       {"tinyscale.config", config_json(model.config)},
                       {"tinyscale.tokenizer", tokenizer_json(model.tokenizer)},
                       {"tinyscale.training", training_json(data_, state, report)}});
  }

 private:
  bool exists() const {
    const File file(std::fopen(path().c_str(), "rb"));
    return file.get() != nullptr || errno != ENOENT;
  }

  // All are read before any is put in the model.
  static void read_tensors(const Safetensors& file, Transformer& model, TrainState& state,
                           const std::string& who) {
    List<Tensor> weights;
    NameTable used;
    const MemoryScope scope(MemoryKind::optimizer);
    for (const Parameter& p : model.parameters) {
      const Shape shape = p.value.shape();
      weights.push_back(checkpoint_tensor(file, p.name, shape, used, who));
      state.moments.push_back(checkpoint_tensor(file, moment_prefix + p.name, shape, used, who));
      state.squares.push_back(checkpoint_tensor(file, square_prefix + p.name, shape, used, who));
      const Tensor& squares = state.squares.back();
      for (std::int64_t i = 0; i < squares.count(); ++i) {
        if (squares.data()[i] < 0) {
          fail({who, "the tensor \"", square_prefix, p.name, "\" holds ", squares.data()[i],
                "; means of squares are not negative"});
        }
      }
    }
    for (const SafetensorsEntry& entry : file.entries) {
      if (!used.has(entry.name)) {
        fail({who, "the tensor \"", entry.name, "\" has no place in a training of this model"});
      }
    }
    for (std::size_t i = 0; i < weights.size(); ++i) {
      std::memcpy(model.parameters[i].value.data(), weights[i].data(),
                  static_cast<std::size_t>(weights[i].count()) * 4);
    }
  }

  const std::string& path() const { return options_.checkpoint; }

  const TrainOptions& options_;
  List<SafetensorsNote> data_;  // what the batches depend on
};

// How train() reaches it.
struct TrainFileCalls {
  Shared<TrainCheckpoint> (*open)(const Text& text, const TrainOptions& options);
  TrainState (*resume)(const TrainCheckpoint& file, Transformer& model, TrainReport& report);
  void (*save)(const TrainCheckpoint& file, Trainer& trainer, const TrainReport& report);
};

inline Shared<TrainCheckpoint> open_train_file(const Text& text, const TrainOptions& options) {
  return Shared<TrainCheckpoint>(new TrainCheckpoint(text, options));
}
inline TrainState resume_train_file(const TrainCheckpoint& file, Transformer& model,
                                    TrainReport& report) {
  return file.resume(model, report);
}
inline void save_train_file(const TrainCheckpoint& file, Trainer& trainer,
                            const TrainReport& report) {
  file.save(trainer, report);
}

inline const TrainFileCalls* train_file_calls() {
  static const TrainFileCalls calls = {open_train_file, resume_train_file, save_train_file};
  return &calls;
}

}  // namespace detail

inline TrainFile::TrainFile(const std::string& path)
    : std::string(path), calls(detail::train_file_calls()) {}

}  // namespace tinyscale
