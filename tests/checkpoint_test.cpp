// Files: what save() writes load() gives back, and a file that lies is refused with a reason.
#include <doctest/doctest.h>

#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <clocale>
#include <csignal>

#include "error_of.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;

namespace {

std::string temporary(const std::string& name) {
  const char* folder = std::getenv("TMPDIR");
  return std::string(folder != nullptr ? folder : ".") + "/tinyscale_" + std::to_string(getpid()) +
         "_" + name;
}

void write_file(const std::string& path, const std::string& bytes) {
  const ts::detail::File file = ts::detail::open_file(path, "wb", "test");
  REQUIRE(std::fwrite(bytes.data(), 1, bytes.size(), file.get()) == bytes.size());
}

std::string with_length(const std::string& json, const std::string& data) {
  const std::uint64_t n = json.size();
  return std::string(reinterpret_cast<const char*>(&n), 8) + json + data;
}

// What reading these bytes says, without "load: <path>: ".
std::string refusal(const std::string& bytes) {
  const std::string path = temporary("hostile");
  write_file(path, bytes);
  const std::string error = error_of([&] { ts::read_safetensors(path); });
  std::remove(path.c_str());
  const std::string start = "load: \"" + path + "\": ";
  REQUIRE(error.rfind(start, 0) == 0);
  return error.substr(start.size());
}

std::string json_error(const std::string& json) {
  return error_of([&] { ts::parse_json(json); });
}

// Files beside `path` whose names go on after its own.
std::vector<std::string> beside(const std::string& path) {
  const std::size_t slash = path.find_last_of('/');
  const std::string folder = path.substr(0, slash), name = path.substr(slash + 1);
  std::vector<std::string> found;
  DIR* const open = opendir(folder.c_str());
  REQUIRE(open != nullptr);
  while (const dirent* entry = readdir(open)) {
    const std::string each = entry->d_name;
    if (each.size() > name.size() && each.compare(0, name.size(), name) == 0) {
      found.push_back(each);
    }
  }
  closedir(open);
  return found;
}

mode_t mode_of(const std::string& path) {
  struct stat seen;
  REQUIRE(stat(path.c_str(), &seen) == 0);
  return seen.st_mode & 0777;
}

ts::Transformer small() {
  ts::ModelConfig c = ts::config("nano-llama");
  c.layers = 1;
  c.width = 8;
  c.heads = 2;
  c.kv_heads = 1;
  c.head_size = 4;
  c.hidden = 12;
  c.rope_theta = 12345.678901234567;
  ts::Transformer model(c, 4);
  model.tokenizer = ts::make_text("t", "a \"quoted\"\n\\text\t\xC3\xB6").tokenizer;
  model.config.vocabulary = 256;
  return model;
}

}  // namespace

TEST_CASE("a saved model comes back as it was") {
  const ts::Transformer model = small();
  const std::string path = temporary("round.safetensors");
  model.save(path);
  const ts::Transformer again = ts::load(path);
  REQUIRE(again.parameters.size() == model.parameters.size());
  for (std::size_t i = 0; i < model.parameters.size(); ++i) {
    CHECK(again.parameters[i].name == model.parameters[i].name);
    CHECK(again.parameters[i].value.shape() == model.parameters[i].value.shape());
    CHECK(again.parameters[i].value.values() == model.parameters[i].value.values());
  }
  CHECK(again.tokenizer == model.tokenizer);
  CHECK(again.config.name == "nano-llama");
  CHECK(again.config.rope_theta == model.config.rope_theta);
  CHECK(again.config.norm == ts::Norm::rms);
  CHECK(again.config.position == ts::Position::rotary);
  CHECK(again.config.activation == ts::Activation::swiglu);
  CHECK(again.config.tied == model.config.tied);
  const ts::Safetensors file = ts::read_safetensors(path);
  CHECK(file.data_start % 8 == 0);
  CHECK(*file.find_metadata("format") == "pt");

  ts::ModelConfig wide = model.config;
  wide.hidden = 16;
  CHECK(error_of([&] { ts::load(path, wide); }) ==
        "load: \"" + path +
            "\": the tensor for model.layers.0.mlp.gate_proj.weight is [12, 8]; "
            "the model nano-llama has [16, 8]");
  ts::ModelConfig deep = model.config;
  deep.layers = 2;
  CHECK(error_of([&] { ts::load(path, deep); }) == "load: \"" + path +
                                                       "\": no tensor for the parameter "
                                                       "model.layers.1.input_layernorm.weight");
  ts::ModelConfig untied = model.config;
  untied.vocabulary = 1000000000;
  CHECK(error_of([&] { ts::load(path, untied); }) ==
        "load: \"" + path + "\": its config describes at least 8.00000038e+09 parameters in " +
            std::to_string(file.bytes.size() - file.data_start) + " bytes of data");
  std::remove(path.c_str());
}

