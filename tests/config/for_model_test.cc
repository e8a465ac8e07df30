#include "veloxquant/for_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "veloxquant/errors.h"

namespace veloxquant {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Kind = LayerChoice::Kind;

ModelDesc uniform(int layers, int dim = 64) {
  ModelDesc model{.name = "uniform", .layers = {}};
  for (int i = 0; i < layers; ++i) {
    model.layers.push_back({.dim_k = dim, .dim_v = dim, .n_kv_heads = 2, .n_q_heads = 4});
  }
  return model;
}

/// Every third layer has a recurrent state in place of attention, the last one nothing.
ModelDesc hybrid() {
  ModelDesc model = uniform(16);
  for (size_t i : {2, 5, 8, 15}) model.layers[i] = {.kind = LayerDesc::Kind::recurrent, .native_cache = "mamba"};
  model.layers[15] = {.kind = LayerDesc::Kind::none};
  return model;
}

std::vector<std::string> problems_of(const ModelDesc& model, const KVCacheConfig& config) {
  try {
    (void)plan_model(model, config);
  } catch (const QuantizerConfigError& error) {
    return error.problems();
  }
  return {};
}

std::vector<int64_t> resolved(const ModelDesc& model, const KVCacheConfig& config, std::string_view field) {
  std::vector<int64_t> values;
  for (const LayerChoice& layer : plan_model(model, config).layers) {
    if (layer.kind == Kind::compressed) values.push_back(std::get<int64_t>(layer.config.get(field)));
  }
  return values;
}

std::vector<std::string> groups(const ModelDesc& model, const KVCacheConfig& config) {
  std::vector<std::string> texts;
  for (const LayerChoice& layer : plan_model(model, config).layers) texts.push_back(layer.group);
  return texts;
}

TEST(for_model, every_layer_has_an_entry_and_those_without_attention_their_own_cache) {
  const ModelDesc model = hybrid();
  ModelCaches caches = for_model(model, {.method = "kivi", .seed = 10});
  ASSERT_EQ(caches.plan.layers.size(), 16u);
  int index = 0;
  for (size_t i = 0; i < 16; ++i) {
    const LayerChoice& layer = caches.plan.layers[i];
    if (i == 15) {
      EXPECT_EQ(layer.kind, Kind::plain);
      EXPECT_EQ(caches.cache(15)->method().def->name, "exact");
    } else if (!model.layers[i].has_attention()) {
      EXPECT_EQ(layer.kind, Kind::native);
      EXPECT_EQ(caches.cache(static_cast<int>(i)), nullptr);
      EXPECT_THAT(layer.reason, HasSubstr("mamba"));
    } else {
      EXPECT_EQ(layer.kind, Kind::compressed);
      EXPECT_EQ(layer.attention_index, index++);
      EXPECT_EQ(layer.seed, 10 + static_cast<int64_t>(i));
      const KVCache& cache = *caches.cache(static_cast<int>(i));
      EXPECT_EQ(cache.shape().layer, static_cast<int>(i));
      EXPECT_EQ(cache.method().def->name, "kivi");
    }
  }
  EXPECT_EQ(index, 12);
  EXPECT_THAT(caches.plan.report(), AllOf(HasSubstr("layer 2: native: no attention: the model's own cache (mamba)"),
                                          HasSubstr("layer 15: plain")));
}

TEST(for_model, head_sizes_are_the_layers_own) {
  ModelDesc model = uniform(2, 128);
  model.layers[1].dim_k = 192;
  model.layers[1].dim_v = 96;
  ModelCaches caches = for_model(model, {.method = "turboquant_rvq", .head_dim = 7});
  EXPECT_EQ(caches.cache(0)->shape().dim_k, 128);
  EXPECT_EQ(caches.cache(1)->shape().dim_k, 192);
  EXPECT_EQ(caches.cache(1)->shape().dim_v, 96);
  EXPECT_EQ(caches.plan.layers[1].config.head_dim, 192);
}

TEST(for_model, a_list_of_bits_goes_to_the_attention_layers_in_order) {
  const ModelDesc model = hybrid();
  KVCacheConfig config{.method = "kivi"};
  IntegerList bits;
  for (int i = 0; i < 12; ++i) bits.push_back(1 + i % 4);
  config.bit_width_inlier = bits;
  EXPECT_EQ(resolved(model, config, "bit_width_inlier"), bits);
  // Methods with a field of their own for the width get it there.
  config.method = "gear";
  EXPECT_EQ(resolved(model, config, "gear_bits"), bits);
  config.method = "xquant";
  EXPECT_EQ(resolved(model, config, "xquant_base_bits"), bits);
  for (size_t wrong : {11u, 13u}) {
    config.method = "kivi";
    config.bit_width_inlier = IntegerList(wrong, 2);
    EXPECT_THAT(problems_of(model, config), ElementsAre(AllOf(HasSubstr(std::to_string(wrong)), HasSubstr("12"))));
  }
  for (const char* method : {"svdq", "kvtc", "adakv", "kitty", "palu", "zipcache", "h2o", "exact"}) {
    config.method = method;
    config.bit_width_inlier = bits;
    EXPECT_THAT(problems_of(model, config), ElementsAre(AllOf(HasSubstr(method), HasSubstr("no single width"))))
        << method;
  }
  // Out of the method's own range: with the layer.
  config.method = "turboquant_rvq";
  config.bit_width_inlier = IntegerList{1, 2, 3, 4, 5, 6, 1, 1, 1, 1, 1, 1};
  EXPECT_THAT(problems_of(model, config), ElementsAre(AllOf(HasSubstr("layer 6:"), HasSubstr("'5'")),
                                                      AllOf(HasSubstr("layer 7:"), HasSubstr("'6'"))));
}

TEST(for_model, every_field_of_the_user_survives_into_every_layer) {
  const ModelDesc model = uniform(3);
  for (const MethodDef* def : method_table()) {
    if (def->standalone) continue;
    KVCacheConfig config{.method = std::string(def->name)};
    for (const FlatField& field : flat_fields()) {
      if (field.spec == nullptr || field.name == "method" || field.name == "head_dim" || field.name == "sliding_window")
        continue;
      config.set(field.name, field.spec->def);
    }
    const ModelPlan plan = plan_model(model, config);
    for (const LayerChoice& layer : plan.layers) {
      for (const FlatField& field : flat_fields()) {
        if (field.spec == nullptr || field.name == "head_dim" || field.name == "sliding_window") continue;
        EXPECT_EQ(layer.config.origin(field.name), KVCacheConfig::Origin::flat) << def->name << " " << field.name;
        if (field.name.ends_with("_resolved_budget") || field.name.ends_with("_resolved_bits")) continue;
        EXPECT_EQ(layer.config.get(field.name), config.get(field.name)) << def->name << " " << field.name;
      }
    }
  }
}

TEST(for_model, vector_methods_are_refused_with_those_that_serve) {
  for (const char* method : {"turboquant_mse", "turboquant_prod", "qjl", "polar", "spectral"}) {
    EXPECT_THAT(problems_of(uniform(2), {.method = method}),
                ElementsAre(AllOf(HasSubstr(method), HasSubstr("serves no model"), HasSubstr("turboquant_rvq"))));
  }
}

TEST(for_model, budgets_and_bits_follow_the_schedules) {
  const std::vector<int64_t> pyramid = resolved(uniform(32), {.method = "pyramidkv"}, "pyramid_resolved_budget");
  EXPECT_EQ(pyramid.front(), 752);
  EXPECT_EQ(pyramid.back(), 272);
  EXPECT_EQ(std::accumulate(pyramid.begin(), pyramid.end(), int64_t{0}), 32 * 512);
  EXPECT_EQ(resolved(uniform(1), {.method = "pyramidkv"}, "pyramid_resolved_budget"), (std::vector<int64_t>{512}));
  EXPECT_EQ(resolved(uniform(6), {.method = "cachegen"}, "cachegen_resolved_bits"),
            (std::vector<int64_t>{4, 4, 3, 3, 2, 2}));
  EXPECT_EQ(resolved(uniform(2), {.method = "cachegen"}, "cachegen_resolved_bits"), (std::vector<int64_t>{4, 3}));
  // The user's own value is overwritten, and said.
  EXPECT_THAT(plan_model(uniform(4), {.method = "pyramidkv", .pyramid_resolved_budget = 99}).notes,
              Contains(AllOf(HasSubstr("pyramid_resolved_budget"), HasSubstr("99"), HasSubstr("overwritten"))));
}

TEST(for_model, groups_count_attention_layers) {
  EXPECT_THAT(groups(uniform(5), {.method = "xquant"}),
              ElementsAre(HasSubstr("anchor"), HasSubstr("group 0"), HasSubstr("anchor"), HasSubstr("group 1"),
                          HasSubstr("anchor")));
  const std::vector<std::string> mini = groups(uniform(6), {.method = "minicache"});
  EXPECT_THAT(mini[3], HasSubstr("group 0"));
  EXPECT_THAT(mini[5], HasSubstr("group 1"));
  ModelDesc unlike = uniform(4);
  unlike.layers[1].n_kv_heads = 4;
  EXPECT_THAT(problems_of(unlike, {.method = "xquant"}), Contains(HasSubstr("layers 0 and 1 share a group")));
  EXPECT_THAT(problems_of(unlike, {.method = "kivi"}), IsEmpty());
}

TEST(for_model, problems_of_all_layers_come_in_one_error) {
  ModelDesc model = uniform(3);
  EXPECT_THAT(problems_of(model, {.method = "h2o", .h2o_budget = 5}).size(), 1u);  // the same for all layers: said once
  EXPECT_THAT(problems_of({.name = "empty", .layers = {}}, {}), testing::Not(IsEmpty()));
  for (LayerDesc& layer : model.layers) layer = {.kind = LayerDesc::Kind::none};
  EXPECT_THAT(problems_of(model, {}), ElementsAre(HasSubstr("no layer has attention")));
  EXPECT_THAT(problems_of(uniform(2), {.sliding_window = 3}), ElementsAre(HasSubstr("sliding_window")));
}

TEST(for_model, sinks_that_the_host_names_reach_all_layers) {
  ModelCaches caches =
      for_model(uniform(2), {.method = "kivi_sink", .extensions = {{"sink_signal", std::string("external")}}});
  const std::vector<int32_t> sinks = {3, 9};
  caches.set_sink_positions(0, sinks);
  std::vector<float> rows(2 * 256 * 64, 0.5f);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i % 13) - 6;
  const Tensor tensor = Tensor::bhsd(rows.data(), DType::f32, 1, 2, 256, 64);
  for (int layer : {0, 1}) {
    caches.cache(layer)->append(tensor, tensor);
    EXPECT_THAT(caches.cache(layer)->pool_positions(0), testing::UnorderedElementsAre(3, 9));
  }
}

}  // namespace
}  // namespace veloxquant
