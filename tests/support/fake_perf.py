"""A ``perf`` that counts nothing and answers like the real one (6.1): options, pipes, ``-x,`` lines, complaints.

Written to a folder of the PATH. What it says comes from ``answers`` beside it: for each event a figure for one opening of the
counters, and one that is added where a kernel is called in it; or a word in angle brackets.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

REFUSAL = """Error:
Access to performance monitoring and observability operations is limited.
Consider adjusting /proc/sys/kernel/perf_event_paranoid setting to open
access to performance monitoring and observability operations for processes
without CAP_PERFMON, CAP_SYS_PTRACE or CAP_SYS_ADMIN Linux capability.
More information can be found at 'Perf events and tool security' document:
https://www.kernel.org/doc/html/latest/admin-guide/perf-security.html
perf_event_paranoid setting is 4:
  -1: Allow use of (almost) all events by all users
      Ignore mlock limit after perf_event_mlock_kb without CAP_IPC_LOCK
>= 0: Disallow raw and ftrace function tracepoint access
>= 1: Disallow CPU event access
>= 2: Disallow kernel profiling
To make the adjusted perf_event_paranoid setting permanent preserve it
in /etc/sysctl.conf (e.g. kernel.perf_event_paranoid = <setting>)
"""
"""The real message, verbatim."""

Answers = Mapping[str, tuple[float, float] | str]

COUNTS: Answers = {
    "task-clock": (0.02, 1.5), "instructions": (30_000, 5_000_000), "cycles": (60_000, 4_000_000), "branches": (6_000, 400_000),
    "branch-misses": (300, 2_000), "cache-references": (900, 90_000), "cache-misses": (100, 4_000),
    "L1-dcache-load-misses": (700, 60_000), "LLC-load-misses": "<not supported>",
}  # fmt: skip
"""From a processor without a last-level cache counter."""

_PROGRAM = """
import json, os, select, subprocess, sys

HERE = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(HERE, "answers")) as file:
    told = json.load(file)
if told["refusal"]:
    sys.stderr.write(told["refusal"])
    sys.exit(255)
words = sys.argv[2:]
options, command = words[:words.index("--")], words[words.index("--") + 1:]
value = {name: options[options.index(name) + 1] for name in ("-e", "--control", "-o", "--delay") if name in options}
events = value["-e"].split(",")
opened, status = 1, 0
if "--control" in value:
    assert value["--delay"] == "-1", "counters must be closed to begin with"
    control, answer = (os.open(p, os.O_RDWR | os.O_NONBLOCK) for p in value["--control"].removeprefix("fifo:").split(","))
    child, opened, kept = subprocess.Popen(command), 0, b""
    while child.poll() is None:
        if not select.select([control], [], [], 0.05)[0]:
            continue
        *lines, kept = (kept + os.read(control, 4096)).split(b"\\n")
        opened += lines.count(b"enable")
        for line in lines:
            sys.stderr.write("Events " + line.decode() + "d\\n")
            os.write(answer, b"ack\\n\\0")
    status = child.returncode
else:
    status = subprocess.call(command)
works = any(word.endswith("/spec") for word in command) or "--control" not in value
with open(value["-o"], "w") if "-o" in value else sys.stderr as file:
    file.write("# started on Sat Nov 21 22:58:46 2026\\n\\n")
    for event in events:
        said = told["answers"].get(event, "<not supported>")
        unit = "msec" if event == "task-clock" else ""
        shown = said if isinstance(said, str) else f"{opened * (said[0] + works * said[1]):.{2 if unit else 0}f}"
        file.write(f"{shown},{unit},{event}{told['modifier']},{0 if shown.startswith('<') else 399865982},100.00,,\\n")
sys.exit(status)
"""


@dataclass(frozen=True, slots=True)
class FakePerf:
    """The program in its folder, and its answer."""

    folder: Path

    def install(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        program = self.folder / "perf"
        program.write_text(f"#!{sys.executable}\n{_PROGRAM}")
        program.chmod(0o755)
        self.answer()

    def answer(self, answers: Answers = COUNTS, *, refusal: str = "", modifier: str = ":u") -> None:
        """Set its answer from now on."""
        said = {"answers": dict(answers), "refusal": refusal, "modifier": modifier}
        (self.folder / "answers").write_text(json.dumps(said))
