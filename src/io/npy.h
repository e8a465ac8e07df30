// NumPy's .npy files, format 1.0 and 2.0: little endian, C order, f16, f32 and int32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace veloxquant {

enum class NpyType : uint8_t { f16, f32, i32 };
constexpr size_t size_of(NpyType type) { return type == NpyType::f16 ? 2 : 4; }
constexpr std::string_view to_string(NpyType type) {
  return type == NpyType::f16 ? "float16" : type == NpyType::f32 ? "float32" : "int32";
}

struct NpyArray {
  NpyType type = NpyType::f32;
  std::vector<int64_t> shape;
  std::vector<std::byte> data;  ///< product of shape elements
};

/// Reads an array out of the bytes of a file; `name` is what errors call it. Throws FormatError: what was found, what
/// was wanted.
NpyArray parse_npy(std::span<const std::byte> bytes, const std::string& name);
/// Throws std::runtime_error when the file can't be read, else as parse_npy.
NpyArray read_npy(const std::string& path);

/// "[1536, 3, 64]".
std::string shape_text(std::span<const int64_t> shape);

}  // namespace veloxquant
