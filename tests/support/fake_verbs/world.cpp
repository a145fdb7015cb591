// SPDX-License-Identifier: Apache-2.0
#include "support/fake_verbs/world.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "support/seed.h"

#ifdef __SANITIZE_THREAD__
extern "C" {
void AnnotateIgnoreSyncBegin(const char* file, int line);
void AnnotateIgnoreSyncEnd(const char* file, int line);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}
#endif

namespace treering::fake_verbs {

namespace {

// Between these, ThreadSanitizer sees neither accesses nor locks of this thread.
void hide_begin() {
#ifdef __SANITIZE_THREAD__
  AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
#endif
}

void hide_end() {
#ifdef __SANITIZE_THREAD__
  AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
#endif
}

constexpr const char* kKindNames[kKinds] = {"device list", "context",          "protection domain", "memory region",
                                            "channel",     "completion queue", "queue pair",        "address handle"};

}  // namespace

Readable::Readable() : fd_(eventfd(0, EFD_CLOEXEC)) {
  if (fd_ < 0) {
    std::perror("fake verbs: eventfd");
    std::abort();
  }
}

Readable::~Readable() { close(fd_); }

void Readable::set(bool ready) {
  if (ready == ready_) return;
  ready_ = ready;
  uint64_t count = 1;
  // Neither blocks: the count is 0 or 1, and no other thread reads or writes it.
  const ssize_t done = ready ? write(fd_, &count, sizeof count) : read(fd_, &count, sizeof count);
  if (done != static_cast<ssize_t>(sizeof count)) std::abort();
}

bool Readable::wait() const {
  const bool block = (fcntl(fd_, F_GETFL) & O_NONBLOCK) == 0;
  pollfd entry = {fd_, POLLIN, 0};
  const int found = ::poll(&entry, 1, block ? -1 : 0);
  if (found == 0) errno = EAGAIN;
  return found > 0;
}

DeviceFile::DeviceFile(const char* name) : fd_(memfd_create(name, MFD_CLOEXEC)) {
  if (fd_ >= 0 && ftruncate(fd_, sysconf(_SC_PAGESIZE)) == 0) return;
  std::perror("fake verbs: memfd_create");
  std::abort();
}

DeviceFile::~DeviceFile() { close(fd_); }

void* DeviceFile::map() const {
  void* const page =
      mmap(nullptr, static_cast<size_t>(sysconf(_SC_PAGESIZE)), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (page != MAP_FAILED) return page;
  std::perror("fake verbs: mmap");
  std::abort();
}

void DeviceFile::unmap(void* page) { munmap(page, static_cast<size_t>(sysconf(_SC_PAGESIZE))); }

Lock::Lock() {
  hide_begin();
  lock_.emplace(world().mutex);
}

Lock::~Lock() {
  lock_.reset();
  hide_end();
}

void publish([[maybe_unused]] char& mark) {
#ifdef __SANITIZE_THREAD__
  hide_end();
  __tsan_release(&mark);
  hide_begin();
#endif
}

void observe([[maybe_unused]] char& mark) {
#ifdef __SANITIZE_THREAD__
  hide_end();
  __tsan_acquire(&mark);
  hide_begin();
#endif
}

void copy_bytes(void* to, const void* from, size_t length) {
#ifdef __SANITIZE_THREAD__
  AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
#endif
  std::memmove(to, from, length);  // both may be the same
#ifdef __SANITIZE_THREAD__
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
#endif
}

World& world() {
  static World& only = *new World;  // programs may use verbs while static objects are destroyed
  return only;
}

void wait_if_held(const char* function) {
  Lock lock;
  HeldCalls& held = world().held_calls;
  if (held.function != function || --held.countdown > 0) return;
  ++held.waiting;
  world().released.wait(lock.held(), [&] { return held.function != function; });
}

World::World() { set_devices(2, 1); }

Port* World::port(int device, int number) {
  if (device < 0 || device >= static_cast<int>(devices.size())) return nullptr;
  std::vector<Port>& ports = devices[static_cast<size_t>(device)]->ports;
  return number < 1 || number > static_cast<int>(ports.size()) ? nullptr : &ports[static_cast<size_t>(number) - 1];
}

uint64_t World::below(uint64_t end) {
  if (!random_) random_.emplace(test_seed());
  return end == 0 ? 0 : (*random_)() % end;
}

uint32_t World::new_key() {
  // Never a key that was there before: the use of an old one is to be seen.
  uint32_t key = 0;
  while (key == 0 || !used_keys_.emplace(key, true).second) key = static_cast<uint32_t>(below(UINT32_MAX));
  return key;
}

int World::count(Kind kind) const {
  return static_cast<int>(
      std::count_if(alive_.begin(), alive_.end(), [&](const auto& it) { return it.second == kind; }));
}

void World::check(const void* object, Kind kind, const char* function) const {
  const auto found = alive_.find(object);
  if (found != alive_.end() && found->second == kind) return;
  std::fprintf(stderr, "fake verbs: %s with a %s that does not exist (%p)\n", function,
               kKindNames[static_cast<int>(kind)], object);
  std::abort();
}

int World::injected(const char* function) {
  for (auto call = settings.calls.begin(); call != settings.calls.end(); ++call) {
    if (call->function != function || --call->countdown > 0) continue;
    const int error = call->error;
    settings.calls.erase(call);
    ++counters.failed_calls;
    counters.failed_call_owner = owner_of_thread;
    return error;
  }
  return 0;
}

ibv_wc_status World::injected(const Qp& qp, fake_verbs_queue queue) {
  std::vector<FailedCompletion>& all = settings.completions;
  for (auto failed = all.begin(); failed != all.end(); ++failed) {
    if (failed->queue != queue || (failed->qp_num != 0 && failed->qp_num != qp.qp_num) || --failed->countdown > 0)
      continue;
    const ibv_wc_status status = failed->status;
    all.erase(failed);
    return status;
  }
  return IBV_WC_SUCCESS;
}

}  // namespace treering::fake_verbs
