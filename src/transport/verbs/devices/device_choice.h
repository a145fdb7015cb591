// SPDX-License-Identifier: Apache-2.0
// Which verbs devices and ports an option names: a list of prefixes of names, `=name` exactly, each with `:port` or
// without; `^` in front of all excludes them. As TREERING_SOCKET_IFNAME names interfaces. Nothing named: all.
#pragma once

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

namespace treering::verbs {

class DeviceChoice {
 public:
  explicit DeviceChoice(const std::string& text) : excludes_(text.starts_with('^')) {
    std::istringstream words(text.substr(excludes_ ? 1 : 0));
    for (std::string word; std::getline(words, word, ',');)
      if (!word.empty()) words_.push_back(word);
  }

  bool allows(const std::string& device, unsigned port) const {
    if (words_.empty()) return true;
    const bool named =
        std::any_of(words_.begin(), words_.end(), [&](const std::string& word) { return names(word, device, port); });
    return named != excludes_;
  }

 private:
  static bool names(std::string word, const std::string& device, unsigned port) {
    const bool exactly = word.starts_with('=');
    if (exactly) word.erase(0, 1);
    if (const size_t colon = word.rfind(':'); colon != std::string::npos) {
      if (word.substr(colon + 1) != std::to_string(port)) return false;
      word.erase(colon);
    }
    return exactly ? device == word : device.starts_with(word);
  }

  const bool excludes_;
  std::vector<std::string> words_;
};

}  // namespace treering::verbs
