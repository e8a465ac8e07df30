// A model's layers from its config.json. The key names, their defaults and what they mean are those of the
// configuration classes of Hugging Face transformers, and of the models that bring classes of their own.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>

#include "core/rope.h"
#include "core/text.h"
#include "io/config.h"
#include "io/rope_config.h"
#include "veloxquant/errors.h"
#include "veloxquant/model_desc.h"

namespace veloxquant {
namespace {

using nlohmann::json;
using Found = Config::Found;
using Kind = LayerDesc::Kind;

enum class Rows : uint8_t {
  none,    ///< no attention
  usual,   ///< as in models without a list of types
  full,    ///< a query sees all rows,
  window,  ///< those of the sliding window,
  chunk,   ///< or those of its chunk
};

struct LayerType {
  std::string_view name;
  Rows rows;
  std::string_view native_cache;
};

constexpr LayerType kTypes[] = {
    {"attention", Rows::usual, ""},
    {"full_attention", Rows::full, ""},
    {"sliding_attention", Rows::window, ""},
    {"chunked_attention", Rows::chunk, ""},
    {"hybrid", Rows::usual, "mamba"},  // attention beside a state space
    {"linear_attention", Rows::none, "recurrent"},
    {"recurrent", Rows::none, "recurrent"},
    {"mamba", Rows::none, "mamba"},
    {"mamba2", Rows::none, "mamba"},
    {"conv", Rows::none, "conv"},
    {"mlp", Rows::none, ""},
    {"moe", Rows::none, ""},
};

const Names kLayers = {"num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers"};
const Names kHeads = {"num_attention_heads", "n_head", "n_heads", "num_heads", "num_query_heads"};
const Names kKvHeads = {"num_key_value_heads",           "num_kv_heads",          "n_head_kv",           "kv_n_heads",
                        "num_key_value_heads_per_layer", "multi_query_group_num", "num_attention_groups"};
const Names kHeadDim = {"head_dim", "kv_channels"};
const Names kHidden = {"hidden_size", "n_embd", "d_model", "model_dim"};
const Names kWindow = {"sliding_window", "sliding_window_size", "attention_window_size"};
const Names kChunk = {"attention_chunk_size"};
const Names kTypeLists = {"layer_types", "layers_block_type"};
const Names kAttentionIndices = {"attn_layer_indices", "full_attn_idxs"};

/// Models with recurrent layers have one of these.
const Names kRecurrent = {"mamba_d_state",       "mamba_num_heads", "ssm_state_size",     "ssm_cfg",
                          "state_size",          "conv_L_cache",    "linear_attn_config", "lru_width",
                          "linear_num_key_heads"};
/// Models with one of these have caches that a LayerDesc does not describe.
const Names kRefused = {
    "is_encoder_decoder",      "index_topk",     "compress_ratios",        "block_configs", "use_cla",
    "attention_other_setting", "kv_sharing_map", "sparse_attention_config"};

/// What a model's own class knows and files leave out.
struct Defaults {
  std::string_view name, json;
};
constexpr Defaults kDefaults[] = {
    {"cohere2", R"({"sliding_window_pattern": 4})"},
    {"exaone4", R"({"sliding_window_pattern": 4})"},
    {"gemma", R"({"rope_theta": 10000})"},
    {"gemma2", R"({"sliding_window_pattern": 2, "rope_theta": 10000})"},
    {"gemma3_text", R"({"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
                        "sliding_window_pattern": 6, "rope_theta": 1000000, "rope_local_base_freq": 10000})"},
    {"gemma3n_text", R"({"sliding_window_pattern": 5, "rope_theta": 1000000, "rope_local_base_freq": 10000})"},
    {"gemma4_text", R"({"sliding_window_pattern": 6})"},
    {"llama", R"({"rope_theta": 10000})"},
    {"mistral", R"({"rope_theta": 10000})"},
};
/// Rotates channels (2i, 2i + 1).
const Names kInterleaved = {"cohere", "cohere2", "ernie4_5", "ernie4_5_moe", "glm", "glm4", "helium", "llama4_text"};
/// Where there are windows, rotates in those layers alone.
const Names kRopeInWindows = {"afmoe", "cohere2", "exaone4", "exaone_moe"};
/// Does not rotate, whatever its file says.
const Names kNoRope = {"nemotron_h"};

bool is_one_of(std::string_view name, Names names) { return std::ranges::find(names, name) != names.end(); }

const LayerType* type_of(std::string_view name) {
  const auto* found = std::ranges::find(kTypes, name, &LayerType::name);
  return found == std::end(kTypes) ? nullptr : found;
}

const LayerType& known_type(std::string_view name) { return *type_of(name); }

std::string_view name_of(Rows rows) {
  return rows == Rows::window ? "sliding_attention" : rows == Rows::chunk ? "chunked_attention" : "full_attention";
}

class ModelReader {
 public:
  explicit ModelReader(const json& root) : config_(problems_) { descend(root); }

