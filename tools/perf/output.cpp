// SPDX-License-Identifier: Apache-2.0
#include "output.h"

#include <string.h>

#include <cerrno>
#include <fstream>

#include "csv_report.h"
#include "json_report.h"
#include "report.h"

namespace treering::perf {

Output::Output(const Options& options) : options_(options), table_(csv_to_stdout() ? stderr : stdout) {}

Output::~Output() {
  if (csv_ != nullptr && !csv_to_stdout()) fclose(csv_);
}

std::string Output::begin(const RunResults& results) {
  if (!options_.csv_file.empty()) {
    csv_ = csv_to_stdout() ? stdout : fopen(options_.csv_file.c_str(), "w");
    if (csv_ == nullptr) return "--csv " + options_.csv_file + ": cannot be written: " + strerror(errno);
    fputs(csv_header().c_str(), csv_);
    fflush(csv_);
  }
  print_header(table_, options_, results);
  return "";
}

// Each row is there at once, also in a file: a run may be long, or never end.
void Output::row(const Row& row) {
  print_row(table_, options_, row);
  if (csv_ == nullptr) return;
  fputs(csv_line(options_, row).c_str(), csv_);
  fflush(csv_);
}

std::string Output::end(const RunResults& results) {
  print_footer(table_, results);
  std::string failure;
  if (csv_ != nullptr && ferror(csv_) != 0) failure = "--csv " + options_.csv_file + ": writing failed";
  if (options_.json_file.empty()) return failure;
  std::ofstream file(options_.json_file, std::ios::trunc);
  file << json_report(options_, results) << std::flush;
  if (!file) failure += (failure.empty() ? "-J " : "; -J ") + options_.json_file + ": writing failed";
  return failure;
}

}  // namespace treering::perf
