// Layers read from config.json, one shape of model after the other; and what is said about configurations that don't
// describe one.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include "veloxquant/errors.h"
#include "veloxquant/model_desc.h"

namespace veloxquant {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Kind = LayerDesc::Kind;

std::string problem_of(std::string_view json) {
  try {
    model_from_config(json);
    return "read";
  } catch (const QuantizerConfigError& error) {
    std::string all;
    for (const std::string& problem : error.problems()) all += problem + "\n";
    return all;
  }
}

/// One number of each layer.
template <class Number>
auto of_layers(const ModelDesc& model, Number LayerDesc::*member) {
  std::vector<Number> numbers;
  for (const LayerDesc& layer : model.layers) numbers.push_back(layer.*member);
  return numbers;
}

std::vector<bool> with_attention(const ModelDesc& model) {
  std::vector<bool> has;
  for (const LayerDesc& layer : model.layers) has.push_back(layer.has_attention());
  return has;
}

std::vector<bool> with_rope(const ModelDesc& model) {
  std::vector<bool> has;
  for (const LayerDesc& layer : model.layers) has.push_back(layer.rope.has_value());
  return has;
}

// --- shapes of models ------------------------------------------------------------------------------

TEST(ModelConfig, grouped_heads) {
  const ModelDesc model = model_from_config(R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 3,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "rope_theta": 500000.0})");
  EXPECT_EQ(model.name, "llama");
  ASSERT_EQ(model.layers.size(), 3U);
  for (const LayerDesc& layer : model.layers) {
    EXPECT_EQ(layer.kind, Kind::attention);
    EXPECT_EQ(layer.n_q_heads, 32);
    EXPECT_EQ(layer.n_kv_heads, 8);
    EXPECT_EQ(layer.dim_k, 64);
    EXPECT_EQ(layer.dim_v, 64);
    EXPECT_FALSE(layer.value_is_key_prefix);
    EXPECT_EQ(layer.window + layer.chunk, 0);
    EXPECT_EQ(layer.shares_with, -1);
    EXPECT_EQ(layer.native_cache, "");
    ASSERT_TRUE(layer.rope);
    EXPECT_EQ(layer.rope->rotary_dim, 64);
    EXPECT_FALSE(layer.rope->interleaved);
    EXPECT_NEAR(layer.rope->frequencies[16], 1 / std::sqrt(500000.0), 1e-9);
  }
}

TEST(ModelConfig, a_kv_head_per_head_and_the_names_of_older_models) {
  const ModelDesc model = model_from_config(R"({"model_type": "gpt2", "n_layer": 2, "n_head": 12, "n_embd": 768})");
  EXPECT_THAT(of_layers(model, &LayerDesc::n_q_heads), ElementsAre(12, 12));
  EXPECT_THAT(of_layers(model, &LayerDesc::n_kv_heads), ElementsAre(12, 12));
  EXPECT_THAT(of_layers(model, &LayerDesc::dim_k), ElementsAre(64, 64));
  EXPECT_THAT(with_rope(model), Each(false));
  const ModelDesc falcon = model_from_config(
      R"({"model_type": "falcon", "n_layer": 1, "n_head": 71, "hidden_size": 4544, "multi_query": true})");
  EXPECT_EQ(falcon.layers[0].n_kv_heads, 1);
  const ModelDesc dbrx = model_from_config(
      R"({"n_layers": 1, "n_heads": 48, "d_model": 6144, "attn_config": {"kv_n_heads": 8, "rope_theta": 5e5}})");
  EXPECT_EQ(dbrx.layers[0].n_kv_heads, 8);
  EXPECT_EQ(dbrx.layers[0].dim_k, 128);
  EXPECT_TRUE(dbrx.layers[0].rope);
}

TEST(ModelConfig, head_dim_left_out_is_the_hidden_size_divided) {
  const std::string text =
      R"({"num_hidden_layers": 1, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": null,
          "hidden_size": )";
  EXPECT_EQ(model_from_config(text + "576}").layers[0].dim_k, 64);
  EXPECT_THAT(problem_of(text + "577}"), AllOf(HasSubstr("hidden_size = 577"), HasSubstr("num_attention_heads = 9")));
}