  ModelDesc read() {
    model_.name = name_;
    for (const std::string_view key : kRefused) {
      if (config_.set({key})) config_.problem(fmt::format("{} is set: such layers are not described", key));
    }
    read_layer_count();
    give_up_on_problems();
    read_types();
    give_up_on_problems();
    for (int i = 0; i < layers_ && problems_.empty(); ++i) read_layer(i);
    give_up_on_problems();
    share();
    give_up_on_problems();
    check(model_);
    return std::move(model_);
  }

 private:
  /// The language part of a model with several; what it does not say itself, the whole may say.
  void descend(const json& root) {
    std::vector<const json*> path;
    for (const json* at = &root; at;) {
      path.push_back(at);
      const json* inner = nullptr;
      for (const char* key : {"text_config", "llm_config", "language_config", "thinker_config"}) {
        const auto found = at->find(key);
        if (!inner && found != at->end() && found->is_object()) inner = &*found;
      }
      at = inner;
    }
    for (auto at = path.rbegin(); at != path.rend(); ++at) {
      config_.add(**at);
      const auto attention = (*at)->find("attn_config");
      if (attention != (*at)->end() && attention->is_object()) config_.add(*attention);
    }
    name_ = config_.text({"model_type"}).value_or("model");
    const auto* known = std::ranges::find(kDefaults, name_, &Defaults::name);
    if (known == std::end(kDefaults)) return;
    defaults_ = json::parse(known->json);
    config_.add(defaults_);
  }

  void give_up_on_problems() const {
    if (!problems_.empty()) throw QuantizerConfigError(problems_);
  }

  void read_layer_count() {
    const Found listed_types = config_.find(kTypeLists), pattern = config_.find({"hybrid_override_pattern"});
    if (const Found found = config_.find(kLayers)) {
      layers_ = config_.integer(found, 1, kMostLayers).value_or(0);
    } else if (listed_types && listed_types.value->is_array()) {
      layers_ = static_cast<int>(std::min<size_t>(listed_types.value->size(), kMostLayers));
    } else if (pattern && pattern.value->is_string()) {
      layers_ = static_cast<int>(std::min<size_t>(pattern.value->get_ref<const std::string&>().size(), kMostLayers));
    } else {
      config_.missing("the number of layers", kLayers);
    }
  }

  /// Whether a list has an entry for each layer.
  bool has_all(const Found& found, size_t size) {
    if (size == static_cast<size_t>(layers_)) return true;
    config_.problem(fmt::format("{} has {} entries, wanted: {}, as there are layers", found.name, size, layers_));
    return false;
  }

  // --- which layer is what -----------------------------------------------------------------------