TEST_CASE("windows are saved with their model") {
  ts::ModelConfig config = small().config;
  config.vocabulary = 30;
  config.layers = 3;
  const std::string path = temporary("window.safetensors");
  for (const std::int64_t every : {0, 3}) {
    config.window = 5;
    config.global_every = every;
    const ts::Transformer model(config, 4);
    model.save(path);
    const ts::Transformer again = ts::load(path);
    CHECK(again.config.window == 5);
    CHECK(again.config.global_every == every);
    const std::vector<std::int32_t> ids = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    CHECK(ts::mean_loss(again, ids) == ts::mean_loss(model, ids));
  }
  std::remove(path.c_str());
}

TEST_CASE("a save that fails leaves the old file whole") {
  ts::Transformer model = small();
  const std::string path = temporary("kept.safetensors");
  model.save(path);
  const std::string before = ts::detail::read_file(path, "test");
  model.parameters[0].value.data()[0] += 1;
  rlimit limit;
  REQUIRE(getrlimit(RLIMIT_FSIZE, &limit) == 0);
  const rlimit small_files = {64, limit.rlim_max};
  std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small_files);  // a file may grow to 64 bytes, as if the disk were full
  const std::string error = error_of([&] { model.save(path); });
  setrlimit(RLIMIT_FSIZE, &limit);
  std::signal(SIGXFSZ, SIG_DFL);
  CHECK(error == "save: cannot write \"" + path + "\": File too large; the old file is as it was");
  CHECK(ts::detail::read_file(path, "test") == before);
  CHECK(beside(path).empty());
  model.save(path);
  CHECK(ts::detail::read_file(path, "test") != before);
  std::remove(path.c_str());
  CHECK(error_of([&] { model.save("no/such/folder/m.safetensors"); }) ==
        "save: cannot write \"no/such/folder/m.safetensors\": No such file or directory; give a "
        "path in a folder that exists and can be written");
}

TEST_CASE("two saves at once each write a whole file, and no other file is touched") {
  const std::string path = temporary("both"), text = "a file of the user's own";
  write_file(path + ".saving", text);
  {
    ts::detail::SaveFile first("first", path), second("second", path);
    CHECK(beside(path).size() == 3);
    first.write("first", 5);
    second.write("second", 6);
    first.finish();
    CHECK(ts::detail::read_file(path, "test") == "first");
    second.finish();
    CHECK(ts::detail::read_file(path, "test") == "second");
    const ts::detail::SaveFile dropped("third", path);
    CHECK(beside(path).size() == 2);
  }
  CHECK(ts::detail::read_file(path + ".saving", "test") == text);
  CHECK(ts::detail::read_file(path, "test") == "second");
  CHECK(beside(path).size() == 1);
  std::remove((path + ".saving").c_str());
  std::remove(path.c_str());
}

