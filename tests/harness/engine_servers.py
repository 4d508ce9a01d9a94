"""`python -m harness.engine_servers ANSWERS`: HTTP servers of inference engines, each below a path of its own.

`ANSWERS` is JSON: a status and a body for each engine and path. A path with a query goes before the path without it.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from harness import child_process

Answers = Mapping[str, Any]
"""The body of each path; a list gives the key that the path asks for as well."""
NOT_FOUND = {"detail": "Not Found"}
"""What FastAPI, on which both engines are built, answers to a path that it does not have."""


@contextmanager
def engine_servers(engines: Mapping[str, Answers]) -> Iterator[str]:
    """Run the servers in a process of their own; return the URL below which they are."""
    command = child_process.command("harness.engine_servers", json.dumps(engines))
    with subprocess.Popen(command, env=child_process.environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


class _Handler(BaseHTTPRequestHandler):
    engines: Mapping[str, Answers]

    def do_GET(self) -> None:
        """Answer as the engine in the path."""
        _, name, place = self.path.split("/", 2)
        answers = self.engines[name]
        body = answers.get(f"/{place}", answers.get("/" + place.partition("?")[0], [404, NOT_FOUND, None]))
        status, value, api_key = body if isinstance(body, list) else [200, body, None]
        if api_key is not None and self.headers.get("Authorization") != f"Bearer {api_key}":
            status, value = 401, {"error": "Unauthorized"}
        self._send(status, value)

    def _send(self, status: int, value: Any) -> None:
        content = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


if __name__ == "__main__":
    _Handler.engines = json.loads(sys.argv[1])
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        print(server.server_port, flush=True)
        server.serve_forever()
