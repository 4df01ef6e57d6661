#include "checkpoint/safetensors_header.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

#include "checkpoint/header_file_for_test.h"
#include "common/errno_status.h"
#include "common/status_matchers.h"

namespace forestage {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// "$E" and friends stand for what most cases share.
std::string Expand(absl::string_view text) {
  const std::string entry = "{$D:\"I32\",$S:[2,2],$O:[0,16]}";
  return absl::StrReplaceAll(
      absl::StrReplaceAll(text, {{"$T", absl::StrCat("\"t\":", entry)}, {"$E", entry}}),
      {{"$D", "\"dtype\""}, {"$S", "\"shape\""}, {"$O", "\"data_offsets\""}});
}

// "t I32 2,2 0-16; ..." with ranges relative to the data, then " meta {a=1}" when there is some.
std::string Describe(const SafetensorsHeader& header) {
  std::vector<std::string> tensors;
  for (const HeaderTensor& tensor : header.tensors) {
    tensors.push_back(absl::StrCat(
        tensor.name, " ", DtypeName(tensor.dtype), " ", absl::StrJoin(tensor.shape, ","), " ",
        tensor.begin - header.data_begin, "-", tensor.end - header.data_begin));
  }
  std::string text = absl::StrJoin(tensors, "; ");
  if (header.metadata.has_value()) {
    absl::StrAppend(&text, " meta {",
                    absl::StrJoin(*header.metadata, ",", absl::PairFormatter("=")), "}");
  }
  return text;
}

absl::StatusOr<SafetensorsHeader> ReadBytes(absl::string_view file) {
  const UniqueFd fd = FileOfBytesForTest(file);
  return ReadHeader(fd.get(), "model.safetensors");
}

struct Row {
  std::string name;
  std::string file;
  // Of a file that is refused.
  std::optional<HeaderRule> rule;
  // Of one that is not.
  std::string content;
};

Row Accepts(std::string name, absl::string_view header, size_t data_bytes, std::string content) {
  return {std::move(name), SafetensorsForTest(Expand(header), data_bytes), std::nullopt,
          std::move(content)};
}
Row Refuses(std::string name, absl::string_view header, size_t data_bytes, HeaderRule rule) {
  return {std::move(name), SafetensorsForTest(Expand(header), data_bytes), rule, ""};
}
Row RefusesFile(std::string name, std::string file, HeaderRule rule) {
  return {std::move(name), std::move(file), rule, ""};
}

std::string Nested(size_t depth) {
  return absl::StrCat("{\"t\":{$D:\"I32\",$S:[2,2],$O:[0,16],\"x\":", std::string(depth, '['),
                      std::string(depth, ']'), "}}");
}

std::vector<Row> TableOfSyntax() {
  using absl::string_view;
  const HeaderRule json = HeaderRule::kJson;
  const std::string t = "t I32 2,2 0-16";
  return {
      Accepts("ok", "{$T}", 16, t),
      Accepts("dup_same_range", "{$T,\"t\":{$D:\"F32\",$S:[4],$O:[0,16]}}", 16, "t F32 4 0-16"),
      Refuses("dup_adjacent",
              "{\"t\":{$D:\"I32\",$S:[2],$O:[0,8]},\"t\":{$D:\"I32\",$S:[2],$O:[8,16]}}", 16,
              HeaderRule::kOffset),
      Refuses("dup_metadata", "{\"__metadata__\":{\"a\":\"1\"},\"__metadata__\":{\"a\":\"2\"},$T}",
              16, json),
      Accepts("meta_null", "{\"__metadata__\":null,$T}", 16, t),
      Accepts("meta_empty", "{\"__metadata__\":{},$T}", 16, t + " meta {}"),
      Refuses("meta_int", "{\"__metadata__\":{\"a\":1},$T}", 16, json),
      Refuses("meta_nested", "{\"__metadata__\":{\"a\":{\"b\":\"c\"}},$T}", 16, json),
      Refuses("meta_is_list", "{\"__metadata__\":[\"a\"],$T}", 16, json),
      Accepts("info_as_array", "{\"t\":[\"I32\",[2,2],[0,16]]}", 16, t),
      Accepts("info_extra_field", "{\"t\":{$D:\"I32\",$S:[2,2],$O:[0,16],\"x\":{\"y\":[1]}}}", 16,
              t),
      Refuses("missing_shape", "{\"t\":{$D:\"I32\",$O:[0,16]}}", 16, json),
      Refuses("offsets_3", "{\"t\":{$D:\"I32\",$S:[2,2],$O:[0,16,16]}}", 16, json),
      Refuses("offsets_1", "{\"t\":{$D:\"I32\",$S:[2,2],$O:[0]}}", 16, json),
      Refuses("offsets_float", "{\"t\":{$D:\"I32\",$S:[2,2],$O:[0,16.0]}}", 16, json),
      Refuses("neg", "{\"t\":{$D:\"I32\",$S:[2,2],$O:[-16,0]}}", 16, json),
      Refuses("string_num", "{\"t\":{$D:\"I32\",$S:[\"2\",2],$O:[0,16]}}", 16, json),
      Refuses("lead_zero", "{\"t\":{$D:\"I32\",$S:[02,2],$O:[0,16]}}", 16, json),
      Refuses("unknown_dtype", "{\"t\":{$D:\"F8_E3M4\",$S:[16],$O:[0,16]}}", 16, json),
      Refuses("lower_dtype", "{\"t\":{$D:\"i32\",$S:[2,2],$O:[0,16]}}", 16, json),
      Refuses("C128", "{\"t\":{$D:\"C128\",$S:[1],$O:[0,16]}}", 16, json),
      Accepts("trailing_ws", "{$T} \n\t\r ", 16, t),
      Refuses("trailing_nul", string_view("{$T}\0", 5), 16, json),
      Refuses("trailing_json", "{$T}{}", 16, json),
      Refuses("bom", "\xEF\xBB\xBF{$T}", 16, json),
      Accepts("name_empty", "{\"\":$E}", 16, " I32 2,2 0-16"),
      Accepts("name_nul", "{\"a\\u0000b\":$E}", 16, std::string("a\0b I32 2,2 0-16", 16)),
      Accepts("name_surrpair", "{\"\\ud83d\\ude00\":$E}", 16, "\xF0\x9F\x98\x80 I32 2,2 0-16"),
      Accepts("name_cjk", "{\"\u6a21\u578b.\u6743\u91cd\u503c\":$E}", 16,
              "\u6a21\u578b.\u6743\u91cd\u503c I32 2,2 0-16"),
      Refuses("name_raw_ctrl", "{\"a\nb\":$E}", 16, json),
      Accepts("name_slash", "{\"../../x\":$E}", 16, "../../x I32 2,2 0-16"),
      Refuses("invalid_utf8", "{\"\xFF\":$E}", 16, HeaderRule::kUtf8),
      Accepts("empty_obj", "{}", 0, ""),
      Refuses("empty_obj_data", "{}", 1, HeaderRule::kCoverage),
      Refuses("array_root", "[]", 0, json),
      Refuses("array_root2", "[null,{}]", 0, json),
      Refuses("n_zero", "", 0, json),
      Refuses("int_overflow", "{\"t\":{$D:\"U8\",$S:[18446744073709551616],$O:[0,0]}}", 0, json),
      Refuses("deep_extra", Nested(200), 16, json),
      Refuses("comment", "{$T/*c*/}", 16, json),
      Refuses("trailing_comma", "{$T,}", 16, json),
      Refuses("nan", "{\"t\":{$D:\"I32\",$S:[NaN],$O:[0,16]}}", 16, json),
  };
}

std::vector<Row> TableOfRanges() {
  return {
      Refuses("hole_start", "{\"t\":{$D:\"I32\",$S:[2],$O:[8,16]}}", 16, HeaderRule::kOffset),
      Refuses("overlap",
              "{\"a\":{$D:\"I32\",$S:[4],$O:[0,16]},\"b\":{$D:\"I32\",$S:[2],$O:[8,16]}}", 16,
              HeaderRule::kOffset),
      Refuses("trailing_data", "{$T}", 17, HeaderRule::kCoverage),
      Refuses("short_data", "{$T}", 15, HeaderRule::kCoverage),
      RefusesFile("n_too_big", LittleEndianForTest(100'000'001), HeaderRule::kTooLarge),
      RefusesFile("n_gt_file", LittleEndianForTest(5000) + "{}", HeaderRule::kHeaderLength),
      RefusesFile("7bytes", std::string(7, '\0'), HeaderRule::kTooSmall),
      RefusesFile("empty", "", HeaderRule::kTooSmall),
      Accepts("zero_elem", "{\"t\":{$D:\"F16\",$S:[0,5],$O:[0,0]}}", 0, "t F16 0,5 0-0"),
      Accepts("zero_elem_hugedim", "{\"t\":{$D:\"F16\",$S:[0,18446744073709551615],$O:[0,0]}}", 0,
              "t F16 0,18446744073709551615 0-0"),
      Accepts("scalar", "{\"t\":{$D:\"F32\",$S:[],$O:[0,4]}}", 4, "t F32  0-4"),
      Refuses("f4_odd", "{\"t\":{$D:\"F4\",$S:[3],$O:[0,2]}}", 2, HeaderRule::kMisaligned),
      Accepts("f4_even", "{\"t\":{$D:\"F4\",$S:[4],$O:[0,2]}}", 2, "t F4 4 0-2"),
      Accepts("unaligned_hdr", "{$T} ", 16, "t I32 2,2 0-16"),
      Accepts("unaligned_tensor",
              "{\"a\":{$D:\"U8\",$S:[1],$O:[0,1]},\"b\":{$D:\"F32\",$S:[1],$O:[1,5]}}", 5,
              "a U8 1 0-1; b F32 1 1-5"),
      Refuses("u64_max_off",
              "{\"t\":{$D:\"U8\",$S:[18446744073709551615],$O:[0,18446744073709551615]}}", 0,
              HeaderRule::kOverflow),
      Accepts("unordered_json",
              "{\"b\":{$D:\"I32\",$S:[2],$O:[8,16]},\"a\":{$D:\"I32\",$S:[2],$O:[0,8]}}", 16,
              "a I32 2 0-8; b I32 2 8-16"),
      RefusesFile("lfs", "version git-lfs-spec-v1\noid sha256:0123\nsize 4976698672\n",
                  HeaderRule::kTooLarge),
      RefusesFile("html", "<!DOCTYPE html><html><body>404</body></html>", HeaderRule::kTooLarge),
      RefusesFile("zip", std::string("PK\x03\x04\0\0\0\0", 8) + std::string(100, '\0'),
                  HeaderRule::kHeaderLength),
  };
}

// Not in the measured table: found by running both readers over generated files.
std::vector<Row> BeyondTheTable() {
  const HeaderRule json = HeaderRule::kJson;
  const std::string t = "t I32 2,2 0-16";
  const auto extra = [](absl::string_view value) {
    return absl::StrCat("{\"t\":{$D:\"I32\",$S:[2,2],$O:[0,16],\"x\":", value, "}}");
  };
  const auto shape = [](absl::string_view value) {
    return absl::StrCat("{\"t\":{$D:\"I32\",$S:", value, ",$O:[0,16]}}");
  };
  return {
      Accepts("leading_ws", " \r\n\t{$T}", 16, t),
      Refuses("leading_nul", absl::string_view("\0{$T}", 5), 16, json),
      Accepts("dtype_as_map", "{\"t\":{$D:{\"I32\":null},$S:[2,2],$O:[0,16]}}", 16, t),
      Refuses("dtype_as_map_of_map", "{\"t\":{$D:{\"I32\":{}},$S:[2,2],$O:[0,16]}}", 16, json),
      Refuses("dtype_as_map_of_two", "{\"t\":{$D:{\"I32\":null,\"I32\":null},$S:[2,2],$O:[0,16]}}",
              16, json),
      Refuses("dtype_as_empty_map", "{\"t\":{$D:{},$S:[2,2],$O:[0,16]}}", 16, json),
      Refuses("array_of_four", "{\"t\":[\"I32\",[2,2],[0,16],0]}", 16, json),
      Refuses("array_of_two", "{\"t\":[\"I32\",[2,2]]}", 16, json),
      Refuses("dup_dtype", "{\"t\":{$D:\"I32\",$D:\"I32\",$S:[2,2],$O:[0,16]}}", 16, json),
      Accepts("dup_unknown_field", "{\"t\":{$D:\"I32\",\"x\":1,\"x\":2,$S:[2,2],$O:[0,16]}}", 16,
              t),
      Accepts("escaped_field", "{\"t\":{\"d\\u0074ype\":\"I32\",$S:[2,2],$O:[0,16]}}", 16, t),
      Accepts("escaped_metadata_key", "{\"\\u005f_metadata__\":{\"a\":\"b\"},$T}", 16,
              t + " meta {a=b}"),
      Accepts("dup_key_in_metadata", "{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"},$T}", 16,
              t + " meta {a=2}"),
      Refuses("metadata_null_twice", "{\"__metadata__\":null,\"__metadata__\":null,$T}", 16, json),
      Refuses("metadata_value_null", "{\"__metadata__\":{\"a\":null},$T}", 16, json),
      Refuses("overwritten_but_broken", "{\"t\":{$D:\"I32\"},$T}", 16, json),
      Accepts("overwritten_with_any_range", "{\"t\":{$D:\"I32\",$S:[9],$O:[99,7]},$T}", 16, t),
      Refuses("minus_zero", shape("[-0,2]"), 16, json),
      Refuses("exponent", shape("[4e0]"), 16, json),
      Accepts("minus_zero_ignored", extra("-0"), 16, t),
      Accepts("float_ignored", extra("[1e1,16.0,0.5E-3,1E+2]"), 16, t),
      Accepts("big_integer_ignored", extra("123456789012345678901234567890"), 16, t),
      Refuses("beyond_double_ignored", extra("1e999"), 16, json),
      Refuses("beyond_double_by_digits", extra(std::string(400, '9')), 16, json),
      Accepts("zero_times_beyond", extra("0e999"), 16, t),
      Accepts("zero_times_far_beyond", extra("0e99999999999"), 16, t),
      Refuses("far_beyond", extra("1e99999999999"), 16, json),
      Accepts("tiny", extra("[1e-999,1e-99999999999]"), 16, t),
      Refuses("minus_alone", extra("-"), 16, json),
      Refuses("point_alone", extra("1."), 16, json),
      Refuses("exponent_alone", extra("1e"), 16, json),
      Refuses("lone_leading_surrogate_ignored", extra("\"\\ud800\""), 16, json),
      Refuses("lone_trailing_surrogate_ignored", extra("\"\\udc00\""), 16, json),
      Refuses("unpaired_surrogates_ignored", extra("\"\\ud800\\u0041\""), 16, json),
      Refuses("unknown_escape", extra("\"\\x\""), 16, json),
      Accepts("delete_character", extra("\"\x7F\""), 16, t),
      Accepts("nested_127", Nested(125), 16, t),
      Refuses("nested_128", Nested(126), 16, json),
      Refuses("cut_literal", extra("tru"), 16, json),
      Accepts("zero_size_between",
              "{\"a\":{$D:\"U8\",$S:[8],$O:[0,8]},\"b\":{$D:\"U8\",$S:[0],$O:[8,8]},"
              "\"c\":{$D:\"U8\",$S:[8],$O:[8,16]},\"d\":{$D:\"U8\",$S:[0],$O:[16,16]}}",
              16, "a U8 8 0-8; b U8 0 8-8; c U8 8 8-16; d U8 0 16-16"),
      Refuses("zero_size_inside",
              "{\"a\":{$D:\"U8\",$S:[16],$O:[0,16]},\"b\":{$D:\"U8\",$S:[0],$O:[8,8]}}", 16,
              HeaderRule::kOffset),
      Refuses("end_before_begin",
              "{\"t\":{$D:\"U8\",$S:[0],$O:[0,0]},"
              "\"u\":{$D:\"U8\",$S:[0],$O:[1,0]}}",
              0, HeaderRule::kOffset),
      Refuses("overflow_before_zero", "{\"t\":{$D:\"U8\",$S:[9223372036854775808,4,0],$O:[0,0]}}",
              0, HeaderRule::kOverflow),
      Accepts("zero_before_overflow", "{\"t\":{$D:\"U8\",$S:[0,9223372036854775808,4],$O:[0,0]}}",
              0, "t U8 0,9223372036854775808,4 0-0"),
      Refuses("bits_overflow", "{\"t\":{$D:\"U8\",$S:[2305843009213693952],$O:[0,0]}}", 0,
              HeaderRule::kOverflow),
      Refuses("size", "{\"t\":{$D:\"I32\",$S:[3],$O:[0,16]}}", 16, HeaderRule::kSize),
      Refuses("size_before_coverage", "{\"t\":{$D:\"I32\",$S:[3],$O:[0,16]}}", 1,
              HeaderRule::kSize),
      Refuses("offset_before_size", "{\"t\":{$D:\"I32\",$S:[3],$O:[1,16]}}", 1,
              HeaderRule::kOffset),
      Refuses("f6_not_whole_bytes", "{\"t\":{$D:\"F6_E2M3\",$S:[2],$O:[0,1]}}", 1,
              HeaderRule::kMisaligned),
      Accepts("f6_whole_bytes", "{\"t\":{$D:\"F6_E3M2\",$S:[4],$O:[0,3]}}", 3, "t F6_E3M2 4 0-3"),
  };
}

