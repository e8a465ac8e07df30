// How the tokens of several sequences are cut into calls.
#include "hosts/llama/batch_rules.h"

#include <gmock/gmock.h>

#include <map>

namespace veloxquant::llama {
namespace {

using ::testing::ElementsAre;

std::vector<std::vector<Slice>> plan(std::vector<int> lengths, int limit, bool equal, int sequences = 100) {
  return plan_calls(lengths, limit, equal, sequences);
}

TEST(PlanCalls, one_sequence_is_cut_at_the_limit) {
  for (const bool equal : {false, true}) {
    EXPECT_THAT(plan({10}, 4, equal),
                ElementsAre(ElementsAre(Slice{0, 0, 4}), ElementsAre(Slice{0, 4, 4}), ElementsAre(Slice{0, 8, 2})));
    EXPECT_TRUE(plan({0}, 4, equal).empty());
    EXPECT_TRUE(plan({}, 4, equal).empty());
  }
}

TEST(PlanCalls, sequences_share_a_call) {
  EXPECT_THAT(plan({3, 0, 1}, 8, false), ElementsAre(ElementsAre(Slice{0, 0, 3}, Slice{2, 0, 1})));
  EXPECT_THAT(plan({6, 4}, 8, false),
              ElementsAre(ElementsAre(Slice{0, 0, 6}, Slice{1, 0, 2}), ElementsAre(Slice{1, 2, 2})));
}

TEST(PlanCalls, slices_of_a_call_are_equally_long_where_they_must_be) {
  EXPECT_THAT(plan({5, 3}, 8, true),
              ElementsAre(ElementsAre(Slice{0, 0, 3}, Slice{1, 0, 3}), ElementsAre(Slice{0, 3, 2})));
  EXPECT_THAT(plan({9, 9}, 8, true),
              ElementsAre(ElementsAre(Slice{0, 0, 4}, Slice{1, 0, 4}), ElementsAre(Slice{0, 4, 4}, Slice{1, 4, 4}),
                          ElementsAre(Slice{0, 8, 1}, Slice{1, 8, 1})));
}

TEST(PlanCalls, a_call_has_no_more_sequences_than_llama_takes) {
  EXPECT_THAT(plan({1, 1, 1}, 8, false, 2),
              ElementsAre(ElementsAre(Slice{0, 0, 1}, Slice{1, 0, 1}), ElementsAre(Slice{2, 0, 1})));
}

TEST(PlanCalls, every_token_comes_once_and_in_order) {
  for (const bool equal : {false, true}) {
    for (const int limit : {1, 2, 7, 64}) {
      const std::vector<int> lengths = {13, 1, 0, 40, 7, 7};
      std::map<int, int> done;
      for (const auto& call : plan(lengths, limit, equal, 4)) {
        int tokens = 0;
        for (const Slice& slice : call) {
          EXPECT_EQ(slice.begin, done[slice.sequence]);
          EXPECT_GE(slice.count, 1);
          EXPECT_TRUE(!equal || slice.count == call.front().count);
          done[slice.sequence] += slice.count;
          tokens += slice.count;
        }
        EXPECT_LE(tokens, limit);
        EXPECT_LE(call.size(), 4U);
      }
      for (size_t i = 0; i < lengths.size(); ++i) EXPECT_EQ(done[static_cast<int>(i)], lengths[i]);
    }
  }
}

}  // namespace
}  // namespace veloxquant::llama
