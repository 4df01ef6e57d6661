#include "checkpoint/foreign_format.h"

#include <sys/stat.h>

#include "checkpoint/header_file_for_test.h"
#include "common/status_matchers.h"
#include "common/temporary_directory_for_test.h"

namespace forestage {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The beginning of a zip archive whose first entry has this name.
std::string Zip(absl::string_view entry) {
  std::string bytes("PK\x03\x04", 4);
  bytes.resize(26);
  bytes.push_back(static_cast<char>(entry.size()));
  bytes.resize(30);
  bytes.append(entry.data(), entry.size());
  bytes.append("content");
  return bytes;
}

std::string TorchPickle() {
  return std::string("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e\x80\x02", 17);
}

FileContent Recognise(absl::string_view bytes) { return RecogniseContent(bytes, bytes.size()); }

TEST(ForeignFormatTest, KnowsWeightsOfOtherFormatsByTheirContent) {
  const std::pair<std::string, std::string> formats[] = {
      {Zip("archive/data.pkl"), "zip archive as torch.save writes it"},
      {Zip("pytorch_model/data.pkl"), "zip archive as torch.save writes it"},
      {Zip("model/constants.pkl"), "zip archive as torch.save writes it"},
      {Zip("arr_0.npy"), "NumPy archive"},
      {TorchPickle(), "before its zip archives"},
      {std::string("\x80\x04\x95\x00", 4), "Python pickle"},
      {std::string("GGUF\x03\0\0\0", 8), "GGUF"},
      {std::string("lmgg\x01\0\0\0", 8), "GGML"},
      {std::string("\x89HDF\r\n\x1a\n\0\0", 10), "HDF5"},
      {std::string("\x93NUMPY\x01\0", 8), "NumPy array"}};
  for (const auto& [bytes, text] : formats) {
    EXPECT_EQ(Recognise(bytes).kind, ContentKind::kForeignWeights) << text;
    EXPECT_THAT(Recognise(bytes).text, HasSubstr(text));
    EXPECT_THAT(DescribeForeignFormat(bytes, bytes.size()),
                AllOf(HasSubstr(text), HasSubstr("not served yet"),
                      HasSubstr("engine's own loader"), HasSubstr("convert them")));
  }
}

TEST(ForeignFormatTest, KnowsWhatHoldsNoWeights) {
  const std::pair<std::string, std::string> formats[] = {
      {Zip("photos/cat.jpg"), "zip archive, though not as torch.save"},
      {"version https-git-lfs.spec/git-lfs\nsize 7\n", "git-LFS pointer"},
      {"<html></html>", "HTML page"},
      {"<?xml?>", "XML document"},
      {std::string(64, '\0'), "begins with zeros"},
      {"", "empty file"}};
  for (const auto& [bytes, text] : formats) {
    EXPECT_EQ(Recognise(bytes).kind, ContentKind::kNoWeights) << text;
    EXPECT_THAT(Recognise(bytes).text, HasSubstr(text));
  }
}

TEST(ForeignFormatTest, KnowsSafetensorsUnderAnyNameAndSaysNothingOfTheUnknown) {
  EXPECT_EQ(Recognise(SafetensorsForTest("{}", 0)).kind, ContentKind::kSafetensors);
  EXPECT_EQ(DescribeForeignFormat(SafetensorsForTest("{}", 0), 10), "");
  for (const absl::string_view bytes :
       {"{\"config\": 1}", "\x80", "\x80\x01", "PK", "GGU", "text"}) {
    EXPECT_EQ(Recognise(bytes).kind, ContentKind::kUnknown) << bytes;
    EXPECT_EQ(DescribeForeignFormat(bytes, bytes.size()), "") << bytes;
  }
}

TEST(ForeignFormatTest, SurvivesBeginningsOfAnyLength) {
  for (const std::string& whole :
       {Zip("archive/data.pkl"), TorchPickle(), Zip("x.npy"), SafetensorsForTest("{\"t\":1}", 3)}) {
    for (size_t bytes = 0; bytes <= whole.size(); ++bytes) {
      EXPECT_NE(RecogniseContent(whole.substr(0, bytes), whole.size()).text.size(), 1u);
    }
  }
}

TEST(ForeignFormatTest, LooksIntoRegularFilesOnly) {
  const TemporaryDirectoryForTest directory;
  directory.Write("weights.dat", TorchPickle());
  EXPECT_EQ(LookInto(directory.File("weights.dat")).kind, ContentKind::kForeignWeights);
  ASSERT_EQ(mkfifo(directory.File("fifo").c_str(), 0600), 0);
  EXPECT_EQ(LookInto(directory.File("fifo")).kind, ContentKind::kUnknown);
  EXPECT_EQ(LookInto(directory.path()).kind, ContentKind::kUnknown);
  EXPECT_EQ(LookInto(directory.File("missing")).kind, ContentKind::kUnknown);
}

}  // namespace
}  // namespace forestage
