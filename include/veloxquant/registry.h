// Methods: one record per file of src/methods, and how a text names one.
//
//   composition = method , [ "+" , method ] ;
//   method      = name , [ "(" , option , { "," , option } , ")" ] ;
//   option      = name , "=" , value ;
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "veloxquant/codec.h"
#include "veloxquant/options.h"
#include "veloxquant/placement.h"
#include "veloxquant/retention.h"
#include "veloxquant/stats.h"
#include "veloxquant/types.h"

namespace veloxquant {

/// Where the attention weights of a scorer come from: from the queries of the call if they come before it is settled
/// and else from its keys; always from its keys, at once; or from queries alone.
enum class QuerySource : uint8_t { automatic, proxy, true_queries };

/// What a method is made of. The engine does the rest.
struct Recipe {
  // Which rows exist; by default all.
  std::shared_ptr<const Retention> retention = nullptr;
  SinkWindow sink_window = {};
  QuerySource query_source = QuerySource::automatic;
  // How they are stored.
  std::shared_ptr<const SinkPool> sink_pool = nullptr;
  std::shared_ptr<const Placement> placement = nullptr;
  std::shared_ptr<const Codec> key = nullptr;    ///< coded rows of the key side
  std::shared_ptr<const Codec> value = nullptr;  ///< coded rows of the value side
  std::optional<DType> store = {};               ///< of exact rows, where the method and not the input says it
};

/// What build() of a method gets beside its options.
struct BuildContext {
  LayerShape shape;
  DType store;                                   ///< element type of exact rows
  uint64_t seed;                                 ///< config seed + layer
  Arithmetic arithmetic = Arithmetic::two_term;  ///< of attention on coded rows

  CodecRole role(Side side) const { return {side, arithmetic}; }
};

/// One statistic of the original system under its own name, as an expression over the engine's statistics.
struct Telemetry {
  std::string_view name;
  std::string_view meaning;
  double (*value)(const CacheStats&);
};

struct Capabilities {
  bool trimmable = true;
  bool chunk_invariant = true;  ///< stored bytes do not depend on how tokens were cut into calls
  bool attends_packed = true;
  bool needs_rope = false;
};

/// What for_model settles for one attention layer before it is built.
struct LayerPlan {
  int layer = 0;                                                   ///< raw index in the model
  int index = 0;                                                   ///< among the attention layers
  std::vector<std::pair<std::string_view, OptionValue>> resolved;  ///< option values that follow from the place
  std::string group;                                               ///< "anchor of group 0", "leader of layers 0..3"
  int group_id = -1;  ///< of layers that store rows together and so have to be alike; -1: none
};

/// One of the 43 methods, or `exact`. A method declares its options and checks before it can be built.
struct MethodDef {
  std::string_view name;
  std::string_view family;   ///< quantization, eviction, hybrid, baseline
  std::string_view title;    ///< of the paper, or what it is
  std::string_view paper;    ///< arXiv id, or empty
  std::string_view summary;  ///< one line
  std::vector<OptionSpec> options;
  Capabilities capabilities;
  std::vector<Telemetry> telemetry;
  /// Problems of options together and with the layer's shape; empty when all is well.
  std::function<std::vector<std::string>(const Options&, const LayerShape&)> check;
  /// Empty: not there yet.
  std::function<Recipe(const Options&, const BuildContext&)> build;
  bool chooses_rows = false;  ///< the first part of a composition; the others are the second

  // The place of the method in the original system.
  std::string_view cache_class = {};     ///< e.g. "H2OKVCache"
  std::string_view options_struct = {};  ///< e.g. "H2OOptions"; empty: it has general options alone
  bool standalone = false;               ///< a cache of single vectors, all attended as stored; serves no model
  std::string_view bits_option = {};     ///< where a list of bits per layer goes; empty: there is no single width
  std::string_view coordinator = {};     ///< the class that layers share, e.g. "SqueezeCoordinator"
  bool keys_only = false;                ///< values stay exact
  /// What follows from the place of a layer: budgets, bits, groups.
  std::function<void(const Options&, std::span<LayerPlan>)> plan = {};
};

/// All methods, sorted by name; generated from the files in src/methods.
std::span<const MethodDef* const> method_table();
/// Those that can be built.
const std::vector<const MethodDef*>& built_methods();
const MethodDef* find_method(std::string_view name);
/// Options every method has: seed, dtype, capacity, attend_precision.
const std::vector<OptionSpec>& general_options();

/// A method, or a composition, with its option values, ready to be built for any layer.
struct MethodSpec {
  std::string text;  ///< as it was given
  const MethodDef* def = nullptr;
  Options options{{}};
  std::shared_ptr<const MethodSpec> coding = nullptr;  ///< of a composition: how the rows are stored
};
/// The recipe of the whole. Options that every method has are those of `options`.
Recipe build_recipe(const MethodSpec&, const BuildContext&);

/// The method with its options and those that every method has, all at their defaults.
MethodSpec default_spec(const MethodDef&);
/// "unknown method 'kivy'; did you mean 'kivi'? (methods: ...)"
std::string unknown_method(std::string_view name);
/// Reads a composition; `sets` are further "name=value" texts that win over it. Throws QuantizerConfigError with all
/// problems: syntax, unknown names (the nearest is named), values out of range.
MethodSpec parse_method(std::string_view text, std::span<const std::string> sets = {});
/// What is wrong with the options together and with the layer's shape.
std::vector<std::string> method_problems(const MethodSpec&, const LayerShape&);
/// Throws QuantizerConfigError with these problems, each with the layer, or where the method can't be built yet.
void check_method(const MethodSpec&, const LayerShape&);

}  // namespace veloxquant
