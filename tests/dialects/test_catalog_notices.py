"""What is read in a topology notice. What becomes of many of them: `test_catalog_schedules.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from picopyn.dialects.picodata.catalog_notices import read_catalog_notice
from picopyn.topology import BucketRange
from tests.asynchronous import notices

READ: list[tuple[str, Callable[[Any], Any], Any]] = [
    (notices.leads("r1", "i1", 5), lambda notice: notice.fields, {"current_master_uuid": "uuid-i1"}),
    (notices.leads("r1", "i1", 5, term=3), lambda notice: notice.stamp, (3 << 64) | 5),
    (notices.gone("instance", "i1", 5), lambda notice: (notice.deleted, notice.fields), (True, {})),
    (notices.notice("instance", 5, instance_uuid="i", current_state=["Online", 3]), lambda n: n.fields,
     {"current_state": "Online"}),
    (notices.notice("instance", 5, instance_uuid="i", address=None), lambda notice: notice.fields, {}),
    (notices.buckets(0, 10, "r1", 5), lambda notice: notice.event.ranges, (BucketRange(1, 10, "uuid-r1"),)),
    (notices.buckets(1, 10, "r1", 5, "sending"), lambda notice: notice.event.ranges[0].state, "sending"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "look", "expected"), READ)
def test_a_notice_says_what_changed_and_nothing_else(text: str, look: Callable[[Any], Any], expected: Any) -> None:
    """Fields that are not there have no value; a finished move is an active bucket; buckets begin with 1."""
    assert look(read_catalog_notice(text)) == expected


@pytest.mark.parametrize("text", ["", "3", "[]", "{", '{"map": "tier"}', '{"map": {}}', '{"type": "x"}'])
def test_other_messages_are_none(text: str) -> None:
    """Metadata of statements, plain words, maps of a later version."""
    assert read_catalog_notice(text) is None


@pytest.mark.parametrize(
    "text",
    [
        '{"map": "instance"}',
        notices.notice("instance", 1, "upsert", instance_uuid="i"),
        notices.notice("instance", -1, instance_uuid="i"),
        notices.notice("instance", 1, instance_uuid=""),
        notices.notice("instance", 1, instance_uuid="i", address=4),
        notices.notice("bucket", 1, tier="t", bucket_id=3, current_replicaset_uuid="r"),
        notices.buckets(2, 1, "r", 1),
        notices.buckets(1, 1 << 30, "r", 1),
    ],
)
def test_what_is_not_understood_is_said_so(text: str) -> None:
    """A known map with something missing or of the wrong kind."""
    with pytest.raises(ValueError, match="is not understood"):
        read_catalog_notice(text)
