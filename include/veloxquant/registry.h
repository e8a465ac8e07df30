// Methods: one record per file of src/methods, and how a text names one.
//
//   composition = method , [ "+" , method ] ;
//   method      = name , [ "(" , option , { "," , option } , ")" ] ;
//   option      = name , "=" , value ;
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "veloxquant/codec.h"
#include "veloxquant/options.h"
#include "veloxquant/placement.h"
#include "veloxquant/stats.h"
#include "veloxquant/types.h"

namespace veloxquant {

/// What a method is made of. The engine does the rest.
struct Recipe {
  std::shared_ptr<const Placement> placement;
  std::shared_ptr<const Codec> key;    ///< coded rows of the key side
  std::shared_ptr<const Codec> value;  ///< coded rows of the value side
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
  std::function<Recipe(const Options&, const BuildContext&)> build;
};

/// All methods, sorted by name; generated from the files in src/methods.
std::span<const MethodDef* const> method_table();
const MethodDef* find_method(std::string_view name);
/// Options every method has: seed, dtype, capacity, attend_precision.
const std::vector<OptionSpec>& general_options();

/// A method with its option values, ready to be built for any layer.
struct MethodSpec {
  std::string text;  ///< as it was given
  const MethodDef* def = nullptr;
  Options options{{}};
};

/// Reads a composition; `sets` are further "name=value" texts that win over it. Throws QuantizerConfigError with all
/// problems: syntax, unknown names (the nearest is named), values out of range.
MethodSpec parse_method(std::string_view text, std::span<const std::string> sets = {});
/// Checks that need the layer's shape. Throws QuantizerConfigError naming the layer.
void check_method(const MethodSpec&, const LayerShape&);

}  // namespace veloxquant
