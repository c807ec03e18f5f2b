"""Golden file for layers: outputs and all gradients with given weights, made with PyTorch on the CPU.

    python generate_layers.py [folder]        writes layers.json and layers.safetensors

layers.json is a list of cases. A case has `id`, `layer` (which file of ours builds it), `config`, `training` (the mode),
`inputs`, `outputs`, `params` and `buffers` (names in our convention), `rtol` and `atol`. Tensors of a case:

    <id>:in:<i>  <id>:out:<i>  <id>:ct:<i>        inputs, outputs, and the cotangent of each output that has one
    <id>:din:<i>                                   gradients of float inputs
    <id>:param:<name>  <id>:grad:<name>            weights and their gradients
    <id>:buffer:<name>  <id>:after:<name>          buffers before and after the call

Inputs and weights are float32; everything was computed in float64 and stored as float32.
"""
import json, os, sys
import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import save_file

OUT = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
GEN = torch.Generator().manual_seed(20251)
f64 = torch.float64
TENSORS, CASES = {}, []


def rn(*shape, scale=1.0):
    return torch.randn(shape, generator=GEN) * scale


def store(t):
    return t.detach().to(torch.float32).contiguous().clone() if t.is_floating_point() else t.detach().contiguous().clone()


def case(id, layer, config, module, inputs, names, run=None, training=True, buffers=None, rtol=1e-4, atol=1e-5):
    """names: our name -> (module's tensor, or a function of its parameters that returns the stored view)."""
    module = module.train(training)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(rn(*p.shape, scale=0.4).to(p.dtype) if p.dim() > 1 else rn(*p.shape, scale=0.4).to(p.dtype) + 0.5)
        for n, b in module.named_buffers():
            if b.is_floating_point():
                b.copy_(torch.rand(b.shape, generator=GEN) + 0.5)
    # What is stored is float32, so that is what is computed with.
    module = module.float().double()
    parameters = dict(module.named_parameters())
    for ours, theirs in names.items():
        TENSORS[f'{id}:param:{ours}'] = store(parameters[theirs])
    held = dict(module.named_buffers())
    for ours, theirs in (buffers or {}).items():
        TENSORS[f'{id}:buffer:{ours}'] = store(held[theirs])
    xs = [x.to(f64).requires_grad_(True) if x.is_floating_point() else x for x in inputs]
    ys = (run or (lambda m, *x: m(*x)))(module, *xs)
    ys = list(ys) if isinstance(ys, (tuple, list)) else [ys]
    cts = [rn(*y.shape) for y in ys]
    sum((y * c.to(f64)).sum() for y, c in zip(ys, cts)).backward()
    for i, x in enumerate(inputs):
        TENSORS[f'{id}:in:{i}'] = store(x)
        if x.is_floating_point():
            TENSORS[f'{id}:din:{i}'] = store(xs[i].grad)
    for i, (y, c) in enumerate(zip(ys, cts)):
        TENSORS[f'{id}:out:{i}'], TENSORS[f'{id}:ct:{i}'] = store(y), c
    for ours, theirs in names.items():
        TENSORS[f'{id}:grad:{ours}'] = store(parameters[theirs].grad)
    held = dict(module.named_buffers())
    for ours, theirs in (buffers or {}).items():
        TENSORS[f'{id}:after:{ours}'] = store(held[theirs])
    CASES.append(dict(id=id, layer=layer, config=config, training=training, inputs=len(inputs), outputs=len(ys),
                      params=list(names), buffers=list(buffers or {}), rtol=rtol, atol=atol))


WB = {'weight': 'weight', 'bias': 'bias'}
W = {'weight': 'weight'}

# dense
case('linear', 'linear', dict(inputs=5, outputs=3), nn.Linear(5, 3), [rn(4, 2, 5)], WB)
case('linear_plain', 'linear', dict(inputs=5, outputs=3, bias=False), nn.Linear(5, 3, bias=False), [rn(4, 5)], W)

