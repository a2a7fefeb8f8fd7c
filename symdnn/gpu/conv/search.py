"""The candidates that can run a convolution of given shapes, and why others can't.

A :class:`Search` queries both of cuDNN's APIs about one signature. :meth:`Search.guesses` is one
list by their heuristics. cuDNN estimates no times that could be compared between its APIs, so their
lists are interleaved. The graph API's comes first where it has the better kernels (16-bit types,
NHWC, TF32), else the legacy API's.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice, zip_longest
from typing import Any

from symdnn.errors import CudnnError
from symdnn.gpu.binding.libcublaslt import CublasError
from symdnn.gpu.conv import folded
from symdnn.gpu.conv.blocklist import why_blocked
from symdnn.gpu.conv.candidate import OWN, OWN_API, Candidate, Key
from symdnn.gpu.conv.graph_conv import conv_graph
from symdnn.gpu.conv.signature import DIRECTIONS, ConvSignature
from symdnn.gpu.cudnn import graph
from symdnn.gpu.cudnn.graph_plan import GraphPlan
from symdnn.tuning.attempts import short

#: The numbers of plans that are requested in turn: a guess needs one, a measurement more.
_PLAN_COUNTS = (1, *range(4, 128, 4), 1 << 20)
#: Plans of each variant of a folded convolution that are measured.
_FOLDED_PLANS = 2


def graph_plans(form: ConvSignature, handle: int, most: int) -> tuple[list[GraphPlan], str]:
    """Up to ``most`` plans of the graph API in its heuristics' order, and why there are none."""
    return graph.plans(conv_graph(form), handle, most=most)


