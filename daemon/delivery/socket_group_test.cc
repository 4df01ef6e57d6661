#include "daemon/delivery/socket_group.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/status_matchers.h"

namespace forestage {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(SocketGroupTest, KnowsNamesAndNumbers) {
  ASSERT_OK_AND_ASSIGN(const std::optional<gid_t> none, ResolveSocketGroup(""));
  EXPECT_FALSE(none.has_value());
  ASSERT_OK_AND_ASSIGN(const std::optional<gid_t> named, ResolveSocketGroup("root"));
  EXPECT_EQ(named, gid_t{0});
  ASSERT_OK_AND_ASSIGN(const std::optional<gid_t> number, ResolveSocketGroup("4242"));
  EXPECT_EQ(number, gid_t{4242});
}

TEST(SocketGroupTest, GroupThatDoesNotExistIsNamed) {
  for (const char* group : {"no-such-group-here", "4294967295", "-1"}) {
    EXPECT_THAT(
        ResolveSocketGroup(group).status(),
        StatusIs(absl::StatusCode::kNotFound, AllOf(HasSubstr("socket-group"), HasSubstr(group))));
  }
}

}  // namespace
}  // namespace forestage
