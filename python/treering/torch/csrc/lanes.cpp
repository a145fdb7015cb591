// SPDX-License-Identifier: Apache-2.0
#include "lanes.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "errors.h"
#include "link.h"
#include "neighbours.h"

namespace treering::pytorch {
namespace {

// In front of each payload.
struct Header {
  int64_t tag;
  int64_t bytes;
};

// Ranks of the lane's communicator.
constexpr int kSender = 0;
constexpr int kReceiver = 1;

constexpr auto kLookForDeath = std::chrono::milliseconds(200);

std::string key_of(const LaneGroup& group, int peer, Lane::Way way) {
  const int from = way == Lane::Way::kSends ? group.rank : peer, to = way == Lane::Way::kSends ? peer : group.rank;
  return c10::str("treering/lane/", from, ">", to);
}

}  // namespace

Lane::Lane(const LaneGroup& group, int peer, Way way)
    : group_(group),
      peer_(peer),
      way_(way),
      key_(key_of(group, peer, way)),
      text_(c10::str(way == Way::kSends ? "send to rank " : "recv from rank ", peer)),
      thread_([this] { run(); }) {}

void Lane::post(Posted posted) {
  {
    std::lock_guard lock(mutex_);
    if (failure_.empty()) {
      posted_.push_back(std::move(posted));
      changed_.notify_one();
      return;
    }
  }
  finish(std::move(posted), failure_);
}

void Lane::close(const char* why) {
  const char* none = nullptr;
  if (!closed_.compare_exchange_strong(none, why)) return;
  {
    std::lock_guard lock(mutex_);  // or the thread would miss it, between its look and its sleep
    // Not where nothing is posted: the receiver may still have to take what was sent.
    if (const trComm_t comm = comm_; comm != nullptr && !posted_.empty()) trCommRevoke(comm);
    changed_.notify_one();
  }
  thread_.join();
  if (const trComm_t comm = comm_.exchange(nullptr); comm != nullptr) trCommDestroy(comm);
}

void Lane::run() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !posted_.empty() || closed_ != nullptr; });
    }
    if (const char* closed = closed_; closed != nullptr) return fail(closed);
    if (comm_ == nullptr && !open()) return;
    if (way_ == Way::kSends)
      send_next();
    else
      receive_next();
    std::lock_guard lock(mutex_);
    if (!failure_.empty()) return;
  }
}

bool Lane::wait_for(const std::string& key, std::string* failure) {
  auto looked = Clock::now();
  const bool ended = poll(Clock::now() + group_.timeout, [&] {
    if (group_.store->check({key})) return true;
    if (const char* closed = closed_; closed != nullptr) *failure = closed;
    if (const auto now = Clock::now(); failure->empty() && now - looked > kLookForDeath) {
      *failure = death_of(*group_.store, peer_);
      looked = now;
    }
    return !failure->empty();
  });
  if (!ended) *failure = c10::str("the rank has not posted its part within ", group_.timeout.count(), " ms");
  return failure->empty();
}

std::string Lane::meet(trUniqueId* id) {
  std::string failure;
  const std::string come = key_ + "/come";
  c10d::Store& store = *group_.store;
  if (way_ == Way::kSends) {
    if (const trResult_t result = trGetUniqueId(id); result != trSuccess) return words_for(result, nullptr);
    store.set(key_, std::vector<uint8_t>(id->internal, id->internal + sizeof id->internal));
    wait_for(come, &failure);
    return failure;
  }
  if (!wait_for(key_, &failure)) return failure;
  const std::vector<uint8_t> value = store.get(key_);
  if (value.size() != sizeof id->internal) return "the id in the store is damaged";
  std::memcpy(id->internal, value.data(), value.size());
  store.set(come, std::string("here"));
  return "";
}

// Raises what fails.
void Lane::make_communicator(const trUniqueId& id) {
  const int rank = way_ == Way::kSends ? kSender : kReceiver;
  comm_ = join(c10::str(group_.name, ", ", text_), 2, id, rank, group_.timeout);
  // The thread that closes the lane sees the communicator, or this thread sees that it is closed.
  if (const char* closed = closed_; closed != nullptr) raise(closed);
  // A lane of a later group with this store must not find these.
  if (way_ == Way::kSends)
    for (const std::string& key : {key_, key_ + "/come"}) group_.store->deleteKey(key);
  if (const trResult_t result = trBarrier(comm_, nullptr); result != trSuccess) raise(words_for(result, nullptr));
}

bool Lane::open() {
  std::string failure;
  try {
    trUniqueId id;
    failure = meet(&id);
    if (failure.empty()) make_communicator(id);
  } catch (const std::exception& error) {
    failure = words_of(error);
  }
  if (failure.empty()) return true;
  fail(failure);
  return false;
}

