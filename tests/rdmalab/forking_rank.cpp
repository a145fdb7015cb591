// SPDX-License-Identifier: Apache-2.0
// A rank that forks a child, which lives on, and then waits for its end. Once the child has nothing more to do it prints
//   child PID
#include <sys/types.h>
#include <unistd.h>

#include <cstdio>
#include <initializer_list>

#include "treering/treering.h"

namespace {

constexpr unsigned kLives = 600;  // seconds, of a child that is forgotten

[[noreturn]] void live(int told) {
  setsid();  // what ends the group of its parent leaves it
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) close(fd);
  alarm(kLives);
  if (write(told, "", 1) != 1) _exit(1);
  for (;;) pause();
}

}  // namespace

int main() {
  trComm_t comm = nullptr;
  float one = 1;
  if (trCommInitFromEnvironment(&comm, nullptr) != trSuccess ||
      trAllReduce(&one, &one, 1, trFloat32, trSum, comm, nullptr) != trSuccess) {
    std::fprintf(stderr, "%s\n", trGetLastError(comm));
    return 1;
  }
  int ends[2];
  if (pipe(ends) != 0) return 1;
  const pid_t child = fork();
  if (child == 0) live(ends[1]);
  char byte;
  if (child < 0 || read(ends[0], &byte, 1) != 1) return 1;
  std::printf("child %d\n", child);
  std::fflush(stdout);
  for (;;) pause();
}