TEST(ModelConfig, latent_attention) {
  const ModelDesc model = model_from_config(R"({
    "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 2, "num_attention_heads": 128,
    "num_key_value_heads": 128, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "rope_theta": 10000})");
  for (const LayerDesc& layer : model.layers) {
    EXPECT_EQ(layer.n_kv_heads, 1);
    EXPECT_EQ(layer.n_q_heads, 128);
    EXPECT_EQ(layer.dim_k, 576);
    EXPECT_EQ(layer.dim_v, 512);
    EXPECT_TRUE(layer.value_is_key_prefix);
    EXPECT_FALSE(layer.rope);  // its rotated channels are the last ones
  }
  EXPECT_THAT(problem_of(R"({"num_hidden_layers": 1, "num_attention_heads": 4, "kv_lora_rank": 512})"),
              HasSubstr("qk_rope_head_dim"));
}

TEST(ModelConfig, hybrids_by_period_pattern_indices_and_blocks) {
  const std::string heads = R"("num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 256)";
  const ModelDesc jamba = model_from_config(fmt::format(
      R"({{{}, "num_hidden_layers": 6, "attn_layer_period": 3, "attn_layer_offset": 1, "mamba_d_state": 16}})", heads));
  EXPECT_THAT(with_attention(jamba), ElementsAre(false, true, false, false, true, false));
  EXPECT_EQ(jamba.layers[0].kind, Kind::recurrent);
  EXPECT_EQ(jamba.layers[0].native_cache, "mamba");
  const ModelDesc nemotron = model_from_config(
      fmt::format(R"({{{}, "model_type": "nemotron_h", "num_hidden_layers": 5, "hybrid_override_pattern": "M-*EM",
                      "ssm_state_size": 128, "rope_theta": 10000, "time_step_limit": [0.0, Infinity]}})",
                  heads));
  EXPECT_THAT(of_layers(nemotron, &LayerDesc::kind),
              ElementsAre(Kind::recurrent, Kind::none, Kind::attention, Kind::none, Kind::recurrent));
  EXPECT_THAT(with_rope(nemotron), Each(false));
  const ModelDesc bamba = model_from_config(fmt::format(
      R"({{{}, "num_hidden_layers": 4, "attn_layer_indices": [2], "mamba_d_state": 16, "attn_rotary_emb": 32,
          "rope_theta": 10000}})",
      heads));
  EXPECT_THAT(with_attention(bamba), ElementsAre(false, false, true, false));
  EXPECT_EQ(bamba.layers[2].rope->rotary_dim, 32);
  const ModelDesc griffin = model_from_config(fmt::format(
      R"({{{}, "num_hidden_layers": 4, "block_types": ["recurrent", "recurrent", "attention"], "lru_width": 64,
          "attention_window_size": 2048}})",
      heads));
  EXPECT_THAT(with_attention(griffin), ElementsAre(false, false, true, false));
  EXPECT_EQ(griffin.layers[2].window, 2048);
  const ModelDesc lfm = model_from_config(fmt::format(
      R"({{{}, "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "conv_L_cache": 3}})",
      heads));
  EXPECT_THAT(of_layers(lfm, &LayerDesc::native_cache), ElementsAre("conv", "", "conv"));
  const ModelDesc kimi = model_from_config(fmt::format(
      R"({{{}, "num_hidden_layers": 4, "kv_lora_rank": 32, "qk_rope_head_dim": 8,
          "linear_attn_config": {{"kda_layers": [1, 2, 3], "full_attn_layers": [4]}}}})",
      heads));
  EXPECT_THAT(with_attention(kimi), ElementsAre(false, false, false, true));
  EXPECT_EQ(kimi.layers[3].dim_k, 40);
  const ModelDesc minimax =
      model_from_config(fmt::format(R"({{{}, "num_hidden_layers": 3, "attn_type_list": [0, 0, 1]}})", heads));
  EXPECT_THAT(with_attention(minimax), ElementsAre(false, false, true));
}

