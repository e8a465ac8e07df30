// Written by `./dev schema` from the options that the methods declare.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "veloxquant/options.h"

namespace veloxquant {

/// Options of a2ats.
struct A2ATSOptions {
  /// bits of a code: the codebook has 2^bits entries [1..16]
  int64_t a2ats_codebook_bits = 8;
  /// channels that share a code [1..32]
  int64_t a2ats_sub_dim = 8;
  /// newest rows that stay exact; 0 or less: none [-1073741824..1073741824]
  int64_t a2ats_window = 128;
  /// distance at which all far keys stand [0..1073741824]
  int64_t a2ats_b = 2048;
  /// codes minimise the error of logits, where a2ats_query_h is given [true | false]
  bool a2ats_use_query_aware = true;
  /// balance of a2ats_assignment = blend [0..1]
  double a2ats_beta = 0.5;
  /// share of far rows that a query reads exactly [0..1]
  double a2ats_retrieval_fraction = 0.2;
  /// base of the model's rotary embedding [above 0, up to 1000000000000]
  double a2ats_rope_base = 10000.0;
  /// scaling of the rotary embedding: {"rope_type": "default" | "llama3", ...} [a JSON object of numbers and texts | none]
  std::optional<MapValue> a2ats_rope_scaling = std::nullopt;
  /// second moments of queries: [sub_dim][sub_dim], or one for each run of channels [an array of finite numbers that fill its shape, in JSON | none]
  std::optional<ArrayValue> a2ats_query_h = std::nullopt;
  /// [2^bits][sub_dim], one for each run of channels, or keys and values [an array of finite numbers that fill its shape, in JSON | none]
  std::optional<ArrayValue> a2ats_codebook = std::nullopt;

  static constexpr std::string_view kName = "A2ATSOptions";
  bool operator==(const A2ATSOptions&) const = default;
  template <class Options, class Visit>
  static void for_each_field(Options& self, Visit&& visit) {
    visit("a2ats_codebook_bits", self.a2ats_codebook_bits);
    visit("a2ats_sub_dim", self.a2ats_sub_dim);
    visit("a2ats_window", self.a2ats_window);
    visit("a2ats_b", self.a2ats_b);
    visit("a2ats_use_query_aware", self.a2ats_use_query_aware);
    visit("a2ats_beta", self.a2ats_beta);
    visit("a2ats_retrieval_fraction", self.a2ats_retrieval_fraction);
    visit("a2ats_rope_base", self.a2ats_rope_base);
    visit("a2ats_rope_scaling", self.a2ats_rope_scaling);
    visit("a2ats_query_h", self.a2ats_query_h);
    visit("a2ats_codebook", self.a2ats_codebook);
  }
};

/// Options of amc.
struct AMCOptions {
  /// share of rows in the highest tier [0..1]
  double amc_k_high = 0.2;
  /// share of rows in the middle tier [0..1]
  double amc_k_mid = 0.3;
  /// saliency from queries too [true | false]
  bool amc_use_query_saliency = false;
  /// balance of keys and queries in the saliency [0..1]
  double amc_query_alpha = 0.5;
  /// thresholds follow the variance of recent saliencies [true | false]
  bool amc_adaptive_thresholds = false;
  /// rows that thresholds are taken from [2..1073741824]
  int64_t amc_threshold_window = 64;
  /// gain of adaptive thresholds [0..1000000]
  double amc_gamma = 0.1;
  /// variance of saliencies at calibration; none: not calibrated [above 0, up to 1e+30 | none]
  std::optional<double> amc_calib_variance = std::nullopt;
  /// channels that share a scale [1..65536]
  int64_t amc_group_size = 32;

  static constexpr std::string_view kName = "AMCOptions";
  bool operator==(const AMCOptions&) const = default;
  template <class Options, class Visit>
  static void for_each_field(Options& self, Visit&& visit) {
    visit("amc_k_high", self.amc_k_high);
    visit("amc_k_mid", self.amc_k_mid);
    visit("amc_use_query_saliency", self.amc_use_query_saliency);
    visit("amc_query_alpha", self.amc_query_alpha);
    visit("amc_adaptive_thresholds", self.amc_adaptive_thresholds);
    visit("amc_threshold_window", self.amc_threshold_window);
    visit("amc_gamma", self.amc_gamma);
    visit("amc_calib_variance", self.amc_calib_variance);
    visit("amc_group_size", self.amc_group_size);
  }
};

/// Options of adakv.
struct AdaKVOptions {
  /// mean bits of a key code over heads [1..8]
  double adakv_target_avg_bits = 2.5;
  /// the narrowest width [1..8]
  int64_t adakv_lo_bit = 2;
  /// the one between [1..8]
  int64_t adakv_mid_bit = 3;
  /// the widest [1..8]
  int64_t adakv_hi_bit = 4;
  /// tokens that share zero and scale of a channel [1..65536]
  int64_t adakv_group_size = 32;
  /// calls between two allocations [1..1073741824]
  int64_t adakv_update_interval = 1;
  /// what makes a head important [norm_variance | attention_entropy]
  std::string adakv_importance = "norm_variance";
  /// rows that attention_entropy looks at [1..1073741824]
  int64_t adakv_obs_window = 32;

