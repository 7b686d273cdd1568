"""``espalier export`` for reports and training data: files, names, and what is refused."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from problem import format_files as files
from support import builders as b
from support import sessions
from support.program import Call

from engine.domain.problem_format import Licence, ProblemFormat
from engine.session.writer import SessionWriter


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.slow
def test_a_report_is_a_page_or_markdown_by_the_name_of_its_file(espalier: Call, recorded: Path, here: Path) -> None:
    assert espalier("export", "scripted", "--format", "report").out == "wrote scripted.html\n"
    text = (here / "scripted.html").read_text()
    assert text.startswith("<!doctype html>")
    assert "Softmax over rows" in text
    assert str(recorded.parent) not in text, "no path of this machine"
    assert espalier("export", "scripted", "--format", "report", "-o", "page.md").status == 0
    assert (here / "page.md").read_text().startswith("# Softmax over rows\n")


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        ("module", "page.html", "ends as a report does: add --format report, or name a file that ends in .py"),
        ("module", "search.tar.gz", "ends as a bundle does: add --format bundle, or name a file that ends in .py"),
        ("report", "best.py", "ends as a module does: add --format module, or name a file that ends in .html"),
        ("json", "rows.jsonl", "ends as a jsonl does: add --format jsonl, or name a file that ends in .json"),
    ],
)
def test_a_file_that_ends_as_another_format_is_refused(
    espalier: Call, recorded: Path, here: Path, kind: str, name: str, words: str
) -> None:
    said = espalier("export", "scripted", "--format", kind, "-o", name).error_line()
    assert said == f"espalier: {name} {words}\n"
    assert not (here / name).exists()


@pytest.mark.parametrize(
    ("kind", "name"), [("sft", "scripted.sft.jsonl"), ("pairs", "scripted.pairs.jsonl"), ("jsonl", "scripted.jsonl")]
)
def test_training_data_is_json_lines(espalier: Call, recorded: Path, here: Path, kind: str, name: str) -> None:
    result = espalier("export", "scripted", "--format", kind, "--licence", "CC0-1.0")
    rows = [json.loads(line) for line in (here / name).read_text().splitlines()]
    assert result.out == f"wrote {name}: {len(rows)} rows from 1 session\n"
    assert {row["licence"] for row in rows} == {"CC0-1.0"}
    assert {row["session"] for row in rows} == {"scripted"}


def test_jsonl_contains_every_failure(espalier: Call, recorded: Path, here: Path) -> None:
    espalier("export", "scripted", "--format", "jsonl")
    statuses = [json.loads(line)["verdict"]["status"] for line in (here / "scripted.jsonl").read_text().splitlines()]
    assert len(statuses) == 10
    assert {"measured", "mismatch", "crashed", "build_failed", "timed_out"} == set(statuses)


@pytest.mark.slow
def test_several_sessions_go_into_one_file_of_training_data(espalier: Call, recorded: Path, here: Path) -> None:
    sessions.whole(recorded.parent / "second")
    result = espalier("export", "scripted", "second", "scripted", "--format", "jsonl")
    assert result.out == "wrote sessions.jsonl: 20 rows from 2 sessions\n"
    assert "takes one session" in espalier("export", "scripted", "second", "--format", "report").error_line()


def test_files_are_not_overwritten_and_empty_ones_not_written(espalier: Call, recorded: Path, here: Path) -> None:
    assert espalier("export", "scripted", "--format", "sft").status == 0
    assert "already exists" in espalier("export", "scripted", "--format", "sft").error_line()
    assert espalier("export", "scripted", "--format", "sft", "--force").status == 0
    sessions.whole(recorded.parent / "short", limits=sessions.OPENED.settings.limits.__class__(rounds=0))
    assert "nothing to export with --format pairs" in espalier("export", "short", "--format", "pairs").error_line()
    assert not (here / "short.pairs.jsonl").exists()


@pytest.mark.parametrize("force", [(), ("--force",)])
@pytest.mark.parametrize("kind", ["report", "json", "bundle"])
def test_a_folder_is_not_a_file_to_overwrite(
    espalier: Call, recorded: Path, here: Path, kind: str, force: tuple[str, ...]
) -> None:
    """It advised ``--force``, with which the folder could not be written either."""
    (here / "results.tar.gz").mkdir()
    said = espalier("export", "scripted", "--format", kind, "-o", "results.tar.gz" if kind == "bundle" else ".", *force)
    assert "is a folder: name a file with --output" in said.error_line()
    assert not list((here / "results.tar.gz").iterdir())


def test_a_missing_blob_is_one_line(espalier: Call, recorded: Path, here: Path) -> None:
    for blob in (recorded / "blobs").iterdir():
        blob.unlink()
    assert "is missing" in espalier("export", "scripted", "--format", "jsonl").error_line()
    assert "is missing" in espalier("export", "scripted", "--format", "report").error_line()
    assert list(here.iterdir()) == []


def test_the_help_defines_the_reward(espalier: Call) -> None:
    text = " ".join(espalier("export", "--help").out.split())
    assert "ln(speedup over the parent)" in text
    assert "mismatch -1.5" in text


def test_a_licence_that_forbids_training_keeps_a_session_out(espalier: Call, home: Path, here: Path) -> None:
    licence = Licence("Reciprocity License", "LICENSE", forbids_training=True)
    problem = replace(b.problem(), origin_format=ProblemFormat("kernelbot", "softmax", "full", "full", licence=licence))
    folder = home / "sessions" / "licensed"
    SessionWriter.create(folder, replace(b.opened(), problem=problem)).close()
    refused = espalier("export", "licensed", "--format", "jsonl")
    assert (refused.status, list(here.iterdir())) == (2, [])
    assert "the licence of softmax (Reciprocity License, LICENSE) forbids training" in refused.err
    assert "--allow-licence softmax" in refused.err
    allowed = espalier("export", "licensed", "--format", "jsonl", "--allow-licence", "softmax")
    assert "nothing to export" in allowed.err, "the licence is no reason any more: the session has no kernel yet"


def test_a_faulty_problem_is_one_line_and_exit_status_2(espalier: Call, tmp_path: Path) -> None:
    folder = files.write_sol(tmp_path, None, files.workload(axes={}))
    for words in (("run", str(folder), "--headless"), ("scaffold", str(folder))):
        result = espalier(*words)
        assert result.status == 2
        assert result.err.count("\n") == 1
        assert "workload.jsonl, line 1: axes.M: missing: scale needs a value for it" in result.err


@pytest.mark.parametrize("kind", ["module", "report", "json", "jsonl"])
def test_a_dash_is_standard_output(espalier: Call, recorded: Path, here: Path, kind: str) -> None:
    printed = espalier("export", "scripted", "--format", kind, "-o", "-")
    assert list(here.iterdir()) == []
    written = espalier("export", "scripted", "--format", kind)
    (file,) = here.iterdir()
    assert (printed.status, printed.err.replace("the file", file.name)) == (written.status, written.err)
    assert printed.out == file.read_text()


def test_a_file_may_be_named_with_a_dash(espalier: Call, recorded: Path, here: Path) -> None:
    assert espalier("export", "scripted", "--format", "json", "-o", "./-").out == f"wrote {here / '-'}\n"
    assert [file.name for file in here.iterdir()] == ["-"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("export", "scripted", "--format", "bundle", "-o", "-"),
            "writes no text: name a file that ends in .tar.gz, .tgz, .tar",
        ),
        (("export", "scripted", "--format", "flashinfer", "-o", "-"), "writes no text: name a folder with --output"),
        (("export", "scripted", "--format", "json", "-o", "-", "--json"), "--output - and --json both print"),
        (("session", "compare", "scripted", "scripted", "-o", "-", "--json"), "--output - and --json both print"),
        (("export", "scripted", "--format", "report", "--kernel", "k1"), "--kernel has no effect on --format report"),
        (("export", "scripted", "--licence", "MIT"), "--licence has no effect on --format module"),
        (("export", "scripted", "--format", "json", "--allow-licence", "softmax"), "--allow-licence has no effect on"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    espalier: Call, recorded: Path, here: Path, arguments: tuple[str, ...], words: str
) -> None:
    assert words in espalier(*arguments).error_line()
    assert list(here.iterdir()) == []


def test_a_comparison_is_printed_as_a_page(espalier: Call, recorded: Path, here: Path) -> None:
    sessions.whole(recorded.parent / "second")
    assert espalier("session", "compare", "scripted", "second", "-o", "-").out.startswith("<!doctype html>")
    assert list(here.iterdir()) == []


def test_a_file_on_a_read_only_file_system_is_refused_with_advice(
    espalier: Call, recorded: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), "data.json")

    monkeypatch.setattr(Path, "write_text", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    said = espalier("export", "scripted", "--format", "json", "-o", "data.json").error_line()
    assert said == "espalier: data.json cannot be written (Read-only file system): choose another file with --output\n"
