"""Saved functions that are damaged, or made to harm: they load, or raise ``FileFormatError``."""

from __future__ import annotations

import copy
import io
import json
import time
import tracemalloc
import warnings
import zipfile

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.errors import FileFormatError
from symdnn.saving import container, functions
from symdnn.saving.container import GRAPH, VALUES
from symdnn.tensor.random import RandomStream
from tests.io.damage import damaged, damaged_inside
from tests.seeded import new_rng

#: What replaces an entry of the graph.
ENTRIES = (
    None, True, False, 0, 1, -1, 2, 7, 2**31, 2**40, -(2**63), 2**64, 2**100, 0.5, -0.0, 1e300, "",
    "x", "c0", "s0", "c99", "float32", "int64", "bfloat16", "__class__", "os.system", "name; x", [],
    [0], [[0]], {}, {"float": "nan"}, {"op": "Exp", "fields": {}}, {"graph": {}},
    {"place": "cuda0"},
)  # fmt: skip
LONGEST_S = 20.0
MOST_BYTES = 200 << 20


def program():
    """A function with most of what a file may hold."""
    x, n = T.tensor("float32", ("batch", 3), name="x"), T.iscalar("n")
    w = symdnn.shared(np.ones((3, 3), "float32"), name="w")
    h, updates = symdnn.scan(lambda h: T.tanh(T.dot(h, w)) + 0.5, outputs_info=x, n_steps=4)
    y = symdnn.OpFromGraph([x], [T.nnet.softmax(x)], name="soft")(h[-1])
    drawn = RandomStream(3).uniform((2, 3)).sum()
    parts = T.concatenate([y, x[:, ::2]], axis=1).reshape((x.shape[0], 5)).dimshuffle(1, "x", 0)
    cost = (parts.sum() + drawn) * T.arange(n).sum() + T.max(T.zeros((4,)))
    inputs = [x, symdnn.In(n, value=3, update=n + 1)]
    pairs = [*updates.items(), (w, w - 0.1 * T.grad(cost, w))]
    return symdnn.function(inputs, {"cost": cost, "y": y}, updates=pairs)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "f"
    symdnn.save(program(), path)
    return path.read_bytes()


def outcome(path):
    """What loading gives: "loaded" or "refused", soon and with little memory."""
    start = time.process_time()
    tracemalloc.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of names that a zip file has twice
            symdnn.load(path, target="cpu")
        return "loaded"
    except FileFormatError:
        return "refused"
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert time.process_time() - start < LONGEST_S
        assert peak < MOST_BYTES


def places(entry, above=()):
    """All places of a document, by their keys."""
    pairs = entry.items() if isinstance(entry, dict) else enumerate(entry)
    for key, inner in pairs:
        yield (*above, key)
        if isinstance(inner, dict | list):
            yield from places(inner, (*above, key))


def changed(document, rng):
    """A copy of a document with entries replaced, exchanged, left out or repeated."""
    new = copy.deepcopy(document)
    for _ in range(int(rng.integers(1, 4))):
        known = list(places(new))
        place = known[int(rng.integers(len(known)))]
        holder = at(new, place[:-1])
        kind = rng.choice(["entry", "entry", "near", "other", "gone", "again"])
        if kind == "gone":
            del holder[place[-1]]
        elif kind == "again" and isinstance(holder, list):
            holder.insert(place[-1], copy.deepcopy(holder[place[-1]]))
        elif kind == "near" and type(holder[place[-1]]) is int:
            holder[place[-1]] += int(rng.integers(-2, 3))
        elif kind == "other":
            holder[place[-1]] = copy.deepcopy(at(new, known[int(rng.integers(len(known)))]))
        else:
            holder[place[-1]] = copy.deepcopy(ENTRIES[int(rng.integers(len(ENTRIES)))])
    return new


def at(document, place):
    for key in place:
        document = document[key]
    return document


def rewritten(data, member, body):
    """The file with another member in the place of one."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        for info in old.infolist():
            new.writestr(info.filename, body if info.filename == member else old.read(info))
    return out.getvalue()


def graph_of(data):
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return json.loads(archive.read(GRAPH))


def check_graphs(whole, path, count, seed):
    document, found = graph_of(whole), {"loaded": 0, "refused": 0}
    for i in range(count):
        rng = np.random.default_rng([seed, i])
        bad = changed(document, rng)
        path.write_bytes(rewritten(whole, GRAPH, json.dumps(bad)))
        try:
            found[outcome(path)] += 1
        except Exception as error:
            raise AssertionError(f"graph {i} of seed {seed}: {error!r:.300}") from error
    return found


def test_damaged_graphs(whole, tmp_path):
    found = check_graphs(whole, tmp_path / "f", 120, 1)
    assert min(found.values()) > 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 6))
def test_many_damaged_graphs(whole, tmp_path, seed):
    check_graphs(whole, tmp_path / "f", 500, seed)


def test_damaged_bytes(whole, tmp_path):
    rng, path = new_rng(), tmp_path / "f"
    for i in range(150):
        path.write_bytes(damaged(whole, rng) if i % 2 else damaged_inside(whole, rng))
        outcome(path)


def test_a_file_that_would_unpack_to_much(whole, tmp_path):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(GRAPH, b" " * (64 << 20))
        archive.writestr(VALUES, b"")
    (tmp_path / "f").write_bytes(out.getvalue())
    with pytest.raises(FileFormatError, match="compressed"):
        symdnn.load(tmp_path / "f")
    header = json.dumps(
        {"w": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}
    ).encode()
    body = len(header).to_bytes(8, "little") + header
    (tmp_path / "f").write_bytes(rewritten(whole, VALUES, body))
    assert outcome(tmp_path / "f") == "refused"


def laughs(depth):
    """Graphs in graphs, each of which is used twice: 2**depth nodes if they are inlined."""
    x = T.fvector("x")
    y = x + 1
    for _ in range(depth):
        op = symdnn.OpFromGraph([x], [y], inline=True)
        y = op(op(x))
    return x, y


def test_graphs_in_graphs_are_counted(tmp_path):
    from symdnn.saving.graphs import Writer

    x, y = laughs(24)
    writer = Writer()
    graph = writer.graph([x], [y])
    small = functions.contents_of(symdnn.function([x], x + 1))
    document = {
        **small.document, "ops": writer.ops, "constants": writer.constants,
        "nodes": graph["nodes"],
    }  # fmt: skip
    document["outputs"]["variables"] = graph["outputs"]
    contents = container.Contents(document, writer.arrays)
    (tmp_path / "f").write_bytes(container.pack(contents))
    with pytest.raises(FileFormatError, match="nodes when they are inlined"):
        symdnn.load(tmp_path / "f")


@pytest.mark.parametrize("steps", [10**7, 10**15])
def test_a_loop_of_constants_does_not_run_while_it_is_loaded(tmp_path, steps):
    n = T.constant(steps)
    last, _ = symdnn.scan(lambda h: h * 1.5, outputs_info=T.constant(np.float64(1)), n_steps=n)
    x = T.dscalar("x")
    f = symdnn.function([x], x + last[-1])
    symdnn.save(f, tmp_path / "f")
    assert outcome(tmp_path / "f") == "loaded"


@pytest.mark.parametrize("n", [10**9, 10**15])
def test_a_range_of_constants_takes_no_memory_while_it_is_loaded(tmp_path, n):
    x = T.dscalar("x")
    symdnn.save(symdnn.function([x], x + T.arange(T.constant(n)).sum()), tmp_path / "f")
    assert outcome(tmp_path / "f") == "loaded"
