// Tokenizers: against the files of other programs, against naive references, on hostile input.
#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <utility>

#include "error_of.hpp"
#include "tinyscale.hpp"

namespace ts = tinyscale;
using Ids = std::vector<std::int32_t>;

namespace {

std::string shared_file(const std::string& path) {
  const char* root = std::getenv("TINYSCALE_SHARED");
  return std::string(root != nullptr ? root : "../shared") + "/data/" + path;
}

bool there(const std::string& path) {
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) {
    std::cout << "skipped: no " << path << "\n";
    return false;
  }
  std::fclose(file);
  return true;
}

std::string contents(const std::string& path) { return ts::detail::read_file(path, "test"); }

const std::uint8_t* bytes_of(const std::string& text) {
  return reinterpret_cast<const std::uint8_t*>(text.data());
}

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : seed_(seed) {}
  std::size_t below(std::size_t n) {
    return static_cast<std::size_t>(ts::random_below(seed_, at_++, n));
  }
  std::string text(std::size_t most, const std::string& letters) {
    std::string out;
    for (std::size_t n = below(most + 1); n > 0; --n) {
      out += letters[below(letters.size())];
    }
    return out;
  }
  std::string bytes(std::size_t most) {
    std::string out;
    for (std::size_t n = below(most + 1); n > 0; --n) {
      out += static_cast<char>(static_cast<unsigned char>(below(256)));
    }
    return out;
  }

 private:
  std::uint64_t seed_, at_ = 0;
};

std::string joined(const Ids& ids) {
  std::string out;
  for (const std::int32_t id : ids) {
    out += (out.empty() ? "" : " ") + std::to_string(id);
  }
  return out;
}

template <class T>
void put(std::string& out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

// llama2.c's tokenizer.bin of these tokens behind <unk>, BOS, EOS and the 256 byte tokens.
std::string llama2c_file(const std::vector<std::pair<std::string, float>>& tokens) {
  std::vector<std::pair<std::string, float>> all = {
      {"<unk>", 0.0F}, {"\n<s>\n", 0.0F}, {"\n</s>\n", 0.0F}};
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", static_cast<unsigned>(byte));
    all.emplace_back(name, 0.0F);
  }
  all.insert(all.end(), tokens.begin(), tokens.end());
  std::string file;
  put(file, std::uint32_t{16});
  for (const auto& token : all) {
    put(file, token.second);
    put(file, static_cast<std::int32_t>(token.first.size()));
    file += token.first;
  }
  return file;
}

// llama2.c's encoder as its description has it: scan all pairs after each merge.
Ids naive_llama2c(const std::vector<std::pair<std::string, float>>& tokens,
                  const std::string& given) {
  std::map<std::string, std::pair<std::int32_t, float>> find;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    find.insert({tokens[i].first, {static_cast<std::int32_t>(259 + i), tokens[i].second}});
  }
  const std::string text = given.empty() ? "" : " " + given;
  std::vector<std::pair<std::int32_t, std::string>> parts;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at + 1;
    while (at > 0 && end < text.size() && end - at < 4 &&
           (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) {
      ++end;
    }
    const std::string character = text.substr(at, end - at);
    const auto found = find.find(character);
    if (found != find.end()) {
      parts.emplace_back(found->second.first, character);
    } else {
      for (const char byte : character) {
        const int id = static_cast<unsigned char>(byte) + 3;
        parts.emplace_back(id, "<byte " + std::to_string(id) + ">");
      }
    }
    at = end;
  }
  for (;;) {
    std::size_t best = parts.size();
    float score = 0;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = find.find(parts[i].second + parts[i + 1].second);
      if (found != find.end() && (best == parts.size() || found->second.second > score)) {
        best = i;
        score = found->second.second;
      }
    }
    if (best == parts.size()) {
      break;
    }
    const std::string both = parts[best].second + parts[best + 1].second;
    parts[best] = {find[both].first, both};
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
  Ids ids = {1};
  for (const auto& part : parts) {
    ids.push_back(part.first);
  }
  return ids;
}

// Byte-level BPE as its description has it: the first merge of the list, everywhere leftmost first.
Ids naive_bpe(const ts::TokenizerData& data, const std::string& word) {
  std::map<std::string, std::int32_t> find;
  for (std::size_t i = 0; i < data.tokens.size(); ++i) {
    find.insert({data.tokens[i], static_cast<std::int32_t>(i)});
  }
  std::map<std::string, std::size_t> rank;
  for (std::size_t i = 0; i < data.merges.size(); ++i) {
    rank.insert({data.merges[i], i});
  }
  std::vector<std::string> parts;
  for (const char c : word) {
    parts.push_back(ts::detail::spelled_bytes(std::string(1, c)));
  }
  for (;;) {
    std::size_t best = parts.size(), lowest = data.merges.size();
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = rank.find(parts[i] + " " + parts[i + 1]);
      if (found != rank.end() && found->second < lowest) {
        best = i;
        lowest = found->second;
      }
    }
    if (best == parts.size()) {
      break;
    }
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
  Ids ids;
  for (const std::string& part : parts) {
    ids.push_back(find[part]);
  }
  return ids;
}

// GPT-2's lists from a GGUF file. The copy at hand went through a program that took it for UTF-8:
// nine bytes above 127 became U+FFFD. What stood there follows from the format: two in a number
// that nobody needs here, the counts 50257, 50257 and 50000, two lengths, two ids 50256.
ts::TokenizerData gpt2_lists(const std::string& path) {
  std::string file = contents(path);
  for (const char lost : std::string("\xAC\xC5\xC4\x80\xC4\xC3\x81\xC4\xC4")) {
    const std::size_t damage = file.find("\xEF\xBF\xBD");
    if (damage != std::string::npos) {
      file.replace(damage, 3, 1, lost);
    }
  }
  std::size_t at = 16;
  const auto number = [&](std::size_t bytes) {
    std::uint64_t value = 0;
    std::memcpy(&value, file.data() + at, bytes);
    at += bytes;
    return value;
  };
  const auto text = [&] {
    const auto size = static_cast<std::size_t>(number(8));
    at += size;
    return file.substr(at - size, size);
  };
  const std::size_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  ts::TokenizerData data;
  for (std::uint64_t keys = number(8); keys > 0; --keys) {
    const std::string key = text();
    std::uint64_t type = number(4), count = 1;
    if (type == 9) {
      type = number(4);
      count = number(8);
    }
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::string word = type == 8 ? text() : "";
      const std::uint64_t value = type == 8 ? 0 : number(sizes[type]);
      if (key == "tokenizer.ggml.tokens") {
        data.tokens.push_back(word);
      } else if (key == "tokenizer.ggml.merges") {
        data.merges.push_back(word);
      } else if (key == "tokenizer.ggml.token_type") {
        data.types.push_back(static_cast<std::int32_t>(value));
      } else if (key == "tokenizer.ggml.pre") {
        data.pre = word;
      } else if (key == "tokenizer.ggml.bos_token_id") {
        data.bos = static_cast<std::int64_t>(value);
      } else if (key == "tokenizer.ggml.eos_token_id") {
        data.eos = static_cast<std::int64_t>(value);
      }
    }
  }
  REQUIRE(at == file.size());
  return data;
}

// Byte-level BPE with 256 bytes and these merges.
ts::TokenizerData small_bpe(const std::vector<std::string>& merges) {
  ts::TokenizerData data;
  for (int byte = 0; byte < 256; ++byte) {
    data.tokens.push_back(ts::detail::spelled_bytes(
        std::string(1, static_cast<char>(static_cast<unsigned char>(byte)))));
  }
  data.merges = merges;
  for (const std::string& merge : merges) {
    std::string token = merge;
    token.erase(token.find(' '), 1);
    bool known = false;
    for (const std::string& other : data.tokens) {
      known = known || other == token;
    }
    if (!known) {
      data.tokens.push_back(token);
    }
  }
  return data;
}

std::vector<std::string> cut(ts::PreTokenizer pre, const std::string& text) {
  std::vector<std::string> pieces;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = ts::detail::next_piece(pre, text.data(), at, text.size());
    pieces.push_back(text.substr(at, end - at));
    at = end;
  }
  return pieces;
}

}  // namespace

TEST_CASE("llama2.c's and SentencePiece's file of one vocabulary give the ids of llama2.c") {
  const std::string bin = shared_file("models/stories260K/tok512.bin");
  if (!there(bin)) {
    return;
  }
  const ts::Tokenizer a = ts::read_tokenizer(bin, 512);
  const ts::Tokenizer b = ts::read_tokenizer(shared_file("models/stories260K/tok512.model"));
  CHECK(a.text() == "SentencePiece BPE (512 tokens)");
  CHECK(a.bos() == 1);
  CHECK(b.eos() == 2);
  CHECK(a.special(1));
  CHECK(!a.special(300));
  CHECK(a.token_text(1) == "\n<s>\n");
  CHECK(b.token_text(1) == "<s>");
  CHECK(b.token_text(-1) == "?");
  const std::string golden = contents(shared_file("models/tokenizers/tok512_encode_golden.tsv"));
  int rows = 0;
  for (std::size_t at = 0; at < golden.size(); ++rows) {
    const std::size_t tab = golden.find('\t', at), end = golden.find('\n', at);
    std::string text;
    for (std::size_t i = at; i < tab; ++i) {
      const bool escape = golden[i] == '\\';
      i += escape ? 1 : 0;
      text += !escape ? golden[i] : golden[i] == 'n' ? '\n' : golden[i] == 't' ? '\t' : '\\';
    }
    const std::string want = golden.substr(tab + 1, end - tab - 1);
    CAPTURE(text);
    CHECK(joined(a.encode(text)) == want);
    CHECK(joined(b.encode(text)) == want);
    CHECK(a.decode(a.encode(text)) == text);
    at = end + 1;
  }
  CHECK(rows == 18);
  Dice dice(1);
  for (int i = 0; i < 200; ++i) {
    const std::string text = i % 2 == 0 ? dice.bytes(60) : dice.text(60, "the doga,.\n  \xC3\xA9");
    const Ids ids = a.encode(text);
    CHECK(ids == b.encode(text));
    CHECK(a.decode(ids) == text);
    CHECK(b.decode(b.encode(text, false)) == text);
  }
}

