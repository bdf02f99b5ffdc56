"""Takes the wrapping off an error text of Picodata, layer by layer, so that only beginnings are compared.

A text begins with words of the server; values of rows, names and literals of the user come after them.
Whoever looks for a phrase anywhere in the text can be fooled by a row that contains it; whoever looks at the
beginning of a layer cannot. This file knows the layers; it does not know what any text means.

*Source*: `picodata-conversations.json`, errors of the same statement executed locally and forwarded (26.1.6,
26.2.1).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

#: Words the server puts in front of the text of what it called. A closed list: "up to the next colon" would
#: cut into a table's name.
_LAYER = re.compile(
    "|".join(
        (
            r"sbroad: |box error: |io error: |ProcLua: |_pico_bucket: ",
            r"Query \d+ from EXPLAIN \(RAW\): ",
            r"invalid transaction: |transaction rolled-back: |failed to [a-z]+ (?:in |into |from )?space: ",
            r"Error on replicaset (?P<replicaset>[^\s:]+): ",
            r"Failed to execute '[\w.]+': ",
            r"Failed to get replicaset from bucket \d+: ",
            r"proc_\w+ call failed: |unexpected number of values: ",
            r"[A-Z][A-Za-z]*: ",  # the code of an error of the storage, such as TupleFound
        )
    )
)

_MOST_LAYERS = 24
_decoder = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class ServerText:
    """An error text and its layers.

    Attributes:
        layers: The text, and what is left of it after each layer that was taken off; the last one is the
            core.
        forwarded_to: The replicaset another instance was asked for, when the statement was forwarded; the
            innermost one if there are several.
    """

    layers: tuple[str, ...]
    forwarded_to: str | None = None

    @property
    def core(self) -> str:
        """What failed in the end, in the words of whoever failed."""
        return self.layers[-1]


def unwrap(message: str) -> ServerText:
    """Take all known layers off an error text."""
    layers = [message.strip()]
    forwarded_to = None
    while len(layers) < _MOST_LAYERS:
        layer = _LAYER.match(layers[-1])
        inner = layers[-1][layer.end() :] if layer is not None else _message_of(layers[-1])
        if not inner:
            break
        if layer is not None and layer["replicaset"]:
            forwarded_to = layer["replicaset"]
        layers.append(inner)
    return ServerText(tuple(layers), forwarded_to)


def _message_of(text: str) -> str | None:
    """The `message` of an error that was handed on as JSON; None when the text is nothing of the kind."""
    if not text.startswith("{"):
        return None
    try:
        value, _ = _decoder.raw_decode(text)
    except (ValueError, RecursionError):
        return None
    message = value.get("message")
    return message if isinstance(message, str) else None
