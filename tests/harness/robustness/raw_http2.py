"""A client of gRPC that breaks its customs: calls without a message, messages without an end, any number of both.

It writes HTTP/2 frames itself (RFC 9113), because no library of gRPC sends half a message.
"""

import socket
import struct
from typing import Self

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_CHUNK_SIZE_BYTES = 16_384
_INITIAL_WINDOW_BYTES = 65_535
_SETTING_INITIAL_WINDOW, _SETTING_MAX_STREAMS = 4, 3


class RawConnection:
    """One connection to a planner; it obeys flow control, and nothing else."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=10)
        self._received = b""
        self._next_stream = 1
        self._window_bytes = _INITIAL_WINDOW_BYTES
        self._initial_window_bytes = _INITIAL_WINDOW_BYTES
        self._stream_window_bytes: dict[int, int] = {}
        self.max_streams: int | None = None
        """The number of streams that the server allows, once it said so."""
        self.ended: set[int] = set()
        """Streams that the server ended."""
        self.is_closed = False
        self._socket.sendall(_PREFACE + _frame(_SETTINGS, 0, 0, b""))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    @property
    def num_open(self) -> int:
        """The number of calls that the server has not ended."""
        return (self._next_stream - 1) // 2 - len(self.ended)

    def call(self, path: str, token: str | None = None) -> int:
        """Start a call of `path`, for example `/relibra.v1.PlanService/FetchPlan`, by its headers alone."""
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        headers = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "planner"}
        headers |= {"content-type": "application/grpc", "te": "trailers"}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        block = b"".join(b"\x00" + _text(name) + _text(value) for name, value in headers.items())
        self._stream_window_bytes[stream] = self._initial_window_bytes
        self._send(_frame(_HEADERS, _END_HEADERS, stream, block))
        return stream

    def send_headers_without_an_end(self, num_frames: int) -> None:
        """Start a call with frames of headers, none of which is the last one, or until the server hangs up."""
        block = (b"\x00" + _text("name") + _text("value")) * (_CHUNK_SIZE_BYTES // 16)
        self._send(_frame(_HEADERS, 0, self._next_stream, block))
        for _ in range(num_frames):
            self._send(_frame(_CONTINUATION, 0, self._next_stream, block))

    def half_close(self) -> None:
        """Send nothing more, and leave the connection open for what the server sends."""
        self._socket.shutdown(socket.SHUT_WR)

    def send_part(self, stream: int, part_size_bytes: int, message_size_bytes: int) -> int:
        """Send the beginning of a message; return how many bytes the server took before it stopped taking any."""
        data = b"\x00" + struct.pack(">I", message_size_bytes) + bytes(part_size_bytes)
        sent = 0
        while sent < len(data) and not self.is_closed and stream not in self.ended:
            room = min(self._window_bytes, self._stream_window_bytes[stream], _CHUNK_SIZE_BYTES, len(data) - sent)
            if room <= 0:
                if not self.receive(timeout_s=0.2):
                    break
                continue
            self._send(_frame(_DATA, 0, stream, data[sent : sent + room]))
            self._window_bytes -= room
            self._stream_window_bytes[stream] -= room
            sent += room
            self.receive(timeout_s=0)
        return sent

    def receive(self, timeout_s: float) -> bool:
        """Handle the frames that arrive within `timeout_s`; return whether any came."""
        if self.is_closed:
            return False
        self._socket.settimeout(timeout_s or 1e-6)
        try:
            data = self._socket.recv(1 << 20)
        except TimeoutError:
            return False
        except OSError:
            data = b""
        self.is_closed = not data
        self._received += data
        while len(self._received) >= 9:
            size_bytes = int.from_bytes(self._received[:3], "big")
            if len(self._received) < 9 + size_bytes:
                break
            kind, flags, stream = struct.unpack(">BBI", self._received[3:9])
            payload, self._received = self._received[9 : 9 + size_bytes], self._received[9 + size_bytes :]
            self._handle(kind, flags, stream, payload)
        return bool(data)

    def _handle(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _SETTINGS and not flags & _ACK:
            for setting, value in struct.iter_unpack(">HI", payload):
                if setting == _SETTING_INITIAL_WINDOW:
                    for each in self._stream_window_bytes:
                        self._stream_window_bytes[each] += value - self._initial_window_bytes
                    self._initial_window_bytes = value
                elif setting == _SETTING_MAX_STREAMS:
                    self.max_streams = value
            self._send(_frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            self._send(_frame(_PING, _ACK, 0, payload))
        elif kind == _WINDOW_UPDATE:
            (more_bytes,) = struct.unpack(">I", payload)
            if stream:
                self._stream_window_bytes[stream] += more_bytes
            else:
                self._window_bytes += more_bytes
        elif kind == _RST_STREAM or (kind == _HEADERS and flags & _END_STREAM):
            self.ended.add(stream)
        elif kind == _GOAWAY:
            self.is_closed = True

    def _send(self, data: bytes) -> None:
        self._socket.settimeout(10)
        try:
            self._socket.sendall(data)
        except OSError:
            self.is_closed = True


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def _text(text: str) -> bytes:
    """Return a literal of HPACK without Huffman code (RFC 7541, 5.2); its length takes 7 bits, then 7 bits per byte."""
    data, length = text.encode(), len(text.encode())
    if length < 127:
        return bytes((length,)) + data
    rest, coded = length - 127, bytearray((127,))
    while rest >= 128:
        coded.append(rest % 128 + 128)
        rest //= 128
    coded.append(rest)
    return bytes(coded) + data
