"""The application: what a function takes and gives, whether it is alive, and its calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import numpy as np

from symdnn.compile.call.compiled_function import Function
from symdnn.errors import FileFormatError, SymdnnError
from symdnn.graph.type import TensorType
from symdnn.graph.values.value import as_numpy
from symdnn.graph.variable import Variable
from symdnn.serving import bodies
from symdnn.serving.batching import Batcher, TooManyWaiting

Array = np.ndarray[Any, Any]


class ServingMissing(SymdnnError, ImportError):
    """A function is to be served, and the packages of the extra ``serve`` are not installed."""


class Refused(Exception):
    """A request that is answered with a status other than 200, and why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


def application(
    f: Function,
    max_batch: int = 32,
    max_delay_ms: float = 5.0,
    max_bytes: int = 64 << 20,
    max_waiting: int = 1000,
) -> Any:
    """A Starlette application that calls ``f``.

    ``GET /health`` says that it is alive, ``GET /metadata`` what ``f`` takes and gives, ``POST
    /run`` calls it with a body in JSON, ``.npy`` or safetensors of at most ``max_bytes``. Requests
    are joined to calls of up to ``max_batch`` rows, for which the first waits ``max_delay_ms`` at
    most, where all inputs and outputs have one named size in front, such as ``batch``, and ``f``
    updates nothing. That each row of the results depends on its own row alone is for you to know.
    More than ``max_waiting`` requests are refused.

    Raises :class:`ServingMissing`, an ``ImportError``, without the extra ``serve``.
    """
    try:
        from starlette.applications import Starlette
        from starlette.requests import Request
        from starlette.responses import JSONResponse, Response
        from starlette.routing import Route
    except ImportError as error:
        raise ServingMissing(f"serving needs starlette: pip install symdnn[serve] ({error})") from (
            error
        )
    server = _Server(f, max_batch, max_delay_ms, max_waiting)

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def metadata(request: Request) -> Response:
        return JSONResponse(server.metadata())

    async def run(request: Request) -> Response:
        try:
            body = await _body_of(request, max_bytes)
            kind = _kind(request.headers.get("content-type", bodies.JSON))
            wanted = request.headers.get("accept", "*/*")
            answer = kind if "*/*" in wanted or "application/*" in wanted else _kind(wanted)
            return Response(await server.answer(body, kind, answer), media_type=answer)
        except Refused as error:
            return JSONResponse({"error": error.why}, error.status)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(server.batcher.run())
        yield
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    routes = [Route("/health", health), Route("/metadata", metadata)]
    routes.append(Route("/run", run, methods=["POST"]))
    app = Starlette(routes=routes, lifespan=lifespan)
    app.state.batcher = server.batcher
    return app


async def _body_of(request: Any, max_bytes: int) -> bytes:
    """The body, read no further than it may be long."""
    said = request.headers.get("content-length", "")
    if said.isdigit() and int(said) > max_bytes:
        raise Refused(413, f"a body of {said} bytes, allowed are {max_bytes}")
    parts, total = [], 0
    async for part in request.stream():
        total += len(part)
        if total > max_bytes:
            raise Refused(413, f"a body of more than {max_bytes} bytes")
        parts.append(part)
    return b"".join(parts)


def _kind(header: str) -> str:
    kind = header.partition(";")[0].strip().lower()
    known = (bodies.JSON, bodies.NPY, bodies.SAFETENSORS)
    if kind not in known:
        raise Refused(415, f"wanted one of {', '.join(known)}, got {kind!r:.80}")
    return kind