class HeaderTableTest : public ::testing::TestWithParam<Row> {};

TEST_P(HeaderTableTest, AgreesWithTheReferenceReader) {
  const Row& row = GetParam();
  const absl::StatusOr<SafetensorsHeader> header = ReadBytes(row.file);
  if (row.rule.has_value()) {
    ASSERT_THAT(header, StatusIs(absl::StatusCode::kInvalidArgument,
                                 AllOf(HasSubstr("model.safetensors"),
                                       HasSubstr(std::string(HeaderRuleName(*row.rule))))));
    ASSERT_TRUE(HeaderRuleOf(header.status()).has_value());
    EXPECT_EQ(HeaderRuleName(*HeaderRuleOf(header.status())), HeaderRuleName(*row.rule));
    return;
  }
  ASSERT_OK(header);
  EXPECT_EQ(Describe(*header), row.content);
  EXPECT_EQ(header->file_bytes, row.file.size());
}

std::string RowName(const ::testing::TestParamInfo<Row>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Syntax, HeaderTableTest, ::testing::ValuesIn(TableOfSyntax()), RowName);
INSTANTIATE_TEST_SUITE_P(Ranges, HeaderTableTest, ::testing::ValuesIn(TableOfRanges()), RowName);
INSTANTIATE_TEST_SUITE_P(Beyond, HeaderTableTest, ::testing::ValuesIn(BeyondTheTable()), RowName);

