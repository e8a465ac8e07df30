// JSON configurations of foreign make: parsed within limits, and read with every problem noted.
#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace veloxquant {

/// A JSON object. Python's Infinity, -Infinity and NaN are read as null. Throws QuantizerConfigError for anything else,
/// for more than 16 MiB and for more than 64 levels.
nlohmann::json parse_config(std::string_view text);

/// Names of one thing, one after the other.
using Names = std::initializer_list<std::string_view>;
std::string listed(Names names);

/// Objects that stand for each other: what the first one does not have is looked for in the next. null is the same as a
/// missing key, but ends the search. The objects and the list of problems outlive this.
class Config {
 public:
  /// `path` stands before the names of keys in problems.
  explicit Config(std::vector<std::string>& problems, std::string path = {})
      : path_(std::move(path)), problems_(&problems) {}

  struct Found {
    std::string_view name;
    const nlohmann::json* value = nullptr;
    explicit operator bool() const { return value != nullptr; }
  };

  /// Without objects yet; its problems stand among the others.
  Config inner(std::string path) const { return Config(*problems_, std::move(path)); }

  void add(const nlohmann::json& object) { objects_.push_back(&object); }

  Found find(Names names) const;
  // Nothing where the key is missing; also where it has another type or is out of range, which is then a problem.
  std::optional<int> integer(Names names, int min, int max);
  std::optional<double> number(Names names);
  std::optional<std::string> text(Names names);
  std::optional<int> integer(const Found& found, int min, int max);
  std::optional<double> number(const Found& found);
  /// Whether it is there, and neither false nor zero nor empty.
  bool set(Names names) const;

  void problem(std::string text) { problems_->push_back(std::move(text)); }
  void wrong(const Found& found, std::string_view wanted);
  void missing(std::string_view what, Names names);

 private:
  std::string path_;
  std::vector<const nlohmann::json*> objects_;
  std::vector<std::string>* problems_;
};

}  // namespace veloxquant
