"""The composition root: the only place where concrete parts meet.

app = Fusee("sqlite:///fusee.db")

@app.handler("greet", timeout=30)
async def greet(name: str) -> str:
    return f"hello {name}"

async with app.running():                       # the whole platform, in this process
    run = await app.enqueue("greet", {"name": "Ada"})
    print(await run.result())
"""
