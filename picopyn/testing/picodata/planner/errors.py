"""The texts of the errors a Picodata gives, as recorded on 26.1.6; who raises them when is not decided here.

*Source* of every text: `tests/recorded/picodata-conversations.json` and `picodata-plans.json`, unless said
otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from picopyn.testing.picodata.planner.accent import DEFAULT, Accent


class ServerError(Exception):
    """What the server answers instead of a result: goes to the client as an ErrorResponse.

    Attributes:
        sqlstate: Five characters.
        message: The text.
    """

    def __init__(self, sqlstate: str, message: str) -> None:
        super().__init__(f"{sqlstate} {message}")
        self.sqlstate = sqlstate
        self.message = message


class NotModelled(ServerError):  # noqa: N818 - the name of the interface
    """A real Picodata has an answer to this statement, but this model has not: never guess one."""

    def __init__(self, what: str) -> None:
        super().__init__("0A000", f"not modelled by the embedded cluster: {what}")


def internal(message: str) -> ServerError:
    """An error of Picodata's own; nearly all of them have this SQLSTATE."""
    return ServerError("XX000", message)


def sbroad(message: str) -> ServerError:
    """An error of Picodata's planner."""
    return internal(f"sbroad: {message}")


def syntax(text: str, position: int) -> ServerError:
    """What the grammar refuses; real texts go on with a picture of the place and what was expected there."""
    line = text.count("\n", 0, position) + 1
    column = position - (text.rfind("\n", 0, position) + 1) + 1
    return sbroad(f"rule parsing error:  --> {line}:{column}")


def table_not_found(name: str) -> ServerError:
    """An unknown table in FROM, UPDATE or DELETE."""
    return sbroad(f'table with name "{name}" not found')


def space_not_found(name: str) -> ServerError:
    """An unknown table as the target of an INSERT."""
    return sbroad(f"space {name} not found")


def space_metadata_not_found(name: str) -> ServerError:
    """A prepared statement is bound after its table was dropped."""
    return sbroad(f"space metadata for table: {name} not found")


def column_not_found(name: str) -> ServerError:
    """An unknown column."""
    return sbroad(f'column with name "{name}" not found')


def function_not_found(name: str) -> ServerError:
    """An unknown function."""
    return sbroad(f"SQL function {name} not found")


def table_exists(name: str) -> ServerError:
    """CREATE TABLE of a name that is taken."""
    return internal(f"table {name} already exists")


def table_does_not_exist(name: str) -> ServerError:
    """DDL on an unknown table."""
    return internal(f"table {name} does not exist")


def statement_invalidated(name: str) -> ServerError:
    """Bind of a statement whose tables changed since Parse (`pico_stmt_invalidation` on)."""
    return ServerError("42999", f"prepared statement {name} has been invalidated")


def stale_plan(replicaset_uuid: str) -> ServerError:
    """A writing statement is executed whose table changed since Parse (`pico_stmt_invalidation` off)."""
    return forwarded(sbroad("storage schema version different from router"), replicaset_uuid)


def statement_does_not_exist(name: str) -> ServerError:
    """DEALLOCATE of an unknown name."""
    return internal(f"prepared statement {name} does not exist.")


def parameter_count(supplied: int, statement: str, required: int) -> ServerError:
    """Bind with another number of values than the statement has parameters."""
    text = f'supplies {supplied} parameters, but prepared statement "{statement}" requires {required}'
    return ServerError("08P01", f"protocol violation: bind message {text}")


def access_denied(action: str, table: str, user: str) -> ServerError:
    """A user without the privilege; `action` is `"Read"` or `"Write"`; UPDATE and DELETE report Read."""
    return internal(f"box error: AccessDenied: {action} access to space '{table}' is denied for user '{user}'")


def alter_system_denied() -> ServerError:
    """ALTER SYSTEM by somebody else than admin."""
    return internal("box error: AccessDenied: Write access to table '_pico_db_config' is denied for all users")


def create_user_denied(name: str, user: str) -> ServerError:
    """CREATE USER by a user without the privilege."""
    return internal(f"box error: AccessDenied: Create access to user '{name}' is denied for user '{user}'")


def grant_denied(table: str, user: str) -> ServerError:
    """GRANT on a table by a user who is not its owner."""
    return internal(f"box error: AccessDenied: Grant to table '{table}' is denied for user '{user}'")


def grantee_not_found(name: str) -> ServerError:
    """GRANT or REVOKE for an unknown user."""
    return sbroad(f"invalid ACL: Nor user, neither role with name {name} exists")


def password_too_short(password: str, least: int = 8, accent: Accent = DEFAULT) -> ServerError:
    """CREATE USER with a short password; 26.2 lists everything that is missing."""
    length = len(password)
    if not accent.since_26_2:
        return internal(f"password is too short: expected at least {least}, got {length}")
    found = [f"too short (expected at least {least} characters, got {length})"]
    for kind, present in (("uppercase letter", str.isupper), ("lowercase letter", str.islower), ("digit", str.isdigit)):
        if not any(map(present, password)):
            found.append(f"missing {kind}")
    return internal(f"invalid password: {'; '.join(found)}")


