// A decorator that fails as a bad device would.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "daemon/storage/read_faults.h"
#include "daemon/storage/storage_reader.h"

namespace forestage {

// Without faults it behaves as the reader that it decorates. See StorageReader for who may call
// what. Unlike a real reader it may go while requests are held: they are forgotten.
class FaultyStorageReader : public StorageReader {
 public:
  // `faults` outlives this object.
  FaultyStorageReader(std::unique_ptr<StorageReader> inner, ReadFaults& faults);
  ~FaultyStorageReader() override;

  absl::string_view name() const override { return inner_->name(); }
  size_t in_flight_max() const override { return inner_->in_flight_max(); }
  size_t in_flight() const override { return inner_->in_flight() + held_.size() + ended_.size(); }
  void Start(const ReadRequest& request) override;
  std::vector<ReadResult> Wait(absl::Time deadline) override;
  void Wake() override { inner_->Wake(); }
  void Cancel() override;

 private:
  struct Held {
    ReadRequest request;
    uint64_t release_count = 0;
    bool deaf = false;
  };
  // The second half of a request that was served short; keyed by tag.
  struct Rest {
    ReadRequest request;
    uint64_t storage_bytes = 0;
  };

  void LetGoOfHeld();
  // False when it was only the first half of a short read, whose second is now begun.
  bool FinishInner(ReadResult* result);

  ReadFaults& faults_;
  const std::unique_ptr<StorageReader> inner_;

  // The lane's thread only.
  std::vector<Held> held_;
  std::vector<ReadResult> ended_;
  std::map<uint64_t, Rest> rests_;

  // Any thread.
  std::atomic<bool> cancel_requested_ = false;
};

}  // namespace forestage
