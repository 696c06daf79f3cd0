# PyTorch, eagerly, beside ours: each line of input names something to run; the answer is the seconds
# of one call, or "no" and why. It is set up when first asked for and kept until another is named.
#   python3 bench/torch_worker.py THREADS
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(int(sys.argv[1]))
# As the others: processor time on one thread, the time on the wall on several.
clock = time.process_time if sys.argv[1] == "1" else time.perf_counter


class Block(nn.Module):
    def __init__(self, width, heads, time_steps):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        mask = torch.triu(torch.ones(time_steps, time_steps, dtype=torch.bool), 1)
        self.register_buffer("mask", mask)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).split(d, dim=2)
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in (q, k, v))
        o = attention(q, k, v, self.mask)
        x = x + self.out(o.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.n2(x)), approximate="tanh"))


def attention(q, k, v, mask):
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    s = (q @ k.transpose(2, 3)) * q.shape[-1] ** -0.5
    return F.softmax(s.masked_fill(mask, float("-inf")), dim=-1) @ v


class Model(nn.Module):
    def __init__(self, layers, heads, width, time_steps, vocabulary):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(time_steps, width)
        self.blocks = nn.ModuleList(Block(width, heads, time_steps) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


# train SHAPE FORMAT: forward, backward and AdamW of one step; no clipping.
def train(shape, number_format):
    layers, heads, width, time_steps, batch, vocabulary = {
        "tiny": (4, 4, 128, 128, 4, 256),
        "gpt2": (12, 12, 768, 64, 4, 50257),
    }[shape]
    model = Model(layers, heads, width, time_steps, vocabulary)
    adamw = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
    ids = torch.randint(vocabulary, (batch, time_steps))
    targets = torch.randint(vocabulary, (batch, time_steps))

    def step():
        adamw.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=number_format == "bf16"):
            loss = model(ids, targets)
        loss.backward()
        adamw.step()
        return loss.item()

    return step, shape == "gpt2"


# One op on numbers made once; a pair ends in _backward.
eager = {
    "log": lambda x, y: x.log(),
    "sqrt": lambda x, y: x.sqrt(),
    "abs": lambda x, y: x.abs(),
    "cube": lambda x, y: x**3,
    "maximum": torch.maximum,
    "where": lambda x, y: torch.where(x < 0.5, x, y),
    "largest": lambda x, y: x.max(1)[0],
    "largest_down": lambda x, y: x.max(0)[0],
    "log_softmax": lambda x, y: x.log_softmax(1),
    "softmax_down": lambda x, y: x.softmax(0),
    "turned": lambda x, y: x.t().contiguous(),
    "add_turned": lambda x, y: x + y.t(),
    "concat": lambda x, y: torch.cat([x, y], 1),
    "dots": lambda x, y: torch.einsum("ij,ij->i", x, y),
}


def op(name, *sizes):
    sizes = [int(s) for s in sizes]
    x = torch.rand(*sizes[:2]) * 2 - 1
    if name == "matmul":
        m, n, k = sizes
        a, b = torch.rand(m, k), torch.rand(k, n)
        return lambda: a @ b
    if name == "attention" or name == "attention_backward":
        b, h, t, d = sizes
        q, k, v = (torch.randn(b, h, t, d) for _ in range(3))
        mask = torch.triu(torch.ones(t, t, dtype=torch.bool), 1)
        return forward_or_back(name, lambda q, k, v: attention(q, k, v, mask), q, k, v)
    if name == "cross_entropy" or name == "cross_entropy_backward":
        targets = torch.randint(sizes[1], (sizes[0],))
        return forward_or_back(name, lambda x: F.cross_entropy(x, targets), x)
    if name == "linear_cross_entropy":  # both ways
        rows, width, vocab = sizes
        x, w = torch.randn(rows, width), torch.randn(vocab, width) * 0.02
        x.requires_grad_(), w.requires_grad_()
        targets = torch.randint(vocab, (rows,))
        return lambda: torch.autograd.grad(F.cross_entropy(F.linear(x, w), targets), (x, w))
    if name in eager:
        x, y = torch.rand(*sizes), torch.rand(*sizes)
        return lambda: eager[name](x, y)
    if name == "gather":
        ids = (7 * torch.arange(x.numel()) % sizes[1]).reshape(x.shape)
        return lambda: x.gather(1, ids)
    if name == "adamw":
        p = nn.Parameter(x)
        p.grad = torch.rand(*sizes)
        adamw = torch.optim.AdamW([p], lr=1e-3, weight_decay=0.1)
        return adamw.step
    if name == "rms_norm" or name == "rms_norm_backward":
        w = torch.ones(sizes[-1])
        f = lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * w
        return forward_or_back(name, f, x, w)
    if name == "layer_norm" or name == "layer_norm_backward":
        w, b = torch.ones(sizes[-1]), torch.zeros(sizes[-1])
        return forward_or_back(name, lambda x, w, b: F.layer_norm(x, sizes[-1:], w, b), x, w, b)
    ops = {
        "softmax": lambda x: torch.softmax(x, -1),
        "gelu": lambda x: F.gelu(x, approximate="tanh"),
        "silu": F.silu,
        "sum": torch.sum,
        "scale": lambda x: x * 1.5,
    }
    if name == "add":
        y = torch.rand(*sizes)
        return lambda: x + y
    return forward_or_back(name, ops[name.replace("_backward", "")], x)


# The backward alone: the graph is kept and walked again.
def forward_or_back(name, f, *inputs):
    if not name.endswith("_backward"):
        return lambda: f(*inputs)
    inputs = [x.clone().requires_grad_() for x in inputs]
    y = f(*inputs)
    dy = torch.rand_like(y)
    return lambda: torch.autograd.grad(y, inputs, dy, retain_graph=True)


def overhead(name):
    x, y = torch.ones(1), torch.ones(1)
    if name == "graph":
        x.requires_grad_()
    return lambda: x + y


def seconds_of(run, times):
    start = clock()
    for _ in range(times):
        run()
    return (clock() - start) / times


kept = {}


def answer(line):
    words = line.split()
    if line not in kept:
        kept.clear()
        if words[0] == "train":
            run, slow = train(*words[1:])
        elif words[0] == "overhead":
            run, slow = overhead(words[1]), False
        else:
            run, slow = op(*words), False
        once = 1
        if not slow:
            run()
            once = min(seconds_of(run, 1), seconds_of(run, 1))
        kept[line] = run, max(1, int(4e-3 / (once + 1e-9))), once < 0.1
    run, times, warm = kept[line]
    graph = words[0] in ("train", "overhead", "linear_cross_entropy")
    with torch.set_grad_enabled(graph or words[0].endswith("_backward")):
        if warm:
            run()
        return seconds_of(run, times)


print(f"PyTorch {torch.__version__}, eager", flush=True)
for text in sys.stdin:
    try:
        print(f"{answer(text.strip()):.9g}", flush=True)
    except Exception as error:  # pylint: disable=broad-except
        print("no", str(error).replace("\n", " "), flush=True)
