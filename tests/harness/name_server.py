"""A DNS server for tests: one name for everything asked, whose addresses a test changes."""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_HEADER = struct.Struct("!6H")
_ANSWERS = 0x8580
"""This is an answer, from the server that knows best."""
_A, _IN = 1, 1
_POINTER_TO_QUESTION = 0xC00C


class NameServer:
    """Answers every question for IPv4 addresses with `addresses`, and every other question with nothing."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self.addresses: list[str] = []
        self.num_asked = 0
        """How often somebody asked for IPv4 addresses."""

    @property
    def port(self) -> int:
        """The UDP port on 127.0.0.1."""
        return int(self._server.getsockname()[1])

    def run(self) -> None:
        """Answer until a question of no bytes comes."""
        while True:
            question, caller = self._server.recvfrom(4096)
            if not question:
                return
            self._server.sendto(self._answer(question), caller)

    def _answer(self, question: bytes) -> bytes:
        (number, *_) = _HEADER.unpack_from(question)
        end = question.index(b"\0", _HEADER.size) + 5
        (kind,) = struct.unpack_from("!H", question, end - 4)
        found = self.addresses if kind == _A else []
        self.num_asked += kind == _A
        records = [
            struct.pack("!HHHIH", _POINTER_TO_QUESTION, _A, _IN, 0, 4) + socket.inet_aton(each) for each in found
        ]
        header = _HEADER.pack(number, _ANSWERS, 1, len(records), 0, 0)
        return header + question[_HEADER.size : end] + b"".join(records)


@contextmanager
def name_server() -> Iterator[NameServer]:
    """Run a name server on loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        names = NameServer(server)
        thread = threading.Thread(target=names.run, daemon=True)
        thread.start()
        yield names
        server.sendto(b"", server.getsockname())
        thread.join()


@contextmanager
def black_hole(host: str, port: int) -> Iterator[None]:
    """Let nobody connect to an address, and tell nobody so, as when the machine behind it is gone."""
    with socket.create_server((host, port), backlog=0) as server:
        filling = []
        # Linux drops requests for a connection while as many wait as the server takes.
        for _ in range(8):
            each = socket.socket()
            each.setblocking(False)
            each.connect_ex((host, port))
            filling.append(each)
        yield
        for each in filling:
            each.close()
        server.close()
