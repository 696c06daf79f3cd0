// Writes the seeds of the corpus: small files of every kind that the readers accept.
//   clang++ -std=c++17 -Isrc -pthread tests/fuzz/make_corpus.cpp -o build/make_corpus
//   build/make_corpus tests/fuzz/corpus && MERGE=1 tools/fuzz.sh
#include <cstdio>
#include <filesystem>

#include "tinyscale/base/save_file.hpp"
#include "tinyscale/compute/block_quantize.hpp"
#include "tinyscale/model/gguf_model.hpp"
#include "tinyscale/model/npy.hpp"
#include "tinyscale/model/save_llama2c.hpp"
#include "tinyscale/model/tokenizer_json.hpp"

#include "../gguf_write.hpp"

namespace ts = tinyscale;

namespace {

std::string root;

std::string path_of(const std::string& reader, const std::string& name) {
  std::filesystem::create_directories(root + "/" + reader);
  return root + "/" + reader + "/" + name;
}

void put(const std::string& reader, const std::string& name, const std::string& bytes) {
  const ts::detail::File file = ts::detail::open_file(path_of(reader, name), "wb", "make_corpus");
  if (std::fwrite(bytes.data(), 1, bytes.size(), file.get()) != bytes.size()) {
    throw ts::Error("make_corpus: cannot write " + name);
  }
}

template <class T>
std::string raw(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

// Numbers of any shape, small and not all alike.
ts::Tensor numbers(const ts::Shape& shape) {
  ts::Tensor t(shape);
  for (std::int64_t i = 0; i < t.count(); ++i) {
    t.data()[i] = static_cast<float>(i * 37 % 17 - 8) / 16.0f;
  }
  return t;
}

ts::ModelConfig tiny(bool llama) {
  ts::ModelConfig c;
  c.name = "tiny";
  c.layers = 1;
  c.width = 4;
  c.heads = 2;
  c.kv_heads = llama ? 1 : 2;
  c.head_size = 2;
  c.hidden = 8;
  c.vocabulary = 5;
  c.context = 6;
  c.tied = true;
  if (llama) {
    c.norm = ts::Norm::rms;
    c.position = ts::Position::rotary;
    c.activation = ts::Activation::swiglu;
  } else {
    c.activation = ts::Activation::gelu_tanh;
    c.bias = true;
  }
  return c;
}

ts::List<ts::Parameter> filled(const ts::ModelConfig& config) {
  ts::List<ts::Parameter> out;
  for (const ts::Parameter& p : ts::Transformer::without_numbers(config).parameters) {
    ts::Parameter one;
    one.name = p.name;
    one.value = numbers(p.shape);
    out.push_back(one);
  }
  return out;
}

void json() {
  put("json", "kinds", "{\"a\": [1, -2.5e3, true, false, null, \"x\"], \"b\": {}, \"c\": []}");
  put("json", "escapes", "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\\u00e9\\u20ac\\ud83d\\ude00\"");
  put("json", "deep", std::string(60, '[') + std::string(60, ']'));
  put("json", "numbers", "[0, -0, 1.5, 1e9, 2E-3, 0.1e+2, 123456789012345678901234567890]");
  put("json", "spaces", " {\t\"k\" :\n [ ] , \"l\" : \"\xC3\xA9\" }\r\n");
  for (const char* wrong : {"{\"a\":1,\"a\":2}", "[1,]", "01", "\"\\ud800\"", "tru", "[1] 2"}) {
    put("json", "wrong_" + std::to_string(wrong[1] + wrong[2] * 256), wrong);
  }
}

void configs() {
  const std::string llama =
      "\"num_hidden_layers\":2,\"hidden_size\":8,\"num_attention_heads\":2,"
      "\"num_key_value_heads\":1,\"intermediate_size\":16,\"vocab_size\":5,"
      "\"max_position_embeddings\":32";
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3", "phi3", "gemma", "gemma2"}) {
    put("config", type, ts::detail::cat({"{\"model_type\":\"", type, "\",", llama, "}"}));
  }
  put("config", "gemma3", "{\"model_type\":\"gemma3\",\"text_config\":{" + llama + "}}");
  put("config", "mixtral",
      "{\"model_type\":\"mixtral\"," + llama +
          ",\"num_local_experts\":4,\"num_experts_per_tok\":2,\"sliding_window\":8}");
  put("config", "qwen2_moe",
      "{\"model_type\":\"qwen2_moe\"," + llama +
          ",\"num_experts\":4,\"num_experts_per_tok\":2,\"moe_intermediate_size\":4,"
          "\"shared_expert_intermediate_size\":8,\"mlp_only_layers\":[0],"
          "\"use_sliding_window\":true,\"sliding_window\":4,"
          "\"layer_types\":[\"full_attention\",\"sliding_attention\"]}");
  put("config", "deepseek",
      "{\"model_type\":\"deepseek_v3\"," + llama +
          ",\"kv_lora_rank\":4,\"q_lora_rank\":4,\"qk_rope_head_dim\":2,\"qk_nope_head_dim\":4,"
          "\"v_head_dim\":4,\"n_routed_experts\":4,\"num_experts_per_tok\":2,"
          "\"n_shared_experts\":1,\"first_k_dense_replace\":1,\"moe_intermediate_size\":4}");
  const std::string gpt =
      "\"n_layer\":2,\"n_embd\":8,\"n_head\":2,\"vocab_size\":5,\"n_positions\":32}";
  put("config", "gpt2", "{\"model_type\":\"gpt2\"," + gpt);
  put("config", "gptj", "{\"model_type\":\"gptj\",\"rotary_dim\":2," + gpt);
  put("config", "bloom",
      "{\"model_type\":\"bloom\",\"n_layer\":1,\"hidden_size\":8,\"n_head\":2,\"vocab_size\":5}");
  put("config", "opt",
      "{\"model_type\":\"opt\",\"ffn_dim\":16,\"word_embed_proj_dim\":8," + llama + "}");
  put("config", "gpt_neox",
      "{\"model_type\":\"gpt_neox\",\"rotary_pct\":0.5,\"hidden_act\":\"gelu_new\"," + llama + "}");
  put("config", "scaled",
      "{\"model_type\":\"llama\"," + llama +
          ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"rope_theta\":5e5},\"mlp_bias\":true,"
          "\"attention_bias\":true,\"tie_word_embeddings\":null,\"rms_norm_eps\":1e-5}");
  put("config", "metadata_llama", ts::detail::config_json(tiny(true)));
  put("config", "metadata_gpt2", ts::detail::config_json(tiny(false)));
}

std::string npy(const std::string& dict, const std::string& data, char version = 1) {
  const std::string length = version == 1 ? raw(static_cast<std::uint16_t>(dict.size()))
                                          : raw(static_cast<std::uint32_t>(dict.size()));
  return std::string("\x93NUMPY") + version + '\0' + length + dict + data;
}

void numpy() {
  for (const char* type : {"<f2", ">f4", "<f8", "|i1", ">i2", "<i4", "<i8", "|u1", "u8", "|b1"}) {
    const std::size_t size = static_cast<std::size_t>(type[std::strlen(type) - 1] - '0');
    put("npy", std::string("type_") + (type + (std::strlen(type) - 2)),
        npy(ts::detail::cat({"{'descr': '", type, "', 'fortran_order': False, 'shape': (3,), }\n"}),
            std::string(3 * size, '\x3d')));
  }
  put("npy", "fortran",
      npy("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3)}", std::string(24, '\x3d')));
  put("npy", "scalar", npy("{'descr': '<f4', 'fortran_order': False, 'shape': ()}", "abcd", 2));
  put("npy", "nothing",
      npy("{\"shape\": (1152921504606846976, 1152921504606846976, 0), \"descr\": \"<f4\", "
          "\"fortran_order\": True}",
          "", 3));
  put("npy", "shard", std::string("\1\0\2\0\3\0", 6));
  put("npy", "shard_header",
      raw(std::int32_t{20240520}) + raw(std::int32_t{1}) + raw(std::int32_t{2}) +
          std::string(1012, '\0') + "abcd");
}

void llama2c() {
  for (const bool tied : {true, false}) {
    for (int version = 0; version < 3; ++version) {
      ts::ModelConfig c = tiny(true);
      c.rope_pairs = ts::RopePairs::interleaved;
      c.tied = tied;
      ts::Transformer model = ts::Transformer::without_numbers(c);
      for (ts::Parameter& p : model.parameters) {
        p.value = numbers(p.shape);
      }
      const std::string name = ts::detail::cat({"version_", version, tied ? "_tied" : ""});
      ts::save_llama2c(model, path_of("llama2c", name), version, 4);
    }
  }
}

// Names of GPT-2's files, [in, out] or as nanoGPT has them [out, in].
ts::List<ts::Parameter> gpt2_tensors(bool transposed) {
  const struct {
    const char* name;
    std::int64_t rows, cols;
  } all[] = {{"wte.weight", 5, 4},
             {"wpe.weight", 6, 4},
             {"h.0.ln_1.weight", 0, 4},
             {"h.0.ln_1.bias", 0, 4},
             {"h.0.ln_2.weight", 0, 4},
             {"h.0.ln_2.bias", 0, 4},
             {"h.0.attn.bias", 2, 2},
             {"h.0.attn.c_attn.weight", 12, 4},
             {"h.0.attn.c_attn.bias", 0, 12},
             {"h.0.attn.c_proj.weight", 4, 4},
             {"h.0.mlp.c_fc.weight", 8, 4},
             {"h.0.mlp.c_proj.weight", 4, 8},
             {"h.0.attn.c_proj.bias", 0, 4},
             {"h.0.mlp.c_fc.bias", 0, 8},
             {"h.0.mlp.c_proj.bias", 0, 4},
             {"ln_f.weight", 0, 4},
             {"ln_f.bias", 0, 4}};
  ts::List<ts::Parameter> out;
  for (const auto& t : all) {
    ts::Parameter p;
    p.name = std::string("transformer.") + t.name;
    const bool matrix = t.rows > 0, turned = transposed && matrix && t.name[0] == 'h';
    p.value = numbers(!matrix  ? ts::Shape{t.cols}
                      : turned ? ts::Shape{t.cols, t.rows}
                               : ts::Shape{t.rows, t.cols});
    out.push_back(p);
  }
  return out;
}

void safetensors() {
  const auto save = [](const char* name, const ts::List<ts::Parameter>& tensors,
                       const ts::ModelConfig& c, ts::DType format) {
    ts::write_safetensors(
        path_of("safetensors", name), tensors,
        {{"tinyscale.config", ts::detail::config_json(c)},
         {"tinyscale.tokenizer", "{\"kind\":\"characters\",\"characters\":[\"a\",\"b\"]}"}},
        format);
  };
  ts::ModelConfig mixture = tiny(true);
  mixture.experts = 2;
  mixture.top_k = 1;
  mixture.expert_hidden = 4;
  mixture.hidden = 0;
  ts::ModelConfig qwen = tiny(true);
  qwen.qkv_bias = qwen.qk_norm = true;
  qwen.tied = false;
  save("llama", filled(tiny(true)), tiny(true), ts::DType::f32);
  save("llama_bf16", filled(tiny(true)), tiny(true), ts::DType::bf16);
  save("gpt2_f16", filled(tiny(false)), tiny(false), ts::DType::f16);
  save("mixture", filled(mixture), mixture, ts::DType::bf16);
  save("qwen", filled(qwen), qwen, ts::DType::f16);
  save("gpt2_names", gpt2_tensors(true), tiny(false), ts::DType::bf16);
  save("nanogpt_names", gpt2_tensors(false), tiny(false), ts::DType::f32);
  const auto bytes = [](const std::string& json, std::size_t data) {
    return raw(static_cast<std::uint64_t>(json.size())) + json + std::string(data, '\x3d');
  };
  put("safetensors", "types",
      bytes("{\"a\":{\"dtype\":\"F64\",\"shape\":[2],\"data_offsets\":[0,16]},"
            "\"b\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[16,24]},"
            "\"c\":{\"dtype\":\"F8_E4M3\",\"shape\":[1,1],\"data_offsets\":[24,25]},"
            "\"d\":{\"dtype\":\"BOOL\",\"shape\":[],\"data_offsets\":[25,26]}}",
            26));
  put("safetensors", "none",
      bytes("{\"model.layers.0.mixer.weight\":{\"dtype\":\"F32\",\"shape\":[9007199254740992,"
            "9007199254740992,0],\"data_offsets\":[0,0]},\"h.0.attn.c_attn.weight\":{\"dtype\":"
            "\"F32\",\"shape\":[0,0],\"data_offsets\":[0,0]},\"h.0.mlp.c_fc.weight\":{\"dtype\":"
            "\"F16\",\"shape\":[0,9007199254740992],\"data_offsets\":[0,0]}}",
            0));
  const std::string index =
      "{\"metadata\":{\"total_size\":4},\"weight_map\":{\"a\":\"one.safetensors\",\"b\":"
      "\"two.safetensors\"}}";
  put("shards", "index", index);
  put("shards", "shard",
      index + '\0' + bytes("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1));
  put("shards", "outside", "{\"weight_map\":{\"a\":\"../one\"}}");
}

// A file's tensors for our parameters, matrices in one format; without those of some names.
ts::List<GgufSource> gguf_tensors(const ts::ModelConfig& c, ts::BlockFormat format,
                                  const std::vector<std::string>& without = {}) {
  ts::List<GgufSource> out;
  for (const ts::Parameter& p : ts::Transformer::without_numbers(c).parameters) {
    std::string name = p.name;
    const std::string layer = "model.layers.0.";
    for (const auto& pair : ts::detail::gguf_tops) {
      if (name.rfind(std::string(pair.ours) + ".", 0) == 0) {
        name.replace(0, std::string(pair.ours).size(), pair.theirs);
      }
    }
    for (const auto& pair : ts::detail::gguf_inner) {
      const std::string ours = layer + pair.ours + ".";
      if (name.rfind(ours, 0) == 0) {
        name.replace(0, ours.size(), std::string("blk.0.") + pair.theirs + ".");
      }
    }
    const bool rows = p.shape.size() == 2 && p.shape[1] % ts::block_layout(format).elements == 0;
    bool wanted = name.rfind("model.", 0) != 0;
    for (const std::string& part : without) {
      wanted = wanted && name.rfind("blk.0." + part + ".", 0) != 0;
    }
    if (wanted) {
      out.push_back({name, numbers(p.shape), rows ? format : ts::BlockFormat::f32});
    }
  }
  return out;
}

void gguf() {
  using ts::BlockFormat;
  const auto keys = [](const std::string& type, const ts::ModelConfig& c) {
    const std::string at = type + ".";
    return ts::List<ts::GgufValue>{
        gguf_text("general.architecture", type),
        gguf_whole(at + "block_count", c.layers),
        gguf_whole(at + "embedding_length", c.width),
        gguf_whole(at + "context_length", c.context),
        gguf_whole(at + "attention.head_count", c.heads),
        gguf_whole(at + "attention.head_count_kv", c.kv_heads),
        gguf_whole(at + "feed_forward_length", c.hidden),
    };
  };
  for (const char* type : {"llama", "qwen2", "qwen3"}) {
    ts::ModelConfig c = tiny(true);
    c.qkv_bias = std::string(type) == "qwen2";
    c.qk_norm = std::string(type) == "qwen3";
    ts::List<ts::GgufValue> metadata = keys(type, c);
    metadata.push_back(gguf_real(std::string(type) + ".rope.freq_base", 10000));
    metadata.push_back(gguf_text("tokenizer.ggml.model", "llama"));
    metadata.push_back(gguf_texts("tokenizer.ggml.tokens", {"<unk>", "<s>", "</s>", "a", "b"}));
    metadata.push_back(gguf_reals("tokenizer.ggml.scores", {0, 0, 0, -1, -2}));
    metadata.push_back(gguf_wholes("tokenizer.ggml.token_type", {2, 3, 3, 1, 1}));
    metadata.push_back(gguf_whole("tokenizer.ggml.bos_token_id", 1));
    metadata.push_back(gguf_flag("tokenizer.ggml.add_bos_token", true));
    write_gguf(path_of("gguf", type), metadata, gguf_tensors(c, BlockFormat::f16));
  }
  ts::ModelConfig gpt2 = tiny(false);
  ts::List<GgufSource> tensors =
      gguf_tensors(gpt2, BlockFormat::f32, {"attn_q", "attn_k", "attn_v"});
  tensors.push_back({"blk.0.attn_qkv.weight", numbers({12, 4}), BlockFormat::f32});
  tensors.push_back({"blk.0.attn_qkv.bias", numbers({12}), BlockFormat::f32});
  write_gguf(path_of("gguf", "gpt2"), keys("gpt2", gpt2), tensors);
  ts::ModelConfig wide = tiny(true);
  wide.width = 32;
  wide.heads = 2;
  wide.head_size = 16;
  wide.hidden = 32;
  write_gguf(path_of("gguf", "q4_0"), keys("llama", wide), gguf_tensors(wide, BlockFormat::q4_0));
  ts::List<ts::GgufValue> moe = keys("qwen3moe", tiny(true));
  moe.push_back(gguf_whole("qwen3moe.expert_count", 2));
  moe.push_back(gguf_whole("qwen3moe.expert_used_count", 1));
  moe.push_back(gguf_whole("qwen3moe.expert_feed_forward_length", 8));
  ts::ModelConfig normed = tiny(true);
  normed.qk_norm = true;
  ts::List<GgufSource> stacks =
      gguf_tensors(normed, BlockFormat::f32, {"ffn_up", "ffn_gate", "ffn_down"});
  for (const char* name : {"ffn_up_exps", "ffn_gate_exps"}) {
    stacks.push_back({ts::detail::cat({"blk.0.", name, ".weight"}), numbers({2, 8, 4}), {}});
  }
  stacks.push_back({"blk.0.ffn_down_exps.weight", numbers({2, 4, 8}), {}});
  stacks.push_back({"blk.0.ffn_gate_inp.weight", numbers({2, 4}), {}});
  write_gguf(path_of("gguf", "qwen3moe"), moe, stacks);
  for (int f = 0; f <= static_cast<int>(BlockFormat::nvfp4); ++f) {
    const BlockFormat format = static_cast<BlockFormat>(f);
    const std::int64_t cols = ts::block_layout(format).elements;
    write_gguf(path_of("gguf", ts::detail::cat({"format_", ts::name_of(format)})),
               {gguf_text("general.architecture", "none")}, {{"t", numbers({1, cols}), format}});
  }
}

const char* const pieces[] = {"<unk>",
                              "<s>",
                              "</s>",
                              "<0x0A>",
                              "<0x61>",
                              "<0xC3>",
                              "\xE2\x96\x81",
                              "a",
                              "b",
                              "ab",
                              "\xC3\xA9",
                              "\xE2\x96\x81"
                              "a",
                              "abab"};

// A field of a protobuf message: a number, or bytes.
std::string field(unsigned number, std::uint64_t value) {
  std::string out(1, static_cast<char>(number << 3 & 0x7f));
  if (number > 15) {
    out = std::string(1, static_cast<char>(0x80 | (number << 3 & 0x7f)));
    out += static_cast<char>(number >> 4);
  }
  for (; value > 127; value >>= 7) {
    out += static_cast<char>(0x80 | (value & 0x7f));
  }
  return out + static_cast<char>(value);
}
std::string field(unsigned number, const std::string& bytes) {
  std::string out = field(number, static_cast<std::uint64_t>(bytes.size()));
  out[0] = static_cast<char>(out[0] | 2);
  return out + bytes;
}

void sentencepiece() {
  std::string model, bin = raw(std::uint32_t{6});
  int id = 0;
  for (const std::string piece : pieces) {
    const float score = id < 6 ? 0.0f : -static_cast<float>(id);
    const int type = id == 0 ? 2 : id < 3 ? 3 : id < 6 ? 6 : 1;
    model += field(1, field(1, piece) + '\x15' + raw(score) +
                          (type == 1 ? "" : field(3, static_cast<std::uint64_t>(type))));
    bin += raw(score) + raw(static_cast<std::int32_t>(piece.size())) + piece;
    ++id;
  }
  put("tokenizer_bin", "pieces", bin);
  put("tokenizer_bin", "three", raw(std::uint32_t{0}) + std::string(24, '\0'));
  const std::string trainer =
      field(2, field(3, std::uint64_t{2}) + field(40, std::uint64_t{0}) +
                   field(41, std::uint64_t{1}) + field(42, std::uint64_t{2}));
  put("sentencepiece", "pieces", model + trainer);
  put("sentencepiece", "normalizer",
      model + trainer + field(3, field(1, "identity") + field(3, std::uint64_t{0})));
  put("sentencepiece", "user",
      field(1, field(1, "ab") + field(3, std::uint64_t{4})) + model + trainer);
  put("sentencepiece", "unigram", model + field(2, field(3, std::uint64_t{1})));
}

void tokenizers() {
  ts::TokenizerData bytes;
  for (const char* token : {"a", "b", "c", "\xC4\xA0", "ab", "abc",
                            "\xC4\xA0"
                            "a",
                            "1", "'", "s"}) {
    bytes.tokens.push_back(token);
    bytes.types.push_back(1);
  }
  bytes.tokens.push_back("<|endoftext|>");
  bytes.types.push_back(3);
  bytes.tokens.push_back("[user]");
  bytes.types.push_back(4);
  bytes.merges = {"a b", "ab c", "\xC4\xA0 a"};
  bytes.bos = bytes.eos = 10;
  for (const char* pre : {"gpt-2", "llama-bpe", "qwen2", "smollm", "none"}) {
    bytes.pre = pre;
    const ts::Tokenizer t = ts::make_tokenizer(bytes);
    put("tokenizer_json", pre, ts::hugging_face_json(t));
  }
  put("tokenizer_json", "metadata", ts::detail::tokenizer_json(ts::make_tokenizer(bytes)));
  ts::TokenizerData merged;
  merged.kind = ts::TokenizerKind::merged_pieces;
  merged.tokens.assign(std::begin(pieces), std::end(pieces));
  merged.types = {2, 3, 3, 6, 6, 6, 1, 1, 1, 1, 1, 1, 1};
  merged.merges = {"a b", "\xE2\x96\x81 a", "ab ab"};
  merged.unknown = 0, merged.bos = 1, merged.eos = 2;
  put("tokenizer_json", "pieces", ts::hugging_face_json(ts::make_tokenizer(merged)));
  put("tokenizer_json", "metadata_merged", ts::detail::tokenizer_json(ts::make_tokenizer(merged)));
  merged.space_rule = ts::SpaceRule::first_without;
  merged.spaces.assign(merged.tokens.size(), 0);
  merged.spaces[1] = 3, merged.spaces[2] = 1;
  put("tokenizer_json", "spaces", ts::hugging_face_json(ts::make_tokenizer(merged)));
  put("tokenizer_json", "metadata_spaces", ts::detail::tokenizer_json(ts::make_tokenizer(merged)));
  put("tokenizer_json", "metaspace",
      "{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\xE2\x96\x81\",\"prepend_"
      "scheme\":"
      "\"first\",\"split\":false},\"model\":{\"type\":\"BPE\",\"unk_token\":\"a\",\"vocab\":{\"a\":"
      "0,"
      "\"b\":1,\"ab\":2},\"merges\":[[\"a\",\"b\"]]}}");
  put("tokenizer_json", "metadata_characters",
      "{\"kind\":\"characters\",\"characters\":[\"a\",\"b\",\"\xC3\xA9\"]}");
  put("tokenizer_json", "metadata_bytes", "{\"kind\":\"bytes\",\"characters\":[]}");
  const std::string vocab =
      "{\"a\":0,\"b\":1,\"ab\":2,\"\xC4\xA0\":3,\"\xC4\xA0"
      "a\":4,\"<|endoftext|>\":5}";
  put("gpt2_tokenizer", "small", vocab + '\0' + "#version: 0.2\na b\r\n\xC4\xA0 a\n");
  put("gpt2_tokenizer", "no_merges", vocab);
  put("gpt2_tokenizer", "gap", std::string("{\"a\":0,\"b\":9}") + '\0' + "a b");
}

void texts() {
  const char* const all[] = {
      "the ab abab [user] <|user|> </s> <|endoftext|>", "It's we'll 12345 6 \n\n  \t x\r\n",
      "\xC3\xA9\xE6\x97\xA5 \xE2\x96\x81 \xC2\xA0\xE3\x80\x80 \xF0\x9F\x98\x80",
      "\xFF\xFE\xC3(\xE6\x97 \xF0\x9F\x98 \x80\xBF a"};
  for (int which = 0; which < 9; ++which) {
    for (int i = 0; i < 4; ++i) {
      put("encode", ts::detail::cat({which, "_", i}),
          std::string(1, static_cast<char>(which)) + static_cast<char>(i * 3) + all[i]);
    }
  }
  put("encode", "characters", std::string("\x08") + '\0' + "ab \n\xC3\xA9");
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: make_corpus FOLDER\n");
    return 1;
  }
  root = arguments[1];
  json();
  configs();
  numpy();
  llama2c();
  safetensors();
  gguf();
  sentencepiece();
  tokenizers();
  texts();
  return 0;
}
