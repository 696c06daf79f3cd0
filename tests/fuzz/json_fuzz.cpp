// The JSON reader: what it accepts is written out and read again, the same value.
#include "fuzz.hpp"
#ifndef FUZZ_REPLAY
#include "tinyscale/base/text.hpp"
#include "tinyscale/model/json.hpp"
#endif

namespace fuzz_json {

using tinyscale::Json;

// False: a number that JSON cannot spell (1e999 is read as infinity).
inline bool write(const Json& value, std::string& out) {
  bool finite = true;
  switch (value.kind) {
    case Json::Kind::null: out += "null"; break;
    case Json::Kind::boolean: out += value.number != 0 ? "true" : "false"; break;
    case Json::Kind::number:
      finite = tinyscale::detail::is_finite(value.number);
      out += tinyscale::detail::exact_number(value.number);
      break;
    case Json::Kind::text: out += "\"" + tinyscale::json_escape(value.text) + "\""; break;
    case Json::Kind::list:
      out += '[';
      for (const Json& item : value.list) {
        out += out.back() == '[' ? " " : ", ";
        finite = write(item, out) && finite;
      }
      out += ']';
      break;
    default:
      out += '{';
      for (const tinyscale::JsonField& field : value.fields) {
        out += (out.back() == '{' ? " \"" : ", \"") + tinyscale::json_escape(field.name);
        out += "\":";
        finite = write(field.value, out) && finite;
      }
      out += '}';
  }
  return finite;
}

}  // namespace fuzz_json

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz::one_input(size, 512, [&] {
    const tinyscale::Json value = tinyscale::parse_json(fuzz::text_of(data, size));
    std::string first, second;
    if (fuzz_json::write(value, first)) {
      fuzz_json::write(tinyscale::parse_json(first), second);
      fuzz::promise(first == second, "JSON written out reads back the same");
    }
  });
}
