// The two families of public errors: bad configuration (checked once, at construction, all problems at
// once) and bad tensors, unsupported operations or broken files. Broken invariants of ours abort instead.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace veloxquant {

/// Bad configuration. `problems()` has one line each: name, given, allowed.
class QuantizerConfigError : public std::invalid_argument {
 public:
  explicit QuantizerConfigError(std::vector<std::string> problems);
  explicit QuantizerConfigError(std::string problem)
      : QuantizerConfigError(std::vector<std::string>{std::move(problem)}) {}
  const std::vector<std::string>& problems() const { return problems_; }

 private:
  std::vector<std::string> problems_;
};

/// A tensor holds what no cache can store (NaN, infinity).
struct ValueError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};
/// A tensor's shape does not fit the cache.
struct ShapeError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};
/// A call would store more rows than `capacity` allows; nothing was stored.
struct CapacityError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
/// The operation does not exist for this cache.
struct UnsupportedOperation : std::runtime_error {
  using std::runtime_error::runtime_error;
};
/// A file or a serialised state is damaged, of another version or of another configuration.
struct FormatError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace veloxquant
