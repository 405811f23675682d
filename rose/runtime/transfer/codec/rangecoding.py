"""The code of `small`: a binary arithmetic code with learnt probabilities.

It codes whether each element changed, the bit length of its step, the bit after the uppermost, and with even odds the
lower bits and the sign. Probabilities are kept for each *context*, the exponent of the base: a step moves small weights
more often and further than large ones. Both sides learn them from earlier answers, so only the answers are sent, each
in about -log2 of its probability bits: within a few percent of the entropy, after a hundred changes or a million.

An answer narrows the range [low, low + span) of 32-bit numbers in proportion to its probability. A range narrower than
2**24 is widened by eight bits, after its uppermost byte is written. One more byte gives a number in the last range."""

import numpy as np

from rose.runtime.transfer.codec.bitcoding import Steps, Words
from rose.runtime.transfer.codec.compiled import Array, Int, jit, zeros_above
from rose.runtime.transfer.errors import TransferError

#: A state: the probability of "no" in units of 2**-22, and in its ten lower bits the number of answers learnt.
_ODDS_BITS, _SEEN_BITS = 22, 10
_SEEN = (1 << _SEEN_BITS) - 1
_EVEN = 1 << (_ODDS_BITS + _SEEN_BITS - 1)
_SEEN_MOST = 511
#: Learning rate by number of answers, in units of 2**-16: the state follows the mean of all answers so far.
_RATES = (65536 / (np.arange(_SEEN_MOST + 1) + 1.5)).astype(np.int64)
_SPAN = (1 << 32) - 1
_NARROW = 1 << 24
_CONTEXTS = 256
_LENGTHS = 32  # A step is at most 32 bits long.
#: States of a context: first whether an element changed, then by bit length whether a step is longer, and the bit after
#: the uppermost.
_STATES = 2 * _LENGTHS


def encode(contexts: Array, gaps: Words, steps: Steps) -> bytes | None:
    """Encode the changes of `differences.find`, given each element's context below 256; None above eight bytes each."""
    out = np.empty(8 * contexts.size + 64, np.uint8)
    length = _write(contexts, gaps, steps, out)
    return out[:length].tobytes() if length <= out.size else None


def decode(block: memoryview, contexts: Array, changed: int) -> tuple[Words, Steps]:
    """Return the gaps and steps of `changed` elements. Raises TransferError."""
    gaps, steps = np.empty(changed, np.uint32), np.empty(changed, np.int32)
    if (length := _read(np.frombuffer(bytes(block), np.uint8), contexts, gaps, steps)) != len(block):
        raise TransferError(
            f"encoded array has {len(block)} bytes for {changed} changes of a block of {contexts.size} elements: "
            + (f"they take {length}" if length >= 0 else "they lead past its end")
        )
    return gaps, steps


@jit
def _learnt(state: Int, answer: Int) -> Int:
    """Return the state after an answer, rounded so that neither answer ever becomes impossible."""
    odds, seen = state >> _SEEN_BITS, state & _SEEN
    rate = _RATES[np.uintp(seen)]
    state += np.int64(seen < _SEEN_MOST)
    if answer:
        return state - (odds * rate >> (16 - _SEEN_BITS) & ~_SEEN)
    return state + (((1 << _ODDS_BITS) - odds) * rate >> (16 - _SEEN_BITS) & ~_SEEN)


@jit
def _put_byte(out: Array, at: Int, low: Int) -> Int:
    """Write the uppermost byte of `low`; past the end of `out` only count it."""
    if at < out.size:
        if low > _SPAN:
            carry = at - 1
            while out[carry] == 255:
                out[carry] = 0
                carry -= 1
            out[carry] += 1
        out[at] = low >> 24 & 255
    return at + 1


@jit
def _put(
    out: Array, at: Int, low: Int, span: Int, states: Array, context_start: Int, answer: Int
) -> tuple[Int, Int, Int]:
    state = np.int64(states[context_start])
    part = span * (state >> _SEEN_BITS) >> _ODDS_BITS
    states[context_start] = _learnt(state, answer)
    low, span = (low + part, span - part) if answer else (low, part)
    while span < _NARROW:
        at, low, span = _put_byte(out, at, low), low << 8 & _SPAN, span << 8
    return at, low, span


@jit
def _put_plain(out: Array, at: Int, low: Int, span: Int, value: Int, width: Int) -> tuple[Int, Int, Int]:
    for bit in range(width - 1, -1, -1):
        span >>= 1
        low += span & -(value >> bit & 1)
        while span < _NARROW:
            at, low, span = _put_byte(out, at, low), low << 8 & _SPAN, span << 8
    return at, low, span


