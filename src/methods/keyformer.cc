// Keyformer (arXiv:2403.09054): scores are sums of attention weights with Gumbel noise and a temperature that rises
// while text is generated, which keeps the score of a row from depending on what was dropped before.
//
// bytes per kept row and kv head: 2 (dim_k + dim_v) + 8
#include "methods/eviction.h"
#include "methods/rules.h"

namespace veloxquant {
namespace {

const std::vector<OptionSpec> kOptions = {
    integer_option("keyformer_budget", "budget", 512, 1, 1 << 30, "rows kept per kv head, sinks included"),
    integer_option("keyformer_n_sink", "n_sink", 4, 0, 1 << 30, "first positions, never dropped"),
    integer_option("keyformer_recent", "recent", 0, 0, 1 << 30, "newest rows, never dropped"),
    real_option("keyformer_tau", "tau", 1, 0, 1000000.0, "constant temperature; 0: h2o; none: by the schedule")
        .none_by_default(),
    real_option("keyformer_tau_init", "tau_init", 1.0, 0, 1000000.0, "temperature during the prompt"),
    real_option("keyformer_tau_end", "tau_end", 1.0, 0, 1000000.0, "temperature at the end of the ramp"),
    integer_option("keyformer_anneal_steps", "anneal_steps", 0, 0, 1 << 30,
                   "generated tokens over which the temperature rises"),
    real_option("keyformer_rope_base", "rope_base", 10000.0, 0, 1000000000000.0, "accepted; nothing is rotated again")
        .above_min(),
    integer_option("keyformer_seed", "", 0, -0x1p63, 0x1p63, "of the noise"),
    eviction::query_source_option(),
};

std::vector<std::string> check(const Options& options, const LayerShape&) {
  Rules rules(options);
  rules.budget("keyformer_budget", {"keyformer_n_sink", "keyformer_recent"});
  return rules.broken();
}

}  // namespace

extern const MethodDef method_keyformer = {
    .name = "keyformer",
    .family = "eviction",
    .title = "Keyformer: KV Cache Reduction through Key Tokens Selection for Efficient Generative Inference",
    .paper = "2403.09054",
    .summary = "rows by attention with noise that makes up for those that were dropped",
    .options = kOptions,
    .capabilities = eviction::kCapabilities,
    .telemetry = eviction::telemetry("keyformer_kept_bytes"),
    .check = check,
    .build = {},
    .chooses_rows = true,
    .cache_class = "KeyformerKVCache",
    .options_struct = "KeyformerOptions",
};

}  // namespace veloxquant
