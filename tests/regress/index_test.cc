// Offsets beyond 2^31 elements.
#include <sys/mman.h>

#include <limits>

#include "core/half.h"
#include "core/layout.h"
#include "engine/store.h"
#include "fault_inputs.h"

namespace veloxquant::test {
namespace {

constexpr size_t kInt32Max = std::numeric_limits<int32_t>::max();

// ROCm/aiter PR#4474; 1bit-MONSTER#990; flagos-ai/FlagGems PR#6241
TEST(Index, BL_145_offsets_are_64_bits_wide) {
  // 2-bit codes of 8 heads of 128 over 2^21 + 64 rows: more than 2^31 codes.
  for (Packing packing : {Packing::planes, Packing::bit_string}) {
    const CodeGrid rows{0, CodeOrder::rows, packing, 2, 8 * 128, 1};
    const int last = (1 << 21) + 63;
    const size_t codes = size_t{2147549184};
    EXPECT_EQ(code_index(rows, last, 8 * 128 - 1), (codes - 1) * 2);
    for (int r = last - 7; r <= last; ++r) {
      EXPECT_EQ(code_index(rows, r, 7 * 128), (static_cast<size_t>(r) * 1024 + 896) * 2);
    }
    const CodeGrid channels{0, CodeOrder::channels, packing, 2, 8 * 128, 64};
    EXPECT_EQ(code_index(channels, last, 8 * 128 - 1), (codes - 1) * 2);
    // 9 layers, 2 heads, keys and values of 128 over 524288 rows.
    const CodeGrid all{0, CodeOrder::rows, packing, 8, 9 * 2 * 2 * 128, 1};
    EXPECT_EQ(code_index(all, 524287, 9 * 2 * 2 * 128 - 1), (size_t{2415919104} - 1) * 8);
    EXPECT_EQ(packed_bytes(packing, std::numeric_limits<int>::max(), 8), kInt32Max);
    EXPECT_EQ(packed_bytes(packing, std::numeric_limits<int>::max(), 2), kInt32Max / 4 + 1);
  }
  const BlockFormat format{1, (1 << 21) + 64, {256, 2, 0, 0}};
  EXPECT_EQ(format.block_bytes(), size_t{2097216} * 258);
  EXPECT_EQ(format.offset(1, format.units - 1), size_t{2097216} * 256 + size_t{2097215} * 2);
  EXPECT_EQ(affine_row(128, 2, 128)->bytes(std::numeric_limits<int>::max()), kInt32Max * 36);
  EXPECT_EQ(raw_rows(DType::f32, 576)->bytes(std::numeric_limits<int>::max()), kInt32Max * 576 * 4);

  // Views whose strides leave 32 bits: rows, heads and outputs 2^30 and more elements apart. Untouched pages cost
  // nothing.
  const int dim = 16, tokens = 4;
  const int64_t stride = int64_t{1} << 30;
  const size_t bytes = static_cast<size_t>(stride) * tokens * sizeof(uint16_t) + 4096;
  void* map = mmap(nullptr, 2 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) GTEST_SKIP() << "no address space of " << 2 * bytes << " bytes for the strided part";
  const Sequences data(one_head(dim), 1, tokens);
  const auto put = [&](const std::vector<float>& x, int64_t at) {
    auto* base = static_cast<uint16_t*>(map) + at;
    for (int t = 0; t < tokens; ++t) {
      for (int c = 0; c < dim; ++c) base[t * stride + c] = f16_from_f32(x[static_cast<size_t>(t * dim + c)]);
    }
    return Tensor{base, DType::f16, 1, tokens, 1, dim, 0, stride, 0};
  };
  AttendIn in;
  in.q = put(data.q, 64);
  const Tensor k = put(data.k, 128), v = put(data.v, 192);
  auto* out = reinterpret_cast<float*>(static_cast<std::byte*>(map) + bytes);
  for (const std::string& method : every_method()) {
    SCOPED_TRACE(method);
    KVCache far = make(method, data.shape), near = make(method, data.shape);
    far.append(k, v);
    far.attend(in, {out, 0, stride / 2, dim}, 0, 1);
    const std::vector<float> expected = data.feed(near, {tokens});
    for (int t = 0; t < tokens; ++t) {
      EXPECT_TRUE(std::equal(out + t * (stride / 2), out + t * (stride / 2) + dim, expected.begin() + t * dim)) << t;
    }
    EXPECT_EQ(far.state(), near.state());
  }
  munmap(map, 2 * bytes);
}

// The same reports, for the largest block that the options allow: either it is refused or its size is kept in full.
TEST(Index, BL_145_a_block_of_4_gib_keeps_its_size) {
  const MethodSpec method = parse_method("kivi(group=65536,bits=8)");
  const LayerShape shape = one_head(65536);
  std::shared_ptr<const Codec> codec;
  try {
    codec = build_recipe(method, {shape, DType::f16, 42}).key;
    KVCache cache(method, shape);
  } catch (const QuantizerConfigError&) {
    return;
  }
  const size_t bytes = codec->format().block_bytes();
  Arena arena;
  try {
    const BlockRef block = BlockRef::allocate(arena, bytes);
    EXPECT_GE(block.resident_bytes(), bytes);
  } catch (const std::bad_alloc&) {
    GTEST_SKIP() << "no address space of " << bytes << " bytes";
  }
  EXPECT_EQ(arena.stats().allocated_bytes, 0u) << "released as a smaller one";
}

}  // namespace
}  // namespace veloxquant::test
