"""Engines of another distribution, found by entry point, each with its own kind of error."""

import re
import sys
from pathlib import Path

import pytest
from python_path import python_path

CODE = '''
import os, subprocess, sys, time
from torchserve_neuron_lstm.backends.interface import CompileError
from torchserve_neuron_lstm.backends.eager import Eager


class Good(Eager):
    """Serves as eager does, in buckets, and prints a lot."""
    name = "good"
    polymorphic = False
    def compile(self, program, bucket, directory, settings):
        print("noise on standard output")
        os.system("echo more of it")
        if "GOOD_PIDS" in os.environ:
            with open(os.environ["GOOD_PIDS"], "a") as file:
                file.write(f"{os.getpid()}\\n")
        super().compile(program, None, directory, settings)


class Refuses(Good):
    name = "refuses"
    def compile(self, program, bucket, directory, settings):
        raise CompileError(f"no {bucket.batch} x {bucket.length} here")


class Raises(Good):
    name = "raises"
    def compile(self, program, bucket, directory, settings):
        raise ValueError("something odd")


class Dies(Good):
    """Leaves a process that has its files, and would go on."""
    name = "dies"
    def compile(self, program, bucket, directory, settings):
        child = os.fork()
        if child == 0:
            time.sleep(600)
        if "DIES_PIDS" in os.environ:
            with open(os.environ["DIES_PIDS"], "a") as file:
                file.write(f"{child}\\n")
        sys.stderr.write("last words\\n")
        sys.stderr.flush()
        os.abort()


class Slow(Good):
    """Starts another process and waits for it for ever."""
    name = "slow"
    def compile(self, program, bucket, directory, settings):
        child = subprocess.Popen(["sleep", "600"])
        with open(os.environ["SLOW_PIDS"], "a") as file:
            file.write(f"{os.getpid()} {child.pid}\\n")
        child.wait()


class Wrong(Good):
    """Answers something else."""
    name = "wrong"
    def load(self, directory, weights, host, threads):
        run = super().load(directory, weights, host, threads)
        return lambda tensors: [answer + 0.01 * (answer.shape[0] > 1) for answer in run(tensors)]


class Late(Good):
    """Takes milliseconds for every call, and tells what it compiles."""
    name = "late"
    def compile(self, program, bucket, directory, settings):
        if "LATE_TELLS" in os.environ:
            with open(os.environ["LATE_TELLS"], "a") as file:
                file.write(f"{bucket.batch} x {bucket.length}\\n")
        super().compile(program, bucket, directory, settings)
    def load(self, directory, weights, host, threads):
        run = super().load(directory, weights, host, threads)
        def late(tensors):
            time.sleep(0.008)
            return run(tensors)
        return late


class Crashes(Good):
    """Its machine code kills the process that runs it."""
    name = "crashes"
    def load(self, directory, weights, host, threads):
        return lambda tensors: os.kill(os.getpid(), 11)


class Simulated(Good):
    """Its device is not here, its compiler counts, and it takes whole sequences alone."""
    name = "simulated"
    whole_sequences = "its device has no memory"
    def estimate_us(self, directory):
        return 2.5 * int(directory.name.partition("_")[0][1:])
    def simulation(self):
        return "simulated by this processor: there is no such device"


class Unusable(Good):
    name = "unusable"
    def unavailable(self):
        return "no such chip here; buy one"
'''


def install(site: Path, code: str = CODE) -> str:
    """Write the distribution to a folder, for PYTHONPATH."""
    site.mkdir()
    (site / "engines_of_others.py").write_text(code)
    info = site / "odd_engines-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-engines\nVersion: 1.0\n")
    names = re.findall(r'name = "(\w+)"', code)
    points = "".join(f"{name} = engines_of_others:{name.capitalize()}\n" for name in names)
    (info / "entry_points.txt").write_text(f"[torchserve_neuron_lstm.backends]\n{points}")
    return str(site)


def use(monkeypatch: pytest.MonkeyPatch, site: Path, code: str = CODE) -> None:
    """Install the distribution for this process and for those that it starts."""
    monkeypatch.delitem(sys.modules, "engines_of_others", raising=False)  # an earlier test may have had other engines
    monkeypatch.syspath_prepend(install(site, code))
    monkeypatch.setenv("PYTHONPATH", python_path(site))
