"""What rows with a JSON schema cost the rows beside them: the decode speed of plain rows in a full batch.

    python3 benchmarks/constrained_rows.py LANNER [--model MODEL] [--rows 64] [--rounds 5]

Starts LANNER's server and sends it ROWS requests at once: in turns all of them plain, and half of them
with a schema. Compares the tokens per second of the same half, the plain one, as the server measures
them for each request (`timings`), so that the client's own work does not count. Answers of the other
half are longer and therefore run to the end beside it. Run it on an idle machine.
"""

import argparse
import concurrent.futures
import json
import socket
import statistics
import subprocess
import time
import urllib.request

# No answer of this schema is over before its number of tokens is.
BIRD = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Z][a-z]{2,30}( [a-z]{2,30})?$"},
        "legs": {"type": "integer", "minimum": 0, "maximum": 4},
        "habitat": {"enum": ["forest", "meadow", "shore", "town"]},
        "songs": {"type": "array", "items": {"type": "string", "maxLength": 40}, "maxItems": 5},
    },
    "required": ["name", "legs", "habitat", "songs"],
    "additionalProperties": False,
}
SCHEMA = {"type": "array", "items": BIRD, "minItems": 1000}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("lanner")
    parser.add_argument("--model", help="a model as `lanner serve --model` takes it")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=200, help="tokens of each measured answer")
    parser.add_argument("--speculation", default="off", help="the requests' `speculation`")
    options = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [options.lanner, "serve", "--port", str(port), "--disk-cache", "off"]
    command += ["--max-batch", str(options.rows), "--queue-limit", str(options.rows)]
    command += ["--model", options.model] if options.model else []
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
        try:
            measure(f"http://127.0.0.1:{port}", options)
        finally:
            server.terminate()


def measure(url, options):
    wait_until_ready(url)
    run(url, options, constrained=True)
    plain, beside = [], []
    for number in range(options.rounds):
        plain.append(run(url, options, constrained=False))
        beside.append(run(url, options, constrained=True))
        print(f"round {number + 1}: {plain[-1]:.2f} and {beside[-1]:.2f} tokens/s per row", flush=True)
    slower = 100 * (1 - statistics.median(beside) / statistics.median(plain))
    half = options.rows // 2
    print(f"{half} plain rows beside {half} plain rows:       {statistics.median(plain):.2f} tokens/s per row")
    print(f"{half} plain rows beside {half} constrained rows: {statistics.median(beside):.2f} tokens/s per row")
    print(f"slower by {slower:.1f} %")


def wait_until_ready(url):
    end = time.monotonic() + 600
    while True:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).read()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def run(url, options, constrained):
    """The median speed of the first half of the rows."""
    half = options.rows // 2
    with concurrent.futures.ThreadPoolExecutor(options.rows) as pool:
        measured = [pool.submit(ask, url, options, row, options.tokens) for row in range(half)]
        others = [
            pool.submit(ask, url, options, half + row, 2 * options.tokens, constrained) for row in range(half)
        ]
        timings = [future.result() for future in measured]
        for other in others:
            other.result()
    return statistics.median(timing["predicted_per_second"] for timing in timings)


def ask(url, options, row, tokens, constrained=False):
    body = {
        # Prompts differ from their first word on, so that none waits for another's prefix.
        "messages": [{"role": "user", "content": f"{row}: name birds."}],
        "max_tokens": tokens,
        "temperature": 1,
        "seed": row,
        "speculation": options.speculation,
    }
    body |= {"guided_json": SCHEMA} if constrained else {"ignore_eos": True}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    answer = json.load(urllib.request.urlopen(request, timeout=1200))
    assert answer["usage"]["completion_tokens"] == tokens, answer["usage"]
    return answer["timings"]


if __name__ == "__main__":
    main()
