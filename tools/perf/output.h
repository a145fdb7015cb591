// SPDX-License-Identifier: Apache-2.0
// Output: what rank 0 writes. The table goes to standard output row by row; with --csv so do the lines of that file.
// With
// --csv - the lines alone are on standard output, for another program, and the table is on standard error.
#pragma once

#include <cstdio>
#include <string>

#include "options.h"
#include "results.h"

namespace treering::perf {

class Output {
 public:
  explicit Output(const Options& options);
  ~Output();
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  std::FILE* table() const { return table_; }

  // What returns a text returns "" when all is well, else what failed.
  std::string begin(const RunResults& results);
  void row(const Row& row);
  // The footer and the file of -J.
  std::string end(const RunResults& results);

 private:
  bool csv_to_stdout() const { return options_.csv_file == "-"; }

  const Options& options_;
  std::FILE* table_;
  std::FILE* csv_ = nullptr;  // nullptr: none is wanted
};

}  // namespace treering::perf