std::string MessageOf(absl::string_view file) {
  return std::string(ReadBytes(file).status().message());
}

TEST(SafetensorsHeaderTest, SaysWhatAForeignFileIs) {
  EXPECT_THAT(MessageOf("version git-lfs-spec-v1\noid sha256:0\nsize 4976698672\n"),
              AllOf(HasSubstr("git-LFS pointer"), HasSubstr("4976698672 bytes")));
  EXPECT_THAT(MessageOf("\n<!doctype HTML><html>"), HasSubstr("HTML page"));
  EXPECT_THAT(MessageOf("<?xml version='1.0'?><Error>"), HasSubstr("XML document"));
  EXPECT_THAT(MessageOf(absl::string_view("PK\x03\x04\0\0\0\0archive", 15)),
              HasSubstr("zip archive"));
  EXPECT_THAT(MessageOf(""), HasSubstr("empty file"));
  EXPECT_THAT(MessageOf(std::string(4096, '\0')), HasSubstr("begins with zeros"));
}

TEST(SafetensorsHeaderTest, SaysHowMuchOfACutDownloadIsThere) {
  const std::string whole = SafetensorsForTest(Expand("{$T}"), 16);
  EXPECT_THAT(
      MessageOf(absl::string_view(whole).substr(0, whole.size() - 5)),
      HasSubstr(absl::StrCat("cut download: ", whole.size() - 5, " bytes of ", whole.size())));
  EXPECT_THAT(MessageOf(absl::string_view(whole).substr(0, 20)),
              HasSubstr(absl::StrCat("20 bytes of the ", whole.size() - 16)));
}