class _Server:
    """What a function takes and gives under which names, and its calls."""

    def __init__(self, f: Function, max_batch: int, max_delay_ms: float, max_waiting: int) -> None:
        self.f = f
        self.inputs = [d for d in f.declared if not d.implicit]
        self.names = [d.name or str(i) for i, d in enumerate(self.inputs)]
        structure = f.signature.structure
        self.outputs = f.signature.sources[: len(f.signature.borrow)]
        self.results = list(structure.keys) or [str(i) for i in range(len(self.outputs))]
        self.size = _common_size([*(d.variable for d in self.inputs), *self.outputs])
        joins = self.size is not None and not f.updated and max_batch > 1
        self.batcher = Batcher(
            self.call, max_batch if joins else 1, max_delay_ms / 1000, max_waiting
        )

    def metadata(self) -> dict[str, Any]:
        """What ``GET /metadata`` says."""
        inputs = [
            {"name": n, **_described(d.variable), "optional": d in self._optional()}
            for n, d in zip(self.names, self.inputs)
        ]
        outputs = [{"name": n, **_described(v)} for n, v in zip(self.results, self.outputs)]
        batcher = self.batcher
        joined = {
            "size": self.size, "max_batch": batcher.max_batch,
            "max_delay_ms": batcher.max_delay_s * 1000,
        }  # fmt: skip
        return {
            "name": self.f.name,
            "inputs": inputs,
            "outputs": outputs,
            "batching": joined if batcher.max_batch > 1 else None,
            "requests": batcher.requests,
            "calls": batcher.calls,
        }

    async def answer(self, body: bytes, kind: str, wanted: str) -> bytes:
        """The answer to a request; raises :class:`Refused`."""
        arrays = self._arguments(body, kind)
        try:
            results = await self.batcher.submit(arrays)
        except TooManyWaiting:
            raise Refused(503, "too many requests wait: try again later") from None
        except SymdnnError as error:
            raise Refused(422, str(error)) from None
        try:
            return bodies.write(dict(zip(self.results, results)), wanted)
        except (ValueError, FileFormatError) as error:
            raise Refused(406, str(error)) from None

    def call(self, arrays: Sequence[Array]) -> list[Array]:
        """The results as a list."""
        found = self.f(*arrays)
        if isinstance(found, Mapping):
            found = list(found.values())
        listed = found if isinstance(found, list) else [found]
        return [np.asarray(r) for r in listed]

    def _arguments(self, body: bytes, kind: str) -> list[Array]:
        try:
            given = bodies.read(body, kind, self.names)
        except (ValueError, KeyError, TypeError, RecursionError, SymdnnError) as error:
            raise Refused(400, f"the body is no {kind}: {error!s:.300}") from None
        if unknown := sorted(set(given) - set(self.names)):
            listed = ", ".join(unknown)
            raise Refused(400, f"no input is called {listed:.200}; wanted {', '.join(self.names)}")
        optional = self._optional()
        for name, d in zip(self.names, self.inputs):
            if name not in given and d in optional:
                given[name] = self.f.value[d.variable]
        if missing := [n for n in self.names if n not in given]:
            raise Refused(400, f"no value for {', '.join(missing)}")
        arrays = []
        for name, d in zip(self.names, self.inputs):
            rule = self.f.signature.allow_downcast if d.allow_downcast is None else d.allow_downcast
            try:
                arrays.append(
                    as_numpy(given[name], d.variable.type, name, strict=False, allow_downcast=rule)
                )
            except (SymdnnError, ValueError, TypeError) as error:
                raise Refused(422, str(error)) from None
        if self.batcher.max_batch > 1 and len({a.shape[0] for a in arrays}) > 1:
            sizes = ", ".join(f"{n}: {a.shape[0]}" for n, a in zip(self.names, arrays))
            raise Refused(422, f"inputs differ in their size {self.size} ({sizes})")
        return arrays

    def _optional(self) -> list[Any]:
        return [d for d in self.inputs if d.variable in self.f.signature.states]


def _common_size(variables: Sequence[Variable]) -> str | None:
    """The name that the first sizes of all have in common; None where there is none."""
    names: set[str] | None = None
    for v in variables:
        first = v.type.names[0] if isinstance(v.type, TensorType) and v.type.names else None
        if first is None:
            return None
        names = set(first.names) if names is None else names & set(first.names)
    return min(names) if names else None


def _described(v: Variable) -> dict[str, Any]:
    t = v.type
    names = t.names or (None,) * t.ndim
    shape = [str(n) if d is None and n is not None else d for d, n in zip(t.shape, names)]
    return {"dtype": t.dtype, "shape": shape}
