"""Do both sides compute the same? python agree.py FOLDER, after `thalweg bench --export FOLDER networks`.

Loads data and weights, takes three steps of the same training in PyTorch and compares the losses; of what is not trained,
the results. bf16 has 8 bits: its losses differ by what rounding in another order makes of them."""
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
    "e-bf16": (lambda: GPT(**WORK["e"]), adamw, lm),
    "h": (LSTMNet, adam, classes),
}
TOLERANCE, OF_BF16 = 1e-4, 1e-2

def load(name, build):
    """The file of a workload and the net with its weights."""
    saved, net = load_file(folder / f"{name}.safetensors"), build()
    weights = [saved[k] for k in sorted(saved) if k[0].isdigit()]
    params = list(net.parameters())
    assert [p.shape for p in params] == [w.shape for w in weights], f"{name}: other shapes"
    with torch.no_grad():
        for p, w in zip(params, weights): p.copy_(w)
    return saved, net

def exists(name): return (folder / f"{name}.safetensors").exists()

too_far = []
def compare(name, what, difference):
    print(f"{name}: largest relative difference of {what} {difference:.1e}")
    if not difference <= (OF_BF16 if name == "e-bf16" else TOLERANCE): too_far.append(name)

for name, (build, optimizer, loss) in NETS.items():
    if not exists(name): continue
    saved, net = load(name, build)
    opt, worst = optimizer(net.parameters()), 0.0
    for want in saved["losses"].tolist():
        opt.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=name == "e-bf16"): scores = net(saved["x"])
        got = loss(scores.float(), saved["y"])
        got.backward()
        opt.step()
        worst = max(worst, abs(got.item() - want) / abs(want))
    compare(name, "a loss", worst)
def difference(got, want): return ((got - want).abs().max() / want.abs().max()).item()
with torch.inference_mode():
    if exists("f"):
        saved, net = load("f", cnn)
        compare("f", "a score", difference(net(saved["x"]), saved["result"]))
    if exists("g"):
        saved = load_file(folder / "g.safetensors"); x = saved["x"]
        compare("g", "a number", difference(torch.tanh(x * 1.5 + .25) * torch.sigmoid(x) + x, saved["result"]))
if too_far: sys.exit("not the same as PyTorch: " + ", ".join(too_far))
