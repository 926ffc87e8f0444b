"""A process in the place of a vLLM server that takes adapters: random tokens by the seed, and a death after a while.

usage: rollout_server.py PORT ANSWERS, which dies as if by kill -9 before the answer after so many; 0: never
"""

from __future__ import annotations

import json
import os
import random
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock

answered, lock = 0, Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        global answered
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/v1/load_lora_adapter":
            assert (Path(body["lora_path"]) / "adapter_model.safetensors").is_file()
            return self._send({})
        with lock:
            if answered == int(sys.argv[2]) > 0:
                os._exit(9)
            answered += 1
        chance = random.Random(body["seed"])
        tokens = [chance.randrange(1000, 8000) for _ in range(body["max_tokens"])]
        return self._send({"choices": [{"token_ids": tokens}]})

    def _send(self, facts: dict[str, object]) -> None:
        data = json.dumps(facts).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
