// Barrier of threads that wait for less than a microsecond.

#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

namespace {

// Barrier for the threads of a team. Most waits are shorter than a microsecond, so threads spin. On cores shared with
// other processes the missing thread may not be running, so a waiting thread yields its core now and then.
class SpinBarrier {
 public:
  void set_threads(int threads) { threads_ = threads; }

  void wait() {
    if (threads_ == 1) return;
    const int64_t round = round_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == threads_ - 1) {
      arrived_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; round_.load(std::memory_order_acquire) == round;) pause(spins);
  }

  static void pause(int& spins) {
    if (++spins % 256 == 0) std::this_thread::yield();  // after some microseconds
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

 private:
  int threads_ = 1;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int64_t> round_{0};
};

}  // namespace
