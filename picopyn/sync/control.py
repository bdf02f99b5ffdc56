"""The one background thread of a pool for threads: an event loop for all that goes on beside the calls.

Jobs of the engine run on it, and so does the asynchronous control plane. Nothing on it may block: what has to, like
dialling, gets a thread of its own for as long as it takes. These threads are daemons, so an interpreter that ends waits
for none of them, whatever a node does.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class ControlThread:
    """The thread and its loop; started at once.

    Args:
        name: Of the thread.

    Attributes:
        loop: The event loop.
    """

    def __init__(self, name: str = "picopyn control") -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        self._thread.start()

    def is_here(self) -> bool:
        """Whether this is that thread."""
        return threading.get_ident() == self._thread.ident

    def post(self, call: Callable[..., object], *args: Any) -> bool:
        """Have something called there; False when it has stopped."""
        try:
            self.loop.call_soon_threadsafe(call, *args)
        except RuntimeError:  # the loop is closed
            return False
        return True

    def run(self, coroutine: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
        """Run a coroutine there and wait for it, from another thread.

        Raises:
            TimeoutError: It was not finished within so many seconds; it is cancelled.
        """
        running = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return running.result(seconds)
        except BaseException:
            running.cancel()
            raise

    async def blocking(self, call: Callable[..., T], *args: Any, give_back: Callable[[T], object] | None = None) -> T:
        """Wait for a call that blocks, in a thread of its own; to be awaited on the loop.

        Args:
            call: What blocks.
            *args: Its arguments.
            give_back: Gets a result that comes when nobody waits any more.
        """
        ended: asyncio.Future[T] = self.loop.create_future()

        def settle(result: Any, error: BaseException | None) -> None:
            if not ended.done():
                if error is None:
                    ended.set_result(result)
                else:
                    ended.set_exception(error)
            elif error is None and give_back is not None:
                give_back(result)

        def work() -> None:
            result: Any = None
            error: BaseException | None = None
            try:
                result = call(*args)
            except BaseException as failed:
                error = failed
            if not self.post(settle, result, error) and error is None and give_back is not None:
                give_back(result)

        threading.Thread(target=work, name="picopyn blocking work", daemon=True).start()
        return await ended

    def stop(self) -> None:
        """End the loop and the thread; tasks that are left are cancelled. From another thread."""
        self.post(self.loop.stop)
        self._thread.join()

    def _live(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        finally:
            asyncio.set_event_loop(None)
            self.loop.close()