# convolution
for n, C in ((1, nn.Conv1d), (2, nn.Conv2d), (3, nn.Conv3d)):
    size = [7, 6, 5][:n]
    case(f'conv{n}d', f'conv{n}d', dict(inputs=2, outputs=4, kernel=3), C(2, 4, 3), [rn(2, 2, *size)], WB)
    kw = dict(stride=2, padding=1, dilation=1, groups=2)
    case(f'conv{n}d_strided', f'conv{n}d', dict(inputs=4, outputs=4, kernel=3, bias=False, **kw), C(4, 4, 3, bias=False, **kw), [rn(1, 4, *size)], W)
case('conv2d_same', 'conv2d', dict(inputs=1, outputs=2, kernel=[3, 2], padding='same', dilation=[1, 2]), nn.Conv2d(1, 2, (3, 2), padding='same', dilation=(1, 2)), [rn(2, 1, 5, 6)], WB)
case('conv2d_depthwise', 'conv2d', dict(inputs=3, outputs=3, kernel=3, padding=1, groups=3), nn.Conv2d(3, 3, 3, padding=1, groups=3), [rn(2, 3, 5, 5)], WB)
for n, C in ((1, nn.ConvTranspose1d), (2, nn.ConvTranspose2d), (3, nn.ConvTranspose3d)):
    size = [4, 3, 3][:n]
    case(f'conv_transpose{n}d', f'conv_transpose{n}d', dict(inputs=3, outputs=2, kernel=3), C(3, 2, 3), [rn(2, 3, *size)], WB)
    kw = dict(stride=2, padding=1, output_padding=1, groups=2)
    case(f'conv_transpose{n}d_strided', f'conv_transpose{n}d', dict(inputs=4, outputs=2, kernel=3, bias=False, **kw), C(4, 2, 3, bias=False, **kw), [rn(1, 4, *size)], W)

# pooling
for n in (1, 2, 3):
    size = [8, 7, 6][:n]
    of = lambda name: getattr(nn, f'{name}{n}d')
    case(f'max_pool{n}d', f'max_pool{n}d', dict(kernel=2), of('MaxPool')(2), [rn(2, 3, *size)], {})
    case(f'max_pool{n}d_overlapping', f'max_pool{n}d', dict(kernel=3, stride=2, padding=1), of('MaxPool')(3, stride=2, padding=1), [rn(2, 2, *size)], {})
    case(f'avg_pool{n}d', f'avg_pool{n}d', dict(kernel=3, stride=2, padding=1), of('AvgPool')(3, stride=2, padding=1), [rn(2, 2, *size)], {})
    case(f'adaptive_max_pool{n}d', f'adaptive_max_pool{n}d', dict(output=3), of('AdaptiveMaxPool')(3), [rn(2, 2, *size)], {})
    case(f'adaptive_avg_pool{n}d', f'adaptive_avg_pool{n}d', dict(output=3), of('AdaptiveAvgPool')(3), [rn(2, 2, *size)], {})

# norms
BUF = {'running_mean': 'running_mean', 'running_var': 'running_var'}
for n, C, size in ((1, nn.BatchNorm1d, []), (1, nn.BatchNorm1d, [5]), (2, nn.BatchNorm2d, [3, 4]), (3, nn.BatchNorm3d, [2, 3, 2])):
    for training in (True, False):
        tag = f"batch_norm_{len(size)}d_{'train' if training else 'eval'}"
        case(tag, 'batch_norm', dict(channels=4), C(4), [rn(6, 4, *size)], WB, training=training, buffers=BUF)
