// The packed store as bytes: what is in memory, block by block in logical order, with the counts that say where it
// stands.
//
//   "VQSTATE\0" | u32 version | u64 XXH64 of the rest | u32 length + signature | u32 batch rows
//   per batch row: u32 seq | i32 tokens consumed | i32 front | i32 pool rows | their positions
//     per table: i32 rows | listed positions, or i32 count + rows of holes | i32 count + scores
//     per kv head, key then value: pool rows | i32 end of coded rows | of a fitted codec: i32 count + bytes |
//       coded blocks | exact blocks
//   a block: its parts, cut to the units in use, in layout 0; blocks of nothing but holes are left out
//
// Row counts say how many blocks there are; nothing depends on the capacity or on unused bytes, so equal content gives
// equal bytes. The signature names method, options, element type and shape; another one is refused.
#include <bit>
#include <algorithm>
#include <cstring>

#include <fmt/format.h>
#include <xxhash.h>

#include "engine/layer.h"
#include "veloxquant/errors.h"

namespace veloxquant {
namespace {

static_assert(std::endian::native == std::endian::little, "stored bytes are little-endian");

constexpr char kMagic[8] = "VQSTATE";
constexpr uint32_t kVersion = 2;
constexpr size_t kSidesOfHead = 2;
constexpr int32_t kMostFitted = 1 << 30;
// The type of exact rows is in the signature by itself.
constexpr std::string_view kChangeNoByte[] = {
    "dtype",      "capacity",           "attend_precision",       "use_metal_kernels",
    "fused_sdpa", "fused_sdpa_max_ctx", "fused_sdpa_memory_bound"};
constexpr size_t kHeaderBytes = sizeof(kMagic) + sizeof(uint32_t) + sizeof(uint64_t);

class Writer {
 public:
  template <class T>
  void put(T value) {
    put_bytes(reinterpret_cast<const std::byte*>(&value), sizeof value);
  }
  template <class T>
  void put_all(std::span<const T> values) {
    put_bytes(reinterpret_cast<const std::byte*>(values.data()), values.size_bytes());
  }
  void put_bytes(const std::byte* data, size_t bytes) { out_.insert(out_.end(), data, data + bytes); }
  std::vector<std::byte>& bytes() { return out_; }

 private:
  std::vector<std::byte> out_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}
  template <class T>
  T get() {
    T value;
    get_bytes(reinterpret_cast<std::byte*>(&value), sizeof value);
    return value;
  }
  /// Up to `most` numbers.
  template <class T>
  std::vector<T> get_all(int count, int most, std::string_view what) {
    if (count < 0 || count > most)
      throw FormatError(fmt::format("state gives {} {}, at most {} fit", count, what, most));
    need(static_cast<size_t>(count) * sizeof(T));
    std::vector<T> values(static_cast<size_t>(count));
    get_bytes(reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(T));
    return values;
  }
  void get_bytes(std::byte* out, size_t bytes) {
    if (bytes == 0) return;  // `out` may be null then
    need(bytes);
    std::memcpy(out, rest_.data(), bytes);
    rest_ = rest_.subspan(bytes);
  }
  void need(size_t bytes) const {
    if (rest_.size() < bytes) {
      throw FormatError(fmt::format("state ends early: {} bytes left, {} needed", rest_.size(), bytes));
    }
  }
  size_t left() const { return rest_.size(); }