TEST(SafetensorsHeaderTest, NamesTensorAndNumbers) {
  EXPECT_THAT(
      MessageOf(SafetensorsForTest(
          Expand("{\"a\":{$D:\"U8\",$S:[8],$O:[0,8]},\"b\\n\":{$D:\"U8\",$S:[4],$O:[12,16]}}"),
          16)),
      AllOf(HasSubstr("tensor 'b\\n'"), HasSubstr("byte 12"), HasSubstr("a hole of 4 bytes")));
  EXPECT_THAT(MessageOf(SafetensorsForTest(Expand("{\"t\":{$D:\"I32\",$S:[3],$O:[0,16]}}"), 16)),
              AllOf(HasSubstr("takes 12 bytes"), HasSubstr("[0, 16) has 16")));
  EXPECT_THAT(
      MessageOf(SafetensorsForTest(Expand("{\"t\":{$D:\"I33\",$S:[3],$O:[0,16]}}"), 16)),
      AllOf(HasSubstr("tensor 't'"), HasSubstr("unknown dtype 'I33'"), HasSubstr("at byte")));
}

TEST(SafetensorsHeaderTest, NamesBothTensorsThatOverlap) {
  EXPECT_THAT(
      MessageOf(SafetensorsForTest(
          Expand("{\"a\":{$D:\"U8\",$S:[8],$O:[0,8]},\"b\":{$D:\"U8\",$S:[4],$O:[4,8]}}"), 8)),
      AllOf(HasSubstr("tensor 'b': begins at byte 4"), HasSubstr("'a' ends at 8"),
            HasSubstr("they overlap by 4 bytes"), HasSubstr("InvalidOffset")));
}

