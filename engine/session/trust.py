"""Decides whether a session or a problem may run here.

A session that was made here is allowed what it names then. One from elsewhere (copied, imported, unpacked, forked from such a
session) runs nothing until the user has seen what it would run and confirmed it. What is allowed belongs to a path and to a
content: another reference, command or server needs another confirmation. Reading a session needs none.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from engine.domain.errors import JournalError, ProblemError, ProposerError, UntrustedError
from engine.domain.model import Author, Problem
from engine.domain.settings import ModelServer, ModelSettings
from engine.domain.state import SessionState
from engine.domain.trust import PathKind, Permissions, Server, ServerAccess, TrustQuestion
from engine.export import bundle
from engine.ideas.mix import check_proposer, parse_mix
from engine.ideas.models import keys
from engine.ideas.models.providers import PROVIDERS, endpoint
from engine.journal import store, trust_records, user_folders
from engine.journal.shipped import is_shipped
from engine.problem import catalog
from engine.problem.files.digest import problem_digest
from engine.report.text.shell import quoted
from engine.sandbox.trial_sandbox import judge_reason

_NO_RECORD = "there is no record that it was made or allowed here"
_LONGEST_COMMAND = 60


def needs_of(state: SessionState) -> Permissions:
    """What a session would run: by its settings, and by the writers and authors of its ideas and kernels."""
    opened = state.opened
    assert opened is not None, "a journal begins with it"
    settings = opened.settings
    base = named_here(state.models)
    began = named_here(settings.models)
    names = {name for idea in state.ideas.values() for name in (idea.writer, idea.author.name)}
    names |= {kernel.author.name for kernel in state.kernels.values()}
    further = _needs(reference_digest(opened.problem), names, state.models, {*base.servers, *began.servers})
    return replace(further, commands=tuple(sorted({*base.commands, *began.commands, *further.commands})))


def reference_digest(problem: Problem) -> str:
    """SHA-256 of the reference with its workloads and hold-out shapes. A journal's own digest is only a claim."""
    return problem_digest(problem)


def needs_of_name(name: str, models: ModelSettings) -> Permissions:
    """What a proposer or writer of this name would run; without a reference."""
    return _needs("", [name], models, ())


def named_here(models: ModelSettings) -> Permissions:
    """What the settings of a new session name: its user gave them on this machine. Without a reference."""
    servers = [Server(s.proposer.partition(":")[0], s.url, s.key) for s in models.servers if s.url or s.key]
    return _needs("", {*_proposers(models.source), models.writer}, models, servers)


def require(folder: Path, state: SessionState) -> Permissions:
    """What this session is allowed. Raises UntrustedError, with the question to ask, if it needs more."""
    needs = needs_of(state)
    why, allowed = _refused(folder, state, needs)
    if why:
        asked = _session_question(folder, state, needs, why)
        raise UntrustedError(_refusal(asked), asked)
    return allowed


def is_trusted(folder: Path, state: SessionState) -> bool:
    """Whether ``require`` would not raise."""
    return not _refused(folder, state, needs_of(state))[0]


def require_problem(problem: Problem) -> None:
    """Raises UntrustedError for a reference that would run here outside a sandbox and was not confirmed.

    In the sandbox any reference may run: the user named it.
    """
    if problem.origin in catalog.shipped_names() or (reason := judge_reason()) is None:
        return
    asked = _problem_question(problem, reason)
    if asked.why:
        raise UntrustedError(_refusal(asked), asked)


def made_here(folder: Path, state: SessionState) -> None:
    """Record that this session was made here, or steered by its user. Where nothing can be written, the user is asked later."""
    with suppress(JournalError):
        _write(folder, PathKind.SESSION, needs_of(state), confirmed=False)


def extend(folder: Path, allowed: Permissions, more: Permissions) -> Permissions:
    """Record that the user added a proposer or writer to a session that was allowed before; returns what is allowed now."""
    commands = tuple(sorted({*allowed.commands, *more.commands}))
    extended = replace(allowed, commands=commands, servers=tuple(sorted({*allowed.servers, *more.servers})))
    if extended != allowed:
        with suppress(JournalError):
            _write(folder, PathKind.SESSION, extended, confirmed=False)
    return extended


