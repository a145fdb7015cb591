// SPDX-License-Identifier: Apache-2.0
// The corpus, and simple changes of each of its entries, without a fuzzer. With --write: makes the corpus anew.
#include <gtest/gtest.h>

#include <sodium.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "fuzz/frames_fuzz.h"

namespace treering {
namespace {

std::map<std::string, std::string> entries() {
  Place place;
  place.pid = 7;
  place.host_name = "host";
  place.port = 4711;
  place.addresses = unpack_addresses(reinterpret_cast<const unsigned char*>("\x04\x0a\x01\x02\x03"), 5);
  ProcessTableMessage table;
  table.places = {place, place};
  table.process_of_rank = {0, 1, 1};
  HelloMessage hello;
  hello.settings = "a=1\nb=2\n";
  NoticeMessage notice;
  notice.text = "rank 1 (pid 2 on x)";
  std::map<std::string, std::string> all;
  all["join"] = "M" + encode(JoinMessage{"id", place});
  all["placed"] = "M" + encode(PlacedMessage{place, {place, place}});
  all["hello"] = "M" + encode(hello);
  all["process_table"] = "M" + encode(table);
  all["blobs"] = "M" + encode(BlobsMessage{3, {"one", "", "three"}});
  all["notice"] = "M" + encode(notice);
  all["question"] = "M" + encode(QuestionMessage{1, 2, 3, 4});
  all["answer"] = "M" + encode(AnswerMessage{1, 2, 3, 4, "status"});
  all["introduction"] = "M" + encode(IntroductionMessage{1, 2, "tcp"});
  all["handshake"] = "H" + Handshake(JobName{1}, Secret{9}, 5).opening() + std::string(32, 'x');
  all["addresses"] = std::string("A\x04\x0a\x01\x02\x03\x07", 7) + std::string(8, 'y') + "\x06" + std::string(16, 'z');
  return all;
}

TEST(Corpus, IsReadWithoutHarm) {
  ASSERT_GE(sodium_init(), 0);
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(TREERING_CORPUS)) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    ASSERT_FALSE(bytes.empty()) << entry.path();
    ++files;
    for (size_t length = 0; length <= bytes.size(); ++length) check_bytes(bytes.substr(0, length));
    for (size_t at = 1; at < bytes.size(); ++at)
      for (unsigned value : {0u, 1u, 0x7fu, 0x80u, 0xffu}) {
        std::string changed = bytes;
        changed[at] = static_cast<char>(value);
        check_bytes(changed);
      }
    check_bytes(bytes + "more");
  }
  EXPECT_GE(files, 10);
}

// After a change of a message: frames_replay_test --write FOLDER.
TEST(Corpus, HasEachEntryAsItIsNow) {
  for (const auto& [name, bytes] : entries()) {
    if (name == "handshake") continue;  // a random key
    std::ifstream file(std::filesystem::path(TREERING_CORPUS) / name, std::ios::binary);
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), bytes) << name;
  }
}

TEST(Messages, ComeBackAsTheyWere) {
  const auto all = entries();
  ProcessTableMessage table;
  ASSERT_TRUE(decode(all.at("process_table").substr(1), &table));
  EXPECT_EQ(table.places.at(1).host_name, "host");
  EXPECT_EQ(to_text(table.places.at(1).addresses.at(0)), "10.1.2.3");
  EXPECT_EQ(table.process_of_rank, (std::vector<uint32_t>{0, 1, 1}));
  BlobsMessage blobs;
  ASSERT_TRUE(decode(all.at("blobs").substr(1), &blobs));
  EXPECT_EQ(blobs.blobs, (std::vector<std::string>{"one", "", "three"}));
  EXPECT_FALSE(decode(all.at("blobs").substr(1), &table)) << "another kind";
}

}  // namespace
}  // namespace treering

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--write") {
    if (sodium_init() < 0) return 1;
    for (const auto& [name, bytes] : treering::entries())
      std::ofstream(std::filesystem::path(argv[2]) / name, std::ios::binary) << bytes;
    return 0;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