TEST_CASE("GPT-2's tokens, as llama.cpp's test has them") {
  const std::string path = shared_file("models/tokenizers/ggml-vocab-gpt-2.gguf");
  if (!there(path)) {
    return;
  }
  const ts::Tokenizer gpt2 = ts::make_tokenizer(gpt2_lists(path));
  CHECK(gpt2.text() == "byte-level BPE (50257 tokens)");
  CHECK(gpt2.bos() == 50256);
  const std::string texts = contents(path + ".inp"), ids = contents(path + ".out");
  const std::string line = "\n__ggml_vocab_test__\n";
  int cases = 0;
  std::size_t at = 0, row = 0;
  for (std::size_t end; (end = texts.find(line, at)) != std::string::npos; ++cases) {
    const std::string text = texts.substr(at, end - at);
    const std::size_t row_end = ids.find('\n', row);
    const Ids got = gpt2.encode(text);
    CAPTURE(text);
    CHECK((got.empty() ? "" : " ") + joined(got) == ids.substr(row, row_end - row));
    CHECK(gpt2.decode(got) == text);
    at = end + line.size();
    row = row_end + 1;
  }
  CHECK(cases == 46);
  CHECK(row == ids.size());
  CHECK(joined(gpt2.encode("a<|endoftext|>b")) == "64 27 91 437 1659 5239 91 29 65");
  ts::EncodeOptions options;
  options.parse_special = true;
  CHECK(joined(gpt2.encode("a<|endoftext|>b", options)) == "64 50256 65");
  CHECK(gpt2.decode({64, 50256, 65}) == "ab");
  CHECK(gpt2.token_text(995) == "\xC4\xA0world");
  CHECK(gpt2.decode_piece(15496, 995) == " world");
  Dice dice(2);
  for (int i = 0; i < 60; ++i) {
    const std::string text = dice.bytes(200);
    CHECK(gpt2.decode(gpt2.encode(text)) == text);
  }
}

TEST_CASE("scores: the same ids as scanning all pairs after each merge") {
  Dice dice(3);
  for (int round = 0; round < 120; ++round) {
    std::vector<std::pair<std::string, float>> tokens;
    std::map<std::string, int> seen;
    const std::string letters = round % 2 == 0 ? "ab " : "abc \xC3\xA9";
    for (int i = 0; i < 40; ++i) {
      const std::string token = dice.text(5, letters);
      if (!token.empty() && ++seen[token] == 1) {  // many equal scores
        tokens.emplace_back(token, -static_cast<float>(dice.below(12)));
      }
    }
    const std::string file = llama2c_file(tokens);
    const ts::Tokenizer tokenizer = ts::parse_llama2c_tokenizer(
        bytes_of(file), file.size(), static_cast<std::int64_t>(259 + tokens.size()), "random");
    for (int i = 0; i < 6; ++i) {
      const std::string text = dice.text(i == 0 ? 150 : 30, letters + "x");
      CAPTURE(text);
      CHECK(joined(tokenizer.encode(text)) == joined(naive_llama2c(tokens, text)));
      CHECK(tokenizer.decode(tokenizer.encode(text)) == text);
    }
  }
}

TEST_CASE("merges: the same ids as merging by the list, for short words and long") {
  Dice dice(4);
  for (int round = 0; round < 40; ++round) {
    std::vector<std::string> merges, tokens = {"a", "b", "c"};
    std::map<std::string, int> seen;
    for (int i = 0; i < 25; ++i) {
      const std::string left = tokens[dice.below(tokens.size())];
      const std::string right = tokens[dice.below(tokens.size())];
      if (++seen[left + " " + right] == 1 && left.size() + right.size() < 40) {
        merges.push_back(left + " " + right);
        tokens.push_back(left + right);
      }
    }
    ts::TokenizerData data = small_bpe(merges);
    data.pre = "none";
    const ts::Tokenizer tokenizer = ts::make_tokenizer(data);
    for (const std::size_t size : {6U, 39U, 42U, 120U}) {
      const std::string text = dice.text(size, "aaabc");
      CAPTURE(text);
      CHECK(joined(tokenizer.encode(text)) == joined(naive_bpe(data, text)));
      CHECK(tokenizer.decode(tokenizer.encode(text)) == text);
    }
    std::string repeated;  // long enough that words are looked up in what went before
    data.pre = "gpt-2";
    const ts::Tokenizer words = ts::make_tokenizer(data);
    Ids want;
    while (repeated.size() < 5000 && round == 7) {
      const std::string word = " " + dice.text(4, "abc") + "c";
      repeated += word;
      const Ids ids = naive_bpe(data, word);
      want.insert(want.end(), ids.begin(), ids.end());
    }
    CHECK(words.encode(repeated) == want);
  }
}

TEST_CASE("texts are cut as the published patterns cut them") {
  using Pieces = std::vector<std::string>;
  using ts::PreTokenizer;
  CHECK(cut(PreTokenizer::gpt2, "I'll go, 12 'S  x \n y  ") ==
        Pieces{"I", "'ll", " go", ",", " 12", " '", "S", " ", " x", " \n", " y", "  "});
  CHECK(cut(PreTokenizer::llama3, "I'LL go,\n\n 12345 'x  y \n z") ==
        Pieces{"I", "'LL", " go", ",\n\n", " ", "123", "45", " '", "x", " ", " y", " \n", " z"});
  CHECK(cut(PreTokenizer::qwen2, "a12\tb !!\r\n") == Pieces{"a", "1", "2", "\tb", " !!\r\n"});
  CHECK(cut(PreTokenizer::digits, "a  12 b 3") == Pieces{"a", "  ", "1", "2", " b", " ", "3"});
  CHECK(cut(PreTokenizer::gpt2, "n\xC3\xA9\xE4\xB8\xAD\xC2\xBD\xE3\x80\x80!") ==
        Pieces{"n\xC3\xA9\xE4\xB8\xAD", "\xC2\xBD", "\xE3\x80\x80", "!"});
  CHECK(cut(PreTokenizer::llama3, "it'\xC5\xBF'") == Pieces{"it", "'\xC5\xBF", "'"});
  CHECK(cut(PreTokenizer::gpt2, "a\xFF\xE4\xB8z") == Pieces{"a", "\xFF\xE4\xB8", "z"});
  CHECK(cut(PreTokenizer::none, "a b") == Pieces{"a b"});
  Dice dice(5);
  for (int i = 0; i < 400; ++i) {  // each pattern covers every text
    const std::string text = i % 2 == 0 ? dice.bytes(40) : dice.text(40, " \r\n\t'sL1a.");
    for (const PreTokenizer pre :
         {PreTokenizer::gpt2, PreTokenizer::llama3, PreTokenizer::qwen2, PreTokenizer::digits}) {
      std::string all;
      for (const std::string& piece : cut(pre, text)) {
        CHECK(!piece.empty());
        all += piece;
      }
      CHECK(all == text);
    }
  }
}

TEST_CASE("special tokens, BOS and EOS only where they are asked for") {
  ts::TokenizerData data = small_bpe({"< s", "<s >"});
  data.pre = "none";
  data.tokens.insert(data.tokens.end(), {"<s>", "</s>", "[tool]", "[tool]s"});
  data.types.assign(data.tokens.size(), 1);
  const auto n = static_cast<std::int32_t>(data.tokens.size());
  for (std::int32_t i = n - 4; i < n; ++i) {
    data.types[static_cast<std::size_t>(i)] = i < n - 2 ? 3 : 4;
  }
  data.bos = n - 4;
  data.eos = n - 3;
  const ts::Tokenizer plain = ts::make_tokenizer(data);
  CHECK(plain.encode("<s>") == Ids{257});  // by merges, not the special token of the same text
  CHECK(plain.encode("<s>", true) == Ids{n - 4, 257});
  ts::EncodeOptions options;
  options.parse_special = true;
  CHECK(plain.encode("<s></s>", options) == Ids{n - 4, n - 3});
  options.bos = options.eos = 1;
  CHECK(plain.encode("a</s>", options) == Ids{n - 4, 'a', n - 3, n - 3});
  CHECK(plain.encode("[tool][tool]s[too") ==
        Ids{n - 2, n - 1, '[', 't', 'o', 'o'});  // a user's tokens in every text, the longest
  CHECK(plain.decode({n - 4, 'a', n - 1, n - 3, 'b'}) == "a[tool]sb");
  data.add_bos = data.add_eos = 1;
  const ts::Tokenizer adding = ts::make_tokenizer(data);
  CHECK(adding.encode("") == Ids{n - 4, n - 3});
  CHECK(adding.encode("b", false) == Ids{'b', n - 3});
  CHECK(!(adding == plain));
  CHECK(adding == ts::make_tokenizer(adding.data()));
  const ts::Tokenizer bytes;
  CHECK(bytes.bos() == -1);
  CHECK(!bytes.special(3));
  CHECK(bytes.token_text(65) == "A");
  CHECK(bytes.decode_piece(-1, 65) == "A");
  CHECK(error_of([&] { bytes.encode("a", true); }) ==
        "encode: bos is asked for, and the tokenizer, bytes (256), has no such token");
  options.bos = 0;
  CHECK(error_of([&] { bytes.encode("a", options); }) ==
        "encode: eos is asked for, and the tokenizer, bytes (256), has no such token");
}

TEST_CASE("a token that is no UTF-8 is not saved as another one") {
  ts::TokenizerData data;
  data.kind = ts::TokenizerKind::merged_pieces;
  data.tokens = {"a", "b\xff", "\xE2\x96\x81"};
  const ts::Tokenizer odd = ts::make_tokenizer(data);
  CHECK(error_of([&] { ts::detail::tokenizer_json(odd); }) ==
        "save: the tokenizer has \"b\xEF\xBF\xBD\", which is no UTF-8 and no JSON can hold");
  CHECK(error_of([&] { ts::save_tokenizer(odd, "never.json"); }) ==
        "save_tokenizer: token 1 is \"b\xEF\xBF\xBD\", which is no UTF-8 and no JSON can hold");
}