def question(text: str) -> TrustQuestion:
    """What the session, bundle or problem at this path, or of this name, would run; ``why`` is empty if it is trusted.

    Raises EspalierError if there is none, or if it cannot be read.
    """
    path = Path(text).expanduser() if text else Path(text)
    if bundle.is_bundle(path):
        with _unpacked(path) as folder:
            state = store.state_of(folder)
        needs = needs_of(state)
        return _session_question(path, state, needs, _missing(path, needs)[0], PathKind.BUNDLE)
    try:
        folder = store.resolve(text)
    except JournalError as no_session:
        return _problem_question(_problem(text, no_session), judge_reason() or "")
    return session_question(folder)


def session_question(folder: Path) -> TrustQuestion:
    """Like ``question``, for a session's folder."""
    state = store.state_of(folder)
    needs = needs_of(state)
    return _session_question(folder, state, needs, _refused(folder, state, needs)[0])


def confirm(asked: TrustQuestion) -> None:
    """Record that the user allowed what the question shows. Raises JournalUnwritable."""
    _write(Path(asked.path), asked.kind, asked.needs, confirmed=True)


def confirmed_bundle(file: Path, folder: Path) -> None:
    """Allow the session in ``folder`` what the user allowed the bundle that it was unpacked from."""
    needs = needs_of(store.state_of(folder))
    if not _missing(file, needs)[0]:
        with suppress(JournalError):
            _write(folder, PathKind.SESSION, needs, confirmed=True)


def revoke(text: str) -> Path | None:
    """Remove the permission of a path, or of a session's name; the path, or ``None`` if there was no permission.

    Raises JournalUnwritable.
    """
    for path in _candidates(text):
        if trust_records.remove(path):
            return path.resolve()
    return None


def _candidates(text: str) -> Iterator[Path]:
    path = Path(text).expanduser()
    yield path
    yield path / catalog.REFERENCE
    with suppress(JournalError):
        yield store.resolve(text)
    yield user_folders.sessions_root() / text


def _problem(text: str, no_session: JournalError) -> Problem:
    try:
        return catalog.find(text)
    except ProblemError as no_problem:
        if Path(text).expanduser().is_file():
            raise
        advice = "name a session, a bundle, or a problem's folder or file"
        raise JournalError(f"{text[:200]!r} is neither a session nor a problem: {advice}") from (no_problem or no_session)


def _needs(reference: str, names: Iterable[str], models: ModelSettings, servers: Iterable[Server]) -> Permissions:
    commands: set[str] = set()
    asked = set(servers)
    for name in names:
        try:
            author = Author(check_proposer(name)) if ":" in name else Author("")
        except ProposerError:  # cannot be opened either
            continue
        if author.provider == "command":
            commands.add(author.short)
        elif author.provider:
            named = models.server(author.name)
            asked.add(Server(author.provider, named.url if named else "", named.key if named else ""))
    return Permissions(reference, tuple(sorted(commands)), tuple(sorted(asked)))


def _proposers(source: str) -> tuple[str, ...]:
    try:
        return tuple(share.proposer for share in parse_mix(source))
    except ProposerError:  # such a session cannot be resumed
        return ()


def _refused(folder: Path, state: SessionState, needs: Permissions) -> tuple[str, Permissions]:
    """Like ``_missing``. Trusted is also a recording that ships, and, in a sandbox, a session that names only what ships."""
    if is_shipped(folder):
        return "", needs
    why, allowed = _missing(folder, needs)
    if why and _only_what_ships(state, needs) and judge_reason() is None:
        return "", needs
    return why, allowed


def _missing(path: Path, needs: Permissions) -> tuple[str, Permissions]:
    """(why the record of ``path`` does not allow all of ``needs``, what it allows); the reason is empty if it does."""
    nothing = Permissions("")
    try:
        record = trust_records.read(path)
    except JournalError as error:
        return str(error), nothing
    if record is None:
        return _NO_RECORD, nothing
    if needs.within(record.needs):
        return "", record.needs
    return _change(needs, record.needs), nothing


