"""The machine: its processor, the cores to pin to, and their read bandwidth. Linux only."""

import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path

READ_BYTES = 512 << 20  # per thread; far beyond any cache a core can call its own


def cpu():
    return next(cpuinfo("model name"), platform.machine())


def flags():
    return set(next(cpuinfo("flags"), "").split())


def cpuinfo(key):
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(key):
            yield line.split(":", 1)[1].strip()


def choose_cpus(threads):
    """One hardware thread of each of the first physical cores this process may use: two siblings would share a core."""
    chosen, taken = [], set()
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        core = siblings.read_text().strip() if siblings.exists() else str(cpu)
        if core not in taken:
            taken.add(core)
            chosen.append(cpu)
    if len(chosen) < threads:
        sys.exit(f"{threads} threads are asked for, but only {len(chosen)} physical cores can be used")
    return chosen[:threads]


def run(command, cpus, **options):
    """Runs a command pinned to `cpus` and returns its stdout; ends this program if the command fails."""
    command = [str(part) for part in command]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          preexec_fn=lambda: os.sched_setaffinity(0, cpus), **options)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr[-4000:]}")
    return done.stdout


class Watch:
    """The share of some processors that other processes used, from creation to the call of `others`."""

    def __init__(self, cpus):
        self.cpus, self.start = cpus, time.monotonic()
        self.busy, self.own = busy_seconds(cpus), own_seconds()

    def others(self):
        """A share of their time, 0 to 1; only time of our ended children counts as our own."""
        busy, own = busy_seconds(self.cpus) - self.busy, own_seconds() - self.own
        return max(0.0, busy - own) / (len(self.cpus) * (time.monotonic() - self.start))


def busy_seconds(cpus):
    """All but idle and waiting time, with stolen time and without counting guest time twice."""
    ticks = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *counts = line.split()
        if name in {f"cpu{cpu}" for cpu in cpus}:
            user, nice, system, _, _, irq, softirq, steal, *_ = map(int, counts)
            ticks += user + nice + system + irq + softirq + steal
    return ticks / os.sysconf("SC_CLK_TCK")


def own_seconds():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def read_bandwidth(cpus):
    """Read bandwidth of `cpus` in GB/s: each runs memchr, through bytearray.find, over its own memory."""
    readers = [subprocess.Popen([sys.executable, __file__, str(cpu)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
               for cpu in cpus]
    for reader in readers:
        reader.stdout.readline()  # its memory is there
    for reader in readers:
        reader.stdin.write(b"go\n")
        reader.stdin.flush()
    return sum(float(reader.communicate()[0]) for reader in readers)


def reader(cpu):
    os.sched_setaffinity(0, {cpu})
    memory = bytearray(b"\x02") * READ_BYTES
    print("ready", flush=True)
    sys.stdin.readline()
    seconds = []
    for _ in range(6):
        start = time.perf_counter()
        assert memory.find(b"\x01") == -1
        seconds.append(time.perf_counter() - start)
    print(READ_BYTES / min(seconds) / 1e9)


if __name__ == "__main__":
    reader(int(sys.argv[1]))