  void read_types() {
    const bool said = types_from_list() || types_from_pattern() ||
                      types_from_numbers("attn_type_list", "attention", "linear_attention") ||
                      types_from_numbers("hybrid_layer_pattern", "sliding_attention", "full_attention") ||
                      types_from_indices() || types_from_period() || types_from_blocks() || types_from_interval();
    if (said || !problems_.empty()) return;
    if (name_ == "falcon_h1") return types_.assign(static_cast<size_t>(layers_), &known_type("hybrid"));
    if (const Found recurrent = config_.find(kRecurrent)) {
      config_.problem(
          fmt::format("{} says that there are recurrent layers, but not which; looked for: {}, "
                      "hybrid_override_pattern, attn_type_list, {}, attn_layer_period, block_types, "
                      "full_attention_interval",
                      recurrent.name, listed(kTypeLists), listed(kAttentionIndices)));
    }
    types_.assign(static_cast<size_t>(layers_), &known_type("attention"));
  }

  void add_type(const Found& found, const json& entry) {
    const LayerType* type = entry.is_string() ? type_of(entry.get_ref<const std::string&>()) : nullptr;
    if (!type && problems_.empty()) {
      std::vector<std::string> names;
      for (const LayerType& known : kTypes) names.emplace_back(known.name);
      config_.problem(fmt::format(
          "{}[{}] is {}, wanted: {}", found.name, types_.size(),
          entry.is_string() ? quote(entry.get_ref<const std::string&>()) : fmt::format("of type {}", entry.type_name()),
          listed(names)));
    }
    types_.push_back(type);
  }

  bool types_from_list() {
    const Found found = config_.find(kTypeLists);
    if (!found) return false;
    if (!found.value->is_array()) {
      config_.wrong(found, "a list of texts");
    } else if (has_all(found, found.value->size())) {
      for (const json& entry : *found.value) add_type(found, entry);
    }
    return true;
  }

  bool types_from_pattern() {
    static const std::map<char, std::string_view> kLetters = {
        {'M', "mamba"}, {'*', "attention"}, {'-', "mlp"}, {'E', "moe"}};
    const std::optional<std::string> pattern = config_.text({"hybrid_override_pattern"});
    if (!pattern) return false;
    if (!has_all({"hybrid_override_pattern"}, pattern->size())) return true;
    for (const char letter : *pattern) {
      const auto known = kLetters.find(letter);
      if (known == kLetters.end()) {
        config_.problem(fmt::format("hybrid_override_pattern[{}] is {}, wanted: M, *, - or E", types_.size(),
                                    quote(std::string_view(&letter, 1))));
        return true;
      }
      types_.push_back(&known_type(known->second));
    }
    return true;
  }

  /// A list of ones and zeros.
  bool types_from_numbers(std::string_view key, std::string_view one, std::string_view zero) {
    const Found found = config_.find({key});
    if (!found) return false;
    if (!found.value->is_array()) {
      config_.wrong(found, "a list of ones and zeros");
      return true;
    }
    if (!has_all(found, found.value->size())) return true;
    for (const json& entry : *found.value) {
      const std::optional<int> number = config_.integer({found.name, &entry}, 0, 1);
      if (!number) return true;
      types_.push_back(&known_type(*number == 1 ? one : zero));
    }
    return true;
  }

  /// Lists of the layers with attention, from 0; of linear_attn_config, from 1.
  bool types_from_indices() {
    Found found = config_.find(kAttentionIndices);
    std::string_view others = found.name == "full_attn_idxs" ? "conv" : "mamba";
    int first = 0;
    if (const Found linear = config_.find({"linear_attn_config"}); !found && linear && linear.value->is_object()) {
      const auto full = linear.value->find("full_attn_layers");
      if (full != linear.value->end()) found = {"linear_attn_config.full_attn_layers", &*full};
      others = "linear_attention";
      first = 1;
    }
    if (!found) return false;
    if (!found.value->is_array()) {
      config_.wrong(found, "a list of layers");
      return true;
    }
    types_.assign(static_cast<size_t>(layers_), &known_type(others));
    for (const json& entry : *found.value) {
      const std::optional<int> layer = config_.integer({found.name, &entry}, first, layers_ - 1 + first);
      if (!layer) return true;
      types_[static_cast<size_t>(*layer - first)] = &known_type("attention");
    }
    return true;
  }

