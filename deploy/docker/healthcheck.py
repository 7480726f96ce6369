"""Asks the process of this container how it is: `healthcheck.py /healthz` or `/readyz`; exit code 0 is well.

A process with the API answers there, any other at its status address; this looks at both.
"""

import os
import sys
import urllib.error
import urllib.request

ADDRESSES = (
    ("FUSEE_API__BIND_ADDRESS", "127.0.0.1:8080"),
    ("FUSEE_STATUS__BIND_ADDRESS", "127.0.0.1:9090"),
)
PATIENCE = 4.0
"""Seconds; below the timeout of the image's HEALTHCHECK."""


def url_of(address: str, path: str) -> str:
    host, _, port = address.rpartition(":")
    # Nobody can be called at "every address of this machine".
    host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)
    return f"http://{host}:{port}{path}"


def ask(path: str) -> str | None:
    """Nothing when it is well, else why not."""
    why = "nobody answers"
    for variable, default in ADDRESSES:
        try:
            url = url_of(os.environ.get(variable) or default, path)
            with urllib.request.urlopen(url, timeout=PATIENCE / len(ADDRESSES)):
                return None
        except urllib.error.HTTPError as error:
            return f"{path} answers {error.code}"
        except OSError as error:
            why = f"{path}: {error}"
    return why


if __name__ == "__main__":
    problem = ask(sys.argv[1] if len(sys.argv) > 1 else "/healthz")
    sys.exit(problem)
