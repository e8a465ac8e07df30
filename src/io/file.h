// Whole files, with the system's reason in every error.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace veloxquant {

/// Everything in the file. Throws std::runtime_error; also when there are more than `limit` bytes.
std::vector<std::byte> read_file(const std::string& path, size_t limit);

/// Refuses a path that write_file could not write. Leaves no file behind. Throws std::runtime_error.
void check_writable(const std::string& path);
/// All or nothing: writes to a temporary name beside the file, checks every write, the flush to the disk and the close,
/// then renames. A device or pipe is written as it is. Throws std::runtime_error.
void write_file(const std::string& path, std::string_view text);

}  // namespace veloxquant
