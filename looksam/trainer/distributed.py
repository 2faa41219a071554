"""Many processes, one run: how they join, notice that one of them has exited, exchange values, and stop together.

When a process dies, the others wait in a collective that will never end; JAX's own heartbeat aborts them about a minute
later, with a stack trace. Here each process keeps a connection to the first one, which the kernel of its host closes
when it dies, whatever the cause. Should a host vanish without that, the heartbeat still ends the rest.
"""

import collections
import contextlib
import ctypes
import itertools
import json
import os
import pathlib
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
from jax._src.distributed import global_state  # JAX has no public way to its key-value store
from jax.experimental import multihost_utils

from looksam.trainer.parallel import Layout
from looksam.trainer.recipe import Recipe
from looksam.trainer.run_folder.run_directory import RunError, changes_between

HEARTBEAT = 60  # seconds after which a silent process counts as gone
CONNECT = 10.0  # seconds
GRACE = 1.0  # seconds in which this process may first report trouble of its own
DAY = 24 * 60 * 60 * 1000  # milliseconds; a dead process is noticed long before
LAG = 2  # steps after which a signal is acted upon: by then it is on the host, and no step waits for it
GOODBYE = b"."
FAILED = 1
RESTART = " Start all processes again with the same command to resume from the last checkpoint."
# errors whose message says enough without a traceback
EXPECTED = (RunError, ValueError, TypeError, OSError, ImportError, KeyboardInterrupt)
# what collectives and JAX's coordination service report when a process is missing, in lower case
PEER_FAILURES = (
    *("unavailable", "deadline_exceeded", "deadline exceeded", "gloo", "nccl", "heartbeat", "coordination"),
    *("connection", "socket closed", "barrier", "preempted"),
)
_HANDLERS: list[Any] = []


@dataclass(frozen=True)
class DistributedConfig:
    """How the processes find each other. All None: JAX asks the cluster (SLURM, TPU pods, Kubernetes, Open MPI)."""

    coordinator: str | None = None  # host:port of process 0
    process_count: int | None = None
    process_index: int | None = None


def is_primary() -> bool:
    """Returns whether this is process 0, which reports and writes everything but the shards of checkpoints."""
    return jax.process_index() == 0


@contextlib.contextmanager
def session(config: DistributedConfig | None) -> Iterator[None]:
    """Makes this one of many processes, or with None the only one; they leave the block together.

    If this process fails, or another one does, it ends at once: waiting for the others would be waiting for ever.
    """
    if config is None:
        yield
        return
    _initialize(config)
    if jax.process_count() == 1:
        yield
        return
    try:
        _report_abort()
        host = config.coordinator and config.coordinator.rpartition(":")[0]
        with watching(jax.process_index(), jax.process_count(), host, broadcast_json, _end_without):
            yield
    except BaseException as error:
        _end_by(error)
    jax.distributed.shutdown()


def _initialize(config: DistributedConfig) -> None:
    _keep_stdout()
    # JAX's own handler for SIGTERM would replace ours, which saves the run
    jax.config.update("jax_enable_preemption_service", False)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(
            config.coordinator,
            config.process_count,
            config.process_index,
            cluster_detection_method=None if config.coordinator is None else "deactivate",
            heartbeat_timeout_seconds=HEARTBEAT,
        )
    except (ValueError, RuntimeError) as error:
        raise ValueError(
            f"the processes could not connect ({_first_line(error)}). Start every process of the run, each with the "
            "same --coordinator HOST:PORT and --process-count and its own --process-index, or all by the cluster's "
            "launcher."
        ) from error


def _keep_stdout() -> None:
    """Leaves stdout to results; what Gloo prints there, bypassing Python, goes to stderr instead."""
    sys.stdout.flush()
    ours = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(ours, "w")


def _report_abort() -> None:
    """Reports that the first process has exited where JAX's client aborts this one for it, from C++."""

    def report(number: int) -> None:
        _end("the first process of this run has exited, or cannot be reached")

    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(report)
    _HANDLERS.append(handler)  # C keeps no reference
    ctypes.CDLL(None).signal(signal.SIGABRT, handler)


def _end_by(error: BaseException) -> NoReturn:
    if is_peer_failure(error):
        _end(f"another process of this run has exited, or cannot be reached: {_first_line(error)}")
    if os.environ.get("LOOKSAM_DEBUG", "0") not in ("", "0") or not isinstance(error, EXPECTED):
        traceback.print_exception(error)
    _end(f"{error or type(error).__name__}", advice="")


def is_peer_failure(error: BaseException) -> bool:
    """Returns whether this is what a collective raises when one of its processes is missing."""
    if not isinstance(error, jax.errors.JaxRuntimeError):
        return any(word in str(error) for word in ("Gloo", "UNAVAILABLE", "DEADLINE_EXCEEDED"))
    text = str(error).lower()
    return "resource_exhausted" not in text and any(word in text for word in PEER_FAILURES)


def _end_without(who: str) -> None:
    _end(f"{who} of this run has exited")


def _end(message: str, advice: str = RESTART) -> NoReturn:
    where = f"process {jax.process_index()} of {jax.process_count()}"
    print(
        f"looksam: {where}: {message}\nlooksam: {where} ends here; what was saved is safe.{advice}",
        file=sys.stderr,
        flush=True,
    )
    sys.stdout.flush()
    os._exit(FAILED)  # Python's own exit would wait for the others


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


