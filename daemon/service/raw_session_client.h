// A rank's side of the session protocol, bare, for tests: no library of ours between the test and
// the two sockets.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include <grpcpp/grpcpp.h>

#include "checkpoint/catalog.h"
#include "common/descriptor_protocol.h"
#include "common/file_mapping.h"
#include "common/staging_board.h"
#include "common/unique_fd.h"
#include "forestage/v1/session.grpc.pb.h"

namespace forestage {

// For one thread. Every wait ends after 30 seconds with an error.
class RawSessionClient {
 public:
  struct Delivery {
    FileMapping catalog_mapping;
    std::unique_ptr<CatalogView> catalog;
    std::unique_ptr<StagingBoardView> board;
  };

  explicit RawSessionClient(const std::string& socket_path);
  ~RawSessionClient();
  RawSessionClient(const RawSessionClient&) = delete;
  RawSessionClient& operator=(const RawSessionClient&) = delete;

  // An open request for one of `size` ranks and these files.
  static v1::OpenRequest MakeOpenRequest(const std::string& group, uint32_t rank, uint32_t size,
                                         const std::vector<std::string>& files);

  // Sends it and reads the answer. An error is the stream's end.
  absl::StatusOr<v1::SessionOpened> Open(const v1::OpenRequest& request);
  // The next event of this kind; others before it are kept away. An error is the stream's end.
  absl::StatusOr<v1::SessionEvent> WaitFor(v1::SessionEvent::EventCase kind);
  void Send(const v1::SessionRequest& request);
  // Says that nothing more comes and returns how the stream ended.
  absl::Status Close();
  // Reads until the stream's end and returns how it ended.
  absl::Status WaitForEnd();

  // A connection to the descriptor socket.
  absl::StatusOr<UniqueFd> ConnectDescriptors() const;
  // One request and its reply; an error when the daemon closed the connection without one.
  static absl::StatusOr<DescriptorReply> Exchange(int socket, const DescriptorRequest& request,
                                                  const std::vector<UniqueFd>& descriptors,
                                                  std::vector<UniqueFd>* received);
  // Sends the files' descriptors in batches of at most `batch_max`.
  absl::Status SendShards(int socket, const std::vector<std::string>& files, size_t batch_max);
  // Waits until the checkpoint is ready and maps what comes.
  absl::StatusOr<Delivery> Fetch(int socket) const;

  // All of it up to the decision.
  absl::StatusOr<v1::Decision> OpenAndPrepare(const v1::OpenRequest& request,
                                              const std::vector<std::string>& files);

  const SessionToken& token() const { return token_; }
  void set_token(const SessionToken& token) { token_ = token; }

 private:
  absl::StatusOr<v1::SessionEvent> ReadEvent();

  const std::string socket_path_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::SessionService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::SessionRequest, v1::SessionEvent>> stream_;
  SessionToken token_ = {};
  bool ended_ = false;
};

}  // namespace forestage
