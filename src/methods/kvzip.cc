// KVzip (arXiv:2505.23416): a scoring pass lets the model repeat its context; a row's score is the most attention that
// any query of the pass gives it, so that what is kept serves any later question.
//
// bytes per kept row and kv head: 2 (dim_k + dim_v) + 8
#include "methods/eviction.h"
#include "methods/rules.h"

namespace veloxquant {
namespace {

const std::vector<OptionSpec> kOptions = {
    integer_option("kvzip_budget", "budget", 512, 1, 1 << 30, "rows kept per kv head, sinks included"),
    integer_option("kvzip_n_sink", "n_sink", 4, 0, 1 << 30, "first positions, never dropped"),
    choice_option("kvzip_probe", "probe", {"context", "latest"},
                  "scores from the scoring pass, or from the last query as tova"),
    boolean_option("kvzip_nonuniform", "nonuniform", false, "one threshold over heads and layers"),
    eviction::query_source_option(),
};

std::vector<std::string> check(const Options& options, const LayerShape&) {
  Rules rules(options);
  rules.budget("kvzip_budget", {"kvzip_n_sink"});
  return rules.broken();
}

void plan(const Options& options, std::span<LayerPlan> layers) {
  if (!options.boolean("kvzip_nonuniform")) return;
  for (LayerPlan& layer : layers) layer.group = "one threshold for all layers";
}

}  // namespace

extern const MethodDef method_kvzip = {
    .name = "kvzip",
    .family = "eviction",
    .title = "KVzip: Query-Agnostic KV Cache Compression with Context Reconstruction",
    .paper = "2505.23416",
    .summary = "rows that the model needs to repeat its context",
    .options = kOptions,
    .capabilities = eviction::kCapabilities,
    .telemetry = eviction::telemetry("kvzip_kept_bytes"),
    .check = check,
    .build = {},
    .chooses_rows = true,
    .cache_class = "KVzipKVCache",
    .options_struct = "KVzipOptions",
    .coordinator = "KVzipCoordinator",
    .plan = plan,
};

}  // namespace veloxquant