case('batch_norm_plain', 'batch_norm', dict(channels=4, affine=False, momentum=0.3, eps=1e-3), nn.BatchNorm2d(4, affine=False, momentum=0.3, eps=1e-3), [rn(3, 4, 3, 3)], {}, buffers=BUF)
case('layer_norm', 'layer_norm', dict(shape=[6]), nn.LayerNorm(6), [rn(3, 4, 6)], WB)
case('layer_norm_2', 'layer_norm', dict(shape=[4, 6], eps=1e-3), nn.LayerNorm((4, 6), eps=1e-3), [rn(3, 4, 6)], WB)
case('layer_norm_no_bias', 'layer_norm', dict(shape=[6], bias=False), nn.LayerNorm(6, bias=False), [rn(3, 6)], W)
case('layer_norm_plain', 'layer_norm', dict(shape=[6], affine=False), nn.LayerNorm(6, elementwise_affine=False), [rn(3, 6)], {})
case('rms_norm', 'rms_norm', dict(shape=[6], eps=1e-6), nn.RMSNorm(6, eps=1e-6), [rn(3, 4, 6)], W)
case('group_norm', 'group_norm', dict(groups=2, channels=6), nn.GroupNorm(2, 6), [rn(3, 6, 4)], WB)
case('instance_norm', 'instance_norm', dict(), nn.InstanceNorm2d(3), [rn(2, 3, 4, 4)], {})
case('instance_norm_affine', 'instance_norm', dict(channels=3), nn.InstanceNorm1d(3, affine=True), [rn(2, 3, 7)], WB)

# tables
idx = torch.tensor([[0, 3, 3], [6, 1, 0]])
case('embedding', 'embedding', dict(rows=7, width=4), nn.Embedding(7, 4), [idx], W)
case('embedding_padding', 'embedding', dict(rows=7, width=4, padding=3), nn.Embedding(7, 4, padding_idx=3), [idx], W)


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(9, 4))

    def forward(self, x):
        return x + self.weight[:x.shape[-2]]


case('learned_positions', 'learned_positions', dict(longest=9, width=4), Positions(), [rn(2, 5, 4)], W)


# recurrent
def cells(layers, directions, bias):
    names = {}
    for k in range(layers * directions):
        theirs = f'l{k // directions}' + ('_reverse' if k % directions else '')
        for part in ('weight_ih', 'weight_hh') + (('bias_ih', 'bias_hh') if bias else ()):
            names[f'cells.{k}.{part}'] = f'{part}_{theirs}'
    return names


def flat_states(m, x, *s):
    y, end = m(x, *([s if len(s) > 1 else s[0]] if s else []))
    return [y, *end] if isinstance(end, tuple) else [y, end]


for kind, C, states in (('rnn', nn.RNN, 1), ('lstm', nn.LSTM, 2), ('gru', nn.GRU, 1)):
    for tag, kw in (('', {}), ('_no_bias', dict(bias=False)), ('_stacked', dict(num_layers=2)), ('_both_ways', dict(bidirectional=True)),
                    ('_stacked_both_ways', dict(num_layers=2, bidirectional=True, batch_first=True))):
        layers, directions = kw.get('num_layers', 1), 2 if kw.get('bidirectional') else 1
        x = rn(3, 5, 3) if kw.get('batch_first') else rn(5, 3, 3)
        s = [rn(layers * directions, 3, 4, scale=0.5) for _ in range(states)] if tag != '_no_bias' else []
        config = dict(input=3, hidden=4, layers=layers, bidirectional=directions == 2, bias=kw.get('bias', True), batch_first=kw.get('batch_first', False))
        case(kind + tag, kind, config, C(3, 4, **kw), [x, *s], cells(layers, directions, kw.get('bias', True)), run=flat_states)
case('rnn_relu', 'rnn', dict(input=3, hidden=4, activation='relu'), nn.RNN(3, 4, nonlinearity='relu'), [rn(5, 3, 3), rn(1, 3, 4)], cells(1, 1, True), run=flat_states)

