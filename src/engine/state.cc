// The packed store as bytes: what is in memory, block by block in logical order, with the counts that say where it
// stands.
//
//   "VQSTATE\0" | u32 version | u64 XXH64 of the rest | u32 length + signature | u32 batch rows
//   per batch row: u32 seq | i32 start | i32 rows
//     per kv head, key then value: i32 coded rows | coded blocks | exact blocks
//   a block: its parts, cut to the units in use, in layout 0
//
// Row counts say how many blocks there are; nothing depends on the capacity or on unused bytes, so equal content gives
// equal bytes. The signature names method, options, element type and shape; another one is refused.
#include <bit>
#include <cstring>

#include <fmt/format.h>
#include <xxhash.h>

#include "engine/layer.h"
#include "veloxquant/errors.h"

namespace veloxquant {
namespace {

static_assert(std::endian::native == std::endian::little, "stored bytes are little-endian");

constexpr char kMagic[8] = "VQSTATE";
constexpr uint32_t kVersion = 1;
constexpr size_t kHeaderBytes = sizeof(kMagic) + sizeof(uint32_t) + sizeof(uint64_t);

class Writer {
 public:
  template <class T>
  void put(T value) {
    put_bytes(reinterpret_cast<const std::byte*>(&value), sizeof value);
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
  void get_bytes(std::byte* out, size_t bytes) {
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

// visit(offset, bytes) for every part of the units that hold rows `in_block`.
template <class Visit>
void for_each_part(const BlockFormat& format, Range in_block, Visit&& visit) {
  const Range units{in_block.begin / format.unit_rows, in_block.end / format.unit_rows};
  for (int part = 0; part < 4; ++part) {
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

void get_rows(Reader& reader, BlockList& list, Range rows) {
  reader.need(list.codec().bytes(rows.size()));  // before memory is asked for
  const BlockFormat& format = list.codec().format();
  list.restore(rows, [&](std::byte* data, Range in_block) {
    for_each_part(format, in_block, [&](size_t offset, size_t bytes) { reader.get_bytes(data + offset, bytes); });
  });
}

}  // namespace

std::string KVCache::Layer::signature() const {
  std::string text = fmt::format("{} kv_heads={} dim_k={} dim_v={} store={} layer={}", method_.def->name,
                                 shape_.kv_heads, shape_.dim_k, shape_.dim_v, to_string(store_), shape_.layer);
  for (const OptionSpec& option : method_.options.specs()) {
    // The store type is above; capacity and arithmetic change no byte.
    if (option.name != "dtype" && option.name != "capacity" && option.name != "attend_precision") {
      text += fmt::format(" {}={}", option.name, to_string(method_.options.value(option.name)));
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
    body.put(to_int(sequence.table.start()));
    body.put(sequence.rows);
    for (const StreamSide& stream : sequence.sides) {
      body.put(stream.coded.rows());
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

void KVCache::Layer::set_state(std::span<const std::byte> bytes) {
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
    sequence.table = RowTable(Pos{reader.get<int32_t>()});
    sequence.rows = reader.get<int32_t>();
    if (sequence.rows < 0) throw FormatError(fmt::format("state gives batch row {} {} rows", b, sequence.rows));
    for (size_t i = 0; i < sequence.sides.size(); ++i) {
      StreamSide& stream = sequence.sides[i];
      const Side side = i % 2 == 0 ? Side::key : Side::value;
      const auto frontier = reader.get<int32_t>();
      const int unit = coded(side).format().unit_rows;
      if (frontier < 0 || frontier > sequence.rows || frontier % unit != 0) {
        throw FormatError(fmt::format("state codes {} of {} rows, in units of {}", frontier, sequence.rows, unit));
      }
      get_rows(reader, stream.coded, {0, frontier});
      get_rows(reader, stream.exact, {frontier, sequence.rows});
    }
    restored.push_back(std::move(sequence));
  }
  if (reader.left() != 0) throw FormatError(fmt::format("state has {} bytes too many", reader.left()));
  reset();
  sequences_ = std::move(restored);
}

}  // namespace veloxquant
