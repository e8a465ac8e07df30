// Scales, tables, widths and strides: distortions between a lower and an upper bound, never only "close enough".
#include <set>

#include "codec/map/orthogonal_map.h"
#include "codec_rows.h"
#include "core/layout.h"
#include "fault_inputs.h"

namespace veloxquant::test {
namespace {

constexpr double kGaussianError[] = {0, 0.3634, 0.1175, 0.0345, 0.0095};  // Lloyd-Max of N(0, 1) by bits
constexpr double kGaussianDecibels[] = {0, 4.40, 9.30, 14.62, 20.22};

double decibels(double error) { return -10 * std::log10(error); }

std::vector<float> unit_rows(int rows, int dim, uint32_t seed) {
  std::vector<float> x = gaussian(static_cast<size_t>(rows) * static_cast<size_t>(dim), seed);
  for (int r = 0; r < rows; ++r) {
    double energy = 0;
    for (int c = 0; c < dim; ++c) energy += std::pow(double{x[static_cast<size_t>(r * dim + c)]}, 2);
    for (int c = 0; c < dim; ++c) x[static_cast<size_t>(r * dim + c)] *= static_cast<float>(1 / std::sqrt(energy));
  }
  return x;
}

// InternLM/lmdeploy PR#4510
TEST(Codec, BL_091_encoder_and_all_readers_scale_the_centroids_alike) {
  const int dim = 128, rows = 1000;
  const std::vector<float> x = unit_rows(rows, dim, 42), q = gaussian(dim, 43);
  for (Rotation rotation : {Rotation::haar, Rotation::rht}) {
    LloydRow options;
    options.dim = dim;
    options.bits = 3;
    options.rotation = rotation;
    const auto codec = lloyd_row(options);
    const std::vector<Block> blocks = encode(*codec, x);
    const std::vector<float> y = decode(*codec, blocks, rows);
    EXPECT_NEAR(mean_row_error(x, y, dim), 0.0345, 0.0345 * 0.05);
    double ratio = 0;
    for (int r = 0; r < rows; ++r) {
      double energy = 0;
      for (int c = 0; c < dim; ++c) energy += std::pow(double{y[static_cast<size_t>(r * dim + c)]}, 2);
      ratio += std::sqrt(energy) / rows;
    }
    EXPECT_GE(ratio, 0.97);
    EXPECT_LE(ratio, 1.0);
    // The fused paths: scores, and a sum with one row's weight at a time.
    const std::vector<float> score = scores(*codec, q, blocks[0], 64);
    for (int r = 0; r < 64; ++r) {
      const auto row = y.begin() + r * dim;
      double expected = 0;
      for (int c = 0; c < dim; ++c) expected += double{q[static_cast<size_t>(c)]} * double{row[c]};
      EXPECT_NEAR(score[static_cast<size_t>(r)], expected, 1e-4);
      std::vector<float> weight(64);
      weight[static_cast<size_t>(r)] = 1;
      EXPECT_LT(relative_l2(weighted_sum(*codec, weight, blocks[0]), {row, row + dim}), 1e-5);
    }
  }
}

// VeloxQuant-MLX#397
TEST(Codec, BL_096_what_is_coded_is_never_coded_again) {
  const int dim = 32, prefill = 32, steps = sized(200, 40);
  const Sequences data(one_head(dim), 1, prefill + steps);
  for (const char* method : {"kivi(group=8,residual=8)", "kivi(bits=8,group=8,residual=16,flush_rule=aligned_window)",
                             "turboquant_rvq(value_codec=int8)"}) {
    SCOPED_TRACE(method);
    KVCache cache = make(method, data.shape);
    data.feed(cache, {prefill});
    std::vector<float> before[2];
    size_t coded[2] = {0, 0};
    for (int at = prefill; at <= prefill + steps; ++at) {
      for (Side side : kSides) {
        const auto s = static_cast<size_t>(side);
        const std::vector<float> now = cache.decode(side);
        ASSERT_TRUE(std::equal(before[s].begin(), before[s].begin() + static_cast<int64_t>(coded[s]), now.begin()))
            << at;
        coded[s] = static_cast<size_t>((side == Side::key ? cache.peek().key : cache.peek().value).coded_rows * dim);
        before[s] = now;
      }
      if (at < prefill + steps) data.feed(cache, {1}, at);
    }
    KVCache at_once = make(method, data.shape);
    data.feed(at_once, {prefill + steps});
    EXPECT_EQ(cache.state(), at_once.state()) << "the error depends on the number of steps";
  }
}

// Codes of part `part` of the first `rows` rows of a block, one bit string a row.
std::set<int> codes_of(const Codec& codec, const Block& block, int part, int rows, int bits) {
  CodeGrid grid;
  grid.packing = Packing::bit_string;
  grid.bits = bits;
  grid.dim = codec.dim();
  std::set<int> codes;
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < codec.dim(); ++c) {
      int code = 0;
      for (int b = 0; b < bits; ++b) {
        const size_t bit = code_index(grid, r, c) + static_cast<size_t>(b);
        code |= (std::to_integer<int>(block[codec.format().offset(part, 0) + bit / 8]) >> (bit % 8) & 1) << b;
      }
      codes.insert(code);
    }
  }
  return codes;
}

