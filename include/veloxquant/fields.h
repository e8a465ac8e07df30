// The flat fields of KVCacheConfig: their order is the original system's, everything else about a field is said by the
// methods that read it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "veloxquant/options.h"

namespace veloxquant {

struct MethodDef;

/// One of the 225 fields.
struct FlatField {
  std::string_view name;
  const OptionSpec* spec = nullptr;       ///< null: an object (store, observers, options)
  std::vector<const MethodDef*> methods;  ///< that read it; empty: every method has it
};

/// In the order of the original system's constructor.
const std::vector<FlatField>& flat_fields();
/// Null where the name is not one of them.
const FlatField* find_field(std::string_view name);
/// Options of methods that the original system does not have, by name, sorted.
const std::vector<std::string>& extension_names();

/// A group of fields that belong to one method or to a family of it, such as H2OOptions.
struct OptionsStruct {
  std::string_view name;
  std::vector<const MethodDef*> methods;
  std::vector<const FlatField*> fields;  ///< in the order of flat_fields()
};
const std::vector<OptionsStruct>& options_structs();

}  // namespace veloxquant
