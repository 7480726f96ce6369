"""Handlers for the compose file's workers: put yours here, or mount another folder."""

from fusee import Fusee

app = Fusee()


@app.handler()
async def greet(name: str) -> str:
    return f"hello {name}"
