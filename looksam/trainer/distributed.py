"""Notices at once that another process of the run has gone.

When one dies, the others wait in a collective that will never end; JAX's own heartbeat aborts them about a minute
later, with a stack trace. Here each process keeps a connection to the first one, which the kernel of its host closes
when it dies, whatever it died of. Should a host vanish without that, the heartbeat still ends the rest.

Many processes, one run: how they meet, agree to stop, and notice that one of them has gone.
"""

import collections
import contextlib
import ctypes
import json
import os
import secrets
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from looksam.trainer.parallel import Layout
from looksam.trainer.recipe import Recipe
from looksam.trainer.run_directory import RunError, changes_between

GOODBYE = b"."
GRACE = 1.0  # seconds, for this process to tell of its own trouble first
CONNECT = 10.0


@contextlib.contextmanager
def watching(
    index: int, count: int, host: str | None, hand_on: Callable[[Any], Any], gone: Callable[[str], None]
) -> Iterator[None]:
    """Call ``gone(who)``, from a thread, if another process ends before it has left this block.

    Args:
      index, count: of the processes.
      host: a name of the first process's host that the others can reach, if known.
      hand_on: gives every process the first one's value.
      gone: has to end this process.
    """
    peers = _accept(count, host, hand_on) if index == 0 else _connect(index, hand_on)
    for who, peer in peers.items():
        threading.Thread(target=_listen, args=(peer, who, gone), daemon=True, name="watch").start()
    yield
    for peer in peers.values():
        with contextlib.suppress(OSError):
            peer.sendall(GOODBYE)


def _accept(count: int, host: str | None, hand_on: Callable[[Any], Any]) -> dict[str, socket.socket]:
    token = secrets.token_hex(16)
    with socket.create_server(("", 0), backlog=count) as server:
        names = [name for name in (host, socket.gethostname(), socket.getfqdn()) if name]
        hand_on([names, server.getsockname()[1], token])
        server.settimeout(CONNECT)
        peers: dict[str, socket.socket] = {}
        with contextlib.suppress(TimeoutError):  # whoever cannot connect is left to the heartbeat
            while len(peers) < count - 1:
                peer, _ = server.accept()
                with contextlib.suppress(OSError):  # a stranger at the door, who is not to keep the others out
                    if _read(peer, len(token)) == token.encode():
                        peers[f"process {int(_read(peer, 8))}"] = peer
    return peers


def _connect(index: int, hand_on: Callable[[Any], Any]) -> dict[str, socket.socket]:
    names, port, token = hand_on(None)
    for name in names:
        with contextlib.suppress(OSError):
            peer = socket.create_connection((name, port), timeout=CONNECT)
            peer.settimeout(None)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            peer.sendall(token.encode() + f"{index:8d}".encode())
            return {"process 0": peer}
    return {}


def _read(peer: socket.socket, length: int) -> bytes:
    peer.settimeout(CONNECT)
    data = peer.recv(length, socket.MSG_WAITALL)
    peer.settimeout(None)
    return data


def _listen(peer: socket.socket, who: str, gone: Callable[[str], None]) -> None:
    try:
        said = peer.recv(1)
    except OSError:
        said = b""
    if said != GOODBYE:
        time.sleep(GRACE)
        gone(who)


HEARTBEAT = 60  # seconds after which a silent process counts as gone
LAG = 2  # steps after which a signal is acted upon: by then it is on the host already, and no step waits for it
FAILED = 1
AGAIN = " Start all processes again by the same command to go on from the last checkpoint."
# what needs no traceback
FORESEEN = (RunError, ValueError, TypeError, OSError, ImportError, KeyboardInterrupt, jax.errors.JaxRuntimeError)
_HANDLERS: list[Any] = []


@dataclass(frozen=True)
class Meeting:
    """Where processes find each other. All None: JAX asks the cluster (SLURM, TPU pods, Kubernetes, Open MPI)."""

    coordinator: str | None = None  # host:port of process 0
    count: int | None = None
    index: int | None = None


def first() -> bool:
    """Is this the process that writes and reports?"""
    return jax.process_index() == 0


@contextlib.contextmanager
def joined(meeting: Meeting | None) -> Iterator[None]:
    """Be one of many processes in here, or with None the only one. Leaves only together with the others.

    If this process fails, or another one does, it ends at once: to wait for the others would be to wait for ever.
    """
    if meeting is None:
        yield
        return
    _join(meeting)
    if jax.process_count() == 1:
        yield
        return
    try:
        _tell_on_abort()
        host = meeting.coordinator and meeting.coordinator.rpartition(":")[0]
        with watching(jax.process_index(), jax.process_count(), host, handed_on_json, _end_without):
            yield
    except BaseException as error:
        _end_by(error)
    jax.distributed.shutdown()


