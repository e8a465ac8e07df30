#include "io/npy.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

#include "core/text.h"
#include "io/file.h"
#include "veloxquant/errors.h"

namespace veloxquant {
namespace {

constexpr size_t kLongestHeader = 64 * 1024;
constexpr size_t kLargestFile = size_t{1} << 34;

[[noreturn]] void fail(const std::string& name, std::string_view problem) {
  throw FormatError(fmt::format("{}: {}", name, problem));
}

struct Header {
  std::string_view descr, order;  ///< "<f2" and "False" as they stand
  std::optional<std::vector<int64_t>> shape;
};

/// Reads the Python dictionary of a header: {'descr': '<f2', 'fortran_order': False, 'shape': (3, 4), }.
class HeaderReader {
 public:
  HeaderReader(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  Header read() {
    want('{');
    while (!take('}')) {
      const std::string_view key = string();
      want(':');
      field(key);
      if (!take(',')) {
        want('}');
        break;
      }
    }
    return header_;
  }

 private:
  void field(std::string_view key) {
    if (key == "descr") {
      header_.descr = string();
    } else if (key == "fortran_order") {
      header_.order = word();
    } else if (key == "shape") {
      header_.shape = tuple();
    } else {
      fail(name_, fmt::format("unknown header field {}", quote(key)));
    }
  }

  std::string_view string() {
    want('\'');
    const size_t end = text_.find('\'', at_);
    if (end == std::string_view::npos) fail(name_, "the header is damaged: a text has no end");
    const std::string_view value = text_.substr(at_, end - at_);
    at_ = end + 1;
    return value;
  }

  std::string_view word() {
    skip_blanks();
    const size_t begin = at_;
    at_ = std::min(text_.find_first_of(",} ", at_), text_.size());
    return text_.substr(begin, at_ - begin);
  }

  std::vector<int64_t> tuple() {
    constexpr size_t kMostDimensions = 8;
    want('(');
    std::vector<int64_t> shape;
    while (!take(')')) {
      skip_blanks();
      int64_t n = 0;
      const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), n);
      if (error != std::errc{} || n < 0) fail(name_, "the header is damaged: wanted sizes >= 0 as shape");
      at_ = static_cast<size_t>(end - text_.data());
      shape.push_back(n);
      if (shape.size() > kMostDimensions) fail(name_, fmt::format("more than {} dimensions", kMostDimensions));
      if (!take(',')) {
        want(')');
        break;
      }
    }
    return shape;
  }

  void skip_blanks() {
    while (at_ < text_.size() && trimmed(text_.substr(at_, 1)).empty()) ++at_;
  }
  bool take(char c) {
    skip_blanks();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void want(char c) {
    if (!take(c)) fail(name_, fmt::format("the header is damaged: expected '{}' at its byte {}", c, at_ + 1));
  }

  std::string_view text_;
  const std::string& name_;
  size_t at_ = 0;
  Header header_;
};

NpyType type_of(std::string_view descr, const std::string& name) {
  if (descr == "<f2") return NpyType::f16;
  if (descr == "<f4") return NpyType::f32;
  if (descr == "<i4") return NpyType::i32;
  fail(name, fmt::format("element type is {}, wanted '<f2', '<f4' or '<i4'", quote(descr)));
}

/// Bytes of the elements; refuses what does not fit a file.
size_t data_bytes(const NpyArray& array, const std::string& name) {
  size_t bytes = size_of(array.type);
  for (const int64_t n : array.shape) {
    if (n != 0 && bytes > kLargestFile / static_cast<size_t>(n)) {
      fail(name, fmt::format("shape {} is too large", shape_text(array.shape)));
    }
    bytes *= static_cast<size_t>(n);
  }
  return bytes;
}

/// Cuts the header's text off `bytes`.
std::string_view take_header(std::span<const std::byte>& bytes, const std::string& name) {
  constexpr std::string_view kMagic = "\x93NUMPY";
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!text.starts_with(kMagic)) fail(name, "not a .npy file");
  const auto byte = [&](size_t i) { return std::to_integer<size_t>(bytes[i]); };
  if (text.size() < 10) fail(name, "the file ends inside its header");
  if ((byte(6) != 1 && byte(6) != 2) || byte(7) != 0) {
    fail(name, fmt::format("format {}.{}, wanted 1.0 or 2.0", byte(6), byte(7)));
  }
  const size_t start = byte(6) == 1 ? 10 : 12;
  if (text.size() < start) fail(name, "the file ends inside its header");
  size_t length = byte(8) | byte(9) << 8;
  if (start == 12) length |= byte(10) << 16 | byte(11) << 24;
  if (length > kLongestHeader) {
    fail(name, fmt::format("a header of {} bytes, wanted {} at most", length, kLongestHeader));
  }
  if (text.size() - start < length) fail(name, "the file ends inside its header");
  bytes = bytes.subspan(start + length);
  return text.substr(start, length);
}

}  // namespace

std::string shape_text(std::span<const int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

NpyArray parse_npy(std::span<const std::byte> bytes, const std::string& name) {
  const Header header = HeaderReader(take_header(bytes, name), name).read();
  if (header.descr.empty() || header.order.empty() || !header.shape) {
    fail(name, "the header is damaged: wanted descr, fortran_order and shape");
  }
  if (header.order != "False") fail(name, fmt::format("fortran_order is {}, wanted False", quote(header.order)));
  NpyArray array{.type = type_of(header.descr, name), .shape = *header.shape, .data = {}};
  const size_t wanted = data_bytes(array, name);
  if (bytes.size() != wanted) {
    fail(name, fmt::format("{} bytes of data, wanted {} for {} {}", bytes.size(), wanted, to_string(array.type),
                           shape_text(array.shape)));
  }
  array.data.assign(bytes.begin(), bytes.end());
  return array;
}

NpyArray read_npy(const std::string& path) { return parse_npy(read_file(path, kLargestFile), path); }

}  // namespace veloxquant
