"""What is known about statement texts, and the bounded memory that keeps it.

This file decides how much is remembered and which server errors mean that a remembered statement is outdated.
It opens no connection and asks nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from picopyn.routing.route import StatementRoute

#: SQLSTATE of a prepared statement whose tables have changed. *Source*: picodata-protocol.md section 5.
STATEMENT_INVALIDATED = "42999"

#: Texts that say the same: at Bind, at Execute without statement invalidation, and for a table that was
#: dropped under the statement. *Source*: picodata-protocol.md section 5, picodata-recorded.md section 5.
_INVALIDATED_TEXTS = (
    ("prepared statement", "has been invalidated"),
    ("storage schema version different from router",),
    ("space metadata for table: ", " not found"),
)


@dataclass(frozen=True, slots=True)
class PreparedStatementMetadata:
    """What the server said about one statement text.

    Attributes:
        query: The exact text.
        tier: Tier of the sharded tables it uses; None when there are none or the server did not say.
        dk_meta: (one-based parameter number, type OID) in the order of the distribution key; empty when the
            notice named no key.
        parameter_oids: Type OIDs of the parameters, in order.
        route: Where the statement runs, as learned; None while it is not.
    """

    query: str
    tier: str | None
    dk_meta: tuple[tuple[int, int], ...]
    parameter_oids: tuple[int, ...] = ()
    route: StatementRoute | None = None


class QueryMetadataCache:
    """Metadata by exact statement text, at most `size` texts, those without metadata included.

    The oldest entry leaves when the cache is full, unless it was used meanwhile: then it counts as new. A look-up
    changes nothing, so a hit costs one look-up in a dict; whoever uses the entries says which are in use. Owned by one
    metadata service, used in its loop only.
    """

    __slots__ = ("_entries", "_size", "in_use", "on_forgotten")

    def __init__(self, size: int) -> None:
        """Make an empty cache.

        Args:
            size: Number of texts kept, at least 1.

        Attributes:
            on_forgotten: Told of every text whose entry left or was replaced, and None when all did; for whoever keeps
                something that was made from an entry.
            in_use: Whether a text was used since this was asked last.

        Raises:
            ValueError: `size` is below 1.
        """
        self._entries: dict[str, PreparedStatementMetadata | None] = {}
        self._size = _checked(size)
        self.on_forgotten: Callable[[str | None], None] = _nobody_listens
        self.in_use: Callable[[str], bool] = _not_used

    @property
    def size(self) -> int:
        """Number of texts kept at most."""
        return self._size

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._entries))

    def get(self, query: str) -> PreparedStatementMetadata | None:
        """The metadata of a text; None when it is not known or is known to have none."""
        return self._entries.get(query)

    def is_known_without_metadata(self, query: str) -> bool:
        """Whether the server accepted the text and gave nothing for it."""
        return query in self._entries and self._entries[query] is None

    def set(self, query: str, metadata: PreparedStatementMetadata) -> None:
        """Remember the metadata of a text, as its newest entry."""
        self._remember(query, metadata)

    def set_no_metadata(self, query: str) -> None:
        """Remember that the server gives nothing for a text, so that it is not asked again."""
        self._remember(query, None)

    def evict(self, query: str) -> bool:
        """Forget a text, whatever was known.

        Returns:
            Whether anything was.
        """
        known = query in self._entries
        self._entries.pop(query, None)
        if known:
            self.on_forgotten(query)
        return known

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self.on_forgotten(None)

    def resize(self, size: int) -> None:
        """Change the limit; the oldest entries beyond it leave.

        Args:
            size: Number of texts kept, at least 1.

        Raises:
            ValueError: `size` is below 1; the limit stays as it was.
        """
        self._size = _checked(size)
        self._shrink()

    def _remember(self, query: str, metadata: PreparedStatementMetadata | None) -> None:
        self.evict(query)
        self._entries[query] = metadata
        self._shrink()

    def _shrink(self) -> None:
        chances = len(self._entries) - 1  # the newest is not asked about: it was not used yet
        while len(self._entries) > self._size:
            oldest = next(iter(self._entries))
            chances -= 1
            if chances > 0 and self.in_use(oldest):
                self._entries[oldest] = self._entries.pop(oldest)
            else:
                self.evict(oldest)


def _not_used(query: str) -> bool:
    """Nobody says that a text is used."""
    return False


def _nobody_listens(query: str | None) -> None:
    """What was forgotten concerns nobody."""


def _checked(size: int) -> int:
    if size < 1:
        raise ValueError(f"the size of a metadata cache must be at least 1, not {size}")
    return size


def is_stmt_invalidated_error(error: BaseException | None) -> bool:
    """Whether an error, or one that caused it, says that a prepared statement is outdated.

    Args:
        error: Any exception; its `__cause__` and `__context__` are looked at as well.

    Returns:
        True for SQLSTATE 42999 and for the texts with which a server says the same; preparing the statement
        again is then worth one attempt.
    """
    waiting, seen = [error], set[int]()
    while waiting:
        current = waiting.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        if _says_invalidated(current):
            return True
        waiting += (current.__cause__, current.__context__)
    return False


def _says_invalidated(error: BaseException) -> bool:
    if getattr(error, "sqlstate", None) == STATEMENT_INVALIDATED:
        return True
    text = " ".join(argument for argument in error.args if isinstance(argument, str))
    return any(all(part in text for part in parts) for parts in _INVALIDATED_TEXTS)
