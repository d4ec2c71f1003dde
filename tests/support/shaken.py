"""Three runs of the quick tier in a row under what a test may not depend on: what fails in one of them is flaky.

    python -m tests.support.shaken [--runs 3] [--first 0] [words for pytest]

Each run has another seed, another order, a time zone at one end of the earth, and a clock that is a year ahead, beside
two processes that keep processors busy. The clock needs Linux and a C compiler. Without them
it is right, and that is said.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ZONES = ("Pacific/Kiritimati", "Etc/GMT+12", "UTC")  # 14 hours before Greenwich, 12 behind it
BUSY = 2
# Only dates are ahead, those of files too. What waits for a duration asks the other clock.
CLOCK = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define YEAR (365L * 24 * 3600)

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, clock, now);
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += YEAR;
    return result;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *out, void *zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}

#define OF(S) \\
int fstatat##S(int folder, const char *path, struct stat##S *file, int flags) { \\
    int result = syscall(SYS_newfstatat, folder, path, file, flags); \\
    if (result == 0) file->st_atim.tv_sec += YEAR, file->st_mtim.tv_sec += YEAR, file->st_ctim.tv_sec += YEAR; \\
    return result; \\
} \\
int stat##S(const char *path, struct stat##S *file) { return fstatat##S(AT_FDCWD, path, file, 0); } \\
int lstat##S(const char *path, struct stat##S *file) { \\
    return fstatat##S(AT_FDCWD, path, file, AT_SYMLINK_NOFOLLOW); \\
} \\
int fstat##S(int number, struct stat##S *file) { return fstatat##S(number, "", file, AT_EMPTY_PATH); }

OF()
OF(64)

static const struct timespec *earlier(const struct timespec *times, struct timespec *out) {
    if (!times) return times;
    for (int i = 0; i < 2; i++) {
        out[i] = times[i];
        if (times[i].tv_nsec != UTIME_NOW && times[i].tv_nsec != UTIME_OMIT) out[i].tv_sec -= YEAR;
    }
    return out;
}

int utimensat(int folder, const char *path, const struct timespec *times, int flags) {
    struct timespec out[2];
    return syscall(SYS_utimensat, folder, path, earlier(times, out), flags);
}

int futimens(int number, const struct timespec *times) {
    return utimensat(number, NULL, times, 0);
}
"""


@contextmanager
def busy() -> Iterator[None]:
    """Processes that compute without end, beside the tests."""
    beside = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY)]
    try:
        yield
    finally:
        for process in beside:
            process.kill()
            process.wait()


def later(folder: Path) -> dict[str, str]:
    """Variables that put the date of a process, and of those that it starts, a year ahead."""
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(CLOCK, encoding="utf-8")
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    except (OSError, subprocess.CalledProcessError):
        print("no C compiler: the clock is right", flush=True)
        return {}
    return {"LD_PRELOAD": str(library)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="the number of the first run, which seeds it")
    args, words = parser.parse_known_args()
    codes = list[int]()
    with busy(), tempfile.TemporaryDirectory() as folder:
        clock = later(Path(folder))
        for run in range(args.first, args.first + args.runs):
            zone, seed = ZONES[run % len(ZONES)], f"shaken-{run}"
            print(f"---- run {run + 1}: TZ={zone}, seed and order {seed}", flush=True)
            command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "worksteal", "-q", "-p", "no:cacheprovider"]
            command += ["--tier", "quick", "--seed", seed, "--shuffle", seed, *words]
            codes.append(subprocess.run(command, cwd=ROOT, env={**os.environ, **clock, "TZ": zone}).returncode)
    print(f"exit codes: {codes}")
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
