#pragma once
// The program `plan` as a function of its words.
#include <exception>
#include <sstream>
#include <string>

#include "plan_facts.hpp"

namespace plan_program {

inline constexpr const char* usage = R"(plan train MODEL --chip NAME --chips N --batch TOKENS
  [--context T] [--tokens N] [--format bf16|fp8|int8] [--mfu SHARE] [--price USD_AN_HOUR]
  [--software megatron-2021|deepspeed-2022|eager-fsdp|deepseek-2024]
  [--layout data=..,tensor=..,pipeline=..,context=..,expert=..,microbatches=..,zero=0..3,
    zero_devices=..,chunks=..,recompute=none|selective|full,experts=cut|whole]
  [--why] [--twin] [--svg FOLDER]
plan serve MODEL --chip NAME --chips N [--batch B] [--prompt T] [--output T] [--format int8]
  [--cache int8] [--compute int8] [--target SECONDS] [--why] [--frontier] [--svg FOLDER]
  [--simulate --rate REQUESTS_A_SECOND --requests N --servers N]
plan collective all_gather|reduce_scatter|all_reduce|all_to_all|broadcast --bytes 1GB
  --chip NAME --chips N [--axis D] [--svg FOLDER]
plan mfu MODEL --chip NAME --chips N, and how fast: --tokens-per-second X, or --step SECONDS
  --batch TOKENS, or --days D --tokens N; [--printed-mfu "41 %"] [--printed-tflops X] [--why]
plan explain QUANTITY train|serve MODEL ... [--depth N]
plan chip NAME [--svg FOLDER]; plan model NAME|config.json [--context T]; plan claims [ID]
Each takes --json; --dims 16x20x28 may stand for --chips; numbers may be 4e6 or 4M; MODEL is a
preset or the path of a config.json.
)";

inline void run(const Strings& args, std::ostream& out) {
  const Strings names = {"train", "serve", "collective", "mfu", "explain",
                         "chip",  "model", "claims",     "help"};
  void (*const commands[])(const Strings&, std::ostream&) = {
      train, serve,   collective,
      mfu,   explain, chip,
      model, claims,  [](const Strings&, std::ostream& to) { to << usage; }};
  const bool help = args[0] == "--help" || args[0] == "-h";
  const std::size_t command = help ? 8 : choice_of("the command", args[0], names);
  commands[command](Strings(args.begin() + 1, args.end()), out);
}

// Three questions, one screen each.
inline void tour(std::ostream& out) {
  const std::string pod = "llama3-70b --chip tpu-v5p --chips 8960", slice = "tpu-v5e --chips 16";
  const Strings questions = {
      "train " + pod + " --batch 4e6 --context 8192 --tokens 15e12",
      "serve llama3-70b --chip " + slice + " --batch 32 --prompt 8192 --output 512 --format int8",
      "collective all_gather --bytes 1GB --chip tpu-v5p --dims 4x4x4 --axis 2"};
  for (const std::string& question : questions) {
    out << (question == questions[0] ? "" : "\n") << wrapped("$ plan " + question) << "\n";
    run(split(question, ' '), out);
  }
}

// The exit status: 0 with an answer, or 2 with one sentence that says what would be right.
inline int program(const Strings& args, std::ostream& out, std::ostream& errors) {
  try {
    std::ostringstream answer;
    if (args.empty()) {
      tour(answer);
    } else {
      run(args, answer);
    }
    out << answer.str();
    return 0;
  } catch (const std::exception& error) {
    errors << "plan: " << error.what() << "\n";
    return 2;
  }
}

}  // namespace plan_program
