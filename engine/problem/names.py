"""Names that are valid in C++ and CUDA: identifiers, macros and types, without clashes.

Knows reserved words and the names that a kernel's translation unit already uses; nothing of operands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


RESERVED = _words(
    """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class compl
    concept const consteval constexpr constinit const_cast continue co_await co_return co_yield decltype default delete
    do double dynamic_cast else enum explicit export extern false float for friend goto if inline int long mutable
    namespace new noexcept not not_eq nullptr operator or or_eq private protected public register reinterpret_cast
    requires return short signed sizeof static static_assert static_cast struct switch template this thread_local throw
    true try typedef typeid typename union unsigned using virtual void volatile wchar_t while xor xor_eq
    typeof restrict linux unix i386 main half nv_half std bf16
    threadIdx blockIdx blockDim gridDim warpSize
    workspace workspace_bytes stream launch
    """
)
"""Words that cannot name an operand: keywords, built-in names of CUDA, and the ABI's own arguments."""

RESERVED_MACROS = _words(
    """
    SMS ESPALIER_WORKLOAD ESPALIER_PROBLEM_H NULL EOF NAN INFINITY HUGE_VAL HUGE_VALF I BUFSIZ RAND_MAX
    EXIT_SUCCESS EXIT_FAILURE CHAR_BIT CHAR_MAX CHAR_MIN SCHAR_MAX SCHAR_MIN UCHAR_MAX SHRT_MAX SHRT_MIN USHRT_MAX
    INT_MAX INT_MIN UINT_MAX LONG_MAX LONG_MIN ULONG_MAX LLONG_MAX LLONG_MIN ULLONG_MAX SIZE_MAX PTRDIFF_MAX PTRDIFF_MIN
    INT8_MAX INT8_MIN INT16_MAX INT16_MIN INT32_MAX INT32_MIN INT64_MAX INT64_MIN UINT8_MAX UINT16_MAX UINT32_MAX
    UINT64_MAX INTPTR_MAX INTPTR_MIN FLT_MAX FLT_MIN FLT_EPSILON DBL_MAX DBL_MIN DBL_EPSILON LDBL_MAX MB_LEN_MAX
    CLOCKS_PER_SEC EDOM ERANGE EINTR EINVAL ENOMEM EAGAIN SIGINT SIGTERM SIGABRT SIGFPE SIGSEGV STDIN STDOUT
    M_PI M_E M_LN2 M_LN10 M_LOG2E M_LOG10E M_SQRT2 M_SQRT1_2 M_PI_2 M_PI_4 M_1_PI M_2_PI M_2_SQRTPI
    FP_NAN FP_INFINITE FP_ZERO FP_SUBNORMAL FP_NORMAL MATH_ERRNO SEEK_SET SEEK_CUR SEEK_END
    CUDART_VERSION CUDA_VERSION CUDART_INF CUDART_PI CUDART_NAN
    """
)
"""Upper-case names that standard and CUDA headers define as macros, and the tool's own."""

_SYSTEM_TYPES = _words(
    """
    size ssize ptrdiff max_align nullptr wchar wint wctrans wctype div ldiv lldiv clock time timer clockid key id mode
    dev gid uid pid off loff ino nlink blkcnt blksize fsblkcnt fsfilcnt suseconds useconds caddr daddr quad u_quad
    register sig_atomic sigset va_list fpos mbstate locale byte float double float16 float32 float64 bfloat16
    int8 int16 int32 int64 uint8 uint16 uint32 uint64 u_int8 u_int16 u_int32 u_int64 intptr uintptr intmax uintmax
    int_fast8 int_fast16 int_fast32 int_fast64 uint_fast8 uint_fast16 uint_fast32 uint_fast64
    int_least8 int_least16 int_least32 int_least64 uint_least8 uint_least16 uint_least32 uint_least64
    char8 char16 char32 true false error cudaError cudaStream cudaEvent dim pthread fsid in_addr in_port socklen
    sa_family rlim cpu_set jmp_buf ucontext stack greg gregset fpregset
    """
)
"""X for the types ``X_t`` that system headers define."""


def identifier(text: str) -> str:
    """``text`` as a C identifier: invalid characters become ``_``, a reserved word gets ``_`` appended."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", text) or "_"
    if name[0].isdigit() or re.match(r"_(_|[A-Z])", name):
        name = f"n{name}"
    return f"{name}_" if name in RESERVED else name


def macro(text: str) -> str:
    """``text`` as the name of a macro: upper case, and not one that standard headers define."""
    name = identifier(text).upper()
    if name.startswith("_"):
        name = f"N{name}"
    return f"{name}_" if name in RESERVED_MACROS else name


def unused_name(name: str, taken: Callable[[str], bool]) -> str:
    """``name``, with ``_`` appended until it is not taken."""
    while taken(name):
        name += "_"
    return name


def type_name(operand: str) -> str:
    """The name of an operand's element type: ``x_t``; ``key_elem_t`` where system headers define ``key_t``."""
    name = identifier(operand)
    return f"{name}_elem_t" if name in _SYSTEM_TYPES else f"{name}_t"


def instead_of(operand: str, constants: Collection[str]) -> str:
    """The constant because of which an operand's name ends in ``_``, as texts for readers say it; or nothing."""
    stem = operand.rstrip("_")
    return f"not {stem}, which is a constant" if stem != operand and stem in constants else ""