def numbered(error: ServerError, accent: Accent) -> ServerError:
    """The error of a query as 26.2 words it (recorded)."""
    if not accent.since_26_2:
        return error
    return ServerError(error.sqlstate, error.message.replace("sbroad: ", "sbroad: Query 1 from EXPLAIN (RAW): ", 1))


def too_many_rows(limit: int) -> ServerError:
    """More rows were collected than `sql_motion_row_max` allows, noticed by the asked instance."""
    return sbroad(f"Exceeded maximum number of rows ({limit}) in virtual table: {limit + 1}")


def too_many_rows_at(
    limit: int, replicaset_uuid: str, rows: int | None = None, accent: Accent = DEFAULT
) -> ServerError:
    """The same, noticed by the replicaset that holds the rows."""
    count = limit + 1 if rows is None else rows
    head = "" if accent.since_26_2 else "unexpected number of values: "
    text = f"{head}Exceeded maximum number of rows ({limit}) in virtual table: {count}"
    return forwarded(sbroad(text), replicaset_uuid)


def opcode_limit(limit: int) -> ServerError:
    """`sql_vdbe_opcode_max` was reached where the statement executed; wrap with `forwarded` if that was
    elsewhere.
    """
    return sbroad(f"Reached a limit on max executed vdbe opcodes. Limit: {limit}")


def duplicate_key(index: str, table: str, old: Sequence[Any], new: Sequence[Any], sharded: bool = True) -> ServerError:
    """A row whose key exists.

    Args:
        index: Name of the unique index, `<table id or name>_pkey`.
        table: Name of the table.
        old: The stored row, every field in the order of `Table.format`.
        new: The refused row, likewise.
        sharded: False for a global table, whose text has no planner prefix.
    """
    fact = (
        f'TupleFound: Duplicate key exists in unique index "{index}" in space "{table}" '
        f"with old tuple - {_tuple(old)} and new tuple - {_tuple(new)}"
    )
    return transaction_failed(fact) if sharded else internal(f"box error: {fact}")


def null_in_field(position: int, column: str, expected: str) -> ServerError:
    """NULL where none may be; `position` counts stored fields from 1, `expected` is a storage type."""
    return transaction_failed(
        f"box error: FieldType: Tuple field {position} ({column}) type does not match one required "
        f"by operation: expected {expected}, got nil"
    )


def transaction_failed(fact: str) -> ServerError:
    """A row of a sharded table could not be stored."""
    return sbroad(f"invalid transaction: transaction rolled-back: failed to insert space: {fact}")


def read_only() -> ServerError:
    """A write arrived at an instance that is no leader any more (planned switch)."""
    text = "box error: Readonly: Can't modify data on a read-only instance - box.cfg.read_only is true"
    return transaction_failed(text)


def forwarded(error: ServerError, replicaset_uuid: str) -> ServerError:
    """The same error as the client sees it when another instance executed the statement.

    *Source*: `picodata-recorded.md` section 5; the wrapper is how one sees that a statement was forwarded.
    """
    inner = f"Error on replicaset {replicaset_uuid}: Failed to execute '.proc_sql_execute': {error.message}"
    return _proc_lua(inner)


def forward_refused(forward: str, spread: bool) -> ServerError:
    """`forward` forbids to send the statement on.

    *Source*: `picodata-recorded.md` section 7 (26.2.1-rc2); of the refusal of `ro_to_rw` only the head is known.
    """
    where = "buckets span multiple nodes" if spread else "buckets are not present on the current node"
    if spread and forward == "off":
        where += " and are not present on the current node"
    other = "on" if spread else "ro_to_rw"
    return sbroad(
        f'invalid option: cannot satisfy "forward = {forward}": {where}, try using "forward = {other}" instead'
    )


def forward_and_replicas() -> ServerError:
    """Both `forward = off` and `read_preference = replica`. *Source*: `picodata-protocol.md` section 10."""
    return sbroad('invalid OptionSpec: "forward = off" is not compatible with "read_preference = replica"')


def replicaset_error(text: str, replicaset_uuid: str) -> ServerError:
    """An error of the call to a replicaset itself, not of a statement executed there."""
    return _proc_lua(f"Error on replicaset {replicaset_uuid}: {text}")


def no_replica_to_read(replicaset_uuid: str) -> ServerError:
    """`OPTION (READ_PREFERENCE = replica)` as recorded on 26.1.6."""
    return replicaset_error("Illegal parameters, unexpected option 'force_replica'", replicaset_uuid)


def _proc_lua(message: str) -> ServerError:
    text = json.dumps(message, ensure_ascii=False)
    trace = r'[{"file":"vshard\/error.lua","line":284}]'
    head = '{"code":32,"base_type":"ClientError","type":"ClientError","message":'
    return sbroad(f'box error: ProcLua: {head}{text},"trace":{trace}}}')


def _tuple(values: Sequence[Any]) -> str:
    return "[" + ", ".join(_field(value) for value in values) + "]"


def _field(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | Decimal):
        return str(value)
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, UUID):
        return str(value)
    return json.dumps(str(value), ensure_ascii=False)
