"""PyTorch eager on the workloads of `thalweg bench`: THREADS=2 python bench_torch_ops.py [names or groups].

Prints framework,threads,workload,wall_median,wall_min,cpu_median,cpu_min,n in ms, as the Rust side does.
"""
import os, sys, time
import torch
import torch.nn.functional as F

THREADS = int(os.environ.get("THREADS", "2"))
torch.set_num_threads(THREADS)
torch.manual_seed(0)
ROWS, COLS = 16 << 10, 1 << 10


def rand(*shape):
    return torch.rand(shape) * 2 - 1


def measure(inner, f, budget=1.0, min_runs=11, max_runs=300):
    for _ in range(5 * inner):
        f()
    wall, cpu, start = [], [], time.perf_counter()
    while len(wall) < max_runs and (time.perf_counter() - start < budget or len(wall) < min_runs):
        c, t = time.process_time(), time.perf_counter()
        for _ in range(inner):
            f()
        wall.append((time.perf_counter() - t) * 1e3 / inner)
        cpu.append((time.process_time() - c) * 1e3 / inner)
    wall.sort(), cpu.sort()
    n = len(wall)
    return wall[n // 2], wall[0], cpu[n // 2], cpu[0], n


def chain(x):
    a = x * 2.0
    b = a + 1.0
    c = b * x
    d = c.tanh()
    e = d * b
    f = e - x
    g = f.sigmoid()
    h = g * 0.5
    i = h + x
    return (i * d).sum()


def product(m, k, n):
    a, b = rand(m, k), rand(k, n)
    return measure(1, lambda: torch.mm(a, b))


def chain_backward():
    x = rand(16).requires_grad_(True)
    return measure(100, lambda: torch.autograd.grad(chain(x), x))


def unary(f):
    x = rand(ROWS, COLS)
    return measure(1, lambda: f(x))


def batched():
    a, b = rand(64, 64, 64), rand(64, 64, 64)
    return measure(1, lambda: torch.bmm(a, b))


def add():
    a, b = rand(ROWS, COLS), rand(ROWS, COLS)
    return measure(1, lambda: a + b)


def layer_norm():
    x, w, b = rand(ROWS, COLS), rand(COLS), rand(COLS)
    return measure(1, lambda: F.layer_norm(x, [COLS], w, b))


def small(inner, f):
    x = rand(16)
    return measure(inner, lambda: f(x))


def batch_norm():
    x = rand(64, 64, 32, 32).requires_grad_(True)
    w, b = rand(64).requires_grad_(True), rand(64).requires_grad_(True)
    dy, mean, var = rand(64, 64, 32, 32), rand(64), rand(64)

    def step():
        y = F.batch_norm(x, mean, var, w, b, training=True)
        return torch.autograd.grad((y * dy).sum(), (x, w, b))

    return measure(1, step)


WORKLOADS = {
    "eager": {
        "add16": lambda: small(1000, lambda x: x + 1.0),
        "chain10": chain_backward,
        "chain10-forward": lambda: small(100, chain),
    },
    "product": {
        "mm-100x784x100": lambda: product(100, 784, 100),
        "mm-256x1024x1024": lambda: product(256, 1024, 1024),
        "mm-1024x1024x1024": lambda: product(1024, 1024, 1024),
        "mm-2048x2048x2048": lambda: product(2048, 2048, 2048),
        "mm-1x1024x1024": lambda: product(1, 1024, 1024),
        "bmm-64x64x64x64": batched,
    },
    "stream": {
        "add": add,
        "exp": lambda: unary(torch.exp),
        "sum": lambda: unary(torch.sum),
        "softmax": lambda: unary(lambda x: torch.softmax(x, -1)),
        "layer_norm": layer_norm,
        "sum-rows": lambda: (lambda x: measure(10, lambda: x.sum(0)))(rand(256, 1024)),
        "batch_norm": batch_norm,
        "max_pool": lambda: (lambda x: measure(1, lambda: F.max_pool2d(x, 2)))(rand(64, 64, 64, 64)),
    },
}

# Inference mode would be unfair to nobody here: no input wants a gradient but that of chain10.
asked = sys.argv[1:]
for group, workloads in WORKLOADS.items():
    for name, run in workloads.items():
        if group in asked or name in asked:
            r = run()
            print(f"torch-eager,{THREADS},{name}," + ",".join(f"{v:.6f}" for v in r[:4]) + f",{r[4]}", flush=True)
