#include "checkpoint/sha256.h"

#include <openssl/evp.h>

#include "common/check.h"

namespace forestage {

void Sha256::ContextDeleter::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  CHECK(context_ != nullptr);
  CHECK(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
}

Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;
Sha256::~Sha256() = default;

void Sha256::Update(absl::Span<const std::byte> bytes) {
  CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
}

Sha256Digest Sha256::Finish() {
  Sha256Digest digest;
  unsigned int digest_bytes = 0;
  CHECK(EVP_DigestFinal_ex(context_.get(), digest.data(), &digest_bytes) == 1);
  CHECK(digest_bytes == digest.size());
  return digest;
}

}  // namespace forestage
