"""Hostile requests: valid ones, altered in content or in how they are sent."""

import copy
import json
import socket
from typing import Any

from hypothesis import strategies as st

#: What no server of ours answers for so long unless it is asked to hold the answer back.
ANSWER_S = 60.0

NUMBERS = st.sampled_from(
    [
        *(0, -1, 1, True, 0.5, -0.0),
        *(2**31, 2**53, 2**55, 2**62, 2**63 - 1, 2**63, -(2**63), 2**64, 10**19, 10**400, -(10**400)),
        *(1e-300, 5e-324, 1e308, -1e308, float("nan"), float("inf"), float("-inf")),
    ]
)
TEXTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        [
            *("", " ", "\0", "\n", "\x1b[2J", "\u202e", "\ud800", "\udfff\ud800", "[/nope]", "%s%n"),
            *("../../etc", "//x", "null", "NaN", "1e400", "0x10", "http://x", "http://[", "s3://b/f", "e0", "d"),
            *("x" * 257, "x" * 1025, "x" * 5000, "\u00e9" * 257, "9" * 5000),
        ]
    ),
    st.just("y" * 300_000),
)


def _deep(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


VALUES = st.one_of(
    NUMBERS,
    TEXTS,
    st.sampled_from([None, [], {}, [None], {"": None}]),
    st.builds(lambda: [[1] for _ in range(2000)]),
    st.builds(_deep, st.sampled_from([1, 50, 400])),
    st.lists(NUMBERS, max_size=4),
    st.dictionaries(TEXTS, NUMBERS, max_size=3),
)


def _places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    places = [place]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        places += _places(part, (*place, key))
    return places


@st.composite
def altered(draw: st.DrawFn, message: Any) -> Any:
    """The message with up to three parts replaced, removed or added."""
    whole = [copy.deepcopy(message)]
    for _ in range(draw(st.sampled_from([0, 1, 1, 1, 2, 3]))):
        inner = [place for place in _places(whole[0]) if place] if draw(st.integers(0, 9)) else []
        *way, key = (0, *draw(st.sampled_from(inner or [()])))
        target: Any = whole
        for step in way:
            target = target[step]
        kind = draw(st.sampled_from(["alike", "alike", "alike", "other", "remove", "add"]))
        if kind == "add" and isinstance(target[key], dict):
            target[key][draw(TEXTS)] = copy.deepcopy(draw(VALUES))
        elif kind == "remove" and way and isinstance(target, dict):
            del target[key]
        elif kind == "alike" and isinstance(target[key], (int, float, str)):
            target[key] = draw(TEXTS if isinstance(target[key], str) else NUMBERS)
        else:
            target[key] = copy.deepcopy(draw(VALUES))
    return whole[0]


@st.composite
def bodies(draw: st.DrawFn, message: Any) -> bytes:
    text = json.dumps(draw(altered(message)))
    kind = draw(
        st.sampled_from(["json"] * 40 + ["utf-16", "utf-8-sig", "cut", "raw", "depth", "twice", "latin", "zeros"])
    )
    match kind:
        case "utf-16" | "utf-8-sig":
            return text.encode(kind)
        case "cut":
            return text.encode()[: draw(st.integers(0, len(text)))]
        case "raw":
            return draw(st.binary(max_size=200))
        case "depth":
            return draw(st.sampled_from([b"[", b'{"a":'])) * draw(st.sampled_from([100, 5000, 100_000]))
        case "twice":
            return text.encode() * 2
        case "latin":
            return text.replace("a", "\u00e9").encode("latin-1")
        case "zeros":
            return text.encode().replace(b"1", b"1" + b"0" * 5000)
    return text.encode()


HEADERS = st.lists(
    st.sampled_from(
        [
            *(b"Content-Encoding: gzip", b"Content-Encoding: br", b"Content-Encoding: nonsense"),
            *(b"Content-Type: text/xml", b"Content-Type: application/json; charset=utf-7"),
            *(b"Accept: \xff\xfe", b"Accept-Encoding: \xe9", b"Cookie: \xff=\x01", b"X: " + b"h" * 4000),
            *(b"Expect: 100-continue", b"Upgrade: websocket"),
            *(b"Range: bytes=-1", b"Range: bytes=5-2", b"Range: bytes=0-99999999999999999999", b"Range: pages=1"),
            *(b'If-None-Match: "x", *', b"If-Modified-Since: never"),
        ]
    ),
    max_size=2,
)
METHODS = [b"GET", b"POST", b"PUT", b"DELETE", b"HEAD", b"OPTIONS", b"PATCH", b"TRACE"]


def methods(method: str) -> st.SearchStrategy[bytes]:
    return st.sampled_from([method.encode()] * 60 + METHODS)


@st.composite
def paths(draw: st.DrawFn, path: str) -> bytes:
    if draw(st.integers(0, 9)):
        return path.encode()
    parts = path.split("/")
    parts[draw(st.integers(0, len(parts) - 1))] = draw(
        st.sampled_from(
            ["", "..", "%2e%2e", "%00", "%ff", "%", "%zz", "x" * 5000, "9" * 5000, "a%2fb", "%0d%0aX:%20y", "*"]
        )
    )
    return "/".join(parts).encode() or b"/"


def request(method: bytes, path: bytes, headers: list[bytes], body: bytes) -> bytes:
    head = [method + b" " + path + b" HTTP/1.1", b"Host: 127.0.0.1", b"Connection: close", *headers]
    return b"\r\n".join([*head, b"Content-Length: %d" % len(body), b"", b""]) + body


def answered(port: int, sent: bytes, wait_s: float = ANSWER_S) -> tuple[int | None, bytes]:
    """Return the status and the answer; no status after `wait_s`. Raises ConnectionError without an answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=wait_s) as connection:
        answer = b""
        try:
            try:
                connection.sendall(sent)
            except ConnectionError:
                pass  # It was refused before its end; why can be read.
            while part := connection.recv(1 << 20):
                answer += part
        except TimeoutError:
            return None, answer
        except ConnectionError:
            if not answer:
                raise
    if not answer.startswith(b"HTTP/1."):
        raise ConnectionError(f"no answer, but {answer[:100]!r}")
    if answer.startswith(b"HTTP/1.1 100"):
        answer = answer.partition(b"\r\n\r\n")[2]
    return int(answer.split(b" ", 2)[1]), answer