TEST(ModelConfig, hybrid_with_full_attention_interval) {
  const ModelDesc model = model_from_config(R"({
    "model_type": "qwen3_next", "hidden_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 16,
    "num_key_value_heads": 2, "head_dim": 256, "full_attention_interval": 4, "linear_num_key_heads": 16,
    "partial_rotary_factor": 0.25, "rope_theta": 10000000})");
  EXPECT_THAT(with_attention(model), ElementsAre(false, false, false, true, false, false, false, true));
  EXPECT_EQ(model.layers[0].native_cache, "recurrent");
  EXPECT_EQ(model.layers[3].rope->rotary_dim, 64);
}

TEST(ModelConfig, attention_beside_recurrence) {
  const ModelDesc model = model_from_config(R"({
    "model_type": "falcon_h1", "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 2, "mamba_d_state": 256})");
  EXPECT_THAT(with_attention(model), Each(true));
  EXPECT_THAT(of_layers(model, &LayerDesc::native_cache), Each("mamba"));
}

TEST(ModelConfig, windows_by_pattern_list_and_model) {
  const std::string start = R"({"hidden_size": 256, "num_attention_heads": 4, "sliding_window": 512, )";
  const auto windows = [&](std::string_view rest) {
    return of_layers(model_from_config(fmt::format("{}{}}}", start, rest)), &LayerDesc::window);
  };
  EXPECT_THAT(windows(R"("num_hidden_layers": 7, "sliding_window_pattern": 3)"),
              ElementsAre(512, 512, 0, 512, 512, 0, 512));
  EXPECT_THAT(windows(R"("num_hidden_layers": 5, "sliding_window_pattern": "LLLG")"),
              ElementsAre(512, 512, 512, 0, 512));
  EXPECT_THAT(windows(R"("num_hidden_layers": 4, "model_type": "gemma2")"), ElementsAre(512, 0, 512, 0));
  EXPECT_THAT(windows(R"("num_hidden_layers": 2, "model_type": "mistral")"), ElementsAre(512, 512));
  EXPECT_THAT(windows(R"("num_hidden_layers": 3, "use_sliding_window": false, "max_window_layers": 1)"),
              ElementsAre(0, 0, 0));
  EXPECT_THAT(windows(R"("num_hidden_layers": 3, "use_sliding_window": true, "max_window_layers": 2)"),
              ElementsAre(0, 0, 512));
  EXPECT_THAT(windows(R"("num_hidden_layers": 2, "layer_types": ["full_attention", "sliding_attention"])"),
              ElementsAre(0, 512));
  EXPECT_THAT(problem_of(R"({"hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 1,
                             "layer_types": ["sliding_attention"]})"),
              AllOf(HasSubstr("layer 0"), HasSubstr("sliding_window")));
}

TEST(ModelConfig, what_files_leave_out_is_known_of_the_model) {
  const ModelDesc gemma = model_from_config(R"({"model_type": "gemma3", "text_config": {
    "hidden_size": 2560, "model_type": "gemma3_text", "num_hidden_layers": 7, "sliding_window": 1024,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}})");
  EXPECT_THAT(of_layers(gemma, &LayerDesc::n_q_heads), Each(8));
  EXPECT_THAT(of_layers(gemma, &LayerDesc::n_kv_heads), Each(4));
  EXPECT_THAT(of_layers(gemma, &LayerDesc::dim_k), Each(256));
  EXPECT_THAT(of_layers(gemma, &LayerDesc::window), ElementsAre(1024, 1024, 1024, 1024, 1024, 0, 1024));
  EXPECT_NEAR(gemma.layers[0].rope->frequencies[64], 0.01, 1e-8);
  EXPECT_NEAR(gemma.layers[5].rope->frequencies[64], 0.001 / 8, 1e-9);
  const ModelDesc llama = model_from_config(
      R"({"model_type": "llama", "hidden_size": 256, "num_attention_heads": 2, "num_hidden_layers": 1})");
  EXPECT_NEAR(llama.layers[0].rope->frequencies[32], 0.01, 1e-8);
  const ModelDesc zeros = model_from_config(R"({"num_hidden_layers": 1, "num_attention_heads": 10,
    "hidden_size": 1280, "kv_lora_rank": 0, "qk_rope_head_dim": 0, "v_head_dim": 0})");
  EXPECT_EQ(zeros.layers[0].dim_v, 128);
  EXPECT_FALSE(zeros.layers[0].value_is_key_prefix);
}

