"""Which columns a name may mean at one place of a statement."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from picopyn.testing.picodata.planner import bound as b
from picopyn.testing.picodata.planner.catalog import BUCKET_ID
from picopyn.testing.picodata.planner.errors import NotModelled, column_not_found, sbroad


@dataclass
class Scope:
    """The relations visible to one SELECT, UPDATE or DELETE, left to right."""

    relations: list[b.Base | b.Derived] = field(default_factory=list)

    def resolve(self, name: str, qualifier: str | None) -> b.Column:
        """The one column this name means.

        Raises:
            ServerError: None, or more than one.
        """
        found = [column for column in self._candidates(qualifier) if column.name == name]
        if not found:
            raise column_not_found(name)
        if len(found) > 1:
            raise sbroad(f"duplicated value: column name {name} is ambiguous")
        return found[0]

    def _candidates(self, qualifier: str | None) -> Iterator[b.Column]:
        named = [relation for relation in self.relations if qualifier in (None, relation.label)]
        if not named and self.relations:
            raise NotModelled(f"the name of a table that is not in FROM: {qualifier}")
        for relation in named:
            yield from columns_of(relation)
            if isinstance(relation, b.Base) and relation.table.sharded:
                yield b.Column(relation.number, -1, BUCKET_ID, "int", relation.label)

    def visible(self, qualifier: str | None) -> list[b.Column]:
        """What `*` or `t.*` means: everything but `bucket_id`."""
        return [column for column in self._candidates(qualifier) if column.position >= 0]


def columns_of(relation: b.Base | b.Derived) -> Iterator[b.Column]:
    """The columns of a relation in order, as references to it."""
    if isinstance(relation, b.Base):
        named = [(column.name, column.type) for column in relation.table.columns]
    else:
        named = list(relation.columns)
    for position, (name, kind) in enumerate(named):
        yield b.Column(relation.number, position, name, kind, relation.label)


def sources_of(source: b.Source | None) -> list[b.Base | b.Derived]:
    """The relations of a FROM clause, left to right."""
    if source is None:
        return []
    if isinstance(source, b.Join):
        return [*sources_of(source.left), *sources_of(source.right)]
    return [source]
