// A wall clock that is wrong, for the server's Python processes: loaded before the C library (LD_PRELOAD).
//
// The file STRESS_CLOCK has by how many seconds, and may change at any time. The machine's own clock is not touched.

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

extern "C" int clock_gettime(clockid_t clock, struct timespec* now) {
  static auto real = reinterpret_cast<int (*)(clockid_t, struct timespec*)>(dlsym(RTLD_NEXT, "clock_gettime"));
  static const bool is_python = strncmp(program_invocation_short_name, "python", 6) == 0;
  static const char* const control = is_python ? getenv("STRESS_CLOCK") : nullptr;
  const int result = real(clock, now);
  if (control == nullptr || clock != CLOCK_REALTIME || result != 0) return result;
  char text[32] = {};
  const long file = syscall(SYS_openat, AT_FDCWD, control, O_RDONLY | O_CLOEXEC);
  if (file >= 0) {
    syscall(SYS_read, file, text, sizeof text - 1);
    syscall(SYS_close, file);
  }
  now->tv_sec += atol(text);
  return result;
}
