// The program `plan`: every command, its JSON, its pictures, and what it says of bad input. And the
// conversation of example 36, which has its options.
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>

#include "../examples/plan_program.hpp"
#include "../examples/story_chat.hpp"
#include "error_of.hpp"
#include "well_formed.hpp"

namespace ts = tinyscale;

namespace {

struct Answer {
  int status = 0;
  std::string out, errors;
  bool has(const std::string& words) const { return out.find(words) != std::string::npos; }
};

Answer plan(const std::string& line) {
  std::ostringstream out, errors;
  Answer answer;
  answer.status = plan_program::program(plan_program::split(line, ' '), out, errors);
  answer.out = out.str();
  answer.errors = errors.str();
  return answer;
}

// What is said of a line that is not right: one sentence, nothing else.
std::string refused(const std::string& line) {
  const Answer answer = plan(line);
  CHECK(answer.status == 2);
  CHECK(answer.out.empty());
  CHECK(occurrences(answer.errors, "\n") == 1);
  return answer.errors;
}

// Brackets in order outside of strings, strings closed.
bool json_closes(const std::string& text) {
  std::string open;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted && c == '\\') {
      ++i;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (!quoted && (c == '{' || c == '[')) {
      open += c == '{' ? '}' : ']';
    } else if (!quoted && (c == '}' || c == ']')) {
      if (open.empty() || open.back() != c) {
        return false;
      }
      open.pop_back();
    }
  }
  return open.empty() && !quoted && !text.empty() && text[0] == '{';
}

const std::string job = "llama3-70b --chip tpu-v5p --chips 8960 --batch 4e6 --context 8192";

}  // namespace

TEST_CASE("plan train: the plan of the library, in one screen") {
  const Answer answer = plan("train " + job + " --tokens 15T");
  CHECK(answer.status == 0);
  CHECK(answer.errors.empty());
  ts::TrainingJob same;
  same.model = ts::config("llama3-70b");
  same.context = 8192;
  same.tokens = 15e12;
  const ts::TrainingPlan expected = ts::plan_training(same, ts::machine("tpu-v5p", {16, 20, 28}));
  CHECK(answer.has("T_step, typical             " + expected.typical_step_time.text()));
  CHECK(answer.has("dollars, typical            " +
                   ts::format_count(std::floor(expected.dollars.value()))));
  CHECK(occurrences(answer.out, "\n") < 40);
  for (const std::string& line : plan_program::split(answer.out, '\n')) {
    CHECK(line.size() <= 100);
  }
  CHECK(plan("train " + job + " --dims 16x20x28 ").status == 2);  // and --chips
  CHECK(plan("train llama3-70b --chip=tpu-v5p --dims=16x20x28 --context 8192 --tokens 15e12").out ==
        answer.out);
  CHECK(plan("train " + job + " --why").has("instead of"));
  CHECK(plan("train " + job + " --price 1")
            .has("dollars, typical            " +
                 ts::format_count(std::floor(expected.dollars.value() / 4.2))));
  const Answer given = plan(
      "train llama3-8b --chip h100 --chips 64 --batch 4M --layout "
      "data=8,tensor=4,pipeline=2,microbatches=8,zero=1,recompute=full");
  CHECK(given.has("data 8, tensor 4, pipeline 2, context 1, microbatches 8"));
  CHECK(given.has("recompute: full"));
  CHECK(plan("train llama3-8b --chip h100 --chips 64 --batch 4M --layout "
             "data=8,tensor=4,pipeline=2,microbatches=8,chunks=4")
            .has("sequence parallel, 4 chunks"));
  const std::string mixture =
      "train qwen3-30b-a3b --chip h100 --chips 64 --batch 4M --layout "
      "tensor=4,expert=8,microbatches=4,zero=1,recompute=full,experts=";
  CHECK(plan(mixture + "whole").has("sequence parallel, whole experts"));
  CHECK(!plan(mixture + "cut").has("whole experts"));
  CHECK(refused(mixture + "half") ==
        "plan: --layout experts \"half\" is not known; the names are cut, whole\n");
  CHECK(plan("train llama3-8b --chip h100 --chips 64 --twin").has("twin of llama3-8b"));
  const std::string deepseek =  // 19.9 s a step
      "train deepseek-v3 --chip h800 --chips 2048 --batch 62914560 --context 4096 --format fp8 "
      "--layout data=128,pipeline=16,expert=64,microbatches=120,zero=1 --software ";
  CHECK(plan(deepseek + "deepseek-2024").has("T_step, typical             20.7 s"));
  CHECK(plan(deepseek + "current").has("T_step, typical             30.6 s"));
  CHECK(refused(deepseek + "deepsek-2024") ==
        "plan: the software \"deepsek-2024\" is not known; near it are deepseek-2024, "
        "deepspeed-2022\n");
}