TEST(SafetensorsHeaderTest, ListsAllThatBreaksTheSchemaAndWhereTheTextEnds) {
  const std::string text =
      R"({"__metadata__":{"n":1,"ok":"x","l":[2]},)"
      R"("a":{"dtype":"F9","shape":[],"data_offsets":[0,1]},)"
      R"("b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},"c":["F10",[1],[2,3]],)"
      R"("d":{"dtype":"U8"},"e":{"dtype":"U8","shape":[-1]})";
  EXPECT_THAT(
      ParseHeader(BytesOf(text), 8 + text.size() + 3, "f"),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("__metadata__: expected a string for 'n'"),
                     HasSubstr("__metadata__: expected a string for 'l'"),
                     HasSubstr("tensor 'a': unknown dtype 'F9'"),
                     HasSubstr("tensor 'c': unknown dtype 'F10'"),
                     HasSubstr("tensor 'd': no field shape"),
                     HasSubstr("tensor 'd': no field data_offsets"), HasSubstr("tensor 'e': "),
                     Not(HasSubstr("'b'")), HasSubstr("InvalidHeaderDeserialization"))));
}

TEST(SafetensorsHeaderTest, ListsEveryTensorThatBreaksARule) {
  const std::string file = SafetensorsForTest(
      Expand("{\"a\":{$D:\"U8\",$S:[3],$O:[0,4]},\"b\":{$D:\"U8\",$S:[4],$O:[4,8]},"
             "\"c\":{$D:\"U8\",$S:[2],$O:[10,12]}}"),
      11);
  const absl::Status status = ReadBytes(file).status();
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("tensor 'a'"), Not(HasSubstr("tensor 'b'")), HasSubstr("tensor 'c'"),
                    HasSubstr("a hole of 2 bytes"), HasSubstr("a cut download")));
  // As the reference reader, which stops at the first.
  EXPECT_EQ(HeaderRuleOf(status), HeaderRule::kSize);
}

