#include "client/cli/rank_message.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/output.h"

namespace forestage {
namespace {

Json ToJson(const RankReady&) { return {{"kind", "ready"}}; }

Json ToJson(const RankProgress& progress) {
  return {{"kind", "progress"}, {"done", progress.done_bytes}, {"total", progress.total_bytes}};
}

Json ToJson(const RankDigest& digest) { return {{"kind", "digest"}, {"line", digest.line}}; }

Json ToJson(const RankNote& note) { return {{"kind", "note"}, {"text", note.text}}; }

Json ToJson(const RankStall& stall) { return {{"kind", "stall"}, {"text", stall.text}}; }

Json ToJson(const std::optional<double>& value) {
  return value.has_value() ? Json(*value) : Json();
}

Json ToJson(const RankResult& result) {
  return {{"kind", "result"},
          {"requested", result.requested},
          {"effective", result.effective},
          {"activated", result.activated},
          {"reason", result.reason},
          {"bytes", result.bytes},
          {"first_tensor_seconds", ToJson(result.first_tensor_seconds)},
          {"seconds", result.seconds},
          {"begun_at_seconds", result.begun_at_seconds},
          {"ended_at_seconds", result.ended_at_seconds},
          {"major_faults", result.major_faults},
          {"verified", result.verified},
          {"mismatched", result.mismatched},
          {"error", result.error},
          {"checkpoint_bytes", result.checkpoint_bytes},
          {"daemon_read_bytes", result.daemon_read_bytes},
          {"sum", result.sum}};
}

// Reads members of one object and remembers whether all were there and of their type.
class MemberReader {
 public:
  explicit MemberReader(const Json& object) : object_(object) {}

  void Read(const char* key, std::string& value) {
    if (const Json* member = Find(key, &Json::is_string))
      value = *member->get_ptr<const std::string*>();
  }
  void Read(const char* key, bool& value) {
    if (const Json* member = Find(key, &Json::is_boolean)) value = *member->get_ptr<const bool*>();
  }
  void Read(const char* key, uint64_t& value) {
    if (const Json* member = Find(key, &Json::is_number_unsigned))
      value = *member->get_ptr<const uint64_t*>();
  }
  void Read(const char* key, double& value) {
    if (const Json* member = Find(key, &Json::is_number_float))
      value = *member->get_ptr<const double*>();
  }
  // Null when it is absent.
  void Read(const char* key, std::optional<double>& value) {
    const auto found = object_.find(key);
    if (found != object_.end() && found->is_null()) return value.reset();
    Read(key, value.emplace());
  }
  bool ok() const { return ok_; }

 private:
  const Json* Find(const char* key, bool (Json::*is_of_type)() const noexcept) {
    const auto found = object_.find(key);
    if (found != object_.end() && ((*found).*is_of_type)()) return &*found;
    ok_ = false;
    return nullptr;
  }

  const Json& object_;
  bool ok_ = true;
};

RankResult ReadResult(MemberReader& reader) {
  RankResult result;
  reader.Read("requested", result.requested);
  reader.Read("effective", result.effective);
  reader.Read("activated", result.activated);
  reader.Read("reason", result.reason);
  reader.Read("bytes", result.bytes);
  reader.Read("first_tensor_seconds", result.first_tensor_seconds);
  reader.Read("seconds", result.seconds);
  reader.Read("begun_at_seconds", result.begun_at_seconds);
  reader.Read("ended_at_seconds", result.ended_at_seconds);
  reader.Read("major_faults", result.major_faults);
  reader.Read("verified", result.verified);
  reader.Read("mismatched", result.mismatched);
  reader.Read("error", result.error);
  reader.Read("checkpoint_bytes", result.checkpoint_bytes);
  reader.Read("daemon_read_bytes", result.daemon_read_bytes);
  reader.Read("sum", result.sum);
  return result;
}

}  // namespace

std::string EncodeRankMessage(const RankMessage& message) {
  return JsonLine(std::visit([](const auto& alternative) { return ToJson(alternative); }, message));
}

absl::StatusOr<RankMessage> DecodeRankMessage(absl::string_view line) {
  const Json object = Json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
  const absl::Status wrong =
      absl::InvalidArgumentError(absl::StrCat("not a message of a rank: '", line, "'"));
  if (!object.is_object()) return wrong;
  MemberReader reader(object);
  std::string kind;
  reader.Read("kind", kind);
  RankMessage message;
  if (kind == "ready") {
    message = RankReady();
  } else if (kind == "progress") {
    RankProgress progress;
    reader.Read("done", progress.done_bytes);
    reader.Read("total", progress.total_bytes);
    message = progress;
  } else if (kind == "digest") {
    RankDigest digest;
    reader.Read("line", digest.line);
    message = std::move(digest);
  } else if (kind == "note") {
    RankNote note;
    reader.Read("text", note.text);
    message = std::move(note);
  } else if (kind == "stall") {
    RankStall stall;
    reader.Read("text", stall.text);
    message = std::move(stall);
  } else if (kind == "result") {
    message = ReadResult(reader);
  } else {
    return wrong;
  }
  if (!reader.ok()) return wrong;
  return message;
}

}  // namespace forestage