TEST(ModelConfig, chunks_stand_in_the_layers_that_rotate) {
  const std::string text = R"({"text_config": {"model_type": "llama4_text", "hidden_size": 256,
    "num_attention_heads": 4, "num_hidden_layers": 5, "attention_chunk_size": 8192, "rope_theta": 500000,
    "no_rope_layers": )";
  const ModelDesc model = model_from_config(text + "[]}}");
  EXPECT_THAT(of_layers(model, &LayerDesc::chunk), ElementsAre(8192, 8192, 8192, 0, 8192));
  EXPECT_THAT(with_rope(model), ElementsAre(true, true, true, false, true));
  EXPECT_TRUE(model.layers[0].rope->interleaved);
  EXPECT_THAT(of_layers(model_from_config(text + "[0, 1, 1, 1, 1]}}"), &LayerDesc::chunk),
              ElementsAre(0, 8192, 8192, 8192, 8192));
}

TEST(ModelConfig, the_language_part_of_a_model_that_sees) {
  const ModelDesc model = model_from_config(R"({
    "model_type": "gemma3", "num_hidden_layers": 1, "num_attention_heads": 2, "rope_theta": 5000,
    "vision_config": {"num_hidden_layers": 27, "num_attention_heads": 16, "hidden_size": 1152},
    "text_config": {"model_type": "gemma3_text", "num_hidden_layers": 6, "num_attention_heads": 8,
      "num_key_value_heads": 4, "head_dim": 256, "hidden_size": 2560, "sliding_window": 1024,
      "rope_local_base_freq": 10000, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}})");
  EXPECT_EQ(model.name, "gemma3_text");
  ASSERT_EQ(model.layers.size(), 6U);
  EXPECT_THAT(of_layers(model, &LayerDesc::n_q_heads), Each(8));
  EXPECT_THAT(of_layers(model, &LayerDesc::window), ElementsAre(1024, 1024, 1024, 1024, 1024, 0));
  // Of the outer part what the inner one does not say; scaling is of the full layers alone.
  EXPECT_EQ(model.layers[0].rope->frequencies[0], 1);
  EXPECT_NEAR(model.layers[0].rope->frequencies[64], 0.01, 1e-8);
  EXPECT_EQ(model.layers[5].rope->frequencies[0], 0.125F);
  EXPECT_NEAR(model.layers[5].rope->frequencies[64], 0.125 / std::sqrt(5000.0), 1e-8);
  for (const char* key : {"llm_config", "language_config", "text_config"}) {
    const ModelDesc inner = model_from_config(
        fmt::format(R"({{"{}": {{"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 32}}}})", key));
    EXPECT_EQ(inner.layers.size(), 2U) << key;
  }
  const ModelDesc omni = model_from_config(R"({"thinker_config": {"text_config": {
    "num_hidden_layers": 3, "num_attention_heads": 2, "hidden_size": 32}}})");
  EXPECT_EQ(omni.layers.size(), 3U);
}

