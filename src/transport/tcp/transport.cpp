// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/transport.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "core/bytes.h"
#include "core/log.h"
#include "transport/tcp/link.h"

namespace treering {
namespace {

constexpr uint32_t kMaxChosenStreams = 4;
constexpr auto kFinishPeriod = std::chrono::microseconds(50);

// The bytes of an introduction.
std::string name_of(PeerStreamId stream) {
  Writer writer;
  writer(stream.index);
  writer(stream.attempt);
  return writer.take();
}
bool read_name(const std::string& bytes, PeerStreamId* stream) {
  Reader reader(bytes);
  reader(stream->index);
  reader(stream->attempt);
  return reader.complete();
}

class Tcp final : public Transport, public IntroductionTaker, private StreamSource {
 public:
  explicit Tcp(TransportSetup setup) : setup_(std::move(setup)) {}
  ~Tcp() override {
    for (const auto& [peer, link] : links_) link->finish();
    for (const auto& [peer, early] : early_)
      for (const auto& [stream, fd] : early.streams) close(fd);
  }

  // That both have a control connection is all that a stream needs.
  Status prove(uint32_t) override { return {}; }

  PeerConnections connect(uint32_t peer, PairAbilities) override {
    const std::shared_ptr<TcpLink> link = add_link(peer);
    PeerConnections made;
    for (uint32_t channel = 0; channel < setup_.layout->channels; ++channel)
      made.channels.push_back(link->connection(channel));
    made.queue = link;
    return made;
  }

  IntroductionTaker* introduction_taker() override { return this; }
  void abandon() override {
    std::lock_guard lock(mutex_);
    for (const auto& [peer, link] : links_) link->abandon();
  }

  void finish() override try {
    std::vector<std::shared_ptr<TcpLink>> left;
    {
      std::lock_guard lock(mutex_);
      for (const auto& [peer, link] : links_) left.push_back(link);
    }
    for (;;) {
      std::erase_if(left, [](const auto& link) { return link->may_finish(); });
      if (left.empty()) return;
      (void)setup_.look();
      std::this_thread::sleep_for(kFinishPeriod);
    }
  } catch (const std::bad_alloc&) {  // the kernels go on with what they have
  }

  void introduced(uint32_t peer, const std::string& bytes, int fd) override {
    PeerStreamId stream;
    std::lock_guard lock(mutex_);
    if (fd < 0 || !read_name(bytes, &stream))
      return refuse(peer, "sent an introduction that names no stream: ignored", fd);
    if (const auto found = links_.find(peer); found != links_.end()) return found->second->deliver_incoming(stream, fd);
    auto& streams = early_[peer].streams;
    if (streams.size() <= kMaxTcpStreams) {
      streams.emplace_back(stream, fd);
      return;
    }
    refuse(peer, fmt::format("opened more than {} TCP streams: closed", kMaxTcpStreams), fd);
  }
  void connected(uint32_t peer, const std::string& bytes, const Status& status, int fd) override {
    PeerStreamId stream;
    std::lock_guard lock(mutex_);
    if (const auto found = links_.find(peer); read_name(bytes, &stream) && found != links_.end())
      return found->second->deliver_outgoing(stream, status, fd);
    if (fd >= 0) close(fd);
  }
  void departed(uint32_t peer) override {
    std::lock_guard lock(mutex_);
    if (const auto found = links_.find(peer); found != links_.end()) return found->second->deliver_departure();
    early_[peer].departed = true;
  }
  void ended(uint32_t peer) override {
    std::lock_guard lock(mutex_);
    if (const auto found = links_.find(peer); found != links_.end()) found->second->deliver_end();
  }

 private:
  struct Early {
    std::vector<std::pair<PeerStreamId, int>> streams;
    bool departed = false;
  };

  // The shared stream goes with the first of the others. Each attempt tries another way first.
  void open_stream(uint32_t peer, PeerStreamId stream) override {
    const uint32_t way = (stream.index == 0 ? 0 : stream.index - 1) + stream.attempt;
    setup_.introducer->introduce(peer, {name_of(stream), true, way, stream.attempt > 0});
  }
  static void refuse(uint32_t peer, const std::string& what, int fd) {
    log_line(LogLevel::kWarn, fmt::format("rank {} {}", peer, what));
    if (fd >= 0) close(fd);
  }

  std::shared_ptr<TcpLink> add_link(uint32_t peer) {
    const Config& config = *setup_.config;
    TcpOptions options;
    options.peer = peer;
    options.peer_name = fmt::format("rank {} (pid {})", peer, setup_.peer_info(peer).pid);
    options.own_name = fmt::format("rank {} (pid {})", setup_.rank, getpid());
    options.channels = setup_.layout->channels;
    options.streams = config.tcp_streams > 0
                          ? static_cast<uint32_t>(config.tcp_streams)
                          : std::clamp(setup_.introducer->interfaces_to(peer), 1u, kMaxChosenStreams);
    options.keeps_shared = setup_.rank < peer;
    options.staging = setup_.own.staging();
    options.deadline = std::chrono::milliseconds(config.timeout_ms);
    options.congestion = {.all = config.tcp_congestion, .if_long = system_bbr()};
    options.drain = [introducer = setup_.introducer, deadline = options.deadline](int fd) {
      introducer->drain(fd, deadline);
    };
    options.waits = setup_.waits;
    auto link = TcpLink::make(std::move(options), this);
    std::lock_guard lock(mutex_);
    links_[peer] = link;
    if (const auto found = early_.find(peer); found != early_.end()) {
      for (const auto& [stream, fd] : found->second.streams) link->deliver_incoming(stream, fd);
      if (found->second.departed) link->deliver_departure();
      early_.erase(found);
    }
    return link;
  }

  const TransportSetup setup_;
  std::mutex mutex_;
  std::map<uint32_t, std::shared_ptr<TcpLink>> links_;
  std::map<uint32_t, Early> early_;  // of peers without a link
};

}  // namespace

std::unique_ptr<Transport> open_tcp(const TransportSetup& setup) { return std::make_unique<Tcp>(setup); }

Status check_tcp(const Config& config) {
  if (config.tcp_congestion.empty()) return {};
  const Status known = check_congestion_control(config.tcp_congestion);
  return known.ok() ? known : Status(known.code(), "TREERING_TCP_CONGESTION: " + known.message());
}

}  // namespace treering
