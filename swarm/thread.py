"""A trio event loop in a thread of its own, usable from plain code, from asyncio and from notebooks.

py-libp2p speaks trio; users speak neither trio nor, most of them, asyncio. Everything of the client that waits runs in
this one thread. Callers hand it a trio function and wait for its result, blocking (:meth:`TrioThread.run`) or in
asyncio (:meth:`TrioThread.run_async`); giving up, by Ctrl-C or by cancelling the task, cancels the function there too.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeVar

import trio

from blockswarm.swarm.errors import ClientError

T = TypeVar("T")

START_TIMEOUT = 10.0
"""Seconds allowed for the thread to come up; it takes milliseconds, so only a broken interpreter needs more."""


class TrioThread:
    """One daemon thread running one trio loop until :meth:`close`.

    Parameters
    ----------
    name : str
        Name of the thread, as debuggers show it.
    """

    def __init__(self, name: str = "blockswarm-client") -> None:
        self._ready = threading.Event()
        self._token: Any = None
        self._stop: Any = None
        self.nursery: Any = None
        """Nursery of background tasks; touch it only inside the thread. It is cancelled by :meth:`close`."""
        self._pending: set[Future[Any]] = set()
        self._lock = threading.Lock()
        self._closed = False
        # A daemon: a client that was never closed must not keep the interpreter from ending.
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()
        if not self._ready.wait(START_TIMEOUT):
            raise ClientError(f"the client's thread did not start in {START_TIMEOUT:g} s")

    @property
    def closed(self) -> bool:
        """Whether nothing can be run any more."""
        return self._closed

    def submit(self, function: Callable[..., Awaitable[T]], *args: Any) -> Future[T]:
        """Start ``await function(*args)`` in the thread.

        Returns
        -------
        concurrent.futures.Future
            Its result or exception. Cancelling the future cancels the function.

        Raises
        ------
        ClientError
            If the thread is closed.
        """
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise ClientError("this client is closed: connect again")
            self._pending.add(future)
        future.add_done_callback(self._forget)
        try:
            self._token.run_sync_soon(self._spawn, future, function, args)
        except trio.RunFinishedError as error:
            _settle(future, error=ClientError("this client is closed: connect again"))
            raise ClientError("this client is closed: connect again") from error
        return future

    def run(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Wait for ``function(*args)``; a ``KeyboardInterrupt`` here cancels it there."""
        future = self.submit(function, *args)
        try:
            return future.result()
        finally:
            future.cancel()  # no effect on a finished one

    async def run_async(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """The same for asyncio: the loop goes on meanwhile, and cancelling the task cancels the function."""
        return await asyncio.wrap_future(self.submit(function, *args))

    def close(self, timeout: float = 2.0) -> None:
        """Cancel everything and end the thread, waiting at most ``timeout`` seconds. May be called twice."""
        with self._lock:
            first, self._closed = not self._closed, True
        if first:
            with contextlib.suppress(trio.RunFinishedError):  # the loop may have ended by itself
                self._token.run_sync_soon(self._stop.set)
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _main(self) -> None:
        try:
            trio.run(self._serve)
        finally:
            with self._lock:
                self._closed = True
                left = list(self._pending)
            for future in left:
                _settle(future, error=ClientError("the client was closed while it was working"))

    async def _serve(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._stop = trio.Event()
        async with trio.open_nursery() as self.nursery:
            self._ready.set()
            await self._stop.wait()
            self.nursery.cancel_scope.cancel()

    def _spawn(self, future: Future[T], function: Callable[..., Awaitable[T]], args: tuple[Any, ...]) -> None:
        try:
            self.nursery.start_soon(self._carry_out, future, function, args)
        except RuntimeError:  # the nursery closed between submit and now
            _settle(future, error=ClientError("this client is closed: connect again"))

    async def _carry_out(self, future: Future[T], function: Callable[..., Awaitable[T]], args: tuple[Any, ...]) -> None:
        scope = trio.CancelScope()
        token = self._token

        def give_up(done: Future[T]) -> None:
            if done.cancelled():
                with contextlib.suppress(trio.RunFinishedError):  # then nothing is left to cancel
                    token.run_sync_soon(scope.cancel)

        future.add_done_callback(give_up)
        with scope:
            try:
                result = await function(*args)
            except Exception as error:
                _settle(future, error=error)
            else:
                _settle(future, result=result)

    def _forget(self, future: Future[Any]) -> None:
        with self._lock:
            self._pending.discard(future)


def _settle(future: Future[Any], *, result: Any = None, error: BaseException | None = None) -> None:
    try:
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)
    except InvalidStateError:
        pass  # the caller gave up first
