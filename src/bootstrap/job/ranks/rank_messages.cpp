// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/job/ranks/rank_messages.h"

#include <vector>

namespace treering {

void RankMessages::ask(uint32_t asking, uint32_t rank, Clock::time_point when) {
  if (!job_.runs() || rank >= tree_.ranks()) return;
  const auto asked = static_cast<uint64_t>(when.time_since_epoch().count());
  take_question(encode(QuestionMessage{rank, tree_.own(), asking, asked}), tree_.own());
}

void RankMessages::take_question(const std::string& bytes, uint32_t from) {
  QuestionMessage question;
  if (!job_.runs() || !decode(bytes, &question) || question.rank >= tree_.ranks()) return;
  const uint32_t holder = tree_.process_of(question.rank);
  if (holder != tree_.own()) return connections_.route(holder, bytes, from);
  const auto member = members_.find(question.rank);
  if (!member || !member->events.status) return;
  take_answer(encode(AnswerMessage{question.rank, question.asking_process, question.asking_rank, question.asked,
                                   member->events.status()}),
              tree_.own());
}

void RankMessages::take_answer(const std::string& bytes, uint32_t from) {
  AnswerMessage answer;
  if (!decode(bytes, &answer)) return;
  if (answer.asking_process != tree_.own()) return connections_.route(answer.asking_process, bytes, from);
  const auto member = members_.find(answer.asking_rank);
  if (!member || answer.rank >= tree_.ranks()) return;
  std::vector<uint32_t> due;
  const Clock::time_point now = Clock::now();
  member->change([&] {
    KnownStatus& known = member->statuses[answer.rank];
    if (answer.asked >= known.asked) known = {answer.bytes, now, answer.asked};  // else it took a longer way
    auto& questions = member->questions;
    if (!questions) return;
    questions->answered(answer.rank, Clock::time_point(Clock::duration(answer.asked)), now);
    while (const auto next = questions->next(now)) due.push_back(*next);
  });
  // Posted, not called: a rank of this process answers at once, from within this function.
  for (const uint32_t next : due)
    job_.agent->post([this, held = job_.hold(), asking = answer.asking_rank, next, now] { ask(asking, next, now); });
}

void RankMessages::take_introduction(const std::string& bytes, uint32_t from) {
  IntroductionMessage message;
  if (!job_.runs() || !decode(bytes, &message)) return;
  if (message.source >= tree_.ranks() || message.destination >= tree_.ranks()) return;
  const uint32_t holder = tree_.process_of(message.destination);
  if (holder != tree_.own()) return connections_.route(holder, bytes, from);
  const auto member = members_.find(message.destination);
  if (!member) return;
  member->tell([message](const MemberEvents& events) {
    if (events.on_introduced) events.on_introduced(message.source, message.bytes, -1);
  });
}

}  // namespace treering
