"""The static scan of C++ and CUDA code: names of system facilities that a kernel does not need. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One suspicious line: ``what`` is the name or path as written, ``why`` is the reason; ``line`` counts from 1."""

    line: int
    what: str
    why: str

    def describe(self, file: str) -> str:
        """``k.cpp:3: dlopen: loads or looks up code at run time``."""
        return f"{file}:{self.line}: {self.what}: {self.why}"


@dataclass(frozen=True, slots=True)
class _Rule:
    why: str
    names: re.Pattern[str] | None
    """Whole identifiers, anywhere in the code."""
    calls: re.Pattern[str] | None
    """Names that methods may have too: matched only as calls of a free function."""


def _rule(why: str, names: str = "", calls: str = "") -> _Rule:
    """``names`` and ``calls`` are separated by blanks; each may be a regular expression."""
    either = re.compile(rf"\b({'|'.join(names.split())})\b") if names else None
    called = re.compile(rf"(?<![\w.>])({'|'.join(calls.split())})\s*\(") if calls else None
    return _Rule(why, either, called)


_FILES = "file access"
_SYSTEM = "low-level system call"

_CODE_RULES = (
    _rule(
        _FILES,
        """fopen fdopen freopen openat open64 creat mkstemp mkostemp tmpfile opendir readdir unlink ftruncate mkfifo
        [io]?fstream basic_[io]?fstream filebuf filesystem""",
        "open sendfile splice dup2 dup3 pipe2?",
    ),
    _rule("creates memory that is shared or outlives the call", "memfd_create shm_open shmget shmat sem_open mq_open"),
    _rule(
        "network access",
        r"getaddrinfo gethostbyname socketpair sockaddr\w* recvfrom recvmsg sendmsg sendto",
        "socket",
    ),
    _rule(
        "starts or signals processes",
        "execl execlp execle execv execvp execvpe execve execveat fexecve posix_spawnp? popen vfork clone3 setsid",
        "system kill killpg tgkill daemon clone unshare setns",
    ),
    _rule(
        _SYSTEM,
        r"""ptrace process_vm_\w+ pidfd_\w+ prctl arch_prctl prlimit setrlimit setpriority ioprio_set sched_setscheduler
        SYS_\w+ __NR_\w+ io_uring\w* perf_event_\w+ getauxval""",
        "nice syscall bpf iopl ioperm",
    ),
    _rule(
        "signals and timers can run code outside the call",
        r"sigaction sigaltstack sigprocmask pthread_sigmask setitimer timer_create timerfd_\w+ signalfd siglongjmp",
        "signal alarm",
    ),
    _rule(
        "reads or sets clocks",
        r"clock_settime settimeofday adjtime\w* clock_gettime gettimeofday __rdtscp? __builtin_ia32_rdtsc\w*",
    ),
    _rule("sleeps", "usleep nanosleep clock_nanosleep sleep_for sleep_until", "sleep pause"),
    _rule(
        "changes memory mappings or their protection",
        r"mprotect pkey_\w+ mremap remap_file_pages mseal userfaultfd MAP_FIXED\w* MAP_SHARED PROT_EXEC",
    ),
    _rule(
        "loads or looks up code at run time",
        "dlopen dlmopen dlv?sym dladdr1? dl_iterate_phdr _r_debug _GLOBAL_OFFSET_TABLE_ link_map",
    ),
    _rule("reads or writes the environment", "getenv secure_getenv setenv putenv environ program_invocation_name"),
    _rule("accesses the Python interpreter", r"Py[A-Z][A-Za-z]*_\w+ _Py_\w+"),
    _rule(
        "runs code outside the call",
        r"__attribute__\s*\(\s*\(\s*(?:constructor|destructor) init_priority atexit on_exit at_quick_exit",
    ),
    _rule(
        "accesses device memory or state that is not its own",
        r"cudaDeviceReset cudaIpc\w+ cuIpc\w+ cuMemGetAddressRange\w* cuCtxDestroy\w* cuDevicePrimaryCtx\w+",
    ),
    _rule(
        "keeps data in the L2 cache across calls",
        r"cudaLimitPersistingL2CacheSize \w*AccessPolicyWindow\w* \w*ACCESS_POLICY_WINDOW\w*",
    ),
)
_SYSTEM_HEADERS = "socket|ptrace|prctl|shm|un|epoll|timerfd|signalfd|userfaultfd|inotify|ipc|io"
_HEADERS = re.compile(
    rf"^[ \t]*#[ \t]*include[ \t]*<((?:sys/(?:{_SYSTEM_HEADERS})|linux/[\w/]+|netinet/\w+|arpa/\w+|netdb|dlfcn|link|elf|fcntl"
    r"|fstream|filesystem|spawn|Python|signal|csignal|ucontext)(?:\.h)?)>",
    re.MULTILINE,
)
_PLACES = re.compile(r"/proc/|/sys/|/dev/|/etc/|/tmp/|LD_PRELOAD|LD_LIBRARY|lib(?:c|gomp|torch)\S*\.so")
_INSTRUCTIONS = re.compile(r"\b(syscall|sysenter|int\s+\$?0x80|svc\s+#?0|rdpmc|rdtscp?|wrgsbase|wrfsbase|wrpkru)\b")
_TOKENS = re.compile(
    r"//[^\n]*|/\*.*?(?:\*/|\Z)|R\"([^\s()\\]{0,16})\(.*?(?:\)\1\"|\Z)|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL
)
_ASM = re.compile(r"\b(?:asm|__asm__|__asm)\b")
_ASKS_FOR_TILES = re.compile(
    r"\bsyscall\s*\(\s*SYS_arch_prctl\s*,\s*(?:0x1023|ARCH_REQ_XCOMP_PERM)\s*,\s*(?:18|\w*XTILEDATA)\s*\)"
)
"""How a program asks Linux for the processor's matrix tiles (AMX): there is no other way."""
_FORK = re.compile(r"(?<![\w.>])fork\s*\(")
_WAITED = re.compile(r"\b(?:wait|waitpid|waitid|wait3|wait4)\s*\(")


