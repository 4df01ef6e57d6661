// What is learned of one mount while its files are read.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/strings/string_view.h"

#include "common/mount_probe.h"

namespace forestage {

// How the page cache is filled fastest on a mount.
enum class FillWay {
  kUnknown,  // nothing was read yet; the first block tells (see read_piece.h)
  // Page faults on a mapping under MADV_HUGEPAGE (Linux 5.18): one fault reads a whole aligned
  // block whatever read_ahead_kb is, into one huge page where the file system can, so it costs a
  // tenth of the CPU time of an advice, ranks map it with one entry, and its end says that the data
  // is there.
  kFaults,
  // Read-ahead advice, for file systems and kernels where a fault brings in less.
  kAdvice,
};
absl::string_view FillWayName(FillWay way);

// Thread-safe. One object a device while somebody holds it.
class Mount {
 public:
  // `device` as st_dev has it.
  static std::shared_ptr<Mount> For(uint64_t device);

  explicit Mount(uint64_t device) : device_(device) {}

  uint64_t device() const { return device_; }
  FillWay fill_way() const { return fill_way_.load(std::memory_order_relaxed); }
  // Logged when it is news.
  void Learn(FillWay way);

  // Whether a read of a file there has ever failed, as long as this process remembers: of so many
  // devices it does. The kernel may keep pages whose read failed, so each page is looked at then.
  bool read_failed() const { return read_failed_.load(std::memory_order_relaxed); }
  void SawReadFail();

 private:
  const uint64_t device_;
  std::atomic<FillWay> fill_way_ = FillWay::kUnknown;
  std::atomic<bool> read_failed_ = false;
};

}  // namespace forestage
