// SPDX-License-Identifier: Apache-2.0
// The messages of the rendezvous, each a kind and its fields. decode() is a pure function over bytes: whatever they
// are, it says yes or no.
//
//   to the root, on a connection of its own   kJoin -> kPlaced | kFailed
//   to the parent, for the job's whole life   kAttach -> kAttached
//   up the tree                               kHello, kBlob, kSpread
//   down the tree                             kFailed, kProcessTable, kBlobs
//   both ways                                 kNotice, kHeartbeat, kMoving, kQuestion, kAnswer, kIntroduction
//   on a connection that it asks for          kIntroduction -> kIntroduced | kFailed
#pragma once

#include <optional>

#include "bootstrap/address.h"
#include "core/bytes.h"

namespace treering {

enum class Kind : uint8_t {
  kJoin = 1,
  kPlaced,
  kAttach,
  kAttached,
  kHello,
  kFailed,
  kProcessTable,
  kBlob,
  kBlobs,
  kNotice,
  kHeartbeat,
  kMoving,
  kSpread,
  kQuestion,
  kAnswer,
  kIntroduction,
  kIntroduced
};

inline constexpr uint32_t kNobody = UINT32_MAX;

// A process of the job and how it is reached. Processes are numbered in the order of their arrival; 0 is the root.
struct Place {
  uint32_t process = kNobody;
  uint32_t parent = kNobody;
  uint32_t host = 0;
  uint32_t pid = 0;
  uint32_t rank = kNobody;  // the first that came to the rendezvous; of a process that made the id, none may have then
  uint64_t local = 0;       // names its Unix socket
  uint64_t network = 0;     // HostIdentity::network
  std::string host_name;
  uint16_t port = 0;
  std::vector<Address> addresses;
};

struct JoinMessage {
  static constexpr Kind kKind = Kind::kJoin;
  std::string host;  // HostIdentity::host
  Place place;       // without numbers
};
struct PlacedMessage {
  static constexpr Kind kKind = Kind::kPlaced;
  Place own;
  std::vector<Place> ancestors;  // the parent first
};
struct AttachMessage {
  static constexpr Kind kKind = Kind::kAttach;
  uint32_t process = 0;
  bool has_process_table = false;
  uint64_t round = 0;  // the last whose blobs it has
};
struct AttachedMessage {
  static constexpr Kind kKind = Kind::kAttached;
  uint32_t process = 0;
  uint64_t round = 0;  // the last whose blobs the parent has
};
struct HelloMessage {
  static constexpr Kind kKind = Kind::kHello;
  uint32_t process = 0, rank = 0, ranks = 0;
  int32_t timeout_ms = 0;
  uint64_t segment_bytes = 0, staging_bytes = 0;  // as the rank would have them: the least of all ranks counts
  uint32_t pid = 0;
  uint64_t nonce = 0;  // the same hello may be sent again, over another parent
  std::string settings;
};
struct FailedMessage {
  static constexpr Kind kKind = Kind::kFailed;
  uint32_t code = 0;
  std::string text;
};
struct ProcessTableMessage {
  static constexpr Kind kKind = Kind::kProcessTable;
  uint64_t segment_bytes = 0, staging_bytes = 0;
  bool has_segment = false;  // its descriptor comes along
  std::vector<Place> places;
  std::vector<uint32_t> process_of_rank;
};
struct BlobMessage {
  static constexpr Kind kKind = Kind::kBlob;
  uint32_t rank = 0;
  uint64_t round = 0;
  std::string bytes;
};
struct BlobsMessage {
  static constexpr Kind kKind = Kind::kBlobs;
  uint64_t round = 0;
  std::vector<std::string> blobs;
};
enum class NoticeType : uint8_t { kVerdict = 1, kLost, kSilent, kHeard, kMoved, kRankLeft, kDissolved };
// A fact that reaches every process once: known by its origin and number. But for kDissolved, which only neighbours in
// the tree are told: where all ranks leave at once, n facts for n processes would be n^2 messages.
struct NoticeMessage {
  static constexpr Kind kKind = Kind::kNotice;
  uint32_t origin = 0;
  uint64_t number = 0;
  NoticeType type = NoticeType::kVerdict;
  uint32_t process = 0;
  uint32_t other = 0;  // kMoved: the new parent; kRankLeft: the rank; kSilent: for how many ms, or 0
  uint32_t code = 0;   // kRankLeft: of the failure because of which it left, as `text`
  std::string text;
};
struct HeartbeatMessage {
  static constexpr Kind kKind = Kind::kHeartbeat;
};
// A child ends this connection in good order. One that is the top from now on (new_top is itself) has lost touch with
// this part of the tree: the message goes on to this part's top, which attaches to it.
struct MovingMessage {
  static constexpr Kind kKind = Kind::kMoving;
  uint32_t process = kNobody;  // the child
  uint32_t new_top = kNobody;  // or another parent
};
struct SpreadMessage {
  static constexpr Kind kKind = Kind::kSpread;
  uint32_t code = 0;
  std::string text;
};
struct QuestionMessage {
  static constexpr Kind kKind = Kind::kQuestion;
  uint32_t rank = 0, asking_process = 0, asking_rank = 0;
  uint64_t asked = 0;  // when, by the clock of the rank that asks; the answer has the same
};
struct AnswerMessage {
  static constexpr Kind kKind = Kind::kAnswer;
  uint32_t rank = 0, asking_process = 0, asking_rank = 0;
  uint64_t asked = 0;
  std::string bytes;
};
// From rank to rank.
struct IntroductionMessage {
  static constexpr Kind kKind = Kind::kIntroduction;
  uint32_t source = 0, destination = 0;
  std::string bytes;
};
struct IntroducedMessage {
  static constexpr Kind kKind = Kind::kIntroduced;
};

// clang-format off
template <typename V> void visit(V& v, Place& m) {
  v(m.process); v(m.parent); v(m.host); v(m.pid); v(m.rank); v(m.local); v(m.network); v(m.host_name); v(m.port); v(m.addresses);
}
template <typename V> void visit(V& v, JoinMessage& m) { v(m.host); v(m.place); }
template <typename V> void visit(V& v, PlacedMessage& m) { v(m.own); v(m.ancestors); }
template <typename V> void visit(V& v, AttachMessage& m) { v(m.process); v(m.has_process_table); v(m.round); }
template <typename V> void visit(V& v, AttachedMessage& m) { v(m.process); v(m.round); }
template <typename V> void visit(V& v, HelloMessage& m) {
  v(m.process); v(m.rank); v(m.ranks); v(m.timeout_ms); v(m.segment_bytes); v(m.staging_bytes); v(m.pid); v(m.nonce); v(m.settings);
}
template <typename V> void visit(V& v, FailedMessage& m) { v(m.code); v(m.text); }
template <typename V> void visit(V& v, ProcessTableMessage& m) {
  v(m.segment_bytes); v(m.staging_bytes); v(m.has_segment); v(m.places); v(m.process_of_rank);
}
template <typename V> void visit(V& v, BlobMessage& m) { v(m.rank); v(m.round); v(m.bytes); }
template <typename V> void visit(V& v, BlobsMessage& m) { v(m.round); v(m.blobs); }
template <typename V> void visit(V& v, NoticeMessage& m) {
  v(m.origin); v(m.number); v(m.type); v(m.process); v(m.other); v(m.code); v(m.text);
}
template <typename V> void visit(V&, HeartbeatMessage&) {}
template <typename V> void visit(V& v, MovingMessage& m) { v(m.process); v(m.new_top); }
template <typename V> void visit(V& v, SpreadMessage& m) { v(m.code); v(m.text); }
template <typename V> void visit(V& v, QuestionMessage& m) {
  v(m.rank); v(m.asking_process); v(m.asking_rank); v(m.asked);
}
template <typename V> void visit(V& v, AnswerMessage& m) {
  v(m.rank); v(m.asking_process); v(m.asking_rank); v(m.asked); v(m.bytes);
}
template <typename V> void visit(V& v, IntroductionMessage& m) { v(m.source); v(m.destination); v(m.bytes); }
template <typename V> void visit(V&, IntroducedMessage&) {}
// clang-format on

template <typename T>
std::string encode(const T& message) {
  Writer writer;
  writer(T::kKind);
  writer(message);
  return writer.take();
}

// The kind of a message; nothing of an empty one.
inline std::optional<Kind> kind_of(std::string_view bytes) {
  if (bytes.empty()) return std::nullopt;
  return static_cast<Kind>(bytes[0]);
}

template <typename T>
bool decode(std::string_view bytes, T* message) {
  if (kind_of(bytes) != T::kKind) return false;
  Reader reader(bytes.substr(1));
  reader(*message);
  return reader.complete();
}

}  // namespace treering
