// for_model on the shapes that models come in, read from their config.json: layer kinds, budgets, bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "veloxquant/errors.h"
#include "veloxquant/for_model.h"

namespace veloxquant {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Kind = LayerChoice::Kind;

struct Shape {
  const char* name;
  const char* config;
  int layers, attention;                ///< layers with a cache of the method
  std::vector<Kind> kinds;              ///< of the first layers
  int dim_k, dim_v, kv_heads, q_heads;  ///< of the first layer with a cache
};

constexpr Kind C = Kind::compressed, S = Kind::shared, N = Kind::native, P = Kind::plain;

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all = {
      {"grouped heads",
       R"({"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
           "num_key_value_heads": 8, "rope_theta": 500000})",
       32,
       32,
       {C, C},
       128,
       128,
       8,
       32},
      {"a kv head per head",
       R"({"model_type": "opt", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12})",
       12,
       12,
       {C, C},
       64,
       64,
       12,
       12},
      {"missing head_dim, odd size",
       R"({"model_type": "phi", "hidden_size": 2560, "num_hidden_layers": 4, "num_attention_heads": 32})",
       4,
       4,
       {C},
       80,
       80,
       32,
       32},
      {"head_dim of its own",
       R"({"model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16,
           "num_key_value_heads": 8, "head_dim": 128})",
       28,
       28,
       {C},
       128,
       128,
       8,
       16},
      {"latent attention",
       R"({"model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 3, "num_attention_heads": 128,
           "kv_lora_rank": 512, "qk_rope_head_dim": 64})",
       3,
       3,
       {C, C, C},
       576,
       512,
       1,
       128},
      {"hybrid by period",
       R"({"model_type": "jamba", "hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4,
           "num_key_value_heads": 2, "attn_layer_period": 3, "attn_layer_offset": 1, "mamba_d_state": 16})",
       6,
       2,
       {N, C, N, N, C, N},
       64,
       64,
       2,
       4},
      {"hybrid with layers that are neither",
       R"({"model_type": "nemotron_h", "hidden_size": 256, "num_hidden_layers": 5, "num_attention_heads": 4,
           "num_key_value_heads": 2, "hybrid_override_pattern": "M-*EM", "ssm_state_size": 128})",
       5,
       1,
       {N, P, C, P, N},
       64,
       64,
       2,
       4},
      {"sliding windows",
       R"({"model_type": "gemma2", "hidden_size": 2304, "num_hidden_layers": 4, "num_attention_heads": 8,
           "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096})",
       4,
       4,
       {C, C, C, C},
       256,
       256,
       4,
       8},
      {"vision and language",
       R"({"model_type": "gemma3", "vision_config": {"num_hidden_layers": 27, "num_attention_heads": 16, "hidden_size": 1152},
           "text_config": {"model_type": "gemma3_text", "num_hidden_layers": 6, "num_attention_heads": 8,
           "num_key_value_heads": 4, "head_dim": 256, "hidden_size": 2560, "sliding_window": 1024}})",
       6,
       6,
       {C, C},
       256,
       256,
       4,
       8},
      {"shared caches",
       R"({"model_type": "gemma3n_text", "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 2,
           "head_dim": 256, "hidden_size": 512, "sliding_window": 512, "layer_types": ["sliding_attention",
           "sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"],
           "num_kv_shared_layers": 3})",
       6,
       3,
       {C, C, C, S, S, S},
       256,
       256,
       2,
       8},
      {"experts and gates",
       R"({"model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 2, "num_attention_heads": 32,
           "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2})",
       2,
       2,
       {C, C},
       128,
       128,
       8,
       32},
  };
  return all;
}

TEST(model_shapes, every_layer_gets_what_it_should) {
  for (const Shape& shape : shapes()) {
    SCOPED_TRACE(shape.name);
    const ModelDesc model = model_from_config(shape.config);
    ModelCaches caches = for_model(model, {.method = "turboquant_rvq", .seed = 7});
    ASSERT_EQ(caches.plan.layers.size(), static_cast<size_t>(shape.layers));
    for (size_t i = 0; i < shape.kinds.size(); ++i) EXPECT_EQ(caches.plan.layers[i].kind, shape.kinds[i]) << i;
    int attention = 0;
    for (size_t i = 0; i < caches.plan.layers.size(); ++i) {
      const LayerChoice& layer = caches.plan.layers[i];
      if (layer.kind == Kind::shared) {
        EXPECT_EQ(caches.cache(static_cast<int>(i)), caches.cache(model.layers[i].shares_with));
      }
      if (layer.kind != Kind::compressed) continue;
      EXPECT_EQ(layer.attention_index, attention);
      EXPECT_EQ(layer.seed, 7 + static_cast<int64_t>(i));
      const LayerShape& built = caches.cache(static_cast<int>(i))->shape();
      if (attention == 0) {
        EXPECT_EQ(built.dim_k, shape.dim_k);
        EXPECT_EQ(built.dim_v, shape.dim_v);
        EXPECT_EQ(built.kv_heads, shape.kv_heads);
        EXPECT_EQ(built.q_heads, shape.q_heads);
      }
      ++attention;
    }
    EXPECT_EQ(attention, shape.attention);
  }
}

TEST(model_shapes, budgets_and_bits_are_shared_among_the_layers_that_have_a_cache) {
  for (const Shape& shape : shapes()) {
    SCOPED_TRACE(shape.name);
    const ModelDesc model = model_from_config(shape.config);
    int64_t budget = 0, last = 1 << 30;
    std::vector<int64_t> bits;
    for (const LayerChoice& layer : plan_model(model, {.method = "pyramidkv"}).layers) {
      if (layer.kind != Kind::compressed) continue;
      const int64_t own = std::get<int64_t>(layer.config.get("pyramid_resolved_budget"));
      EXPECT_LE(own, last);
      budget += last = own;
    }
    EXPECT_EQ(budget, 512 * shape.attention);
    IntegerList wanted;
    for (int i = 0; i < shape.attention; ++i) wanted.push_back(1 + i % 4);
    for (const LayerChoice& layer : plan_model(model, {.method = "kivi", .bit_width_inlier = wanted}).layers) {
      if (layer.kind == Kind::compressed) bits.push_back(std::get<int64_t>(layer.config.get("bit_width_inlier")));
    }
    EXPECT_EQ(bits, wanted);
    wanted.push_back(1);
    EXPECT_THROW(plan_model(model, {.method = "kivi", .bit_width_inlier = wanted}), QuantizerConfigError);
  }
}

TEST(model_shapes, caches_of_a_model_work) {
  const ModelDesc model = model_from_config(shapes()[5].config);
  ModelCaches caches = for_model(model, {.method = "kivi", .bit_width_inlier = IntegerList{2, 8}});
  std::vector<float> rows(2 * 256 * 64);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i % 29) / 8 - 1.5F;
  const Tensor tensor = Tensor::bhsd(rows.data(), DType::f32, 1, 2, 256, 64);
  for (int layer : {1, 4}) caches.cache(layer)->append(tensor, tensor);
  caches.caches.commit();
  EXPECT_GT(caches.cache(4)->used_bytes(), caches.cache(1)->used_bytes()) << "8 bits beside 2";
  EXPECT_EQ(caches.caches.trim(6), 6);
  EXPECT_EQ(caches.cache(4)->offset(), 250);
}

}  // namespace
}  // namespace veloxquant