  bool types_from_period() {
    const std::optional<int> period = config_.integer({"attn_layer_period"}, 1, kMostLayers);
    if (!period) return false;
    const std::optional<int> offset = config_.integer({"attn_layer_offset"}, 0, *period - 1);
    if (!offset) config_.problem("attn_layer_offset is missing or wrong beside attn_layer_period");
    for (int i = 0; i < layers_; ++i) {
      types_.push_back(&known_type(i % *period == offset.value_or(0) ? "attention" : "mamba"));
    }
    return true;
  }

  /// A shorter list of types, over and over.
  bool types_from_blocks() {
    const Found found = config_.find({"block_types", "_block_types"});
    if (!found) return false;
    if (!found.value->is_array() || found.value->empty()) {
      config_.wrong(found, "a list of texts");
      return true;
    }
    for (size_t i = 0; i < static_cast<size_t>(layers_); ++i) add_type(found, (*found.value)[i % found.value->size()]);
    return true;
  }

  bool types_from_interval() {
    const std::optional<int> interval = config_.integer({"full_attention_interval"}, 1, kMostLayers);
    if (!interval) return false;
    for (int i = 1; i <= layers_; ++i) {
      types_.push_back(&known_type(i % *interval == 0 ? "full_attention" : "linear_attention"));
    }
    return true;
  }

  // --- what a query sees -------------------------------------------------------------------------

  /// Where no list of types says it.
  Rows usual_rows(int i) {
    if (config_.set(kChunk)) return rotates(i) ? Rows::chunk : Rows::full;
    const bool off = config_.find({"use_sliding_window"}) && !config_.set({"use_sliding_window"});
    if (off || !config_.set(kWindow)) return Rows::full;
    const Found pattern = config_.find({"sliding_window_pattern", "_sliding_window_pattern"});
    if (pattern && pattern.value->is_string()) {
      const std::string& letters = pattern.value->get_ref<const std::string&>();
      const char letter = letters.empty() ? '?' : letters[static_cast<size_t>(i) % letters.size()];
      if (letter != 'L' && letter != 'G') config_.wrong(pattern, "letters L (window) and G (full), or a number");
      return letter == 'G' ? Rows::full : Rows::window;
    }
    if (pattern) {
      return (i + 1) % config_.integer(pattern, 1, kMostLayers).value_or(1) == 0 ? Rows::full : Rows::window;
    }
    const std::optional<int> full_layers = config_.integer({"max_window_layers"}, 0, kMostLayers);
    return i < full_layers.value_or(0) ? Rows::full : Rows::window;
  }

  /// A size that must be there.
  int size_of_rows(Names names, int i) {
    const Found found = config_.find(names);
    if (!found) {
      config_.problem(fmt::format("layer {} wants a size that is missing, looked for: {}", i, listed(names)));
      return 0;
    }
    return config_.integer(found, 1, std::numeric_limits<int>::max()).value_or(0);
  }

  // --- heads -------------------------------------------------------------------------------------

  /// The value of layer i, where it has one of its own: per_layer_config, or an entry of a list.
  Found of_layer(Names names, int i) {
    if (const Found all = config_.find({"per_layer_config"}); all && all.value->is_object()) {
      if (const auto own = all.value->find(std::to_string(i)); own != all.value->end() && own->is_object()) {
        for (const std::string_view name : names) {
          if (const auto found = own->find(name); found != own->end() && !found->is_null()) return {name, &*found};
        }
      }
    }
    const Found found = config_.find(names);
    if (!found || !found.value->is_array()) return found;
    return has_all(found, found.value->size()) ? Found{found.name, &(*found.value)[static_cast<size_t>(i)]} : Found{};
  }

