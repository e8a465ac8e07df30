// What a loaded model is told to consist of.
#include <gmock/gmock.h>

#include "model/fixtures.h"
#include "model/random_models.h"

namespace veloxquant::llama {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using Kind = LayerDesc::Kind;

ModelDesc describe(const std::string& architecture, const test::Metadata& changes = {}) {
  return LlamaHost(test::random_model(architecture, changes)).description();
}

template <class Number>
std::vector<Number> of_layers(const ModelDesc& model, Number LayerDesc::*member) {
  std::vector<Number> numbers;
  for (const LayerDesc& layer : model.layers) numbers.push_back(layer.*member);
  return numbers;
}

TEST(Description, the_packaged_model_is_what_its_configuration_says) {
  const auto host = test::load_packaged();
  const ModelDesc& loaded = host->description();
  const ModelDesc configured = model_from_config(R"({
    "model_type": "llama", "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3, "rope_theta": 100000, "rope_scaling": null, "max_position_embeddings": 8192})");
  check(loaded);
  EXPECT_EQ(loaded.name, configured.name);
  ASSERT_EQ(loaded.layers.size(), 30U);
  for (size_t i = 0; i < 30; ++i) {
    const LayerDesc &a = loaded.layers[i], &b = configured.layers[i];
    EXPECT_TRUE(a.owns_cache());
    EXPECT_EQ(a.n_q_heads, b.n_q_heads);
    EXPECT_EQ(a.n_kv_heads, b.n_kv_heads);
    EXPECT_EQ(a.dim_k, b.dim_k);
    EXPECT_EQ(a.dim_v, b.dim_v);
    EXPECT_EQ(a.window + a.chunk, 0);
    EXPECT_EQ(a.native_cache, "");
    ASSERT_TRUE(a.rope && b.rope);
    EXPECT_EQ(a.rope->rotary_dim, 64);
    EXPECT_TRUE(a.rope->interleaved);  // GGUF files of this architecture have their channels in another order
    for (size_t pair = 0; pair < 32; ++pair) {
      EXPECT_NEAR(a.rope->frequencies[pair], b.rope->frequencies[pair], 1e-7);
    }
  }
  EXPECT_EQ(host->layers()[29].rope, &*loaded.layers[29].rope);
}

TEST(Description, windows_and_chunks) {
  const ModelDesc model = describe("gemma3", {{"block_count", 7U}, {"attention.sliding_window_pattern", 3U}});
  check(model);
  EXPECT_EQ(model.name, "gemma3");
  EXPECT_THAT(of_layers(model, &LayerDesc::window), ElementsAre(16, 16, 0, 16, 16, 0, 16));
  EXPECT_THAT(of_layers(model, &LayerDesc::chunk), Each(0));
  const ModelDesc llama4 = describe("llama4", {{"block_count", 4U},
                                               {"attention.sliding_window_pattern", 4U},
                                               {"context_length", 16384U},
                                               {"attention.head_count_kv", 1U}});
  check(llama4);
  EXPECT_THAT(of_layers(llama4, &LayerDesc::chunk), ElementsAre(8192, 8192, 8192, 0));
  EXPECT_THAT(of_layers(llama4, &LayerDesc::window), Each(0));
}

TEST(Description, latent_attention) {
  const ModelDesc model = describe("deepseek2", test::latent());
  check(model);
  for (const LayerDesc& layer : model.layers) {
    EXPECT_TRUE(layer.value_is_key_prefix);
    EXPECT_EQ(layer.n_kv_heads, 1);
    EXPECT_EQ(layer.n_q_heads, 4);
    EXPECT_EQ(layer.dim_k, 40);
    EXPECT_EQ(layer.dim_v, 32);
  }
}

TEST(Description, hybrids) {
  const ModelDesc jamba = describe("jamba", test::one_recurrent());
  EXPECT_THAT(of_layers(jamba, &LayerDesc::kind), ElementsAre(Kind::attention, Kind::recurrent));
  EXPECT_THAT(of_layers(jamba, &LayerDesc::native_cache), ElementsAre("", "recurrent"));
  const ModelDesc lfm2 = describe("lfm2", test::one_recurrent());
  EXPECT_THAT(of_layers(lfm2, &LayerDesc::kind), ElementsAre(Kind::attention, Kind::recurrent));
  EXPECT_THAT(of_layers(lfm2, &LayerDesc::native_cache), ElementsAre("", "conv"));
  const ModelDesc falcon = describe("falcon-h1");
  EXPECT_THAT(of_layers(falcon, &LayerDesc::kind), Each(Kind::attention));
  EXPECT_THAT(of_layers(falcon, &LayerDesc::native_cache), Each("recurrent"));
  const ModelDesc nemotron = describe("nemotron_h", test::attention_recurrence_neither());
  EXPECT_THAT(of_layers(nemotron, &LayerDesc::kind), ElementsAre(Kind::attention, Kind::recurrent, Kind::none));
  for (const ModelDesc* model : {&jamba, &lfm2, &falcon, &nemotron}) check(*model);
}

TEST(Description, layers_that_read_caches_of_others) {
  const ModelDesc gemma4 = describe("gemma4", test::shared_caches());
  check(gemma4);
  EXPECT_THAT(of_layers(gemma4, &LayerDesc::shares_with), ElementsAre(-1, -1, 0, 1));
  EXPECT_THAT(of_layers(gemma4, &LayerDesc::dim_k), ElementsAre(16, 32, 16, 32));
  EXPECT_THAT(of_layers(gemma4, &LayerDesc::window), ElementsAre(16, 0, 16, 0));
  // 20 layers own a cache; layers with a window and without take turns.
  const ModelDesc gemma3n = describe("gemma3n", {{"block_count", 25U}});
  check(gemma3n);
  for (size_t i = 0; i < 25; ++i) {
    EXPECT_EQ(gemma3n.layers[i].shares_with, i < 20 ? -1 : i % 2 == 0 ? 18 : 19) << i;
    EXPECT_EQ(gemma3n.layers[i].window, i % 2 == 0 ? 16 : 0) << i;
  }
}

}  // namespace
}  // namespace veloxquant::llama
