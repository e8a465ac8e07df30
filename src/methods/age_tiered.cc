// Rows lose precision as they age; the two-tier ancestor is KIVI (arXiv:2402.02750). Codes are stored as planes of
// bits, so that a demotion only drops planes.
//
// bytes per token, kv head and side: dim * (b / 8 + 4 / g) at the width of the row's age
#include "methods/rules.h"
#include "veloxquant/registry.h"

namespace veloxquant {
namespace {

const std::vector<OptionSpec> kOptions = {
    integer_option("age_recent_boundary", "recent", 128, 1, 1 << 30, "age from which a row is no longer recent"),
    integer_option("age_mid_boundary", "mid", 1024, 1, 1 << 30, "age from which it is old"),
    integer_option("age_bits_recent", "bits_recent", 8, 1, 16, "bits of recent rows"),
    integer_option("age_bits_mid", "bits_mid", 4, 1, 16, "bits of those between"),
    integer_option("age_bits_old", "bits_old", 2, 1, 16, "bits of old rows"),
    integer_option("age_group_size", "group", 32, 1, 1 << 16,
                   "codes that share zero and scale: tokens for keys, channels for values"),
    choice_option("value_axis", "", {"token", "channel"},
                  "groups of values: channels of one token, or tokens of one channel as for keys"),
};

std::vector<std::string> check(const Options& options, const LayerShape&) {
  Rules rules(options);
  rules.ordered("age_recent_boundary", "age_mid_boundary");
  rules.ordered("age_bits_old", "age_bits_mid");
  rules.ordered("age_bits_mid", "age_bits_recent");
  return rules.broken();
}

}  // namespace

extern const MethodDef method_age_tiered = {
    .name = "age_tiered",
    .family = "quantization",
    .title = "Three precisions by age",
    .paper = "",
    .summary = "rows in 8, 4 and 2 bits as they grow old",
    .options = kOptions,
    .capabilities = {.trimmable = false},
    .telemetry = {},
    .check = check,
    .build = {},
    .cache_class = "AgeTieredKVCache",
    .options_struct = "AgeTieredOptions",
};

}  // namespace veloxquant
