from __future__ import annotations

import numpy as np
import pytest

from rose.runtime.transfer.codec import codec
from rose.runtime.transfer.codec.header import read_header
from rose.runtime.transfer.errors import TransferError
from tests.runtime.transfer.bit_patterns import ENCODINGS


@pytest.mark.parametrize(
    ("blob", "message"),
    [
        (b"", "nothing"),
        (b"\xd3", "d3"),
        (b"\xd2\0\0\0", "d200"),
        (b"\xd3\xa8\0\0", "d3a8"),
        (b"\xd3\0\x80", "no number at byte"),
        (b"\xd3\0" + b"\xff" * 20, "no number at byte"),
        (b"\xd3\0\x05\x06", "6 of 5 elements"),
    ],
)
def test_what_is_no_header_is_refused(blob: bytes, message: str) -> None:
    with pytest.raises(TransferError, match=message):
        read_header(blob)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
def test_a_header_says_what_was_encoded(dtype: type) -> None:
    array = np.zeros(300, dtype)
    for mantissa_bits in range(8 * array.itemsize):
        for encoding in ("dense", *ENCODINGS):
            header = read_header(codec.encode(array, array, encoding=encoding, mantissa_bits=mantissa_bits))
            assert (header.encoding, header.item_bytes, header.mantissa_bits, header.elements) == (
                encoding,
                array.itemsize,
                mantissa_bits,
                300,
            )