  std::optional<int> count_of_layer(Names names, int i, int max) { return config_.integer(of_layer(names, i), 1, max); }

  /// Where layers with a window or without have names of their own for it.
  std::optional<int> special_or(Names special, Names names, int i, int max) {
    if (const std::optional<int> value = count_of_layer(special, i, max)) return value;
    return count_of_layer(names, i, max);
  }

  void read_heads(int i, bool windowed, LayerDesc& layer) {
    const std::optional<int> heads = windowed ? special_or({"swa_num_attention_heads"}, kHeads, i, kMostHeads)
                                              : count_of_layer(kHeads, i, kMostHeads);
    if (!heads) {
      if (problems_.empty()) config_.missing("the number of heads", kHeads);
      return;
    }
    layer.n_q_heads = layer.n_kv_heads = *heads;
    if (config_.set({"kv_lora_rank"})) return read_latent(layer);
    read_kv_heads(i, windowed, layer);
    read_dims(i, windowed, layer);
  }

  void read_latent(LayerDesc& layer) {
    const int rank = config_.integer({"kv_lora_rank"}, 1, kLargestHeadDim).value_or(1);
    const std::optional<int> rotated = config_.integer({"qk_rope_head_dim"}, 0, kLargestHeadDim - rank);
    if (!rotated && problems_.empty()) config_.missing("what kv_lora_rank needs", {"qk_rope_head_dim"});
    layer.n_kv_heads = 1;
    layer.dim_k = rank + rotated.value_or(0);
    layer.dim_v = rank;
    layer.value_is_key_prefix = true;
  }

  void read_kv_heads(int i, bool windowed, LayerDesc& layer) {
    std::optional<int> heads;
    if (windowed) heads = count_of_layer({"swa_num_key_value_heads"}, i, kMostHeads);
    if (!windowed && config_.set({"attention_k_eq_v"})) {
      heads = count_of_layer({"num_global_key_value_heads"}, i, kMostHeads);
    }
    if (!heads && config_.set({"multi_query"}) && !config_.set({"new_decoder_architecture"})) heads = 1;
    if (!heads) heads = count_of_layer(kKvHeads, i, kMostHeads);
    if (!heads) return;  // one per query head
    if (layer.n_q_heads % *heads != 0) {
      config_.problem(fmt::format("layer {}: {} is {}, no multiple of {} = {}", i, config_.find(kHeads).name,
                                  layer.n_q_heads, config_.find(kKvHeads).name, *heads));
    }
    layer.n_kv_heads = *heads;
  }

  void read_dims(int i, bool windowed, LayerDesc& layer) {
    const std::optional<int> dim = windowed ? special_or({"swa_head_dim"}, kHeadDim, i, kLargestHeadDim)
                                            : special_or({"global_head_dim"}, kHeadDim, i, kLargestHeadDim);
    layer.dim_k = dim ? *dim : divided_dim(layer.n_q_heads);
    std::optional<int> value_dim;
    if (windowed) value_dim = count_of_layer({"swa_v_head_dim"}, i, kLargestHeadDim);
    // Zero stands for none.
    if (!value_dim && config_.set({"v_head_dim"})) value_dim = count_of_layer({"v_head_dim"}, i, kLargestHeadDim);
    layer.dim_v = value_dim.value_or(layer.dim_k);
  }

  int divided_dim(int heads) {
    const Found hidden = config_.find(kHidden);
    const std::optional<int> size = config_.integer(hidden, 1, std::numeric_limits<int>::max());
    if (!size) {
      if (!hidden)
        config_.missing("the size of a head", {"head_dim", "kv_channels", "hidden_size", "n_embd", "d_model"});
      return 0;
    }
    if (*size % heads != 0) {
      config_.problem(fmt::format("{} = {} is no multiple of {} = {}, and there is none of {}", hidden.name, *size,
                                  config_.find(kHeads).name, heads, listed(kHeadDim)));
    }
    return *size / heads;
  }

