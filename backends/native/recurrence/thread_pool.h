// Threads that compute each call together.

#pragma once

#include <pthread.h>
#include <sched.h>
#include <unistd.h>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "placement.h"
#include "scratch.h"
#include "spin_barrier.h"

namespace {

// A condition variable. The one of GCC 12's library is newer than the library of TorchServe's image.
class Condition {
 public:
  ~Condition() { pthread_cond_destroy(&condition_); }

  void wait(std::unique_lock<std::mutex>& lock) { pthread_cond_wait(&condition_, lock.mutex()->native_handle()); }

  void notify_all() { pthread_cond_broadcast(&condition_); }

 private:
  pthread_cond_t condition_ = PTHREAD_COND_INITIALIZER;
};

// Threads that wait for work: they spin for a while, because the next call often follows soon, then they sleep.
class ThreadPool {
 public:
  explicit ThreadPool(int threads) : scratch(threads), placement_(threads), done_(0) {
    try {
      for (int index = 1; index < threads; index++) helpers_.emplace_back([this, index] { serve(index); });
    } catch (...) {  // the system cannot start more threads
      end();
      throw;
    }
  }

  ~ThreadPool() { end(); }

  // Whether this process is a fork of the one that opened the pool: a fork does not inherit threads.
  bool is_forked() const { return getpid() != owner_; }

  int threads() const { return is_forked() ? 1 : static_cast<int>(helpers_.size()) + 1; }

  // Calls job(index) on the first `count` threads, each with its own index, counted from 0. One call at a time.
  void run(int count, const std::function<void(int)>& job) {
    if (count == 1) return job(0);
    const int others = threads() - 1;
    count_ = count;
    done_.store(0, std::memory_order_relaxed);
    publish(&job);
    job(0);
    for (int spins = 0; done_.load(std::memory_order_acquire) != others;) SpinBarrier::pause(spins);
  }

  // Wakes threads that sleep: a call follows soon. Until then they spin, for as long as after a call.
  void wake() {
    if (helpers_.empty() || is_forked()) return;
    {
      const std::lock_guard<std::mutex> lock(asleep_);
      if (sleepers_ == 0) return;
      wakes_++;
      placement_.keep_off(sched_getcpu());
    }
    awake_.notify_all();
  }

  std::mutex in_use;
  std::vector<Scratch> scratch;
  std::vector<float> interlayer[2];  // outputs of one layer, inputs of the next
  std::vector<float> unprojected;    // states before their projection

 private:
  void end() {
    publish(nullptr);
    for (std::thread& helper : helpers_) helper.join();
  }

  void publish(const std::function<void(int)>* job) {
    {
      const std::lock_guard<std::mutex> lock(asleep_);
      job_ = job;
      round_.fetch_add(1, std::memory_order_release);
      if (sleepers_ == 0) return;
      placement_.keep_off(sched_getcpu());
    }
    awake_.notify_all();
  }

  void enter(int index) {
    const std::lock_guard<std::mutex> lock(asleep_);
    placement_.add(index);
  }

  void serve(int index) {
    enter(index);
    for (int64_t seen = 0;;) {
      await(seen);
      seen++;
      if (job_ == nullptr) return;
      if (index < count_) (*job_)(index);
      done_.fetch_add(1, std::memory_order_release);
    }
  }

  void await(int64_t seen) {
    using std::chrono::steady_clock;
    const std::chrono::microseconds spin(SPIN_US);
    auto until = steady_clock::now() + spin;
    for (int spins = 0; round_.load(std::memory_order_acquire) == seen;) {
      SpinBarrier::pause(spins);
      if (spins % 256 == 0 && steady_clock::now() > until) {
        sleep(seen);
        until = steady_clock::now() + spin;
      }
    }
  }

  // Sleeps until there is work, or will be soon.
  void sleep(int64_t seen) {
    std::unique_lock<std::mutex> lock(asleep_);
    const int64_t wakes = wakes_;
    sleepers_++;
    while (round_.load(std::memory_order_acquire) == seen && wakes_ == wakes) awake_.wait(lock);
    sleepers_--;
  }

  static constexpr int SPIN_US = 500;

  const pid_t owner_ = getpid();
  std::vector<std::thread> helpers_;
  std::mutex asleep_;
  Condition awake_;
  Placement placement_;  // this and the next two are guarded by asleep_
  int sleepers_ = 0;
  int64_t wakes_ = 0;
  int count_ = 0;
  const std::function<void(int)>* job_ = nullptr;
  alignas(64) std::atomic<int64_t> round_{0};
  alignas(64) std::atomic<int> done_;
};

}  // namespace
