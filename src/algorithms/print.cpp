// SPDX-License-Identifier: Apache-2.0
#include "algorithms/print.h"

#include <fmt/format.h>

#include "algorithms/expand.h"

namespace treering {
namespace {

std::string name_chunks(uint32_t chunk, uint32_t span) {
  return span == 1 ? fmt::format("chunk {}", chunk) : fmt::format("chunks {}-{}", chunk, chunk + span - 1);
}

const char* local_name(const Step& step) {
  if (step.flags & kInput) return "input";
  if (step.flags & kOutput) return "output";
  return (step.flags & kScratch) ? "scratch" : nullptr;
}

std::string send_list(const Step& step, const Expansion& at) {
  std::string text;
  for (uint32_t i = 0; i < step.send_count; ++i) text += fmt::format("{}{}", i ? ", " : "", at.send_peer(i));
  return text;
}

// The received ranks in the order of combination, with the local operand at its place.
std::string operand_order(const Step& step, const Expansion& at, bool with_local) {
  std::string text;
  for (uint32_t i = 0; i <= step.receive_count; ++i) {
    const char* comma = text.empty() ? "" : ", ";
    if (with_local && local_name(step) && i == step.local_position) {
      text += fmt::format("{}{}", comma, local_name(step));
      comma = ", ";
    }
    if (i < step.receive_count) text += fmt::format("{}{}", comma, at.receive_peer(i));
  }
  return text;
}

// What a step does, for the chunk and the peers that `at` stands on.
std::string sentence(const Expansion& at) {
  const Step& step = at.step();
  const char* local = local_name(step);
  std::string chunks = name_chunks(at.chunk(), step.span);
  if (step.flags & kChunkList) {
    chunks = step.span == 1 ? "chunk" : "chunks";
    for (uint32_t i = 0; i < step.span; ++i) chunks += fmt::format("{}{}", i == 0 ? " " : ",", at.chunk(i));
  }
  std::vector<std::string> parts;
  if (step.flags & kReceive) parts.push_back(fmt::format("receive {} from {}", chunks, operand_order(step, at, false)));
  if ((step.flags & kReduce) && step.receive_count == 1 && local)
    parts.push_back(fmt::format("reduce with {}", local));
  else if (step.flags & kReduce)
    parts.push_back(fmt::format("reduce in the order {}", operand_order(step, at, true)));
  // Without a message the first verb names what it acts on.
  std::string object = (step.flags & kReceive) ? "" : fmt::format(" {} {}", local ? local : "nothing:", chunks);
  const auto act = [&](const std::string& verb, const std::string& rest) {
    parts.push_back(verb + object + rest);
    object.clear();
  };
  if (step.flags & kStore) act("store", object.empty() ? "" : " to output");
  if (step.flags & kStoreScratch)
    act(object.empty() ? "store in scratch" : "store", object.empty() ? "" : " to scratch");
  if (step.flags & kSend) act("send", " to " + send_list(step, at));
  return fmt::format("{}{}", fmt::join(parts, ", "), (step.flags & kFinal) ? " (final)" : "");
}

std::string flag_names(uint16_t flags) {
  static constexpr const char* kNames[] = {"receive", "reduce",  "store",         "send", "input",
                                           "output",  "scratch", "store-scratch", "final"};
  std::string text;
  for (uint32_t bit = 0; bit < std::size(kNames); ++bit)
    if (flags >> bit & 1) text += fmt::format("{}{}", text.empty() ? "" : "|", kNames[bit]);
  return text;
}

}  // namespace

std::string program_text(const Schedule& schedule) {
  std::string text;
  for (Expansion at(schedule); !at.done(); at.advance())
    text += fmt::format("rank {}  step {}: {}\n", schedule.rank, at.position(), sentence(at));
  return text;
}

std::string compact_text(const Schedule& schedule) {
  std::string text = fmt::format("rank {} of {}: {} chunks, {} steps in {} blocks, FIFO depth {}{}\n", schedule.rank,
                                 schedule.ranks, schedule.chunks, schedule.steps.size(), schedule.blocks.size(),
                                 schedule.fifo_depth, schedule.uses_scratch ? ", scratch" : "");
  const auto peers = [&](uint32_t first, uint32_t count) {
    return fmt::format("[{}]", fmt::join(schedule.peers.begin() + first, schedule.peers.begin() + first + count, " "));
  };
  for (const Block& block : schedule.blocks) {
    text += fmt::format("  {} times, chunk {:+}, peer {:+}:\n", block.count, block.chunk_stride, block.peer_stride);
    for (uint32_t i = block.first; i < block.first + block.length; ++i) {
      const Step& step = schedule.steps[i];
      text += fmt::format(
          "    {} {}", flag_names(step.flags),
          (step.flags & kChunkList) ? fmt::format("{} listed chunks", step.span) : name_chunks(step.chunk, step.span));
      if (step.receive_count > 0) text += " from " + peers(step.receive_first, step.receive_count);
      if (step.send_count > 0) text += " to " + peers(step.send_first, step.send_count);
      if (local_name(step) && step.receive_count > 0)
        text += fmt::format(", {} after {}", local_name(step), step.local_position);
      text += "\n";
    }
  }
  return text;
}

}  // namespace treering
