"""C++ text of the element types that the compiler lacks: bfloat16 and the two eight-bit floats. No torch."""

from __future__ import annotations

from dataclasses import dataclass

_BF16 = """\
/* A bfloat16 value: the upper half of a float's bits. Reads as a float; writing rounds to nearest even. */
struct bf16 {
    std::uint16_t bits;
    bf16() = default;
    bf16(float value) {
        std::uint32_t wide;
        std::memcpy(&wide, &value, sizeof wide);
        if ((wide & 0x7fffffffu) > 0x7f800000u) {
            bits = static_cast<std::uint16_t>((wide >> 16) | 0x40u);
        } else {
            bits = static_cast<std::uint16_t>((wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16);
        }
    }
    operator float() const {
        const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
        float value;
        std::memcpy(&value, &wide, sizeof value);
        return value;
    }
};
"""


@dataclass(frozen=True, slots=True)
class _Float8:
    """One format of eight bits: sign, exponent, mantissa."""

    name: str
    title: str
    mantissa: int
    bias: int
    largest: int
    """Bits of the largest finite value."""
    beyond: int
    """Bits of what larger values become."""

    @property
    def text(self) -> str:
        """A struct as for bfloat16. Subnormal numbers are exact in both directions, whatever the processor's mode for them."""
        drop = 23 - self.mantissa
        # Adding this float leaves the subnormal's mantissa in the sum's lowest bits, rounded to nearest even.
        magic = 127 + 23 - (self.bias - 1 + self.mantissa)
        return f"""\
/* {self.title} Reads as a float; writing rounds to nearest even. */
struct {self.name} {{
    std::uint8_t bits;
    {self.name}() = default;
    {self.name}(float value) {{
        std::uint32_t wide;
        std::memcpy(&wide, &value, sizeof wide);
        const std::uint32_t size = wide & 0x7fffffffu;
        std::uint32_t found;
        if (size > 0x7f800000u) {{
            found = 0x7fu;
        }} else if (size < {127 - self.bias + 1}u << 23) {{
            const std::uint32_t magic = {magic}u << 23;
            float small, shift;
            std::memcpy(&small, &size, sizeof small);
            std::memcpy(&shift, &magic, sizeof shift);
            small += shift;
            std::memcpy(&found, &small, sizeof found);
            found -= magic;
        }} else {{
            found = (size - ({127 - self.bias}u << 23) + {hex((1 << (drop - 1)) - 1)}u + ((size >> {drop}) & 1u)) >> {drop};
            if (found > {hex(self.largest)}u) found = {hex(self.beyond)}u;
        }}
        bits = static_cast<std::uint8_t>(found | ((wide >> 24) & 0x80u));
    }}
    operator float() const {{
        const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x80u) << 24, low = bits & 0x7fu;
        std::uint32_t wide = (low << {drop}) + ({127 - self.bias}u << 23);
        if (low > {hex(self.largest)}u) wide = {self._above_largest};
        float value;
        std::memcpy(&value, &wide, sizeof value);
        if (low < {1 << self.mantissa}u) value = static_cast<float>(low) * 0x1p-{self.bias - 1 + self.mantissa}f;
        std::memcpy(&wide, &value, sizeof wide);
        wide |= sign;
        std::memcpy(&value, &wide, sizeof value);
        return value;
    }}
}};
"""

    @property
    def _above_largest(self) -> str:
        nan = "0x7fc00000u"
        return nan if self.beyond == self.largest else f"low == {hex(self.beyond)}u ? 0x7f800000u : {nan}"


_E4M3 = _Float8(
    "fp8_e4m3",
    "A float8_e4m3fn value: 4 exponent bits, 3 mantissa bits, no infinity. Larger values become 448.",
    3, 7, 0x7E, 0x7E,
)  # fmt: skip
_E5M2 = _Float8("fp8_e5m2", "A float8_e5m2 value: 5 exponent bits, 2 mantissa bits, infinity beyond 57344.", 2, 15, 0x7B, 0x7C)

CPP_TEXTS = {"bfloat16": _BF16, "float8_e4m3fn": _E4M3.text, "float8_e5m2": _E5M2.text}
"""torch's dtype → the definition of its C++ type: ``bf16``, ``fp8_e4m3``, ``fp8_e5m2``."""