  static constexpr std::string_view kName = "AdaKVOptions";
  bool operator==(const AdaKVOptions&) const = default;
  template <class Options, class Visit>
  static void for_each_field(Options& self, Visit&& visit) {
    visit("adakv_target_avg_bits", self.adakv_target_avg_bits);
    visit("adakv_lo_bit", self.adakv_lo_bit);
    visit("adakv_mid_bit", self.adakv_mid_bit);
    visit("adakv_hi_bit", self.adakv_hi_bit);
    visit("adakv_group_size", self.adakv_group_size);
    visit("adakv_update_interval", self.adakv_update_interval);
    visit("adakv_importance", self.adakv_importance);
    visit("adakv_obs_window", self.adakv_obs_window);
  }
};

/// Options of age_tiered.
struct AgeTieredOptions {
  /// age from which a row is no longer recent [1..1073741824]
  int64_t age_recent_boundary = 128;
  /// age from which it is old [1..1073741824]
  int64_t age_mid_boundary = 1024;
  /// bits of recent rows [1..16]
  int64_t age_bits_recent = 8;
  /// bits of those between [1..16]
  int64_t age_bits_mid = 4;
  /// bits of old rows [1..16]
  int64_t age_bits_old = 2;
  /// codes that share zero and scale: tokens for keys, channels for values [1..65536]
  int64_t age_group_size = 32;

  static constexpr std::string_view kName = "AgeTieredOptions";
  bool operator==(const AgeTieredOptions&) const = default;
  template <class Options, class Visit>
  static void for_each_field(Options& self, Visit&& visit) {
    visit("age_recent_boundary", self.age_recent_boundary);
    visit("age_mid_boundary", self.age_mid_boundary);
    visit("age_bits_recent", self.age_bits_recent);
    visit("age_bits_mid", self.age_bits_mid);
    visit("age_bits_old", self.age_bits_old);
    visit("age_group_size", self.age_group_size);
  }
};

/// Options of anchorkv.
struct AnchorKVOptions {
  /// bytes of the compressed part over fp16 bytes [above 0, up to 1]
  double anchorkv_theta = 0.05;
  /// newest rows that are anchors, and queries that choose [1..1073741824]
  int64_t anchorkv_window = 32;
  /// share of anchors chosen by attention, the others at random [0..1]
  double anchorkv_rho = 0.7;
  /// anchors per token [above 0, up to 1]
  double anchorkv_anchor_frac = 0.0078125;
  /// bits of a coordinate of a coded rest [1..4]
  int64_t anchorkv_residual_bits = 2;
  /// of random anchors and signs [any 64-bit integer]
  int64_t anchorkv_seed = 42;

  static constexpr std::string_view kName = "AnchorKVOptions";
  bool operator==(const AnchorKVOptions&) const = default;
  template <class Options, class Visit>
  static void for_each_field(Options& self, Visit&& visit) {
    visit("anchorkv_theta", self.anchorkv_theta);
    visit("anchorkv_window", self.anchorkv_window);
    visit("anchorkv_rho", self.anchorkv_rho);
    visit("anchorkv_anchor_frac", self.anchorkv_anchor_frac);
    visit("anchorkv_residual_bits", self.anchorkv_residual_bits);
    visit("anchorkv_seed", self.anchorkv_seed);
  }
};

/// Options of cam.
struct CaMOptions {
  /// rows kept per kv head, sinks included [0..1073741824]
  int64_t cam_budget = 512;
  /// first positions, never dropped and never merged into [0..1073741824]
  int64_t cam_n_sink = 4;
  /// how a victim is split among its targets; drop: h2o [sim_weighted | mean | drop]
  std::string cam_merge = "sim_weighted";
  /// keys are merged too [true | false]
  bool cam_merge_keys = false;
  /// a draw decides whether a victim is merged [true | false]
  bool cam_merge_gate = true;

  static constexpr std::string_view kName = "CaMOptions";
  bool operator==(const CaMOptions&) const = default;
  template <class Options, class Visit>
  static void for_each_field(Options& self, Visit&& visit) {
    visit("cam_budget", self.cam_budget);
    visit("cam_n_sink", self.cam_n_sink);
    visit("cam_merge", self.cam_merge);
    visit("cam_merge_keys", self.cam_merge_keys);
    visit("cam_merge_gate", self.cam_merge_gate);
  }
};

/// Options of cachegen.
struct CacheGenOptions {
  /// bits of a code in the first group of layers [1..8]
  int64_t cachegen_bits = 4;
  /// tokens that share zero and scale of a channel [1..65536]
  int64_t cachegen_group_size = 32;
  /// differences of neighbouring tokens may be coded [true | false]
  bool cachegen_use_delta = true;
  /// tables per channel [true | false]
  bool cachegen_per_channel = true;
  /// groups of layers; each next one has a bit less, down to 2 [1..65536]
  int64_t cachegen_layer_groups = 3;
  /// bits of this layer, from for_model; none: cachegen_bits [1..8 | none]
  std::optional<int64_t> cachegen_resolved_bits = std::nullopt;

  static constexpr std::string_view kName = "CacheGenOptions";
  bool operator==(const CacheGenOptions&) const = default;
  template <class Options, class Visit>
  static void for_each_field(Options& self, Visit&& visit) {
    visit("cachegen_bits", self.cachegen_bits);
    visit("cachegen_group_size", self.cachegen_group_size);
    visit("cachegen_use_delta", self.cachegen_use_delta);
    visit("cachegen_per_channel", self.cachegen_per_channel);
    visit("cachegen_layer_groups", self.cachegen_layer_groups);
    visit("cachegen_resolved_bits", self.cachegen_resolved_bits);
  }
};

/// Options of chunkkv.
struct ChunkKVOptions {
  /// rows kept per kv head, sinks included [0..1073741824]
  int64_t chunkkv_budget = 512;
  /// rows of a chunk; 1: h2o [1..1073741824]
  int64_t chunkkv_chunk_size = 8;
  /// first positions, never dropped and in no chunk [0..1073741824]
  int64_t chunkkv_n_sink = 4;
  /// scores that are pooled over a chunk [attn_mass | key_norm | window]
  std::string chunkkv_score = "attn_mass";
  /// neighbouring layers that share one choice; needs a whole model [1..65536]
  int64_t chunkkv_reuse_layers = 1;

