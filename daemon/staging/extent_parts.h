// Which bytes of an extent: of those that are demanded in part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace forestage {

// A set of bytes of one extent: ranges, counted from its beginning, in order and apart from each
// other. Not thread-safe.
class ExtentParts {
 public:
  // [begin, end). An extent has at most kBoardExtentBytesMax bytes.
  struct Range {
    uint32_t begin = 0;
    uint32_t end = 0;

    friend bool operator==(const Range&, const Range&) = default;
  };

  ExtentParts() = default;
  // Requires: begin <= end.
  explicit ExtentParts(Range range);

  bool empty() const { return ranges_.empty(); }
  uint64_t bytes() const;
  const std::vector<Range>& ranges() const { return ranges_; }
  bool Covers(Range range) const;

  void Add(Range range);
  void Add(const ExtentParts& other);
  // Takes in the smallest gaps until so many ranges are left. Requires: ranges_max > 0.
  void Coarsen(size_t ranges_max);
  ExtentParts Intersect(const ExtentParts& other) const;
  ExtentParts Without(const ExtentParts& other) const;

  friend bool operator==(const ExtentParts&, const ExtentParts&) = default;

 private:
  std::vector<Range> ranges_;
};

}  // namespace forestage
