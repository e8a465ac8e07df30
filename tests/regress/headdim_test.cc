// Head sizes that are no power of two, unequal keys and values, latent attention.
#include <cmath>
#include <numeric>

#include "codec/map/orthogonal_map.h"
#include "fault_inputs.h"
#include "codec_rows.h"

namespace veloxquant::test {
namespace {

double norm(std::span<const float> x) {
  return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0, std::plus<>(),
                                      [](float a, float b) { return double{a} * double{b}; }));
}

std::vector<float> rotated(const OrthogonalMap& map, const std::vector<float>& x, bool back = false) {
  std::vector<float> y(x.size());
  const int dim = map.dim(), rows = static_cast<int>(x.size()) / dim;
  back ? map.inverse(rows, x.data(), dim, y.data(), dim) : map.forward(rows, x.data(), dim, y.data(), dim);
  return y;
}

// VeloxQuant-MLX PR#111
TEST(HeadDim, BL_064_every_size_has_an_orthogonal_rotation) {
  for (int dim : {1, 2, 12, 20, 28, 24, 40, 56, 64, 80, 96, 112, 128, 160, 192, 256, 576}) {
    if (kSanitized && dim > 128) continue;
    SCOPED_TRACE(dim);
    for (const auto& map : {rht(dim, 2, 42, 0), haar(dim, 42, 1)}) {
      const std::vector<float> x = gaussian(static_cast<size_t>(dim), 42), y = rotated(*map, x);
      EXPECT_NEAR(norm(y) / norm(x), 1, 1e-5);
      EXPECT_LT(relative_l2(rotated(*map, y, true), x), 1e-5);
    }
    const Sequences data(one_head(dim), 1, 40);
    KVCache cache = make("turboquant_rvq(bits=2,value_codec=turboquant_mse)", data.shape);
    EXPECT_TRUE(all_finite(data.feed(cache, {39, 1})));
    const double error = relative_l2(cache.decode(Side::key), data.k);
    EXPECT_LT(error * error, 0.0095 * 1.25);
  }
}

// TheTom/turboquant_plus#11
TEST(HeadDim, BL_065_no_energy_is_lost_by_padding_and_cutting) {
  for (int dim : {80, 96}) {
    SCOPED_TRACE(dim);
    std::vector<float> unit(static_cast<size_t>(dim));
    unit[0] = 1;
    const std::vector<float> a = gaussian(static_cast<size_t>(dim), 42), b = gaussian(static_cast<size_t>(dim), 43);
    const auto dot = [](const std::vector<float>& x, const std::vector<float>& y) {
      double sum = 0;
      for (size_t i = 0; i < x.size(); ++i) sum += double{x[i]} * double{y[i]};
      return sum;
    };
    for (const auto& map : {rht(dim, 1, 42, 0), rht(dim, 2, 42, 0), haar(dim, 42, 0)}) {
      EXPECT_NEAR(std::pow(norm(rotated(*map, unit)), 2), 1, 1e-5);
      EXPECT_NEAR(dot(rotated(*map, a), rotated(*map, b)), dot(a, b), 1e-5 * norm(a) * norm(b));
      EXPECT_NEAR(dot(rotated(*map, a), rotated(*map, unit)), double{a[0]}, 1e-5 * norm(a));
    }
  }
}

// vllm-project/vllm#41413, PR#41597
TEST(HeadDim, BL_066_four_bits_at_head_size_80) {
  const int dim = 80, rows = 1000;
  const std::vector<float> k = gaussian(size_t{rows} * dim, 42), q = gaussian(size_t{rows} * dim, 43);
  for (Rotation rotation : {Rotation::haar, Rotation::rht}) {
    LloydRow options;
    options.dim = dim;
    options.bits = 4;
    options.rotation = rotation;
    options.seed = 42;
    const std::vector<float> decoded = round_trip(*lloyd_row(options), k);
    EXPECT_LE(mean_row_error(k, decoded, dim), 0.012);
    EXPECT_GE(mean_row_error(k, decoded, dim), 0.0080);
    double xx = 0, xy = 0;
    for (int r = 0; r < rows; ++r) {
      double x = 0, y = 0;
      for (int c = r * dim; c < (r + 1) * dim; ++c) {
        const auto i = static_cast<size_t>(c);
        x += double{q[i]} * double{k[i]};
        y += double{q[i]} * double{decoded[i]};
      }
      xx += x * x;
      xy += x * y;
    }
    EXPECT_GE(xy / xx, 0.98);
    EXPECT_LE(xy / xx, 1.01);
  }
}