TEST_CASE("what no token spells is an error that names it") {
  ts::TokenizerData data;
  data.kind = ts::TokenizerKind::merged_pieces;
  data.tokens = {"a", "b", "\xE2\x96\x81", "ab",
                 "\xE2\x96\x81"
                 "ab"};
  data.merges = {"a b", "\xE2\x96\x81 ab"};
  const ts::Tokenizer pieces = ts::make_tokenizer(data);
  CHECK(pieces.encode("ab ab b") == Ids{4, 4, 2, 1});
  CHECK(pieces.decode({4, 4, 2, 1, 9}) == "ab ab b?");
  CHECK(pieces.encode("").empty());
  CHECK(error_of([&] { pieces.encode("abx"); }) ==
        "encode: \"x\" at byte 2 is not among the 5 tokens, nor are all its bytes; leave it out");
  CHECK(error_of([&] { pieces.encode("a\xC3\xB6"); }) ==
        "encode: \"\xC3\xB6\" at byte 1 is not among the 5 tokens, nor are all its bytes; leave it "
        "out");
  data.tokens = {"a"};
  data.merges.clear();
  const ts::Tokenizer no_space = ts::make_tokenizer(data);
  CHECK(error_of([&] { no_space.encode("a"); }) ==
        "encode: the space before the text is not among the 1 tokens; a tokenizer with "
        "add_space_prefix false is right");
  data.add_space_prefix = false;
  CHECK(ts::make_tokenizer(data).encode("aa") == Ids{0, 0});
  data.kind = ts::TokenizerKind::byte_pairs;
  CHECK(error_of([&] { ts::make_tokenizer(data).encode("ab"); }) ==
        "encode: \"b\" at byte 1 is not among the 1 tokens, nor are all its bytes; leave it out");
}

TEST_CASE("a stream of tokens holds back what is no whole character yet") {
  const std::string file = llama2c_file({{" ", -1.0F}, {"a", -2.0F}, {" a", -3.0F}});
  const ts::Tokenizer tokenizer =
      ts::parse_llama2c_tokenizer(bytes_of(file), file.size(), 262, "t");
  ts::StreamDecoder stream(tokenizer, 1);
  CHECK(stream.next(261) == "a");  // " a" behind BOS
  CHECK(stream.next(261) == " a");
  CHECK(stream.next(0xF0 + 3).empty());
  CHECK(stream.next(0x9F + 3).empty());
  CHECK(stream.next(0x99 + 3).empty());
  CHECK(stream.next(0x82 + 3) == "\xF0\x9F\x99\x82");
  CHECK(stream.next(0xFF + 3) == "\xFF");  // no UTF-8: as it is
  CHECK(stream.next(0xC3 + 3).empty());
  CHECK(stream.next(260) ==
        "\xC3"
        "a");
  CHECK(stream.next(0xE4 + 3).empty());
  CHECK(stream.finish() == "\xE4");
  CHECK(stream.finish().empty());
  Dice dice(6);
  for (int i = 0; i < 100; ++i) {
    const std::string text = dice.bytes(40) + dice.text(9, "\xC3\xA9\xF0\x9F");
    const Ids ids = tokenizer.encode(text);
    ts::StreamDecoder parts(tokenizer);
    std::string all;
    for (const std::int32_t id : ids) {
      all += parts.next(id);
    }
    CHECK(all + parts.finish() == text);
  }
}

TEST_CASE("lists that make no tokenizer are refused") {
  using Change = std::function<void(ts::TokenizerData&)>;
  const auto refuse = [](const Change& change) {
    ts::TokenizerData data = small_bpe({"a b"});
    change(data);
    return error_of([&] { ts::make_tokenizer(data); });
  };
  using Data = ts::TokenizerData;
  CHECK(refuse([](Data& d) { d.tokens.clear(); }) ==
        "make_tokenizer: 0 tokens; 1 to 2^31 - 16 are right");
  CHECK(refuse([](Data& d) { d.scores.push_back(1); }) ==
        "make_tokenizer: 257 tokens and 1 scores; only SentencePiece tokenizers have scores");
  CHECK(refuse([](Data& d) { d.kind = ts::TokenizerKind::scored_pieces; }) ==
        "make_tokenizer: 257 tokens and 0 scores; one for each is right");
  CHECK(refuse([](Data& d) {
          d.kind = ts::TokenizerKind::scored_pieces;
          d.scores.assign(257, NAN);
        }) == "make_tokenizer: the score of token 0 is nan; a finite one is right");
  CHECK(refuse([](Data& d) { d.types = {1}; }) ==
        "make_tokenizer: 257 tokens and 1 types; one for each, or none, is right");
  CHECK(refuse([](Data& d) { d.types.assign(257, 7); }) ==
        "make_tokenizer: the type of token 0 is 7; 1 to 6 are right");
  CHECK(refuse([](Data& d) { d.bos = 257; }) ==
        "make_tokenizer: the BOS token is 257 of 257 tokens; a token's number, or -1 for none, is "
        "right");
  CHECK(refuse([](Data& d) { d.eos = -2; }) ==
        "make_tokenizer: the EOS token is -2 of 257 tokens; a token's number, or -1 for none, is "
        "right");
  CHECK(refuse([](Data& d) { d.unknown = 1000; }) ==
        "make_tokenizer: the unknown token is 1000 of 257 tokens; a token's number, or -1 for "
        "none, is right");
  CHECK(refuse([](Data& d) { d.merges.push_back("ab"); }) ==
        "make_tokenizer: merge 1 is \"ab\"; two tokens and a space between are right");
  CHECK(refuse([](Data& d) { d.merges.push_back(""); }) ==
        "make_tokenizer: merge 1 is \"\"; two tokens and a space between are right");
  CHECK(refuse([](Data& d) { d.merges.push_back("a b c"); }) ==
        "make_tokenizer: merge 1 is \"a b c\"; two tokens and a space between are right");
  CHECK(refuse([](Data& d) { d.merges.push_back("a c"); }) ==
        "make_tokenizer: merge 1 is \"a c\", but \"ac\" is no token");
  CHECK(refuse([](Data& d) { d.merges.push_back("xy c"); }) ==
        "make_tokenizer: merge 1 is \"xy c\", but \"xy\" is no token");
  CHECK(refuse([](Data& d) { d.pre = "tekken"; }) ==
        "make_tokenizer: the pre-tokenizer is \"tekken\"; right is one of gpt-2, default, phi-2, "
        "olmo, mpt, roberta-bpe, jina-es, jina-de, llama-bpe, llama3, llama-v3, falcon3, dbrx, "
        "qwen2, stablelm2, smollm, starcoder, refact, command-r, deepseek-coder, falcon, "
        "deepseek-r1-qwen, pixtral, megrez, none");
  CHECK(refuse([](Data& d) {
          d.tokens.push_back(std::string(257, 'x'));
          d.types.assign(258, 1);
          d.types[257] = 3;
        }) == "make_tokenizer: the special token 257 has 257 bytes; at most 256 are right");
}

TEST_CASE("files of llama2.c and SentencePiece that lie are refused") {
  const std::string file = llama2c_file({{"a", -1.0F}});
  const auto llama2c = [](const std::string& bytes, std::int64_t vocabulary) {
    return error_of(
        [&] { ts::parse_llama2c_tokenizer(bytes_of(bytes), bytes.size(), vocabulary, "x.bin"); });
  };
  CHECK(llama2c(file, 260) == "no error");
  CHECK(llama2c(file, 2) ==
        "read_llama2c_tokenizer: \"x.bin\": a vocabulary of 2 in a file of 3637 bytes; at least 3 "
        "(unknown, BOS, EOS) and 8 bytes a token are right");
  CHECK(llama2c(file, 1000000) ==
        "read_llama2c_tokenizer: \"x.bin\": a vocabulary of 1000000 in a file of 3637 bytes; at "
        "least 3 (unknown, BOS, EOS) and 8 bytes a token are right");
  CHECK(llama2c(file, 259) ==
        "read_llama2c_tokenizer: \"x.bin\": 9 bytes follow the 259 tokens; is the vocabulary "
        "right?");
  CHECK(llama2c(file, 261) ==
        "read_llama2c_tokenizer: \"x.bin\": token 260 of 261 does not fit into 3637 bytes (its "
        "length is -1); is the vocabulary right?");
  std::string negative = file;
  negative[4 + 4 + 3] = '\x80';
  CHECK(llama2c(negative, 260) ==
        "read_llama2c_tokenizer: \"x.bin\": token 0 of 260 does not fit into 3637 bytes (its "
        "length is -2147483643); is the vocabulary right?");

  const auto model = [](const std::string& bytes) {
    return error_of([&] { ts::parse_sentencepiece(bytes_of(bytes), bytes.size(), "x.model"); });
  };
  const std::string who = "read_sentencepiece: \"x.model\": ";
  const auto message = [](int field, const std::string& inside) {
    return std::string(1, static_cast<char>(8 * field + 2)) +
           static_cast<char>(static_cast<unsigned char>(inside.size())) + inside;
  };
  const std::string bpe = message(2, "\x18\x02");
  const auto piece = [&message](const std::string& text, char type) {
    return message(1, "\x0A" + std::string(1, static_cast<char>(text.size())) + text +
                          std::string("\x15\0\0\0\0\x18", 6) + type);
  };
  const std::string pieces =
      piece("<unk>", 2) + piece("<s>", 3) + piece("</s>", 3) + piece("a", 1) + piece("_a", 4);
  CHECK(model(pieces + bpe) == "no error");
  CHECK(model(pieces) == who + "it does not say its model type; BPE is right");
  CHECK(model(pieces + message(2, "\x18\x01")) == who + "its model type is unigram; BPE is right");
  CHECK(model(pieces + message(2, "")) == who + "its model type is unigram; BPE is right");
  CHECK(model(pieces + message(2, "\x18\x09")) == who + "its model type is unknown; BPE is right");
  CHECK(model(pieces + message(2, "\x18\x02\xC0\x01\x01")) ==
        who + "it puts spaces behind words; spaces before words are right");
  CHECK(model(pieces + bpe + message(3, "\x12\x02xy")) ==
        who + "its normalizer rewrites characters (a map of 2 bytes); the identity is right");
  CHECK(model(pieces + bpe + "\x0A") ==
        who + "no SentencePiece model: a number that does not end before byte 75");
  CHECK(model(pieces + bpe + "\x0A\x05") ==
        who + "no SentencePiece model: a field of 5 bytes where 0 are left before byte 76");
  CHECK(model("\x0B") == who + "no SentencePiece model: field 1 of wire type 3 before byte 1");
  CHECK(model(message(1, "\x12\x01z")) ==
        who + "no SentencePiece model: a score that is not four bytes before byte 5");
  CHECK(model(piece("a", 9) + bpe) == who + "the type of token 0 is 0; 1 to 6 are right");
  CHECK(model(bpe) == who + "0 tokens; 1 to 2^31 - 16 are right");
  CHECK(model(pieces + message(2, "\x18\x02\xC8\x02\x63")) ==
        who + "the BOS token is 99 of 5 tokens; a token's number, or -1 for none, is right");
  CHECK(error_of([] { ts::read_tokenizer("a.txt"); }) ==
        "read_tokenizer: \"a.txt\"; a path that ends in .json (tokenizer.json), .model "
        "(SentencePiece) or .bin (llama2.c) is right");
  CHECK(error_of([] { ts::read_sentencepiece("none.model"); }) ==
        "read_sentencepiece: cannot open \"none.model\": No such file or directory");
}

