// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/devices/inherited_contexts.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "core/open_file.h"

namespace treering::verbs {
namespace {

constexpr size_t kPathBytes = 256;

// A context, or a channel. Nothing of it takes memory of its own, so that a child can drop it without a call of free().
struct Opened {
  const void* object = nullptr;
  std::array<OpenFile, 2> files{};
  std::array<char, kPathBytes> path{};  // of the device's file, as /proc names it; "": of a channel
};

void read_path(int fd, std::array<char, kPathBytes>* path) {
  const ssize_t length = readlink(fmt::format("/proc/self/fd/{}", fd).c_str(), path->data(), path->size());
  // One that is cut off is none.
  if (length < 0 || static_cast<size_t>(length) == path->size()) path->fill('\0');
}

// Lines of /proc/self/maps, by calls that a forked child may make.
class Mappings {
 public:
  Mappings() : fd_(open("/proc/self/maps", O_RDONLY | O_CLOEXEC)) {}
  ~Mappings() {
    if (fd_ >= 0) close(fd_);
  }
  Mappings(const Mappings&) = delete;
  Mappings& operator=(const Mappings&) = delete;

  // Without its end; false: there is no more. A path has 4096 letters at most.
  bool next(std::string_view* line) {
    for (;;) {
      const auto* const end = static_cast<char*>(std::memchr(text_ + begin_, '\n', filled_ - begin_));
      if (end != nullptr || filled_ - begin_ == sizeof text_) {
        const size_t length = end != nullptr ? static_cast<size_t>(end - text_) - begin_ : filled_ - begin_;
        *line = {text_ + begin_, length};
        begin_ += length + (end != nullptr);
        return true;
      }
      std::memmove(text_, text_ + begin_, filled_ - begin_);
      filled_ -= std::exchange(begin_, 0);
      const ssize_t count = fd_ < 0 ? 0 : read(fd_, text_ + filled_, sizeof text_ - filled_);
      if (count <= 0) return false;
      filled_ += static_cast<size_t>(count);
    }
  }

 private:
  const int fd_;
  char text_[8192];
  size_t begin_ = 0, filled_ = 0;
};

// "7f0000000000-7f0000001000 rw-s 00000000 00:05 1234    /dev/infiniband/uverbs0": both addresses, and the path.
struct Mapping {
  uintptr_t begin = 0, end = 0;
  std::string_view path;

  explicit Mapping(std::string_view line) {
    const auto take = [&](char stop) {
      uintptr_t number = 0;
      for (; !line.empty() && line.front() != stop; line.remove_prefix(1)) {
        const char digit = line.front();
        number = number * 16 + static_cast<uintptr_t>(digit <= '9' ? digit - '0' : digit - 'a' + 10);
      }
      line.remove_prefix(line.empty() ? 0 : 1);
      return number;
    };
    begin = take('-');
    end = take(' ');
    constexpr int kFieldsBefore = 4;
    for (int field = 0; field < kFieldsBefore; ++field)
      line.remove_prefix(std::min(line.size(), line.find(' ') == line.npos ? line.size() : line.find(' ') + 1));
    path = line.substr(std::min(line.size(), line.find_first_not_of(' ')));
  }
};

class InheritedContexts {
 public:
  // Never destroyed: a process may fork while it ends.
  static InheritedContexts& instance() {
    static auto* all = new InheritedContexts;
    return *all;
  }

  template <typename Open, typename Describe>
  auto open(const Open& open, const Describe& describe) {
    std::lock_guard lock(mutex_);  // no fork between the two
    auto* const object = open();
    const int error = errno;
    if (object != nullptr) describe(object, &opened_.emplace_back(Opened{object, {}, {}}));
    errno = error;
    return object;
  }
  template <typename Close>
  void close(const void* object, const Close& close) {
    std::lock_guard lock(mutex_);
    // Not there: it is the parent's of this process.
    if (std::erase_if(opened_, [&](const Opened& opened) { return opened.object == object; }) != 0) close();
  }

 private:
  InheritedContexts() {
    pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                   [] {
                     instance().let_go();
                     instance().mutex_.unlock();
                   });
  }

  // In the child, which may do little: no memory is taken or given back.
  void let_go() {
    if (opened_.empty()) return;
    Mappings mappings;
    for (std::string_view line; mappings.next(&line);)
      if (const Mapping mapping(line); is_of_device(mapping.path))
        (void)mmap(reinterpret_cast<void*>(mapping.begin), mapping.end - mapping.begin, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    for (const Opened& opened : opened_)
      for (const OpenFile& file : opened.files) file.close_if_same();
    opened_.clear();
  }
  bool is_of_device(std::string_view path) const {
    return !path.empty() && std::any_of(opened_.begin(), opened_.end(),
                                        [&](const Opened& opened) { return path == opened.path.data(); });
  }

  std::mutex mutex_;
  std::vector<Opened> opened_;
};

}  // namespace

ibv_context* open_context(ibv_device* device) {
  return InheritedContexts::instance().open([&] { return ibv_open_device(device); },
                                            [](const ibv_context* context, Opened* opened) {
                                              opened->files = {OpenFile(context->cmd_fd), OpenFile(context->async_fd)};
                                              read_path(context->cmd_fd, &opened->path);
                                            });
}

void close_context(ibv_context* context) {
  InheritedContexts::instance().close(context, [&] { (void)ibv_close_device(context); });
}

ibv_comp_channel* open_channel(ibv_context* context) {
  return InheritedContexts::instance().open([&] { return ibv_create_comp_channel(context); },
                                            [](const ibv_comp_channel* channel, Opened* opened) {
                                              opened->files = {OpenFile(channel->fd), {}};
                                            });
}

void close_channel(ibv_comp_channel* channel) {
  InheritedContexts::instance().close(channel, [&] { (void)ibv_destroy_comp_channel(channel); });
}

}  // namespace treering::verbs