TEST(SafetensorsHeaderTest, ListsTheFirstOfVeryManyTensorsThatBreakARule) {
  std::string header = "{";
  for (int i = 0; i < 1000; ++i) {
    absl::StrAppend(&header, i == 0 ? "" : ",", "\"t", i, Expand("\":{$D:\"U8\",$S:[2],$O:["), i,
                    ",", i + 1, "]}");
  }
  const std::string message = MessageOf(SafetensorsForTest(header + "}", 1000));
  EXPECT_THAT(message, AllOf(HasSubstr("'t0'"), HasSubstr("and 989 more")));
  EXPECT_LT(message.size(), 5000u);
}

TEST(SafetensorsHeaderTest, ExplainsTheHoleThatARepeatedNameLeaves) {
  EXPECT_THAT(
      MessageOf(SafetensorsForTest(
          Expand("{\"t\":{$D:\"I32\",$S:[2],$O:[0,8]},\"t\":{$D:\"I32\",$S:[2],$O:[8,16]}}"), 16)),
      AllOf(HasSubstr("more than once"), HasSubstr("'t'")));
}

TEST(SafetensorsHeaderTest, CutsNamesOfAnyLengthInMessages) {
  const std::string name(1'000'000, 'n');
  const std::string message = MessageOf(
      SafetensorsForTest(Expand(absl::StrCat("{\"", name, "\":{$D:\"U8\",$S:[8],$O:[1,9]}}")), 9));
  EXPECT_LT(message.size(), 1000u);
  EXPECT_THAT(message, HasSubstr("1000000 bytes"));
}

