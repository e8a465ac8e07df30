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
  for (const char* name : {"cache_idx_k_l0", "cache_lidk_l3", "cache_ple_r_l0", "dsv4_comp_l1"}) {
    EXPECT_TRUE(is_foreign_cache(name)) << name;
  }
  for (const char* name : {"cache_k_l0", "cache_v_l0", "cache_r_l3", "cache_s_l0", "ffn_moe_topk-3", ""}) {
    EXPECT_FALSE(is_foreign_cache(name)) << name;
  }
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
  model.diffusion = true;
  EXPECT_THAT(refusal_of(model), HasSubstr("not causal"));
}

TEST(RefuseModel, windows_and_recurrent_layers_beside_attention_are_served) {
  ModelFacts model;
  model.window = 512;
  model.hybrid = true;
  EXPECT_EQ(refusal_of(model), "served");
}

TEST(RefuseModel, metadata_tells_the_rest) {
  const auto refusal = [](std::map<std::string, std::string> metadata) {
    ModelFacts model;
    model.metadata = std::move(metadata);
    return refusal_of(model);
  };
  EXPECT_THAT(refusal({{"attention.causal", "false"}}), HasSubstr("not causal"));
  EXPECT_THAT(refusal({{"ple.ngram_size", "3"}}), HasSubstr("n-gram"));
  EXPECT_THAT(refusal({{"split.count", "2"}}), HasSubstr("several files"));
  EXPECT_EQ(refusal({{"split.count", "1"}, {"attention.kv_lora_rank", "512"}}), "served");
}

TEST(LongRope, the_original_context_decides) {
  ModelFacts model;
  model.tensors = {"token_embd.weight", "rope_factors_long.weight"};
  model.metadata["rope.scaling.original_context_length"] = "4096";
  EXPECT_EQ(long_rope(model, 131072), 4096);
  EXPECT_EQ(long_rope(model, 4097), 4096);
  EXPECT_FALSE(long_rope(model, 4096));
  model.tensors = {"blk.0.rope_factors_long.weight"};
  EXPECT_EQ(long_rope(model, 131072), 4096);
  model.tensors = {"rope_freqs.weight"};
  EXPECT_FALSE(long_rope(model, 131072));
  model.tensors = {"rope_factors_long.weight"};
  model.metadata.clear();
  EXPECT_FALSE(long_rope(model, 131072));
}

TEST(WindowRule, masks_of_full_windowed_and_chunked_attention_are_told_apart) {
  using Cells = std::vector<uint8_t>;  // at 0, 2n - 1, n, n + 1 and the query's own 2n
  EXPECT_EQ(window_rule(Cells{1, 1, 1, 1, 1}, 16), WindowRule{});
  EXPECT_EQ(window_rule(Cells{0, 1, 0, 1, 1}, 16), WindowRule{.window = 16});
  EXPECT_EQ(window_rule(Cells{0, 0, 0, 0, 1}, 16), WindowRule{.chunk = 16});
  EXPECT_EQ(window_rule(Cells{0, 1, 0, 1, 1, 0, 0}, 4096), WindowRule{.window = 4096});
}

TEST(WindowRule, any_other_mask_has_no_rule) {
  using Cells = std::vector<uint8_t>;
  EXPECT_FALSE(window_rule(Cells{0, 1, 1, 1, 1}, 16));  // one row more
  EXPECT_FALSE(window_rule(Cells{0, 1, 0, 0, 1}, 16));  // a window half as long
  EXPECT_FALSE(window_rule(Cells{1, 0, 1, 1, 1}, 16));
  EXPECT_FALSE(window_rule(Cells{1, 1, 1, 1, 0}, 16));
  EXPECT_FALSE(window_rule(Cells{1, 1, 1, 1}, 16));
  EXPECT_FALSE(window_rule(Cells{}, 16));
  EXPECT_FALSE(window_rule(Cells{1, 1, 1, 1, 1}, 0));
}