// tetherto/qvac-fabric-llm.cpp PR#115
TEST(HeadDim, BL_068_each_side_is_rotated_at_its_own_full_size) {
  EXPECT_TRUE(has_hadamard(192));
  EXPECT_TRUE(has_hadamard(128));
  // One channel of every 32, another one in each row: what one rotation makes of one set of channels varies by 8 %. All
  // columns of a two-round Hadamard map are permutations of one another, so its mean is taken over seeds.
  const int rows = sized(1000, 200);
  const auto heavy = [rows](int dim, uint32_t seed) {
    std::vector<float> x = gaussian(static_cast<size_t>(rows * dim), seed);
    std::mt19937 generator(seed);
    for (size_t first = 0; first < x.size(); first += 32) x[first + generator() % 32] *= 20;
    return x;
  };
  for (int dim : {192, 128}) {
    if (kSanitized) continue;  // statistics of many rows
    const std::vector<float> x = heavy(dim, 42);
    for (int bits : {3, 4}) {
      const auto error = [&](Rotation rotation, uint64_t seeds, int rows_each) {
        const std::vector<float> part(x.begin(), x.begin() + rows_each * dim);
        double mean = 0;
        for (uint64_t seed = 42; seed < 42 + seeds; ++seed) {
          const auto codec = lloyd_row({.dim = dim, .bits = bits, .rotation = rotation, .seed = seed});
          mean += mean_row_error(part, round_trip(*codec, part), dim) / static_cast<double>(seeds);
        }
        return mean;
      };
      const double ratio = error(Rotation::rht, 40, rows / 10) / error(Rotation::haar, 4, rows);
      EXPECT_NEAR(ratio, 1, 0.02) << dim << " at " << bits << " bits";
    }
  }
  // Both sides of one cache: at the theory of their own size.
  const LayerShape shape{.kv_heads = 1, .q_heads = 1, .dim_k = 192, .dim_v = 128, .layer = 0, .input = DType::f16};
  const std::vector<float> k = heavy(192, 1), v = heavy(128, 2);
  for (auto [bits, theory] : {std::pair{3, 0.0345}, {4, 0.0095}}) {
    KVCache cache = make("turboquant_rvq(bits=" + std::to_string(bits) + ",value_codec=turboquant_mse)", shape);
    cache.append(Tensor::bshd(k.data(), DType::f32, 1, rows, 1, 192),
                 Tensor::bshd(v.data(), DType::f32, 1, rows, 1, 128));
    EXPECT_NEAR(mean_row_error(v, cache.decode(Side::value), 128), theory, 0.1 * theory);
    EXPECT_LT(mean_row_error(k, cache.decode(Side::key), 192), 0.0008);
    EXPECT_EQ(cache.peek().key.coded_bytes, static_cast<size_t>(rows) * static_cast<size_t>(2 * 192 * bits / 8 + 2));
    EXPECT_EQ(cache.peek().value.coded_bytes, static_cast<size_t>(rows) * static_cast<size_t>(128 * bits / 8 + 2));
  }
}

// ml-explore/mlx-lm#1082, PR#1323, PR#1558
TEST(HeadDim, BL_147_latent_attention_shapes_work_or_name_their_layer) {
  for (auto [dim_k, dim_v] : {std::pair{576, 512}, {192, 128}}) {
    const LayerShape shape{.kv_heads = 1, .q_heads = 4, .dim_k = dim_k, .dim_v = dim_v};
    Sequences data(shape, 1, 70);
    // Values are a prefix of the keys, read through the same memory.
    const auto values = [&](Range r) {
      Tensor t = data.keys(r);
      t.dim = dim_v;
      return t;
    };
    for (const char* method :
         {"exact", "kivi(group=8,residual=8)", "turboquant_rvq", "turboquant_rvq(value_codec=int8)"}) {
      SCOPED_TRACE(method);
      KVCache cache = make(method, shape);
      cache.step(data.attend_in({0, 40}), data.keys({0, 40}), values({0, 40}));
      const DenseRows first = stored_rows(cache, 0);
      const auto out = cache.step(data.attend_in({40, 70}), data.keys({40, 70}), values({40, 70}));
      DenseRows rows = first;
      rows.rows = 70;
      for (int t = 40; t < 70; ++t) {
        const auto row = data.k.begin() + int64_t{t} * dim_k;
        rows.k.insert(rows.k.end(), row, row + dim_k);
        rows.v.insert(rows.v.end(), row, row + dim_v);
      }
      const float* queries = data.q.data() + int64_t{40} * 4 * dim_k;
      EXPECT_LT(relative_l2(out, reference_attention(shape, rows, queries, 30, {})), 1e-5);
    }
  }
  const LayerShape shapes[] = {
      one_head(64), one_head(64), {.kv_heads = 1, .q_heads = 1, .dim_k = 64, .dim_v = 0, .layer = 2}};
  for (const MethodDef* def : built_methods()) {
    try {
      CacheSet set(parse_method(def->name), shapes);
      ADD_FAILURE() << def->name << " took a layer without values";
    } catch (const QuantizerConfigError& error) {
      EXPECT_NE(std::string(error.what()).find("layer 2"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace veloxquant::test
