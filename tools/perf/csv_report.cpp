// SPDX-License-Identifier: Apache-2.0
#include "csv_report.h"

#include <cstdio>
#include <vector>

namespace treering::perf {
namespace {

std::string number(double value) {
  char text[32];
  snprintf(text, sizeof text, "%.9g", value);
  return text;
}

// No field has a comma or a quote: all are numbers or names of this program and the library.
std::string line(const std::vector<std::string>& fields) {
  std::string text;
  for (const std::string& field : fields) text += (&field == &fields.front() ? "" : ",") + field;
  return text + "\n";
}

void add_place(const PlaceResult* place, std::vector<std::string>* fields) {
  if (place == nullptr) {
    fields->insert(fields->end(), 5, "");
    return;
  }
  fields->push_back(number(place->time_us));
  fields->push_back(place->median_us ? number(*place->median_us) : "");
  fields->push_back(number(place->algorithm_gbps));
  fields->push_back(number(place->bus_gbps));
  fields->push_back(place->checked ? std::to_string(place->wrong) : "");
}

}  // namespace

std::string csv_header() {
  std::vector<std::string> names = {"collective", "ranks", "size", "count", "type", "redop", "root"};
  for (const std::string place : {"out_of_place_", "in_place_"})
    for (const char* value : {"time", "median", "alg_bw", "bus_bw", "nwrong"}) names.push_back(place + value);
  names.insert(names.end(), {"algorithm", "protocol", "transport", "channels", "copy_bw", "limit_us"});
  return line(names);
}

std::string csv_line(const Options& options, const Row& row) {
  std::vector<std::string> fields = {options.collective->name,
                                     std::to_string(options.ranks()),
                                     std::to_string(row.bytes),
                                     std::to_string(row.count),
                                     row.type,
                                     row.operation,
                                     std::to_string(row.root)};
  add_place(&row.out_of_place, &fields);
  add_place(row.in_place ? &*row.in_place : nullptr, &fields);
  fields.insert(fields.end(), {row.algorithm, row.protocol, row.transport, std::to_string(row.channels)});
  fields.push_back(options.limit ? number(row.copy_gbps) : "");
  fields.push_back(options.limit ? number(row.limit_us) : "");
  return line(fields);
}

}  // namespace treering::perf
