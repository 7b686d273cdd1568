"""The keys of the footer: those that matter now, the most urgent first. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engine.domain import queries, stopping
from engine.domain.state import IdeaStatus, Kernel, SessionState, Stage
from engine.domain.work import WorkKind
from tui.footer_key import FooterKey
from tui.viewmodel.stages import calls_by_hand

MOST = 5


@dataclass(frozen=True, slots=True)
class FooterSituation:
    """What the keys of a session's tree depend on, besides its state."""

    selected: str = ""
    marked: str = ""
    steered: bool = True
    """Whether the source takes commands."""
    stopped: bool = False
    """Whether work awaits a retry."""
    playing: bool | None = None
    """Of a replay; ``None`` for every other source."""


def tree_keys(state: SessionState, now: FooterSituation) -> tuple[FooterKey, ...]:
    """The keys of the session screen."""
    kernel = state.kernels.get(now.selected)
    if now.playing is not None:
        found = _replay_keys(now)
    elif now.steered:
        found = (*_urgent_keys(state, now), *_kernel_keys(state, kernel, now), *_usual_keys(state))
    else:
        found = (
            *_pair_keys(now),
            _key("session.pane"),
            _key("session.gate"),
            *_pair_of(kernel),
            _key("session.filter"),
            _key("session.home"),
        )
    return _first(found)


def typing_keys(*, searches: bool) -> tuple[FooterKey, ...]:
    """The keys while a filter or a search is typed: every other key is a letter of it."""
    done = "Done; n, N go on" if searches else "Done"
    return (FooterKey("app.help", key="f1"), FooterKey("", done, "enter"), FooterKey("", "Clear", "escape"))


def gate_keys(state: SessionState, idea: str, *, steered: bool) -> tuple[FooterKey, ...]:
    """The keys of the gate, for the highlighted idea."""
    rounds = (_key("gate.previous_round"), _key("gate.next_round"))
    if not steered:
        return (*rounds, _key("gate.back"))
    chosen = state.ideas.get(idea)
    waiting = len(queries.pending_ideas(state))
    found: list[FooterKey] = []
    if chosen is not None and any(work.kind == WorkKind.IMPLEMENT and work.subject == idea for work in state.broken):
        found += [_key("steer.retry"), _key("gate.write"), _key("gate.writer")]
    elif chosen is not None and chosen.status in (IdeaStatus.PROPOSED, IdeaStatus.PARKED):
        found += [_key("gate.approve"), _key("gate.reject"), _key("gate.edit"), _key("gate.write")]
        found.append(_key("gate.approve_all") if waiting > 1 else _key("gate.back"))
    elif chosen is not None and chosen.status is IdeaStatus.SELECTED and not chosen.implemented:
        found += [_key("gate.write"), _key("gate.writer")]
    return _first((*found, _key("gate.idea"), _key("gate.back"), _key("steer.seed"), *rounds))


def _key(action: str, label: str = "") -> FooterKey:
    return FooterKey(action, label)


def _first(keys: tuple[FooterKey, ...]) -> tuple[FooterKey, ...]:
    """The first five, each action once."""
    found: dict[str, FooterKey] = {}
    for key in keys:
        found.setdefault(key.action, key)
    return tuple(found.values())[:MOST]


def _urgent_keys(state: SessionState, now: FooterSituation) -> Iterator[FooterKey]:
    """What the session waits for."""
    if now.stopped:
        yield _key("steer.retry")
        yield _key("steer.models")
    if calls_by_hand(state):
        yield _key("steer.answer")
    if queries.pending_ideas(state) and not state.mode.is_autopilot:
        yield _key("session.gate", "Approve ideas")
    if state.paused is not None:
        yield _key("steer.pause", "Resume")
    if state.closed is not None:
        yield _on_ended(state)


def _on_ended(state: SessionState) -> FooterKey:
    """What lets an ended session go on."""
    if stopping.may_go_on(state):
        return _key("steer.limits", "More rounds")
    return _key("session.gate", "Parked ideas") if queries.parked_ideas(state) else _key("steer.idea")


def _kernel_keys(state: SessionState, kernel: Kernel | None, now: FooterSituation) -> Iterator[FooterKey]:
    """What can be done with the selected kernel as it is."""
    if kernel is None:
        return
    yield from _pair_keys(now, race=True)
    if kernel.stage is Stage.QUARANTINED:
        yield from (_key("session.accept"), _key("session.discard"), _key("session.remeasure"))
    elif not kernel.stage.settled:
        yield _key("session.cancel")
    elif kernel.stage is Stage.MEASURED:
        yield _key("session.pin", "Unpin" if kernel.id in state.pinned else "")
    else:
        yield from (_key("session.log"), _key("session.remeasure"))
    if state.running and state.paused is None:
        yield _key("steer.pause")
    yield from _pair_of(kernel)
    yield _key("session.prune", "Reopen branch" if kernel.id in state.pruned else "")


def _pair_keys(now: FooterSituation, *, race: bool = False) -> Iterator[FooterKey]:
    """Another kernel is marked: what can be done with both."""
    if now.marked and now.marked != now.selected:
        yield _key("session.compare")
        if race:
            yield from (_key("session.race"), _key("session.combine"))


def _pair_of(kernel: Kernel | None) -> Iterator[FooterKey]:
    if kernel is not None:
        yield _key("session.mark")


def _usual_keys(state: SessionState) -> tuple[FooterKey, ...]:
    pause = (_key("steer.pause"),) if state.running and state.paused is None else ()
    return (*pause, _key("session.pane"), _key("steer.idea"), _key("steer.seed"), _key("steer.mode"), _key("session.gate"))


def _replay_keys(now: FooterSituation) -> tuple[FooterKey, ...]:
    play = _key("replay.play", "Pause" if now.playing else "Play")
    landmarks = (_key("replay.next_round"), _key("replay.next_incumbent"))
    return (play, *_pair_keys(now), *landmarks, _key("session.pane"), _key("session.fork"))
