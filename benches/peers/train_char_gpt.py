"""nanoGPT's configuration for CPUs in PyTorch: the network, batches, optimiser and schedule of `thalweg train char-gpt`.

    python train_char_gpt.py TEXT [--seed 0] [--threads 2] [--steps 2000] [--batch 12] [--lr 2e-3] [--compile]

Prints one JSON line: the loss over the whole validation split after the last step, seconds (those of validation apart, too), steps
per second. Validates as often as
the recipe does.
"""

import argparse
import json
import math
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

LAYERS, HEADS, WIDTH, CONTEXT = 4, 4, 128, 64


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, bias=False), nn.LayerNorm(WIDTH, bias=False)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH, bias=False), nn.Linear(WIDTH, vocabulary, bias=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                adds = name.endswith(("out.weight", "down.weight"))
                nn.init.trunc_normal_(p, std=0.02 / math.sqrt(2 * LAYERS) if adds else 0.02)

    def forward(self, x, y):
        h = self.tokens(x) + self.positions.weight[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return F.cross_entropy(self.head(self.norm(h)).flatten(0, 1), y.flatten())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("text", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    text = args.text.read_text()
    index = {c: i for i, c in enumerate(sorted(set(text)))}
    tokens = torch.tensor([index[c] for c in text])
    train, test = tokens[: len(tokens) * 9 // 10], tokens[len(tokens) * 9 // 10 :]
    net = Gpt(len(index))
    matrices = [p for p in net.parameters() if p.dim() >= 2]
    others = [p for p in net.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.99))
    run = torch.compile(net) if args.compile else net
    warm, low = min(100, args.steps // 4), args.lr / 20

    def rate(step):
        if step < warm:
            return args.lr * (step + 1) / warm
        return low + (args.lr - low) * 0.5 * (1 + math.cos(math.pi * (step - warm) / (args.steps - warm)))

    def validate():
        starts = torch.arange(0, len(test) - CONTEXT, CONTEXT)
        offsets, total = torch.arange(CONTEXT), 0.0
        with torch.no_grad():
            for s in starts.split(64):
                at = s[:, None] + offsets
                total += net(test[at], test[at + 1]).item() * len(s)
        return total / len(starts)

    began, offsets, validating = time.perf_counter(), torch.arange(CONTEXT), 0.0
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        at = torch.randint(len(train) - CONTEXT, (args.batch, 1)) + offsets
        loss = run(train[at], train[at + 1])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % max(args.steps // 4, 1) == 0:
            paused = time.perf_counter()
            found = validate()
            validating += time.perf_counter() - paused
    seconds = time.perf_counter() - began
    result = {"loss_validation": found, "seconds": seconds, "seconds_validating": validating}
    print(json.dumps(result | {"steps_per_second": args.steps / seconds}))


if __name__ == "__main__":
    main()
