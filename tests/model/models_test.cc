// Every kind of attention that libllama has: random models of many architectures, each beside plain llama. The outcome
// is the table of docs/models.md; VQ_WRITE_MODELS=1 writes it anew.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <vector>

#include "model/architectures.h"

namespace veloxquant::llama {
namespace {

using test::Metadata;
using test::Numbers;
using test::Outcome;

constexpr double kBound =
    1e-9;  // of the normalised error of a model that is served; the control's is 100 times as large

enum class Expected : uint8_t { served, refused };

struct Architecture {
  std::string name;
  Metadata changes = {};
  Expected expected = Expected::served;
  double bound = kBound;
  int prompt = 100;
};

Metadata operator+(Metadata a, const Metadata& b) {
  for (const auto& [key, value] : b) a[key] = value;
  return a;
}

Metadata recurrent_latent() {
  return test::latent() + Metadata{{"attention.head_count", Numbers{4, 0}}, {"attention.head_count_kv", Numbers{1, 0}}};
}

/// Keys of 24 channels, values of 16, a KV head per head.
Metadata unequal_sides() {
  return {{"attention.head_count_kv", 4U},
          {"attention.key_length", 24U},
          {"attention.value_length", 16U},
          {"rope.dimension_count", 8U}};
}

Metadata window_first() { return {{"attention.sliding_window_pattern", Numbers{1, 0}}}; }

Metadata hyper_connections() {
  return {{"hyper_connection.count", 4U},
          {"hyper_connection.low_rank", 8U},
          {"hyper_connection.sinkhorn_iterations", 2U},
          {"hyper_connection.epsilon", 1e-6F},
          {"hyper_connection.magnitude", 2.0F}};
}

std::vector<Architecture> architectures() {
  constexpr Expected kRefused = Expected::refused;
  return {
      // Nothing but grouped heads.
      {"baichuan"},
      {"arcee"},
      {"apertus"},
      {"arctic"},
      {"bailingmoe"},
      {"bailingmoe2"},
      {"bitnet"},
      {"chatglm"},
      {"codeshell"},
      {"cogvlm"},
      {"command-r"},
      {"dbrx"},
      {"deci"},
      {"deepseek"},
      {"ernie4_5"},
      {"ernie4_5-moe"},
      {"exaone"},
      {"exaone4"},
      {"falcon"},
      {"gemma"},
      {"glm4"},
      {"glm4moe"},
      {"gpt2"},
      {"gptneox"},
      {"granite"},
      {"granitemoe"},
      {"grovemoe"},
      {"hunyuan-dense"},
      {"hunyuan-moe"},
      {"hunyuan_vl"},
      {"hy_v3"},
      {"internlm2"},
      {"jais2"},
      {"llama"},
      {"maincoder"},
      {"minicpm"},
      {"minimax-m2"},
      {"mistral3"},
      {"nanbeige"},
      {"nemotron"},
      {"olmo"},
      {"openelm"},
      {"orion"},
      {"paddleocr"},
      {"pangu-embedded"},
      {"phi2"},
      {"phi3"},
      {"phimoe"},
      {"plamo"},
      {"qwen"},
      {"qwen2"},
      {"qwen2moe"},
      {"qwen2vl"},
      {"qwen3"},
      {"qwen3moe"},
      {"qwen3vl"},
      {"qwen3vlmoe"},
      {"seed_oss"},
      {"smollm3"},
      {"stablelm"},
      {"starcoder"},
      {"starcoder2"},
      {"talkie"},
      {"xverse"},
      {"olmoe", {{"attention.head_count_kv", 4U}}},
      {"dots1", {{"attention.head_count_kv", 4U}}},
      {"deepseek2-ocr", {{"attention.head_count_kv", 4U}}},
      {"minicpm3", unequal_sides()},
      {"hrm_text", {{"block_count", 6U}, {"hrm.layers_per_stack", 1U}, {"hrm.h_cycles", 2U}, {"hrm.l_cycles", 2U}}},
      {"qwen3tts", {{"vocab_size", 3072U}}},

      // ALiBi, windows, sinks, softcap.
      {"bloom"},
      {"jais"},
      {"mpt"},
      {"refact"},
      {"afmoe"},
      {"cohere2"},
      {"cohere2moe"},
      {"exaone-moe"},
      {"gemma2"},
      {"gemma3"},
      {"gpt-oss"},
      {"laguna"},
      {"mellum"},
      {"muse-glimmer"},
      {"olmo2"},
      {"plamo3"},
      {"granite_swa", window_first()},
      {"maple", window_first() + Metadata{{"swiglu_clamp_exp", 7.0F}}},
      {"mimo2", window_first()},
      {"spark2_5", window_first()},
      {"step35", window_first()},
      // Sizes that llama has built in. That of the attention temperature of llama4 is crossed, too.
      {"smallthinker", {{"context_length", 8192U}}, Expected::served, kBound, 4096 + 100},
      {"llama4",
       {{"block_count", 4U},
        {"attention.sliding_window_pattern", 4U},
        {"context_length", 16384U},
        {"embedding_length", 32U},
        {"attention.head_count", 1U},
        {"attention.head_count_kv", 1U}},
       Expected::served,
       kBound,
       8192 + 100},
      // Without flash attention.
      {"grok", {{"embedding_scale", 1.0F}, {"attention.output_scale", 0.25F}, {"attn_logit_softcapping", 1.0F}}},

      // Caches read by later layers. gemma3n picks activations in its feed-forward layers, which makes much of little.
      {"gemma3n", {{"block_count", 22U}}, Expected::served, 1e-5},
      {"gemma4", test::shared_caches()},

      // Values inside keys.
      {"deepseek2", test::latent()},
      {"mistral4", test::latent()},

      // Recurrent layers.
      {"falcon-h1"},
      {"granitehybrid", test::one_recurrent()},
      {"jamba", test::one_recurrent()},
      {"lfm2", test::one_recurrent()},
      {"lfm2moe", test::one_recurrent()},
      {"minimax-01", {{"residual_scale", 1.0F}}},
      {"nemotron_h", test::attention_recurrence_neither()},
      {"nemotron_h_moe", test::attention_recurrence_neither()},
      {"plamo2", test::one_recurrent() + Metadata{{"ssm.group_count", 0U}}},
      {"qwen3next", {{"ssm.inner_size", 64U}}},
      {"qwen35", {{"ssm.inner_size", 64U}}},
      {"qwen35moe", {{"ssm.inner_size", 64U}}},
      {"bailingmoe3", recurrent_latent() + Metadata{{"kda.gate_lower_bound", -0.5F},
                                                    {"kda.safe_gate", true},
                                                    {"rope.dimension_sections", Numbers{1, 1, 2, 0}}}},
      {"kimi-k3", recurrent_latent() + Metadata{{"kda.gate_lower_bound", -0.5F},
                                                {"attn_res.block_size", 12U},
                                                {"activation.situ_beta", 4.0F},
                                                {"activation.situ_linear_beta", 25.0F}}},
      {"kimi-linear", recurrent_latent()},

      // Refused.
      {"deepseek32", test::latent(), kRefused},
      {"glm-dsa", test::latent(), kRefused},
      {"hy_v4",
       test::latent() + hyper_connections() +
           Metadata{{"swiglu_clamp_exp", 10.0F},
                    {"expert_weights_scale", 1.0F},
                    {"expert_weights_norm", true},
                    {"attention.indexer.types", Numbers{1, 0}}},
       kRefused},
      {"dots3note",
       test::latent() + Metadata{{"attention.kv_lora_rank_swa", 32U},
                                 {"attention.key_length_swa", 40U},
                                 {"attention.value_length_swa", 32U},
                                 {"attention.key_length_mla_swa", 24U},
                                 {"attention.value_length_mla_swa", 16U},
                                 {"attention.indexer.types", Numbers{1, 0}},
                                 {"attention.sliding_window_pattern", Numbers{0, 1}},
                                 {"rope.freq_base_swa", 10000.0F}},
       kRefused},
      {"minimax-m3", {{"attention.indexer.head_count", 2U}, {"rope.dimension_count", 16U}}, kRefused},
      {"qwen4exp",
       hyper_connections() + Metadata{{"attention.compress_ratios", Numbers{4, 4}},
                                      {"attention.indexer.key_length", 16U},
                                      {"ssm.inner_size", 64U}},
       kRefused},
      {"deepseek4",
       hyper_connections() + Metadata{{"block_count", 4U},
                                      {"expert_weights_scale", 1.0F},
                                      {"expert_weights_norm", true},
                                      {"expert_gating_func", 4U},
                                      {"swiglu_clamp_exp", 10.0F},
                                      {"attention.output_group_count", 4U},
                                      {"attention.output_lora_rank", 8U},
                                      {"attention.compress_rope_freq_base", 160000.0F},
                                      {"attention.compress_ratios", Numbers{0, 0, 4, 128}},
                                      {"hash_layer_count", 0U},
                                      {"attention.head_count_kv", 1U},
                                      {"rope.dimension_count", 8U}},
       kRefused},
      {"dream", {}, kRefused},
      {"llada", {}, kRefused},
      {"llada-moe", {}, kRefused},
      {"rnd1", {}, kRefused},
      {"gemma-embedding", {}, kRefused},
      {"llama-embed", {}, kRefused},
      {"modern-bert", {}, kRefused},
      {"mamba", {}, kRefused},
      {"mamba2", {}, kRefused},
      {"rwkv6", {}, kRefused},
      {"t5", {}, kRefused},
  };
}

std::string path() { return VQ_SOURCE_DIR "/docs/models.md"; }

/// "| name | attention | served |": what must not change by itself.
std::string fixed_part(const std::string& row) {
  size_t end = 0;
  for (int bars = 0; bars < 4 && end != std::string::npos; ++bars) end = row.find('|', end + (bars > 0 ? 1 : 0));
  return end == std::string::npos ? row : row.substr(0, end + 1);
}

std::string row_of(const Architecture& architecture, const Outcome& outcome) {
  if (!outcome.refusal.empty()) return fmt::format("| {} | | {} | | |", architecture.name, outcome.refusal);
  return fmt::format("| {} | {} | yes | {:.0e} | {:.0e} |", architecture.name, outcome.kind, outcome.nmse,
                     outcome.control);
}

std::string page(const std::vector<std::string>& rows) {
  std::string text =
      "# Models\n\n"
      "Which architectures are served, and how far the logits of `exact(dtype=f32)` are from those of plain llama "
      "(its\n"
      "f32 cache without flash attention): the sum of squared differences over the sum of squares, on a random f32 "
      "model\n"
      "of few layers, a prompt in chunks, then single tokens. The control is the same figure of a run that\n"
      "must differ: it ignores windows, chunks, ALiBi, softcap and sinks, or, where there is none of them, the "
      "attention.\n"
      "A model that is not served is refused when it is loaded, with the reason that stands here.\n\n"
      "`./dev models` writes this page anew; `./dev test -R Models` fails where a run differs from it in more than "
      "the\n"
      "figures.\n\n"
      "| architecture | attention | served | difference | control |\n|---|---|---|---|---|\n";
  for (const std::string& row : rows) text += row + "\n";
  return text;
}

std::vector<std::string> written_rows() {
  std::vector<std::string> rows;
  std::ifstream file(path());
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("| ") && !line.starts_with("| architecture")) rows.push_back(fixed_part(line));
  }
  return rows;
}

TEST(Models, every_architecture_is_served_or_refused_as_the_page_says) {
  std::vector<std::string> rows, fixed;
  for (const Architecture& architecture : architectures()) {
    SCOPED_TRACE(architecture.name);
    Outcome outcome =
        test::run_beside_plain(test::random_model(architecture.name, architecture.changes), architecture.prompt, 32);
    EXPECT_EQ(outcome.refusal.empty(), architecture.expected == Expected::served) << outcome.refusal;
    if (outcome.refusal.empty()) {
      EXPECT_LE(outcome.nmse, architecture.bound);
      EXPECT_GE(outcome.control, 100 * architecture.bound);
    }
    rows.push_back(row_of(architecture, outcome));
    fixed.push_back(fixed_part(rows.back()));
  }
  if (std::getenv("VQ_WRITE_MODELS")) std::ofstream(path()) << page(rows);
  EXPECT_EQ(fixed, written_rows()) << "`./dev models` writes docs/models.md anew";
}

}  // namespace
}  // namespace veloxquant::llama