// vllm-project/vllm PR#38479
TEST(Codec, BL_097_every_declared_width_uses_all_its_levels) {
  for (int bits : {1, 2, 3, 4, 5, 6, 7, 8}) {
    const int n = 256;
    std::vector<float> ramp(n);
    for (int i = 0; i < n; ++i) ramp[static_cast<size_t>(i)] = static_cast<float>(i);
    std::vector<float> turned(2 * n);
    for (int i = 0; i < n; ++i) turned[static_cast<size_t>(2 * i)] = ramp[static_cast<size_t>(i)];
    const std::vector<float> row = round_trip(*affine_row(n, bits, n), ramp);
    const std::vector<float> block = round_trip(*affine_block(2, bits, n), turned);
    EXPECT_EQ(std::set<float>(row.begin(), row.end()).size(), size_t{1} << bits);
    std::set<float> channel;
    for (int i = 0; i < n; ++i) channel.insert(block[static_cast<size_t>(2 * i)]);
    EXPECT_EQ(channel.size(), size_t{1} << bits);

    // Rows whose rotated first channel walks over -5..5 while the others keep the length.
    const int dim = 128;
    LloydRow options;
    options.dim = dim;
    options.bits = bits;
    const auto codec = lloyd_row(options);
    std::vector<float> u(size_t{1024} * dim), x(u.size());
    for (int r = 0; r < 1024; ++r) {
      const float t = static_cast<float>(r - 512) / 102.4f;
      std::fill_n(u.begin() + r * dim, dim, std::sqrt((128 - t * t) / 127));
      u[static_cast<size_t>(r * dim)] = t;
    }
    rht(dim, options.rounds, options.seed, options.stream)->inverse(1024, u.data(), dim, x.data(), dim);
    std::set<int> codes;
    for (const Block& each : encode(*codec, x)) codes.merge(codes_of(*codec, each, 0, 64, bits));
    EXPECT_EQ(codes.size(), size_t{1} << bits) << bits << " bits";
  }
  const std::vector<float> x = gaussian(size_t{1000} * 128, 42);
  for (int bits = 1; bits <= 4; ++bits) {
    for (Rotation rotation : {Rotation::haar, Rotation::rht}) {
      LloydRow options;
      options.dim = 128;
      options.bits = bits;
      options.rotation = rotation;
      EXPECT_NEAR(mean_row_error(x, round_trip(*lloyd_row(options), x), 128), kGaussianError[bits],
                  0.1 * kGaussianError[bits]);
    }
  }
  for (int bits : {0, 9, -1}) {
    EXPECT_THROW(affine_row(64, bits, 32), QuantizerConfigError);
    EXPECT_THROW(affine_block(64, bits, 32), QuantizerConfigError);
    EXPECT_THROW(lloyd_row({.dim = 64, .bits = bits}), QuantizerConfigError);
    EXPECT_THROW(parse_method("kivi(bits=" + std::to_string(bits) + ")"), QuantizerConfigError);
  }
  EXPECT_THROW(lloyd_row({.dim = 64, .bits = 5, .stage2 = Stage2::joint}), QuantizerConfigError);
  EXPECT_THROW(parse_method("turboquant_rvq(bits=5)"), QuantizerConfigError);
}

// The best uniform code of a Gaussian row whose length is known: the same bytes as a codebook of that width.
std::vector<float> uniformly_coded(const std::vector<float>& x, int dim, int bits) {
  constexpr double kStep[] = {0, 1.596, 0.9957, 0.5860, 0.3352};  // of N(0, 1), by bits
  std::vector<float> y(x.size());
  for (size_t row = 0; row < x.size(); row += static_cast<size_t>(dim)) {
    double energy = 0;
    for (size_t i = row; i < row + static_cast<size_t>(dim); ++i) energy += double{x[i]} * double{x[i]};
    const double step = kStep[bits] * std::sqrt(energy / dim), last = (1 << (bits - 1)) - 0.5;
    for (size_t i = row; i < row + static_cast<size_t>(dim); ++i) {
      y[i] = static_cast<float>(step * std::clamp(std::floor(double{x[i]} / step) + 0.5, -last, last));
    }
  }
  return y;
}

