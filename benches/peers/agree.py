"""Do both sides compute the same? python agree.py FOLDER, after `thalweg bench --export FOLDER networks`.

Loads data and weights, takes three steps of the same training in PyTorch and compares the losses."""
import pathlib, sys
import torch, torch.nn as nn, torch.nn.functional as F
from safetensors.torch import load_file

sys.argv, folder = [sys.argv[0], "eager", "none"], pathlib.Path(sys.argv[1])
from bench_torch import GPT, LSTMNet, WORK, cnn, lm, mlp

def classes(scores, y): return F.cross_entropy(scores, y)
def adam(p): return torch.optim.Adam(p, lr=1e-3)
def adamw(p): return torch.optim.AdamW(p, lr=3e-4)
NETS = {
    "a": (lambda: mlp(784, 100, 10), lambda p: torch.optim.Adagrad(p, lr=.01), classes),
    "b": (lambda: mlp(784, 1024, 1024, 10), lambda p: torch.optim.SGD(p, lr=.01, momentum=.9), classes),
    "c": (cnn, adam, classes),
    "d": (lambda: GPT(**WORK["d"]), adamw, lm),
    "e": (lambda: GPT(**WORK["e"]), adamw, lm),
    "h": (LSTMNet, adam, classes),
}
worst = 0.0
for name, (build, optimizer, loss) in NETS.items():
    file = folder / f"{name}.safetensors"
    if not file.exists(): continue
    saved = load_file(file)
    net = build()
    weights = [saved[k] for k in sorted(saved) if k not in ("x", "y", "losses")]
    params = list(net.parameters())
    assert [p.shape for p in params] == [w.shape for w in weights], f"{name}: other shapes"
    with torch.no_grad():
        for p, w in zip(params, weights): p.copy_(w)
    opt = optimizer(net.parameters())
    for step, want in enumerate(saved["losses"].tolist()):
        opt.zero_grad()
        got = loss(net(saved["x"]), saved["y"])
        got.backward()
        opt.step()
        worst = max(worst, abs(got.item() - want) / abs(want))
        print(f"{name} step {step}: {want:.6f} here, {got.item():.6f} in PyTorch")
print(f"largest relative difference {worst:.1e}")
sys.exit(worst > 1e-4)
