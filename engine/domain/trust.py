"""What a session or a problem would run and contact, and the question whether it may."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class PathKind(StrEnum):
    """What a path holds."""

    SESSION = "session"
    BUNDLE = "bundle"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True, order=True)
class Server:
    """A server that models are asked on."""

    provider: str
    """``openai``, ``anthropic`` …"""
    url: str = ""
    """Empty for the provider's own, or the one that the user's environment names."""
    key: str = ""
    """The environment variable whose content it gets; empty for the provider's own key on its own server, else for none."""


@dataclass(frozen=True, slots=True)
class Permissions:
    """What runs outside the sandbox, or leaves this machine, once a session continues; and its reference."""

    reference: str
    """SHA-256 of the reference with its workloads and hold-out shapes."""
    commands: tuple[str, ...] = ()
    """Command lines of proposers and writers, sorted. They run as the user."""
    servers: tuple[Server, ...] = ()
    """Sorted."""

    def within(self, allowed: Permissions) -> bool:
        """Whether ``allowed`` covers all of it."""
        same = self.reference == allowed.reference
        return same and set(self.commands) <= set(allowed.commands) and set(self.servers) <= set(allowed.servers)


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """A server, with the key that it would get."""

    server: Server
    address: str
    """The base URL, or whose own server it is."""
    key: str
    """Where its key comes from, e.g. ``OPENAI_API_KEY``; empty if it gets none."""
    key_set: bool
    """Whether there is a key now. A server that is allowed also gets one that is set later."""


@dataclass(frozen=True, slots=True)
class TrustQuestion:
    """Everything that a person needs to know before something from elsewhere runs."""

    path: str
    kind: PathKind
    name: str
    """Its name on the command line."""
    why: str
    """Why it is not trusted; empty if it is."""
    needs: Permissions
    problem: str
    file: str
    """Where the reference was read from, as recorded."""
    code: str
    """The text of the reference."""
    ships: bool
    """Whether the reference is one that ships."""
    altered: bool
    """Whether the problem has the name of a shipped one, but another text."""
    servers: tuple[ServerAccess, ...]
    unsandboxed: str
    """Why there is no sandbox here; empty if there is one. Without one the reference and the kernels run as the user."""

    @property
    def size(self) -> int:
        """Bytes of the reference."""
        return len(self.code.encode("utf-8", "replace"))