TEST_CASE("plan serve: the plan, the frontier and a simulation") {
  const std::string line = "llama2-13b --chip tpu-v5e --chips 4 --format int8 --prompt 2048";
  const Answer answer = plan("serve " + line);
  ts::ServingJob same;
  same.model = ts::config("llama2-13b");
  same.format = ts::DType::int8;
  const ts::ServingPlan expected = ts::plan_serving(same, ts::machine("tpu-v5e", {2, 2}));
  CHECK(answer.has(expected.table().text()));
  CHECK(occurrences(answer.out, "\n") < 40);
  CHECK(plan("serve " + line + " --frontier").has("latency against cost"));
  const Answer run = plan("serve " + line + " --simulate --rate 2 --requests 20");
  CHECK(run.has("time to first token"));
  CHECK(run.has("Poisson, 2 requests/s, seed 1"));
  CHECK(plan("serve " + line + " --why").has("Ways to share it"));
  CHECK(refused("serve " + line + " --simulate") ==
        "plan: --rate is missing; right is such as --rate 4 (requests a second)\n");
}

TEST_CASE("plan explain: a quantity with its formula and the numbers put in") {
  const Answer all = plan("explain step_time train " + job);
  CHECK(all.has("T_step = max(max(max("));
  CHECK(all.has("C = 4.59e+14 FLOP/s   [bf16 peak of tpu-v5p]"));
  const Answer one = plan("explain step_time train " + job + " --depth 0");
  CHECK(occurrences(one.out, "\n") < 5);
  CHECK(plan("explain weights serve llama3-8b --chip h100 --chips 1").has("8.03026e+09"));
  CHECK(refused("explain step_tim train " + job) ==
        "plan: the quantity \"step_tim\" is not known; near it are step_time, "
        "typical_step_time\n");
  CHECK(refused("explain step_time") ==
        "plan: explain needs a quantity and a job; right is such as explain step_time train "
        "llama3-70b --chip tpu-v5p --chips 8960\n");
}

TEST_CASE("plan collective: formula, algorithms, and the same bytes counted in a run") {
  const Answer answer =
      plan("collective all_gather --bytes 524288 --chip tpu-v5p --dims 4x4x4 --axis 2");
  CHECK(answer.has("A[I_x] -> A[I]"));
  CHECK(answer.has("4 (ring, 90 GB/s one way)"));
  CHECK(answer.has("ring both ways        2"));
#if defined(TINYSCALE_NO_THREADS)
  CHECK(answer.has("run: not without threads: this is compiled with TINYSCALE_NO_THREADS"));
#else
  CHECK(answer.has("393,216 bytes (counted)"));  // 3/4 of them
  CHECK(answer.has("4.91 us (simulated)"));
  CHECK(answer.has("4.91 us (formula)"));
  for (const char* what : {"reduce_scatter", "all_reduce", "all_to_all", "broadcast"}) {
    const Answer other =
        plan(std::string("collective ") + what + " --bytes 64KiB --chip h100 --chips 8");
    CHECK(other.status == 0);
    CHECK(other.has("(simulated)"));
  }
  CHECK(plan("collective all_gather --bytes 1GB --chip tpu-v5p --chips 8960")
            .has("run: not of 8960 devices here; up to 256 are"));
#endif
  CHECK(refused("collective all_gathr --bytes 1GB --chip h100 --chips 8") ==
        "plan: the collective \"all_gathr\" is not known; near it is all_gather\n");
  CHECK(refused("collective all_gather --bytes 1XB --chip h100 --chips 8") ==
        "plan: --bytes is 1XB; a number of B, kB, MB, GB, KiB, MiB, GiB is right\n");
  CHECK(refused("collective all_gather --bytes nan --chip h100 --chips 8") ==
        "plan: --bytes is nan; a number of B, kB, MB, GB, KiB, MiB, GiB is right\n");
  CHECK(refused("collective all_gather --bytes 1e18GB --chip h100 --chips 8") ==
        "plan: --bytes is 1e18GB; from 0 to 1e18 bytes are right\n");
  CHECK(refused("collective all_gather --bytes 2 --chip h100 --chips 8") ==
        "plan: --bytes is 2; 16 or more, a bf16 number for each of 8 devices, are right\n");
  CHECK(refused("collective all_gather --bytes 2 --chip h100 --chips 1") ==
        "plan: all_gather on h100-sxm 1 is over one device, which sends nothing; 2 or more are "
        "right\n");
}