namespace {

const char* const byte_level = R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":true})";

// A tokenizer.json of "a", "b", "ab" and these parts.
std::string small_json(const std::string& parts, const std::string& model) {
  return R"({"added_tokens":[{"id":3,"content":"<s>","special":true},)"
         R"({"id":4,"content":"[x]","special":false}],)" +
         parts + R"("model":{"type":"BPE",)" + model + "}}";
}
const char* const small_model = R"("vocab":{"a":0,"b":1,"ab":2},"merges":["a b"])";

std::string json_error(const std::string& json) {
  const std::string error = error_of([&] { ts::parse_hugging_face_tokenizer(json, "t.json"); });
  const std::string who = "read_hugging_face_tokenizer: \"t.json\": ";
  return error.compare(0, who.size(), who) == 0 ? error.substr(who.size()) : error;
}

std::string pre(const std::string& step) { return "\"pre_tokenizer\":" + step + ","; }

}  // namespace

TEST_CASE("tokenizer.json: byte-level and SentencePiece's, merges as strings and as pairs") {
  const std::string post =
      R"("post_processor":{"type":"Sequence","processors":[{"type":"ByteLevel"},)"
      R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},)"
      R"({"Sequence":{"id":"A"}}]}]},)";
  const ts::Tokenizer level = ts::parse_hugging_face_tokenizer(
      small_json(pre(byte_level) + post, R"("vocab":{"a":0,"b":1,"ab":2},"merges":[["a","b"]])"),
      "t");
  CHECK(level.kind() == ts::Tokenizer::Kind::byte_pairs);
  CHECK(level.encode("aab[x]b") == Ids{3, 0, 2, 4, 1});
  CHECK(level.decode({3, 0, 2, 4, 1}) == "aab[x]b");
  ts::EncodeOptions special;
  special.parse_special = true;
  special.bos = 0;
  CHECK(level.encode("b<s>a", special) == Ids{1, 3, 0});
  const std::string llama =
      R"({"added_tokens":[{"id":0,"content":"<unk>","special":true},)"
      R"({"id":1,"content":"<s>","special":true}],"normalizer":{"type":"Sequence","normalizers":[)"
      R"({"type":"Prepend","prepend":"\u2581"},{"type":"Replace","pattern":{"String":" "},)"
      R"("content":"\u2581"}]},"pre_tokenizer":null,"post_processor":{"type":"TemplateProcessing",)"
      R"("single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A"}}]},)"
      R"("model":{"type":"BPE","unk_token":"<unk>","byte_fallback":true,"vocab":{"<unk>":0,"<s>":1,)"
      R"("<0xC3>":2,"<0xA9>":3,"\u2581":4,"a":5,"\u2581a":6,"aa":7},"merges":["\u2581 a","a a"]}})";
  const ts::Tokenizer pieces = ts::parse_hugging_face_tokenizer(llama, "t");
  CHECK(pieces.kind() == ts::Tokenizer::Kind::merged_pieces);
  CHECK(pieces.encode("aaa \xC3\xA9") == Ids{1, 6, 7, 4, 2, 3});
  CHECK(pieces.decode({1, 6, 7, 4, 2, 3}) == "aaa \xC3\xA9");
  const ts::Tokenizer meta = ts::parse_hugging_face_tokenizer(
      small_json(pre(R"({"type":"Metaspace","replacement":"\u2581","prepend_scheme":"never"})"),
                 small_model),
      "t");
  CHECK(meta.encode("aab") == Ids{0, 2});
  const ts::Tokenizer llama3 = ts::parse_hugging_face_tokenizer(
      small_json(pre(R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":")" +
                     ts::json_escape(ts::detail::pattern_of_pre(ts::PreTokenizer::llama3)) +
                     R"("},"behavior":"Isolated","invert":false},{"type":"ByteLevel",)"
                     R"("add_prefix_space":false,"use_regex":false}]})"),
                 small_model + std::string(R"(,"ignore_merges":true)")),
      "t");
  CHECK(llama3.data().pre == "llama-bpe");
  CHECK(llama3.data().ignore_merges == 1);
  CHECK(llama3.encode("ab") == Ids{2});
}

TEST_CASE("tokenizer.json: a Metaspace step adds a space where none is") {
  const auto tokenizer = [](const std::string& scheme) {
    return ts::parse_hugging_face_tokenizer(
        small_json(pre(R"({"type":"Metaspace","replacement":"\u2581","prepend_scheme":")" + scheme +
                       R"(","split":false})"),
                   R"("vocab":{"a":0,"\u2581":1,"\u2581a":2},"merges":["\u2581 a"])"),
        "t");
  };
  ts::EncodeOptions special;
  special.parse_special = true;
  special.bos = 0;
  struct {
    const char* scheme;
    Ids plain, spaced, twice, middle;
  } const schemes[] = {{"first", {2}, {2}, {1, 2}, {2, 3, 0, 4, 0}},
                       {"always", {2}, {2}, {1, 2}, {2, 3, 2, 4, 2}},
                       {"never", {0}, {2}, {1, 2}, {0, 3, 0, 4, 0}}};
  for (const auto& scheme : schemes) {
    CAPTURE(std::string(scheme.scheme));
    const ts::Tokenizer t = tokenizer(scheme.scheme);
    const ts::Tokenizer saved =
        ts::detail::tokenizer_from_json(ts::detail::tokenizer_json(t), "x: ");
    CHECK(saved == t);
    const ts::Tokenizer written =
        ts::parse_hugging_face_tokenizer(ts::hugging_face_json(t), "written");
    for (const ts::Tokenizer* const same : {&t, &saved, &written}) {
      CHECK(same->encode("a") == scheme.plain);
      CHECK(same->encode(" a") == scheme.spaced);
      CHECK(same->encode("  a") == scheme.twice);
      CHECK(same->encode("a<s>a[x]a", special) == scheme.middle);
      CHECK(same->encode("").empty());
    }
  }
}

TEST_CASE("tokenizer.json: added tokens that take along the spaces around them") {
  const auto tokenizer = [](const std::string& flags) {
    return ts::parse_hugging_face_tokenizer(
        R"({"added_tokens":[{"id":3,"content":"<t>","special":true)" + flags + "}]," +
            pre(byte_level) +
            R"("model":{"type":"BPE","vocab":{"a":0,"b":1,"\u0120":2},"merges":[]}})",
        "t");
  };
  ts::EncodeOptions special;
  special.parse_special = true;
  const struct {
    const char* flags;
    Ids ids;
  } all[] = {{"", {0, 2, 2, 3, 2, 1}},
             {R"(,"lstrip":true)", {0, 3, 2, 1}},
             {R"(,"rstrip":true)", {0, 2, 2, 3, 1}},
             {R"(,"lstrip":true,"rstrip":true)", {0, 3, 1}}};
  for (const auto& each : all) {
    CAPTURE(std::string(each.flags));
    const ts::Tokenizer t = tokenizer(each.flags);
    const ts::Tokenizer saved =
        ts::detail::tokenizer_from_json(ts::detail::tokenizer_json(t), "x: ");
    CHECK(saved == t);
    CHECK((saved == tokenizer("")) == (each.flags[0] == '\0'));
    const ts::Tokenizer written =
        ts::parse_hugging_face_tokenizer(ts::hugging_face_json(t), "written");
    for (const ts::Tokenizer* const same : {&t, &saved, &written}) {
      CHECK(same->encode("a  <t> b", special) == each.ids);
      CHECK(same->encode("<t>", special) == Ids{3});
      CHECK(same->encode("<t><t>", special) == Ids{3, 3});
      CHECK(same->encode("a b") == Ids{0, 2, 1});
    }
  }
  const ts::Tokenizer both = tokenizer(R"(,"lstrip":true,"rstrip":true)");
  CHECK(both.encode("a\t\n\xE2\x80\x83<t>\xC2\xA0<t> \xE3\x80\x80"
                    "b",
                    special) == Ids{0, 3, 3, 1});
  const std::string json = ts::detail::tokenizer_json(both);
  const auto refuse = [&json](const std::string& from, const std::string& to) {
    std::string other = json;
    REQUIRE(other.find(from) != std::string::npos);
    other.replace(other.find(from), from.size(), to);
    return error_of([&] { ts::detail::tokenizer_from_json(other, "x: "); });
  };
  const std::string list = "\"spaces\":[0,0,0,3]";
  CHECK(refuse(list, "\"spaces\":[3]") ==
        "x: its tokenizer: 4 tokens and 1 spaces; one for each, or none, is right");
  CHECK(refuse(list, "\"spaces\":[0,0,0,8]") ==
        "x: its tokenizer: the spaces of token 3 are 8; 0 to 7 are right");
  CHECK(refuse(list, "\"space_rule\":4") == "x: its tokenizer's space_rule is 4; 0 to 3 are right");
}

namespace {

std::string utf8(const std::vector<std::uint32_t>& codes) {
  std::string out;
  for (const std::uint32_t code : codes) {
    ts::detail::append_utf8(out, code);
  }
  return out;
}

}  // namespace