# attention
MHA = {'qkv.weight': 'in_proj_weight', 'qkv.bias': 'in_proj_bias', 'out.weight': 'out_proj.weight', 'out.bias': 'out_proj.bias'}
pad = torch.tensor([[True] * 5, [True, True, True, False, False]])
causal = torch.ones(5, 5).triu(1).bool()
attend = lambda **kw: lambda m, q, *c: m(q, *(c[:1] * 2 or [q, q]), need_weights=False, **kw)[0]
mha = lambda bias=True: nn.MultiheadAttention(8, 2, batch_first=True, bias=bias)
case('attention', 'attention', dict(width=8, heads=2), mha(), [rn(2, 5, 8)], MHA, run=attend())
case('attention_no_bias', 'attention', dict(width=8, heads=2, bias=False), mha(False), [rn(2, 5, 8)], {k: v for k, v in MHA.items() if 'bias' not in k}, run=attend())
case('attention_causal', 'attention', dict(width=8, heads=2, causal=True), mha(), [rn(2, 5, 8)], MHA, run=attend(attn_mask=causal))
case('attention_padding', 'attention', dict(width=8, heads=2, padding=pad.tolist()), mha(), [rn(2, 5, 8)], MHA, run=attend(key_padding_mask=~pad))
case('attention_causal_padding', 'attention', dict(width=8, heads=2, causal=True, padding=pad.tolist()), mha(), [rn(2, 5, 8)], MHA, run=attend(attn_mask=causal, key_padding_mask=~pad))
case('attention_cross', 'attention', dict(width=8, heads=2, cross=True), mha(), [rn(2, 3, 8), rn(2, 5, 8)], MHA, run=attend())


