"""The whole platform inside a FastAPI service, and a run that commits with your own data.

python examples/embed_fastapi.py                    serves, places an order, shows what came of it, and ends
uvicorn --app-dir examples embed_fastapi:web        serves until Ctrl-C, on ./shop.db:
curl -X POST localhost:8000/orders -H 'Content-Type: application/json' -d '{"item": "clock", "pieces": 2}'
curl localhost:8000/orders/1

The order and the run that ships it are written in one transaction: there is no order without its run and no
run without its order, whatever crashes when.
"""

import asyncio
import os
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import uvicorn
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field
from sqlalchemy import create_engine, event
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from fusee import Fusee

DATABASE = os.environ.get("SHOP_DATABASE", "sqlite:///shop.db")

fusee = Fusee(DATABASE)
engine = create_engine(DATABASE)


@event.listens_for(engine, "connect")
def wait_for_the_lock(connection: object, record: object) -> None:
    connection.execute("PRAGMA busy_timeout = 10000")  # type: ignore[attr-defined]


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    pieces: Mapped[int]
    state: Mapped[str] = mapped_column(default="ordered")


class NewOrder(BaseModel):
    item: str
    pieces: int = Field(gt=0)


@fusee.handler("ship", timeout=60)
def ship(order_id: int) -> str:
    """A plain function: it runs in a thread, where blocking database calls are welcome.

    It may run twice (the worker may die after the commit), so it says what shall be, not what to add.
    """
    with Session(engine) as session, session.begin():
        order = session.get_one(Order, order_id)
        order.state = "shipped"
        return f"{order.pieces} x {order.item}"


@asynccontextmanager
async def lifespan(web: FastAPI) -> AsyncIterator[None]:
    Base.metadata.create_all(engine)
    async with fusee.running():  # dispatcher and worker, in this process; leaving drains them
        yield
    engine.dispose()


web = FastAPI(title="Shop", lifespan=lifespan)


@web.post("/orders", status_code=202)
async def place(new: NewOrder) -> dict[str, int]:
    with Session(engine) as session, session.begin():
        order = Order(item=new.item, pieces=new.pieces)
        session.add(order)
        session.flush()
        run = await fusee.enqueue("ship", {"order_id": order.id}, within=session)
        return {"order": order.id, "run": run.id}


@web.get("/orders/{order_id}")
def look(order_id: int) -> dict[str, str]:
    with Session(engine) as session:
        order = session.get(Order, order_id)
        if order is None:
            raise HTTPException(404, "no such order")
        return {"item": order.item, "state": order.state}


async def main() -> None:
    """Be your own customer."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()  # whoever calls before the server is ready waits in line
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = uvicorn.Server(uvicorn.Config(web, log_level="warning"))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        async with aiohttp.ClientSession(url) as client:
            async with client.post("/orders", json={"item": "clock", "pieces": 2}) as answer:
                placed = await answer.json()
                print("placed:", answer.status, placed)
            run = await fusee.runs.wait(placed["run"], timeout=30)
            print("run:   ", run.status, run.result)
            async with client.get(f"/orders/{placed['order']}") as answer:
                print("order: ", await answer.json())
        server.should_exit = True
        await serving


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        if "SHOP_DATABASE" not in os.environ:
            url = f"sqlite:///{Path(folder)}/shop.db"
            fusee.config = Fusee(url).config
            engine = create_engine(url)
        asyncio.run(main())
