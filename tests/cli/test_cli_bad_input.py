"""Bad input: one line (what failed, which one, what to do), exit status 2, and nothing is lost."""

from __future__ import annotations

import errno
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.program import ROOT, Call, command, environment

from engine.cli.exit_codes import exit_status_of
from engine.cli.output import show
from engine.domain.errors import EspalierError
from engine.journal.lock import WriterLock
from engine.sandbox.bubblewrap import bubblewrap_reason

REFERENCE = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        {body}

def get_inputs():
    return [torch.rand(8, 8)]

def get_init_inputs():
    return []
"""

no_gpu = pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a GPU here")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "sofmax"), "did you mean 'softmax'?"),
        (("run", "nowhere.py"), "'nowhere.py' not found"),
        (("run",), "missing argument 'PROBLEM...'"),
        (("run", "softmax", "sofmax"), "did you mean 'softmax'?"),
        (("run", "softmax", "layernorm", "--device", "cpu", "--mode", "ask"), "--mode needs a single problem"),
        (("run", "softmax", "layernorm", "--pause-above-usd", "1"), "--pause-above-usd needs a single problem"),
        (("mcp", "--root", "/nowhere"), "--root: /nowhere is not a folder"),
        (("mcp", "--port", "8414"), "--port needs --http"),
        (("run", "softmax", "--bogus"), "unknown option '--bogus'"),
        (("run", "softmax", "--session", "new\udcff"), "'new\\udcff' is not UTF-8: choose another name"),
        (("fork", "layernorm", "--into", "new\udcff"), "'new\\udcff' is not UTF-8: choose another name"),
        (("fleet", "nope"), "unknown command 'fleet nope'"),
        (("run", "softmax", "--rounds", "none"), "'none' is not a whole number: run `espalier run --help` for usage"),
        (("run", "softmax", "--budget-usd", "x"), "'x' is not a number: run `espalier run --help` for usage"),
        (("run", "softmax", "--rounds", "0"), "0 is not in the range"),
        (("run", "softmax", "--device", "tpu"), "unknown device 'tpu'"),
        (("run", "softmax", "--device", "cpu", "--workload", "huge"), "unknown workload 'huge'"),
        (("run", "softmax", "--device", "cpu", "--tolerance", "loose"), "unknown value 'loose'"),
        (("run", "softmax", "--device", "cpu", "--baselines", "eager,magic"), "unknown value 'magic'"),
        (("run", "softmax", "--device", "cpu", "--mode", "now"), "unknown mode"),
        (("run", "softmax", "--device", "cpu", "--source", "openai:some-model"), "no key for openai: set OPENAI_API_KEY"),
        (("run", "softmax", "--device", "cpu", "--source", "oracle"), "unknown proposer 'oracle'"),
        (("run", "softmax", "--device", "cpu", "--seed-kernel", "nowhere.cpp"), "no kernel file"),
        (("run", "softmax", "--budget-usd", "nan"), "'nan' is not a finite number"),
        (("run", "softmax", "--pause-above-usd", "inf"), "'inf' is not a finite number"),
        (("run", "softmax", "--session", ""), "the path is empty"),
        (("fly", "softmax"), "unknown command 'fly'"),
        (("open", "nothing-of-that-name"), "unknown session"),
        (("eval", "softmax"), "missing argument 'KERNEL...'"),
        (("eval", "softmax", "nowhere.cpp", "--device", "cpu"), "no kernel file"),
        (("scaffold", "softmax", "--dialect", "cpp", "--contract", "plan"), "does not support the plan contract"),
        (("export", "nothing-of-that-name"), "unknown session"),
        (("doctor", "softmax", "--clear-cache"), "--clear-cache takes no PROBLEM"),
        (("doctor", "--workload", "small"), "--workload needs a PROBLEM"),
        (("follow", "softmax", "--headless", "--browser"), "give --headless or --browser, not both"),
    ],
)
def test_bad_arguments_are_one_line(espalier: Call, home: Path, arguments: tuple[str, ...], words: str) -> None:
    assert words in espalier(*arguments).error_line()
    assert not (home / "sessions").exists()


def test_conditions_beside_never_are_refused(espalier: Call, recorded: Path) -> None:
    said = espalier("session", "pause", "scripted", "--never", "--above-usd", "3").error_line()
    assert "give --never or conditions, not both" in said


def test_a_port_that_is_taken_is_named(espalier: Call) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = espalier("mcp", "--http", "--port", port).error_line()
    assert said == f"espalier: port {port} of 127.0.0.1 cannot be used (Address already in use): choose another with --port\n"


@pytest.mark.parametrize("token", ["a b", "line\n", "t\xf6k"])
def test_a_token_that_no_client_can_send_is_refused(espalier: Call, monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    monkeypatch.setenv("ESPALIER_MCP_TOKEN", token)
    assert "ESPALIER_MCP_TOKEN is no token that a client can send" in espalier("mcp", "--http").error_line()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("empty.cpp", b"", "is empty"),
        ("blank.cu", b" \n\n", "is empty"),
        ("binary.cpp", b"\x7fELF\x02\x01\x01\x00\xff\xfe", "is not text"),
        ("zeros.cpp", b"int x;\x00", "is binary"),
        ("wide.cpp", "int x;".encode("utf-16"), "is UTF-16 text: save it as UTF-8"),
        ("kernel.f90", b"end program", "unknown suffix '.f90'"),
        ("nothing.cpp", b"int main() { return 0; }", "no launch()"),
        ("nothing.cu", b"__global__ void k() {}", "does not say how it is launched"),
        ("nothing.py", b"class Model: ...", "no `class ModelNew`"),
        ("tuned.cpp", b'// @tune = 3\nextern "C" void launch() {}', "tuned.cpp: line 1"),
        ("required.cpp", b'// @tune A = 1, 2\n// @require A >\nextern "C" void launch() {}', "required.cpp: line 2"),
    ],
)
def test_files_without_a_kernel(espalier: Call, tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert words in espalier("eval", "softmax", tmp_path / name, "--json").error_line()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("def forward(:", "line 1"),
        ("class Model: ...\ndef get_init_inputs(): return []\n", "no function get_inputs()"),
        ("\0\1\2", "binary"),
    ],
)
def test_files_without_a_problem(espalier: Call, tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "problem.py").write_text(text)
    assert words in espalier("run", tmp_path / "problem.py", "--device", "cpu", "--headless").error_line()


def test_a_problem_in_utf_16_is_named_as_such(espalier: Call, tmp_path: Path) -> None:
    (tmp_path / "problem.py").write_text(REFERENCE.format(body="return x"), encoding="utf-16")
    said = espalier("run", tmp_path / "problem.py", "--device", "cpu", "--headless").error_line()
    assert said.endswith("problem.py: UTF-16 text: save it as UTF-8\n")


@pytest.mark.slow
def test_a_reference_that_raises_is_named_with_its_line(process: Call, home: Path, tmp_path: Path) -> None:
    file = tmp_path / "raises.py"
    file.write_text(REFERENCE.format(body="raise ValueError('these shapes\\nare wrong')"))
    words = process("run", file, "--device", "cpu", "--headless", "--json", "--quiet").error_line()
    assert f"{file}, line 7" in words
    assert "ValueError: these shapes are wrong" in words
    assert not (home / "sessions").exists()


@pytest.mark.slow
def test_without_a_compiler_no_session_is_created(process: Call, home: Path, tmp_path: Path) -> None:
    words = process("run", "softmax", "--device", "cpu", "--headless", env={"PATH": str(tmp_path)}).error_line()
    assert "g++ not found" in words
    assert "install" in words
    assert not (home / "sessions").exists()


@no_gpu
@pytest.mark.parametrize("device", [(), ("--device", "cpu"), ("--device", "cuda:0")])
@pytest.mark.parametrize("command", ["rerun", "ablate", "eval"])
def test_kernels_for_a_gpu_lead_to_no_device_that_cannot_run_them(
    espalier: Call, tmp_path: Path, command: str, device: tuple[str, ...]
) -> None:
    """Without a device it advised ``--device cpu``, and with that ``--device cuda:0``."""
    kernel = tmp_path / "kernel.cu"
    kernel.write_text('// @launch k(x, out) grid(1) block(1)\nextern "C" __global__ void k(const float*, float*) {}\n')
    arguments = ("softmax", kernel) if command == "eval" else (ROOT / "sessions" / "softmax",)
    words = espalier(command, *arguments, *device).error_line()
    assert "is a cuda kernel and needs a GPU, and this machine has none: `espalier doctor` shows what is missing" in words
    assert "--device" not in words


@no_gpu
def test_a_gpu_that_is_not_there(espalier: Call) -> None:
    words = espalier("run", "softmax", "--device", "cuda:0").error_line()
    assert "no GPU found" in words
    assert "doctor" in words


def test_a_cuda_kernel_on_a_cpu(espalier: Call, tmp_path: Path) -> None:
    kernel = tmp_path / "kernel.cu"
    kernel.write_text('// @launch k(x, out) grid(1) block(1)\nextern "C" __global__ void k(const float*, float*) {}\n')
    assert "needs a GPU" in espalier("eval", "softmax", kernel, "--device", "cpu").error_line()


def test_a_session_folder_is_not_overwritten(espalier: Call, recorded: Path) -> None:
    before = (recorded / "journal.jsonl").read_bytes()
    words = espalier("run", "softmax", "--device", "cpu", "--session", recorded).error_line()
    assert "already holds a session" in words
    assert "espalier open" in words
    assert (recorded / "journal.jsonl").read_bytes() == before


@pytest.mark.parametrize("output", ["nowhere/mine.cpp", "file/mine.cpp", "."])
def test_where_no_kernel_can_be_written_none_is_traced(
    espalier: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    """The folder was missed after torch had been loaded and the device awaited."""
    monkeypatch.setattr("engine.cli.scaffold.drive", lambda _: pytest.fail("nothing is traced"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    words = espalier("scaffold", "softmax", "--dialect", "cpp", "--output", output).error_line()
    assert "with --output" in words
    assert "--force" not in words


@pytest.mark.parametrize(
    ("kernels", "words"),
    [
        ("", "--kernels names no kernel"),
        (" ", "--kernels names no kernel"),
        (" , ,", "--kernels names no kernel"),
        ("k1,k999", "unknown kernel 'k999' in scripted"),
        ("k1 k2", "unknown kernel 'k1 k2' in scripted"),
    ],
)
def test_rerun_with_a_list_of_no_kernels(
    espalier: Call, recorded: Path, monkeypatch: pytest.MonkeyPatch, kernels: str, words: str
) -> None:
    monkeypatch.setattr("engine.cli.rerun.drive", lambda _: pytest.fail("nothing is run"))
    assert words in espalier("rerun", "scripted", "--device", "cpu", "--kernels", kernels).error_line()


def test_a_session_from_a_newer_version(espalier: Call, recorded: Path) -> None:
    journal = recorded / "journal.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b'{"v":1,', b'{"v":99,', 1))
    before = journal.read_bytes()
    for arguments in (
        ("replay", "scripted", "--headless"),
        ("kernel", "pin", "scripted", "k1"),
        ("open", "scripted"),
        ("step", "scripted"),
    ):
        assert "newer" in espalier(*arguments).error_line()
    assert journal.read_bytes() == before


@pytest.mark.slow
def test_a_session_that_another_process_writes(process: Call, recorded: Path) -> None:
    lock = WriterLock(recorded)
    try:
        assert "in process" in process("step", recorded).error_line()
        assert process("replay", recorded, "--headless").status == 0
    finally:
        lock.release()


@pytest.mark.slow
@pytest.mark.skipif(bubblewrap_reason() is not None, reason="bubblewrap makes the file system read-only")
def test_a_read_only_session(process: Call, recorded: Path) -> None:
    prison = ("bwrap", "--ro-bind", "/", "/", "--dev", "/dev")
    for arguments in (("session", "note", recorded, "hello"), ("step", recorded)):
        words = process(*arguments, before=prison).error_line()
        assert "cannot be written" in words
        assert "copy it" in words
    undeleted = process("session", "delete", recorded, "--yes", before=prison).error_line()
    assert f"session {recorded} cannot be deleted (Read-only file system): make its folder writable first" in undeleted
    assert process("replay", recorded, "--headless", before=prison).status == 0


@pytest.mark.slow
def test_a_full_disk_loses_nothing(home: Path, recorded: Path) -> None:
    journal = recorded / "journal.jsonl"
    before = journal.read_bytes()
    size = len(before) + 100

    def small_files_only() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    done = subprocess.run(
        command("session", "note", recorded, "x" * 1000), env=environment(home), capture_output=True, text=True, check=False,
        preexec_fn=small_files_only,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("espalier: ")
    assert done.stderr.count("\n") == 1
    assert "cannot be written" in done.stderr
    assert journal.read_bytes() == before


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "LONG", "LONG"), ("eval", "softmax", "LONG"), ("scaffold", "softmax", "--empty", "-o", "LONG"),
        ("export", "sessions/softmax", "-o", "LONG"), ("trust", "LONG"), ("fork", "sessions/softmax", "--into", "LONG"),
    ],
)  # fmt: skip
def test_a_path_that_cannot_be_used_is_no_internal_error(espalier: Call, home: Path, arguments: tuple[str, ...]) -> None:
    shipped = Path(__file__).parents[2] / "sessions" / "softmax"
    known = {"LONG": "x" * 300, "sessions/softmax": str(shipped)}
    ended = espalier(*(known.get(one, one) for one in arguments))
    assert ended.status == 2
    assert "internal error" not in ended.err
    assert len(ended.err.splitlines()) == 1


def test_a_folder_that_cannot_be_written_is_found_before_the_problem_is_prepared(
    espalier: Call, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    ended = espalier("run", "softmax", "--headless", "--session", tmp_path / "new")
    assert ended.status == 2
    assert "waiting" not in ended.err
    assert ended.err.splitlines()[-1].endswith("cannot be written (Permission denied): name a writable folder")


@pytest.mark.parametrize("place", ["folder/file", "folder/file/below"])
def test_a_home_that_cannot_be_written_is_found_before_the_problem_is_prepared(
    espalier: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("")
    monkeypatch.setenv("ESPALIER_HOME", str(tmp_path / place))
    said = espalier("run", "softmax", "--device", "cpu", "--headless").error_line()
    assert "the folder of sessions" in said
    assert said.endswith("(Not a directory): restore its folder, or name another one with ESPALIER_HOME\n")


@pytest.mark.slow
def test_an_export_that_does_not_fit_leaves_no_part_of_a_file(home: Path, recorded: Path, tmp_path: Path) -> None:
    def small_files_only() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    done = subprocess.run(
        command("export", recorded, "--format", "report", "-o", tmp_path / "report.html"), env=environment(home),
        capture_output=True, text=True, check=False, preexec_fn=small_files_only,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "report.html cannot be written" in done.stderr
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENAMETOOLONG, errno.EROFS])
def test_an_error_of_a_path_names_it(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise OSError(number, os.strerror(number), "/data/session")

    assert exit_status_of(fail) == 2
    assert capsys.readouterr().err == f"espalier: /data/session cannot be used: {os.strerror(number)}\n"


def test_an_internal_error_is_one_line_and_a_log(espalier: Call, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault() -> None:
        raise ZeroDivisionError("by nought")

    monkeypatch.setattr("engine.problem.catalog.shipped", fault)
    result = espalier("problems")
    assert result.status == 1
    assert result.out == ""
    assert result.err.count("\n") == 1
    log = home / "state" / "espalier.log"
    assert str(log) in result.err
    assert "ZeroDivisionError: by nought" in log.read_text()
    assert "Traceback" in log.read_text()


@pytest.mark.slow
def test_colour_follows_no_color_and_term() -> None:
    code = "import sys; from engine.cli.streams import shows_colour; "
    code += "sys.stdout.isatty = lambda: True; print(shows_colour(sys.stdout))"
    for changes, expected in (({}, "True"), ({"NO_COLOR": "1"}, "False"), ({"TERM": "dumb"}, "False")):
        env = {**environment(Path("/nowhere")), "TERM": "xterm", **changes}
        if "NO_COLOR" not in changes:
            env.pop("NO_COLOR", None)
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == expected


@pytest.mark.slow
@pytest.mark.parametrize("closed", [">&-", "> /dev/full"])
def test_a_closed_or_full_output_is_not_an_internal_error(home: Path, closed: str) -> None:
    line = f'"{sys.executable}" -m espalier problems {closed}'
    ended = subprocess.run(["sh", "-c", line], env=environment(home), capture_output=True, text=True, timeout=60, check=False)
    assert "internal error" not in ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(ended.stderr.splitlines()) <= 1


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_the_null_device_so_that_no_other_file_takes_its_number(
    home: Path, tmp_path: Path, closed: str
) -> None:
    """A child writes to descriptors 1 and 2 whatever they are: the journal must not be one of them."""
    found = tmp_path / "found"
    code = f"""
