"""Write src/fusee/surfaces/grpc/generated from the proto beside it; never edit what is written by hand."""

from __future__ import annotations

import sys
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[1]
RPC = ROOT / "src" / "fusee" / "surfaces" / "grpc"
GENERATED = RPC / "generated"


def main(out: Path = GENERATED) -> int:
    failed: int = protoc.main(
        [
            "protoc",
            f"--proto_path={RPC}",
            f"--python_out={out}",
            f"--pyi_out={out}",
            f"--grpc_python_out={out}",
            "batch_scheduler.proto",
        ]
    )
    stubs = out / "batch_scheduler_pb2_grpc.py"
    # It imports its neighbour as if that were installed by itself.
    text = stubs.read_text().replace(
        "import batch_scheduler_pb2 as", "from fusee.surfaces.grpc.generated import batch_scheduler_pb2 as"
    )
    stubs.write_text(text)
    return failed


if __name__ == "__main__":
    sys.exit(main())