TEST(SafetensorsHeaderTest, GivesRangesInTheFile) {
  const std::string header = Expand("{$T}");
  ASSERT_OK_AND_ASSIGN(const SafetensorsHeader read, ReadBytes(SafetensorsForTest(header, 16)));
  EXPECT_EQ(read.data_begin, 8 + header.size());
  ASSERT_EQ(read.tensors.size(), 1u);
  EXPECT_EQ(read.tensors[0].begin, 8 + header.size());
  EXPECT_EQ(read.tensors[0].end, 8 + header.size() + 16);
}

TEST(SafetensorsHeaderTest, DigestsLengthFieldAndText) {
  const std::string file = SafetensorsForTest(Expand("{$T}"), 16);
  ASSERT_OK_AND_ASSIGN(const SafetensorsHeader read, ReadBytes(file));
  Sha256 sha256;
  sha256.Update(BytesOf(file).subspan(0, file.size() - 16));
  EXPECT_EQ(read.digest, sha256.Finish());
  // Data do not count, the text does, and the two ways in agree.
  const std::string text = Expand("{$T}");
  ASSERT_OK_AND_ASSIGN(const SafetensorsHeader parsed,
                       ParseHeader(BytesOf(text), file.size(), "f"));
  EXPECT_EQ(parsed.digest, read.digest);
  const std::string longer = text + " ";
  ASSERT_OK_AND_ASSIGN(const SafetensorsHeader other,
                       ParseHeader(BytesOf(longer), file.size() + 1, "f"));
  EXPECT_NE(other.digest, read.digest);
}

TEST(SafetensorsHeaderTest, TakesAHeaderOfExactlyTheLimit) {
  std::string text = "{}";
  text.resize(kHeaderBytesMax, ' ');
  EXPECT_OK(ReadBytes(SafetensorsForTest(text, 0)));
  text.push_back(' ');
  EXPECT_EQ(HeaderRuleOf(ReadBytes(SafetensorsForTest(text, 0)).status()), HeaderRule::kTooLarge);
  EXPECT_EQ(HeaderRuleOf(ParseHeader(BytesOf(text), text.size() + 8, "f").status()),
            HeaderRule::kTooLarge);
}

TEST(SafetensorsHeaderTest, ReadsOnlyRegularFiles) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const UniqueFd read_end(ends[0]);
  const UniqueFd write_end(ends[1]);
  const absl::StatusOr<SafetensorsHeader> header = ReadHeader(read_end.get(), "fifo");
  EXPECT_THAT(header,
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not a regular file")));
  EXPECT_FALSE(HeaderRuleOf(header.status()).has_value());
}

TEST(SafetensorsHeaderTest, KeepsTheErrorOfTheSystem) {
  EXPECT_EQ(ErrnoOf(ReadHeader(-1, "closed").status()), EBADF);
  const UniqueFd write_only(open("/dev/shm", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600));
  ASSERT_TRUE(write_only.valid());
  ASSERT_EQ(ftruncate(write_only.get(), 100), 0);
  EXPECT_EQ(ErrnoOf(ReadHeader(write_only.get(), "f").status()), EBADF);
}

TEST(SafetensorsHeaderTest, OtherStatusesHaveNoRule) {
  EXPECT_FALSE(HeaderRuleOf(absl::OkStatus()).has_value());
  EXPECT_FALSE(HeaderRuleOf(absl::InvalidArgumentError("x")).has_value());
}

}  // namespace
}  // namespace forestage
