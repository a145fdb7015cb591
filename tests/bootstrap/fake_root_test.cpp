// SPDX-License-Identifier: Apache-2.0
// Processes that prove to know the secret and then do what a test wants, such as nothing, as one that is stopped at
// that moment: no process waits for it without end.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <thread>

#include "bootstrap/fake_root.h"
#include "bootstrap/job/parent_search.h"
#include "transport/tcp/pair.h"

namespace treering::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Mute, AParentThatDoesNotAnswerIsNamedAtTheDeadline) {
  FakeRoot root(false);
  std::unique_ptr<Membership> membership;
  const auto begin = std::chrono::steady_clock::now();
  const auto deadline = kAttachTimeout + milliseconds(500);
  const Status status =
      Membership::join(root.id(), request_of(1, 2, static_cast<int>(deadline / milliseconds(1))), &membership);
  EXPECT_EQ(status.code(), trTimeout);
  EXPECT_NE(status.message().find(") does not answer rank 1 (pid "), std::string::npos) << status.message();
  EXPECT_GE(std::chrono::steady_clock::now() - begin, deadline);
}

// Such as one that was stopped and goes on.
TEST(Mute, AParentThatAnswersBeforeTheDeadlineIsAskedAgain) {
  FakeRoot root(true);
  root.ignore_attaches(1);
  std::unique_ptr<Membership> membership;
  const Status status = Membership::join(root.id(), request_of(1, 3), &membership);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(root.ignored_left(), 0u);
}