  static constexpr std::string_view kName = "ChunkKVOptions";
  bool operator==(const ChunkKVOptions&) const = default;
  template <class Options, class Visit>
  static void for_each_field(Options& self, Visit&& visit) {
    visit("chunkkv_budget", self.chunkkv_budget);
    visit("chunkkv_chunk_size", self.chunkkv_chunk_size);
    visit("chunkkv_n_sink", self.chunkkv_n_sink);
    visit("chunkkv_score", self.chunkkv_score);
    visit("chunkkv_reuse_layers", self.chunkkv_reuse_layers);
  }
};

/// Options of curdkv.
struct CurDKVOptions {
  /// rows kept per kv head, sinks included [1..1073741824]
  int64_t curdkv_budget = 512;
  /// first positions, never dropped [0..1073741824]
  int64_t curdkv_n_sink = 4;
  /// rank of the sketch [1..65536]
  int64_t curdkv_rank_cap = 16;
  /// accepted; nothing is rotated again [above 0, up to 1000000000000]
  double curdkv_rope_base = 10000.0;

  static constexpr std::string_view kName = "CurDKVOptions";
  bool operator==(const CurDKVOptions&) const = default;
  template <class Options, class Visit>
  static void for_each_field(Options& self, Visit&& visit) {
    visit("curdkv_budget", self.curdkv_budget);
    visit("curdkv_n_sink", self.curdkv_n_sink);
    visit("curdkv_rank_cap", self.curdkv_rank_cap);
    visit("curdkv_rope_base", self.curdkv_rope_base);
  }
};

/// Options of gear.
struct GEAROptions {
  /// bits of a code [1..8]
  int64_t gear_bits = 2;
  /// rank of the correction; none: by energy [0..65536 | none]
  std::optional<int64_t> gear_rank = std::nullopt;
  /// share of the error's energy that the rank covers [above 0, up to 1]
  double gear_energy_threshold = 0.9;
  /// share of entries that are outliers [0..0.25]
  double gear_sparse_fraction = 0.01;
  /// codes that share zero and scale: tokens for keys, channels for values [1..65536]
  int64_t gear_group_size = 32;
  /// false: values stay exact [true | false]
  bool gear_quantize_values = true;

  static constexpr std::string_view kName = "GEAROptions";
  bool operator==(const GEAROptions&) const = default;
  template <class Options, class Visit>
  static void for_each_field(Options& self, Visit&& visit) {
    visit("gear_bits", self.gear_bits);
    visit("gear_rank", self.gear_rank);
    visit("gear_energy_threshold", self.gear_energy_threshold);
    visit("gear_sparse_fraction", self.gear_sparse_fraction);
    visit("gear_group_size", self.gear_group_size);
    visit("gear_quantize_values", self.gear_quantize_values);
  }
};

/// Options of h2o.
struct H2OOptions {
  /// rows kept per kv head, sinks and grace included [0..1073741824]
  int64_t h2o_budget = 512;
  /// first positions, never dropped [0..1073741824]
  int64_t h2o_n_sink = 4;
  /// accepted and unused: rows keep the positions they came with [above 0, up to 1e+30]
  double h2o_rope_base = 10000.0;
  /// newest rows, never dropped [0..1073741824]
  int64_t h2o_grace = 16;
  /// what scores are multiplied with at each token; 1: plain sums [above 0, up to 1]
  double h2o_decay = 0.98;

  static constexpr std::string_view kName = "H2OOptions";
  bool operator==(const H2OOptions&) const = default;
  template <class Options, class Visit>
  static void for_each_field(Options& self, Visit&& visit) {
    visit("h2o_budget", self.h2o_budget);
    visit("h2o_n_sink", self.h2o_n_sink);
    visit("h2o_rope_base", self.h2o_rope_base);
    visit("h2o_grace", self.h2o_grace);
    visit("h2o_decay", self.h2o_decay);
  }
};

/// Options of kivi, kivi_sink.
struct KIVIOptions {
  /// newest rows that stay exact, rounded up to whole groups, at least one [0..1073741824]
  int64_t residual_length = 128;
  /// codes that share zero and scale: tokens for keys, channels for values [1..65536]
  int64_t kivi_group_size = 32;
  /// rows that stay exact for ever, per sequence; 0: plain kivi [0..1073741824]
  int64_t n_sink_tokens = 5;

  static constexpr std::string_view kName = "KIVIOptions";
  bool operator==(const KIVIOptions&) const = default;
  template <class Options, class Visit>
  static void for_each_field(Options& self, Visit&& visit) {
    visit("residual_length", self.residual_length);
    visit("kivi_group_size", self.kivi_group_size);
    visit("n_sink_tokens", self.n_sink_tokens);
  }
};

/// Options of kvquant.
struct KVQuantOptions {
  /// bits of a code [1..8]
  int64_t kvquant_bits = 3;
  /// share of entries stored apart [0..0.25]
  double kvquant_outlier_fraction = 0.01;
  /// a quarter of the rows that levels are fitted to [1..65536]
  int64_t kvquant_group_size = 32;
  /// sweeps of the fit; 0: the start alone [0..1000]
  int64_t kvquant_lloyd_iters = 8;
  /// tokens after which levels are fitted anew; 0: never [0..1073741824]
  int64_t kvquant_refit_interval = 0;
  /// first rows that stay exact [0..1073741824]
  int64_t kvquant_n_sink = 1;

