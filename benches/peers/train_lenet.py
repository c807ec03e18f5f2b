"""LeNet on MNIST in PyTorch: the network, batches, optimiser and schedule of `thalweg train mnist`.

    python train_lenet.py FOLDER [--seed 0] [--threads 2] [--epochs 3] [--batch 128] [--lr 8e-3] [--compile]

FOLDER has the four gzipped IDX files. Prints one JSON line: the accuracy after the last epoch, the seconds of all of it, and the
seconds until the accuracy on the test set, measured after each epoch, was 99 % for the first time. Images are tensors in
memory, and batches are gathered and moved by up to a pixel in one indexing each, so no time goes into a data loader.
"""

import argparse
import gzip
import json
import struct
import time
from pathlib import Path

import torch
from torch import nn


def idx(path):
    raw = gzip.decompress(Path(path).read_bytes())
    rank = raw[3]
    shape = struct.unpack(f">{rank}I", raw[4 : 4 + 4 * rank])
    return torch.frombuffer(bytearray(raw[4 + 4 * rank :]), dtype=torch.uint8).reshape(shape)


def half(folder, name):
    images = idx(folder / f"{name}-images-idx3-ubyte.gz").float().div(255).unsqueeze(1)
    return images, idx(folder / f"{name}-labels-idx1-ubyte.gz").long()


def lenet():
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def moved(x):
    """Each image by up to a pixel up or down and left or right, black where it was not."""
    n, steps = len(x), torch.arange(28)
    rows, columns = (torch.randint(3, (n, 1)) + steps for _ in range(2))
    padded = nn.functional.pad(x, (1, 1, 1, 1))
    return padded[torch.arange(n)[:, None, None], 0, rows[:, :, None], columns[:, None, :]].unsqueeze(1)


def accuracy(net, x, y):
    net.eval()
    with torch.no_grad():
        hits = sum((net(a).argmax(1) == b).sum().item() for a, b in zip(x.split(500), y.split(500)))
    net.train()
    return hits / len(y)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--lr", type=float, default=8e-3)
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    (x, y), (test_x, test_y) = half(args.folder, "train"), half(args.folder, "t10k")
    net = lenet()
    optimizer = torch.optim.Adam(net.parameters(), lr=args.lr)
    steps = args.epochs * -(-len(x) // args.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=steps, cycle_momentum=False)
    run = torch.compile(net) if args.compile else net

    began, reached, right = time.perf_counter(), None, 0.0
    for _ in range(args.epochs):
        for rows in torch.randperm(len(x)).split(args.batch):
            loss = nn.functional.cross_entropy(run(moved(x[rows])), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        right = accuracy(net, test_x, test_y)
        if reached is None and right >= 0.99:
            reached = time.perf_counter() - began
    seconds = time.perf_counter() - began
    print(json.dumps({"accuracy": right, "seconds": seconds, "seconds_to_99": reached, "steps_per_second": steps / seconds}))


if __name__ == "__main__":
    main()