trResult_t Lane::call(trResult_t result) {
  if (result != trSuccess) {
    const char* closed = closed_;
    fail(closed != nullptr ? std::string(closed) : words_for(result, nullptr));
  }
  return result;
}

void Lane::send_next() {
  std::unique_lock lock(mutex_);
  const Posted& next = posted_.front();  // stays the first until this thread takes it
  lock.unlock();
  const Header header{next.tag, static_cast<int64_t>(next.bytes)};
  if (call(trSend(&header, sizeof header, trUint8, kReceiver, comm_, nullptr)) != trSuccess) return;
  if (next.bytes > 0 && call(trSend(next.data, next.bytes, trUint8, kReceiver, comm_, nullptr)) != trSuccess) return;
  lock.lock();
  Posted sent = std::move(posted_.front());
  posted_.pop_front();
  lock.unlock();
  finish(std::move(sent), "");
}

// A message that is kept, to a receive with its tag.
bool Lane::take_kept() {
  std::unique_lock lock(mutex_);
  for (auto posted = posted_.begin(); posted != posted_.end(); ++posted) {
    const auto found = kept_.find(posted->tag);
    if (found == kept_.end()) continue;
    const std::vector<std::byte> message = std::move(found->second.front());
    found->second.pop_front();
    if (found->second.empty()) kept_.erase(found);
    Posted taken = std::move(*posted);
    posted_.erase(posted);
    lock.unlock();
    std::string failure;
    if (message.size() == taken.bytes)
      std::copy(message.begin(), message.end(), static_cast<std::byte*>(taken.data));
    else
      failure = c10::str("it sent ", message.size(), " bytes; the tensor has ", taken.bytes);
    finish(std::move(taken), failure);
    return true;
  }
  return false;
}

void Lane::receive_next() {
  if (take_kept()) return;
  Header header{};
  if (call(trRecv(&header, sizeof header, trUint8, kSender, comm_, nullptr)) != trSuccess) return;
  receive_payload(static_cast<int>(header.tag), static_cast<size_t>(header.bytes));
}

void Lane::receive_payload(int tag, size_t bytes) {
  Posted* fits = nullptr;
  {
    std::lock_guard lock(mutex_);
    const auto found = std::find_if(posted_.begin(), posted_.end(), [tag](const Posted& p) { return p.tag == tag; });
    // It stays where it is: others are added behind it alone, and this thread takes them away.
    if (found != posted_.end() && found->bytes == bytes) fits = &*found;
  }
  std::vector<std::byte> message(fits == nullptr ? bytes : 0);
  void* data = fits == nullptr ? message.data() : fits->data;
  if (bytes > 0 && call(trRecv(data, bytes, trUint8, kSender, comm_, nullptr)) != trSuccess) return;
  if (fits == nullptr) {
    kept_[tag].push_back(std::move(message));
    return;
  }
  finish(take_posted(tag), "");
}

// The first with the tag.
Posted Lane::take_posted(int tag) {
  std::lock_guard lock(mutex_);
  const auto found = std::find_if(posted_.begin(), posted_.end(), [tag](const Posted& p) { return p.tag == tag; });
  Posted taken = std::move(*found);
  posted_.erase(found);
  return taken;
}

void Lane::fail(const std::string& words) {
  std::deque<Posted> posted;
  {
    std::lock_guard lock(mutex_);
    failure_ = words;
    posted = std::exchange(posted_, {});
  }
  for (Posted& each : posted) finish(std::move(each), words);
}

void Lane::finish(Posted posted, const std::string& words) {
  posted.work->end(words.empty() ? nullptr : failure(c10::str(text_, ": ", words)));
  Finisher::instance().settle(std::move(posted.work));
}

Lanes::Lanes(c10::intrusive_ptr<c10d::Store> store, std::string name, int rank, std::chrono::milliseconds timeout)
    : group_{std::move(store), std::move(name), rank, timeout}, process_(getpid()) {}

Lanes::~Lanes() {
  // A forked child has no such threads, and cannot end what they wait for.
  if (process_ != getpid())
    for (auto& [key, lane] : lanes_) static_cast<void>(lane.release());
}

void Lanes::post(int peer, Lane::Way way, Posted posted) {
  std::lock_guard lock(mutex_);
  if (closed_ != nullptr) raise(c10::str(posted.work->call().name(), ": ", closed_));
  if (lanes_.empty()) group_.store = group_.store->clone();  // whose connection nobody waits in
  auto& lane = lanes_[{peer, way}];
  if (lane == nullptr) lane = std::make_unique<Lane>(group_, peer, way);
  lane->post(std::move(posted));
}

void Lanes::close(const char* why) {
  if (process_ != getpid()) return;
  std::lock_guard lock(mutex_);
  if (closed_ == nullptr) closed_ = why;
  for (auto& [key, lane] : lanes_) lane->close(why);
}

}  // namespace treering::pytorch
