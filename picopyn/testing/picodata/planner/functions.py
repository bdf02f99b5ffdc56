"""The functions Picodata has, as far as they are modelled: which arguments they take and what they return.

*Source*: recorded answers; `docs/docs/reference/sql/functions` and the built-ins named in
`picodata-protocol.md` sections 1, 2.
"""

from __future__ import annotations

from collections.abc import Sequence

from picopyn.testing.picodata.planner.accent import DEFAULT, Accent
from picopyn.testing.picodata.planner.errors import function_not_found, sbroad

AGGREGATES = frozenset({"count", "sum", "avg", "min", "max", "total", "group_concat", "string_agg"})
WINDOW_ONLY = frozenset({"row_number"})

#: Answered by the instance itself; they need no privilege and touch no table.
INSTANCE_FUNCTIONS: dict[str, tuple[tuple[str, ...], str]] = {
    "version": ((), "text"),
    "pico_instance_uuid": ((), "text"),
    "pico_instance_name": (("text",), "text"),
    "pico_replicaset_name": (("text",), "text"),
    "pico_tier_name": (("text",), "text"),
    "pico_raft_leader_id": ((), "int"),
    "pico_raft_leader_uuid": ((), "text"),
    "pico_instance_dir": (("text",), "text"),
    "pico_config_file_path": (("text",), "text"),
    "_pico_bucket": (("text",), "json"),
}

_SCALARS: dict[str, tuple[tuple[tuple[str, ...], str], ...]] = {
    "lower": ((("text",), "text"),),
    "upper": ((("text",), "text"),),
    "substr": ((("text", "int"), "text"), (("text", "int", "int"), "text")),
    "abs": ((("int",), "int"), (("decimal",), "decimal"), (("double",), "double")),
    "to_date": ((("text", "text"), "datetime"),),
    "to_char": ((("datetime", "text"), "text"),),
}

NUMERIC = ("int", "decimal", "double")


def wanted_types(name: str, count: int) -> tuple[str | None, ...]:
    """For each argument, the type a parameter or text there gets; None where anything goes.

    Raises:
        ServerError: There is no such function.
    """
    if name in INSTANCE_FUNCTIONS:
        return INSTANCE_FUNCTIONS[name][0] if len(INSTANCE_FUNCTIONS[name][0]) == count else (None,) * count
    if name in _SCALARS:
        fitting = [types for types, _ in _SCALARS[name] if len(types) == count]
        return fitting[0] if fitting else (None,) * count
    if name not in AGGREGATES and name not in WINDOW_ONLY and name != "coalesce":
        raise function_not_found(name)
    return (None,) * count


def result_type(name: str, arguments: Sequence[str], accent: Accent = DEFAULT) -> str:
    """The type a function returns for arguments of these types.

    Raises:
        ServerError: It takes no such arguments.
    """
    if name in ("count", "row_number"):
        return "int"
    if name == "coalesce":
        return common_type("COALESCE", arguments)
    if name in AGGREGATES:
        return _aggregate_type(name, arguments, accent)
    overloads = _SCALARS.get(name) or (INSTANCE_FUNCTIONS[name],)
    for types, result in overloads:
        if len(types) == len(arguments) and all(a in (t, "unknown") for t, a in zip(types, arguments, strict=True)):
            return result
    raise no_overload("function", name, arguments)


def _aggregate_type(name: str, arguments: Sequence[str], accent: Accent) -> str:
    if name in ("group_concat", "string_agg"):
        return "text"
    if len(arguments) != 1:
        raise no_overload("function", name, arguments)
    kind = arguments[0]
    if name in ("min", "max"):
        return kind
    if kind not in (*NUMERIC, "unknown"):
        raise no_overload("function", name, arguments)
    if name == "sum":
        return "decimal" if kind == "int" else kind
    if name == "total":
        return "double"
    if accent.before_26_1:  # recorded: avg of integers is a NUMERIC on 25.6
        return "decimal" if kind in ("int", "decimal") else "double"
    return "decimal" if kind == "decimal" else "double"


def no_overload(kind: str, name: str, types: Sequence[str]) -> Exception:
    """The recorded refusal of an operator or function for these argument types."""
    return sbroad(f"could not resolve {kind} overload for {name}({', '.join(types)})")


def common_type(context: str, types: Sequence[str]) -> str:
    """The type that values of these types share.

    Raises:
        ServerError: There is none.
    """
    known = [kind for kind in dict.fromkeys(types) if kind != "unknown"]
    if not known:
        return "unknown"
    if len(known) == 1:
        return known[0]
    if all(kind in NUMERIC for kind in known):
        return max(known, key=NUMERIC.index)
    names = f"{', '.join(known[:-1])} and {known[-1]}"
    raise sbroad(f"{context} types {names} cannot be matched")