@jit
def _write(contexts: Array, gaps: Array, steps: Array, out: Array) -> Int:
    """Write the changes; return the size of their code, also if `out` is too short for it."""
    states = np.full(_CONTEXTS + _CONTEXTS * _STATES, _EVEN, np.uint32)
    at = low = 0
    span = _SPAN
    i = np.uintp(0)
    for number in range(gaps.size):
        for _ in range(np.int64(gaps[number])):
            at, low, span = _put(out, at, low, span, states, np.uintp(contexts[i]), 0)
            i += np.uintp(1)
        at, low, span = _put(out, at, low, span, states, np.uintp(contexts[i]), 1)
        context_start = np.uintp(_CONTEXTS + np.int64(contexts[i]) * _STATES)
        i += np.uintp(1)
        negative = np.int64(steps[number] < 0)
        far = abs(np.int64(steps[number]))
        length = 63 - zeros_above(np.uint64(far))
        for bit in range(min(length + 1, _LENGTHS - 1)):
            at, low, span = _put(out, at, low, span, states, context_start + np.uintp(bit), np.int64(bit < length))
        plain = negative
        if length:
            upper = context_start + np.uintp(_LENGTHS + length)
            at, low, span = _put(out, at, low, span, states, upper, far >> (length - 1) & 1)
            plain |= (far & (1 << (length - 1)) - 1) << 1
        at, low, span = _put_plain(out, at, low, span, plain, max(length, 1))
    return _put_byte(out, at, low + _NARROW - 1)  # The range holds a number whose lower three bytes are zeros.


@jit
def _get(data: Array, at: Int, code: Int, span: Int, states: Array, context_start: Int) -> tuple[Int, Int, Int, Int]:
    """Decode an answer; return it with the new state. `code` is the offset of the coded number in the range."""
    state = np.int64(states[context_start])
    part = span * (state >> _SEEN_BITS) >> _ODDS_BITS
    if code < part:
        answer, span = 0, part
        states[context_start] = _learnt(state, 0)
    else:
        answer, code, span = 1, code - part, span - part
        states[context_start] = _learnt(state, 1)
    while span < _NARROW:
        code, span = code << 8 | _byte(data, at), span << 8
        at += 1
    return answer, at, code, span


@jit
def _get_plain(data: Array, at: Int, code: Int, span: Int, width: Int) -> tuple[Int, Int, Int, Int]:
    value: Int = 0
    for _ in range(width):
        span >>= 1
        answer = np.int64(code >= span)
        code -= span & -answer
        value = value << 1 | answer
        while span < _NARROW:
            code, span = code << 8 | _byte(data, at), span << 8
            at += 1
    return value, at, code, span


@jit
def _byte(data: Array, at: Int) -> Int:
    return np.int64(data[np.uintp(at)]) if at < data.size else 0


@jit
def _read(data: Array, contexts: Array, gaps: Array, steps: Array) -> Int:
    """Fill `gaps` and `steps`; return the size of their code, -1 if the elements end first. Zeros follow `data`."""
    states = np.full(_CONTEXTS + _CONTEXTS * _STATES, _EVEN, np.uint32)
    code, span = 0, _SPAN
    for at in range(4):
        code = code << 8 | _byte(data, at)
    at = 4
    i = 0
    for number in range(gaps.size):
        before = i
        answer = 0
        while not answer:
            if i >= contexts.size:
                return -1
            answer, at, code, span = _get(data, at, code, span, states, np.uintp(contexts[np.uintp(i)]))
            i += 1
        gaps[number] = i - before - 1
        context_start = np.uintp(_CONTEXTS + np.int64(contexts[np.uintp(i - 1)]) * _STATES)
        length = 0
        while length < _LENGTHS - 1:
            answer, at, code, span = _get(data, at, code, span, states, context_start + np.uintp(length))
            if not answer:
                break
            length += 1
        far = 1
        if length:
            far, at, code, span = _get(data, at, code, span, states, context_start + np.uintp(_LENGTHS + length))
            far |= 2
        plain, at, code, span = _get_plain(data, at, code, span, max(length, 1))
        far = far << max(length - 1, 0) | plain >> 1
        sign = -(plain & 1)
        steps[number] = (far ^ sign) - sign
    return at - 3  # Four bytes were read ahead, and the encoder wrote one of them.
