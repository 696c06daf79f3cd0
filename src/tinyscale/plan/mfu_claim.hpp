#pragma once
// A published claim of speed: a model, chips, how fast it went, and what the source prints of it.
//   tokens/s a chip = tokens/s / chips = batch / (step chips) = tokens / (days 86400 chips)
//                   = tokens / (chip hours 3600)
// A printed number is right to half a unit of its last digit, which says how near is near enough.

#include <cmath>    // fabs, pow
#include <cstdlib>  // strtod
#include <cstring>  // strncmp
#include <string>   // string

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/hardware/presets.hpp"
#include "tinyscale/measure/quantity.hpp"
#include "tinyscale/model/model_config.hpp"
#include "tinyscale/plan/mfu_conventions.hpp"

namespace tinyscale {

// A number as a source prints it and half a unit of its last digit: "121.48" is 121.48 +- 0.005,
// "64.05 %" is 0.6405 +- 0.00005. A text keeps zeros at the end that a number loses.
struct Printed {
  double value = 0, rounding = 0;
  bool stated = false;

  Printed() = default;
  Printed(double number);
  Printed(int number) : Printed(static_cast<double>(number)) {}  // else 0 could be a text
  Printed(long number) : Printed(static_cast<double>(number)) {}
  Printed(long long number) : Printed(static_cast<double>(number)) {}
  Printed(const char* text) : Printed(std::string(text)) {}
  Printed(const std::string& text);
  double relative() const { return value > 0 ? rounding / value : 0; }
};

namespace detail {

// Half a unit of the last digit of "121.48", "2e12", "1.5e-3".
inline double printed_rounding(const std::string& number) {
  const std::size_t power = number.find_first_of("eE");
  const std::size_t point = number.find('.');
  const std::size_t end = power == std::string::npos ? number.size() : power;
  const double decimals = point == std::string::npos ? 0 : static_cast<double>(end - point - 1);
  const double scale =
      power == std::string::npos ? 0 : std::strtod(number.c_str() + power + 1, nullptr);
  return 0.5 * std::pow(10.0, scale - decimals);
}

}  // namespace detail

inline Printed::Printed(const std::string& text) : stated(true) {
  std::size_t digits = 0;
  value = detail::read_decimal(text, &digits);
  const std::string number = text.substr(0, digits);
  const std::string rest = text.substr(number.size());
  const bool percent = rest == "%" || rest == " %";
  if (number.find_first_not_of(" \t+-.0123456789eE") != std::string::npos || number.empty() ||
      !detail::is_finite(value) || !(rest.empty() || percent)) {
    detail::fail(
        {"Printed: \"", text, "\" is not a number; right is such as 121.48, 2e12, 41.5 %"});
  }
  value /= percent ? 100 : 1;
  rounding = detail::printed_rounding(number) / (percent ? 100 : 1);
}

inline Printed::Printed(double number) : value(number), stated(true) {
  rounding =
      detail::is_finite(number) ? detail::printed_rounding(detail::printed('g', 12, number)) : 0;
}

// A slice of TPUs by its cloud name: the generations of two cores a chip are named by cores.
struct TpuSlice {
  std::string chip;  // "tpu-v5p"
  double named = 0, chips = 0;
};

// "v5p-2048" is 1024 chips of tpu-v5p, "tpu7x-128" 64 of tpu-v7, "v5e-256" 256 of tpu-v5e.
inline TpuSlice tpu_slice(const std::string& name) {
  const std::size_t dash = name.rfind('-');
  const std::string number = dash == std::string::npos ? "" : name.substr(dash + 1);
  const bool digits = number.size() < 8 && number.find_first_not_of("0123456789") == number.npos;
  const std::string letters = detail::chip_letters(name.substr(0, dash));
  const double named = digits ? std::strtod(number.c_str(), nullptr) : 0;
  for (const detail::ChipRow& row : detail::chip_rows()) {
    if (std::strncmp(row.topology, "torus", 5) == 0 && letters == detail::plain_letters(row.name) &&
        named >= 1 && named <= 1e6 && std::fmod(named, row.cores) < 0.5) {
      return {row.name, named, named / row.cores};
    }
  }
  detail::fail({"tpu_slice: \"", name, "\" is not the name of a slice; right is such as v4-128, ",
                "v5p-2048, v5e-256, tpu7x-128"});
}

struct MfuClaim {
  std::string source;  // who prints it
  ModelConfig model;
  double context = 0;  // tokens of a sequence; 0: the model's longest
  TokenWork work = TokenWork::training;
  Chip chip;
  double chips = 0;
  std::string slice;  // "v5p-2048"; sets chips when they are 0
  DType format = DType::bf16;
  Recompute recompute = Recompute::none;

  // How fast: at least one of these, or of the printed rates below.
  Printed tokens_per_second;  // of all chips
  Printed tokens_per_second_per_chip;
  Printed step_seconds;      // with batch_tokens
  Printed days, chip_hours;  // with tokens
  double batch_tokens = 0, tokens = 0;