 private:
  std::span<const std::byte> rest_;
};

// visit(offset, bytes) for every part of the units that hold rows `in_block`, the first of which a window may have cut.
template <class Visit>
void for_each_part(const BlockFormat& format, Range in_block, Visit&& visit) {
  const Range units{in_block.begin / format.unit_rows, in_block.end / format.unit_rows};
  for (int part = 0; part < BlockFormat::kParts; ++part) {
    const size_t bytes = format.part_bytes[static_cast<size_t>(part)] * static_cast<size_t>(units.size());
    if (bytes > 0) visit(format.offset(part, units.begin), bytes);
  }
}

void put_rows(Writer& writer, const BlockList& list) {
  const BlockFormat& format = list.codec().format();
  std::vector<std::byte> copy;
  list.for_each({list.begin(), list.end()}, [&](BlockView block, Range in_block, int) {
    const std::byte* data = block.data;
    if (block.layout != 0) {
      copy.assign(data, data + format.block_bytes());
      list.codec().unseal(copy.data());
      data = copy.data();
    }
    for_each_part(format, in_block, [&](size_t offset, size_t bytes) { writer.put_bytes(data + offset, bytes); });
  });
}

void get_rows(Reader& reader, BlockList& list, Range rows, const RowTable& table) {
  const BlockFormat& format = list.codec().format();
  int held = rows.size();
  for (int block = rows.begin / format.capacity_rows(); table.holes() > 0 && block < rows.end / format.capacity_rows();
       ++block) {
    const Range in{std::max(rows.begin, block * format.capacity_rows()), (block + 1) * format.capacity_rows()};
    if (in.size() == format.capacity_rows() && table.vacant(in)) held -= in.size();
  }
  reader.need(list.codec().bytes(held));  // before memory is asked for
  list.restore(
      rows,
      [&](std::byte* data, Range in_block) {
        for_each_part(format, in_block, [&](size_t offset, size_t bytes) { reader.get_bytes(data + offset, bytes); });
      },
      [&](Range block) { return table.vacant(block); });
}

void put_table(Writer& writer, const RowTable& table) {
  writer.put(table.size());
  if (table.listed()) {
    writer.put_all(table.listed_positions());
  } else {
    writer.put(static_cast<int32_t>(table.hole_rows().size()));
    writer.put_all(table.hole_rows());
  }
  writer.put(static_cast<int32_t>(table.scores().size()));
  writer.put_all(std::span<const float>(table.scores()));
}

void get_table(Reader& reader, RowTable& table, int consumed) {
  const auto size = reader.get<int32_t>();
  if (size < 0 || size > consumed) throw FormatError(fmt::format("state has {} rows of {} tokens", size, consumed));
  if (table.listed()) {
    const std::vector<int32_t> positions = reader.get_all<int32_t>(size, size, "positions");
    for (int32_t p : positions) {
      if (p < kNoPosition || p >= consumed) {
        throw FormatError(fmt::format("state has a row at position {} of {} tokens", p, consumed));
      }
      table.append(1, std::max(p, 0));
      if (p == kNoPosition) table.vacate(table.size() - 1);
    }
  } else {
    if (table.base() + size > std::max(consumed, table.base())) {
      throw FormatError(
          fmt::format("state has {} rows behind the first {} of {} tokens", size, table.base(), consumed));
    }
    table.append(size, table.base());
    int least = 0;
    for (int32_t row : reader.get_all<int32_t>(reader.get<int32_t>(), size, "holes")) {
      if (row < least || row >= size) throw FormatError(fmt::format("state has a hole at row {} of {}", row, size));
      table.vacate(row);
      least = row + 1;
    }
  }
  table.scores() = reader.get_all<float>(reader.get<int32_t>(), size, "scores");
  if (!table.scores().empty() && table.scores().size() != static_cast<size_t>(size)) {
    throw FormatError(fmt::format("state has {} scores for {} rows", table.scores().size(), size));
  }
}

}  // namespace

std::string KVCache::Layer::signature() const {
  std::string text = fmt::format("kv_heads={} dim_k={} dim_v={} store={} layer={}", shape_.kv_heads, shape_.dim_k,
                                 shape_.dim_v, to_string(store_), shape_.layer);
  if (shape_.value_is_key_prefix) text += " values=in_keys";
  for (const MethodSpec* part = &method_; part != nullptr; part = part->coding.get()) {
    text += fmt::format(" {}", part->def->name);
    for (const OptionSpec& option : part->options.specs()) {
      if (std::ranges::find(kChangeNoByte, option.name) != std::end(kChangeNoByte)) continue;
      text += fmt::format(" {}={}", option.name, to_string(part->options.value(option.name)));
    }
  }
  return text;
}

