"""Functions behind HTTP: each kind of body, joined requests, limits, and errors that say why."""

from __future__ import annotations

import io
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from starlette.testclient import TestClient

import symdnn
import symdnn.tensor as T
from symdnn import In
from symdnn.io import safetensors
from symdnn.serving import application
from symdnn.serving.bodies import JSON, NPY, SAFETENSORS
from tests.seeded import new_rng

W = np.float32([[1, 2], [3, 4], [5, 6]])


def linear():
    x = T.tensor("float32", ("batch", 3), name="x")
    return symdnn.function([x], T.dot(x, symdnn.shared(W, name="w")), name="linear")


@pytest.fixture(scope="module")
def client():
    with TestClient(application(linear(), max_batch=8, max_bytes=4096)) as made:
        yield made


def post(client, body, kind=JSON, **headers):
    content = json.dumps(body) if kind == JSON and not isinstance(body, bytes) else body
    return client.post("/run", content=content, headers={"content-type": kind, **headers})


def npy(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def test_what_it_is(client):
    assert client.get("/health").json() == {"status": "ok"}
    found = client.get("/metadata").json()
    assert found["name"] == "linear"
    x = {"name": "x", "dtype": "float32", "shape": ["batch", 3], "optional": False}
    assert found["inputs"] == [x]
    assert found["outputs"] == [{"name": "0", "dtype": "float32", "shape": ["batch", None]}]
    assert found["batching"] == {"size": "batch", "max_batch": 8, "max_delay_ms": 5.0}


def test_each_kind_of_body(client):
    x = new_rng().standard_normal((2, 3)).astype("float32")
    expected = linear()(x)
    for given in ({"x": x.tolist()}, [x.tolist()]):
        found = post(client, {"inputs": given}).json()["outputs"]["0"]
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_array_equal(np.load(io.BytesIO(post(client, npy(x), NPY).content)), expected)
    body = safetensors.write({"x": x}, "", "")
    answer = post(client, body, SAFETENSORS)
    arrays, _ = safetensors.read_from(io.BytesIO(answer.content), len(answer.content), "")
    np.testing.assert_array_equal(arrays["0"], expected)
    answer = post(client, npy(x), NPY, accept=JSON)
    np.testing.assert_allclose(answer.json()["outputs"]["0"], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("body", "kind", "status", "words"),
    [
        (b"{", JSON, 400, "no application/json"),
        (b"[" * 3000, JSON, 400, "no application/json"),
        ({"x": 1}, JSON, 400, "wanted .*inputs"),
        ({"inputs": {"y": 1}}, JSON, 400, "no input is called y; wanted x"),
        ({"inputs": {}}, JSON, 400, "no value for x"),
        ({"inputs": {"x": [1, 2, 3]}}, JSON, 422, r"x: wanted 2 dimension\(s\)"),
        ({"inputs": {"x": [[1, 2]]}}, JSON, 422, "x"),
        ({"inputs": {"x": [["a", 2, 3]]}}, JSON, 422, "x"),
        ({"inputs": {"x": [[1], [2, 3]]}}, JSON, 422, "x"),
        (b" " * 5000, JSON, 413, "5000 bytes, allowed are 4096"),
        (b"abc", NPY, 400, "no application/x-npy"),
        (b"abc", SAFETENSORS, 400, "no application/x-safetensors"),
        (b"abc", "text/plain", 415, "wanted one of"),
    ],
)
def test_wrong_requests_say_why(client, body, kind, status, words):
    answer = post(client, body, kind)
    assert answer.status_code == status
    assert re.search(words, answer.json()["error"])


def test_a_header_of_a_large_array_takes_no_memory(client):
    body = npy(np.zeros(2, "float32")).replace(b"(2,), }", b"(2000000000000,), }")
    assert post(client, body, NPY).status_code == 400


def test_a_body_without_its_length(client):
    answer = client.post("/run", content=(b" " * 1000 for _ in range(9)))
    assert answer.status_code == 413


def test_other_paths_and_methods(client):
    assert client.get("/run").status_code == 405
    assert client.get("/nothing").status_code == 404


def test_requests_are_joined():
    sizes, gate = [], threading.Event()
    f = linear()
    app = application(f, max_batch=8, max_delay_ms=300)
    call = app.state.batcher.call

    def watched(arrays):
        gate.wait(10)
        sizes.append(len(arrays[0]))
        return call(arrays)

    app.state.batcher.call = watched
    rows = new_rng().standard_normal((6, 1, 3)).astype("float32")
    with TestClient(app) as client, ThreadPoolExecutor(6) as pool:
        tasks = [pool.submit(post, client, {"inputs": [r.tolist()]}) for r in rows]
        gate.set()
        found = [t.result().json()["outputs"]["0"] for t in tasks]
        counts = client.get("/metadata").json()
    np.testing.assert_allclose(found, [f(r) for r in rows], rtol=1e-5)
    assert sum(sizes) == 6
    assert max(sizes) > 1
    assert (counts["requests"], counts["calls"]) == (6, len(sizes))


def test_an_error_goes_to_the_request_at_fault():
    x = T.tensor("float32", ("batch",), name="x")
    i = T.tensor("int64", ("batch",), name="i")
    f = symdnn.function([x, i], T.arange(10).astype("float32")[i] + x)
    with TestClient(application(f, max_delay_ms=200)) as client, ThreadPoolExecutor(3) as pool:
        tasks = [pool.submit(post, client, {"inputs": [[1.0], [n]]}) for n in (1, 50, 3)]
        answers = [t.result() for t in tasks]
    assert [a.status_code for a in answers] == [200, 422, 200]
    assert answers[2].json()["outputs"]["0"] == [4.0]
    differ = {"inputs": {"x": [1.0, 2.0], "i": [1]}}
    with TestClient(application(f)) as client:
        answer = post(client, differ)
    assert answer.status_code == 422
    assert "differ in their size batch (x: 2, i: 1)" in answer.json()["error"]


def test_updates_and_nameless_sizes_are_not_joined():
    x, n = T.fmatrix("x"), T.tensor("float32", ("batch",), name="n")
    w = symdnn.shared(np.float32(0), name="w")
    counting = symdnn.function([n], n + w, updates=[(w, w + 1)])
    for f in (symdnn.function([x], x + 1), symdnn.function([n], n.sum()), counting):
        with TestClient(application(f)) as client:
            assert client.get("/metadata").json()["batching"] is None
    with TestClient(application(counting)) as client:
        found = [post(client, {"inputs": [[0.0]]}).json()["outputs"]["0"] for _ in range(3)]
    assert found == [[0.0], [1.0], [2.0]]


def test_names_of_outputs_and_what_json_lacks():
    x = T.fvector("x")
    s = T.fscalar("s")
    f = symdnn.function([x, In(s, value=2)], {"log": T.log(x), "twice": s * x})
    with TestClient(application(f)) as client:
        body = {"inputs": {"x": [0, -1, 1], "s": 2}}
        found = post(client, body).json()["outputs"]
        assert found == {"log": ["-Infinity", "NaN", 0.0], "twice": [0.0, -2.0, 2.0]}
        assert post(client, {"inputs": {"x": [4]}}).json()["outputs"]["twice"] == [8.0]
        assert post(client, body, accept=NPY).status_code == 406


def test_too_many_requests_are_refused():
    with TestClient(application(linear(), max_waiting=0)) as client:
        answer = post(client, {"inputs": [[[1, 2, 3]]]})
    assert answer.status_code == 503
    assert "later" in answer.json()["error"]


def test_the_command(tmp_path, monkeypatch, capsys):
    from symdnn.cli import main

    served = {}
    monkeypatch.setattr("uvicorn.run", lambda app, **options: served.update(app=app, **options))
    symdnn.save(linear(), tmp_path / "f")
    assert main(["serve", str(tmp_path / "f"), "--port", "8123", "--max-batch", "1"]) == 0
    assert (served["host"], served["port"]) == ("127.0.0.1", 8123)
    with TestClient(served["app"]) as client:
        assert client.get("/metadata").json()["batching"] is None
    (tmp_path / "f").write_bytes(b"nothing")
    assert main(["serve", str(tmp_path / "f")]) == 2
    assert "no saved function" in capsys.readouterr().err
