"""What the Python clients share: the server's address, the cells of the table, and how checks report.

A client calls `report` once, with a list of checks for every cell, or with the sentence that says
why the cell does not apply to it.
"""

import asyncio
import base64
import inspect
import json
import os
import struct
import time
import traceback
import urllib.request
import zlib

URL = os.environ.get("LANNER_URL", "http://127.0.0.1:11436")
KEY = os.environ.get("LANNER_KEY", "none")
MODEL = "merlin"
CELLS = (
    "chat",
    "stream",
    "tools_auto",
    "tools_required",
    "tools_named",
    "structured_output",
    "completions",
    "responses",
    "messages",
    "embeddings",
    "errors",
    "cancel",
)

QUESTION = "What is the weather in Oslo?"
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
# More tokens than the context of the built-in model.
TOO_LONG = "owl " * 9000
# An answer that goes on for as long as max_tokens lets it: many seconds.
ENDLESS = {"ignore_eos": True}
ENDLESS_TOKENS = 6000


# A red square of 64 x 64 pixels.
PICTURE = base64.b64encode(
    b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            *(
                struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
                for kind, data in [
                    (b"IHDR", struct.pack(">IIBBBBB", 64, 64, 8, 2, 0, 0, 0)),
                    (b"IDAT", zlib.compress((b"\0" + b"\xff\0\0" * 64) * 64)),
                    (b"IEND", b""),
                ]
            ),
        ]
    )
).decode()
PICTURE_URI = f"data:image/png;base64,{PICTURE}"


def check_picture(ask, refusal, tokens):
    """A picture is answered, and its tokens counted; a model without vision refuses it by a sentence."""
    if get("/v1/models")["data"][0]["capabilities"]["vision"]:
        answer = ask()
        assert tokens(answer) > 4, answer
    else:
        check_raises(ask, refusal, "takes no images")


def get(path):
    request = urllib.request.Request(URL + path, headers={"Authorization": f"Bearer {KEY}"})
    return json.load(urllib.request.urlopen(request, timeout=30))


def running():
    return get("/health")["running"]


def check_freed(close, seconds=10):
    """Closing an endless answer's stream ends its request at once, long before its last token."""
    assert running() == 1, f"{running()} requests run"
    close()
    end = time.monotonic() + seconds
    while running():
        assert time.monotonic() < end, f"the server still computes {seconds} s after the client closed"
        time.sleep(0.05)


async def check_freed_async(close, seconds=10):
    """As `check_freed`, in an event loop."""
    assert running() == 1, f"{running()} requests run"
    await close()
    end = time.monotonic() + seconds
    while running():
        assert time.monotonic() < end, f"the server still computes {seconds} s after the client closed"
        await asyncio.sleep(0.05)


async def check_freed_by_cancelling(stream):
    """Cancelling the task that reads an endless stream ends its request, as `check_freed` has it."""
    started = asyncio.Event()

    async def read():
        async for _ in stream:
            started.set()

    reader = asyncio.create_task(read())
    await asyncio.wait([reader, asyncio.create_task(started.wait())], return_when=asyncio.FIRST_COMPLETED)

    async def cancel():
        reader.cancel()
        await asyncio.wait([reader])

    await check_freed_async(cancel)


def check_raises(call, kind, *words):
    """The error of `call`, which is of this kind and names these words."""
    try:
        result = call()
        if inspect.isawaitable(result):
            result = asyncio.run(wait_for(result))
    except kind as error:
        for word in words:
            assert word in str(error), (word, error)
        return error
    raise AssertionError(f"no {kind.__name__}, but {result!r}"[:300])


async def wait_for(awaitable):
    return await awaitable


def check_weather(arguments):
    """Arguments of get_weather, as an object or as JSON."""
    arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    assert list(arguments) == ["city"] and isinstance(arguments["city"], str), arguments
    return arguments["city"]


def report(**cells):
    missing = [cell for cell in CELLS if cell not in cells]
    unknown = [cell for cell in cells if cell not in CELLS]
    assert not missing and not unknown, f"missing cells: {missing}; unknown cells: {unknown}"
    for cell, checks in cells.items():
        if isinstance(checks, str):
            print(json.dumps({"cell": cell, "reason": checks}), flush=True)
            continue
        for check in checks:
            print(json.dumps({"cell": cell, **run(check)}), flush=True)


def run(check):
    started = time.monotonic()
    try:
        if inspect.iscoroutinefunction(check):
            asyncio.run(check())
        else:
            check()
        return {"check": check.__name__, "ok": True, "seconds": round(time.monotonic() - started, 1)}
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if frame.filename == inspect.getfile(check)] or frames
        detail = f"line {ours[-1].lineno}: {type(error).__name__}: {error}"
        return {"check": check.__name__, "ok": False, "detail": detail}