def _join(meeting: Meeting) -> None:
    _keep_stdout()
    # JAX's own handler for SIGTERM would take the place of ours, which saves the run
    jax.config.update("jax_enable_preemption_service", False)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(
            meeting.coordinator,
            meeting.count,
            meeting.index,
            cluster_detection_method=None if meeting.coordinator is None else "deactivate",
            heartbeat_timeout_seconds=HEARTBEAT,
        )
    except (ValueError, RuntimeError) as error:
        raise ValueError(
            f"the processes did not meet ({_first_line(error)}). Start every process of the run, each with the same "
            "--coordinator HOST:PORT and --process-count and its own --process-index, or all by the cluster's launcher."
        ) from error


def _tell_on_abort() -> None:
    """When the first process goes, JAX's client aborts the others, in C++: past Python, so caught below it."""

    def tell(number: int) -> None:
        _end("the first process of this run has gone, or cannot be reached")

    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(tell)
    _HANDLERS.append(handler)  # C keeps no reference
    ctypes.CDLL(None).signal(signal.SIGABRT, handler)


def _keep_stdout() -> None:
    """Results go where they did; what Gloo prints there, past Python, goes to stderr instead."""
    sys.stdout.flush()
    ours = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(ours, "w")


def _end_by(error: BaseException) -> NoReturn:
    if _of_others(error):
        _end(f"another process of this run has gone, or cannot be reached: {_first_line(error)}")
    if os.environ.get("LOOKSAM_DEBUG", "0") not in ("", "0") or not isinstance(error, FORESEEN):
        traceback.print_exception(error)
    _end(f"{error or type(error).__name__}", advice="")


def _of_others(error: BaseException) -> bool:
    """Is this what a collective says when one of its processes is missing?"""
    if isinstance(error, jax.errors.JaxRuntimeError):
        return "RESOURCE_EXHAUSTED" not in str(error)
    return any(word in str(error) for word in ("Gloo", "UNAVAILABLE", "DEADLINE_EXCEEDED"))


def _end_without(who: str) -> None:
    _end(f"{who} of this run has gone")


def _end(told: str, advice: str = AGAIN) -> NoReturn:
    where = f"process {jax.process_index()} of {jax.process_count()}"
    print(
        f"looksam: {where}: {told}\nlooksam: {where} ends here; what was saved is safe.{advice}",
        file=sys.stderr,
        flush=True,
    )
    sys.stdout.flush()
    os._exit(FAILED)  # Python's own way out would wait for the others


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def handed_on(array: np.ndarray) -> np.ndarray:
    """The first process's array, to the bit: as bytes, since the sum that hands it on would turn −0.0 into 0.0."""
    whole = np.ascontiguousarray(array)
    data = multihost_utils.broadcast_one_to_all(whole.reshape(-1).view(np.uint8))
    return np.asarray(data).view(array.dtype).reshape(array.shape)


def handed_on_json(value: Any) -> Any:
    """The first process's value, which JSON can hold."""
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    length = int(handed_on(np.array(len(text), np.int64)))
    text = text if first() else np.zeros(length, np.uint8)
    return json.loads(handed_on(text).tobytes())


def any_of(flag: bool) -> bool:
    """Is it so in any process?"""
    return bool(np.any(multihost_utils.process_allgather(np.array(flag))))


class Agreement:
    """Processes stop at the same step: each tells every step whether it was told to stop, and all hear of it later."""

    def __init__(self, layout: Layout) -> None:
        self._layout, self._told = layout, collections.deque[jax.Array]()
        self._largest: Callable[[jax.Array], jax.Array] = jax.jit(jnp.max, out_shardings=layout.replicated)

    def __call__(self, signal_number: int | None) -> int | None:
        """The signal that any process has had some steps ago; alone, the one at hand."""
        if jax.process_count() == 1:
            return signal_number
        flags = np.full(self._layout.devices, signal_number or 0, np.int32)
        self._told.append(self._largest(self._layout.put_batch(len(flags), flags.__getitem__)))
        heard = int(self._told.popleft()) if len(self._told) > LAG else 0
        return heard or None


def check_alike(recipe: Recipe) -> None:
    """RunError, in all of them, where the processes of a run were given different settings."""
    if jax.process_count() == 1:
        return
    theirs = Recipe.from_json(json.dumps(handed_on_json(recipe.to_dict())))
    changes = changes_between(recipe, theirs, ("data_dir", "workers"))
    if not any_of(bool(changes)):
        return
    who = f"process 0 has other settings ({changes})" if changes else "another process has other settings than this one"
    raise RunError(f"{who}; start all processes by the same command.")
