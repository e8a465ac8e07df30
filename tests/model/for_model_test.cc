// Caches for models that libllama has loaded.
#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>

#include "model/fixtures.h"
#include "model/random_models.h"
#include "veloxquant/errors.h"
#include "veloxquant/for_model.h"

namespace veloxquant::llama {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Kind = LayerChoice::Kind;

std::vector<int64_t> resolved(const ModelPlan& plan, std::string_view field) {
  std::vector<int64_t> values;
  for (const LayerChoice& layer : plan.layers) {
    if (layer.kind == Kind::compressed) values.push_back(std::get<int64_t>(layer.config.get(field)));
  }
  return values;
}

TEST(ForModel, the_packaged_model) {
  const auto host = test::load_packaged();
  const ModelDesc& model = host->description();
  IntegerList bits;
  for (int i = 0; i < 30; ++i) bits.push_back(2 + i % 3);
  ModelCaches caches = for_model(model, {.method = "kivi", .bit_width_inlier = bits});
  ASSERT_EQ(caches.plan.layers.size(), 30U);
  for (int i = 0; i < 30; ++i) {
    const LayerChoice& layer = caches.plan.layers[static_cast<size_t>(i)];
    EXPECT_EQ(layer.kind, Kind::compressed);
    EXPECT_EQ(layer.config.head_dim, 64);
    EXPECT_EQ(layer.seed, 42 + i);
    const KVCache& cache = *caches.cache(i);
    EXPECT_EQ(cache.method().options.integer("bit_width_inlier"), 2 + i % 3);
    EXPECT_EQ(cache.shape().kv_heads, 3);
    EXPECT_EQ(cache.shape().q_heads, 9);
    EXPECT_NE(cache.shape().rope, nullptr);
  }
  const std::vector<int64_t> budgets = resolved(plan_model(model, {.method = "pyramidkv"}), "pyramid_resolved_budget");
  EXPECT_EQ(budgets.front(), 752);
  EXPECT_EQ(budgets.back(), 272);
  EXPECT_EQ(std::accumulate(budgets.begin(), budgets.end(), int64_t{0}), 30 * 512);
  const std::vector<int64_t> cachegen = resolved(plan_model(model, {.method = "cachegen"}), "cachegen_resolved_bits");
  EXPECT_EQ(std::count(cachegen.begin(), cachegen.end(), 4), 10);
  EXPECT_EQ(std::count(cachegen.begin(), cachegen.end(), 2), 10);
  try {
    for_model(model, {.method = "qjl"});
    FAIL();
  } catch (const QuantizerConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("qjl stores single vectors and serves no model"));
  }
}

TEST(ForModel, a_model_with_windows) {
  const LlamaHost host(test::random_model("gemma3", {{"block_count", 7U}, {"attention.sliding_window_pattern", 3U}}));
  ModelCaches caches = for_model(host.description(), {.method = "h2o", .h2o_budget = 100});
  std::vector<Kind> kinds;
  for (const LayerChoice& layer : caches.plan.layers) kinds.push_back(layer.kind);
  EXPECT_THAT(kinds, ElementsAre(Kind::compressed, Kind::compressed, Kind::compressed, Kind::compressed,
                                 Kind::compressed, Kind::compressed, Kind::compressed));
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(caches.cache(i)->method().options.integer("h2o_budget"), 100);
    EXPECT_EQ(caches.cache(i)->shape().dim_k, host.description().layers[static_cast<size_t>(i)].dim_k);
  }
  EXPECT_THAT(resolved(plan_model(host.description(), {.method = "cachegen"}), "cachegen_resolved_bits"),
              ElementsAre(4, 4, 3, 3, 3, 2, 2));
}

TEST(ForModel, layers_with_a_state_keep_the_model_s_own_cache) {
  const LlamaHost host(test::random_model("nemotron_h", test::attention_recurrence_neither()));
  ModelCaches caches = for_model(host.description(), {});
  std::vector<Kind> kinds;
  for (const LayerChoice& layer : caches.plan.layers) kinds.push_back(layer.kind);
  EXPECT_THAT(kinds, ElementsAre(Kind::compressed, Kind::native, Kind::plain));
}

}  // namespace
}  // namespace veloxquant::llama