TEST_CASE("plan: flags that the command would not look at are refused") {
  CHECK(refused("serve llama3-8b --chip h100 --chips 8 --servers 3") ==
        "plan: --servers is said without --simulate; both or neither are right\n");
  CHECK(refused("train " + job + " --depth 3").find("plan: the flag \"--depth\" is not known") ==
        0);
  CHECK(refused("explain days train " + job + " --svg .").find("plan: the flag \"--svg\"") == 0);
}

TEST_CASE("plan mfu, chip, model, claims, help") {
  const Answer mfu = plan("mfu llama3-70b --chip h100 --chips 64 --step 70 --batch 4M --why");
  CHECK(mfu.has("verdict: possible"));
  CHECK(mfu.has("MFU = "));
  CHECK(plan("mfu llama3-70b --chip h100 --chips 64 --tokens-per-second 1e6").has("impossible"));
  CHECK(plan("mfu gpt2 --chip h100 --chips 8 --tokens-per-second 1.50M").out ==
        plan("mfu gpt2 --chip h100 --chips 8 --tokens-per-second 1.50e6").out);
  CHECK(refused("mfu gpt2 --chip h100 --chips 8 --tokens-per-second 50%") ==
        "plan: --tokens-per-second is \"50%\"; a number such as 4000000, 4e6 or 4M is right\n");
  CHECK(plan("chip tpu-v5p").has("FLOP for a byte at the knee"));
  CHECK(plan("chip tpu-v5p").has("166"));
  const Answer model = plan("model llama3-70b --context 4096");
  CHECK(model.has("70,553,706,496"));
  CHECK(model.has("a sequence of 4096"));
  CHECK(plan("claims A3").has("13 billion"));
  CHECK(plan("help").out == plan("--help").out);
  CHECK(plan("help").has("plan explain QUANTITY"));
}

TEST_CASE("plan: each command as JSON") {
  for (const std::string& line :
       plan_program::Strings{"train " + job,
                             "serve llama3-8b --chip h100 --chips 8 --frontier --simulate --rate 1 "
                             "--requests 5",
                             "explain days train " + job, "chip h100", "model gpt2", "claims A3",
                             "mfu gpt2 --chip h100 --chips 8 --printed-mfu 0.4",
                             "collective all_reduce --bytes 1MB --chip h100 --chips 16"}) {
    CAPTURE(line);
    const Answer answer = plan(line + " --json");
    CHECK(answer.status == 0);
    CHECK(json_closes(answer.out));
  }
}

TEST_CASE("plan: pictures are saved where --svg says") {
  const char* tmp = std::getenv("TMPDIR");
  const std::string folder = tmp != nullptr ? tmp : ".";
  const auto saved = [&](const std::string& line, const plan_program::Strings& names) {
    const Answer answer = plan(line + " --svg " + folder);
    for (const std::string& name : names) {
      const std::string path = folder + "/" + name;
      const bool json = line.find("--json") != std::string::npos;  // which stays JSON alone
      CHECK(answer.has("wrote " + path) == !json);
      CHECK((!json ||
             (json_closes(answer.out) && answer.out.substr(answer.out.size() - 2) == "}\n")));
      std::string text;
      std::FILE* file = std::fopen(path.c_str(), "rb");
      REQUIRE(file != nullptr);
      for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) {
        text += static_cast<char>(c);
      }
      std::fclose(file);
      std::remove(path.c_str());
      CHECK(well_formed(text));
    }
  };
  saved("train llama3-8b --chip h100 --chips 64",
        {"step.svg", "memory.svg", "roofline.svg", "regimes.svg"});
  saved("serve llama3-8b --chip h100 --chips 8", {"frontier.svg"});
  saved("chip tpu-v5e --format int8", {"roofline.svg"});
#if !defined(TINYSCALE_NO_THREADS)
  for (const char* chips : {"tpu-v5e --dims 4x2 --axis 0", "h100 --chips 16"}) {  // grid, switches
    saved(std::string("collective all_gather --bytes 64KiB --chip ") + chips,
          {"timeline.svg", "links.svg"});
  }
  CHECK(refused("collective all_gather --bytes 1MB --chip h100 --chips 512 --svg .") ==
        "plan: --svg draws a run, and there is none: not of 512 devices here; up to 256 are\n");
  saved("collective all_reduce --bytes 64KiB --chip h100 --chips 8 --json",
        {"timeline.svg", "links.svg"});
#endif
  saved("chip h100 --json", {"roofline.svg"});
  saved("train llama3-8b --chip h100 --chips 64 --json --twin",
        {"step.svg", "memory.svg", "roofline.svg", "regimes.svg"});
  CHECK(plan("chip h100 --svg " + folder + "/none").status == 2);
}

