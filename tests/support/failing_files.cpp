// File operations that fail, for tests: loaded before the C library (LD_PRELOAD), so every library of the process is met.
//
// Only calls on files below the folders of faults_begin count. The one after so many others fails, with an error that
// its function has in practice. The tests call the functions at the end of this file.
//
// In a process that does not, `make stress` says what fails: the file FAILING_FILES_CONTROL begins with a kind of fault,
// of all calls below the folder FAILING_FILES_BELOW, and may change at any time. It counts in Python's processes only.

#include <dlfcn.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

namespace {

enum Kind { record, usual, rarer, brief, full, read_only, broken };
// record: none fails. usual, rarer: one call fails, with one of two errors. brief: one call writes or reads only a part.
// full, read_only, broken: as a disk that is so from that call on.

enum Effect { reads, writes, changes, locks };  // changes need no space: unlink is one. Locks need no disk

struct Errors {
  int usual, rarer;
};
constexpr Errors kRead{EIO, ESTALE}, kWrite{ENOSPC, EIO}, kChange{EROFS, EACCES}, kLock{ENOLCK, EIO}, kMap{ENOMEM, EIO};
constexpr Errors kOpen{EACCES, EMFILE}, kCreate{ENOSPC, EROFS}, kSync{EIO, ENOSPC};

std::atomic<bool> counting{false};
std::atomic<long> before_fault{-1};
std::mutex mutex;
Kind kind = record;
std::vector<std::string> folders, calls;

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

std::string linked(int descriptor) {
  char link[64], target[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const long size = syscall(SYS_readlinkat, AT_FDCWD, link, target, sizeof target);
  return size < 0 ? std::string() : std::string(target, static_cast<std::size_t>(size));
}

std::string absolute(int folder, const char* path) {
  if (path == nullptr) return {};
  if (path[0] == '/') return path;
  char here[PATH_MAX];
  if (folder != AT_FDCWD) return linked(folder) + "/" + path;
  return (syscall(SYS_getcwd, here, sizeof here) < 0 ? std::string() : std::string(here)) + "/" + path;
}

bool is_counted(const std::string& path) {
  for (const std::string& folder : folders) {
    if (path.compare(0, folder.size(), folder) == 0) return true;
  }
  return false;
}

int lasting_error(Effect effect) {
  if (kind == broken && effect != locks) return EIO;
  if (kind == full && effect == writes) return ENOSPC;
  if (kind == read_only && (effect == writes || effect == changes)) return EROFS;
  return 0;
}

// The file that says what fails now, and below which folder; null: this process itself says it.
const char* controlled(const char* variable) {
  return strncmp(program_invocation_short_name, "python", 6) == 0 ? getenv(variable) : nullptr;
}
const char* const control = controlled("FAILING_FILES_CONTROL");
const char* const controlled_folder = controlled("FAILING_FILES_BELOW");

Kind kind_now() {
  char digit = '0';
  const long file = syscall(SYS_openat, AT_FDCWD, control, O_RDONLY | O_CLOEXEC);
  if (file >= 0) {
    syscall(SYS_read, file, &digit, 1);
    syscall(SYS_close, file);
  }
  return static_cast<Kind>(digit - '0');
}

// The error with which this call fails; 0: it does not; -1: it does a part.
int fault(const char* function, Effect effect, const std::string& path, Errors errors, bool has_size = false) {
  const std::lock_guard<std::mutex> guard(mutex);
  if (control != nullptr && controlled_folder != nullptr) {
    if (path.compare(0, strlen(controlled_folder), controlled_folder) != 0) return 0;
    kind = kind_now();
    return kind == record ? 0 : lasting_error(effect);
  }
  if (!counting || !is_counted(path)) return 0;
  const std::string call = std::string(function) + " " + path;
  if (kind == record) {
    calls.push_back(call);
    return 0;
  }
  const long left = before_fault--;
  if (left > 0) return 0;
  int error = 0;
  if (kind == full || kind == read_only || kind == broken) {
    error = lasting_error(effect);
  } else if (left == 0) {
    error = kind == usual ? errors.usual : kind == rarer ? errors.rarer : has_size ? -1 : 0;
  }
  if (error != 0) calls.push_back(call + ": " + (error < 0 ? "a part" : strerrorname_np(error)));
  return error;
}

bool skipped() { return control == nullptr && !counting.load(std::memory_order_relaxed); }

Effect opens(int flags) { return (flags & O_ACCMODE) == O_RDONLY ? reads : flags & O_CREAT ? writes : changes; }
Errors open_errors(int flags) { return flags & O_CREAT ? kCreate : kOpen; }

}  // namespace

#define FAIL(error, result) \
  if ((error) > 0) {        \
    errno = (error);        \
    return (result);        \
  }

extern "C" {

#define OPEN(NAME)                                                                                    \
  int NAME(const char* path, int flags, ...) {                                                        \
    va_list more;                                                                                     \
    va_start(more, flags);                                                                            \
    const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;                     \
    va_end(more);                                                                                     \
    static auto real = next<int(const char*, int, mode_t)>(#NAME);                                    \
    const int error = skipped() ? 0 : fault("open", opens(flags), absolute(AT_FDCWD, path), open_errors(flags)); \
    FAIL(error, -1)                                                                                   \
    return real(path, flags, mode);                                                                   \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(NAME)                                                                                  \
  int NAME(int folder, const char* path, int flags, ...) {                                            \
    va_list more;                                                                                     \
    va_start(more, flags);                                                                            \
    const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;                     \
    va_end(more);                                                                                     \
    static auto real = next<int(int, const char*, int, mode_t)>(#NAME);                               \
    const int error = skipped() ? 0 : fault("open", opens(flags), absolute(folder, path), open_errors(flags)); \
    FAIL(error, -1)                                                                                   \
    return real(folder, path, flags, mode);                                                           \
  }
OPENAT(openat)
OPENAT(openat64)

#define FOPEN(NAME)                                                                                                \
  FILE* NAME(const char* path, const char* mode) {                                                                 \
    static auto real = next<FILE*(const char*, const char*)>(#NAME);                                               \
    const int flags = mode[0] == 'r' ? O_RDONLY : O_WRONLY | O_CREAT;                                              \
    const int error = skipped() ? 0 : fault("open", opens(flags), absolute(AT_FDCWD, path), open_errors(flags));   \
    FAIL(error, nullptr)                                                                                           \
    return real(path, mode);                                                                                       \
  }
FOPEN(fopen)
FOPEN(fopen64)

// A call with a number of bytes, of which a brief one does half.
#define TRANSFER(NAME, EFFECT, ERRORS, PARAMETERS, ARGUMENTS, TYPES, POINTER)                                \
  ssize_t NAME(int descriptor, POINTER bytes, std::size_t size PARAMETERS) {                                 \
    static auto real = next<ssize_t(int, POINTER, std::size_t TYPES)>(#NAME);                                \
    const int error = skipped() ? 0 : fault(#NAME, EFFECT, linked(descriptor), ERRORS, size > 1);            \
    FAIL(error, -1)                                                                                          \
    return real(descriptor, bytes, error < 0 ? size / 2 : size ARGUMENTS);                                   \
  }
#define COMMA ,
TRANSFER(read, reads, kRead, , , , void*)
TRANSFER(write, writes, kWrite, , , , const void*)
TRANSFER(pread, reads, kRead, COMMA off_t at, COMMA at, COMMA off_t, void*)
TRANSFER(pread64, reads, kRead, COMMA off64_t at, COMMA at, COMMA off64_t, void*)
TRANSFER(pwrite, writes, kWrite, COMMA off_t at, COMMA at, COMMA off_t, const void*)
TRANSFER(pwrite64, writes, kWrite, COMMA off64_t at, COMMA at, COMMA off64_t, const void*)

ssize_t writev(int descriptor, const struct iovec* parts, int count) {
  static auto real = next<ssize_t(int, const struct iovec*, int)>("writev");
  const int error = skipped() ? 0 : fault("writev", writes, linked(descriptor), kWrite);
  FAIL(error, -1)
  return real(descriptor, parts, count);
}

ssize_t sendfile64(int target, int source, off64_t* at, std::size_t size) {
  static auto real = next<ssize_t(int, int, off64_t*, std::size_t)>("sendfile64");
  const int error = skipped() ? 0 : fault("sendfile", writes, linked(target), kWrite, size > 1);
  FAIL(error, -1)
  return real(target, source, at, error < 0 ? 1 : size);
}

ssize_t sendfile(int target, int source, off_t* at, std::size_t size) {
  return sendfile64(target, source, reinterpret_cast<off64_t*>(at), size);
}

std::size_t fread(void* bytes, std::size_t unit, std::size_t count, FILE* file) {
  static auto real = next<std::size_t(void*, std::size_t, std::size_t, FILE*)>("fread");
  const int error = skipped() ? 0 : fault("fread", reads, linked(fileno(file)), kRead, count > 1);
  FAIL(error, 0)
  return real(bytes, unit, error < 0 ? count / 2 : count, file);
}

// A call on an open file.
#define ON_DESCRIPTOR(NAME, TOLD, EFFECT, ERRORS, PARAMETERS, ARGUMENTS, TYPES)                 \
  int NAME(int descriptor PARAMETERS) {                                                         \
    static auto real = next<int(int TYPES)>(#NAME);                                             \
    const int error = skipped() ? 0 : fault(TOLD, EFFECT, linked(descriptor), ERRORS);          \
    FAIL(error, -1)                                                                             \
    return real(descriptor ARGUMENTS);                                                          \
  }
ON_DESCRIPTOR(fsync, "fsync", writes, kSync, , , )
ON_DESCRIPTOR(fdatasync, "fsync", writes, kSync, , , )
ON_DESCRIPTOR(ftruncate, "ftruncate", writes, kWrite, COMMA off_t size, COMMA size, COMMA off_t)
ON_DESCRIPTOR(ftruncate64, "ftruncate", writes, kWrite, COMMA off64_t size, COMMA size, COMMA off64_t)
ON_DESCRIPTOR(flock, "flock", locks, kLock, COMMA int operation, COMMA operation, COMMA int)
ON_DESCRIPTOR(fchmod, "chmod", changes, kChange, COMMA mode_t mode, COMMA mode, COMMA mode_t)

#define FCNTL(NAME)                                                                                      \
  int NAME(int descriptor, int command, ...) {                                                           \
    va_list more;                                                                                        \
    va_start(more, command);                                                                             \
    void* argument = va_arg(more, void*);                                                                \
    va_end(more);                                                                                        \
    static auto real = next<int(int, int, void*)>(#NAME);                                                \
    const bool takes = (command == F_SETLK || command == F_SETLKW) && argument != nullptr &&             \
                       static_cast<struct flock*>(argument)->l_type != F_UNLCK;                          \
    const int error = skipped() || !takes ? 0 : fault("lock", locks, linked(descriptor), kLock);         \
    FAIL(error, -1)                                                                                      \
    return real(descriptor, command, argument);                                                          \
  }
FCNTL(fcntl)
FCNTL(fcntl64)

#define MMAP(NAME, OFFSET)                                                                                       \
  void* NAME(void* address, std::size_t size, int protection, int flags, int descriptor, OFFSET offset) {        \
    static auto real = next<void*(void*, std::size_t, int, int, int, OFFSET)>(#NAME);                            \
    const int error = skipped() || descriptor < 0 ? 0 : fault("mmap", reads, linked(descriptor), kMap);          \
    FAIL(error, MAP_FAILED)                                                                                      \
    return real(address, size, protection, flags, descriptor, offset);                                           \
  }
MMAP(mmap, off_t)
MMAP(mmap64, off64_t)

// A call on a path.
#define ON_PATH(NAME, TOLD, EFFECT, ERRORS, PARAMETERS, ARGUMENTS, TYPES)                           \
  int NAME(const char* path PARAMETERS) {                                                           \
    static auto real = next<int(const char* TYPES)>(#NAME);                                         \
    const int error = skipped() ? 0 : fault(TOLD, EFFECT, absolute(AT_FDCWD, path), ERRORS);        \
    FAIL(error, -1)                                                                                 \
    return real(path ARGUMENTS);                                                                    \
  }
ON_PATH(mkdir, "mkdir", writes, kCreate, COMMA mode_t mode, COMMA mode, COMMA mode_t)
ON_PATH(chmod, "chmod", changes, kChange, COMMA mode_t mode, COMMA mode, COMMA mode_t)
ON_PATH(unlink, "unlink", changes, kChange, , , )
ON_PATH(rmdir, "unlink", changes, kChange, , , )

int unlinkat(int folder, const char* path, int flags) {
  static auto real = next<int(int, const char*, int)>("unlinkat");
  const int error = skipped() ? 0 : fault("unlink", changes, absolute(folder, path), kChange);
  FAIL(error, -1)
  return real(folder, path, flags);
}

int fchmodat(int folder, const char* path, mode_t mode, int flags) {
  static auto real = next<int(int, const char*, mode_t, int)>("fchmodat");
  const int error = skipped() ? 0 : fault("chmod", changes, absolute(folder, path), kChange);
  FAIL(error, -1)
  return real(folder, path, mode, flags);
}

int rename(const char* from, const char* to) {
  static auto real = next<int(const char*, const char*)>("rename");
  const int error = skipped() ? 0 : fault("rename", changes, absolute(AT_FDCWD, to), kChange);
  FAIL(error, -1)
  return real(from, to);
}

int renameat(int from_folder, const char* from, int to_folder, const char* to) {
  static auto real = next<int(int, const char*, int, const char*)>("renameat");
  const int error = skipped() ? 0 : fault("rename", changes, absolute(to_folder, to), kChange);
  FAIL(error, -1)
  return real(from_folder, from, to_folder, to);
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned int flags) {
  static auto real = next<int(int, const char*, int, const char*, unsigned int)>("renameat2");
  const int error = skipped() ? 0 : fault("rename", changes, absolute(to_folder, to), kChange);
  FAIL(error, -1)
  return real(from_folder, from, to_folder, to, flags);
}

// The room on a disk that is full from some call on.
#define STATVFS(NAME, STRUCT)                                                                   \
  int NAME(const char* path, struct STRUCT* found) {                                            \
    static auto real = next<int(const char*, struct STRUCT*)>(#NAME);                           \
    const int result = real(path, found);                                                       \
    const std::lock_guard<std::mutex> guard(mutex);                                             \
    const bool is_full = counting && kind == full && before_fault < 0;                          \
    if (is_full && is_counted(absolute(AT_FDCWD, path))) found->f_bavail = found->f_bfree = 0;  \
    return result;                                                                              \
  }
STATVFS(statvfs, statvfs)
STATVFS(statvfs64, statvfs64)

DIR* opendir(const char* path) {
  static auto real = next<DIR*(const char*)>("opendir");
  const int error = skipped() ? 0 : fault("open", reads, absolute(AT_FDCWD, path), kOpen);
  FAIL(error, nullptr)
  return real(path);
}

// Begin to count. `below` has a prefix of paths on each line; the call after so many `successes` fails.
void faults_begin(const char* below, int which, long successes) {
  const std::lock_guard<std::mutex> guard(mutex);
  folders.clear();
  calls.clear();
  for (const char* line = below; *line != '\0';) {
    const char* end = strchr(line, '\n');
    folders.emplace_back(line, end == nullptr ? strlen(line) : static_cast<std::size_t>(end - line));
    line = end == nullptr ? line + strlen(line) : end + 1;
  }
  kind = static_cast<Kind>(which);
  before_fault = successes;
  counting = true;
}

// Stop it; returns the number of calls that failed, or that were recorded.
long faults_end() {
  counting = false;
  const std::lock_guard<std::mutex> guard(mutex);
  return static_cast<long>(calls.size());
}

// One of these calls; valid until the next faults_begin.
const char* faults_call(long index) { return calls.at(static_cast<std::size_t>(index)).c_str(); }
}
