#include <gtest/gtest.h>

#include <numeric>

#include "codec_util.h"
#include "support/sanitizer.h"
#include "support/tensors.h"
#include "veloxquant/errors.h"

namespace veloxquant::test {
namespace {

LloydRow haar_row(int dim, int bits, uint32_t stream = 0) {
  LloydRow options = lloyd(dim, bits);
  options.rotation = Rotation::haar;
  options.stream = stream;
  return options;
}

/// 2-bit codes with n outlier channels of 3 bits, unfitted.
std::shared_ptr<const Codec> split(int dim, int n, int fit_rows) {
  return channel_split({dim, fit_rows, lloyd_row(haar_row(n, 3, 2)), lloyd_row(haar_row(dim - n, 2))});
}

std::vector<int> channels_of(const Codec& codec) {
  const std::vector<std::byte> state = codec.fitted_state();
  std::vector<int> channels;
  for (size_t i = 0; i < state.size(); i += 2) {
    channels.push_back(static_cast<int>(state[i]) | static_cast<int>(state[i + 1]) << 8);
  }
  return channels;
}

Rows columns(const Rows& x, const std::vector<int>& channels) {
  Rows out(x.rows, static_cast<int>(channels.size()));
  for (int r = 0; r < x.rows; ++r) {
    for (int c = 0; c < out.dim; ++c) out.at(r, c) = x.at(r, channels[static_cast<size_t>(c)]);
  }
  return out;
}

TEST(ChannelSplit, outliers_are_the_channels_of_largest_mean_magnitude) {
  Rows x(4, 8);
  for (int r = 0; r < 4; ++r) {
    for (int c = 0; c < 8; ++c) x.at(r, c) = r % 2 ? 1.0f : -1.0f;
    x.at(r, 6) = -3;
  }
  x.at(0, 5) = 9;     // mean 3, as channel 6
  x.at(3, 1) = 1e6f;  // behind the rows that count
  const auto codec = split(8, 2, 3);
  EXPECT_EQ(channels_of(*codec->fit(x.view(0, 4))), (std::vector<int>{5, 6}));
  EXPECT_EQ(channels_of(*split(8, 1, 3)->fit(x.view(0, 3))), std::vector<int>{5}) << "3 2/3 against 3";
  EXPECT_EQ(channels_of(*split(8, 3, 3)->fit(x.view(0, 3))), (std::vector<int>{0, 5, 6})) << "of equal ones the lower";
  EXPECT_EQ(channels_of(*split(8, 4, 3)->fit(x.view(0, 3))), (std::vector<int>{0, 1, 5, 6}));
}

TEST(ChannelSplit, what_is_fitted_is_fitted_once_and_has_the_final_form) {
  const auto codec = split(64, 16, 20);
  EXPECT_EQ(codec->fit_rows(), 20);
  EXPECT_TRUE(codec->fitted_state().empty());
  const auto fitted = codec->fit(gaussian_rows(20, 64, 1).view(0, 20));
  EXPECT_EQ(fitted->fit_rows(), 0);
  EXPECT_EQ(fitted->name(), codec->name());
  EXPECT_EQ(fitted->format().part_bytes, codec->format().part_bytes);
  EXPECT_EQ(fitted->floats().query, codec->floats().query);
  EXPECT_EQ(codec->fit_rows(), 20) << "the object itself stays as it is";
  EXPECT_EQ(lloyd_row(lloyd(64, 2))->fit_rows(), 0);
}

TEST(ChannelSplit, a_fitted_codec_comes_back_from_its_state) {
  const auto codec = split(64, 16, 20);
  const Rows x = gaussian_rows(64, 64, 2);
  const auto fitted = codec->fit(x.view(0, 20));
  const auto state = fitted->fitted_state();
  const auto again = codec->fit_from(state);
  EXPECT_EQ(again->fitted_state(), state);
  EXPECT_EQ(encode_blocks(*again, x), encode_blocks(*fitted, x));
}

TEST(ChannelSplit, damaged_states_are_refused) {
  const auto codec = split(64, 16, 20);
  const auto good = codec->fit(gaussian_rows(20, 64, 3).view(0, 20))->fitted_state();
  ASSERT_EQ(good.size(), 32u);
  EXPECT_THROW(codec->fit_from(std::span(good).first(31)), FormatError);
  EXPECT_THROW(codec->fit_from({}), FormatError);
  auto bad = good;
  bad.push_back(std::byte{0});
  EXPECT_THROW(codec->fit_from(bad), FormatError);
  bad = good;
  bad[31] = std::byte{1};  // channel 256 and more
  EXPECT_THROW(codec->fit_from(bad), FormatError);
  bad = good;
  std::copy_n(bad.begin(), 2, bad.begin() + 2);  // a channel twice
  EXPECT_THROW(codec->fit_from(bad), FormatError);
}

TEST(ChannelSplit, it_is_the_sum_of_two_codecs) {
  for (int dim : {12, 80, 128}) {
    const int n = dim / 4;
    const auto outlier = lloyd_row(haar_row(n, 3, 2)), inlier = lloyd_row(haar_row(dim - n, 2));
    const auto codec = fitted_split(dim, outlier, inlier);
    const std::vector<int> large = channels_of(*codec);
    std::vector<int> others;
    for (int c = 0; c < dim; ++c) {
      if (!std::binary_search(large.begin(), large.end(), c)) others.push_back(c);
    }
    const Rows k = gaussian_rows(50, dim, 4), q = gaussian_rows(20, dim, 5);
    const Rows of_outliers = scores(*outlier, columns(k, large), columns(q, large));
    const Rows of_others = scores(*inlier, columns(k, others), columns(q, others));
    Rows expected = of_outliers;
    for (size_t i = 0; i < expected.x.size(); ++i) expected.x[i] += of_others.x[i];
    EXPECT_LT(relative_l2(scores(*codec, k, q).x, expected.x), 1e-6);
    const Rows y = round_trip(*codec, k);
    EXPECT_EQ(columns(y, large).x, round_trip(*outlier, columns(k, large)).x);
    EXPECT_EQ(columns(y, others).x, round_trip(*inlier, columns(k, others)).x);
    EXPECT_EQ(codec->bytes(10), outlier->bytes(10) + inlier->bytes(10));
  }
}

TEST(ChannelSplit, an_inlier_codec_of_whole_rows_sees_zeros_in_place_of_outliers) {
  const int dim = 64;
  const auto outlier = sign_sketch({.dim = 4, .rows = 64, .seed = 1}), inlier = sign_sketch({.dim = dim, .seed = 2});
  const auto codec = fitted_split(dim, outlier, inlier);
  const std::vector<int> large = channels_of(*codec);
  const auto without = [&](Rows x) {
    for (int r = 0; r < x.rows; ++r) {
      for (int c : large) x.at(r, c) = 0;
    }
    return x;
  };
  const Rows k = gaussian_rows(50, dim, 6), q = gaussian_rows(3, dim, 7);
  Rows expected = scores(*inlier, without(k), without(q));
  const Rows more = scores(*outlier, columns(k, large), columns(q, large));
  for (size_t i = 0; i < expected.x.size(); ++i) expected.x[i] += more.x[i];
  EXPECT_LT(relative_l2(scores(*codec, k, q).x, expected.x), 1e-6);
  EXPECT_EQ(codec->bytes(1), 64u / 8 + 2 + 8 + 2);
}

TEST(ChannelSplit, large_channels_no_longer_spoil_the_others) {  // turboquant_mse acceptance 5
  if (kSanitized) GTEST_SKIP() << "statistics of many rows";
  Rows k = gaussian_rows(1000, 128, 8);
  for (int r = 0; r < k.rows; ++r) {
    for (int c : {3, 40, 77, 126}) k.at(r, c) *= 20;
  }
  const auto fitted = split(128, 32, 200)->fit(k.view(0, 200));
  for (int c : {3, 40, 77, 126}) {
    const auto large = channels_of(*fitted);
    EXPECT_TRUE(std::binary_search(large.begin(), large.end(), c));
  }
  const double two = mean_squared_error(k, round_trip(*fitted, k));
  const double one = mean_squared_error(k, round_trip(*lloyd_row(haar_row(128, 2)), k));
  EXPECT_LT(2 * two, one);
  EXPECT_EQ(fitted->bytes(1), 32u * 3 / 8 + 96 * 2 / 8 + 4);
}

TEST(ChannelSplit, residual_sketches_in_two_streams) {  // turboquant_prod acceptance 6
  const auto codec = fitted_split(128, residual_sketch({.dim = 32, .bits = 3, .seed = 1, .stream = 2}),
                                  residual_sketch({.dim = 96, .bits = 2, .seed = 1}));
  EXPECT_EQ(codec->bytes(1), 44u);
  const Rows k = directions(300, 128, 9, 1), q = directions(10, 128, 10, 1);
  EXPECT_NEAR(product_error(*codec, k, q).slope, 1, 0.1);
}

TEST(ChannelSplit, sealed_blocks_score_the_same_and_open_again) {
  const auto codec = fitted_split(128, residual_sketch({.dim = 32, .bits = 3}), lloyd_row(haar_row(96, 2)));
  const Rows k = gaussian_rows(64, 128, 11), q = gaussian_rows(20, 128, 12);
  const Block plain = encode_blocks(*codec, k)[0];
  Block block = sealed(*codec, plain);
  ASSERT_FALSE(block.empty());
  std::vector<float> prep(static_cast<size_t>(20 * codec->floats().query)), logit(20 * 64),
      tile(static_cast<size_t>(codec->floats().tile));
  codec->prepare_query(q.x.data(), 20, prep.data());
  codec->score(prep.data(), 20, {block.data(), 1}, {0, 64}, logit.data(), 64, tile.data());
  EXPECT_LT(relative_l2(logit, scores(*codec, {plain}, 64, q).x), 3e-4);
  codec->unseal(block.data());
  EXPECT_EQ(block, plain);
  // Where one part has no layout 1, the other stays as it is.
  const auto half = fitted_split(128, lloyd_row(haar_row(28, 3)), lloyd_row(haar_row(100, 2)));
  EXPECT_TRUE(sealed(*half, encode_blocks(*half, k)[0]).empty());
  const auto first_alone = fitted_split(128, lloyd_row(haar_row(64, 3)), sign_sketch({.dim = 64, .rows = 65}));
  Block same = encode_blocks(*first_alone, k)[0];
  const Block before = same;
  EXPECT_FALSE(first_alone->seal(same.data()));
  EXPECT_EQ(same, before);
}

TEST(ChannelSplit, bad_arguments_are_refused) {
  const auto row = [](int dim) { return lloyd_row(lloyd(dim, 2)); };
  EXPECT_THROW(channel_split({8, 0, row(2), row(6)}), QuantizerConfigError);
  EXPECT_THROW(channel_split({8, 10, row(8), row(8)}), QuantizerConfigError);
  EXPECT_THROW(channel_split({8, 10, row(2), row(5)}), QuantizerConfigError);
  EXPECT_THROW(channel_split({1, 10, row(1), row(1)}), QuantizerConfigError);
}

}  // namespace
}  // namespace veloxquant::test
