// Bytes that come in from outside and go out: the first look at a model file, and text that is cut at token borders.
#pragma once

#include <string>
#include <string_view>

namespace veloxquant::llama {

/// Throws std::runtime_error naming the file and what is wrong: missing, a folder, unreadable, empty, cut short before
/// the end of the header, or of another format (by its magic).
void check_model_file(const std::string& path);

/// Turns pieces of text that may end inside a character into pieces of valid UTF-8. Bytes that can't belong to a
/// character become U+FFFD.
class Utf8Stream {
 public:
  /// The characters that are complete now.
  std::string push(std::string_view bytes);
  /// What is left at the end: nothing or one U+FFFD.
  std::string finish();

 private:
  std::string pending_;  ///< the start of a character
};

}  // namespace veloxquant::llama