@contextlib.contextmanager
def watching(
    index: int, count: int, host: str | None, broadcast: Callable[[Any], Any], gone: Callable[[str], None]
) -> Iterator[None]:
    """Calls ``gone(who)``, from a thread, if another process ends before it has left this block.

    Args:
      index: of this process.
      count: of the processes.
      host: a name of the first process's host that the others can reach, if known.
      broadcast: gives every process the first one's value.
      gone: has to end this process.
    """
    peers = _accept(count, host, broadcast) if index == 0 else _connect(index, broadcast)
    for who, peer in peers.items():
        threading.Thread(target=_listen, args=(peer, who, gone), daemon=True, name="watch").start()
    yield
    for peer in peers.values():
        with contextlib.suppress(OSError):
            peer.sendall(GOODBYE)


def _accept(count: int, host: str | None, broadcast: Callable[[Any], Any]) -> dict[str, socket.socket]:
    token = secrets.token_hex(16)
    with socket.create_server(("", 0), backlog=count) as server:
        names = [name for name in (host, socket.gethostname(), socket.getfqdn()) if name]
        broadcast([names, server.getsockname()[1], token])
        server.settimeout(CONNECT)
        peers: dict[str, socket.socket] = {}
        with contextlib.suppress(TimeoutError):  # whoever cannot connect is left to the heartbeat
            while len(peers) < count - 1:
                peer, _ = server.accept()
                with contextlib.suppress(OSError):  # a stranger's connection must not keep the others out
                    if _read(peer, len(token)) == token.encode():
                        peers[f"process {int(_read(peer, 8))}"] = peer
    return peers


def _connect(index: int, broadcast: Callable[[Any], Any]) -> dict[str, socket.socket]:
    names, port, token = broadcast(None)
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
        message = peer.recv(1)
    except OSError:
        message = b""
    if message != GOODBYE:
        time.sleep(GRACE)
        gone(who)


def broadcast(array: np.ndarray) -> np.ndarray:
    """Returns the first process's array, as bytes: JAX's broadcast is a sum, which would turn −0.0 into 0.0."""
    whole = np.ascontiguousarray(array)
    data = multihost_utils.broadcast_one_to_all(whole.reshape(-1).view(np.uint8))
    return np.asarray(data).view(array.dtype).reshape(array.shape)


def broadcast_json(value: Any) -> Any:
    """Returns the first process's value, which JSON can hold."""
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    length = int(broadcast(np.array(len(text), np.int64)))
    text = text if is_primary() else np.zeros(length, np.uint8)
    return json.loads(broadcast(text).tobytes())


def processes_where(flag: bool) -> list[int]:
    """Returns the processes in which the flag is true."""
    return [int(index) for index in np.flatnonzero(multihost_utils.process_allgather(np.array(flag)))]


class Exchange:
    """``exchange(message)`` gives each process every one's message; every thread that exchanges has one of its own.

    Messages go by the key-value store of JAX's coordinator: collectives of two threads may run in another order in each
    process, and then wait for each other.
    """

    _count = itertools.count()

    def __init__(self) -> None:
        self._name, self._round = f"looksam/exchange/{next(Exchange._count)}", 0

    def __call__(self, message: str) -> list[str]:
        """Returns the messages in the order of the processes; waits for all of them."""
        if jax.process_count() == 1:
            return [message]
        client: Any = global_state.client
        index = jax.process_index()
        client.key_value_set(f"{self._name}/{self._round}/{index}", message)
        messages = [
            client.blocking_key_value_get(f"{self._name}/{self._round}/{other}", DAY)
            for other in range(jax.process_count())
        ]
        if self._round:  # that everyone is here means that everyone has read the round before
            client.key_value_delete(f"{self._name}/{self._round - 1}/{index}")
        self._round += 1
        return messages


class SharedSignal:
    """Makes processes stop at the same step: each shares its signal in every step, and all act on it later."""

    def __init__(self, layout: Layout) -> None:
        self._layout, self._shared = layout, collections.deque[jax.Array]()
        self._largest: Callable[[jax.Array], jax.Array] = jax.jit(jnp.max, out_shardings=layout.replicated)

    def __call__(self, signal_number: int | None) -> int | None:
        """Returns the signal that any process had some steps ago; with one process, its own."""
        if jax.process_count() == 1:
            return signal_number
        flags = np.full(self._layout.devices, signal_number or 0, np.int32)
        self._shared.append(self._largest(self._layout.put_batch(len(flags), flags.__getitem__)))
        received = int(self._shared.popleft()) if len(self._shared) > LAG else 0
        return received or None


def check_same_recipe(recipe: Recipe) -> None:
    """Raises RunError, in all of them, where the processes of a run were given different settings."""
    if jax.process_count() == 1:
        return
    theirs = Recipe.from_json(json.dumps(broadcast_json(recipe.to_dict())))
    changes = changes_between(recipe, theirs, ("data_dir", "workers"))
    if not processes_where(bool(changes)):
        return
    who = f"process 0 has other settings ({changes})" if changes else "another process has other settings than this one"
    raise RunError(f"{who}; start all processes with the same command.")


def check_shared(directory: pathlib.Path) -> None:
    """Raises RunError, in all processes, where one does not see what the first writes to the run's folder."""
    if jax.process_count() == 1:
        return
    token = directory / f"visible-to-all.{broadcast_json(secrets.token_hex(8))}"
    if is_primary():
        token.touch()
    processes_where(False)  # wait for it
    blind = processes_where(not token.exists())
    if is_primary():
        token.unlink()
    if blind:
        raise RunError(
            f"{directory} is not one folder for all processes: {', '.join(f'process {i}' for i in blind)} of "
            f"{jax.process_count()} cannot see what process 0 writes there. Each process writes its part of a "
            "checkpoint; pass all of them a --run-dir on a disk that every host sees."
        )
