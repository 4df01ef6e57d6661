// NaturalLess of file_selection.h.
#include "absl/strings/ascii.h"

#include "checkpoint/file_selection.h"

namespace forestage {
namespace {

bool IsDigit(char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); }

// Takes the digits at the beginning of `text`, leading zeros stripped.
absl::string_view TakeNumber(absl::string_view* text) {
  size_t end = 0;
  while (end < text->size() && IsDigit((*text)[end])) ++end;
  absl::string_view number = text->substr(0, end);
  text->remove_prefix(end);
  while (number.size() > 1 && number.front() == '0') number.remove_prefix(1);
  return number;
}

}  // namespace

bool NaturalLess(absl::string_view a, absl::string_view b) {
  absl::string_view rest_a = a;
  absl::string_view rest_b = b;
  while (!rest_a.empty() && !rest_b.empty()) {
    if (IsDigit(rest_a.front()) && IsDigit(rest_b.front())) {
      const absl::string_view number_a = TakeNumber(&rest_a);
      const absl::string_view number_b = TakeNumber(&rest_b);
      if (number_a.size() != number_b.size()) return number_a.size() < number_b.size();
      if (number_a != number_b) return number_a < number_b;
    } else {
      const unsigned char c = static_cast<unsigned char>(rest_a.front());
      const unsigned char d = static_cast<unsigned char>(rest_b.front());
      if (c != d) return c < d;
      rest_a.remove_prefix(1);
      rest_b.remove_prefix(1);
    }
  }
  if (rest_a.empty() != rest_b.empty()) return rest_a.empty();
  // Equal by value: 1 and 01. Some order, always the same.
  return a < b;
}

}  // namespace forestage
