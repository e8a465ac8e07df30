// NSNQuant (arXiv:2505.18231): normalising tokens, then channels, then tokens again, and a Hadamard transform make
// every block of rows look alike, so that one codebook made from random numbers serves all.
//
// bytes per row, kv head and side: dim / d codes, 4 for its lengths, 2 dim a block for its mean
#include <fmt/format.h>

#include <bit>

#include "methods/rules.h"
#include "veloxquant/registry.h"

namespace veloxquant {
namespace {

const std::vector<OptionSpec> kOptions = {
    integer_option("nsn_bits", "bits", 2, 1, 2, "2: signs and an index; 1: the index alone"),
    integer_option("nsn_residual_length", "residual", 64, 2, 1 << 16, "rows of a block, and most rows that wait exact"),
    integer_option("nsn_codebook_size", "codebook", 256, 2, 65536, "entries, a power of two"),
    integer_option("nsn_subvector_dim", "sub_dim", 8, 1, 16, "channels that share an index"),
    integer_option("nsn_seed", "", 1234, -0x1p63, 0x1p63, "of the samples that the codebook is made from"),
    integer_option("nsn_max_ctx", "max_ctx", 8192, 1, 1 << 30, "most tokens a sequence may store"),
    choice_option("nsn_codebook_metric", "metric", {"cosine", "euclid"}, "what an entry is chosen by"),
    choice_option("nsn_gain", "gain", {"norm", "lsq"}, "length of a decoded row: its own, or that of least squares"),
    integer_option("nsn_meta_bits", "meta_bits", 16, 4, 16, "bits of a row's lengths").only({4, 16}),
    array_option("nsn_codebook", "[nsn_codebook_size][nsn_subvector_dim], in place of the one made from samples"),
};

std::vector<std::string> check(const Options& options, const LayerShape& shape) {
  Rules rules(options);
  const int64_t entries = options.integer64("nsn_codebook_size"), sub = options.integer64("nsn_subvector_dim");
  rules.that(std::has_single_bit(static_cast<uint64_t>(entries)), "nsn_codebook_size", "powers of two, 2..65536");
  rules.that(shape.dim_k % sub == 0, "nsn_subvector_dim", fmt::format("divisors of head_dim {}", shape.dim_k));
  if (shape.dim_v != shape.dim_k) {
    rules.that(shape.dim_v % sub == 0, "nsn_subvector_dim",
               fmt::format("divisors of {}, the channels of a value", shape.dim_v));
  }
  rules.shape("nsn_codebook", {{entries, sub}});
  return rules.broken();
}

}  // namespace

extern const MethodDef method_nsnquant = {
    .name = "nsnquant",
    .family = "quantization",
    .title = "NSNQuant: A Double Normalization Approach for Calibration-Free Low-Bit Vector Quantization of KV Cache",
    .paper = "2505.18231",
    .summary = "rows normalised twice and rotated, then coded by one universal codebook",
    .options = kOptions,
    .capabilities = {},
    .telemetry = {},
    .check = check,
    .build = {},
    .cache_class = "NSNQuantKVCache",
    .options_struct = "NSNQuantOptions",
    .bits_option = "nsn_bits",
};

}  // namespace veloxquant
