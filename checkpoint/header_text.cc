// The schema as the reference has it: an object with an optional, nullable "__metadata__" (strings
// only, never twice) and otherwise tensors. Each tensor is an object with exactly one "dtype",
// "shape" and "data_offsets" and any number of other fields, or an array of the three. Entries
// whose name occurs again are read as strictly as the others, then forgotten.
#include "checkpoint/header_text.h"

#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

#include "checkpoint/json_scanner.h"
#include "checkpoint/offender_list.h"

namespace forestage {
namespace {

using Kind = JsonScanner::Kind;
using Step = JsonScanner::Step;

constexpr absl::string_view kMetadataKey = "__metadata__";
// A header that was never sound has many; the first ones tell.
constexpr size_t kBrokenTensorsListedMax = 10;

// One pass over a header's text.
class HeaderTextReader {
 public:
  explicit HeaderTextReader(absl::string_view text) : scanner_(text) {}

  absl::StatusOr<HeaderText> Read() {
    if (!ReadRoot()) AddFault(scanner_.error());
    if (!faults_.empty()) return absl::InvalidArgumentError(faults_.Text());
    return std::move(header_);
  }

 private:
  bool ReadRoot() {
    if (!scanner_.BeginObject()) return false;
    absl::string_view key;
    Step step;
    while ((step = scanner_.NextKey(&key)) == Step::kItem) {
      if (key == kMetadataKey) {
        where_ = std::string(kMetadataKey);
        if (!ReadMetadata()) return false;
      } else {
        HeaderTensor& tensor = header_.tensors.emplace_back();
        tensor.name.assign(key.data(), key.size());
        in_tensor_ = true;
        if (!ReadTensor(&tensor)) return false;
        in_tensor_ = false;
      }
      where_.clear();
    }
    return step == Step::kEnd && scanner_.ReadEnd();
  }

  // What breaks the schema and leaves the rest readable does not end the reading.
  void AddFault(absl::string_view what) {
    if (in_tensor_) where_ = absl::StrCat("tensor ", QuotedName(header_.tensors.back().name));
    if (faults_.count() < kBrokenTensorsListedMax) {
      faults_.Add(where_.empty() ? std::string(what) : absl::StrCat(where_, ": ", what));
    } else {
      faults_.AddUnlisted(1);
    }
  }

  bool ReadMetadata() {
    if (saw_metadata_) return scanner_.Fail("occurs twice");
    saw_metadata_ = true;
    if (scanner_.Peek() == Kind::kNull) return scanner_.ReadNull();
    if (!scanner_.BeginObject()) return false;
    auto& metadata = header_.metadata.emplace();
    absl::string_view key;
    absl::string_view value;
    Step step;
    while ((step = scanner_.NextKey(&key)) == Step::kItem) {
      const std::string name(key);
      const Kind kind = scanner_.Peek();
      if (kind != Kind::kString && kind != Kind::kNone) {
        AddFault(scanner_.Here(absl::StrCat("expected a string for ", QuotedName(name))));
        if (!scanner_.SkipValue()) return false;
        continue;
      }
      if (!scanner_.ReadString(&value)) return false;
      metadata[name].assign(value.data(), value.size());
    }
    return step == Step::kEnd;
  }

  bool ReadTensor(HeaderTensor* tensor) {
    if (scanner_.Peek() == Kind::kArray) return ReadTensorArray(tensor);
    if (!scanner_.BeginObject()) return false;
    bool saw_dtype = false;
    bool saw_shape = false;
    bool saw_offsets = false;
    absl::string_view key;
    Step step;
    while ((step = scanner_.NextKey(&key)) == Step::kItem) {
      bool read;
      if (key == "dtype") {
        read = First(&saw_dtype, key) && ReadDtype(&tensor->dtype);
      } else if (key == "shape") {
        read = First(&saw_shape, key) && ReadShape(&tensor->shape);
      } else if (key == "data_offsets") {
        read = First(&saw_offsets, key) && ReadOffsets(tensor);
      } else {
        read = scanner_.SkipValue();
      }
      if (!read) return false;
    }
    if (step != Step::kEnd) return false;
    if (!saw_dtype) AddFault(scanner_.Here("no field dtype"));
    if (!saw_shape) AddFault(scanner_.Here("no field shape"));
    if (!saw_offsets) AddFault(scanner_.Here("no field data_offsets"));
    return true;
  }