  static constexpr std::string_view kName = "KVQuantOptions";
  bool operator==(const KVQuantOptions&) const = default;
  template <class Options, class Visit>
  static void for_each_field(Options& self, Visit&& visit) {
    visit("kvquant_bits", self.kvquant_bits);
    visit("kvquant_outlier_fraction", self.kvquant_outlier_fraction);
    visit("kvquant_group_size", self.kvquant_group_size);
    visit("kvquant_lloyd_iters", self.kvquant_lloyd_iters);
    visit("kvquant_refit_interval", self.kvquant_refit_interval);
    visit("kvquant_n_sink", self.kvquant_n_sink);
  }
};

/// Options of kvtc.
struct KVTCOptions {
  /// code bits of a row, per kv head and side [0..1048576]
  int64_t kvtc_bit_budget = 512;
  /// widths that a component may have [one or more of 0..8, as in 0:1:2:3:4:6:8]
  IntegerList kvtc_bit_choices = IntegerList{0, 1, 2, 3, 4, 6, 8};
  /// decay of the error with each bit [above 1, up to 1000000]
  double kvtc_beta = 3.5;

  static constexpr std::string_view kName = "KVTCOptions";
  bool operator==(const KVTCOptions&) const = default;
  template <class Options, class Visit>
  static void for_each_field(Options& self, Visit&& visit) {
    visit("kvtc_bit_budget", self.kvtc_bit_budget);
    visit("kvtc_bit_choices", self.kvtc_bit_choices);
    visit("kvtc_beta", self.kvtc_beta);
  }
};

/// Options of kvzip.
struct KVzipOptions {
  /// rows kept per kv head, sinks included [1..1073741824]
  int64_t kvzip_budget = 512;
  /// first positions, never dropped [0..1073741824]
  int64_t kvzip_n_sink = 4;
  /// scores from the scoring pass, or from the last query as tova [context | latest]
  std::string kvzip_probe = "context";

  static constexpr std::string_view kName = "KVzipOptions";
  bool operator==(const KVzipOptions&) const = default;
  template <class Options, class Visit>
  static void for_each_field(Options& self, Visit&& visit) {
    visit("kvzip_budget", self.kvzip_budget);
    visit("kvzip_n_sink", self.kvzip_n_sink);
    visit("kvzip_probe", self.kvzip_probe);
  }
};

/// Options of keyformer.
struct KeyformerOptions {
  /// rows kept per kv head, sinks included [1..1073741824]
  int64_t keyformer_budget = 512;
  /// first positions, never dropped [0..1073741824]
  int64_t keyformer_n_sink = 4;
  /// newest rows, never dropped [0..1073741824]
  int64_t keyformer_recent = 0;
  /// constant temperature; 0: h2o; none: by the schedule [0..1000000 | none]
  std::optional<double> keyformer_tau = std::nullopt;
  /// temperature during the prompt [0..1000000]
  double keyformer_tau_init = 1.0;
  /// temperature at the end of the ramp [0..1000000]
  double keyformer_tau_end = 1.0;
  /// generated tokens over which the temperature rises [0..1073741824]
  int64_t keyformer_anneal_steps = 0;
  /// accepted; nothing is rotated again [above 0, up to 1000000000000]
  double keyformer_rope_base = 10000.0;
  /// of the noise [any 64-bit integer]
  int64_t keyformer_seed = 0;

  static constexpr std::string_view kName = "KeyformerOptions";
  bool operator==(const KeyformerOptions&) const = default;
  template <class Options, class Visit>
  static void for_each_field(Options& self, Visit&& visit) {
    visit("keyformer_budget", self.keyformer_budget);
    visit("keyformer_n_sink", self.keyformer_n_sink);
    visit("keyformer_recent", self.keyformer_recent);
    visit("keyformer_tau", self.keyformer_tau);
    visit("keyformer_tau_init", self.keyformer_tau_init);
    visit("keyformer_tau_end", self.keyformer_tau_end);
    visit("keyformer_anneal_steps", self.keyformer_anneal_steps);
    visit("keyformer_rope_base", self.keyformer_rope_base);
    visit("keyformer_seed", self.keyformer_seed);
  }
};

/// Options of kitty.
struct KittyOptions {
  /// share of channels with more bits [0..1]
  double kitty_hi_fraction = 0.25;
  /// bits of these channels [1..8]
  int64_t kitty_hi_bit = 4;
  /// bits of the others, and of values [1..8]
  int64_t kitty_lo_bit = 2;
  /// codes that share zero and scale: tokens for keys, channels for values [1..65536]
  int64_t kitty_group_size = 32;

  static constexpr std::string_view kName = "KittyOptions";
  bool operator==(const KittyOptions&) const = default;
  template <class Options, class Visit>
  static void for_each_field(Options& self, Visit&& visit) {
    visit("kitty_hi_fraction", self.kitty_hi_fraction);
    visit("kitty_hi_bit", self.kitty_hi_bit);
    visit("kitty_lo_bit", self.kitty_lo_bit);
    visit("kitty_group_size", self.kitty_group_size);
  }
};

/// Options of knorm.
struct L2NormOptions {
  /// rows kept per kv head, sinks included [1..1073741824]
  int64_t knorm_budget = 512;
  /// first positions, never dropped [0..1073741824]
  int64_t knorm_n_sink = 4;
  /// newest rows, never dropped; 0 as in the paper [0..1073741824]
  int64_t knorm_recent = 0;
  /// which end of the norms survives [low | high]
  std::string knorm_keep = "low";

  static constexpr std::string_view kName = "L2NormOptions";
  bool operator==(const L2NormOptions&) const = default;
  template <class Options, class Visit>
  static void for_each_field(Options& self, Visit&& visit) {
    visit("knorm_budget", self.knorm_budget);
    visit("knorm_n_sink", self.knorm_n_sink);
    visit("knorm_recent", self.knorm_recent);
    visit("knorm_keep", self.knorm_keep);
  }
};

/// Options of minicache.
struct MiniCacheOptions {
  /// share of layers, from the first on, that are left alone [0..1]
  double minicache_start_frac = 0.5;
  /// layers of a group [2..65536]
  int64_t minicache_group_size = 2;
  /// cosine below which a token is kept by each layer [-1..1]
  double minicache_retention_threshold = 0.9;
  /// 0: the first layer's direction, 1: the other's [0..1]
  double minicache_slerp_t = 0.5;
  /// rows that a layer may be ahead of the slowest of its group [64..1073741824]
  int64_t minicache_max_ctx = 8192;