TEST_CASE("what a killed program was saving is removed, and no other file") {
  const std::string path = temporary("killed");
  for (const char* end : {"", ".saving-", ".saving-12", ".saving-12-3-4", ".saving-12-x"}) {
    write_file(path + end, "kept");
  }
  const std::size_t kept = beside(path).size();
  write_file(path + ".saving-12-3", "half");
  {
    ts::detail::SaveFile now("now", path);
    ts::detail::remove_abandoned("test", path);
    CHECK(beside(path).size() == kept + 1);  // what is being saved stays
    now.write("now", 3);
    now.finish();
  }
  CHECK(ts::detail::read_file(path, "test") == "now");
  CHECK(beside(path).size() == kept);
  for (const char* end : {"", ".saving-", ".saving-12", ".saving-12-3-4", ".saving-12-x"}) {
    CHECK(std::remove((path + end).c_str()) == 0);
  }
}

TEST_CASE("a save keeps the old file's permissions, and obeys them") {
  const std::string path = temporary("mode.npy");
  for (const mode_t mode : {0600U, 0640U, 0666U}) {
    write_file(path, "old");
    REQUIRE(chmod(path.c_str(), mode) == 0);
    {
      const ts::detail::SaveFile half("test", path);
      const std::vector<std::string> names = beside(path);
      REQUIRE(names.size() == 1);
      CHECK(mode_of(path.substr(0, path.find_last_of('/') + 1) + names[0]) == mode);
    }
    ts::write_npy(path, ts::ones({2}));
    CHECK(mode_of(path) == mode);
  }
  // Root may write any file: as somebody else.
  write_file(path, "old");
  REQUIRE(chmod(path.c_str(), 0444) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const bool user = getuid() != 0 || setuid(65534) == 0;
    const std::string error = error_of([&] { ts::detail::SaveFile("save", path).finish(); });
    const bool right = error == "save: \"" + path +
                                    "\" is there and may not be written: Permission denied; "
                                    "another name, or a file with permission to write is right";
    _exit(user && right ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(ts::detail::read_file(path, "test") == "old");
  std::remove(path.c_str());
}

TEST_CASE("numbers beyond a format, empty tensors and names that are no UTF-8 are not saved") {
  const std::string path = temporary("beyond.safetensors");
  ts::Transformer model = small();
  model.parameters[0].value.data()[3] = 65519;
  model.save(path, ts::DType::f16);
  CHECK(ts::load(path).parameters[0].value.data()[3] == 65504);
  const std::string bytes = ts::detail::read_file(path, "test");
  model.parameters[0].value.data()[3] = -65520;
  CHECK(error_of([&] { model.save(path, ts::DType::f16); }) ==
        "save: \"model.embed_tokens.weight\" holds -65520, which f16 cannot: its largest is "
        "65504; f32 holds it");
  CHECK(ts::detail::read_file(path, "test") == bytes);
  model.parameters[0].value.data()[3] = std::numeric_limits<float>::max();
  CHECK(error_of([&] { model.save(path, ts::DType::bf16); }) ==
        "save: \"model.embed_tokens.weight\" holds 3.40282347e+38, which bf16 cannot: its "
        "largest is 3.38953139e+38; f32 holds it");
  model.save(path);
  const ts::Parameter empty = {"x", ts::Tensor()};
  CHECK(error_of([&] { ts::write_safetensors(path, {empty}, {}); }) ==
        "save: the tensor \"x\" is empty (default-constructed); give one with a shape");
  const ts::Parameter odd = {"a\xff", ts::ones({2})};
  CHECK(error_of([&] { ts::write_safetensors(path, {odd}, {}); }) ==
        "save: the tensor \"a\xEF\xBF\xBD\" is no UTF-8, which the format asks for");
  CHECK(error_of([&] {
          ts::write_safetensors(path, {}, {{"k\xC3", "v"}});
        }) == "save: the note \"k\xEF\xBF\xBD\" is no UTF-8, which the format asks for");
  CHECK(error_of([&] {
          ts::write_safetensors(path, {}, {{"k", "v\xE2\x82"}});
        }) ==
        "save: the text of a note \"v\xEF\xBF\xBD\xEF\xBF\xBD\" is no UTF-8, which the format "
        "asks for");
  std::remove(path.c_str());
}

TEST_CASE("a header of many numbers is refused before it takes much memory") {
  std::string numbers = "{\"a\":[1";
  for (int i = 0; i < 1000000; ++i) {
    numbers += ",1";
  }
  CHECK(refusal(with_length(numbers + "]}", "")) == "json: more than 64 values at byte 132");
  CHECK(refusal(with_length("{\"__metadata__\":{\"k\":[[[" + numbers.substr(6), "")) ==
        "json: more than 64 values at byte 146");
  CHECK(refusal(with_length("{\"__metadata__\":" + numbers.substr(5) + "}", "")) ==
        "__metadata__ is not an object of strings");
}

TEST_CASE("a save writes through a link and leaves alone what is no regular file") {
  const ts::Transformer model = small();
  CHECK(
      error_of([&] { model.save("a.gguf"); }) ==
      "save: \"a.gguf\" would hold safetensors, which its name denies; .safetensors is right, and "
      "save_llama2c writes a .bin");
  const std::string path = temporary("target.safetensors"), other = temporary("other");
  const auto refuse = [&] {
    CHECK(error_of([&] { model.save(other); }) ==
          "save: \"" + other +
              "\" is there and is no regular file (a folder, a device, a link to "
              "nothing); a new name or an old file is right");
  };
  struct stat seen;
  REQUIRE(symlink(path.c_str(), other.c_str()) == 0);
  refuse();  // the link leads nowhere
  std::remove(other.c_str());
  write_file(path, "old");
  const std::string name = path.substr(path.find_last_of('/') + 1);
  REQUIRE(symlink(name.c_str(), other.c_str()) == 0);
  model.save(other);
  CHECK(ts::load(path).config.name == "nano-llama");
  CHECK(lstat(other.c_str(), &seen) == 0);
  CHECK(S_ISLNK(seen.st_mode));
  std::remove(other.c_str());
  std::remove(path.c_str());
  REQUIRE(mkfifo(other.c_str(), 0600) == 0);
  refuse();
  CHECK(stat(other.c_str(), &seen) == 0);
  CHECK(S_ISFIFO(seen.st_mode));
  std::remove(other.c_str());
  REQUIRE(mkdir(other.c_str(), 0700) == 0);
  refuse();
  rmdir(other.c_str());
}

TEST_CASE("lengths that lie are refused") {
  const std::string one = "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}";
  CHECK(refusal("") == "0 bytes are no safetensors file; it begins with 8");
  CHECK(refusal("1234567") == "7 bytes are no safetensors file; it begins with 8");
  CHECK(refusal(std::string(8, '\xFF')) ==
        "a header of 18446744073709551615 bytes; at most 100000000 are right");
  CHECK(refusal(std::string("\x40\0\0\0\0\0\0\0{}", 10)) == "a header of 64 bytes; only 2 follow");
  CHECK(refusal(std::string(8, '\0')) == "the header does not begin with {");
  CHECK(refusal(with_length("[1]", "")) == "the header does not begin with {");
  CHECK(refusal(with_length(one, "1234567")) ==
        "the tensors end at byte 8 of the data, the file at 7");
  CHECK(refusal(with_length(one, "123456789")) ==
        "the tensors end at byte 8 of the data, the file at 9");
  CHECK(refusal(with_length(one.substr(0, 30), "12345678")) ==
        "json: the text ends early at byte 30");
  const std::string good = with_length(one, "12345678");
  for (std::size_t n = 0; n < good.size(); ++n) {  // truncated anywhere
    CHECK(refusal(good.substr(0, n)) != "no error");
  }
}

TEST_CASE("ranges and shapes that lie are refused") {
  const auto entry = [](const std::string& fields) {
    return with_length("{" + fields + "}", "12345678");
  };
  const std::string f32 = "\"dtype\":\"F32\",";
  CHECK(refusal(entry("\"a\":{" + f32 +
                      "\"shape\":[1],\"data_offsets\":[0,4]},"
                      "\"b\":{" +
                      f32 + "\"shape\":[2],\"data_offsets\":[0,8]}")) ==
        "tensor \"b\" begins at byte 0; the one before ends at 4, and nothing may lie between or "
        "twice");
  CHECK(refusal(entry("\"a\":{" + f32 + "\"shape\":[1],\"data_offsets\":[4,8]}")) ==
        "tensor \"a\" begins at byte 4; the one before ends at 0, and nothing may lie between or "
        "twice");
  CHECK(refusal(entry("\"a\":{" + f32 + "\"shape\":[3],\"data_offsets\":[0,8]}")) ==
        "tensor \"a\": bytes 0 to 8 for shape [3] of F32; their number must be 4 an element");
  CHECK(refusal(entry("\"a\":{" + f32 + "\"shape\":[2],\"data_offsets\":[8,0]}")) ==
        "tensor \"a\": bytes 8 to 0 for shape [2] of F32; their number must be 4 an element");
  CHECK(
      refusal(entry("\"a\":{" + f32 + "\"shape\":[4611686018427387905],\"data_offsets\":[0,4]}")) ==
      "tensor \"a\": a size is not a whole number from 0 to 2^53 - 1");
  CHECK(refusal(
            entry("\"a\":{" + f32 + "\"shape\":[9007199254740991,4096],\"data_offsets\":[0,8]}")) ==
        "tensor \"a\": Shape: [9007199254740991, 4096] has too many elements; at most 2^63 - 1");
  CHECK(refusal(entry("\"a\":{" + f32 + "\"shape\":[9007199254740993],\"data_offsets\":[0,8]}")) ==
        "tensor \"a\": a size is not a whole number from 0 to 2^53 - 1");
  CHECK(refusal(entry("\"a\":{" + f32 + "\"shape\":[-2],\"data_offsets\":[0,8]}")) ==
        "tensor \"a\": a size is not a whole number from 0 to 2^53 - 1");
  CHECK(refusal(entry("\"a\":{" + f32 + "\"shape\":[1.5],\"data_offsets\":[0,8]}")) ==
        "tensor \"a\": a size is not a whole number from 0 to 2^53 - 1");
  CHECK(refusal(entry("\"a\":{" + f32 + "\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,8]}")) ==
        "tensor \"a\" has 9 dimensions; at most 8");
  CHECK(refusal(entry("\"a\":{\"dtype\":\"F99\",\"shape\":[2],\"data_offsets\":[0,8]}")) ==
        "tensor \"a\" has the unknown dtype \"F99\"");
  CHECK(refusal(entry("\"a\":{\"dtype\":\"F4\",\"shape\":[15],\"data_offsets\":[0,8]}")) ==
        "tensor \"a\": bytes 0 to 8 for shape [15] of F4; their number must be 0.5 an element");
  for (const char* newer :
       {"F4\",\"shape\":[2,8]", "F8_E8M0\",\"shape\":[8]", "C64\",\"shape\":[]"}) {
    const std::string fields = std::string("\"a\":{\"dtype\":\"") + newer,
                      path = temporary("newer");
    write_file(path, entry(fields + ",\"data_offsets\":[0,8]}"));
    CHECK(!ts::read_safetensors(path).stored(ts::read_safetensors(path).entries[0]).readable);
    std::remove(path.c_str());
  }
  CHECK(refusal(entry("\"a\":{" + f32 + "\"shape\":[2]}")) ==
        "tensor \"a\" lacks dtype, shape or data_offsets");
  CHECK(refusal(entry("\"a\":7")) == "tensor \"a\" lacks dtype, shape or data_offsets");
  CHECK(refusal(entry("\"a\":{" + f32 +
                      "\"shape\":[2],\"data_offsets\":[0,8]},"
                      "\"a\":{" +
                      f32 + "\"shape\":[2],\"data_offsets\":[0,8]}")) ==
        "json: the key \"a\" stands twice, before at byte 107");
  CHECK(refusal(entry("\"__metadata__\":{\"x\":1}")) == "metadata \"x\" is not a string");
  for (const char* value : {"[1]", "\"x\"", "null"}) {
    CHECK(refusal(entry(std::string("\"__metadata__\":") + value)) ==
          "__metadata__ is not an object of strings");
  }
}

TEST_CASE("other number formats are read, integers are not") {
  const std::string path = temporary("formats");
  const auto one = [&](const char* dtype, const std::string& data, int count) {
    write_file(path,
               with_length(ts::detail::cat({"{\"a\":{\"dtype\":\"", dtype, "\",\"shape\":[", count,
                                            "],\"data_offsets\":[0,", data.size(), "]}}  "}),
                           data));
    const ts::Safetensors file = ts::read_safetensors(path);
    return file.read(*file.find("a")).values();
  };
  CHECK(one("BF16", std::string("\x80\x3F\x00\xC0", 4), 2) == std::vector<float>{1.0f, -2.0f});
  CHECK(one("F16", std::string("\x00\x3C\x00\xC0", 4), 2) == std::vector<float>{1.0f, -2.0f});
  CHECK(one("F64", std::string("\0\0\0\0\0\0\xF8\x3F", 8), 1) == std::vector<float>{1.5f});
  CHECK(error_of([&] { one("I32", "1234", 1); }) ==
        "load: \"" + path + "\": tensor \"a\" is I32; F32, F16, BF16 or F64 is right");
  CHECK(error_of([&] { ts::load(path); }) ==
        "load: \"" + path + "\": it carries no config of this library; call load(path, config)");
  std::remove(path.c_str());
  CHECK(error_of([&] { ts::load(path); }) ==
        "load: cannot open \"" + path + "\": No such file or directory");
}

TEST_CASE("a config that lies is refused before it allocates") {
  const ts::Transformer model = small();
  const std::string path = temporary("lies.safetensors");
  const auto refuse = [&](const std::string& config, const std::string& tokenizer) {
    ts::write_safetensors(path, {{"a", ts::zeros({2})}},
                          {{"tinyscale.config", config}, {"tinyscale.tokenizer", tokenizer}});
    const std::string error = error_of([&] { ts::load(path); });
    const std::string start = "load: \"" + path + "\": ";
    return error.rfind(start, 0) == 0 ? error.substr(start.size()) : error;
  };
  const std::string bytes = ts::detail::tokenizer_json(ts::Tokenizer());
  ts::ModelConfig c = model.config;
  c.layers = 1000000;
  CHECK(refuse(ts::detail::config_json(c), bytes) ==
        "its config describes at least 384002048 parameters in 8 bytes of data");
  c.layers = 1000000000000;
  CHECK(refuse(ts::detail::config_json(c), bytes) ==
        "ModelConfig: nano-llama: layers is 1000000000000; at most 1000000 is right");
  c.layers = 0;
  CHECK(refuse(ts::detail::config_json(c), bytes) ==
        "ModelConfig: nano-llama: layers is 0; at least 1 is right");
  CHECK(refuse("{}", bytes) == "its config lacks name");
  CHECK(refuse("{", bytes) == "json: the text ends early at byte 1");
  std::string many = ts::detail::config_json(model.config);
  many.replace(many.find("\"experts\":0"), 11, "\"experts\":2000000");
  CHECK(refuse(many, bytes) == "its config has 2000000 experts; at most 1000000");
  c = model.config;
  c.layers = c.width = c.vocabulary = c.heads = c.kv_heads = c.head_size = c.hidden = 1;
  c.position = ts::Position::learned;
  c.context = 1;
  CHECK(refuse(ts::detail::config_json(c),
               "{\"kind\":\"characters\",\"characters\":[\"b\",\"a\"]}") ==
        "its tokenizer's characters are not in ascending order, each once");
  CHECK(refuse(ts::detail::config_json(c), "{\"kind\":\"characters\",\"characters\":[\"hx\"]}") ==
        "its tokenizer has the character \"hx\"; exactly one in UTF-8 is right");
  CHECK(refuse(ts::detail::config_json(c), "{\"kind\":\"zzz\"}") ==
        "tokenizer kind is \"zzz\"; right is one of characters, bytes, byte_pairs, scored_pieces, "
        "merged_pieces");
  const auto lie = [&](const std::string& from, const std::string& to) {
    std::string config = ts::detail::config_json(model.config);
    const std::size_t at = config.find(from);
    REQUIRE(at != std::string::npos);
    return refuse(config.replace(at, from.size(), to), bytes);
  };
  CHECK(lie("\"rms\"", "\"foo\"") == "norm is \"foo\"; right is one of layer, rms");
  CHECK(lie("\"rotary\"", "\"bar\"") == "position is \"bar\"; right is one of learned, rotary");
  CHECK(lie("\"swiglu\"", "\"geluu\"") ==
        "activation is \"geluu\"; right is one of gelu, gelu_tanh, swiglu, geglu");
  CHECK(lie("\"rope_theta\":", "\"rope_theta\":-") ==
        "ModelConfig: nano-llama: rope_theta is -12345.6789; a number above 0 and below 1e+30 is "
        "right");
  CHECK(lie("\"norm_epsilon\":", "\"norm_epsilon\":1e999,\"was\":") ==
        "ModelConfig: nano-llama: norm_epsilon is inf; a number above 0 and below 1e+30 is right");
  // A file written when configs still had a dropout.
  CHECK(lie("\"norm_epsilon\":", "\"dropout\":0.1,\"norm_epsilon\":").rfind("its config", 0) == 0);
  std::remove(path.c_str());
}

TEST_CASE("GPT-2 files are read whichever way round their matrices are") {
  ts::ModelConfig c = ts::config("nano");
  c.layers = 1;
  c.width = 4;
  c.heads = c.kv_heads = 1;
  c.head_size = 4;
  c.hidden = 6;
  c.vocabulary = 5;
  c.context = 3;
  const auto file = [&](bool conv, const std::string& prefix) {
    ts::List<ts::Parameter> all;
    std::uint64_t seed = 0;
    const auto put = [&](const std::string& name, const ts::Shape& shape) {
      ts::Tensor t = ts::randn(shape, ++seed);
      const bool turned = conv && shape.size() == 2 && name.find("h.") == 0;
      all.push_back({prefix + name, turned ? ts::transpose(t, 0, 1) : t});
    };
    put("wte.weight", {5, 4});
    put("wpe.weight", {3, 4});
    put("h.0.ln_1.weight", {4});
    put("h.0.attn.c_attn.weight", {12, 4});
    put("h.0.attn.c_proj.weight", {4, 4});
    put("h.0.ln_2.weight", {4});
    put("h.0.mlp.c_fc.weight", {6, 4});
    put("h.0.mlp.c_proj.weight", {4, 6});
    put("ln_f.weight", {4});
    return all;
  };
  const std::string path = temporary("gpt2");
  ts::write_safetensors(path, file(false, "transformer."), {});
  const ts::Transformer linear = ts::load(path, c);
  ts::write_safetensors(path, file(true, ""), {});
  const ts::Transformer conv = ts::load(path, c);
  for (std::size_t i = 0; i < linear.parameters.size(); ++i) {
    CHECK(linear.parameters[i].value.values() == conv.parameters[i].value.values());
  }
  auto more = file(false, "");
  more.push_back({"h.1.ln_1.weight", ts::zeros({4})});
  ts::write_safetensors(path, more, {});
  CHECK(error_of([&] { ts::load(path, c); }) ==
        "load: \"" + path + "\": the tensor \"h.1.ln_1.weight\" has no place in the model nano");
  std::remove(path.c_str());
}

TEST_CASE("numbers are written and read with a point in every locale") {
  CHECK(ts::detail::exact_number(0.1) == "0.10000000000000001");
  CHECK(ts::detail::exact_number(1e300) == "1.0000000000000001e+300");
  bool comma = false;
  for (const char* name : {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "de_DE"}) {
    comma = comma || std::setlocale(LC_NUMERIC, name) != nullptr;
  }
  if (!comma) {
    std::cout << "skipped: no locale with a decimal comma\n";
  }
  const std::string written = ts::detail::exact_number(-2.5);
  const double read = ts::parse_json("[2.25e1]").list[0].number;
  const double tokens = ts::config("llama3-70b").training_tokens;
  const double claim = ts::Printed("41.5 %").value;
  const double arrival =
      ts::trace_traffic("t", "arrival_seconds,prompt_tokens,output_tokens\n0.25,2,3\n")
          .requests[0]
          .arrival;
  const std::string shortest = ts::detail::json_number(0.1) + " " + ts::detail::tick_text(1999.96);
  std::size_t used = 0;
  const double whole = ts::detail::read_decimal("1,5");
  const double begins = ts::detail::read_decimal("-1.25e2.5", &used);
  const std::string half = ts::format_fixed(0.5, 1) + " " + ts::format_si(1.5e9, "B");
  std::setlocale(LC_NUMERIC, "C");
  CHECK(tokens == 15e12);
  CHECK(half == "0.5 1.5 GB");
  CHECK(written == "-2.5");
  CHECK(read == 22.5);
  CHECK(claim == 0.415);
  CHECK(arrival == 0.25);
  CHECK(shortest == "0.1 2k");
  CHECK(whole == 1);
  CHECK(begins == -125);
  CHECK(used == 7);
  CHECK(ts::detail::read_decimal("none", &used) == 0);
  CHECK(used == 0);
}

TEST_CASE("JSON is read strictly") {
  const ts::Json json =
      ts::parse_json(" {\"a\": [1, -2.5e1, true, null], \"b\\u00f6\\n\": \"\\ud83d\\ude00\"} ");
  CHECK(json.find("a")->list[1].number == -25.0);
  CHECK(json.find("a")->list[2].number == 1.0);
  CHECK(json.find("b\xC3\xB6\n")->text == "\xF0\x9F\x98\x80");
  CHECK(json.find("c") == nullptr);
  CHECK(json_error("{\"a\":1,}") == "json: a key must be a string at byte 7");
  CHECK(json_error("{\"a\" 1}") == "json: a colon is missing at byte 5");
  CHECK(json_error("{\"a\":1 \"b\":2}") == "json: a comma or } is missing at byte 7");
  CHECK(json_error("[1 2]") == "json: a comma or ] is missing at byte 3");
  CHECK(json_error("[1") == "json: the text ends early at byte 2");
  CHECK(json_error("01") == "json: not a JSON value at byte 2");
  CHECK(json_error("1.") == "json: not a JSON value at byte 2");
  CHECK(json_error("-") == "json: not a JSON value at byte 1");
  CHECK(json_error("NaN") == "json: not a JSON value at byte 0");
  CHECK(json_error("nul") == "json: an unknown word at byte 0");
  CHECK(json_error("1 2") == "json: text after the value at byte 2");
  CHECK(json_error("\"a") == "json: a string has no end at byte 2");
  CHECK(json_error("\"\n\"") == "json: a control character in a string at byte 1");
  CHECK(json_error("\"a\xC3\"") == "json: a string that is no UTF-8 at byte 3");
  CHECK(json_error("{\"\xff\": 1}") == "json: a string that is no UTF-8 at byte 3");
  CHECK(json_error("\"\\x\"") == "json: an unknown escape at byte 2");
  CHECK(json_error("\"\\u12g4\"") == "json: four hexadecimal digits must follow \\u at byte 5");
  CHECK(json_error("\"\\ud83d\"") == "json: half of a surrogate pair at byte 6");
  CHECK(json_error(std::string(100, '[')) == "json: more than 64 levels at byte 65");
}
