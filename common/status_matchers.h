// gMock matchers for absl::Status and absl::StatusOr; for tests only.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forestage {

inline const absl::Status& ToStatus(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& ToStatus(const absl::StatusOr<T>& result) {
  return result.status();
}

MATCHER(IsOk, negation ? "is an error" : "is OK") {
  *result_listener << ToStatus(arg).ToString();
  return ToStatus(arg).ok();
}

// StatusIs(code, message matcher)
MATCHER_P2(StatusIs, code, message, "has the expected code and message") {
  *result_listener << ToStatus(arg).ToString();
  return ToStatus(arg).code() == code &&
         ::testing::ExplainMatchResult(message, std::string(ToStatus(arg).message()),
                                       result_listener);
}

}  // namespace forestage

#define EXPECT_OK(expression) EXPECT_THAT(expression, ::forestage::IsOk())
#define ASSERT_OK(expression) ASSERT_THAT(expression, ::forestage::IsOk())
#define FORESTAGE_TEST_CONCAT_INNER(a, b) a##b
#define FORESTAGE_TEST_CONCAT(a, b) FORESTAGE_TEST_CONCAT_INNER(a, b)
// `ASSERT_OK_AND_ASSIGN(auto value, F())`
#define ASSERT_OK_AND_ASSIGN(lhs, expression)                          \
  auto FORESTAGE_TEST_CONCAT(test_statusor_, __LINE__) = (expression); \
  ASSERT_OK(FORESTAGE_TEST_CONCAT(test_statusor_, __LINE__));          \
  lhs = std::move(FORESTAGE_TEST_CONCAT(test_statusor_, __LINE__)).value()
