// SPDX-License-Identifier: Apache-2.0
#include "metrics/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace treering {
namespace {

Status failed(const char* what, const std::string& path, int error) {
  return {trSystemError, fmt::format("cannot {} '{}': {}", what, path, std::strerror(error))};
}

}  // namespace

Status write_text(int fd, const std::string& text) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t bytes = ::write(fd, text.data() + done, text.size() - done);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return {trSystemError, std::strerror(errno)};
    done += static_cast<size_t>(bytes);
  }
  return {};
}

Status replace_file(const std::string& path, const std::string& text) {
  struct stat there {};
  if (stat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode))
    return {trSystemError, fmt::format("'{}' is no regular file", path)};
  const std::string made = fmt::format("{}.{}.tmp", path, getpid());
  const int fd = open(made.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return failed("make", made, errno);
  Status status = write_text(fd, text);
  if (!status.ok()) status = {status.code(), fmt::format("cannot write '{}': {}", made, status.message())};
  close(fd);
  if (status.ok() && std::rename(made.c_str(), path.c_str()) != 0) status = failed("replace", path, errno);
  if (!status.ok()) unlink(made.c_str());
  return status;
}

Status make_trace_file(const std::string& directory, const std::string& name, OpenFile* file) {
  if (mkdir(directory.c_str(), 0777) != 0 && errno != EEXIST) return failed("make the directory", directory, errno);
  const std::string path = directory + "/" + name;
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return failed("make", path, errno);
  *file = OpenFile(fd);
  return {};
}

}  // namespace treering
