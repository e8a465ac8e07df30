// From a configuration to caches: of one layer, of single vectors, of a whole model described by its config.json.
// Usage: example_02_configuration [CONFIG.json]
#include <cstdio>
#include <fstream>
#include <iterator>

#include "veloxquant/builder.h"
#include "veloxquant/errors.h"

using namespace veloxquant;

int main(int count, char** arguments) try {
  // The fields of the original system, by their names and in its order.
  KVCacheConfig config{.method = "kivi", .seed = 7, .kivi_group_size = 64};
  config.set("flush_rule", std::string("aligned_window"));  // what only this library has
  if (count > 1) {
    std::ifstream file(arguments[1], std::ios::binary);
    config = config_from_json(std::string(std::istreambuf_iterator<char>(file), {}));
  }
  std::printf("%s\n%s\n", config.describe().c_str(), to_json(config).c_str());

  // A cache of single vectors, through the builder.
  AnyCache any = KVCacheBuilder().with_method("turboquant_mse").with_head_dim(64).with_bit_width(3).build();
  auto& vectors = std::get<VectorCache>(any);
  const std::vector<float> key(64, 0.25F), value(64, 2.0F);
  vectors.append_key(key);
  vectors.append_value(value);
  std::printf("\none pair takes %zu bytes; attention gives %.3f, was %.3f\n", vectors.memory_bytes(),
              static_cast<double>(vectors.attend(key)[0]), 2.0);

  // A whole model: one recurrent layer in three keeps its own cache.
  const ModelDesc model = model_from_config(R"({
    "model_type": "jamba", "hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8,
    "num_key_value_heads": 2, "attn_layer_period": 3, "attn_layer_offset": 1, "mamba_d_state": 16})");
  const ModelCaches caches = for_model(model, config);
  std::printf("\n%s", caches.plan.report().c_str());

  // All 43 methods can be configured and planned, the schedules of their layers included.
  std::printf("\n%s", plan_model(model, {.method = "pyramidkv"}).report().c_str());
  return 0;
} catch (const QuantizerConfigError& error) {
  for (const std::string& problem : error.problems()) std::fprintf(stderr, "%s\n", problem.c_str());
  return 2;
}
