// What the specifications say about the options of methods that are declared: defaults, ranges, rules between options
// and with the shape, capabilities, and what follows from the place of a layer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "veloxquant/errors.h"
#include "veloxquant/layer_budgets.h"
#include "veloxquant/registry.h"

namespace veloxquant {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr LayerShape kShape = {.kv_heads = 2, .q_heads = 4, .dim_k = 64, .dim_v = 64};

std::vector<std::string> set_problems(std::string_view method, const std::string& assignment) {
  try {
    (void)parse_method(method, std::span(&assignment, 1));
  } catch (const QuantizerConfigError& error) {
    return error.problems();
  }
  return {};
}

std::vector<std::string> shape_problems(std::string_view text, const LayerShape& shape = kShape) {
  return method_problems(parse_method(text), shape);
}

/// A row of a Config table, or an option that the text around the table names.
struct ConfigRow {
  const char *method, *option, *def;
  std::vector<std::string> refused, taken;
};

const std::vector<ConfigRow> kConfigRows = {
    {"a2ats", "a2ats_codebook_bits", "8", {"0", "17"}, {"1", "16"}},
    {"a2ats", "a2ats_sub_dim", "8", {"0", "33"}, {"1", "32"}},
    {"a2ats", "a2ats_window", "128", {"x"}, {"-5", "0", "100000"}},
    {"a2ats", "a2ats_b", "2048", {"-1"}, {"0", "100000"}},
    {"a2ats", "a2ats_use_query_aware", "true", {"1"}, {"false"}},
    {"a2ats", "a2ats_beta", "0.5", {"-0.01", "1.01", "nan"}, {"0", "1"}},
    {"a2ats", "a2ats_retrieval_fraction", "0.2", {"-0.01", "1.01"}, {"0", "1"}},
    {"a2ats", "a2ats_rope_base", "10000", {"0", "-1", "inf"}, {"0.001", "1000000"}},
    {"a2ats", "a2ats_rope_scaling", "none", {"x"}, {"none"}},
    {"a2ats", "a2ats_query_h", "none", {"x"}, {"none"}},
    {"a2ats", "a2ats_codebook", "none", {"x"}, {"none"}},
    {"a2ats", "value_codebook", "none", {"x"}, {"none"}},
    {"a2ats", "a2ats_assignment", "auto", {"x"}, {"plain", "blend"}},
    {"a2ats", "a2ats_mode", "compress", {"x"}, {"retrieve"}},
    {"a2ats", "a2ats_fetch_frame", "virtual", {"x"}, {"pre_rope"}},
    {"adakv", "adakv_target_avg_bits", "2.5", {"0.99", "8.01"}, {"1", "8"}},
    {"adakv", "adakv_lo_bit", "2", {"0", "9"}, {"1"}},
    {"adakv", "adakv_mid_bit", "3", {"0", "9"}, {"2"}},
    {"adakv", "adakv_hi_bit", "4", {"0", "9"}, {"8"}},
    {"adakv", "adakv_group_size", "32", {"0"}, {"1"}},
    {"adakv", "adakv_update_interval", "1", {"0"}, {"2"}},
    {"adakv", "adakv_importance", "norm_variance", {"x"}, {"attention_entropy"}},
    {"adakv", "adakv_obs_window", "32", {"0"}, {"1"}},
    {"adakv", "quantize_values", "false", {"x"}, {"true"}},
    {"age_tiered", "age_recent_boundary", "128", {"0"}, {"1"}},
    {"age_tiered", "age_mid_boundary", "1024", {"0"}, {"128"}},
    {"age_tiered", "age_bits_recent", "8", {"0", "17"}, {"16"}},
    {"age_tiered", "age_bits_mid", "4", {"0", "17"}, {"8"}},
    {"age_tiered", "age_bits_old", "2", {"0", "17"}, {"1"}},
    {"age_tiered", "age_group_size", "32", {"0"}, {"1"}},
    {"age_tiered", "value_axis", "token", {"x"}, {"channel"}},
    {"amc", "amc_k_high", "0.2", {"-0.1", "1.1"}, {"0"}},
    {"amc", "amc_k_mid", "0.3", {"-0.1", "1.1"}, {"0"}},
    {"amc", "amc_use_query_saliency", "false", {"x"}, {"true"}},
    {"amc", "amc_query_alpha", "0.5", {"-0.1", "1.1"}, {"0", "1"}},
    {"amc", "amc_adaptive_thresholds", "false", {"x"}, {"true"}},
    {"amc", "amc_threshold_window", "64", {"1"}, {"2"}},
    {"amc", "amc_gamma", "0.1", {"-0.1", "inf"}, {"0"}},
    {"amc", "amc_calib_variance", "none", {"0", "-1"}, {"none", "0.5"}},
    {"amc", "amc_group_size", "32", {"0"}, {"1"}},
    {"amc", "pair_channels", "false", {"x"}, {"true"}},
    {"anchorkv", "anchorkv_theta", "0.05", {"0", "1.01"}, {"0.001", "1"}},
    {"anchorkv", "anchorkv_window", "32", {"0"}, {"1"}},
    {"anchorkv", "anchorkv_rho", "0.7", {"-0.1", "1.1"}, {"0", "1"}},
    {"anchorkv", "anchorkv_anchor_frac", "0.0078125", {"0", "1.1"}, {"1"}},
    {"anchorkv", "anchorkv_residual_bits", "2", {"0", "5"}, {"1", "4"}},
    {"anchorkv", "anchorkv_seed", "42", {"x"}, {"-7"}},
    {"anchorkv", "recompress_every", "0", {"-1"}, {"64"}},
    {"cachegen", "cachegen_bits", "4", {"0", "9"}, {"1", "8"}},
    {"cachegen", "cachegen_resolved_bits", "none", {"0", "9"}, {"none", "1", "8"}},
    {"cachegen", "cachegen_group_size", "32", {"0"}, {"1"}},
    {"cachegen", "cachegen_use_delta", "true", {"x"}, {"false"}},
    {"cachegen", "cachegen_per_channel", "true", {"x"}, {"false"}},
    {"cachegen", "cachegen_layer_groups", "3", {"0"}, {"1", "100"}},
    {"cachegen", "resident", "entropy", {"x"}, {"packed"}},
    {"cachegen", "scheme", "codes", {"x"}, {"paper"}},
    {"cam", "cam_budget", "512", {"-1"}, {"5"}},
    {"cam", "cam_n_sink", "4", {"-1"}, {"0"}},
    {"cam", "cam_merge", "sim_weighted", {"x"}, {"mean", "drop"}},
    {"cam", "cam_merge_keys", "false", {"x"}, {"true"}},
    {"cam", "cam_merge_gate", "true", {"x"}, {"false"}},
    {"cam", "cam_window", "16", {"0"}, {"1"}},
    {"cam", "cam_blend", "norm", {"x"}, {"add", "convex"}},
    {"cam", "cam_grace", "16", {"-1"}, {"0"}},
    {"cam", "cam_decay", "0.98", {"0", "1.01"}, {"0.001", "1"}},
    {"cam", "query_source", "auto", {"x"}, {"true", "proxy"}},
    {"chunkkv", "chunkkv_budget", "512", {"-1"}, {"5"}},
    {"chunkkv", "chunkkv_chunk_size", "8", {"0"}, {"1"}},
    {"chunkkv", "chunkkv_n_sink", "4", {"-1"}, {"0"}},
    {"chunkkv", "chunkkv_score", "attn_mass", {"x"}, {"key_norm", "window"}},
    {"chunkkv", "chunkkv_reuse_layers", "1", {"0"}, {"2"}},
    {"chunkkv", "chunkkv_grace", "16", {"-1"}, {"0"}},
    {"chunkkv", "chunkkv_decay", "0.98", {"0", "1.01"}, {"1"}},
    {"chunkkv", "query_source", "auto", {"x"}, {"true", "proxy"}},
    {"curdkv", "curdkv_budget", "512", {"0"}, {"5"}},
    {"curdkv", "curdkv_n_sink", "4", {"-1"}, {"0"}},
    {"curdkv", "curdkv_rank_cap", "16", {"0"}, {"1"}},
    {"curdkv", "curdkv_rope_base", "10000", {"0", "-1"}, {"500000"}},
    {"curdkv", "variant", "leverage", {"x"}, {"attn_value"}},
    {"curdkv", "sketch", "false", {"x"}, {"true"}},
    {"curdkv", "leverage_type", "product", {"x"}, {"key", "value", "average"}},
    {"curdkv", "query_source", "auto", {"x"}, {"true", "proxy"}},
    {"gear", "gear_bits", "2", {"0", "9"}, {"1", "8"}},
    {"gear", "gear_rank", "none", {"-1"}, {"none", "0", "4"}},
    {"gear", "gear_energy_threshold", "0.9", {"0", "1.01"}, {"0.001", "1"}},
    {"gear", "gear_sparse_fraction", "0.01", {"-0.01", "0.26"}, {"0", "0.25"}},
    {"gear", "gear_group_size", "32", {"0"}, {"1"}},
    {"gear", "gear_quantize_values", "true", {"x"}, {"false"}},
    {"gear", "order", "paper", {"x"}, {"reference"}},
    {"keyformer", "keyformer_budget", "512", {"0"}, {"5"}},
    {"keyformer", "keyformer_n_sink", "4", {"-1"}, {"0"}},
    {"keyformer", "keyformer_recent", "0", {"-1"}, {"5"}},
    {"keyformer", "keyformer_tau", "none", {"-0.1"}, {"none", "0"}},
    {"keyformer", "keyformer_tau_init", "1", {"-0.1"}, {"0"}},
    {"keyformer", "keyformer_tau_end", "1", {"-0.1"}, {"0", "2"}},
    {"keyformer", "keyformer_anneal_steps", "0", {"-1"}, {"5"}},
    {"keyformer", "keyformer_rope_base", "10000", {"0"}, {"1"}},
    {"keyformer", "keyformer_seed", "0", {"x"}, {"-9"}},
    {"keyformer", "query_source", "auto", {"x"}, {"true", "proxy"}},
    {"kitty", "kitty_hi_fraction", "0.25", {"-0.1", "1.1"}, {"0", "1"}},
    {"kitty", "kitty_hi_bit", "4", {"0", "9"}, {"2", "8"}},
    {"kitty", "kitty_lo_bit", "2", {"0", "9"}, {"1"}},
    {"kitty", "kitty_group_size", "32", {"0"}, {"1"}},
    {"kitty", "residual_length", "128", {"-1"}, {"0"}},
    {"kitty", "sink_length", "32", {"-1"}, {"0"}},
    {"kitty", "sensitivity", "magnitude", {"x"}, {"variance"}},
    {"kitty", "quantize_values", "true", {"x"}, {"false"}},
    {"kvquant", "kvquant_bits", "3", {"0", "9"}, {"1", "8"}},
    {"kvquant", "kvquant_outlier_fraction", "0.01", {"-0.01", "0.26"}, {"0", "0.25"}},
    {"kvquant", "kvquant_group_size", "32", {"0"}, {"1"}},
    {"kvquant", "kvquant_lloyd_iters", "8", {"-1"}, {"0"}},
    {"kvquant", "kvquant_refit_interval", "0", {"-1"}, {"1"}},
    {"kvquant", "kvquant_n_sink", "1", {"-1"}, {"0"}},
    {"kvquant", "qnorm", "auto", {"x"}, {"on", "off"}},
    {"kvtc", "kvtc_bit_budget", "512", {"-1"}, {"0"}},
    {"kvtc", "kvtc_bit_choices", "0:1:2:3:4:6:8", {"", "9", "-1", "0:9"}, {"0:8", "4", "[0,2]"}},
    {"kvtc", "kvtc_beta", "3.5", {"1", "0"}, {"1.01"}},
    {"kvtc", "kvtc_n_sink", "4", {"-1"}, {"0"}},
    {"kvtc", "kvtc_window", "128", {"-1"}, {"0"}},
    {"kvtc", "kvtc_block", "128", {"0"}, {"32"}},
    {"kvtc", "kvtc_distortion", "beta", {"x"}, {"table", "measured"}},
    {"kvtc", "kvtc_quantizer", "lloyd_max", {"x"}, {"group_minmax", "uniform_deadzone"}},
    {"kvtc", "kvtc_entropy", "true", {"x"}, {"false"}},
    {"kvtc", "fit_min", "none", {"0"}, {"none", "1"}},
    {"kvtc", "fit_rows", "none", {"0"}, {"none", "1"}},
    {"kvzip", "kvzip_budget", "512", {"0"}, {"5"}},
    {"kvzip", "kvzip_n_sink", "4", {"-1"}, {"0"}},
    {"kvzip", "kvzip_probe", "context", {"x"}, {"latest"}},
    {"kvzip", "kvzip_nonuniform", "false", {"x"}, {"true"}},
    {"kvzip", "query_source", "auto", {"x"}, {"true", "proxy"}},
    {"minicache", "minicache_start_frac", "0.5", {"-0.1", "1.1"}, {"0", "1"}},
    {"minicache", "minicache_group_size", "2", {"1"}, {"3"}},
    {"minicache", "minicache_retention_threshold", "0.9", {"-1.01", "1.01"}, {"-1", "1"}},
    {"minicache", "minicache_slerp_t", "0.5", {"-0.1", "1.1"}, {"0", "1"}},
    {"minicache", "minicache_max_ctx", "8192", {"63"}, {"64"}},
    {"minicache", "minicache_block", "32", {"0"}, {"1"}},
    {"minicache", "minicache_residual_length", "0", {"-1"}, {"1"}},
    {"minicache", "minicache_retention", "cosine", {"x"}, {"gamma"}},
    {"minicache", "minicache_gamma", "0.05", {"-0.1", "1.1"}, {"0", "1"}},
    {"minicache", "minicache_dir_bits", "16", {"3", "8", "17"}, {"4"}},
    {"minicache", "minicache_storage", "merged", {"x"}, {"primary_exact"}},
    {"morphkv", "morphkv_budget", "512", {"0"}, {"13"}},
    {"morphkv", "morphkv_n_sink", "4", {"-1"}, {"0"}},
    {"morphkv", "morphkv_window", "8", {"0"}, {"1"}},
    {"morphkv", "query_source", "auto", {"x"}, {"true", "proxy"}},
    {"nestedkv", "nestedkv_budget", "512", {"0"}, {"5"}},
    {"nestedkv", "nestedkv_n_sink", "4", {"-1"}, {"0"}},
    {"nestedkv", "nestedkv_window", "64", {"0"}, {"1"}},
    {"nestedkv", "nestedkv_beta", "3", {"-0.1"}, {"0"}},
    {"nestedkv", "nestedkv_tau", "0.6", {"nan", "inf", "-inf"}, {"-1", "5"}},
    {"nestedkv", "nestedkv_kappa", "10", {"-0.1"}, {"0"}},
    {"nestedkv", "nestedkv_safeguard_alpha", "0.2", {"-0.1", "1.1"}, {"0", "1"}},
    {"nestedkv", "query_source", "auto", {"x"}, {"true", "proxy"}},
    {"nsnquant", "nsn_bits", "2", {"0", "3"}, {"1"}},
    {"nsnquant", "nsn_residual_length", "64", {"1"}, {"2"}},
    {"nsnquant", "nsn_codebook_size", "256", {"1", "65537"}, {"2", "65536"}},
    {"nsnquant", "nsn_subvector_dim", "8", {"0", "17"}, {"1", "16"}},
    {"nsnquant", "nsn_seed", "1234", {"x"}, {"-5"}},
    {"nsnquant", "nsn_max_ctx", "8192", {"0"}, {"1"}},
    {"nsnquant", "nsn_codebook_metric", "cosine", {"x"}, {"euclid"}},
    {"nsnquant", "nsn_gain", "norm", {"x"}, {"lsq"}},
    {"nsnquant", "nsn_meta_bits", "16", {"3", "8", "17"}, {"4"}},
    {"nsnquant", "nsn_codebook", "none", {"x"}, {"none"}},
    {"palu", "palu_rank", "none", {"0"}, {"none", "1"}},
    {"palu", "palu_energy_threshold", "0.9", {"0", "1.01"}, {"1"}},
    {"palu", "palu_n_head_groups", "4", {"0"}, {"1", "100"}},
    {"palu", "palu_hi_bit", "4", {"0", "9"}, {"8"}},
    {"palu", "palu_lo_bit", "2", {"0", "9"}, {"1"}},
    {"palu", "palu_hi_fraction", "0.25", {"-0.1", "1.1"}, {"0", "1"}},
    {"palu", "palu_group_size", "32", {"0", "1025"}, {"1", "1024"}},
    {"palu", "palu_quantize_values", "true", {"x"}, {"false"}},
    {"palu", "palu_layout", "feature_concat", {"x"}, {"token_stack"}},
    {"palu", "palu_hadamard", "false", {"x"}, {"true"}},
    {"palu", "palu_rank_v", "none", {"0"}, {"none", "1"}},
    {"palu", "palu_uniform_rank", "false", {"x"}, {"true"}},
    {"palu", "fit_min", "none", {"0"}, {"none", "1"}},
    {"palu", "fit_rows", "none", {"0"}, {"none", "1"}},
    {"polar", "bit_width_inlier", "2", {"0", "7"}, {"1", "6"}},
    {"polar", "polar_level_bits", "none", {"0", "9", "1:9"}, {"none", "4:2:2:2"}},
    {"polar", "polar_levels", "none", {"0", "8"}, {"1", "7"}},
    {"polar", "value_codec", "int8", {"x"}, {"polar"}},
    {"polar", "rotation", "haar", {"x"}, {"rht"}},
    {"polar", "codebook", "analytic", {"x"}, {"online"}},
    {"pyramidkv", "pyramid_budget", "512", {"0"}, {"5"}},
    {"pyramidkv", "pyramid_n_sink", "4", {"-1"}, {"0"}},
    {"pyramidkv", "pyramid_beta", "2", {"0.99", "inf", "nan"}, {"1", "20"}},
    {"pyramidkv", "pyramid_resolved_budget", "none", {"0"}, {"none", "5"}},
    {"pyramidkv", "pyramid_backend", "reference", {"x"}, {"mlx", "metal", "auto"}},
    {"pyramidkv", "pyramid_schedule", "paper", {"x"}, {"linear"}},
    {"pyramidkv", "pyramid_window", "32", {"0"}, {"1"}},
    {"pyramidkv", "pyramid_kernel", "5", {"0"}, {"1"}},
    {"pyramidkv", "pyramid_pool", "max", {"x"}, {"avg", "none"}},
    {"pyramidkv", "pyramid_select", "window", {"x"}, {"mass"}},
    {"pyramidkv", "pyramid_decode", "bounded", {"x"}, {"append"}},
    {"pyramidkv", "pyramid_grace", "16", {"-1"}, {"0"}},
    {"pyramidkv", "pyramid_decay", "0.98", {"0", "1.01"}, {"1"}},
    {"pyramidkv", "query_source", "auto", {"x"}, {"true", "proxy"}},
    {"qfilters", "qfilters_budget", "512", {"0"}, {"5"}},
    {"qfilters", "qfilters_n_sink", "4", {"-1"}, {"0"}},
    {"qfilters", "qfilters_recent", "0", {"-1"}, {"5"}},
    {"qfilters", "qfilters_calib_tokens", "128", {"1"}, {"2"}},
    {"qfilters", "qfilters_sign", "1", {"0", "2", "-2"}, {"-1"}},
    {"qfilters", "qfilters_min_retention", "0.9", {"0", "1.01"}, {"none", "1"}},
    {"qfilters", "qfilters_on_low_retention", "warn", {"x"}, {"raise", "ignore"}},
    {"qfilters", "query_source", "auto", {"x"}, {"true", "proxy"}},
    {"rocketkv", "rocketkv_compression_ratio", "8", {"1", "inf"}, {"1.01"}},
    {"rocketkv", "rocketkv_page_size", "none", {"0"}, {"none", "1"}},
    {"rocketkv", "rocketkv_head_topk1", "none", {"0"}, {"none", "1"}},
    {"rocketkv", "rocketkv_obs_window", "32", {"0"}, {"1"}},
    {"rocketkv", "rocketkv_n_sink", "4", {"-1"}, {"0"}},
    {"rocketkv", "multi_turn", "false", {"x"}, {"true"}},
    {"rocketkv", "query_source", "auto", {"x"}, {"true", "proxy"}},
    {"skvq", "skvq_bits_key", "2", {"0", "9"}, {"1", "8"}},
    {"skvq", "skvq_bits_value", "2", {"0", "9"}, {"1", "8"}},
    {"skvq", "skvq_group_size", "32", {"0"}, {"1"}},
    {"skvq", "skvq_window", "128", {"1"}, {"2"}},
    {"skvq", "skvq_n_sink", "5", {"-1"}, {"0"}},
    {"skvq", "skvq_reorder", "true", {"x"}, {"false"}},
    {"skvq", "skvq_clip_search", "true", {"x"}, {"false"}},
    {"skvq", "skvq_clip_alpha", "1", {"0", "1.01"}, {"0.5"}},
    {"skvq", "skvq_max_ctx", "none", {"0"}, {"none", "1"}},
    {"skvq", "clip_anchor", "midpoint", {"x"}, {"zero"}},
    {"skvq", "param_format", "fp16", {"x"}, {"fp8_e4m3"}},
    {"skvq", "value_levels", "none", {"2", "4"}, {"none", "3"}},
    {"spectral", "bit_width_inlier", "2", {"0", "9"}, {"1", "8"}},
    {"spectral", "spectral_key_d_eff", "4", {"0"}, {"1"}},
    {"spectral", "spectral_val_d_eff", "50", {"0"}, {"1"}},
    {"spectral", "spectral_apply_qjl", "true", {"x"}, {"false"}},
    {"spectral", "spectral_model_name", "model", {}, {"a_model-1.5"}},
    {"spectral", "sketch", "orthogonal", {"x"}, {"gaussian"}},
    {"spectral", "spectral_bits", "none", {"9", "-1"}, {"none", "2:1:0"}},
    {"spectral", "spectral_value_bits", "none", {"9", "-1"}, {"none"}},
    {"spectral", "key_mse_bits", "none", {"0", "9"}, {"none", "1"}},
    {"squeeze", "squeeze_budget", "512", {"0"}, {"5"}},
    {"squeeze", "squeeze_n_sink", "4", {"-1"}, {"0"}},
    {"squeeze", "squeeze_strength", "1", {"-0.1", "1.1"}, {"0"}},
    {"squeeze", "squeeze_resolved_budget", "none", {"0"}, {"none", "5"}},
    {"squeeze", "squeeze_allocator", "groups", {"x"}, {"proportional"}},
    {"squeeze", "squeeze_importance", "auto", {"x"}, {"residual", "attention", "keys"}},
    {"squeeze", "squeeze_hold", "true", {"x"}, {"false"}},
    {"squeeze", "squeeze_grace", "16", {"-1"}, {"0"}},
    {"squeeze", "squeeze_decay", "0.98", {"0", "1.01"}, {"1"}},
    {"squeeze", "query_source", "auto", {"x"}, {"true", "proxy"}},
    {"svdq", "svdq_rank", "none", {"0"}, {"none", "1"}},
    {"svdq", "svdq_energy_threshold", "0.95", {"0", "1.01"}, {"1"}},
    {"svdq", "svdq_bit_schedule", "8:4:2:1:1:0:0:0", {"", "9", "-1"}, {"8", "4:0"}},
    {"svdq", "svdq_group_size", "32", {"0", "1025"}, {"1", "1024"}},
    {"svdq", "scope", "head", {"x"}, {"layer"}},
    {"svdq", "schedule_over", "full", {"x"}, {"rank"}},
    {"svdq", "quantizer", "group", {"x"}, {"lloyd_max"}},
    {"svdq", "fit_min", "none", {"0"}, {"none", "1"}},
    {"svdq", "fit_rows", "none", {"0"}, {"none", "1"}},
    {"vecinfer", "key_sub_dim", "4", {"0", "17"}, {"1", "16"}},
    {"vecinfer", "value_sub_dim", "8", {"0", "33"}, {"1", "32"}},
    {"vecinfer", "key_codebook_bits", "12", {"0", "17"}, {"1", "16"}},
    {"vecinfer", "value_codebook_bits", "8", {"0", "17"}, {"1", "16"}},
    {"vecinfer", "residual_length", "128", {"-1"}, {"0"}},
    {"vecinfer", "smooth_factors", "none", {"x"}, {"none"}},
    {"vecinfer", "key_codebook", "none", {"x"}, {"none"}},
    {"vecinfer", "value_codebook", "none", {"x"}, {"none"}},
    {"vecinfer", "vecinfer_flush", "32", {"0", "2", "33"}, {"1"}},
    {"vecinfer", "use_metal_kernels", "none", {"x"}, {"none", "false"}},
    {"vecinfer", "fused_sdpa", "false", {"x"}, {"none", "true"}},
    {"vecinfer", "fused_sdpa_max_ctx", "none", {"0"}, {"none", "1"}},
    {"vecinfer", "fused_sdpa_memory_bound", "false", {"x"}, {"true"}},
    {"xkv", "xkv_group_size", "2", {"0"}, {"1"}},
    {"xkv", "xkv_rank", "none", {"0"}, {"none", "1"}},
    {"xkv", "xkv_energy_threshold", "0.95", {"0", "1.01"}, {"1"}},
    {"xkv", "xkv_latent_bits", "4", {"0", "9", "15", "17"}, {"1", "8", "16"}},
    {"xkv", "xkv_group_quant_size", "32", {"0", "1025"}, {"1", "1024"}},
    {"xkv", "xkv_max_ctx", "8192", {"0"}, {"544"}},
    {"xkv", "xkv_layout", "concat", {"x"}, {"shared_basis"}},
    {"xkv", "xkv_rank_v", "none", {"0"}, {"none", "1"}},
    {"xkv", "xkv_compress_values", "true", {"x"}, {"false"}},
    {"xkv", "xkv_compress_keys", "true", {"x"}, {"false"}},
    {"xkv", "xkv_decode_policy", "project", {"x"}, {"exact"}},
    {"xkv", "refit", "false", {"x"}, {"true"}},
    {"xkv", "fit_min", "none", {"0"}, {"none", "1"}},
    {"xkv", "fit_rows", "none", {"0"}, {"none", "1"}},
    {"xquant", "xquant_group_size", "2", {"1"}, {"3"}},
    {"xquant", "xquant_base_bits", "2", {"0", "9"}, {"1", "8"}},
    {"xquant", "xquant_residual_bits", "4", {"-1", "9"}, {"0", "8"}},
    {"xquant", "xquant_group_quant_size", "32", {"0", "1025"}, {"1", "1024"}},
    {"xquant", "xquant_max_ctx", "8192", {"0"}, {"64"}},
    {"xquant", "xquant_eta", "none", {"-0.1"}, {"none", "0"}},
    {"xquant", "xquant_start_layer_k", "0", {"-1"}, {"1"}},
    {"xquant", "xquant_start_layer_v", "0", {"-1"}, {"1"}},
    {"xquant", "xquant_residual_length", "0", {"-1"}, {"128"}},
    {"xquant", "xquant_value_axis", "channel", {"x"}, {"token"}},
    {"xquant", "xquant_one_bit", "eta", {"x"}, {"two_means"}},
    {"xquant", "xquant_merge_weights", "none", {"x"}, {"none"}},
    {"zipcache", "zipcache_hi_bits", "4", {"0", "9"}, {"8"}},
    {"zipcache", "zipcache_lo_bits", "2", {"0", "9"}, {"1"}},
    {"zipcache", "zipcache_hi_fraction", "0.2", {"-0.1", "1.1"}, {"0", "1"}},
    {"zipcache", "zipcache_group_size", "32", {"0"}, {"1"}},
    {"zipcache", "zipcache_quantize_values", "true", {"x"}, {"false"}},
    {"zipcache", "stream_gap", "100", {"0"}, {"1"}},
    {"zipcache", "saliency", "auto", {"x"}, {"norm"}},
    {"zipcache", "value_mixed", "false", {"x"}, {"true"}},
    {"svdq", "fit_payoff", "true", {"x"}, {"false"}},
    {"palu", "fit_payoff", "true", {"x"}, {"false"}},
    {"kvtc", "fit_payoff", "true", {"x"}, {"false"}},
    {"xkv", "fit_payoff", "true", {"x"}, {"false"}},
};

TEST(declared_options, defaults_and_ranges_are_those_of_the_specification) {
  for (const ConfigRow& row : kConfigRows) {
    SCOPED_TRACE(std::string(row.method) + "." + row.option);
    const MethodSpec spec = parse_method(row.method);
    const auto option = std::ranges::find(spec.options.specs(), std::string_view(row.option), &OptionSpec::name);
    if (option == spec.options.specs().end()) {
      ADD_FAILURE() << "not declared";
      continue;
    }
    EXPECT_EQ(to_string(option->def), row.def);
    for (const std::string& text : row.refused) {
      EXPECT_THAT(set_problems(row.method, row.option + ("=" + text)),
                  ElementsAre(std::string(row.method) + ": " + row.option + ": got '" + text + "', allowed " +
                              option->range_text()));
    }
    for (const std::string& text : row.taken) {
      EXPECT_THAT(set_problems(row.method, row.option + ("=" + text)), IsEmpty());
    }
  }
}

TEST(declared_options, no_option_of_a_method_that_cannot_be_built_is_without_a_row) {
  std::set<std::pair<std::string_view, std::string_view>> known;
  for (const ConfigRow& row : kConfigRows) known.emplace(row.method, row.option);
  for (const MethodDef* def : method_table()) {
    if (def->build) continue;
    for (const OptionSpec& option : def->options) {
      EXPECT_TRUE(known.contains({def->name, option.name})) << def->name << "." << option.name;
    }
  }
}

/// A rule between options or with kShape, just broken and just kept.
struct BrokenRule {
  const char *text, *problem, *kept;
};

const std::vector<BrokenRule> kRules = {
    {"a2ats(a2ats_sub_dim=7)", "a2ats: a2ats_sub_dim: got 7, allowed divisors of head_dim 64",
     "a2ats(a2ats_sub_dim=16)"},
    {"adakv(adakv_lo_bit=4)", "adakv: adakv_lo_bit: got 4, allowed at most adakv_mid_bit 3", "adakv(adakv_lo_bit=3)"},
    {"adakv(adakv_hi_bit=2)", "adakv: adakv_mid_bit: got 3, allowed at most adakv_hi_bit 2", "adakv(adakv_hi_bit=3)"},
    {"age_tiered(age_mid_boundary=127)",
     "age_tiered: age_recent_boundary: got 128, allowed at most age_mid_boundary 127",
     "age_tiered(age_mid_boundary=128)"},
    {"age_tiered(age_bits_mid=9)", "age_tiered: age_bits_mid: got 9, allowed at most age_bits_recent 8",
     "age_tiered(age_bits_mid=8)"},
    {"age_tiered(age_bits_old=5)", "age_tiered: age_bits_old: got 5, allowed at most age_bits_mid 4",
     "age_tiered(age_bits_old=4)"},
    {"amc(amc_k_high=0.71)", "amc: amc_k_high: got 0.71, allowed shares that together with amc_k_mid are at most 1",
     "amc(amc_k_high=0.7)"},
    {"amc(amc_adaptive_thresholds=true)",
     "amc: amc_adaptive_thresholds: got true, allowed true with amc_calib_variance alone",
     "amc(amc_adaptive_thresholds=true,amc_calib_variance=1)"},
    {"anchorkv(recompress_every=63)",
     "anchorkv: recompress_every: got 63, allowed 0 or at least 64: twice anchorkv_window",
     "anchorkv(recompress_every=64)"},
    {"cachegen(scheme=paper,cachegen_bits=1)",
     "cachegen: scheme: got paper, allowed codes with 1 bit: differences have a sign",
     "cachegen(scheme=paper,cachegen_bits=2)"},
    {"cachegen(scheme=paper,cachegen_resolved_bits=1)",
     "cachegen: scheme: got paper, allowed codes with 1 bit: differences have a sign",
     "cachegen(scheme=paper,cachegen_bits=1,cachegen_resolved_bits=2)"},
    {"cam(cam_budget=4)", "cam: cam_budget: got 4, allowed more than cam_n_sink 4", "cam(cam_budget=5)"},
    {"cam(cam_budget=0)", "cam: cam_budget: got 0, allowed more than cam_n_sink 4", "cam(cam_budget=0,cam_n_sink=0)"},
    {"chunkkv(chunkkv_budget=4)", "chunkkv: chunkkv_budget: got 4, allowed more than chunkkv_n_sink 4",
     "chunkkv(chunkkv_budget=5)"},
    {"chunkkv(chunkkv_budget=27,chunkkv_grace=16)",
     "chunkkv: chunkkv_grace: got 16, allowed at most chunkkv_budget 27 - chunkkv_n_sink 4 - chunkkv_chunk_size 8: a "
     "chunk has to go",
     "chunkkv(chunkkv_budget=28,chunkkv_grace=16)"},
    {"curdkv(curdkv_n_sink=512)", "curdkv: curdkv_budget: got 512, allowed more than curdkv_n_sink 512",
     "curdkv(curdkv_n_sink=511)"},
    {"keyformer(keyformer_recent=508)",
     "keyformer: keyformer_budget: got 512, allowed more than keyformer_n_sink 4 + keyformer_recent 508",
     "keyformer(keyformer_recent=507)"},
    {"kitty(kitty_lo_bit=5)", "kitty: kitty_lo_bit: got 5, allowed at most kitty_hi_bit 4", "kitty(kitty_lo_bit=4)"},
    {"kvtc(kvtc_bit_choices=2:2)", "kvtc: kvtc_bit_choices: got 2:2, allowed distinct widths",
     "kvtc(kvtc_bit_choices=2:3)"},
    {"kvtc(kvtc_bit_choices=4:8,kvtc_bit_budget=255)",
     "kvtc: kvtc_bit_budget: got 255, allowed at least 256: the smallest of kvtc_bit_choices for each channel",
     "kvtc(kvtc_bit_choices=4:8,kvtc_bit_budget=256)"},
    {"kvtc(kvtc_block=48)", "kvtc: kvtc_block: got 48, allowed multiples of 32", "kvtc(kvtc_block=64)"},
    {"kvzip(kvzip_budget=4)", "kvzip: kvzip_budget: got 4, allowed more than kvzip_n_sink 4", "kvzip(kvzip_budget=5)"},
    {"morphkv(morphkv_budget=12)",
     "morphkv: morphkv_budget: got 12, allowed more than morphkv_n_sink 4 + morphkv_window 8",
     "morphkv(morphkv_budget=13)"},
    {"nestedkv(nestedkv_budget=4)", "nestedkv: nestedkv_budget: got 4, allowed more than nestedkv_n_sink 4",
     "nestedkv(nestedkv_budget=5)"},
    {"nsnquant(nsn_codebook_size=255)", "nsnquant: nsn_codebook_size: got 255, allowed powers of two, 2..65536",
     "nsnquant(nsn_codebook_size=512)"},
    {"nsnquant(nsn_subvector_dim=7)", "nsnquant: nsn_subvector_dim: got 7, allowed divisors of head_dim 64",
     "nsnquant(nsn_subvector_dim=16)"},
    {"palu(palu_lo_bit=5)", "palu: palu_lo_bit: got 5, allowed at most palu_hi_bit 4", "palu(palu_lo_bit=4)"},
    {"palu(palu_rank=65)", "palu: palu_rank: got 65, allowed 1..64 with this head_dim", "palu(palu_rank=64)"},
    {"palu(palu_rank_v=65)", "palu: palu_rank_v: got 65, allowed 1..64 with this head_dim", "palu(palu_rank_v=64)"},
    {"polar(polar_levels=7)", "polar: polar_levels: got 7, allowed 1..6: 64 channels halve so often",
     "polar(polar_levels=6)"},
    {"polar(polar_level_bits=4:2:2)", "polar: polar_level_bits: got 4:2:2, allowed 4 numbers, one for each level",
     "polar(polar_level_bits=4:2:2:2)"},
    {"polar(polar_levels=3,polar_level_bits=4:2:2:2)",
     "polar: polar_level_bits: got 4:2:2:2, allowed 3 numbers, one for each level",
     "polar(polar_levels=3,polar_level_bits=4:2:2)"},
    {"pyramidkv(pyramid_budget=4)", "pyramidkv: pyramid_budget: got 4, allowed more than pyramid_n_sink 4",
     "pyramidkv(pyramid_budget=5)"},
    {"pyramidkv(pyramid_resolved_budget=4)",
     "pyramidkv: pyramid_resolved_budget: got 4, allowed more than pyramid_n_sink 4",
     "pyramidkv(pyramid_resolved_budget=5)"},
    {"pyramidkv(pyramid_kernel=4)", "pyramidkv: pyramid_kernel: got 4, allowed odd numbers",
     "pyramidkv(pyramid_kernel=3)"},
    {"qfilters(qfilters_recent=508)",
     "qfilters: qfilters_budget: got 512, allowed more than qfilters_n_sink 4 + qfilters_recent 508",
     "qfilters(qfilters_recent=507)"},
    {"rocketkv(rocketkv_head_topk1=65)", "rocketkv: rocketkv_head_topk1: got 65, allowed 1..64 with this head_dim",
     "rocketkv(rocketkv_head_topk1=64)"},
    {"spectral(spectral_key_d_eff=65)", "spectral: spectral_key_d_eff: got 65, allowed 1..64 with this head_dim",
     "spectral(spectral_key_d_eff=64)"},
    {"spectral(spectral_val_d_eff=65)", "spectral: spectral_val_d_eff: got 65, allowed 1..64 with this head_dim",
     "spectral(spectral_val_d_eff=64)"},
    {"spectral(spectral_model_name=a/b)",
     "spectral: spectral_model_name: got a/b, allowed names without / and \\, not empty",
     "spectral(spectral_model_name=a.b)"},
    {"squeeze(squeeze_budget=4)", "squeeze: squeeze_budget: got 4, allowed more than squeeze_n_sink 4",
     "squeeze(squeeze_budget=5)"},
    {"squeeze(squeeze_resolved_budget=4)",
     "squeeze: squeeze_resolved_budget: got 4, allowed more than squeeze_n_sink 4",
     "squeeze(squeeze_resolved_budget=5)"},
    {"svdq(svdq_rank=65)", "svdq: svdq_rank: got 65, allowed 1..64 with this head_dim", "svdq(svdq_rank=64)"},
    {"svdq(svdq_bit_schedule=0:0)", "svdq: svdq_bit_schedule: got 0:0, allowed widths that are not all 0",
     "svdq(svdq_bit_schedule=1:0)"},
    {"svdq(schedule_over=rank,svdq_rank=31)",
     "svdq: svdq_rank: got 31, allowed at least 32 where 8 groups with a 0 divide it",
     "svdq(schedule_over=rank,svdq_rank=32)"},
    {"vecinfer(key_sub_dim=3)", "vecinfer: key_sub_dim: got 3, allowed divisors of head_dim 64",
     "vecinfer(key_sub_dim=2)"},
    {"vecinfer(value_sub_dim=12)", "vecinfer: value_sub_dim: got 12, allowed divisors of head_dim 64",
     "vecinfer(value_sub_dim=16)"},
    {"vecinfer(fused_sdpa_memory_bound=true)",
     "vecinfer: fused_sdpa_memory_bound: got true, allowed with fused_sdpa alone",
     "vecinfer(fused_sdpa_memory_bound=true,fused_sdpa=true)"},
    {"xkv(xkv_rank=257)", "xkv: xkv_rank: got 257, allowed 1..256: layers x heads x channels of a group",
     "xkv(xkv_rank=256)"},
    {"xkv(xkv_rank_v=257)", "xkv: xkv_rank_v: got 257, allowed 1..256: layers x heads x channels of a group",
     "xkv(xkv_rank_v=256)"},
    {"xkv(xkv_max_ctx=287)", "xkv: xkv_max_ctx: got 287, allowed at least 288: rows of a fit and a group",
     "xkv(xkv_max_ctx=288)"},
    {"xkv(xkv_max_ctx=131,fit_min=100)", "xkv: xkv_max_ctx: got 131, allowed at least 132: rows of a fit and a group",
     "xkv(xkv_max_ctx=132,fit_min=100)"},
    {"xquant(xquant_max_ctx=63)", "xquant: xquant_max_ctx: got 63, allowed at least 64: twice xquant_group_quant_size",
     "xquant(xquant_max_ctx=64)"},
    {"zipcache(zipcache_lo_bits=5)", "zipcache: zipcache_lo_bits: got 5, allowed at most zipcache_hi_bits 4",
     "zipcache(zipcache_lo_bits=4)"},
};

TEST(declared_options, rules_between_options_and_with_the_shape_name_field_value_and_what_is_allowed) {
  for (const BrokenRule& rule : kRules) {
    SCOPED_TRACE(rule.text);
    EXPECT_THAT(shape_problems(rule.text), ElementsAre(rule.problem));
    EXPECT_THAT(shape_problems(rule.kept), IsEmpty()) << rule.kept;
  }
}

TEST(declared_options, each_side_is_checked_against_its_own_channels) {
  const LayerShape shape = {.kv_heads = 2, .q_heads = 4, .dim_k = 64, .dim_v = 36};
  EXPECT_THAT(shape_problems("a2ats(a2ats_sub_dim=8)", shape), ElementsAre(HasSubstr("a2ats_sub_dim: got 8")));
  EXPECT_THAT(shape_problems("a2ats(a2ats_sub_dim=4)", shape), IsEmpty());
  EXPECT_THAT(shape_problems("nsnquant(nsn_subvector_dim=8)", shape),
              ElementsAre(HasSubstr("nsn_subvector_dim: got 8")));
  EXPECT_THAT(shape_problems("nsnquant(nsn_subvector_dim=4)", shape), IsEmpty());
  EXPECT_THAT(shape_problems("vecinfer(key_sub_dim=8)", shape), ElementsAre(HasSubstr("value_sub_dim: got 8")));
  EXPECT_THAT(shape_problems("vecinfer(key_sub_dim=8,value_sub_dim=4)", shape), IsEmpty());
  EXPECT_THAT(shape_problems("palu(palu_rank=37)", shape), ElementsAre(HasSubstr("palu_rank: got 37, allowed 1..36")));
  EXPECT_THAT(shape_problems("palu(palu_rank=37,palu_rank_v=36)", shape), IsEmpty());
  EXPECT_THAT(shape_problems("palu(palu_rank_v=37)", shape), ElementsAre(HasSubstr("palu_rank_v: got 37")));
  EXPECT_THAT(shape_problems("spectral(spectral_val_d_eff=37)", shape), ElementsAre(HasSubstr("allowed 1..36")));
  EXPECT_THAT(shape_problems("svdq(svdq_rank=64)", shape), IsEmpty());
  EXPECT_THAT(shape_problems("xkv(xkv_rank_v=145)", shape),
              ElementsAre(HasSubstr("xkv_rank_v: got 145, allowed 1..144")));
  EXPECT_THAT(shape_problems("kvtc(kvtc_bit_choices=8,kvtc_bit_budget=511)", {.dim_k = 32, .dim_v = 64}),
              ElementsAre(HasSubstr("kvtc_bit_budget: got 511, allowed at least 512")));
  EXPECT_THAT(shape_problems("polar(polar_levels=3)", shape), IsEmpty());
  EXPECT_THAT(shape_problems("polar(polar_levels=3,value_codec=polar)", shape),
              ElementsAre(HasSubstr("polar_levels: got 3, allowed 1..2")));
}

TEST(declared_options, head_sizes_that_a_method_cannot_have_are_named) {
  for (const char* method : {"a2ats(a2ats_sub_dim=1)", "polar"}) {
    EXPECT_THAT(shape_problems(method, {.dim_k = 63, .dim_v = 64}),
                ElementsAre(HasSubstr("head_dim: got 63, allowed even numbers")));
  }
  EXPECT_THAT(shape_problems("polar", {.dim_k = 90, .dim_v = 90}), IsEmpty()) << "one level";
  EXPECT_THAT(shape_problems("spectral", {.dim_k = 32, .dim_v = 32}),
              ElementsAre(HasSubstr("spectral_val_d_eff: got 50, allowed 1..32")));
}

TEST(declared_options, an_empty_model_name_is_refused) {
  const std::string set = "spectral_model_name=";
  EXPECT_THAT(method_problems(parse_method("spectral", std::span(&set, 1)), kShape),
              ElementsAre(HasSubstr("spectral_model_name")));
}

ArrayValue array_of(std::vector<int64_t> shape, float value = 0.5f) {
  size_t count = 1;
  for (int64_t n : shape) count *= static_cast<size_t>(n);
  return {std::move(shape), std::vector<float>(count, value)};
}

std::vector<std::string> array_problems(std::string_view text, std::string_view name, const OptionValue& value) {
  MethodSpec spec = parse_method(text);
  if (const std::optional<std::string> problem = spec.options.set(name, value)) return {*problem};
  return method_problems(spec, kShape);
}

TEST(declared_arrays, shapes_follow_the_options_and_the_layer) {
  struct Case {
    const char *text, *name;
    std::vector<std::vector<int64_t>> taken, refused;
  };
  const std::vector<Case> cases = {
      {"a2ats(a2ats_codebook_bits=4)",
       "a2ats_codebook",
       {{16, 8}, {8, 16, 8}, {2, 16, 8}},
       {{16, 4}, {8, 8}, {7, 16, 8}}},
      {"a2ats(a2ats_codebook_bits=4)", "value_codebook", {{16, 8}}, {{15, 8}, {8, 16, 8}, {128}}},
      {"vecinfer(key_codebook_bits=4)",
       "key_codebook",
       {{16, 4}, {16, 16, 4}, {2, 16, 16, 4}},
       {{16, 8}, {8, 16, 4}, {4, 16, 16, 4}}},
      {"vecinfer(value_codebook_bits=4)",
       "value_codebook",
       {{16, 8}, {8, 16, 8}, {2, 8, 16, 8}},
       {{16, 4}, {16, 16, 8}}},
      {"vecinfer", "smooth_factors", {{64}, {2, 64}, {4, 64}}, {{63}, {3, 64}, {64, 2}}},
      {"nsnquant", "nsn_codebook", {{256, 8}}, {{8, 256}, {255, 8}, {2048}}},
      {"xquant(xquant_group_size=2)", "xquant_merge_weights", {{2}}, {{3}, {1, 2}}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(std::string(c.text) + "." + c.name);
    for (const auto& shape : c.taken) EXPECT_THAT(array_problems(c.text, c.name, array_of(shape)), IsEmpty());
    for (const auto& shape : c.refused) {
      EXPECT_THAT(array_problems(c.text, c.name, array_of(shape)),
                  ElementsAre(AllOf(HasSubstr(c.name), HasSubstr(to_string(OptionValue(array_of(shape)))))));
    }
  }
}

TEST(declared_arrays, numbers_fill_the_shape_and_are_finite) {
  for (ArrayValue array : {ArrayValue{{2, 64}, std::vector<float>(127, 1.0f)}, ArrayValue{{0}, {}},
                           ArrayValue{{64}, {}}, ArrayValue{{-1, -64}, std::vector<float>(64, 1.0f)}}) {
    EXPECT_THAT(array_problems("vecinfer", "smooth_factors", array), ElementsAre(HasSubstr("smooth_factors: got")));
  }
  EXPECT_THAT(array_problems("vecinfer", "smooth_factors", array_of({64}, std::nanf(""))),
              ElementsAre(HasSubstr("finite")));
  EXPECT_THAT(array_problems("vecinfer", "smooth_factors", array_of({64}, 0)),
              ElementsAre(HasSubstr("numbers above 0")));
  EXPECT_THAT(array_problems("xquant", "xquant_merge_weights", array_of({2}, 0.4f)),
              ElementsAre(HasSubstr("sum up to 1")));
}

TEST(declared_arrays, two_runs_of_channels_need_a_book_of_values_beside_a_pair_of_books) {
  const std::string_view two_runs = "a2ats(a2ats_sub_dim=32,a2ats_codebook_bits=4)";
  EXPECT_THAT(array_problems(two_runs, "a2ats_codebook", array_of({2, 16, 32})),
              ElementsAre(HasSubstr("value_codebook")));
  EXPECT_THAT(array_problems(two_runs, "a2ats_codebook", array_of({16, 32})), IsEmpty());
  MethodSpec spec = parse_method(two_runs);
  EXPECT_EQ(spec.options.set("a2ats_codebook", array_of({2, 16, 32})), std::nullopt);
  EXPECT_EQ(spec.options.set("value_codebook", array_of({16, 32})), std::nullopt);
  EXPECT_THAT(method_problems(spec, kShape), IsEmpty());
  spec = parse_method("a2ats(a2ats_codebook_bits=4)");
  EXPECT_EQ(spec.options.set("a2ats_codebook", array_of({2, 16, 8})), std::nullopt);
  EXPECT_EQ(spec.options.set("value_codebook", array_of({16, 8})), std::nullopt);
  EXPECT_THAT(method_problems(spec, kShape), ElementsAre(HasSubstr("value_codebook: got"))) << "values twice";
}

TEST(declared_arrays, a_metric_of_queries_is_symmetric_and_positive) {
  ArrayValue metric = {{8, 8}, std::vector<float>(64)};
  const auto at = [&](int i, int j) -> float& { return metric.data[static_cast<size_t>(8 * i + j)]; };
  const auto problems = [&] { return array_problems("a2ats", "a2ats_query_h", metric); };
  EXPECT_THAT(problems(), ElementsAre(HasSubstr("symmetric positive"))) << "all zero";
  for (int i = 0; i < 8; ++i) at(i, i) = 1;
  EXPECT_THAT(problems(), IsEmpty());
  at(3, 3) = 0;
  EXPECT_THAT(problems(), IsEmpty()) << "singular: queries may lie in a subspace";
  at(3, 3) = -0.5;
  EXPECT_THAT(problems(), ElementsAre(HasSubstr("a2ats_query_h: got array[8,8], allowed symmetric positive")));
  at(3, 3) = 1;
  at(0, 1) = 0.5;
  EXPECT_THAT(problems(), ElementsAre(HasSubstr("symmetric positive"))) << "one side alone";
  at(1, 0) = 0.5;
  EXPECT_THAT(problems(), IsEmpty());
  at(0, 1) = at(1, 0) = 2;
  EXPECT_THAT(problems(), ElementsAre(HasSubstr("symmetric positive"))) << "an eigenvalue of -1";
  EXPECT_THAT(array_problems("a2ats", "a2ats_query_h", array_of({64, 64})), ElementsAre(HasSubstr("[8,8] or [8,8,8]")));
}

TEST(declared_options, a_scaling_of_rope_has_a_known_type_and_its_numbers) {
  const auto problems = [](const MapValue& map) { return array_problems("a2ats", "a2ats_rope_scaling", map); };
  EXPECT_THAT(problems({{"rope_type", "default"}}), IsEmpty());
  EXPECT_THAT(problems({{"type", "default"}}), IsEmpty());
  MapValue llama3 = {{"rope_type", "llama3"},
                     {"factor", 8.0},
                     {"low_freq_factor", 1.0},
                     {"high_freq_factor", 4.0},
                     {"original_max_position_embeddings", 8192.0}};
  EXPECT_THAT(problems(llama3), IsEmpty());
  for (const char* name :
       {"rope_type", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
    MapValue without = llama3;
    without.erase(name);
    EXPECT_THAT(problems(without), ElementsAre(HasSubstr("a2ats_rope_scaling: got {"))) << name;
  }
  llama3["high_freq_factor"] = 1.0;
  EXPECT_THAT(problems(llama3), ElementsAre(HasSubstr("larger high_freq_factor")));
  EXPECT_THAT(problems({{"rope_type", "yarn"}, {"factor", 4.0}}),
              ElementsAre(HasSubstr("rope_type default, or llama3")));
}

TEST(declared_methods, all_44_are_there_with_their_family_and_what_their_store_promises) {
  const std::set<std::string_view> evictors = {"snapkv",    "streaming_llm", "h2o",   "tova",   "pyramidkv",
                                               "squeeze",   "chunkkv",       "cam",   "knorm",  "qfilters",
                                               "keyformer", "morphkv",       "kvzip", "curdkv", "nestedkv"};
  const std::set<std::string_view> never_trimmed = {"rocketkv", "skvq", "amc", "age_tiered", "anchorkv"};
  const std::set<std::string_view> by_call = {"rocketkv", "amc",       "anchorkv", "adakv", "kvquant", "gear",
                                              "zipcache", "kivi_sink", "svdq",     "palu",  "kvtc",    "xkv"};
  EXPECT_EQ(method_table().size(), 44u);
  for (const MethodDef* def : method_table()) {
    SCOPED_TRACE(def->name);
    const bool evicts = evictors.contains(def->name), hybrid = def->name == "rocketkv" || def->name == "a2ats";
    EXPECT_EQ(def->family, def->name == "exact" ? "baseline"
                           : evicts             ? "eviction"
                           : hybrid             ? "hybrid"
                                                : "quantization");
    EXPECT_EQ(def->chooses_rows, evicts || def->name == "rocketkv");
    EXPECT_EQ(def->capabilities.trimmable, !evicts && !never_trimmed.contains(def->name));
    EXPECT_EQ(def->capabilities.chunk_invariant,
              def->name == "streaming_llm" || (!evicts && !by_call.contains(def->name)));
    EXPECT_EQ(def->capabilities.needs_rope, def->name == "a2ats");
  }
}

TEST(pyramid_budgets, the_papers_schedule) {
  const auto ends = [](double beta) {
    const std::vector<int> all = pyramid_budgets(32, 512, 4, beta);
    EXPECT_EQ(std::accumulate(all.begin(), all.end(), 0), 16384);
    return std::vector{all[0], all[1], all[2], all[30], all[31]};
  };
  EXPECT_THAT(ends(2), ElementsAre(752, 737, 721, 287, 272));
  EXPECT_THAT(ends(20), ElementsAre(968, 939, testing::_, 85, 56));
  EXPECT_THAT(pyramid_budgets(32, 512, 4, 1), testing::Each(512));
}

TEST(pyramid_budgets, the_linear_schedule) {
  EXPECT_THAT(pyramid_budgets(12, 512, 4, 2, 32, PyramidSchedule::linear),
              ElementsAre(1019, 927, 835, 742, 650, 558, 466, 374, 282, 189, 97, 5));
  const std::vector<int> steep = pyramid_budgets(12, 512, 4, 3, 32, PyramidSchedule::linear);
  EXPECT_EQ(std::accumulate(steep.begin(), steep.end(), 0), 12 * 512) << "floors do not raise the mean";
}

TEST(pyramid_budgets, totals_are_exact_and_budgets_fall) {
  for (const auto schedule : {PyramidSchedule::paper, PyramidSchedule::linear}) {
    for (const double beta : {1.0, 1.5, 2.0, 3.0, 20.0}) {
      for (int layers = 1; layers <= 80; ++layers) {
        for (const int mean : {16, 64, 512}) {
          const std::vector<int> all = pyramid_budgets(layers, mean, 4, beta, 32, schedule);
          ASSERT_EQ(all.size(), static_cast<size_t>(layers));
          EXPECT_EQ(std::accumulate(all.begin(), all.end(), 0), layers * mean) << layers << " " << mean << " " << beta;
          EXPECT_TRUE(std::ranges::is_sorted(all, std::greater<>())) << layers << " " << mean << " " << beta;
          EXPECT_GE(all.back(), 5);
        }
      }
    }
  }
}

TEST(pyramid_budgets, few_layers_small_means_and_bad_arguments) {
  EXPECT_THAT(pyramid_budgets(0, 512, 4, 2), IsEmpty());
  EXPECT_THAT(pyramid_budgets(1, 512, 4, 2), ElementsAre(512));
  EXPECT_THAT(pyramid_budgets(1, 3, 4, 2), ElementsAre(5));
  EXPECT_THAT(pyramid_budgets(3, 5, 4, 2), ElementsAre(5, 5, 5));
  EXPECT_THAT(pyramid_budgets(3, 2, 4, 2), ElementsAre(5, 5, 5)) << "the floor is above the mean";
  const auto refused = [](int layers, int mean, int sinks, double beta) -> std::string {
    try {
      (void)pyramid_budgets(layers, mean, sinks, beta);
    } catch (const QuantizerConfigError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(refused(4, 512, 4, 0.99), HasSubstr("beta: got 0.99"));
  EXPECT_THAT(refused(4, 512, 4, HUGE_VAL), HasSubstr("beta: got inf"));
  EXPECT_THAT(refused(4, 512, 4, std::nan("")), HasSubstr("beta: got nan"));
  EXPECT_THAT(refused(-1, 0, -1, 2),
              AllOf(HasSubstr("layers: got -1"), HasSubstr("avg_budget: got 0"), HasSubstr("n_sink: got -1")));
}

TEST(integerise, floors_first_then_shares_then_fractions) {
  const auto numbers = [](std::vector<double> wanted, int floor, int64_t total) {
    return integerise(wanted, floor, total);
  };
  EXPECT_THAT(numbers({}, 1, 0), IsEmpty());
  EXPECT_THAT(numbers({9, 9}, 5, 10), ElementsAre(5, 5));
  EXPECT_THAT(numbers({9, 9}, 5, 7), ElementsAre(5, 5)) << "no choice: the total is passed";
  EXPECT_THAT(numbers({10, 10, 1}, 4, 24), ElementsAre(10, 10, 4)) << "the floor is paid by those above it";
  EXPECT_THAT(numbers({1, 1, 1}, 0, 4), ElementsAre(2, 1, 1)) << "equal fractions: the first";
  EXPECT_THAT(numbers({2.4, 2.6, 1}, 0, 6), ElementsAre(2, 3, 1));
  EXPECT_THAT(numbers({0, 0}, 0, 5), ElementsAre(3, 2)) << "nobody wants any";
}

std::vector<LayerPlan> planned(std::string_view text, int layers) {
  const MethodSpec spec = parse_method(text);
  std::vector<LayerPlan> plans(static_cast<size_t>(layers));
  for (int i = 0; i < layers; ++i) plans[static_cast<size_t>(i)].layer = plans[static_cast<size_t>(i)].index = i;
  spec.def->plan(spec.options, plans);
  return plans;
}

std::vector<std::string> groups(std::string_view text, int layers) {
  std::vector<std::string> texts;
  for (const LayerPlan& plan : planned(text, layers)) texts.push_back(plan.group);
  return texts;
}

std::vector<int64_t> resolved(std::string_view text, int layers, std::string_view name) {
  std::vector<int64_t> values;
  for (const LayerPlan& plan : planned(text, layers)) {
    if (plan.resolved.size() == 1 && plan.resolved[0].first == name) {
      values.push_back(std::get<int64_t>(plan.resolved[0].second));
    }
  }
  return values;
}

TEST(plans, pyramidkv_resolves_a_budget_for_each_layer) {
  const std::vector<int64_t> paper = resolved("pyramidkv", 32, "pyramid_resolved_budget");
  ASSERT_EQ(paper.size(), 32u);
  EXPECT_EQ(paper.front(), 752);
  EXPECT_EQ(paper.back(), 272);
  EXPECT_THAT(resolved("pyramidkv(pyramid_schedule=linear)", 12, "pyramid_resolved_budget"),
              ElementsAre(1019, 927, 835, 742, 650, 558, 466, 374, 282, 189, 97, 5));
  EXPECT_EQ(resolved("pyramidkv(pyramid_window=64)", 32, "pyramid_resolved_budget").front(), 64 + 2 * 448 - 224);
}

TEST(plans, cachegen_gives_early_layers_more_bits) {
  const auto bits = [](std::string_view text, int layers) { return resolved(text, layers, "cachegen_resolved_bits"); };
  std::vector<int64_t> expected(11, 4);
  expected.insert(expected.end(), 10, 3);
  expected.insert(expected.end(), 11, 2);
  EXPECT_EQ(bits("cachegen", 32), expected);
  EXPECT_THAT(bits("cachegen(cachegen_layer_groups=4)", 10), ElementsAre(4, 4, 3, 3, 3, 2, 2, 2, 2, 2))
      << "2.5 and 7.5 to even";
  EXPECT_THAT(bits("cachegen(cachegen_layer_groups=100,cachegen_bits=8)", 3), ElementsAre(8, 7, 6));
  EXPECT_THAT(bits("cachegen(cachegen_bits=3)", 3), ElementsAre(3, 2, 2));
  EXPECT_THAT(bits("cachegen(cachegen_bits=2)", 3), ElementsAre(2, 2, 2));
  EXPECT_THAT(bits("cachegen(cachegen_bits=1)", 3), ElementsAre(1, 1, 1)) << "never above the base";
  EXPECT_THAT(bits("cachegen", 0), IsEmpty());
}

TEST(plans, groups_of_layers_count_attention_layers) {
  EXPECT_THAT(groups("xquant", 3), ElementsAre("anchor of group 0", "reuses codes of group 0", "anchor of group 1"));
  EXPECT_THAT(groups("xquant(xquant_start_layer_k=3,xquant_start_layer_v=5)", 6),
              ElementsAre("anchor of group 0", "below start", "anchor of group 1", "reuses codes of keys of group 1",
                          "anchor of group 2", "reuses codes of group 2"));
  EXPECT_THAT(groups("xkv(xkv_group_size=2)", 3),
              ElementsAre("member 0 of group 0", "member 1 of group 0", "member 0 of group 1"));
  EXPECT_THAT(groups("minicache", 5), ElementsAre("left alone", "left alone", "primary of group 0",
                                                  "merge layer of group 0", "primary of group 1"));
  EXPECT_EQ(groups("minicache", 7)[2], "left alone");
  EXPECT_EQ(groups("minicache", 7)[3], "primary of group 0") << "half of seven is three";
  EXPECT_THAT(groups("minicache(minicache_start_frac=1)", 2), testing::Each("left alone"));
  EXPECT_THAT(groups("minicache(minicache_start_frac=0)", 2),
              ElementsAre("primary of group 0", "merge layer of group 0"));
  EXPECT_THAT(groups("chunkkv(chunkkv_reuse_layers=2)", 3),
              ElementsAre("leader of block 0", "follower in block 0", "leader of block 1"));
  EXPECT_THAT(groups("chunkkv", 2), testing::Each(""));
  EXPECT_THAT(groups("kvzip", 2), testing::Each(""));
}

TEST(plans, only_layers_that_store_rows_together_have_a_group) {
  const auto ids = [](std::string_view text) {
    std::vector<int> all;
    for (const LayerPlan& plan : planned(text, 4)) all.push_back(plan.group_id);
    return all;
  };
  EXPECT_THAT(ids("xquant"), ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(ids("xquant(xquant_start_layer_k=2,xquant_start_layer_v=2)"), ElementsAre(0, -1, 1, 1));
  EXPECT_THAT(ids("xkv"), ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(ids("minicache"), ElementsAre(-1, -1, 0, 0));
  EXPECT_THAT(ids("chunkkv(chunkkv_reuse_layers=2)"), testing::Each(-1));
}

TEST(compositions, rocketkv_chooses_rows_too) {
  EXPECT_THROW((void)parse_method("snapkv+rocketkv"), QuantizerConfigError);
  EXPECT_EQ(parse_method("snapkv+zipcache").coding->def->name, "zipcache");
}

}  // namespace
}  // namespace veloxquant
