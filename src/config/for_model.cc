#include "veloxquant/for_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/text.h"
#include "veloxquant/errors.h"

namespace veloxquant {
namespace {

using Kind = LayerChoice::Kind;

const MethodDef& servable(const KVCacheConfig& config) {
  const MethodDef* def = find_method(config.method.get());
  if (def == nullptr) throw QuantizerConfigError("method: " + unknown_method(config.method.get()));
  if (!def->standalone) return *def;
  std::vector<std::string> names;
  for (const MethodDef* other : built_methods()) {
    if (!other->standalone) names.emplace_back(other->name);
  }
  throw QuantizerConfigError(fmt::format("method: {} stores single vectors and serves no model (methods that do: {})",
                                         def->name, listed(names)));
}

// The bits of each attention layer, or nothing where one number is meant for all.
const IntegerList* bits_of_layers(const KVCacheConfig& config, const MethodDef& def, size_t layers) {
  const IntegerList* list = std::get_if<IntegerList>(&config.bit_width_inlier.get());
  if (list == nullptr) return nullptr;
  if (def.bits_option.empty()) {
    throw QuantizerConfigError(fmt::format(
        "bit_width_inlier: got {} numbers, allowed one: {} has no single width per layer", list->size(), def.name));
  }
  if (list->size() != layers) {
    throw QuantizerConfigError(fmt::format("bit_width_inlier: got {} numbers, allowed {}: one for each attention layer",
                                           list->size(), layers));
  }
  return list;
}

/// A layer's own cache, or the reason why there is none.
LayerChoice without_cache(const LayerDesc& desc, const KVCacheConfig& config) {
  LayerChoice choice;
  choice.config = config;
  if (desc.has_attention()) {
    choice.kind = Kind::shared;
    choice.reason = fmt::format("reads the keys and values of layer {}", desc.shares_with);
  } else if (!desc.native_cache.empty()) {
    choice.kind = Kind::native;
    choice.reason = fmt::format("no attention: the model's own cache ({})", desc.native_cache);
  } else {
    choice.reason = "no attention, and the model defines no cache for it";
  }
  return choice;
}

/// Layers of a group store their rows together, so they have to be alike.
void check_groups(const std::vector<LayerPlan>& plans, const std::vector<LayerShape>& shapes,
                  std::vector<std::string>& problems) {
  std::map<int, size_t> first;
  for (size_t i = 0; i < plans.size(); ++i) {
    if (plans[i].group_id < 0) continue;
    const LayerShape& a = shapes[first.try_emplace(plans[i].group_id, i).first->second];
    const LayerShape& b = shapes[i];
    const bool ropes = (a.rope == nullptr) == (b.rope == nullptr) && (a.rope == nullptr || *a.rope == *b.rope);
    if (a.kv_heads == b.kv_heads && a.dim_k == b.dim_k && a.dim_v == b.dim_v && a.input == b.input && ropes) continue;
    problems.push_back(fmt::format("layers {} and {} share a group and differ: {} heads of {} + {}{}, {} of {} + {}{}",
                                   a.layer, b.layer, a.kv_heads, a.dim_k, a.dim_v, ropes ? "" : " with another RoPE",
                                   b.kv_heads, b.dim_k, b.dim_v, ropes ? "" : " with another RoPE"));
  }
}

struct Planned {
  ModelPlan plan;
  std::vector<LayerShape> shapes;  // of the entries with a cache, in order
  std::vector<MethodSpec> specs;   // likewise
};

class Planner {
 public:
  Planner(const ModelDesc& model, const KVCacheConfig& config, DType input)
      : model_(model), config_(config), def_(servable(config)), attention_(attention_shapes(model, input)) {
    if (attention_.empty()) throw QuantizerConfigError(fmt::format("{}: no layer has attention", model.name));
  }

  Planned run() {
    const IntegerList* bits = bits_of_layers(config_, def_, attention_.size());
    KVCacheConfig base = config_;
    if (bits != nullptr) base.bit_width_inlier = Field<IntegerOrList>{kDefault, KVCacheConfig().bit_width_inlier.get()};
    resolve(base);
    result_.plan.notes = base.notes();
    note_overwritten(base);
    size_t next = 0;
    for (size_t i = 0; i < model_.layers.size(); ++i) {
      const LayerDesc& desc = model_.layers[i];
      const auto layer = static_cast<int>(i);
      if (!desc.owns_cache()) {
        add_other(without_cache(desc, base), desc);
        continue;
      }
      const LayerPlan& plan = plans_[next];
      KVCacheConfig own = base;
      own.head_dim = desc.dim_k;
      for (const auto& [name, value] : plan.resolved) set(own, layer, name, value);
      if (bits != nullptr) set(own, layer, def_.bits_option, (*bits)[next]);
      add(own, plan, attention_[next]);
      ++next;
    }
    check_groups(plans_, attention_, problems_);
    if (!problems_.empty()) throw QuantizerConfigError(std::move(problems_));
    return std::move(result_);
  }