TEST(RefuseAttention, grouped_heads_alibi_softcap_and_sinks_are_served) {
  AttentionFacts node = attention(0);
  EXPECT_EQ(refusal_of(node), "served");
  node.max_bias = 8;
  EXPECT_EQ(refusal_of(node), "served");
  node.dim_v = 32;
  node.softcap = 50;
  node.sinks = true;
  node.fused = false;
  EXPECT_EQ(refusal_of(node), "served");
}

AttentionFacts latent_attention(int layer) {
  AttentionFacts node = attention(layer);
  node.value_cache = node.key_cache;
  node.key_heads = node.value_heads = 1;
  node.dim_k = 576;
  node.dim_v = 512;
  return node;
}

TEST(RefuseAttention, values_inside_keys_are_served_where_they_begin_one_head) {
  EXPECT_EQ(refusal_of(latent_attention(4)), "served");
  AttentionFacts node = latent_attention(4);
  node.values_at_key_start = false;
  EXPECT_THAT(refusal_of(node), HasSubstr("layer 4 has values that are not the first channels"));
  node = latent_attention(4);
  node.key_heads = node.value_heads = 3;
  EXPECT_THAT(refusal_of(node), HasSubstr("not the first channels"));
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
  EXPECT_THAT(refusal([](AttentionFacts& n) { n.bias = true; }), HasSubstr("bias"));
}

TEST(JudgeGraph, shapes_come_out_by_rising_layer) {
  GraphFacts graph = graph_of({7, 0, 3});
  graph.attention[1].dim_v = 80;  // layer 0
  const GraphVerdict verdict = judge_graph(graph);
  ASSERT_FALSE(verdict.refusal) << *verdict.refusal;
  const std::vector<LayerDesc>& layers = verdict.model.layers;
  ASSERT_EQ(layers.size(), 8U);
  for (const size_t i : {0U, 3U, 7U}) EXPECT_TRUE(layers[i].owns_cache()) << i;
  for (const size_t i : {1U, 2U, 4U, 5U, 6U}) EXPECT_EQ(layers[i].kind, LayerDesc::Kind::none) << i;
  EXPECT_EQ(layers[0].dim_v, 80);
  EXPECT_EQ(layers[7].n_q_heads, 9);
  EXPECT_EQ(layers[7].n_kv_heads, 3);
  EXPECT_EQ(layers[7].dim_k, 64);
}

TEST(JudgeGraph, a_graph_without_caches_is_refused) { EXPECT_THAT(refusal_of(GraphFacts{}), HasSubstr("no KV cache")); }

TEST(JudgeGraph, caches_of_other_kinds_are_refused) {
  GraphFacts graph = graph_of({0});
  graph.writes.push_back("cache_idx_k_l0");
  EXPECT_THAT(refusal_of(graph), HasSubstr("'cache_idx_k_l0'"));
}

TEST(JudgeGraph, later_layers_may_read_a_cache_in_the_same_way) {
  GraphFacts graph = graph_of({0, 1});
  graph.attention.push_back(attention(1));
  GraphVerdict verdict = judge_graph(graph);
  ASSERT_FALSE(verdict.refusal) << *verdict.refusal;
  ASSERT_EQ(verdict.rules.size(), 2U);
  EXPECT_EQ(verdict.model.layers.size(), 2U);  // there is no layer for the second reader
  graph.layers = 3;
  verdict = judge_graph(graph);
  ASSERT_EQ(verdict.model.layers.size(), 3U);
  EXPECT_EQ(verdict.model.layers[1].shares_with, -1);
  EXPECT_EQ(verdict.model.layers[2].shares_with, 1);
  EXPECT_EQ(verdict.model.layers[2].n_kv_heads, 3);
  EXPECT_EQ(attention_shapes(verdict.model).size(), 2U);
  EXPECT_EQ(attention_kind({}, verdict.model, verdict.rules), "grouped heads, shared by later layers in 1 of 2 layers");
  graph.attention.back().visible = {0};
  EXPECT_THAT(refusal_of(graph), HasSubstr("share the KV cache of layer 1"));
}