std::vector<std::byte> KVCache::Layer::state() const {
  Writer body;
  const std::string text = signature();
  body.put(static_cast<uint32_t>(text.size()));
  body.put_bytes(reinterpret_cast<const std::byte*>(text.data()), text.size());
  body.put(static_cast<uint32_t>(batch()));
  for (const Sequence& sequence : sequences_) {
    body.put(sequence.seq);
    body.put(sequence.consumed);
    body.put(sequence.front);
    body.put(sequence.pooled());
    body.put_all(std::span<const int32_t>(sequence.pool));
    for (const RowTable& table : sequence.tables) put_table(body, table);
    for (size_t i = 0; i < sequence.sides.size(); i += kSidesOfHead / sides().size()) {
      const StreamSide& stream = sequence.sides[i];
      put_rows(body, stream.pool);
      body.put(stream.coded.end());
      if (stream.fitted) {
        const std::vector<std::byte> fitted = stream.fitted->fitted_state();
        body.put(static_cast<int32_t>(fitted.size()));
        body.put_bytes(fitted.data(), fitted.size());
      }
      put_rows(body, stream.coded);
      put_rows(body, stream.exact);
    }
  }
  Writer out;
  out.put_bytes(reinterpret_cast<const std::byte*>(kMagic), sizeof kMagic);
  out.put(kVersion);
  out.put(static_cast<uint64_t>(XXH64(body.bytes().data(), body.bytes().size(), 0)));
  out.put_bytes(body.bytes().data(), body.bytes().size());
  return std::move(out.bytes());
}

// What no cache of this method could have written.
void KVCache::Layer::check_restored(const Sequence& sequence) const {
  const auto fail = [](const std::string& what) { throw FormatError("state " + what); };
  const int pooled = sequence.pooled();
  const int room = recipe_.sink_pool ? recipe_.sink_pool->capacity() : recipe_.sink_window.sinks;
  if (pooled > room) fail(fmt::format("has {} rows in a pool for {}", pooled, room));
  const bool scored = recipe_.sink_pool || (recipe_.retention && scorer().stored());
  for (const RowTable& table : sequence.tables) {
    if (table.scores().size() != (scored ? static_cast<size_t>(table.size()) : 0)) {
      fail(fmt::format("has {} scores for {} rows", table.scores().size(), table.size()));
    }
    if (table.listed()) continue;
    const int expected = table.size() > 0 ? table.base() + table.size() : recipe_.sink_pool ? 0 : pooled;
    if (expected != sequence.consumed) {
      fail(fmt::format("has {} rows in the pool and {} behind it of {} tokens", pooled, table.size(),
                       sequence.consumed));
    }
    std::vector<int32_t> holes;
    for (int32_t position : sequence.pool) holes.push_back(position - table.base());
    std::sort(holes.begin(), holes.end());
    if (!recipe_.sink_pool) holes.clear();
    if (!std::ranges::equal(holes, table.hole_rows())) fail("has a pool of other rows than are missing");
  }
  for (int i = 0; !recipe_.sink_pool && i < pooled; ++i) {
    if (sequence.pool[static_cast<size_t>(i)] != i) fail(fmt::format("has a pool that does not begin the sequence"));
  }
  const int window = recipe_.sink_window.window, size = sequence.table(0).size();
  if (!pops_front() && sequence.front != (window > 0 ? std::max(0, size - window) : 0)) {
    fail(fmt::format("has a window from row {} of {}", sequence.front, size));
  }
  for (int head = 0; recipe_.sink_pool && head < shape_.kv_heads; ++head) {
    if (sequence.side(head, Side::value).coded.end() > sequence.side(head, Side::key).coded.end()) {
      fail("codes values of rows whose keys are exact");
    }
  }
}

