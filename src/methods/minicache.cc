// MiniCache (arXiv:2405.14366): in the deeper half of a model neighbouring layers have alike rows; one shared direction
// and a length each stand for them, except where they differ too much.
//
// bytes per merged row and group: one direction and a length a layer; retained rows exact
#include "veloxquant/registry.h"

namespace veloxquant {
namespace {

const std::vector<OptionSpec> kOptions = {
    real_option("minicache_start_frac", "start", 0.5, 0, 1, "share of layers, from the first on, that are left alone"),
    integer_option("minicache_group_size", "group", 2, 2, 1 << 16, "layers of a group"),
    real_option("minicache_retention_threshold", "threshold", 0.9, -1, 1,
                "cosine below which a token is kept by each layer"),
    real_option("minicache_slerp_t", "t", 0.5, 0, 1, "0: the first layer's direction, 1: the other's"),
    integer_option("minicache_max_ctx", "max_ctx", 8192, 64, 1 << 30,
                   "rows that a layer may be ahead of the slowest of its group"),
    integer_option("minicache_block", "block", 32, 1, 1 << 16, "rows merged at once"),
    integer_option("minicache_residual_length", "residual", 0, 0, 1 << 30, "newest rows that stay unmerged"),
    choice_option("minicache_retention", "retention", {"cosine", "gamma"}, "which tokens are kept by each layer"),
    real_option("minicache_gamma", "gamma", 0.05, 0, 1, "share of retention = gamma"),
    integer_option("minicache_dir_bits", "dir_bits", 16, 4, 16, "bits of a coordinate of the shared direction")
        .only({4, 16}),
    choice_option("minicache_storage", "storage", {"merged", "primary_exact"},
                  "what the first layer of a group stores"),
};

void plan(const Options& options, std::span<LayerPlan> layers) {
  const auto start = static_cast<int>(static_cast<double>(layers.size()) * options.real("minicache_start_frac"));
  const int size = options.integer("minicache_group_size");
  for (LayerPlan& layer : layers) {
    if (layer.index < start) {
      layer.group = "left alone";
      continue;
    }
    layer.group_id = (layer.index - start) / size;
    layer.group = ((layer.index - start) % size == 0 ? "primary of group " : "merge layer of group ") +
                  std::to_string(layer.group_id);
  }
}

}  // namespace

extern const MethodDef method_minicache = {
    .name = "minicache",
    .family = "quantization",
    .title = "MiniCache: KV Cache Compression in Depth Dimension for Large Language Models",
    .paper = "2405.14366",
    .summary = "neighbouring deep layers share directions of rows and keep their lengths",
    .options = kOptions,
    .capabilities = {},
    .telemetry = {},
    .check = {},
    .build = {},
    .cache_class = "MiniCacheKVCache",
    .options_struct = "MiniCacheOptions",
    .coordinator = "MiniCacheCoordinator",
    .plan = plan,
};

}  // namespace veloxquant
