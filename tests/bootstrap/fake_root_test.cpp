// SPDX-License-Identifier: Apache-2.0
// Processes that prove to know the secret and then do what a test wants, such as nothing, as one that is stopped at
// that moment: no process waits for it without end.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "bootstrap/agent.h"
#include "bootstrap/dial.h"
#include "bootstrap/frames.h"
#include "bootstrap/job/parent_search.h"
#include "bootstrap/jobs.h"
#include "transport/tcp/pair.h"

namespace treering::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A rendezvous root on the agent of this process. It answers what it is told to answer and nothing else.
class FakeRoot {
 public:
  explicit FakeRoot(bool attaches) : attaches_(attaches) {
    EXPECT_TRUE(make_unique_id(&id_).ok());
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(listen(listener_, 16), 0);
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length), 0);
    place_.process = 0;
    place_.pid = static_cast<uint32_t>(getpid());
    place_.port = id_.port = ntohs(address.sin_port);
    place_.network = id_.root_network = identify_host("").network;
    EXPECT_TRUE(resolve_host("127.0.0.1", "", &place_.addresses).ok());
    pack_addresses(place_.addresses, id_.addresses, sizeof id_.addresses);
    id_.root_pid = place_.pid;
    Agent& agent = Agent::instance();
    EXPECT_TRUE(agent.call([&] { watch_ = agent.watch(listener_, EPOLLIN, [this](uint32_t) { accept_one(); }); }).ok());
  }
  ~FakeRoot() {
    Agent& agent = Agent::instance();
    (void)agent.call([&] {
      agent.unwatch(watch_, listener_);
      for (auto& channel : channels_) channel->close();
      channels_.clear();
    });
    close(listener_);
  }
  const UniqueId& id() const { return id_; }
  const Place& place() const { return place_; }
  const Place& member() const { return member_; }
  // The next connections are given up at once, by a reset or an end, as by a process that has too many.
  void drop_next(uint32_t connections) { drops_ = connections; }
  uint32_t drops_left() const { return drops_; }
  // Instead of the next answers to messages of a kind, the connection ends. Silently: the other side is not told, as
  // where a firewall resets this side alone.
  void break_next(uint32_t answers, Kind kind, bool silently) {
    broken_kind_ = kind;
    breaks_silently_ = silently;
    breaks_ = answers;
  }
  uint32_t breaks_left() const { return breaks_; }
  // The next requests to be a process's parent get no answer.
  void ignore_attaches(uint32_t requests) { ignored_ = requests; }
  uint32_t ignored_left() const { return ignored_; }
  // Streams are answered from now on, but for the next ones, whose connections end instead.
  void answer_streams_but(uint32_t first) {
    dropped_streams_ = first;
    answers_streams_ = true;
  }
  uint32_t dropped_streams_left() const { return dropped_streams_; }
  uint32_t accepted() const { return accepted_; }
  uint32_t streams_asked() const { return streams_asked_; }
  void send(const std::string& bytes) {
    EXPECT_TRUE(Agent::instance().call([&] { parent_of_member_->send(bytes); }).ok());
  }

 private:
  void accept_one() {
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    ++accepted_;
    if (drops_ > 0) {
      const linger at_once{static_cast<int>(--drops_ % 2), 0};
      setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
      close(fd);
      return;
    }
    auto channel =
        Channel::create(&Agent::instance(), fd, false,
                        Handshake([this](const JobName&, uint64_t) -> const Secret* { return &id_.secret; }));
    Channel::Events events;
    events.frame = [this, raw = channel.get()](const std::string& bytes, int) {
      if (breaks_ > 0 && kind_of(bytes) == broken_kind_) return break_off(raw);
      answer(raw, bytes);
    };
    channel->start(std::move(events));
    channels_.push_back(std::move(channel));
  }
  void break_off(Channel* channel) {
    --breaks_;
    const int fd = channel->release(), on = 1;
    const linger none{1, 0};
    if (breaks_silently_)  // a socket under repair says nothing when it is closed
      EXPECT_EQ(setsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &on, sizeof on), 0) << std::strerror(errno);
    else
      setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    close(fd);
  }
  void answer(Channel* channel, const std::string& bytes) {
    JoinMessage join;
    AttachMessage attach;
    HelloMessage hello;
    IntroductionMessage stream;
    if (decode(bytes, &stream)) {
      ++streams_asked_;
      if (!answers_streams_) return;
      if (dropped_streams_ == 0) return channel->send(encode(IntroducedMessage{}));
      --dropped_streams_;
      channel->close();
    } else if (decode(bytes, &join)) {
      PlacedMessage placed;
      placed.own = join.place;
      placed.own.process = 1;
      placed.own.parent = 0;
      placed.ancestors = {place_};
      member_ = placed.own;
      channel->send(encode(placed));
    } else if (attaches_ && decode(bytes, &attach)) {
      if (ignored_ > 0) return void(--ignored_);
      parent_of_member_ = channel;
      channel->send(encode(AttachedMessage{0}));
    } else if (attaches_ && decode(bytes, &hello)) {
      Place other = member_;  // another process, below the member
      other.process = 2;
      other.parent = 1;
      ProcessTableMessage table;
      table.segment_bytes = hello.segment_bytes;
      table.places = {place_, member_, other};
      table.process_of_rank = {0, 1, 2};
      channel->send(encode(table));
    }
  }

  const bool attaches_;
  std::atomic<bool> answers_streams_{false}, breaks_silently_{false};
  std::atomic<uint32_t> drops_{0}, breaks_{0}, ignored_{0}, dropped_streams_{0}, streams_asked_{0}, accepted_{0};
  std::atomic<Kind> broken_kind_{Kind::kJoin};
  int listener_ = -1;
  uint64_t watch_ = 0;
  UniqueId id_;
  Place place_, member_;
  Channel* parent_of_member_ = nullptr;
  std::vector<std::shared_ptr<Channel>> channels_;
};

