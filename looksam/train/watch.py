"""Notices at once that another process of the run has gone.

When one dies, the others wait in a collective that will never end; JAX's own heartbeat aborts them about a minute
later, with a stack trace. Here each process keeps a connection to the first one, which the kernel of its host closes
when it dies, whatever it died of. Should a host vanish without that, the heartbeat still ends the rest.
"""

import contextlib
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

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