import os, sys
from espalier import main
status = main(["session", "show", "absent"])
numbers = [stream.fileno() for stream in (sys.stdin, sys.stdout, sys.stderr)]
with open({str(found)!r}, "w") as file:
    print(status, file.fileno() > 2, numbers, [os.get_inheritable(n) for n in range(3)], file=file)
"""
    line = f'"{sys.executable}" -c "$0" {closed}'
    ended = subprocess.run(
        ["sh", "-c", line, code], env=environment(home), capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout == ""
    assert found.read_text() == "2 True [0, 1, 2] [True, True, True]\n"


def test_a_full_output_is_said(home: Path) -> None:
    with open("/dev/full", "w") as full:
        arguments = [sys.executable, "-m", "espalier", "problems"]
        ended = subprocess.run(
            arguments, env=environment(home), stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert ended.returncode == 2
    assert ended.stderr == "espalier: standard output cannot be written: No space left on device\n"


def test_control_characters_are_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    show(["kernel.cpp:2: error: #error \x1b]0;owned\x07\tsee"])

    def refuse() -> None:
        raise EspalierError("no kernel file \x1b[2Jk.cpp")

    assert exit_status_of(refuse) == 2
    result = capsys.readouterr()
    assert result.out == "kernel.cpp:2: error: #error ?]0;owned?  see\n"
    assert result.err == "espalier: no kernel file ?[2Jk.cpp\n"


def test_what_a_file_says_does_not_fill_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse() -> None:
        raise EspalierError(f"task.yml: lang: {'x' * 300_000!r} is not supported:\nonly py")

    assert exit_status_of(refuse) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert len(line) < 1100
    assert line.startswith("espalier: task.yml: lang: 'xxx")
    assert line.endswith("xxx' is not supported: only py")
