#include "daemon/service/raw_session_client.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "common/descriptor_passing.h"
#include "common/errno_status.h"
#include "common/file_time.h"
#include "common/memfd.h"
#include "common/status_macros.h"

namespace forestage {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(30);

absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace

RawSessionClient::RawSessionClient(const std::string& socket_path)
    : socket_path_(socket_path),
      channel_(grpc::CreateChannel("unix:" + socket_path, grpc::InsecureChannelCredentials())),
      stub_(v1::SessionService::NewStub(channel_)) {
  context_.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
  stream_ = stub_->OpenSession(&context_);
}

RawSessionClient::~RawSessionClient() {
  if (ended_) return;
  context_.TryCancel();
  (void)WaitForEnd();
}

v1::OpenRequest RawSessionClient::MakeOpenRequest(const std::string& group, uint32_t rank,
                                                  uint32_t size,
                                                  const std::vector<std::string>& files) {
  v1::OpenRequest request;
  request.mutable_group()->set_name(group);
  request.mutable_group()->set_local_size(size);
  request.set_local_rank(rank);
  request.set_policy(v1::POLICY_AUTO);
  request.set_agreement(v1::AGREEMENT_EAGER);
  for (const std::string& file : files) {
    struct stat attributes = {};
    (void)stat(file.c_str(), &attributes);
    const size_t slash = file.rfind('/');
    request.set_path(file.substr(0, slash));
    v1::Shard* shard = request.add_shards();
    shard->set_name(file.substr(slash + 1));
    shard->set_size_bytes(static_cast<uint64_t>(attributes.st_size));
    shard->set_mtime_ns(NanosecondsOf(attributes.st_mtim));
  }
  return request;
}

absl::StatusOr<v1::SessionOpened> RawSessionClient::Open(const v1::OpenRequest& request) {
  v1::SessionRequest message;
  *message.mutable_open() = request;
  Send(message);
  ASSIGN_OR_RETURN(const v1::SessionEvent event, WaitFor(v1::SessionEvent::kOpened));
  const std::string& token = event.opened().token();
  if (token.size() != token_.size()) return absl::InternalError("a token of another size");
  std::copy(token.begin(), token.end(), token_.begin());
  return event.opened();
}

absl::StatusOr<v1::SessionEvent> RawSessionClient::ReadEvent() {
  v1::SessionEvent event;
  if (stream_->Read(&event)) return event;
  const absl::Status status = WaitForEnd();
  if (status.ok()) return absl::OutOfRangeError("the stream ended");
  return status;
}

absl::StatusOr<v1::SessionEvent> RawSessionClient::WaitFor(v1::SessionEvent::EventCase kind) {
  while (true) {
    ASSIGN_OR_RETURN(v1::SessionEvent event, ReadEvent());
    if (event.event_case() == kind) return event;
  }
}

void RawSessionClient::Send(const v1::SessionRequest& request) { stream_->Write(request); }

absl::Status RawSessionClient::Close() {
  stream_->WritesDone();
  return WaitForEnd();
}

absl::Status RawSessionClient::WaitForEnd() {
  v1::SessionEvent event;
  while (stream_->Read(&event)) {
  }
  ended_ = true;
  return FromGrpc(stream_->Finish());
}

absl::StatusOr<UniqueFd> RawSessionClient::ConnectDescriptors() const {
  const std::string path = socket_path_ + ".descriptors";
  UniqueFd socket_fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket_fd.valid()) return ErrnoStatus(errno, "socket");
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return absl::InvalidArgumentError(path);
  std::memcpy(address.sun_path, path.data(), path.size());
  if (connect(socket_fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return ErrnoStatus(errno, absl::StrCat("connecting to ", path));
  }
  return socket_fd;
}

absl::StatusOr<DescriptorReply> RawSessionClient::Exchange(int socket,
                                                           const DescriptorRequest& request,
                                                           const std::vector<UniqueFd>& descriptors,
                                                           std::vector<UniqueFd>* received) {
  std::vector<int> numbers;
  for (const UniqueFd& descriptor : descriptors) numbers.push_back(descriptor.get());
  const absl::Time deadline = absl::Now() + kPatience;
  RETURN_IF_ERROR(SendDescriptorMessage(
      socket, absl::MakeConstSpan(reinterpret_cast<const std::byte*>(&request), sizeof(request)),
      numbers, deadline));
  ASSIGN_OR_RETURN(DescriptorMessage message,
                   ReceiveDescriptorMessage(socket, kDescriptorMessageBytesMax, deadline));
  DescriptorReply reply;
  if (message.bytes.size() != sizeof(reply)) return absl::InternalError("a reply of another size");
  std::memcpy(&reply, message.bytes.data(), sizeof(reply));
  if (received != nullptr) *received = std::move(message.descriptors);
  return reply;
}

absl::Status RawSessionClient::SendShards(int socket, const std::vector<std::string>& files,
                                          size_t batch_max) {
  size_t sent = 0;
  while (sent < files.size()) {
    DescriptorRequest request;
    request.token = token_;
    request.first_shard_index = static_cast<uint32_t>(sent);
    std::vector<UniqueFd> batch;
    for (size_t i = sent; i < files.size() && batch.size() < batch_max; ++i) {
      batch.emplace_back(open(files[i].c_str(), O_RDONLY | O_CLOEXEC));
      if (!batch.back().valid()) return ErrnoStatus(errno, files[i]);
    }
    request.descriptor_count = static_cast<uint32_t>(batch.size());
    ASSIGN_OR_RETURN(const DescriptorReply reply, Exchange(socket, request, batch, nullptr));
    if (reply.code != 0) {
      return absl::Status(static_cast<absl::StatusCode>(reply.code), reply.message);
    }
    sent = reply.accepted_count;
  }
  return absl::OkStatus();
}

absl::StatusOr<RawSessionClient::Delivery> RawSessionClient::Fetch(int socket) const {
  DescriptorRequest request;
  request.kind = DescriptorRequestKind::kDelivery;
  request.token = token_;
  std::vector<UniqueFd> received;
  ASSIGN_OR_RETURN(const DescriptorReply reply, Exchange(socket, request, {}, &received));
  if (reply.code != 0) {
    return absl::Status(static_cast<absl::StatusCode>(reply.code), reply.message);
  }
  if (received.size() != 2) return absl::InternalError("not two descriptors");
  RETURN_IF_ERROR(CheckSealed(received[0].get(), /*unwritable=*/true));
  struct stat attributes = {};
  if (fstat(received[0].get(), &attributes) != 0) return ErrnoStatus(errno, "fstat");
  Delivery delivery;
  ASSIGN_OR_RETURN(
      delivery.catalog_mapping,
      FileMapping::MapReadOnly(received[0].get(), static_cast<uint64_t>(attributes.st_size)));
  ASSIGN_OR_RETURN(const CatalogView view,
                   CatalogView::FromBytes(delivery.catalog_mapping.bytes()));
  delivery.catalog = std::make_unique<CatalogView>(view);
  ASSIGN_OR_RETURN(delivery.board, StagingBoardView::Map(received[1]));
  return delivery;
}

absl::StatusOr<v1::Decision> RawSessionClient::OpenAndPrepare(
    const v1::OpenRequest& request, const std::vector<std::string>& files) {
  RETURN_IF_ERROR(Open(request).status());
  ASSIGN_OR_RETURN(const UniqueFd socket, ConnectDescriptors());
  RETURN_IF_ERROR(SendShards(socket.get(), files, kDescriptorsPerMessageMax));
  ASSIGN_OR_RETURN(const v1::SessionEvent event, WaitFor(v1::SessionEvent::kDecision));
  return event.decision();
}

}  // namespace forestage