TEST_CASE("normal forms: Unicode's rules one by one") {
  using Codes = std::vector<std::uint32_t>;
  const struct {
    Codes text, nfc, nfd;
  } cases[] = {{{0x65, 0x301}, {0xE9}, {0x65, 0x301}},
               {{0xE9}, {0xE9}, {0x65, 0x301}},
               // Marks in any order, of equal class in theirs; one of the same class is in the way.
               {{0x73, 0x307, 0x323}, {0x1E69}, {0x73, 0x323, 0x307}},
               {{0x1E0B, 0x323}, {0x1E0D, 0x307}, {0x64, 0x323, 0x307}},
               {{0x71, 0x307, 0x323}, {0x71, 0x323, 0x307}, {0x71, 0x323, 0x307}},
               {{0x61, 0x305, 0x301}, {0x61, 0x305, 0x301}, {0x61, 0x305, 0x301}},
               {{0x61, 0x301, 0x305}, {0xE1, 0x305}, {0x61, 0x301, 0x305}},
               {{0x61, 0x315, 0x300, 0x5AE, 0x300, 0x62},
                {0xE0, 0x5AE, 0x300, 0x315, 0x62},
                {0x61, 0x5AE, 0x300, 0x300, 0x315, 0x62}},
               {{0x301, 0x323}, {0x323, 0x301}, {0x323, 0x301}},
               {{0x1F82}, {0x1F82}, {0x3B1, 0x313, 0x300, 0x345}},
               // Hangul: three parts, two and one, a third that is none, a mark between.
               {{0x1112, 0x1161, 0x11AB}, {0xD55C}, {0x1112, 0x1161, 0x11AB}},
               {{0xAC00, 0x11A8}, {0xAC01}, {0x1100, 0x1161, 0x11A8}},
               {{0xAC00, 0x11A7}, {0xAC00, 0x11A7}, {0x1100, 0x1161, 0x11A7}},
               {{0xAC01, 0x11A8}, {0xAC01, 0x11A8}, {0x1100, 0x1161, 0x11A8, 0x11A8}},
               {{0xD7A3}, {0xD7A3}, {0x1112, 0x1175, 0x11C2}},
               {{0x1100, 0x300, 0x1161}, {0x1100, 0x300, 0x1161}, {0x1100, 0x300, 0x1161}},
               // Two starters join when nothing stands between.
               {{0xB47, 0xB3E}, {0xB4B}, {0xB47, 0xB3E}},
               {{0xB47, 0x323, 0xB3E}, {0xB47, 0x323, 0xB3E}, {0xB47, 0x323, 0xB3E}},
               {{0x11099, 0x110BA}, {0x1109A}, {0x11099, 0x110BA}},
               // Excluded from composition.
               {{0x958}, {0x915, 0x93C}, {0x915, 0x93C}},
               {{0xFB1D}, {0x5D9, 0x5B4}, {0x5D9, 0x5B4}},
               {{0x2ADC}, {0x2ADD, 0x338}, {0x2ADD, 0x338}},
               {{0x344}, {0x308, 0x301}, {0x308, 0x301}},
               {{0x1D160}, {0x1D158, 0x1D165, 0x1D16E}, {0x1D158, 0x1D165, 0x1D16E}},
               // Single characters for single ones; compatibility ones stay.
               {{0x212B}, {0xC5}, {0x41, 0x30A}},
               {{0x2126}, {0x3A9}, {0x3A9}},
               {{0x65, 0x340}, {0xE8}, {0x65, 0x300}},
               {{0x2000}, {0x2002}, {0x2002}},
               {{0xF900}, {0x8C48}, {0x8C48}},
               {{0x2FA1D}, {0x2A600}, {0x2A600}},
               {{0xFB01, 0xBD, 0xFF21}, {0xFB01, 0xBD, 0xFF21}, {0xFB01, 0xBD, 0xFF21}},
               {{0x4F60, 0x597D, 0x1F600, 0x10FFFF, 0},
                {0x4F60, 0x597D, 0x1F600, 0x10FFFF, 0},
                {0x4F60, 0x597D, 0x1F600, 0x10FFFF, 0}}};
  for (const auto& each : cases) {
    const std::string text = utf8(each.text), nfc = utf8(each.nfc), nfd = utf8(each.nfd);
    CAPTURE(text);
    for (const std::string* const same : {&text, &nfc, &nfd}) {
      CHECK(ts::nfc(*same) == nfc);
      CHECK(ts::nfd(*same) == nfd);
      CHECK(ts::nfc("q" + *same + "y") == "q" + nfc + "y");
    }
  }
  for (const char* bytes : {"", "ab", "e\xFF\xCC\x81", "e\xCC", "\xED\xA0\x80", "\xC0\xAF\x80"}) {
    CHECK(ts::nfc(bytes) == bytes);
    CHECK(ts::nfd(bytes) == bytes);
  }
  CHECK(ts::nfc("\xFF"
                "e\xCC\x81\xFE") == "\xFF\xC3\xA9\xFE");
  std::string marks, above, below;  // 200,000, every second one in the wrong place
  for (int i = 0; i < 100000; ++i) {
    marks += "\xCC\x81\xCC\xA3";
    above += "\xCC\x81";
    below += "\xCC\xA3";
  }
  CHECK((ts::nfd(marks) == below + above));
}

TEST_CASE("normal forms: of themselves, of each other, of parts") {
  Dice dice(11);
  const std::uint32_t from[][2] = {{0x20, 0x7F},     {0xC0, 0x250},    {0x300, 0x363},
                                   {0x380, 0x3D0},   {0x5B0, 0x5F0},   {0x900, 0xDF0},
                                   {0x1100, 0x1200}, {0x1B05, 0x1B45}, {0x1DC0, 0x2004},
                                   {0x3040, 0x3100}, {0xAC00, 0xD7B0}, {0xF900, 0xFB50}};
  const auto any = [&] {
    std::string text;
    for (std::size_t n = dice.below(12); n > 0; --n) {
      const auto& range = from[dice.below(dice.below(2) == 0 ? 3 : 12)];
      ts::detail::append_utf8(
          text, range[0] + static_cast<std::uint32_t>(dice.below(range[1] - range[0])));
      text += dice.below(40) == 0 ? dice.bytes(2) : "";
    }
    return text;
  };
  for (int i = 0; i < 5000; ++i) {
    const std::string a = any(), b = any(), nfc = ts::nfc(a), nfd = ts::nfd(a);
    const bool same = ts::nfc(nfc) == nfc && ts::nfd(nfd) == nfd && ts::nfc(nfd) == nfc &&
                      ts::nfd(nfc) == nfd && ts::nfc(a + " " + b) == nfc + " " + ts::nfc(b) &&
                      ts::detail::is_utf8(nfc) == ts::detail::is_utf8(a);
    // Parts join into what the whole is, but where bytes of one character meet.
    const bool parts =
        !ts::detail::is_utf8(a) || !ts::detail::is_utf8(b) ||
        (ts::nfc(nfc + ts::nfc(b)) == ts::nfc(a + b) && ts::nfd(nfd + b) == ts::nfd(a + b));
    if (!same || !parts) {
      CAPTURE(ts::json_escape(a));
      CAPTURE(ts::json_escape(b));
      CHECK(same);
      CHECK(parts);
    }
  }
}

TEST_CASE("tokenizer.json: a normal form, of the text between added tokens") {
  const std::string composed = "caf\xC3\xA9 na\xC3\xAFve caf\xC3\xA9 na\xC3\xAFve";
  const std::string plain = ts::hugging_face_json(ts::train_tokenizer(composed, 264));
  const auto with = [&plain](const std::string& normalizer, const std::string& added = "") {
    std::string json = plain;
    json.replace(json.find("\"normalizer\":null"), 17, "\"normalizer\":" + normalizer);
    json.replace(json.find("\"added_tokens\":["), 16, "\"added_tokens\":[" + added);
    return ts::parse_hugging_face_tokenizer(json, "t");
  };
  const ts::Tokenizer none = with("null"), nfc = with(R"({"type":"NFC"})");
  const ts::Tokenizer nfd = with(R"({"type":"Sequence","normalizers":[{"type":"NFD"}]})");
  const std::string apart = ts::nfd(composed);
  CHECK(none.encode(apart) != none.encode(composed));
  CHECK(none.decode(none.encode(apart)) == apart);
  CHECK(nfc.encode(apart) == none.encode(composed));
  CHECK(nfc.encode(composed) == none.encode(composed));
  CHECK(nfc.decode(nfc.encode(apart)) == composed);
  CHECK(nfd.encode(composed) == none.encode(apart));
  CHECK(nfc.encode("\xFF" + apart) == none.encode("\xFF" + composed));
  CHECK_FALSE(nfc == none);
  CHECK_FALSE(nfc == nfd);

  const auto token = [](int id, const char* text, bool normalized, bool special = false) {
    return ts::detail::cat({id > 264 ? "," : "", "{\"id\":", id, ",\"content\":\"", text,
                            "\",\"normalized\":", normalized ? "true" : "false",
                            ",\"special\":", special ? "true" : "false", "}"});
  };
  const std::string added = token(264, "<s>", false, true) + token(265, "[e\xCC\x81]", true) +
                            token(266, "(e\xCC\x81)", false) + token(267, "]z", false);
  const ts::Tokenizer full = with(R"({"type":"NFC"})", added);
  const ts::Tokenizer saved =
      ts::detail::tokenizer_from_json(ts::detail::tokenizer_json(full), "x: ");
  const ts::Tokenizer written =
      ts::parse_hugging_face_tokenizer(ts::hugging_face_json(full), "written");
  CHECK(saved == full);
  CHECK(written == full);
  ts::EncodeOptions special;
  special.parse_special = true;
  const auto ids = [&none](const std::string& text) { return none.encode(text); };
  const auto join = [](const std::vector<Ids>& parts) {
    Ids all;
    for (const Ids& part : parts) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  };
  for (const ts::Tokenizer* const same : {&full, &saved, &written}) {
    // In the normal form, and as given.
    CHECK(same->encode("a[e\xCC\x81]b") == join({ids("a"), {265}, ids("b")}));
    CHECK(same->encode("a[\xC3\xA9]b") == join({ids("a"), {265}, ids("b")}));
    CHECK(same->encode("(e\xCC\x81)") == Ids{266});
    CHECK(same->encode("(\xC3\xA9)") == ids("(\xC3\xA9)"));
    // What stands in the text is found first, and nothing joins across it.
    CHECK(same->encode("[e\xCC\x81]z") == join({ids("[\xC3\xA9"), {267}}));
    CHECK(same->encode("e<s>\xCC\x81", special) == join({ids("e"), {264}, ids("\xCC\x81")}));
    CHECK(same->encode("e<s>\xCC\x81") == ids("e<s>\xCC\x81"));
    CHECK(same->encode("e\xCC\x81<s>", special) == join({ids("\xC3\xA9"), {264}}));
  }

  const ts::Tokenizer pieces = ts::parse_hugging_face_tokenizer(
      R"({"normalizer":{"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Prepend",)"
      R"("prepend":"\u2581"},{"type":"Replace","pattern":{"String":" "},"content":"\u2581"}]},)"
      R"("model":{"type":"BPE","vocab":{"\u2581":0,"\u00E9":1,"\u2581\u00E9":2},)"
      R"("merges":["\u2581 \u00E9"]}})",
      "t");
  CHECK(pieces.encode("e\xCC\x81 e\xCC\x81\xC3\xA9") == Ids{2, 2, 1});
  CHECK(ts::parse_hugging_face_tokenizer(ts::hugging_face_json(pieces), "t") == pieces);
  CHECK(error_of([&] { pieces.encode("\xC3\xA9x"); }) ==
        "encode: \"x\" at byte 2 is not among the 3 tokens, nor are all its bytes; leave it out");

  CHECK(json_error(small_json(R"("normalizer":{"type":"NFKC"},)" + pre(byte_level), small_model)) ==
        "its normalizer has the step NFKC; NFC, NFD or none is right");
  std::string json = ts::detail::tokenizer_json(nfc);
  json.replace(json.find("\"NFC\""), 5, "\"NFKD\"");
  CHECK(error_of([&] { ts::detail::tokenizer_from_json(json, "x: "); }) ==
        "x: its tokenizer's normalizer is \"NFKD\"; NFC or NFD is right");
  ts::TokenizerData own = nfc.data();
  own.normalize = [](const std::string& text) { return text + text; };
  CHECK(ts::make_tokenizer(own).encode("a") == ids("aa"));
  CHECK(error_of([&] { ts::hugging_face_json(ts::make_tokenizer(own)); }) ==
        "save: the tokenizer's normalizer is a function that no file names; nfc, nfd or none is "
        "right");
}

