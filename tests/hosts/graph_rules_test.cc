// What the host decides about models and graphs, on descriptions written by hand.
#include "hosts/llama/graph_rules.h"

#include <gmock/gmock.h>

#include <cmath>

namespace veloxquant::llama {
namespace {

using ::testing::HasSubstr;

AttentionFacts attention(int layer) {
  AttentionFacts node;
  node.key_cache = "cache_k_l" + std::to_string(layer);
  node.value_cache = "cache_v_l" + std::to_string(layer);
  node.scale = 0.125F;
  node.q_heads = 9;
  node.key_heads = node.value_heads = 3;
  node.dim_k = node.dim_v = 64;
  return node;
}

GraphFacts graph_of(std::vector<int> layers) {
  GraphFacts graph;
  for (const int layer : layers) {
    graph.attention.push_back(attention(layer));
    graph.writes.push_back("cache_k_l" + std::to_string(layer));
    graph.writes.push_back("cache_v_l" + std::to_string(layer));
  }
  return graph;
}

std::string refusal_of(const GraphFacts& graph) { return judge_graph(graph).refusal.value_or("served"); }
std::string refusal_of(const AttentionFacts& node) { return refuse_attention(node).value_or("served"); }
std::string refusal_of(const ModelFacts& model) { return refuse_model(model).value_or("served"); }

TEST(CacheName, plain_caches_give_side_and_layer) {
  const auto key = parse_cache_name("cache_k_l0"), value = parse_cache_name("cache_v_l117");
  ASSERT_TRUE(key && value);
  EXPECT_EQ(key->side, Side::key);
  EXPECT_EQ(key->layer, 0);
  EXPECT_EQ(value->side, Side::value);
  EXPECT_EQ(value->layer, 117);
}

TEST(CacheName, other_names_are_no_plain_caches) {
  for (const char* name :
       {"", "cache_k_l", "cache_k_l-1", "cache_k_l1x", "cache_k_l 1", "cache_k_1", "Kcur-0", "cache_r_l0", "cache_s_l0",
        "cache_idx_k_l0", "cache_lidk_l0", "cache_ple_r_l2", "xcache_k_l0", "cache_k_l99999999999"}) {
    EXPECT_FALSE(parse_cache_name(name)) << name;
  }
}

TEST(CacheName, caches_of_other_kinds_are_told_from_other_tensors) {
  for (const char* name : {"cache_idx_k_l0", "cache_r_l3", "cache_s_l0", "dsv4_comp_l1"}) {
    EXPECT_TRUE(is_foreign_cache(name)) << name;
  }
  for (const char* name : {"cache_k_l0", "cache_v_l0", "ffn_moe_topk-3", ""})
    EXPECT_FALSE(is_foreign_cache(name)) << name;
}

TEST(Alibi, slopes_of_a_power_of_two_are_a_geometric_sequence) {
  const std::vector<float> slopes = alibi_slopes(8, 8);
  ASSERT_EQ(slopes.size(), 8U);
  for (int h = 0; h < 8; ++h) EXPECT_FLOAT_EQ(slopes[static_cast<size_t>(h)], std::exp2(-static_cast<float>(h + 1)));
}

TEST(Alibi, heads_beyond_a_power_of_two_lie_between) {
  const std::vector<float> slopes = alibi_slopes(8, 6);  // 4 heads at 2^-2 .. 2^-8, 2 more at 2^-1 and 2^-3
  const std::vector<float> expected = {1 / 4.0F, 1 / 16.0F, 1 / 64.0F, 1 / 256.0F, 1 / 2.0F, 1 / 8.0F};
  ASSERT_EQ(slopes.size(), expected.size());
  for (size_t h = 0; h < expected.size(); ++h) EXPECT_FLOAT_EQ(slopes[h], expected[h]);
}

TEST(Alibi, no_bias_has_no_slopes) { EXPECT_TRUE(alibi_slopes(0, 8).empty()); }

TEST(RefuseModel, a_plain_decoder_is_served) {
  ModelFacts model;
  model.metadata = {{"attention.causal", "true"}, {"attention.head_count", "9"}};
  EXPECT_EQ(refusal_of(model), "served");
}

TEST(RefuseModel, every_unsupported_kind_has_its_reason) {
  ModelFacts model;
  model.encoder = true;
  EXPECT_THAT(refusal_of(model), HasSubstr("encoder"));
  model = {};
  model.decoder = false;
  EXPECT_THAT(refusal_of(model), HasSubstr("encoder"));
  model = {};
  model.recurrent = true;
  EXPECT_THAT(refusal_of(model), HasSubstr("recurrent"));
  model = {};
  model.hybrid = true;
  EXPECT_THAT(refusal_of(model), HasSubstr("recurrent"));
  model = {};
  model.diffusion = true;
  EXPECT_THAT(refusal_of(model), HasSubstr("not causal"));
  model = {};
  model.window = 512;
  EXPECT_THAT(refusal_of(model), HasSubstr("window 512"));
}

TEST(RefuseModel, metadata_tells_the_rest) {
  const auto refusal = [](std::map<std::string, std::string> metadata) {
    ModelFacts model;
    model.metadata = std::move(metadata);
    return refusal_of(model);
  };
  EXPECT_THAT(refusal({{"attention.causal", "false"}}), HasSubstr("not causal"));
  EXPECT_THAT(refusal({{"attention.kv_lora_rank", "512"}}), HasSubstr("MLA"));
  EXPECT_THAT(refusal({{"ple.ngram_size", "3"}}), HasSubstr("n-gram"));
  EXPECT_THAT(refusal({{"split.count", "2"}}), HasSubstr("several files"));
  EXPECT_EQ(refusal({{"split.count", "1"}, {"attention.kv_lora_rank", "0"}}), "served");
}

TEST(RefuseModel, long_rope_is_refused_where_the_context_exceeds_the_original_one) {
  ModelFacts model;
  model.tensors = {"token_embd.weight", "rope_factors_long.weight"};
  model.trained_context = 131072;
  model.metadata["rope.scaling.original_context_length"] = "4096";
  EXPECT_THAT(refusal_of(model), HasSubstr("LongRoPE"));
  model.trained_context = 4096;
  EXPECT_EQ(refusal_of(model), "served");
  model.trained_context = 131072;
  model.tensors = {"rope_freqs.weight"};
  EXPECT_EQ(refusal_of(model), "served");
}

TEST(RefuseAttention, grouped_heads_and_alibi_are_served) {
  AttentionFacts node = attention(0);
  EXPECT_EQ(refusal_of(node), "served");
  node.max_bias = 8;
  EXPECT_EQ(refusal_of(node), "served");
  node.dim_v = 32;
  EXPECT_EQ(refusal_of(node), "served");
}

TEST(RefuseAttention, values_inside_keys_are_mla) {
  AttentionFacts node = attention(4);
  node.value_cache = node.key_cache;
  EXPECT_THAT(refusal_of(node), HasSubstr("layer 4 uses multi-head latent attention"));
}

TEST(RefuseAttention, caches_must_be_plain_and_of_one_layer) {
  AttentionFacts node = attention(1);
  node.value_cache = "cache_v_l2";
  EXPECT_THAT(refusal_of(node), HasSubstr("no plain KV cache"));
  node = attention(1);
  node.key_cache = "cache_idx_k_l1";
  EXPECT_THAT(refusal_of(node), HasSubstr("cache_idx_k_l1"));
  node = attention(1);
  std::swap(node.key_cache, node.value_cache);
  EXPECT_THAT(refusal_of(node), HasSubstr("no plain KV cache"));
}

TEST(RefuseAttention, every_sign_of_another_kind_has_its_reason) {
  const auto refusal = [](auto&& change) {
    AttentionFacts node = attention(2);
    change(node);
    return refusal_of(node);
  };
  EXPECT_THAT(refusal([](AttentionFacts& n) { n.sparse_rows = 1; }), HasSubstr("sparse"));
  EXPECT_THAT(refusal([](AttentionFacts& n) { n.mask_is_input = false; }), HasSubstr("sparse"));
  EXPECT_THAT(refusal([](AttentionFacts& n) { n.on_host = false; }), HasSubstr("CPU"));
  EXPECT_THAT(refusal([](AttentionFacts& n) { n.f32 = false; }), HasSubstr("f32"));
  EXPECT_THAT(refusal([](AttentionFacts& n) { n.streams = 2; }), HasSubstr("streams"));
  EXPECT_THAT(refusal([](AttentionFacts& n) { n.q_heads = 8; }), HasSubstr("8 query, 3 key"));
  EXPECT_THAT(refusal([](AttentionFacts& n) { n.value_heads = 1; }), HasSubstr("heads"));
  EXPECT_THAT(refusal([](AttentionFacts& n) { n.softcap = 50; }), HasSubstr("softcap"));
  EXPECT_THAT(refusal([](AttentionFacts& n) { n.sinks = true; }), HasSubstr("sinks"));
}

TEST(JudgeGraph, shapes_come_out_by_rising_layer) {
  GraphFacts graph = graph_of({7, 0, 3});
  graph.attention[1].dim_v = 80;  // layer 0
  const GraphVerdict verdict = judge_graph(graph);
  ASSERT_FALSE(verdict.refusal) << *verdict.refusal;
  ASSERT_EQ(verdict.layers.size(), 3U);
  EXPECT_EQ(verdict.layers[0].layer, 0);
  EXPECT_EQ(verdict.layers[0].dim_v, 80);
  EXPECT_EQ(verdict.layers[1].layer, 3);
  EXPECT_EQ(verdict.layers[2].layer, 7);
  EXPECT_EQ(verdict.layers[2].q_heads, 9);
  EXPECT_EQ(verdict.layers[2].kv_heads, 3);
  EXPECT_EQ(verdict.layers[2].dim_k, 64);
  EXPECT_EQ(verdict.layers[2].input, DType::f32);
}

TEST(JudgeGraph, a_graph_without_caches_is_refused) { EXPECT_THAT(refusal_of(GraphFacts{}), HasSubstr("no KV cache")); }

TEST(JudgeGraph, caches_of_other_kinds_are_refused) {
  GraphFacts graph = graph_of({0});
  graph.writes.push_back("cache_idx_k_l0");
  EXPECT_THAT(refusal_of(graph), HasSubstr("'cache_idx_k_l0'"));
}

TEST(JudgeGraph, shared_caches_are_refused) {
  GraphFacts graph = graph_of({0, 1});
  graph.attention.push_back(attention(1));
  EXPECT_THAT(refusal_of(graph), HasSubstr("share the KV cache of layer 1"));
}

TEST(JudgeGraph, a_written_cache_needs_its_flash_attention) {
  GraphFacts graph = graph_of({0, 1});
  graph.attention.pop_back();
  EXPECT_THAT(refusal_of(graph), HasSubstr("layer 1 does not use flash attention"));
}

TEST(JudgeGraph, an_attended_cache_must_be_written_once) {
  GraphFacts graph = graph_of({0});
  graph.writes.pop_back();
  EXPECT_THAT(refusal_of(graph), HasSubstr("layer 0 writes its keys 1 times and its values 0 times"));
  graph = graph_of({0});
  graph.writes.push_back("cache_k_l0");
  EXPECT_THAT(refusal_of(graph), HasSubstr("keys 2 times"));
}

TEST(JudgeGraph, attention_beside_a_cache_is_refused) {
  GraphFacts graph = graph_of({0});
  AttentionFacts cross = attention(1);
  cross.key_cache = "k_cross-0";
  graph.attention.push_back(cross);
  EXPECT_THAT(refusal_of(graph), HasSubstr("'k_cross-0'"));
}

TEST(JudgeGraph, a_refused_node_refuses_the_model) {
  GraphFacts graph = graph_of({0, 1});
  graph.attention[1].sparse_rows = 2048;
  EXPECT_THAT(refusal_of(graph), HasSubstr("layer 1 uses sparse attention"));
  EXPECT_TRUE(judge_graph(graph).layers.empty());
}

}  // namespace
}  // namespace veloxquant::llama