  bool ReadTensorArray(HeaderTensor* tensor) {
    return scanner_.BeginArray() && NextOf(3) && ReadDtype(&tensor->dtype) && NextOf(3) &&
           ReadShape(&tensor->shape) && NextOf(3) && ReadOffsets(tensor) && EndOf(3);
  }

  bool First(bool* saw, absl::string_view field) {
    if (*saw) return scanner_.Fail(absl::StrCat("field ", field, " occurs twice"));
    *saw = true;
    return true;
  }

  // One more element of an array of `count`.
  bool NextOf(int count) {
    const Step step = scanner_.NextElement();
    if (step == Step::kEnd) return scanner_.Fail(absl::StrCat("an array of fewer than ", count));
    return step == Step::kItem;
  }
  bool EndOf(int count) {
    const Step step = scanner_.NextElement();
    if (step == Step::kItem) return scanner_.Fail(absl::StrCat("an array of more than ", count));
    return step == Step::kEnd;
  }

  // "I32", or {"I32": null}, which the reference takes as well.
  bool ReadDtype(Dtype* dtype) {
    absl::string_view name;
    if (scanner_.Peek() != Kind::kObject)
      return scanner_.ReadString(&name) && FindDtype(name, dtype);
    if (!scanner_.BeginObject()) return false;
    Step step = scanner_.NextKey(&name);
    if (step == Step::kEnd) return scanner_.Fail("an empty object as dtype");
    if (step == Step::kError || !FindDtype(name, dtype) || !scanner_.ReadNull()) return false;
    step = scanner_.NextKey(&name);
    if (step == Step::kItem) return scanner_.Fail("an object of more than one key as dtype");
    return step == Step::kEnd;
  }

  bool FindDtype(absl::string_view name, Dtype* dtype) {
    const std::optional<Dtype> found = DtypeFromName(name);
    if (found.has_value()) {
      *dtype = *found;
    } else {
      AddFault(scanner_.Here(absl::StrCat("unknown dtype ", QuotedName(name))));
    }
    return true;
  }

  bool ReadShape(std::vector<uint64_t>* shape) {
    if (!scanner_.BeginArray()) return false;
    Step step;
    while ((step = scanner_.NextElement()) == Step::kItem) {
      uint64_t dimension;
      if (!scanner_.ReadUnsigned(&dimension)) return false;
      shape->push_back(dimension);
    }
    return step == Step::kEnd;
  }

  bool ReadOffsets(HeaderTensor* tensor) {
    return scanner_.BeginArray() && NextOf(2) && scanner_.ReadUnsigned(&tensor->begin) &&
           NextOf(2) && scanner_.ReadUnsigned(&tensor->end) && EndOf(2);
  }

  JsonScanner scanner_;
  HeaderText header_;
  bool saw_metadata_ = false;
  // The entry that is being read: "__metadata__", or the last tensor.
  std::string where_;
  bool in_tensor_ = false;
  OffenderList faults_;
};

// Keeps the last tensor of every name.
void ForgetRepeated(HeaderText* header) {
  absl::flat_hash_map<absl::string_view, size_t> last;
  last.reserve(header->tensors.size());
  std::vector<bool> forgotten(header->tensors.size());
  bool any = false;
  for (size_t i = 0; i < header->tensors.size(); ++i) {
    const auto [place, inserted] = last.try_emplace(header->tensors[i].name, i);
    if (inserted) continue;
    if (!forgotten[place->second] && header->repeated_names.size() < kOffendersListedMax) {
      header->repeated_names.push_back(header->tensors[i].name);
    }
    forgotten[place->second] = true;
    place->second = i;
    any = true;
  }
  if (!any) return;
  size_t kept = 0;
  for (size_t i = 0; i < header->tensors.size(); ++i) {
    if (forgotten[i]) continue;
    if (kept != i) header->tensors[kept] = std::move(header->tensors[i]);
    ++kept;
  }
  header->tensors.resize(kept);
}

}  // namespace

absl::StatusOr<HeaderText> ReadHeaderText(absl::string_view text) {
  absl::StatusOr<HeaderText> header = HeaderTextReader(text).Read();
  if (header.ok()) ForgetRepeated(&*header);
  return header;
}

}  // namespace forestage
