"""A name with several addresses as a seed: each of them is knocked at, and the first that answers is the one to dial.

Who dials a name gets its first address, and waits there for as long as he may if that server hangs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping

from picopyn.asynchronous.host_names import addresses_behind

#: Host and port.
Address = tuple[str, int]


async def first_to_answer(
    address: Address, knock_at: Callable[[Address], Awaitable[None]], names: MutableMapping[Address, str]
) -> Address:
    """Knock at an address, or at all of a name's at the same time.

    Args:
        address: Host and port; the host may be a name.
        knock_at: Returns when somebody answered there, or raises.
        names: Receives the name under which an address was found.

    Returns:
        Where somebody answered: the address as given, unless it is a name with several.

    Raises:
        OSError: Nobody answers; the error of the last one that failed.
    """
    name, port = address
    found = await addresses_behind(name, port)
    if len(found) < 2:
        await knock_at(address)
        return address
    knocking = {asyncio.create_task(_knock((place, port), knock_at)) for place in found}
    try:
        answered = await _first(knocking)
    finally:
        for other in knocking:
            other.cancel()
        await asyncio.gather(*knocking, return_exceptions=True)
    names[answered] = name
    return answered


async def _knock(place: Address, knock_at: Callable[[Address], Awaitable[None]]) -> Address:
    await knock_at(place)
    return place


async def _first(knocking: set[asyncio.Task[Address]]) -> Address:
    error: BaseException = OSError("it has no address")
    for asked in asyncio.as_completed(knocking):
        try:
            return await asked
        except OSError as refused:
            error = refused
    raise error
