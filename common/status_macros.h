// RETURN_IF_ERROR and ASSIGN_OR_RETURN for absl::Status. Debian 12's Abseil has none of its own.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns from the enclosing function when `expression` is not OK.
#define RETURN_IF_ERROR(expression)                                  \
  do {                                                               \
    ::absl::Status forestage_status_local = (expression);            \
    if (!forestage_status_local.ok()) return forestage_status_local; \
  } while (false)

#define FORESTAGE_CONCAT_INNER(a, b) a##b
#define FORESTAGE_CONCAT(a, b) FORESTAGE_CONCAT_INNER(a, b)

// `ASSIGN_OR_RETURN(auto value, F())`: value is F()'s, or the function returns F()'s status.
#define ASSIGN_OR_RETURN(lhs, expression) \
  FORESTAGE_ASSIGN_OR_RETURN_INNER(FORESTAGE_CONCAT(forestage_statusor_, __LINE__), lhs, expression)

#define FORESTAGE_ASSIGN_OR_RETURN_INNER(statusor, lhs, expression) \
  auto statusor = (expression);                                     \
  if (!statusor.ok()) return std::move(statusor).status();          \
  lhs = std::move(statusor).value()