TEST(ModelConfig, sizes_of_each_layer) {
  const ModelDesc lists = model_from_config(R"({
    "model_type": "openelm", "num_transformer_layers": 3, "num_query_heads": [12, 12, 16],
    "num_kv_heads": [3, 3, 4], "head_dim": 64, "model_dim": 1280})");
  EXPECT_THAT(of_layers(lists, &LayerDesc::n_q_heads), ElementsAre(12, 12, 16));
  EXPECT_THAT(of_layers(lists, &LayerDesc::n_kv_heads), ElementsAre(3, 3, 4));
  const ModelDesc own = model_from_config(R"({
    "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": [32, 64, 128],
    "per_layer_config": {"1": {"num_key_value_heads": 2}, "2": {"head_dim": 256}}})");
  EXPECT_THAT(of_layers(own, &LayerDesc::dim_k), ElementsAre(32, 64, 256));
  EXPECT_THAT(of_layers(own, &LayerDesc::n_kv_heads), ElementsAre(4, 2, 4));
  const ModelDesc gemma4 = model_from_config(R"({
    "model_type": "gemma4_text", "num_hidden_layers": 2, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 256, "global_head_dim": 512, "num_global_key_value_heads": 2, "attention_k_eq_v": true,
    "sliding_window": 1024, "layer_types": ["sliding_attention", "full_attention"],
    "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
      "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0}}})");
  EXPECT_THAT(of_layers(gemma4, &LayerDesc::dim_k), ElementsAre(256, 512));
  EXPECT_THAT(of_layers(gemma4, &LayerDesc::n_kv_heads), ElementsAre(8, 2));
  EXPECT_THAT(with_rope(gemma4), ElementsAre(true, false));
  const ModelDesc mimo = model_from_config(R"({
    "num_hidden_layers": 2, "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 192, "v_head_dim": 128,
    "swa_num_key_value_heads": 8, "swa_head_dim": 96, "swa_v_head_dim": 64, "sliding_window": 128,
    "hybrid_layer_pattern": [0, 1]})");
  EXPECT_THAT(of_layers(mimo, &LayerDesc::n_kv_heads), ElementsAre(4, 8));
  EXPECT_THAT(of_layers(mimo, &LayerDesc::dim_k), ElementsAre(192, 96));
  EXPECT_THAT(of_layers(mimo, &LayerDesc::dim_v), ElementsAre(128, 64));
  EXPECT_THAT(of_layers(mimo, &LayerDesc::window), ElementsAre(0, 128));
}

TEST(ModelConfig, layers_that_share_read_the_last_of_their_kind) {
  const std::string text = R"({
    "model_type": "gemma3n_text", "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256,
    "sliding_window": 512, "layer_types": ["sliding_attention", "sliding_attention", "full_attention",
      "sliding_attention", "sliding_attention", "full_attention"], "num_kv_shared_layers": )";
  EXPECT_THAT(of_layers(model_from_config(text + "0}"), &LayerDesc::shares_with), Each(-1));
  const ModelDesc model = model_from_config(text + "3}");
  EXPECT_THAT(of_layers(model, &LayerDesc::shares_with), ElementsAre(-1, -1, -1, 1, 1, 2));
  EXPECT_EQ(attention_shapes(model).size(), 3U);
  EXPECT_THAT(problem_of(text + "4}"), AllOf(HasSubstr("num_kv_shared_layers is 4"), HasSubstr("layer 2")));
  EXPECT_THAT(problem_of(text + "6}"), HasSubstr("0..5"));
}

TEST(ModelConfig, experts_and_their_gates_change_nothing) {
  const ModelDesc model = model_from_config(R"({
    "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 2, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1,
    "norm_topk_prob": true, "mlp_only_layers": [], "moe_intermediate_size": 768, "router_aux_loss_coef": 0.001})");
  EXPECT_THAT(of_layers(model, &LayerDesc::n_kv_heads), ElementsAre(4, 4));
  EXPECT_THAT(of_layers(model, &LayerDesc::dim_v), ElementsAre(128, 128));
}

// --- rotation --------------------------------------------------------------------------------------

std::optional<RopeSpec> rope_of(std::string_view parts) {
  return model_from_config(fmt::format(R"({{"num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 128,
                                           "max_position_embeddings": 131072, {}}})",
                                       parts))
      .layers[0]
      .rope;
}

TEST(ModelConfigRope, llama3_stretches_slow_pairs) {
  const auto plain = rope_of(R"("rope_theta": 500000)");
  const auto scaled = rope_of(R"("rope_theta": 500000, "rope_scaling": {"rope_type": "llama3", "factor": 8.0,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192})");
  ASSERT_TRUE(plain && scaled);
  int fast = 0;
  for (size_t i = 0; i < 64; ++i) {
    const double turns = 8192 * double{plain->frequencies[i]} / (2 * M_PI);
    const double ratio = double{scaled->frequencies[i]} / plain->frequencies[i];
    const double kept = std::clamp((turns - 1) / 3, 0.0, 1.0);
    EXPECT_NEAR(ratio, kept + (1 - kept) / 8, 1e-6) << i;
    fast += ratio == 1 ? 1 : 0;
  }
  EXPECT_GT(fast, 20);
  EXPECT_NEAR(scaled->frequencies.back() / plain->frequencies.back(), 0.125, 1e-6);
}