  // --- rotation ----------------------------------------------------------------------------------

  /// Some models leave every so many layers without rotation.
  bool rotates(int i) {
    const Found list = config_.find({"no_rope_layers"});
    if (list && list.value->is_array() && static_cast<size_t>(i) < list.value->size()) {
      return config_.integer({list.name, &(*list.value)[static_cast<size_t>(i)]}, 0, 1).value_or(1) == 1;
    }
    const Found interval = config_.find({"no_rope_layer_interval"});
    if (!interval && !config_.set(kChunk)) return true;
    return (i + 1) % config_.integer(interval, 1, kMostLayers).value_or(4) != 0;
  }

  void read_rope(int i, Rows rows, LayerDesc& layer) {
    // The rotated channels of latent keys are not their first ones.
    if (layer.value_is_key_prefix || is_one_of(name_, kNoRope) || !rotates(i)) return;
    if (rows != Rows::window && config_.set(kWindow) && is_one_of(name_, kRopeInWindows)) return;
    std::optional<RopeParameters> parameters = rope_from_config(config_, name_of(rows), layer.dim_k);
    if (!parameters) return;
    parameters->interleaved = is_one_of(name_, kInterleaved);
    pairs_ += parameters->rotary_dim / 2;
    if (pairs_ > kMostPairs) {
      return config_.problem(fmt::format("layer {}: the layers to here rotate {} pairs of channels, allowed: up to {}",
                                         i, pairs_, kMostPairs));
    }
    layer.rope = rope_spec(*parameters);
  }

  // --- whole layers ------------------------------------------------------------------------------

  void read_layer(int i) {
    const LayerType& type = *types_[static_cast<size_t>(i)];
    LayerDesc layer;
    layer.native_cache = type.native_cache;
    if (type.rows == Rows::none) {
      layer.kind = type.native_cache.empty() ? Kind::none : Kind::recurrent;
    } else {
      const Rows rows = type.rows == Rows::usual ? usual_rows(i) : type.rows;
      if (rows == Rows::window) layer.window = size_of_rows(kWindow, i);
      if (rows == Rows::chunk) layer.chunk = size_of_rows(kChunk, i);
      read_heads(i, rows == Rows::window, layer);
      if (problems_.empty()) read_rope(i, rows, layer);
    }
    model_.layers.push_back(std::move(layer));
  }

  /// The last so many layers read what the last layer of their kind before them has stored.
  void share() {
    const int shared = config_.integer({"num_kv_shared_layers"}, 0, layers_ - 1).value_or(0);
    const int first = layers_ - shared;
    for (int i = first; i < layers_; ++i) {
      LayerDesc& layer = model_.layers[static_cast<size_t>(i)];
      if (!layer.has_attention()) continue;
      int source = first - 1;
      const auto differs = [&](const LayerDesc& other) {
        return !other.has_attention() || other.window != layer.window || other.chunk != layer.chunk;
      };
      while (source >= 0 && differs(model_.layers[static_cast<size_t>(source)])) --source;
      if (source < 0) {
        return config_.problem(
            fmt::format("num_kv_shared_layers is {}, but no layer before {} is like layer {}", shared, first, i));
      }
      layer.shares_with = source;
    }
  }

  static constexpr int64_t kMostPairs = 1 << 20;  // bounds time and memory

  std::vector<std::string> problems_;
  json defaults_;
  Config config_;
  std::string name_;
  int layers_ = 0;
  int64_t pairs_ = 0;  ///< of channels that are rotated, in all layers
  std::vector<const LayerType*> types_;
  ModelDesc model_;
};

}  // namespace

ModelDesc model_from_config(std::string_view json) { return ModelReader(parse_config(json)).read(); }

}  // namespace veloxquant
