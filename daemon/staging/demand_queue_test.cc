#include "daemon/staging/demand_queue.h"

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/units.h"

namespace forestage {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kExtent = 64 * kKiB;
constexpr uint32_t kPage = 4 * kKiB;

ExtentParts Parts(const std::vector<ExtentParts::Range>& ranges) {
  ExtentParts parts;
  for (const ExtentParts::Range& range : ranges) parts.Add(range);
  return parts;
}

// Ten extents; the last one is half as long.
class DemandQueueTest : public ::testing::Test {
 protected:
  std::vector<uint64_t> TakeAll() {
    std::vector<uint64_t> extents;
    while (const auto taken = queue_.Take()) extents.push_back(taken->extent);
    return extents;
  }
  void TakeAndFinishAll(ReadOutcome outcome) {
    for (const uint64_t extent : TakeAll()) queue_.Finish(extent, outcome);
  }

  const ExtentMap extents_{{5 * kExtent, 4 * kExtent + kExtent / 2}, kExtent};
  DemandQueue queue_{extents_};
};

TEST_F(DemandQueueTest, GivesOutADemandInItsOrder) {
  queue_.Add(1, {5, 7});
  queue_.Add(1, {0, 2});
  EXPECT_THAT(TakeAll(), ElementsAre(5, 6, 0, 1));
}

TEST_F(DemandQueueTest, GivesOutNothingWithoutADemand) {
  EXPECT_EQ(queue_.Take(), std::nullopt);
  queue_.Add(1, {3, 3});
  EXPECT_EQ(queue_.Take(), std::nullopt);
}

TEST_F(DemandQueueTest, GivesOutAnExtentOnceHoweverOftenItIsDemanded) {
  queue_.Add(1, {0, 3});
  queue_.Add(1, {2, 4});
  queue_.Add(2, {0, 5});
  std::vector<uint64_t> taken = TakeAll();
  std::sort(taken.begin(), taken.end());
  EXPECT_THAT(taken, ElementsAre(0, 1, 2, 3, 4));
}

TEST_F(DemandQueueTest, TakesSessionsInTurn) {
  queue_.Add(1, {0, 3});
  queue_.Add(2, {5, 8});
  queue_.Add(9, {9, 10});
  EXPECT_THAT(TakeAll(), ElementsAre(0, 5, 9, 1, 6, 2, 7));
}

TEST_F(DemandQueueTest, ASecondSessionThatWantsTheSameGoesOnWithWhatTheFirstHasNotReached) {
  queue_.Add(1, {0, 6});
  queue_.Add(2, {0, 6});
  EXPECT_THAT(TakeAll(), ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST_F(DemandQueueTest, UrgentExtentsGoFirst) {
  queue_.Add(1, {0, 4});
  queue_.AddUrgent(1, 3);
  queue_.AddUrgent(2, 8);
  EXPECT_EQ(queue_.Take(), (DemandQueue::Taken{.extent = 3, .cause = ReadCause::kDemand}));
  EXPECT_EQ(queue_.Take(), (DemandQueue::Taken{.extent = 8, .cause = ReadCause::kDemand}));
  EXPECT_EQ(queue_.Take(), (DemandQueue::Taken{.extent = 0, .cause = ReadCause::kStage}));
  EXPECT_THAT(TakeAll(), ElementsAre(1, 2));
}

TEST_F(DemandQueueTest, AnUrgentExtentThatIsBeingReadOrResidentIsNotReadAgain) {
  queue_.Add(1, {0, 1});
  ASSERT_TRUE(queue_.Take().has_value());
  queue_.AddUrgent(1, 0);
  EXPECT_EQ(queue_.Take(), std::nullopt);
  queue_.Finish(0, ReadOutcome::kResident);
  queue_.AddUrgent(1, 0);
  EXPECT_EQ(queue_.Take(), std::nullopt);
}

TEST_F(DemandQueueTest, UrgentAgainAndAgainIsReadOnce) {
  for (int i = 0; i < 1000; ++i) queue_.AddUrgent(1, 4);
  EXPECT_THAT(TakeAll(), ElementsAre(4));
}

TEST_F(DemandQueueTest, AFailedExtentIsTriedAgainWhenDemandedAgain) {
  queue_.Add(1, {0, 2});
  TakeAndFinishAll(ReadOutcome::kFailed);
  EXPECT_EQ(queue_.failed_bytes(), 2 * kExtent);
  EXPECT_EQ(queue_.Take(), std::nullopt);
  queue_.Add(1, {1, 2});
  EXPECT_EQ(queue_.failed_bytes(), kExtent);
  EXPECT_THAT(TakeAll(), ElementsAre(1));
  queue_.AddUrgent(2, 0);
  EXPECT_THAT(TakeAll(), ElementsAre(0));
  EXPECT_EQ(queue_.failed_bytes(), 0u);
}

TEST_F(DemandQueueTest, ACancelledExtentIsReadAgainWhenDemandedAgain) {
  queue_.Add(1, {0, 1});
  TakeAndFinishAll(ReadOutcome::kCancelled);
  EXPECT_EQ(queue_.Take(), std::nullopt);
  queue_.Add(1, {0, 1});
  EXPECT_THAT(TakeAll(), ElementsAre(0));
}

TEST_F(DemandQueueTest, WhatNobodyDemandsAnyMoreIsNotRead) {
  queue_.Add(1, {0, 5});
  queue_.Add(2, {3, 7});
  queue_.AddUrgent(1, 9);
  EXPECT_THAT(queue_.RemoveSession(1).idle, ElementsAre(ExtentRange{0, 3}, ExtentRange{9, 10}));
  EXPECT_THAT(TakeAll(), ElementsAre(3, 4, 5, 6));
  EXPECT_EQ(queue_.wanted_bytes(), 4 * kExtent);
}

TEST_F(DemandQueueTest, WhatAnotherSessionDemandsIsReadAlthoughTheFirstIsGone) {
  queue_.Add(1, {0, 5});
  queue_.Add(2, {0, 5});
  EXPECT_THAT(queue_.RemoveSession(1).idle, IsEmpty());
  EXPECT_THAT(TakeAll(), ElementsAre(0, 1, 2, 3, 4));
}

TEST_F(DemandQueueTest, ASessionThatLeavesWhileItsExtentIsReadChangesNothingForTheRead) {
  queue_.Add(1, {0, 1});
  ASSERT_TRUE(queue_.Take().has_value());
  EXPECT_THAT(queue_.RemoveSession(1).idle, IsEmpty());
  EXPECT_EQ(queue_.wanted_bytes(), 0u);
  queue_.Finish(0, ReadOutcome::kResident);
  EXPECT_EQ(queue_.resident_bytes(), 0u);
  queue_.Add(2, {0, 1});
  EXPECT_EQ(queue_.resident_bytes(), kExtent);
  EXPECT_EQ(queue_.Take(), std::nullopt);
}

TEST_F(DemandQueueTest, RemovingAnUnknownSessionDoesNothing) {
  queue_.Add(1, {0, 1});
  EXPECT_THAT(queue_.RemoveSession(7).idle, IsEmpty());
  EXPECT_THAT(TakeAll(), ElementsAre(0));
}

TEST_F(DemandQueueTest, CountsBytesOfWhatIsWantedOnce) {
  queue_.Add(1, {0, 10});
  queue_.Add(2, {9, 10});
  EXPECT_EQ(queue_.wanted_bytes(), 9 * kExtent + kExtent / 2);
  TakeAndFinishAll(ReadOutcome::kResident);
  EXPECT_EQ(queue_.resident_bytes(), queue_.wanted_bytes());
  queue_.RemoveSession(1);
  EXPECT_EQ(queue_.wanted_bytes(), kExtent / 2);
  EXPECT_EQ(queue_.resident_bytes(), kExtent / 2);
}

TEST_F(DemandQueueTest, TheLargestSessionIdHasItsTurnToo) {
  queue_.Add(UINT64_MAX, {0, 2});
  queue_.Add(1, {5, 7});
  EXPECT_THAT(TakeAll(), ElementsAre(5, 0, 6, 1));
}

// Random operations against the rules: nothing is taken that nobody demands, nothing is taken twice
// unless it failed in between, and at the end everything demanded was taken.
TEST_F(DemandQueueTest, HoldsItsPromisesUnderRandomUse) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  const auto below = [&random](uint64_t limit) { return random() % limit; };
  std::vector<std::set<uint64_t>> demanded(4);
  std::set<uint64_t> taken, resident, failed;
  const auto is_demanded = [&](uint64_t extent) {
    return std::any_of(demanded.begin(), demanded.end(),
                       [extent](const auto& set) { return set.count(extent) > 0; });
  };
  const auto take = [&] {
    const auto next = queue_.Take();
    if (!next.has_value()) return false;
    EXPECT_TRUE(is_demanded(next->extent));
    EXPECT_EQ(resident.count(next->extent), 0u);
    EXPECT_EQ(failed.count(next->extent), 0u);
    EXPECT_TRUE(taken.insert(next->extent).second);
    return true;
  };
  for (int step = 0; step < 20000; ++step) {
    const uint64_t session = below(demanded.size());
    switch (below(6)) {
      case 0: {
        const uint64_t first = below(10), last = first + below(11 - first);
        queue_.Add(session, {first, last});
        for (uint64_t i = first; i < last; ++i) {
          demanded[session].insert(i);
          failed.erase(i);
        }
        break;
      }
      case 1: {
        const uint64_t extent = below(10);
        queue_.AddUrgent(session, extent);
        demanded[session].insert(extent);
        failed.erase(extent);
        break;
      }
      case 2:
        if (below(4) == 0) {
          queue_.RemoveSession(session);
          demanded[session].clear();
        }
        break;
      case 3:
      case 4:
        take();
        break;
      case 5:
        if (taken.empty()) break;
        const uint64_t extent = *taken.begin();
        taken.erase(extent);
        const bool ok = below(4) != 0;
        queue_.Finish(extent, ok ? ReadOutcome::kResident : ReadOutcome::kFailed);
        (ok ? resident : failed).insert(extent);
        break;
    }
  }
  while (take()) {
  }
  for (uint64_t extent = 0; extent < 10; ++extent) {
    const bool met = taken.count(extent) + resident.count(extent) + failed.count(extent) > 0;
    EXPECT_TRUE(met || !is_demanded(extent)) << extent;
  }
}

TEST_F(DemandQueueTest, GivesOutOnlyThePagesThatAreDemanded) {
  queue_.AddPart(1, 2, {kPage + 1, 2 * kPage});
  queue_.AddPart(1, 2, {5 * kPage - 1, 5 * kPage + 1});
  EXPECT_EQ(queue_.wanted_bytes(), 3 * kPage);
  EXPECT_THAT(TakeAll(), ElementsAre(2));
  EXPECT_EQ(queue_.PartsOf(2), Parts({{kPage, 2 * kPage}, {4 * kPage, 6 * kPage}}));
  EXPECT_FALSE(queue_.Finish(2, ReadOutcome::kResident));
  EXPECT_EQ(queue_.resident_bytes(), 3 * kPage);
  EXPECT_EQ(queue_.Take(), std::nullopt);
}

TEST_F(DemandQueueTest, ThePartsOfAllSessionsAreReadAtOnce) {
  queue_.AddPart(1, 2, {0, kPage});
  queue_.AddPart(2, 2, {kPage, 3 * kPage});
  queue_.AddPart(3, 2, {0, 2 * kPage});
  EXPECT_THAT(TakeAll(), ElementsAre(2));
  EXPECT_EQ(queue_.PartsOf(2), Parts({{0, 3 * kPage}}));
}

TEST_F(DemandQueueTest, AllPartsOfAnExtentAreAllOfIt) {
  queue_.AddPart(1, 9, {0, kPage});
  queue_.AddPart(1, 9, {kPage, kExtent / 2});
  EXPECT_EQ(queue_.wanted_bytes(), kExtent / 2);
  TakeAndFinishAll(ReadOutcome::kResident);
  EXPECT_THAT(queue_.Add(2, {9, 10}), IsEmpty());
  EXPECT_EQ(queue_.Take(), std::nullopt);
}

TEST_F(DemandQueueTest, WhatIsDemandedLaterOfAResidentExtentIsReadAndNothingElse) {
  EXPECT_TRUE(queue_.AddPart(1, 0, {0, kPage}));
  TakeAndFinishAll(ReadOutcome::kResident);
  EXPECT_FALSE(queue_.AddPart(2, 0, {0, kPage}));
  EXPECT_TRUE(queue_.AddPart(2, 0, {0, 3 * kPage}));
  EXPECT_EQ(queue_.resident_bytes(), kPage);
  EXPECT_THAT(TakeAll(), ElementsAre(0));
  EXPECT_EQ(queue_.PartsOf(0), Parts({{kPage, 3 * kPage}}));
  EXPECT_FALSE(queue_.Finish(0, ReadOutcome::kResident));
  EXPECT_THAT(queue_.Add(3, {0, 2}), ElementsAre(ExtentRange{0, 2}));
  EXPECT_THAT(TakeAll(), ElementsAre(0, 1));
  EXPECT_EQ(queue_.PartsOf(0), Parts({{3 * kPage, kExtent}}));
  EXPECT_EQ(queue_.PartsOf(1), Parts({{0, kExtent}}));
}

TEST_F(DemandQueueTest, NothingIsReadOfAnExtentThatWasSeenToBeThereWhole) {
  queue_.AddPart(1, 0, {.begin = 0, .end = 1});
  ASSERT_TRUE(queue_.Take().has_value());
  // Demanded while it is looked at, and after.
  queue_.AddPart(2, 0, {.begin = static_cast<uint32_t>(kExtent - 1), .end = kExtent});
  EXPECT_FALSE(queue_.Finish(0, ReadOutcome::kAllResident));
  const auto middle = static_cast<uint32_t>(kExtent / 2);
  EXPECT_FALSE(queue_.AddPart(3, 0, {.begin = middle, .end = middle + 1}));
  EXPECT_EQ(queue_.Take(), std::nullopt);
  EXPECT_EQ(queue_.wanted_bytes(), 3 * PageBytes());
  EXPECT_EQ(queue_.resident_bytes(), 3 * PageBytes());
}

TEST_F(DemandQueueTest, WhatIsDemandedWhileAnExtentIsReadIsReadNext) {
  queue_.AddPart(1, 0, {0, kPage});
  queue_.Add(1, {4, 6});
  EXPECT_EQ(queue_.Take()->extent, 0u);
  EXPECT_FALSE(queue_.AddPart(2, 0, {2 * kPage, 3 * kPage}));
  queue_.AddUrgent(2, 0);
  EXPECT_TRUE(queue_.Finish(0, ReadOutcome::kResident));
  EXPECT_EQ(queue_.Take(), (DemandQueue::Taken{.extent = 0, .cause = ReadCause::kDemand}));
  EXPECT_EQ(queue_.PartsOf(0), Parts({{2 * kPage, 3 * kPage}}));
  EXPECT_FALSE(queue_.Finish(0, ReadOutcome::kResident));
  EXPECT_EQ(queue_.resident_bytes(), 2 * kPage);
}

TEST_F(DemandQueueTest, ThePartOfASessionThatWentIsNotRead) {
  queue_.AddPart(1, 0, {0, kPage});
  queue_.Add(2, {0, 1});
  EXPECT_THAT(queue_.RemoveSession(2).idle, IsEmpty());
  EXPECT_EQ(queue_.wanted_bytes(), kPage);
  EXPECT_THAT(TakeAll(), ElementsAre(0));
  EXPECT_EQ(queue_.PartsOf(0), Parts({{0, kPage}}));
}

TEST_F(DemandQueueTest, AnExtentIsResidentAgainWhenWhoWantedMoreOfItHasGone) {
  queue_.AddPart(1, 0, {0, kPage});
  TakeAndFinishAll(ReadOutcome::kResident);
  queue_.Add(2, {0, 1});
  EXPECT_TRUE(queue_.HasQueued());
  const DemandQueue::Removed removed = queue_.RemoveSession(2);
  EXPECT_THAT(removed.resident, ElementsAre(ExtentRange{0, 1}));
  EXPECT_THAT(removed.idle, IsEmpty());
  EXPECT_FALSE(queue_.HasQueued());
  EXPECT_EQ(queue_.wanted_bytes(), kPage);
  EXPECT_EQ(queue_.resident_bytes(), kPage);
}

TEST_F(DemandQueueTest, AnUrgentExtentOfWhichNothingIsDemandedIsReadWhole) {
  queue_.AddPart(1, 0, {0, kPage});
  queue_.AddUrgent(1, 0);
  queue_.AddUrgent(1, 3);
  EXPECT_THAT(TakeAll(), ElementsAre(0, 3));
  EXPECT_EQ(queue_.PartsOf(0), Parts({{0, kPage}}));
  EXPECT_EQ(queue_.PartsOf(3), Parts({{0, kExtent}}));
}

TEST_F(DemandQueueTest, AFailedPartIsTriedAgainWhenDemandedAgain) {
  queue_.AddPart(1, 0, {0, kPage});
  TakeAndFinishAll(ReadOutcome::kFailed);
  EXPECT_EQ(queue_.failed_bytes(), kPage);
  EXPECT_TRUE(queue_.AddPart(1, 0, {0, kPage}));
  EXPECT_EQ(queue_.failed_bytes(), 0u);
  EXPECT_THAT(TakeAll(), ElementsAre(0));
  EXPECT_EQ(queue_.PartsOf(0), Parts({{0, kPage}}));
}

// Random demands of pages against a model of single pages.
TEST_F(DemandQueueTest, ReadsEachDemandedPageAndNoOtherUnderRandomUse) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  const auto below = [&random](uint64_t limit) { return random() % limit; };
  constexpr uint64_t kPages = kExtent / kPage;
  using Page = std::pair<uint64_t, uint64_t>;
  std::vector<std::set<Page>> demanded(4);
  std::set<Page> resident;
  std::set<uint64_t> taken, failed;
  const auto wanted = [&] {
    std::set<Page> all;
    for (const std::set<Page>& pages : demanded) all.insert(pages.begin(), pages.end());
    return all;
  };
  const auto take = [&] {
    const auto next = queue_.Take();
    if (!next.has_value()) return false;
    EXPECT_TRUE(taken.insert(next->extent).second);
    const std::set<Page> all = wanted();
    const ExtentParts parts = queue_.PartsOf(next->extent);
    for (const ExtentParts::Range& range : parts.ranges()) {
      for (uint64_t page = range.begin / kPage; page < range.end / kPage; ++page) {
        EXPECT_EQ(all.count({next->extent, page}), 1u);
      }
    }
    return true;
  };
  const auto finish = [&](uint64_t extent, bool ok) {
    const ExtentParts parts = queue_.PartsOf(extent);
    for (const ExtentParts::Range& range : parts.ranges()) {
      for (uint64_t page = range.begin / kPage; ok && page < range.end / kPage; ++page) {
        resident.insert({extent, page});
      }
    }
    taken.erase(extent);
    if (!ok) failed.insert(extent);
    queue_.Finish(extent, ok ? ReadOutcome::kResident : ReadOutcome::kFailed);
  };
  for (int step = 0; step < 20000; ++step) {
    const uint64_t session = below(demanded.size());
    // The last extent has other pages.
    const uint64_t extent = below(9);
    switch (below(6)) {
      case 0: {
        const uint64_t first = below(kPages), last = first + 1 + below(kPages - first);
        queue_.AddPart(session, extent,
                       {static_cast<uint32_t>(first * kPage), static_cast<uint32_t>(last * kPage)});
        for (uint64_t page = first; page < last; ++page) demanded[session].insert({extent, page});
        failed.erase(extent);
        break;
      }
      case 1:
        if (below(4) != 0) break;
        queue_.Add(session, {extent, extent + 1});
        for (uint64_t page = 0; page < kPages; ++page) demanded[session].insert({extent, page});
        failed.erase(extent);
        break;
      case 2:
        if (below(8) != 0) break;
        queue_.RemoveSession(session);
        demanded[session].clear();
        break;
      case 3:
        take();
        break;
      default:
        if (!taken.empty()) finish(*taken.begin(), below(8) != 0);
        break;
    }
    ASSERT_EQ(queue_.wanted_bytes(), wanted().size() * kPage);
    ASSERT_LE(queue_.resident_bytes() + queue_.failed_bytes(), queue_.wanted_bytes());
  }
  do {
    while (!taken.empty()) finish(*taken.begin(), true);
  } while (take());
  uint64_t missing = 0;
  for (const Page& page : wanted()) {
    if (resident.count(page) > 0) continue;
    ++missing;
    EXPECT_EQ(failed.count(page.first), 1u) << page.first << " " << page.second;
  }
  EXPECT_EQ(queue_.failed_bytes(), missing * kPage);
  EXPECT_EQ(queue_.resident_bytes(), queue_.wanted_bytes() - missing * kPage);
}

TEST_F(DemandQueueTest, WhatAGoneSessionHadQueuedAgainIsStillReadForTheOthers) {
  queue_.Add(1, {0, 2});
  queue_.Add(2, {0, 2});
  TakeAndFinishAll(ReadOutcome::kFailed);
  queue_.Add(2, {0, 2});
  queue_.RemoveSession(2);
  EXPECT_TRUE(queue_.HasQueued());
  EXPECT_THAT(TakeAll(), ElementsAre(0, 1));
  EXPECT_FALSE(queue_.HasQueued());
}

TEST_F(DemandQueueTest, SaysWhetherTheNextIsUrgent) {
  queue_.Add(1, {0, 3});
  EXPECT_FALSE(queue_.IsUrgent());
  queue_.AddUrgent(1, 2);
  EXPECT_TRUE(queue_.IsUrgent());
  EXPECT_EQ(queue_.Take()->extent, 2u);
  EXPECT_FALSE(queue_.IsUrgent());
  queue_.AddUrgent(1, 1);
  queue_.RemoveSession(1);
  EXPECT_FALSE(queue_.IsUrgent());
  EXPECT_FALSE(queue_.HasQueued());
}

}  // namespace
}  // namespace forestage
