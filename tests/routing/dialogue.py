"""Lets a probe ask a model planner until it knows."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from picopyn.dialects.picodata.bucket_hash import PICODATA_KEY_HASH
from picopyn.routing.key_probe import MAX_QUESTIONS, KeyProbe
from picopyn.routing.route import StatementRoute
from picopyn.routing.sharding import compile_route
from tests.dialects import slow_hash
from tests.routing.model_planner import Model


@dataclass(frozen=True)
class Learned:
    """The end of a dialogue."""

    probe: KeyProbe
    route: StatementRoute
    questions: tuple[tuple[Any, ...], ...]

    def predict(self, model: Model, args: Sequence[Any]) -> frozenset[int] | None:
        """Where a call would be sent."""
        return compile_route(self.route, PICODATA_KEY_HASH, model.bucket_count)(args)


def learn(
    model: Model,
    sql: str = "",
    *,
    tier: str | None = "default",
    dk_meta: Sequence[tuple[int, int]] = (),
    tiers: Mapping[str, int] | None = None,
    seed: int = 1,
) -> Learned:
    """A whole dialogue with a model."""
    counts = {"default": model.bucket_count} if tiers is None else tiers
    probe = KeyProbe(sql, model.oids, tier, dk_meta, counts, PICODATA_KEY_HASH, random.Random(seed))
    questions = []
    while (question := probe.next_question()) is not None:
        assert len(question) == len(model.oids)
        questions.append(question)
        assert len(questions) <= MAX_QUESTIONS
        try:
            if model.refuses(question):
                probe.refused("refused")
            else:
                probe.answer(*model.answer(question))
        except slow_hash.Refused:
            probe.refused("not a valid value")
    assert probe.asked == len(questions)
    return Learned(probe, probe.result(), tuple(questions))
