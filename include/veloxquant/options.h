// Options are declared once, as rows of a table, by the method that reads them. Checks, JSON, `--set`, help texts
// and documentation all come from the rows; there is no second list.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace veloxquant {

/// Numbers by row, the last index fastest: codebooks, factors, matrices.
struct ArrayValue {
  std::vector<int64_t> shape;
  std::vector<float> data;
  bool operator==(const ArrayValue&) const = default;
};
using IntegerList = std::vector<int64_t>;
using MapValue = std::map<std::string, std::variant<double, std::string>>;

/// monostate: not set and no default (the seed's None).
using OptionValue = std::variant<std::monostate, bool, int64_t, double, std::string, IntegerList, ArrayValue, MapValue>;
std::string to_string(const OptionValue&);

enum class OptionType : uint8_t { boolean, integer, real, choice, text, integers, array, map };

struct OptionSpec {
  std::string_view name;   ///< the flat name, e.g. "kivi_group_size"
  std::string_view alias;  ///< short name for --set and compositions, or empty
  OptionType type = OptionType::integer;
  OptionValue def;                        ///< monostate: None is the default and a legal value
  double min = 0, max = 0;                ///< inclusive range of integer and real, and of each of integers
  std::vector<std::string_view> choices;  ///< of choice
  std::string_view meaning;
  bool min_excluded = false;  ///< the range begins above min
  bool none_allowed = false;  ///< None is legal though not the default
  IntegerList allowed = {};   ///< of integer: these alone
  bool flat_only = false;     ///< a flat field that its method's options struct does not have
  bool per_layer = false;     ///< a list too, one number for each attention layer, where a whole model is built

  bool nullable() const { return none_allowed || std::holds_alternative<std::monostate>(def); }
  std::string range_text() const;  ///< "1..8", "block_flush | aligned_window", "true | false"

  // What the functions below make, with a difference.
  OptionSpec none_by_default() const;
  OptionSpec or_none() const;
  OptionSpec above_min() const;
  OptionSpec only(IntegerList values) const;
  OptionSpec beside_struct() const;
};

OptionSpec integer_option(std::string_view name, std::string_view alias, int64_t def, double min, double max,
                          std::string_view meaning);
OptionSpec real_option(std::string_view name, std::string_view alias, double def, double min, double max,
                       std::string_view meaning);
OptionSpec boolean_option(std::string_view name, std::string_view alias, bool def, std::string_view meaning);
/// The default is the first choice.
OptionSpec choice_option(std::string_view name, std::string_view alias, std::vector<std::string_view> choices,
                         std::string_view meaning);
OptionSpec text_option(std::string_view name, std::string_view alias, std::string_view def, std::string_view meaning);
/// Written 8:4:2 in a composition.
OptionSpec integers_option(std::string_view name, std::string_view alias, IntegerList def, double min, double max,
                           std::string_view meaning);
/// None by default; given in JSON or by a program, never in a composition.
OptionSpec array_option(std::string_view name, std::string_view meaning);
OptionSpec map_option(std::string_view name, std::string_view meaning);

/// The options of one method instance: declared rows with their values. Reads are counted, so that a declared
/// option nobody reads fails a test.
class Options {
 public:
  explicit Options(std::vector<OptionSpec> specs);

  /// Sets by flat name or alias. Returns the problem, or nothing when the value was taken.
  std::optional<std::string> set(std::string_view name, const OptionValue& value);
  /// Parses `text` by the option's type, then sets.
  std::optional<std::string> set_text(std::string_view name, std::string_view text);

  bool boolean(std::string_view name) const;
  int integer(std::string_view name) const;
  int64_t integer64(std::string_view name) const;
  double real(std::string_view name) const;
  const std::string& choice(std::string_view name) const;
  const std::string& text(std::string_view name) const;
  const IntegerList& integers(std::string_view name) const;
  bool has_value(std::string_view name) const;  ///< false: None
  bool explicitly_set(std::string_view name) const;

  const std::vector<OptionSpec>& specs() const { return specs_; }
  const OptionValue& value(std::string_view name) const;
  std::vector<std::string> unread() const;  ///< declared names nobody has read

 private:
  const OptionSpec* find(std::string_view name) const;
  std::vector<OptionSpec> specs_;
  std::map<std::string, OptionValue, std::less<>> values_;
  std::set<std::string, std::less<>> explicit_;
  mutable std::set<std::string, std::less<>> read_;
};

std::string_view to_string(OptionType);
/// What is wrong with a value of the option: "kivi_group_size: got '0', allowed 1..65536". A list is one value per
/// layer and legal only with `per_layer`.
std::optional<std::string> option_problem(const OptionSpec& spec, const OptionValue& value);

/// The candidate closest to `given` in edit distance, or empty when nothing is close.
std::string nearest(std::string_view given, std::span<const std::string> candidates);

}  // namespace veloxquant
