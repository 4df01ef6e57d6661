// SHA-256, for the digests of headers and the signature of a checkpoint.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/types/span.h"

struct evp_md_ctx_st;  // OpenSSL's EVP_MD_CTX

namespace forestage {

using Sha256Digest = std::array<uint8_t, 32>;

// Digests bytes that come in pieces. Movable; not thread-safe.
class Sha256 {
 public:
  Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;
  ~Sha256();

  void Update(absl::Span<const std::byte> bytes);
  // Requires: not called before; nothing may follow it.
  Sha256Digest Finish();

 private:
  struct ContextDeleter {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, ContextDeleter> context_;
};

}  // namespace forestage
