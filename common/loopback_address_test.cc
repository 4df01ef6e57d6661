#include "common/loopback_address.h"

#include <utility>

#include "absl/status/status.h"

#include "common/status_matchers.h"

namespace forestage {
namespace {

using ::testing::HasSubstr;

TEST(LoopbackAddressTest, ReadsWhatOnlyThisMachineReaches) {
  EXPECT_EQ(ParseLoopbackAddress("127.0.0.1:9748").value().ToString(), "127.0.0.1:9748");
  EXPECT_EQ(ParseLoopbackAddress("127.1.2.3:0").value().ToString(), "127.1.2.3:0");
  EXPECT_EQ(ParseLoopbackAddress("localhost:80").value().ToString(), "127.0.0.1:80");
  EXPECT_EQ(ParseLoopbackAddress("127.0.0.1:65535").value().port, 65535);
}

TEST(LoopbackAddressTest, RefusesAddressesThatOthersReach) {
  for (const char* text : {"0.0.0.0:9748", "192.168.0.1:9748", "128.0.0.1:1"}) {
    EXPECT_THAT(ParseLoopbackAddress(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not a loopback")))
        << text;
  }
}

TEST(LoopbackAddressTest, SaysWhatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "not host:port"},
      {"127.0.0.1", "not host:port"},
      {"127.0.0.1:", "no port"},
      {"127.0.0.1:65536", "no port"},
      {"127.0.0.1:-1", "no port"},
      {"127.0.0.1:9748 ", "no port"},
      {"127.0.0.1:http", "no port"},
      {":9748", "neither by an IPv4 address"},
      {"node7:9748", "neither by an IPv4 address"},
      {"::1:9748", "neither by an IPv4 address"},
      {"[::1]:9748", "neither by an IPv4 address"},
  };
  for (const auto& [text, why] : cases) {
    EXPECT_THAT(ParseLoopbackAddress(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)))
        << text;
  }
}

}  // namespace
}  // namespace forestage