TEST(Mute, AParentThatDoesNotAnswerIsNamedAtTheDeadline) {
  FakeRoot root(false);
  std::unique_ptr<Membership> membership;
  const auto begin = std::chrono::steady_clock::now();
  const auto deadline = kAttachTimeout + milliseconds(500);
  const Status status =
      Membership::join(root.id(), request_of(1, 2, static_cast<int>(deadline / milliseconds(1))), &membership);
  EXPECT_EQ(status.code(), trTimeout);
  EXPECT_NE(status.message().find("does not answer"), std::string::npos) << status.message();
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
                      dial = Dial::start(&Agent::instance(), std::move(candidates), root.id().job, root.id().secret,
                                         Clock::now() + seconds(10),
                                         [&](const Status& status, bool, std::shared_ptr<Channel> channel) {
                                           good = status.ok();
                                           if (channel) channel->close();
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
  Agent& agent = Agent::instance();
  std::shared_ptr<Dial> dial;
  std::shared_ptr<Channel> child;
  EXPECT_TRUE(agent
                  .call([&] {
                    dial = Dial::start(&agent, find_candidates(root.place(), {}, root.member(), false, 0),
                                       root.id().job, root.id().secret, Clock::now() + seconds(10),
                                       [&](const Status& status, bool, std::shared_ptr<Channel> channel) {
                                         if (!status.ok()) return;
                                         child = std::move(channel);
                                         Channel::Events from_parent;
                                         from_parent.frame = [&](const std::string& bytes, int) {
                                           NoticeMessage notice;
                                           std::lock_guard lock(mutex);
                                           if (decode(bytes, &notice)) got.push_back(notice);
                                         };
                                         child->set_events(std::move(from_parent));
                                         child->send(encode(AttachMessage{2, true, 0}));
                                       });
                  })
                  .ok());
  EXPECT_TRUE(soon([&] {
    std::lock_guard lock(mutex);
    return !got.empty() && got.back().type == NoticeType::kVerdict && got.back().number == number;
  }));
  EXPECT_TRUE(agent.call([&] { child->close(), child.reset(), dial.reset(); }).ok());
  EXPECT_LT(got.size(), 10u) << "of each process, the last of a kind";
}

}  // namespace
}  // namespace treering::testing