// Pushkinist/rMLX#318; turboderp-org/exllamav3 PR#180
TEST(Codec, BL_098_codebooks_reach_the_decibels_of_theory_and_beat_uniform_codes) {
  const int dim = 128, rows = sized(2000, 300);
  std::vector<float> normal = gaussian(static_cast<size_t>(rows * dim), 42), laplace, uniform;
  std::mt19937 generator(42);
  std::exponential_distribution<float> exponential(1);
  std::uniform_real_distribution<float> flat(-1, 1);
  for (size_t i = 0; i < normal.size(); ++i) {
    laplace.push_back(exponential(generator) * (generator() % 2 == 0 ? 1.0f : -1.0f));
    uniform.push_back(flat(generator));
  }
  for (int bits = 1; bits <= 4; ++bits) {
    for (const std::vector<float>* x : {&normal, &laplace, &uniform}) {
      for (Rotation rotation : {Rotation::haar, Rotation::rht}) {
        LloydRow options;
        options.dim = dim;
        options.bits = bits;
        options.rotation = rotation;
        const double reached = decibels(mean_row_error(*x, round_trip(*lloyd_row(options), *x), dim));
        EXPECT_GE(reached, kGaussianDecibels[bits] - 0.3) << bits << " bits";
        EXPECT_LE(reached, kGaussianDecibels[bits] + 0.3) << bits << " bits";
        if (x == &normal) {
          EXPECT_GE(reached, decibels(mean_row_error(*x, uniformly_coded(*x, dim, bits), dim)) - 0.05)
              << bits << " bits";
        }
      }
    }
  }
  // Two stages of b bits: one table of 2b bits, or two tables at the price that turboquant_rvq.md gives.
  for (auto [bits, stage2, expected] : {std::tuple{1, Stage2::joint, 0.1158},
                                        {2, Stage2::joint, 0.0093},
                                        {1, Stage2::matched, 0.1285},
                                        {2, Stage2::matched, 0.0188},
                                        {3, Stage2::matched, 0.00185}}) {
    const double error =
        mean_row_error(normal, round_trip(*lloyd_row({.dim = dim, .bits = bits, .stage2 = stage2}), normal), dim);
    EXPECT_NEAR(decibels(error), decibels(expected), 0.3) << bits;
  }
}

// raullenchai/Rapid-MLX PR#2234
TEST(Codec, BL_101_strided_views_are_read_like_compact_copies) {
  const int capacity = 256, live = 40, first = 3, heads = 2, dim = 24, batch = 2;
  const LayerShape shape{.kv_heads = heads, .q_heads = 4, .dim_k = dim, .dim_v = dim};
  // Buffers with room for more rows, with heads between those that are read and with rows before them.
  const auto strided = [&](std::vector<float>& buffer, int used_heads, int seed) {
    buffer =
        gaussian(size_t{batch} * capacity * 2 * static_cast<size_t>(used_heads) * dim, static_cast<uint32_t>(seed));
    Tensor t = Tensor::bshd(buffer.data(), DType::f32, batch, capacity, 2 * used_heads, dim);
    t.data = buffer.data() + first * t.stride_token;
    t.tokens = live;
    t.heads = used_heads;
    t.stride_head *= 2;
    return t;
  };
  const auto compact = [&](const Tensor& t, std::vector<float>& copy, bool heads_first) {
    copy.resize(size_t{batch} * live * static_cast<size_t>(t.heads) * dim);
    const Tensor out = heads_first ? Tensor::bhsd(copy.data(), DType::f32, batch, t.heads, live, dim)
                                   : Tensor::bshd(copy.data(), DType::f32, batch, live, t.heads, dim);
    for (int b = 0; b < batch; ++b) {
      for (int s = 0; s < live; ++s) {
        for (int h = 0; h < t.heads; ++h) {
          std::copy_n(static_cast<const float*>(t.data) + b * t.stride_batch + s * t.stride_token + h * t.stride_head,
                      dim, copy.data() + b * out.stride_batch + s * out.stride_token + h * out.stride_head);
        }
      }
    }
    return out;
  };
  std::vector<float> q_buffer, k_buffer, v_buffer;
  AttendIn view;
  view.q = strided(q_buffer, 4, 1);
  const Tensor k = strided(k_buffer, heads, 2), v = strided(v_buffer, heads, 3);
  for (const std::string& method : every_method()) {
    SCOPED_TRACE(method);
    KVCache from_view = make(method, shape);
    from_view.step(view, k, v);
    for (bool heads_first : {false, true}) {
      std::vector<float> q_copy, k_copy, v_copy;
      AttendIn dense;
      dense.q = compact(view.q, q_copy, heads_first);
      KVCache from_copy = make(method, shape);
      const auto expected = from_copy.step(dense, compact(k, k_copy, heads_first), compact(v, v_copy, heads_first));
      // Outputs with gaps between heads, tokens and batch rows, which must stay as they were.
      constexpr float kUntouched = -77;
      const int64_t head = dim + 5, token = 4 * head + 3, row = live * token + 7;
      std::vector<float> out(static_cast<size_t>(batch * row), kUntouched);
      KVCache again = make(method, shape);
      again.append(k, v);
      again.attend(view, {out.data(), row, token, head}, 0, 1);
      size_t written = 0;
      for (int b = 0; b < batch; ++b) {
        for (int s = 0; s < live; ++s) {
          for (int h = 0; h < 4; ++h) {
            const auto mine = out.begin() + b * row + s * token + h * head;
            ASSERT_TRUE(std::equal(mine, mine + dim, expected.begin() + static_cast<int64_t>(written)));
            written += dim;
          }
        }
      }
      EXPECT_EQ(std::count(out.begin(), out.end(), kUntouched), static_cast<int64_t>(out.size() - written));
      EXPECT_EQ(from_view.state(), from_copy.state());
    }
  }
}

}  // namespace
}  // namespace veloxquant::test