TEST_CASE("plan: what is not right is said with what would be") {
  CHECK(refused("trian") == "plan: the command \"trian\" is not known; near it is train\n");
  CHECK(refused("train") == "plan: no model is named; one model is right\n");
  CHECK(refused("train gpt2 llama3-8b") == "plan: \"gpt2 llama3-8b\"; one model is right\n");
  CHECK(refused("train gpt2") == "plan: --chip is missing; right is such as --chip tpu-v5p\n");
  CHECK(refused("train lama3-70b --chip h100 --chips 8") ==
        "plan: no model is named \"lama3-70b\"; near it are llama3-70b, llama2-70b, llama3.2-1b, "
        "llama3.2-3b; a config.json is right too\n");
  CHECK(refused("train gpt2 --chip h10 --chips 8").find("near it are h100-sxm") !=
        std::string::npos);
  CHECK(refused("train gpt2 --chip h100") ==
        "plan: neither --chips nor --dims is said; one is right, such as --chips 8960\n");
  CHECK(refused("train gpt2 --chip h100 --chips 8 --dims 8") ==
        "plan: both --chips and --dims are said; one is right, such as --chips 8960\n");
  CHECK(refused("train gpt2 --chip h100 --dims 1x2x3x4x5") ==
        "plan: --dims is 1x2x3x4x5; up to four, such as 16x20x28, are right\n");
  CHECK(refused("train gpt2 --chip h100 --chips 4x4") ==
        "plan: --chips is \"4x4\"; a number such as 4000000, 4e6 or 4M is right\n");
  CHECK(refused("train gpt2 --chip h100 --chips 1.5") ==
        "plan: --chips is 1.5; a whole number is right\n");
  CHECK(refused("train gpt2 --chip h100 --chips 0") ==
        "plan: --chips is 0; a number from 1 to 10000000 is right\n");
  CHECK(refused("train gpt2 --chip h100 --chips 8 --bach 3") ==
        "plan: the flag \"--bach\" is not known; near it is --batch\n");
  CHECK(refused("train gpt2 --chip h100 --chips 8 --batch") ==
        "plan: --batch has no value; right is --batch and its value\n");
  CHECK(refused("train gpt2 --chip h100 --chips 8 --chips 8") ==
        "plan: --chips is said twice; once is right\n");
  CHECK(refused("train gpt2 --chip h100 --chips 8 --json=1") ==
        "plan: --json takes no value, \"1\" is given\n");
  CHECK(refused("train gpt2 --chip h100 --chips 8 --layout tenor=2") ==
        "plan: the part of --layout \"tenor\" is not known; near it is tensor\n");
  CHECK(refused("train gpt2 --chip h100 --chips 8 --layout tensor=2,zero=1,tensor=4") ==
        "plan: --layout tensor is said twice; once is right\n");
  CHECK(refused("train gpt2 --chip h100 --chips 8 --format bf61") ==
        "plan: the format \"bf61\" is not known; near it is bf16\n");
  const std::string large = refused("train llama3-70b --chip tpu-v5e --chips 8 --batch 65536");
  CHECK(large.find("would fit: tpu-v5e ") != std::string::npos);
  CHECK(refused("train gpt2 --chip tpu-v5p --chips 100").find("near are 64 and 128") !=
        std::string::npos);
  CHECK(refused("model none.json").find("read_config: cannot open \"none.json\"") !=
        std::string::npos);
}

TEST_CASE("example 36: a line that cannot be answered leaves the conversation as it was") {
  ts::ModelConfig c;
  c.vocabulary = 14;
  c.context = 120;
  ts::Transformer model(c, 3);
  model.tokenizer = ts::Tokenizer(std::vector<std::string>{"\n", " ", ":", "A", "U", "a", "e", "g",
                                                           "h", "i", "n", "r", "s", "t"});
  const auto talk = [&](const std::vector<std::string>& lines) {
    std::ostringstream said;
    std::streambuf* const screen = std::cout.rdbuf(said.rdbuf());
    ts::GenerateOptions greedy;
    greedy.temperature = 0;
    story::Storyteller teller(model, nullptr, greedy);
    story::Chat chat(model, teller, 12);
    std::string errors;
    for (const std::string& line : lines) {
      errors += error_of([&] { chat.answer(line); }) + "|";
    }
    std::cout.rdbuf(screen);
    return std::vector<std::string>{said.str(), errors};
  };
  const auto plain = talk({"hi", "again"});
  CHECK(plain[1] == "no error|no error|");
  const auto disturbed = talk({"hi", std::string(100, 'a'), "xyz", "again"});
  CHECK(disturbed[0] == plain[0]);
  CHECK(disturbed[1] ==
        "no error|chat: 117 tokens and an answer of up to 12 in a context of 120; a shorter line "
        "or --tokens is right|encode: the character \"x\" at byte 0 is not among the 14 of the "
        "training text; leave it out|no error|");
}
