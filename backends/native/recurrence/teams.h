// Rows of a batch, divided among teams of threads.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "spin_barrier.h"

namespace {

// Rows that some threads compute together: longest first, so that the active rows at any time are the first ones.
struct Team {
  std::vector<int64_t> rows;
  std::vector<int64_t> lengths;
  int threads = 1;
  SpinBarrier barrier;

  int64_t active(int64_t step) const {
    return std::partition_point(lengths.begin(), lengths.end(), [&](int64_t length) { return length > step; }) -
           lengths.begin();
  }
};

constexpr int64_t TEAM_ROWS = 6;  // the least active rows of a team among several

// Timesteps from `begin` to `end` in which the teams, of equal numbers of threads, stay the same.
struct Phase {
  int64_t begin, end;
  std::vector<Team> teams;
};

// The number of teams for so many active rows. Teams do not wait for each other, but each reads all weights. With few
// rows reading dominates the time, so all threads are one team.
int teams_for(int threads, int64_t active) {
  for (int teams = threads; teams > 1; teams--)
    if (threads % teams == 0 && active >= teams * TEAM_ROWS) return teams;
  return 1;
}

// Deals rows, longest first, to teams, so that all get about the same lengths.
std::vector<Team> deal(const std::vector<int64_t>& rows, const int64_t* lengths, int threads, int count) {
  std::vector<Team> teams(count);
  for (Team& team : teams) {
    team.threads = threads / count;
    team.barrier.set_threads(team.threads);
  }
  for (size_t slot = 0; slot < rows.size(); slot++) {
    const int turn = static_cast<int>(slot % count);
    Team& team = teams[(slot / count) % 2 == 0 ? turn : count - 1 - turn];
    team.rows.push_back(rows[slot]);
    team.lengths.push_back(lengths[rows[slot]]);
  }
  return teams;
}

// The phases of a batch: as rows end, fewer and larger teams compute the others.
std::vector<Phase> phases_of(int threads, int64_t rows, const int64_t* lengths) {
  std::vector<int64_t> order(rows);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return lengths[a] > lengths[b]; });
  const int64_t longest = rows == 0 ? 0 : lengths[order.front()];
  std::vector<Phase> phases;
  for (int64_t begin = 0; phases.empty() || begin < longest; begin = phases.back().end) {
    while (begin > 0 && lengths[order.back()] <= begin) order.pop_back();
    const int64_t active =
        std::count_if(order.begin(), order.end(), [&](int64_t row) { return lengths[row] > begin; });
    const int count = teams_for(threads, active);
    const int64_t end = count == 1 ? longest : lengths[order[count * TEAM_ROWS - 1]];
    phases.push_back({begin, end, deal(order, lengths, threads, count)});
  }
  return phases;
}

}  // namespace