class Grouped(nn.Module):
    """Heads of queries share keys and values; positions turn queries and keys (half with half)."""

    def __init__(self, width, heads, shared, rotary):
        super().__init__()
        self.heads, self.shared, self.rotary, self.head = heads, shared, rotary, width // heads
        self.qkv, self.out = nn.Linear(width, width + 2 * shared * self.head), nn.Linear(width, width)

    def turn(self, x):
        half = self.head // 2
        angle = torch.arange(x.shape[2], dtype=f64)[:, None] * 10000.0 ** (-torch.arange(half, dtype=f64) * 2 / self.head)
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).split([C, self.shared * self.head, self.shared * self.head], -1)
        q, k, v = [t.view(B, T, -1, self.head).transpose(1, 2) for t in (q, k, v)]
        if self.rotary:
            q, k = self.turn(q), self.turn(k)
        k, v = [t.repeat_interleave(self.heads // self.shared, 1) for t in (k, v)]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(B, T, C))


OWN = {k: k for k in ('qkv.weight', 'qkv.bias', 'out.weight', 'out.bias')}
case('attention_grouped', 'attention', dict(width=16, heads=4, kv_heads=2, causal=True), Grouped(16, 4, 2, False), [rn(2, 5, 16)], OWN)
case('attention_rotary', 'attention', dict(width=16, heads=4, causal=True, rotary=12), Grouped(16, 4, 4, True), [rn(2, 5, 16)], OWN)
case('attention_grouped_rotary', 'attention', dict(width=16, heads=4, kv_heads=1, causal=True, rotary=5), Grouped(16, 4, 1, True), [rn(2, 5, 16)], OWN)


# transformer blocks
def block(cross):
    names = {}
    for ours, theirs in (('norm1', 'norm1'), ('norm2', 'norm3' if cross else 'norm2'), ('mlp.up', 'linear1'), ('mlp.down', 'linear2')) + ((('cross.norm', 'norm2'),) if cross else ()):
        for part in ('weight', 'bias'):
            names[f'{ours}.{part}'] = f'{theirs}.{part}'
    for ours, theirs in (('attention', 'self_attn'),) + ((('cross.attention', 'multihead_attn'),) if cross else ()):
        for k, v in MHA.items():
            names[f'{ours}.{k}'] = f'{theirs}.{v}'
    return names


for first in (True, False):
    tag, kw = ('before' if first else 'after'), dict(batch_first=True, norm_first=first, dropout=0.0)
    config = dict(width=8, heads=2, hidden=12, order=tag)
    case(f'encoder_{tag}', 'transformer', dict(activation='gelu', **config), nn.TransformerEncoderLayer(8, 2, 12, activation='gelu', **kw), [rn(2, 5, 8)], block(False))
    case(f'decoder_{tag}', 'transformer', dict(activation='relu', causal=True, cross=True, **config), nn.TransformerDecoderLayer(8, 2, 12, activation='relu', **kw), [rn(2, 5, 8), rn(2, 3, 8)], block(True),
         run=lambda m, x, c: m(x, c, tgt_mask=causal))

# activations
x = rn(3, 6, scale=2.0)
for name, m, config in (('relu', nn.ReLU(), {}), ('relu6', nn.ReLU6(), {}), ('leaky_relu', nn.LeakyReLU(0.2), dict(slope=0.2)), ('elu', nn.ELU(0.7), dict(slope=0.7)), ('celu', nn.CELU(0.7), dict(slope=0.7)), ('selu', nn.SELU(), {}), ('gelu', nn.GELU(), {}),
                        ('gelu_tanh', nn.GELU('tanh'), {}), ('silu', nn.SiLU(), {}), ('mish', nn.Mish(), {}), ('tanh', nn.Tanh(), {}), ('sigmoid', nn.Sigmoid(), {}), ('log_sigmoid', nn.LogSigmoid(), {}), ('softplus', nn.Softplus(), {}), ('softsign', nn.Softsign(), {}),
                        ('hardtanh', nn.Hardtanh(), {}), ('hardsigmoid', nn.Hardsigmoid(), {}), ('hardswish', nn.Hardswish(), {}), ('tanhshrink', nn.Tanhshrink(), {}), ('softmax', nn.Softmax(-1), {}), ('log_softmax', nn.LogSoftmax(-1), {}), ('glu', nn.GLU(), {}), ('identity', nn.Identity(), {})):
    case(f'activation_{name}', 'activation', dict(name=name, **config), m, [x.clone()], {})
case('prelu', 'prelu', dict(channels=1), nn.PReLU(), [rn(2, 3, 4)], W)
case('prelu_channels', 'prelu', dict(channels=3), nn.PReLU(3), [rn(2, 3, 4)], W)

# dropout does nothing in use
case('dropout_eval', 'dropout', dict(p=0.5), nn.Dropout(0.5), [rn(3, 4)], {}, training=False)


# containers: a small residual network
class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.bn = nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.a, self.abn, self.b, self.bbn = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.c, self.cbn, self.short = nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(6), nn.Conv2d(4, 6, 1, stride=2, bias=False)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        x = F.relu(self.bn(self.stem(x)))
        x = F.relu(x + self.bbn(self.b(F.relu(self.abn(self.a(x))))))
        x = F.relu(self.short(x) + self.cbn(self.c(x)))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


NET = {'0.weight': 'stem.weight', '1.weight': 'bn.weight', '1.bias': 'bn.bias', '3.inner.0.weight': 'a.weight', '3.inner.1.weight': 'abn.weight', '3.inner.1.bias': 'abn.bias', '3.inner.3.weight': 'b.weight', '3.inner.4.weight': 'bbn.weight',
       '3.inner.4.bias': 'bbn.bias', '5.inner.0.weight': 'c.weight', '5.inner.1.weight': 'cbn.weight', '5.inner.1.bias': 'cbn.bias', '5.shortcut.weight': 'short.weight', '9.weight': 'head.weight', '9.bias': 'head.bias'}
NETBUF = {f'{ours}.{b}': f'{theirs}.{b}' for ours, theirs in (('1', 'bn'), ('3.inner.1', 'abn'), ('3.inner.4', 'bbn'), ('5.inner.1', 'cbn')) for b in ('running_mean', 'running_var')}
for training in (True, False):
    case(f"resnet_{'train' if training else 'eval'}", 'resnet', {}, ResNet(), [rn(4, 1, 6, 6)], NET, training=training, buffers=NETBUF, rtol=1e-3, atol=1e-4)

save_file(TENSORS, os.path.join(OUT, 'layers.safetensors'))
with open(os.path.join(OUT, 'layers.json'), 'w') as f:
    f.write('[\n' + ',\n'.join(json.dumps(c) for c in CASES) + '\n]\n')
print(len(CASES), 'cases', len(TENSORS), 'tensors', os.path.getsize(os.path.join(OUT, 'layers.safetensors')), 'bytes')