TEST(ModelConfigRope, yarn_keeps_fast_pairs) {
  const auto plain = rope_of(R"("rope_theta": 10000)");
  const auto scaled = rope_of(R"("rope_parameters": {"rope_theta": 10000, "rope_type": "yarn", "factor": 4.0,
                                 "original_max_position_embeddings": 32768})");
  ASSERT_TRUE(plain && scaled);
  EXPECT_EQ(scaled->frequencies.front(), plain->frequencies.front());
  EXPECT_NEAR(scaled->frequencies.back() / plain->frequencies.back(), 0.25, 1e-6);
}

TEST(ModelConfigRope, what_depends_on_more_than_the_position_is_left_open) {
  EXPECT_FALSE(rope_of(R"("hidden_size": 8)"));
  EXPECT_FALSE(rope_of(R"("rope_theta": 10000, "rope_scaling": {"type": "dynamic", "factor": 2.0})"));
  EXPECT_FALSE(rope_of(R"("rope_theta": 10000, "rope_scaling": {"type": "longrope", "long_factor": [1]})"));
  EXPECT_FALSE(rope_of(R"("rope_theta": 10000, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]})"));
  EXPECT_FALSE(rope_of(R"("rope_theta": 10000, "position_embedding_type": "nope")"));
  EXPECT_FALSE(rope_of(R"("rope_theta": -1)"));
}

TEST(ModelConfigRope, some_models_rotate_in_layers_with_a_window_alone) {
  const auto rotated = [](std::string_view window) {
    return with_rope(model_from_config(fmt::format(
        R"({{"model_type": "exaone4", "num_hidden_layers": 4, "num_attention_heads": 2, "head_dim": 16,
             "rope_theta": 1000000, "sliding_window": {}}})",
        window)));
  };
  EXPECT_THAT(rotated("4096"), ElementsAre(true, true, true, false));
  EXPECT_THAT(rotated("null"), Each(true));
}

TEST(ModelConfigRope, mistakes_name_the_parameter) {
  const auto problem = [](std::string_view parts) {
    return problem_of(
        fmt::format(R"({{"num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 128, {}}})", parts));
  };
  EXPECT_THAT(problem(R"("rope_theta": "big")"), HasSubstr("rope_theta is 'big'"));
  EXPECT_THAT(problem(R"("rope_theta": 1e4, "partial_rotary_factor": 1.5)"), HasSubstr("partial_rotary_factor is 1.5"));
  EXPECT_THAT(problem(R"("rope_theta": 1e4, "rope_scaling": {"type": "linear"})"),
              AllOf(HasSubstr("rope_scaling."), HasSubstr("factor")));
  EXPECT_THAT(problem(R"("rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 0})"),
              HasSubstr("rope_scaling.factor is 0"));
}

// --- configurations that describe no model ----------------------------------------------------------

TEST(ModelConfigProblem, what_is_missing_is_named_with_the_keys) {
  EXPECT_THAT(problem_of("{}"), HasSubstr("num_hidden_layers"));
  EXPECT_THAT(problem_of(R"({"num_hidden_layers": 2})"), HasSubstr("num_attention_heads"));
  EXPECT_THAT(problem_of(R"({"num_hidden_layers": 2, "num_attention_heads": 2})"),
              AllOf(HasSubstr("head_dim"), HasSubstr("hidden_size")));
}

