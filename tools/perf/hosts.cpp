// SPDX-License-Identifier: Apache-2.0
#include "hosts.h"

#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <treering/treering.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <ctime>
#include <sstream>

#include "launcher.h"
#include "once.h"

extern char** environ;

namespace treering::perf {
namespace {

constexpr const char* kHost = "{host}";
constexpr const char* kCommand = "{command}";

std::string quoted(const std::string& word) {
  std::string text(1, '\'');
  for (const char c : word) {
    if (c == '\'') text.append("'\\'");
    text.push_back(c);
  }
  text.push_back('\'');
  return text;
}

bool replace(std::string* word, const char* place, const std::string& value) {
  const size_t at = word->find(place);
  if (at == std::string::npos) return false;
  word->replace(at, strlen(place), value);
  return true;
}

std::string path_of_this_program() {
  char path[PATH_MAX] = "";
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
  return length > 0 ? std::string(path, static_cast<size_t>(length)) : "treering-perf";
}

std::string in_hex(const trUniqueId& id) {
  std::string text;
  char digits[3];
  for (const char c : id.internal) {
    snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned char>(c));
    text += digits;
  }
  return text;
}

// The reading end of a pipe that holds the id's line; -1 with errno.
int id_pipe(const trUniqueId& id) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return -1;
  const std::string line = in_hex(id) + "\n";  // far less than a pipe holds
  const ssize_t written = write(ends[1], line.data(), line.size());
  close(ends[1]);
  if (written == static_cast<ssize_t>(line.size())) return ends[0];
  close(ends[0]);
  return -1;
}

// Names this run; other runs on the same machines have other names.
std::string run_name() {
  static const long began = static_cast<long>(time(nullptr));
  return std::to_string(getpid()) + "-" + std::to_string(began);
}

// What the library is told here it is told there, but what tells hosts apart. LD_LIBRARY_PATH: for a library that is
// not installed.
bool goes_along(const char* variable) {
  const auto begins = [variable](const char* text) { return strncmp(variable, text, strlen(text)) == 0; };
  return (begins("TREERING_") && !begins("TREERING_HOSTID=") && !begins("TREERING_SWITCHES=")) ||
         begins("LD_LIBRARY_PATH=");
}

[[noreturn]] void become(const std::vector<std::string>& command, int input) {
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  dup2(input, STDIN_FILENO);
  execvp(words[0], words.data());
  fprintf(stderr, "error: --launcher: %s: %s\n", words[0], strerror(errno));
  _exit(127);
}

}  // namespace

std::vector<std::string> launch_command(const std::string& launcher, const std::string& host,
                                        const std::string& command) {
  std::vector<std::string> words;
  std::istringstream text(launcher);
  bool placed = false;
  for (std::string word; text >> word;) {
    replace(&word, kHost, host);
    placed |= replace(&word, kCommand, command);
    words.push_back(word);
  }
  if (!placed) words.insert(words.end(), {"sh", "-c", command});
  return words;
}

std::string rank_command(const Options& options, int rank, int ranks) {
  char directory[PATH_MAX] = "";
  std::string line;
  if (getcwd(directory, sizeof(directory))) line.append("cd ").append(quoted(directory)).append(" && ");
  line.append("exec env");
  const auto add = [&](const std::string& word) { line.append(1, ' ').append(quoted(word)); };
  for (char** variable = environ; *variable; ++variable)
    if (goes_along(*variable)) add(*variable);
  line.append(" TREERING_RANK=").append(std::to_string(rank));
  line.append(" TREERING_RANKS=").append(std::to_string(ranks)).append(" TREERING_ID=-");
  line.append(1, ' ').append(kRunVariable).append("=").append(run_name());
  add(path_of_this_program());
  const auto& arguments = options.arguments;
  for (size_t i = 1; i < arguments.size(); ++i) {
    const bool own = arguments[i].rfind("--hosts", 0) == 0 || arguments[i].rfind("--launcher", 0) == 0;
    if (!own)
      add(arguments[i]);
    else if (arguments[i].find('=') == std::string::npos)
      ++i;  // and its value
  }
  return line;
}

int run_on_hosts(const Options& options) {
  int ranks = 0;
  for (const HostRanks& host : options.hosts) ranks += host.procs;
  trUniqueId id;
  if (trGetUniqueId(&id) != trSuccess) {
    fprintf(stderr, "error: trGetUniqueId: %s\n", trGetLastError(nullptr));
    return 1;
  }
  std::vector<std::vector<std::string>> commands;
  std::vector<int> inputs;
  std::vector<std::string> hosts;  // of each rank
  for (const HostRanks& host : options.hosts)
    for (int process = 0; process < host.procs; ++process) {
      const int rank = static_cast<int>(commands.size());
      commands.push_back(launch_command(options.launcher, host.host, rank_command(options, rank, ranks)));
      hosts.push_back(host.host);
      inputs.push_back(id_pipe(id));
      if (inputs.back() >= 0) continue;
      fprintf(stderr, "error: a pipe for rank %d: %s\n", rank, strerror(errno));
      return 1;
    }
  Options processes = options;
  processes.procs = ranks;
  SharedState* shared = create_shared_state(1, 0);
  if (!shared) return 1;
  const int status = launch(processes, shared, [&](int process) -> int { become(commands[process], inputs[process]); });
  for (size_t rank = 0; status == 0 && rank < inputs.size(); ++rank)
    if (int unread = 0; ioctl(inputs[rank], FIONREAD, &unread) == 0 && unread > 0) {
      fprintf(stderr, "error: --launcher: host %s: the command for rank %zu ended well, but started no rank:",
              hosts[rank].c_str(), rank);
      for (const std::string& word : commands[rank]) fprintf(stderr, " %s", quoted(word).c_str());
      fputc('\n', stderr);
      return 1;
    }
  return status;
}

}  // namespace treering::perf