  static constexpr std::string_view kName = "MiniCacheOptions";
  bool operator==(const MiniCacheOptions&) const = default;
  template <class Options, class Visit>
  static void for_each_field(Options& self, Visit&& visit) {
    visit("minicache_start_frac", self.minicache_start_frac);
    visit("minicache_group_size", self.minicache_group_size);
    visit("minicache_retention_threshold", self.minicache_retention_threshold);
    visit("minicache_slerp_t", self.minicache_slerp_t);
    visit("minicache_max_ctx", self.minicache_max_ctx);
  }
};

/// Options of morphkv.
struct MorphKVOptions {
  /// rows kept per kv head, sinks and window included [1..1073741824]
  int64_t morphkv_budget = 512;
  /// first positions, never dropped [0..1073741824]
  int64_t morphkv_n_sink = 4;
  /// newest rows, never dropped, whose queries vote [1..1073741824]
  int64_t morphkv_window = 8;

  static constexpr std::string_view kName = "MorphKVOptions";
  bool operator==(const MorphKVOptions&) const = default;
  template <class Options, class Visit>
  static void for_each_field(Options& self, Visit&& visit) {
    visit("morphkv_budget", self.morphkv_budget);
    visit("morphkv_n_sink", self.morphkv_n_sink);
    visit("morphkv_window", self.morphkv_window);
  }
};

/// Options of nsnquant.
struct NSNQuantOptions {
  /// 2: signs and an index; 1: the index alone [1..2]
  int64_t nsn_bits = 2;
  /// rows of a block, and most rows that wait exact [2..65536]
  int64_t nsn_residual_length = 64;
  /// entries, a power of two [2..65536]
  int64_t nsn_codebook_size = 256;
  /// channels that share an index [1..16]
  int64_t nsn_subvector_dim = 8;
  /// of the samples that the codebook is made from [any 64-bit integer]
  int64_t nsn_seed = 1234;
  /// most tokens a sequence may store [1..1073741824]
  int64_t nsn_max_ctx = 8192;

  static constexpr std::string_view kName = "NSNQuantOptions";
  bool operator==(const NSNQuantOptions&) const = default;
  template <class Options, class Visit>
  static void for_each_field(Options& self, Visit&& visit) {
    visit("nsn_bits", self.nsn_bits);
    visit("nsn_residual_length", self.nsn_residual_length);
    visit("nsn_codebook_size", self.nsn_codebook_size);
    visit("nsn_subvector_dim", self.nsn_subvector_dim);
    visit("nsn_seed", self.nsn_seed);
    visit("nsn_max_ctx", self.nsn_max_ctx);
  }
};

/// Options of nestedkv.
struct NestedKVOptions {
  /// rows kept per kv head, in the mean over heads [1..1073741824]
  int64_t nestedkv_budget = 512;
  /// first positions, never dropped [0..1073741824]
  int64_t nestedkv_n_sink = 4;
  /// newest rows that make the current anchor [1..1073741824]
  int64_t nestedkv_window = 64;
  /// temperature of the blend [0..1000000]
  double nestedkv_beta = 3.0;
  /// threshold of surprise [-1000000..1000000]
  double nestedkv_tau = 0.6;
  /// sharpness of the gate [0..1000000]
  double nestedkv_kappa = 10.0;
  /// share of the uniform budget that each head keeps [0..1]
  double nestedkv_safeguard_alpha = 0.2;

  static constexpr std::string_view kName = "NestedKVOptions";
  bool operator==(const NestedKVOptions&) const = default;
  template <class Options, class Visit>
  static void for_each_field(Options& self, Visit&& visit) {
    visit("nestedkv_budget", self.nestedkv_budget);
    visit("nestedkv_n_sink", self.nestedkv_n_sink);
    visit("nestedkv_window", self.nestedkv_window);
    visit("nestedkv_beta", self.nestedkv_beta);
    visit("nestedkv_tau", self.nestedkv_tau);
    visit("nestedkv_kappa", self.nestedkv_kappa);
    visit("nestedkv_safeguard_alpha", self.nestedkv_safeguard_alpha);
  }
};

/// Options of palu.
struct PALUOptions {
  /// coefficients per head; none: by energy [1..65536 | none]
  std::optional<int64_t> palu_rank = std::nullopt;
  /// share of the sum of singular values that the rank covers [above 0, up to 1]
  double palu_energy_threshold = 0.9;
  /// groups of heads; more than there are heads: one each [1..65536]
  int64_t palu_n_head_groups = 4;
  /// bits of leading coefficients [1..8]
  int64_t palu_hi_bit = 4;
  /// bits of the others [1..8]
  int64_t palu_lo_bit = 2;
  /// share of leading coefficients [0..1]
  double palu_hi_fraction = 0.25;
  /// tokens that share zero and scale [1..1024]
  int64_t palu_group_size = 32;
  /// false: coefficients of values in fp16 [true | false]
  bool palu_quantize_values = true;

