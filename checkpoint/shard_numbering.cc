#include "checkpoint/shard_numbering.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace forestage {
namespace {

struct NumberedName {
  std::string prefix;
  size_t digits = 0;
  uint32_t number = 0;
  uint32_t total = 0;
  std::string total_text;
};

// Takes the digits at the end of `text`.
absl::string_view TakeDigits(absl::string_view* text) {
  size_t begin = text->size();
  while (begin > 0 && absl::ascii_isdigit(static_cast<unsigned char>((*text)[begin - 1]))) --begin;
  const absl::string_view digits = text->substr(begin);
  text->remove_suffix(digits.size());
  return digits;
}

std::optional<NumberedName> ParseNumbered(absl::string_view name) {
  if (!absl::ConsumeSuffix(&name, ".safetensors")) return std::nullopt;
  NumberedName numbered;
  const absl::string_view total = TakeDigits(&name);
  if (!absl::SimpleAtoi(total, &numbered.total) || !absl::ConsumeSuffix(&name, "-of-"))
    return std::nullopt;
  const absl::string_view number = TakeDigits(&name);
  if (!absl::SimpleAtoi(number, &numbered.number) || !absl::ConsumeSuffix(&name, "-")) {
    return std::nullopt;
  }
  numbered.prefix = std::string(name);
  numbered.digits = number.size();
  numbered.total_text = std::string(total);
  return numbered;
}

std::string NameOf(const NumberedName& model, uint64_t number) {
  std::string digits = absl::StrCat(number);
  if (digits.size() < model.digits) digits.insert(0, model.digits - digits.size(), '0');
  return absl::StrCat(model.prefix, "-", digits, "-of-", model.total_text, ".safetensors");
}

struct NumberedSet {
  NumberedName model;
  std::set<uint64_t> numbers;
};

// The numbers [first, last] of a set that are not there, and those outside. Of the former names up
// to the limit of a list, then only a count, since a name may speak of four billion shards.
void AddFaults(const NumberedSet& set, uint64_t first, uint64_t last, NumberingFaults* faults) {
  uint64_t next = first;
  const auto add_until = [&](uint64_t end) {
    const uint64_t listed = std::min<uint64_t>(end - next, kOffendersListedMax);
    for (uint64_t i = 0; i < listed; ++i) {
      faults->missing.Add(QuotedName(NameOf(set.model, next + i)));
    }
    faults->missing.AddUnlisted(end - next - listed);
  };
  for (const uint64_t number : set.numbers) {
    if (number < first || number > last) {
      faults->out_of_count.Add(QuotedName(NameOf(set.model, number)));
      continue;
    }
    add_until(number);
    next = number + 1;
  }
  if (next <= last) add_until(last + 1);
}

}  // namespace

NumberingFaults CheckNumbering(absl::Span<const std::string> names) {
  std::map<std::tuple<std::string, std::string>, NumberedSet> sets;
  for (const std::string& name : names) {
    std::optional<NumberedName> numbered = ParseNumbered(name);
    if (!numbered.has_value()) continue;
    NumberedSet& set = sets[{numbered->prefix, numbered->total_text}];
    set.numbers.insert(numbered->number);
    set.model = *std::move(numbered);
  }
  NumberingFaults faults;
  for (const auto& [key, set] : sets) {
    const uint64_t total = set.model.total;
    const bool from_zero = set.numbers.count(0) > 0 && set.numbers.count(total) == 0 && total > 0;
    if (from_zero) {
      AddFaults(set, 0, total - 1, &faults);
    } else {
      AddFaults(set, 1, total, &faults);
    }
  }
  return faults;
}

}  // namespace forestage
