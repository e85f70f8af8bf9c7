// Cores on which threads wake.

#pragma once

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <vector>

namespace {

// Cores of a pool's threads. Linux likes to wake a thread on the core of the caller that wakes it, above all after some
// milliseconds. Both would spin there, each waiting for the other, until the scheduler parts them. So the caller's
// core is taken from the others before they are woken; then each wakes on the core where it ran last.
class Placement {
 public:
  explicit Placement(int threads) : threads_(threads, 0) { CPU_ZERO(&all_); }

  // Called by each thread itself; it has the cores of the thread that opened the pool.
  void add(int index) {
    cpu_set_t own;
    if (sched_getaffinity(0, sizeof own, &own) == 0) all_ = own;
    threads_[index] = static_cast<pid_t>(syscall(SYS_gettid));
    restrict(threads_[index]);
  }

  void keep_off(int core) {
    if (core == kept_off_) return;
    kept_off_ = core;
    for (const pid_t thread : threads_)
      if (thread != 0) restrict(thread);
  }

 private:
  // A system that forbids this, or has one core, leaves the thread where it is.
  void restrict(pid_t thread) const {
    if (kept_off_ < 0 || CPU_COUNT(&all_) < 2) return;
    cpu_set_t others = all_;
    CPU_CLR(kept_off_, &others);
    sched_setaffinity(thread, sizeof others, &others);
  }

  std::vector<pid_t> threads_;
  cpu_set_t all_;
  int kept_off_ = -1;
};

}  // namespace
