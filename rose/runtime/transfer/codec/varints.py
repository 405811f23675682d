"""Numbers below 2**63 in as few bytes as they need: seven bits each, least significant first."""

from __future__ import annotations

from rose.runtime.transfer.errors import TransferError

#: The most that a number takes.
BYTES = 9


def packed(value: int) -> bytes:
    """The bytes of a number."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def taken(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """The number at byte `at`, and the byte after it. Raises TransferError where there is none."""
    value = 0
    for number, byte in enumerate(data[at : at + BYTES]):
        value |= (byte & 127) << 7 * number
        if byte < 128:
            return value, at + number + 1
    raise TransferError(
        f"encoded array has no number at byte {at} of {len(data)}: it ends too early, or the number does not"
    )
