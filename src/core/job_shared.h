// SPDX-License-Identifier: Apache-2.0
// JobShared: what all ranks of this process have in common of one job: made by the first that needs it, there as long
// as one of them holds it. With 16 ranks in a process, tables with a row for each rank exist once instead of 16 times.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace treering {

// One object of a type for each job name. Any thread.
template <typename T>
class JobShared {
 public:
  template <typename Make>
  static std::shared_ptr<const T> get(const std::string& job, const Make& make) {
    static auto* mutex = new std::mutex;
    static auto* objects = new std::map<std::string, std::weak_ptr<const T>>;
    std::lock_guard lock(*mutex);
    std::erase_if(*objects, [](const auto& entry) { return entry.second.expired(); });
    auto& known = (*objects)[job];
    if (auto found = known.lock()) return found;
    auto made = std::make_shared<const T>(make());
    known = made;
    return made;
  }
};

}  // namespace treering