TEST(ModelConfigProblem, wrong_types_and_sizes_are_named_with_what_is_allowed) {
  const auto with = [](std::string_view key, std::string_view value) {
    return problem_of(fmt::format(R"({{"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
                                      "{}": {}}})",
                                  key, value));
  };
  for (const char* bad : {"0", "-1", "1.5", "1e300", "18446744073709551615", "true", "\"2\"", "{}"}) {
    EXPECT_THAT(with("num_hidden_layers", bad), AllOf(HasSubstr("num_hidden_layers is"), HasSubstr("1..10000"))) << bad;
    EXPECT_THAT(with("num_attention_heads", bad), AllOf(HasSubstr("num_attention_heads is"), HasSubstr("1..65536")));
    EXPECT_THAT(with("num_key_value_heads", bad), AllOf(HasSubstr("num_key_value_heads is"), HasSubstr("1..65536")));
    EXPECT_THAT(with("head_dim", bad), AllOf(HasSubstr("head_dim is"), HasSubstr("1..65536")));
  }
  EXPECT_THAT(with("num_hidden_layers", "10001"), HasSubstr("10001"));
  EXPECT_THAT(with("head_dim", "[16, 16, 16]"), HasSubstr("head_dim has 3 entries, wanted: 2"));
  EXPECT_THAT(with("num_key_value_heads", "3"),
              AllOf(HasSubstr("num_attention_heads is 4"), HasSubstr("num_key_value_heads = 3")));
  EXPECT_THAT(with("layer_types", R"(["full_attention"])"), HasSubstr("layer_types has 1 entries, wanted: 2"));
  EXPECT_THAT(with("layer_types", R"(["full_attention", "telepathy"])"),
              AllOf(HasSubstr("layer_types[1] is 'telepathy'"), HasSubstr("sliding_attention")));
  EXPECT_THAT(with("hybrid_override_pattern", R"("M?")"), HasSubstr("hybrid_override_pattern[1] is '?'"));
  EXPECT_THAT(with("attn_type_list", "1"), HasSubstr("attn_type_list is 1"));
  EXPECT_THAT(with("attn_type_list", "[1, 2]"), HasSubstr("attn_type_list is 2, wanted: an integer in 0..1"));
  EXPECT_THAT(with("attn_layer_period", "2"), HasSubstr("attn_layer_offset"));
}

TEST(ModelConfigProblem, layers_that_no_description_fits_are_refused) {
  const auto with = [](std::string_view rest) {
    return problem_of(
        fmt::format(R"({{"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, {}}})", rest));
  };
  EXPECT_THAT(with(R"("is_encoder_decoder": true)"), HasSubstr("is_encoder_decoder"));
  EXPECT_EQ(with(R"("is_encoder_decoder": false, "index_topk": 0, "kv_sharing_map": {})"), "read");
  EXPECT_THAT(with(R"("index_topk": 2048)"), HasSubstr("index_topk"));
  // Recurrent layers, but which?
  EXPECT_THAT(with(R"("mamba_d_state": 16)"), AllOf(HasSubstr("mamba_d_state"), HasSubstr("layer_types")));
}

TEST(ModelConfigProblem, text_that_is_no_json_object) {
  EXPECT_THAT(problem_of(""), HasSubstr("not valid JSON"));
  EXPECT_THAT(problem_of("{\"a\": "), HasSubstr("at byte"));
  EXPECT_THAT(problem_of("[]"), HasSubstr("array"));
  EXPECT_THAT(problem_of("{\"model_type\": \"\xff\xfe\"}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(problem_of("{\"a\": 1e999}"), HasSubstr("too large"));
  EXPECT_THAT(problem_of(std::string(100000, '[')), HasSubstr("levels"));
  EXPECT_THAT(problem_of(std::string((16 << 20) + 1, ' ')), HasSubstr("bytes"));
  EXPECT_THAT(problem_of("{\"a\": \"Infinity [[[ \\\" \", \"b\": NaN}"), HasSubstr("num_hidden_layers"));
}

TEST(ModelConfigProblem, rotations_of_a_giant_are_bounded) {
  EXPECT_THAT(problem_of(R"({"num_hidden_layers": 10000, "num_attention_heads": 1, "head_dim": 65536,
                             "rope_theta": 10000})"),
              AllOf(HasSubstr("layer 32"), HasSubstr("1048576")));
}

// --- descriptions by hand --------------------------------------------------------------------------

ModelDesc two_layers() {
  const LayerDesc layer{.dim_k = 64, .dim_v = 32, .n_kv_heads = 2, .n_q_heads = 6};
  return {.name = "hand", .layers = {layer, layer}};
}

std::string problems_of(const std::function<void(ModelDesc&)>& change) {
  ModelDesc model = two_layers();
  change(model);
  try {
    check(model);
    return "fine";
  } catch (const QuantizerConfigError& error) {
    return error.what();
  }
}

