"""What a Picodata would plan for a statement text: pure, without sockets, storage or instances.

`prepare(text, catalog, declared_oids, own_tier)` is the door; `Statement` is what comes out. The package
shares no code with the driver's own hash and routing: both are judged by the recorded answers of real
servers.

The storage: `storage_names` has the texts that make tables. With `Catalog(keeps_offsets=True)` the
statements' texts use the offset columns those make, so that a datetime comes back with the offset it was
given with.
"""

from picopyn.testing.picodata.planner.catalog import Catalog, Column, Table
from picopyn.testing.picodata.planner.errors import NotModelled, ServerError
from picopyn.testing.picodata.planner.prepare import prepare
from picopyn.testing.picodata.planner.statement import Buckets, Statement, Value

__all__ = [
    "Buckets",
    "Catalog",
    "Column",
    "NotModelled",
    "ServerError",
    "Statement",
    "Table",
    "Value",
    "prepare",
]