  static constexpr std::string_view kName = "PALUOptions";
  bool operator==(const PALUOptions&) const = default;
  template <class Options, class Visit>
  static void for_each_field(Options& self, Visit&& visit) {
    visit("palu_rank", self.palu_rank);
    visit("palu_energy_threshold", self.palu_energy_threshold);
    visit("palu_n_head_groups", self.palu_n_head_groups);
    visit("palu_hi_bit", self.palu_hi_bit);
    visit("palu_lo_bit", self.palu_lo_bit);
    visit("palu_hi_fraction", self.palu_hi_fraction);
    visit("palu_group_size", self.palu_group_size);
    visit("palu_quantize_values", self.palu_quantize_values);
  }
};

/// Options of pyramidkv.
struct PyramidKVOptions {
  /// rows kept per kv head, in the mean over layers [1..1073741824]
  int64_t pyramid_budget = 512;
  /// accepted; all give the same result [reference | mlx | metal | auto]
  std::string pyramid_backend = "reference";
  /// first positions, never dropped [0..1073741824]
  int64_t pyramid_n_sink = 4;
  /// steepness; 1: all layers alike [1..1000000]
  double pyramid_beta = 2.0;
  /// rows of this layer, from for_model; none: pyramid_budget [1..1073741824 | none]
  std::optional<int64_t> pyramid_resolved_budget = std::nullopt;

  static constexpr std::string_view kName = "PyramidKVOptions";
  bool operator==(const PyramidKVOptions&) const = default;
  template <class Options, class Visit>
  static void for_each_field(Options& self, Visit&& visit) {
    visit("pyramid_budget", self.pyramid_budget);
    visit("pyramid_backend", self.pyramid_backend);
    visit("pyramid_n_sink", self.pyramid_n_sink);
    visit("pyramid_beta", self.pyramid_beta);
    visit("pyramid_resolved_budget", self.pyramid_resolved_budget);
  }
};

/// Options of qfilters.
struct QFiltersOptions {
  /// rows kept per kv head, sinks included [1..1073741824]
  int64_t qfilters_budget = 512;
  /// first positions, never dropped [0..1073741824]
  int64_t qfilters_n_sink = 4;
  /// newest rows, never dropped [0..1073741824]
  int64_t qfilters_recent = 0;
  /// rows that a filter is taken from where none is given [2..1073741824]
  int64_t qfilters_calib_tokens = 128;
  /// 1: the largest projections stay; -1: the smallest [-1 | 1]
  int64_t qfilters_sign = 1;
  /// least share of a sequence's rows that should stay; none: not looked at [above 0, up to 1 | none]
  std::optional<double> qfilters_min_retention = 0.9;
  /// what happens below it, once [warn | raise | ignore]
  std::string qfilters_on_low_retention = "warn";

  static constexpr std::string_view kName = "QFiltersOptions";
  bool operator==(const QFiltersOptions&) const = default;
  template <class Options, class Visit>
  static void for_each_field(Options& self, Visit&& visit) {
    visit("qfilters_budget", self.qfilters_budget);
    visit("qfilters_n_sink", self.qfilters_n_sink);
    visit("qfilters_recent", self.qfilters_recent);
    visit("qfilters_calib_tokens", self.qfilters_calib_tokens);
    visit("qfilters_sign", self.qfilters_sign);
    visit("qfilters_min_retention", self.qfilters_min_retention);
    visit("qfilters_on_low_retention", self.qfilters_on_low_retention);
  }
};

/// Options of rocketkv.
struct RocketKVOptions {
  /// rows of the prompt over rows read by a query [above 1, up to 1000000]
  double rocketkv_compression_ratio = 8.0;
  /// rows of a page; none: from the ratio [1..1073741824 | none]
  std::optional<int64_t> rocketkv_page_size = std::nullopt;
  /// channels that estimate attention; none: from the ratio [1..65536 | none]
  std::optional<int64_t> rocketkv_head_topk1 = std::nullopt;
  /// queries that vote; also rows that stay [1..1073741824]
  int64_t rocketkv_obs_window = 32;
  /// first positions, never dropped [0..1073741824]
  int64_t rocketkv_n_sink = 4;

  static constexpr std::string_view kName = "RocketKVOptions";
  bool operator==(const RocketKVOptions&) const = default;
  template <class Options, class Visit>
  static void for_each_field(Options& self, Visit&& visit) {
    visit("rocketkv_compression_ratio", self.rocketkv_compression_ratio);
    visit("rocketkv_page_size", self.rocketkv_page_size);
    visit("rocketkv_head_topk1", self.rocketkv_head_topk1);
    visit("rocketkv_obs_window", self.rocketkv_obs_window);
    visit("rocketkv_n_sink", self.rocketkv_n_sink);
  }
};

/// Options of skvq.
struct SKVQOptions {
  /// bits of a key code [1..8]
  int64_t skvq_bits_key = 2;
  /// bits of a value code [1..8]
  int64_t skvq_bits_value = 2;
  /// channels that share zero and scale [1..65536]
  int64_t skvq_group_size = 32;
  /// newest rows that stay exact; also what channels are sorted by [2..1073741824]
  int64_t skvq_window = 128;
  /// first rows that stay exact [0..1073741824]
  int64_t skvq_n_sink = 5;
  /// channels are sorted [true | false]
  bool skvq_reorder = true;
  /// the clip of each group is searched [true | false]
  bool skvq_clip_search = true;
  /// the clip where it is not searched [above 0, up to 1]
  double skvq_clip_alpha = 1.0;
  /// most tokens a sequence may store; none: no limit [1..1073741824 | none]
  std::optional<int64_t> skvq_max_ctx = std::nullopt;

