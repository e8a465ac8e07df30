// exact - the uncompressed cache: every row as it arrived, rounded to the store type. The baseline that all methods are
// measured against; not one of the 43.
//
// bytes per token and kv head: size_of(dtype) * (dim_k + dim_v)
#include "veloxquant/codecs.h"
#include "veloxquant/registry.h"

namespace veloxquant {
namespace {

Recipe build(const Options&, const BuildContext& context) {
  return {.placement = unsealed(),
          .key = raw_rows(context.store, context.shape.dim_k),
          .value = raw_rows(context.store, context.shape.dim_v)};
}

}  // namespace

extern const MethodDef method_exact = {
    .name = "exact",
    .family = "baseline",
    .title = "Uncompressed cache",
    .paper = "",
    .summary = "all rows in f16, bf16 or f32 (option dtype)",
    .options = {},
    .capabilities = {},
    .telemetry =
        {
            {"fp16_key_bytes", "bytes of the keys in an fp16 cache",
             [](const CacheStats& s) { return static_cast<double>(s.key.fp16_bytes); }},
            {"fp16_value_bytes", "bytes of the values in an fp16 cache",
             [](const CacheStats& s) { return static_cast<double>(s.value.fp16_bytes); }},
            {"used_bytes", "bytes of the stored rows",
             [](const CacheStats& s) { return static_cast<double>(s.used_bytes); }},
        },
    .check = {},
    .build = build,
};

}  // namespace veloxquant