def _change(needs: Permissions, allowed: Permissions) -> str:
    if needs.reference != allowed.reference:
        return "its reference has changed since it was allowed"
    for command in needs.commands:
        if command not in allowed.commands:
            return f"it names a command that was not confirmed ({_quoted(command)})"
    new = next(server for server in needs.servers if server not in allowed.servers)
    return f"it names a server that was not confirmed ({new.provider} {new.url})".replace(" )", ")")


def _quoted(command: str) -> str:
    shown = " ".join(command.split())
    return repr(shown if len(shown) <= _LONGEST_COMMAND else f"{shown[: _LONGEST_COMMAND - 1]}…")


def _only_what_ships(state: SessionState, needs: Permissions) -> bool:
    assert state.opened is not None, "a journal begins with it"
    return not needs.commands and not needs.servers and _ships(state.opened.problem)


def _ships(problem: Problem) -> bool:
    """Whether the reference is, word for word, the shipped one that it names."""
    if problem.origin not in catalog.shipped_names():
        return False
    shipped = catalog.find(problem.origin)
    return (shipped.reference, shipped.attachments) == (problem.reference, problem.attachments)


def _session_question(
    path: Path, state: SessionState, needs: Permissions, why: str, kind: PathKind = PathKind.SESSION
) -> TrustQuestion:
    assert state.opened is not None, "a journal begins with it"
    name = str(path) if kind is PathKind.BUNDLE else store.short_name(path)
    return _question((path, kind, name), why, needs, state.opened.problem, judge_reason() or "")


def _problem_question(problem: Problem, unsandboxed: str) -> TrustQuestion:
    folder = catalog.folder(problem)
    path = folder / catalog.REFERENCE if folder is not None else Path(problem.origin)
    needs = Permissions(reference_digest(problem))
    why = "" if problem.origin in catalog.shipped_names() else _missing(path, needs)[0]
    return _question((path, PathKind.PROBLEM, problem.origin), why and "it does not ship", needs, problem, unsandboxed)


def _question(
    subject: tuple[Path, PathKind, str], why: str, needs: Permissions, problem: Problem, unsandboxed: str
) -> TrustQuestion:
    path, kind, name = subject
    servers = tuple(_access(server) for server in needs.servers)
    ships = _ships(problem)
    altered = problem.origin in catalog.shipped_names() and not ships
    return TrustQuestion(
        str(path.absolute()), kind, name, why, needs, problem.name, problem.origin, _code(problem), ships, altered, servers,
        unsandboxed,
    )  # fmt: skip


def _code(problem: Problem) -> str:
    """All code that the reference runs: its own, and that of its attached files."""
    attached = (f"\n\n# {name}\n{text}" for name, text in problem.attachments.items() if name.endswith(".py"))
    return "".join((problem.reference, *attached))


def _access(server: Server) -> ServerAccess:
    provider = PROVIDERS[server.provider]
    try:
        place = endpoint(provider, ModelServer(server.provider, server.url, server.key))
        variables = place.variables
    except ProposerError:  # malformed: it cannot be opened either
        variables = ()
    own = f"{provider.owner}{f', or {provider.url_variable}' if provider.url_variable else ''}"
    found = keys.key_place(server.provider if variables == provider.keys else "", variables) if variables else ""
    return ServerAccess(server, server.url or own, found or (variables[0] if variables else ""), bool(found))


def _refusal(asked: TrustQuestion) -> str:
    name = quoted(asked.name)
    if asked.kind is PathKind.PROBLEM:
        return (
            f"the reference of {asked.name} would run outside a sandbox ({asked.unsandboxed}): "
            f"`espalier trust {name}` shows it and allows it"
        )
    return (
        f"{asked.kind} {asked.name} is not trusted: {asked.why}; `espalier trust {name}` shows what it would run and asks, "
        f"`espalier replay {name}` runs nothing"
    )


def _write(path: Path, kind: PathKind, needs: Permissions, *, confirmed: bool) -> None:
    trust_records.write(path, kind, needs, confirmed=confirmed, at=time.time())


@contextmanager
def _unpacked(file: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="espalier-trust-") as place:
        yield bundle.unpack(file, Path(place) / bundle.session_name(file))