class Search:
    """Finds candidates for one signature on a device, and collects why others are refused.

    ``most_bytes`` limits the workspace in addition to the signature's own limit; 0 is no limit.
    """

    def __init__(self, signature: ConvSignature, handle: int, most_bytes: int = 0) -> None:
        self.signature, self.handle, self.most_bytes = signature, handle, most_bytes
        self.direction = DIRECTIONS[signature.direction]
        #: Name of each refused candidate -> reasons.
        self.refused: dict[str, list[str]] = {}
        #: The first candidate whose workspace is too large: name, bytes, and which limit.
        self.too_large: tuple[str, int, str] | None = None

    def all(self) -> list[Candidate]:
        """Every candidate within the limits, most promising first."""
        return list(self.guesses())

    # -- the legacy API ---------------------------------------------------------------------------

    def named(self, number: int) -> Candidate | None:
        """An algorithm of the legacy API, with mirrored filters if needed; None if refused."""
        for form in self._forms():
            found = self._legacy(form, number)
            if found is not None:
                return found
        return None

    def working(self) -> list[Candidate]:
        """The legacy algorithms that cuDNN supports here, in the flags' order."""
        found = (self.named(n) for n in self.direction.algorithms.values())
        return [c for c in found if c is not None]

    def _forms(self) -> Iterator[ConvSignature]:
        """The call as it is, then as a cross-correlation with mirrored filters."""
        yield self.signature
        if self.signature.flip:
            yield replace(self.signature, flip=False)

    def _legacy(self, form: ConvSignature, number: int) -> Candidate | None:
        word = self.direction.word(number)
        fixed = word not in self.direction.random
        if form.deterministic and not fixed:
            self._refuse(word, "it is not deterministic")
            return None
        found = self._asked(word, self.direction.workspace, form, number)
        if found is None:
            return None
        by_copy, nbytes = form.flip != self.signature.flip, operator.index(found)
        return self._fitting(Candidate("legacy", word, nbytes, fixed, number, flip_by_copy=by_copy))

    def _heuristics(self) -> Iterator[int]:
        """Numbers of the legacy algorithms in cuDNN's order, then those that it does not list."""
        numbers = self.direction.algorithms.values()
        given: dict[int, None] = {}
        for form in self._forms():
            found = self._asked("heuristics", self.direction.heuristics, form, len(numbers))
            given.update((int(p.algo), None) for p in found or () if int(p.status) == 0)
        yield from given
        yield from (n for n in numbers if n not in given)

    def _asked(
        self, what: str, function: Callable[..., Any], form: ConvSignature, last: int
    ) -> Any | None:
        """What cuDNN answers about a form; None if it refuses, which is noted."""
        descriptors = form.descriptors
        try:
            return function(self.handle, *(d.handle for d in descriptors), last)
        except CudnnError as error:
            self._refuse(what, short(error))
            return None

    # -- the graph API ----------------------------------------------------------------------------

    def planned(self, most: int = _PLAN_COUNTS[-1]) -> Iterator[Candidate]:
        """Plans of the graph API, of the first ``most`` in the order of its heuristics."""
        if self.signature.legacy_only:
            self._refuse("graph API", "it neither scales a result nor adds to one")
            return
        for form in self._forms():
            by_copy = form.flip != self.signature.flip
            none = True
            for plan in self._plans(form, most):
                none = False
                found = self.of_plan(plan, by_copy)
                if found is not None:
                    yield found
            if not none:
                return

    def _plans(self, form: ConvSignature, limit: int) -> Iterator[GraphPlan]:
        """Plans, built lazily a few at a time."""
        seen = 0
        for most in (min(n, limit) for n in _PLAN_COUNTS):
            plans, why = graph_plans(form, self.handle, most)
            yield from plans[seen:]
            seen = len(plans)
            if seen < most or most == limit:
                break
        if not seen:
            self._refuse("graph API", why)

    def of_plan(
        self, plan: GraphPlan, flip_by_copy: bool, variant: int | None = None
    ) -> Candidate | None:
        """A plan as a candidate, if it is within the limits; of a ``variant`` that is folded."""
        s = self.signature
        if s.deterministic and not plan.deterministic:
            self._refuse(plan.name, "it is not deterministic")
            return None
        if variant is not None:
            return self._fitting(Candidate.of_folded(s, variant, plan))
        return self._fitting(Candidate.of_plan(plan, flip_by_copy))

    def folded(self, most: int = _FOLDED_PLANS) -> Iterator[Candidate]:
        """Plans of the convolution without strides, if it is folded; of all variants in turn."""
        s = self.signature
        if why := folded.refusal(s):
            self._refuse(folded.NAME, why)
            return
        listed: list[list[Candidate | None]] = []
        for variant in folded.variants(s):
            plans, why = graph_plans(folded.inner(s, variant), self.handle, most)
            if not plans:
                self._refuse(folded.NAME, why)
            listed.append([self.of_plan(plan, False, variant) for plan in plans])
        yield from (c for turn in zip_longest(*listed) for c in turn if c is not None)

    # -- both -------------------------------------------------------------------------------------

    def guesses(self) -> Iterator[Candidate]:
        """Candidates within the limits, most promising first."""
        graph = self.planned()
        legacy = (c for c in map(self.named, self._heuristics()) if c is not None)
        pair = (graph, legacy) if self.prefers_plans else (legacy, graph)
        found = (c for both in zip_longest(*pair) for c in both if c is not None)
        yield from islice(found, 1)
        if self.signature.way == "time":  # of what is not measured, cuDNN's own comes first
            yield from (c for c in map(self.ours, range(len(OWN))) if c is not None)
            both = zip_longest(self.folded(), found)  # a search may end after a few
            found = (c for turn in both for c in turn if c is not None)
        yield from found

    def ours(self, number: int) -> Candidate | None:
        """One of our ways, if it takes the convolution."""
        own = OWN[number]
        if why := own.refusal(self.signature):
            self._refuse(own.NAME, why)
            return None
        try:
            return self._fitting(Candidate.of_ours(self.signature, number))
        except CublasError as error:
            self._refuse(own.NAME, short(error))
            return None

    @property
    def prefers_plans(self) -> bool:
        """Whether the graph API has the better kernels for the signature."""
        s = self.signature
        return s.is_narrow or s.layout == "NHWC" or (s.dtype == "float32" and s.allow_tf32)

    def again(self, key: Key) -> Candidate | None:
        """The candidate of an earlier choice, queried again; None if cuDNN refuses it."""
        api, which, flip_by_copy = key
        if api == OWN_API:
            return self.ours(int(which))
        if api == "legacy":
            form = replace(self.signature, flip=False) if flip_by_copy else self.signature
            return self._legacy(form, int(which))
        plans = self.folded() if api == folded.NAME else self.planned()
        return next((c for c in plans if c.key == key), None)

    def _fitting(self, candidate: Candidate) -> Candidate | None:
        """The candidate, if its workspace is within the limits and it is not on the block list."""
        nbytes, limit = candidate.total_bytes(self.signature), self.signature.workspace_limit
        if limit and candidate.workspace_bytes > limit:
            self._too_large(candidate, f"{limit} allowed")
            return None
        if self.most_bytes and nbytes > self.most_bytes:
            self._too_large(candidate, "more than is free")
            return None
        if why := why_blocked(self.signature, candidate):
            self._refuse(candidate.name, why)
            return None
        return candidate

    def _too_large(self, candidate: Candidate, limit: str) -> None:
        nbytes = candidate.total_bytes(self.signature)
        why = f"{nbytes} bytes of workspace, {limit}"
        self._refuse(candidate.name, why)
        self.too_large = self.too_large or (candidate.name, nbytes, why)

    def _refuse(self, name: str, why: str) -> None:
        reasons = self.refused.setdefault(name, [])
        if why not in reasons:
            reasons.append(why)