  static constexpr std::string_view kName = "SKVQOptions";
  bool operator==(const SKVQOptions&) const = default;
  template <class Options, class Visit>
  static void for_each_field(Options& self, Visit&& visit) {
    visit("skvq_bits_key", self.skvq_bits_key);
    visit("skvq_bits_value", self.skvq_bits_value);
    visit("skvq_group_size", self.skvq_group_size);
    visit("skvq_window", self.skvq_window);
    visit("skvq_n_sink", self.skvq_n_sink);
    visit("skvq_reorder", self.skvq_reorder);
    visit("skvq_clip_search", self.skvq_clip_search);
    visit("skvq_clip_alpha", self.skvq_clip_alpha);
    visit("skvq_max_ctx", self.skvq_max_ctx);
  }
};

/// Options of svdq.
struct SVDqOptions {
  /// components; none: by energy [1..65536 | none]
  std::optional<int64_t> svdq_rank = std::nullopt;
  /// share of the sum of singular values that the rank covers [above 0, up to 1]
  double svdq_energy_threshold = 0.95;
  /// bits of each group of components, leading first [one or more of 0..8, as in 8:4:2:1:1:0:0:0]
  IntegerList svdq_bit_schedule = IntegerList{8, 4, 2, 1, 1, 0, 0, 0};
  /// tokens that share zero and scale [1..1024]
  int64_t svdq_group_size = 32;

  static constexpr std::string_view kName = "SVDqOptions";
  bool operator==(const SVDqOptions&) const = default;
  template <class Options, class Visit>
  static void for_each_field(Options& self, Visit&& visit) {
    visit("svdq_rank", self.svdq_rank);
    visit("svdq_energy_threshold", self.svdq_energy_threshold);
    visit("svdq_bit_schedule", self.svdq_bit_schedule);
    visit("svdq_group_size", self.svdq_group_size);
  }
};

/// Options of snapkv.
struct SnapKVOptions {
  /// element type of the rows: that of the input, or fp16 [auto | float16]
  std::string snap_dtype = "auto";
  /// accepted; the result is the same [true | false]
  bool snap_batched_scoring = true;
  /// accepted; all give the same result [auto | mlx | metal | reference]
  std::string snap_backend = "auto";
  /// rows kept per kv head after a prefill, sinks and window included [1..1073741824]
  int64_t snap_budget = 512;
  /// queries that vote, and rows that are kept as the window [1..1073741824]
  int64_t snap_obs_window = 32;
  /// first positions, always kept [0..1073741824]
  int64_t snap_n_sink = 4;

  static constexpr std::string_view kName = "SnapKVOptions";
  bool operator==(const SnapKVOptions&) const = default;
  template <class Options, class Visit>
  static void for_each_field(Options& self, Visit&& visit) {
    visit("snap_dtype", self.snap_dtype);
    visit("snap_batched_scoring", self.snap_batched_scoring);
    visit("snap_backend", self.snap_backend);
    visit("snap_budget", self.snap_budget);
    visit("snap_obs_window", self.snap_obs_window);
    visit("snap_n_sink", self.snap_n_sink);
  }
};

/// Options of spectral.
struct SpectralQuantOptions {
  /// leading coordinates of keys where no calibration says [1..65536]
  int64_t spectral_key_d_eff = 4;
  /// leading coordinates of values [1..65536]
  int64_t spectral_val_d_eff = 50;
  /// a sketch corrects inner products [true | false]
  bool spectral_apply_qjl = true;
  /// key of stored bases; not empty, without / and \ [any text]
  std::string spectral_model_name = "model";

  static constexpr std::string_view kName = "SpectralQuantOptions";
  bool operator==(const SpectralQuantOptions&) const = default;
  template <class Options, class Visit>
  static void for_each_field(Options& self, Visit&& visit) {
    visit("spectral_key_d_eff", self.spectral_key_d_eff);
    visit("spectral_val_d_eff", self.spectral_val_d_eff);
    visit("spectral_apply_qjl", self.spectral_apply_qjl);
    visit("spectral_model_name", self.spectral_model_name);
  }
};

/// Options of squeeze.
struct SqueezeAttentionOptions {
  /// rows kept per kv head, in the mean over layers [1..1073741824]
  int64_t squeeze_budget = 512;
  /// first positions, never dropped [0..1073741824]
  int64_t squeeze_n_sink = 4;
  /// 0: all layers alike; 1: all that the rule moves [0..1]
  double squeeze_strength = 1.0;
  /// rows of this layer, whatever the others report; none: from them [1..1073741824 | none]
  std::optional<int64_t> squeeze_resolved_budget = std::nullopt;

  static constexpr std::string_view kName = "SqueezeAttentionOptions";
  bool operator==(const SqueezeAttentionOptions&) const = default;
  template <class Options, class Visit>
  static void for_each_field(Options& self, Visit&& visit) {
    visit("squeeze_budget", self.squeeze_budget);
    visit("squeeze_n_sink", self.squeeze_n_sink);
    visit("squeeze_strength", self.squeeze_strength);
    visit("squeeze_resolved_budget", self.squeeze_resolved_budget);
  }
};

/// Options of streaming_llm.
struct StreamingLLMOptions {
  /// first positions, kept for ever [0..1073741824]
  int64_t stream_n_sink = 4;
  /// newest rows kept, sinks not counted [1..1073741824]
  int64_t stream_window_size = 512;

  static constexpr std::string_view kName = "StreamingLLMOptions";
  bool operator==(const StreamingLLMOptions&) const = default;
  template <class Options, class Visit>
  static void for_each_field(Options& self, Visit&& visit) {
    visit("stream_n_sink", self.stream_n_sink);
    visit("stream_window_size", self.stream_window_size);
  }
};

/// Options of tova.
struct TOVAOptions {
  /// rows kept, sinks included [0..1073741824]
  int64_t tova_budget = 512;
  /// first positions, never dropped [0..1073741824]
  int64_t tova_n_sink = 4;
  /// accepted; all give the same result [auto | mlx | metal | reference]
  std::string tova_backend = "auto";

