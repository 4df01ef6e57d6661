#include "forestage/slice.h"

#include "client/src/slice_state.h"

namespace forestage {

const std::vector<uint64_t>& Slice::shape() const { return state_->plan().shape(); }
uint64_t Slice::bytes() const { return state_->plan().bytes(); }
bool Slice::contiguous() const { return state_->plan().contiguous(); }
size_t Slice::tensor_index() const { return state_->tensor_index(); }

absl::StatusOr<SliceView> Slice::View(absl::Time deadline) const { return state_->View(deadline); }

absl::Status Slice::CopyTo(absl::Span<std::byte> destination, absl::Time deadline) const {
  return state_->CopyTo(destination, deadline);
}

}  // namespace forestage
