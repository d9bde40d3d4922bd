/* Fails one system call on one file: the call numbered `arm`, of those that a program makes on paths below `prefix`.
   gcc -shared -fPIC -O2 -o fail_calls.so fail_calls.c -ldl; LD_PRELOAD=./fail_calls.so program */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static char prefix[4096], failed[64];
static int armed, number, error_number, seen;

/* Count calls on paths below `below`, and let call `at`, from 1, fail with `error`; none for 0. */
void arm(const char *below, int at, int error) {
    strncpy(prefix, below, sizeof prefix - 1);
    number = at, error_number = error, seen = 0, failed[0] = 0, armed = 1;
}
/* End counting, and return the number of calls. */
int disarm(void) { armed = 0; return seen; }
/* Return the name of the call that failed. */
const char *failed_call(void) { return failed; }

/* FAIL_CALL=PREFIX:AT:ERRNO arms each process of a program. */
__attribute__((constructor)) static void arm_from_environment(void) {
    char below[4096];
    int at, error;
    const char *text = getenv("FAIL_CALL");
    if (text && sscanf(text, "%4095[^:]:%d:%d", below, &at, &error) == 3) arm(below, at, error);
}

static int fails_path(const char *name, const char *path) {
    if (!armed || !path || strncmp(path, prefix, strlen(prefix))) return 0;
    if (++seen != number) return 0;
    strncpy(failed, name, sizeof failed - 1);
    errno = error_number;
    return 1;
}
static int fails_fd(const char *name, int fd) {
    char link[64], path[4096];
    if (!armed || fd < 0) return 0;
    int before = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    errno = before;
    if (size < 0) return 0;
    path[size] = 0;
    return fails_path(name, path);
}

#define REAL(name) ({ static __typeof__(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name); real; })
#define FD(name, result, bad, types, ...) \
    result name types { return fails_fd(#name, fd) ? bad : REAL(name)(__VA_ARGS__); }
#define PATH(name, types, ...) \
    int name types { return fails_path(#name, path) ? -1 : REAL(name)(__VA_ARGS__); }
#define MODE mode_t mode = 0; if (flags & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); }

int open(const char *path, int flags, ...) { MODE return fails_path("open", path) ? -1 : REAL(open)(path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE return fails_path("open64", path) ? -1 : REAL(open64)(path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { MODE return fails_path("openat", path) ? -1 : REAL(openat)(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE return fails_path("openat64", path) ? -1 : REAL(openat64)(at, path, flags, mode); }
PATH(stat, (const char *path, struct stat *to), path, to)
PATH(stat64, (const char *path, struct stat64 *to), path, to)
PATH(lstat, (const char *path, struct stat *to), path, to)
PATH(lstat64, (const char *path, struct stat64 *to), path, to)
PATH(fstatat, (int at, const char *path, struct stat *to, int flags), at, path, to, flags)
PATH(fstatat64, (int at, const char *path, struct stat64 *to, int flags), at, path, to, flags)
FD(fstat, int, -1, (int fd, struct stat *to), fd, to)
FD(fstat64, int, -1, (int fd, struct stat64 *to), fd, to)
FD(pread, ssize_t, -1, (int fd, void *to, size_t size, off_t at), fd, to, size, at)
FD(pread64, ssize_t, -1, (int fd, void *to, size_t size, off64_t at), fd, to, size, at)
FD(read, ssize_t, -1, (int fd, void *to, size_t size), fd, to, size)
FD(lseek, off_t, -1, (int fd, off_t at, int from), fd, at, from)
FD(lseek64, off64_t, -1, (int fd, off64_t at, int from), fd, at, from)
FD(flock, int, -1, (int fd, int how), fd, how)
FD(mmap, void *, MAP_FAILED, (void *at, size_t size, int how, int flags, int fd, off_t from), at, size, how, flags, fd, from)
FD(mmap64, void *, MAP_FAILED, (void *at, size_t size, int how, int flags, int fd, off64_t from), at, size, how, flags, fd, from)
