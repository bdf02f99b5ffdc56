"""Servers that ask for a password."""

from __future__ import annotations

from picopyn.testing.picodata import wire
from picopyn.testing.scripted_server import Invalidating, Talk
from tests.postgres.conftest import until

ASK_PASSWORD = wire.message(b"R", (3).to_bytes(4, "big"))


class Doormen:
    """The script of servers that ask for a password; all of them want the same one.

    Attributes:
        asked: How often they have asked.
        wrong: How many wrong passwords they have got.
        silent: They leave a wrong one unanswered, for now.
        until_asked: A wrong password is refused when they have asked so often.
    """

    def __init__(self) -> None:
        self.wanted = b"old\0"
        self.refused = 0
        self.accepted = 0
        self.asked = 0
        self.wrong = 0
        self.silent = False
        self.until_asked = 0

    async def play(self, talk: Talk) -> None:
        talk.send(ASK_PASSWORD)
        self.asked += 1
        message = await talk.receive()
        assert isinstance(message, wire.Password)
        if message.body != self.wanted:
            self.wrong += 1
            await until(lambda: self.asked >= self.until_asked and not self.silent)
            self.refused += 1
            talk.send(wire.error_response("28P01", 'password authentication failed for user "admin"'))
            return
        self.accepted += 1
        talk.send(wire.AUTHENTICATION_OK, wire.parameter_status("server_version", "18.0"), wire.READY)
        await Invalidating().play(talk)