  // What the source prints of it; mfu and hfu a fraction or "41.5 %".
  Printed tflops_per_chip, mfu, hfu;
};

namespace detail {

// A claim's tokens/s of one chip by one of the figures that it states.
struct ClaimSpeed {
  std::string what;
  Quantity rate;
  double rounding = 0;  // relative
};

inline void check_above_zero(const char* field, double value) {
  if (!is_finite(value) || value <= 0) {
    fail({"decode_mfu: ", field, " is ", value, "; a number above 0 is right"});
  }
}

inline void check_claim_rates(const MfuClaim& claim) {
  const struct {
    const char* field;
    const Printed& printed;
  } fields[] = {{"tokens_per_second", claim.tokens_per_second},
                {"tokens_per_second_per_chip", claim.tokens_per_second_per_chip},
                {"step_seconds", claim.step_seconds},
                {"days", claim.days},
                {"chip_hours", claim.chip_hours},
                {"tflops_per_chip", claim.tflops_per_chip},
                {"mfu", claim.mfu},
                {"hfu", claim.hfu}};
  for (const auto& field : fields) {
    if (field.printed.stated) {
      check_above_zero(field.field, field.printed.value);
    }
  }
  if (claim.tflops_per_chip.value > 1e6) {
    fail({"decode_mfu: tflops_per_chip is ", claim.tflops_per_chip.value,
          "; units of 1e12 FLOP/s are right"});
  }
  for (const Printed* share : {&claim.mfu, &claim.hfu}) {
    if (share->value > 2) {
      fail({"decode_mfu: ", share == &claim.mfu ? "mfu" : "hfu", " is ", share->value,
            "; a fraction such as ", share->value / 100, " or a text such as \"", share->value,
            " %\" is right"});
    }
  }
}

inline void check_claim_counts(const MfuClaim& claim) {
  const struct {
    const char* field;
    double value;
    const char* needed_by;
    bool needed;
  } counts[] = {
      {"chips", claim.chips, "tokens_per_second", claim.tokens_per_second.stated},
      {"chips", claim.chips, "step_seconds", claim.step_seconds.stated},
      {"chips", claim.chips, "days", claim.days.stated},
      {"batch_tokens", claim.batch_tokens, "step_seconds", claim.step_seconds.stated},
      {"tokens", claim.tokens, "days", claim.days.stated},
      {"tokens", claim.tokens, "chip_hours", claim.chip_hours.stated},
  };
  for (const auto& count : counts) {
    if (!is_finite(count.value) || count.value < 0) {
      fail({"decode_mfu: ", count.field, " is ", count.value, "; a number above 0 is right"});
    }
    if (count.needed && count.value == 0) {
      fail({"decode_mfu: ", count.field, " is 0; with ", count.needed_by,
            " a number above 0 is right"});
    }
  }
}

inline void check_claim_enum(const char* field, int value, int most) {
  if (value < 0 || value > most) {
    fail({"decode_mfu: ", field, " is ", value, "; a name of its enum is right"});
  }
}

// The claim with its open fields filled in; throws what is missing or cannot be.
inline MfuClaim checked_claim(MfuClaim claim) {
  if (!claim.slice.empty() && claim.chips == 0) {
    claim.chips = tpu_slice(claim.slice).chips;
  }
  claim.model.validate();
  check_claim_enum("work", static_cast<int>(claim.work), static_cast<int>(TokenWork::decode));
  check_claim_enum("recompute", static_cast<int>(claim.recompute),
                   static_cast<int>(Recompute::full));
  claim.context = claim.context == 0 ? static_cast<double>(claim.model.context) : claim.context;
  if (!is_finite(claim.context) || claim.context < 1 || claim.context > 1e9) {
    fail({"decode_mfu: context is ", claim.context, "; 1 to 1e+09 tokens are right"});
  }
  check_claim_rates(claim);
  check_claim_counts(claim);
  const bool speed = claim.tokens_per_second.stated || claim.tokens_per_second_per_chip.stated ||
                     claim.step_seconds.stated || claim.days.stated || claim.chip_hours.stated;
  if (!speed && !claim.tflops_per_chip.stated && !claim.mfu.stated && !claim.hfu.stated) {
    fail({"decode_mfu: the claim of ", claim.model.name,
          " states no speed; right is one of tokens_per_second, tokens_per_second_per_chip, "
          "step_seconds with batch_tokens, days or chip_hours with tokens, tflops_per_chip, mfu, "
          "hfu"});
  }
  return claim;
}

inline Quantity printed_quantity(const Printed& printed, const char* unit, const char* name) {
  return Quantity(printed.value, unit, name, "printed");
}

// Each speed that the claim states, the one of the most digits first.
inline List<ClaimSpeed> claim_speeds(const MfuClaim& claim) {
  const Quantity chips(claim.chips, "", "chips");
  const Quantity batch(claim.batch_tokens, "", "tokens of a step");
  const Quantity tokens(claim.tokens, "", "tokens");
  List<ClaimSpeed> out;
  const auto add = [&out](const char* what, const Quantity& rate, const Printed& printed) {
    out.push_back({what, named("tokens/s a chip", rate), printed.relative()});
    if (out.back().rounding < out.front().rounding) {
      const ClaimSpeed better = out.back();
      out.back() = out.front();
      out.front() = better;
    }
  };
  if (claim.tokens_per_second.stated) {
    add("tokens/s", printed_quantity(claim.tokens_per_second, "1/s", "tokens/s") / chips,
        claim.tokens_per_second);
  }
  if (claim.tokens_per_second_per_chip.stated) {
    add("tokens/s a chip", Quantity(claim.tokens_per_second_per_chip.value, "1/s", "", "printed"),
        claim.tokens_per_second_per_chip);
  }
  if (claim.step_seconds.stated) {
    add("step time", batch / (printed_quantity(claim.step_seconds, "s", "step time") * chips),
        claim.step_seconds);
  }
  if (claim.days.stated) {
    const Quantity seconds = printed_quantity(claim.days, "", "days") * Quantity(86400.0, "s");
    add("days", tokens / (seconds * chips), claim.days);
  }
  if (claim.chip_hours.stated) {
    const Quantity seconds =
        printed_quantity(claim.chip_hours, "", "chip hours") * Quantity(3600.0, "s");
    add("chip hours", tokens / seconds, claim.chip_hours);
  }
  return out;
}

}  // namespace detail
}  // namespace tinyscale