std::vector<Sequence> KVCache::Layer::read_state(std::span<const std::byte> bytes) const {
  Reader reader(bytes);
  char magic[sizeof kMagic];
  reader.get_bytes(reinterpret_cast<std::byte*>(magic), sizeof magic);
  if (std::memcmp(magic, kMagic, sizeof magic) != 0)
    throw FormatError("not the state of a cache: it has another magic");
  const auto version = reader.get<uint32_t>();
  if (version != kVersion)
    throw FormatError(fmt::format("state has version {}, this library reads {}", version, kVersion));
  const auto hash = reader.get<uint64_t>();
  if (hash != XXH64(bytes.data() + kHeaderBytes, reader.left(), 0))
    throw FormatError("state is damaged: its hash differs");

  std::string text(std::min<size_t>(reader.get<uint32_t>(), reader.left()), '\0');
  reader.get_bytes(reinterpret_cast<std::byte*>(text.data()), text.size());
  if (text != signature()) {
    throw FormatError(fmt::format("state of another cache: it holds '{}', this cache is '{}'", text, signature()));
  }
  const auto count = reader.get<uint32_t>();
  if (count > reader.left()) throw FormatError(fmt::format("state names {} batch rows, more than it can hold", count));
  std::vector<Sequence> restored;
  for (uint32_t b = 0; b < count; ++b) {
    Sequence sequence = new_sequence(reader.get<uint32_t>());
    sequence.consumed = reader.get<int32_t>();
    if (sequence.consumed < 0)
      throw FormatError(fmt::format("state gives batch row {} {} tokens", b, sequence.consumed));
    sequence.front = reader.get<int32_t>();
    sequence.pool = reader.get_all<int32_t>(reader.get<int32_t>(), sequence.consumed, "pool rows");
    for (RowTable& table : sequence.tables) get_table(reader, table, sequence.consumed);
    if (sequence.front < 0 || sequence.front > sequence.table(0).size()) {  // list ranges need it
      throw FormatError(fmt::format("state has a window from row {} of {}", sequence.front, sequence.table(0).size()));
    }
    for (size_t i = 0; i < sequence.sides.size(); i += kSidesOfHead / sides().size()) {
      StreamSide& stream = sequence.sides[i];
      const Side side = i % 2 == 0 ? Side::key : Side::value;
      const RowTable& table = sequence.table(static_cast<int>(i / 2));
      get_rows(reader, stream.pool, {0, sequence.pooled()}, RowTable());
      const auto frontier = reader.get<int32_t>();
      const int unit = coded(side).format().unit_rows;
      if (frontier < 0 || frontier > table.size() || frontier % unit != 0) {
        throw FormatError(fmt::format("state codes {} of {} rows, in units of {}", frontier, table.size(), unit));
      }
      if (stream.coded.codec().fit_rows() > 0 && frontier > 0) {
        stream.fitted = stream.coded.codec().fit_from(
            reader.get_all<std::byte>(reader.get<int32_t>(), kMostFitted, "bytes of a fit"));
        stream.coded.use(*stream.fitted);
      }
      get_rows(reader, stream.coded, {std::min(sequence.front, frontier), frontier}, table);
      const bool seals = recipe_.placement->frontier(side, 1 << 30) > 0;
      get_rows(reader, stream.exact, {seals ? frontier : sequence.front, table.size()}, table);
    }
    check_restored(sequence);
    restored.push_back(std::move(sequence));
  }
  if (reader.left() != 0) throw FormatError(fmt::format("state has {} bytes too many", reader.left()));
  return restored;
}

void KVCache::Layer::set_state(std::span<const std::byte> bytes) {
  std::vector<Sequence> restored = read_state(bytes);
  reset();
  sequences_ = std::move(restored);
}

}  // namespace veloxquant
