#include "io/rope_config.h"

#include <fmt/format.h>

#include <algorithm>

namespace veloxquant {
namespace {

using nlohmann::json;
using Found = Config::Found;

const Names kBase = {"rope_theta", "rotary_emb_base"};
const Names kBaseOfWindows = {"rope_local_base_freq", "swa_rope_theta", "local_rope_theta"};
const Names kOriginalContext = {"original_max_position_embeddings", "max_position_embeddings"};

/// Whether there is an object for each type of layers.
bool has_types(const json& object) {
  return std::ranges::any_of(object.items(), [](const auto& item) { return item.value().is_object(); });
}

/// A positive number that must be there.
double needed(Config& scaling, const Found& found, std::string_view name) {
  if (!found) {
    scaling.missing("a parameter", {name});
    return 1;
  }
  const double value = scaling.number(found).value_or(1);
  if (value > 0) return value;
  scaling.wrong(found, "a number above 0");
  return 1;
}

double needed(Config& scaling, std::string_view name) { return needed(scaling, scaling.find({name}), name); }

double original_context(Config& config, Config& scaling) {
  Found found = scaling.find(kOriginalContext);
  if (!found) found = config.find(kOriginalContext);
  return needed(scaling, found, *kOriginalContext.begin());
}

/// False where the angles depend on more than the position.
bool add_scaling(Config& config, Config& scaling, RopeParameters& rope) {
  const std::string type = scaling.text({"rope_type", "type"}).value_or("default");
  if (scaling.find({"mrope_section"})) return false;
  if (type == "linear") {
    rope.scale = 1 / needed(scaling, "factor");
  } else if (type == "llama3") {
    rope.factors =
        llama3_factors(rope.rotary_dim, rope.base, needed(scaling, "factor"), needed(scaling, "low_freq_factor"),
                       needed(scaling, "high_freq_factor"), original_context(config, scaling));
  } else if (type == "yarn") {
    rope.yarn = 1;
    rope.scale = 1 / needed(scaling, "factor");
    rope.original_context = original_context(config, scaling);
    rope.beta_fast = scaling.number({"beta_fast"}).value_or(rope.beta_fast);
    rope.beta_slow = scaling.number({"beta_slow"}).value_or(rope.beta_slow);
    rope.whole_pairs = !scaling.find({"truncate"}) || scaling.set({"truncate"});
  } else if (type != "default") {
    return false;
  }
  return true;
}

int rotary_dim(Config& config, Config& own, int dim) {
  if (const std::optional<int> given = config.integer({"rotary_dim", "attn_rotary_emb"}, 0, dim)) return *given;
  Found part = own.find({"partial_rotary_factor"});
  if (!part) part = config.find({"partial_rotary_factor", "rotary_pct"});
  const double share = config.number(part).value_or(1);
  if (share >= 0 && share <= 1) return static_cast<int>(share * dim);
  config.wrong(part, "0..1");
  return dim;
}

}  // namespace

std::optional<RopeParameters> rope_from_config(Config& config, std::string_view layer_type, int dim) {
  const Found kind = config.find({"position_embedding_type"});
  if (kind && *kind.value != "rope") return std::nullopt;
  // One object has everything, by types of layers or not; or the base stands outside and an object has the scaling.
  const Found all = config.find({"rope_parameters", "rope_scaling"});
  const json* object = all && all.value->is_object() ? all.value : nullptr;
  std::string path = fmt::format("{}.", all.name);
  if (object && has_types(*object)) {
    const auto of_type = object->find(layer_type);
    if (of_type == object->end() || !of_type->is_object()) return std::nullopt;
    object = &*of_type;
    path += fmt::format("{}.", layer_type);
  }
  Config own = config.inner(path);
  if (object) own.add(*object);
  Found base = own.find(kBase);
  bool scaled = true;
  if (!base && layer_type == "sliding_attention") {
    base = config.find(kBaseOfWindows);
    scaled = !base;
  }
  if (!base) base = config.find(kBase);
  const std::optional<double> theta = config.number(base);
  if (!theta) return std::nullopt;
  RopeParameters rope{.rotary_dim = rotary_dim(config, own, dim), .base = *theta};
  if (scaled && !add_scaling(config, own, rope)) return std::nullopt;
  return rope;
}

}  // namespace veloxquant