TEST_CASE("tokenizer.json: what is not understood is refused") {
  CHECK(json_error(R"({"added_tokens":[{"id":1,"content":"w","single_word":true}],)"
                   R"("model":{"vocab":{"a":0},"merges":[]}})") ==
        "the added token \"w\" stands for whole words alone; single_word false is right");
  CHECK(json_error("{") == "json: the text ends early at byte 1");
  CHECK(json_error("{}") == "its model lacks vocab or merges");
  CHECK(json_error("[]") == "its model lacks vocab or merges");
  CHECK(json_error(R"({"model":{"type":"WordPiece"}})") == "its model is WordPiece; BPE is right");
  CHECK(json_error(R"({"model":{"type":"Unigram"}})") == "its model is Unigram; BPE is right");
  CHECK(json_error(small_json("", R"("vocab":{},"merges":[],"end_of_word_suffix":"</w>")")) ==
        "its model has the end_of_word_suffix \"</w>\"; none is right");
  CHECK(json_error(small_json("", R"("vocab":{"a":0,"b":0},"merges":[])")) ==
        "the tokens \"a\" and \"b\" have the same id 0");
  CHECK(json_error(small_json("", R"("vocab":{"a":4000000000},"merges":[])")) ==
        "token \"a\" has the id 4000000000; ids from 0 without large gaps, here below 1030, are "
        "right");
  CHECK(json_error(small_json("", R"("vocab":{"a":-1},"merges":[])")) ==
        "token \"a\": its id is not a whole number from 0 to 2^53 - 1");
  CHECK(json_error(small_json("", R"("vocab":{"a":0},"merges":[3])")) ==
        "merge 0 is neither \"left right\" nor [\"left\", \"right\"]");
  CHECK(json_error(R"({"added_tokens":[{"id":3}],"model":{"vocab":{"a":0},"merges":[]}})") ==
        "added token 0 lacks id or content");
  CHECK(json_error(small_json(pre(R"({"type":"ByteLevel"})"), small_model)) ==
        "its ByteLevel step adds a space before a text; add_prefix_space false is right");
  const std::string level = R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]},)";
  const std::string sequence = R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[)";
  CHECK(json_error(small_json(sequence +
                                  R"({"type":"Split","pattern":{"Regex":"\\d"},)"
                                  R"("behavior":"Isolated"},)" +
                                  level,
                              small_model)) ==
        "it cuts texts by the pattern \\d; those of GPT-2, Llama 3 and Qwen 2 are right");
  CHECK(json_error(small_json(sequence + R"({"type":"Punctuation"},)" + level, small_model)) ==
        "its pre_tokenizer is none of ByteLevel, Digits and ByteLevel, Split by a pattern and "
        "ByteLevel");
  CHECK(json_error(
            small_json(R"("normalizer":{"type":"Lowercase"},)" + pre(byte_level), small_model)) ==
        "its normalizer has the step Lowercase; NFC, NFD or none is right");
  CHECK(json_error(small_json(R"("normalizer":{"type":"Lowercase"},)", small_model)) ==
        "its normalizer has the step Lowercase; to prepend U+2581 and to replace spaces by it is "
        "right");
  CHECK(json_error(small_json(pre(R"({"type":"Whitespace"})"), small_model)) ==
        "its pre_tokenizer has the step Whitespace; ByteLevel or Metaspace is right");
  CHECK(json_error(small_json(pre(R"({"type":"Metaspace","replacement":"\u2581"})"),
                              R"("vocab":{"a\u2581":0},"merges":[])")) ==
        "its Metaspace step cuts before every space, and the token \"a\xE2\x96\x81\" has one "
        "inside; split false is right");
  CHECK(json_error(small_json(pre(byte_level) + R"("post_processor":{"type":"BertProcessing"},)",
                              small_model)) ==
        "its post_processor has the step BertProcessing; TemplateProcessing is right");
  const auto around = [&](const std::string& tokens) {
    return json_error(small_json(pre(byte_level) +
                                     R"("post_processor":{"type":"TemplateProcessing","single":[)" +
                                     tokens + "]},",
                                 small_model));
  };
  CHECK(around(R"({"SpecialToken":{"id":"<q>"}})") ==
        "its template has \"<q>\" before a text, which is no token");
  CHECK(around(R"({"Sequence":{}},{"SpecialToken":{"id":"<s>"}},{"SpecialToken":{"id":"<s>"}})") ==
        "its template has \"<s>\" after a text, the second there; one is right");
}

TEST_CASE("GPT-2's vocab.json with merges.txt") {
  const std::string vocabulary = R"({"a":0,"b":1,"\u0120":2,"ab":3,"<|endoftext|>":4})";
  const ts::Tokenizer gpt2 =
      ts::parse_gpt2_tokenizer(vocabulary, "#version: 0.2\na b\r\n\n", "vocab.json");
  CHECK(gpt2.encode("ab ab") == Ids{3, 2, 3});
  CHECK(gpt2.bos() == 4);
  CHECK(gpt2.special(4));
  CHECK(error_of([] { ts::parse_gpt2_tokenizer("[]", "", "v"); }) ==
        "read_gpt2_tokenizer: \"v\": the vocabulary is no object {\"token\": id, ...}");
  CHECK(error_of([&] { ts::parse_gpt2_tokenizer(vocabulary, "b b", "v"); }) ==
        "read_gpt2_tokenizer: \"v\": merge 0 is \"b b\", but \"bb\" is no token");
  CHECK(error_of([] { ts::parse_gpt2_tokenizer("{", "", "v"); }) ==
        "read_gpt2_tokenizer: \"v\": json: the text ends early at byte 1");
}

