"""Static scan of kernel code for system facilities that a kernel does not need. Pure. A tripwire: it can be evaded.

It finds names: files, the network, processes, signals, clocks, code loaded at run time, system calls, the environment,
internals of Python and torch. A finding quarantines a verified kernel; it never fails one. Intrinsics, OpenMP, threads, std::,
PTX, prefetches, a child process that is waited for and a clock that is read for tuning are allowed.

In ``python`` and ``triton`` kernels names are resolved through imports, and C++ or CUDA in strings is scanned as such.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator

from engine.domain import python_syntax
from engine.domain.model import Dialect
from engine.toolchain.static_scan_cpp import Finding, scan_cpp

_MOST = 8

_FILES = "file access"
_PROCESSES = "starts or signals processes"
_NETWORK = "network access"
_INSIDE = "accesses interpreter internals"
_TORCH = "accesses torch internals"
_PATCHED = "replaces code that others call"
_ENGINE = "accesses Espalier itself"
_EXIT = "ends its process"
_ENVIRONMENT = "reads or writes the environment"

_REACHED: tuple[tuple[str, str], ...] = (
    ("subprocess", _PROCESSES), ("multiprocessing", _PROCESSES), ("signal", _PROCESSES), ("pty", _PROCESSES),
    ("socket", _NETWORK), ("urllib", _NETWORK), ("http", _NETWORK), ("requests", _NETWORK),
    ("ctypes", "calls native code or writes raw memory"), ("cffi", "calls native code or writes raw memory"),
    ("mmap", "changes memory mappings"), ("resource", "changes resource limits"),
    ("gc", _INSIDE), ("inspect", _INSIDE), ("builtins", _INSIDE), ("importlib", _INSIDE),
    ("atexit", "runs code outside the call"),
    ("sys._getframe", _INSIDE), ("sys._current_frames", _INSIDE), ("sys.settrace", _INSIDE), ("sys.setprofile", _INSIDE),
    ("sys.modules", _INSIDE), ("sys.meta_path", _INSIDE), ("sys.argv", _INSIDE), ("sys.exit", _EXIT),
    ("time.sleep", "sleeps"), ("shutil", _FILES), ("pathlib", _FILES), ("tempfile", _FILES),
    ("torch._C", _TORCH), ("torch.utils._python_dispatch", _TORCH),
    ("torch.overrides", _TORCH), ("torch.load", _FILES), ("torch.save", _FILES),
    ("torch.from_file", _FILES), ("torch.UntypedStorage", _TORCH),
    ("engine", _ENGINE),
)  # fmt: skip
_BUILTINS = {
    "exec": _INSIDE, "eval": _INSIDE, "compile": _INSIDE, "__import__": _INSIDE, "open": _FILES, "exit": _EXIT,
    "quit": _EXIT,
}  # fmt: skip
_INNER = frozenset(
    "__globals__ __code__ __closure__ __subclasses__ __builtins__ f_locals f_globals f_back tb_frame gi_frame "
    "__torch_function__ __torch_dispatch__ _version".split()
)
_OS_ALLOWED = (
    "os.path", "os.cpu_count", "os.sep", "os.linesep", "os.name", "os.environ", "os.getcwd", "os.getpid", "os.makedirs",
)  # fmt: skip
_BUILD_VARIABLES = (
    "TORCH_CUDA_ARCH_LIST",
    "TORCH_EXTENSIONS_DIR",
    "MAX_JOBS",
    "CC",
    "CXX",
    "CUDA_HOME",
    "CUDA_PATH",
    "TRITON_",
)
_READS_OR_SETS = ("os.environ.setdefault", "os.environ.get", "os.getenv")
_OPERATORS = "torch._C._nn"
"""Operators of ``torch.nn.functional`` by another name."""
_SWITCHES = ("torch.backends.", "torch._dynamo.config.", "torch._inductor.config.", "torch.cuda.matmul")
"""Settings that a module may change: they only affect its own process."""
_EMBEDDED = ("#include", "__global__", 'extern "C"')


def static_scan(code: str, dialect: Dialect, task_files: Iterable[str] = ()) -> tuple[Finding, ...]:
    """Suspicious lines of a kernel, in order; each name once, at most ``_MOST``.

    ``task_files``: Python files of the task, which kernels import. A function, class or statement of the kernel's file that one
    of them has too, unchanged, is the task's.
    """
    scanned = _scan_python(code, task_files) if dialect.in_python else scan_cpp(code)
    once = {(f.what, f.why): f for f in sorted(scanned, key=lambda f: -f.line)}
    return tuple(sorted(once.values(), key=lambda f: f.line))[:_MOST]


def _scan_python(code: str, task_files: Iterable[str]) -> Iterator[Finding]:
    """All findings; none for code that is not Python."""
    tree = _parsed(code)
    names = _imported(tree)
    of_task = {_dumped(node) for text in task_files for node in _parsed(text).body} - {""}
    own = [node for node in tree.body if not of_task or _dumped(node) not in of_task]
    state, operators = _names_of_own_state(tree), _parts_of_operators(tree, names)
    for node in (inner for top in own for inner in ast.walk(top)):
        yield from _imports(node)
        if not _is_version_of(node, state) and node not in operators:
            yield from _uses(node, names)
        yield from _stores(node, names)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _string(node)


def _dumped(node: ast.stmt) -> str:
    """The statement as text, without its place; empty for one that is nested too deeply."""
    try:
        return ast.dump(node)
    except RecursionError:
        return ""


def _parsed(code: str) -> ast.Module:
    """Its syntax tree; an empty one for code that is not Python."""
    try:
        return python_syntax.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def _imported(tree: ast.AST) -> dict[str, str]:
    """Local name → qualified name."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {
                (a.asname or a.name.partition(".")[0]): (a.name if a.asname else a.name.partition(".")[0]) for a in node.names
            }
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {(a.asname or a.name): f"{node.module}.{a.name}" for a in node.names}
    return names


