"""A scripted server for statement metadata: it says where texts run, with the notices and plans of a real one."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from picopyn.dialects.picodata.bucket_hash import PICODATA_KEY_HASH
from picopyn.testing.scripted_connection import Answer, Asked, Hang, ScriptedConnection, table

BUCKETS = 3000


def bucket_of(*key: tuple[int, Any], count: int = BUCKETS) -> int:
    """Bucket of a key given as (type OID, value) pairs."""
    whole = b"".join(PICODATA_KEY_HASH.encoder(oid)(value) for oid, value in key)
    return PICODATA_KEY_HASH.bucket(whole, count)


def plan(buckets: str) -> Answer:
    """An EXPLAIN in the layout of 26.1."""
    lines = ("projection (1 -> col_1)", "    scan t", "execution options:", f"buckets = {buckets}")
    return table("QUERY_PLAN", *((line,) for line in lines))


def notice(text: str, tier: str | None, dk_meta: Sequence[tuple[int, int]] = ()) -> str:
    """The notice that preparing a text causes."""
    return json.dumps(
        {
            "type": "PreparedStatementMetadata",
            "query": text,
            "tier": tier,
            "dk_meta": [list(pair) for pair in dk_meta],
        }
    )


class Explainer(ScriptedConnection):
    """A connection that can be told where texts run."""

    def knows(
        self,
        query: str,
        parameters: Sequence[int],
        buckets: Callable[..., Any] | str,
        *,
        tier: str | None = "default",
        dk_meta: Sequence[tuple[int, int]] = (),
        silent: bool = False,
    ) -> Explainer:
        """Answer the question about a text.

        Args:
            query: The text.
            parameters: Type OIDs of its parameters.
            buckets: What the plan says, or a function of the arguments that gives it (a number is one bucket).
            tier: Tier the notice names.
            dk_meta: Key the notice names.
            silent: The server sends no notice, as before 26.1.
        """
        question = f"EXPLAIN {query}"
        said = () if silent else notice(question, tier, dk_meta)
        self.when_prepared(question, parameters, notice=said)

        def answer(*args: Any) -> Answer:
            found = buckets(*args) if callable(buckets) else buckets
            if isinstance(found, BaseException | Hang):
                return found
            return plan(f"[{found}]" if isinstance(found, int) else found)

        self.when(question, answer)
        return self

    def keyed_by_first(self, *queries: str) -> Explainer:
        """Texts with one int parameter that is the key."""
        for query in queries:
            self.knows(query, (20,), lambda key, *_: bucket_of((20, key)))
        return self

    def prepared(self) -> list[str]:
        """The texts that were asked about, in order."""
        return [text.removeprefix("EXPLAIN ") for text in self.texts("prepare")]

    def binds(self) -> list[Asked]:
        """The questions put."""
        return [asked for asked in self.asked if asked.verb == "bind"]
