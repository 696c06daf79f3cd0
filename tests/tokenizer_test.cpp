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
    return static_cast<std::size_t>(ts::detail::random_below(seed_, at_++, n));
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
  std::vector<std::pair<std::string, float>> all = {{"<unk>", 0.0F}, {"\n<s>\n", 0.0F},
                                                    {"\n</s>\n", 0.0F}};
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
    while (end < text.size() && end - at < 4 &&
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
      const bool spaces_twice = seen.count("\xC3") + seen.count("\xA9") > 0;
      CHECK((spaces_twice || tokenizer.decode(tokenizer.encode(text)) == text));
    }
  }
}

TEST_CASE("merges: the same ids as merging by the list, for short words and long") {
  Dice dice(4);
  for (int round = 0; round < 60; ++round) {
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
    while (repeated.size() < 5000 && round % 20 == 0) {
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
  CHECK(cut(PreTokenizer::qwen2, "a12\tb !!\r\n") ==
        Pieces{"a", "1", "2", "\tb", " !!\r\n"});
  CHECK(cut(PreTokenizer::digits, "a  12 b 3") ==
        Pieces{"a", "  ", "1", "2", " b", " ", "3"});
  CHECK(cut(PreTokenizer::gpt2, "n\xC3\xA9\xE4\xB8\xAD\xC2\xBD\xE3\x80\x80!") ==
        Pieces{"n\xC3\xA9\xE4\xB8\xAD", "\xC2\xBD", "\xE3\x80\x80", "!"});
  CHECK(cut(PreTokenizer::llama3, "it'\xC5\xBF'") == Pieces{"it", "'\xC5\xBF", "'"});
  CHECK(cut(PreTokenizer::gpt2, "a\xFF\xE4\xB8z") == Pieces{"a", "\xFF\xE4\xB8", "z"});
  CHECK(cut(PreTokenizer::none, "a b") == Pieces{"a b"});
  Dice dice(5);
  for (int i = 0; i < 400; ++i) {  // each pattern covers every text
    const std::string text = i % 2 == 0 ? dice.bytes(40) : dice.text(40, " \r\n\t'sL1a.");
    for (const PreTokenizer pre : {PreTokenizer::gpt2, PreTokenizer::llama3, PreTokenizer::qwen2,
                                   PreTokenizer::digits}) {
      std::string all;
      for (const std::string& piece : cut(pre, text)) {
        CHECK(!piece.empty());
        all += piece;
      }
      CHECK(all == text);
    }
  }
}