def _dotted(node: ast.AST, names: dict[str, str]) -> str:
    """The qualified name of an expression such as ``torch.cuda.Event``; empty for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in names:
        return ""
    return ".".join([names[node.id], *reversed(parts)])


def _within(name: str, roots: Iterable[str]) -> bool:
    return any(name == root or name.startswith(root + ".") for root in roots)


def _why(name: str) -> str:
    if name.startswith("os.") and not _within(name, _OS_ALLOWED):
        return "calls the operating system"
    return next((why for root, why in _REACHED if _within(name, (root,))), "")


def _imports(node: ast.AST) -> Iterator[Finding]:
    if isinstance(node, ast.ImportFrom) and node.module:
        for alias in node.names:
            name = f"{node.module}.{alias.name}"
            if why := _why(name):
                yield Finding(node.lineno, name, why)
    elif isinstance(node, ast.Import):
        for alias in node.names:
            if _within(alias.name, ("engine",)):
                yield Finding(node.lineno, alias.name, _ENGINE)


def _uses(node: ast.AST, names: dict[str, str]) -> Iterator[Finding]:
    if isinstance(node, ast.Attribute):
        name = _dotted(node, names)
        if name and (why := _why(name)):
            yield Finding(node.lineno, name, why)
        elif node.attr in _INNER:
            yield Finding(node.lineno, node.attr, _INSIDE)
    elif isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id in _BUILTINS and node.func.id not in names:
            yield Finding(node.lineno, node.func.id, _BUILTINS[node.func.id])
        if isinstance(node.func, ast.Name) and node.func.id == "setattr" and node.args and _dotted(node.args[0], names):
            yield Finding(node.lineno, f"setattr({_dotted(node.args[0], names)}, …)", _PATCHED)
        yield from _environment(node, names)
    elif isinstance(node, ast.Subscript) and _dotted(node.value, names) == "os.environ":
        if isinstance(node.ctx, ast.Del) or not _build_variable(node.slice):
            yield Finding(node.lineno, "os.environ", _ENVIRONMENT)
    elif isinstance(node, ast.FunctionDef) and node.name in _INNER:
        yield Finding(node.lineno, node.name, "overrides torch's dispatch")


def _parts_of_operators(tree: ast.AST, names: dict[str, str]) -> frozenset[ast.AST]:
    """The parts of expressions that name an operator: ``torch._C._nn.gelu``, ``torch._C._nn`` and ``torch._C`` before it."""
    found: set[ast.AST] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value, attr, ast.Load()) if not attr.startswith("_") and _dotted(value, names) == _OPERATORS:
                found |= {node, value, *ast.iter_child_nodes(value)}
    return frozenset(found)


def _is_version_of(node: ast.AST, state: frozenset[str]) -> bool:
    """Whether an expression is the version counter of a module's own tensor, which tells whether packed weights are current."""
    return isinstance(node, ast.Attribute) and node.attr == "_version" and _is_state(node.value, state)


def _is_state(node: ast.AST, state: frozenset[str]) -> bool:
    """Whether an expression is an attribute of ``self``, at any depth, or a name that stands for one."""
    if isinstance(node, ast.Name):
        return node.id in state
    while isinstance(node, ast.Attribute):
        node = node.value
        if isinstance(node, ast.Name) and node.id == "self":
            return True
    return False


def _names_of_own_state(tree: ast.AST) -> frozenset[str]:
    """The names that nothing but attributes of ``self`` is ever bound to, in the whole file."""
    nodes = list(ast.walk(tree))
    bound = Counter(node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    to_state = Counter(
        node.targets[0].id
        for node in nodes
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _is_state(node.value, frozenset())
    )
    parameters = {node.arg for node in nodes if isinstance(node, ast.arg)}
    return frozenset(name for name, times in to_state.items() if name not in parameters and bound[name] == times)


def _environment(node: ast.Call, names: dict[str, str]) -> Iterator[Finding]:
    name = _dotted(node.func, names)
    if name in _READS_OR_SETS and node.args and _build_variable(node.args[0]):
        return
    if name.startswith("os.environ.") or name == "os.getenv":
        yield Finding(node.lineno, name, _ENVIRONMENT)


def _build_variable(key: ast.expr) -> bool:
    return isinstance(key, ast.Constant) and isinstance(key.value, str) and key.value.startswith(_BUILD_VARIABLES)


def _stores(node: ast.AST, names: dict[str, str]) -> Iterator[Finding]:
    """Assignments to attributes of imported modules and classes, and to methods of single objects."""
    if not isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
        return
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    for target in targets:
        if not isinstance(target, ast.Attribute):
            continue
        name = _dotted(target, names)
        if name and not name.startswith(_SWITCHES):
            yield Finding(node.lineno, f"{name} = …", _PATCHED)
        elif not name and isinstance(node.value, ast.Lambda) and not _own(target):
            yield Finding(node.lineno, f"….{target.attr} = lambda", "replaces a method of one object")


def _own(target: ast.Attribute) -> bool:
    return isinstance(target.value, ast.Name) and target.value.id == "self"


def _string(node: ast.Constant) -> Iterator[Finding]:
    text = str(node.value)
    if any(mark in text for mark in _EMBEDDED):
        for finding in scan_cpp(text):
            yield Finding(node.lineno + finding.line - 1, finding.what, finding.why)
    elif text.startswith(("/proc", "/sys/", "/dev/", "/etc/", "/tmp")):
        yield Finding(node.lineno, text[:40], _FILES)
