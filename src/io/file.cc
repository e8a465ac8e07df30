#include "io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace veloxquant {
namespace {

[[noreturn]] void fail(std::string_view what, const std::string& path, int error = errno) {
  throw std::runtime_error(fmt::format("can't {} {}: {}", what, path, std::generic_category().message(error)));
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  /// False when the last bytes were lost.
  bool close() { return ::close(std::exchange(fd_, -1)) == 0; }

 private:
  int fd_;
};

/// Removes what it names unless it was kept.
class TemporaryName {
 public:
  explicit TemporaryName(const std::string& target) : name_(fmt::format("{}.tmp-{}", target, ::getpid())) {}
  ~TemporaryName() {
    if (!name_.empty()) ::unlink(name_.c_str());
  }
  TemporaryName(const TemporaryName&) = delete;
  TemporaryName& operator=(const TemporaryName&) = delete;
  const char* get() const { return name_.c_str(); }
  void keep() { name_.clear(); }

 private:
  std::string name_;
};

bool is_device(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
}

/// The file itself where `path` is a link to it: a rename must not replace the link.
std::string resolved(const std::string& path) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::weakly_canonical(path, error);
  return error ? path : real.string();
}

void write_all(int fd, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("write", path);
    text.remove_prefix(static_cast<size_t>(n));
  }
}

int create(const TemporaryName& name) { return ::open(name.get(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666); }

void write_device(const std::string& path, std::string_view text) {
  Descriptor out(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (out.get() < 0) fail("write", path);
  write_all(out.get(), text, path);
  if (!out.close()) fail("write", path);
}

}  // namespace

std::vector<std::byte> read_file(const std::string& path, size_t limit) {
  constexpr size_t kStep = size_t{1} << 20;
  const Descriptor in(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (in.get() < 0) fail("read", path);
  struct stat info {};
  std::vector<std::byte> bytes;
  if (::fstat(in.get(), &info) == 0 && S_ISREG(info.st_mode)) {
    bytes.reserve(std::min(static_cast<size_t>(info.st_size), limit) + 1);
  }
  for (size_t size = 0;;) {
    bytes.resize(std::min(std::max(bytes.capacity(), size + kStep), limit + 1));
    const ssize_t n = ::read(in.get(), bytes.data() + size, bytes.size() - size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("read", path);
    size += static_cast<size_t>(n);
    if (size > limit) throw std::runtime_error(fmt::format("can't read {}: more than {} bytes", path, limit));
    if (n == 0) {
      bytes.resize(size);
      return bytes;
    }
  }
}

void check_writable(const std::string& path) {
  if (path.empty()) fail("write", "''", ENOENT);
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) fail("write", path, EISDIR);
  if (std::filesystem::exists(path, error) && ::access(path.c_str(), W_OK) != 0) fail("write", path);
  if (is_device(path)) return;
  const TemporaryName name(resolved(path));
  const Descriptor out(create(name));
  if (out.get() < 0) fail("write", path);
}

void write_file(const std::string& path, std::string_view text) {
  if (is_device(path)) return write_device(path, text);
  const std::string target = resolved(path);
  TemporaryName name(target);
  Descriptor out(create(name));
  if (out.get() < 0) fail("write", path);
  write_all(out.get(), text, path);
  if (::fsync(out.get()) != 0) fail("write", path);
  if (!out.close()) fail("write", path);
  if (::rename(name.get(), target.c_str()) != 0) fail("write", path);
  name.keep();
}

}  // namespace veloxquant
