#!/usr/bin/env python3
"""llama.cpp's server, from the package xllamacpp, which carries it as a library.

    PYTHON benchmarks/peers/llama_server.py MODEL.gguf PORT THREADS [MMPROJ.gguf]
"""

import sys
import threading

import xllamacpp


def main():
    model, port, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.hostnames, params.port = ["127.0.0.1"], port
    if len(sys.argv) > 4:
        params.mmproj.path = sys.argv[4]
    params.n_parallel = 1
    params.n_ctx = 8192
    params.use_jinja = True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
