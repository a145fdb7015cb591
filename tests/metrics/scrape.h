// SPDX-License-Identifier: Apache-2.0
// Reads metrics as a scraper does: from a port of this machine, and values out of the text.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace treering::testing {

inline sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

inline bool is_free(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = loopback(port);
  const bool free = bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  close(fd);
  return free;
}

// The first of `count` ports that follow one another and are free now.
inline int free_ports(int count) {
  for (int first = 20'000 + static_cast<int>(getpid()) % 20'000; first < 60'000; first += count) {
    bool all = true;
    for (int port = first; port < first + count; ++port) all = all && is_free(port);
    if (all) return first;
  }
  ADD_FAILURE() << "no free ports";
  return 0;
}

// The whole response; "" where there is none.
inline std::string request(int port, const std::string& text) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = loopback(port);
  std::string response;
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
      send(fd, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size())) {
    char part[4096];
    for (ssize_t bytes = 0; (bytes = recv(fd, part, sizeof part, 0)) > 0;)
      response.append(part, static_cast<size_t>(bytes));
  }
  close(fd);
  return response;
}

inline std::string scrape(int port) { return request(port, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"); }

// The value of the first sample of that name that has all these labels.
inline std::optional<double> value_of(const std::string& text, const std::string& name,
                                      const std::vector<std::string>& labels) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(name + "{")) continue;
    bool all = true;
    for (const std::string& label : labels) all = all && line.find(label) != std::string::npos;
    if (all) return std::stod(line.substr(line.rfind(' ') + 1));
  }
  return {};
}

}  // namespace treering::testing