namespace {

// Training as its description has it: count all pairs of all words anew after each merge.
std::vector<std::string> naive_merges(const std::string& text, std::size_t tokens) {
  std::vector<Ids> words;
  for (const std::string& piece : cut(ts::PreTokenizer::gpt2, text)) {
    Ids word;
    for (const char c : piece) {
      word.push_back(static_cast<unsigned char>(c));
    }
    words.push_back(word);
  }
  std::vector<std::string> names, merges;
  for (int byte = 0; byte < 256; ++byte) {
    names.push_back(ts::detail::spelled_bytes(
        std::string(1, static_cast<char>(static_cast<unsigned char>(byte)))));
  }
  while (names.size() < tokens) {
    std::map<std::pair<std::int32_t, std::int32_t>, int> counts;
    for (const Ids& word : words) {
      for (std::size_t i = 0; i + 1 < word.size(); ++i) {
        ++counts[{word[i], word[i + 1]}];
      }
    }
    std::pair<std::int32_t, std::int32_t> best;
    int most = 1;
    for (const auto& pair : counts) {
      if (pair.second > most) {
        most = pair.second;
        best = pair.first;
      }
    }
    if (most < 2) {
      break;  // no pair stands twice
    }
    const std::string left = names[static_cast<std::size_t>(best.first)];
    const std::string right = names[static_cast<std::size_t>(best.second)];
    const std::string both = left + right;
    merges.push_back(left + " " + right);
    std::size_t id = 0;
    while (id < names.size() && names[id] != both) {
      ++id;
    }
    if (id == names.size()) {
      names.push_back(both);
    }
    for (Ids& word : words) {
      for (std::size_t i = 0; i + 1 < word.size(); ++i) {
        if (word[i] == best.first && word[i + 1] == best.second) {
          word[i] = static_cast<std::int32_t>(id);
          word.erase(word.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        }
      }
    }
  }
  return merges;
}

const char* const rhyme =
    "Peter Piper picked a peck of pickled peppers. A peck of pickled peppers Peter Piper picked. "
    "If Peter Piper picked a peck of pickled peppers, where's the peck Peter Piper picked? ";

}  // namespace

TEST_CASE("training merges the most frequent pair, as counting all anew does") {
  CHECK(ts::train_tokenizer(rhyme, 280).data().merges == naive_merges(rhyme, 280));
  Dice dice(7);
  for (int i = 0; i < 25; ++i) {
    const std::string text = dice.text(20, "ab ") + std::string(12, 'a') + dice.text(250, "abab c");
    CAPTURE(text);
    std::string error;
    try {
      const ts::Tokenizer trained = ts::train_tokenizer(text, 262);
      CHECK(trained.data().merges == naive_merges(text, 262));
      CHECK(trained.decode(trained.encode(text)) == text);
    } catch (const ts::Error& e) {
      error = e.what();  // too short a text
    }
    CHECK((error.empty() || text.size() < 80));
  }
  ts::TrainTokenizerOptions options;
  options.special = {"<|endoftext|>", "<|pad|>"};
  const ts::Tokenizer trained = ts::train_tokenizer(rhyme, 280, options);
  CHECK(trained.vocabulary() == 280);
  CHECK(trained.bos() == 278);
  CHECK(trained.eos() == 278);
  CHECK(trained.token_text(279) == "<|pad|>");
  CHECK(trained.encode(rhyme).size() < std::strlen(rhyme) / 2);
  CHECK(error_of([] { ts::train_tokenizer("aaaa", 255); }) ==
        "train_tokenizer: a vocabulary of 255; at least 256 (256 bytes and 0 special tokens) is "
        "right");
  CHECK(error_of([&] { ts::train_tokenizer("aaaa", 257, options); }) ==
        "train_tokenizer: a vocabulary of 257; at least 258 (256 bytes and 2 special tokens) is "
        "right");
  CHECK(error_of([] { ts::train_tokenizer("aaaa", 300); }) ==
        "train_tokenizer: no pair stands twice any more after 257 tokens of 300; a longer text or "
        "a vocabulary of at most 257 is right");
  CHECK(error_of([&] { ts::train_tokenizer("aaaa", 300, options); }) ==
        "train_tokenizer: no pair stands twice any more after 259 tokens of 300; a longer text or "
        "a vocabulary of at most 259 is right");
  options.pre = "words";
  CHECK(error_of([&] { ts::train_tokenizer("aaaa", 300, options); })
            .rfind(
                "train_tokenizer: the pre-tokenizer is \"words\"; right is one of gpt-2, default, ",
                0) == 0);
}

TEST_CASE("tokenizers come back from a model's file and from a tokenizer.json") {
  ts::TrainTokenizerOptions options;
  options.special = {"<|endoftext|>"};
  const std::string path = "tokenizer_test.saved";
  for (const char* pre : {"gpt-2", "llama-bpe", "qwen2", "smollm", "none"}) {
    options.pre = pre;
    const ts::Tokenizer trained = ts::train_tokenizer(rhyme, 275, options);
    CHECK(ts::detail::tokenizer_from_json(ts::detail::tokenizer_json(trained), "x: ") == trained);
    ts::save_tokenizer(trained, path);
    const ts::Tokenizer again = ts::read_hugging_face_tokenizer(path);
    CHECK(again == trained);
    CHECK(again.encode(rhyme) == trained.encode(rhyme));
  }
  ts::ModelConfig config = ts::config("nano-llama");
  config.vocabulary = 275;
  config.layers = 1;
  ts::Transformer model(config);
  options.pre = "gpt-2";
  model.tokenizer = ts::train_tokenizer(rhyme, 275, options);
  model.save(path);
  CHECK(ts::load(path).tokenizer == model.tokenizer);
  CHECK(ts::generate(model, "Peter", 3).rfind("Peter", 0) == 0);
  std::remove(path.c_str());

  const std::string file = llama2c_file({{" ", -1.0F}, {"\"a", -0.1F}, {"\xC3\xA9", -3.5F}});
  const ts::Tokenizer scored = ts::parse_llama2c_tokenizer(bytes_of(file), file.size(), 262, "t");
  CHECK(ts::detail::tokenizer_from_json(ts::detail::tokenizer_json(scored), "x: ") == scored);
  CHECK(error_of([&] { ts::save_tokenizer(scored, path); }) ==
        "save_tokenizer: a SentencePiece tokenizer merges by scores, which a tokenizer.json cannot "
        "hold; save() of a model keeps them");
  ts::TokenizerData data;
  data.kind = ts::TokenizerKind::merged_pieces;
  data.tokens = {"<unk>", "<s>", "</s>", "<0x61>", "\xE2\x96\x81", "b", "bb", "[u]"};
  data.types = {2, 3, 3, 6, 1, 1, 1, 4};
  data.merges = {"b b"};
  data.unknown = 0;
  data.bos = 1;
  data.eos = 2;
  for (const int eos : {0, 1}) {
    data.add_eos = eos;
    data.add_space_prefix = eos == 0;
    const ts::Tokenizer pieces = ts::make_tokenizer(data);
    CHECK(ts::detail::tokenizer_from_json(ts::detail::tokenizer_json(pieces), "x: ") == pieces);
    const ts::Tokenizer again =
        ts::parse_hugging_face_tokenizer(ts::hugging_face_json(pieces), "t");
    CHECK(again.data().types == pieces.data().types);
    CHECK(again.encode("a bbb[u]") == pieces.encode("a bbb[u]"));
    CHECK(again.decode(again.encode("a bbb[u]")) == "a bbb[u]");
  }
  for (const char* text : {"hello", "\xFF"}) {  // characters, bytes
    const ts::Tokenizer plain = ts::make_text("t", text).tokenizer;
    const ts::Tokenizer again = ts::parse_hugging_face_tokenizer(ts::hugging_face_json(plain), "t");
    CHECK(again.encode(text) == plain.encode(text));
    CHECK(ts::make_tokenizer(plain.data()) == plain);
  }
  CHECK(error_of([] { ts::hugging_face_json(ts::make_text("t", "a\xE2\x96\x81").tokenizer); }) ==
        "save_tokenizer: token 1 is \"\xE2\x96\x81\"; texts that differ, and no character U+2581, "
        "are right");
  const auto refuse = [](const std::string& from, const std::string& to) {
    std::string json = ts::detail::tokenizer_json(ts::train_tokenizer(rhyme, 260));
    json.replace(json.find(from), from.size(), to);
    return error_of([&] { ts::detail::tokenizer_from_json(json, "x: "); });
  };
  CHECK(refuse("\"merges\"", "\"mergers\"") == "x: its tokenizer lacks merges");
  CHECK(refuse("\"bos\":-1", "\"bos\":0.5") ==
        "x: its tokenizer's bos is no whole number from -1 to 2^31 - 1");
  CHECK(refuse("\"bos\":-1", "\"bos\":260") ==
        "x: its tokenizer: the BOS token is 260 of 260 tokens; a token's number, or -1 for none, "
        "is right");
}

TEST_CASE("a text by a tokenizer of one's own, or one trained on it") {
  const std::string path = "tokenizer_test.txt";
  std::FILE* const file = std::fopen(path.c_str(), "wb");
  REQUIRE(file != nullptr);
  std::fputs(rhyme, file);
  std::fclose(file);
  ts::TextOptions options;
  options.tokenizer = ts::TokenizerKind::byte_pairs;
  options.vocabulary = 275;
  const ts::Text text = ts::read_text(path, options);
  CHECK(text.tokenizer.vocabulary() == 275);
  CHECK(text.text() == "tokenizer_test.txt: " + std::to_string(text.tokens.size()) +
                           " tokens, byte-level BPE (275 tokens)");
  CHECK(text.tokenizer.decode(text.tokens) == rhyme);
  CHECK(ts::read_text(path, text.tokenizer).tokens == text.tokens);
  options.tokenizer = ts::TokenizerKind::bytes;
  CHECK(error_of([&] { ts::read_text(path, options); }) ==
        "read_text: a vocabulary of 275; only byte-level BPE has one to choose, 0 is right");
  options.vocabulary = 0;
  CHECK(ts::read_text(path, options).tokens.size() == std::strlen(rhyme));
  options.tokenizer = ts::TokenizerKind::byte_pairs;
  CHECK(error_of([&] { ts::read_text(path, options); }) ==
        "read_text: a vocabulary of 0; for byte-level BPE at least 256 is right");
  options.tokenizer = ts::TokenizerKind::scored_pieces;
  CHECK(error_of([&] { ts::read_text(path, options); }) ==
        "read_text: SentencePiece tokenizers are read, not trained; characters, bytes or "
        "byte_pairs, or a tokenizer itself, is right");
  options.tokenizer = ts::TokenizerKind::characters;
  CHECK(ts::read_text(path, options).tokenizer == ts::read_text(path).tokenizer);
  CHECK(error_of([&] { ts::make_text("t", "", text.tokenizer); }) ==
        "read_text: \"t\" is empty; a text to learn is right");
  std::remove(path.c_str());
}

TEST_CASE("hostile texts and files take n log n and never crash") {
  std::vector<std::pair<std::string, float>> nested;  // a, aa, aaa, ...: each merge changes all
  for (std::size_t i = 1; i < 60; ++i) {
    nested.emplace_back(std::string(i, 'a'), -static_cast<float>(i));
  }
  const std::string file = llama2c_file(nested);
  const ts::Tokenizer chain = ts::parse_llama2c_tokenizer(
      bytes_of(file), file.size(), static_cast<std::int64_t>(259 + nested.size()), "t");
  const std::string one_word(40000, 'a');
  CHECK(chain.decode(chain.encode(one_word)) == one_word);
  CHECK(chain.encode(one_word.substr(0, 300)) == naive_llama2c(nested, one_word.substr(0, 300)));
  const ts::Tokenizer trained = ts::train_tokenizer(one_word + rhyme, 270);
  CHECK(trained.decode(trained.encode(one_word)) == one_word);
  const std::string spaces(40000, ' ');
  CHECK(trained.decode(trained.encode(spaces)) == spaces);

  std::vector<std::string> files = {file, ts::hugging_face_json(trained),
                                    ts::detail::tokenizer_json(trained)};
  const std::string model = shared_file("models/stories260K/tok512.model");
  files.push_back(there(model) ? contents(model) : "");
  Dice dice(8);
  int refused = 0;
  for (int i = 0; i < 160; ++i) {  // cut short, or with some bytes changed
    const std::size_t which = dice.below(4);
    std::string bytes = files[which];
    if (i % 3 == 0) {
      bytes.resize(dice.below(bytes.size() + 1));
    }
    for (std::size_t n = 1 + dice.below(4); n > 0 && !bytes.empty(); --n) {
      bytes[dice.below(bytes.size())] =
          static_cast<char>(static_cast<unsigned char>(dice.below(256)));
    }
    try {
      const ts::Tokenizer read =
          which == 0   ? ts::parse_llama2c_tokenizer(bytes_of(bytes), bytes.size(), 318, "t")
          : which == 1 ? ts::parse_hugging_face_tokenizer(bytes, "t")
          : which == 2 ? ts::detail::tokenizer_from_json(bytes, "t")
                       : ts::parse_sentencepiece(bytes_of(bytes), bytes.size(), "t");
      read.decode(read.encode("aaaa Peter \xC3\xA9\xFF <s>"));
    } catch (const ts::Error&) {
      ++refused;
    }
  }
  CHECK(refused > 60);
}

TEST_CASE("a word of a million bytes takes no minute [slow]") {
  const ts::Tokenizer trained = ts::train_tokenizer(rhyme, 280);
  Dice dice(9);
  std::string word;
  while (word.size() < 1000000) {
    word += "piecdk"[dice.below(6)];
  }
  CHECK(trained.decode(trained.encode(word)) == word);
}

TEST_CASE("pieces: where the space before the text goes when a user's token stands there") {
  ts::TokenizerData data;
  data.kind = ts::TokenizerKind::scored_pieces;
  data.tokens = {"<unk>",
                 "<s>",
                 "</s>",
                 "\xE2\x96\x81",
                 "a",
                 "\xE2\x96\x81"
                 "a",
                 "<sep>",
                 "b"};
  data.scores = {0, 0, 0, -1, -2, -0.5f, 0, -3};
  data.types = {2, 3, 3, 1, 1, 1, 4, 1};
  data.unknown = 0, data.bos = 1, data.eos = 2, data.add_bos = 0;
  const ts::Tokenizer each = ts::make_tokenizer(data);  // Hugging Face's Prepend, llama.cpp
  CHECK(each.encode("a<sep>a") == Ids{5, 6, 5});
  CHECK(each.encode("<sep>a") == Ids{6, 5});
  CHECK(each.encode("<sep> a") == Ids{6, 3, 5});
  CHECK(each.encode("<sep>") == Ids{6});
  data.space_rule = ts::SpaceRule::text;
  const ts::Tokenizer once = ts::make_tokenizer(data);  // SentencePiece's own program
  CHECK(once.encode("a<sep>a") == Ids{5, 6, 4});
  CHECK(once.encode("<sep>a") == Ids{3, 6, 4});
  CHECK(once.encode("<sep>") == Ids{3, 6});
  CHECK(once.encode("").empty());
  ts::EncodeOptions special;
  special.parse_special = true;
  CHECK(once.encode("<s>a", special) == Ids{1, 5});
  for (const ts::Tokenizer* const t : {&each, &once}) {
    for (const char* text :
         {"a<sep>a", "<sep>a", "<sep> a", "<sep><sep>b", " a<sep>", "  <sep>  b"}) {
      CHECK(t->decode(t->encode(text)) == text);
    }
    CHECK(ts::detail::tokenizer_from_json(ts::detail::tokenizer_json(*t), "x: ") == *t);
  }
}

TEST_CASE("pieces: unused ones merge on the way, and U+2581 is a space where tokens spell it so") {
  const std::string mark = "\xE2\x96\x81";
  ts::TokenizerData data;
  data.kind = ts::TokenizerKind::scored_pieces;
  data.tokens = {"<unk>", "<s>", "</s>", mark, "a", "b", "c", "ab", "abc", "bb", "abb", "<u>"};
  data.scores = {0, 0, 0, -9, -9, -9, -9, -1, -2, -5, -3, 0};
  data.types = {2, 3, 3, 1, 1, 1, 1, 5, 1, 1, 5, 4};
  data.unknown = 0, data.bos = 1, data.eos = 2, data.add_bos = 0;
  data.add_space_prefix = false;
  const ts::Tokenizer as_is = ts::make_tokenizer(data);  // llama.cpp: a token as any
  CHECK(as_is.encode("ab abc abb") == Ids{7, 3, 8, 3, 10});
  data.space_rule = ts::SpaceRule::text;
  const ts::Tokenizer apart = ts::make_tokenizer(data);  // SentencePiece takes it apart again
  CHECK(apart.encode("ab abc") == Ids{4, 5, 3, 8});
  CHECK(apart.encode("abb") == Ids{4, 5, 5});  // abb was ab and b, ab was a and b
  CHECK(apart.encode("ab<u>abc") == Ids{4, 5, 11, 8});
  CHECK(apart.encode("a" + mark + " b") == Ids{4, 3, 3, 5});
  CHECK(apart.decode({4, 3, 3, 5}) == "a  b");
  CHECK(error_of([&] { apart.encode("a" + mark + "<u>" + mark + "b!"); }) ==
        "encode: \"!\" at byte 11 is not among the 12 tokens, nor are all its bytes; leave it out");
  const auto whole = [&data] {  // a text is then one word, which takes ten times as long
    ts::detail::TokenizerTables tables;
    tables.data = data;
    ts::detail::add_texts(tables);
    ts::detail::add_scored_pairs(tables);
    return tables.splits;
  };
  CHECK(whole());
  data.types[7] = data.types[10] = 1;
  data.tokens.push_back("<reserved>");  // no merge makes it
  data.scores.push_back(0);
  data.types.push_back(5);
  CHECK(!whole());
  CHECK(ts::make_tokenizer(data).encode("ab abc") == Ids{7, 3, 8});
  data.space_rule = ts::SpaceRule::first_without;
  data.add_space_prefix = true;
  CHECK(ts::make_tokenizer(data).encode(mark + "a") == Ids{3, 4});
  const std::string file = llama2c_file({{" ", -1.0f}, {"a", -2.0f}});  // spaces as spaces
  const ts::Tokenizer llama2c =
      ts::parse_llama2c_tokenizer(bytes_of(file), file.size(), 261, "of two");
  CHECK(llama2c.encode("a" + mark, false) == Ids{259, 260, 3 + 0xE2, 3 + 0x96, 3 + 0x81});
}

TEST_CASE("merges go through tokens that are also added; dbrx is no Llama 3 but for its cuts") {
  ts::TokenizerData data = small_bpe({"a b", "ab c"});
  REQUIRE(data.tokens[256] == "ab");
  data.types.assign(data.tokens.size(), 1);
  data.types[256] = 3;  // found in no text, but on the way to "abc"
  const ts::Tokenizer t = ts::make_tokenizer(data);
  CHECK(t.encode("abc") == Ids{257});
  CHECK(t.encode("ab") == Ids{256});
  data.types.clear();
  data.bos = 0;
  for (const char* pre : {"dbrx", "llama-bpe"}) {
    data.pre = pre;
    const bool llama = std::string(pre) != "dbrx";
    const ts::Tokenizer made = ts::make_tokenizer(data);
    CHECK(made.data().add_bos == (llama ? 1 : 0));
    CHECK(made.data().ignore_merges == (llama ? 1 : 0));
  }
}

TEST_CASE("llama.cpp's default cut: signs apart, then words, then digits; Falcon, DeepSeek-Coder") {
  ts::PreTokenizer pre = ts::PreTokenizer::signs;
  const auto pieces = [&pre](const std::string& text) {
    std::vector<std::string> out;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t next = ts::detail::next_piece(pre, text.data(), at, text.size());
      REQUIRE(next > at);
      out.push_back(text.substr(at, next - at));
      at = next;
    }
    return out;
  };
  using Pieces = std::vector<std::string>;
  CHECK(pieces("I don't know.") == Pieces{"I", " don", "'", "t", " know", "."});
  CHECK(pieces("a  b, 12345 x") == Pieces{"a", " ", " b", ",", " ", "123", "45", " x"});
  CHECK(pieces("1\xEF\xBC\x91"
               "234 <=> \xC2\xA7$5") ==
        Pieces{"1\xEF\xBC\x91", "234", " ", "<=>", " ", "\xC2\xA7$", "5"});
  CHECK(pieces("x   !") == Pieces{"x", "   ", "!"});
  std::string long_text(600000, '1');  // without signs: not looked through again at each word
  for (int i = 0; i < 100000; ++i) {
    long_text += " a12";
  }
  CHECK(pieces(long_text).size() == 200000 + 200000);
  pre = ts::PreTokenizer::falcon;  // a backquote is a sign, a space stays with its number
  CHECK(pieces("a` 12, 12345\n") == Pieces{"a", "`", " 12", ",", " ", "123", "45", "\n"});
  pre = ts::PreTokenizer::coder;
  CHECK(pieces("if (x>=10) \n\n  y $+!") ==
        Pieces{"if", " (", "x", ">=", "1", "0", ")", " ", "\n", "\n", " ", " y", " $+", "!"});
  const std::string han = "\xE6\xBC\xA2", comma = "\xE3\x80\x81", thai = "\xE0\xB9\x91";
  CHECK(pieces(" a" + han + han + comma + "!" + thai + thai) ==
        Pieces{" a", han + han, comma, "!", thai, thai});
  ts::TokenizerData data = small_bpe({"a b"});
  data.pre = "default";
  CHECK(error_of([&] {
          ts::hugging_face_json(ts::make_tokenizer(data));
        }).find("save_tokenizer: llama.cpp's cut \"default\" is of several patterns") == 0);
}

TEST_CASE("special tokens of a training: none empty, each once") {
  ts::TrainTokenizerOptions options;
  for (const std::vector<std::string>& special :
       {std::vector<std::string>{""}, std::vector<std::string>{"<a>", "<a>"}}) {
    options.special = special;
    CHECK(error_of([&] { ts::train_tokenizer("abababab", 260, options); }) ==
          "train_tokenizer: the special token \"" + special.back() +
              "\"; none that is empty, and each once, is right");
  }
}