TEST(JudgeGraph, rules_come_from_nodes_and_masks) {
  GraphFacts graph = graph_of({0, 1, 2});
  graph.window = 64;
  graph.attention[0].visible = {1, 1, 1, 1, 1};
  graph.attention[1].visible = {0, 1, 0, 1, 1};
  graph.attention[1].softcap = 30;
  graph.attention[1].sinks = true;
  graph.attention[2].visible = {0, 0, 0, 0, 1};
  graph.attention[2].max_bias = 8;
  graph.attention[2].fused = false;
  GraphVerdict verdict = judge_graph(graph);
  ASSERT_FALSE(verdict.refusal) << *verdict.refusal;
  const std::vector<LayerDesc>& layers = verdict.model.layers;
  EXPECT_EQ(layers[0].window + layers[0].chunk, 0);
  EXPECT_EQ(layers[1].window, 64);
  EXPECT_EQ(layers[1].chunk, 0);
  EXPECT_EQ(layers[2].window, 0);
  EXPECT_EQ(layers[2].chunk, 64);
  EXPECT_TRUE(verdict.rules[1].softcap && verdict.rules[1].sinks && !verdict.rules[1].alibi && verdict.rules[1].fused);
  EXPECT_TRUE(verdict.rules[2].alibi && !verdict.rules[2].fused);
  ModelFacts model;
  model.hybrid = true;
  EXPECT_EQ(attention_kind(model, verdict.model, verdict.rules),
            "grouped heads, window 64 in 1 of 3 layers, chunks of 64 in 1 of 3 layers, ALiBi in 1 of 3 layers, "
            "softcap in 1 of 3 layers, sinks in 1 of 3 layers, no flash attention in 1 of 3 layers, beside recurrent "
            "layers");
  graph.attention[2].visible = {0, 0, 0, 1, 1};
  EXPECT_THAT(refusal_of(graph), HasSubstr("layer 2 has a mask"));
}

TEST(JudgeGraph, states_tell_recurrent_layers) {
  GraphFacts graph = graph_of({1, 3});
  graph.architecture = "jamba";
  graph.layers = 6;
  graph.states = {"cache_r_l0", "cache_s_l0", "cache_r_l2", "cache_r_l3", "cache_s_l3", "cache_ple_r_l4"};
  RopeFacts rope;
  rope.rotary_dim = 64;
  rope.base = 10000;
  graph.ropes[1] = rope;
  const ModelDesc model = judge_graph(graph).model;
  EXPECT_EQ(model.name, "jamba");
  std::vector<std::string> kinds;
  for (const LayerDesc& layer : model.layers) {
    kinds.push_back(layer.has_attention()                      ? "attention+" + layer.native_cache
                    : layer.kind == LayerDesc::Kind::recurrent ? layer.native_cache
                                                               : "none");
  }
  EXPECT_THAT(kinds, testing::ElementsAre("recurrent", "attention+", "conv", "attention+recurrent", "none", "none"));
  ASSERT_TRUE(model.layers[1].rope);
  EXPECT_EQ(model.layers[1].rope->frequencies.size(), 32U);
  EXPECT_FALSE(model.layers[3].rope);
}

TEST(JudgeGraph, latent_attention_writes_no_values) {
  GraphFacts graph = graph_of({0});
  graph.attention[0] = latent_attention(0);
  EXPECT_THAT(refusal_of(graph), HasSubstr("instead of 1 and 0"));
  graph.writes.pop_back();
  const GraphVerdict verdict = judge_graph(graph);
  ASSERT_FALSE(verdict.refusal) << *verdict.refusal;
  EXPECT_TRUE(verdict.model.layers[0].value_is_key_prefix);
  EXPECT_EQ(verdict.model.layers[0].dim_v, 512);
}

TEST(JudgeGraph, a_written_cache_needs_its_attention) {
  GraphFacts graph = graph_of({0, 1});
  graph.attention.pop_back();
  EXPECT_THAT(refusal_of(graph), HasSubstr("layer 1 stores keys and values, but its attention was not found"));
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
  EXPECT_TRUE(judge_graph(graph).model.layers.empty());
}

}  // namespace
}  // namespace veloxquant::llama