// As where the network by which it came drops all by now. The root has other addresses.
TEST(Mute, ARootThatDoesNotAnswerAnArrivalIsReachedAgain) {
  FakeRoot root(true);
  root.ignore_joins(1);
  std::unique_ptr<Membership> membership;
  const Status status = Membership::join(root.id(), request_of(1, 3), &membership);
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(Mute, AParentThatFallsSilentWhileTheRanksMeetIsAskedAgain) {
  FakeRoot root(true);
  root.ignore_hellos(1);
  std::unique_ptr<Membership> membership;
  const Status status = Membership::join(root.id(), request_of(1, 3), &membership);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(root.attached(), 2u);
}

TEST(Mute, ASilentParentThatTakesNoConnectionIsTheParentYet) {
  FakeRoot root(true);
  root.ignore_hellos(1);
  std::unique_ptr<Membership> membership;
  Status status(trInternalError, "has not ended");
  std::thread joins([&] { status = Membership::join(root.id(), request_of(1, 3), &membership); });
  EXPECT_TRUE(soon([&] { return root.hellos_left() == 0; }, seconds(10)));
  root.drop_next(UINT32_MAX);
  EXPECT_TRUE(soon([&] { return root.drops_left() < UINT32_MAX - 5; }, seconds(20))) << "it is dialled";
  root.send_process_table();
  joins.join();
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(root.attached(), 1u);
}

// What becomes of a stream to the root.
Status open_stream(Membership* membership) {
  std::mutex mutex;
  std::optional<Status> outcome;
  MemberEvents events;
  events.on_connected = [&](uint32_t, const std::string&, const Status& status, int fd) {
    std::lock_guard lock(mutex);
    outcome = status;
    EXPECT_EQ(fd >= 0, status.ok());
    if (fd >= 0) close(fd);
  };
  membership->set_events(std::move(events));
  membership->introduce(0, {.bytes = "0", .connects = true});
  EXPECT_TRUE(soon(
      [&] {
        std::lock_guard lock(mutex);
        return outcome.has_value();
      },
      seconds(10)));
  membership->set_events({});
  std::lock_guard lock(mutex);
  return outcome.value_or(Status(trInternalError, "nothing was heard of it"));
}

TEST(Mute, AStreamThatIsNotAnsweredFailsInTime) {
  FakeRoot root(true);
  std::unique_ptr<Membership> membership;
  const Status joined = Membership::join(root.id(), request_of(1, 3, 4'000), &membership);
  ASSERT_TRUE(joined.ok()) << joined.message();
  const Status outcome = open_stream(membership.get());
  EXPECT_EQ(outcome.code(), trTimeout);
  EXPECT_NE(outcome.message().find("no connection to rank 0 (pid "), std::string::npos) << outcome.message();
}

// Nothing is left of a stream that was being opened when its rank left.
TEST(Mute, AStreamMayStillBeOpeningWhenItsRankLeaves) {
  FakeRoot root(true);
  std::unique_ptr<Membership> membership;
  const Status joined = Membership::join(root.id(), request_of(1, 3, 3'000), &membership);
  ASSERT_TRUE(joined.ok()) << joined.message();
  membership->introduce(0, {.bytes = "0", .connects = true});
  EXPECT_TRUE(soon([&] { return root.streams_asked() == 1; }, seconds(10)));
  membership.reset();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(3'500);  // beyond the stream's
  EXPECT_TRUE(soon([&] { return std::chrono::steady_clock::now() > deadline; }, seconds(10)));
  EXPECT_TRUE(Agent::instance().call([] {}).ok());
}

// A process that has more connections than it keeps drops the oldest, from any process.
TEST(Dropped, ConnectionsToTheRootAreDialledAgain) {
  FakeRoot root(true);
  root.drop_next(7);
  std::unique_ptr<Membership> membership;
  const Status joined = Membership::join(root.id(), request_of(1, 3), &membership);
  EXPECT_TRUE(joined.ok()) << joined.message();
  EXPECT_EQ(root.drops_left(), 0u);
}

TEST(Dropped, ARankWhoseConnectionBreaksWhileItJoinsComesAgain) {
  for (const Kind kind : {Kind::kJoin, Kind::kAttach}) {
    FakeRoot root(true);
    root.break_next(2, kind, false);
    std::unique_ptr<Membership> membership;
    const Status joined = Membership::join(root.id(), request_of(1, 3), &membership);
    EXPECT_TRUE(joined.ok()) << joined.message();
    EXPECT_EQ(root.breaks_left(), 0u);
  }
}

TEST(Dropped, ARankFindsOutThatItsConnectionBrokeAtTheOtherSideAlone) {
  const int probe = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
  const bool can_repair = setsockopt(probe, IPPROTO_TCP, TCP_REPAIR, &on, sizeof on) == 0;
  close(probe);
  if (!can_repair) GTEST_SKIP() << "this process may not end connections silently (CAP_NET_ADMIN)";
  for (const Kind kind : {Kind::kJoin, Kind::kAttach}) {
    FakeRoot root(true);
    root.break_next(1, kind, true);
    std::unique_ptr<Membership> membership;
    const auto begin = std::chrono::steady_clock::now();
    const Status joined = Membership::join(root.id(), request_of(1, 3), &membership);
    EXPECT_TRUE(joined.ok()) << joined.message();
    EXPECT_EQ(root.breaks_left(), 0u);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(20)) << "the deadline is after 30 s";
  }
}

TEST(Dropped, ARootThatDropsAllIsGivenUp) {
  FakeRoot root(true);
  root.drop_next(UINT32_MAX);
  std::unique_ptr<Membership> membership;
  const auto begin = std::chrono::steady_clock::now();
  const Status status = Membership::join(root.id(), request_of(1, 3, 20'000), &membership);
  EXPECT_EQ(status.code(), trRemoteError);
  EXPECT_NE(status.message().find("cannot be reached"), std::string::npos) << status.message();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(15));
}

TEST(Dropped, StreamsAreDialledAgain) {
  FakeRoot root(true);
  std::unique_ptr<Membership> membership;
  const Status joined = Membership::join(root.id(), request_of(1, 3, 20'000), &membership);
  ASSERT_TRUE(joined.ok()) << joined.message();
  root.drop_next(4);
  root.answer_streams_but(4);
  const Status outcome = open_stream(membership.get());
  EXPECT_TRUE(outcome.ok()) << outcome.message();
  EXPECT_EQ(root.drops_left(), 0u);
  EXPECT_EQ(root.dropped_streams_left(), 0u);
  root.answer_streams_but(UINT32_MAX);
  const Status never = open_stream(membership.get());
  EXPECT_EQ(never.code(), trRemoteError);
  EXPECT_NE(never.message().find("no connection to rank 0 (pid "), std::string::npos) << never.message();
}

// Sends until the kernel takes no more; the number of bytes.
size_t fill(int socket) {
  const std::string chunk(64 << 10, 'x');
  size_t sent = 0;
  for (ssize_t part = 0; (part = send(socket, chunk.data(), chunk.size(), MSG_DONTWAIT)) > 0;)
    sent += static_cast<size_t>(part);
  return sent;
}

// A socket whose peer does not read yet, though it writes: everything arrives, and then the end.
TEST(Drain, LosesNothing) {
  const auto [own, peer] = tcp_sockets();
  const size_t sent = fill(own);
  ASSERT_EQ(send(peer, "credit", 6, 0), 6);
  shutdown(own, SHUT_WR);
  Agent::instance().drain(own, seconds(10));
  ASSERT_EQ(send(peer, "credit", 6, MSG_NOSIGNAL), 6);
  size_t got = 0;
  std::string bytes(1 << 20, '\0');
  const timeval timeout{10, 0};
  setsockopt(peer, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  ssize_t part = 0;
  while ((part = recv(peer, bytes.data(), bytes.size(), 0)) > 0) got += static_cast<size_t>(part);
  EXPECT_EQ(part, 0) << std::strerror(errno);
  EXPECT_EQ(got, sent);
  close(peer);
}

// A peer that reads slowly, for longer than the deadline, gets everything.
TEST(Drain, GoesOnWhileSomethingMoves) {
  const auto [own, peer] = tcp_sockets();
  const int room = 64 << 10;  // so that most of it stays on the sending side
  setsockopt(peer, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
  const size_t sent = fill(own);
  shutdown(own, SHUT_WR);
  constexpr auto kDeadline = milliseconds(1000), kLonger = 2 * kDeadline;
  Agent::instance().drain(own, kDeadline);
  const auto begin = std::chrono::steady_clock::now();
  std::string bytes(sent / 50 + 1, '\0');
  size_t got = 0;
  ssize_t part = 0;
  pollfd pause{peer, 0, 0};
  while ((part = recv(peer, bytes.data(), bytes.size(), 0)) > 0) {
    got += static_cast<size_t>(part);
    while (std::chrono::steady_clock::now() - begin < kLonger * got / sent) poll(&pause, 1, 5);
    (void)send(peer, "credit", 6, MSG_NOSIGNAL);
  }
  EXPECT_EQ(part, 0) << std::strerror(errno);
  EXPECT_EQ(got, sent);
  close(peer);
}

// A peer that reads nothing keeps a socket no longer than the communicator's deadline.
TEST(Drain, EndsAtTheDeadline) {
  const auto [own, peer] = tcp_sockets();
  fill(own);
  shutdown(own, SHUT_WR);
  Agent::instance().drain(own, milliseconds(100));
  // The control thread reads what comes; a closed socket answers by a reset.
  const auto until = std::chrono::steady_clock::now() + seconds(10);
  pollfd reset{peer, 0, 0};
  bool ended = false;
  while (!ended && std::chrono::steady_clock::now() < until) {
    poll(&reset, 1, 5);
    ended = send(peer, "credit", 6, MSG_NOSIGNAL) < 0;
  }
  EXPECT_TRUE(ended) << "the socket is still drained";
  close(peer);
}

// An address may lead to another process of the job, and to the one that dials.
TEST(Dialling, GoesOnWhereAnotherProcessAnswers) {
  FakeRoot root(true);
  std::unique_ptr<Membership> membership;
  const Status joined = Membership::join(root.id(), request_of(1, 3), &membership);
  ASSERT_TRUE(joined.ok()) << joined.message();
  const uint32_t accepted = root.accepted();
  Place own;
  own.network = root.place().network;
  Place wrong = root.member();  // this process answers there
  wrong.addresses = root.place().addresses;
  for (const uint64_t process : {uint64_t{0}, root.member().local + 1}) {
    std::atomic<bool> done{false}, good{false};
    std::shared_ptr<Dial> dial;
    EXPECT_TRUE(Agent::instance()
                    .call([&] {
                      wrong.local = process;
                      auto candidates = find_candidates(own, {}, wrong, true, 0);
                      for (DialTarget& right : find_candidates(own, {}, root.place(), true, 0))
                        candidates.push_back(std::move(right));
                      ASSERT_EQ(candidates.size(), 2u);
                      dial =
                          Dial::start(&Agent::instance(), std::move(candidates), root.id().job, root.id().secret,
                                      Clock::now() + seconds(10),
                                      [&](const Status& status, DialEnd, std::shared_ptr<SecureConnection> connection) {
                                        good = status.ok();
                                        if (connection) connection->close();
                                        done = true;
                                      });
                    })
                    .ok());
    EXPECT_TRUE(soon([&] { return done.load(); }, seconds(15)));
    EXPECT_TRUE(good);
  }
  EXPECT_EQ(root.accepted(), accepted + 2);
}

NoticeMessage notice_of(NoticeType type, uint64_t number, uint32_t process) {
  NoticeMessage notice;
  notice.origin = 0;
  notice.number = number;
  notice.type = type;
  notice.process = process;
  notice.text = "text " + std::to_string(number);
  return notice;
}

// What a process has heard of, however much it was, is there for a child that attaches later.
TEST(Notices, TheVerdictReachesWhoAttachesAfterManyOthers) {
  constexpr uint64_t kPairs = 6000;
  FakeRoot root(true);
  std::unique_ptr<Membership> membership;
  const Status joined = Membership::join(root.id(), request_of(1, 3), &membership);
  ASSERT_TRUE(joined.ok()) << joined.message();
  std::atomic<bool> told{false};
  MemberEvents events;
  events.on_verdict = [&](uint32_t, const std::string&) { told = true; };
  membership->set_events(std::move(events));
  uint64_t number = 0;
  for (uint64_t i = 0; i < kPairs; ++i) {
    root.send(encode(notice_of(NoticeType::kSilent, ++number, 2)));
    root.send(encode(notice_of(NoticeType::kHeard, ++number, 2)));
  }
  root.send(encode(notice_of(NoticeType::kVerdict, ++number, 0)));
  ASSERT_TRUE(soon([&] { return told.load(); }));

  std::mutex mutex;
  std::vector<NoticeMessage> got;
  const FakeChild child(root, 0, [&](const std::string& bytes) {
    NoticeMessage notice;
    std::lock_guard lock(mutex);
    if (decode(bytes, &notice)) got.push_back(notice);
  });
  EXPECT_TRUE(soon([&] {
    std::lock_guard lock(mutex);
    return !got.empty() && got.back().type == NoticeType::kVerdict && got.back().number == number;
  }));
  std::lock_guard lock(mutex);
  EXPECT_LT(got.size(), 10u) << "of each process, the last of a kind";
}

// Its own message, that it has another parent, may not come through. Others may tell it before the child is silent, or after.
TEST(Notices, ASilentChildThatHasMovedIsDropped) {
  for (const bool is_silent_first : {false, true}) {
    FakeRoot root(true);
    std::unique_ptr<Membership> membership;
    const Status joined = Membership::join(root.id(), request_of(1, 3), &membership);
    ASSERT_TRUE(joined.ok()) << joined.message();
    FakeChild child(root, 0, [](const std::string&) {});
    ASSERT_TRUE(soon([&] { return child.has_attached(); }));
    NoticeMessage moved = notice_of(NoticeType::kMoved, 1, 2);
    moved.origin = 2;
    moved.other = 0;
    const auto is_silent = [&] {
      root.send(encode(HeartbeatMessage{}));
      const auto all = membership->silent();
      return std::any_of(all.begin(), all.end(),
                         [](const SilentRanks& each) { return each.ranks == std::vector<uint32_t>{2}; });
    };
    if (is_silent_first) {
      ASSERT_TRUE(soon(is_silent));
      EXPECT_FALSE(child.is_dropped());
    }
    root.send(encode(moved));
    EXPECT_TRUE(soon([&] {
      root.send(encode(HeartbeatMessage{}));
      return child.is_dropped();
    })) << is_silent_first;
  }
}

// What a rank gets of an exchange, in a thread of its own.
class Gathering {
 public:
  Gathering(Membership* membership, std::string blob)
      : thread_([this, membership, blob = std::move(blob)] { status_ = membership->allgather(blob, &blobs_); }) {}
  ~Gathering() {
    if (thread_.joinable()) thread_.join();
  }
  Gathering(const Gathering&) = delete;
  Gathering& operator=(const Gathering&) = delete;
  std::vector<std::string> wait() {
    thread_.join();
    EXPECT_TRUE(status_.ok()) << status_.message();
    return blobs_ ? *blobs_ : std::vector<std::string>();
  }

 private:
  Membership::Blobs blobs_;
  Status status_;
  std::thread thread_;
};

// The top had all parts of an exchange, and was stopped before it could tell the others. They have another top when it
// goes on, whose child it becomes.
TEST(Exchanges, OneThatWasTheTopTellsTheNextOneWhatAllGave) {
  FakeRoot root(true);
  std::unique_ptr<Membership> membership;
  ASSERT_TRUE(Membership::join(root.id(), request_of(1, 3), &membership).ok());
  Gathering gathering(membership.get(), "b");
  std::atomic<bool> attached{false};
  FakeChild child(root, 1, [&](const std::string& bytes) {
    AttachedMessage message;
    if (!decode(bytes, &message)) return;
    EXPECT_EQ(message.round, 0u);
    attached = true;
  });
  ASSERT_TRUE(soon([&] { return attached.load(); }));
  const std::vector<std::string> all{"a", "b", "c"};
  child.send(encode(BlobsMessage{1, all}));
  EXPECT_EQ(gathering.wait(), all);
  EXPECT_TRUE(soon([&] { return root.last_round_heard() == 1; })) << "the processes above lack it, too";
}

TEST(Exchanges, ANewParentHearsTheRoundThatItLacks) {
  FakeRoot root(true);
  std::unique_ptr<Membership> membership;
  ASSERT_TRUE(Membership::join(root.id(), request_of(1, 3), &membership).ok());
  Gathering gathering(membership.get(), "b");
  const std::vector<std::string> all{"a", "b", "c"};
  root.send(encode(BlobsMessage{1, all}));
  EXPECT_EQ(gathering.wait(), all);
  EXPECT_EQ(root.last_round_heard(), 0u);
  root.drop_member();
  EXPECT_TRUE(soon([&] { return root.attached() == 2; }));
  EXPECT_TRUE(soon([&] { return root.last_round_heard() == 1; }));
}

}  // namespace
}  // namespace treering::testing