TEST(ModelDesc, shapes_are_of_the_layers_with_a_cache) {
  ModelDesc model = two_layers();
  model.layers.insert(model.layers.begin(), {.kind = Kind::recurrent, .native_cache = "mamba"});
  model.layers[2].shares_with = 1;
  model.layers[1].rope = RopeSpec{.rotary_dim = 2, .interleaved = false, .frequencies = {1}};
  const std::vector<LayerShape> shapes = attention_shapes(model, DType::f16);
  ASSERT_EQ(shapes.size(), 1U);
  EXPECT_EQ(shapes[0].layer, 1);
  EXPECT_EQ(shapes[0].kv_heads, 2);
  EXPECT_EQ(shapes[0].q_heads, 6);
  EXPECT_EQ(shapes[0].dim_k, 64);
  EXPECT_EQ(shapes[0].dim_v, 32);
  EXPECT_EQ(shapes[0].input, DType::f16);
  EXPECT_EQ(shapes[0].rope, &*model.layers[1].rope);
}

TEST(ModelDesc, every_problem_names_layer_given_and_allowed) {
  EXPECT_EQ(problems_of([](ModelDesc&) {}), "fine");
  EXPECT_THAT(problems_of([](ModelDesc& m) { m.layers.clear(); }), HasSubstr("0 layers"));
  EXPECT_THAT(problems_of([](ModelDesc& m) { m.layers.resize(10001); }), HasSubstr("10001 layers"));
  EXPECT_THAT(problems_of([](ModelDesc& m) {
                m.layers[0].dim_k = 0;
                m.layers[1].n_kv_heads = 65537;
              }),
              AllOf(HasSubstr("layer 0: dim_k is 0, allowed: 1..65536"), HasSubstr("layer 1: n_kv_heads is 65537")));
  EXPECT_THAT(problems_of([](ModelDesc& m) { m.layers[1].n_q_heads = 5; }), HasSubstr("a multiple of n_kv_heads = 2"));
  EXPECT_THAT(problems_of([](ModelDesc& m) { m.layers[1].window = -1; }), HasSubstr("layer 1: window is -1"));
  EXPECT_THAT(problems_of([](ModelDesc& m) { m.layers[1].chunk = -1; }), HasSubstr("layer 1: chunk is -1"));
  EXPECT_THAT(problems_of([](ModelDesc& m) { m.layers[0].shares_with = 0; }), HasSubstr("layer 0: shares_with is 0"));
  EXPECT_THAT(problems_of([](ModelDesc& m) { m.layers[1] = {.kind = Kind::none}, m.layers[0].dim_v = 0; }),
              HasSubstr("layer 0: dim_v is 0"));
  EXPECT_THAT(problems_of([](ModelDesc& m) { m.layers[1].shares_with = 0, m.layers[1].window = 4; }),
              HasSubstr("same dimensions"));
  EXPECT_THAT(problems_of([](ModelDesc& m) { m.layers[0].kind = Kind::recurrent, m.layers[1].shares_with = 0; }),
              HasSubstr("keys and values of its own"));
  EXPECT_THAT(problems_of([](ModelDesc& m) { m.layers[0].value_is_key_prefix = true; }),
              HasSubstr("1 where value_is_key_prefix"));
  EXPECT_THAT(problems_of([](ModelDesc& m) {
                m.layers[0].value_is_key_prefix = true, m.layers[0].n_kv_heads = 1, m.layers[0].dim_v = 65;
              }),
              HasSubstr("dim_v is 65, allowed: 1..dim_k = 64"));
  const auto rope = [](int dim, std::vector<float> frequencies) {
    return problems_of([&](ModelDesc& m) { m.layers[0].rope = RopeSpec{dim, false, frequencies}; });
  };
  EXPECT_EQ(rope(4, {1, 2}), "fine");
  EXPECT_THAT(rope(3, {1}), HasSubstr("rope.rotary_dim is 3"));
  EXPECT_THAT(rope(66, std::vector<float>(33)), HasSubstr("2..dim_k = 64"));
  EXPECT_THAT(rope(4, {1}), HasSubstr("rotary_dim / 2 = 2"));
  EXPECT_THAT(rope(4, {1, INFINITY}), HasSubstr("finite"));
}

}  // namespace
}  // namespace veloxquant
