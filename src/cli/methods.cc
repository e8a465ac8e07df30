// veloxquant methods: what the registry knows.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <memory>
#include <optional>

#include "cli/app.h"
#include "config/option_json.h"
#include "veloxquant/config.h"
#include "veloxquant/registry.h"

namespace veloxquant::cli {
namespace {

using nlohmann::ordered_json;

constexpr LayerShape kGeometry = {.kv_heads = 8, .q_heads = 32, .dim_k = 128, .dim_v = 128};

struct Arguments {
  std::string name, family;
  bool servable_only = false, json = false;
};

/// Bytes of one coded token of one layer of kGeometry, parameters included.
struct TokenBytes {
  double key = 0, value = 0;
  double total() const { return key + value; }
};

double fp16_token_bytes() { return 2.0 * kGeometry.kv_heads * (kGeometry.dim_k + kGeometry.dim_v); }

double side_bytes(const Codec& codec) {
  const BlockFormat& format = codec.format();
  return kGeometry.kv_heads * static_cast<double>(codec.bytes(format.unit_rows)) / format.unit_rows;
}

bool can_be_built(const MethodSpec& spec) {
  return spec.def->build != nullptr && (!spec.coding || spec.coding->def->build != nullptr);
}

/// What a server can make of it: bytes are counted honestly in all of them.
std::string_view serve_tier(const MethodDef& def) {
  return def.standalone ? "vectors" : def.capabilities.trimmable ? "honest_bytes" : "not_trimmable";
}

TokenBytes token_bytes(const MethodSpec& spec) {
  check_method(spec, kGeometry);
  const Recipe recipe = build_recipe(spec, {.shape = kGeometry, .store = DType::f16, .seed = 0});
  return {side_bytes(*recipe.key), side_bytes(*recipe.value)};
}

ordered_json json_of(const OptionSpec& option) {
  return {{"name", option.name},
          {"alias", option.alias.empty() ? ordered_json(nullptr) : ordered_json(option.alias)},
          {"type", to_string(option.type)},
          {"default", veloxquant::json_of(option.def)},
          {"range", option.range_text()},
          {"meaning", option.meaning}};
}

ordered_json json_of(const MethodSpec& spec) {
  const MethodDef& def = *spec.def;
  ordered_json options = ordered_json::array(), telemetry = ordered_json::array();
  for (const OptionSpec& option : spec.options.specs()) options.push_back(json_of(option));
  for (const Telemetry& entry : def.telemetry) telemetry.push_back({{"name", entry.name}, {"meaning", entry.meaning}});
  ordered_json token = nullptr;
  if (can_be_built(spec)) {
    const TokenBytes bytes = token_bytes(spec);
    token = {{"kv_heads", kGeometry.kv_heads}, {"head_dim", kGeometry.dim_k}, {"key", bytes.key},
             {"value", bytes.value},           {"total", bytes.total()},      {"fp16", fp16_token_bytes()}};
  }
  return {{"name", def.name},
          {"family", def.family},
          {"title", def.title},
          {"paper", def.paper},
          {"summary", def.summary},
          {"built", can_be_built(spec)},
          {"standalone", def.standalone},
          {"serve_tier", serve_tier(def)},
          {"serve_default", def.name == KVCacheConfig().method.get()},
          {"class", def.cache_class},
          {"options_struct", def.options_struct},
          {"coordinator", def.coordinator},
          {"bytes_per_token", token},
          {"capabilities",
           {{"trimmable", def.capabilities.trimmable},
            {"chunk_invariant", def.capabilities.chunk_invariant},
            {"attends_packed", def.capabilities.attends_packed},
            {"needs_rope", def.capabilities.needs_rope}}},
          {"options", options},
          {"telemetry", telemetry}};
}

std::string capabilities_text(const Capabilities& c) {
  return fmt::format("{}, {}, {}, {}", c.trimmable ? "trimmable" : "not trimmable",
                     c.chunk_invariant ? "stored bytes independent of chunking" : "stored bytes depend on chunking",
                     c.attends_packed ? "attends on packed bytes" : "decodes to attend",
                     c.needs_rope ? "needs RoPE parameters" : "needs no RoPE parameters");
}

void print_list(const std::vector<MethodSpec>& specs) {
  Table table({{"method"}, {"family"}, {"bytes/token", true}, {"vs fp16", true}, {"serve"}, {"paper"}, {"summary"}});
  for (const MethodSpec& spec : specs) {
    const double bytes = can_be_built(spec) ? token_bytes(spec).total() : 0;
    table.add({std::string(spec.def->name), std::string(spec.def->family),
               bytes > 0 ? fmt::format("{:.0f}", bytes) : "-",
               bytes > 0 ? fmt::format("{:.2f}x", fp16_token_bytes() / bytes) : "-", std::string(serve_tier(*spec.def)),
               std::string(spec.def->paper), std::string(spec.def->summary)});
  }
  print(table.text());
  print(fmt::format(
      "bytes/token: one coded token of one layer with {} kv heads of {} channels; fp16 takes {:.0f}; -: can\n"
      "be configured, not built yet. serve: honest_bytes and not_trimmable serve models, vectors stores single\n"
      "vectors of one head.\n",
      kGeometry.kv_heads, kGeometry.dim_k, fp16_token_bytes()));
}

void print_method(const MethodSpec& spec) {
  const MethodDef& def = *spec.def;
  print(fmt::format("{} ({}): {}\n", def.name, def.family, def.summary));
  print(def.paper.empty() ? fmt::format("{}\n", def.title) : fmt::format("{}, arXiv:{}\n", def.title, def.paper));
  if (can_be_built(spec)) {
    const TokenBytes bytes = token_bytes(spec);
    print(
        fmt::format("bytes per coded token: keys {:g} + values {:g} = {:g}, fp16 {:g} (one layer, {} kv heads of {} "
                    "channels)\n",
                    bytes.key, bytes.value, bytes.total(), fp16_token_bytes(), kGeometry.kv_heads, kGeometry.dim_k));
  } else {
    print("can be configured, not built yet\n");
  }
  print(fmt::format("capabilities: {}\n\n", capabilities_text(def.capabilities)));
  Table options({{"option"}, {"alias"}, {"type"}, {"value"}, {"default"}, {"allowed"}, {"meaning"}});
  for (const OptionSpec& option : spec.options.specs()) {
    options.add({std::string(option.name), std::string(option.alias), std::string(to_string(option.type)),
                 veloxquant::to_string(spec.options.value(option.name)), veloxquant::to_string(option.def),
                 option.range_text(), std::string(option.meaning)});
  }
  print(options.text());
  if (def.telemetry.empty()) return;
  Table telemetry({{"telemetry"}, {"meaning"}});
  for (const Telemetry& entry : def.telemetry) telemetry.add({std::string(entry.name), std::string(entry.meaning)});
  print("\n" + telemetry.text());
}

void run(const Arguments& arguments) {
  std::vector<MethodSpec> specs;
  if (arguments.name.empty()) {
    for (const MethodDef* def : method_table()) {
      if (!arguments.family.empty() && def->family != arguments.family) continue;
      if (arguments.servable_only && def->standalone) continue;
      specs.push_back(parse_method(def->name));
    }
  } else {
    specs.push_back(parse_method(arguments.name));
  }
  if (arguments.json) {
    ordered_json rows = ordered_json::array();
    for (const MethodSpec& spec : specs) rows.push_back(json_of(spec));
    write_json("-", rows);
  } else if (arguments.name.empty()) {
    print_list(specs);
  } else {
    print_method(specs.front());
  }
}

}  // namespace

void add_methods(CLI::App& app) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* sub = app.add_subcommand("methods", "List the methods, or one with its options");
  sub->add_option("name", arguments->name, "Method, with options if you like: kivi or 'kivi(bits=4)'");
  sub->add_option("--family", arguments->family, "Only these")
      ->check(CLI::IsMember({"quantization", "eviction", "hybrid", "baseline"}));
  sub->add_flag("--servable-only", arguments->servable_only, "Without methods that store single vectors");
  sub->add_flag("--json", arguments->json, "Print JSON");
  sub->footer(
      "Examples:\n"
      "  veloxquant methods\n"
      "  veloxquant methods 'kivi(bits=4,group=64)'\n"
      "  veloxquant methods turboquant_rvq --json");
  sub->callback([arguments] { run(*arguments); });
}

}  // namespace veloxquant::cli
