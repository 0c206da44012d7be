"""Strategies for hostile input: values of the wrong kind, trees with a node replaced, files with bytes changed."""

from __future__ import annotations

import copy
import datetime
import json
from typing import Any

from hypothesis import strategies as st

ODD_NUMBERS = (0, -1, 2, 2**31, 2**63, 2**64, 10**30, -(10**30), 10**400)
ODD_FLOATS = (float("nan"), float("inf"), -float("inf"), -0.0, 1e-320, 1e308)
ODD_TEXTS = (
    "", "\x00", ".", "..", "../../outside", "/etc/passwd", "~", "con:", "a/b", "a\\b", "\ud800", "a" * 5000,
    "\u202eabc", "0" * 300, "1/0", "nan/1", "1e400/1", "%s%n", "{0.__class__}", "-1", "[[[[", "(given in Python)",
)  # fmt: skip
ODD_PATHS = (
    "../out.png", "/var/out.png", "..", ".", "", "a\x00b", "~/x.png", "..\\x.png", "C:\\x.png", "a" * 300 + ".png",
    "real/../../x.png", "．．/x.png", "x\n.png", "\ufeff.png", "-rf", "real/bird/../../../x.png",
)  # fmt: skip


def deep(levels: int) -> list[Any]:
    """A list in a list in a list …"""
    nested: list[Any] = []
    for _ in range(levels):
        nested = [nested]
    return nested


texts = st.one_of(st.sampled_from(ODD_TEXTS), st.text(max_size=12))
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from(ODD_NUMBERS),
    st.floats(),
    st.sampled_from(ODD_FLOATS),
    texts,
)
values = st.one_of(
    scalars,
    st.lists(scalars, max_size=3),
    st.dictionaries(texts, scalars, max_size=3),
    st.sampled_from([10, 200, 450]).map(deep),
)
"""Anything that JSON can hold, and a little more (NaN, huge numbers)."""
toml_values = st.one_of(values, st.just(datetime.datetime(1, 1, 1, tzinfo=datetime.UTC)), st.just(datetime.time(1)))


@st.composite
def mutated(draw: st.DrawFn, content: bytes) -> bytes:
    """A whole file with bytes changed, cut out, doubled or put in, and the end cut off."""
    result = bytearray(content or b"\n")
    place = st.integers(0, len(result) - 1)
    for at, value in draw(st.lists(st.tuples(place, st.integers(0, 255)), max_size=6)):
        result[at] = value
    edit = draw(st.sampled_from(["none", "none", "cut", "remove", "double", "insert", "numbers"]))
    start, end = sorted((draw(place), draw(place)))
    if edit == "cut":
        del result[start:]
    elif edit == "remove":
        del result[start:end]
    elif edit == "double":
        result[end:end] = result[start:end]
    elif edit == "insert":
        result[start:start] = draw(st.binary(max_size=16))
    elif edit == "numbers":  # sizes and offsets that claim the most, the least, or a sign too many
        result[start : start + 4] = draw(st.sampled_from([b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff"]))
    return bytes(result)


@st.composite
def another_tree(draw: st.DrawFn, tree: Any) -> Any:
    """A tree of dictionaries and lists with one to three nodes replaced, removed, renamed or doubled."""
    result = copy.deepcopy(tree)
    for _ in range(draw(st.integers(1, 3))):
        result = _one_change(draw, result)
    return result


def _one_change(draw: st.DrawFn, tree: Any) -> Any:
    holders = [(holder, key) for holder, key in _places(tree)]
    if not holders:
        return draw(values)
    holder, key = holders[draw(st.integers(0, len(holders) - 1))]
    change = draw(st.sampled_from(["replace", "replace", "replace", "remove", "rename", "double"]))
    if change == "replace":
        holder[key] = draw(values)
    elif change == "remove":
        del holder[key]
    elif isinstance(holder, dict):
        holder[draw(texts)] = holder.pop(key) if change == "rename" else holder[key]
    else:
        holder.append(holder[key])
    return tree


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """Every (holder, key) below a tree, as far down as a file of ours goes."""
    found: list[tuple[Any, Any]] = []
    waiting = [(tree, 0)]
    while waiting:
        node, level = waiting.pop()
        items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, child in items:
            found.append((node, key))
            if level < 12:
                waiting.append((child, level + 1))
    return found


def as_json(tree: Any) -> bytes:
    """JSON text of a tree; one that is too deep to write becomes the deepest that can be read as brackets."""
    try:
        return json.dumps(tree).encode("utf-8", errors="surrogatepass")
    except (RecursionError, ValueError):
        return b"[" * 100_000


@st.composite
def another_json(draw: st.DrawFn, content: bytes) -> bytes:
    """A JSON file whose tree was changed."""
    return as_json(draw(another_tree(json.loads(content))))


@st.composite
def another_jsonl(draw: st.DrawFn, content: bytes) -> bytes:
    """A file of JSON lines, one of which was changed."""
    lines = content.splitlines()
    row = draw(st.integers(0, len(lines) - 1))
    lines[row] = draw(another_json(lines[row]))
    return b"\n".join(lines) + b"\n"


@st.composite
def another_safetensors(draw: st.DrawFn, content: bytes) -> bytes:
    """A safetensors file whose header was changed as a tree, its length being right; or as bytes."""
    if draw(st.integers(0, 3)) == 0:
        return draw(mutated(content))
    size = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + size]), content[8 + size :]
    own = header.get("__metadata__", {})
    if "fedrbn" in own and draw(st.booleans()):  # what we keep in it is JSON again
        own["fedrbn"] = as_json(draw(another_tree(json.loads(own["fedrbn"])))).decode("utf-8", errors="replace")
    else:
        header = draw(another_tree(header))
    written = as_json(header)
    return len(written).to_bytes(8, "little") + written + data