def scan_cpp(text: str) -> Iterator[Finding]:
    """All findings in C++ or CUDA code."""
    code, strings = _split(text)
    code = _ASKS_FOR_TILES.sub("", code)
    for rule in _CODE_RULES:
        for pattern in filter(None, (rule.names, rule.calls)):
            for match in pattern.finditer(code):
                if pattern is not rule.calls or not _declares(code, match.start()):
                    yield Finding(_line(code, match.start()), " ".join(match.group(1).split()), rule.why)
    for match in _HEADERS.finditer(code):
        yield Finding(_line(code, match.start()), f"<{match.group(1)}>", "system header")
    forked = _FORK.search(code)
    if forked and not _WAITED.search(code):
        yield Finding(_line(code, forked.start()), "fork", "child process without wait: can run code outside the call")
    assembles = _ASM.search(code) is not None
    for line, string in strings:
        if place := _PLACES.search(string):
            yield Finding(line, place.group(), _FILES)
        if assembles and (instruction := _INSTRUCTIONS.search(string)):
            yield Finding(line, instruction.group(), _SYSTEM)


def _declares(code: str, place: int) -> bool:
    """Whether the name at ``place`` follows a type, as in the declaration of a method of that name."""
    word = _LAST_WORD.search(code, max(0, place - 80), place)
    return word is not None and word.group(1) not in ("return", "else", "do", "throw", "case", "and", "or", "not")


_LAST_WORD = re.compile(r"(\w+)\s+$")


def _split(text: str) -> tuple[str, list[tuple[int, str]]]:
    """The code without comments and strings (line numbers and header names are kept), and the strings by line."""
    strings: list[tuple[int, str]] = []

    def blank(match: re.Match[str]) -> str:
        token = match.group()
        if token[0] in '"R':
            strings.append((_line(text, match.start()), token))
        return ('""' if token[0] in "\"'R" else " ") + "\n" * token.count("\n")

    return _TOKENS.sub(blank, text), strings


def _line(text: str, place: int) -> int:
    return text.count("\n", 0, place) + 1