  static constexpr std::string_view kName = "TOVAOptions";
  bool operator==(const TOVAOptions&) const = default;
  template <class Options, class Visit>
  static void for_each_field(Options& self, Visit&& visit) {
    visit("tova_budget", self.tova_budget);
    visit("tova_n_sink", self.tova_n_sink);
    visit("tova_backend", self.tova_backend);
  }
};

/// Options of vecinfer.
struct VecInferOptions {
  /// channels of a key that share a code [1..16]
  int64_t key_sub_dim = 4;
  /// channels of a value that share a code [1..32]
  int64_t value_sub_dim = 8;
  /// bits of a key code [1..16]
  int64_t key_codebook_bits = 12;
  /// bits of a value code [1..16]
  int64_t value_codebook_bits = 8;
  /// newest rows that stay exact, rounded up to whole groups, at least one [0..1073741824]
  int64_t residual_length = 128;

  static constexpr std::string_view kName = "VecInferOptions";
  bool operator==(const VecInferOptions&) const = default;
  template <class Options, class Visit>
  static void for_each_field(Options& self, Visit&& visit) {
    visit("key_sub_dim", self.key_sub_dim);
    visit("value_sub_dim", self.value_sub_dim);
    visit("key_codebook_bits", self.key_codebook_bits);
    visit("value_codebook_bits", self.value_codebook_bits);
    visit("residual_length", self.residual_length);
  }
};

/// Options of xkv.
struct XKVOptions {
  /// layers of a group [1..65536]
  int64_t xkv_group_size = 2;
  /// coefficients of a row of the group; none: by energy [1..1073741824 | none]
  std::optional<int64_t> xkv_rank = std::nullopt;
  /// share of the sum of singular values that the rank covers [above 0, up to 1]
  double xkv_energy_threshold = 0.95;
  /// bits of a coefficient; 16: fp16 [1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 | 16]
  int64_t xkv_latent_bits = 4;
  /// tokens that share zero and scale [1..1024]
  int64_t xkv_group_quant_size = 32;
  /// rows that a layer may be ahead of the slowest of its group [1..1073741824]
  int64_t xkv_max_ctx = 8192;

  static constexpr std::string_view kName = "XKVOptions";
  bool operator==(const XKVOptions&) const = default;
  template <class Options, class Visit>
  static void for_each_field(Options& self, Visit&& visit) {
    visit("xkv_group_size", self.xkv_group_size);
    visit("xkv_rank", self.xkv_rank);
    visit("xkv_energy_threshold", self.xkv_energy_threshold);
    visit("xkv_latent_bits", self.xkv_latent_bits);
    visit("xkv_group_quant_size", self.xkv_group_quant_size);
    visit("xkv_max_ctx", self.xkv_max_ctx);
  }
};

/// Options of xquant.
struct XQuantOptions {
  /// layers of a group [2..65536]
  int64_t xquant_group_size = 2;
  /// bits of the shared code [1..8]
  int64_t xquant_base_bits = 2;
  /// bits of another layer's rest; 0: none, as in the paper [0..8]
  int64_t xquant_residual_bits = 4;
  /// codes that share zero and scale: tokens for keys, channels for values [1..1024]
  int64_t xquant_group_quant_size = 32;
  /// rows that a layer may be ahead of the slowest of its group [2..1073741824]
  int64_t xquant_max_ctx = 8192;

  static constexpr std::string_view kName = "XQuantOptions";
  bool operator==(const XQuantOptions&) const = default;
  template <class Options, class Visit>
  static void for_each_field(Options& self, Visit&& visit) {
    visit("xquant_group_size", self.xquant_group_size);
    visit("xquant_base_bits", self.xquant_base_bits);
    visit("xquant_residual_bits", self.xquant_residual_bits);
    visit("xquant_group_quant_size", self.xquant_group_quant_size);
    visit("xquant_max_ctx", self.xquant_max_ctx);
  }
};

/// Options of zipcache.
struct ZipCacheOptions {
  /// bits of salient tokens, and of values [1..8]
  int64_t zipcache_hi_bits = 4;
  /// bits of the others [1..8]
  int64_t zipcache_lo_bits = 2;
  /// share of salient tokens [0..1]
  double zipcache_hi_fraction = 0.2;
  /// tokens of one class that share zero and scale of a channel [1..65536]
  int64_t zipcache_group_size = 32;
  /// false: values stay exact [true | false]
  bool zipcache_quantize_values = true;

  static constexpr std::string_view kName = "ZipCacheOptions";
  bool operator==(const ZipCacheOptions&) const = default;
  template <class Options, class Visit>
  static void for_each_field(Options& self, Visit&& visit) {
    visit("zipcache_hi_bits", self.zipcache_hi_bits);
    visit("zipcache_lo_bits", self.zipcache_lo_bits);
    visit("zipcache_hi_fraction", self.zipcache_hi_fraction);
    visit("zipcache_group_size", self.zipcache_group_size);
    visit("zipcache_quantize_values", self.zipcache_quantize_values);
  }
};

using MethodOptions = std::variant<A2ATSOptions, AMCOptions, AdaKVOptions, AgeTieredOptions, AnchorKVOptions, CaMOptions, CacheGenOptions, ChunkKVOptions, CurDKVOptions, GEAROptions, H2OOptions, KIVIOptions, KVQuantOptions, KVTCOptions, KVzipOptions, KeyformerOptions, KittyOptions, L2NormOptions, MiniCacheOptions, MorphKVOptions, NSNQuantOptions, NestedKVOptions, PALUOptions, PyramidKVOptions, QFiltersOptions, RocketKVOptions, SKVQOptions, SVDqOptions, SnapKVOptions, SpectralQuantOptions, SqueezeAttentionOptions, StreamingLLMOptions, TOVAOptions, VecInferOptions, XKVOptions, XQuantOptions, ZipCacheOptions>;

}  // namespace veloxquant