 private:
  // What follows from the places of the layers.
  void resolve(const KVCacheConfig& base) {
    for (size_t a = 0; a < attention_.size(); ++a)
      plans_.push_back({attention_[a].layer, static_cast<int>(a), {}, {}, -1});
    KVCacheConfig first = base;
    first.head_dim = attention_.front().dim_k;
    const MethodSpec spec = method_spec(first);
    if (def_.plan) def_.plan(spec.options, plans_);
  }

  void note_overwritten(const KVCacheConfig& base) {
    for (const auto& [name, value] : plans_.front().resolved) {
      if (base.origin(name) == KVCacheConfig::Origin::defaulted) continue;
      result_.plan.notes.push_back(
          fmt::format("{}: {} was given and is overwritten for each layer", name, to_string(base.get(name))));
    }
  }

  /// What `act` throws is a problem of the layer.
  template <class Act>
  void attempt(int layer, Act&& act) {
    try {
      act();
    } catch (const QuantizerConfigError& error) {
      add_problems(layer, error.problems());
    }
  }

  void add_problems(int layer, const std::vector<std::string>& problems) {
    for (const std::string& problem : problems) problems_.push_back(fmt::format("layer {}: {}", layer, problem));
  }

  void set(KVCacheConfig& config, int layer, std::string_view name, const OptionValue& value) {
    attempt(layer, [&] { config.set(name, value); });
  }

  void add(const KVCacheConfig& config, const LayerPlan& plan, const LayerShape& shape) {
    LayerChoice choice;
    choice.kind = Kind::compressed;
    choice.attention_index = plan.index;
    choice.cache = static_cast<int>(result_.shapes.size());
    choice.config = config;
    choice.seed = config.seed + plan.layer;
    choice.group = plan.group;
    result_.plan.layers.push_back(std::move(choice));
    result_.shapes.push_back(shape);
    attempt(shape.layer, [&] {
      result_.specs.push_back(method_spec(config));
      add_problems(shape.layer, method_problems(result_.specs.back(), shape));
    });
  }

  void add_other(LayerChoice choice, const LayerDesc& desc) {
    if (choice.kind == Kind::shared) {
      choice.cache = result_.plan.layers[static_cast<size_t>(desc.shares_with)].cache;
    } else if (choice.kind == Kind::plain) {
      choice.cache = static_cast<int>(result_.shapes.size());
      result_.shapes.push_back({.dim_k = 1, .dim_v = 1, .layer = static_cast<int>(result_.plan.layers.size())});
      result_.specs.push_back(default_spec(*find_method("exact")));
    }
    result_.plan.layers.push_back(std::move(choice));
  }

  const ModelDesc& model_;
  const KVCacheConfig& config_;
  const MethodDef& def_;
  std::vector<LayerShape> attention_;  // of the layers with a cache
  std::vector<LayerPlan> plans_;
  std::vector<std::string> problems_;
  Planned result_;
};

std::string_view text_of(Kind kind) {
  return kind == Kind::compressed ? "compressed"
         : kind == Kind::shared   ? "shared"
         : kind == Kind::native   ? "native"
                                  : "plain";
}

}  // namespace

std::string ModelPlan::report() const {
  std::string text;
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerChoice& layer = layers[i];
    text += fmt::format("layer {}: {}", i, text_of(layer.kind));
    if (layer.kind == Kind::compressed) {
      const std::string described = layer.config.describe();
      text += " " + described.substr(0, described.find('\n'));
      if (!layer.group.empty()) text += "; " + layer.group;
    } else {
      text += ": " + layer.reason;
    }
    text += '\n';
  }
  for (const std::string& note : notes) text += note + '\n';
  return text;
}

ModelPlan plan_model(const ModelDesc& model, const KVCacheConfig& config, DType input) {
  return Planner(model, config, input).run().plan;
}

ModelCaches for_model(const ModelDesc& model, const KVCacheConfig& config, DType input) {
  Planned planned = Planner(model, config, input).run();
  CacheSet caches(planned.specs, planned.shapes);
  return {std::move(planned.plan), std::move(caches)};
}

void ModelCaches::set_sink_positions(int batch_row, std::span<const int32_t> positions) {
  for (const LayerChoice& layer : plan.layers) {
    if (layer.kind == Kind::compressed) caches[layer.cache].want_sinks(batch_row, positions);
  }
}

}  // namespace veloxquant
